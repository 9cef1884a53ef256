"""The menu of lessons, and the strip that leads through one."""

from typing import TYPE_CHECKING

import streamlit as st

from vitviz.app.shared import lessons, pictures, results
from vitviz.app.shared.view import View
from vitviz.language import spoken, tr
from vitviz.text.lessons import LESSONS

if TYPE_CHECKING:
    from vitviz.intervention import Progress

OF_PASSES = (2, 5, 6)  # what these found takes passes of their own, and so a turn


def menu() -> None:
    """Draw the menu of the seven lessons."""
    with st.popover(tr("Lessons"), key="lessons"):
        st.caption(tr("Seven lessons of ten minutes each."))
        for number, lesson in enumerate(LESSONS, start=1):
            st.button(
                f"**{number} {tr(lesson.title)}**",
                key=f"lesson {number}",
                on_click=lessons.begin,
                args=(number, 1),
                type="tertiary",
            )
            st.caption(tr(lesson.about))


def strip() -> None:
    """Draw the task of the step, and the ways on; where its page is not on screen, the way back."""
    at, lesson, step = lessons.at(), lessons.lesson(), lessons.step()
    if at is None or lesson is None:
        return
    number, place = at
    with st.container(key="lesson", horizontal=True, vertical_alignment="center"):
        said = tr("Step {step} of {steps}", step=place, steps=len(lesson.steps))
        if step is None:
            st.markdown(
                tr(
                    "{lesson} is at step {step}, on another page.",
                    lesson=f"**{lessons.title(number)}**",
                    step=place,
                ),
                width="stretch",
            )
            st.button(tr("Back to the lesson"), key="lesson again", on_click=lessons.go_back)
        else:
            st.markdown(f"**{said}.** {tr(step.task)}", width="stretch")
            if place > 1:
                st.button(
                    tr("Back"), key="lesson back", on_click=lessons.begin, args=(number, place - 1)
                )
            if place < len(lesson.steps):
                st.button(
                    tr("Next step"),
                    key="lesson next",
                    on_click=lessons.begin,
                    args=(number, place + 1),
                    type="primary",
                )
            else:
                st.toggle(tr("What you found"), key=lessons.FOUND)
        st.button(tr("Leave the lesson"), key="lesson leave", on_click=lessons.leave)


def found(view: View) -> None:
    """Draw what the lesson found, where it is asked for, and the way to the next one."""
    at = lessons.at()
    if at is None or lessons.step() is None or not st.session_state.get(lessons.FOUND):
        return
    number = at[0]
    with st.container(border=True, key="lesson_answer"):
        st.markdown("\n".join(f"- {sentence}" for sentence in _sentences(view, number)))
        if number < len(LESSONS):
            st.button(
                tr("Next: {following}", following=lessons.title(number + 1)),
                key="lesson after",
                on_click=lessons.begin,
                args=(number + 1, 1),
            )


def _sentences(view: View, number: int) -> tuple[str, ...]:
    """What a lesson found on the picture on screen, cached."""
    from vitviz.lessons import found

    own = pictures.sample(LESSONS[number - 1].picture).digest == view.picture.digest

    def make(progress: "Progress") -> tuple[str, ...]:
        return found(
            number,
            view.model,
            view.picture.image,
            view.acts,
            others=(acts for _, acts in results.of_samples(view.model)),
            own=own,
            progress=progress,
        )

    called = ("lesson", number, spoken())
    if number in OF_PASSES:
        return results.experiment(view, called, make)
    return results.captures().get((*view.key, *called), lambda: make(lambda done, of: None), len)
