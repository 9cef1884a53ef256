"""Measure position embeddings by their cosines, build tables to compare with, and resize them."""

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from ..common.query import Grid
from .inputs import (
    Array,
    as_floats,
    check_choice,
    check_grid,
    unit_rows,
)

PositionKind = Literal["sincos1d", "sincos2d", "random"]
Interpolation = Literal["bicubic", "bilinear", "nearest"]
#: Offset in patches and cosine along each line through a position.
DirectionProfile = dict[str, tuple[Array, Array]]


def position_similarity(pos_embed: ArrayLike, *, grid: Grid) -> Array:
    """Compute the cosine of every patch's position embedding with every other's.

    Parameters
    ----------
    pos_embed : array of shape (N, D) or (prefix + N, D)
        Its last rows * cols rows are the patches'.
    grid : (rows, cols)

    Returns
    -------
    ndarray of shape (rows, cols, rows, cols)
        From -1 to 1: [i, j] is the tile of the patch in row i and column j.

    Raises
    ------
    ValueError
        When there are fewer embeddings than patches.

    Notes
    -----
    A zero vector has no direction: its similarity to all, itself included, is 0. A tile shows which
    positions the embedding distinguishes, not how much later layers use the difference.

    References
    ----------
    The ViT paper, Fig. 7 centre and Fig. 10.
    """
    rows, cols = check_grid(grid)
    table = _check_table(pos_embed, grid)
    patches = unit_rows(table[-rows * cols :].astype(np.float64))  # (N, D)
    similarity = np.clip(patches @ patches.T, -1.0, 1.0)  # (N, N)
    return similarity.reshape(rows, cols, rows, cols).astype(table.dtype)


def neighbour_similarity(similarity: ArrayLike) -> float:
    """Average the cosine of all pairs of positions that lie side by side or one above the other.

    Parameters
    ----------
    similarity : array of shape (rows, cols, rows, cols)
        Of `position_similarity`.

    Returns
    -------
    float
        From -1 to 1; NaN on a grid of one position.
    """
    cosines = _check_similarity(similarity)
    row, col = np.arange(len(cosines))[:, None], np.arange(cosines.shape[1])
    beside = cosines[row, col[1:], row, col[:-1]]
    above = cosines[row[1:], col, row[:-1], col]
    pairs = np.concatenate([beside.ravel(), above.ravel()])
    return float(pairs.mean()) if pairs.size else math.nan


def mirror_similarity(similarity: ArrayLike) -> tuple[float, float]:
    """Average the cosine of positions with their mirror images: left-right, and top-bottom.

    Only positions whose image lies at least half of the grid away are counted, so that a mirror
    image is not a neighbour.

    Parameters
    ----------
    similarity : array of shape (rows, cols, rows, cols)
        Of `position_similarity`.

    Returns
    -------
    (float, float)
        From -1 to 1; NaN on a side of fewer than four positions.
    """
    cosines = _check_similarity(similarity)
    rows, cols = cosines.shape[:2]
    row, col = np.arange(rows)[:, None], np.arange(cols)
    across = cosines[row, col, row, cols - 1 - col][:, : cols // 4]
    down = cosines[row, col, rows - 1 - row, col][: rows // 4]
    left_right, top_bottom = (
        float(values.mean()) if values.size else math.nan for values in (across, down)
    )
    return left_right, top_bottom


def position_profile(similarity: ArrayLike, *, position: tuple[int, int]) -> DirectionProfile:
    """Return the cosines of one position with those along its row, column and diagonal.

    Parameters
    ----------
    similarity : array of shape (rows, cols, rows, cols)
        Of `position_similarity`.
    position : (row, column), from 0

    Returns
    -------
    dict of "row", "column" and "diagonal" to (offset, cosine), two ndarrays of one length
        Offsets are in patches, rightwards or downwards, in ascending order; offset 0 is the
        position itself. A step along the diagonal goes down and to the right at once, so it is
        sqrt(2) patches long.

    Raises
    ------
    ValueError
        When the position lies outside of the grid.
    """
    cosines = _check_similarity(similarity)
    rows, cols = cosines.shape[:2]
    row, col = position
    if not (0 <= row < rows and 0 <= col < cols):
        raise ValueError(f"Expected a position on the {rows} x {cols} grid, got {position}.")
    tile = cosines[row, col]
    right, down = np.arange(cols) - col, np.arange(rows) - row
    both = np.arange(-min(row, col), min(rows - row, cols - col))
    return {
        "row": (right, tile[row]),
        "column": (down, tile[:, col]),
        "diagonal": (both, tile[row + both, col + both]),
    }


def position_table(kind: PositionKind, *, grid: Grid, embed_dim: int, seed: int = 0) -> Array:
    """Build position embeddings that are not learned, to compare with learned ones.

    Parameters
    ----------
    kind : "sincos1d", "sincos2d" or "random"
        Sines and cosines of the patch's number in row-major order; of its row in one half of the
        dimensions and of its column in the other; or independent normal numbers.
    grid : (rows, cols)
    embed_dim : int
        D; even for sincos1d, a multiple of 4 for sincos2d.
    seed : int
        Of the random numbers.

    Returns
    -------
    ndarray of float32 of shape (rows * cols, D)

    Raises
    ------
    ValueError
        When the width does not fit.

    References
    ----------
    Vaswani et al., "Attention Is All You Need" (2017), section 3.5; of row and column: Chen et al.,
    "An Empirical Study of Training Self-Supervised Vision Transformers" (ICCV 2021)
    """
    rows, cols = check_grid(grid)
    check_choice("kind", kind, ("sincos1d", "sincos2d", "random"))
    if kind == "random":
        return np.random.default_rng(seed).normal(size=(rows * cols, embed_dim)).astype(np.float32)
    parts = 2 if kind == "sincos1d" else 4
    if embed_dim < parts or embed_dim % parts:
        raise ValueError(f"Expected a width divisible by {parts} for {kind}, got {embed_dim}.")
    if kind == "sincos1d":
        table = _sine_cosine(np.arange(rows * cols), embed_dim)
    else:
        row, col = np.divmod(np.arange(rows * cols), cols)
        table = np.hstack([_sine_cosine(axis, embed_dim // 2) for axis in (row, col)])
    return table.astype(np.float32)


def resized_positions(
    pos_embed: ArrayLike, *, grid: Grid, new_grid: Grid, interpolation: Interpolation = "bicubic"
) -> Array:
    """Resize position embeddings to another patch grid, as fine-tuning on larger pictures does.

    Parameters
    ----------
    pos_embed : array of shape (N, D) or (prefix + N, D)
        Its last rows * cols rows are the patches'; the others are kept as they are.
    grid, new_grid : (rows, cols)
    interpolation : "bicubic", "bilinear" or "nearest"
        Over the two axes of the grid, each dimension by itself; all but "nearest" with
        antialiasing if the new grid is smaller.

    Returns
    -------
    ndarray of shape (N', D) or (prefix + N', D)

    Raises
    ------
    ValueError
        When there are fewer embeddings than patches.

    References
    ----------
    The ViT paper, section 3.2.
    """
    rows, cols = check_grid(grid)
    check_grid(new_grid)
    check_choice("interpolation", interpolation, ("bicubic", "bilinear", "nearest"))
    table = _check_table(pos_embed, grid)
    prefix, patches = np.split(table, [len(table) - rows * cols])
    if new_grid == grid:
        return table
    down = _resampling(rows, new_grid[0], interpolation)  # (R', R)
    across = _resampling(cols, new_grid[1], interpolation)  # (S', S)
    resized = np.einsum(
        "ir,js,rsd->ijd", down, across, patches.reshape(rows, cols, -1), optimize=True
    )
    resized = resized.reshape(-1, table.shape[1]).astype(table.dtype)  # (R' * S', D)
    return np.concatenate([prefix, resized])


def _check_table(pos_embed: ArrayLike, grid: Grid) -> Array:
    rows, cols = check_grid(grid)
    table = as_floats(pos_embed)
    if table.ndim != 2 or len(table) < rows * cols:
        raise ValueError(
            f"Expected position embeddings of shape ({rows * cols} or more, D) for a grid of "
            f"{rows} x {cols}, got {table.shape}."
        )
    return table


def _check_similarity(similarity: ArrayLike) -> Array:
    cosines = as_floats(similarity)
    if cosines.ndim != 4 or cosines.shape[:2] != cosines.shape[2:]:
        raise ValueError(
            f"Expected cosines of shape (rows, cols, rows, cols), got {cosines.shape}."
        )
    return cosines


def _sine_cosine(position: np.ndarray, dim: int) -> Array:
    """Return sines, then cosines, of `position` at dim / 2 frequencies: (N,) -> (N, dim)."""
    angle = position[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))  # (N, dim / 2)
    return np.hstack([np.sin(angle), np.cos(angle)])


def _resampling(old: int, new: int, interpolation: Interpolation) -> Array:
    """Return interpolation weights along one axis, from `old` to `new` places: (new, old)."""
    centre = (np.arange(new) + 0.5) * old / new
    if interpolation == "nearest":
        return np.eye(old)[centre.astype(int)]
    wider = max(old / new, 1.0)  # antialiasing: if the grid shrinks, a place averages several
    distance = np.abs(np.arange(old) + 0.5 - centre[:, None]) / wider
    weights = _cubic(distance) if interpolation == "bicubic" else np.maximum(1 - distance, 0)
    return weights / weights.sum(axis=1, keepdims=True)


def _cubic(distance: Array) -> Array:
    """Return Keys' kernel with a = -0.5, which is 0 from a distance of 2 on."""
    near = (1.5 * distance - 2.5) * distance**2 + 1
    far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
    return np.where(distance < 1, near, np.where(distance < 2, far, 0.0))
