"""Read attention and tokens from plain arrays, or from a capture, which knows its grid.

The type of a capture is not imported: any object with these members is one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from ..common.query import Grid, Query, token_number
from .inputs import (
    Array,
    PatchSize,
    as_floats,
    check_layer,
    check_layers,
    check_tokens,
)


class Captured(Protocol):
    """A capture of one picture, as `vitviz.capture` returns it."""

    @property
    def depth(self) -> int: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def num_prefix_tokens(self) -> int: ...

    def attention(self, layer: int) -> Any: ...

    def attention_layers(self) -> "CapturedLayers": ...

    def windows(self, layer: int) -> Iterable[tuple[Any, Any, Any]]: ...

    def tokens(self, depth: int, *, normalised: bool = False) -> Any: ...


class CapturedLayers(Protocol):
    """The attention of all layers of a capture, as its `attention_layers()` returns it.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    pictures : number of pictures; their heads follow one another in `row_blocks`
    grid : (rows, cols)
    patch_size : int or (height, width)
    prefix : names of the prefix tokens
    read_tokens : names of the tokens from which the head reads the answer
    in_blocks : whether `row_blocks` can read it
    """

    shape: tuple[int, int, int]
    pictures: int
    grid: Grid
    patch_size: PatchSize
    prefix: tuple[str, ...]
    read_tokens: tuple[str, ...]
    in_blocks: bool

    def row_blocks(self, layer: int) -> Iterator[tuple[slice, slice, Array, Array, Array]]:
        """Yield heads, rows, scores, attention, and shares on the prefix and on the patches.

        Scores before the softmax and attention are (heads, rows, tokens), shares (heads, 2, rows).
        The next block may overwrite them.
        """


Attention = Iterable[ArrayLike] | Captured | CapturedLayers
LayerAttention = ArrayLike | Captured
Tokens = ArrayLike | Captured


@dataclass(frozen=True)
class Source:
    """The attention of all layers, and the places of its tokens.

    Attributes
    ----------
    layers : iterable of arrays of shape (heads, tokens, tokens)
    prefix : number of prefix tokens
    cls : whether the answer is read at token 0; else at the mean of the patches
    names : names of the prefix tokens; empty if arrays do not say them
    blocks : the same layers if blocks of their rows can be read; else None
    """

    layers: Iterable[ArrayLike]
    prefix: int
    cls: bool
    names: tuple[str, ...]
    _grid: Grid | None
    _patch_size: PatchSize | None
    blocks: CapturedLayers | None = None

    @property
    def grid(self) -> Grid:
        grid: Grid = _require("grid of the patches", self._grid)
        return grid

    @property
    def patch_size(self) -> PatchSize:
        size: PatchSize = _require("size of a patch", self._patch_size)
        return size

    def token(self, query: Query, tokens: int) -> int:
        """Return the number of the token that a query names.

        Raises
        ------
        ValueError
            When there is no such token, or some patches were dropped and the query is a patch.
        """
        number = token_number(query, prefix=self.names, grid=self._grid, tokens=tokens)
        if number >= self.prefix:
            check_tokens(tokens, self.prefix, self._grid)
        return number

    def arrays(self, grid: Grid | None = None) -> Iterator[Array]:
        """Yield each layer, checked, also against the grid if one is given."""
        return check_layers(self.layers, self.prefix, grid)


def read_source(
    attention: Attention,
    *,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    cls: bool | None = None,
) -> Source:
    """Read the attention, and the places of its tokens from the arguments or the capture.

    Raises
    ------
    ValueError
        When an argument contradicts the capture.
    """
    layers: Any = attention.attention_layers() if is_capture(attention) else attention
    if not hasattr(layers, "read_tokens"):  # plain arrays
        prefix = 1 if num_prefix_tokens is None else num_prefix_tokens
        read_at_cls = cls is not False and prefix > 0
        names = ("cls" if read_at_cls and not number else "" for number in range(prefix))
        return Source(layers, prefix, read_at_cls, tuple(names), grid, patch_size)
    prefix = len(layers.prefix)
    _check_agreement("number of prefix tokens", num_prefix_tokens, prefix)
    if grid is not None and tuple(grid) != layers.grid:
        check_tokens(layers.shape[2], prefix, grid)  # whose error gives the number of tokens
        _check_agreement("grid", grid, layers.grid)
    if patch_size is not None and not np.array_equal(
        np.broadcast_to(patch_size, 2), np.broadcast_to(layers.patch_size, 2)
    ):
        _check_agreement("patch size", patch_size, layers.patch_size)
    if cls and "cls" not in layers.prefix:
        raise ValueError("Expected cls=False for a model without a CLS token, got cls=True.")
    if cls is None:  # a CoAtNet keeps its tokens as a map, and names none that its head reads
        cls = "cls" in layers.prefix and "patches" not in layers.read_tokens
    blocks = layers if layers.in_blocks else None
    names = layers.prefix
    return Source(layers, prefix, cls, names, layers.grid, layers.patch_size, blocks)


def read_layer(
    attention: LayerAttention,
    layer: int | None,
    *,
    grid: Grid | None,
    num_prefix_tokens: int | None,
    patch_size: PatchSize | None = None,
    cls: bool | None = None,
) -> tuple[Array, Source]:
    """Read one layer (heads, tokens, tokens), checked with its grid, and its source."""
    where: Any = dict(
        grid=grid, patch_size=patch_size, num_prefix_tokens=num_prefix_tokens, cls=cls
    )
    if is_capture(attention):
        source = read_source(attention, **where)
        values = as_floats(attention.attention(_require_layer(layer)))
    else:
        _refuse_for_arrays("layer", layer)
        source = read_source((), **where)
        values = as_floats(attention)  # type: ignore[arg-type]
    check_layer(values, source.prefix, source.grid)
    return values, source


def read_windows(
    windows: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]] | Captured, layer: int | None
) -> Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]]:
    """Read the attention of each window with the places of its queries and keys."""
    if is_capture(windows):
        return windows.windows(_require_layer(layer))
    _refuse_for_arrays("layer", layer)
    return windows  # type: ignore[return-value]


def token_table(tokens: Tokens, depth: int | None, *, normalised: bool) -> Array:
    """Read tokens (tokens, D) from an array, or from a capture after so many layers."""
    if is_capture(tokens):
        depth = tokens.depth if depth is None else depth
        return as_floats(tokens.tokens(depth, normalised=normalised))
    _refuse_for_arrays("depth", depth)
    table = as_floats(tokens)  # type: ignore[arg-type]
    if table.ndim != 2:
        raise ValueError(f"Expected tokens of shape (tokens, D), got {table.shape}.")
    return table


def patch_tokens(
    tokens: Tokens,
    depth: int | None,
    *,
    normalised: bool,
    grid: Grid | None,
    num_prefix_tokens: int | None,
) -> tuple[Array, int, Grid]:
    """Read tokens as `token_table` does, the number of prefix tokens, and the grid."""
    table = token_table(tokens, depth, normalised=normalised)
    if is_capture(tokens):
        prefix = tokens.num_prefix_tokens
        _check_agreement("number of prefix tokens", num_prefix_tokens, prefix)
        if grid is not None and tuple(grid) != tokens.grid:
            check_tokens(len(table), prefix, grid)  # whose error gives the number of tokens
            _check_agreement("grid", grid, tokens.grid)
        grid = tokens.grid
    else:
        prefix = 1 if num_prefix_tokens is None else num_prefix_tokens
        grid = _require("grid of the patches", grid)
    check_tokens(len(table), prefix, grid)
    return table, prefix, grid


def _require_layer(layer: int | None) -> int:
    if layer is None:
        raise ValueError("Expected a layer of the capture, got none.")
    return layer


def _refuse_for_arrays(what: str, number: int | None) -> None:
    if number is not None:
        raise ValueError(f"Expected a capture to take {what} {number} from, got arrays.")


def _require(what: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"Expected the {what}, which arrays do not say, got none.")
    return value


def _check_agreement(what: str, given: object, known: object) -> None:
    if given not in (None, known):
        raise ValueError(f"Expected the {what} of the capture, {known}, got {given}.")


def is_capture(value: object) -> TypeGuard[Captured]:
    return hasattr(value, "attention_layers")
