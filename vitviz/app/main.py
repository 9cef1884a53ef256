"""The shell of every page: navigation, the shared draw_controls, the provenance line.

The style stands in style.css, which the server puts into the document.
"""

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import server, settings
from vitviz.app.controls import draw_controls
from vitviz.app.options import OptionError
from vitviz.app.pages import OPENING, PAGES, Page
from vitviz.app.shared import limits, models, pictures, started
from vitviz.app.shared.models import MIMETIC
from vitviz.app.shared.queue import BusyError, drawing
from vitviz.app.shared.view import View
from vitviz.app.widgets import classroom, lesson, prediction
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.class_menu import answer_words
from vitviz.app.widgets.copy_link import copy_link
from vitviz.app.widgets.data_table import Data, draw_tables, page_provenance
from vitviz.app.widgets.figure_pictures import figure_pictures
from vitviz.app.widgets.places import draw_caption, fold, lay_out, places
from vitviz.app.widgets.report_button import report_button
from vitviz.common import language
from vitviz.common.language import Markdown, literal, tr, tr_md
from vitviz.text import page_text
from vitviz.text.families import explain_positions
from vitviz.web.token_map import MAP_KINDS
from vitviz.web.traits import traits

T = TypeVar("T")


def main() -> None:
    """Draw the page that the browser asks for."""
    settings.follow_address()
    settings.setting("presenter", [False, True], False)
    st.set_page_config(
        page_title="vitviz",
        layout="wide",
        initial_sidebar_state="collapsed" if settings.is_presenting() else "auto",
    )
    settings.store_language()
    views: list[View] = []  # filled by the draw_controls before the page runs
    pages = {
        name: st.Page(
            partial(_draw_page, page, views),
            title=page.title if lesson.step_numbers() else page.tab,  # one counter on screen
            url_path=name,
            default=name == OPENING,
        )
        for name, page in PAGES.items()
    }
    waits = limits.place_in_line() > 0
    chosen = st.navigation(list(pages.values()), position="hidden" if waits else "top")
    if waits:
        _wait_in_line()
        return
    if target := st.session_state.pop("turn_to", None):  # a button on another page asked for it
        st.switch_page(pages[target])
    page = PAGES[chosen.url_path or OPENING]
    if page.name == "rollout" and settings.is_from_link() and "class_map" in st.query_params:
        # Maps of a class stood on Rollout, and links to them are in teachers' notes.
        settings.change(maps=st.query_params["class_map"])
        settings.show_message(tr("Maps of a class stand on this page now, and not on Rollout."))
        st.switch_page(pages["explain"])
    if (shown := classroom.follow(page.name)) != page.name:
        st.switch_page(pages[shown])
    lesson.follow_link(page.name)
    with st.container(key="top", horizontal=True, vertical_alignment="center"):
        st.title(lesson.lesson_title() or page.heading, anchor=False)
        beside_title = st.container(width="content") if settings.is_presenting() else None
        answer = st.empty()  # filled once there is a model
        lesson.draw_lesson_menu()
        classroom.draw_teacher_controls(page.name)
        report = _menu(page)
    settings.watch_address()
    classroom.draw_notice()
    lesson.draw_strip()
    if settings.is_presenting():
        st.html(
            f"<style>html {{ font-size: {settings.PRESENTER:.0%} !important; }} "
            "body .stMainBlockContainer { padding-top: 2.55rem; }"
            "body .stMainBlockContainer [data-testid=stVerticalBlock] { gap: 0.2rem; }"
            "body { --lead: 0rem; }"  # there is no sentence above the figure
            "</style>"
        )
    made = lay_out(beside_title)
    server.wait()
    try:
        started.options()
    except OptionError as error:
        made.top.error(tr_md(error))
        st.stop()
    with drawing(answer):
        with made.top:
            view = _or_error(partial(draw_controls, page))
        if view:
            _shown = view.model, view.acts  # held while the page is drawn
            answer.text(answer_words(view.acts, trained=view.model.trained))
            views.append(view)
            chosen.run()
            data: Data | None = st.session_state.pop("shown_data")
            if not (data and data.hidden):
                with report:
                    report_button(view, data)
            _next_button(page)
    for message in settings.take_messages():
        made.top.info(message)
    settings.write_address()


@st.fragment(run_every=5)  # 100 who wait take a fifth of a core
def _wait_in_line() -> None:
    """Say that the server is full and how many come first, until there is room."""
    place = limits.place_in_line()
    if not place:
        st.rerun()
    st.title("vitviz", anchor=False)
    for code, words in limits.explain_full().items():
        with language.use_language(code):
            line = tr(
                "You are number {place} in line. This page opens by itself when it is your turn.",
                place=place,
            )
        st.markdown(f"{words} {line}")


def _menu(page: Page) -> DeltaGenerator:
    """Draw the menu of what is set once, and return its place for the report."""
    with st.popover(tr("Menu"), key="menu"):
        st.toggle(tr("Presenter"), key="presenter", help=tr("Larger text, for a projector."))
        prediction.draw_switch(page)
        st.selectbox(
            "Language · 언어",
            list(language.LANGUAGES),
            key="lang",
            format_func=language.LANGUAGES.__getitem__,
        )
        copy_link(uploaded=settings.stored_text("picture") == pictures.UPLOAD)
        report = st.container()
        if lesson.shows("reset"):
            st.button(
                tr("Reset view"),
                key="reset",
                on_click=settings.reset,
                help=tr("All settings at their defaults; picture and model stay."),
            )
    return report


def _or_error(make: Callable[[], T]) -> T | None:
    """Return the result of `make`; show the error and return None if model or server refuses."""
    try:
        return make()
    except Exception as error:
        from vitviz import ModelError  # torch comes with it: not before the title is on screen

        if not isinstance(error, (ModelError, BusyError)):
            raise
        st.error(tr_md(error))
        return None


def _draw_page(page: Page, views: list[View]) -> None:
    (view,), place = views, places()
    if not view.model.trained and page.shows_model:
        place.top.warning(
            tr_md(
                "{model} has **random weights** here: it has not been trained.",
                model=view.model.name,
            )
            + (f" {tr(weights_menu.MIMETIC_NOTE)}" if MIMETIC in view.model.weights else ""),
            icon=":material/casino:",
        )
    _or_error(lambda: lesson.draw_findings(view))
    if refusal := _explain_refusal(page, view):
        place.top.info(refusal)
        other = models.shipped_name()
        place.top.button(
            tr_md("Show {other}", other=other), on_click=settings.change, kwargs={"model": other}
        )
    data: Data | None = None
    if not refusal:
        data = _or_error(lambda: page.draw(view))
    # A page that shows nothing has nothing to explain, and a lesson says itself what to look at.
    if data is not None and lesson.shows("caption"):
        facts = traits(view.model, view.acts) | ({"carried"} if data.counted else set())
        draw_caption(page_text(page.name, facts))
        if not data.hidden:
            draw_tables(view, page.name, data)
    st.session_state.shown_data = data
    figure_pictures()
    with st.container(key="provenance"):
        st.html(fold(page_provenance(view, page.name, data), tr("The whole line")))


def _explain_refusal(page: Page, view: View) -> str | None:
    """Say why a page cannot draw this model; None where it can."""
    layers, name = view.model.layers, view.model.name
    kinds = sorted({layer.kind for layer in layers})
    grids = len({layer.query_grid for layer in layers})
    if page.needs == "one grid" and grids > 1:
        from vitviz.model.families import position_encodings

        reasons = explain_positions(literal(name), position_encodings(view.model.part, layers))
        return tr_md(
            "The patches of {name} lie in {grids} grids, one for each resolution, and no position "
            "embedding is added to them: {known}.",
            name=name,
            grids=grids,
            known=Markdown(reasons),
        )
    if page.needs != "all-to-all" or view.acts.all_to_all:
        return None
    what = tr("This page")
    if kinds == ["mixing"]:
        return tr_md(
            "{what} needs a model in which every token attends to every token, the same ones in "
            "each layer. {name} has no attention.",
            what=what,
            name=name,
        )
    has = tr(" and ").join(tr(MAP_KINDS[kind]) for kind in kinds)
    if grids > 1:
        has = tr("{has}, in {grids} grids", has=has, grids=grids)
    return tr_md(
        "{what} needs a model in which every token attends to every token, the same ones in each "
        "layer. In {name}, {has}.",
        what=what,
        name=name,
        has=has,
    )


@lesson.part("next")
def _next_button(page: Page) -> None:
    if following := page.following:

        def turn() -> None:
            st.session_state.turn_to = following.name

        st.button(
            tr("Next: {following}", following=following.tab),
            key="next",
            on_click=turn,
            icon=":material/arrow_forward:",
            icon_position="right",
        )


if __name__ == "__main__":
    main()
