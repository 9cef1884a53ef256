"""The field *Words*: phrases that the text tower of the model on screen compares the picture with.

What visitors type is data: its length is bounded, and it is shown as text.
"""

from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import models
from vitviz.common.language import mark, tr, tr_md

if TYPE_CHECKING:
    from vitviz import Model

MOST_PHRASES = 50
_LONGEST = 2000  # characters of all phrases; the address holds them
TEMPLATES = {
    "plain": ("{}",),
    "photo": ("a photo of a {}.",),
    "mean": ("a photo of a {}.", "a close-up photo of a {}.", "a drawing of a {}."),
}
_NAMES = {"plain": mark("as they are"), "mean": mark("the mean of three templates")}


def ask(model: "Model", place: DeltaGenerator | None) -> "Model":
    """Draw the field, and return the model with the phrases in it as its classes.

    Models without a text tower, and those with the words of a file, stay as they are.
    """
    from vitviz import ModelError
    from vitviz.model.text import phrases_in

    if model.text_loader is None or model.words is not None:
        return model
    text = text_setting("words", lambda given: len(given) <= _LONGEST)
    template = setting("template", list(TEMPLATES), "plain")
    if place is not None:
        place.text_area(
            tr("Words"),
            key="words",
            max_chars=_LONGEST,
            placeholder=tr("One phrase a line, at most {most}", most=MOST_PHRASES),
            help=tr(
                "The model's own text tower turns each phrase into a vector. The picture is "
                "compared with all of them."
            ),
        )
        place.selectbox(
            tr("Template"),
            list(TEMPLATES),
            key="template",
            format_func=lambda name: tr(_NAMES[name]) if name in _NAMES else TEMPLATES[name][0],
            help=tr_md(
                "What the text tower reads, with the phrase in place of the braces. The three: "
                "{templates}",
                templates=" · ".join(TEMPLATES["mean"]),
            ),
        )
    phrases = phrases_in(text)
    if not phrases:
        return model
    try:
        if len(phrases) > MOST_PHRASES:
            raise ModelError(
                "{count} phrases are too many: at most {most} are compared. Remove some.",
                count=len(phrases),
                most=MOST_PHRASES,
            )
        return models.with_phrases(model, tuple(phrases), TEMPLATES[template])
    except ModelError as error:
        st.error(tr_md(error))
        return model
