"""The sentence on what is to be seen, which stands above the figures of a page."""

import streamlit as st

from vitviz.app.shared import lessons
from vitviz.language import tr


def finding(sentence: str, *, of: str = "") -> None:
    """Draw the sentence; nothing where there is none, or where a lesson asks for it."""
    if sentence and lessons.step() is None:
        st.markdown(f"**{of or tr('On this picture')}:** {sentence}")
