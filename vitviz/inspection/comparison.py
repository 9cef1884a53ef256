"""Compare two pictures in one model, or two models on one picture: match patches, compare maps."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.query import Crop, Grid
from .embeddings import principal_components
from .inputs import (
    Array,
    as_floats,
    check_grid,
    rounding,
    unit_rows,
)
from .sources import Tokens, is_capture, patch_tokens, token_table

#: (left, top, right, bottom) in pixels of a picture.


def cross_similarity(patches: Tokens, others: Tokens, *, depth: int | None = None) -> Array:
    """Compute the cosine of every patch of one picture with every patch of another.

    Parameters
    ----------
    patches, others : array of shape (N, D) and (M, D), or two captures of one model
        Tokens of the patches alone. For captures, after the final LayerNorm.
    depth : int
        Layers of the captures after which tokens are read; default all.

    Returns
    -------
    ndarray of shape (N, M)
        From -1 to 1.

    Raises
    ------
    ValueError
        When the two have tokens of different widths.

    Notes
    -----
    Tokens also carry their position, so patches at the same place of two pictures are more alike
    than their content. A token of zeros is similar to none: its cosines are 0.
    """
    first, second = _tables(patches, others, depth)
    return np.clip(unit_rows(first) @ unit_rows(second).T, -1, 1)


def nearest_patches(similarity: ArrayLike, *, k: int = 1) -> NDArray[np.intp]:
    """Find the k patches of the other picture that are most similar to each patch.

    Parameters
    ----------
    similarity : array of shape (N, M)
    k : int
        At most M.

    Returns
    -------
    ndarray of int, shape (N, k)
        Numbers of patches, the most similar first; of those that are equal except for rounding, the
        smaller number first.

    Raises
    ------
    ValueError
        When there are fewer than k.
    """
    table = _check_table(similarity)
    if not 1 <= k <= table.shape[1]:
        raise ValueError(f"Expected a k from 1 to {table.shape[1]}, got {k}.")
    order = np.argsort(-table, axis=1, kind="stable")
    falling = np.take_along_axis(table, order, axis=1)
    apart = falling[:, :-1] - falling[:, 1:] > rounding(table)
    group = np.pad(apart.cumsum(axis=1), ((0, 0), (1, 0)))  # of values that are equal
    nearest: NDArray[np.intp] = np.take_along_axis(order, np.lexsort((order, group)), axis=1)
    return nearest[:, :k]


def mutual_matches(similarity: ArrayLike) -> NDArray[np.intp]:
    """Find the pairs of patches that are each other's most similar patch.

    Parameters
    ----------
    similarity : array of shape (N, M)

    Returns
    -------
    ndarray of int, shape (pairs, 2)
        Number of the patch in the first picture and in the second, in the order of the first. No
        patch is in two pairs; of equally similar ones the smaller number counts.

    Notes
    -----
    A mutual pair is the best that both pictures offer, which need not be good: read its cosine.

    References
    ----------
    Amir et al., "Deep ViT Features as Dense Visual Descriptors" (2021), section 3.3, where they are
    called best buddies pairs.
    """
    table = _check_table(similarity)
    least = rounding(table)
    forward = (table >= table.max(axis=1, keepdims=True) - least).argmax(axis=1)
    back = (table >= table.max(axis=0) - least).argmax(axis=0)
    first = np.flatnonzero(back[forward] == np.arange(len(table)))
    return np.stack([first, forward[first]], axis=1)


def joint_components(
    patches: Tokens, others: Tokens, *, n_components: int = 3, depth: int | None = None
) -> tuple[Array, Array, Array]:
    """Compute the principal components of the patches of two pictures together.

    Parameters
    ----------
    patches, others, depth
        As in `cross_similarity`.
    n_components : int
        At most min(N + M, D).

    Returns
    -------
    first : ndarray of shape (N, n_components)
    second : ndarray of shape (M, n_components)
        Coordinates in the tokens' unit, on the same axes; their mean over both pictures is 0.
    explained_variance : ndarray of shape (n_components,)
        The share of the variance of all patches along each component, from 0 to 1.

    Raises
    ------
    ValueError
        When the two have tokens of different widths, or fewer components than asked for.

    Notes
    -----
    Equal coordinates mean the same in both pictures, unlike those of `token_components`. A
    component may merely separate the two pictures. Signs are set as in `token_components`.
    """
    first, second = _tables(patches, others, depth)
    both = np.concatenate([first, second])
    axes, explained = principal_components(both, n_components=n_components)
    points = ((both - both.mean(axis=0, dtype=np.float64)) @ axes.T).astype(both.dtype)
    return points[: len(first)], points[len(first) :], explained


def map_correlation(
    values: ArrayLike, others: ArrayLike, *, crop: Crop, other_crop: Crop
) -> tuple[float, Grid]:
    """Compute Pearson's correlation of two maps of one picture, whose grids may differ.

    Parameters
    ----------
    values, others : arrays of shape (rows, cols), each in a grid of its own
    crop, other_crop : (left, top, right, bottom)
        Boxes of the grids, in pixels of the picture.

    Returns
    -------
    correlation : float
        From -1 to 1; NaN if one of the maps is constant except for rounding.
    grid : (rows, cols)
        The grid of the comparison, that of `common_maps`.

    Raises
    ------
    ValueError
        When the two grids have no part of the picture in common.

    Notes
    -----
    It ignores scale: a map and ten times that map correlate by 1.
    """
    maps = common_maps(values, others, crop=crop, other_crop=other_crop)
    rows, cols = maps[0].shape
    least = [rounding(as_floats(one)) for one in (values, others)]
    return _correlation(maps, least), (rows, cols)


def correlation(values: ArrayLike, others: ArrayLike) -> float:
    """Compute Pearson's correlation of two arrays; NaN if one varies only by rounding."""
    both = as_floats(values), as_floats(others)
    return _correlation(both, [rounding(one) for one in both])


def patch_ranks(values: ArrayLike) -> Array:
    """Rank the patches of a map, so that maps of different units can be compared.

    Parameters
    ----------
    values : array of any shape
        Finite numbers.

    Returns
    -------
    ndarray of float64, of the same shape
        Share of the other patches whose value is smaller, from 0 to 1; those that are equal count
        half. So the mean is 0.5, and 0.5 everywhere where the map does not vary.

    Raises
    ------
    ValueError
        When a number is not finite.

    Notes
    -----
    Ranks keep the order alone: a map with one strong patch and one with many may look alike.
    """
    table = np.asarray(values, np.float64)
    if not np.isfinite(table).all():
        raise ValueError("Expected finite numbers to rank, got NaN or infinity.")
    _, group, counts = np.unique(table, return_inverse=True, return_counts=True)
    smaller = counts.cumsum() - counts
    ranks = (smaller + (counts - 1) / 2) / max(table.size - 1, 1)
    if table.size == 1:
        ranks = np.full(1, 0.5)
    return np.asarray(ranks[group].reshape(table.shape))


def _correlation(both: Sequence[Array], least: Sequence[float]) -> float:
    """Compute `correlation`; `least` are the relative rounding errors of each array."""
    flat = [one.ravel().astype(np.float64) for one in both]
    centred = [one - one.mean() for one in flat]
    lengths = [float(np.linalg.norm(one)) for one in centred]
    sizes = [float(np.linalg.norm(one)) for one in flat]
    if any(own <= share * size for own, share, size in zip(lengths, least, sizes, strict=True)):
        return float("nan")
    unit = [one / length for one, length in zip(centred, lengths, strict=True)]
    return float(np.clip(unit[0] @ unit[1], -1, 1))


def common_maps(
    values: ArrayLike, others: ArrayLike, *, crop: Crop, other_crop: Crop
) -> tuple[Array, Array]:
    """Resample two maps of one picture to one grid, by area.

    Parameters
    ----------
    values, others, crop, other_crop
        As in `map_correlation`.

    Returns
    -------
    two ndarrays of float64, of one shape (rows, cols)
        Over the part of the picture that both grids cover, with the rows and columns of the coarser
        one; each cell has the mean of a map over its area.

    Raises
    ------
    ValueError
        When the two grids have no part of the picture in common.
    """
    first, second = _check_table(values), _check_table(others)
    left, top = np.maximum(crop[:2], other_crop[:2])
    right, bottom = np.minimum(crop[2:], other_crop[2:])
    if left >= right or top >= bottom:
        raise ValueError(f"Expected grids that overlap, got {crop} and {other_crop}.")
    grid = (min(len(first), len(second)), min(first.shape[1], second.shape[1]))
    box: Crop = (float(left), float(top), float(right), float(bottom))
    return (
        resampled(first, crop=crop, to_grid=grid, to_crop=box),
        resampled(second, crop=other_crop, to_grid=grid, to_crop=box),
    )


def resampled(values: ArrayLike, *, crop: Crop, to_grid: Grid, to_crop: Crop) -> Array:
    """Average a map over the area of each cell of another grid of the same picture.

    Parameters
    ----------
    values : array of shape (rows, cols)
    crop, to_crop : (left, top, right, bottom)
        Boxes of both grids, in one unit; the new grid lies within the first.
    to_grid : (rows, cols)

    Returns
    -------
    ndarray of float64, of the shape `to_grid`, in the unit of the values

    Raises
    ------
    ValueError
        When the new grid reaches beyond the first.
    """
    table, (rows, cols) = _check_table(values), check_grid(to_grid)
    (left, top, right, bottom), slack = crop, 1e-6 * (crop[2] - crop[0])
    if np.any(np.array(to_crop[:2]) < np.array([left, top]) - slack) or np.any(
        np.array(to_crop[2:]) > np.array([right, bottom]) + slack
    ):
        raise ValueError(f"Expected a grid within {crop}, got one at {to_crop}.")
    down = _overlap(table.shape[0], (top, bottom), rows, (to_crop[1], to_crop[3]))
    across = _overlap(table.shape[1], (left, right), cols, (to_crop[0], to_crop[2]))
    return down @ table.astype(np.float64) @ across.T


def nearest_depth(layer: int, depth: int, other_depth: int) -> int:
    """Return the layer of another model at the nearest relative depth.

    Parameters
    ----------
    layer : int
        From 0.
    depth, other_depth : number of layers of each model

    Returns
    -------
    int
        From 0. The last layer corresponds to the last; of two equally near, the later one.
    """
    if not 0 <= layer < depth:
        raise ValueError(f"Expected a layer from 0 to {depth - 1}, got {layer}.")
    # Layers end at (l + 1) / L; computed in integers, so that ties are exact.
    numerator = 2 * (layer + 1) * other_depth + depth
    return max(numerator // (2 * depth), 1) - 1


def _overlap(
    count: int, extent: tuple[float, float], others: int, to: tuple[float, float]
) -> Array:
    """Return for each new cell (others, count) the share of its length in each old cell."""
    edges, ends = np.linspace(*extent, count + 1), np.linspace(*to, others + 1)
    begin = np.maximum(edges[:-1], ends[:-1, None])
    end = np.minimum(edges[1:], ends[1:, None])
    length: Array = np.maximum(end - begin, 0)
    return length / length.sum(axis=1, keepdims=True)


def _tables(patches: Tokens, others: Tokens, depth: int | None) -> tuple[Array, Array]:
    first, second = (_patches(one, depth) for one in (patches, others))
    if first.shape[1] != second.shape[1]:
        raise ValueError(
            f"Expected tokens of one width, got {first.shape[1]} and {second.shape[1]} numbers."
        )
    return first, second


def _patches(tokens: Tokens, depth: int | None) -> Array:
    if not is_capture(tokens):
        return token_table(tokens, depth, normalised=True)
    table, prefix, _ = patch_tokens(
        tokens, depth, normalised=True, grid=None, num_prefix_tokens=None
    )
    return table[prefix:]


def _check_table(values: ArrayLike) -> Array:
    table = as_floats(values)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"Expected an array of two axes, none of them empty, got {table.shape}.")
    return table
