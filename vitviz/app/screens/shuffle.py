"""The patches of the picture shuffled, with E_pos and without: on Anatomy and on Positions."""

from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from PIL import Image

from vitviz import plots
from vitviz.app.settings import setting
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.control import control
from vitviz.app.widgets.data_table import Columns, Table
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Message, mark, shorten, tr, translate
from vitviz.text.class_names import table_names

if TYPE_CHECKING:
    from vitviz.intervention.equivariance import ShuffleResult

SEEDS = range(1, 10)  # seeds of the permutations
QUESTION = mark("Does the order of the patches matter?")


def draw_shuffled(view: View) -> list[Table]:
    """Shuffle the patches, with E_pos and without."""
    from vitviz.intervention.equivariance import shuffle_patches

    seed = setting("shuffle", SEEDS, SEEDS[0])

    def make() -> "ShuffleResult":
        return shuffle_patches(view.model, view.picture.image, seed=seed)

    result = results.compute((*view.key, "shuffled", seed), make)
    shuffled, with_positions, without = st.columns([4, 4, 4])
    with shuffled:
        size = view.model.preprocess.input_size
        show_figure(
            plots.picture(
                _shuffle_picture(view, result.order),
                crop=(0, 0, size[1], size[0]),
                grid=view.grid,
                query=None,
            )
        )
        control("shuffle", tr("Order number"), SEEDS, kind="selectbox")
    outputs = _output_names(view)
    labels = [shorten(translate(name), class_menu.LONGEST_NAME) for name in outputs]
    shares = view.acts.probabilities is not None
    unit = tr("a probability (0 to 1)") if shares else tr("an output")
    for place, title, (before, after), change in zip(
        (with_positions, without),
        (tr("With E_pos"), tr("Without E_pos")),
        result.outputs,
        result.changes,
        strict=True,
    ):
        with place:
            st.markdown(f"**{title}**")
            if shares:
                order = (tr("in order"), tr("shuffled"))
                show_figure(
                    plots.answer_change(before, after, labels, k=3, height=260, called=order)
                )
            st.markdown(tr("Largest change of {unit}: **{change:.2g}**.", unit=unit, change=change))
    st.markdown(
        tr(
            "Attention, normalisation and the MLP process a patch in the same way wherever it "
            "lies. Without E_pos, the same patches in another order therefore give the same "
            "answer. The tiny difference that remains is rounding, because numbers are added "
            "in another order. The model was not trained without E_pos, so do not rely on its "
            "answer there."
        )
    )
    columns: Columns = {Message("output"): outputs}
    headings = (
        (Message("with E_pos, in order"), Message("with E_pos, shuffled")),
        (Message("without E_pos, in order"), Message("without E_pos, shuffled")),
    )
    for names, outputs in zip(headings, result.outputs, strict=True):
        columns |= dict(zip(names, outputs, strict=True))
    return [
        Table(
            tr("Outputs with the patches in order and shuffled (order {seed}).", seed=seed), columns
        )
    ]


def _output_names(view: View) -> list[str]:
    if view.acts.scores is not None:
        return list(table_names(view.acts.output_names))
    return [Message("output {number}", number=number) for number in range(view.model.outputs)]


def _shuffle_picture(view: View, order: np.ndarray) -> Image.Image:
    """Return the model's input with its patches in this order, as a picture."""
    from vitviz.activations import edited_input

    (rows, cols), (height, width) = view.grid, view.model.layers[0].patch_side
    pixels = edited_input(view.model, view.picture.image, [])[..., :3]
    patches = pixels.reshape(rows, height, cols, width, 3).swapaxes(1, 2)
    patches = patches.reshape(-1, height, width, 3)[order].reshape(rows, cols, height, width, 3)
    return Image.fromarray(patches.swapaxes(1, 2).reshape(pixels.shape))
