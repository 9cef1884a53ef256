"""How a figure is put on a page."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import plotly.graph_objects as go


def show(
    figure: "go.Figure", *, key: str | None = None, on_click: Callable[[], None] | None = None
) -> None:
    """Draw a figure at the width of its column, with its alt text.

    Where `on_click` is given, a click on a point of the figure calls it, and the points are found
    in `st.session_state[key].selection.points`.
    """
    st.plotly_chart(
        figure,
        alt=figure.layout.meta["alt"],
        config={"displayModeBar": False},
        width="stretch",
        key=key,
        on_select=on_click or "ignore",
        selection_mode="points",
    )
