"""Streamlit's own files: kept in memory, and packed. test_server.py asks the real server."""

import asyncio
import gzip
from collections.abc import Callable
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import Message, Receive, Scope, Send

from vitviz.app import server as app_server
from vitviz.app.server import KeptFiles

WORDS = b"const answer = 42;\n" * 50
FOR_EVER = "public, immutable, max-age=31536000"
SCRIPT = {"content-type": "text/javascript", "cache-control": FOR_EVER}


def visit(
    kept: KeptFiles, path: str = "/static/a.js", *, method: str = "GET", **headers: str
) -> tuple[int, Headers, bytes]:
    """Status, headers and body of the answer to a request."""
    said: list[Message] = []

    async def send(message: Message) -> None:
        said.append(message)

    async def receive() -> Message:
        return {"type": "http.request"}

    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope: Scope = {"type": "http", "method": method, "path": path, "headers": pairs}
    asyncio.run(kept(scope, receive, send))
    body = b"".join(message.get("body", b"") for message in said[1:])
    return said[0]["status"], Headers(raw=said[0]["headers"]), body


@pytest.fixture
def asked() -> list[str]:
    """What the server itself was asked for."""
    return []


@pytest.fixture
def answering(asked: list[str]) -> Callable[..., KeptFiles]:
    """Makes the files of a server that answers everything in two parts, with these headers."""

    def make(status: int = 200, **headers: str) -> KeptFiles:
        pairs = {"content-length": str(len(WORDS)), **headers}
        raw = [(name.encode(), value.encode()) for name, value in pairs.items()]

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            asked.append(scope["path"])
            await send({"type": "http.response.start", "status": status, "headers": raw})
            await send({"type": "http.response.body", "body": WORDS[:7], "more_body": True})
            await send({"type": "http.response.body", "body": WORDS[7:]})

        return KeptFiles(app)

    return make


def test_a_file_that_never_changes_is_read_once(
    answering: Callable[..., KeptFiles], asked: list[str]
) -> None:
    kept = answering(**SCRIPT)
    answers = [visit(kept) for _ in range(3)]
    assert answers == [answers[0]] * 3
    assert answers[0][2] == WORDS
    assert asked == ["/static/a.js"]
    visit(kept, "/static/b.js")
    assert asked == ["/static/a.js", "/static/b.js"]


def test_it_is_packed_for_those_who_can_unpack_it(answering: Callable[..., KeptFiles]) -> None:
    kept = answering(**SCRIPT)
    first = visit(kept, accept_encoding="gzip, br")
    assert (first[1].get("content-encoding"), first[2]) == (None, WORDS)
    status, headers, body = visit(kept, accept_encoding="gzip, br")
    assert (status, headers["content-encoding"]) == (200, "gzip")
    assert headers["vary"] == "Accept-Encoding"
    assert headers["content-length"] == str(len(body))
    assert len(body) < len(WORDS) / 10
    assert gzip.decompress(body) == WORDS
    assert (headers["content-type"], headers["cache-control"]) == ("text/javascript", FOR_EVER)
    assert visit(kept)[2] == WORDS
    font = answering(**{**SCRIPT, "content-type": "font/woff2"})  # which is packed already
    assert [visit(font, accept_encoding="gzip")[2] for _ in range(2)] == [WORDS] * 2


@pytest.mark.parametrize(
    ("answer", "request_"),
    [
        ({"cache-control": "no-cache"}, {}),
        ({"cache-control": "public"}, {}),
        ({"set-cookie": "a=b"}, {}),
        ({"content-encoding": "br"}, {}),
        ({"status": 404}, {}),
        ({}, {"method": "HEAD"}),
        ({}, {"method": "POST"}),
        ({}, {"range": "bytes=0-9"}),
    ],
)
def test_nothing_else_is_kept(
    answer: dict[str, Any],
    request_: dict[str, str],
    answering: Callable[..., KeptFiles],
    asked: list[str],
) -> None:
    kept = answering(**{**SCRIPT, **answer})
    assert visit(kept, **request_) == visit(kept, **request_)
    assert len(asked) == 2


def test_many_who_come_first_at_once_take_the_room_of_one(
    answering: Callable[..., KeptFiles], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(app_server, "_ROOM", 2 * len(WORDS))
    kept = answering(**SCRIPT)

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        await asyncio.sleep(0)  # the others go on

    async def all_at_once() -> None:
        scope: Scope = {"type": "http", "method": "GET", "path": "/static/a.js", "headers": []}
        await asyncio.gather(*(kept(scope, receive, send) for _ in range(5)))

    asyncio.run(all_at_once())
    assert len(asked) == 5
    for _ in range(2):
        visit(kept, "/static/b.js")
    assert asked[5:] == ["/static/b.js"]


def test_there_is_an_end_to_what_is_kept(
    answering: Callable[..., KeptFiles], asked: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever asks for one file under ever new names does not fill the memory."""
    monkeypatch.setattr(app_server, "_ROOM", 3 * len(WORDS))
    kept = answering(**SCRIPT)
    for _ in range(2):
        for number in range(5):
            assert visit(kept, f"/static/{'./' * number}a.js")[2] == WORDS
    assert len(asked) == 5 + 2
