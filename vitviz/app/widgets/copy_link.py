"""A button that copies the address of what is on screen."""

from pathlib import Path

import streamlit as st

from vitviz.common.language import tr

_component = st.components.v2.component(
    "vitviz_copy_link",
    css="".join(
        Path(__file__).with_name(name).read_text(encoding="utf-8")
        for name in ("button.css", "copy_link.css")
    ),
    js=Path(__file__).with_name("copy_link.js").read_text(encoding="utf-8"),
)


def copy_link(*, uploaded: bool) -> None:
    """Draw the button; with `uploaded` it says that the link leads to a sample picture."""
    note = tr("It shows a sample picture: a link cannot include yours.") if uploaded else ""
    words = {
        "copy": tr("Copy link"),
        "link": tr("Link to what is on screen"),
        "copied": tr("Copied."),
        "press": tr("Press Ctrl+C to copy."),
    }
    _component(
        key="copy_link", data={"note": note, "words": words}, width="content", height="content"
    )
