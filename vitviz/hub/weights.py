"""A file of weights on the hub, and its copy in the cache of the hub's client."""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from ..language import MessageError


@dataclass(frozen=True)
class Weights:
    """Where a file of weights lies.

    Attributes
    ----------
    repo : str
        Owner and name of the repository.
    file : str
        Its path in the repository.
    revision : str
        A commit; or a branch, which is looked up at the first download and kept from then on.
    """

    repo: str
    file: str
    revision: str = "main"


class HubError(MessageError):
    """Weights that cannot be had.

    The message is a clause that goes on from "because"; `local` is true where the cause is this
    machine's disk, and no network would help; `missing` where the hub has no such file.
    """

    def __init__(
        self, reason: str, /, *, local: bool = False, missing: bool = False, **values: object
    ) -> None:
        super().__init__(reason, **values)
        self.local = local
        self.missing = missing


def cached(weights: Weights) -> Path | None:
    """The file in the cache, None where it is not there; the network is not asked."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(weights.repo, weights.file, revision=weights.revision)
    except OSError:  # a cache that nobody may read is as good as none
        return None
    return Path(found) if isinstance(found, str) else None


def undamaged(path: Path, digest: str | None = None) -> bool:
    """Whether a cached file has the bytes that the hub has.

    Parameters
    ----------
    digest : str, optional
        Sha256 by the hub. Default: the name under which the client keeps the bytes, which is the
        sha256 of large files; where there is none, nothing speaks against the file.
    """
    known = digest or path.resolve().name
    if not re.fullmatch("[0-9a-f]{64}", known):
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == known


def remove(path: Path) -> None:
    """Take a file out of the cache: its bytes, and the link to them."""
    path.resolve().unlink(missing_ok=True)
    path.unlink(missing_ok=True)
