"""Give pictures their labels, from a table, a mapping, a sequence or class folders.

Labels become class numbers of a model. A label with two possible meanings is refused, and both
meanings are named.
"""

import os
import posixpath
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from os import PathLike, fspath
from typing import Any

import numpy as np

from ..common.files import printable
from ..common.language import MessageError, format_count
from ..common.tables import Row, read_tables, read_text, split_lines
from ..model import Model
from .entries import SUFFIXES, ClassName, Entry, Label, ProfileError

LabelNumbers = str | PathLike[str] | Mapping[str, int | str] | Sequence[int | str]
#: Headings of the column of labels.
_HEADINGS = {
    *("label", "labels", "class", "classes", "class_name", "classname", "class_id", "class_idx"),
    *("target", "targets", "category", "species", "y"),
}
_WHOLE = re.compile(r"(\d+)(?:\.0+)?")  # pandas writes 3 as 3.0 if the column has a gap


def label_entries(
    entries: list[Entry], labels: LabelNumbers, folders: Iterable[str]
) -> list[Entry]:
    """Return the entries with their labels.

    Parameters
    ----------
    labels : path, mapping or sequence
        A table of pictures and labels, or of labels alone in the order of the list; a folder of
        class folders; or the same in Python.
    folders : iterable of str
        Folders to which paths in a table may be relative.

    Raises
    ------
    ProfileError
        When a picture has no label, or more than one.
    """
    if isinstance(labels, (str, PathLike)):
        path = fspath(labels)
        if os.path.isdir(path):
            return _label_by_folder(entries, path)
        readings = _Lookup(entries, [*folders, os.path.dirname(path)]).read(path)
    elif isinstance(labels, Mapping):
        lookup = _Lookup(entries, folders)
        readings = lookup.assign((f"the key {key}", key, (value,)) for key, value in labels.items())
    else:
        readings = dict(enumerate((label,) for label in labels))
        if len(readings) != len(entries):
            wanted = format_count(len(entries), "label")
            raise ProfileError(f"Expected {wanted}, got {len(readings)}.")
    gap = next((number for number in range(len(entries)) if number not in readings), None)
    if gap is not None:
        raise ProfileError(f"The labels lack one for {entries[gap].name}.")
    result = []
    for number, entry in enumerate(entries):
        values = [parse_label(value) for value in readings[number]]
        several = len({*values}) > 1
        result.append(replace(entry, label=tuple(map(_text, values)) if several else values[0]))
    widths = {len(e.label) for e in result if isinstance(e.label, tuple)}
    if widths:  # give every entry the same number of readings
        width = max(widths)
        result = [
            e if isinstance(e.label, tuple) else replace(e, label=(_text(e.label),) * width)
            for e in result
        ]
    return result


def parse_label(value: Any) -> int | str | None:
    """Return a label as a class number or name, or None for an empty value.

    Raises
    ------
    ProfileError
        When the value is neither a number nor a name.
    """
    if getattr(value, "ndim", None) == 0:  # a tensor or array of one label
        value = value.item()
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace") or None
    if isinstance(value, (bool, np.bool_)):
        raise ProfileError(f"Expected a class number or name as label, got {value}.")
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        if np.isnan(value):  # a gap in a column of pandas
            return None
        if float(value).is_integer():
            return int(value)
    raise ProfileError(
        f"Expected a class number or name as label, got {str(value)[:60]} ({type(value).__name__})."
    )


def compose(text: str) -> str:
    """Return a name with composed letters (NFC): macOS writes é and 고 in file names in parts."""
    return unicodedata.normalize("NFC", text)


def _text(value: Label) -> str:
    return "" if value is None else str(value)


def _label_by_folder(entries: list[Entry], folder: str) -> list[Entry]:
    """Label each picture by its class folder: the first folder below the given one."""
    root = os.path.abspath(folder)
    result = []
    for entry in entries:
        path = os.path.abspath(entry.source) if isinstance(entry.source, str) else ""
        below = os.path.relpath(path, root).split(os.sep) if path else []
        if len(below) < 2 or below[0] == os.pardir:
            raise ProfileError(
                f"{entry.name} has no label: it is in no class folder of {printable(folder)}."
            )
        result.append(replace(entry, label=below[0]))
    _check_numbered_folders({str(entry.label) for entry in result})
    return result


def _check_numbered_folders(names: set[str]) -> None:
    """Raise a ProfileError if numbered folders have another order when sorted as text."""
    if not all(name.isdecimal() for name in names):
        return
    for place, name in enumerate(sorted(names)):
        if place != int(name):
            raise ProfileError(
                f"The class folder {name} may mean class {int(name)}, by its name, or class "
                f"{place}, by its place among the sorted folders, as torchvision counts. "
                "Give the labels as a table or a mapping."
            )


# --- tables of pictures and labels -------------------------------------------------------------


class _Lookup:
    """Finds the entries that a name in a table means."""

    def __init__(self, entries: Sequence[Entry], folders: Iterable[str]) -> None:
        self.entries = entries
        paths = (os.path.abspath(printable(each or ".")) for each in folders)
        self.folders = {_slashes(compose(path)) for path in paths}
        self.names = [compose(_full_name(entry)) for entry in entries]
        self.whole = _index(self.names)
        self.ends = _index(map(_last, self.names))
        self.stems = _index(_stem(_last(name)) for name in self.names)

    def find(self, cell: str, *, stem: bool = False) -> list[int]:
        """Return the numbers of the entries that a name or path may mean.

        A path relative to one of the folders wins over the end of a longer path. With `stem`, the
        cell is a file's name without its ending.
        """
        cell = compose(cell)
        if stem:
            return self.stems.get(cell, [])
        name = posixpath.normpath(_slashes(cell)) if cell else "."
        if name == ".":
            return []
        paths = {posixpath.normpath(posixpath.join(each, name)) for each in self.folders}
        exact = {number for path in paths for number in self.whole.get(path, ())}
        return sorted(exact) or [n for n in self.ends.get(_last(name), ()) if self._is_end(n, name)]

    def _is_end(self, number: int, name: str) -> bool:
        full = self.names[number]
        if not full.endswith(name):
            return False
        # before the place in a shard a colon is a separator; else it is part of a file's name
        before = full[: -len(name)][-1:]
        return before in ("", "/") or (before == ":" and bool(self.entries[number].place))

    def read(self, path: str) -> dict[int, tuple[Any, ...]]:
        """Return the labels of a table by entry number, one for each way to read the table.

        Raises
        ------
        ProfileError
            When the table cannot be read, or a line has two meanings.
        """
        try:
            text = read_text(path)
        except MessageError as error:
            raise ProfileError(f"The labels {error}") from error
        tables, lines = [*read_tables(text)], [*split_lines(text)]
        if not any(tables):
            raise ProfileError(f"The labels {printable(path)} are empty.")
        for stem in (False, True):
            best, column, most = self._best_column([*tables, *lines], stem)
            if most:
                break
        else:
            return self._in_order(tables, path)
        columns, body, is_named = self._label_columns(best, column, stem)
        if not columns:
            raise ProfileError(f"The labels {printable(path)} have no column of labels.")
        values = {row.line: [_at(row, c) for c in columns] for row in body}
        if len(columns) > 1 and not is_named:  # perhaps one label with an unquoted comma
            for rows in lines:
                _, name, matches = self._best_column([rows], stem)
                if matches == most:
                    for row in rows:
                        values.setdefault(row.line, []).append(row.cells[1 - name])
        return self.assign(
            (
                (f"line {row.line} of {printable(path)}", _at(row, column), tuple(values[row.line]))
                for row in body
            ),
            stem=stem,
        )

    def assign(
        self, labels: Iterable[tuple[str, str, tuple[Any, ...]]], *, stem: bool = False
    ) -> dict[int, tuple[Any, ...]]:
        """Return labels by entry number; each is given as (its place, picture's name, values).

        Raises
        ------
        ProfileError
            When a name means several pictures, or a picture has several labels.
        """
        readings: dict[int, tuple[tuple[Any, ...], str]] = {}
        for where, name, values in labels:
            numbers = self.find(str(name), stem=stem)
            if len(numbers) > 1:
                one, other = (self.entries[n].name for n in numbers[:2])
                raise ProfileError(
                    f"The label {values[0]} in {where} is for {name}, which may be {one} or "
                    f"{other}. Give longer paths."
                )
            for number in numbers:
                before, place = readings.setdefault(number, (values, where))
                if before != values:
                    raise ProfileError(
                        f"{self.entries[number].name} has two labels: {before[0]} in {place}, and "
                        f"{values[0]} in {where}."
                    )
        return {number: values for number, (values, _) in readings.items()}

    def _best_column(self, tables: Sequence[list[Row]], stem: bool) -> tuple[list[Row], int, int]:
        """Return the table and column with the most names of pictures, and their count."""
        best: tuple[list[Row], int, int] = tables[0], 0, 0
        for rows in tables:
            width = max(len(row.cells) for row in rows)
            for column in range(width if width > 1 else 0):
                if stem and _is_index(rows, column):
                    continue
                matches = sum(bool(self.find(_at(row, column), stem=stem)) for row in rows)
                if matches > best[2]:
                    best = rows, column, matches
        return best

    def _label_columns(
        self, rows: list[Row], column: int, stem: bool
    ) -> tuple[list[int], list[Row], bool]:
        """Find the columns that may hold the labels.

        Returns those columns, the rows below a header, and whether the header names the column.
        """
        first = _at(rows[0], column)
        is_header = not self.find(first, stem=stem) and _stem(first) == first
        others = [n for n in range(max(len(row.cells) for row in rows)) if n != column]
        if not is_header:
            return [n for n in others if n > column or not _is_index(rows, n)], rows, False
        heads = [_at(rows[0], n).lower() for n in range(max(others, default=0) + 1)]
        labels = [n for n in others if heads[n] in _HEADINGS]
        others = [n for n in others if heads[n] and not heads[n].startswith("unnamed:")]
        return labels or others, rows[1:], bool(labels)

    def _in_order(self, tables: Sequence[list[Row]], path: str) -> dict[int, tuple[Any, ...]]:
        """Return the labels of a table that names no pictures, in the order of the list."""
        count = len(self.entries)
        for rows in tables:
            width = max(len(row.cells) for row in rows)
            is_index = width == 2 and _is_index(rows, 0)
            if any(_stem(_at(row, 0)) != _at(row, 0) for row in rows) or width - is_index != 1:
                continue
            heads = _at(rows[0], width - 1).lower()
            if len(rows) == count + 1 and (heads in (*_HEADINGS, "x") or not _at(rows[0], 0)):
                rows = rows[1:]
            if len(rows) != count:
                raise ProfileError(f"Expected {format_count(count, 'label')}, got {len(rows)}.")
            for number, row in enumerate(rows if is_index else ()):
                matches = self.find(_at(row, 0), stem=True)
                if matches and number not in matches:
                    one, other = self.entries[number].name, self.entries[matches[0]].name
                    raise ProfileError(
                        f"Line {row.line} of {printable(path)} may be for {one}, by the order of "
                        f"the lines, or for {other}, by its number. Give the names of the files."
                    )
            return {number: (_at(row, width - 1),) for number, row in enumerate(rows)}
        raise ProfileError(f"The labels lack one for {self.entries[0].name}.")


def _at(row: Row, column: int) -> str:
    return row.cells[column] if column < len(row.cells) else ""


def _is_index(rows: Sequence[Row], column: int) -> bool:
    """Whether a column counts the rows from 0 or 1, as pandas and R write their index."""
    cells = [_at(row, column) for row in rows]
    for start in (0, 1):
        for some in (cells, cells[1:]):  # with and without a header
            if some and some == [str(start + n) for n in range(len(some))]:
                return True
    return False


def _full_name(entry: Entry) -> str:
    """Return the absolute path of an entry, with its place in a shard."""
    if not isinstance(entry.source, str):
        return entry.name
    path = printable(os.path.abspath(entry.source))
    return _slashes(path) + entry.name[len(printable(entry.source)) :]


def _slashes(path: str) -> str:
    return path.replace("\\", "/")


def _last(path: str) -> str:
    return re.split("[/:]", path)[-1]


def _stem(name: str) -> str:
    """Return a name without the ending of a picture file."""
    stem, ending = posixpath.splitext(name)
    return stem if ending.lower() in SUFFIXES else name


def _index(keys: Iterable[str]) -> dict[str, list[int]]:
    numbers: dict[str, list[int]] = defaultdict(list)
    for number, key in enumerate(keys):
        numbers[key].append(number)
    return dict(numbers)


# --- class numbers of labels -------------------------------------------------------------------


def number_labels(
    entries: Sequence[Entry], model: Model, *, strict: bool
) -> tuple[list[Entry], str | None]:
    """Return the entries with class numbers of the model as labels, and None or a reason.

    If a label is no class of the model, or may mean two, all labels are dropped and the reason is
    returned, or raised if `strict`, as for labels that the user gave.

    Raises
    ------
    ProfileError
        When `strict` labels do not fit the model, or it does not choose one class.
    """
    if not model.has_one_answer and any(entry.label is not None for entry in entries):
        why = (
            f"{model.name} answers with {model.answers}, so one label per picture gives no "
            "accuracy. Leave out the labels."
        )
        if strict and model.num_classes:
            raise ProfileError(why)
        return [replace(entry, label=None) for entry in entries], why
    readings = max((len(e.label) for e in entries if isinstance(e.label, tuple)), default=1)
    by_reading: dict[int, list[int | None]] = {}
    reason: ProfileError | None = None
    for reading in range(readings):
        labels = [e.label[reading] if isinstance(e.label, tuple) else e.label for e in entries]
        try:
            by_reading[reading] = _class_numbers(entries, labels, model)
        except ProfileError as error:
            reason = reason or error
    for entry, *numbers in zip(entries, *by_reading.values(), strict=True) if by_reading else ():
        if len({*numbers}) > 1 and isinstance(entry.label, tuple):
            words = " or ".join(dict.fromkeys(entry.label[reading] for reading in by_reading))
            reason = ProfileError(
                f"The label of {entry.name} may be {words}: more than one column of the table "
                'holds classes. Name one of them "label" in a header line.'
            )
            by_reading = {}
            break
    if by_reading:
        first = next(iter(by_reading.values()))
        return [replace(e, label=number) for e, number in zip(entries, first, strict=True)], None
    assert reason is not None
    texts = [e.label for e in entries if isinstance(e.label, str | tuple)]
    if model.labels is None and texts:
        why = (
            f"The classes of {model.name} have no names, so the label {texts[0]} cannot be "
            "matched. Give their names: --classes FILE, or labels= of load_model."
        )
        return [replace(entry, label=None) for entry in entries], why
    if strict:
        raise reason
    return [replace(entry, label=None) for entry in entries], str(reason)


def _class_numbers(
    entries: Sequence[Entry], labels: Sequence[int | str | None], model: Model
) -> list[int | None]:
    """Return the class numbers of one reading of the labels.

    If all labels are class names, they are read as names; if all are numbers, as numbers.
    """
    names = _index(map(compose, model.labels or ()))
    own = tuple(model.labels or ())
    count = model.num_classes

    def by_name(label: str) -> list[int]:
        return names.get(compose(label), [])

    def by_number(label: str) -> list[int]:
        whole = _WHOLE.fullmatch(label)
        return [int(whole[1])] if whole and int(whole[1]) < count else []

    texts = {label for label in labels if isinstance(label, str) and label}
    texts -= {label for label in texts if isinstance(label, ClassName)}
    ways = [way for way in (by_name, by_number) if all(map(way, texts))] or [by_name, by_number]

    def meanings(label: int | str) -> set[int]:
        if isinstance(label, ClassName):
            return {label.number} if label.names == own else {*by_name(label)}
        if isinstance(label, int):
            return {label} if 0 <= label < count else set()
        return {number for way in ways for number in way(label)}

    numbers_of: dict[object, list[int]] = {}
    result: list[int | None] = []
    for entry, label in zip(entries, labels, strict=True):
        if label is None or label == "":
            result.append(None)
            continue
        key = label, getattr(label, "number", None)  # two classes of a file may share a name
        if key not in numbers_of:
            numbers_of[key] = sorted(meanings(label))
        numbers = numbers_of[key]
        if not numbers:
            raise ProfileError(
                f"The label {label} of {entry.name} is none of the {count} classes of {model.name}."
            )
        if len(numbers) > 1:
            words = " or ".join(_class_words(number, model) for number in numbers)
            raise ProfileError(
                f"The label {label} of {entry.name} may mean {words} of {model.name}. Give labels "
                "that are all names, or all numbers from 0."
            )
        result.append(numbers[0])
    return result


def _class_words(number: int, model: Model) -> str:
    name = model.labels[number] if model.labels else None
    return f"class {number}" if name is None else f"class {number}, named {name},"
