"""Mute one head at a time: set it to zero, or to its output on other pictures."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

import numpy as np

from ..activations import Activations
from ..activations.forward import muted_answers
from ..common import Progress
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture
from .lens import check_head, freeze

_Step = TypeVar("_Step")


def head_effects(
    model: Model,
    image: Picture,
    *,
    values: Mapping[tuple[int, int], np.ndarray] | None = None,
    progress: Progress | None = None,
) -> np.ndarray:
    """Compute the model's logits with each head muted in turn.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    values : mapping of (layer, head) to ndarray of shape (tokens, head_dim), optional
        The output that replaces a head's own, see `MuteHeads`; zeros if left out.
    progress : callable, optional
        Called as progress(done, of) before each of the layers * heads passes. An exception that it
        raises stops the experiment.

    Returns
    -------
    ndarray of shape (layers, heads, K)
        Logits with that head's slice replaced before the output projection. The head's effect is
        their difference from the logits of a capture without edits. NaN for heads that a layer
        lacks because another layer has more.

    Raises
    ------
    ModelError
        When the model has no classification head, or a layer's attention cannot be read and so
        cannot be muted.

    Notes
    -----
    A small effect does not mean that a head does nothing: others may compensate for it once it is
    muted. The bias of the output projection stays.

    Muting a head does not change the blocks before its layer. So the model runs once as a whole,
    and each pass then begins at the layer of its head.

    References
    ----------
    Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?", NeurIPS 2019, section 3.2.
    """
    classes = check_head(model)
    heads = [layer.num_heads for layer in model.layers]
    if not any(heads):
        raise ModelError("{model} has no heads to mute.", model=model.name)
    pairs = [(layer, head) for layer, count in enumerate(heads) for head in range(count)]
    logits = np.full((len(heads), max(heads), classes), np.nan, np.float32)
    answers = muted_answers(model, [image], report_progress(pairs, progress), values or {})
    for (layer, head), answer in zip(pairs, answers, strict=True):
        logits[layer, head] = answer[0]
    return freeze(logits)


def head_outputs(acts: Activations) -> dict[tuple[int, int], np.ndarray]:
    """Compute the output of each head before the output projection: A v.

    Returns
    -------
    dict of (layer, head) to ndarray of shape (tokens, head_dim)

    Raises
    ------
    ModelError
        When a layer's attention cannot be read, or not every token meets every token.
    """
    _ = acts.num_prefix_tokens  # a ModelError if layers differ in their tokens
    return {
        (layer, head): freeze(output)
        for layer in range(acts.depth)
        for head, output in enumerate(acts.attention(layer) @ acts.values(layer))
    }


def mean_head_outputs(captures: Iterable[Activations]) -> dict[tuple[int, int], np.ndarray]:
    """Average `head_outputs` over captures of one model, token by token.

    Returns
    -------
    dict of (layer, head) to ndarray of shape (tokens, head_dim)

    Raises
    ------
    ModelError
        As `head_outputs`.
    ValueError
        When there is no capture, as of a generator that was used up.
    """
    total: dict[tuple[int, int], np.ndarray] = {}
    count = 0
    for acts in captures:
        count += 1
        for head, output in head_outputs(acts).items():
            total[head] = total.get(head, 0) + output
    if not count:
        raise ValueError("Expected at least one capture, got none.")
    return {head: freeze(output / count) for head, output in total.items()}


def report_progress(steps: Sequence[_Step], progress: Progress | None) -> Iterator[_Step]:
    """Yield each step after a call of progress(done, of)."""
    for number, step in enumerate(steps):
        if progress is not None:
            progress(number, len(steps))
        yield step
