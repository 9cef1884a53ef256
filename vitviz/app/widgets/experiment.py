"""Buttons that start an experiment of many passes, and the results that were found."""

from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.shared import results
from vitviz.app.shared.view import View

if TYPE_CHECKING:
    from vitviz.intervention import Progress

#: An experiment that was asked for: where it is drawn, and what makes it.
Pending = tuple[DeltaGenerator, Callable[[], object]]


def on_demand(
    view: View, label: str, called: tuple[Any, ...], make: "Callable[[Progress], Any]"
) -> Pending | None:
    """Draw a button; returns the experiment where it was pressed."""
    pressed = st.button(label, key=f"run {called[0]}", icon=":material/play_arrow:")
    place = st.container()
    if not pressed:
        return None
    return place, lambda: results.experiment(view, called, make)


def found_of(view: View, *called: Hashable) -> Any:
    """The result of an experiment; None where it was not run."""
    return results.captures().kept((*view.key, *called))
