"""Attention times gradient, averaged over layers, heads and queries."""

import numpy as np

from ..activations.targets import Question, Target
from ..model import Model
from ..model.devices import own_precision
from ..model.inputs import Picture
from .gradients import attention_gradients
from .maps import as_map, place_layers


@own_precision()
def attention_gradient(model: Model, image: Picture, target: Target) -> np.ndarray:
    """Map one target by attention times its gradient, averaged over layers, heads and queries.

    In each layer, A is multiplied elementwise with the gradient of the target with respect to A,
    and negative entries become 0. A patch's value is the mean of its column: over layers, heads and
    all queries. Layers are not multiplied with one another: that is the difference from
    `relevance`.

    Parameters
    ----------
    model, image, target
        As in `relevance`.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        In the grid of the first layer; a patch of a coarser layer is shared equally among those
        that were merged into it. Not negative, in the unit of the target, and not normalised:
        compare where two maps are high.

    Raises
    ------
    ModelError, ValueError
        As in `relevance`.

    References
    ----------
    Barkan et al., "Grad-SAM: Explaining Transformers via Gradient Self-Attention Maps", CIKM 2021,
    equations 5 and 6.
    """
    products, _ = attention_gradients(model, image, Question(model, target))
    layers = place_layers(model, products)
    sums = layers[-1].weights.new_zeros(layers[-1].tokens)
    for layer in reversed(layers):
        sums = layer.split(sums)
        sums = sums + layer.through(sums.new_ones(layer.tokens) / layer.tokens, layer.weights)
    return as_map(sums / len(layers), model.layers[0])
