"""What attention carries: the vectors that the keys of a layer add to its queries.

Letters in the shape comments: h heads, n queries and m keys, d head_dim, D width.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from torch import Tensor

from ..common.language import Message
from ..model.devices import TOLERANCE
from ..model.families import ModelError

_KEYS = 64  # whose products of heads are computed together


@dataclass(frozen=True, eq=False)
class Carried:
    """Vectors that the keys of a layer add to its queries, after the output projection.

    Attention says how strongly a value counts, and not how long it is: a key that gets most of the
    attention may add next to nothing.

    Attributes
    ----------
    attention : ndarray of shape (heads, queries, keys)
        A.
    vectors : ndarray of shape (heads, keys, D)
        Each key's value after the output projection and LayerScale; A times it is what the key adds
        to a query.
    bias : ndarray of shape (D,)
        Of the output projection: it is added whatever the keys are.

    References
    ----------
    Kobayashi, Kuribayashi, Yokoi and Inui, "Attention is Not Only a Weight: Analyzing Transformers
    with Vector Norms" (EMNLP 2020).
    """

    attention: np.ndarray
    vectors: np.ndarray
    bias: np.ndarray

    @property
    def by_head(self) -> np.ndarray:
        """The length of what a key adds to a query through each head: (h, n, m)."""
        lengths: np.ndarray = np.linalg.norm(self.vectors, axis=2)
        return self.attention * lengths[:, None]

    @cached_property
    def lengths(self) -> np.ndarray:
        """The length of what a key adds to a query through all heads together: (n, m).

        Heads may add opposite vectors, so it is at most the sum of `by_head`.
        """
        _, queries, keys = self.attention.shape
        squares = np.empty((queries, keys))
        for start in range(0, keys, _KEYS):
            some = slice(start, start + _KEYS)
            vectors = self.vectors[:, some].swapaxes(0, 1)  # (some, h, D)
            products = vectors @ vectors.swapaxes(1, 2)
            attention = self.attention[:, :, some].transpose(2, 1, 0)  # (some, n, h)
            squares[:, some] = ((attention @ products) * attention).sum(axis=2).T
        return np.sqrt(np.maximum(squares, 0))

    @cached_property
    def output(self) -> np.ndarray:
        """Sum of what the keys add to each query: (n, D); with `bias`, what the layer adds."""
        output: np.ndarray = (self.attention @ self.vectors).sum(axis=0)
        return output

    @property
    def shares(self) -> np.ndarray:
        """Each key's part of `output`, its projection on it: (n, m); the parts of a query sum to 1.

        A key that adds against the sum has a negative part.
        """
        along = self.output @ self.vectors.swapaxes(1, 2)  # (h, n, m)
        squares = np.square(self.output).sum(axis=1, keepdims=True)
        shares: np.ndarray = (self.attention * along).sum(axis=0) / np.maximum(squares, 1e-30)
        return shares

    def own_shares(self, tokens: np.ndarray) -> np.ndarray:
        """Measure the share of each token that stays its own in the layer: (n,).

        It is |x + a| / (|x + a| + |b|), with x the token before the layer, a what its own key adds
        and b what the other keys add.

        References
        ----------
        Kobayashi, Kuribayashi, Yokoi and Inui, "Incorporating Residual and Normalization Layers
        into Analysis of Masked Language Models" (EMNLP 2021), which counts the norm in as well; the
        blocks here have it before the attention.
        """
        own = np.einsum("hn,hnw->nw", np.diagonal(self.attention, axis1=1, axis2=2), self.vectors)
        stays = np.linalg.norm(tokens + own, axis=1)
        comes = np.linalg.norm(self.output - own, axis=1)
        shares: np.ndarray = stays / np.maximum(stays + comes, 1e-30)
        return shares


def split_output(
    projection: Any,
    attention: np.ndarray,
    values: np.ndarray,
    tokens: np.ndarray,
    after: np.ndarray,
    name: str | Message,
    half: bool = False,
) -> Carried:
    """Split what a layer's attention adds to the tokens among its keys, and prove it.

    Parameters
    ----------
    projection : module with a `weight`, after the heads are joined
    attention : ndarray of shape (heads, tokens, tokens)
    values : ndarray of shape (heads, tokens, head_dim)
    tokens, after : ndarrays of shape (tokens, D)
        Before the layer and after its attention.
    name : of the layer
    half : whether it computes in half precision

    Raises
    ------
    ModelError
        When the layer has no such projection, or does more to its heads than to project them and
        to scale the channels.
    """
    if not isinstance(getattr(projection, "weight", None), Tensor):  # quantized: a method
        raise ModelError("{layer} has no output projection to split by heads.", layer=name)
    if tokens.shape != after.shape:
        raise ModelError(
            "{layer} gets {before} tokens and returns {after}, so what one of its heads adds is "
            "not known.",
            layer=name,
            before=len(tokens),
            after=len(after),
        )
    attention, values = np.asarray(attention, np.float64), np.asarray(values, np.float64)
    difference = np.asarray(after, np.float64) - tokens
    weight = projection.weight.detach().cpu().double().numpy().reshape(difference.shape[1], -1)
    heads, _, size = values.shape
    if weight.shape[1] != heads * size:
        raise ModelError(
            "The output projection of {layer} takes {inputs} numbers, and its heads give {given}.",
            layer=name,
            inputs=weight.shape[1],
            given=heads * size,
        )
    vectors = np.einsum(
        "hmd,Dhd->hmD", values, weight.reshape(len(weight), heads, size), optimize=True
    )
    bias = np.zeros(len(weight))
    if projection.bias is not None:
        bias = projection.bias.detach().cpu().double().numpy()
    joined = (attention @ values).swapaxes(0, 1).reshape(len(tokens), -1)
    whole = joined @ weight.T + bias  # the sum of A times the vectors, in fewer steps
    # LayerScale multiplies each channel by one factor: the best one is found, and then proved.
    factors = (difference * whole).sum(axis=0) / np.maximum((whole**2).sum(axis=0), 1e-30)
    if np.allclose(factors, 1, atol=TOLERANCE):
        factors = np.ones_like(factors)
    rounding = 8 * np.finfo(np.float32).eps * np.abs(tokens).max()  # of `added`
    if np.abs(difference - factors * whole).max() > TOLERANCE * np.abs(difference).max() + rounding:
        if half:
            raise ModelError(
                "{layer} computes in half precision, which is too coarse to tell what one of its "
                "heads adds. Load the model in single precision.",
                layer=name,
            )
        raise ModelError(
            "{layer} does more to its heads than to project and scale them, so what one of them "
            "adds is not known.",
            layer=name,
        )
    return Carried(attention=attention, vectors=factors * vectors, bias=factors * bias)
