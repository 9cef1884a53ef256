"""The controls of a page: each reads its setting, and is drawn where the step of a lesson asks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import streamlit as st

from vitviz.app.settings import setting
from vitviz.app.shared.view import MEAN, head_name
from vitviz.app.widgets import lesson
from vitviz.app.widgets.places import label_in_bar, places
from vitviz.common.language import tr

T = TypeVar("T")
ControlKind = Literal["segmented_control", "selectbox", "select_slider", "slider"]


def choose(
    name: str,
    label: str,
    options: Sequence[T] | Mapping[T, str],
    default: T,
    at: Any = st,
    kind: ControlKind = "segmented_control",
    words: Callable[[T], str] = str,
    **look: Any,
) -> T:
    """Return the value of a setting, and draw its control.

    Parameters
    ----------
    name, options, default
        As of `setting`.
    at, kind, words, **look
        As of `control`.
    """
    value = setting(name, list(options), default)
    control(name, label, options, at, kind, words, **look)
    return value


def control(
    name: str,
    label: str,
    options: Sequence[T] | Mapping[T, str],
    at: Any = st,
    kind: ControlKind = "segmented_control",
    words: Callable[[T], str] = str,
    **look: Any,
) -> None:
    """Draw the control of a setting that was read before, unless a lesson hides it.

    Parameters
    ----------
    label : str
        In the page's language.
    options : sequence, or mapping of options to their words, marked or translated
    at : DeltaGenerator, "settings", "bar", "named" or "beside"
        Where it stands: a column, the menu of settings, the bar, the bar behind its label, or
        beside the sentence above it.
    kind : str
        Name of Streamlit's function; "slider" is of a range.
    words : callable
        What an option is called, in the page's language.
    look : of the function, as its width
    """
    if not lesson.shows(name):
        return
    if isinstance(options, Mapping):
        texts = {option: tr(text) for option, text in options.items()}
        options, words = list(texts), texts.__getitem__
    if at in ("bar", "named"):
        look = {"label_visibility": "collapsed", **look}
        at = label_in_bar(label) if at == "named" else places().bar
    elif at == "settings" and lesson.current_step():  # what a step asks to change is in sight
        look, at = {"width": 260, **look}, places().bar
    elif at in ("settings", "beside"):
        at = getattr(places(), at)
    if kind == "segmented_control":
        look = {"required": True, "width": "stretch", **look}
    if kind == "slider":  # of whole numbers, without words
        at.slider(label, options[0], options[-1], key=name, **look)
    else:
        getattr(at, kind)(label, options, key=name, format_func=words, **look)


def draw_head_menu(heads: int) -> None:
    """Draw the menu of heads in the bar; `head` is a shared setting, read in controls.py."""
    control(
        "head",
        tr("Head"),
        [MEAN, *range(1, heads + 1)],
        "bar",
        "selectbox",
        lambda head: head_name(head - 1 if isinstance(head, int) else None),
        width=180,
    )
