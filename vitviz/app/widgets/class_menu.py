"""The class that maps and experiments are about, shared by Classify and Rollout."""

from typing import TYPE_CHECKING

import streamlit as st

from vitviz.app.settings import setting
from vitviz.language import as_percent, told, tr

if TYPE_CHECKING:
    import numpy as np

    from vitviz import Activations

LONGEST_NAME = 22  # characters
TOP = "top"


def names(acts: "Activations") -> tuple[str, ...]:
    """The names of all classes, each short enough for a figure."""
    return tuple(_name(acts, index) for index in range(len(acts.output_names)))


def answer_words(acts: "Activations", *, trained: bool) -> str:
    """What the model answers for the picture, in one line."""
    if acts.probabilities is None:
        return tr("No answer: this model has no head.")
    top = _top(acts)
    what = tr("Answer") if trained else tr("Answer of random weights")
    words = f"{what}: {_name(acts, top)}, {as_percent(acts.probabilities[top])}"
    return words if acts.labels else f"{words} {tr('(its outputs have no names)')}"


def chosen(acts: "Activations") -> int:
    """The chosen class, or the most probable one while none is chosen."""
    chosen = setting("class", _options(acts), TOP)
    return _top(acts) if isinstance(chosen, str) else chosen


def menu(acts: "Activations") -> None:
    """Draw the menu of classes; call `chosen` first."""
    full, top = [*map(told, acts.output_names)], _name(acts, _top(acts))
    st.selectbox(
        tr("Class in question"),
        _options(acts),
        key="class",
        format_func=lambda one: tr("most probable: {top}", top=top) if one == TOP else full[one],
    )


def _options(acts: "Activations") -> list[str | int]:
    return [TOP, *range(len(_probabilities(acts)))]


def _top(acts: "Activations") -> int:
    return int(_probabilities(acts).argmax())


def _probabilities(acts: "Activations") -> "np.ndarray":
    assert acts.probabilities is not None  # the pages ask only where there is a head
    return acts.probabilities


def _name(acts: "Activations", index: int) -> str:
    """The first of the names of a class, short enough for a figure."""
    first = told(acts.output_names[index]).split(",")[0]
    return first if len(first) <= LONGEST_NAME else f"{first[: LONGEST_NAME - 1]}…"
