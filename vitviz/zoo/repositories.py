"""Models of the hub by the name of their repository, hf-hub:owner/name, downloaded as folders.

Only configurations and weights are downloaded, and no code.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

from ..common.hub import (
    HubError,
    Weights,
    download,
    find_cached,
    is_intact,
    is_known_missing,
    note_missing,
    remove_cached,
)
from ..common.language import Message
from ..model.families import ModelError
from .architectures import on_meta_device
from .checkpoints import INDEX, CheckpointError, files_of, shard_names
from .files import (
    ADAPTER,
    CONFIG,
    PROCESSOR,
    WEIGHTS,
    WHOLE_PROCESSOR,
    check_adapter,
    find_file,
    read_json,
)
from .folders import WHOLES, load_folder
from .open_clips import OPEN_CLIP_CONFIG, OPEN_CLIP_WEIGHTS, check_open_clip, names_tokenizer
from .texts import TOKENIZER_SETTINGS, TOKENIZERS

HUB_PREFIX = "hf-hub:"
_PART = r"[A-Za-z0-9][\w.-]{0,95}"
_NAME = re.compile(rf"{HUB_PREFIX}({_PART}/{_PART})(?:@([\w.-]{{1,100}}))?", re.ASCII)


def repository(name: str) -> tuple[str, str] | None:
    """Return owner/name and revision in the name of a model of the hub; None for other names."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], match[2] or "main")


def cached_folder(name: str) -> Path | None:
    """Return the folder of a repository that is on disk, without asking the network.

    None if its weights are missing, or the image processor of a model of transformers: other
    programs may have downloaded the weights alone.
    """
    paths = (find_cached(_weights(name, file)) for file in (CONFIG, OPEN_CLIP_CONFIG))
    config = next((path for path in paths if path is not None), None)
    if config is not None and _lacks_processor(config, name):
        return None
    file = None if config is None else _file_in(config.parent)
    try:
        return None if file is None or not files_of(file) else file.parent
    except CheckpointError:  # a shard is missing
        return None


def _lacks_processor(config: Path, name: str) -> bool:
    """Whether an image processor may be in the repository and is not on disk."""
    try:
        is_of_transformers = config.name == CONFIG and "architecture" not in read_json(config)
    except ModelError:  # `load_folder` says why
        return False
    files = PROCESSOR, WHOLE_PROCESSOR
    return (
        is_of_transformers
        and find_file(config.parent, files) is None
        and not all(is_known_missing(_weights(name, file)) for file in files)
    )


def _names_of_weights(folder: Path, has_open_clip: bool) -> tuple[str, ...]:
    """Return the names of the file of weights, the wanted one first.

    Where timm and open_clip describe the same model, open_clip's file has both towers.
    """
    if not (folder / OPEN_CLIP_CONFIG).is_file():
        return WEIGHTS
    if not (folder / CONFIG).is_file():
        return OPEN_CLIP_WEIGHTS
    both = has_open_clip and "architecture" in read_json(folder / CONFIG)
    return OPEN_CLIP_WEIGHTS + WEIGHTS if both else WEIGHTS


def _file_in(folder: Path) -> Path | None:
    """Return the file of weights in a folder; None if it has none."""
    return find_file(folder, _names_of_weights(folder, find_spec("open_clip") is not None))


def _is_read_by_open_clip(folder: Path, name: str) -> bool:
    if not (folder / CONFIG).is_file():
        return True
    if _names_of_weights(folder, True) == WEIGHTS:
        return False
    try:
        check_open_clip(folder, name)
    except ModelError:  # timm reads the image tower
        return False
    return True


def fetch_configuration(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
) -> Path:
    """Return the folder of a repository with its configuration, downloaded if necessary.

    Raises
    ------
    ModelError
        When it cannot be downloaded, or its model cannot be read.
    """
    if folder := cached_folder(name):  # the configuration is downloaded before the weights
        return folder
    path = _fetch_file(name, CONFIG, progress, optional=True)
    if path is None:
        own = _fetch_file(name, OPEN_CLIP_CONFIG, progress, optional=True)
        if own is not None:
            check_open_clip(own.parent, name)
            _fetch_tokenizer(name, own.parent, progress)
            return own.parent
        adapter = _fetch_file(name, ADAPTER, progress, optional=True)
        if adapter is not None:
            check_adapter(adapter.parent)
        path = _fetch_file(name, CONFIG, progress)
    assert path is not None
    if "architecture" in read_json(path):
        _fetch_file(name, OPEN_CLIP_CONFIG, progress, optional=True)
        if _is_read_by_open_clip(path.parent, name):
            _fetch_tokenizer(name, path.parent, progress)
            return path.parent
    else:
        for file in (PROCESSOR, WHOLE_PROCESSOR):
            # Of the same commit: the branch may have moved since other files were downloaded.
            commit = path.parent.name
            if _fetch_file(name, file, progress, optional=True, revision=commit) is None:
                note_missing(path.parent, file)
        _fetch_tokenizer(name, path.parent, progress)
    with on_meta_device():  # a model that cannot be read need not be downloaded
        load_folder(path.parent, name=name, source=name, pretrained=False, size=None)
    return path.parent


def fetch_repository(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    verify: bool = False,
) -> Path:
    """Return a repository's file of weights in the cache, with its configuration beside it.

    Parameters and errors are those of `fetch_weights`.
    """
    configured = None
    folder = cached_folder(name)
    if folder is None:
        configured = fetch_configuration(name, progress=progress)
        folder = cached_folder(name)  # other programs may have downloaded the weights
    if folder is not None:
        file = _file_in(folder)
        assert file is not None  # as the folder is cached
        if verify:  # other programs download none
            _fetch_tokenizer(name, folder, progress)
        bad_files = [part for part in files_of(file) if verify and not is_intact(part)]
        lacks_text = file.name in WEIGHTS and verify and _is_read_by_open_clip(folder, name)
        if not bad_files and not lacks_text:
            return file
        for part in bad_files:
            remove_cached(part)
    folder = configured or fetch_configuration(name, progress=progress)
    names = _names_of_weights(folder, _is_read_by_open_clip(folder, name))
    for file_name in names:
        path = _fetch_file(name, file_name, progress, optional=file_name != names[-1])
        if path is not None:
            break
    assert path is not None
    if path.name.endswith(INDEX):
        try:
            shards = shard_names(path)
        except CheckpointError as error:
            raise ModelError("{name}: {error}", name=name, error=error) from error
        for shard in shards:
            _fetch_file(name, shard, progress)
    return path


def _reads_texts(folder: Path, name: str) -> bool:
    """Whether the model has a text tower and reads files of a tokenizer."""
    if _is_read_by_open_clip(folder, name):
        return names_tokenizer(folder, name)
    return read_json(folder / CONFIG).get("model_type") in WHOLES


def _fetch_tokenizer(
    name: str, folder: Path, progress: Callable[[int, int | None], None] | None
) -> None:
    """Download a tokenizer of transformers, if the model reads texts and there is one."""
    if not _reads_texts(folder, name):
        return
    if find_file(folder, TOKENIZERS):
        return
    for file in (*TOKENIZER_SETTINGS, *TOKENIZERS):
        path = _fetch_file(name, file, progress, optional=True)
        if file == TOKENIZERS[0] and path is not None:  # the whole tokenizer
            return


def _weights(name: str, file: str) -> Weights:
    parts = repository(name)
    assert parts is not None  # callers ask for the names of repositories alone
    repo, revision = parts
    return Weights(repo, file, revision)


def _fetch_file(
    name: str,
    file: str,
    progress: Callable[[int, int | None], None] | None,
    *,
    optional: bool = False,
    revision: str | None = None,
) -> Path | None:
    """Return a file of a repository in the cache; None if it is optional and does not exist."""
    weights = _weights(name, file)
    weights = weights if revision is None else replace(weights, revision=revision)
    if path := find_cached(weights):
        return path
    try:
        return download(weights, progress=progress)
    except HubError as error:
        if optional and error.missing:
            return None
        what = Message("{file} of {name}", file=file, name=name)
        raise download_error(what, name, Message("another model"), error) from error


def download_error(what: str, name: str, instead: str, error: HubError) -> ModelError:
    """Return an error that says why a file could not be downloaded, and what to do."""
    remedy = Message("run `vitviz fetch {name}` where there is internet", name=name)
    if error.local:
        remedy = Message("make room, or name another folder in HF_HUB_CACHE")
    elif error.settings:
        remedy = Message("correct that setting and run `vitviz fetch {name}`", name=name)
    return ModelError(
        "{what} could not be downloaded, because {error}. Choose {instead}, or {remedy}.",
        what=what,
        error=error,
        instead=instead,
        remedy=remedy,
    )
