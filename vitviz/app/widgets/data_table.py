"""The numbers of a page as tables, CSV and NPZ files, and the provenance line."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz.app import settings
from vitviz.app.pages import PAGES
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import View, head_name
from vitviz.common.files import creation_record
from vitviz.common.language import Message, current_language, literal, mark, tr, tr_md, translate

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALES = {
    "map": mark("each map on its own scale"),
    "shared": mark("one scale for all maps"),
    "log": mark("logarithmic scale"),
}
#: Of a table, by their headings.
Columns = dict[str, Sequence[object] | np.ndarray]
_DIGITS = 6  # significant ones of a number in a table


@dataclass(frozen=True, eq=False)
class Table:
    """Numbers of a figure.

    Attributes
    ----------
    about : str
        What they are, in one sentence.
    columns : mapping of str to sequences of one length
        By their headings, which name the units. Where there is no number, NaN or None. A heading
        or a word that is a `Message` is English in a file, and on screen in the page's language.
    record : str or None
        The line on what was measured, where that is not what the page shows.
    made_with : mapping or None
        How the numbers came to be, for its files.
    """

    about: str
    columns: Mapping[str, Sequence[object] | np.ndarray]
    record: str | None = None
    made_with: Mapping[str, Any] | None = None

    def csv(self, line: str) -> str:
        """Return the table as text, under lines of comment.

        They are what was measured, `about`, and `made_with` as JSON.
        """
        file = io.StringIO()
        note = () if self.made_with is None else (f"made with {json.dumps(self.made_with)}",)
        for comment in (line, self.about, *note):
            file.write(f"# {_one_line(comment)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*map(_csv_values, self.columns.values()), strict=True))
        return file.getvalue()

    def npz(self, line: str) -> bytes:
        """Return the table for numpy: an array a column, all digits, NaN for no number.

        Beside them are `provenance`, what was measured, `about`, and `made_with` as JSON.
        """
        file = io.BytesIO()
        arrays = {name: _array(values) for name, values in self.columns.items()}
        for name, words in (("provenance", line), ("about", self.about)):
            arrays[name] = np.array(_one_line(words))
        if self.made_with is not None:
            arrays["made_with"] = np.array(json.dumps(self.made_with))
        np.savez(file, allow_pickle=False, **arrays)
        return file.getvalue()


@dataclass(frozen=True, eq=False)
class Beside:
    """The other side of a page that compares.

    Attributes
    ----------
    view : of the other side
    found : what was found, in a sentence; empty where nothing could be compared
    figures : of both sides together
    """

    view: View
    found: str
    figures: "Sequence[go.Figure]"


@dataclass(frozen=True, eq=False)
class Data:
    """Tables of what a page measured.

    Attributes
    ----------
    make : callable
        Makes the tables; called when they are to be seen.
    pictures : str or None
        What was measured, where it is not the picture on screen.
    record : str or None
        The whole line, where neither model nor picture on screen was measured.
    beside : Beside or None
        What the page compares with.
    counted : str or None
        What the maps count, where it is not attention itself.
    hidden : bool
        Whether none of it is to be seen yet, in a file neither, as it is guessed first.
    """

    make: Callable[[], Sequence[Table]]
    pictures: str | None = None
    record: str | None = None
    beside: Beside | None = None
    counted: str | None = None
    hidden: bool = False


@st.fragment  # opening it does not run the rest of the page again
def draw_tables(view: View, page: str, data: Data) -> None:
    """Draw the closed expander "Data"; its tables are computed and sent when it is opened.

    The files carry the name of the page.
    """
    settings.use_stored_language()
    disclosure = st.expander(tr("Data"), key=f"data_{page}", on_change="rerun")
    if not disclosure.open:
        return
    source = page_provenance(view, page, data)
    if current_language() != "en":
        disclosure.caption(tr("The headings of the files are English, alike in every language."))
    try:
        tables = data.make()
    except BusyError as error:
        disclosure.error(tr_md(error))
        return
    for number, table in enumerate(tables, start=1):
        line, is_recorded = table.record or source, table.record or data.record
        origin = creation_record() if is_recorded else _made_with(view, data)
        table = replace(table, made_with=origin)
        with disclosure:
            words, *buttons = st.columns([4, 1, 1], vertical_alignment="center")
            words.markdown(literal(table.about))
            files: tuple[tuple[str, str, bytes], ...] = (
                ("csv", "text/csv", _encode_csv(table.csv(line))),
                ("npz", "application/zip", table.npz(line)),
            )
            for button, (kind, mime, content) in zip(buttons, files, strict=True):
                button.download_button(
                    kind.upper(),
                    content,
                    file_name=f"vitviz_{page}_{number}.{kind}",
                    mime=mime,
                    key=f"{kind}_{page}_{number}",
                    on_click="ignore",
                    icon=":material/download:",
                    width="stretch",
                )
            numbers = {
                translate(name): _screen_values(values) for name, values in table.columns.items()
            }
            assert len(numbers) == len(table.columns)  # no two of one name
            st.dataframe(
                numbers,
                hide_index=True,
                height=min(300, 36 * (len(next(iter(numbers.values()))) + 1)),
                column_config={
                    name: st.column_config.NumberColumn(format="%.4g")
                    for name, values in numbers.items()
                    if isinstance(values[-1], float)
                },
                key=f"table_{page}_{number}",
            )


def _made_with(view: View, data: Data) -> dict[str, Any]:
    """Return how the numbers of a page came to be; of a comparison, of both sides."""
    sides = [view, *([data.beside.view] if data.beside else [])]
    records = []
    for one in sides:
        record = one.acts.record
        record["picture"] = record["picture"] | {"name": one.picture.name}
        records.append(record)
    if len(sides) > 1:
        return {**creation_record(), "compared": records}
    if data.pictures:  # and not the one on screen
        records[0]["picture"] = {"name": data.pictures, "sha256": None, "of": None}
    return records[0]


def page_provenance(view: View, page: str, data: Data | None = None) -> str:
    """Return the provenance line: model, weights, layer, head and scale that count, picture."""
    if data and data.record:
        return data.record
    pictures = data.pictures if data else None
    parts = {"layer": view.layer_name}
    if view.acts.layers[view.layer].num_heads:
        parts["head"] = head_name(view.head)
        parts["scale"] = tr(SCALES[view.style.scale])
    return " · ".join(
        (
            tr(view.model.provenance),
            *(words for name, words in parts.items() if name in PAGES[page].settings),
            *([data.counted] if data and data.counted else []),
            pictures or view.picture.name,
        )
    )


def patch_columns(
    view: View, *, prefix: bool = False, grid: tuple[int, ...] | None = None
) -> Columns:
    """Return the first columns of a table with a line for each patch, in row-major order.

    With `prefix` a line for each token: those outside the picture come first, by their name.
    `grid` is left out where the patches are those of the layer on screen.
    """
    names = [name.upper() for name in view.prefix] if prefix else []
    rows, cols = np.indices(grid or view.grid).reshape(2, -1) + 1
    nowhere: list[object] = [None] * len(names)
    what = [*names, *[Message("patch")] * len(rows)]
    columns: Columns = {Message("token"): what}
    if not prefix:
        columns = {}
    places = {Message("row"): rows, Message("column"): cols}
    return columns | {name: [*nowhere, *each.tolist()] for name, each in places.items()}


def head_columns(shape: tuple[int, ...]) -> Columns:
    """Return the first columns of a table with a line for each head (layers, heads)."""
    layers, heads = np.indices(shape).reshape(2, -1) + 1
    return {Message("layer"): layers, Message("head"): heads}


def columns_of(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> Columns:
    """Return the columns of rows."""
    return dict(zip(headings, map(list, zip(*rows, strict=True)), strict=True))


def _one_line(words: str) -> str:
    return " ".join(words.split())  # a file's name may hold line breaks


def _array(values: Sequence[object] | np.ndarray) -> np.ndarray:
    """Return a column as numpy keeps it without pickles: numbers as such, all else as text."""
    plain = _as_list(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    if any(isinstance(value, str) for value in plain):
        return np.array(["" if value is None else str(value) for value in plain])
    return np.array([np.nan if value is None else value for value in plain])


def _encode_csv(table: str) -> bytes:
    """Return a CSV file in UTF-8; if it is not plain ASCII, with the mark that Excel needs."""
    return table.encode("utf-8" if table.isascii() else "utf-8-sig")


def _csv_values(values: Sequence[object] | np.ndarray) -> list[object]:
    """Return values as written to a file: floats with six digits, NaN as an empty cell."""

    def text(value: object) -> object:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.{_DIGITS}g}"
        return "" if value is None else value

    return [text(value) for value in _as_list(values)]


def _screen_values(values: Sequence[object] | np.ndarray) -> list[object]:
    return [
        float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else translate(value)
        for value in _as_list(values)
    ]


def _as_list(values: Sequence[object] | np.ndarray) -> list[object]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
