"""The size and shape of a model's input: what they cost, and which shape shows a whole picture."""

import math
from dataclasses import dataclass

from ..memory import attention_weights
from ..model import Model
from .positions import MAX_SIDE, Size


@dataclass(frozen=True, kw_only=True)
class InputCost:
    """What an input of one size costs a model.

    Attributes
    ----------
    size : (height, width) in pixels
    grid : (rows, columns) of the patches of the first layer
    tokens : int
        Those patches, and the tokens before them.
    attention : int
        Attention weights of all layers and heads; the square of the tokens of each layer and head
        where every token attends to every token.
    """

    size: Size
    grid: Size
    tokens: int
    attention: int


def input_cost(model: Model) -> InputCost:
    """Count a model, which may lie on the meta device, at its own input size."""
    first = model.layers[0]
    return InputCost(
        size=model.preprocess.input_size,
        grid=first.query_grid,
        tokens=len(first.prefix) + math.prod(first.query_grid),
        attention=attention_weights(model.sites),
    )


def step_of(model: Model) -> Size:
    """Height and width in pixels of which the sides of the input are multiples: the largest patch.

    Windows may ask for more.
    """
    sides = [layer.patch_side for layer in model.layers]
    return max(height for height, _ in sides), max(width for _, width in sides)


def whole_picture(model: Model, picture: Size) -> Size:
    """The input size whose shape is nearest to a picture's, at about the model's own cost.

    Of all multiples of the patch, the one for which the ratio of the sides (counted twice) and the
    number of patches differ least from those that are wanted, both on a logarithmic scale.

    Parameters
    ----------
    picture : (width, height) in pixels

    Returns
    -------
    (height, width) in pixels, for `load_model(..., image_size=..., crop=False)`
    """
    step, own = step_of(model), model.preprocess.input_size
    count = max(1.0, own[0] * own[1] / (step[0] * step[1]))
    wanted = picture[0] / picture[1]

    def difference(size: Size) -> float:
        shape = math.log(size[1] / size[0] / wanted)
        patches = math.log(size[0] * size[1] / (step[0] * step[1]) / count)
        return 2 * abs(shape) + abs(patches)

    # Twice as many patches or half as many are no longer about the same cost.
    most = [min(MAX_SIDE // pixels, int(2 * count)) for pixels in step]
    return min(
        (
            (rows * step[0], columns * step[1])
            for rows in range(1, most[0] + 1)
            for columns in range(1, min(most[1], int(2 * count / rows) + 1) + 1)
            if count / 2 <= rows * columns <= 2 * count
        ),
        key=difference,
    )
