"""The sentence on what is to be seen, which stands above the figures of a page."""

import streamlit as st


def finding(sentence: str, *, of: str = "On this picture") -> None:
    """Draw the sentence; nothing where there is none."""
    if sentence:
        st.markdown(f"**{of}:** {sentence}")
