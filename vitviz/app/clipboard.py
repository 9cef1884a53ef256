"""A picture from the clipboard: by a button where the browser allows it, by Ctrl+V everywhere."""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path

import streamlit as st

KEY = "clipboard"
_component = st.components.v2.component(
    "vitviz_clipboard",
    html='<button type="button">Paste from the clipboard</button><p role="status"></p>',
    css=Path(__file__).with_name("clipboard.css").read_text(encoding="utf-8"),
    js=Path(__file__).with_name("clipboard.js").read_text(encoding="utf-8"),
)


def paste_button(receive: Callable[[str, bytes], None]) -> None:
    """Draw the button; `receive` gets a name and the bytes of what is pasted."""

    def pasted() -> None:
        text = st.session_state[KEY]["picture"]
        try:
            data = base64.b64decode(text or "", validate=True)
        except (binascii.Error, TypeError):
            data = b""  # refused as no picture
        receive("from the clipboard", data)

    _component(key=KEY, on_picture_change=pasted)
