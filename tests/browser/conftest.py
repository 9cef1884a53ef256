"""The real app in a real browser: one server and one chromium, a new context for every test."""

import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import urlsplit

import pytest
from app_server import HERE, PATIENCE, Server, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page, ViewportSize

# Both are Debian's and built from one source. The headless shell has no window, and loads a page
# with two thirds of the processor time.
_CHROMIUMS = (Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium"))
CHROMIUM = next((path for path in _CHROMIUMS if path.exists()), _CHROMIUMS[-1])
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--font-render-hinting=none",  # so that both set the same text equally wide
)
WIDTH, HEIGHT = 1280, 720
# Opened at a page's own address, Streamlit asks for its health below it, is told 404, and goes on.
PROBE = re.compile(r"/\w+/_stcore/(health|host-config)$")

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"there is no {CHROMIUM}")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def server(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("server") / "log") as server:
        yield server


@contextmanager
def watched(
    browser: "Browser",
    scheme: Scheme = "light",
    *,
    online: bool = True,
    host: str = HERE,
    locale: str = "en-US",
) -> "Iterator[Page]":
    """A page of its own; at its end there was no error, no dialog and no request but to `host`.

    Where it is not `online`, the network is cut, and files are opened.
    """
    wrong: list[str] = []
    schemes = ("data", "blob", *(() if online else ("file", "about")))

    def note(what: str, words: str, counts: bool = True) -> None:
        if counts:
            wrong.append(f"{what}: {words}")

    def reach(url: str) -> None:
        where = urlsplit(url)
        note("request", url, where.hostname != host and where.scheme not in schemes)

    def refuse(dialog: "Dialog") -> None:
        note("dialog", dialog.message)
        dialog.dismiss()

    viewport: ViewportSize = {"width": WIDTH, "height": HEIGHT}
    context = browser.new_context(
        viewport=viewport, color_scheme=scheme, offline=not online, locale=locale
    )
    context.set_default_timeout(1000 * PATIENCE)
    context.on(
        "console",
        lambda line: note(
            "console",
            line.text,
            line.type == "error" and not PROBE.search(line.location.get("url", "")),
        ),
    )
    context.on("weberror", lambda error: note("page", str(error.error)))
    context.on("request", lambda request: reach(request.url))
    try:
        page = context.new_page()
        page.on("websocket", lambda connection: reach(connection.url))
        page.on("dialog", refuse)
        yield page
        assert not wrong, "\n".join(wrong)
    finally:
        context.close()


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[[], Page]]":
    """Makes pages, each in a context of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(watched(browser))


@pytest.fixture
def page(visit: "Callable[[], Page]") -> "Page":
    return visit()
