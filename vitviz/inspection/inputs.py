"""Check the arguments of the measurements: arrays, layers, grids and settings.

Every failed check is a ValueError that says what was expected and what was given.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.query import Grid

Array = NDArray[np.floating]
PatchSize = int | tuple[int, int]

#: A share up to this counts as 0: far above e^-100 = 4e-44, which Swin's mask of -100 leaves, and
#: far below the share of a key that is not masked. Below 1e-38 float32 has few digits, or none.
MASKED = 1e-20


def as_floats(values: ArrayLike) -> Array:
    """Return an array of float32 or float64, without a copy if it is one already."""
    array = np.asarray(values)
    return array if array.dtype in (np.float32, np.float64) else array.astype(np.float32)


def attends(mass: Array) -> NDArray[np.bool_]:
    """Return which rows, by their sums, have any attention; NaN counts, to stay visible."""
    return ~(mass <= MASKED)


def rounding(values: Array) -> float:
    """Return the relative error by which computed values that should be equal may differ."""
    return 8 * float(np.finfo(values.dtype).eps)


def unit_rows(table: Array) -> Array:
    """Divide the rows of a table by their lengths; a row of zeros stays zero."""
    length = np.linalg.norm(table, axis=1, keepdims=True)
    return np.divide(table, length, out=np.zeros_like(table), where=length > 0)


def check_layers(
    attention: Iterable[ArrayLike], num_prefix_tokens: int = 0, grid: Grid | None = None
) -> Iterator[Array]:
    """Yield each layer as a checked array (heads, tokens, tokens), all with the same tokens."""
    tokens: int | None = None
    for values in attention:
        layer = as_floats(values)
        check_layer(layer, num_prefix_tokens, grid)
        if tokens not in (None, layer.shape[1]):
            raise ValueError(
                f"Expected as many tokens in all layers, got {tokens} and then {layer.shape[1]}."
            )
        tokens = layer.shape[1]
        yield layer
    if tokens is None:
        raise ValueError("Expected the attention of at least one layer, got none.")


def stack_layers(layers: Iterable[Array]) -> Array:
    """Stack arrays that begin with heads: (layers, heads, ...), NaN where a layer has fewer."""
    arrays = list(layers)
    most = max(len(each) for each in arrays)
    pads = [[(0, most - len(each)), *[(0, 0)] * (each.ndim - 1)] for each in arrays]
    return np.stack(
        [
            np.pad(each, widths, constant_values=np.nan)
            for each, widths in zip(arrays, pads, strict=True)
        ]
    )


def check_grid(grid: Grid) -> Grid:
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
    rows, cols = check_grid(grid)
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
