"""Experiments on the answer: sets of heads or patches to edit, and passes made on demand."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.cells import cells_text, toggle_cells
from vitviz.app.settings import setting
from vitviz.app.shared import results
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import View
from vitviz.app.widgets.control import control
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.common.language import mark, tr, tr_md

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from vitviz.intervention import Progress, Removal

#: An experiment that was asked for: where it is drawn, and what makes it.
Pending = tuple[DeltaGenerator, Callable[[], object]]


REMOVALS: "dict[Removal, str]" = {
    "drop": mark("tokens dropped"),
    "mean": mark("mean colour"),
    "blur": mark("blur"),
}


def choose_removal(view: View) -> "Removal":
    """Return what removed patches become; call `removal_control` where it is to be drawn."""
    # Paint is itself something to see; but where attention knows positions no token can go.
    usual: Removal = "drop" if _may_drop(view) else "mean"
    settings.follow_default("fill", usual)
    return setting("fill", list(_removals(view)), usual)


def removal_control(view: View) -> None:
    control("fill", tr("Removed patches become"), _removals(view), "settings")


def _removals(view: View) -> "dict[Removal, str]":
    if view.acts.all_to_all:
        return REMOVALS
    return {name: words for name, words in REMOVALS.items() if name != "drop"}


def _may_drop(view: View) -> bool:
    return view.acts.all_to_all and not view.model.positional_attention


def choose_cells(figure: "go.Figure", name: str, mask: np.ndarray) -> None:
    """Draw a figure whose cells are toggled by a click or a drag."""

    def toggle(points: Points) -> None:
        chosen = [point["point_index"] for point in points]
        settings.change(**{name: cells_text(toggle_cells(mask, chosen))})

    show_figure(figure, key=f"{name} figure", on_click=toggle, drag=True)


def edit_buttons(name: str, mask: np.ndarray, how: str) -> None:
    clear, opposite, typed = st.columns(3)
    clear.button(
        tr("Clear"),
        key=f"clear {name}",
        disabled=not mask.any(),
        on_click=settings.change,
        kwargs={name: ""},
        width="stretch",
    )
    opposite.button(
        tr("Opposite"),
        key=f"opposite {name}",
        on_click=settings.change,
        kwargs={name: cells_text(~mask)},
        width="stretch",
    )
    with typed.popover(tr("As text"), width="stretch"):
        st.text_input(how, key=name)


def run_button(
    view: View, label: str, called: tuple[Any, ...], make: "Callable[[Progress], Any]"
) -> Pending | None:
    """Draw a button; returns the experiment where it was pressed."""
    pressed = st.button(label, key=f"run {called[0]}", icon=":material/play_arrow:")
    place, refused = st.container(), f"refused {called[0]}"
    if refusal := st.session_state.pop(refused, None):
        place.error(refusal)
    if not pressed:
        return None

    def run() -> None:
        try:
            results.experiment(view, called, make)
        except BusyError as error:  # shown under the button in the next run
            st.session_state[refused] = tr_md(error)

    return place, run


def run_pending(*asked: Pending | None) -> None:
    """Run the first experiment that was asked for, and draw the page again with its result.

    A page calls it last, so that all of it is on screen while the experiment runs.
    """
    for place, make in filter(None, asked):
        with place:
            make()
        st.rerun()  # the result is cached now


def find_result(view: View, *called: Hashable) -> Any:
    """Return the result of an experiment; None where it was not run."""
    return results.capture_cache().find((*view.key, *called))
