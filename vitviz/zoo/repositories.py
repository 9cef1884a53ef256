"""Models of the hub by the name of their repository, hf-hub:owner/name: downloaded as folders.

Only files of a model's configuration and of its weights are fetched, and no code.
"""

import re
from collections.abc import Callable
from pathlib import Path

from ..families import ModelError
from ..hub import TIMEOUT, HubError, Weights, cached, download, remove, undamaged
from ..language import Message
from .architectures import on_meta_device
from .files import CONFIG, PROCESSOR, WEIGHTS, read_json
from .folders import load_folder

PREFIX = "hf-hub:"
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"{PREFIX}({_PART}/{_PART})(?:@([\w.-]{{1,100}}))?", re.ASCII)


def repository(name: str) -> tuple[str, str] | None:
    """Owner/name and revision in the name of a model of the hub; None of any other name."""
    found = _NAME.fullmatch(name)
    return None if found is None else (found[1], found[2] or "main")


def cached_folder(name: str) -> Path | None:
    """The folder of a repository whose weights are on disk; the network is not asked."""
    config = cached(_weights(name, CONFIG))
    if config is None or not any((config.parent / file).is_file() for file in WEIGHTS):
        return None
    return config.parent


def fetch_configuration(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = TIMEOUT,
) -> Path:
    """The folder of a repository with what says which model it is, downloaded if need be.

    Raises
    ------
    ModelError
        When it cannot be had, or is of a model that cannot be shown.
    """
    if folder := cached_folder(name):  # all there was came before the weights
        return folder
    path = _had(name, CONFIG, progress, timeout)
    assert path is not None
    if "architecture" not in read_json(path):
        _had(name, PROCESSOR, progress, timeout, optional=True)
    with on_meta_device():  # a model that cannot be read is not downloaded
        load_folder(path.parent, name=name, source=name, pretrained=False, size=None)
    return path.parent


def fetch_repository(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    timeout: float = TIMEOUT,
    verify: bool = False,
) -> Path:
    """The file of weights of a repository in the cache, with its configuration beside it.

    Its arguments and errors are those of `fetch_weights`.
    """
    folder = cached_folder(name)
    if folder is not None:
        file = next(folder / file for file in WEIGHTS if (folder / file).is_file())
        if not verify or undamaged(file):
            return file
        remove(file)
    fetch_configuration(name, progress=progress, timeout=timeout)
    first, second = WEIGHTS
    path = _had(name, first, progress, timeout, optional=True)
    path = path or _had(name, second, progress, timeout)
    assert path is not None
    return path


def _weights(name: str, file: str) -> Weights:
    found = repository(name)
    if found is None:
        raise ModelError("Expected {prefix}owner/name, got {name}.", prefix=PREFIX, name=name)
    repo, revision = found
    return Weights(repo, file, revision)


def _had(
    name: str,
    file: str,
    progress: Callable[[int, int | None], None] | None,
    timeout: float,
    *,
    optional: bool = False,
) -> Path | None:
    """A file of a repository in the cache; None where it is not there and need not be."""
    weights = _weights(name, file)
    if path := cached(weights):
        return path
    try:
        return download(weights, progress=progress, timeout=timeout)
    except HubError as error:
        if optional and error.missing:
            return None
        what = Message("{file} of {name}", file=file, name=name)
        raise not_downloaded(what, name, Message("another model"), error) from error


def not_downloaded(what: str, name: str, instead: str, error: HubError) -> ModelError:
    """Why a file could not be downloaded, and what can be done."""
    remedy = (
        Message("make room, or name another folder in HF_HUB_CACHE")
        if error.local
        else Message("run `vitviz fetch {name}` where there is internet", name=name)
    )
    return ModelError(
        "{what} could not be downloaded, because {error}: choose {instead}, or {remedy}.",
        what=what,
        error=error,
        instead=instead,
        remedy=remedy,
    )
