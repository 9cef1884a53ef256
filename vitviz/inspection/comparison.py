"""Two pictures in one model, and two models on one picture: matched patches and compared maps."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .embeddings import principal_components
from .inputs import Array, Grid, as_floats, checked_grid, unit_rows
from .sources import Tokens, is_capture, patches_of, table_of

Box = tuple[float, float, float, float]


def cross_similarity(patches: Tokens, others: Tokens, *, depth: int | None = None) -> Array:
    """Cosine similarity of every patch of one picture with every patch of another.

    Parameters
    ----------
    patches, others : array of shape (N, D) and (M, D), or two captures of one model
        Tokens of the patches alone. Of captures, after the final LayerNorm.
    depth : int
        Of the captures: after so many layers; the last where left out.

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
    Tokens also carry their position, so that patches at the same place of two pictures are more
    alike than their content makes them. A token of zeros is similar to none: its cosines are 0.
    """
    first, second = _tables(patches, others, depth)
    return np.clip(unit_rows(first) @ unit_rows(second).T, -1, 1)


def nearest_patches(similarity: ArrayLike, *, k: int = 1) -> NDArray[np.intp]:
    """The k patches of the other picture that are most similar to each patch.

    Parameters
    ----------
    similarity : array of shape (N, M)
    k : int
        At most M.

    Returns
    -------
    ndarray of int, shape (N, k)
        Numbers of patches, the most similar first; of equal ones the smaller number first.

    Raises
    ------
    ValueError
        When there are fewer than k.
    """
    table = _checked_table(similarity)
    if not 1 <= k <= table.shape[1]:
        raise ValueError(f"Expected a k from 1 to {table.shape[1]}, got {k}.")
    order: NDArray[np.intp] = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return order


def mutual_matches(similarity: ArrayLike) -> NDArray[np.intp]:
    """The pairs of patches each of which is the most similar one to the other.

    Parameters
    ----------
    similarity : array of shape (N, M)

    Returns
    -------
    ndarray of int, shape (pairs, 2)
        Numbers of the patch in the first picture and of that in the second, in the order of the
        first. No patch is in two pairs; of equally similar ones the smaller number counts.

    Notes
    -----
    A mutual pair is the best that both pictures offer, which need not be good: read its cosine.

    References
    ----------
    Amir et al., "Deep ViT Features as Dense Visual Descriptors" (2021), section 3.3, where they are
    called best buddies pairs.
    """
    table = _checked_table(similarity)
    there, back = table.argmax(axis=1), table.argmax(axis=0)
    first = np.flatnonzero(back[there] == np.arange(len(table)))
    return np.stack([first, there[first]], axis=1)


def joint_components(
    patches: Tokens, others: Tokens, *, n_components: int = 3, depth: int | None = None
) -> tuple[Array, Array, Array]:
    """Principal components of the patches of two pictures together.

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
    component may do nothing but tell the pictures apart. Signs are set as there.
    """
    first, second = _tables(patches, others, depth)
    both = np.concatenate([first, second])
    axes, explained = principal_components(both, n_components=n_components)
    points = ((both - both.mean(axis=0, dtype=np.float64)) @ axes.T).astype(both.dtype)
    return points[: len(first)], points[len(first) :], explained


def map_correlation(
    values: ArrayLike, others: ArrayLike, *, crop: Box, other_crop: Box
) -> tuple[float, Grid]:
    """Pearson's correlation of two maps of one picture, whose grids may differ.

    Parameters
    ----------
    values, others : arrays of shape (rows, cols), each in a grid of its own
    crop, other_crop : (left, top, right, bottom)
        Where the grids lie, in pixels of the picture.

    Returns
    -------
    correlation : float
        From -1 to 1; NaN where one of the maps has the same value everywhere.
    grid : (rows, cols)
        In which they were compared, that of `common_maps`.

    Raises
    ------
    ValueError
        When the two grids have no part of the picture in common.

    Notes
    -----
    It says nothing of sizes: maps of which one is ten times the other correlate by 1.
    """
    maps = common_maps(values, others, crop=crop, other_crop=other_crop)
    grid, flat = maps[0].shape, [one.ravel() for one in maps]
    centred = [one - one.mean() for one in flat]
    lengths = [float(np.linalg.norm(one)) for one in centred]
    rounding = [1e-9 * float(np.linalg.norm(one)) for one in flat]
    if any(length <= least for length, least in zip(lengths, rounding, strict=True)):
        return float("nan"), (grid[0], grid[1])
    correlation = float(np.clip(centred[0] @ centred[1] / (lengths[0] * lengths[1]), -1, 1))
    return correlation, (grid[0], grid[1])


def common_maps(
    values: ArrayLike, others: ArrayLike, *, crop: Box, other_crop: Box
) -> tuple[Array, Array]:
    """Two maps of one picture in one grid, resampled by area.

    Parameters
    ----------
    values, others, crop, other_crop
        As in `map_correlation`.

    Returns
    -------
    two ndarrays of float64, of one shape (rows, cols)
        Over the part of the picture that both grids cover, with as many rows and columns as the
        coarser of the two has; each cell has the mean of a map over its area.

    Raises
    ------
    ValueError
        When the two grids have no part of the picture in common.
    """
    first, second = _checked_table(values), _checked_table(others)
    left, top = np.maximum(crop[:2], other_crop[:2])
    right, bottom = np.minimum(crop[2:], other_crop[2:])
    if left >= right or top >= bottom:
        raise ValueError(f"Expected grids that overlap, got {crop} and {other_crop}.")
    grid = (min(len(first), len(second)), min(first.shape[1], second.shape[1]))
    box: Box = (float(left), float(top), float(right), float(bottom))
    return (
        resampled(first, crop=crop, to_grid=grid, to_crop=box),
        resampled(second, crop=other_crop, to_grid=grid, to_crop=box),
    )


def resampled(values: ArrayLike, *, crop: Box, to_grid: Grid, to_crop: Box) -> Array:
    """The mean of a map over the area of each cell of another grid of the same picture.

    Parameters
    ----------
    values : array of shape (rows, cols)
    crop, to_crop : (left, top, right, bottom)
        Where both grids lie, in one unit; the other grid lies within the first.
    to_grid : (rows, cols)

    Returns
    -------
    ndarray of float64, of the shape `to_grid`, in the unit of the values

    Raises
    ------
    ValueError
        When the other grid reaches beyond the first.
    """
    table, (rows, cols) = _checked_table(values), checked_grid(to_grid)
    (left, top, right, bottom), slack = crop, 1e-6 * (crop[2] - crop[0])
    if np.any(np.array(to_crop[:2]) < np.array([left, top]) - slack) or np.any(
        np.array(to_crop[2:]) > np.array([right, bottom]) + slack
    ):
        raise ValueError(f"Expected a grid within {crop}, got one at {to_crop}.")
    down = _overlap(table.shape[0], (top, bottom), rows, (to_crop[1], to_crop[3]))
    across = _overlap(table.shape[1], (left, right), cols, (to_crop[0], to_crop[2]))
    return down @ table.astype(np.float64) @ across.T


def nearest_depth(layer: int, depth: int, other_depth: int) -> int:
    """The layer of another model at the nearest relative depth.

    Parameters
    ----------
    layer : int
        From 0.
    depth, other_depth : how many layers each model has

    Returns
    -------
    int
        From 0. The last layer for the last; of two that are equally near, the later one.
    """
    if not 0 <= layer < depth:
        raise ValueError(f"Expected a layer from 0 to {depth - 1}, got {layer}.")
    # Layers end at (l + 1) / L; in whole numbers, so that a tie is one.
    numerator = 2 * (layer + 1) * other_depth + depth
    return max(numerator // (2 * depth), 1) - 1


def _overlap(
    count: int, extent: tuple[float, float], others: int, to: tuple[float, float]
) -> Array:
    """Of each of the other cells (others, count), the share of its length in each of these."""
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
        return table_of(tokens, depth, normalised=True)
    table, prefix, _ = patches_of(tokens, depth, normalised=True, grid=None, num_prefix_tokens=None)
    return table[prefix:]


def _checked_table(values: ArrayLike) -> Array:
    table = as_floats(values)
    if table.ndim != 2 or not table.size:
        raise ValueError(f"Expected an array of two axes, none of them empty, got {table.shape}.")
    return table
