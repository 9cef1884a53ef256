"""What a class shares while the server runs: the view that is shown to all.

It is kept in memory alone.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import streamlit as st

from vitviz.app import settings


@dataclass(frozen=True)
class Pin:
    """A view that all students see: its page, and its settings as a link holds them.

    `number` tells it from those before it.
    """

    page: str
    settings: Mapping[str, str]
    number: int


class Room:
    """Safe for threads, as each session has its own.

    Attributes
    ----------
    shown : how often what students see has changed
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pin: Pin | None = None
        self.shown = 0

    @property
    def pin(self) -> Pin | None:
        return self._pin

    def show(self, page: str, texts: Mapping[str, str]) -> None:
        """Show a view to all."""
        with self._lock:
            self.shown += 1
            self._pin = Pin(page, dict(texts), self.shown)

    def release(self) -> None:
        with self._lock:
            self.shown += self._pin is not None
            self._pin = None


@cache
def room() -> Room:
    """The one of this server."""
    return Room()


@dataclass(frozen=True)
class Own:
    """A student's own view, from before the teacher's took its place."""

    page: str
    settings: Mapping[str, str]


def follow(page: str) -> str:
    """Take the settings of the view that is shown to all; returns its page, else `page`.

    A student's own view is kept until they go back to it or let it go. Call it before any setting
    is read.
    """
    pin, before = room().pin, st.session_state.get("followed")
    st.session_state.followed = pin
    if pin is None:
        return page
    if before is None and not _untouched(page):
        st.session_state.own_view = Own(page, settings.link())
    st.session_state.last_pin = pin
    settings.take(pin.settings)
    return pin.page


def _untouched(page: str) -> bool:
    """Whether a view that was shown to all is still on screen, with one's own kept behind it."""
    last: Pin | None = st.session_state.get("last_pin")
    if last is None or "own_view" not in st.session_state:
        return False
    return (page, settings.link()) == (last.page, last.settings)


def own_view() -> Own | None:
    """What a student may go back to, once the teacher's view is released."""
    own: Own | None = st.session_state.get("own_view")
    return own if room().pin is None else None


def go_back() -> None:
    """Show one's own view again."""
    own: Own = st.session_state.pop("own_view")
    settings.take(own.settings)
    st.session_state.turn_to = own.page


def stay() -> None:
    """Let one's own view go, and go on from here."""
    st.session_state.pop("own_view")
