"""Pictures pasted from the clipboard, by a button or by Ctrl+V."""

import base64
import binascii
from collections.abc import Callable
from pathlib import Path
from typing import Any

import streamlit as st

from vitviz.app import settings
from vitviz.language import tr

_component = st.components.v2.component(
    "vitviz_clipboard",
    css=Path(__file__).with_name("button.css").read_text(encoding="utf-8"),
    js=Path(__file__).with_name("clipboard.js").read_text(encoding="utf-8"),
)
Receive = Callable[[str, bytes], None]


def paste_button(receive: Receive) -> None:
    """Draw the button; `receive` gets a name and the bytes of what is pasted."""
    _mount("paste_button", receive, button=True)


def paste_anywhere(receive: Receive) -> None:
    """Take what is pasted on the page by the keyboard; nothing is drawn."""
    _mount("paste_anywhere", receive, button=False)


def _mount(key: str, receive: Receive, *, button: bool) -> None:
    def pasted() -> None:
        text = st.session_state[key]["picture"]
        try:
            data = base64.b64decode(text or "", validate=True)
        except (binascii.Error, TypeError):
            data = b""  # refused later, as it is no picture
        settings.speak_on()
        receive(tr("from the clipboard"), data)

    def refused() -> None:
        settings.speak_on()
        st.session_state.upload_error = tr("The picture from the clipboard is larger than 25 MB.")

    height: Any = "content" if button else 1
    _component(
        key=key,
        data={
            "button": button,
            "words": {
                "paste": tr("Paste from the clipboard"),
                "large": tr("The picture is larger than 25 MB."),
                "closed": tr("This browser gives no access here: press Ctrl+V."),
                "empty": tr("There is no picture on the clipboard."),
                "denied": tr("The browser does not allow it: press Ctrl+V."),
            },
        },
        height=height,
        on_picture_change=pasted,
        on_too_large_change=refused,
    )
