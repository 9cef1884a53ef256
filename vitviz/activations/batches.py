"""`Batch`: what the captures of one forward pass share."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from ..families import Layer, ModelError
from ..language import Message
from .calls import Call, FusedCall
from .streaming import RowBlocks

if TYPE_CHECKING:
    from ..inspection import Measurements

#: A layer's call in all pictures; of each why it is not shown, and how far off the proof was.
Read = tuple[Call, Sequence[tuple[Message | None, float]]]


class Batch:
    """The calls of attention of one pass, and all that is measured of its pictures together.

    Attributes
    ----------
    pictures : how many there are
    """

    def __init__(
        self,
        *,
        layers: tuple[Layer, ...],
        read: Sequence[Read | None],
        pictures: int,
        patches: np.ndarray,
        read_tokens: tuple[str, ...],
    ) -> None:
        self.pictures = pictures
        self._layers = layers
        self._read = read
        self._tokens = len(layers[0].prefix) + len(patches)
        self._read_tokens = read_tokens

    def layers_of(self, number: int) -> tuple[Layer, ...]:
        """The layers, of which those are refused that do not prove themselves on one picture."""
        return tuple(
            layer if read is None else replace(layer, refusal=read[1][number][0])
            for layer, read in zip(self._layers, self._read, strict=True)
        )

    def calls_of(self, number: int) -> tuple[Call | None, ...]:
        """The calls of one picture, in the memory of the batch."""
        return tuple(
            None if read is None or read[1][number][0] else read[0].of(number, self.pictures)
            for read in self._read
        )

    def attention_layers(self) -> RowBlocks | None:
        """The attention of all pictures in blocks; None where it is no plain softmax of q k^T."""
        proved = [read for read in self._read if read and not any(why for why, _ in read[1])]
        calls = [call for call, _ in proved]
        plain = tuple(call for call in calls if isinstance(call, FusedCall) and call.bias is None)
        same = {(layer.kind, layer.query_grid, layer.prefix) for layer in self._layers}
        if len(plain) < len(self._layers) or len(same) > 1 or self._layers[0].kind != "global":
            return None
        return RowBlocks(
            self._layers,
            tokens=self._tokens,
            read_tokens=self._read_tokens,
            calls=plain,
            pictures=self.pictures,
        )

    @property
    def proof_error(self) -> float:
        """The largest difference in the proofs of the layers that are shown, as a share of 1."""
        errors = [error for read in self._read if read for why, error in read[1] if not why]
        return max(errors, default=0.0)

    @cached_property
    def measurements(self) -> "tuple[Measurements, ...] | None":
        """`inspection.measurements` of each picture; None where they are not made together."""
        from ..inspection import batch_measurements

        layers = self.attention_layers() if self.pictures > 1 else None
        if layers is None:
            return None
        try:
            return batch_measurements(layers)
        except ModelError:  # of one picture at least: each is asked on its own, and says why
            return None
