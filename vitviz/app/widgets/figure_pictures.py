"""A menu at each figure of the page that saves it as a picture."""

from pathlib import Path

import streamlit as st

from vitviz.common.language import strings

_component = st.components.v2.component(
    "vitviz_figure_pictures",
    js=Path(__file__).with_suffix(".built.js").read_text(encoding="utf-8"),
)


def figure_pictures() -> None:
    """Offer the menus; one call a page. Each picture gets the page's provenance line."""
    _component(key="figure_pictures", height=1, data={"strings": strings("browser")})
