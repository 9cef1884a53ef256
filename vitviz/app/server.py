"""The server of the pages: addresses, style sheet, and what is loaded when it starts."""

import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import streamlit as st
from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from vitviz.options import OptionError
from vitviz.text import OPENING, PAGES

_HERE = Path(__file__).parent
_INTERVAL = 0.0002  # seconds after which an import lets the answer to a browser go first
_LATER = 3.0  # seconds after the first page: until it is on screen
_ready: threading.Thread | None = None


class _PageName(Convertor[str]):
    """A page's name in large or small letters."""

    regex = f"(?i:{'|'.join(PAGES)})"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", _PageName())


def _document(request: Request) -> Response:
    """Streamlit's HTML document with our style sheet in its head, so that it applies at once."""
    name, base = request.path_params.get("name", ""), _base()
    if name == OPENING or name != name.lower():
        place = "" if name.lower() == OPENING else name.lower()
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{base}/{place}{query}")
    document = Path(st.__file__).with_name("static") / "index.html"
    style = f"<style>{(_HERE / 'style.css').read_text(encoding='utf-8')}</style>"
    html = document.read_text(encoding="utf-8").replace("</head>", f"{style}</head>", 1)
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


def _base() -> str:
    """Of every address, "" or "/something"."""
    base = st.get_option("server.baseUrlPath").strip("/")
    return f"/{base}" if base else ""


@asynccontextmanager
async def _lifespan(_: st.App) -> AsyncIterator[None]:
    global _ready
    _ready = threading.Thread(target=_make_ready, daemon=True)
    _ready.start()
    if not st.get_option("server.headless"):
        host = st.get_option("browser.serverAddress")
        if st.get_option("server.address") not in (None, "0.0.0.0", "::"):
            host = st.get_option("server.address")
        url = f"http://{host}:{st.get_option('server.port')}{_base()}"
        threading.Timer(0.2, webbrowser.open, [url]).start()  # once the server listens
    yield


def _make_ready() -> None:
    """Load what the first page needs while the browser still loads the document."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_INTERVAL)
    try:
        from vitviz.app.shared import models

        import_module(f"vitviz.app.screens.{OPENING}")
        import_module("pandas")  # plotly fails on one that another session's thread is importing
        with suppress(OptionError):  # the page says it
            models.make_ready()
    finally:
        sys.setswitchinterval(interval)
    # Filters and Tokens need it, and would take most of a second longer when they are first seen.
    later = threading.Timer(_LATER, import_module, ["sklearn.decomposition"])
    later.daemon = True
    later.start()


def wait() -> None:
    """Wait until that is loaded: two threads that import the same modules slow each other down."""
    if _ready is not None:
        _ready.join()


#: The arguments of `streamlit.App`, which Streamlit must find by its name in the file that it runs.
APP: dict[str, Any] = dict(
    script_path=_HERE / "main.py",
    lifespan=_lifespan,
    routes=[Route(f"{_base()}/", _document), Route(f"{_base()}/{{name:page}}", _document)],
)


def run(settings: Mapping[str, Any]) -> None:
    """Serve the app until it is stopped, with these options of Streamlit."""
    st.App(**APP).run(config=settings)
