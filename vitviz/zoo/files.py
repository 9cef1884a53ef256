"""The files of a model's folder, as timm and transformers save it; of any other, one sentence."""

import json
from pathlib import Path
from typing import Any

from ..families import ModelError

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WEIGHTS = ("model.safetensors", "pytorch_model.bin")  # the first is preferred
_MOST = 20_000_000  # bytes of a configuration; one with 21,843 names of classes has some 2 MB


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file of JSON.

    Raises
    ------
    ModelError
        When it is not there, or something else.
    """
    where = f"The {path.name} in the folder {path.parent.name}"
    if not path.is_file():
        raise ModelError(f"The folder {path.parent.name} has no {path.name}.")
    if path.stat().st_size > _MOST:
        raise ModelError(f"{where} is larger than {_MOST / 1e6:.0f} MB.")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{where} is no JSON.") from error
    if not isinstance(found, dict):
        raise ModelError(f"{where} is no JSON object.")
    return found


def weights_in(folder: Path) -> Path:
    """The file of weights in a folder.

    Raises
    ------
    ModelError
        When there is none.
    """
    for name in WEIGHTS:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"The folder {folder.name} has neither {' nor '.join(WEIGHTS)}.")


def read_labels(path: Path) -> tuple[str, ...]:
    """Names of the classes in a file: one a line, a JSON list, or a JSON object by their numbers.

    Raises
    ------
    ModelError
        When it cannot be read so.
    """
    if not path.is_file() or path.stat().st_size > _MOST:
        raise ModelError(f"There is no file of class names {path.name} that can be read.")
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else text.split("\n")
        if isinstance(found, dict):
            found = [found[str(number)] for number in range(len(found))]
        names = tuple(str(name).strip() for name in found)
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelError(
            f"{path.name} does not name classes: expected one a line, or a list in JSON."
        ) from error
    return names[:-1] if names and not names[-1] else names
