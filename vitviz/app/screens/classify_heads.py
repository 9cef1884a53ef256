"""The heads of Classify: which are muted, and what muting each alone would change."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app import settings
from vitviz.app.cells import cells_text
from vitviz.app.settings import setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets import experiment
from vitviz.app.widgets.control import control
from vitviz.app.widgets.experiment import Pending, find_result, run_button
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Message, tr, tr_md
from vitviz.inspection.comparison import correlation
from vitviz.text import findings

if TYPE_CHECKING:
    from vitviz.attribution import LogitParts
    from vitviz.intervention import Progress

ZERO, MEAN = "zero", "mean"
Values = Mapping[tuple[int, int], np.ndarray]


def draw_heads(
    view: View, muted: np.ndarray, instead: str, index: int, labels: tuple[str, ...]
) -> Pending | None:
    """Draw the heads, and what muting each alone changed where that was tried."""
    from vitviz import intervention

    if refusal := view.acts.refusal:
        st.warning(tr_md(refusal))
        return None
    key = ("head effects", instead)
    result = find_result(view, *key)
    effects = None
    if result is not None:
        assert view.acts.logits is not None
        effects = (result - view.acts.logits)[..., index]
    figure = plots.muted_heads(muted, effects=effects, name=labels[index])
    experiment.choose_cells(figure, "muted", muted)
    control(
        "mute_to",
        tr("A muted head gives"),
        [ZERO, MEAN, *pictures.samples()],
        kind="selectbox",
        words=_words,
        # No-op heads: Bondarenko et al., NeurIPS 2023 (arXiv 2306.12929). Others make up for a
        # muted head: McGrath et al., 2023 (arXiv 2307.15771).
        help=tr(
            "Zeros also take away what the head gives on every picture, which can overstate "
            "what it does on this one; its mean keeps that. Some heads give nearly zeros by "
            "themselves. And where other heads make up for a muted one, any of these "
            "understates what it does."
        ),
    )
    pending = None
    if result is None:
        values = values_of(view, instead)  # first, as it waits for turns of its own

        def make(progress: "Progress") -> np.ndarray:
            return intervention.head_effects(
                view.model, view.picture.image, values=values, progress=progress
            )

        pending = run_button(
            view, tr("Mute each alone ({passes} passes)", passes=muted.size), key, make
        )
    else:
        if len(labels) > 1:  # else there is no other answer
            _deciding(view, result, labels)
    experiment.edit_buttons(
        "muted", muted, tr("Heads as layer.head, blocks as 1.1-2.4, spaces between")
    )
    return pending


def draw_parts(view: View, instead: str, index: int, name: str) -> Pending | None:
    """Draw what each head and each MLP writes for a class, where it was asked for."""
    from vitviz import ModelError, attribution

    st.subheader(tr("What writes for the class"), anchor=False)
    key = ("logit parts", index)
    parts: LogitParts | Message | None = find_result(view, *key)
    if parts is None:

        def make(progress: "Progress") -> "LogitParts | Message":
            progress(0, 1)
            try:
                return attribution.direct_logit_attribution(view.model, view.picture.image, index)
            except ModelError as error:
                return error.message

        st.markdown(
            tr_md(
                "The logit of **{name}** is a sum: what each head, each MLP and the embedding add "
                "to it.",
                name=name,
            )
        )
        return run_button(view, tr("Split the logit"), key, make)
    if isinstance(parts, Message):
        st.warning(tr_md(parts))
        return None
    show_figure(plots.parts_by_head(parts.heads, mlps=parts.mlps, name=name))
    words = tr(
        "Embedding {embedding:+.2f}, heads {heads:+.2f}, MLPs {mlps:+.2f}, biases {biases:+.2f}: "
        "together **{total:.4f}**, and the logit is **{answer:.4f}**. The scale of the final "
        "normalisation is held.",
        embedding=parts.embedding,
        heads=float(np.nansum(parts.heads)),
        mlps=float(parts.mlps.sum()),
        biases=parts.biases,
        total=parts.total,
        answer=parts.answer,
    )
    effects = find_result(view, "head effects", instead)
    if effects is None:
        words += tr(
            " *Writes for the class* is not *is needed for it*: mute each head alone, above, to "
            "compare."
        )
    else:
        assert view.acts.logits is not None
        needed = view.acts.logits[index] - effects[..., index]
        finite = np.isfinite(parts.heads) & np.isfinite(needed)
        like = correlation(parts.heads[finite], needed[finite])
        if np.isfinite(like):
            words += tr(
                " Over all heads, what a head writes for the class and what is lost when it is "
                "muted have a correlation of **{like:.2f}**.",
                like=like,
            )
    st.markdown(words)
    return None


def values_of(view: View, instead: str) -> Values:
    """Return what muted heads give, by (layer, head), cached; nothing for zeros.

    Raises
    ------
    ModelError
        When the attention of a layer cannot be read.
    """
    from vitviz import intervention

    if instead == ZERO:
        return {}
    model = view.model
    names = () if instead == MEAN else [instead]

    def make() -> Values:
        captured = (acts for _, acts in results.of_samples(model, names))
        return intervention.mean_head_outputs(captured)

    return results.capture_cache().get((*model_key(model), "head outputs", instead), make)


def replacement() -> str:
    """Return what muted heads give: zeros, their mean over the samples, or a sample's name."""
    return setting("mute_to", [ZERO, MEAN, *pictures.samples()], ZERO)


def _words(instead: str) -> str:
    if instead == ZERO:
        return tr("zeros")
    if instead == MEAN:
        return tr("its mean over the {count} samples", count=len(pictures.samples()))
    return tr("what it gives on: {picture}", picture=pictures.title(instead))


def _deciding(view: View, effects: np.ndarray, labels: tuple[str, ...]) -> None:
    """Offer the head whose muting changes the answer most clearly, or say that there is none."""
    assert view.acts.logits is not None
    answer = int(view.acts.logits.argmax())
    sentence, most = findings.muted_heads(effects, answer, labels.__getitem__)
    st.markdown(sentence)
    if most is None:
        return
    only = np.zeros(effects.shape[:2], bool)
    only[most] = True
    layer, head = most
    st.button(
        tr("Mute layer {layer}, head {head}", layer=layer + 1, head=head + 1),
        key="mute deciding",
        on_click=settings.change,
        kwargs={"muted": cells_text(only)},
    )
