"""Attention rollout: multiply all layers' attention, each mixed with the identity."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike

from ..common.query import Grid, Query
from .inputs import Array, as_floats, attends, check_choice, check_share
from .sources import Attention, Source, read_source

Fusion = Literal["mean", "max", "min"]

_FUSIONS: Mapping[Fusion, Callable[..., Array]] = {"mean": np.mean, "max": np.max, "min": np.min}


def attention_rollout(
    attention: Attention,
    *,
    num_prefix_tokens: int | None = None,
    query: Query | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    kept: ArrayLike | None = None,
    start_layer: int = 0,
    cls: bool | None = None,
    grid: Grid | None = None,
) -> Array:
    """Follow attention through the layers, from a query of the last one back to the input tokens.

    Each layer counts as (1 - residual) F + residual I, with F its heads fused into one matrix whose
    rows sum to 1; the result is the query's row of the product of all layers.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
    num_prefix_tokens : int
        Default 1; a capture knows it.
    query : int, (row, col) or str, optional
        A token, counted from 0 with the prefix, a patch of the grid, or a prefix token's name.
        Default: CLS, or the mean of the patches' rows if not `cls`.
    fusion : "mean", "max" or "min"
        Over heads.
    discard : float
        The share, from 0 to 1, of each fused matrix's entries outside the prefix columns that is
        set to zero, smallest first and, of equal ones, lowest index first. Rows are normalised
        afterwards; an empty row becomes the identity's.
    residual : float
        The weight of the skip connection, from 0 to 1.
    kept : array of shape (layers, tokens), optional
        In place of one weight for all, the share of each token that stays its own in each layer, as
        `Activations.carried(...).own_shares` measures it. What a token's own key adds is part of
        it, so the diagonal of F is left out.
    start_layer : int
        Layers before it are left out.
    cls : bool
        Whether token 0 is CLS rather than a register, and the answer is read there. Default: yes if
        there is a prefix; for a capture, if its head reads CLS and does not pool patches.
    grid : (rows, cols), optional
        Of arrays, for a query by its row and column. A capture knows it.

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
    Rollout ignores the values, the MLP and the class: it is the same map for every class, and does
    not explain the prediction. `max` and a discard give nearly the map of `mean`; `min` differs
    more: its correlation with `mean` was 0.5-0.9 in the median, by model and pictures.

    vit-explain (https://github.com/jacobgil/vit-explain) gives other numbers: it does not normalise
    the fused rows before it adds the identity, divides the sum by the sums of its rows along the
    wrong axis, so that rows of a layer sum to 0.90-1.54, and discards entries of the prefix columns
    too, except CLS at CLS.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020),
    https://doi.org/10.18653/v1/2020.acl-main.385; the ViT paper, Fig. 6 and 14.
    """
    source = read_source(attention, num_prefix_tokens=num_prefix_tokens, cls=cls, grid=grid)
    steps = list(_steps(source, fusion, discard, residual, kept, start_layer))
    return roll_out(
        [matrix for matrix, _ in steps],
        source,
        query=query,
        residual=[of_layer for _, of_layer in steps],
    )


def rollout_steps(
    attention: Attention,
    *,
    num_prefix_tokens: int | None = None,
    fusion: Fusion = "mean",
    discard: float = 0.0,
    residual: float = 0.5,
    kept: ArrayLike | None = None,
    start_layer: int = 0,
) -> Iterator[Array]:
    """Yield the rollout of every query after each layer from `start_layer` on.

    Parameters
    ----------
    attention, num_prefix_tokens, fusion, discard, residual, kept, start_layer
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
    Each layer takes a product of two matrices (tokens, tokens); a single query needs only a vector.
    """
    product: Array | None = None
    source = read_source(attention, num_prefix_tokens=num_prefix_tokens)
    for matrix, of_layer in _steps(source, fusion, discard, residual, kept, start_layer):
        step = np.reshape(1 - of_layer, (-1, 1)) * matrix
        step[np.diag_indices_from(step)] += of_layer
        product = step if product is None else step @ product
        yield product


def _steps(
    source: Source,
    fusion: Fusion,
    discard: float,
    residual: float,
    kept: ArrayLike | None,
    start_layer: int,
) -> Iterator[tuple[Array, Any]]:
    """Yield F of each layer, and the weight of its residual: a number, or one for each token."""
    check_choice("fusion", fusion, tuple(_FUSIONS))
    check_share("discard", discard)
    check_share("residual", residual)
    shares = None if kept is None else as_floats(kept)
    if shares is not None and not ((shares >= 0) & (shares <= 1)).all():
        raise ValueError(f"Expected shares kept from 0 to 1, got {shares.min()} to {shares.max()}.")
    count = 0
    for layer in source.arrays():
        count += 1
        if count <= start_layer or start_layer < 0:
            continue
        matrix = fuse_heads(layer, fusion, discard, source.prefix)
        if shares is None:
            yield matrix, residual
            continue
        if shares.ndim != 2 or count > len(shares) or shares.shape[1] != len(matrix):
            raise ValueError(
                f"Expected shares kept of shape (layers, {len(matrix)}), got {shares.shape}."
            )
        np.fill_diagonal(matrix, 0)
        _normalise_rows(matrix)
        yield matrix, shares[count - 1]
    if not 0 <= start_layer < count:
        raise ValueError(f"Expected a start layer from 0 to {count - 1}, got {start_layer}.")


def fuse_heads(layer: Array, fusion: Fusion, discard: float, prefix: int) -> Array:
    """Return F_l: the heads as one matrix (T, T) whose rows sum to 1."""
    matrix: Array = _FUSIONS[fusion](layer, axis=0)
    _discard_smallest(matrix[:, prefix:], discard)
    _normalise_rows(matrix)
    return matrix


def _normalise_rows(matrix: Array) -> None:
    """Divide each row by its sum, in place; an empty row becomes the identity's."""
    mass = matrix.sum(axis=1)
    empty = np.flatnonzero(~attends(mass))
    matrix[empty] = 0.0
    matrix[empty, empty] = mass[empty] = 1.0
    matrix /= mass[:, None]


def _discard_smallest(entries: Array, share: float) -> None:
    """Zero the smallest entries in place; a partition finds the last of them without sorting."""
    flat = entries.ravel()
    count = math.floor(Fraction(str(float(share))) * flat.size)  # 0.29 of 100 are 29, not 28
    if not count:
        return
    threshold = np.partition(flat, count - 1)[count - 1]
    dropped = flat < threshold
    ties = np.flatnonzero(flat == threshold)
    dropped[ties[: count - np.count_nonzero(dropped)]] = True
    entries[dropped.reshape(entries.shape)] = 0.0


def roll_out(
    fused: Sequence[Array],
    source: Source,
    *,
    query: Query | None = None,
    residual: Sequence[Any] | None = None,
) -> Array:
    """Multiply the first row by the matrix of each layer, from the last layer back.

    `residual` has for each layer its weight, or one for each token; 0.5 where it is left out.
    """
    row = first_row(len(fused[0]), source, query).astype(fused[0].dtype)
    for matrix, weight in zip(
        reversed(fused), reversed(residual or [0.5] * len(fused)), strict=True
    ):
        row = ((1 - weight) * row) @ matrix + weight * row
    return row


def first_row(tokens: int, source: Source, query: Query | None = None) -> Array:
    """Return the row vector to begin with: all on the query or CLS, or shared among the patches."""
    row = np.zeros(tokens)
    if query is None and not source.cls:
        row[source.prefix :] = 1 / (tokens - source.prefix)
    else:
        row[0 if query is None else source.token(query, tokens)] = 1.0
    return row
