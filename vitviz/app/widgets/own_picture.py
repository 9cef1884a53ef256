"""Pictures from the clipboard, by a button or by Ctrl+V, and from a phone's own camera."""

from typing import Any, Literal

import streamlit as st

from vitviz.app import settings
from vitviz.app.shared import limits, pictures
from vitviz.app.widgets.component import component
from vitviz.common.language import mark, tr

_component = component("vitviz_own_picture", "own_picture.js", "button.css")
_PROBLEMS = {
    "large": mark("The picture is larger than {size} MB."),
    "broken": mark("The picture did not arrive, because the connection broke off. Send it again."),
}


def paste_button() -> None:
    """Draw a button that reads the clipboard."""
    _mount("paste_button", "paste", button=tr("Paste from the clipboard"))


def camera_button() -> None:
    """Draw a button that opens a phone's own camera, which needs no HTTPS."""
    _mount("camera_button", "camera", button=tr("Take a photo with the phone's camera"))


def follow_pictures() -> None:
    """Take what is pasted on the page by the keyboard, and what arrives late; draw nothing."""
    _mount("paste_anywhere", "page")


def _mount(key: str, kind: Literal["paste", "camera", "page"], **words: str) -> None:
    def receive() -> None:
        settings.use_stored_language()
        file: Any = st.session_state.get(key, {}).get("sent")
        if file is None:  # of a page that was left
            return
        problem = _PROBLEMS.get(file["problem"])
        words = problem and tr(problem, size=pictures.most_megabytes())
        if file["problem"] == "many":
            words = limits.refusal_of_uploads()
        pictures.receive_sent(file["id"], file["name"], words)

    height: Any = 1 if kind == "page" else "content"
    session, files = pictures.session_and_files()
    _component(
        key=key,
        data={
            "kind": kind,
            "session": session,
            "taken": files,
            "words": {
                "clipboard": tr("from the clipboard"),
                "closed": tr("This browser gives no access here: press Ctrl+V."),
                "empty": tr("There is no picture on the clipboard."),
                "denied": tr("The browser does not allow it: press Ctrl+V."),
                **words,
            },
        },
        height=height,
        on_sent_change=receive,
    )
