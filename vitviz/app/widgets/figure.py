"""Draws Plotly figures."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlit as st

from vitviz import plots
from vitviz.app import settings

if TYPE_CHECKING:
    import plotly.graph_objects as go


def show(
    figure: "go.Figure",
    *,
    key: str | None = None,
    on_click: Callable[[], None] | None = None,
    drag: bool = False,
) -> None:
    """Draw a figure at the width of its column, with its alt text.

    Where `on_click` is given, a click on a point of the figure calls it, and with `drag` a box
    drawn over points; the points are found in `st.session_state[key].selection.points`.
    """
    if settings.is_presenting():
        figure = plots.enlarged(figure, settings.PRESENTER)
    st.plotly_chart(
        figure,
        alt=figure.layout.meta["alt"],
        config={"displayModeBar": False},
        width="stretch",
        key=key,
        on_select=on_click or "ignore",
        selection_mode=("points", "box") if drag else "points",
    )
