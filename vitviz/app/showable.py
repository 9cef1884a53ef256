"""What the pages can show of a model, found out before it is on screen; free of Streamlit."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitviz import Activations, Model


def check_model(model: "Model") -> None:
    """Refuse a model that the pages do not draw.

    Raises
    ------
    ModelError
        When a layer's attention is not one of all tokens to all tokens.
    """
    from vitviz import ModelError

    for layer in model.layers:
        if layer.kind != "global":
            raise ModelError(
                f"{model.name} has {layer.kind} attention, which the pages do not draw: look at it "
                "with vitviz.capture in Python."
            )


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
