"""The attention of all layers, whole or a block of rows at a time."""

from collections.abc import Callable, Iterator

import numpy as np

from ..families import Layer, ModelError
from .records import Record, directed, why_refused


class AttentionLayers(Iterator[np.ndarray]):
    """Iterates over the attention (heads, tokens, tokens) of each layer.

    What needs no whole matrix asks for `row_blocks` instead: a block of rows stays in the
    processor's cache, where a whole matrix of 1370 tokens and 6 heads takes 45 MB.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    """

    def __init__(
        self,
        layers: tuple[Layer, ...],
        records: tuple[Record, ...],
        attention: Callable[[int], np.ndarray],
    ) -> None:
        self.shape = (len(layers), *records[0].shape[1:3])
        self._layers = layers
        self._records = records
        self._whole = map(attention, range(len(layers)))

    def __next__(self) -> np.ndarray:
        return next(self._whole)

    def row_blocks(self, layer: int) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray]]:
        """Some rows of some heads of one layer, until all were there.

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
            After the last block, when the layer does not prove itself.
        """
        record = self._records[layer]
        v = directed(record.v)[0]  # (h, 4, m)
        seen = v.new_empty(*v.shape[:2], record.shape[2])
        for heads, rows, scores, attention in record.row_blocks():
            seen[heads, :, rows] = v[heads] @ attention.transpose(1, 2)
            yield heads, rows, scores.numpy(), attention.numpy()
        refusal = why_refused(self._layers[layer], seen, record.output.onto[0], record.half)
        if refusal:
            raise ModelError(refusal)
