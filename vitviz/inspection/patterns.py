"""Simple patterns of attention: along a row, down a column, to neighbours, to one place."""

from dataclasses import dataclass

import numpy as np

from .inputs import Array, Grid, checked_grid


@dataclass(frozen=True, eq=False)
class Patterns:
    """How much attention of each head of a layer follows each pattern.

    Attributes
    ----------
    shares : dict of str to ndarray of shape (heads,)
        By "row", "column", "neighbours", "itself" and "one patch". Of the attention among patches,
        the share that keys in the query's row, in its column, the up to eight around it, the query
        itself, or the patch with most attention of all get.
    uniform : dict of str to float
        The shares of uniform attention.
    patch : ndarray of shape (heads,)
        The patch with most attention of all, row-major.
    moved : ndarray of shape (heads,)
        The share of a row of A that would have to move to make it uniform (the total variation
        distance), the mean over queries.
    """

    shares: dict[str, Array]
    uniform: dict[str, float]
    patch: Array
    moved: Array


def attention_patterns(layer: Array, *, grid: Grid, num_prefix_tokens: int) -> Patterns:
    """Measure the simple patterns in one layer's attention, the mean over queries.

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
    rows, cols = checked_grid(grid)
    attention = np.asarray(layer)[:, num_prefix_tokens:, num_prefix_tokens:]
    count = rows * cols
    if attention.shape[1:] != (count, count):
        raise ValueError(
            f"A grid of {rows} x {cols} has {count} patches, not {attention.shape[1]}."
        )
    mass = attention.sum(axis=2, keepdims=True)
    shares = np.divide(attention, mass, out=np.zeros_like(attention), where=mass > 0)
    queries = np.maximum((mass > 0).sum(axis=(1, 2)), 1)
    row, col = np.divmod(np.arange(count), cols)
    down, across = (np.abs(place[:, None] - place) for place in (row, col))
    itself = (down == 0) & (across == 0)
    masks: dict[str, Array] = {
        "row": down == 0,
        "column": across == 0,
        "neighbours": (down <= 1) & (across <= 1) & ~itself,
        "itself": itself,
    }
    measured: dict[str, Array] = {
        name: np.einsum("hij,ij->h", shares, mask) / queries for name, mask in masks.items()
    }
    keys = shares.sum(axis=1) / queries[:, None]
    away = np.abs(shares - 1 / count).sum(axis=2) * (mass[..., 0] > 0)
    return Patterns(
        shares={**measured, "one patch": keys.max(axis=1)},
        uniform={name: float(mask.mean()) for name, mask in masks.items()}
        | {"one patch": 1 / count},
        patch=keys.argmax(axis=1),
        moved=away.sum(axis=1) / (2 * queries),
    )
