"""Calls, measurements (`Batch`) and memory (`Arena`) that captures of one forward pass share."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..common.language import Message
from ..model.families import Layer, ModelError
from .calls import Call, FusedCall, RowBlocks

if TYPE_CHECKING:
    from ..inspection import Measurements


class Arena:
    """One piece of memory, allocated at once, into which a large capture is copied.

    It is handed out from beginning to end and freed as a whole. Tensors kept where the model made
    them leave gaps that its next tensors do not fit into: the process then takes a quarter more
    memory than it keeps.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        self._numbers = torch.empty(size, dtype=torch.uint8).view(dtype)
        self._used = 0  # pages beyond were never written, and take no memory

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into the arena, or elsewhere if it does not fit."""
        start, end = self._used, self._used + tensor.numel()
        if tensor.dtype != self._numbers.dtype or end > len(self._numbers):
            return tensor.clone()
        self._used = end
        return self._numbers[start:end].view(tensor.shape).copy_(tensor)

    @property
    def unused(self) -> int:
        """Number of bytes that hold no tensor."""
        return self._numbers[self._used :].nbytes


#: A layer's call for all pictures; and of each the refusal, if any, and the error of the proof.
CallProof = tuple[Call, Sequence[tuple[Message | None, float]]]


class Batch:
    """The calls of attention of one pass, and the measurements of its pictures together.

    Attributes
    ----------
    pictures : number of pictures
    """

    def __init__(
        self,
        *,
        layers: tuple[Layer, ...],
        proofs: Sequence[CallProof | None],
        pictures: int,
        patches: np.ndarray,
        read_tokens: tuple[str, ...],
    ) -> None:
        self.pictures = pictures
        self._layers = layers
        self._proofs = proofs
        self._tokens = len(layers[0].prefix) + len(patches)
        self._read_tokens = read_tokens

    def layers_of(self, number: int) -> tuple[Layer, ...]:
        """Return the layers, with a refusal where the proof failed on this picture."""
        refusals = (None if proof is None else proof[1][number][0] for proof in self._proofs)
        return tuple(
            layer if refusal is None else replace(layer, refusal=refusal)
            for layer, refusal in zip(self._layers, refusals, strict=True)
        )

    def calls_of(self, number: int) -> tuple[Call | None, ...]:
        """Return the calls of one picture, in the memory of the batch."""
        return tuple(
            None if proof is None or proof[1][number][0] else proof[0].select(number, self.pictures)
            for proof in self._proofs
        )

    def attention_layers(self) -> RowBlocks | None:
        """Return the attention of all pictures in blocks; None if it is no plain softmax."""
        calls = [
            call
            for call, pictures in filter(None, self._proofs)
            if not any(refusal for refusal, _ in pictures)
        ]
        plain = tuple(call for call in calls if isinstance(call, FusedCall) and call.bias is None)
        same = {(layer.kind, layer.query_grid, layer.prefix) for layer in self._layers}
        if len(plain) < len(self._layers) or len(same) > 1 or self._layers[0].kind != "global":
            return None
        blocks = RowBlocks(
            self._layers,
            tokens=self._tokens,
            read_tokens=self._read_tokens,
            calls=plain,
            pictures=self.pictures,
        )
        return blocks if blocks.in_blocks else None

    @property
    def proof_error(self) -> float:
        """Largest difference in the proofs of the layers that are shown, as a share of 1."""
        pictures = [each for proof in self._proofs if proof for each in proof[1]]
        errors = [error for refusal, error in pictures if not refusal]
        return max(errors, default=0.0)

    @cached_property
    def measurements(self) -> "tuple[Measurements, ...] | None":
        """`inspection.measurements` of each picture; None where each must be measured alone."""
        from ..inspection import batch_measurements

        layers = self.attention_layers() if self.pictures > 1 else None
        if layers is None:
            return None
        try:
            return batch_measurements(layers)
        except ModelError:  # of at least one picture: measured alone, each gives its own reason
            return None
