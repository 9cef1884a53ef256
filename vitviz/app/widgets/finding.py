"""The sentence on what is to be seen, which stands above the figures of a page."""

import streamlit as st

from vitviz.language import tr


def finding(sentence: str, *, of: str = "") -> None:
    """Draw the sentence; nothing where there is none."""
    if sentence:
        st.markdown(f"**{of or tr('On this picture')}:** {sentence}")
