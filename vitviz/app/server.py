"""The server of the pages: addresses, style sheet, and the models it loads at start-up."""

import gzip
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import streamlit as st
from click.core import ParameterSource
from starlette.convertors import Convertor, register_url_convertor
from starlette.datastructures import Headers, MutableHeaders
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
from streamlit import runtime
from streamlit.delta_generator_singletons import context_dg_stack
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.web.bootstrap import load_config_options
from streamlit.web.cli import main_run

from vitviz.app.options import OptionError
from vitviz.app.pages import OPENING, PAGES
from vitviz.app.shared import classroom, limits, visitors
from vitviz.common.malloc import tune_malloc
from vitviz.text.classroom import NO_KEY, TEACHERS_LINK

# Bounds what uploads take: Streamlit keeps every file that a session sends, under any id.
#
# A page refers to two of them at most, those of its uploader and of its camera, and has its own
# copy of the picture by then. Whoever speaks to the server without a page could fill the memory.

MOST_FILES = 2  # of a session, the newest
MOST_BYTES = 512_000_000  # of all sessions


tune_malloc()  # here, as there are few threads yet: each may have an arena, which then stays


class BoundedUploads:
    """Middleware that counts uploads by visitor, and deletes old ones after each new one."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "PUT":
            return await self._app(scope, receive, send)
        if refusal := _count_upload(Request(scope)):
            return await refusal(scope, receive, send)
        await self._app(scope, receive, send)
        sweep()


def _count_upload(request: Request) -> Response | None:
    """Count an upload of a visitor; returns the answer if they may send no more."""
    allowance = limits.uploads()
    if allowance is None or visitors.is_teachers_request(request):
        return None
    name = limits.name_of(visitors.address_of(request))
    if minutes := allowance.minutes_to_wait(name):
        wait = {"Retry-After": str(60 * minutes)}
        return PlainTextResponse(limits.explain_uploads(minutes), 429, headers=wait)
    allowance.spend(name, 1)
    return None


class BoundedVisitors:
    """Middleware that refuses further pages where too many visitors wait already."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket" and limits.is_overrun():
            return await send({"type": "websocket.close"})
        await self._app(scope, receive, send)


def sweep() -> None:
    """Delete old files: those of sessions that have ended, and more than a server can hold."""
    if not runtime.exists():
        return
    server = runtime.get_instance()
    manager = server.uploaded_file_mgr
    assert isinstance(manager, MemoryUploadedFileManager)
    sessions = {info.session.id for info in server._session_mgr.list_sessions()}
    for session, files in list(manager.file_storage.items()):
        if session not in sessions:
            manager.remove_session_files(session)
            continue
        for file in list(files)[:-MOST_FILES]:
            manager.remove_file(session, file)
    remaining = [
        (file == [*files][-1], session, file, len(record.data))
        for session, files in manager.file_storage.items()
        for file, record in files.items()
    ]
    total = sum(size for *_, size in remaining)
    for _, session, file, size in sorted(remaining, key=lambda one: one[0]):  # the newest last
        if total <= MOST_BYTES:
            break
        total -= size
        manager.remove_file(session, file)


_HERE = Path(__file__).parent
_INTERVAL = 0.0002  # seconds after which an import lets the answer to a browser go first
_LATER = 3.0  # seconds after the first page: until it is on screen
_ROOM = 64 * 2**20  # bytes of Streamlit's own files in memory; all of them take 26 MB
_PACKED = (b"text/", b"application/j", b"image/svg")  # what gzip makes smaller: scripts, styles
_ready: threading.Thread | None = None
_visited = threading.Lock()  # taken for good by the first visitor's page


class _PageName(Convertor[str]):
    """A page's name in large or small letters."""

    regex = f"(?i:{'|'.join(PAGES)})"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("page", _PageName())


def _document(request: Request) -> Response:
    """Return Streamlit's HTML document with our style sheet, so that it applies at once."""
    name, base = request.path_params.get("name", ""), visitors.base_path()
    if name == OPENING or name != name.lower():
        place = "" if name.lower() == OPENING else name.lower()
        query = f"?{request.url.query}" if request.url.query else ""
        return RedirectResponse(f"{base}/{place}{query}")
    if limits.is_overrun():
        return HTMLResponse(limits.full_page(), 503, headers={"Retry-After": "60"})
    document = Path(st.__file__).with_name("static") / "index.html"
    style = f"<style>{(_HERE / 'style.css').read_text(encoding='utf-8')}</style>"
    # A browser that translates the page replaces texts that Streamlit then no longer finds, and
    # shows the answer of another picture. The pages have languages of their own.
    meta = '<meta name="google" content="notranslate">'
    html = document.read_text(encoding="utf-8").replace("</head>", f"{meta}{style}</head>", 1)
    html = html.replace("<html ", '<html translate="no" ', 1)
    answer = HTMLResponse(html, headers={"Cache-Control": "no-cache"})
    if visitors.for_class() and visitors.BROWSER_COOKIE not in request.cookies:
        # A strict one would not come along where the page is opened by a link of another site.
        _set_cookie(answer, request, visitors.BROWSER_COOKIE, uuid4().hex, samesite="lax")
    return answer


def _teacher(request: Request) -> Response:
    """Make whoever has the key a teacher, by a cookie, and redirect to the app."""
    if not visitors.is_key(request.path_params["key"]):
        return PlainTextResponse(NO_KEY, status_code=403)
    answer = RedirectResponse(f"{visitors.base_path()}/")
    _set_cookie(answer, request, visitors.COOKIE, visitors.LINK_KEY, samesite="strict")
    return answer


def _set_cookie(
    answer: Response, request: Request, name: str, value: str, *, samesite: Literal["lax", "strict"]
) -> None:
    answer.set_cookie(
        name,
        value,
        httponly=True,
        samesite=samesite,
        secure=request.url.scheme == "https",
        path=f"{visitors.base_path()}/",
    )


async def _changes(_: Request) -> Response:
    """Return how often the shared state has changed; pages ask once a second."""
    room = classroom.room()
    counts = {"shown": room.shown, "guessed": room.guessed}
    return JSONResponse(counts, headers={"Cache-Control": "no-store"})


class RelativeRedirects:
    """Middleware that makes redirects relative, as a proxy may put a prefix before paths."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def relative(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(raw=message["headers"])
                if (to := headers.get("location", "")).startswith("/"):
                    headers["location"] = f"./{'../' * (scope['path'].count('/') - 1)}{to[1:]}"
            await send(message)

        await self._app(scope, receive, relative)


class KeptFiles:
    """Middleware that keeps immutable files in memory and sends them compressed.

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
        headers = Headers(scope=scope) if scope["type"] == "http" else {}
        if scope["type"] != "http" or scope["method"] != "GET" or "range" in headers:
            return await self._app(scope, receive, send)
        answer = self._answer(scope["path"], "gzip" in headers.get("accept-encoding", ""))
        if answer is None:
            return await self._app(scope, receive, self._listening(scope["path"], send))
        await send(answer[0])
        await send({"type": "http.response.body", "body": answer[1]})

    def _answer(self, path: str, packed: bool) -> tuple[Message, bytes] | None:
        answer = self._kept.get(path)
        if answer is None or not packed:
            return answer
        if path not in self._packed:
            self._packed[path] = _compress(*answer)
        return self._packed[path]

    def _listening(self, path: str, send: Send) -> Send:
        """Send on, and store the answer if it is a whole file that never changes."""
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


def _compress(start: Message, body: bytes) -> tuple[Message, bytes]:
    """Return the answer compressed by gzip, if its type gains from it."""
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
    # Streamlit makes this when it is first asked, and two first visitors at once would make two.
    context_dg_stack.get()
    _ready = threading.Thread(target=_make_ready, daemon=True)
    _ready.start()
    if not st.get_option("server.headless"):
        url = visitors.local_address()
        threading.Timer(0.2, webbrowser.open, [url]).start()  # once the server listens
    if visitors.for_class() and (reached := visitors.lan_address()):
        print(TEACHERS_LINK.format(url=f"{reached}/teacher/{visitors.LINK_KEY}"), flush=True)
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
            models.preload()
    finally:
        sys.setswitchinterval(interval)


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
    models.freeze_libraries()


def wait() -> None:
    """Wait for the libraries: two threads that import the same modules slow each other down.

    The first visitor's page begins to load what other pages need, so that a server without visitors
    stays small.
    """
    if _ready is not None:
        _ready.join()
        if _visited.acquire(blocking=False):
            later = threading.Timer(_LATER, _make_more_ready)
            later.daemon = True
            later.start()


def _routes() -> list[Route]:
    base = visitors.base_path()
    return [
        Route(f"{base}/", _document),
        Route(f"{base}/{{name:page}}", _document),
        Route(f"{base}/teacher/{{key}}", _teacher),
        Route(f"{base}/class", _changes),
    ]


#: The arguments of `streamlit.App`, which Streamlit must find by its name in the file that it runs.
APP: dict[str, Any] = dict(
    script_path=_HERE / "main.py",
    lifespan=_lifespan,
    middleware=[
        Middleware(KeptFiles),
        Middleware(BoundedVisitors),
        Middleware(BoundedUploads),
        Middleware(RelativeRedirects),
    ],
    routes=_routes(),
)


def run(settings: Mapping[str, Any], chosen: Mapping[str, Any]) -> None:
    """Serve the app until it is stopped.

    Parameters
    ----------
    settings : options of Streamlit, where none of its environment variables says otherwise
    chosen : those that nothing overrides
    """
    # `streamlit run` reads the variables by click; st.App.run reads none.
    context = main_run.make_context("run", [])
    variables = {
        name.replace("_", "."): value
        for name, value in context.params.items()
        if "_" in name and context.get_parameter_source(name) is ParameterSource.ENVIRONMENT
    }
    options = {**settings, **variables, **chosen}
    load_config_options(options)  # the routes begin with server.baseUrlPath
    st.App(**APP | {"routes": _routes()}).run(config=options)
