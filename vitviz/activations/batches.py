"""Calls, measurements (`Batch`) and memory (`Arena`) that captures of one forward pass share."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..common.language import Message
from ..model.devices import own_precision
from ..model.families import Layer, ModelError
from .calls import Call, FusedCall, RowBlocks, explain_row_mismatches

if TYPE_CHECKING:
    from ..inspection import Measurements


ARENA_PIECE = 1 << 24  # bytes; malloc would map a piece of 32 MB or more anew each time


class Arena:
    """Memory, allocated at once, into which a large capture is copied.

    It is handed out from beginning to end and freed as a whole. Tensors kept where the model made
    them leave gaps that its next tensors do not fit into: the process then takes a quarter more
    memory than it keeps. Its pieces are small enough for malloc to reuse them for the next arena:
    the system would clear every page of a new one, which took 4 % of a capture of DINOv2-S at
    518 px.
    """

    def __init__(self, size: int, dtype: torch.dtype) -> None:
        pieces = [
            torch.empty(ARENA_PIECE, dtype=torch.uint8, device="cpu")
            for _ in range(-(-size // ARENA_PIECE))
        ]
        self._pieces = [piece.view(dtype) for piece in pieces]
        self._used = 0  # of the first piece; pages beyond were never written, and take no memory
        self._unused = 0  # bytes of earlier pieces

    def copy(self, tensor: Tensor) -> Tensor:
        """Copy a tensor into the arena, or elsewhere if it does not fit."""
        if tensor.dtype != self._pieces[0].dtype or tensor.numel() > len(self._pieces[0]):
            return tensor.clone()
        if len(self._pieces) > 1 and self._used + tensor.numel() > len(self._pieces[0]):
            self._unused += self._pieces.pop(0)[self._used :].nbytes
            self._used = 0
        piece, start, end = self._pieces[0], self._used, self._used + tensor.numel()
        if end > len(piece):
            return tensor.clone()
        self._used = end
        return piece[start:end].view(tensor.shape).copy_(tensor)

    @property
    def unused(self) -> int:
        """Number of bytes that hold no tensor, beside pieces without any."""
        return self._unused + (self._pieces[0][self._used :].nbytes if self._used else 0)


class Batch:
    """The calls of attention of one pass, their proof, and the measurements of its pictures.

    Attributes
    ----------
    layers : as the pass left them
        Refused where a layer did not make its one call, but not yet proved.
    pictures : number of pictures
    """

    def __init__(
        self,
        *,
        layers: tuple[Layer, ...],
        calls: Sequence[Call | None],
        refusals: Mapping[int, Sequence[Message | None]],
        pictures: int,
        patches: np.ndarray,
        read_tokens: tuple[str, ...],
    ) -> None:
        self.layers = layers
        self.pictures = pictures
        self._calls = calls  # by layer, of all pictures
        self._refusals = refusals  # by layer and picture, from what the pass itself compared
        self._tokens = len(layers[0].prefix) + len(patches)
        self._read_tokens = read_tokens

    @cached_property
    def _proofs(self) -> Mapping[int, Sequence[tuple[Message | None, float]]]:
        """Compare a few rows of A v: refusal, if any, and error by layer and picture."""
        calls = {layer: call for layer, call in enumerate(self._calls) if call is not None}
        with own_precision(), torch.inference_mode():
            of_rows = explain_row_mismatches(
                [
                    (self.layers[layer], call.rows(), call.output.rows, call.half)
                    for layer, call in calls.items()
                ],
                self.pictures,
            )
            return {
                layer: [
                    (earlier or why, error)
                    for earlier, (why, error) in zip(
                        self._known_refusals(layer), results, strict=True
                    )
                ]
                for layer, results in zip(calls, of_rows, strict=True)
            }

    def _known_refusals(self, layer: int) -> Sequence[Message | None]:
        """Return each picture's refusal that is known without the proof, or None."""
        return self._refusals.get(layer, [None] * self.pictures)

    def layers_of(self, number: int) -> tuple[Layer, ...]:
        """Return the layers, with a refusal where the proof failed on this picture."""
        refusals = {layer: pictures[number][0] for layer, pictures in self._proofs.items()}
        return tuple(
            layer if (refusal := refusals.get(index)) is None else replace(layer, refusal=refusal)
            for index, layer in enumerate(self.layers)
        )

    def calls_of(self, number: int) -> tuple[Call | None, ...]:
        """Return the calls of one picture, in the memory of the batch."""
        return tuple(
            None
            if call is None or self._known_refusals(layer)[number]
            else call.select(number, self.pictures)
            for layer, call in enumerate(self._calls)
        )

    def attention_layers(self) -> RowBlocks | None:
        """Return the attention of all pictures in blocks; None if it is no plain softmax."""
        plain = tuple(
            call
            for layer, call in enumerate(self._calls)
            if isinstance(call, FusedCall)
            and call.bias is None
            and not any(self._known_refusals(layer))
        )
        same = {(layer.kind, layer.query_grid, layer.prefix) for layer in self.layers}
        if len(plain) < len(self.layers) or len(same) > 1 or self.layers[0].kind != "global":
            return None
        blocks = RowBlocks(
            self.layers,
            tokens=self._tokens,
            read_tokens=self._read_tokens,
            calls=plain,
            pictures=self.pictures,
        )
        return blocks if blocks.in_blocks else None

    @property
    def proof_error(self) -> float:
        """Largest difference in the proofs of the layers that are shown, as a share of 1."""
        pictures = [each for found in self._proofs.values() for each in found]
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
