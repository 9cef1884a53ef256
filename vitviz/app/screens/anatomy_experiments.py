"""Experiments of the page Anatomy: each patch's answer, the order of patches, and locality."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st
from PIL import Image

from vitviz import plots
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, results
from vitviz.app.shared.queue import turn
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.data_table import Columns, Table, patch_columns
from vitviz.app.widgets.figure import show
from vitviz.language import Message, as_percent, mark, tr

if TYPE_CHECKING:
    from vitviz import Model
    from vitviz.equivariance import Distances, Shuffled

ORDERS = range(1, 10)  # seeds of the permutations
EXPERIMENTS = {
    "answers": mark("What would each patch answer?"),
    "order": mark("Does the order of the patches matter?"),
    "locality": mark("What does a patch see?"),
}


def draw(view: View) -> list[Table]:
    """Draw the chosen experiment; returns its tables, none where it does not apply."""
    from vitviz import ModelError

    if not view.acts.all_to_all:
        return []
    # A patch can answer only where there is a head that names classes.
    names = [
        name for name in EXPERIMENTS if name != "answers" or view.acts.probabilities is not None
    ]
    chosen = setting("experiment", names, names[0])
    if lessons.shows("experiment"):
        st.subheader(tr("Experiments on this picture"), anchor=False)
        st.segmented_control(
            tr("Experiment"),
            names,
            key="experiment",
            format_func=lambda name: tr(EXPERIMENTS[name]),
            required=True,
            label_visibility="collapsed",
        )
    sections = {"answers": _patch_answers, "order": _order, "locality": _locality}
    try:
        return sections[chosen](view)
    except ModelError as error:
        st.info(tr(error))
        return []


def _patch_answers(view: View) -> list[Table]:
    """What each patch alone would answer after a layer."""
    from vitviz import intervention

    acts = view.acts
    if acts.probabilities is None:
        st.markdown(
            tr(
                "{name} has no head that names classes, so no patch can answer.",
                name=view.model.name,
            )
        )
        return []
    labels, index = class_menu.names(acts), class_menu.chosen(acts)
    words, photo, answers = st.columns([4, 4, 4])
    with words:
        class_menu.menu(acts)
        depth = setting("depth", range(acts.depth + 1), acts.depth)
        st.slider(tr("After layer"), 0, acts.depth, key="depth")
        found = results.captures().get(
            (*view.key, "patch lens", depth),
            lambda: intervention.patch_lens(view.model, acts, depth),
            lambda made: made.nbytes,
        )
        right = (found.argmax(axis=-1) == index).mean()
        st.markdown(
            tr(
                "The final LayerNorm and the head are applied to each patch's token after "
                "layer {depth} (0: the embedding). **{right:.0f} %** of the patches would "
                "answer **{name}**; the model answers with {probability}. The head was "
                "trained on the last layer and on the tokens that it reads. A low probability "
                "elsewhere does not mean that a patch lacks the information: the head may not "
                "be able to read it there.",
                depth=depth,
                right=100 * right,
                name=labels[index],
                probability=as_percent(acts.probabilities[index]),
            )
        )
    with photo:
        show(
            plots.picture(
                results.photo(view), crop=acts.crop, grid=acts.grid, query=view.query_patch
            )
        )
    with answers:
        show(
            plots.patch_answers(
                found, results.photo(view), crop=acts.crop, labels=labels, index=index
            )
        )
    best = found.reshape(-1, found.shape[-1])
    columns = {
        Message("most probable"): [labels[top] for top in best.argmax(axis=1)],
        Message("its probability, %"): 100 * best.max(axis=1),
        f"{labels[index]}, %": 100 * best[:, index],
    }
    about = tr("What each patch alone would answer after layer {depth}.", depth=depth)
    return [Table(about, {**patch_columns(view, grid=acts.grid), **columns})]


def _order(view: View) -> list[Table]:
    """Shuffle the patches, with E_pos and without."""
    from vitviz.equivariance import shuffle_patches

    seed = setting("shuffle", ORDERS, ORDERS[0])

    def make() -> "Shuffled":
        with turn():
            return shuffle_patches(view.model, view.picture.image, seed=seed)

    found = results.captures().get(
        (*view.key, "shuffled", seed), make, lambda made: made.outputs.nbytes
    )
    shuffled, with_positions, without = st.columns([4, 4, 4])
    with shuffled:
        size = view.model.preprocess.input_size
        show(
            plots.picture(
                _shuffled(view, found.order),
                crop=(0, 0, size[1], size[0]),
                grid=view.grid,
                query=None,
            )
        )
        st.selectbox(tr("Order number"), ORDERS, key="shuffle")
    labels = _names(view)
    unit = tr("a probability (0 to 1)") if view.model.num_classes else tr("an output")
    for place, title, (before, after), change in zip(
        (with_positions, without),
        (tr("With E_pos"), tr("Without E_pos")),
        found.outputs,
        found.changes,
        strict=True,
    ):
        with place:
            st.markdown(f"**{title}**")
            if view.model.num_classes:
                order = (tr("in order"), tr("shuffled"))
                show(plots.answer_change(before, after, labels, k=3, height=260, called=order))
            st.markdown(tr("Largest change of {unit}: **{change:.2g}**.", unit=unit, change=change))
    st.markdown(
        tr(
            "Attention, LayerNorm and the MLP process a patch in the same way wherever it "
            "lies. Without E_pos, the same patches in another order therefore give the same "
            "answer. The tiny difference that remains is rounding, because numbers are added "
            "in another order. The model was not trained without E_pos, so do not rely on its "
            "answer there."
        )
    )
    columns: Columns = {Message("output"): labels}
    headings = (
        (Message("with E_pos, in order"), Message("with E_pos, shuffled")),
        (Message("without E_pos, in order"), Message("without E_pos, shuffled")),
    )
    for names, outputs in zip(headings, found.outputs, strict=True):
        columns |= dict(zip(names, outputs, strict=True))
    return [
        Table(
            tr("Outputs with the patches in order and shuffled (order {seed}).", seed=seed), columns
        )
    ]


def _locality(view: View) -> list[Table]:
    """What a patch sees, and how tokens change when the picture moves or a patch is repeated."""
    from vitviz.equivariance import repeat_patch, translate

    model, image, (rows, cols) = view.model, view.picture.image, view.grid
    patch = view.query_patch or (rows // 4, cols // 4)
    other = (rows - 1 - patch[0], cols - 1 - patch[1])
    if other == patch:
        other = (patch[0], (patch[1] + 1) % cols)
    width = model.layers[0].patch_side[1]

    def moved() -> "list[Distances]":
        with turn():
            return [translate(model, image, pixels) for pixels in (width, width // 2)]

    def repeated() -> "Distances":
        with turn():
            return repeat_patch(model, image, patch, other)

    cache = results.captures()
    whole, half = cache.get((*view.key, "moved"), moved, lambda made: 1000)
    twins = cache.get((*view.key, "repeated", patch), repeated, lambda made: 1000)
    found = {
        Message("picture moved by one patch"): whole,
        Message("picture moved by half a patch"): half,
        Message("the same patch at two places"): twins,
    }
    fields, words = st.columns([4, 8])
    left, _, right, _ = view.acts.crop
    with fields:
        show(
            plots.receptive_fields(
                results.photo(view),
                crop=view.acts.crop,
                grid=view.grid,
                patch=patch,
                pixel=(right - left) / (cols * width),
            )
        )
    words.markdown(
        tr(
            "A token begins with its own {width} x {width} pixels (small cyan box). From "
            "layer 1 on, attention reads **the whole picture** (large cyan box). A pixel of a "
            "CNN with kernels of 3 x 3 sees 3, 5 and 7 pixels across after layers 1, 2 and 3 "
            "(magenta boxes): a CNN is *local* by construction, and its receptive field grows "
            "slowly. A CNN also does the same at every place (*translation equivariance*). "
            "These are its *inductive biases*. In a ViT only the patch embedding and the MLPs "
            "are local and treat all places alike. Attention is global, and must learn from "
            "data which patches lie beside each other (Dosovitskiy et al., section 3.1).\n\n"
            "Measured here, as a share of the length of a token: when the picture moves by "
            "**one patch**, the embedded patches move along and change by **{one:.1f} "
            "%**; by **half a patch**, they change by **{half:.0f} %**, because each "
            "patch now holds other pixels. After the last layer, where E_pos was added, the "
            "move by one patch changes tokens by **{last:.0f} %**.\n\nThe patch at row {row}, "
            "column {column}, copied to row {to_row}, column {to_column}, gives the same token "
            "there before E_pos (difference {twins:.2g}). After the last layer the two "
            "differ by **{apart:.0f} %** with E_pos, and by {without:.2g} without.",
            width=width,
            one=100 * whole.embedded,
            half=100 * half.embedded,
            last=100 * whole.last,
            row=patch[0] + 1,
            column=patch[1] + 1,
            to_row=other[0] + 1,
            to_column=other[1] + 1,
            twins=twins.embedded,
            apart=100 * twins.last,
            without=twins.last_without,
        )
    )
    columns: dict[str, Sequence[object]] = {
        Message("experiment"): list(found),
        Message("embedded"): [one.embedded for one in found.values()],
        Message("after the last layer"): [one.last for one in found.values()],
        Message("after the last layer, without E_pos"): [
            one.last_without for one in found.values()
        ],
    }
    return [Table(tr("How much tokens change, as a share of their length."), columns)]


def _names(view: View) -> list[str]:
    if view.acts.probabilities is not None:
        return list(class_menu.names(view.acts))
    return [tr("output {number}", number=number) for number in range(_outputs(view.model))]


def _outputs(model: "Model") -> int:
    return model.num_classes or model.parts.width


def _shuffled(view: View, order: np.ndarray) -> Image.Image:
    """The model's input with its patches in this order, as a picture."""
    from vitviz.activations import edited_input

    (rows, cols), (height, width) = view.grid, view.model.layers[0].patch_side
    pixels = edited_input(view.model, view.picture.image, [])[..., :3]
    patches = pixels.reshape(rows, height, cols, width, 3).swapaxes(1, 2)
    patches = patches.reshape(-1, height, width, 3)[order].reshape(rows, cols, height, width, 3)
    return Image.fromarray(patches.swapaxes(1, 2).reshape(pixels.shape))
