"""State that a class shares while the server runs: the view that is shown to all, the guesses.

It is kept in memory alone. Guesses have no names, and are those of one question.
"""

import threading
from collections import Counter
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

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


MAX_GUESSES = 1000  # guesses that are kept


@dataclass(frozen=True)
class PredictionQuestion:
    """Identify one prediction question: page, model and picture, and what else it depends on."""

    page: str
    key: Hashable
    rest: Any


class Room:
    """The state that a class shares; thread-safe, as each session has a thread of its own.

    Attributes
    ----------
    shown : how often what students see has changed
    guessed : how often the guesses have changed
    waits : whether a guess shows the figure only when the teacher does
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pin: Pin | None = None
        self._question: PredictionQuestion | None = None
        self._guesses: dict[str, int] = {}  # by browser, or by session where it keeps no cookie
        self._revealed = self.waits = False
        self.shown = self.guessed = 0

    @property
    def pin(self) -> Pin | None:
        return self._pin

    @property
    def question(self) -> PredictionQuestion | None:
        return self._question

    def show(self, page: str, texts: Mapping[str, str]) -> None:
        """Pin a view for all students."""
        with self._lock:
            self.shown += 1
            self._pin = Pin(page, dict(texts), self.shown)

    def release(self) -> None:
        with self._lock:
            self.shown += self._pin is not None
            self._pin = None

    def ask(self, question: PredictionQuestion | None) -> None:
        """Ask the class a question, or none, and forget the guesses of another one."""
        with self._lock:
            if question != self._question:
                self._question, self._revealed = question, False
                self._guesses.clear()
                self.guessed += 1

    def guess(self, question: PredictionQuestion, guesser: str, answer: int) -> None:
        """Store the guess of a guesser in place of their last, if it is of the current question."""
        with self._lock:
            has_guessed = guesser in self._guesses
            if question != self._question or not (has_guessed or len(self._guesses) < MAX_GUESSES):
                return
            if self._guesses.get(guesser) != answer:
                self._guesses[guesser] = answer
                self.guessed += 1

    def guesses(self, question: PredictionQuestion) -> Counter[int]:
        """Count how often each answer was given."""
        with self._lock:
            return Counter(self._guesses.values() if question == self._question else ())

    def reveal(self, question: PredictionQuestion) -> None:
        """Show the figure and the guesses to everybody."""
        with self._lock:
            if question == self._question and not self._revealed:
                self._revealed = True
                self.shown += 1

    def is_revealed(self, question: PredictionQuestion) -> bool:
        with self._lock:
            return question == self._question and self._revealed

    def wait(self, waits: bool) -> None:
        """Keep the figure from students until the teacher shows it, or show it after each guess."""
        with self._lock:
            self.shown += waits != self.waits
            self.waits = waits

    def is_withheld(self, question: PredictionQuestion) -> bool:
        """Return whether the figure of a question that the class is asked waits for the teacher."""
        with self._lock:
            return self.waits and question == self._question and not self._revealed


@cache
def room() -> Room:
    """Return the room of this server."""
    return Room()


@dataclass(frozen=True)
class Own:
    """A student's own view, from before the teacher's took its place."""

    page: str
    settings: Mapping[str, str]


def page_to_follow(page: str) -> str:
    """Apply the settings of the pinned view and return its page; without one return `page`.

    A student's own view is kept until they go back to it or let it go. Call it before any setting
    is read.
    """
    pin, before = room().pin, st.session_state.get("followed")
    st.session_state.followed = pin
    if pin is None:
        return page
    if before is None and not _still_shows_pin(page):
        st.session_state.own_view = Own(page, settings.link_to())
    if before != pin:
        st.session_state.pop("guess", None)  # what is shown now asks anew
    st.session_state.last_pin = pin
    settings.replace_all(pin.settings)
    return pin.page


def _still_shows_pin(page: str) -> bool:
    """Return whether a released view is still on screen, with the student's own stored."""
    last: Pin | None = st.session_state.get("last_pin")
    if last is None or "own_view" not in st.session_state:
        return False
    return (page, settings.link_to()) == (last.page, last.settings)


def own_view() -> Own | None:
    """Return the view that a student may go back to once the teacher's is released."""
    own: Own | None = st.session_state.get("own_view")
    return own if room().pin is None else None


def go_back() -> None:
    """Show one's own view again."""
    own: Own = st.session_state.pop("own_view")
    settings.replace_all(own.settings)
    st.session_state.turn_to = own.page


def stay() -> None:
    """Forget one's own view, and go on from here."""
    st.session_state.pop("own_view")
