"""A server on this machine that answers as the hub does, well or in one of the ways to fail."""

import hashlib
import re
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from vitviz.common.hub import Weights

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def put_in_cache(cache: Path, weights: Weights, data: bytes) -> None:
    """Lay a file where the hub's client looks for it."""
    folder = cache / f"models--{weights.repo.replace('/', '--')}"
    file = folder / "snapshots" / COMMIT / weights.file
    for path, content in ((folder / "refs" / "main", COMMIT.encode()), (file, data)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def contents(cache: Path) -> set[str]:
    """What lies in the cache as weights or as a part of them."""
    return {path.name for path in cache.rglob("*") if path.is_file() and path.stat().st_size > 1000}


class HubServer:
    """Files of repositories, and how the next answers are.

    Attributes
    ----------
    files : what is served, by "owner/name/file"
    mode : "ok"; "503"; "silent": accepts and never answers; "silent half": stops in the middle;
        "cut": breaks off in the middle; "corrupt": other bytes than were announced
    times : how many downloads are so before they are well again; None: all
    claimed : the size that is announced; None: the true one
    resumes : whether a download may begin in the middle
    delay : seconds between two parts of 64 KB
    asked : the requests so far, with the first byte that was asked for
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.mode, self.times, self.claimed = "ok", None, None  # type: str, int | None, int | None
        self.resumes, self.delay = True, 0.0
        self.asked: list[tuple[str, str, int]] = []
        self.closing = threading.Event()
        outer = self

        class Handler(_Handler):
            hub = outer

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.02,))
        self.thread.start()

    def serve(self, folder: Path, repo: str) -> None:
        """Serve the files of a folder as a repository."""
        for path in folder.iterdir():
            self.files[f"{repo}/{path.name}"] = path.read_bytes()

    def close(self) -> None:
        """May be called twice."""
        self.closing.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join()

    def fails(self) -> bool:
        """Whether this download goes wrong; one less is left to."""
        if self.mode == "ok" or self.times == 0:
            return False
        self.times = None if self.times is None else self.times - 1
        return True


class _Handler(BaseHTTPRequestHandler):
    hub: HubServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer(send=False)

    def do_GET(self) -> None:
        with suppress(ConnectionError):  # who has asked may be gone
            self._answer(send=True)

    def _answer(self, *, send: bool) -> None:
        hub, path = self.hub, self.path.strip("/")
        first = int((re.findall(r"bytes=(\d+)-", self.headers.get("Range", "")) or [0])[0])
        hub.asked.append((self.command, path, first))
        if hub.mode == "silent":
            hub.closing.wait()
            return
        repo, _, rest = path.partition("/resolve/")
        data = hub.files.get(f"{repo}/{rest.partition('/')[2]}")
        if hub.mode == "503" or data is None:
            self.send_response(503 if hub.mode == "503" else 404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if not hub.resumes:
            first = 0
        self.send_response(206 if first else 200)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("ETag", f'"{hashlib.sha256(data).hexdigest()}"')
        size = len(data) if hub.claimed is None else hub.claimed
        self.send_header("Content-Length", str(size - first))
        if first:
            self.send_header("Content-Range", f"bytes {first}-{size - 1}/{size}")
        self.end_headers()
        if send:
            self._send(data, first)

    def _send(self, data: bytes, first: int) -> None:
        hub, half = self.hub, len(data) // 2
        fails = hub.fails()
        if fails and hub.mode == "corrupt":
            data = bytes(len(data))
        last = max(first, half) if fails and hub.mode in ("cut", "silent half") else len(data)
        for start in range(first, last, 2**16):
            self.wfile.write(data[start : min(start + 2**16, last)])
            hub.closing.wait(hub.delay)
        if fails and hub.mode == "silent half":
            hub.closing.wait()
        self.close_connection = True
