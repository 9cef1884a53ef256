"""The server of the pages: addresses, style sheet, and what is loaded when it starts."""

import gzip
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
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
)
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vitviz.app.shared import classroom, visitors
from vitviz.options import OptionError
from vitviz.text import OPENING, PAGES
from vitviz.text.classroom import NO_KEY, TEACHERS_LINK

_HERE = Path(__file__).parent
_INTERVAL = 0.0002  # seconds after which an import lets the answer to a browser go first
_LATER = 3.0  # seconds after the first page: until it is on screen
_ROOM = 64 * 2**20  # bytes of Streamlit's own files in memory; all of them take 26 MB
_PACKED = (b"text/", b"application/j", b"image/svg")  # what gzip makes smaller: scripts, styles
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
    name, base = request.path_params.get("name", ""), visitors.base()
    if name == OPENING or name != name.lower():
        place = "" if name.lower() == OPENING else name.lower()
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{base}/{place}{query}")
    document = Path(st.__file__).with_name("static") / "index.html"
    style = f"<style>{(_HERE / 'style.css').read_text(encoding='utf-8')}</style>"
    html = document.read_text(encoding="utf-8").replace("</head>", f"{style}</head>", 1)
    return HTMLResponse(html, headers={"Cache-Control": "no-cache"})


def _teacher(request: Request) -> Response:
    """Makes whoever has the key a teacher, by a cookie, and leads to the app."""
    if not visitors.is_key(request.path_params["key"]):
        return PlainTextResponse(NO_KEY, status_code=403)
    answer = RedirectResponse(f"{visitors.base()}/")
    answer.set_cookie(
        visitors.COOKIE,
        visitors.KEY,
        httponly=True,
        samesite="strict",
        secure=request.url.scheme == "https",
        path=f"{visitors.base()}/",
    )
    return answer


async def _changes(_: Request) -> Response:
    """How often what the class shares has changed, which pages ask for once a second."""
    room = classroom.room()
    counts = {"shown": room.shown, "guessed": room.guessed}
    return JSONResponse(counts, headers={"Cache-Control": "no-store"})


class KeptFiles:
    """Keeps the files that the server calls immutable in memory, and sends them compressed.

    A browser that comes for the first time asks for 110 of them. Streamlit reads each from disk
    anew, which takes the server more time than the page itself, and sends 3.8 MB. Compressed they
    are 1.5 MB, which matters where a class shares one network. The first visitor gets them as they
    are, so that nobody waits for the compression of all.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._kept: dict[str, tuple[Message, bytes]] = {}
        self._packed: dict[str, tuple[Message, bytes]] = {}
        self._room = _ROOM

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asked = Headers(scope=scope) if scope["type"] == "http" else {}
        if scope["type"] != "http" or scope["method"] != "GET" or "range" in asked:
            return await self._app(scope, receive, send)
        answer = self._answer(scope["path"], "gzip" in asked.get("accept-encoding", ""))
        if answer is None:
            return await self._app(scope, receive, self._listening(scope["path"], send))
        await send(answer[0])
        await send({"type": "http.response.body", "body": answer[1]})

    def _answer(self, path: str, packed: bool) -> tuple[Message, bytes] | None:
        kept = self._kept.get(path)
        if kept is None or not packed:
            return kept
        if path not in self._packed:
            self._packed[path] = _packed(*kept)
        return self._packed[path]

    def _listening(self, path: str, send: Send) -> Send:
        """Sends on, and keeps the answer where it is a whole file that never changes."""
        start: Message = {}
        body = bytearray()

        async def listen(message: Message) -> None:
            nonlocal start
            if message["type"] == "http.response.start" and _never_changes(message):
                start = message
            elif message["type"] == "http.response.body" and start:
                body.extend(message.get("body", b""))
                whole = not message.get("more_body") and path not in self._kept
                if whole and len(body) <= self._room:
                    self._room -= len(body)
                    self._kept[path] = (start, bytes(body))
            await send(message)

        return listen


def _never_changes(start: Message) -> bool:
    headers = Headers(raw=start["headers"])
    own = "set-cookie" in headers or "content-encoding" in headers
    return start["status"] == 200 and "immutable" in headers.get("cache-control", "") and not own


def _packed(start: Message, body: bytes) -> tuple[Message, bytes]:
    """The same answer in gzip, where that is of use."""
    headers = [(name.lower(), value) for name, value in start["headers"]]
    if not dict(headers).get(b"content-type", b"").startswith(_PACKED):
        return start, body
    body = gzip.compress(body, 6)
    sized = [pair for pair in headers if pair[0] != b"content-length"]
    sized += [(b"content-length", str(len(body)).encode()), (b"content-encoding", b"gzip")]
    return {**start, "headers": [*sized, (b"vary", b"Accept-Encoding")]}, body


@asynccontextmanager
async def _lifespan(_: st.App) -> AsyncIterator[None]:
    global _ready
    _ready = threading.Thread(target=_make_ready, daemon=True)
    _ready.start()
    if not st.get_option("server.headless"):
        host = st.get_option("browser.serverAddress")
        if st.get_option("server.address") not in (None, "0.0.0.0", "::"):
            host = st.get_option("server.address")
        url = f"http://{host}:{st.get_option('server.port')}{visitors.base()}"
        threading.Timer(0.2, webbrowser.open, [url]).start()  # once the server listens
    if visitors.for_class() and (reached := visitors.lan_address()):
        print(TEACHERS_LINK.format(url=f"{reached}/teacher/{visitors.KEY}"), flush=True)
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
    later = threading.Timer(_LATER, _make_more_ready)
    later.daemon = True
    later.start()


def _make_more_ready() -> None:
    """Load the library that finds principal components, before Filters or Tokens is opened.

    That takes most of a second. Only `inspection` imports it, so the app asks there for the
    components of a small matrix.
    """
    import numpy as np

    from vitviz import inspection
    from vitviz.app.shared import models
    from vitviz.zoo import leave_cores_free

    inspection.filter_components(np.eye(2).reshape(2, 2, 1, 1), n_components=1)
    leave_cores_free()  # again: scipy has come with it, and with scipy a BLAS of its own
    models.settle()


def wait() -> None:
    """Wait until that is loaded: two threads that import the same modules slow each other down."""
    if _ready is not None:
        _ready.join()


#: The arguments of `streamlit.App`, which Streamlit must find by its name in the file that it runs.
APP: dict[str, Any] = dict(
    script_path=_HERE / "main.py",
    lifespan=_lifespan,
    middleware=[Middleware(KeptFiles)],
    routes=[
        Route(f"{visitors.base()}/", _document),
        Route(f"{visitors.base()}/{{name:page}}", _document),
        Route(f"{visitors.base()}/teacher/{{key}}", _teacher),
        Route(f"{visitors.base()}/class", _changes),
    ],
)


def run(settings: Mapping[str, Any]) -> None:
    """Serve the app until it is stopped, with these options of Streamlit."""
    st.App(**APP).run(config=settings)
