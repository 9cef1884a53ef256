"""What of a model means anything, found out before it is on screen; free of Streamlit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitviz import Activations, Model


def check_capture(model: "Model", acts: "Activations") -> None:
    """Refuse a capture whose numbers mean nothing.

    Raises
    ------
    ModelError
        When the logits or the tokens that they are made of are not finite.
    """
    import numpy as np

    from vitviz import ModelError

    outputs = [acts.tokens(acts.depth)]  # what is not finite before stays so in the stream
    if acts.logits is not None:
        outputs.append(acts.logits)
    if not all(np.isfinite(output).all() for output in outputs):
        raise ModelError(
            f"{model.name} ({model.weights}) computes values that are no finite numbers on this "
            "picture, so nothing of it is drawn: its weights are damaged or do not belong to it."
        )
