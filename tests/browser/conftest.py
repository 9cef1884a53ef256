"""The real app in a real browser: one server, one chromium, and one page for most tests."""

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
    "--use-fake-device-for-media-stream",  # a camera, which asks for no leave
    "--use-fake-ui-for-media-stream",
)
# In the tests a page lives for seconds: V8's optimising compilers take more time than they save.
# Where a bar of time is among the tests they are on, as in the browsers of readers.
LESS_COMPILED = "--js-flags=--no-maglev --no-turbofan"
WIDTH, HEIGHT = 1280, 720
# Opened at a page's own address, Streamlit asks for its health below it, is told 404, and goes on.
PROBE = re.compile(r"/\w+/_stcore/(health|host-config)$")

Scheme = Literal["light", "dark"]


@pytest.fixture(scope="package")
def browser(request: pytest.FixtureRequest) -> "Iterator[Browser]":
    if not CHROMIUM.exists() and not os.environ.get("CI"):
        pytest.skip(f"there is no {CHROMIUM}")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        bars = any(item.get_closest_marker("bars") for item in request.session.items)
        flags = FLAGS if bars else (*FLAGS, LESS_COMPILED)
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
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
    with noted(browser, scheme, online=online, host=host, locale=locale) as (page, wrong):
        yield page
        assert not wrong, "\n".join(wrong)


@contextmanager
def noted(
    browser: "Browser", scheme: Scheme, *, online: bool, host: str, locale: str
) -> "Iterator[tuple[Page, list[str]]]":
    """A page of its own, and what goes wrong on it."""
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
        yield page, wrong
    finally:
        context.close()


@pytest.fixture
def visit(browser: "Browser") -> "Iterator[Callable[[], Page]]":
    """Makes pages, each in a context of its own."""
    with ExitStack() as stack:
        yield lambda: stack.enter_context(watched(browser))


@pytest.fixture(scope="package")
def one_page(browser: "Browser") -> "Iterator[tuple[Page, list[str]]]":
    with noted(browser, "light", online=True, host=HERE, locale="en-US") as page_and_wrong:
        yield page_and_wrong


@pytest.fixture
def page(request: pytest.FixtureRequest, browser: "Browser") -> "Iterator[Page]":
    """One page for all tests, as it loads the app anew in half of the processor time.

    Each test gets it empty, and in the app a session of its own. What adds a script or a clock to
    its page, which stay, takes one from `visit` instead. Bars of time have a page of their own, in
    which no other test has left work for the browser.
    """
    if request.node.get_closest_marker("bars"):
        yield request.getfixturevalue("visit")()
        return
    page, wrong = request.getfixturevalue("one_page")
    yield page
    if page.url.startswith("http"):
        page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.goto("about:blank")
    page.unroute_all()
    page.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    page.emulate_media(color_scheme="light", reduced_motion="null")
    page.mouse.move(0, 0)
    page.context.clear_cookies()
    page.context.clear_permissions()
    found = "\n".join(wrong)
    wrong.clear()
    assert not found, found
