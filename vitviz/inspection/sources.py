"""Where attention and tokens come from: plain arrays, or a capture, which knows its grid.

Nothing of a capture's type is imported: whatever has these members is one.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from .inputs import Array, Grid, PatchSize, as_floats, check_layer, check_tokens, checked_layers


class Captured(Protocol):
    """A capture of one picture, as `vitviz.capture` returns it."""

    @property
    def depth(self) -> int: ...

    @property
    def grid(self) -> Grid: ...

    @property
    def num_prefix_tokens(self) -> int: ...

    def attention(self, layer: int) -> Any: ...

    def attention_layers(self) -> "KnownLayers": ...

    def windows(self, layer: int) -> Iterable[tuple[Any, Any, Any]]: ...

    def tokens(self, depth: int, *, normalised: bool = False) -> Any: ...


class KnownLayers(Protocol):
    """The attention of all layers of a capture, as its `attention_layers()` returns it.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    pictures : how many there are; their heads follow one another in `row_blocks`
    grid : (rows, cols)
    patch_size : int or (height, width)
    prefix : names of the prefix tokens
    read_tokens : names of the tokens from which the head reads the answer
    in_blocks : whether `row_blocks` reads it
    """

    shape: tuple[int, int, int]
    pictures: int
    grid: Grid
    patch_size: PatchSize
    prefix: tuple[str, ...]
    read_tokens: tuple[str, ...]
    in_blocks: bool

    def row_blocks(self, layer: int) -> Iterator[tuple[slice, slice, Array, Array, Array]]:
        """Heads, rows, scores before the softmax and attention, both (heads, rows, tokens).

        And each row's shares on the prefix and on the patches (heads, 2, rows).
        The next block may be written over them.
        """


Attention = Iterable[ArrayLike] | Captured | KnownLayers
LayerAttention = ArrayLike | Captured
Tokens = ArrayLike | Captured


@dataclass(frozen=True)
class Source:
    """The attention of all layers, and how its tokens lie.

    Attributes
    ----------
    layers : iterable of arrays of shape (heads, tokens, tokens)
    prefix : how many prefix tokens there are
    cls : whether the answer is read at token 0; else at the mean of the patches
    blocks : the same layers, where blocks of their rows can be read; else None
    """

    layers: Iterable[ArrayLike]
    prefix: int
    cls: bool
    _grid: Grid | None
    _patch_size: PatchSize | None
    blocks: KnownLayers | None = None

    @property
    def grid(self) -> Grid:
        grid: Grid = _required("grid of the patches", self._grid)
        return grid

    @property
    def patch_size(self) -> PatchSize:
        size: PatchSize = _required("size of a patch", self._patch_size)
        return size

    def checked(self, grid: Grid | None = None) -> Iterator[Array]:
        """Each layer, checked; where a grid is needed, the tokens fit it."""
        return checked_layers(self.layers, self.prefix, grid)


def source_of(
    attention: Attention,
    *,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    cls: bool | None = None,
) -> Source:
    """The attention, and how its tokens lie: as the arguments say, or as a capture knows.

    Raises
    ------
    ValueError
        When an argument contradicts the capture.
    """
    layers: Any = attention.attention_layers() if is_capture(attention) else attention
    if not hasattr(layers, "read_tokens"):  # plain arrays
        prefix = 1 if num_prefix_tokens is None else num_prefix_tokens
        return Source(layers, prefix, cls is not False and prefix > 0, grid, patch_size)
    prefix = len(layers.prefix)
    _agree("number of prefix tokens", num_prefix_tokens, prefix)
    if grid is not None and tuple(grid) != layers.grid:
        check_tokens(layers.shape[2], prefix, grid)  # its error says how many tokens there are
        _agree("grid", grid, layers.grid)
    if patch_size is not None and not np.array_equal(
        np.broadcast_to(patch_size, 2), np.broadcast_to(layers.patch_size, 2)
    ):
        _agree("patch size", patch_size, layers.patch_size)
    if cls and "cls" not in layers.prefix:
        raise ValueError("Expected cls=False for a model without a CLS token, got cls=True.")
    read_at_cls = "patches" not in layers.read_tokens if cls is None else cls
    blocks = layers if layers.in_blocks else None
    return Source(layers, prefix, read_at_cls, layers.grid, layers.patch_size, blocks)


def layer_of(
    attention: LayerAttention,
    layer: int | None,
    *,
    grid: Grid | None,
    num_prefix_tokens: int | None,
    patch_size: PatchSize | None = None,
    cls: bool | None = None,
) -> tuple[Array, Source]:
    """One layer (heads, tokens, tokens), checked with its grid, and how its tokens lie."""
    where: Any = dict(
        grid=grid, patch_size=patch_size, num_prefix_tokens=num_prefix_tokens, cls=cls
    )
    if is_capture(attention):
        source = source_of(attention, **where)
        values = as_floats(attention.attention(_required_layer(layer)))
    else:
        _for_captures_only("layer", layer)
        source = source_of((), **where)
        values = as_floats(attention)  # type: ignore[arg-type]
    check_layer(values, source.prefix, source.grid)
    return values, source


def windows_of(
    windows: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]] | Captured, layer: int | None
) -> Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]]:
    """Attention of each window with the places of its queries and keys."""
    if is_capture(windows):
        return windows.windows(_required_layer(layer))
    _for_captures_only("layer", layer)
    return windows  # type: ignore[return-value]


def table_of(tokens: Tokens, depth: int | None, *, normalised: bool) -> Array:
    """Tokens (tokens, D): an array's, or those of a capture after so many layers."""
    if is_capture(tokens):
        depth = tokens.depth if depth is None else depth
        return as_floats(tokens.tokens(depth, normalised=normalised))
    _for_captures_only("depth", depth)
    table = as_floats(tokens)  # type: ignore[arg-type]
    if table.ndim != 2:
        raise ValueError(f"Expected tokens of shape (tokens, D), got {table.shape}.")
    return table


def patches_of(
    tokens: Tokens,
    depth: int | None,
    *,
    normalised: bool,
    grid: Grid | None,
    num_prefix_tokens: int | None,
) -> tuple[Array, int, Grid]:
    """Tokens as of `table_of`, the number of prefix tokens, and the grid, which they fit."""
    table = table_of(tokens, depth, normalised=normalised)
    if is_capture(tokens):
        prefix = tokens.num_prefix_tokens
        _agree("number of prefix tokens", num_prefix_tokens, prefix)
        if grid is not None and tuple(grid) != tokens.grid:
            check_tokens(len(table), prefix, grid)  # its error says how many tokens there are
            _agree("grid", grid, tokens.grid)
        grid = tokens.grid
    else:
        prefix = 1 if num_prefix_tokens is None else num_prefix_tokens
        grid = _required("grid of the patches", grid)
    check_tokens(len(table), prefix, grid)
    return table, prefix, grid


def _required_layer(layer: int | None) -> int:
    if layer is None:
        raise ValueError("Expected the layer of the capture that is meant, got none.")
    return layer


def _for_captures_only(what: str, number: int | None) -> None:
    if number is not None:
        raise ValueError(f"Expected a capture to take {what} {number} from, got arrays.")


def _required(what: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"Expected the {what}, which arrays do not tell, got none.")
    return value


def _agree(what: str, given: object, known: object) -> None:
    if given not in (None, known):
        raise ValueError(f"Expected the {what} of the capture, {known}, got {given}.")


def is_capture(value: object) -> TypeGuard[Captured]:
    return hasattr(value, "attention_layers")
