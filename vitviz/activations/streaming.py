"""The attention of all layers of a capture: whole matrices, or blocks of their rows."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np

from ..families import Layer, ModelError
from .calls import FusedCall
from .proof import random_projection, why_differs


class AttentionLayers(Iterable[np.ndarray]):
    """The attention (heads, tokens, tokens) of each layer, computed when it is reached.

    It can be gone through any number of times.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    grid : (rows, cols) of patches
    patch_size : int or (height, width)
    prefix : names of the prefix tokens
    read_tokens : names of the tokens from which the head reads the answer
    in_blocks : whether `row_blocks` reads it: in each layer it is a plain softmax of q k^T
    """

    def __init__(
        self,
        layers: tuple[Layer, ...],
        *,
        tokens: int,
        read_tokens: tuple[str, ...],
        attention: Callable[[int], np.ndarray],
        calls: tuple[FusedCall, ...],
    ) -> None:
        first = layers[0]
        self.shape = (len(layers), first.num_heads, tokens)
        self.grid, self.patch_size, self.prefix = first.query_grid, first.patch_size, first.prefix
        self.read_tokens = read_tokens
        self.in_blocks = len(calls) == len(layers)
        self._layers = layers
        self._attention = attention
        self._calls = calls

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self._attention, range(len(self)))

    def row_blocks(self, layer: int) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray]]:
        """Some rows of some heads of one layer, until all have come.

        A block of rows stays in the processor's cache, where a whole matrix of 1370 tokens and 6
        heads takes 45 MB.

        Yields
        ------
        heads, rows : slice
        scores : ndarray of shape (heads, rows, tokens)
            q k^T / sqrt(d); the next block is written over it.
        attention : ndarray of shape (heads, rows, tokens)
            Its softmax; the next block is written over it.

        Raises
        ------
        ModelError
            After the last block, when A v is not the block's own output.
        """
        call = self._calls[layer]
        v = random_projection(call.v)[0]  # (h, 4, m)
        seen = v.new_empty(*v.shape[:2], call.shape[2])
        for heads, rows, scores, attention in call.row_blocks():
            seen[heads, :, rows] = v[heads] @ attention.transpose(1, 2)
            yield heads, rows, scores.numpy(), attention.numpy()
        refusal = why_differs(self._layers[layer], seen, call.output.projected[0], call.half)
        if refusal:
            raise ModelError(refusal)
