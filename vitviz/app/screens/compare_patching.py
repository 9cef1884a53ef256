"""The experiment of Compare that puts parts of one picture into the pass of another."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.settings import setting
from vitviz.app.shared import pictures
from vitviz.app.shared.view import View
from vitviz.app.widgets import lesson
from vitviz.app.widgets.control import control
from vitviz.app.widgets.data_table import Columns, Table
from vitviz.app.widgets.experiment import Pending, find_result, run_button
from vitviz.app.widgets.figure import show_figure
from vitviz.common.language import Message, mark, tr, tr_md, translate
from vitviz.text.class_names import common_names, table_names

if TYPE_CHECKING:
    from PIL import Image

    from vitviz.intervention import PatchEffects, Progress

PatchedPart = Literal["heads", "tokens"]
PARTS: dict[PatchedPart, str] = {"heads": mark("heads"), "tokens": mark("tokens")}
_ANIMALS = ("goldfish", "koala", "dog", "bison", "red_panda")
_BUILDINGS = ("triumphal_arch", "aqueduct", "dam", "triumphal_arch", "aqueduct")
OWN = "own"
#: Pairs of sample pictures, by what the address calls them.
PRESETS: dict[str, tuple[tuple[str, str], ...]] = {
    "goldfish": (("goldfish", "koala"),),
    "dog": (("dog", "bison"),),
    "arch": (("triumphal_arch", "aqueduct"),),
    "animals": tuple(zip(_ANIMALS, (*_ANIMALS[1:], _ANIMALS[0]), strict=True)),
    "buildings": tuple(zip(_ANIMALS, _BUILDINGS, strict=True)),
    "back": tuple(zip(_BUILDINGS, _ANIMALS, strict=True)),
}
_GROUPS = {
    "animals": mark("from one animal to another"),
    "buildings": mark("from animals to buildings"),
    "back": mark("from buildings to animals"),
}
_BLOCKS = 4  # of patches, along the longer side


@dataclass(frozen=True, eq=False)
class PartEffects:
    """The effects of the parts, averaged over the pairs of pictures.

    Attributes
    ----------
    effects : of each part, in the order of `parts`
    parts : what they are called
    left_out : number of pairs with the same answer for both
    """

    effects: "PatchEffects"
    parts: tuple[str, ...]
    left_out: int


@lesson.part("patching")
def draw_patching(view: View, other: View) -> tuple[list[Table], Pending | None]:
    """Draw the fold; in it, when it is opened, the effects, or the button that measures them."""
    if view.acts.probabilities is None:
        return [], None
    folded = st.expander(
        tr("Experiment: put parts of the other picture into this one"),
        key="patching",
        on_change="rerun",
    )
    if not folded.open:
        return [], None
    with folded:
        return _draw(view, other)


def _draw(view: View, other: View) -> tuple[list[Table], Pending | None]:
    chosen = setting("pairs", [OWN, *PRESETS], OWN)
    part: PatchedPart = setting("part", list(PARTS), "heads")
    st.markdown(
        tr(
            "The first picture runs through the model once more, and one part of it gets the "
            "numbers that it has on the second picture. How far does the answer move from that of "
            "the first picture (0 %) to that of the second (100 %)? A negative share moves away."
        )
    )
    which, what = st.columns([5, 3])
    control(
        "pairs",
        tr("Pictures"),
        [OWN, *PRESETS],
        which,
        "selectbox",
        lambda name: _words(name, view, other),
    )
    control("part", tr("The part"), PARTS, what)
    key = ("patching", part, chosen, other.picture.digest if chosen == OWN else "")
    patched: PartEffects | Message | None = find_result(view, *key)
    if patched is None:
        pairs = _pairs(chosen, view, other)
        label = tr("Exchange each part ({passes} passes)", passes=_passes(view, part, len(pairs)))

        def make(progress: "Progress") -> PartEffects | Message:
            return _exchange(view, pairs, part, progress)

        return [], run_button(view, label, key, make)
    if isinstance(patched, Message):
        st.info(tr_md(patched))
        return [], None
    _show(view, patched, part)
    return [_table(view, patched, part)], None


def _words(name: str, view: View, other: View) -> str:
    if name == OWN:
        pair = (view.picture.name, other.picture.name)
        return tr("these two: {first} → {second}", first=pair[0], second=pair[1])
    pairs = PRESETS[name]
    if name in _GROUPS:
        return tr("{what}, {count} pairs", what=tr(_GROUPS[name]), count=len(pairs))
    first, second = map(pictures.title, pairs[0])
    return tr("{first} → {second}", first=first, second=second)


def _pairs(name: str, view: View, other: View) -> "list[tuple[Image.Image, Image.Image]]":
    if name == OWN:
        return [(view.picture.image, other.picture.image)]
    return [
        (pictures.sample(first).image, pictures.sample(second).image)
        for first, second in PRESETS[name]
    ]


def _passes(view: View, part: PatchedPart, pairs: int) -> int:
    """Return how many passes it takes; of tokens, all parts of a layer share one."""
    layers = view.model.layers
    own = len(layers) + (sum(layer.num_heads for layer in layers) if part == "heads" else 0)
    return pairs * own


def _exchange(
    view: View,
    pairs: "Sequence[tuple[Image.Image, Image.Image]]",
    part: PatchedPart,
    progress: "Progress",
) -> PartEffects | Message:
    """Exchange the parts, or return why they cannot be exchanged."""
    import vitviz
    from vitviz import ModelError, intervention

    model = view.model

    def answer(image: "Image.Image") -> int:
        probabilities = vitviz.capture(model, image).probabilities
        assert probabilities is not None
        return int(probabilities.argmax())

    progress(0, _passes(view, part, len(pairs)))
    answers = [(answer(first), answer(second)) for first, second in pairs]
    usable = [pair for pair, (first, second) in zip(pairs, answers, strict=True) if first != second]
    if not usable:
        return Message(
            "The model gives both pictures the same answer, {name}, so there is none to move to. "
            "Choose another picture.",
            name=table_names(view.acts.output_names)[answers[0][0]],
        )
    passes = _passes(view, part, len(usable))

    def onward(begin: int) -> "Progress":
        return lambda done, _: progress(begin + done, passes)

    try:
        if part == "tokens":
            masks = intervention.token_blocks(model, _block(view))
            effects = intervention.patch_tokens(model, usable, masks, progress=onward(0))
            return PartEffects(effects, _token_names(view, masks), len(pairs) - len(usable))
        heads = intervention.patch_heads(model, usable, progress=onward(0))
        before = passes - len(usable) * len(model.layers)
        together = intervention.patch_heads(model, usable, together=True, progress=onward(before))
    except ModelError as error:
        return error.message
    both = np.concatenate([heads.effects, together.effects], axis=2)
    names = (*map(str, range(1, heads.effects.shape[2] + 1)), Message("all"))
    effects = intervention.PatchEffects(both, heads.classes)
    return PartEffects(effects, names, len(pairs) - len(usable))


def _block(view: View) -> int:
    """Return the side of a block in patches."""
    return -(-max(view.model.layers[0].query_grid) // _BLOCKS)


def _token_names(view: View, masks: np.ndarray) -> tuple[str, ...]:
    """Name each token outside the picture, and each block by row and column of its first patch."""
    layer = view.model.layers[0]
    firsts = masks.argmax(axis=1)[len(layer.prefix) :] - len(layer.prefix)
    rows, cols = np.divmod(firsts, layer.query_grid[1])
    blocks = (f"{row + 1}.{col + 1}" for row, col in zip(rows, cols, strict=True))
    return (*(name.upper() for name in layer.prefix), *blocks)


def _show(view: View, patched: PartEffects, part: PatchedPart) -> None:
    """Draw the effects, and say which part moves the answer most."""
    effects, names = patched.effects, common_names(view.acts.output_names)
    mean, (low, high) = effects.mean, effects.interval()
    parts = [translate(name) for name in patched.parts]
    axis = tr("head") if part == "heads" else tr("token, or block of patches")
    pairs = len(effects.classes)
    ends = (low, high) if pairs > 1 else None
    show_figure(plots.patch_effects(mean, parts, axis=axis, interval=ends), key="patch_effects")
    answers = "; ".join(
        tr("{first} → {second}", first=names[first], second=names[second])
        for first, second in effects.classes
    )
    single = mean[:, :-1] if part == "heads" else mean
    at = np.unravel_index(int(np.nanargmax(np.abs(single))), single.shape)
    numbers: dict[str, object] = dict(
        answers=answers,
        layer=at[0] + 1,
        what=_part_words(part, parts[at[1]]),
        share=100 * mean[at],
    )
    if pairs == 1:
        words = tr_md(
            "The answers are {answers}. Layer {layer}, {what} moves the answer most: "
            "**{share:+.0f} %** of the way.",
            **numbers,
        )
    else:
        words = tr_md(
            "The answers are {answers}. Layer {layer}, {what} moves the answer most: "
            "**{share:+.0f} %** of the way (95 % interval {low:+.0f} to {high:+.0f} %, {pairs} "
            "pairs).",
            low=100 * low[at],
            high=100 * high[at],
            pairs=pairs,
            **numbers,
        )
    if part == "heads":
        layer = int(np.nanargmax(np.abs(mean[:, -1])))  # as of a single head
        words += tr_md(
            " All heads together move it most in layer {layer}: **{share:+.0f} %**.",
            layer=layer + 1,
            share=100 * mean[layer, -1],
        )
    if part == "tokens":
        words += tr_md(
            " A block has up to {side} x {side} patches, and the row and column of its first one "
            "name it.",
            side=_block(view),
        )
    if ends is not None:
        finite = np.isfinite(mean)
        words += tr_md(
            " A dot marks the {count} of {cells} parts whose interval leaves out 0; by chance "
            "alone it would be about {chance:.0f}.",
            count=int(((low > 0) | (high < 0))[finite].sum()),
            cells=int(finite.sum()),
            chance=0.05 * finite.sum(),
        )
    if patched.left_out:
        words += tr_md(
            " Left out, as the model gives both pictures the same answer: {count}.",
            count=patched.left_out,
        )
    st.markdown(words)
    st.markdown(
        tr(
            "A part that moves the answer is *enough* to move it; it may not be *needed*. The "
            "other direction, from the second picture to the first, has other numbers."
        )
    )


def _part_words(part: PatchedPart, name: str) -> str:
    if part == "heads":
        return tr("head {head}", head=name)
    is_block = name[0].isdigit()  # and no token of letters, such as REG1
    return tr("block {name}", name=name) if is_block else name


def _table(view: View, patched: PartEffects, part: PatchedPart) -> Table:
    effects, mean = patched.effects, patched.effects.mean
    low, high = effects.interval()
    layers, parts = np.indices(mean.shape).reshape(2, -1)
    columns: Columns = {
        Message("layer"): layers + 1,
        Message("head") if part == "heads" else Message("token"): [
            patched.parts[number] for number in parts
        ],
        Message("effect, %"): 100 * mean.ravel(),
    }
    if len(effects.classes) > 1:
        columns |= {
            Message("95 % interval, low"): 100 * low.ravel(),
            Message("95 % interval, high"): 100 * high.ravel(),
        }
    about = tr(
        "How far each part of the second picture moves the answer for the first one to its own: "
        "0 % stays, 100 % is the second's. Mean of pairs of pictures: {pairs}.",
        pairs=len(effects.classes),
    )
    return Table(about, columns)
