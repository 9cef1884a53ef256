"""One HTML file that needs nothing else: no server, no network, no other file.

Its components are the same modules as the app's. A content security policy in the file allows its
own scripts by their hashes and nothing from elsewhere.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from plotly.offline import get_plotlyjs

from ..language import spoken
from .components import MODULES, gzipped

Components = Mapping[str, Mapping[str, Any]]


def file(
    title: str, body: str, components: Components, figures: Mapping[str, Any] | None = None
) -> str:
    """The file.

    Parameters
    ----------
    title, body : HTML
    components : mapping of "attention" and "anatomy" to the components of each kind, by the id of
        the element in the body that they are drawn in
    figures : mapping of such ids to Plotly's figures, optional
    """
    data: dict[str, Any] = {}
    photos: list[str] = []  # each once
    modules, allowed = [], []
    for kind, each in components.items():
        if each:
            shown = {name: _without(one, photos) for name, one in each.items()}
            data[kind] = {"components": shown, "style": MODULES[kind].style()}
            source = f'{MODULES[kind].script()}{_page_script()}await showAll("{kind}", mount);\n'
            modules.append(source)
    if figures:
        plotly = get_plotlyjs()
        allowed.append(plotly)  # which the page puts into itself
        data["figures"] = {"figures": figures, "plotly": _packed_plotly()}
        modules.append(f'{_page_script()}await showFigures("figures");\n')
    return _asset("page.html").format(
        lang=spoken(),
        policy=_policy(*allowed, *modules),
        title=title,
        style=_asset("page.css"),
        waiting=" ".join(data),
        body=body,
        data="\n".join(_json(*named) for named in [*data.items(), ("photos", photos)]),
        modules="\n".join(f'<script type="module">{source}</script>' for source in modules),
    )


@cache  # packing takes long, and is the same for every report
def _packed_plotly() -> list[str]:
    return gzipped(np.frombuffer(get_plotlyjs().encode(), np.uint8))


def _without(component: Mapping[str, Any], photos: list[str]) -> dict[str, Any]:
    """A component with the numbers of its photos in the list, to which they are added."""

    def numbered(stack: dict[str, Any]) -> dict[str, Any]:
        picture = stack["stack"].get("picture")
        if picture is None:
            return stack
        if picture not in photos:
            photos.append(picture)
        return {**stack, "stack": {**stack["stack"], "picture": photos.index(picture)}}

    return {**component, "stacks": [numbered(stack) for stack in component["stacks"]]}


def _json(name: str, value: Any) -> str:
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="data-{name}">{text}</script>'


def _policy(*scripts: str) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _page_script() -> str:
    return unpacking() + _asset("page.js")


def unpacking() -> str:
    """The JavaScript that reads the numbers of a component."""
    return _asset("unpacked.js")


def _asset(name: str) -> str:
    return (Path(__file__).with_name(name)).read_text(encoding="utf-8")
