"""Target, value and sums over patches, for the methods that explain an output of the model."""

import numpy as np
from torch import Tensor
from torch.nn import functional as F

from ..activations.edits import grid_margins
from ..activations.targets import PassResult, Question, Similarity, Target, Token
from ..model import Model
from ..model.families import ModelError, has_inference_tensors


def output_question(model: Model, target: Target, method: str) -> Question:
    """Check the target of a method that explains an output of the model, and needs gradients.

    Raises
    ------
    ModelError
        When the model has no such output, or torch computes no gradient with its weights.
    ValueError
        When there is no such class, or the target is a token.
    """
    if isinstance(target, Token | Similarity):
        raise ValueError(
            f"{method} explains an output of the model, not {target}. Give a class, a vector or a "
            "function of the output."
        )
    question = Question(model, target)
    check_weights(model)
    return question


def check_weights(model: Model) -> None:
    """Refuse a model whose weights torch computes no gradient with."""
    if has_inference_tensors(model.module):
        raise ModelError(
            "The weights of {model} were created under torch.inference_mode, so torch computes no "
            "gradient with them. Create the module outside of it.",
            model=model.name,
        )


def output_value(question: Question, output: Tensor) -> Tensor:
    """Return the target's value for the output (K,) of a pass."""
    result = PassResult(output.float(), output, lambda: output, np.empty(0, int))
    return question.value(result, None)


def sum_over_patches(model: Model, pixels: Tensor) -> np.ndarray:
    """Sum values of the input's pixels (H, W) over each patch: float64 of shape (rows, cols).

    Pixels beyond the grid of patches are left out.
    """
    layer = model.layers[0]
    (rows, cols), (height, width) = layer.query_grid, layer.patch_side
    inside = F.pad(pixels.double(), [-margin for margin in grid_margins(model, pixels.shape)])
    values: np.ndarray = inside.reshape(rows, height, cols, width).sum(dim=(1, 3)).cpu().numpy()
    if not np.isfinite(values).all():
        raise ModelError(
            "The gradient in the input of {model} is NaN or infinite, so no map is drawn.",
            model=model.name,
        )
    values.setflags(write=False)
    return values
