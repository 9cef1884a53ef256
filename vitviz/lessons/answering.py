"""From the picture to the answer: its patches and their order, and what would change it."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from .. import inspection, intervention
from ..activations import Activations, DropPatches, capture
from ..checkpoints import initial_positions, initialisations
from ..equivariance import shuffle_patches
from ..families import ModelError
from ..language import as_percent, tr
from ..model import Model
from ..text import findings as text
from ..text.lessons import Step
from .words import label, patch_at, place

Progress = Callable[[int, int], object]

BLOCK = 4  # patches along a block that is hidden
HALF_A_POINT = 0.005
ROUNDING = 1e-4  # of a probability: a smaller change is none


def path(model: Model, acts: Activations, steps: Sequence[Step]) -> Iterable[str]:
    tokens, width = acts.tokens(0).shape
    (rows, cols), depth = acts.grid, acts.depth
    yield tr(
        "The picture became **{rows} × {cols} = {count} patches**. {tokens} tokens of {width} "
        "numbers entered the encoder, and as many left each of its {depth} layers.",
        rows=rows,
        cols=cols,
        count=rows * cols,
        tokens=tokens,
        width=width,
        depth=depth,
    )
    layer, head, token = place(acts, steps[1])
    row = acts.attention(layer)[head or 0, token]
    patches = row[acts.num_prefix_tokens :]
    yield tr(
        "Attention is the only step in which tokens exchange information. In layer {layer}, head "
        "{head}, the patch at {patch} takes most from the patch at {best}: **{share}**, "
        "{times:.0f} times its equal share.",
        layer=layer + 1,
        head=(head or 0) + 1,
        patch=patch_at(acts, token - acts.num_prefix_tokens),
        best=patch_at(acts, int(patches.argmax())),
        share=as_percent(patches.max()),
        times=patches.max() * len(row),
    )
    if acts.probabilities is None:
        yield tr("{name} has no head that names classes, so it gives no answer.", name=model.name)
        return
    lens = intervention.logit_lens(model, acts)
    answer, tops = int(lens[-1].argmax()), lens.argmax(axis=1)
    since = int(np.flatnonzero(np.append(True, tops != answer))[-1])  # it stays on top from here on
    if since < acts.depth:
        yield tr(
            "Read after every layer, the answer is **{label}** from layer {since} on: {then} "
            "there, and {last} after the last layer.",
            label=label(acts, answer),
            since=since,
            then=as_percent(lens[since, answer]),
            last=as_percent(lens[-1, answer]),
        )
    else:
        yield tr(
            "Read after every layer, the answer is **{label}** only after the last, with {last}. "
            "After layer {before} it has {then}.",
            label=label(acts, answer),
            last=as_percent(lens[-1, answer]),
            before=acts.depth - 1,
            then=as_percent(lens[-2, answer]),
        )


def positions(model: Model, image: Image.Image, acts: Activations) -> Iterable[str]:
    try:
        shuffled = shuffle_patches(model, image, seed=1)
    except ModelError as error:
        yield tr(error)
    else:
        before, after = shuffled.outputs[0]
        if acts.probabilities is not None:
            best, then = int(before.argmax()), int(after.argmax())
            yield tr(
                "With E_pos and the patches in another order, **{label}** goes from {before} to "
                "{after}; the most probable class is then {then} ({share}).",
                label=label(acts, best),
                before=as_percent(before[best]),
                after=as_percent(after[best]),
                then=label(acts, then),
                share=as_percent(after[then]),
            )
        change = shuffled.changes[1]
        said = tr("Without E_pos no output changes by more than **{change:.1g}**", change=change)
        yield said + (
            tr(", which is rounding: the model cannot tell the orders apart.")
            if change < ROUNDING
            else "."
        )
    table, count = model.position_embedding, acts.grid[0] * acts.grid[1]
    if table is None or not model.positions_learned or len(table) < count:
        yield tr("{name} has no learned position embedding to look at.", name=model.name)
        return
    similarity = inspection.position_similarity(table[-count:], grid=acts.grid)
    said = text.positions(similarity)
    start = initial_positions(model.name) if model.weights.startswith("shipped") else None
    if said and start is not None and "mimetic" in initialisations(model.name):
        side = int(np.sqrt(len(start)))
        resized = inspection.resized_positions(start, grid=(side, side), new_grid=acts.grid)
        at_first = inspection.position_similarity(resized, grid=acts.grid)
        said += " " + tr(
            "That was put in and not learned: with the sines and cosines of its start it is "
            "{near:.2f}.",
            near=inspection.neighbour_similarity(at_first),
        )
    if said:
        yield said


def changes(
    model: Model,
    image: Image.Image,
    acts: Activations,
    steps: Sequence[Step],
    progress: Progress | None,
) -> Iterable[str]:
    if acts.probabilities is None or acts.logits is None:
        yield tr("{name} has no head that names classes, so it gives no answer.", name=model.name)
        return
    answer = int(acts.probabilities.argmax())
    removal: Any = "mean" if model.positional_attention else "drop"
    hidden = intervention.occlusion(
        model, image, class_index=answer, block=BLOCK, removal=removal, progress=progress
    )[::BLOCK, ::BLOCK]
    row, col = divmod(int(hidden.argmax()), hidden.shape[1])
    yield tr(
        "Of {count} blocks the one at row {row}, column {col} matters most for **{label}** "
        "({share}): hiding it changes that by {points:+.1f} percentage points. Hiding {against} of "
        "the others raises it by half a point or more.",
        count=hidden.size,
        row=row + 1,
        col=col + 1,
        label=label(acts, answer),
        share=as_percent(acts.probabilities[answer]),
        points=-100 * hidden.max(),
        against=int((hidden <= -HALF_A_POINT).sum()),
    )
    mask = _marked(steps, acts.grid)
    if mask is not None and removal == "drop":
        without, alone = (
            capture(model, image, edits=[DropPatches(each)]).probabilities for each in (mask, ~mask)
        )
        assert without is not None
        assert alone is not None
        yield tr(
            "Without the {patches} marked patches {label} has {without}, and **{instead}** is "
            "the most probable ({share}). With them alone {label} has **{alone}**.",
            patches=int(mask.sum()),
            label=label(acts, answer),
            without=as_percent(without[answer]),
            instead=label(acts, int(without.argmax())),
            share=as_percent(without.max()),
            alone=as_percent(alone[answer]),
        )
    effects = intervention.head_effects(model, image, progress=progress)
    yield text.muted_heads(effects, answer, lambda index: label(acts, index))[0]


def _marked(steps: Sequence[Step], grid: tuple[int, int]) -> np.ndarray | None:
    """The patches that a step removes, in the first rectangle of its text; None without."""
    for step in steps:
        if "painted" in step.settings:
            first, last = step.settings["painted"].split("-")
            (top, left), (bottom, right) = (map(int, end.split(".")) for end in (first, last))
            if bottom > grid[0] or right > grid[1]:
                return None
            mask = np.zeros(grid, bool)
            mask[top - 1 : bottom, left - 1 : right] = True
            return mask
    return None
