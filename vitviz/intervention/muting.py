"""The answer with one head muted: set to zero, or to what it gives on other pictures."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np
from PIL import Image

from ..activations import Activations, Edit
from ..activations.forward import edited_captures
from ..activations.muted import muted_answers
from ..families import ModelError
from ..model import Model
from .lens import check_head, read_only

#: Called as progress(done, of) before each pass; what it raises stops the experiment.
Progress = Callable[[int, int], object]
_Step = TypeVar("_Step")


def head_effects(
    model: Model,
    image: Image.Image,
    *,
    values: Mapping[tuple[int, int], np.ndarray] | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """The model's answer with each head muted in turn.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    values : mapping of (layer, head) to ndarray of shape (tokens, head_dim), optional
        What a muted head gives instead, see `MuteHeads`; zeros where left out.
    progress : callable, optional
        Called as progress(done, of) before each of the layers * heads passes; what it raises stops.

    Returns
    -------
    ndarray of shape (layers, heads, K)
        Logits with that head's slice replaced before the output projection. The head's effect is
        their difference from the logits of a capture without edits.

    Raises
    ------
    ModelError
        When the model has no head for classes, or a layer's attention cannot be read and so cannot
        be muted.

    Notes
    -----
    A small effect does not mean that a head does nothing: others may compensate for it once it is
    muted. The bias of the output projection stays.

    What the blocks before a head's layer compute is the same whether or not it is muted. So the
    model runs once as a whole, and each pass then begins at the layer of its head.

    References
    ----------
    Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?", NeurIPS 2019, section 3.2.
    """
    classes = check_head(model)
    counts = {layer.num_heads for layer in model.layers}
    if len(counts) != 1:
        raise ModelError(
            "Expected the same number of heads in all layers, got {counts}.", counts=sorted(counts)
        )
    if counts == {0}:
        raise ModelError("{model} has no heads to mute.", model=model.name)
    heads = counts.pop()
    pairs = list(np.ndindex(len(model.layers), heads))
    logits = np.empty((len(model.layers), heads, classes), np.float32)
    answers = muted_answers(model, [image], told(pairs, progress), values or {})
    for (layer, head), answer in zip(pairs, answers, strict=True):
        logits[layer, head] = answer[0]
    return read_only(logits)


def head_outputs(acts: Activations) -> dict[tuple[int, int], np.ndarray]:
    """What each head gives before the output projection: A v.

    Returns
    -------
    dict of (layer, head) to ndarray of shape (tokens, head_dim)

    Raises
    ------
    ModelError
        When a layer's attention cannot be read, or not every token meets every token.
    """
    _ = acts.num_prefix_tokens  # refuses what has other tokens from layer to layer
    found = {}
    for layer in range(acts.depth):
        outputs = acts.attention(layer) @ acts.values(layer)
        found.update({(layer, head): read_only(output) for head, output in enumerate(outputs)})
    return found


def mean_head_outputs(captures: Iterable[Activations]) -> dict[tuple[int, int], np.ndarray]:
    """The mean of `head_outputs` over captures of one model, token by token.

    Returns
    -------
    dict of (layer, head) to ndarray of shape (tokens, head_dim)

    Raises
    ------
    ModelError
        As `head_outputs`.
    """
    total: dict[tuple[int, int], np.ndarray] = {}
    count = 0
    for acts in captures:
        count += 1
        for head, output in head_outputs(acts).items():
            total[head] = total.get(head, 0) + output
    return {head: read_only(output / count) for head, output in total.items()}


def passes(
    model: Model, image: Image.Image, edits: Sequence[Edit], progress: Progress | None
) -> Iterator[Activations]:
    """One capture for each edit, made when it is reached."""
    return edited_captures(model, image, told(edits, progress))


def told(steps: Sequence[_Step], progress: Progress | None) -> Iterator[_Step]:
    """Each step, and before it a call of progress(done, of)."""
    for done, step in enumerate(steps):
        if progress is not None:
            progress(done, len(steps))
        yield step
