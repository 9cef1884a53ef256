"""Attention rollout: all layers' attention in one row."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from .inputs import Array, check_choice, check_share, checked_layers, token_index

Fusion = Literal["mean", "max", "min"]

_FUSIONS: Mapping[Fusion, Callable[..., Array]] = {"mean": np.mean, "max": np.max, "min": np.min}


def attention_rollout(
    attention: Iterable[ArrayLike],
    *,
    num_prefix_tokens: int = 1,
    query: int | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
) -> Array:
    """Attention followed through the layers, from the last one's query back to the input tokens.

    Each layer is taken as (1 - residual) F + residual I, with F its heads fused into one matrix
    whose rows sum to 1; the result is the query's row of the product of all layers.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens)
    num_prefix_tokens : int
    query : int, optional
        A token, counted from 0 with the prefix. Left out: token 0, which is CLS, or the mean over
        the patches where there is no prefix.
    fusion : "mean", "max" or "min"
        Over heads.
    discard : float
        The share, from 0 to 1, of each fused matrix's entries outside the prefix columns that is
        set to zero, smallest first and, where equal, lowest index first. Rows are normalised
        afterwards; an empty row becomes the identity's.
    residual : float
        The weight of the skip connection, from 0 to 1.
    start_layer : int
        Layers before it are left out.

    Returns
    -------
    ndarray of shape (tokens,)
        Shares that sum to 1, prefix tokens first.

    Raises
    ------
    ValueError
        When a setting is outside its range or a layer has another shape.

    Notes
    -----
    Rollout knows no values, no MLP and no class: it is the same map for every class, and no
    explanation of the prediction. `min` yields a map quite unlike those of `mean` and `max`.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020),
    https://doi.org/10.18653/v1/2020.acl-main.385; the ViT paper, Fig. 6 and 14.
    """
    matrices = list(
        _fused_layers(attention, num_prefix_tokens, fusion, discard, residual, start_layer)
    )
    return rolled_out(matrices, query=query, num_prefix_tokens=num_prefix_tokens, residual=residual)


def rollout_steps(
    attention: Iterable[ArrayLike],
    *,
    num_prefix_tokens: int = 1,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
) -> Iterator[Array]:
    """The rollout of every query after each layer from `start_layer` on.

    Parameters
    ----------
    attention, num_prefix_tokens, fusion, discard, residual, start_layer
        As in `attention_rollout`.

    Yields
    ------
    ndarray of shape (tokens, tokens)
        Rows are queries and sum to 1; the last one's rows are those of `attention_rollout`.

    Raises
    ------
    ValueError
        As in `attention_rollout`.

    Notes
    -----
    A product of two matrices (tokens, tokens) a layer, where a single query needs a vector.
    """
    product: Array | None = None
    for matrix in _fused_layers(
        attention, num_prefix_tokens, fusion, discard, residual, start_layer
    ):
        step = (1 - residual) * matrix
        step[np.diag_indices_from(step)] += residual
        product = step if product is None else step @ product
        yield product


def _fused_layers(
    attention: Iterable[ArrayLike],
    prefix: int,
    fusion: Fusion,
    discard: float,
    residual: float,
    start_layer: int,
) -> Iterator[Array]:
    check_choice("fusion", fusion, tuple(_FUSIONS))
    check_share("discard", discard)
    check_share("residual", residual)
    count = 0
    for layer in checked_layers(attention, prefix):
        count += 1
        if count > start_layer >= 0:
            yield fuse(layer, fusion, discard, prefix)
    if not 0 <= start_layer < count:
        raise ValueError(f"Expected a start layer from 0 to {count - 1}, got {start_layer}.")


def fuse(layer: Array, fusion: Fusion, discard: float, prefix: int) -> Array:
    """F_l: the heads as one matrix (T, T) whose rows sum to 1."""
    matrix: Array = _FUSIONS[fusion](layer, axis=0)
    _discard_smallest(matrix[:, prefix:], discard)
    mass = matrix.sum(axis=1)
    empty = np.flatnonzero(mass == 0)
    matrix[empty, empty] = mass[empty] = 1.0
    matrix /= mass[:, None]
    return matrix


def _discard_smallest(entries: Array, share: float) -> None:
    """Zero the smallest entries in place; a partition finds the last of them without sorting."""
    flat = entries.ravel()
    count = math.floor(share * flat.size)
    if not count:
        return
    threshold = np.partition(flat, count - 1)[count - 1]
    dropped = flat < threshold
    ties = np.flatnonzero(flat == threshold)
    dropped[ties[: count - np.count_nonzero(dropped)]] = True
    entries[dropped.reshape(entries.shape)] = 0.0


def rolled_out(
    fused: Sequence[Array], *, query: int | None, num_prefix_tokens: int, residual: float
) -> Array:
    """One row of the product: a vector times a matrix per layer, from the last layer back."""
    row = first_row(len(fused[0]), query, num_prefix_tokens).astype(fused[0].dtype)
    for matrix in reversed(fused):
        row = (1 - residual) * (row @ matrix) + residual * row
    return row


def first_row(tokens: int, query: int | None, num_prefix_tokens: int) -> Array:
    """Where the rollout begins: at the query, or at all patches where there is no prefix."""
    row = np.zeros(tokens)
    if query is None and not num_prefix_tokens:
        row[:] = 1 / tokens
    else:
        row[token_index(query, tokens)] = 1.0
    return row
