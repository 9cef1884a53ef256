"""The shell of every page: navigation, the shared controls, the provenance line.

The style stands in style.css, which the server puts into the document.
"""

import re
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, TypeVar

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz import language
from vitviz.app import server, settings
from vitviz.app.settings import setting
from vitviz.app.shared import models, pictures, results
from vitviz.app.shared.downloads import follow, leave
from vitviz.app.shared.models import MIMETIC, TRAINED
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import (
    MEAN,
    MapStyle,
    View,
    placed_grid,
    token_text,
)
from vitviz.app.widgets import classroom, input_size, prediction
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.caption import boxes, caption, fold
from vitviz.app.widgets.class_menu import answer_words
from vitviz.app.widgets.clipboard import paste_anywhere, paste_button
from vitviz.app.widgets.copy_link import copy_link
from vitviz.app.widgets.data_table import Data, disclose, provenance
from vitviz.app.widgets.figure_pictures import figure_pictures
from vitviz.app.widgets.report_button import report_button
from vitviz.language import tr
from vitviz.options import OptionError
from vitviz.text import OPENING, PAGES, lesson, page_after, tab
from vitviz.text.families import known_by
from vitviz.token_map import KINDS, Placed, default_query, moved
from vitviz.traits import traits

if TYPE_CHECKING:
    from vitviz import Activations, Model

T = TypeVar("T")
ALL_TO_ALL = ("rollout", "tokens")  # pages that draw no other attention
RECORDS = ("training", "zoo")  # pages that show nothing of the weights on screen
LAYERED = ("anatomy", "attention", "distance", "rollout", "tokens", "compare")  # pages of one layer


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
    if (shown := classroom.follow(name)) != name:
        st.switch_page(pages[shown])
    with st.container(key="top", horizontal=True, vertical_alignment="center"):
        st.title(f"{lesson(name).title}: {lesson(name).question}", anchor=False)
        answer = st.empty()  # filled once there is a model
        st.button(
            tr("Reset view"),
            key="reset",
            on_click=settings.reset,
            help=tr("All settings at their defaults; picture and model stay."),
        )
        copy_link(uploaded=settings.kept("picture") == pictures.UPLOAD)
        if len(language.WHOLE) > 1:
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
    if setting("presenter", [False, True], False):
        st.html(f"<style>html {{ font-size: {settings.PRESENTER:.0%} !important; }}</style>")
    st.toggle(tr("Presenter"), key="presenter", help=tr("Larger text, for a projector."))
    # Drawn here, as a widget drawn inside a page loses its value at a change of page.
    messages = st.container()
    server.wait()
    try:
        models.options()
    except OptionError as error:
        st.error(str(error))
        st.stop()
    if view := _or_error(partial(_controls, name)):
        answer.text(answer_words(view.acts, trained=view.model.trained))
        views.append(view)
        chosen.run()
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
        st.error(str(error))
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
    card, words = st.empty(), lesson(name, traits(view.model, view.acts))  # above the figures
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
        if data is not None:
            with card.container():
                caption(words)
    else:
        with card.container():
            caption(words)
        data = _or_error(partial(import_module(f"vitviz.app.screens.{name}").page, view))
    if data is None:  # a page that shows nothing has nothing to explain
        card.empty()
    else:
        boxes(words)
        if not data.hidden:
            disclose(view, name, data)
    if data is None or not data.hidden:
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


def _controls(name: str) -> View | None:
    """The shared controls that the page reads; None where there is no model to show."""
    with st.container(key="controls"):
        row = st.columns([2, 1.6, 2.2, 1.45, 2.1, 1.9], vertical_alignment="bottom")
    picture = _picture_control(row[0], row[1])
    chosen = _model_control(row[2], row[3], row[4], picture)
    if chosen is None:
        return None
    model, acts = _captured(chosen, picture)
    layer = _layer_setting(len(model.layers))
    if name in LAYERED and (name not in ALL_TO_ALL or acts.all_to_all):
        _layer_control(row[5], len(model.layers))
    shown = model.layers[layer]
    _at_most("head", shown.num_heads, MEAN)
    head = setting("head", [MEAN, *range(1, shown.num_heads + 1)], MEAN)
    return View(
        model=model,
        picture=picture,
        acts=acts,
        layer=layer,
        head=None if isinstance(head, str) else head - 1,
        query=_query(picture, acts, layer),
        style=MapStyle(
            direction=setting("read", ["row", "column"], "row"),
            view=setting("view", ["heat", "spotlight"], "heat"),
            scale=setting("scale", ["map", "shared", "log"], "map"),
            leave_out=setting("leave_out", ["on", "off"], "off") == "on",
            smooth=setting("smooth", ["on", "off"], "off") == "on",
            seen=settings.kept("seen") == "True",
        ),
    )


def _picture_control(menu: DeltaGenerator, take: DeltaGenerator) -> pictures.Picture:
    names = list(pictures.samples())
    uploaded: pictures.Picture | None = st.session_state.get("uploaded")
    if uploaded is not None:
        names.insert(0, pictures.UPLOAD)
    elif settings.kept("picture") == pictures.UPLOAD:
        settings.change(picture=pictures.DEFAULT)
        settings.tell(
            tr(
                "A link cannot include an uploaded picture, and a reload forgets it; a sample "
                "is shown instead."
            )
        )

    def shown(name: str) -> str:
        if name == pictures.UPLOAD and uploaded is not None:
            return uploaded.name
        return pictures.title(name)

    chosen = setting("picture", names, pictures.DEFAULT)
    menu.selectbox(tr("Picture"), names, key="picture", format_func=shown)
    with take.popover(tr("Your picture"), width="stretch"):
        setting("seen", [False, True], False)
        st.toggle(
            tr("Show it as the model sees it"),
            key="seen",
            help=tr("Under every map, the model's input takes the place of the sharp photo."),
        )
        st.file_uploader(
            tr("JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, at most 25 MB"),
            key="uploader",
            on_change=pictures.receive_file,
            args=("uploader",),
        )
        paste_button(pictures.receive)
        if st.toggle(tr("Use the camera"), key="camera_on"):
            st.camera_input(
                tr("Take a picture"),
                key="camera",
                on_change=pictures.receive_file,
                args=("camera",),
            )
    paste_anywhere(pictures.receive)
    if error := st.session_state.get("upload_error"):
        st.error(f"{error} {tr('The previous picture is kept.')}")
    return pictures.picture(chosen)


def _model_control(
    menu: DeltaGenerator, sizes: DeltaGenerator, switch: DeltaGenerator, picture: pictures.Picture
) -> "Model | None":
    from vitviz import ModelError

    names = [*models.model_names(), *models.typed_names(_typed_model())]
    if told := models.missing(settings.kept("model")):
        settings.tell(told)
        settings.change(model=names[0])
    name = setting("model", names, names[0])
    weights = weights_menu.control(switch, "weights", name)
    marks = models.weights_marks()
    menu.selectbox(
        tr("Model"),
        names,
        key="model",
        format_func=models.menu_text(),
        accept_new_options=models.hub_allowed(),
        help=tr("↓ marks trained weights that are downloaded when the model is first chosen.")
        + (tr(" Or type a name of the hub: hf-hub:owner/name.") if models.hub_allowed() else ""),
    )
    shown: Model | None = st.session_state.get("loaded")
    last: tuple[str, str] = st.session_state.get("loaded_by", (models.shipped_name(), TRAINED))
    try:
        if weights == TRAINED and models.needs_download(name, marks):
            shown = shown or models.load(models.shipped_name())
            follow(name, last)
        else:
            leave()
            shown = input_size.load(name, weights, picture)
            last = (name, weights)
            input_size.control(sizes, name, shown, picture)
    except ModelError as error:
        shown = shown or models.load(models.shipped_name())
        st.error(f"{error} {tr('{model} is shown.', model=shown.name)}")
    st.session_state.loaded, st.session_state.loaded_by = shown, last
    return shown


def _typed_model() -> str | None:
    """What the menu holds; a text that names no model is replaced by the model before, and told."""
    from vitviz.zoo import repository

    said: str | None = st.session_state.get("model")
    if said is None:
        return settings.kept("model")
    if said not in models.model_names() and models.hub_allowed() and not repository(said):
        settings.tell(
            tr(
                "Model: {said} is neither in the menu nor a name of the hub, such as "
                "hf-hub:owner/name.",
                said=settings.plain(said),
            )
        )
        before = settings.kept("model")
        st.session_state.pop("model")
        return before
    return said


def _captured(chosen: "Model", picture: pictures.Picture) -> "tuple[Model, Activations]":
    """The chosen model and its capture; where that fails, those of the model shown before."""
    from vitviz import ModelError

    model = chosen
    try:
        acts = results.capture(model, picture)
    except ModelError as error:
        model = st.session_state.get("shown", chosen)
        if model is chosen:
            model = models.load(models.shipped_name())
        st.error(f"{error} {tr('{model} is shown.', model=model.name)}")
        acts = results.capture(model, picture)
    st.session_state.shown = model
    return model, acts


def _at_most(name: str, most: int, instead: object) -> None:
    """Replace a layer or head that this model does not have by `instead`.

    Only where it was chosen for another model: one that a link asks for is kept, so that `setting`
    says that it does not fit.
    """
    said = settings.kept(name) or ""
    if not settings.asked_for() and said.isdecimal() and int(said) > most:
        settings.change(**{name: instead})


def _layer_setting(depth: int) -> int:
    _at_most("layer", depth, depth)
    return setting("layer", range(1, depth + 1), depth) - 1


def _layer_control(place: DeltaGenerator, depth: int) -> None:
    if depth == 1:
        place.markdown(tr("Layer 1 of 1"))
    else:
        place.slider(tr("Layer"), 1, depth, key="layer")


def _query(picture: pictures.Picture, acts: "Activations", number: int) -> int | None:
    """The query of a layer; it keeps its place in the picture where the grid is another now."""
    layer = acts.layers[number]
    if layer.kind == "class":
        return 0
    (rows, cols), said = layer.query_grid, settings.kept("query") or ""
    grid = placed_grid(picture, acts, number)
    before: Placed = st.session_state.get("query_grid", grid)
    patch = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", said)
    if before[0] != grid[0] and patch:
        row, col = moved((int(patch[1]) - 1, int(patch[2]) - 1), before, grid)
        settings.change(query=f"{row + 1}.{col + 1}")
    st.session_state.query_grid = grid
    names = [token_text(layer, n) for n in range(len(layer.prefix) + rows * cols)]
    at_home = default_query(acts, layer) == 0
    options, home = (names, "cls") if at_home else ([MEAN, *names], MEAN)
    elsewhere = any(said in each.prefix for each in acts.layers)  # a token of another layer
    if not patch and said not in options and (elsewhere or not settings.asked_for()):
        settings.change(query=home)
    chosen = setting("query", options, home)
    return None if chosen == MEAN else names.index(chosen)


if __name__ == "__main__":
    main()
