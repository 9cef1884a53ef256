"""Maps of one target: attention weighted by the gradient of a class's logit, say."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ..activations.proof import why_differs
from ..families import Layer, ModelError, Site
from ..model import Model
from ..targets import Question, Target, one_of
from .gradients import attention_gradients

RESIDUAL = 0.5  # weight of the skip connection in `gradient_rollout`


def relevance(
    model: Model,
    image: Image.Image,
    target: Target | None = None,
    *,
    class_index: int | None = None,
) -> np.ndarray:
    """How relevant each patch is for one target, by attention and its gradient.

    In each layer, A is multiplied elementwise with the gradient of the target with respect to A;
    negative entries become 0, and the mean is taken over heads. Beginning with R = I, each layer in
    the order of the forward pass adds its product with R to R.

    Where attention stays within windows, as in Swin, it is that of all patches, with 0 between
    patches of different windows; where a later stage merges patches, the row of R of the merged one
    is the mean of their rows.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    target : int, str, array, callable, Token or Similarity
        A class by its index or name: its logit is differentiated. A vector as long as the output
        (a text embedding, a direction of regression, the difference of two classes): the output
        projected on it, and of a model that gives an embedding their cosine. A function that takes
        the output (K,) and returns one number, both tensors. Of models without a head, a `Token` or
        the `Similarity` to a patch.
    class_index : int, from 0 to K - 1
        An older name of the target, for a class alone.

    Returns
    -------
    ndarray of shape (rows, cols)
        R where the head reads the answer (`Model.read_tokens`): the row of CLS, or the mean of the
        rows of the patches where the head pools patches, whether or not there is a CLS token; of a
        `Token` its own row. In the grid of the first layer. Not negative, without unit and not
        normalised: compare where two maps are high, not how high.

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
    This is not attention: a patch that gets much attention, but changes nothing for the target, has
    0. Evidence against the target is clipped, and a gradient holds for small changes only: to see
    what happens without a patch, remove it (`vitviz.intervention`). Where patches are pooled, each
    begins with its own share 1 / N of R = I, which is the smallest possible value; they count
    equally, also where the head weighs them (attention pooling). What reaches the logits only
    through prefix tokens that the head reads beside CLS (the second head of a distilled model) or
    beside the patches is not in the map. The stages of a Swin are not in the paper: what merges
    patches has weights, which count them equally here.

    Keeps the attention and its gradient of all layers at once: 8 bytes a layer, head and pair of
    tokens, which is estimated first (`vitviz.memory`).

    References
    ----------
    Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers", ICCV 2021, section 3, equations 5 and 6.
    """
    row, layers = _weighted_layers(model, image, Question(model, one_of(target, class_index)))
    for layer in reversed(layers):  # a row of the product, from its left
        row = layer.split(row)
        row = row + layer.through(row, layer.weights)
    return _map(row, model.layers[0])


def gradient_rollout(
    model: Model,
    image: Image.Image,
    target: Target | None = None,
    *,
    class_index: int | None = None,
) -> np.ndarray:
    """Attention rollout in which each layer is weighted by the gradient for one target.

    As `vitviz.inspection.attention_rollout`, with heads fused as in `relevance`: the rows of the
    mean over heads of the positive part of gradient times attention are normalised, and each layer
    is taken as half of that and half of the identity. A row without anything positive becomes the
    identity's.

    Parameters
    ----------
    model, image, target, class_index
        As in `relevance`.

    Returns
    -------
    ndarray of shape (rows, cols)
        Shares of 1: with those of the tokens outside the picture they sum to 1. Read where
        `relevance` is read.

    Raises
    ------
    ModelError, ValueError
        As in `relevance`.

    Notes
    -----
    Normalising makes every layer count equally, also one that hardly matters for the class: that is
    the difference from `relevance`.

    What the well-known vit-explain (https://github.com/jacobgil/vit-explain) calls gradient rollout
    is another map, which correlates with this one by -0.62 to 0.63: there heads are averaged before
    negative entries become 0, layers are paired with gradients in reverse order, as these are kept
    in the order of the backward pass, and the layers are normalised along the wrong axis.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020), for the product;
    Chefer, Gur and Wolf (ICCV 2021), for the weights.
    """
    row, layers = _weighted_layers(model, image, Question(model, one_of(target, class_index)))
    for layer in reversed(layers):
        row = layer.split(row)
        mass = layer.weights.sum(dim=2, keepdim=True)  # (W, n, 1)
        shares = torch.where(mass > 0, layer.weights / mass, 0)
        kept = row * (1 - layer.each((mass[..., 0] > 0).to(row)))
        row = (1 - RESIDUAL) * (layer.through(row, shares) + kept) + RESIDUAL * row
    return _map(row, model.layers[0])


@dataclass(frozen=True, kw_only=True, eq=False)
class _Weighted:
    """One layer's mean over heads of the positive part of gradient times A: (W, n, m).

    Attributes
    ----------
    queries, keys : the token of each place of a window, (W, n) and (W, m); `tokens` for padding
    parents : of each token, the one of the next stage that it is merged into; None within a stage
    """

    weights: Tensor
    queries: Tensor
    keys: Tensor
    tokens: int
    parents: Tensor | None

    def through(self, row: Tensor, weights: Tensor) -> Tensor:
        """A row vector (T,) times the matrix of all tokens that the windows' matrices make up."""
        looking = F.pad(row, (0, 1))[self.queries]  # (W, n); padding has the weight 0
        seen = torch.einsum("wn,wnm->wm", looking, weights)
        return row.new_zeros(self.tokens + 1).index_add(0, self.keys.flatten(), seen.flatten())[:-1]

    def each(self, values: Tensor) -> Tensor:
        """Values of every window's queries (W, n) in the order of the tokens: (T,)."""
        places = self.queries.flatten()
        return values.new_zeros(self.tokens + 1).index_add(0, places, values.flatten())[:-1]

    def split(self, row: Tensor) -> Tensor:
        """Of the tokens of the next stage: shared equally among those that were merged into one."""
        if self.parents is None:
            return row
        return (row / torch.bincount(self.parents))[self.parents]


def _weighted_layers(
    model: Model, image: Image.Image, question: Question
) -> tuple[Tensor, list[_Weighted]]:
    """The row of R that is asked for (T,), and what each layer multiplies it with."""
    products, last, output = attention_gradients(model, image, question)
    with torch.inference_mode():
        row = _output_row(model, question, last, output).to(products[-1])
    after: Sequence[Site | None] = [*model.sites[1:], None]
    return row, [
        _placed(site, following, product)
        for site, following, product in zip(model.sites, after, products, strict=True)
    ]


def _placed(site: Site, following: Site | None, weights: Tensor) -> _Weighted:
    """A layer's weights with the places of its tokens, and the grid of the layer after it."""
    rows, cols = site.layer.query_grid
    tokens = len(site.layer.prefix) + rows * cols
    queries = keys = np.arange(tokens)[None]
    if site.windows is not None:
        queries, keys = site.windows.queries, site.windows.keys

    def tensor(places: np.ndarray) -> Tensor:
        return torch.from_numpy(np.where(places < 0, tokens, places)).to(weights.device)

    parents = None
    if following is not None and following.layer.query_grid != (rows, cols):
        down, over = np.arange(rows)[:, None] // 2, np.arange(cols) // 2
        parents = tensor((down * following.layer.query_grid[1] + over).ravel())
    weights = weights * (tensor(keys) < tokens)[:, None]  # without the shares of padding
    return _Weighted(
        weights=weights, queries=tensor(queries), keys=tensor(keys), tokens=tokens, parents=parents
    )


def _output_row(model: Model, question: Question, last: Tensor, output: Tensor) -> Tensor:
    """The weights with which the rows of R are read: of CLS, a token, or all patches: (T,).

    Raises
    ------
    ModelError
        When the tokens differ from stage to stage, and the head reads other than their mean.
    """
    prefix = model.layers[-1].prefix
    row = torch.zeros(len(prefix) + math.prod(model.layers[-1].query_grid))
    if question.place is not None:
        row[question.place] = 1.0
        return row
    if model.read_tokens and "patches" not in model.read_tokens:
        row[prefix.index("cls")] = 1.0
        return row
    row[len(prefix) :] = 1 / (len(row) - len(prefix))
    if not model.read_tokens:
        parts = model.parts
        mean = (parts.norm or nn.Identity())(last).flatten(1, -2).mean(dim=1)
        head: Any = model.module.get_submodule(parts.heads[0])
        own = getattr(head, "fc", head)(mean)
        half = output.dtype.itemsize < 4
        if own.shape[1:] != output.shape or any(
            why_differs(model.layers[-1], own[0], output, half)
        ):
            raise ModelError(
                "The head of {model} does not read the mean of its last tokens, so it is not "
                "known where a map of one class begins.",
                model=model.name,
            )
    return row


def _map(row: Tensor, layer: Layer) -> np.ndarray:
    patches: np.ndarray = row[len(layer.prefix) :].float().cpu().reshape(layer.query_grid).numpy()
    patches.setflags(write=False)
    return patches
