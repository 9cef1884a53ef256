"""Checks of what the measurements are given: arrays, layers, grids and settings.

Every failed check is a ValueError of one sentence that says what was expected and what came.
"""

import operator
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.floating]
Grid = tuple[int, int]
PatchSize = int | tuple[int, int]


def as_floats(values: ArrayLike) -> Array:
    """An array of float32 or float64: no copy where it is one already."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def unit_rows(table: Array) -> Array:
    """The rows of a table divided by their lengths; a row of zeros stays one."""
    length = np.linalg.norm(table, axis=1, keepdims=True)
    return np.divide(table, length, out=np.zeros_like(table), where=length > 0)


def checked_layers(
    attention: Iterable[ArrayLike], num_prefix_tokens: int = 0, grid: Grid | None = None
) -> Iterator[Array]:
    """Each layer as a checked array (heads, tokens, tokens); all have one shape."""
    shape: tuple[int, ...] | None = None
    for values in attention:
        layer = as_floats(values)
        check_layer(layer, num_prefix_tokens, grid)
        if shape not in (None, layer.shape):
            raise ValueError(f"Expected layers of one shape, got {shape} and then {layer.shape}.")
        shape = layer.shape
        yield layer
    if shape is None:
        raise ValueError("Expected the attention of at least one layer, got none.")


def token_index(query: int | None, tokens: int) -> int:
    """The token that a query names; none names token 0."""
    index = operator.index(0 if query is None else query)
    if not 0 <= index < tokens:
        raise ValueError(f"Expected a query from 0 to {tokens - 1}, got {query}.")
    return index


def checked_grid(grid: Grid) -> Grid:
    if len(grid) != 2 or min(grid) < 1:
        raise ValueError(f"Expected a grid of (rows, cols), both at least 1, got {grid}.")
    return grid


def check_layer(layer: Array, prefix: int, grid: Grid | None) -> None:
    if layer.ndim != 3 or layer.shape[1] != layer.shape[2] or not layer.size:
        raise ValueError(
            f"Expected a layer's attention of shape (heads, tokens, tokens), got {layer.shape}."
        )
    check_tokens(layer.shape[1], prefix, grid)


def check_tokens(tokens: int, prefix: int, grid: Grid | None) -> None:
    if not 0 <= prefix < tokens:
        raise ValueError(f"Expected 0 to {tokens - 1} prefix tokens of {tokens}, got {prefix}.")
    if grid is None:
        return
    rows, cols = checked_grid(grid)
    if tokens != prefix + rows * cols:
        raise ValueError(
            f"Expected {prefix} + {rows} x {cols} = {prefix + rows * cols} tokens, got {tokens}."
        )


def check_choice(name: str, choice: str, choices: tuple[str, ...]) -> None:
    if choice not in choices:
        raise ValueError(f"Expected the {name} to be {' or '.join(choices)}, got {choice!r}.")


def check_share(name: str, share: float) -> None:
    if not 0 <= share <= 1:
        raise ValueError(f"Expected a {name} from 0 to 1, got {share}.")
