"""Measure simple patterns of attention: along a row, down a column, to one offset, to one place."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..common.query import Grid
from .inputs import Array, attends, check_grid

STANDS_OUT = 5  # times an equal share
NEARLY_ALL = 0.9  # of the queries


@dataclass(frozen=True, eq=False)
class Patterns:
    """The share of each head's attention that follows each pattern.

    Attributes
    ----------
    shares : dict of str to ndarray of shape (heads,)
        Of the attention among patches, the share of keys in the query's "row" and "column", each
        without the query's own patch; of the up to eight "neighbours" around it; of the query
        "itself"; of the key at "one offset", averaged over the queries that have a patch there; and
        of "one patch". Of all attention, the share of one "prefix" token, if there are any.
    uniform : dict of str to float
        The shares of uniform attention.
    offset : ndarray of shape (heads, 2)
        The offset with most attention, in rows down and columns to the right. It is not (0, 0), and
        at least a quarter of the patches have another patch there.
    patch : ndarray of shape (heads,)
        The patch with most attention of all, row-major.
    token : ndarray of shape (heads,)
        The prefix token with most attention; 0 if there is none.
    moved : ndarray of shape (heads,)
        The share of a row of A that would have to move to make it uniform (the total variation
        distance), averaged over queries.
    """

    shares: dict[str, Array]
    uniform: dict[str, float]
    offset: Array
    patch: Array
    token: Array
    moved: Array


def attention_patterns(layer: Array, *, grid: Grid, num_prefix_tokens: int) -> Patterns:
    """Measure the simple patterns in one layer's attention, averaged over queries.

    Rows are renormalised over patches. A query that attends to no patch is left out.

    Parameters
    ----------
    layer : array of shape (heads, tokens, tokens)
    grid : (rows, cols)

    Raises
    ------
    ValueError
        When the grid does not have as many patches as there are.
    """
    rows, cols = check_grid(grid)
    rows_of_patches = np.asarray(layer)[:, num_prefix_tokens:]
    attention = rows_of_patches[:, :, num_prefix_tokens:]
    count = rows * cols
    if attention.shape[1:] != (count, count):
        raise ValueError(
            f"A grid of {rows} x {cols} has {count} patches, not {attention.shape[1]}."
        )
    mass = attention.sum(axis=2, keepdims=True)
    attending = attends(mass)
    shares = np.divide(attention, mass, out=np.zeros_like(attention), where=attending)
    queries = np.maximum(attending.sum(axis=(1, 2)), 1)
    row, col = np.divmod(np.arange(count), cols)
    down, across = (np.abs(place[:, None] - place) for place in (row, col))
    itself = (down == 0) & (across == 0)
    masks: dict[str, Array] = {
        # Without the query's own patch: a head that attends to itself has no direction.
        "row": (down == 0) & ~itself,
        "column": (across == 0) & ~itself,
        "neighbours": (down <= 1) & (across <= 1) & ~itself,
        "itself": itself,
    }
    measures: dict[str, Array] = {
        name: np.einsum("hij,ij->h", shares, mask) / queries for name, mask in masks.items()
    }
    offset, measures["one offset"] = _clearest_offset(shares, attending[..., 0], (rows, cols))
    keys = shares.sum(axis=1) / queries[:, None]
    measures["one patch"] = keys.max(axis=1)
    uniform = {name: float(mask.mean()) for name, mask in masks.items()}
    uniform |= {"one offset": 1 / count, "one patch": 1 / count}
    token = np.zeros(len(attention), int)
    if num_prefix_tokens:
        prefix = rows_of_patches[:, :, :num_prefix_tokens].mean(axis=1)
        token, measures["prefix"] = prefix.argmax(axis=1), prefix.max(axis=1)
        uniform["prefix"] = 1 / (num_prefix_tokens + count)
    away = np.abs(shares - 1 / count).sum(axis=2) * attending[..., 0]
    return Patterns(
        shares=measures,
        uniform=uniform,
        offset=offset,
        patch=keys.argmax(axis=1),
        token=token,
        moved=away.sum(axis=1) / (2 * queries),
    )


def _clearest_offset(
    shares: Array, attending: NDArray[np.bool_], grid: Grid
) -> tuple[Array, Array]:
    """Return each head's offset with the largest mean share, and that share.

    Parameters
    ----------
    shares : ndarray of shape (heads, patches, patches)
    attending : ndarray of shape (heads, patches)
        True for queries that attend to any patch.
    """
    rows, cols = grid
    row, col = np.divmod(np.arange(rows * cols), cols)
    width = 2 * cols - 1  # offsets are numbered row-major from (-rows + 1, -cols + 1)
    down, right = (place - place[:, None] for place in (row, col))
    numbers = ((down + rows - 1) * width + right + cols - 1).ravel()
    size = (2 * rows - 1) * width
    # An offset of few queries may have a large mean by chance.
    common = 4 * np.bincount(numbers, minlength=size) >= rows * cols
    common[(rows - 1) * width + cols - 1] = False  # the query itself
    best, most = np.zeros((len(shares), 2), int), np.zeros(len(shares))
    for head, (share, which) in enumerate(zip(shares, attending, strict=True)):
        sums = np.bincount(numbers, weights=share.ravel(), minlength=size)
        queries = np.bincount(numbers, np.repeat(which, rows * cols), minlength=size)
        mean = np.where(common, sums / np.maximum(queries, 1), 0)
        at = int(mean.argmax())
        best[head], most[head] = (at // width - rows + 1, at % width - cols + 1), mean[at]
    return best, most


@dataclass(frozen=True)
class Sinks:
    """Keys that stand out in one layer, as numbers of tokens.

    Attributes
    ----------
    no_ops : keys that get more than five times an equal share of attention, and add less than an
        equal share: attending to them is a way to add nothing
    broadcasts : keys that add more than five times an equal share to at least nine in ten queries
    """

    no_ops: tuple[int, ...]
    broadcasts: tuple[int, ...]


def attention_sinks(attention: Array, added: Array) -> Sinks:
    """Tell the keys that get attention for nothing from those that add much to nearly all queries.

    Parameters
    ----------
    attention : array of shape (heads, queries, keys)
    added : array of shape (queries, keys)
        The length of what each key adds, as `Carried.lengths`.

    Raises
    ------
    ValueError
        When the two are not of the same queries and keys.
    """
    attention, added = np.asarray(attention), np.asarray(added)
    if attention.shape[1:] != added.shape:
        raise ValueError(
            f"Expected lengths of shape {attention.shape[1:]}, as attention, got {added.shape}."
        )
    keys = added.shape[1]
    got = keys * attention.mean(axis=(0, 1))  # 1 is an equal share
    shares = keys * added / np.maximum(added.sum(axis=1, keepdims=True), 1e-30)
    no_ops = (got > STANDS_OUT) & (shares.mean(axis=0) < 1)
    broadcasts = (shares > STANDS_OUT).mean(axis=0) >= NEARLY_ALL
    return Sinks(*(tuple(np.flatnonzero(each).tolist()) for each in (no_ops, broadcasts)))
