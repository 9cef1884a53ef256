"""Where the pictures of a profile come from: files, folders, globs, parquet and tar shards.

A list of pictures holds no picture, only where each is, so that it can be sent to another process.
"""

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from glob import glob
from math import isqrt
from os import PathLike, fspath
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ..images import ImageError, open_image
from ..language import MessageError

SUFFIXES = frozenset([".jpg", ".jpeg", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff"])
_SHARDS = frozenset((".parquet", ".tar"))
_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")  # that hold the bytes of a picture file
_OPEN = 2  # row groups and sheets that are kept

Source = Image.Image | bytes | str | PathLike[str]


class ProfileError(MessageError):
    """A profile that cannot be made, or read; the message is one sentence."""


@dataclass(frozen=True, slots=True)  # there may be millions
class Entry:
    """One picture of a list: where it is.

    Attributes
    ----------
    name : str
        Unique in its source: a path, or a shard's path, a colon and the place in it.
    source : str, bytes or PIL.Image
        The file's path, or the picture itself.
    place : tuple of int
        In a parquet file the row, and in a packed sheet the tile; in a tar file the first byte and
        the number of bytes.
    label : int or str, optional
        The class's number or name.
    """

    name: str
    source: str | bytes | Image.Image
    place: tuple[int, ...] = ()
    label: int | str | None = None

    def read(self) -> tuple[Image.Image, str]:
        """The picture, upright, and the sha256 of its bytes (of its pixels where it has no file).

        Raises
        ------
        ImageError
            When it cannot be read.
        """
        if isinstance(self.source, Image.Image):
            return self.source, hashlib.sha256(self.source.convert("RGB").tobytes()).hexdigest()
        if isinstance(self.source, bytes):
            return _opened(self.source)
        try:
            if Path(self.source).suffix.lower() == ".parquet":
                return _of_parquet(self.source, *self.place)
            with open(self.source, "rb") as file:
                if self.place:
                    file.seek(self.place[0])
                return _opened(file.read(*self.place[1:]))
        except OSError as error:
            raise ImageError(f"The picture {self.name} cannot be read: {error}.") from error


def listed(
    pictures: Source | Iterable[Source],
    *,
    labels: str | PathLike[str] | Mapping[str, int | str] | Sequence[int | str] | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> list[Entry]:
    """The list of pictures, in the order in which they are profiled.

    Parameters
    ----------
    pictures : picture, path or glob, or several of them
        A folder stands for all pictures, parquet files and tar files in it and below, by name.
    labels : path, mapping or sequence, optional
        A CSV file with a picture's name and its label a line, or only its label, in the order of
        the list; or the same as a mapping or a sequence.
    limit : int, optional
        So many of them are chosen by `seed`, and keep their order.

    Raises
    ------
    ProfileError
        When there is no such file, or no picture at all, or the labels do not fit.
    """
    several = [pictures] if isinstance(pictures, (str, bytes, PathLike, Image.Image)) else pictures
    entries = [entry for source in several for entry in _entries(source)]
    if not entries:
        raise ProfileError("Expected at least one picture, found none.")
    entries = [
        entry if isinstance(entry.source, str) else replace(entry, name=f"picture {number + 1}")
        for number, entry in enumerate(entries)
    ]
    if labels is not None:
        entries = _labelled(entries, labels)
    if limit is not None and limit < len(entries):
        if limit < 1:
            raise ProfileError(f"Expected a limit of at least one picture, got {limit}.")
        chosen = np.random.default_rng(seed).choice(len(entries), limit, replace=False)
        entries = [entries[number] for number in sorted(chosen)]
    return entries


def absolute(entries: Iterable[Entry]) -> list[Entry]:
    """The entries for a process that may work in another folder."""
    return [
        replace(entry, source=os.path.abspath(entry.source))
        if isinstance(entry.source, str)
        else entry
        for entry in entries
    ]


def readable(entries: Iterable[Entry]) -> Iterator[tuple[Image.Image, str]]:
    """`Entry.read` of those that can be read."""
    for entry in entries:
        with suppress(ImageError):
            yield entry.read()


def named(entries: Iterable[Entry]) -> str:
    """The shards and folders that the pictures come from, in words: the first three by name."""
    names = list(dict.fromkeys(map(_home, entries)))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _home(entry: Entry) -> str:
    if not isinstance(entry.source, str):
        return "pictures in memory"
    path = Path(entry.source).absolute()
    return path.name if path.suffix.lower() in _SHARDS else path.parent.name


def _entries(source: Source) -> Iterator[Entry]:
    if isinstance(source, (bytes, Image.Image)):
        yield Entry("", source)
        return
    path = fspath(source)
    if Path(path).is_dir():
        for each in sorted(Path(path).rglob("*")):
            if each.suffix.lower() in SUFFIXES | _SHARDS:
                yield from _entries(each)
        return
    if not Path(path).exists():
        matching = sorted(glob(path, recursive=True))
        if not matching:
            raise ProfileError(f"There is no file {path}.")
        for match in matching:
            yield from _entries(match)
        return
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes[-1:] == [".parquet"]:
        yield from _parquet_entries(path)
    elif suffixes[-1:] == [".tar"]:
        yield from _tar_entries(path)
    elif ".tar" in suffixes:
        raise ProfileError(f"{path} is compressed: expected a plain tar file.")
    else:
        yield Entry(path, path)


def _labelled(entries: list[Entry], labels: Any) -> list[Entry]:
    if isinstance(labels, (str, PathLike)):
        try:
            lines = Path(labels).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ProfileError(f"The labels {fspath(labels)} cannot be read: {error}.") from error
        cells = [[part.strip() for part in line.rsplit(",", 1)] for line in lines if line.strip()]
        named = all(len(cell) == 2 for cell in cells)
        labels = dict(cells) if named else [cell[-1] for cell in cells]
    if isinstance(labels, Mapping):
        found = [labels.get(entry.name, labels.get(Path(entry.name).name)) for entry in entries]
        if None in found:
            raise ProfileError(f"The labels lack one for {entries[found.index(None)].name}.")
    else:
        found = list(labels)
        if len(found) != len(entries):
            raise ProfileError(f"Expected {len(entries)} labels, got {len(found)}.")
    return [
        replace(entry, label=int(label) if str(label).isdecimal() else str(label))
        for entry, label in zip(entries, found, strict=True)
    ]


def _opened(data: bytes) -> tuple[Image.Image, str]:
    return open_image(data), hashlib.sha256(data).hexdigest()


# --- parquet: a picture a row, or sheets of tiles ----------------------------------------------


@lru_cache(_OPEN)
def _parquet(path: str) -> Any:
    from pyarrow.parquet import ParquetFile

    try:
        return ParquetFile(path)
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        raise ProfileError(f"{path} cannot be read as parquet: {error}.") from error


def _column(path: str) -> str:
    names = _parquet(path).schema_arrow.names
    column = next((name for name in _COLUMNS if name in names), None)
    if column is None:
        raise ProfileError(
            f"{path} has no column of pictures: expected one of sheet, {', '.join(_COLUMNS)}, "
            f"got {', '.join(names)}."
        )
    return column


def _parquet_entries(path: str) -> Iterator[Entry]:
    file = _parquet(path)
    names = file.schema_arrow.names
    labels = file.read(["label"])["label"].to_pylist() if "label" in names else None
    metadata = file.schema_arrow.metadata or {}
    known = metadata.get(b"classes") or metadata.get(b"names")
    classes = [] if known is None else json.loads(known)

    def named(label: Any) -> Any:
        return classes[label] if isinstance(label, int) and 0 <= label < len(classes) else label

    if "sheet" in names:
        for row, tiles in enumerate(labels or ()):
            for tile, label in enumerate(tiles):
                yield Entry(f"{path}:{row}:{tile}", path, (row, tile, len(tiles)), named(label))
        return
    _column(path)
    for row in range(file.metadata.num_rows):
        label = None if labels is None else named(labels[row])
        yield Entry(f"{path}:{row}", path, (row,), label)


@lru_cache(_OPEN)
def _row_group(path: str, number: int, column: str) -> Any:
    return _parquet(path).read_row_group(number, columns=[column])[column]


def _cell(path: str, row: int, column: str) -> bytes:
    """The bytes of one picture, or of one sheet."""
    metadata, start = _parquet(path).metadata, 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if row < start + rows:
            cell = _row_group(path, number, column)[row - start].as_py()
            data = cell["bytes"] if isinstance(cell, dict) else cell  # as Hugging Face writes it
            return data or b""
        start += rows
    raise ImageError(f"{path} has no row {row}.")


@lru_cache(1)  # lists run through a sheet before they come to the next
def _sheet(path: str, row: int) -> np.ndarray:
    """A sheet of tiles, uint8 of shape (height, width, 3)."""
    with Image.open(io.BytesIO(_cell(path, row, "sheet"))) as sheet:
        return np.asarray(sheet if sheet.mode == "RGB" else sheet.convert("RGB"))


def _of_parquet(path: str, row: int, tile: int = 0, tiles: int = 0) -> tuple[Image.Image, str]:
    if not tiles:
        return _opened(_cell(path, row, _column(path)))
    sheet = _sheet(path, row)
    side = isqrt(sheet.shape[0] * sheet.shape[1] // tiles)  # the tiles fill the sheet
    top, left = (side * place for place in divmod(tile, sheet.shape[1] // side))
    pixels = np.ascontiguousarray(sheet[top : top + side, left : left + side])
    return Image.fromarray(pixels), hashlib.sha256(pixels.tobytes()).hexdigest()


# --- tar shards of WebDataset ------------------------------------------------------------------


def _tar_entries(path: str) -> Iterator[Entry]:
    """Each picture of a shard, with the label in the .cls or .json file of the same name."""
    pictures: dict[str, Entry] = {}
    labels: dict[str, int | str] = {}
    try:
        with tarfile.open(path, "r:") as shard:
            for member in shard:
                folder, _, name = member.name.rpartition("/")
                base, _, suffix = name.partition(".")  # as WebDataset names the files of a sample
                key = f"{folder}/{base}"
                if not member.isfile():
                    continue
                if "." + suffix.lower().rpartition(".")[2] in SUFFIXES:
                    place = (member.offset_data, member.size)
                    pictures.setdefault(key, Entry(f"{path}:{member.name}", path, place))
                elif suffix in ("cls", "json") and (file := shard.extractfile(member)):
                    label = _label(file.read(), suffix)
                    labels |= {} if label is None else {key: label}
    except (tarfile.TarError, OSError) as error:
        raise ProfileError(f"{path} cannot be read as a tar file: {error}.") from error
    for key, entry in pictures.items():
        yield replace(entry, label=labels.get(key))


def _label(data: bytes, suffix: str) -> int | str | None:
    text = data.decode("utf-8", "replace").strip()
    if suffix == "cls":
        return int(text) if text.isdecimal() else text
    try:
        found = json.loads(text)
    except ValueError:
        return None
    label = found.get("label") if isinstance(found, dict) else None
    return label if isinstance(label, (int, str)) else None
