"""Download in a subprocess, which is ended when it makes no progress or is cancelled."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from time import monotonic
from typing import IO, Any

from .weights import HubError, Weights

TIMEOUT = 30.0  # seconds without a new byte
_START = 60.0  # seconds that the subprocess may take to start
_TICK = 0.2  # seconds between two calls of `progress`, at most
_ROOT = Path(__file__).parents[3]  # contains vitviz, which need not be installed


def download(
    weights: Weights,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """Download a file into the hub's cache, and check its bytes.

    Parameters
    ----------
    progress : callable, optional
        Called several times a second with the bytes received and the bytes in total (None until
        that is known). An exception in it cancels the download.
    timeout : float
        Seconds without a new byte after which the download fails.

    Returns
    -------
    Path
        The file in the cache.

    Raises
    ------
    HubError
        When the download fails.
    """
    from huggingface_hub import constants

    order = [weights.repo, weights.file, weights.revision, constants.HF_HUB_CACHE]
    child = subprocess.Popen(
        [sys.executable, "-P", "-m", "vitviz.common.hub.child", *order],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=_environment(),
    )
    assert child.stdout is not None
    lines: SimpleQueue[bytes | None] = SimpleQueue()
    reader = Thread(target=_read, args=(child.stdout, lines), daemon=True)
    reader.start()
    try:
        return _monitor(lines, progress or (lambda done, total: None), timeout)
    finally:
        _end(child)
        reader.join()
        child.stdout.close()


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    # Plain HTTP only, so that progress and resuming work alike everywhere.
    plain = {"HF_HUB_DISABLE_XET": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    return {**os.environ, **plain, "PYTHONPATH": path}


def _read(stream: IO[bytes], lines: "SimpleQueue[bytes | None]") -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _monitor(
    lines: "SimpleQueue[bytes | None]",
    progress: Callable[[int, int | None], None],
    timeout: float,
) -> Path:
    received, total = 0, None
    deadline, report_time = monotonic() + _START, 0.0
    while True:
        if monotonic() - report_time >= _TICK:
            progress(received, total)
            report_time = monotonic()
        if monotonic() > deadline:
            raise HubError("nothing new came from the hub for {timeout:g} seconds", timeout=timeout)
        try:
            line = lines.get(timeout=_TICK)
        except Empty:
            continue
        if line is None:
            raise HubError("the download ended before its time")
        event: dict[str, Any] = json.loads(line)
        if "path" in event:
            progress(received, total)
            return Path(event["path"])
        if "failed" in event:
            english, values = event["failed"]
            raise HubError(english, **event["about"], **values)
        total = event.get("total", total)
        # A restarted transfer makes progress only beyond the bytes that it had before.
        if event["stage"] != "transfer":
            # A check waits for no hub: 10 GB take over a minute on a slow disk.
            deadline = math.inf if event["stage"] == "check" else monotonic() + timeout
        elif event["done"] > received:
            received = event["done"]
            deadline = monotonic() + timeout


def _end(child: "subprocess.Popen[bytes]") -> None:
    if child.poll() is None:
        child.terminate()  # SIGTERM, on which it removes its partial file
        try:
            child.wait(2)
        except subprocess.TimeoutExpired:
            child.kill()
    child.wait()
