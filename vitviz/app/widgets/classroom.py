"""The controls of a class: the server's address, the view that is shown to all."""

from typing import Literal

import segno
import streamlit as st

from vitviz.app import settings
from vitviz.app.pages import OPENING
from vitviz.app.shared import classroom, pictures, visitors
from vitviz.app.widgets.component import component
from vitviz.common.language import tr
from vitviz.text import classroom as text

_watch = component("vitviz_watch", "watch.js")


def draw_teacher_controls(page: str) -> None:
    """Draw the address and, for a teacher, the button that pins the view, if there is a class."""
    if not visitors.for_class():
        return
    teacher = visitors.is_teacher()
    # A teacher who opens the app sees the address first of all; one who follows a link does not.
    fresh = teacher and page == OPENING and not st.query_params
    st.session_state.setdefault("join", fresh)
    _join()
    if not teacher:
        return
    pinned = classroom.room().pin is not None
    st.button(
        tr(text.PIN_INSTEAD if pinned else text.PIN),
        key="pin",
        on_click=_pin,
        args=(page,),
        icon=":material/push_pin:",
        help=tr(text.PIN_HELP),
    )
    if pinned:
        st.button(
            tr(text.RELEASE),
            key="release",
            on_click=classroom.room().release,
            type="primary",
            help=tr(text.RELEASE_HELP),
        )


@st.fragment  # opening it does not run the page again
def _join() -> None:
    settings.use_stored_language()
    with (
        st.popover(tr(text.JOIN), key="join", on_change="rerun", help=tr(text.JOIN_HELP)),
        st.container(key="join_code"),
    ):
        address = visitors.address()
        if address is None:
            st.warning(tr(text.NO_ADDRESS))
            return
        code = segno.make(address, micro=False)
        image = code.svg_data_uri(omitsize=True, light="white", border=4)
        st.text(tr(text.OPEN_IT))
        st.code(address, language=None, wrap_lines=True)
        st.html(f'<img src="{image}" alt="{tr(text.CODE)}">')


def _pin(page: str) -> None:
    settings.use_stored_language()
    texts = settings.link_to()
    if pictures.UPLOAD in (texts.get("picture"), texts.get("other_picture")):
        settings.show_message(tr(text.NO_UPLOAD))
    else:
        classroom.room().show(page, texts)
        classroom.room().ask(None)  # where something is guessed, it is asked anew
        st.session_state.pop("guess", None)


def is_student() -> bool:
    return visitors.for_class() and not visitors.is_teacher()


def follow(page: str) -> str:
    """Take over the view that is shown to all, if this is a student; return the page to draw."""
    if not is_student():
        return page
    st.session_state.class_seen = classroom.room().shown  # before what it counts is read
    return classroom.page_to_follow(page)


def draw_notice() -> None:
    """Tell a student whose view is on screen."""
    if not is_student():
        return
    watch_counts("shown", st.session_state.class_seen)
    if classroom.room().pin is not None:
        st.markdown(f":material/push_pin: {tr(text.PINNED)}")
    elif classroom.own_view() is not None:
        with st.container(key="released", horizontal=True, vertical_alignment="center"):
            st.markdown(tr(text.RELEASED), width="content")
            st.button(tr(text.GO_BACK), key="go back", on_click=classroom.go_back)
            st.button(tr(text.STAY), key="stay", on_click=classroom.stay)


def watch_counts(what: Literal["shown", "guessed"], count: int) -> None:
    """Run this part of the page again when a count of the class is another than the one seen."""
    _watch(
        key=f"watch_{what}",
        height=1,
        data={"what": what, "seen": count},
        on_changed_change=lambda: None,
    )
