"""Whether what a model computed means anything."""

import numpy as np

from ..families import ModelError
from ..model import Model
from .reading import Activations


def check_finite(model: Model, acts: Activations) -> None:
    """Refuse a capture whose outputs are no finite numbers.

    A single layer of that kind is refused when it is captured; here it is what became of all.

    Raises
    ------
    ModelError
        When the logits or the last tokens are not finite.
    """
    outputs = [acts.tokens(acts.depth)]  # what is not finite before stays so in the stream
    if acts.logits is not None:
        outputs.append(acts.logits)
    if not all(np.isfinite(output).all() for output in outputs):
        raise ModelError(
            f"{model.name} ({model.weights}) computes values that are no finite numbers on this "
            "picture, so nothing of it is drawn: its weights are damaged or do not belong to it."
        )
