"""Subprocess of one download: run the hub's own client, and print its progress as JSON.

`downloading` runs it with four arguments: repository, file, revision and the cache's folder.
"""

import errno
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from ..language import Message
from .weights import HubError, is_intact, remove_cached

CHUNK = 2**16  # bytes; the client's 10 MB are lost if the connection breaks within a chunk
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
WITHHELD = {401, 403, 404}
PROXY_AUTHENTICATION = 407
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


class Counter:
    """Replace the client's tqdm progress bar, and report every chunk."""

    def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
        self.done = initial

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def update(self, count: float | None = 1) -> None:
        self.done += int(count or 0)
        report(stage="transfer", done=self.done)


def report(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def fetch_file(repo: str, file: str, revision: str, folder: str) -> Path:
    """Download the file by its commit, check it, then let the revision point to it."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    report(stage="ask")
    try:  # once: the client itself would retry for most of a minute
        about = get_hf_file_metadata(hf_hub_url(repo, file, revision=revision))
    except Exception as error:
        raise explain_error(error, Message("the hub cannot be reached")) from error
    report(stage="ask", total=about.size)
    if about.commit_hash is None:
        raise HubError("what answers is not the hub")
    try:
        check_disk(Path(folder), about.size or 0)
        path = Path(
            hf_hub_download(
                repo, file, revision=about.commit_hash, cache_dir=folder, tqdm_class=Counter
            )
        )
        report(stage="check")
        if not is_intact(path, about.etag):
            remove_cached(path)
            raise HubError("what arrived was damaged, and is removed")
        report(stage="ask")
        return Path(hf_hub_download(repo, file, revision=revision, cache_dir=folder))
    except HubError:
        raise
    except Exception as error:
        raise explain_error(error, Message("the connection broke off")) from error


def check_disk(folder: Path, size: int) -> None:
    """Refuse a file that does not fit on the disk; the client would only warn."""
    existing = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(existing).free
    if size > free:
        raise HubError(
            "they need {needed:,.0f} MB and the disk of the hub's cache has {free:,.0f} MB",
            needed=size / 1e6,
            free=free / 1e6,
            local=True,
        )


def find_blocking_setting(error: BaseException) -> HubError | None:
    """Return an error for the network setting that blocks the client; None if none does."""
    from huggingface_hub import constants

    errors, cause = "", error  # type: str, BaseException | None
    while cause is not None:
        errors += f"{type(cause).__name__} {cause}\n"
        cause = cause.__cause__ or cause.__context__
    if "OfflineModeIsEnabled" in errors:
        name = _first_set(*_OFFLINE)
        return HubError("{name} is set, so the hub is offline here", name=name, settings=True)
    for name in _CERTIFICATES:
        place = os.environ.get(name)
        if place and not Path(place).exists():
            return HubError(
                "{name} names certificates that are not there: {place}",
                name=name,
                place=place,
                settings=True,
            )
    if "CERTIFICATE_VERIFY_FAILED" in errors:
        return HubError(
            "the certificate of {hub} is not trusted here; where a proxy reads what is sent, "
            "{name} must name the file of the proxy's certificate",
            hub=constants.ENDPOINT,
            name=_CERTIFICATES[0],
            settings=True,
        )
    where, proxies = urlsplit(constants.ENDPOINT), getproxies()
    kind = where.scheme if where.scheme in proxies else "all"
    is_connecting = re.search("socksio|Connect|Proxy", errors)
    if not is_connecting or kind not in proxies or proxy_bypass(where.hostname or ""):
        return None
    about: Any = dict(name=_first_set(f"{kind}_proxy", f"{kind}_proxy".upper()), settings=True)
    about["proxy"] = proxies[kind].rpartition("@")[2]  # without a password
    if "socksio" in errors:
        return HubError(
            "{name} names a SOCKS proxy, {proxy}, which needs the package socksio: `pip install "
            "socksio`",
            **about,
        )
    if "://" not in proxies[kind]:
        return HubError("the proxy in {name} has no scheme, as in http://{proxy}", **about)
    if "Proxy Authentication" in errors:
        return HubError("the proxy in {name}, {proxy}, asks for a name and a password", **about)
    return HubError("the proxy in {name}, {proxy}, does not lead to the hub", **about)


def _first_set(*names: str) -> str:
    """Return the first of these variables that is set, else the last."""
    return next((name for name in names if os.environ.get(name)), names[-1])


def explain_error(error: Exception, otherwise: Message) -> HubError:
    """Turn the client's error into a `HubError` that a user understands."""
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL:
        return HubError("the disk of the hub's cache is full", local=True)
    if number in UNWRITABLE:
        return HubError("the folder of the hub's cache cannot be written", local=True)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in WITHHELD:
        missing = status == 404
        return HubError("the hub does not have them, or not for everyone", missing=missing)
    if status in (None, PROXY_AUTHENTICATION):
        return find_blocking_setting(error) or HubError(otherwise)
    return HubError("the hub answers with error {status}", status=status)


def main(order: list[str]) -> None:
    # So that the client cleans up on SIGTERM; else a partial file stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        report(path=str(fetch_file(*order)))
    except HubError as failure:
        message = failure.message
        about = dict(local=failure.local, missing=failure.missing, settings=failure.settings)
        report(failed=[message.english, message.values], about=about)


if __name__ == "__main__":
    main(sys.argv[1:])
