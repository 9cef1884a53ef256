"""Measure each head: attention distance, entropy, prefix mass, and the map of one query."""

from typing import Literal

import numpy as np
from numpy.typing import DTypeLike

from ..common.query import Direction, Grid, Query
from .inputs import (
    Array,
    PatchSize,
    attends,
    check_choice,
    check_grid,
    check_layers,
    stack_layers,
)
from .sources import Attention, LayerAttention, read_layer, read_source

Variant = Literal["renormalised", "paper"]

_BLOCK = 128  # rows whose logarithms are taken at once, which fit into the processor's cache


def uniform_distance(grid: Grid, patch_size: PatchSize) -> float:
    """Return the attention distance of uniform attention, in pixels.

    Parameters
    ----------
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.

    Returns
    -------
    float
        116.49 for 14 x 14 patches of 16 pixels.

    Raises
    ------
    ValueError
        When a number is below 1.

    Notes
    -----
    It is not an upper bound: a head that looks at the far side of the picture lies above it.
    """
    return float(patch_distances(grid, patch_size).mean())


def attention_distance(
    attention: Attention,
    *,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    variant: Variant = "renormalised",
) -> Array:
    """Measure how far each head looks: distance between query and key, weighted by attention.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.
    num_prefix_tokens : int
        Default 1. A capture knows this, the grid and the size.
    variant : "renormalised" or "paper"
        Whether each row of the patch-to-patch block is first divided by its sum, or used as it is
        without the prefix columns.

    Returns
    -------
    ndarray of shape (layers, heads)
        Pixels. A patch is at distance 0 from itself, and counts.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, an argument contradicts the capture, or the
        variant is unknown.

    Notes
    -----
    `paper` is the common implementation; the paper's text does not say how CLS was treated. It
    understates the distance by the attention on the prefix tokens and can re-order heads: show
    `prefix_mass` beside it. If renormalised, a row wholly on the prefix is left out, and a head
    with no row left is NaN; a row almost wholly on the prefix counts as much as any other.
    The distance is a mean: a head that looks both near and far scores like one that looks halfway.
    `uniform_distance` is the score of a head that looks everywhere alike.

    References
    ----------
    The ViT paper, Fig. 7 right and Fig. 11.
    """
    check_choice("variant", variant, ("renormalised", "paper"))
    source = read_source(
        attention, grid=grid, patch_size=patch_size, num_prefix_tokens=num_prefix_tokens
    )
    pixels = patch_distances(source.grid, source.patch_size)
    distance = []
    for layer in source.arrays(source.grid):
        pixels = pixels.astype(layer.dtype, copy=False)
        distance.append(head_distance(layer, pixels, source.prefix, variant))
    return stack_layers(distance)


def attention_entropy(attention: Attention) -> Array:
    """Measure how widely each head spreads its attention: the mean entropy over all queries.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture

    Returns
    -------
    ndarray of shape (layers, heads)
        Bits, with the queries of the prefix: 0 if every query looks at one key, log2(tokens) if all
        keys share equally.

    Raises
    ------
    ValueError
        When a layer has another shape.

    Notes
    -----
    Entropy ignores where the keys are: 2 bits may be four neighbours or the four corners. Compare
    models with equal numbers of tokens only, as the maximum grows with them.
    """
    layers = read_source(attention).layers
    return stack_layers(head_entropy(layer) for layer in check_layers(layers))


def prefix_mass(attention: Attention, *, num_prefix_tokens: int | None = None) -> Array:
    """Measure the share of the patches' attention that goes to the prefix tokens.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
    num_prefix_tokens : int
        Default 1; a capture knows it.

    Returns
    -------
    ndarray of shape (layers, heads)
        From 0 to 1, the mean over the patch rows.

    Raises
    ------
    ValueError
        When the prefix leaves no patch, or is not the capture's.

    Notes
    -----
    The prefix tokens' own rows do not count: the share of CLS on itself is not in this number.
    """
    source = read_source(attention, num_prefix_tokens=num_prefix_tokens)
    return stack_layers(head_prefix_mass(layer, source.prefix) for layer in source.arrays())


def query_attention(
    layer_attention: LayerAttention,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    query: Query | None = None,
    direction: Direction = "row",
    cls: bool | None = None,
    layer: int | None = None,
) -> Array:
    """Map where one token looks, or which patches look at it, on the patch grid.

    Parameters
    ----------
    layer_attention : array of shape (heads, tokens, tokens), or a capture
    grid : (rows, cols)
    num_prefix_tokens : int
        Default 1. A capture knows this and the grid.
    query : int, (row, col) or str, optional
        A token, counted from 0 with the prefix, a patch of the grid, or a prefix token's name.
        Default: CLS, or the mean of the patches' rows if not `cls`.
    direction : "row" or "column"
        How much the query looks at each patch, or how much each patch looks at the query.
    cls : bool
        Whether token 0 is CLS rather than a register, and the answer is read there. Default: yes if
        there is a prefix; for a capture, if its head reads CLS and does not pool patches.
    layer : int
        Of the capture.

    Returns
    -------
    ndarray of shape (heads, rows, cols)
        Shares of attention, from 0 to 1.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, the query is not among them, an argument
        contradicts the capture, or the direction is unknown.

    Notes
    -----
    A row's map sums to 1 minus the query's share on the prefix, which can be most of it. A column's
    map may have any sum, and differs much from the row's; the mean over the patches' columns is the
    share of each patch's attention that stays on patches, divided by their number.
    `Activations.attention_map` shows CLS wherever there is one.

    References
    ----------
    The ViT paper, appendix A, eq. 6 (A).
    """
    check_choice("direction", direction, ("row", "column"))
    attention, source = read_layer(
        layer_attention, layer, grid=grid, num_prefix_tokens=num_prefix_tokens, cls=cls
    )
    rows = attention if direction == "row" else attention.swapaxes(1, 2)  # (h, query, patches)
    if query is None and not source.cls:
        row = rows[:, source.prefix :].mean(axis=1)
    else:
        row = rows[:, 0 if query is None else source.token(query, rows.shape[1])]
    return row[:, source.prefix :].reshape(-1, *source.grid).copy()  # (h, rows, cols)


def patch_distances(grid: Grid, patch_size: PatchSize, dtype: DTypeLike = np.float64) -> Array:
    """Return the pixels between each pair of patches: (N, N)."""
    rows, cols = check_grid(grid)
    size = np.asarray(patch_size, dtype=dtype)
    if size.shape not in ((), (2,)) or not (size > 0).all():
        raise ValueError(
            f"Expected a patch size of one number or (height, width) above 0, got {patch_size}."
        )
    height, width = np.broadcast_to(size, 2)
    down = np.subtract.outer(np.arange(rows), np.arange(rows)).astype(dtype) * height
    right = np.subtract.outer(np.arange(cols), np.arange(cols)).astype(dtype) * width
    squared = down[:, None, :, None] ** 2 + right[None, :, None, :] ** 2  # (R, S, R, S)
    pixels: Array = np.sqrt(squared, out=squared).reshape(rows * cols, rows * cols)
    return pixels


def head_distance(layer: Array, pixels: Array, prefix: int, variant: Variant) -> Array:
    patches = layer[:, prefix:, prefix:]  # (h, N, N)
    weighted = np.vecdot(patches, pixels)  # (h, N)
    if variant == "paper":
        return weighted.mean(axis=1, dtype=np.float64)
    return mean_distance(weighted, patches.sum(axis=2))


def mean_distance(weighted: Array, mass: Array) -> Array:
    """Divide each row's distance by its mass on patches, and average: (..., N) -> (...)."""
    attending = attends(mass)
    distance = np.divide(weighted, mass, out=np.zeros_like(weighted), where=attending)
    total, count = distance.sum(axis=-1, dtype=np.float64), attending.sum(axis=-1)
    return np.divide(total, count, out=np.full_like(total, np.nan), where=count > 0)


def head_entropy(layer: Array) -> Array:
    heads, _, keys = layer.shape
    rows = layer.reshape(-1, keys)
    negative = np.empty(len(rows))  # sum of p log2 p
    buffer = np.empty((_BLOCK, keys), layer.dtype)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        logarithm = buffer[: len(block)]
        np.maximum(block, np.finfo(layer.dtype).tiny, out=logarithm)  # so that 0 log 0 = 0
        np.log2(logarithm, out=logarithm)
        negative[start : start + _BLOCK] = np.vecdot(block, logarithm)
    return 0.0 - negative.reshape(heads, -1).mean(axis=1)  # unary minus would yield -0


def entropy_of_scores(scores: Array, attention: Array) -> Array:
    """Return the entropy of rows whose scores are known: (h, rows, T) -> (h, rows), in bits.

    As ln p = s - ln Z, it is ln Z minus the mean score, which needs one logarithm per row. Z, the
    sum that softmax divides by, follows from any entry of the row that is not nearly 0. The largest
    of the first few will do; reading the whole row takes longer. In float32 a row is exact to about
    2e-5 bits at scores of 60, a head's mean to 1e-6.
    """
    rows, shares = scores.reshape(-1, scores.shape[2]), attention.reshape(-1, scores.shape[2])
    entries = np.arange(len(rows)), rows[:, :64].argmax(axis=1)
    if (shares[entries] < 1e-30).any():
        entries = entries[0], rows.argmax(axis=1)
    log_z = rows[entries] - np.log(shares[entries])
    bits: Array = log_z.reshape(scores.shape[:2]) - np.vecdot(attention, scores)
    bits /= np.log(2, dtype=scores.dtype)
    return np.maximum(bits, 0)  # rounding may go below 0


def head_prefix_mass(layer: Array, prefix: int) -> Array:
    return layer[:, prefix:, :prefix].sum(axis=2).mean(axis=1, dtype=np.float64)
