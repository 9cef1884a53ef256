"""Entries of a list of pictures: the place of each picture, and how to read it from there.

An entry of a file holds its place alone, so that a list of millions can be sent to a process.
Pictures that an iterable yields lie in a temporary spool file until they are measured.
"""

import io
import mmap
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import isqrt
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

import numpy as np
from PIL import Image
from torch import Tensor

from ..common.files import printable
from ..common.images import LONG_SIDE, ImageError, open_image, require_eight_bits
from ..common.language import MessageError, reason_of, shorten
from ..model.origin import picture_digest

#: Endings of picture files: JPEG, PNG, other formats that are read, and HEIC, which is listed as
#: skipped.
SUFFIXES = frozenset(
    (
        *(".jpg", ".jpeg", ".jfif", ".jpe", ".pjpeg", ".pjp", ".png", ".apng"),
        *(".webp", ".avif", ".bmp", ".dib", ".gif", ".tif", ".tiff"),
        *(".heic", ".heif", ".hif"),
    )
)
#: Columns of a parquet file that hold the bytes of a picture file.
PICTURE_COLUMNS = ("image", "img", "jpg", "jpeg", "png", "webp")
_CACHED = 2  # row groups that stay in memory

EntrySource = Image.Image | bytes | str | PathLike[str] | Tensor
#: What a Dataset yields: a picture and its label, as `pictures.unpack` takes them.
Sample = tuple[Any, Any] | list[Any] | Mapping[str, Any]


class ProfileError(MessageError):
    """A profile cannot be made or read."""


class NoPicturesError(ProfileError):
    """A parquet file has no column of pictures."""


@dataclass(frozen=True, slots=True)
class SpooledPicture:
    """The place of a picture or a prepared input in a spool file.

    Attributes
    ----------
    path : str
    start, size : int
        First byte and number of bytes.
    sha256 : str
        `picture_digest` of the picture.
    """

    path: str
    start: int
    size: int
    sha256: str

    def read(self) -> bytes | Image.Image | Tensor:
        with open(self.path, "rb") as file:
            file.seek(self.start)
            picture: bytes | Image.Image | Tensor = pickle.loads(file.read(self.size))
        return picture


@contextmanager
def spool_file() -> Iterator[BinaryIO]:
    """Open a temporary file that other processes can read by its name."""
    with (
        TemporaryDirectory(prefix="vitviz-") as folder,
        (Path(folder) / "pictures").open("wb") as file,
    ):
        yield file


def spool_picture(picture: bytes | Image.Image | Tensor, file: BinaryIO) -> SpooledPicture:
    """Append a picture to a spool file and return its place."""
    if isinstance(picture, Tensor):  # the pickle of a view would hold its whole batch
        picture = picture.detach().as_subclass(Tensor).cpu().clone()
    elif isinstance(picture, Image.Image):  # only its pixels, not the metadata of its file
        transparency = picture.info.get("transparency")
        picture = picture.copy()
        picture.info = {} if transparency is None else {"transparency": transparency}
    start = file.tell()
    size = file.write(pickle.dumps(picture))
    return SpooledPicture(file.name, start, size, picture_digest(picture))


class ClassName(str):
    """The name of a class, with its place in the list of classes that its file holds.

    Attributes
    ----------
    number : int
        The place in that list.
    names : tuple of str
        The whole list.
    """

    number: int
    names: tuple[str, ...]

    def __new__(cls, number: int, names: tuple[str, ...]) -> "ClassName":
        name = super().__new__(cls, names[number])
        name.number, name.names = number, names
        return name

    def __getnewargs__(self) -> tuple[int, tuple[str, ...]]:  # type: ignore[override]
        return self.number, self.names


#: The label of a picture: a class number or name; a tuple has one for each way to read a table.
Label = int | str | tuple[str, ...] | None


@dataclass(frozen=True, slots=True)  # there may be millions
class Entry:
    """One picture of a list.

    Attributes
    ----------
    name : str
        Unique in its source: a path, or a shard's path, a colon and the place in the shard. Bytes
        of a path that are not UTF-8 are written as in "\\xff".
    source : str, bytes, PIL.Image, Tensor or SpooledPicture
        The file's path, the picture or prepared input itself, or its place in a spool file.
    place : tuple of int
        In a parquet file the row; for a packed sheet the row, the tile and the number of tiles; in
        a tar file the first byte and the number of bytes.
    label : int, str or tuple of str, optional
        The class number or name; several if the labels can be read in more than one way.
    problem : str, optional
        Why the picture cannot be read, if that is known before reading.
    """

    name: str
    source: str | bytes | Image.Image | Tensor | SpooledPicture
    place: tuple[int, ...] = ()
    label: Label = None
    problem: str | None = None

    @property
    def digest(self) -> str:
        """`picture_digest` of a picture that is no file; "" for a file."""
        if isinstance(self.source, SpooledPicture):
            return self.source.sha256
        return "" if isinstance(self.source, str) else picture_digest(self.source)

    def read(self) -> tuple[Image.Image | Tensor, str]:
        """Return the picture, upright, or the prepared input, and the sha256 of its bytes.

        Raises
        ------
        ImageError
            When it cannot be read.
        """
        if self.problem is not None:
            raise ImageError(self.problem)
        source = self.source.read() if isinstance(self.source, SpooledPicture) else self.source
        if isinstance(source, Image.Image):
            require_eight_bits(source)
        if isinstance(source, Tensor | Image.Image):
            return source, self.digest
        if isinstance(source, bytes):
            return _open(source)
        try:
            if Path(source).suffix.lower() == ".parquet":
                return _read_cell(source, *self.place)
            with open(source, "rb") as file:
                if self.place:
                    file.seek(self.place[0])
                return _open(file.read(*self.place[1:]))
        except ImageError:
            raise
        except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
            why = getattr(error, "strerror", None) or reason_of(error)
            raise ImageError(f"The picture {self.name} cannot be read: {why}.") from error


def with_absolute_paths(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries for a process whose current folder may be another one."""
    return [
        replace(entry, source=os.path.abspath(entry.source))
        if isinstance(entry.source, str)
        else entry
        for entry in entries
    ]


def read_all(entries: Iterable[Entry]) -> Iterator[tuple[Image.Image | Tensor, str]]:
    """Yield the pictures that can be read, each with its sha256; skip the others."""
    for entry in entries:
        with suppress(ImageError):
            yield entry.read()


def _open(data: bytes) -> tuple[Image.Image, str]:
    return open_image(data), picture_digest(data)


def size_in_file(entry: Entry, image: Image.Image) -> tuple[int, int]:
    """Return width and height of an upright picture in its file: `open_image` reduces a large one.

    Parameters
    ----------
    entry : Entry
        Of a file, or of a row of a parquet file.
    image : PIL.Image
        As it was read from there.
    """
    if max(image.size) < LONG_SIDE:
        return image.size
    path = str(entry.source)
    is_row = Path(path).suffix.lower() == ".parquet"
    data = io.BytesIO(_cell(path, entry.place[0], picture_column(path))) if is_row else path
    with Image.open(data) as file:  # reads the header alone
        width, height = file.size
    is_turned = (width > height) != (image.width > image.height)
    return (height, width) if is_turned else (width, height)


# --- parquet: one picture per row, or sheets of tiles -------------------------------------------


def parquet_file(path: str) -> Any:
    """Open a parquet file.

    Raises
    ------
    ProfileError
        When it cannot be read.
    """
    return _open_parquet(path, _stamp(path))


def _stamp(path: str) -> tuple[int, ...] | None:
    """Return what changes when a file is written again, so that nothing old is read from memory."""
    with suppress(OSError, ValueError):
        state = os.stat(path)
        return state.st_ino, state.st_size, state.st_mtime_ns
    return None


@lru_cache(_CACHED)
def _open_parquet(path: str, stamp: tuple[int, ...] | None) -> Any:
    import pyarrow as pa
    from pyarrow.parquet import ParquetFile

    try:
        if path.isprintable():
            return ParquetFile(path)
        # pyarrow accepts only paths that are UTF-8. No pre-buffering: if one of its threads still
        # holds bytes of Python's when Python ends, the process aborts.
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return ParquetFile(pa.BufferReader(pa.py_buffer(data)), pre_buffer=False)
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise ProfileError(
            "{path} cannot be read as parquet: {error}.",
            path=printable(path),
            error=reason_of(error),
        ) from error


def picture_column(path: str) -> str:
    """Return the name of the column that holds the pictures of a parquet file.

    Raises
    ------
    NoPicturesError
        When there is none.
    """
    schema = parquet_file(path).schema_arrow
    usual = [name for name in PICTURE_COLUMNS if name in schema.names]
    for name in usual or schema.names:
        kind = schema.field(name).type
        # Bytes in a column of any other name are pictures only in Hugging Face's form.
        if _holds_bytes(kind) and (usual or _has_bytes_field(kind)):
            return str(name)
    if not usual:
        raise NoPicturesError(
            f"{printable(path)} has no column of pictures. Expected one of sheet, "
            f"{', '.join(PICTURE_COLUMNS)}; got {', '.join(schema.names)[:200]}."
        )
    kind = shorten(str(schema.field(usual[0]).type), 80)
    raise NoPicturesError(
        f"The column {usual[0]} of {printable(path)} holds {kind}. "
        "Expected the bytes of picture files, as binary or as a struct with bytes."
    )


def _has_bytes_field(kind: Any) -> bool:
    from pyarrow import types

    return types.is_struct(kind) and kind.get_field_index("bytes") >= 0


def _holds_bytes(kind: Any) -> bool:
    from pyarrow import types

    if types.is_dictionary(kind):
        return _holds_bytes(kind.value_type)
    if _has_bytes_field(kind):
        return _holds_bytes(kind.field("bytes").type)
    return bool(
        types.is_binary(kind) or types.is_large_binary(kind) or types.is_fixed_size_binary(kind)
    )


@lru_cache(_CACHED)
def _row_group(path: str, number: int, column: str, stamp: tuple[int, ...] | None) -> Any:
    return parquet_file(path).read_row_group(number, columns=[column], use_threads=False)[column]


def _cell(path: str, row: int, column: str) -> bytes:
    """Return the bytes of one picture or one sheet."""
    metadata, start = parquet_file(path).metadata, 0
    for number in range(metadata.num_row_groups):
        rows = metadata.row_group(number).num_rows
        if row < start + rows:
            cell = _row_group(path, number, column, _stamp(path))[row - start].as_py()
            if isinstance(cell, dict):  # Hugging Face's form
                if cell["bytes"] is None and cell.get("path"):
                    place = shorten(cell["path"], 80)
                    raise ImageError(f"The row holds no picture, only the path {place}.")
                cell = cell["bytes"]
            return cell or b""
        start += rows
    raise ImageError(f"{printable(path)} has no row {row}.")


@lru_cache(1)  # a list reads all tiles of a sheet before the next sheet
def _sheet(path: str, row: int, stamp: tuple[int, ...] | None) -> np.ndarray:
    """Return a sheet of tiles, uint8 of shape (height, width, 3)."""
    with Image.open(io.BytesIO(_cell(path, row, "sheet"))) as sheet:
        return np.asarray(sheet if sheet.mode == "RGB" else sheet.convert("RGB"))


def _read_cell(path: str, row: int, tile: int = 0, tiles: int = 0) -> tuple[Image.Image, str]:
    if not tiles:
        return _open(_cell(path, row, picture_column(path)))
    sheet = _sheet(path, row, _stamp(path))
    side = isqrt(sheet.shape[0] * sheet.shape[1] // tiles)  # the tiles fill the sheet
    top, left = (side * place for place in divmod(tile, sheet.shape[1] // side))
    pixels = np.ascontiguousarray(sheet[top : top + side, left : left + side])
    return Image.fromarray(pixels), picture_digest(pixels.tobytes())
