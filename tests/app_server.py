"""Runs the real server, and ends it with all that it started."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
HERE = "127.0.0.1"
PATIENCE = 90.0  # seconds: the machine may be slow, or have other work


class Server(NamedTuple):
    url: str
    start: float  # seconds until it answered
    pid: int
    log: Path  # what it says


def free_port() -> int:
    with socket.socket() as free:
        free.bind((HERE, 0))
        port: int = free.getsockname()[1]
        return port


@contextmanager
def serving(
    log: Path,
    *words: str,
    port: int | None = None,
    command: Sequence[str] = (sys.executable, "-m", "streamlit", "run", "app.py"),
    env: Mapping[str, str] = os.environ,
    cwd: Path = ROOT,
    prefix: str = "",
) -> Iterator[Server]:
    """`streamlit run app.py`, without a network; it ends with no traceback in what it said.

    Parameters
    ----------
    log : file of what it says
    words : further ones of the command line
    command, env, cwd : another way to run it
    prefix : of its addresses
    """
    port = port or free_port()
    said = {"HF_HUB_OFFLINE": "1", "STREAMLIT_SERVER_HEADLESS": "true"}
    said |= {"STREAMLIT_SERVER_PORT": str(port)}
    begun = time.monotonic()
    with log.open("w") as file:
        process = subprocess.Popen(
            [*command, *words],
            cwd=cwd,
            env={**env, **said},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    url = f"http://{HERE}:{port}{prefix}"
    try:
        wait_for(url, process, log)
        yield Server(url, time.monotonic() - begun, process.pid, log)
    finally:
        _end(process)
    assert "Traceback" not in log.read_text(), log.read_text()


def wait_for(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    """Wait until the server at an address answers."""
    deadline = time.monotonic() + PATIENCE
    while not _answers(url):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


def _answers(url: str) -> bool:
    try:
        with urlopen(f"{url}/_stcore/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and all that it started; a test may have killed it before."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
