"""How a figure is put on a page."""

from typing import TYPE_CHECKING

import streamlit as st

if TYPE_CHECKING:
    import plotly.graph_objects as go


def show(figure: "go.Figure") -> None:
    """Draw a figure at the width of its column, with its alt text."""
    st.plotly_chart(
        figure, alt=figure.layout.meta["alt"], config={"displayModeBar": False}, width="stretch"
    )
