"""The files of a model's folder, as timm and transformers save it; of any other, one sentence."""

import json
from pathlib import Path
from typing import Any

from ..families import ModelError
from ..language import Message

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
    where = Message("The {file} in the folder {folder}", file=path.name, folder=path.parent.name)
    if not path.is_file():
        raise ModelError(
            "The folder {folder} has no {file}.", folder=path.parent.name, file=path.name
        )
    if path.stat().st_size > _MOST:
        raise ModelError("{where} is larger than {most:.0f} MB.", where=where, most=_MOST / 1e6)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError("{where} is no JSON.", where=where) from error
    if not isinstance(found, dict):
        raise ModelError("{where} is no JSON object.", where=where)
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
    raise ModelError(
        "The folder {folder} has neither {first} nor {second}.",
        folder=folder.name,
        first=WEIGHTS[0],
        second=WEIGHTS[1],
    )


def read_labels(path: Path) -> tuple[str, ...]:
    """Names of the classes in a file: one a line, a JSON list, or a JSON object by their numbers.

    Raises
    ------
    ModelError
        When it cannot be read so.
    """
    if not path.is_file() or path.stat().st_size > _MOST:
        raise ModelError("There is no file of class names {file} that can be read.", file=path.name)
    try:
        text = path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip()[:1] in ("[", "{") else text.split("\n")
        if isinstance(found, dict):
            found = [found[str(number)] for number in range(len(found))]
        names = tuple(str(name).strip() for name in found)
    except (ValueError, KeyError, RecursionError) as error:
        raise ModelError(
            "{file} does not name classes: expected one a line, or a list in JSON.", file=path.name
        ) from error
    return names[:-1] if names and not names[-1] else names
