"""`token_number`: find the token that a query names, by one rule everywhere."""

import operator
from collections.abc import Sequence
from typing import Any, Literal

#: A token by its number in the full sequence, prefix tokens first; a patch by its (row, column); or
#: a prefix token by its name, such as "cls".
Query = int | str | tuple[int, int]
Grid = tuple[int, int]  # rows and columns of patches
Crop = tuple[float, float, float, float]  # left, top, right and bottom, in pixels of the picture
Direction = Literal["row", "column"]  # from a token, or to it


def token_number(
    query: Query,
    *,
    prefix: Sequence[str],
    grid: Grid | None = None,
    tokens: int | None = None,
) -> int:
    """Return the number of the token in the full sequence.

    Parameters
    ----------
    query : int, (row, column) or str
        Indices count from 0.
    prefix : names of the prefix tokens; empty if they are unknown
    grid : (rows, columns) of the patches, if it is known
    tokens : number of tokens, without a grid

    Raises
    ------
    ValueError
        When there is no such token.
    """
    if grid is not None:
        tokens = len(prefix) + grid[0] * grid[1]
    assert tokens is not None
    number = _find_number(query, prefix, grid)
    if number is None or not 0 <= number < tokens:
        patches = "" if grid is None else f", a patch (row, column) of {grid[0]} x {grid[1]}"
        names = [name for name in prefix if name]
        hint = f", or {' or '.join(map(repr, names))}" if names else ""
        raise ValueError(f"Expected a query in 0..{tokens - 1}{patches}{hint}, got {query!r}.")
    return number


def _find_number(query: Any, prefix: Sequence[str], grid: tuple[int, int] | None) -> int | None:
    if isinstance(query, str):
        names = [name.casefold() for name in prefix]
        is_known = query and query.casefold() in names
        return names.index(query.casefold()) if is_known else None
    if isinstance(query, bool):
        return None
    try:
        return operator.index(query)
    except TypeError:
        pass
    try:
        row, column = map(operator.index, query)
    except (TypeError, ValueError):
        return None
    if grid is None or not (0 <= row < grid[0] and 0 <= column < grid[1]):
        return None
    return len(prefix) + row * grid[1] + column
