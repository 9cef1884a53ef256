"""A file of weights on the hub, and its copy in the cache of the hub's client."""

import hashlib
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ..language import MessageError


@dataclass(frozen=True)
class Weights:
    """Location of a file of weights on the hub.

    Attributes
    ----------
    repo : str
        Owner and name of the repository.
    file : str
        Path in the repository.
    revision : str
        A commit, or a branch, which the first download resolves to a commit.
    """

    repo: str
    file: str
    revision: str = "main"


class HubError(MessageError):
    """A download that failed.

    The message is a clause that follows "because". `local` is true if the cause is this machine's
    disk, `settings` if it is a setting of its network, `missing` if the hub has no such file.
    """

    def __init__(
        self,
        reason: str,
        /,
        *,
        local: bool = False,
        missing: bool = False,
        settings: bool = False,
        **values: object,
    ) -> None:
        super().__init__(reason, **values)
        self.local, self.missing, self.settings = local, missing, settings


def find_cached(weights: Weights) -> Path | None:
    """Return the file in the cache or None, without asking the network."""
    from huggingface_hub import try_to_load_from_cache

    try:
        path = try_to_load_from_cache(weights.repo, weights.file, revision=weights.revision)
    except OSError:  # the cache cannot be read
        return None
    return Path(path) if isinstance(path, str) else None


def is_known_missing(weights: Weights) -> bool:
    """Whether the cache notes that the revision has no such file, without asking the network."""
    from huggingface_hub import _CACHED_NO_EXIST, try_to_load_from_cache

    try:
        path = try_to_load_from_cache(weights.repo, weights.file, revision=weights.revision)
    except OSError:  # the cache cannot be read
        return False
    return path is _CACHED_NO_EXIST


def note_missing(folder: Path, file: str) -> None:
    """Note in the cache, as the hub's client does, that a revision has no such file.

    Parameters
    ----------
    folder : Path
        The revision's folder in the cache.
    """
    note = folder.parents[1] / ".no_exist" / folder.name / file
    with suppress(OSError):  # then the hub is asked again
        note.parent.mkdir(parents=True, exist_ok=True)
        note.touch()


def is_intact(path: Path, digest: str | None = None) -> bool:
    """Whether a cached file has the same bytes as on the hub.

    Parameters
    ----------
    digest : str, optional
        Sha256 on the hub. Default: the file's name in the cache, which is the sha256 of large
        files. Small files are taken to be intact.
    """
    expected = digest or path.resolve().name
    if not re.fullmatch("[0-9a-f]{64}", expected):
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == expected


def remove_cached(path: Path) -> None:
    """Remove a file from the cache: its bytes, and the link to them."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
