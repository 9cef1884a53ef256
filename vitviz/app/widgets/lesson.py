"""A lesson on screen: its menu, the strip that leads through it, and what a step shows of a page.

A step names the controls and the parts of its page that are drawn; `shows` is the filter, which
`choose` and `control` ask for every control, and `part` for a function that draws.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Literal, ParamSpec, TypeVar

import streamlit as st

from vitviz.app import settings
from vitviz.app.settings import STAYING, text_setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import View
from vitviz.common.language import current_language, tr
from vitviz.text import lessons as text
from vitviz.text.lessons import LESSONS, Step

if TYPE_CHECKING:
    from vitviz.intervention import Progress

P = ParamSpec("P")
T = TypeVar("T")
OF_PASSES = (2, 5, 6)  # lessons whose findings take passes of their own, and so a turn
_STEP = "lesson_step"  # the step on screen, for this run
_FINDINGS = "lesson_found"  # whether what was found is on screen
_CANCEL = "cancel lesson"  # the button of `results.experiment`


def follow_link(page: str) -> None:
    """Read which step is on, each time before the page is drawn."""
    link = text_setting("lesson", lambda link: link == "" or text.parse_step(link) is not None)
    numbers = text.parse_step(link)
    step = _step_at(*numbers) if numbers else None
    st.session_state[_STEP] = step if step and step.page == page else None


def current_step() -> Step | None:
    """Return the step whose page is on screen."""
    step: Step | None = st.session_state.get(_STEP)
    return step


def shows(part: str) -> bool:
    """Return whether a control or a part of the page is drawn: without a step, all are."""
    step = current_step()
    return step is None or part in step.shows


def part(name: str) -> Callable[[Callable[P, T]], Callable[P, T | None]]:
    """Decorate what draws a part of a page: where the step hides it, it draws and returns None."""

    def decorate(draw: Callable[P, T]) -> Callable[P, T | None]:
        @wraps(draw)
        def draw_if_shown(*args: P.args, **kwargs: P.kwargs) -> T | None:
            return draw(*args, **kwargs) if shows(name) else None

        return draw_if_shown

    return decorate


def lesson_title() -> str | None:
    """Return the title of the lesson on screen."""
    numbers = step_numbers()
    return _title(numbers[0]) if numbers and current_step() else None


def draw_lesson_menu() -> None:
    """Draw the menu of the seven lessons."""
    with st.popover(tr("Lessons"), key="lessons"), st.container(key="lesson_list", gap=None):
        st.caption(tr("Seven lessons of ten minutes each."))
        for number, lesson in enumerate(LESSONS, start=1):
            _step_button(
                f"**{number} {tr(lesson.title)}**", number, 1, f"lesson {number}", "tertiary"
            )
            st.caption(tr(lesson.about))


def draw_strip() -> None:
    """Draw the task of the step, and the ways on; where its page is not on screen, the way back."""
    numbers, step = step_numbers(), current_step()
    if numbers is None:
        return
    number, place = numbers
    count, required = (
        len(each) for each in (LESSONS[number - 1].steps, LESSONS[number - 1].required)
    )
    with st.container(key="lesson", horizontal=True, vertical_alignment="center"):
        if step is None:
            sentence = tr(
                "{lesson} is at step {step}, on another page.",
                lesson=f"**{_title(number)}**",
                step=place,
            )
            st.markdown(sentence, width="stretch")
            st.button(tr("Back to the lesson"), key="lesson again", on_click=_turn_to, args=numbers)
        else:
            sentence = tr("Step {step} of {steps}", step=place, steps=required)
            if step.optional:
                sentence = tr("Optional step")
            st.markdown(f"**{sentence}.** {tr(step.task)}", width="stretch")
            if place > 1:
                _step_button(tr("Back"), number, place - 1, "lesson back")
            if place < required:
                _step_button(tr("Next step"), number, place + 1, "lesson next", "primary")
            elif place < count:
                _step_button(tr("Optional step"), number, place + 1, "lesson next")
            if st.session_state.get(_CANCEL):
                st.session_state[_FINDINGS] = False  # else they would be computed again
            if place >= required:
                st.toggle(tr("What you found"), key=_FINDINGS)
        st.button(tr("Leave the lesson"), key="lesson leave", on_click=_leave)
        st.html("<style>body { --strip: 4rem; }</style>")


def draw_findings(view: View) -> None:
    """Draw what the lesson found, where it is asked for, and the way to the next one."""
    numbers = step_numbers()
    if numbers is None or current_step() is None or not st.session_state.get(_FINDINGS):
        return
    number = numbers[0]
    with st.container(border=True, key="lesson_answer"):
        st.markdown("\n".join(f"- {sentence}" for sentence in _findings(view, number)))
        if number < len(LESSONS):
            title = tr("Next: {following}", following=_title(number + 1))
            _step_button(title, number + 1, 1, "lesson after")


def _findings(view: View, number: int) -> tuple[str, ...]:
    """Return what a lesson finds on the picture on screen, cached."""
    from vitviz.app.lessons import findings

    picture, acts, lesson = view.picture, view.acts, LESSONS[number - 1]
    last = lesson.steps[-1].settings.get("picture")
    if last and pictures.sample(last).digest == picture.digest:  # the other steps had another one
        ((picture, acts),) = results.of_samples(view.model, [lesson.picture])
    own = pictures.sample(lesson.picture).digest == picture.digest

    def make(progress: "Progress") -> tuple[str, ...]:
        return findings(
            number,
            view.model,
            picture.image,
            acts,
            own=own,
            progress=progress,
        )

    key = ("lesson", number, current_language())
    if number in OF_PASSES:
        return results.experiment(view, key, make)
    return results.capture_cache().get((*view.key, *key), lambda: make(lambda done, of: None))


def step_numbers() -> tuple[int, int] | None:
    """Return the numbers of the current lesson and step, on whatever page; None without."""
    return text.parse_step(settings.stored_text("lesson") or "")


def _step_at(number: int, place: int) -> Step:
    return LESSONS[number - 1].steps[place - 1]


def _title(number: int) -> str:
    return tr("Lesson {number}: {title}", number=number, title=tr(LESSONS[number - 1].title))


def _step_button(
    label: str,
    number: int,
    place: int,
    key: str,
    kind: Literal["primary", "secondary", "tertiary"] = "secondary",
) -> None:
    """Draw a button that shows a step."""
    st.button(label, key=key, on_click=_begin, args=(number, place), type=kind)


def _begin(number: int, place: int) -> None:
    """Show a step; the model stays, and within one lesson a picture that the reader has chosen.

    A model that the last step has chosen goes with it.
    """
    before, picture = step_numbers(), settings.stored_text("picture")
    stored = {name: settings.stored_text(name) for name in STAYING}
    texts = {name: value for name, value in stored.items() if value is not None}
    if before and texts.get("model") == _step_at(*before).settings.get("model"):
        texts.pop("model", None)
    texts |= text.settings_of(number, place)
    stays = before and before[0] == number and "picture" not in _step_at(number, place).settings
    if before and stays and picture not in (None, text.settings_of(*before)["picture"]):
        texts["picture"] = str(picture)
    settings.replace_all(texts)
    for name in (_FINDINGS, "guess"):
        st.session_state.pop(name, None)
    _turn_to(number, place)


def _turn_to(number: int, place: int) -> None:
    """Turn to the page of a step, with the settings as they are."""
    st.session_state.turn_to = _step_at(number, place).page


def _leave() -> None:
    """End the lesson; picture and settings stay."""
    settings.change(lesson="")
    st.session_state.pop(_FINDINGS, None)
