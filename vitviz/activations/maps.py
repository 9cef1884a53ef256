"""One query or key of one layer in the grid of patches, whatever windows its attention has."""

from typing import Literal

import numpy as np

from ..families import Layer, ModelError, Windows

Query = int | tuple[int, int]
Direction = Literal["row", "column"]


def map_of(
    layer: Layer,
    windows: Windows,
    attention: np.ndarray,
    query: Query | None,
    direction: Direction,
) -> np.ndarray:
    """The map (heads, rows, cols) of `Activations.attention_map` from A (W, h, n, m)."""
    asked, seen = windows.queries, windows.keys
    grids = layer.query_grid, layer.key_grid
    if direction == "column":
        attention = attention.swapaxes(2, 3)
        asked, seen, grids = seen, asked, grids[::-1]
    full = np.zeros((layer.num_heads, grids[1][0] * grids[1][1]), np.float32)
    if query is None and "cls" not in layer.prefix:
        for window, looking, places in zip(attention, asked, seen, strict=True):
            total = window[:, looking >= 0].sum(axis=1)
            full[:, places[places >= 0]] += total[:, places >= 0]
        full /= np.count_nonzero(asked >= 0)
    else:
        number, token = _place(layer, asked, grids[0], 0 if query is None else query)
        places = seen[number]
        full[:, places[places >= 0]] = attention[number, :, token][:, places >= 0]
    return full.reshape(-1, *grids[1])


def checked(index: int, count: int, what: str, error: type[ValueError] = ValueError) -> int:
    """`index`, which must lie in 0 .. count - 1: a negative one would count from the end."""
    if not 0 <= index < count:
        raise error(f"Expected a {what} in 0..{count - 1}, got {index}.")
    return index


def _place(layer: Layer, asked: np.ndarray, grid: tuple[int, int], query: Query) -> tuple[int, int]:
    """The window that holds a token, and the token's index in it."""
    prefix = len(layer.prefix)
    if isinstance(query, tuple):
        row = checked(query[0], grid[0], "row")
        query = prefix + row * grid[1] + checked(query[1], grid[1], "column")
    token = checked(query, prefix + grid[0] * grid[1], "query")
    if token < prefix:
        return 0, token
    found = np.argwhere(asked == token - prefix)
    if len(found):
        return int(found[0, 0]), int(found[0, 1])
    if layer.kind == "class":
        raise ModelError("Only the class token looks in {layer}.", layer=layer.name)
    raise ModelError("Patch {patch} was dropped from this pass.", patch=token - prefix)
