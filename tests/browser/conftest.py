"""The real app in a real browser: one server and one chromium, a new context for every test."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Dialog, Page

ROOT = Path(__file__).parents[2]
HERE = "127.0.0.1"
CHROMIUM = "/usr/bin/chromium"
FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
WIDTH, HEIGHT = 1280, 720
# Opened at a page's own address, Streamlit asks for its health below it, is told 404, and goes on.
PROBE = re.compile(r"/\w+/_stcore/(health|host-config)$")
PATIENCE = 30.0  # seconds, of every wait: the machine may have other work

Scheme = Literal["light", "dark"]


class Server(NamedTuple):
    url: str
    start: float  # seconds until it answered
    pid: int


@pytest.fixture(scope="package")
def browser() -> "Iterator[Browser]":
    if not Path(CHROMIUM).exists() and not os.environ.get("CI"):
        pytest.skip(f"there is no {CHROMIUM}")
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=1000 * PATIENCE)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield chromium
        chromium.close()


@pytest.fixture(scope="package")
def server(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`streamlit run app.py`, without a network; it ends with no traceback in what it said."""
    with socket.socket() as free:
        free.bind((HERE, 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py"]
    options = ["--server.headless", "true", "--server.port", str(port)]
    options += ["--server.fileWatcherType", "none"]  # an edit meanwhile would reload half of it
    log = tmp_path_factory.mktemp("server") / "log"
    begun = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *options],
            cwd=ROOT,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://{HERE}:{port}"
    try:
        while not _answers(url):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < begun + PATIENCE, log.read_text()
            time.sleep(0.05)
        yield Server(url, time.monotonic() - begun, process.pid)
    finally:
        _end(process)
    assert "Traceback" not in log.read_text(), log.read_text()


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/_stcore/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and all that it started."""
    os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@contextmanager
def watched(browser: "Browser", scheme: Scheme = "light") -> "Iterator[Page]":
    """A page of its own; at its end there was no error, no dialog and no request to elsewhere."""
    wrong: list[str] = []

    def note(what: str, words: str, counts: bool = True) -> None:
        if counts:
            wrong.append(f"{what}: {words}")

    def reach(url: str) -> None:
        where = urlsplit(url)
        note("request", url, where.hostname != HERE and where.scheme not in ("data", "blob"))

    def refuse(dialog: "Dialog") -> None:
        note("dialog", dialog.message)
        dialog.dismiss()

    context = browser.new_context(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme=scheme)
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
