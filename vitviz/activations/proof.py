"""The proof of attention that was read: A v must equal what the block itself computed.

A v is attention times the values, before the heads are joined. At capture a few rows of it are
compared; all of them when a layer is asked for, through a random projection that keeps it cheap.
Letters in the shape comments: W windows (1 where every token meets every token), h heads, n queries
of a window, d head_dim.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import torch
from torch import Tensor

from ..families import Layer
from ..language import Message

#: The largest difference that is allowed, relative to the largest number of the block's output.
TOLERANCE = 1e-3
#: The same where the model computes in half precision, whose own rounding is larger than that.
HALF_TOLERANCE = 2e-2
PROOF_ROWS = 8  # query rows that are compared at capture, beside the first

Copy = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Output:
    """What a block's attention itself computed."""

    whole: Tensor  # (W, h, n, d)

    @property
    def rows(self) -> Tensor:
        """The first query's and 8 others', or of those few that there are: (W, h, rows, d)."""
        return self.whole[:, :, compared_rows(self.whole.shape[2])]

    @property
    def projected(self) -> Tensor:
        """All of it, as a random projection: (W, h, 4, n)."""
        return random_projection(self.whole)

    def of(self, windows: slice) -> "Output":
        return Output(self.whole[windows])

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.whole,)

    def copied(self, copy: Copy) -> "ComparedOutput":
        return ComparedOutput(copy(self.rows), copy(self.projected))

    def cpu(self) -> "Output":
        return Output(self.whole.cpu())


@dataclass(frozen=True)
class ComparedOutput:
    """What a large capture keeps of an `Output`: the parts that are compared."""

    rows: Tensor  # (W, h, rows, d)
    projected: Tensor  # (W, h, 4, n)

    def of(self, windows: slice) -> "ComparedOutput":
        return ComparedOutput(self.rows[windows], self.projected[windows])

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.projected

    def copied(self, copy: Copy) -> "ComparedOutput":
        return self

    def cpu(self) -> "ComparedOutput":
        return ComparedOutput(self.rows.cpu(), self.projected.cpu())


def exact(values: Tensor) -> Tensor:
    """The values, so that products of them have no rounding of their own worth mentioning.

    On CUDA in double precision: a product in single precision may be made of TF32, which has three
    digits, and the switch for that is one for all threads. Elsewhere in single precision.
    """
    return values.double() if values.is_cuda else values.float()


def compared_rows(queries: int) -> slice:
    """The queries whose rows are compared at capture."""
    return slice(0, None, max(1, (queries - 1) // PROOF_ROWS))


def random_projection(vectors: Tensor) -> Tensor:
    """Vectors (W, h, tokens, d) along four random directions: (W, h, 4, tokens).

    Of a direction r, A (v r) is compared with (A v) r: what differs in one number of A v differs
    along r, and a product of A with four columns is cheaper than that with all of v.

    References
    ----------
    Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
    """
    directions = _directions(vectors.shape[-1]).numpy()  # torch's product takes twice as long
    return torch.from_numpy(directions @ vectors.float().numpy().swapaxes(2, 3))


@cache
def _directions(size: int) -> Tensor:
    """Four random directions (4, d), always the same ones."""
    return torch.randn(4, size, generator=torch.Generator().manual_seed(size)) * size**-0.5


def why_rows_differ(
    read: Sequence[tuple[Layer, Tensor, Tensor, bool]], pictures: int
) -> Iterator[list[tuple[Message | None, float]]]:
    """Of each (layer, rows of A v, rows of the block's output, half precision), as `why_differs`.

    And by which share of the largest number they differ.

    Layers of one shape are compared together: in a small model a call takes longer than its work.
    """
    compared: list[tuple[list[float], list[float]]] = []  # by layer, of each picture
    for _, alike in groupby(read, key=lambda each: each[1].shape):
        _, rows, outputs, _ = zip(*alike, strict=True)
        seen, own = torch.stack(rows), torch.stack(outputs)
        compared += zip(
            *(_largest(values, len(rows), pictures) for values in (seen - own, own)), strict=True
        )
    for (layer, _, _, half), (errors, largest) in zip(read, compared, strict=True):
        yield [
            (_why(layer, error, most, half), error / max(most, 1e-12))
            for error, most in zip(errors, largest, strict=True)
        ]


def why_differs(
    layer: Layer, seen: Tensor, own: Tensor, half: bool = False, pictures: int = 1
) -> list[Message | None]:
    """Why A v, or a part of it, is not the block's own output, in one sentence; or None.

    Of each picture; the tensors begin with those of the first one.
    """
    errors, largest = (_largest(values, pictures) for values in (seen - own, own))
    return [_why(layer, *both, half) for both in zip(errors, largest, strict=True)]


def _largest(values: Tensor, *parts: int) -> Any:
    """The largest magnitude in each of the parts that the tensor consists of, as lists."""
    return values.abs().reshape(*parts, -1).amax(-1).tolist()


def _why(layer: Layer, error: float, largest: float, half: bool) -> Message | None:
    if not math.isfinite(largest):  # NaN where any is
        return Message(
            "{layer} computed values that are not finite numbers, so no map is drawn.",
            layer=layer.name,
        )
    share = error / max(largest, 1e-12)
    allowed = HALF_TOLERANCE if half else TOLERANCE
    if share <= allowed:
        return None
    return Message(
        "The attention read from {layer} does not reproduce the block's own output: it is off by "
        "{off:.1f} %, allowed are {allowed:.1f} %.",
        layer=layer.name,
        off=100 * share,
        allowed=100 * allowed,
    )
