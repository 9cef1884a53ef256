"""The controls that every page has: picture, model, weights, input and layer."""

import re
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, models, pictures, results
from vitviz.app.shared.downloads import follow, leave
from vitviz.app.shared.models import TRAINED
from vitviz.app.shared.view import (
    MEAN,
    MapStyle,
    View,
    placed_grid,
    token_text,
)
from vitviz.app.widgets import input_size
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.clipboard import paste_anywhere, paste_button
from vitviz.language import tr
from vitviz.token_map import Placed, default_query, moved

if TYPE_CHECKING:
    from vitviz import Activations, Model

ALL_TO_ALL = ("rollout", "tokens")  # pages that draw no other attention
_WIDTHS = {"picture": 2, "own": 1.6, "model": 2.2, "size": 1.45, "weights": 2.1, "layer": 1.9}
LAYERED = ("anatomy", "attention", "distance", "rollout", "tokens", "compare")  # pages of one layer


def controls(name: str) -> View | None:
    """The shared controls that the page reads; None where there is no model to show."""
    row = _places()
    picture = _picture_control(row.get("picture"), row.get("own"))
    chosen = _model_control(row.get("model"), row.get("size"), row.get("weights"), picture)
    if chosen is None:
        return None
    model, acts = _captured(chosen, picture)
    layer = _layer_setting(len(model.layers))
    if "layer" in row and name in LAYERED and (name not in ALL_TO_ALL or acts.all_to_all):
        _layer_control(row["layer"], len(model.layers))
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


def _places() -> dict[str, DeltaGenerator]:
    """A column for each control; in a lesson only for those that its step shows."""
    shown = {
        name: width
        for name, width in _WIDTHS.items()
        if lessons.shows("picture" if name == "own" else name)
    }
    if not shown:
        return {}
    rest = sum(_WIDTHS.values()) - sum(shown.values())
    with st.container(key="controls"):
        columns = st.columns(
            [*shown.values(), *([rest] if rest else [])], vertical_alignment="bottom"
        )
    return dict(zip(shown, columns, strict=False))


def _picture_control(menu: DeltaGenerator | None, take: DeltaGenerator | None) -> pictures.Picture:
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
    if menu is None or take is None:
        return pictures.picture(chosen)
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
        st.error(f"{tr(error)} {tr('The previous picture is kept.')}")
    return pictures.picture(chosen)


def _model_control(
    menu: DeltaGenerator | None,
    sizes: DeltaGenerator | None,
    switch: DeltaGenerator | None,
    picture: pictures.Picture,
) -> "Model | None":
    from vitviz import ModelError

    names = [*models.model_names(), *models.typed_names(_typed_model())]
    if missing := models.missing(settings.kept("model")):
        told, successor = missing
        settings.tell(told)
        settings.change(model=successor if successor in names else names[0])
    name = setting("model", names, names[0])
    weights = weights_menu.control(switch, "weights", name)
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
    shown: Model | None = st.session_state.get("loaded")
    last: tuple[str, str] = st.session_state.get("loaded_by", (models.shipped_name(), TRAINED))
    try:
        if weights == TRAINED and models.needs_download(name):
            shown = shown or models.load(models.shipped_name())
            follow(name, last)
        else:
            leave()
            shown = input_size.load(name, weights, picture)
            last = (name, weights)
            if sizes is not None:
                input_size.control(sizes, name, shown, picture)
    except ModelError as error:
        shown = shown or models.load(models.shipped_name())
        st.error(f"{tr(error)} {tr('{model} is shown.', model=shown.name)}")
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
        st.error(f"{tr(error)} {tr('{model} is shown.', model=model.name)}")
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
