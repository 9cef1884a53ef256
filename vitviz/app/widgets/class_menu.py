"""The class that maps and experiments are about, shared by Classify and Rollout."""

from typing import TYPE_CHECKING, Any

import streamlit as st

from vitviz import plots
from vitviz.app.settings import setting
from vitviz.app.widgets.control import control
from vitviz.common.language import Message, as_percent, shorten, tr
from vitviz.text.class_names import common_names, full_names, other_names, table_names

if TYPE_CHECKING:
    import numpy as np
    import plotly.graph_objects as go

    from vitviz import Activations
    from vitviz.app.widgets.data_table import Columns

LONGEST_NAME = 22  # characters
LISTED_VALUES = 3
TOP = "top"


def names(acts: "Activations") -> tuple[str, ...]:
    """Return the names of all classes, each short enough for a figure."""
    return tuple(shorten(name, LONGEST_NAME) for name in common_names(acts.output_names))


def answer_figure(acts: "Activations") -> "go.Figure":
    """Draw the most probable classes."""
    full = full_names(acts.output_names)
    return plots.class_probabilities(_probabilities(acts), names(acts), full_names=full)


def answer_words(acts: "Activations", *, trained: bool) -> str:
    """Say what the model answers for the picture, in one line."""
    if acts.scores is None:
        if acts.logits is not None:
            return tr("No answer: this model gives an embedding.")
        return tr("No answer: this model has no head.")
    if acts.probabilities is None:
        values = value_words(acts)
        if not trained:
            return tr("Values of random weights: {values}", values=values)
        return tr("Values, unit unknown: {values}", values=values)
    top = _top(acts)
    what = tr("Answer") if trained else tr("Answer of random weights")
    if acts.answers == "labels":
        what = tr("Most probable label")
        if not trained:
            what = tr("Most probable label of random weights")
    words = f"{what}: {_name(acts, top)}, {as_percent(acts.probabilities[top])}"
    if acts.labels:
        return words
    one = len(acts.probabilities) == 1
    unnamed = tr("(its output has no name)") if one else tr("(its outputs have no names)")
    return f"{words} {unnamed}"


def value_words(acts: "Activations") -> str:
    """Say the first values with their names, in one line."""
    assert acts.scores is not None
    first = acts.scores[:LISTED_VALUES]
    words = [f"{_name(acts, index)} {value:.4g}" for index, value in enumerate(first)]
    return ", ".join(words + ["…"] * (len(acts.scores) > len(first)))


def names_heading(*captures: "Activations") -> Message:
    """Return what a column of the names of outputs is called in a table, of one model or more."""
    kinds = {"classes": Message("class"), "labels": Message("label")}
    answers = {acts.answers for acts in captures}
    return kinds.get(answers.pop(), Message("output")) if len(answers) == 1 else Message("output")


def columns(acts: "Activations") -> "Columns":
    """Return the names of the outputs for a table, and their other names where there are some."""
    others = other_names(acts.output_names)
    names: Columns = {names_heading(acts): table_names(acts.output_names)}
    return names | ({Message("also called"): others} if any(others) else {})


def chosen_index(acts: "Activations") -> int:
    """Return the chosen class, or the most probable one while none is chosen."""
    chosen = setting("class", _options(acts), TOP)
    return _top(acts) if isinstance(chosen, str) else chosen


def draw_class_menu(acts: "Activations", at: Any = st) -> None:
    """Draw the menu of classes, at a place as of `control`; call `chosen_index` first."""
    full, top = full_names(acts.output_names), _name(acts, _top(acts))
    control(
        "class",
        tr("Class in question"),
        _options(acts),
        at,
        "selectbox",
        words=lambda one: (
            full[one] if isinstance(one, int) else tr("most probable: {top}", top=top)
        ),
    )


def _options(acts: "Activations") -> list[str | int]:
    return [TOP, *range(len(_probabilities(acts)))]


def _top(acts: "Activations") -> int:
    return int(_probabilities(acts).argmax())


def _probabilities(acts: "Activations") -> "np.ndarray":
    assert acts.probabilities is not None  # the pages ask only where there is a head
    return acts.probabilities


def _name(acts: "Activations", index: int) -> str:
    """Return the name of a class that a student would say, short enough for a figure."""
    return shorten(common_names(acts.output_names)[index], LONGEST_NAME)
