"""Attention rollout: the product of all layers' attention, each mixed with the identity."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

import numpy as np

from .inputs import Array, check_choice, check_share, token_index
from .sources import Attention, Source, source_of

Fusion = Literal["mean", "max", "min"]

_FUSIONS: Mapping[Fusion, Callable[..., Array]] = {"mean": np.mean, "max": np.max, "min": np.min}


def attention_rollout(
    attention: Attention,
    *,
    num_prefix_tokens: int | None = None,
    query: int | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    start_layer: int = 0,
    cls: bool | None = None,
) -> Array:
    """Attention followed through the layers, from the last one's query back to the input tokens.

    Each layer is taken as (1 - residual) F + residual I, with F its heads fused into one matrix
    whose rows sum to 1; the result is the query's row of the product of all layers.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
    num_prefix_tokens : int
        1 where left out; a capture knows it.
    query : int, optional
        A token, counted from 0 with the prefix. Left out: CLS, or the mean of the patches' rows
        without `cls`.
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
    cls : bool
        Whether token 0 is CLS, and no register, and the answer is read there. Left out: yes where
        there is a prefix; of a capture, where its head reads CLS and pools no patches.

    Returns
    -------
    ndarray of shape (tokens,)
        Shares that sum to 1, prefix tokens first.

    Raises
    ------
    ValueError
        When a setting is outside its range, an argument contradicts the capture, or a layer has
        another shape.

    Notes
    -----
    Rollout knows no values, no MLP and no class: it is the same map for every class, and no
    explanation of the prediction. `max` and a discard give nearly the map of `mean`; `min` differs
    more: its correlation with `mean` was 0.5-0.9 in the median, by model and pictures.

    The well-known vit-explain (https://github.com/jacobgil/vit-explain) gives other numbers: it
    does not normalise the fused rows before it adds the identity, divides the sum by the sums of
    its rows along the wrong axis, so that rows of a layer sum to 0.90-1.54, and counts the columns
    of the prefix among the entries that are discarded, of which only CLS at CLS is spared.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020),
    https://doi.org/10.18653/v1/2020.acl-main.385; the ViT paper, Fig. 6 and 14.
    """
    source = source_of(attention, num_prefix_tokens=num_prefix_tokens, cls=cls)
    matrices = list(_fused_layers(source, fusion, discard, residual, start_layer))
    return rolled_out(matrices, source, query=query, residual=residual)


def rollout_steps(
    attention: Attention,
    *,
    num_prefix_tokens: int | None = None,
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
    source = source_of(attention, num_prefix_tokens=num_prefix_tokens)
    for matrix in _fused_layers(source, fusion, discard, residual, start_layer):
        step = (1 - residual) * matrix
        step[np.diag_indices_from(step)] += residual
        product = step if product is None else step @ product
        yield product


def _fused_layers(
    source: Source,
    fusion: Fusion,
    discard: float,
    residual: float,
    start_layer: int,
) -> Iterator[Array]:
    check_choice("fusion", fusion, tuple(_FUSIONS))
    check_share("discard", discard)
    check_share("residual", residual)
    count = 0
    for layer in source.checked():
        count += 1
        if count > start_layer >= 0:
            yield fuse(layer, fusion, discard, source.prefix)
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
    fused: Sequence[Array], source: Source, *, query: int | None = None, residual: float = 0.5
) -> Array:
    """One row of the product: a vector times a matrix per layer, from the last layer back."""
    row = first_row(len(fused[0]), source, query).astype(fused[0].dtype)
    for matrix in reversed(fused):
        row = (1 - residual) * (row @ matrix) + residual * row
    return row


def first_row(tokens: int, source: Source, query: int | None = None) -> Array:
    """The row vector that is multiplied: all on the query or CLS, or shared among the patches."""
    row = np.zeros(tokens)
    if query is None and not source.cls:
        row[source.prefix :] = 1 / (tokens - source.prefix)
    else:
        row[token_index(query, tokens)] = 1.0
    return row
