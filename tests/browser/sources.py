"""Components in a page whose modules the browser loads itself: their sources, nothing joined."""

import itertools
import json
from typing import TYPE_CHECKING, Any

from app_server import HERE
from node import WEB

from vitviz.web.report.components import MODULES

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

ORIGIN = f"http://{HERE}:1"  # where nobody listens: each request is answered here
_COUNT = itertools.count()
ENTRIES = {"attention": "token_map/view.js", "anatomy": "anatomy_map/view.js"}
PAGE = """<!doctype html><body data-waiting="{kind}" style="margin: 0"><div id="shown"></div>
<script type="application/json" id="data-{kind}">{data}</script>
<script type="application/json" id="data-photos">{photos}</script>
<script type="module">
import mount from "./{entry}";
import {{ showAll }} from "./report/page.js";
await showAll("{kind}", mount);
window.component = document.getElementById("shown").shadowRoot.view;
</script>"""


def open_sources(page: "Page", kind: str, component: dict[str, Any]) -> None:
    """Open a component as a report has it, made by `report.components`."""
    photos = [stack["stack"].get("picture") for stack in component["stacks"]]
    numbered = [
        {**stack, "stack": {**stack["stack"], **({"picture": i} if photos[i] else {})}}
        for i, stack in enumerate(component["stacks"])
    ]
    shown = {"shown": {"stacks": numbered, "view": component["view"]}}
    data = {"components": shown, "style": MODULES[kind].style()}
    html = PAGE.format(
        kind=kind,
        entry=ENTRIES[kind],
        data=json.dumps(data).replace("<", "\\u003c"),
        photos=json.dumps(photos),
    )

    url = serve_sources(page, html)
    page.goto(f"{url}/page")
    page.locator("body[data-ready]").wait_for(state="attached")


def serve_sources(page: "Page", html: str = "") -> str:
    """Return an address below which the page finds the modules, no two times the same ones."""
    count = next(_COUNT)

    def answer(route: "Route") -> None:
        path = route.request.url.removeprefix(f"{ORIGIN}/{count}/")
        if path == "page":
            route.fulfill(body=html, content_type="text/html; charset=utf-8")
        else:
            headers = {"Access-Control-Allow-Origin": "*", "Content-Type": "text/javascript"}
            route.fulfill(path=WEB / path, headers=headers)

    page.route(f"{ORIGIN}/{count}/**", answer)
    return f"{ORIGIN}/{count}"
