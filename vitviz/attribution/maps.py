"""Maps for one target: attention weighted by the gradient, for example of a class's logit."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..activations.calls import explain_mismatch
from ..activations.targets import Question, Target
from ..model import Model
from ..model.devices import own_precision
from ..model.families import Layer, ModelError, Site
from ..model.inputs import Picture, prepare
from ..model.recording import hook_this_thread
from .gradients import attention_gradients

RESIDUAL = 0.5  # weight of the skip connection in `gradient_rollout`


@own_precision()
def relevance(
    model: Model,
    image: Picture,
    target: Target,
) -> np.ndarray:
    """Map how relevant each patch is for one target, by attention and its gradient.

    In each layer, A is multiplied elementwise with the gradient of the target with respect to A;
    negative entries become 0, and the mean is taken over heads. Beginning with R = I, each layer in
    the order of the forward pass adds its product with R to R.

    Attention within windows, as in Swin, counts as a matrix of all patches, with 0 between patches
    of different windows. If a later stage merges patches, the row of R of a merged patch is the
    mean of their rows.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    target : int, str, array, callable, Token or Similarity
        A class by index or name: its logit is differentiated. A vector as long as the output (a
        text embedding, a direction of regression, the difference of two classes): the output's
        projection on it, or its cosine if the model outputs an embedding. A function that takes the
        output (K,) and returns one number, both tensors. For models without a head, a `Token` or
        the `Similarity` to a patch.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        R where the head reads the answer (`Model.read_tokens`): the row of CLS, or the mean row of
        the patches if the head pools patches, whether or not there is a CLS token; for a `Token`
        its own row. In the grid of the first layer. Not negative, without unit and not normalised:
        compare where two maps are high, not how high.

    Raises
    ------
    ModelError
        When the model has no such output, its layers pool their keys, have convolutions between
        them or cannot be proved on this picture, it checkpoints its gradients, the memory does not
        suffice, or a gradient is missing or not finite.
    ValueError
        When there is no such class, or the target does not fit the output.

    Notes
    -----
    The size of the target changes the pattern, not only the scale: the map of 2 times a logit is
    not 2 times its map, as each layer multiplies the result of the layers before it. For a small
    target the map tends to the sum of the layers' weights; for a large one the product of all of
    them outweighs the rest. So the map of a probability is not that of its logit, and maps of two
    models whose logits differ in size differ for that alone. `gradient_rollout` does not change
    when the target is multiplied by a positive number.

    The pass runs in the precision of the weights, also within `torch.autocast`.

    This is not attention: a patch that gets much attention but does not change the target has 0.
    Evidence against the target is clipped, and a gradient holds for small changes only: to see what
    happens without a patch, remove it (`vitviz.intervention`). If patches are pooled, each begins
    with its own share 1 / N of R = I, the smallest possible value; they count equally, also if the
    head weighs them (attention pooling). The map leaves out what reaches the logits only through
    prefix tokens that the head reads beside CLS (the second head of a distilled model) or beside
    the patches. The paper does not cover the stages of a Swin: the layer that merges patches has
    weights, and patches count equally here.

    Keeps the attention and its gradient of all layers at once, 8 bytes per layer, head and pair of
    tokens; the memory is checked before.

    References
    ----------
    Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers", ICCV 2021, section 3, equations 5 and 6.
    """
    start, layers = _weighted_layers(model, image, Question(model, target))
    # Of R - I, a row of the product from its left: a small gradient beside 1 would lose its digits.
    sums = layers[-1].weights.new_zeros(len(start))
    for layer in reversed(layers):
        start, sums = layer.split(start), layer.split(sums)
        sums = sums + layer.through(start.to(sums) + sums, layer.weights)
    return _as_map(start + sums.cpu(), model.layers[0])


@own_precision()
def gradient_rollout(
    model: Model,
    image: Picture,
    target: Target,
) -> np.ndarray:
    """Roll attention out with each layer weighted by the gradient for one target.

    As `vitviz.inspection.attention_rollout`, with heads fused as in `relevance`: the rows of the
    mean over heads of the positive part of gradient times attention are normalised, and each layer
    is half of that and half of the identity. A row without positive entries becomes the identity's.

    Parameters
    ----------
    model, image, target
        As in `relevance`.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        Shares of 1: with those of the tokens outside the picture they sum to 1. The row is chosen
        as in `relevance`.

    Raises
    ------
    ModelError, ValueError
        As in `relevance`.

    Notes
    -----
    Normalising makes every layer count equally, also one that hardly matters for the class: that is
    the difference from `relevance`. A positive factor of the target changes nothing; a negative one
    gives another map, of the evidence against the target.

    The gradient rollout of vit-explain (https://github.com/jacobgil/vit-explain) is another map,
    which correlates with this one by -0.62 to 0.63: it averages heads before negative entries
    become 0, pairs layers with gradients in reverse order, as it collects these in the order of the
    backward pass, and normalises the layers along the wrong axis.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020), for the product;
    Chefer, Gur and Wolf (ICCV 2021), for the weights.
    """
    row, layers = _weighted_layers(model, image, Question(model, target))
    row = row.to(layers[-1].weights)
    for layer in reversed(layers):
        row = layer.split(row)
        mass = layer.weights.sum(dim=2, keepdim=True)  # (W, n, 1)
        shares = torch.where(mass > 0, layer.weights / mass, 0)
        stays = row * (1 - layer.per_token((mass[..., 0] > 0).to(row)))
        row = (1 - RESIDUAL) * (layer.through(row, shares) + stays) + RESIDUAL * row
    return _as_map(row, model.layers[0])


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
    layers = _place_layers(model, products)
    sums = layers[-1].weights.new_zeros(layers[-1].tokens)
    for layer in reversed(layers):
        sums = layer.split(sums)
        sums = sums + layer.through(sums.new_ones(layer.tokens) / layer.tokens, layer.weights)
    return _as_map(sums / len(layers), model.layers[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacedLayer:
    """One layer's mean over heads of the positive part of gradient times A: (W, n, m).

    Attributes
    ----------
    queries, keys : the token at each place of a window, (W, n) and (W, m); `tokens` for padding
    parents : for each token, the one of the next stage that it is merged into; None within a stage
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: int
    parents: Tensor | None

    def through(self, row: Tensor, weights: Tensor) -> Tensor:
        """Multiply a row vector (T,) by the matrix of all tokens that the windows make up."""
        entries = F.pad(row, (0, 1))[self.queries]  # (W, n); padding has the weight 0
        sums = torch.einsum("wn,wnm->wm", entries, weights)
        return row.new_zeros(self.tokens + 1).index_add(0, self.keys.flatten(), sums.flatten())[:-1]

    def per_token(self, values: Tensor) -> Tensor:
        """Put values of the windows' queries (W, n) in the order of the tokens: (T,)."""
        places = self.queries.flatten()
        return values.new_zeros(self.tokens + 1).index_add(0, places, values.flatten())[:-1]

    def split(self, row: Tensor) -> Tensor:
        """Share each token of the next stage equally among those that were merged into it."""
        if self.parents is None:
            return row
        parents = self.parents.to(row.device)
        return (row / torch.bincount(parents))[parents]


def _weighted_layers(
    model: Model, image: Picture, question: Question
) -> tuple[Tensor, list[PlacedLayer]]:
    """Return the first row (T,) of the product of layers, in float64, and each layer's weights."""
    products, output = attention_gradients(model, image, question)
    with torch.inference_mode():
        row = _output_row(model, image, question, output)
    return row, _place_layers(model, products)


def _place_layers(model: Model, products: Sequence[Tensor]) -> list[PlacedLayer]:
    """Combine the weights of each layer, as `attention_gradients` returns them, with its tokens."""
    after: Sequence[Site | None] = [*model.sites[1:], None]
    return [
        _place(site, next_site, product)
        for site, next_site, product in zip(model.sites, after, products, strict=True)
    ]


def _place(site: Site, next_site: Site | None, weights: Tensor) -> PlacedLayer:
    """Combine a layer's weights with the places of its tokens and the grid of the next layer."""
    rows, cols = site.layer.query_grid
    tokens = site.layer.num_tokens
    queries = keys = np.arange(tokens)[None]
    if site.windows is not None:
        queries, keys = site.windows.queries, site.windows.keys

    def tensor(places: np.ndarray) -> Tensor:
        return torch.from_numpy(np.where(places < 0, tokens, places)).to(weights.device)

    parents = None
    if next_site is not None and next_site.layer.query_grid != (rows, cols):
        down, over = np.arange(rows)[:, None] // 2, np.arange(cols) // 2
        parents = tensor((down * next_site.layer.query_grid[1] + over).ravel())
    weights = weights * (tensor(keys) < tokens)[:, None]  # without the shares of padding
    return PlacedLayer(
        weights=weights, queries=tensor(queries), keys=tensor(keys), tokens=tokens, parents=parents
    )


def _output_row(model: Model, image: Picture, question: Question, output: Tensor) -> Tensor:
    """Return the weights (T,) with which the rows of R are read: CLS, a token, or all patches.

    Raises
    ------
    ModelError
        When the tokens differ from stage to stage, and the head does not read their mean.
    """
    prefix = model.layers[-1].prefix
    row = torch.zeros(model.layers[-1].num_tokens, dtype=torch.float64, device="cpu")
    if question.place is not None:
        row[question.place] = 1.0
        return row
    if model.read_tokens and "patches" not in model.read_tokens:
        row[prefix.index("cls")] = 1.0
        return row
    row[len(prefix) :] = 1 / (len(row) - len(prefix))
    if not model.read_tokens:
        x, has_run = model.to_device(prepare(model, image).x)[None], False
        for part in (model.parts.norm, model.sites[-1].block):
            if part is not None and not has_run:
                with _averaging(part, model.sites[-1].layout) as passes:
                    own = model.run(x)[0]
                has_run = bool(passes)
        if any(explain_mismatch(model.layers[-1], own, output, output.dtype.itemsize < 4)):
            raise ModelError(
                "It is not known where a map of one class begins: the head of {model} does not "
                "read the mean of its last tokens.",
                model=model.name,
            )
    return row


@contextmanager
def _averaging(part: nn.Module, layout: str) -> Iterator[list[nn.Module]]:
    """Replace each token after a part by the mean of all, in this thread; collect its passes."""
    passes: list[nn.Module] = []

    def average(part: nn.Module, inputs: Any, tokens: Tensor) -> Tensor:
        passes.append(part)
        places = (2, 3) if layout == "channels" else tuple(range(1, tokens.ndim - 1))
        return tokens.mean(dim=places, keepdim=True).expand_as(tokens)

    with hook_this_thread(part.register_forward_hook, average):
        yield passes


def _as_map(row: Tensor, layer: Layer) -> np.ndarray:
    """Return the patches of a row (T,) in the layer's grid (rows, cols)."""
    patches: np.ndarray = row[len(layer.prefix) :].cpu().double().reshape(layer.query_grid).numpy()
    patches.setflags(write=False)
    return patches
