"""The answer on the page Classify: before and after a change, and what it is worth."""

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets.figure import show
from vitviz.language import as_percent, tr

if TYPE_CHECKING:
    from vitviz.activations import Edit

LISTED_CLASSES = 20
SOFTMAX_ROWS = 3


def draw(
    view: View, edits: "list[Edit]", labels: tuple[str, ...], before: np.ndarray
) -> "tuple[np.ndarray, list[Edit]]":
    """Draw the answer before and after; returns the logit lens after, and the edits that worked."""
    from vitviz import ModelError

    try:
        after, lens = results.answer(view, edits)
    except ModelError as error:
        st.error(tr(error))
        edits = []
        after, lens = results.answer(view, edits)
    if edits:
        show(plots.answer_change(before, after, labels))
    else:
        show(plots.class_probabilities(before, labels))
    tell_worth(view, after, labels)
    _softmax(view, labels)
    return lens, edits


def _softmax(view: View, labels: tuple[str, ...]) -> None:
    """From logits to probabilities, written out for the most probable classes."""
    logits = view.acts.logits
    assert logits is not None
    best = np.argsort(-logits, kind="stable")[:SOFTMAX_ROWS]
    if view.acts.activation == "sigmoid":
        _sigmoid(view, labels, best)
        return
    powers = np.exp(logits.astype(np.float64) - logits.max())
    total = powers.sum()
    with st.expander(tr("From logits to probabilities")):
        st.table(
            {
                tr("class"): [*(labels[at] for at in best), tr("all {count:,}", count=len(labels))],
                tr("logit y"): [*(f"{logits[at]:.2f}" for at in best), ""],
                "exp(y - max y)": [*(f"{powers[at]:.3f}" for at in best), f"{total:.3f}"],
                tr("share"): [*(as_percent(powers[at] / total) for at in best), "100 %"],
            }
        )
        st.markdown(
            tr(
                "Softmax: each logit becomes exp(y - max y), and each of these is divided by "
                "their sum. The largest logit is subtracted first, which changes no share and "
                "keeps the numbers small."
            )
        )


def _sigmoid(view: View, labels: tuple[str, ...], best: np.ndarray) -> None:
    """The same where each word has a probability of its own."""
    logits, probabilities = view.acts.logits, view.acts.probabilities
    assert logits is not None
    assert probabilities is not None
    with st.expander(tr("From logits to probabilities")):
        st.table(
            {
                tr("class"): [labels[at] for at in best],
                tr("logit y"): [f"{logits[at]:.2f}" for at in best],
                "1 / (1 + exp(-y))": [as_percent(probabilities[at]) for at in best],
            }
        )
        st.markdown(
            tr(
                "Sigmoid: each logit becomes 1 / (1 + exp(-y)) by itself. The probabilities "
                "of all words need not add up to 100 %: none of them may fit, or several."
            )
        )


def tell_worth(view: View, after: np.ndarray, labels: tuple[str, ...]) -> None:
    """Say which classes the model knows and how well calibrated it is."""
    random = (
        "" if view.model.trained else tr("These are **random weights**: the answer means nothing. ")
    )
    if view.acts.labels is None:
        st.markdown(
            tr(
                "{random}Its {count:,} outputs have no names that are known here.",
                random=random,
                count=len(labels),
            )
        )
        return
    if view.model.words is not None:
        listed = f": {', '.join(labels)}" if len(labels) <= LISTED_CLASSES else ""
        none = "" if view.acts.activation == "sigmoid" else tr(" One of them always comes first.")
        st.markdown(
            tr(
                "{random}It compares the picture with {count:,} words{listed}. They are "
                "{source}; nothing proves that their text tower belongs to this model.{none}",
                random=random,
                count=len(labels),
                listed=listed,
                source=view.model.words.source,
                none=none,
            )
        )
        return
    known = tr("It knows {count:,} classes.", count=len(labels))
    if len(labels) <= LISTED_CLASSES:
        known = tr(
            "All {count} classes that it knows: {labels}.",
            count=len(labels),
            labels=", ".join(labels),
        )
    st.markdown(random + known + tr(" A picture of anything else still gets one of these names."))
    if view.model.temperature:
        st.markdown(_calibrated(after, view.model.temperature, labels))


def _calibrated(after: np.ndarray, temperature: float, labels: tuple[str, ...]) -> str:
    """The answer at the temperature that was fitted on held-out pictures."""
    powers = after ** (1 / temperature)  # the softmax of logits divided by the temperature
    best = int(powers.argmax())
    share = 100 * powers[best] / powers.sum()
    return tr(
        "Calibrated on pictures like those it was trained on (temperature "
        "{temperature:.2f}), it would say *{label}* with {share:.0f} %. A photo is often "
        "out of distribution for it, and its confidence then means little.",
        temperature=temperature,
        label=labels[best],
        share=share,
    )
