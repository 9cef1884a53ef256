"""Average attention by the offset from query to key, and bin it by distance."""

import numpy as np

from ..common.query import Grid
from .attention import Variant, patch_distances
from .inputs import (
    Array,
    PatchSize,
    attends,
    check_choice,
    check_grid,
)
from .sources import LayerAttention, read_layer


def offset_attention(
    layer_attention: LayerAttention,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    variant: Variant = "renormalised",
    min_queries: int = 1,
    layer: int | None = None,
) -> Array:
    """Measure the mean attention of a patch to the patch at each offset from itself.

    Parameters
    ----------
    layer_attention : array of shape (heads, tokens, tokens), or a capture
    grid : (rows, cols)
    num_prefix_tokens : int
        Default 1. A capture knows this and the grid.
    variant : "renormalised" or "paper"
        As in `attention_distance`.
    min_queries : int
        Offsets with fewer queries are left out.
    layer : int
        Of the capture.

    Returns
    -------
    ndarray of shape (heads, 2 * rows - 1, 2 * cols - 1)
        Shares of attention, from 0 to 1: [h, rows - 1 + down, cols - 1 + right] is the mean over
        the queries with a patch so many rows down and columns to the right. Offsets left out are
        NaN.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, an argument contradicts the capture, or the
        variant is unknown.

    Notes
    -----
    The larger an offset, the fewer queries have it: a corner is the mean of a single one, so the
    cells do not sum to 1, and the largest one may be chance. If renormalised, uniform attention
    gives 1 / (rows * cols) everywhere, and rows wholly on the prefix do not count.

    References
    ----------
    Cordonnier, Loukas and Jaggi, "On the Relationship between Self-Attention and Convolutional
    Layers" (ICLR 2020): attention of each head by relative position.
    """
    attention, source = read_layer(
        layer_attention, layer, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    maps = []
    for sums, lacking, _ in _offset_sums(attention, source.grid, source.prefix, variant):
        counts = offset_pairs(source.grid) - lacking
        enough = counts >= max(1, min_queries)
        maps.append(np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=enough))
    return np.stack(maps)


def distance_histogram(
    layer_attention: LayerAttention,
    *,
    bin_width: float,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    variant: Variant = "renormalised",
    layer: int | None = None,
) -> Array:
    """Measure how the attention of the patches is spread over distance.

    Parameters
    ----------
    layer_attention : array of shape (heads, tokens, tokens), or a capture
    bin_width : float
        In pixels. Bin k holds the distances that are closer to k * bin_width than to the centres of
        its neighbours; with square patches of that width, bin 0 is the query itself.
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.
    num_prefix_tokens : int
        Default 1. A capture knows this, the grid and the size.
    variant : "renormalised" or "paper"
        As in `attention_distance`.
    layer : int
        Of the capture.

    Returns
    -------
    ndarray of shape (heads, bins)
        Shares of attention: a row sums to 1 if renormalised, else to 1 minus the `prefix_mass`. If
        renormalised, a head whose rows all lie wholly on the prefix is NaN.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, an argument contradicts the capture, or the
        bins have no width.

    Notes
    -----
    There are more patches at middle distances than next to a query: compare each bar with
    `uniform_histogram`, not with the other bars.
    """
    attention, source = read_layer(
        layer_attention,
        layer,
        grid=grid,
        patch_size=patch_size,
        num_prefix_tokens=num_prefix_tokens,
    )
    bins = _bins(source.grid, source.patch_size, bin_width)
    rows = []
    for sums, _, queries in _offset_sums(attention, source.grid, source.prefix, variant):
        weight = np.bincount(bins.ravel(), sums.ravel())
        rows.append(weight / queries if queries else np.full_like(weight, np.nan))
    return np.stack(rows)


def uniform_histogram(grid: Grid, patch_size: PatchSize, *, bin_width: float) -> Array:
    """Return the `distance_histogram` of uniform attention: ndarray of shape (bins,)."""
    bins, pairs = _bins(grid, patch_size, bin_width), offset_pairs(grid)
    weight: Array = np.bincount(bins.ravel(), pairs.ravel()) / pairs.sum()
    return weight


def _offset_sums(
    layer: Array, grid: Grid, prefix: int, variant: Variant
) -> list[tuple[np.ndarray, np.ndarray, int]]:
    """Return by head attention summed by offset, the pairs of rows left out, and the row count."""
    check_choice("variant", variant, ("renormalised", "paper"))
    offset, shape = offset_numbers(grid), (2 * grid[0] - 1, 2 * grid[1] - 1)
    size = shape[0] * shape[1]
    by_head: list[tuple[np.ndarray, np.ndarray, int]] = []
    for head in layer[:, prefix:, prefix:]:
        attending = np.ones(len(head), bool)
        if variant == "renormalised":
            mass = head.sum(axis=1, keepdims=True)
            attending = attends(mass[:, 0])
            head = np.divide(head, mass, out=np.zeros_like(head), where=attending[:, None])
        sums = np.bincount(offset.ravel(), head.ravel(), minlength=size)
        lacking = np.bincount(offset[~attending].ravel(), minlength=size)
        by_head.append((sums.reshape(shape), lacking.reshape(shape), int(attending.sum())))
    return by_head


def offset_numbers(grid: Grid) -> np.ndarray:
    """Number the offsets from each query to each key, row by row: (N, N)."""
    rows, cols = check_grid(grid)
    down = np.subtract.outer(np.arange(rows), np.arange(rows)).T + rows - 1  # key minus query
    right = np.subtract.outer(np.arange(cols), np.arange(cols)).T + cols - 1
    number = down[:, None, :, None] * (2 * cols - 1) + right[None, :, None, :]  # (R, S, R, S)
    return number.reshape(rows * cols, rows * cols)


def offset_pairs(grid: Grid) -> np.ndarray:
    """Count the queries that have a key at each offset: (2 R - 1, 2 S - 1)."""
    rows, cols = check_grid(grid)
    return np.outer(rows - abs(np.arange(1 - rows, rows)), cols - abs(np.arange(1 - cols, cols)))


def _bins(grid: Grid, patch_size: PatchSize, bin_width: float) -> np.ndarray:
    """Return the bin of each offset: (2 R - 1, 2 S - 1)."""
    if not bin_width > 0:
        raise ValueError(f"Expected bins of a width above 0 pixels, got {bin_width}.")
    rows, cols = check_grid(grid)
    # Seen from the corner, every offset that points down and right occurs once.
    corner = patch_distances(grid, patch_size)[0].reshape(rows, cols)
    quarter = np.floor(corner / bin_width + 0.5).astype(int)
    down, right = abs(np.arange(1 - rows, rows)), abs(np.arange(1 - cols, cols))
    return quarter[np.ix_(down, right)]
