"""Predict first: a figure stays hidden until the reader has guessed what it shows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app import settings
from vitviz.app.pages import Page
from vitviz.app.settings import setting
from vitviz.app.shared import results, visitors
from vitviz.app.shared.classroom import PredictionQuestion, room
from vitviz.app.widgets import lesson
from vitviz.app.widgets.classroom import is_student, watch_counts
from vitviz.app.widgets.component import component
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.token_map import map_session, mount_numbers, sent_picture, take_commit
from vitviz.common.language import strings, tr
from vitviz.text import guesses as text

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from vitviz.app.shared.view import View
    from vitviz.common.images import Crop

#: How the guesses of a class are drawn: how often each answer was given, in a figure.
Draw = Callable[[Mapping[int, int]], "go.Figure"]
_component = component("vitviz_guess", "guess.built.js", "guess.css")


@dataclass(frozen=True)
class Guess:
    """An answer; None where the teacher has shown the figure before one was given."""

    question: PredictionQuestion
    answer: int | None


def draw_switch(page: Page) -> None:
    """Draw the switch on pages that ask; elsewhere, or switched off, withdraw the question."""
    wanted = setting("predict", [False, True], False)
    if "predict" in page.settings and lesson.shows("predict"):
        st.toggle(tr(text.SWITCH), key="predict", help=tr(text.SWITCH_HELP))
    if not wanted:
        st.session_state.pop("guess", None)  # to be switched on again is to be asked anew
    asks = wanted and "predict" in page.settings
    if not asks and room().pin is None and visitors.for_class() and visitors.is_teacher():
        room().ask(None)


def is_on() -> bool:
    return bool(st.session_state.get("predict"))


def current_guess(question: PredictionQuestion, *, stays: bool = False) -> Guess | None:
    """Return the reader's guess; None while the figure stays hidden.

    Parameters
    ----------
    stays : whether the guess outlives a change of what is beside page, model and picture
    """
    own: Guess | None = st.session_state.get("guess")
    if own and not _is_of(own.question, question, stays):
        own = None
    if visitors.for_class():
        own = _share_with_class(own, own.question if own else question)
    return own


def _is_of(earlier: PredictionQuestion, question: PredictionQuestion, stays: bool) -> bool:
    same = (earlier.page, earlier.key) == (question.page, question.key)
    return same and (stays or earlier == question)


def _share_with_class(own: Guess | None, question: PredictionQuestion) -> Guess | None:
    """Share the guess with the class; return the one that shows the figure, if any does."""
    pin = room().pin
    if not visitors.is_teacher():
        if own and own.answer is not None:
            browser = st.context.cookies.get(visitors.BROWSER_COOKIE) or uuid4().hex
            guesser = st.session_state.setdefault("guesser", str(browser))
            room().guess(question, guesser, own.answer)
        if room().is_withheld(question):
            return None
    elif pin is None or (pin.page == question.page and room().question is None):
        room().ask(question)  # while a view is pinned, students stay at its question
    if own is None and room().is_revealed(question):
        own = st.session_state.guess = Guess(question, None)
    return own


def _store_guess(question: PredictionQuestion, answer: int) -> None:
    st.session_state.guess = Guess(question, answer)


def ask_patch(
    view: "View",
    question: PredictionQuestion,
    words: str,
    *,
    grid: tuple[int, int],
    crop: Sequence[float],
    draw: Draw,
) -> None:
    """Ask for a patch or block of a grid; its number is the answer.

    Parameters
    ----------
    words : the question
    crop : (left, top, right, bottom) of the grid, in pixels of the picture
    """
    key = "guess_board"

    def commit() -> None:
        patch = int(take_commit(key)["patch"])
        if 0 <= patch < grid[0] * grid[1]:
            _store_guess(question, patch)

    st.markdown(words)
    left, right = st.columns(2) if visitors.for_class() else (st.container(), st.container())
    stack_id = f"guess-{view.picture.digest[:16]}-{view.style.seen}-{view.key[1]}"
    with left:
        stack = {"stack": {"id": stack_id, "picture": results.encoded_photo(view)}}
        mount_numbers(_component, "token_map_guess_stack", stack)
        _component(
            key=key,
            on_commit_change=commit,
            data={
                "stackId": stack_id,
                **map_session(),
                "state": {"patch": -1},
                "lut": "",
                "picture": sent_picture(view),
                "grid": {"rows": grid[0], "cols": grid[1], "crop": list(crop)},
                "words": {"how": tr(text.HOW), "send": tr(text.SEND)},
                "strings": strings("browser"),
                "question": words,
            },
        )
    with right:
        draw_class_guesses(question, draw)


def counts_figure(
    view: "View", grid: tuple[int, int], crop: "Crop", counts: Mapping[int, int]
) -> "go.Figure":
    """Draw how often each patch or block of a grid was guessed, over the picture."""
    by_patch = np.array([counts.get(number, 0) for number in range(grid[0] * grid[1])])
    return plots.guesses(by_patch.reshape(grid), results.reduced_photo(view), crop=crop)


def ask_layer(question: PredictionQuestion, words: str, depth: int, *, draw: Draw) -> None:
    """Ask for a layer; its number, from 0, is the answer."""
    st.markdown(words)
    chosen = st.pills(tr(text.LAYER), range(1, depth + 1), key="guess_layer")
    _send_button(question, None if chosen is None else chosen - 1, draw)


def ask_percent(question: PredictionQuestion, words: str, *, draw: Draw) -> None:
    """Ask for a whole number of per cent."""
    st.markdown(words)
    chosen = st.slider(tr(text.PERCENT), 0, 100, 50, key="guess_percent", format="%d %%")
    _send_button(question, chosen, draw)


def _send_button(question: PredictionQuestion, answer: int | None, draw: Draw) -> None:
    """Draw the button that sends an answer, and the guesses of the class."""
    st.button(
        tr(text.SEND),
        key="send guess",
        type="primary",
        disabled=answer is None,
        on_click=_store_guess,
        args=(question, answer),
    )
    draw_class_guesses(question, draw)


def draw_verdict(guess: Guess, words: Callable[[int], str]) -> None:
    """Say how near a guess was."""
    with st.container(key="guessed", horizontal=True, vertical_alignment="center"):
        if guess.answer is not None:
            st.markdown(f"**{tr(text.YOURS)}:** {words(guess.answer)}", width="stretch")
        if not (is_student() and room().is_revealed(guess.question)):
            st.button(tr(text.AGAIN), key="guess again", on_click=_forget)


def _forget() -> None:
    """Ask again about what is on screen; a teacher asks the whole class again."""
    st.session_state.pop("guess", None)
    if visitors.for_class() and visitors.is_teacher():
        room().ask(None)


def draw_class_guesses(question: PredictionQuestion, draw: Draw) -> None:
    """Draw the guesses of the class, for its teacher, and for all once they are shown."""
    if not visitors.for_class():
        return
    teacher = visitors.is_teacher()
    if teacher or room().is_revealed(question):
        _draw_class_guesses(question, draw, teacher)
        return
    own: Guess | None = st.session_state.get("guess")
    if own and _is_of(own.question, question, stays=True) and room().is_withheld(question):
        st.info(tr(text.SENT))


@st.fragment  # a new guess does not run the page again
def _draw_class_guesses(question: PredictionQuestion, draw: Draw, teacher: bool) -> None:
    settings.use_stored_language()
    guessed, revealed = room().guessed, room().is_revealed(question)
    counts = room().guesses(question)
    with st.container(key="class_guesses", horizontal=True, vertical_alignment="center"):
        st.markdown(
            f"**{tr(text.OF_CLASS)}:** {text.describe_count(counts.total())}", width="content"
        )
        if teacher and not revealed and st.button(tr(text.REVEAL), help=tr(text.REVEAL_HELP)):
            room().reveal(question)
            st.rerun()
        if teacher:
            st.session_state.wait = room().waits
            st.toggle(tr(text.WAIT), key="wait", help=tr(text.WAIT_HELP), on_change=_wait)
    if teacher:
        watch_counts("guessed", guessed)
    if counts:
        show_figure(draw(counts))


def _wait() -> None:
    room().wait(st.session_state.wait)
