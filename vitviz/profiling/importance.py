"""How much each head matters to the answer: what happens when it is muted."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from PIL import Image

from ..activations import Activations, captures
from ..activations.muted import muted_answers
from ..families import ModelError
from ..intervention import mean_head_outputs
from ..model import Model
from .pictures import Entry, readable

#: What a muted head gives instead: nothing, or the mean of what it gives, token by token.
Kind = Literal["zero", "mean"]
#: Of each kind, what every head gives instead.
Muting = Mapping[Kind, Mapping[tuple[int, int], np.ndarray]]


def muting_of(
    model: Model, kinds: Sequence[Kind], entries: Sequence[Entry], batch_size: int
) -> Muting:
    """What heads give when they are muted; the mean is that over these entries.

    Raises
    ------
    ModelError
        When the model has no classes, or a head of it cannot be muted.
    """
    if kinds and not model.num_classes:
        raise ModelError(f"{model.name} has no head for classes, so no head's importance is known.")
    found: dict[Kind, Mapping[tuple[int, int], np.ndarray]] = {}
    for kind in dict.fromkeys(kinds):
        if kind not in ("zero", "mean"):
            raise ModelError(f'Expected the importance "zero" or "mean", got {kind!r}.')
        found[kind] = {}
    if "mean" in found:
        images = (image for image, _ in readable(entries))
        found["mean"] = mean_head_outputs(captures(model, images, batch_size=batch_size))
    return found


def head_importance(
    model: Model,
    images: Sequence[Image.Image],
    captured: Sequence[Activations],
    values: Mapping[tuple[int, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """What muting each head does to the answer that the model gives without.

    Returns
    -------
    changed : ndarray of shape (pictures, layers, most heads of a layer)
        1 where the answer is another one, else 0.
    lost : ndarray of the same shape
        By how many nats the answer's log-probability falls.

    References
    ----------
    Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?" (NeurIPS 2019).
    """
    pairs = [
        (layer, head)
        for layer, described in enumerate(model.layers)
        for head in range(described.num_heads)
        if not captured[0].layers[layer].refusal  # what is not read is not muted either
    ]
    shape = len(images), len(model.layers), max(layer.num_heads for layer in model.layers)
    changed, lost = np.full(shape, np.nan), np.full(shape, np.nan)
    before = _log_probabilities(np.array([acts.logits for acts in captured], np.float64))
    answers, rows = before.argmax(axis=1), np.arange(len(images))
    for (layer, head), logits in zip(
        pairs, muted_answers(model, images, pairs, values), strict=True
    ):
        after = _log_probabilities(logits)
        changed[:, layer, head] = after.argmax(axis=1) != answers
        lost[:, layer, head] = before[rows, answers] - after[rows, answers]
    return changed, lost


def _log_probabilities(logits: np.ndarray) -> np.ndarray:
    """Of the classes of each picture: (pictures, K), of float64."""
    from scipy.special import log_softmax  # here: it takes longer to import than all else

    found: np.ndarray = log_softmax(logits.astype(np.float64), axis=1)
    return found
