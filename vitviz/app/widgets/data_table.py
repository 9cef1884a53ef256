"""The numbers of a page as tables, CSV and NPZ files, and the provenance line."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz.app import settings
from vitviz.app.shared.view import View
from vitviz.language import Message, mark, spoken, told, tr

if TYPE_CHECKING:
    import plotly.graph_objects as go

SCALES = {
    "map": mark("each map on its own scale"),
    "shared": mark("one scale for all maps"),
    "log": mark("logarithmic scale"),
}
#: The settings that change what a page shows.
_USED = {
    "anatomy": ("layer",),
    "attention": ("layer", "head", "scale"),
    "distance": ("layer", "head"),
    "rollout": ("layer", "scale"),
    "tokens": ("layer",),
    "compare": ("layer",),
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
    """

    about: str
    columns: Mapping[str, Sequence[object] | np.ndarray]
    record: str | None = None

    def csv(self, line: str) -> str:
        """The table as text, under two lines of comment: what was measured, and `about`."""
        file = io.StringIO()
        for comment in (line, self.about):
            file.write(f"# {_one_line(comment)}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows(zip(*map(_written, self.columns.values()), strict=True))
        return file.getvalue()

    def npz(self, line: str) -> bytes:
        """The table for numpy: an array a column, in all its digits, NaN where there is no number.

        Beside them are `provenance`, what was measured, and `about`.
        """
        file = io.BytesIO()
        arrays = {name: _array(values) for name, values in self.columns.items()}
        for name, words in (("provenance", line), ("about", self.about)):
            arrays[name] = np.array(_one_line(words))
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
    """What a page measured.

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
    hidden : bool
        Whether none of it is to be seen yet, in a file neither, as it is guessed first.
    """

    make: Callable[[], Sequence[Table]]
    pictures: str | None = None
    record: str | None = None
    beside: Beside | None = None
    hidden: bool = False


@st.fragment  # opening it does not run the rest of the page again
def disclose(view: View, page: str, data: Data) -> None:
    """Draw the closed expander "Data"; its tables are computed and sent when it is opened.

    The files carry the name of the page.
    """
    settings.speak_on()
    disclosure = st.expander(tr("Data"), key=f"data_{page}", on_change="rerun")
    if not disclosure.open:
        return
    shown = provenance(view, page, data)
    if spoken() != "en":
        disclosure.caption(tr("The headings of the files are English, alike in every language."))
    for number, table in enumerate(data.make(), start=1):
        line = table.record or shown
        with disclosure:
            words, *buttons = st.columns([4, 1, 1], vertical_alignment="center")
            words.markdown(table.about)
            files: tuple[tuple[str, str, str | bytes], ...] = (
                ("csv", "text/csv", table.csv(line)),
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
            numbers = {told(name): _rounded(values) for name, values in table.columns.items()}
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


def provenance(view: View, page: str, data: Data | None = None) -> str:
    """The provenance line: model, weights, what of layer, head and scale the page uses, picture."""
    if data and data.record:
        return data.record
    pictures = data.pictures if data else None
    used = _USED.get(page, ())
    layer = tr("layer {layer} of {depth}", layer=view.layer + 1, depth=view.acts.depth)
    said = {"layer": layer}
    if view.acts.layers[view.layer].num_heads:
        mean, head = tr("mean of heads"), view.head
        said["head"] = mean if head is None else tr("head {head}", head=head + 1)
        said["scale"] = tr(SCALES[view.style.scale])
    return " · ".join(
        (
            tr(view.model.provenance),
            *(words for name, words in said.items() if name in used),
            pictures or view.picture.name,
        )
    )


def patch_columns(
    view: View, *, prefix: bool = False, grid: tuple[int, int] | None = None
) -> Columns:
    """The first columns of a table with a line for each patch, in row-major order.

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


def _one_line(words: str) -> str:
    return " ".join(words.split())  # a file's name may hold line breaks


def _array(values: Sequence[object] | np.ndarray) -> np.ndarray:
    """A column as numpy keeps it without pickles: numbers as such, all else as text."""
    plain = _plain(values)
    if isinstance(values, np.ndarray) and values.dtype != object:
        return values
    if any(isinstance(value, str) for value in plain):
        return np.array(["" if value is None else str(value) for value in plain])
    return np.array([np.nan if value is None else value for value in plain])


def _written(values: Sequence[object] | np.ndarray) -> list[object]:
    """Values as written to a file: floats with six digits, empty where there is no number."""

    def text(value: object) -> object:
        if isinstance(value, float):
            return "" if np.isnan(value) else f"{value:.{_DIGITS}g}"
        return "" if value is None else value

    return [text(value) for value in _plain(values)]


def _rounded(values: Sequence[object] | np.ndarray) -> list[object]:
    return [
        float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else told(value)
        for value in _plain(values)
    ]


def _plain(values: Sequence[object] | np.ndarray) -> list[object]:
    return values.tolist() if isinstance(values, np.ndarray) else list(values)
