"""A button that plays a setting which counts moments, one after the other."""

import streamlit as st

from vitviz.app import settings
from vitviz.app.widgets.component import component
from vitviz.common.language import tr

_component = component("vitviz_player", "player.js", "button.css")


def player(name: str, chosen: int, count: int) -> None:
    """Draw the button, which steps the setting `name` from 1 to `count`.

    Parameters
    ----------
    chosen : int
        The moment on screen, from 0.
    """
    key = f"play {name}"

    def play() -> None:
        settings.change(**{name: int(st.session_state[key]["moment"]) + 1})

    _component(
        key=key,
        height="content",
        width="content",
        data={
            "moment": chosen,
            "count": count,
            "words": {"next": tr("Next moment"), "pause": tr("Pause"), "play": tr("Play")},
        },
        on_moment_change=play,
    )
