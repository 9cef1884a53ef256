"""The controls that every page has: picture, model, weights, input and layer."""

import re
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.pages import MODEL, Page
from vitviz.app.settings import setting
from vitviz.app.shared import limits, models, pictures, results, visitors
from vitviz.app.shared.downloads import forget, show_progress
from vitviz.app.shared.models import TRAINED
from vitviz.app.shared.view import MEAN, Cached, MapStyle, View, placed_grid, token_text
from vitviz.app.widgets import lesson, own_picture, words
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.places import label_in_bar, places
from vitviz.app.widgets.thumbnails import thumbnails
from vitviz.common.language import tr, tr_md
from vitviz.web.token_map import PlacedGrid, default_query, matching_patch

if TYPE_CHECKING:
    from vitviz import Activations, Model


def draw_controls(page: Page) -> View | None:
    """Draw the shared controls that the page reads; None where there is no model to show."""
    with st.sidebar:
        row = {part: st.container() for part in MODEL if _is_drawn(part, page)}
    picture = _picture_control(row.get("picture"), page.picture or pictures.DEFAULT)
    chosen = _model_control(row.get("model"), row.get("size"), row.get("weights"), picture)
    if chosen is None:
        return None
    model, acts = _capture_or_previous(words.ask(chosen, row.get("model")), picture)
    layer = _layer_setting(len(model.layers))
    can_draw = page.needs != "all-to-all" or acts.all_to_all
    if _is_drawn("layer", page) and can_draw and not page.has_layer_menu:
        _layer_control(len(model.layers))
    described = model.layers[layer]
    _replace_missing("head", described.num_heads, MEAN)
    head = setting("head", [MEAN, *range(1, described.num_heads + 1)], MEAN)
    return View(
        **models.view_fields(model, picture, acts),
        layer=layer,
        head=None if isinstance(head, str) else head - 1,
        query=_read_query(picture, acts, layer),
        style=MapStyle(
            direction=setting("read", ["row", "column"], "row"),
            view=setting("view", ["heat", "spotlight"], "heat"),
            scale=setting("scale", ["map", "shared", "log"], "map"),
            leave_out=setting("leave_out", ["on", "off"], "off") == "on",
            smooth=setting("smooth", ["on", "off"], "off") == "on",
            seen=settings.stored_text("seen") == "True",
        ),
    )


def _is_drawn(part: str, page: Page) -> bool:
    """Return whether a control changes something on the page; in a lesson, if its step shows it."""
    return lesson.shows(part) and part in page.settings


def _picture_control(menu: DeltaGenerator | None, default: str) -> pictures.Picture:
    titles = pictures.menu()
    if settings.stored_text("picture") == pictures.UPLOAD and pictures.UPLOAD not in titles:
        settings.change(picture=default)
        settings.show_message(
            tr(
                "A link cannot include an uploaded picture, and a reload forgets it; a sample "
                "is shown instead."
            )
        )

    settings.follow_default("picture", default)
    chosen = setting("picture", list(titles), default)
    if menu is None:
        return pictures.chosen_picture(chosen)
    menu.selectbox(tr("Picture"), list(titles), key="picture", format_func=titles.__getitem__)
    with menu:
        thumbnails(chosen)
    with menu.popover(tr("Your picture"), width="stretch"):
        setting("seen", [False, True], False)
        st.toggle(
            tr("Show it as the model sees it"),
            key="seen",
            help=tr("Under every map, the model's input takes the place of the sharp photo."),
        )
        refusal = limits.refusal_of_uploads()
        if refusal:
            st.info(refusal)
        st.file_uploader(
            tr(
                "JPEG, PNG, WebP, GIF, BMP, TIFF or AVIF, at most {size} MB",
                size=pictures.most_megabytes(),
            ),
            key="uploader",
            disabled=bool(refusal),
            on_change=pictures.receive_file,
            args=("uploader",),
        )
        own_picture.paste_button()
        if st.toggle(tr("Use the camera"), key="camera_on"):
            if visitors.may_use_camera():
                st.camera_input(
                    tr("Take a picture"),
                    key="camera",
                    disabled=bool(refusal),
                    on_change=pictures.receive_file,
                    args=("camera",),
                )
            else:
                st.caption(
                    tr(
                        "Browsers let a page use the camera only over HTTPS, and this address is "
                        "plain HTTP. A phone's own camera app works."
                    )
                )
                own_picture.camera_button()
    own_picture.follow_pictures()
    if error := st.session_state.get("upload_error"):
        st.error(f"{tr_md(error)} {tr('The previous picture is kept.')}")
    return pictures.chosen_picture(chosen)


def _model_control(
    menu: DeltaGenerator | None,
    sizes: DeltaGenerator | None,
    switch: DeltaGenerator | None,
    picture: pictures.Picture,
) -> "Model | None":
    from vitviz import ModelError

    names = [*models.model_names(), *models.typed_names(_typed_model())]
    if explanation := models.explain_missing(settings.stored_text("model")):
        settings.show_message(explanation)
        settings.change(model=names[0])
    name = setting("model", names, names[0])
    weights = weights_menu.choose_weights(switch, "weights", name)
    if menu is not None:
        menu.selectbox(
            tr("Model"),
            names,
            key="model",
            format_func=models.menu_text(),
            accept_new_options=models.hub_allowed(),
            help=tr("↓ marks trained weights that are downloaded when the model is first chosen.")
            + (
                tr(" Or type a name of the hub: hf-hub:owner/name.") if models.hub_allowed() else ""
            ),
        )
    loaded: Cached[Model] | None = st.session_state.get("loaded")
    model: Model | None = None
    last: tuple[str, str] = st.session_state.get("loaded_by", (models.shipped_name(), TRAINED))
    try:
        if weights == TRAINED and models.needs_download(name):
            model = _previous(loaded)
            show_progress(name, last)
        else:
            forget()
            model = weights_menu.load_chosen(name, weights, picture)
            last = (name, weights)
            if sizes is not None:
                weights_menu.choose_size(sizes, name, model, picture)
    except ModelError as error:
        model = model or _previous(loaded)
        st.error(f"{tr_md(error)} {tr_md('{model} is shown.', model=model.name)}")
    loaded = None if model is None else Cached(model, models.reloader(model))
    st.session_state.loaded, st.session_state.loaded_by = loaded, last
    return model


def _previous(loaded: "Cached[Model] | None") -> "Model":
    """Return the model on screen; loaded again only where it is shown, as it may be gone."""
    return models.load_by_name(models.shipped_name()) if loaded is None else loaded()


def _typed_model() -> str | None:
    """Return the text of the model menu; replace one that names no model, with a notice."""
    from vitviz.zoo import repository

    text: str | None = st.session_state.get("model")
    if text is None:
        return settings.stored_text("model")
    if text not in models.model_names() and models.hub_allowed() and not repository(text):
        settings.show_message(
            tr_md(
                "Model: {said} is neither in the menu nor a name of the hub, such as "
                "hf-hub:owner/name.",
                said=text[: settings.MAX_QUOTED],
            )
        )
        before = settings.stored_text("model")
        st.session_state.pop("model")
        return before
    return text


def _capture_or_previous(chosen: "Model", picture: pictures.Picture) -> "tuple[Model, Activations]":
    """Return the chosen model and its capture; if it fails, those of the previous model."""
    from vitviz import ModelError

    model = chosen
    try:
        acts = results.capture_picture(model, picture)
    except ModelError as error:
        before: Cached[Model] | None = st.session_state.get("shown")
        model = chosen if before is None else before()
        if model is chosen:
            model = models.load_by_name(models.shipped_name())
        st.error(f"{tr_md(error)} {tr_md('{model} is shown.', model=model.name)}")
        acts = results.capture_picture(model, picture)
    st.session_state.shown = Cached(model, models.reloader(model))
    return model, acts


def _replace_missing(name: str, most: int, instead: object) -> None:
    """Replace a layer or head that this model does not have by `instead`.

    A value from a link stays, so that `setting` reports it as invalid.
    """
    text = settings.stored_text(name) or ""
    if not settings.is_from_link() and text.isdecimal() and int(text) > most:
        settings.change(**{name: instead})


def _layer_setting(depth: int) -> int:
    _replace_missing("layer", depth, depth)
    return setting("layer", range(1, depth + 1), depth) - 1


def _layer_control(depth: int) -> None:
    if depth == 1:
        places().bar.markdown(tr("Layer 1 of 1"), width="content")
    else:
        label_in_bar(tr("Layer")).slider(
            tr("Layer"), 1, depth, key="layer", label_visibility="collapsed", width=220
        )


def _read_query(picture: pictures.Picture, acts: "Activations", number: int) -> int | None:
    """Return the query of a layer. If the grid has changed, it keeps its place in the picture."""
    layer = acts.layers[number]
    if layer.kind == "class":
        return 0
    at_home = default_query(acts, layer) == 0
    settings.follow_default("query", "cls" if at_home else MEAN)
    (rows, cols), text = layer.query_grid, settings.stored_text("query") or ""
    grid = placed_grid(picture, acts, number)
    before: PlacedGrid = st.session_state.get("query_grid", grid)
    patch = re.fullmatch(r"(\d{1,4})\.(\d{1,4})", text)
    if before[0] != grid[0] and patch:
        row, col = matching_patch((int(patch[1]) - 1, int(patch[2]) - 1), before, grid)
        settings.change(query=f"{row + 1}.{col + 1}")
    st.session_state.query_grid = grid
    names = [token_text(layer, n) for n in range(len(layer.prefix) + rows * cols)]
    options, home = (names, "cls") if at_home else ([MEAN, *names], MEAN)
    elsewhere = any(text in each.prefix for each in acts.layers)  # a token of another layer
    if not patch and text not in options and (elsewhere or not settings.is_from_link()):
        settings.change(query=home)
    chosen = setting("query", options, home)
    return None if chosen == MEAN else names.index(chosen)
