"""Files in a model's folder, as timm and transformers save it, and files of class names."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..common.language import Message, MessageError, message
from ..common.tables import read_tables, read_text
from ..model.answers import class_names
from ..model.families import ModelError
from .checkpoints import INDEX

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"
WHOLE_PROCESSOR = "processor_config.json"  # with an image processor in it, of transformers 5
ADAPTER = "adapter_config.json"  # of peft
#: In order of preference. Large models are sharded, with an index.
WEIGHTS = (
    "model.safetensors",
    f"model.safetensors{INDEX}",
    "pytorch_model.bin",
    f"pytorch_model.bin{INDEX}",
)
#: Headings of a column of names, as spreadsheets, pandas and R (x) write them.
_HEADINGS = {"class", "classes", "class_name", "label", "labels", "name", "names", "x"}
#: Bytes of a configuration or of class names; 21,843 class names take some 2 MB.
_MAX_TEXT_BYTES = 20_000_000


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises
    ------
    ModelError
        When there is no such file, or it holds something else.
    """
    where = Message("The {file} in the folder {folder}", file=path.name, folder=path.parent.name)
    if not path.is_file():
        raise ModelError(
            "The folder {folder} has no {file}.", folder=path.parent.name, file=path.name
        )
    _check_size(path, where)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError("{where} is not valid JSON.", where=where) from error
    if not isinstance(content, dict):
        raise ModelError("{where} is not a JSON object.", where=where)
    return content


def _check_size(path: Path, where: str) -> None:
    if (size := path.stat().st_size) > _MAX_TEXT_BYTES:
        raise ModelError(
            "{where} has {size:,} bytes; at most {most:,} are read.",
            where=where,
            size=size,
            most=_MAX_TEXT_BYTES,
        )


def find_file(folder: Path, names: Iterable[str]) -> Path | None:
    """Return the first of these files that a folder has; None if it has none of them."""
    return next((folder / name for name in names if (folder / name).is_file()), None)


def no_weights(folder: Path, names: Sequence[str]) -> ModelError:
    """Return the error of a folder with none of these files of weights."""
    return ModelError(
        "The folder {folder} has neither {first} nor {second}.",
        folder=folder.name,
        first=names[0],
        second=names[2],
    )


def wrong_size(name: str, size: tuple[int, int]) -> ModelError:
    """Return the error of a model that takes no pictures of this size (height, width)."""
    return ModelError(
        "{name} does not take pictures of {height} x {width} pixels. Choose another image_size.",
        name=name,
        height=size[0],
        width=size[1],
    )


def weights_in(folder: Path) -> Path:
    """Return the file of weights in a folder.

    Raises
    ------
    ModelError
        When there is none.
    """
    path = find_file(folder, WEIGHTS)
    if path is None:
        raise no_weights(folder, WEIGHTS)
    return path


def check_adapter(folder: Path) -> None:
    """Raise a ModelError for a folder that peft saved: it holds an adapter without its model."""
    if not (folder / ADAPTER).is_file() or find_file(folder, WEIGHTS):
        return
    config = read_json(folder / ADAPTER)
    kind, base = str(config.get("peft_type") or "peft"), config.get("base_model_name_or_path")
    if not base:
        raise ModelError(
            "The folder {folder} holds an adapter ({kind}) and not a whole model. Load its base "
            "model with peft, call merge_and_unload(), and give the module to vitviz.watch.",
            folder=folder.name,
            kind=kind,
        )
    raise ModelError(
        "The folder {folder} holds an adapter ({kind}) of {base}, and not a whole model. Load "
        "{base} with peft, call merge_and_unload(), and give the module to vitviz.watch.",
        folder=folder.name,
        kind=kind,
        base=str(base),
    )


def read_labels(path: Path, count: int | None = None) -> tuple[str, ...]:
    """Return the names of the classes in a file.

    The file has one name a line, a table of numbers and names, a JSON list, or a JSON object that
    maps numbers to names or names to numbers.

    Parameters
    ----------
    path : Path
    count : int, optional
        Number of classes. A file with one more line may begin with a heading.

    Raises
    ------
    ModelError
        When the file cannot be read so.
    """
    if not path.is_file():
        raise ModelError("There is no file of class names {file}.", file=path.name)
    _check_size(path, path.name)
    try:
        text = read_text(path)
    except MessageError as error:
        raise ModelError(message(error)) from error
    try:
        is_json = text.lstrip()[:1] in ("[", "{")
        names = class_names(json.loads(text) if is_json else _names_in_lines(text))
    except ModelError as error:
        raise ModelError("{name}: {error}", name=path.name, error=error) from error
    except (ValueError, RecursionError) as error:
        raise ModelError(
            "{file} does not name classes. Write one name a line, or a list in JSON.",
            file=path.name,
        ) from error
    if len(names) - 1 == count and names[0].lower() in _HEADINGS:
        names = names[1:]
    return tuple(name.strip() for name in names)


def _names_in_lines(text: str) -> list[str]:
    for rows in read_tables(text):
        if all(len(row.cells) == 2 for row in rows):
            for some in (rows, rows[1:]):  # with and without a heading
                for column in (0, 1):
                    by_number = {row.cells[column]: row.cells[1 - column] for row in some}
                    for start in (0, 1):  # R counts from 1
                        numbers = [str(start + n) for n in range(len(some))]
                        if some and by_number.keys() == {*numbers}:
                            return [by_number[number] for number in numbers]
    lines = text.rstrip("\r\n").splitlines()
    return [_unquote(line) for line in lines]


def _unquote(line: str) -> str:
    """Return a line without the quotes around it as a whole."""
    tables = [*read_tables(line)] if line.lstrip().startswith('"') else []
    cells = tables[0][0].cells if tables and tables[0] else []
    return cells[0] if len(cells) == 1 else line
