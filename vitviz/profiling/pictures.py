"""List pictures: from files, folders, globs, parquet and tar shards, a Dataset or a DataLoader."""

import glob
import json
import os
import stat
import tarfile
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from os import PathLike, fspath
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import numpy as np
from PIL import Image
from torch import Tensor

from ..common.files import printable
from ..common.images import is_photo
from ..common.language import format_count, reason_of
from ..model.memory import free_bytes
from .entries import (
    SUFFIXES,
    ClassName,
    Entry,
    EntrySource,
    Label,
    NoPicturesError,
    ProfileError,
    Sample,
    parquet_file,
    picture_column,
    spool_picture,
)
from .labels import LabelNumbers, label_entries, parse_label

#: Keys under which a Dataset's dictionary may hold the picture, and the label; the first counts.
_PICTURES = ("image", "pixel_values", "img", "picture", "images", "jpg", "png", "webp")
#: Also columns of labels in a parquet file; there "label" is preferred to all others.
_LABELS = ("label", "labels", "fine_label", "class", "target", "cls", "category")
_SHARDS = frozenset((".parquet", ".tar"))
_ARCHIVES = (".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst", ".tgz", ".zip")
_SIDECARS = frozenset((".txt", ".json", ".csv", ".xml", ".cls"))  # beside millions of pictures
_MAX_LABEL_BYTES = 1_000_000  # of a label file in a tar file
_MEMORY_CHECK = 1 << 30  # bytes of prepared inputs above which the free memory is checked


def unpack(item: Any) -> Iterator[tuple[EntrySource, Label]]:
    """Yield the pictures of an item of a Dataset or DataLoader, each with its label or None.

    Parameters
    ----------
    item : picture, (picture, label), {"image" or "pixel_values": ..., "label" or "labels": ...}
        A picture is a PIL image, the bytes or the path of a file, or a prepared input (channels,
        height, width). A batch of a DataLoader is a tensor (pictures, channels, height, width)
        with as many labels.

    Raises
    ------
    ProfileError
        When the item has another form.
    """
    picture, label = item, None
    if isinstance(item, Mapping):
        key = next((name for name in _PICTURES if name in item), None)
        if key is None:
            raise ProfileError(
                f"Expected a dictionary with one of {', '.join(_PICTURES)}, got one with "
                f"{', '.join(map(str, item)) or 'nothing'}."
            )
        picture = item[key]
        label = next((item[name] for name in _LABELS if name in item), None)
    elif isinstance(item, tuple | list):
        if len(item) != 2:
            raise ProfileError(f"Expected pairs of a picture and its label, got {len(item)} parts.")
        picture, label = item
    if isinstance(picture, Tensor) and picture.ndim == 4:
        labels = [None] * len(picture) if label is None else list(label)
        if len(labels) != len(picture):
            raise ProfileError(
                f"A batch has {format_count(len(picture), 'input')} but "
                f"{format_count(len(labels), 'label')}. Give one per input."
            )
        yield from zip(picture, map(_label, labels), strict=True)
    elif isinstance(picture, (Image.Image, bytes, str, PathLike, Tensor)):
        yield picture, _label(label)
    else:
        raise ProfileError(
            "Expected a PIL image, the bytes or the path of a file, or a prepared input (a "
            f"tensor), got {type(picture).__name__}."
        )


def _label(value: Any) -> int | str | None:
    if value is None or isinstance(value, str):
        return value
    values = np.asarray(value.cpu() if isinstance(value, Tensor) else value)
    if values.size != 1 or values.dtype.kind not in "iufb" or int(values.item()) != values.item():
        raise ProfileError(
            "Expected the number or the name of one class as label, got "
            f"{type(value).__name__} of shape {values.shape}."
        )
    return int(values.item())


def list_pictures(
    pictures: EntrySource | Sample | Iterable[EntrySource | Sample],
    *,
    labels: LabelNumbers | None = None,
    limit: int | None = None,
    seed: int = 0,
    notes: list[str] | None = None,
    spool: BinaryIO | None = None,
) -> list[Entry]:
    """Return the entries of pictures, in the order in which they are profiled.

    Each file, row and member is listed once, even if several paths, links or globs lead to it.

    Parameters
    ----------
    pictures : picture, path or glob, or several of them
        Or pairs and dictionaries of a picture and its label, as `unpack` takes them. A folder
        stands for all pictures, parquet files and tar files in it and below, sorted by name.
        Hidden files and folders in it are left out.
    labels : path, mapping or sequence, optional
        A CSV file whose lines have a picture's name and its label, or only a label, in the order of
        the list; the same as a mapping or a sequence; or a folder of class folders.
    limit : int, optional
        Take a random sample of this many pictures, in the order of the list.
    seed : int
        Of the random sample.
    notes : list of str, optional
        Receives a sentence for each thing that was left out.
    spool : file, optional
        An open `spool_file`. Pictures that an iterator, Dataset or DataLoader yields go into it.

    Raises
    ------
    ProfileError
        When there is no such file, or no picture at all, or the labels do not fit.
    """
    single = (str, bytes, PathLike, Image.Image, Tensor, Mapping)
    if isinstance(pictures, (*single, list, tuple)):
        spool = None  # the caller's list keeps the pictures
    listing, size = _Listing([] if notes is None else notes, spool), 0
    for item in [pictures] if isinstance(pictures, single) else pictures:
        for source, label in unpack(item):
            listing.add(source, label=label)
            if isinstance(source, Tensor) and spool is None:
                size += source.nbytes
        if size > _MEMORY_CHECK and size > free_bytes():  # as much again is in use already
            raise ProfileError(
                f"The prepared inputs fill the memory: {len(listing.entries):,} take "
                f"{size / 1e9:.1f} GB. Profile fewer at a time, and merge the profiles."
            )
    if spool is not None:
        spool.flush()
    if listing.repeated:
        again = format_count(listing.repeated, "file")
        listing.notes.append(f"Counted once, though given again: {again}.")
    if listing.masks:
        listing.notes.append(
            f"{format_count(len(listing.masks), 'picture')} left out, as the sample has another "
            f"one: {', '.join(listing.masks[:3])}{', ...' if len(listing.masks) > 3 else ''}."
        )
    if not listing.entries:
        raise ProfileError(" ".join(["Expected at least one picture, found none.", *listing.notes]))
    entries = [
        entry if isinstance(entry.source, str) else replace(entry, name=f"picture {number + 1}")
        for number, entry in enumerate(listing.entries)
    ]
    if labels is not None:
        entries = label_entries(entries, labels, listing.folders)
    return sample_entries(entries, limit, seed)


def sample_entries(entries: list[Entry], limit: int | None, seed: int) -> list[Entry]:
    """Return a random sample of `limit` entries in their order; all of them without a limit.

    Raises
    ------
    ProfileError
        When the limit is below 1, or the seed below 0.
    """
    if limit is None or limit >= len(entries):
        return entries
    if limit < 1:
        raise ProfileError(f"Expected a limit of at least one picture, got {limit}.")
    check_seed(seed)
    sample = np.random.default_rng(seed).choice(len(entries), limit, replace=False)
    return [entries[number] for number in sorted(sample)]


def check_seed(seed: int) -> None:
    if seed < 0:  # numpy raises an error of its own
        raise ProfileError(f"Expected a seed of at least 0, got {seed}.")


def source_names(entries: Iterable[Entry]) -> str:
    """Return the names of the shards and folders that the pictures come from, at most three."""
    names = list(dict.fromkeys(map(_home, entries)))
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _home(entry: Entry) -> str:
    if not isinstance(entry.source, str):
        return "pictures in memory"
    path = Path(entry.source).absolute()
    whole = next((each for each in path.parents if each.suffix.lower() == ".parquet"), path)
    return printable((whole if whole.suffix.lower() in _SHARDS else path.parent).name)


class _Listing:
    """Collects the entries of several sources.

    Attributes
    ----------
    entries : list of Entry
    notes : list of str
        A sentence for each thing that was left out.
    folders : list of str
        The folders that were given, and the current one.
    repeated : int
        Number of files that were given more than once.
    masks : list of str
        Pictures that are left out because their sample has another one.
    """

    def __init__(self, notes: list[str], spool: BinaryIO | None) -> None:
        self.entries: list[Entry] = []
        self.notes = notes
        self._spool = spool
        self.folders = ["."]
        self.repeated = 0
        self.masks: list[str] = []
        self._seen: set[str] = set()  # resolved paths

    def add(self, source: EntrySource, *, is_explicit: bool = True, label: Label = None) -> None:
        if isinstance(source, (bytes, Image.Image, Tensor)):
            place = source if self._spool is None else spool_picture(source, self._spool)
            self.entries.append(Entry("", place, label=label))
            return
        if label is not None:
            before = len(self.entries)
            self.add(source)
            self.entries[before:] = [replace(e, label=label) for e in self.entries[before:]]
            return
        path = os.fsdecode(fspath(source))
        if os.path.isdir(path):
            self.folders.append(path)
            for each, real in self._walk(path):
                self._add_file(each, real, is_explicit=False)
        elif os.path.lexists(path):
            self._add_file(path, os.path.realpath(path), is_explicit=is_explicit)
        else:
            matches = _expand(path)
            if not matches:
                raise ProfileError(f"There is no file {printable(path)}.")
            for match in matches:
                self.add(match, is_explicit=False)

    def _walk(self, root: str) -> list[tuple[str, str]]:
        """Return the pictures and shards below a folder, by name, each with its resolved path."""
        paths: dict[str, str] = {}  # by resolved path
        visited: set[str] = set()
        folders, links = [root], list[str]()
        while folders or links:
            is_real = bool(folders)
            folder = folders.pop() if folders else links.pop()  # links last: real names win
            real = os.path.realpath(folder)
            if real in visited:
                continue
            visited.add(real)
            for each in self._scan(folder):
                target = os.path.join(real, each.name)
                if each.is_symlink():
                    target = os.path.realpath(each.path)
                if not each.is_dir():
                    if self._is_wanted(each):
                        is_first = is_real and not each.is_symlink()
                        paths[target] = each.path if is_first else paths.get(target, each.path)
                elif not each.is_symlink():
                    (folders if is_real else links).append(each.path)
                elif f"{real}{os.sep}".startswith(os.path.join(target, "")):
                    self.notes.append(
                        f"The link {printable(each.path)} leads back to a folder that contains it "
                        "and is not followed."
                    )
                else:
                    links.append(each.path)
        pairs = ((path, real) for real, path in paths.items())
        return sorted(pairs, key=lambda pair: Path(pair[0]).parts)

    def _scan(self, folder: str) -> list[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                return [each for each in entries if not _is_hidden(each.name)]
        except OSError as error:
            self.notes.append(
                f"The folder {printable(folder)} cannot be read: {error.strerror or error}."
            )
            return []

    def _is_wanted(self, each: os.DirEntry[str]) -> bool:
        """Whether a file is a picture or a shard, by its ending or its first bytes."""
        name = each.name.lower()
        ending = os.path.splitext(name)[1]
        if ending in SUFFIXES | _SHARDS:
            return True
        if name.endswith(_ARCHIVES):
            self.notes.append(
                f"The archive {printable(each.path)} is not read. Unpack it, or give a plain tar."
            )
            return False
        if ending in _SIDECARS or not each.is_file():
            return False
        with suppress(OSError), open(each.path, "rb") as file:
            return is_photo(file.read(1024))
        return False

    def _add_file(self, path: str, real: str, *, is_explicit: bool) -> None:
        if real in self._seen:
            self.repeated += 1
            return
        self._seen.add(real)
        name = printable(path)
        problem = _why_unreadable(path)
        suffixes = [suffix.lower() for suffix in Path(path).suffixes]
        if problem is not None:
            self.entries.append(Entry(name, path, problem=problem))
        elif suffixes[-1:] == [".parquet"]:
            try:
                self.entries += self._parquet_entries(path)
            except NoPicturesError as error:
                if is_explicit:
                    raise
                self.notes.append(f"{error}")
        elif suffixes[-1:] == [".tar"]:
            self.entries += self._tar_entries(path)
        elif name.lower().endswith(_ARCHIVES):
            raise ProfileError(f"{name} is compressed. Unpack it, or give a plain tar file.")
        else:
            self.entries.append(Entry(name, path))

    def _parquet_entries(self, path: str) -> Iterator[Entry]:
        name, file = printable(path), parquet_file(path)
        if "sheet" in file.schema_arrow.names:
            yield from _sheet_entries(path)
            return
        picture_column(path)
        count = file.metadata.num_rows
        try:
            labels = _parquet_labels(path) or [None] * count
        except ProfileError as error:
            self.notes.append(f"The labels of {name} are left out: {error}")
            labels = [None] * count
        for row in range(count):
            yield Entry(f"{name}:{row}", path, (row,), labels[row])

    def _tar_entries(self, path: str) -> Iterator[Entry]:
        """Yield each picture of a shard, with the label in its .cls or .json file."""
        name = printable(path)
        pictures: dict[str, list[Entry]] = defaultdict(list)  # by WebDataset's sample key
        labels: dict[str, Label] = {}  # by the member's name without its last ending
        try:
            with tarfile.open(path, "r:") as shard:
                for member in shard:
                    parts = member.name.split("/")
                    if not member.isfile() or any(map(_is_hidden, parts)):
                        continue
                    stem, ending = os.path.splitext(member.name)
                    if ending.lower() in SUFFIXES:
                        place = (member.offset_data, member.size)
                        entry_name = f"{name}:{printable(member.name)}"
                        pictures[_sample_key(member.name)].append(Entry(entry_name, path, place))
                    elif ending in (".cls", ".json"):
                        label = self._tar_label(shard, member, name)
                        labels[stem] = labels.get(stem) if label is None else label
                    elif ending == ".txt":
                        labels.setdefault(stem, None)
        except (tarfile.TarError, OSError, ValueError, OverflowError) as error:
            raise ProfileError(
                f"{name} cannot be read as a tar file: {reason_of(error)}."
            ) from error
        for key, some in pictures.items():
            yield from self._sample_entries(len(name) + 1, key, some, labels)

    def _sample_entries(
        self, start: int, key: str, some: list[Entry], labels: dict[str, Label]
    ) -> Iterator[Entry]:
        """Yield the pictures of a sample with their labels; leave out masks.

        If a sample has a label file, only its first picture is listed, and those with a label file
        of their own: 7.jpg, 7.seg.png and 7.cls are a picture, its mask and its label.
        """
        stems = [os.path.splitext(entry.name[start:])[0] for entry in some]
        has_own = any(stem in labels and stem != key for stem in stems)
        first = stems.index(key) if key in stems else 0
        for number, (stem, entry) in enumerate(zip(stems, some, strict=True)):
            is_own = stem in labels and stem != key
            if is_own or key not in labels or (number == first and not (has_own and stem != key)):
                yield replace(entry, label=labels.get(stem, labels.get(key)))
            else:
                self.masks.append(entry.name)

    def _tar_label(self, shard: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> Label:
        where = f"{name}:{printable(member.name)}"
        file = shard.extractfile(member) if member.size <= _MAX_LABEL_BYTES else None
        if file is None:
            self.notes.append(f"The label {where} is left out: it has {member.size:,} bytes.")
            return None
        text = file.read().decode("utf-8", "replace").strip()
        if member.name.endswith(".cls"):
            return int(text) if text.isdecimal() and len(text) < 10 else text
        try:
            data = json.loads(text)
            return parse_label(data.get("label")) if isinstance(data, dict) else None
        except (ValueError, RecursionError) as error:  # ProfileError is a ValueError
            self.notes.append(f"The label {where} is left out: {reason_of(error)}.")
            return None


def _is_hidden(name: str) -> bool:
    """Whether a file or folder is hidden, or an attachment of macOS such as ._a.jpg."""
    return (name.startswith(".") and name not in (".", "..")) or name == "__MACOSX"


def _why_unreadable(path: str) -> str | None:
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        if os.path.islink(path) and not os.path.exists(path):
            return f"The link leads to {printable(os.readlink(path))}, which does not exist."
        return f"The file cannot be read: {error.strerror or error}."
    return None if stat.S_ISREG(mode) else "Expected a file, got a pipe, a socket or a device."


def _expand(pattern: str) -> list[str]:
    """Return the paths that a glob matches; parts that exist as written are taken literally."""
    parts = pattern.split("/")
    for number, part in enumerate(parts):
        before = "/".join(pattern.split("/")[: number + 1]) or "/"
        if "\0" not in before and os.path.lexists(before):
            parts[number] = glob.escape(part)
    return sorted(glob.glob("/".join(parts), recursive=True))


# --- labels and class names in parquet files ----------------------------------------------------


def _sheet_entries(path: str) -> Iterator[Entry]:
    from pyarrow import types

    name, file = printable(path), parquet_file(path)
    schema = file.schema_arrow
    if "label" not in schema.names or not types.is_binary(schema.field("label").type):
        raise NoPicturesError(
            f'{name} has sheets, but no column "label" with one byte per tile. Add that column.'
        )
    names = _class_names(schema, "label")
    for row, tiles in enumerate(_read_column(path, "label")):
        for tile, label in enumerate(tiles or b""):
            label = names[label] if names and label < len(names) else label
            yield Entry(f"{name}:{row}:{tile}", path, (row, tile, len(tiles)), label)


def _read_column(path: str, name: str) -> list[Any]:
    try:
        values: list[Any] = parquet_file(path).read([name], use_threads=False)[name].to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's errors are subclasses of these
        raise ProfileError(
            f"The column {name} of {printable(path)} cannot be read: {reason_of(error)}."
        ) from error
    return values


def _parquet_labels(path: str) -> list[Label] | None:
    """Return the labels of the rows, or None if the file has none.

    Raises
    ------
    ProfileError
        When a value is no label, or more than one column may hold the labels.
    """
    schema = parquet_file(path).schema_arrow
    columns = [name for name in _LABELS if name in schema.names]
    if not columns:
        return _labels_of_partition(path)
    if columns[0] != _LABELS[0] and len(columns) > 1:
        raise ProfileError(f"{' and '.join(columns)} may be the column of labels.")
    names = _class_names(schema, columns[0])
    values = [parse_label(value) for value in _read_column(path, columns[0])]
    if names is None:
        return [*values]
    labels: list[Label] = []
    for value in values:
        if isinstance(value, int) and not -1 <= value < len(names):
            raise ProfileError(
                f"The label {value} is not among the {len(names)} classes that the file lists."
            )
        if isinstance(value, int):
            labels.append(None if value == -1 else names[value])  # Hugging Face: -1 is no label
        else:
            labels.append(value)
    return labels


def _labels_of_partition(path: str) -> list[Label] | None:
    """Return the label in the name of a partition's folder, such as label=cat, for every row."""
    for part in reversed(Path(path).parts[:-1]):
        column, equals, value = part.partition("=")
        if equals and column in _LABELS:
            return [unquote(value)] * parquet_file(path).metadata.num_rows
    return None


def _class_names(schema: Any, column: str) -> tuple[ClassName, ...] | None:
    """Return the class names in the schema's metadata, or None.

    Raises
    ------
    ProfileError
        When they cannot be read.
    """
    metadata = schema.metadata or {}
    own = metadata.get(b"classes") or metadata.get(b"names")
    try:
        if own is not None:
            content = json.loads(own)
        else:
            features = json.loads(metadata.get(b"huggingface") or b"{}").get("info", {})
            feature = (features.get("features") or {}).get(column) or {}
            content = feature.get("names") if feature.get("_type") == "ClassLabel" else None
            if content is None:
                return None
        if isinstance(content, dict):  # by number
            content = [content[str(number)] for number in range(len(content))]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise ProfileError("The class names in the file's metadata cannot be read.") from error
    if not isinstance(content, list) or not all(isinstance(name, str) for name in content):
        raise ProfileError("The class names in the file's metadata are no list of texts.")
    names = tuple(content)
    return tuple(ClassName(number, names) for number in range(len(names)))


def _sample_key(name: str) -> str:
    """Return the key of a member's WebDataset sample: its path up to the first dot of the name."""
    folder, slash, file = name.rpartition("/")
    return folder + slash + file.partition(".")[0]
