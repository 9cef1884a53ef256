"""Draws Plotly figures."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import streamlit as st

from vitviz import plots
from vitviz.app import settings

if TYPE_CHECKING:
    import plotly.graph_objects as go

#: What the browser says of the points that were clicked: "point_index", "customdata" and more.
Points = Sequence[Mapping[str, Any]]


def show_figure(
    figure: "go.Figure",
    *,
    key: str | None = None,
    on_click: Callable[[Points], None] | None = None,
    drag: bool = False,
) -> None:
    """Draw a figure at the width of its column, with its alt text.

    Where `on_click` is given, a click on a point of the figure calls it, and with `drag` a box
    drawn over points; such a figure has a `key`.
    """

    def clicked() -> None:
        assert on_click is not None
        assert key is not None
        if points := st.session_state[key].selection.points:
            on_click(points)

    if settings.is_presenting():
        figure = plots.enlarged(figure, settings.PRESENTER)
    st.plotly_chart(
        figure,
        alt=figure.layout.meta["alt"],
        config={"displayModeBar": False},
        width="stretch",
        key=key,
        on_select=clicked if on_click else "ignore",
        selection_mode=("points", "box") if drag else "points",
    )
