"""The lesson of this visitor: the step it is at, and what that step shows of a page."""

import streamlit as st

from vitviz.app import settings
from vitviz.app.settings import STAYING, text_setting
from vitviz.language import tr
from vitviz.text import OPENING
from vitviz.text import lessons as text
from vitviz.text.lessons import LESSONS, Lesson, Step

_ON = "lesson_step"  # the step on screen, for this run
FOUND = "lesson_found"  # whether what was found is on screen


def follow(page: str) -> str:
    """Read which lesson is on; returns the page to be drawn.

    A link that names a lesson alone, on the page that opens first, begins it. Call it before any
    setting is read, each time.
    """
    alone = settings.asked_for() and page == OPENING and not settings.link().keys() - {"lesson"}
    said = text_setting("lesson", lambda said: said == "" or text.named(said) is not None)
    at = text.named(said)
    if at and alone:
        begin(*at)
        page = st.session_state.pop("turn_to")
    step = None if at is None else LESSONS[at[0] - 1].steps[at[1] - 1]
    st.session_state[_ON] = step if step and step.page == page else None
    return page


def at() -> tuple[int, int] | None:
    """The numbers of the lesson that was begun and of its step, on whatever page; None without."""
    return text.named(settings.kept("lesson") or "")


def lesson() -> Lesson | None:
    """The lesson that was begun, on whatever page."""
    numbers = at()
    return LESSONS[numbers[0] - 1] if numbers else None


def step() -> Step | None:
    """The step whose page is on screen."""
    found: Step | None = st.session_state.get(_ON)
    return found


def shows(part: str) -> bool:
    """Whether a control, or a part of a page, is drawn: all are where no step is on screen."""
    on = step()
    return on is None or part in on.shows


def begin(number: int, step: int) -> None:
    """Show a step; the model stays, and within one lesson a picture that the reader has chosen."""
    before, picture = at(), settings.kept("picture")
    texts = {name: said for name in STAYING if (said := settings.kept(name)) is not None}
    texts |= text.settings_of(number, step)
    if before and before[0] == number and picture not in (None, LESSONS[number - 1].picture):
        texts["picture"] = str(picture)
    settings.take(texts)
    for name in (FOUND, "guess"):
        st.session_state.pop(name, None)
    st.session_state.turn_to = LESSONS[number - 1].steps[step - 1].page


def go_back() -> None:
    """Turn to the page of the step, with the settings as they are."""
    numbers = at()
    if numbers:
        st.session_state.turn_to = LESSONS[numbers[0] - 1].steps[numbers[1] - 1].page


def leave() -> None:
    """End the lesson; picture and settings stay."""
    settings.change(lesson="")
    st.session_state.pop(FOUND, None)


def heading() -> str | None:
    """The title of the lesson on screen."""
    numbers = at()
    return title(numbers[0]) if numbers and step() else None


def title(number: int) -> str:
    """The title of a lesson in the language in use."""
    return tr("Lesson {number}: {title}", number=number, title=tr(LESSONS[number - 1].title))
