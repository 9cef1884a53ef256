"""The shell of every page: navigation, the shared controls, the provenance line.

The style stands in style.css, which the server puts into the document.
"""

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TypeVar

import streamlit as st

from vitviz import language
from vitviz.app import server, settings
from vitviz.app.controls import ALL_TO_ALL, controls
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, models, pictures
from vitviz.app.shared.models import MIMETIC
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import View
from vitviz.app.widgets import classroom, lesson, prediction
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.caption import boxes, caption, fold
from vitviz.app.widgets.class_menu import answer_words
from vitviz.app.widgets.copy_link import copy_link
from vitviz.app.widgets.data_table import Data, disclose, provenance
from vitviz.app.widgets.figure_pictures import figure_pictures
from vitviz.app.widgets.report_button import report_button
from vitviz.language import tr
from vitviz.options import OptionError
from vitviz.text import OPENING, PAGES, page_after, page_text, tab
from vitviz.text.families import known_by
from vitviz.token_map import KINDS
from vitviz.traits import traits

T = TypeVar("T")
RECORDS = ("training", "zoo")  # pages that show nothing of the weights on screen


def main() -> None:
    """Draw the page that the browser asks for."""
    st.set_page_config(page_title="vitviz", layout="wide")
    settings.follow_address()
    settings.speak()
    views: list[View] = []  # filled by the controls before the page runs
    pages = {
        name: st.Page(
            partial(_page, name, views),
            title=tab(name),
            url_path=name,
            default=name == OPENING,
        )
        for name in PAGES
    }
    chosen = st.navigation(list(pages.values()), position="top")
    if target := st.session_state.pop("turn_to", None):  # a button on another page asked for it
        st.switch_page(pages[target])
    name = chosen.url_path or OPENING
    if (shown := lessons.follow(classroom.follow(name))) != name:
        st.switch_page(pages[shown])
    in_lesson = lessons.step() is not None
    with st.container(key="top", horizontal=True, vertical_alignment="center"):
        question = f"{page_text(name).title}: {page_text(name).question}"
        st.title(lessons.heading() or question, anchor=False)
        answer = st.empty()  # filled once there is a model
        lesson.menu()
        if not in_lesson:
            st.button(
                tr("Reset view"),
                key="reset",
                on_click=settings.reset,
                help=tr("All settings at their defaults; picture and model stay."),
            )
        copy_link(uploaded=settings.kept("picture") == pictures.UPLOAD)
        st.selectbox(
            "Language · 언어",
            list(language.LANGUAGES),
            key="lang",
            format_func=language.LANGUAGES.__getitem__,
            label_visibility="collapsed",
            width=110,
        )
        prediction.switch(name)
        classroom.controls(name)
    settings.watch_address()
    classroom.notice()
    lesson.strip()
    if setting("presenter", [False, True], False):
        st.html(f"<style>html {{ font-size: {settings.PRESENTER:.0%} !important; }}</style>")
    st.toggle(tr("Presenter"), key="presenter", help=tr("Larger text, for a projector."))
    # Drawn here, as a widget drawn inside a page loses its value at a change of page.
    messages = st.container()
    server.wait()
    try:
        models.options()
    except OptionError as error:
        st.error(tr(error))
        st.stop()
    if view := _or_error(partial(controls, name)):
        answer.text(answer_words(view.acts, trained=view.model.trained))
        views.append(view)
        chosen.run()
        if not in_lesson:
            _next_button(name)
    for message in settings.take_messages():
        messages.info(message)
    settings.write_address()


def _or_error(make: Callable[[], T]) -> T | None:
    """The result of `make`; where the model or the server refuses, None, and the error is shown."""
    try:
        return make()
    except Exception as error:
        from vitviz import ModelError  # torch comes with it: not before the title is on screen

        if not isinstance(error, (ModelError, BusyError)):
            raise
        st.error(tr(error))
        return None


def _page(name: str, views: list[View]) -> None:
    (view,) = views
    if not view.model.trained and name not in RECORDS:
        st.warning(
            tr(
                "{model} has **random weights** here: it has not been trained.",
                model=view.model.name,
            )
            + (f" {tr(weights_menu.BEGAN)}" if MIMETIC in view.model.weights else ""),
            icon=":material/casino:",
        )
    card, words = st.empty(), page_text(name, traits(view.model, view.acts))  # above the figures
    explained = lessons.step() is None  # the strip of a lesson says what to look at
    lesson.found(view)
    data: Data | None = None
    if refusal := _refusal(name, view):
        st.info(refusal)
        other = models.shipped_name()
        st.button(
            tr("Show {other}", other=other), on_click=settings.change, kwargs={"model": other}
        )
        if name == "rollout":
            from vitviz.app.screens import rollout

            data = _or_error(partial(rollout.of_one_class, view))
        if data is not None and explained:
            with card.container():
                caption(words)
    else:
        if explained:
            with card.container():
                caption(words)
        data = _or_error(partial(import_module(f"vitviz.app.screens.{name}").page, view))
    if data is None:  # a page that shows nothing has nothing to explain
        card.empty()
    elif explained:
        boxes(words)
        if not data.hidden:
            disclose(view, name, data)
    if explained and (data is None or not data.hidden):
        report_button(view, data)
    figure_pictures()
    with st.container(key="provenance"):
        # plain text: a file's name must never become markup
        st.text(provenance(view, name, data))
        st.html(fold(tr("The whole line")))


def _refusal(page: str, view: View) -> str | None:
    """Why a page cannot draw this model, in one sentence."""
    layers, name = view.model.layers, view.model.name
    kinds = sorted({layer.kind for layer in layers})
    grids = len({layer.query_grid for layer in layers})
    if page == "positions" and grids > 1:
        from vitviz.families import position_encodings

        known = known_by(name, position_encodings(view.model.module, layers))
        return tr(
            "The patches of {name} lie in {grids} grids, one for each resolution, and no position "
            "embedding is added to them: {known}.",
            name=name,
            grids=grids,
            known=known,
        )
    if page not in ALL_TO_ALL or view.acts.all_to_all:
        return None
    what = tr("Attention rollout") if page == "rollout" else tr("This page")
    if kinds == ["mixing"]:
        return tr(
            "{what} needs every token to attend to every token, the same ones in each layer; "
            "{name} has no attention.",
            what=what,
            name=name,
        )
    has = tr(" and ").join(tr(KINDS[kind]) for kind in kinds)
    if grids > 1:
        has = tr("{has}, in {grids} grids", has=has, grids=grids)
    return tr(
        "{what} needs every token to attend to every token, the same ones in each layer; in {name} "
        "{has}.",
        what=what,
        name=name,
        has=has,
    )


def _next_button(name: str) -> None:
    if following := page_after(name):

        def turn() -> None:
            st.session_state.turn_to = following

        st.button(
            tr("Next: {following}", following=tab(following)),
            key="next",
            on_click=turn,
            icon=":material/arrow_forward:",
            icon_position="right",
        )


if __name__ == "__main__":
    main()
