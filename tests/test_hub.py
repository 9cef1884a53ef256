"""Downloads from a server on this machine that fails in every way; no test reaches the network."""

import errno
import hashlib
import os
import ssl
import time
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from examples import assert_clear_error
from hub_server import COMMIT, HubServer, contents

from vitviz.common import hub
from vitviz.common.hub import HubError, Weights, download, downloading, find_cached
from vitviz.common.hub.child import FULL, UNWRITABLE, explain_error
from vitviz.common.language import Message

WEIGHTS = Weights("timm/some", "model.safetensors")
DATA = np.random.default_rng(0).bytes(1_000_000)


@pytest.fixture
def server(server: HubServer) -> HubServer:
    """With one file."""
    server.files["timm/some/model.safetensors"] = DATA
    return server


def refused(**options: Any) -> HubError:
    """Why a download failed; half a minute at the most is for a busy machine."""
    begun = time.monotonic()
    with pytest.raises(HubError) as caught:
        download(WEIGHTS, **{"timeout": 1, **options})
    assert time.monotonic() - begun < 30
    assert find_cached(WEIGHTS) is None
    assert_clear_error(f"It failed, because {caught.value}.")
    return caught.value


# --- downloads that end well --------------------------------------------------------------------


def test_a_download_is_in_the_cache_and_stays_there(server: HubServer, cache: Path) -> None:
    assert find_cached(WEIGHTS) is None
    path = download(WEIGHTS)
    assert path.read_bytes() == DATA
    assert path.is_relative_to(cache)
    assert path.parent.name == COMMIT  # of a branch, the commit is looked up once
    assert find_cached(Weights(WEIGHTS.repo, WEIGHTS.file, COMMIT)) == path
    assert {asked[1].split("/")[3] for asked in server.asked if asked[0] == "GET"} == {COMMIT}
    server.close()
    assert find_cached(WEIGHTS) == path


def test_a_commit_is_asked_for_by_its_name(server: HubServer, cache: Path) -> None:
    pinned = Weights(WEIGHTS.repo, WEIGHTS.file, COMMIT)
    assert find_cached(pinned) is None
    assert download(pinned).read_bytes() == DATA
    assert all("/main/" not in asked[1] for asked in server.asked)
    assert find_cached(WEIGHTS) is None  # what the branch is was not asked


def test_a_slow_download_tells_its_progress_and_is_not_ended_by_the_timeout(
    server: HubServer, cache: Path
) -> None:
    server.delay = 0.15  # a pause after every 64 KB: 2.4 s in all
    told: list[tuple[int, int | None]] = []
    download(WEIGHTS, timeout=1, progress=lambda done, total: told.append((done, total)))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[0] == (0, None)
    assert told[-1] == (len(DATA), len(DATA))
    assert len({done for done, _ in told if 0 < done < len(DATA)}) >= 2


def test_the_check_of_a_large_file_has_no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a disk that reads 100 MB in a second, 10 GB take longer than a minute."""
    monkeypatch.setattr(downloading, "monotonic", count(step=10).__next__)
    lines: SimpleQueue[bytes | None] = SimpleQueue()
    lines.put(b'{"stage": "check"}')
    calls = count()

    def progress(done: int, total: int | None) -> None:
        if next(calls) == 5:  # of which each takes 30 s
            lines.put(b'{"path": "whole"}')

    assert downloading._monitor(lines, progress, 30) == Path("whole")


@pytest.mark.parametrize("resumes", [True, False])
def test_a_download_that_is_cut_once_goes_on_where_it_was(
    resumes: bool, server: HubServer, cache: Path
) -> None:
    """Or the server sends all again."""
    server.mode, server.times, server.resumes = "cut", 1, resumes
    assert download(WEIGHTS, timeout=10).read_bytes() == DATA
    first, second = (asked[2] for asked in server.asked if asked[0] == "GET")
    assert first == 0
    assert 400_000 < second <= 500_000


# --- downloads that fail ------------------------------------------------------------------------


def test_a_refused_connection(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    error = refused(timeout=20)
    assert str(error) == "the hub cannot be reached"
    assert not error.local


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"ALL_PROXY": "socks5://me:secret@127.0.0.1:9"},
            "ALL_PROXY names a SOCKS proxy, 127.0.0.1:9, which needs the package socksio",
        ),
        (
            {"HTTP_PROXY": "127.0.0.1:9"},
            "the proxy in HTTP_PROXY has no scheme, as in http://127.0.0.1:9",
        ),
        (
            {"http_proxy": "http://127.0.0.1:9"},
            "the proxy in http_proxy, http://127.0.0.1:9, does not lead to the hub",
        ),
        ({"SSL_CERT_FILE": "/none.pem"}, "SSL_CERT_FILE names certificates that are not there"),
        *(
            ({name: "1"}, f"{name} is set, so the hub is offline here")
            for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
        ),
    ],
)
def test_a_setting_that_keeps_the_client_from_the_hub_is_named(
    settings: dict[str, str],
    said: str,
    server: HubServer,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    if any("PROXY" in name.upper() for name in settings):
        monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")  # no proxy is asked for 127.0.0.1
    error = refused(timeout=20)
    assert said in str(error)
    assert "secret" not in str(error)
    assert error.settings
    assert server.asked == []


def test_a_proxy_that_wants_a_password_and_a_certificate_nobody_knows_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://proxy.school:8080")
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://hub.invalid")
    otherwise = Message("the hub cannot be reached")
    refusal = RuntimeError("ProxyError 407 Proxy Authentication Required")
    assert "asks for a name and a password" in str(explain_error(refusal, otherwise))
    distrust = RuntimeError("ConnectError")
    distrust.__cause__ = ssl.SSLError("[SSL: CERTIFICATE_VERIFY_FAILED]")
    assert "is not trusted here" in str(explain_error(distrust, otherwise))
    broken = RuntimeError("ReadError: connection reset")  # on the way: the proxy has led to the hub
    words = "the connection broke off"
    assert str(explain_error(broken, Message(words))) == words


@pytest.mark.parametrize("mode", ["silent", "silent half"])
def test_a_server_that_never_answers(mode: str, server: HubServer, cache: Path) -> None:
    server.mode = mode
    assert str(refused()) == "nothing new came from the hub for 1 seconds"
    assert not contents(cache)


def test_a_download_that_is_always_cut(server: HubServer, cache: Path) -> None:
    server.mode, server.resumes = "cut", False
    assert "nothing new" in str(refused(timeout=2.5))
    assert len([asked for asked in server.asked if asked[0] == "GET"]) >= 2
    assert not contents(cache)


def test_bytes_that_are_not_those_of_the_hub_are_removed(server: HubServer, cache: Path) -> None:
    server.mode, server.times = "corrupt", 1
    assert str(refused(timeout=20)) == "what arrived was damaged, and is removed"
    assert not contents(cache)
    assert download(WEIGHTS).read_bytes() == DATA


@pytest.mark.parametrize("inside", ["", "hub"])
def test_a_cache_that_cannot_be_written(
    inside: str, server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    folder = tmp_path / "file" / inside
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder))
    error = refused(timeout=20)
    assert str(error) == "the folder of the hub's cache cannot be written"
    assert error.local


def test_a_disk_without_room_is_not_begun_to_be_filled(server: HubServer, cache: Path) -> None:
    server.claimed = 10**18
    error = refused(timeout=20)
    assert "they need 1,000,000,000,000 MB and the disk of the hub's cache has " in str(error)
    assert error.local
    assert [asked for asked in server.asked if asked[0] == "GET"] == []


@pytest.mark.parametrize(
    ("number", "words"),
    [
        *((n, "disk of the hub's cache is full") for n in FULL),
        *((n, "written") for n in UNWRITABLE),
    ],
)
def test_a_disk_that_fails_on_the_way_is_told_from_the_network(number: int, words: str) -> None:
    otherwise = Message("the connection broke off")
    failure = explain_error(OSError(number, os.strerror(number)), otherwise)
    assert words in str(failure)
    assert failure.local
    network = explain_error(OSError(errno.ECONNRESET, "reset"), otherwise)
    assert (str(network), network.local) == ("the connection broke off", False)


class CancelledError(Exception):
    pass


@pytest.mark.parametrize("mode", ["silent", "silent half"])
def test_a_download_can_be_cancelled_while_nothing_comes(
    mode: str, server: HubServer, cache: Path
) -> None:
    server.mode = mode
    asked = {"silent": 1, "silent half": 3}[mode]

    def progress(done: int, total: int | None) -> None:
        if len(server.asked) >= asked:
            raise CancelledError

    begun = time.monotonic()
    with pytest.raises(CancelledError):
        download(WEIGHTS, progress=progress)
    assert time.monotonic() - begun < 20  # and not the timeout of 30 s
    assert not contents(cache)
    server.mode = "ok"
    assert download(WEIGHTS).read_bytes() == DATA


# --- damaged files in the cache -----------------------------------------------------------------


def test_a_damaged_file_is_told_by_its_name(server: HubServer, cache: Path) -> None:
    path = download(WEIGHTS)
    assert path.resolve().name == hashlib.sha256(DATA).hexdigest()
    assert hub.is_intact(path)
    path.resolve().write_bytes(DATA[:-1])
    assert not hub.is_intact(path)
    hub.remove_cached(path)
    assert find_cached(WEIGHTS) is None
    assert not contents(cache)
