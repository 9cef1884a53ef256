"""The subprocess of one download: runs the hub's own client, and prints its progress as JSON.

Run by `downloading` with four arguments: repository, file, revision and the cache's folder.
"""

import errno
import json
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

from ..language import Message
from .weights import HubError, remove, undamaged

CHUNK = 2**16  # bytes; the client's own are 10 MB, and what was cut within one is fetched again
FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
UNWRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
WITHHELD = {401, 403, 404}


class Counter:
    """Takes the place of the client's tqdm progress bar, and reports every chunk."""

    def __init__(self, *_: Any, initial: int = 0, **__: Any) -> None:
        self.done = initial

    def __enter__(self) -> "Counter":
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def update(self, count: float | None = 1) -> None:
        self.done += int(count or 0)
        say(stage="transfer", done=self.done)


def say(**event: Any) -> None:
    print(json.dumps(event), flush=True)


def fetch(repo: str, file: str, revision: str, folder: str) -> Path:
    """Download the file by its commit, check it, and only then let the revision point to it."""
    from huggingface_hub import constants, get_hf_file_metadata, hf_hub_download, hf_hub_url

    constants.DOWNLOAD_CHUNK_SIZE = CHUNK
    say(stage="ask")
    try:  # once, as the client's own question is repeated for most of a minute
        about = get_hf_file_metadata(hf_hub_url(repo, file, revision=revision))
    except Exception as error:
        raise explained(error, Message("the hub cannot be reached")) from error
    say(stage="ask", total=about.size)
    if about.commit_hash is None:
        raise HubError("what answers is not the hub")
    try:
        check_disk(Path(folder), about.size or 0)
        path = Path(
            hf_hub_download(
                repo, file, revision=about.commit_hash, cache_dir=folder, tqdm_class=Counter
            )
        )
        say(stage="check")
        if not undamaged(path, about.etag):
            remove(path)
            raise HubError("what arrived was damaged, and is removed")
        say(stage="ask")
        return Path(hf_hub_download(repo, file, revision=revision, cache_dir=folder))
    except HubError:
        raise
    except Exception as error:
        raise explained(error, Message("the connection broke off")) from error


def check_disk(folder: Path, size: int) -> None:
    """Refuse a file that the disk has no room for; the client would only warn."""
    there = next(place for place in (folder, *folder.parents) if place.exists())
    free = shutil.disk_usage(there).free
    if size > free:
        raise HubError(
            "they need {needed:,.0f} MB and the disk of the hub's cache has {free:,.0f} MB",
            needed=size / 1e6,
            free=free / 1e6,
            local=True,
        )


def explained(error: Exception, otherwise: Message) -> HubError:
    """The client's error as a `HubError` that a user understands."""
    number = error.errno if isinstance(error, OSError) else None
    if number in FULL:
        return HubError("the disk of the hub's cache is full", local=True)
    if number in UNWRITABLE:
        return HubError("the folder of the hub's cache cannot be written", local=True)
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in WITHHELD:
        missing = status == 404
        return HubError("the hub does not have them, or not for everyone", missing=missing)
    if status is None:
        return HubError(otherwise)
    return HubError("the hub answers with error {status}", status=status)


def main(order: list[str]) -> None:
    # So that SIGTERM runs the client's own clean-up; without it, half a file stays.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        say(path=str(fetch(*order)))
    except HubError as failure:
        said = failure.message
        failed = [said.english, said.values]
        say(failed=failed, local=failure.local, missing=failure.missing)


if __name__ == "__main__":
    main(sys.argv[1:])
