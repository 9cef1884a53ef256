"""The size and shape of the model's input: how it is chosen, and what it costs."""

from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app import settings
from vitviz.app.shared import models
from vitviz.app.shared.models import Input
from vitviz.app.shared.pictures import Picture
from vitviz.language import tr
from vitviz.options import image_size_in

if TYPE_CHECKING:
    from vitviz import Model

OWN, WHOLE = "own", "whole"  # as settings, beside sizes such as 320x480
_FACTORS = (0.5, 1.5, 2)  # of the sides that the menu offers beside the model's own


def load(name: str, weights: str, picture: Picture) -> "Model":
    """The model with the input that the settings ask for.

    Where it cannot have that, it comes with its own, and the reader is told why.

    Raises
    ------
    ModelError
        When it cannot be loaded at all.
    """
    from vitviz import ModelError

    size = settings.text_setting("size", _fits, OWN)
    if size == OWN:
        return models.load(name, weights)
    try:
        wanted = _wanted(name, size, picture)
        models.outline(name, wanted)
        return models.load(name, weights, wanted)
    except ModelError as error:
        model = models.load(name, weights)
        settings.tell(" ".join((tr(error), tr("The input is of the model's own size."))))
        settings.change(size=OWN)
        return model


def load_beside(name: str, weights: str, picture: Picture) -> "Model":
    """The model with other weights, and the input of the one on screen.

    Raises
    ------
    ModelError
        When it cannot be loaded.
    """
    size = settings.kept("size") or OWN
    if size == OWN:
        return models.load(name, weights)
    return models.load(name, weights, _wanted(name, size, picture))


def control(place: DeltaGenerator, name: str, shown: "Model", picture: Picture) -> None:
    """Draw the control beneath the size that the model on screen has."""
    size = settings.text_setting("size", _fits, OWN)
    own = shown if size == OWN else models.outline(name)
    height, width = shown.preprocess.input_size
    options = [OWN, WHOLE, *_offered(own)]
    with place.popover(
        tr("Input {height} × {width}", height=height, width=width), key="input", width="stretch"
    ):
        st.selectbox(
            tr("Size of the input"),
            options if size in options else [*options, size],
            key="size",
            format_func=lambda size: _called(size, own),
            accept_new_options=True,
            help=tr(
                "Rows and columns in pixels. Choose a size, or type one that whole patches fill, "
                "such as 320x480."
            ),
        )
        st.markdown(_cost(shown, own, picture))


def _fits(text: str) -> bool:
    return text in (OWN, WHOLE) or image_size_in(text) is not None


def _called(size: str, own: "Model") -> str:
    if size == OWN:
        height, width = own.preprocess.input_size
        return tr("{height} × {width}, the model's own", height=height, width=width)
    return tr("The whole picture, nothing cut off") if size == WHOLE else size.replace("x", " × ")


def _wanted(name: str, size: str, picture: Picture) -> Input:
    from vitviz.zoo import whole_picture

    if size == WHOLE:
        return Input(whole_picture(models.outline(name), picture.size), crop=False)
    return Input(image_size_in(size))


def _offered(own: "Model") -> list[str]:
    """Multiples of the patch beside the model's own size."""
    from vitviz.zoo import step_of

    sides = list(zip(own.preprocess.input_size, step_of(own), strict=True))
    pairs = [[max(1, round(f * side / step)) * step for side, step in sides] for f in _FACTORS]
    return [f"{height}x{width}" for height, width in pairs]


def _cost(shown: "Model", own: "Model", picture: Picture) -> str:
    """What the input costs, and what it does to the picture's shape."""
    from vitviz.zoo import input_cost

    cost, usual = input_cost(shown), input_cost(own)
    rows, cols = cost.grid
    words = tr(
        "{rows} × {cols} patches, {tokens:,} tokens", rows=rows, cols=cols, tokens=cost.tokens
    )
    if cost.size != usual.size:
        words += tr(" instead of {tokens:,}", tokens=usual.tokens)
        if usual.attention:
            words += tr(
                ", and {factor:.2g} times as many attention weights",
                factor=cost.attention / usual.attention,
            )
    if shown.preprocess.crop_mode == "squash" and shown.preprocess.crop_pct == 1:
        shape = (cost.size[1] / cost.size[0]) / (picture.size[0] / picture.size[1])
        if abs(shape - 1) >= 0.005:
            wider = tr("wider") if shape > 1 else tr("narrower")
            words += tr(
                ". The picture becomes {percent:.0f} % {wider} to fill it",
                percent=100 * abs(shape - 1),
                wider=wider,
            )
    return f"{words}."
