"""Read tables from text files as spreadsheets, R and pandas write them."""

import codecs
import csv
import io
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from .language import MessageError

_DELIMITERS = (",", ";", "\t")


class Row(NamedTuple):
    """One row of a table.

    Attributes
    ----------
    line : int
        Line of the file where the row ends, counted from 1.
    cells : list of str
        Cells without surrounding spaces.
    """

    line: int
    cells: list[str]


def read_text(path: str | PathLike[str]) -> str:
    """Return the text of a file, without its byte order mark.

    Raises
    ------
    MessageError
        When the file cannot be read, or is in an unknown encoding.
    """
    place = Path(path)
    try:
        data = place.read_bytes()
    except OSError as error:
        raise MessageError(
            "{file} cannot be read: {reason}.", file=place, reason=error.strerror or error
        ) from error
    # Excel's "Unicode Text" is UTF-16 with a mark; other encodings could only be guessed.
    wide = data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        text = data.decode("utf-16" if wide else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise MessageError(
            '{file} is not in UTF-8. Save it in UTF-8, in Excel as "CSV UTF-8".',
            file=place,
        ) from error
    if "\0" in text:
        raise MessageError("{file} is not a text file. Save it as text.", file=place)
    return text


def read_tables(text: str) -> Iterator[list[Row]]:
    """Yield a table for each delimiter that fits a text, without empty rows.

    Quoted cells are read by the `csv` module. Delimiters that do not occur give one table of one
    column, which comes last.
    """
    delimiters: tuple[str, ...] = _DELIMITERS
    num_skipped = 0
    first, _, rest = text.partition("\n")
    if first.strip().lower().startswith("sep=") and len(first.strip()) == 5:  # Excel's
        delimiters, num_skipped, text = (first.strip()[-1],), 1, rest
    single = None
    for delimiter in delimiters:
        table = _parse(text, delimiter, num_skipped)
        if table is None:
            continue
        if max((len(row.cells) for row in table), default=1) > 1:
            yield table
        else:
            single = single or table
    if single is not None:
        yield single


def split_lines(text: str) -> Iterator[list[Row]]:
    """Yield tables of two columns, cut at the first or the last delimiter of each line.

    They are for names with commas that were not quoted.
    """
    lines = [(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    for delimiter in _DELIMITERS:
        if not all(delimiter in line for _, line in lines) or '"' in text:
            continue
        for cut in (str.split, str.rsplit):
            yield [Row(n, [part.strip() for part in cut(line, delimiter, 1)]) for n, line in lines]


def _parse(text: str, delimiter: str, num_skipped: int) -> list[Row] | None:
    """Return the rows, or None if a quote is not closed."""
    reader = csv.reader(
        io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True
    )
    try:
        return [
            Row(reader.line_num + num_skipped, cells)
            for row in reader
            if any(cells := [cell.strip() for cell in row])
        ]
    except csv.Error:
        return None
