"""The attention of all layers of a capture or a batch: whole matrices, or blocks of their rows."""

from collections.abc import Callable, Iterable, Iterator

import numpy as np
import torch

from ..families import Layer, ModelError
from .calls import FusedCall
from .proof import random_projection, why_differs


class RowBlocks:
    """The attention of all layers of one picture or several, in blocks of rows.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    pictures : how many there are
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
        calls: tuple[FusedCall, ...],
        pictures: int = 1,
    ) -> None:
        first = layers[0]
        self.shape = (len(layers), first.num_heads, tokens)
        self.pictures = pictures
        self.grid, self.patch_size, self.prefix = first.query_grid, first.patch_size, first.prefix
        self.read_tokens = read_tokens
        self.in_blocks = len(calls) == len(layers)
        self._layers = layers
        self._calls = calls

    def row_blocks(
        self, layer: int
    ) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray, np.ndarray]]:
        """Some rows of some heads of one layer, until all have come.

        The heads of all pictures are numbered through, those of the first picture first.

        A block of rows stays in the processor's cache, where a whole matrix of 1370 tokens and 6
        heads takes 45 MB.

        Yields
        ------
        heads, rows : slice
        scores : ndarray of shape (heads, rows, tokens)
            q k^T / sqrt(d); the next block is written over it.
        attention : ndarray of shape (heads, rows, tokens)
            Its softmax; the next block is written over it.
        shares : ndarray of shape (heads, 2, rows)
            What each row spends on the prefix tokens, and on the patches.

        Raises
        ------
        ModelError
            After the last block, when A v is not the block's own output.
        """
        call = self._calls[layer].cpu()
        v = random_projection(call.v).flatten(0, 1)  # (h, 4, m)
        parts = v.new_zeros(len(v), 2, v.shape[2])
        parts[:, 0, : len(self.prefix)] = parts[:, 1, len(self.prefix) :] = 1
        columns = torch.cat([v, parts], dim=1)  # one product takes less than two
        seen = v.new_empty(*v.shape[:2], call.shape[2])
        for heads, rows, scores, attention in call.row_blocks():
            found = columns[heads] @ attention.transpose(1, 2)
            seen[heads, :, rows] = found[:, :-2]
            yield heads, rows, scores.numpy(), attention.numpy(), found[:, -2:].numpy()
        own = call.output.projected.flatten(0, 1)
        for refusal in why_differs(self._layers[layer], seen, own, call.half, self.pictures):
            if refusal:
                raise ModelError(refusal)


class AttentionLayers(RowBlocks, Iterable[np.ndarray]):
    """The attention (heads, tokens, tokens) of each layer of one picture, computed when reached.

    It can be gone through any number of times.
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
        super().__init__(layers, tokens=tokens, read_tokens=read_tokens, calls=calls)
        self._attention = attention

    def __len__(self) -> int:
        return len(self._layers)

    def __iter__(self) -> Iterator[np.ndarray]:
        return map(self._attention, range(len(self)))
