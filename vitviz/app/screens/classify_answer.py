"""On the page Classify: the answer, what it is worth, and the tables of the page."""

from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.data_table import Columns, Table, columns_of, head_columns, patch_columns
from vitviz.app.widgets.experiment import REMOVALS
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Markdown, Message, as_percent, literal, tr, tr_md
from vitviz.text.class_names import common_names, full_names, other_names, table_names

if TYPE_CHECKING:
    from vitviz.activations import Edit
    from vitviz.attribution import LogitParts
    from vitviz.intervention import Removal
    from vitviz.model.answers import Grades

LISTED_CLASSES = 20
SOFTMAX_ROWS = 3


def describe_changes(painted: np.ndarray, muted: np.ndarray, removal: "Removal") -> str:
    """Name the removed patches (rows, columns) and the muted heads (layers, heads)."""
    gone = tr("{count} of {size} patches removed", count=painted.sum(), size=painted.size)
    how = f" ({tr(REMOVALS[removal])})" if painted.any() else ""
    heads = ", ".join(f"{layer + 1}.{head + 1}" for layer, head in np.argwhere(muted))
    which = tr(" (layer.head: {heads})", heads=heads) if heads else ""
    return tr(
        "{gone}{how}, {count} of {size} heads muted{which}",
        gone=gone,
        how=how,
        count=muted.sum(),
        size=muted.size,
        which=which,
    )


def draw_answer(view: View, edits: "list[Edit]") -> tuple[np.ndarray, bool]:
    """Draw the answer before and after; return the logit lens after, and whether edits worked."""
    from vitviz import ModelError

    try:
        after, lens = results.answer(view, edits)
    except ModelError as error:
        st.error(tr_md(error))
        edits = []
        after, lens = results.answer(view, edits)
    figure = class_menu.answer_figure(view.acts)
    if edits:
        before, full = view.acts.probabilities, full_names(view.acts.output_names)
        assert before is not None
        figure = plots.answer_change(before, after, class_menu.names(view.acts), full_names=full)
    show_figure(figure, key="answer")
    tell_worth(view, after, edited=bool(edits))
    _softmax(view)
    return lens, bool(edits)


def _softmax(view: View) -> None:
    """Write out the softmax, from logits to probabilities, for the most probable classes."""
    logits, labels = view.acts.logits, class_menu.names(view.acts)
    assert logits is not None
    best = np.argsort(-logits, kind="stable")[:SOFTMAX_ROWS]
    if view.acts.answers == "labels":
        _sigmoid(view, best)
        return
    powers = np.exp(logits.astype(np.float64) - logits.max())
    total = powers.sum()
    with st.expander(tr("From logits to probabilities"), key="from_logits"):
        st.table(
            {
                tr("class"): [
                    *(literal(labels[at]) for at in best),
                    tr("all {count:,}", count=len(labels)),
                ],
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


def _sigmoid(view: View, best: np.ndarray) -> None:
    """Draw the answer where each label has a probability of its own."""
    logits, probabilities = view.acts.logits, view.acts.probabilities
    labels = class_menu.names(view.acts)
    assert logits is not None
    assert probabilities is not None
    with st.expander(tr("From logits to probabilities"), key="from_logits"):
        st.table(
            {
                tr("label"): [literal(labels[at]) for at in best],
                tr("logit y"): [f"{logits[at]:.2f}" for at in best],
                "1 / (1 + exp(-y))": [as_percent(probabilities[at]) for at in best],
            }
        )
        st.markdown(
            tr(
                "Sigmoid: each logit becomes 1 / (1 + exp(-y)) by itself. The probabilities "
                "need not add up to 100 %: none of the labels may fit, or several."
            )
        )


def tell_worth(view: View, after: np.ndarray, *, edited: bool = False) -> None:
    """Say which classes the model knows, and how often such an answer is right."""
    labels = class_menu.names(view.acts)
    random = (
        Markdown()
        if view.model.trained
        else tr_md("These are **random weights**: the answer means nothing. ")
    )
    if view.acts.labels is None:
        unnamed = tr_md("{random}Its output has no name that is known here.", random=random)
        if len(labels) > 1:
            unnamed = tr_md(
                "{random}Its {count:,} outputs have no names that are known here.",
                random=random,
                count=len(labels),
            )
        st.markdown(unnamed)
        return
    names = Markdown(", ".join(map(literal, labels)) if len(labels) <= LISTED_CLASSES else "")
    after_colon = Markdown(f": {names}" if names else "")
    if view.model.words is not None:
        none, is_one = Markdown(), len(labels) == 1
        if view.acts.answers != "labels":
            none = tr_md(" One of them always comes first.")
            if is_one:
                none = tr_md(" As there is no other, its probability is always 100 %.")
        numbers: dict[str, Any] = {
            "random": random,
            "count": len(labels),
            "listed": after_colon,
            "source": view.model.words.source,
            "none": none,
        }
        sentence = tr_md(
            "{random}It compares the picture with {count:,} words{listed}. They are "
            "{source}; nothing proves that their text tower belongs to this model.{none}",
            **numbers,
        )
        if is_one:
            sentence = tr_md(
                "{random}It compares the picture with one phrase{listed}. The phrase comes from "
                "{source}; nothing proves that its text tower belongs to this model.{none}",
                **numbers,
            )
        if view.model.words.templates:  # of the model's own text tower
            sentence = tr_md(
                "{random}It compares the picture with {count:,} words{listed}. Their vectors "
                "are from {source}.{none}",
                **numbers,
            )
            if is_one:
                sentence = tr_md(
                    "{random}It compares the picture with one phrase{listed}. Its vector is from "
                    "{source}.{none}",
                    **numbers,
                )
        st.markdown(sentence)
        return
    if view.acts.answers == "labels":
        if len(labels) == 1:
            known = tr_md("{random}It knows one label: {name}.", random=random, name=labels[0])
        else:
            known = tr_md(
                "{random}It knows {count:,} labels{listed}. Each has a probability of its own: "
                "several may apply to a picture, or none.",
                random=random,
                count=len(labels),
                listed=after_colon,
            )
        st.markdown(known)
        return
    classes = tr_md("It knows {count:,} classes.", count=len(labels))
    if names:
        classes = tr_md(
            "All {count} classes that it knows: {labels}.",
            count=len(labels),
            labels=names,
        )
    if view.model.grades is not None and not edited:
        st.markdown(_grade(view.model.grades, float(after.max())))
    st.markdown(
        random
        + classes
        + tr_md(
            " It can only answer with one of these names, also for a picture of something else; "
            "and it can give a wrong one to something that it knows."
        )
    )
    if len(labels) > LISTED_CLASSES:
        _list_of_classes(view)


def _list_of_classes(view: View) -> None:
    """Offer a list of all classes of the model, which any of a class's names finds."""
    outputs = view.acts.output_names
    with st.popover(tr("What it knows"), icon=":material/list:"):
        wanted = st.text_input(tr("Find a name")).strip().casefold()
        pairs = [
            pair
            for pair in zip(common_names(outputs), other_names(outputs), strict=True)
            if wanted in ", ".join(pair).casefold()
        ]
        names, others = ([pair[at] for pair in pairs] for at in (0, 1))
        st.dataframe({tr("class"): names, tr("also called"): others}, hide_index=True)


def _grade(grades: "Grades", probability: float) -> str:
    """Say how far the answer can be relied on, and how often such answers were right."""
    grade = grades.of(probability)
    low, high = as_percent(grades.weak_below), as_percent(grades.confident_from)
    sentences = {
        "confident": tr("**Confident answer.** It has {share} or more.", share=high),
        "unsure": tr("**Unsure answer.** It has between {low} and {high}.", low=low, high=high),
        "weak": tr("**Weak answer.** It has less than {share}.", share=low),
    }
    return sentences[grade] + tr(
        " On {count:,} test pictures, {right} of such answers were right. Those are pictures of "
        "the kind that the model was trained on. On other pictures, such as drawings or things "
        "that it does not know, it can be confident and wrong.",
        count=grades.pictures,
        right=as_percent(grades.rates[grade]),
    )


def tables(
    view: View,
    index: int,
    changes: str,
    removal: "Removal",
    lens: np.ndarray,
    *,
    effects: np.ndarray | None,
    occlusion: np.ndarray | None,
    parts: "LogitParts | Message | None",
) -> list[Table]:
    """Return a table of the answer, and one of each experiment that was run for class `index`.

    Parameters
    ----------
    changes : what was changed, in words
    lens : logit lens after the changes
    effects, occlusion, parts : results of the experiments; None where one was not run
    """
    acts, name = view.acts, table_names(view.acts.output_names)[index]
    assert acts.probabilities is not None
    assert acts.logits is not None
    depths = [
        Message("lens: embedding, %"),
        *(Message("lens: layer {layer}, %", layer=number + 1) for number in range(acts.depth)),
    ]
    answer: Columns = {
        **class_menu.columns(acts),
        Message("before, %"): 100 * acts.probabilities,
        Message("after, %"): 100 * lens[-1],
    }
    by_depth = {depth: 100 * row for depth, row in zip(depths, lens, strict=True)}
    result = [
        Table(
            tr("Probability of each class before and after: {changes}.", changes=changes),
            answer | by_depth,
        )
    ]
    if effects is not None:
        change = (effects - acts.logits)[..., index]
        columns: Columns = {
            **head_columns(change.shape),
            Message("logit of {name}", name=name): change.ravel(),
        }
        result.append(
            Table(tr("Change of the logit of {name} with one head muted.", name=name), columns)
        )
    if occlusion is not None:
        fall: Columns = {Message("fall, percentage points"): 100 * occlusion.ravel()}
        result.append(
            Table(
                tr(
                    "Fall of the probability of {name} with a block hidden ({removal}).",
                    name=name,
                    removal=tr(REMOVALS[removal]),
                ),
                {**patch_columns(view), **fall},
            )
        )
    if parts is not None and not isinstance(parts, Message):
        result.append(_parts_table(parts, name))
    return result


def _parts_table(parts: "LogitParts", name: str) -> Table:
    heads = [
        (layer + 1, Message("head {head}", head=head + 1), value)
        for (layer, head), value in np.ndenumerate(parts.heads)
        if np.isfinite(value)
    ]
    mlps = [(layer + 1, "MLP", value) for layer, value in enumerate(parts.mlps)]
    others = [
        (None, Message("embedding"), parts.embedding),
        (None, Message("biases"), parts.biases),
    ]
    headings = (Message("layer"), Message("part"), Message("logit of {name}", name=name))
    about = tr("What each part writes for {name}; the column sums to its logit.", name=name)
    return Table(about, columns_of(headings, [*others, *heads, *mlps]))
