"""Size and shape of a model's input: their cost, and the shape that shows a whole picture."""

import math
from dataclasses import dataclass

from ..model import Model
from ..model.memory import attention_weights, largest_attention
from .resampling import MAX_INPUT_SIDE, InputSize


@dataclass(frozen=True, kw_only=True)
class InputCost:
    """Cost of an input of one size for a model.

    Attributes
    ----------
    size : (height, width) in pixels
    grid : (rows, columns) of the patches of the first layer
    tokens : int
        These patches and the prefix tokens.
    attention : int
        Attention weights of all layers and heads: tokens squared for each head with global
        attention.
    """

    size: InputSize
    grid: InputSize
    tokens: int
    attention: int


def input_cost(model: Model) -> InputCost:
    """Count the cost of a model, which may be on the meta device, at its own input size."""
    first = model.layers[0]
    return InputCost(
        size=model.preprocess.input_size,
        grid=first.query_grid,
        tokens=first.num_tokens,
        attention=attention_weights(model.sites),
    )


def tokens_attending(model: Model) -> int:
    """Return the square root of a head's number of attention weights, in the layer with most.

    These are all tokens of a ViT, and far fewer than all where attention is windowed.
    """
    return math.isqrt(largest_attention(model.sites))


def step_of(model: Model) -> InputSize:
    """Return the step (height, width) of input sizes in pixels: the largest patch.

    Windows may need larger steps.
    """
    sides = [layer.patch_side for layer in model.layers]
    return max(height for height, _ in sides), max(width for _, width in sides)


def whole_picture(model: Model, picture: InputSize, *, most: float = math.inf) -> InputSize:
    """Return the input size with a picture's shape, at about the cost of the model's own input.

    Among the multiples of the patch, the one whose ratio of sides (with weight 2) and number of
    patches differ least from those wanted, on a logarithmic scale.

    Parameters
    ----------
    picture : (width, height) in pixels
    most : float, optional
        Largest number of patches; not below that of the model's own input.

    Returns
    -------
    (height, width) in pixels, for `load_model(..., image_size=..., crop=False)`
    """
    step, own = step_of(model), model.preprocess.input_size
    count = max(1.0, own[0] * own[1] / (step[0] * step[1]))
    ratio = picture[0] / picture[1]

    def difference(size: InputSize) -> float:
        shape = math.log(size[1] / size[0] / ratio)
        patches = math.log(size[0] * size[1] / (step[0] * step[1]) / count)
        return 2 * abs(shape) + abs(patches)

    # Twice or half as many patches would no longer have about the same cost.
    longest = [min(MAX_INPUT_SIDE // pixels, int(2 * count)) for pixels in step]
    return min(
        (
            (rows * step[0], columns * step[1])
            for rows in range(1, longest[0] + 1)
            for columns in range(1, min(longest[1], int(2 * count / rows) + 1) + 1)
            if count / 2 <= rows * columns <= min(2 * count, most)
        ),
        key=difference,
    )
