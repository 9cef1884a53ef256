"""The choice of a model's weights, and of the size and shape of its input."""

import math
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.options import image_size_in
from vitviz.app.settings import setting
from vitviz.app.shared import models, started
from vitviz.app.shared.models import MIMETIC, RANDOM, TRAINED, Input
from vitviz.app.shared.pictures import Picture
from vitviz.app.shared.view import Cached, View
from vitviz.app.widgets.control import choose
from vitviz.common.language import Message, mark, tr, tr_md

if TYPE_CHECKING:
    from vitviz import Model

OWN, WHOLE = "own", "whole"  # as settings, beside sizes such as 320x480
_FACTORS = (0.5, 1.5, 2)  # of the sides that the menu offers beside the model's own

#: What a page says of the second kind of random weights.
MIMETIC_NOTE = mark(
    "They are drawn as they were when its training began, by mimetic initialisation: the positions "
    "are sines and cosines, and some heads are local and others global by design, so nothing that "
    "looks like structure here was learned."
)


def load_chosen(name: str, weights: str, picture: Picture) -> "Model":
    """Load the model with the input that the settings ask for.

    Where it cannot have that, it comes with its own, and the reader is told why.

    Raises
    ------
    ModelError
        When it cannot be loaded at all.
    """
    from vitviz import ModelError

    settings.text_setting("size", _fits, OWN)  # replaces one that does not fit
    try:
        return load_beside(name, weights, picture)
    except ModelError as error:
        if settings.stored_text("size") == OWN:
            raise
        model = models.load_by_name(name, weights)
        settings.show_message(" ".join((tr_md(error), tr("The input is of the model's own size."))))
        settings.change(size=OWN)
        return model


def check_token_count(model: "Model", own: "Model") -> None:
    """Refuse an input of more tokens than visitors may choose, or than the model has by itself.

    Of windows, as many count as would make as many attention weights if all attended to all.

    Raises
    ------
    ModelError
        With both numbers.
    """
    from vitviz import ModelError
    from vitviz.zoo import tokens_attending

    most = _most(own)
    if (tokens := tokens_attending(model)) > most:
        height, width = model.preprocess.input_size
        raise ModelError(
            "An input of {height} × {width} pixels has {tokens:,} tokens for {name}, and visitors "
            "may choose up to {most:,}. The operator can raise this with --max-tokens.",
            height=height,
            width=width,
            tokens=tokens,
            name=model.name,
            most=most,
        )


def _most(own: "Model") -> int:
    from vitviz.zoo import tokens_attending

    return max(started.options().max_tokens, tokens_attending(own))


def load_beside(name: str, weights: str, picture: Picture) -> "Model":
    """Load the model with other weights, and the input of the one on screen.

    Raises
    ------
    ModelError
        When it cannot be loaded.
    """
    size = settings.stored_text("size") or OWN
    if size == OWN:
        return models.load_by_name(name, weights)
    wanted = _parse_input(name, size, picture)
    check_token_count(models.outline(name, wanted), models.outline(name))
    return models.load_by_name(name, weights, wanted)


def choose_size(place: DeltaGenerator, name: str, current: "Model", picture: Picture) -> None:
    """Draw the control beneath the size that the model on screen has."""
    size = settings.text_setting("size", _fits, OWN)
    own = current if size == OWN else models.outline(name)
    height, width = current.preprocess.input_size
    options = [OWN, WHOLE, *_list_sizes(own)]
    with place.popover(
        tr("Input {height} × {width}", height=height, width=width), key="input", width="stretch"
    ):
        st.selectbox(
            tr("Size of the input"),
            options if size in options else [*options, size],
            key="size",
            format_func=partial(_name_size, own=own.preprocess.input_size),
            accept_new_options=True,
            help=tr(
                "Rows and columns in pixels. Choose a size, or type one that whole patches fill, "
                "such as 320x480."
            ),
        )
        st.markdown(_cost(current, own, picture))


def _fits(text: str) -> bool:
    return text in (OWN, WHOLE) or image_size_in(text) is not None


def _name_size(size: str, own: tuple[int, int]) -> str:
    if size == OWN:
        height, width = own
        return tr("{height} × {width}, the model's own", height=height, width=width)
    return tr("The whole picture, nothing cut off") if size == WHOLE else size.replace("x", " × ")


def _parse_input(name: str, size: str, picture: Picture) -> Input:
    from vitviz.zoo import tokens_attending, whole_picture

    if size == WHOLE:
        own = models.outline(name)
        rows, cols = own.layers[0].query_grid
        most = rows * cols * _most(own) / max(1, tokens_attending(own))
        return Input(whole_picture(own, picture.size, most=most), crop=False)
    return Input(image_size_in(size))


def _list_sizes(own: "Model") -> list[str]:
    """Return the input sizes, multiples of the patch, that visitors may choose."""
    from vitviz.zoo import step_of, tokens_attending

    tokens, area, most = tokens_attending(own), math.prod(own.preprocess.input_size), _most(own)
    sides = list(zip(own.preprocess.input_size, step_of(own), strict=True))
    pairs = [[max(1, round(f * side / step)) * step for side, step in sides] for f in _FACTORS]
    fitting = [pair for pair in pairs if tokens * math.prod(pair) / area <= most]
    return [f"{height}x{width}" for height, width in fitting]


def _cost(current: "Model", own: "Model", picture: Picture) -> str:
    """Say what the input costs, and what it does to the picture's shape."""
    from vitviz.zoo import input_cost

    cost, usual = input_cost(current), input_cost(own)
    rows, cols = cost.grid
    words = tr(
        "{rows} × {cols} patches, {tokens:,} tokens", rows=rows, cols=cols, tokens=cost.tokens
    )
    if cost.size != usual.size:
        words += tr(" instead of {tokens:,}", tokens=usual.tokens)
        if usual.attention:
            words += tr(
                ", and {factor} times as many attention weights",
                factor=_factor(cost.attention / usual.attention),
            )
    if current.preprocess.crop_mode == "squash" and current.preprocess.crop_pct == 1:
        shape = (cost.size[1] / cost.size[0]) / (picture.size[0] / picture.size[1])
        if abs(shape - 1) >= 0.005:
            wider = tr("wider") if shape > 1 else tr("narrower")
            words += tr(
                ". The picture becomes {percent:.0f} % {wider} to fill it",
                percent=100 * abs(shape - 1),
                wider=wider,
            )
    return f"{words}."


def _factor(times: float) -> str:
    """Return a factor with two digits, and with all of its digits before the point."""
    return f"{times:,.0f}" if times >= 100 else f"{times:.2g}"


def saved_label(name: str) -> Message:
    """Return what the menu calls the weights of a model that are not random.

    Nobody knows whether weights of a visitor's file were ever trained.
    """
    from vitviz.zoo import catalogue

    is_listed = any(name == entry.name for entry in catalogue())
    return Message("trained") if is_listed else Message("as saved")


def menu_name(view: View) -> str:
    """Return what the menu calls the model on screen."""
    loaded: Cached[Model] | None = st.session_state.get("loaded")
    is_loaded = loaded is not None and loaded() is view.model
    name: str = st.session_state.loaded_by[0] if is_loaded else view.model.name
    return name


def choose_weights(place: DeltaGenerator | None, key: str, name: str) -> str:
    """Draw the choice for a model in the menu, where it has a place; returns it.

    Where the training did not begin with the usual initialisation, both kinds are offered.
    """
    from vitviz.zoo.checkpoints import initialisations

    began = MIMETIC in initialisations(name)
    if settings.stored_text(key) == MIMETIC and not began:
        settings.change(**{key: RANDOM})
    labels = {TRAINED: tr(saved_label(name)), RANDOM: tr("random")}
    label = tr("Weights") if key == "weights" else tr("Its weights")
    if began:
        labels |= {RANDOM: tr("plain"), MIMETIC: tr("mimetic")}
        label = tr("{weights}: trained or random", weights=label)
    if place is None:
        return setting(key, list(labels), TRAINED)
    return choose(key, label, labels, TRAINED, place)
