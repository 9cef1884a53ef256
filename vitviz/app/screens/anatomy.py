"""The page Anatomy: a picture's way through the model, step by step, and experiments on it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app import settings
from vitviz.app.screens import shuffle
from vitviz.app.shared import models, results
from vitviz.app.shared.view import View
from vitviz.app.widgets import anatomy, class_menu, lesson
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import places
from vitviz.app.widgets.weights import OWN
from vitviz.common import DEFAULT_MODEL, SMALL_MODEL
from vitviz.common.language import Message, as_percent, mark, tr, tr_md
from vitviz.text.class_names import full_names, table_names
from vitviz.text.encoder_layer import NAMES
from vitviz.web.anatomy_map import token_name

if TYPE_CHECKING:
    from vitviz.intervention.equivariance import Distances

EXPERIMENTS = {
    "order": shuffle.QUESTION,
    "locality": mark("What does a patch see?"),
    "answers": mark("What would each patch answer?"),
}


def page(view: View) -> Data:
    _choose_patches(view)
    _draw_way(view)
    tables = _draw_experiments(view) or []
    return Data(lambda: [_shapes(view), *_tabulate_product(view), *tables])


def _choose_patches(view: View) -> None:
    """Offer the shipped model of 16 patches beside the one of 256, where one of them is shown."""
    from vitviz.zoo.checkpoints import count_patches

    pair = [SMALL_MODEL, DEFAULT_MODEL]
    if view.model.name not in pair or not {*pair} <= {*models.model_names()}:
        return
    st.session_state.patches = view.model.name

    def count(name: str) -> str:
        return tr("{count} patches", count=count_patches(name))

    control(
        "patches",
        tr("Patches"),
        pair,
        "beside",
        words=count,
        width="content",
        label_visibility="collapsed",
        on_change=lambda: settings.change(model=st.session_state.patches, size=OWN),
    )


@lesson.part("anatomy")
def _draw_way(view: View) -> None:
    with places().stage:
        anatomy.draw_anatomy(view)


def _shapes(view: View) -> Table:
    """Return the shapes of all steps, and of the boxes of the layer on screen."""
    boxes = [(Message("the picture's way"), box) for box in anatomy.steps_of(view)]
    boxes += [
        (Message("layer {layer}", layer=view.layer + 1), box) for box in anatomy.layer_of(view)
    ]
    return Table(
        tr("Shapes of all steps, and of the boxes of layer {layer}.", layer=view.layer + 1),
        {
            Message("where"): [where for where, _ in boxes],
            Message("what"): [Message(NAMES[box.name]) for _, box in boxes],
            Message("shape"): [" × ".join(map(str, box.shape)) for _, box in boxes],
        },
    )


def _tabulate_product(view: View) -> list[Table]:
    """Return the one number that is worked out: query, key and their product."""
    from vitviz.web.anatomy import head_scores as attention_scores

    boxes = {box.name: box.values for box in anatomy.layer_of(view)}
    q, k = boxes.get("queries"), boxes.get("keys")
    if q is None or k is None:
        return []
    described = view.acts.layers[view.layer]
    head, (query, key) = view.head or 0, anatomy.pair(view)
    scores = attention_scores(view.acts, view.layer, head)[1][query]
    shares = view.acts.attention(view.layer)[head, query]
    numbers = np.arange(q.shape[2]) + 1
    where = tr("layer {layer}, head {head}", layer=view.layer + 1, head=head + 1)
    query_label, key_label = (token_name(described, token) for token in (query, key))
    return [
        Table(
            tr(
                "{where}: q of {asked}, k of {seen} and their product, whose sum is the score "
                "before it is scaled.",
                where=where,
                asked=query_label,
                seen=key_label,
            ),
            {
                Message("number"): numbers.tolist(),
                "q": q[head, query],
                "k": k[head, key],
                Message("product"): q[head, query] * k[head, key],
            },
        ),
        Table(
            tr(
                "{where}: scores of {asked} with all keys, and their softmax.",
                where=where,
                asked=query_label,
            ),
            {
                Message("key"): [token_name(described, token) for token in range(len(shares))],
                Message("score"): scores,
                Message("share, %"): 100 * shares,
            },
        ),
    ]


@lesson.part("experiments")
def _draw_experiments(view: View) -> list[Table]:
    """Draw the chosen experiment; returns its tables, none where it does not apply."""
    from vitviz import ModelError

    if not view.acts.all_to_all:
        return []
    # A patch can answer only where there is a head that names classes.
    names = {
        name: words
        for name, words in EXPERIMENTS.items()
        if name != "answers" or view.acts.probabilities is not None
    }
    if lesson.shows("experiment"):
        st.subheader(tr("Experiments on this picture"), anchor=False)
    chosen = choose(
        "experiment",
        tr("Experiment"),
        names,
        next(iter(names)),
        label_visibility="collapsed",
        width="content",
    )
    sections = {"answers": _patch_answers, "order": shuffle.draw_shuffled, "locality": _locality}
    try:
        return sections[chosen](view)
    except ModelError as error:
        st.info(tr_md(error))
        return []


def _patch_answers(view: View) -> list[Table]:
    """Draw what each patch alone would answer after a layer."""
    from vitviz import intervention

    acts = view.acts
    assert acts.probabilities is not None  # else the menu lacks this experiment
    labels, index = class_menu.names(acts), class_menu.chosen_index(acts)
    words, photo, answers = st.columns([4, 4, 4])
    with words:
        class_menu.draw_class_menu(acts)
        depths = range(acts.depth + 1)
        settings.follow_default("depth", str(acts.depth))
        depth = choose("depth", tr("After layer"), depths, acts.depth, kind="slider")
        probabilities = results.compute(
            (*view.key, "patch lens", depth),
            lambda: intervention.patch_lens(view.model, acts, depth),
        )
        right = (probabilities.argmax(axis=-1) == index).mean()
        st.markdown(
            tr_md(
                "The final normalisation and the head are applied to each patch's token after "
                "layer {depth} (0: the embedding). **{right}** of the patches would "
                "answer **{name}**; the model answers with {probability}. The head was "
                "trained on the last layer and on the tokens that it reads. A low probability "
                "elsewhere does not mean that a patch lacks the information: the head may not "
                "be able to read it there.",
                depth=depth,
                right=as_percent(right),
                name=labels[index],
                probability=as_percent(acts.probabilities[index]),
            )
        )
    with photo:
        show_figure(
            plots.picture(
                results.reduced_photo(view), crop=acts.crop, grid=acts.grid, query=view.query_patch
            )
        )
    with answers:
        show_figure(
            plots.patch_answers(
                probabilities,
                results.reduced_photo(view),
                crop=acts.crop,
                labels=labels,
                index=index,
                full_names=full_names(acts.output_names),
            )
        )
    best, names = probabilities.reshape(-1, probabilities.shape[-1]), table_names(acts.output_names)
    columns: Columns = {
        Message("most probable"): [names[top] for top in best.argmax(axis=1)],
        Message("its probability, %"): 100 * best.max(axis=1),
        Message("{name}, {unit}", name=names[index], unit="%"): 100 * best[:, index],
    }
    about = tr("What each patch alone would answer after layer {depth}.", depth=depth)
    return [Table(about, {**patch_columns(view, grid=acts.grid), **columns})]


def _locality(view: View) -> list[Table]:
    """Draw what a patch sees, and what a moved picture or a repeated patch changes."""
    from vitviz import ModelError
    from vitviz.intervention.equivariance import repeat_patch, translate

    model, image, (rows, cols) = view.model, view.picture.image, view.grid
    patch = view.query_patch or (rows // 4, cols // 4)
    other = (rows - 1 - patch[0], cols - 1 - patch[1])
    if other == patch:
        other = (patch[0], (patch[1] + 1) % cols)
    height, width = model.layers[0].patch_side
    if width == 1:
        raise ModelError(
            "A patch of {model} is one pixel wide, so the picture cannot move by half a patch.",
            model=model.name,
        )

    def move_picture() -> "list[Distances]":
        return [translate(model, image, pixels) for pixels in (width, width // 2)]

    def repeat() -> "Distances":
        return repeat_patch(model, image, patch, other)

    whole, half = results.compute((*view.key, "moved"), move_picture)
    twins = results.compute((*view.key, "repeated", patch), repeat)
    distances = {
        Message("picture moved by one patch"): whole,
        Message("picture moved by half a patch"): half,
        Message("the same patch at two places"): twins,
    }
    fields, words = st.columns([4, 8])
    left, _, right, _ = view.acts.crop
    with fields:
        show_figure(
            plots.receptive_fields(
                results.reduced_photo(view),
                crop=view.acts.crop,
                grid=view.grid,
                patch=patch,
                pixel=(right - left) / (cols * width),
            )
        )
    words.markdown(
        tr(
            "A token begins with its own {height} x {width} pixels (small cyan box). From "
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
            height=height,
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
        Message("experiment"): list(distances),
        Message("embedded"): [one.embedded for one in distances.values()],
        Message("after the last layer"): [one.last for one in distances.values()],
        Message("after the last layer, without E_pos"): [
            one.last_without for one in distances.values()
        ],
    }
    return [Table(tr("How much tokens change, as a share of their length."), columns)]
