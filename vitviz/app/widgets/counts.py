"""The menu of what maps of attention count: A, or what the keys add."""

from typing import TYPE_CHECKING

import streamlit as st

from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets import prediction
from vitviz.app.widgets.control import choose
from vitviz.common.language import mark, tr, tr_md
from vitviz.web.token_map import map_titles

if TYPE_CHECKING:
    from vitviz.activations.activations import Of

#: What a map counts.
COUNTS: "dict[Of, str]" = {
    "weights": mark("attention A"),
    "values": mark("A times the length of the value"),
    "output": mark("what the key adds after the projection"),
}


def titles_of(counts: "Of") -> dict[str, str]:
    """Return the headings of maps that count this: "row", "column" and "strip"."""
    if counts == "weights":
        return map_titles()
    added = {"row": tr("What is added to it"), "column": tr("What it adds to others")}
    return map_titles() | added


def choose_counts(*views: View) -> "Of":
    """Draw the menu; it is A where attention is guessed, or read in windows by one of the views."""
    from vitviz import ModelError

    if any(not view.acts.all_to_all or view.acts.refusal for view in views) or prediction.is_on():
        return "weights"
    counts = choose("counts", tr("The maps show"), COUNTS, "weights", "settings", "selectbox")
    try:
        for view in views:
            results.row_shares(view, counts, view.layer)
    except ModelError as error:
        st.warning(tr_md(error))
        return "weights"
    return counts
