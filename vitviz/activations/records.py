"""What one layer's attention left behind, and the proof of it.

Letters in the shape comments: W windows (1 where every token meets every token), h heads, n queries
and m keys of a window, d head_dim.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ..families import Layer, Windows

#: Of A v against the block's own attention output, relative to its maximum.
TOLERANCE = 1e-3
#: The same where the model computes in half precision, whose own rounding is larger than that.
HALF_TOLERANCE = 2e-2

Keep = Callable[[Tensor], Tensor]  # copies a tensor to where it is kept

BLOCK = 1 << 18  # numbers worked on at a time: in the cache, and by few calls
PROOF_ROWS = 8  # query rows checked at capture, beside the first


@dataclass(frozen=True)
class Output:
    """A block's own attention output, by which what is read proves itself."""

    whole: Tensor  # (W, h, n, d)

    @property
    def rows(self) -> Tensor:
        """Of the first query and 8 others, or those few that there are: (W, h, rows, d)."""
        return self.whole[:, :, proof_rows(self.whole.shape[2])]

    @property
    def onto(self) -> Tensor:
        return directed(self.whole)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.whole,)

    def moved(self, keep: Keep) -> "Proof":
        return Proof(keep(self.rows), keep(self.onto))


@dataclass(frozen=True)
class Proof:
    """What a large capture keeps of the output."""

    rows: Tensor  # (W, h, rows, d)
    onto: Tensor  # (W, h, 4, n), all of it in four random directions

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.onto

    def moved(self, keep: Keep) -> "Proof":
        return self


def proof_rows(queries: int) -> slice:
    """The queries that are checked at capture."""
    return slice(0, None, max(1, (queries - 1) // PROOF_ROWS))


@cache
def directions(size: int) -> Tensor:
    """Four random directions (4, d), always the same ones."""
    return torch.randn(4, size, generator=torch.Generator().manual_seed(size)) * size**-0.5


@dataclass(frozen=True)
class Record:
    """A call of `scaled_dot_product_attention`; q, k and v are (W, h, tokens, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    output: Output | Proof
    scale: float
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.q.shape[:3], self.k.shape[2])  # (W, h, n, m)

    @property
    def half(self) -> bool:
        return self.v.dtype.itemsize < 4

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """softmax(q k^T / sqrt(d) + bias) of the chosen query rows: (W, h, rows, m).

        A large one is written block by block into one tensor: fresh memory for every step would
        take a third of the time.
        """
        q, k = self.q[:, :, rows].float() * self.scale, self.k.float().transpose(2, 3)
        bias = None if self.bias is None else self.bias[:, :, rows].float()
        if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[3] <= BLOCK:
            scores = q @ k
            return (scores if bias is None else scores + bias).softmax(dim=-1)
        full = q.new_empty(*q.shape[:3], k.shape[3])
        step = max(1, BLOCK // k.shape[3])
        for head in np.ndindex(*q.shape[:2]):  # of each window
            for start in range(0, q.shape[2], step):
                some = (*head, slice(start, start + step))
                block = torch.mm(q[some], k[head], out=full[some])
                if bias is not None:
                    block += bias[some]
                torch.softmax(block, dim=-1, out=block)
        return full

    def row_blocks(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Heads, rows, q k^T / sqrt(d) of these and its softmax: both (heads, rows, m).

        The next block is written over the last one, so that no fresh memory is needed.
        """
        q = (self.q[0].float() * self.scale).numpy()
        k = self.k[0].float().transpose(1, 2).contiguous().numpy()  # (h, d, m)
        (heads, queries, _), keys = q.shape, k.shape[2]
        rows = min(queries, max(1, BLOCK // keys))
        together = max(1, BLOCK // (rows * keys)) if rows == queries else 1  # heads in a block
        memory = torch.empty(2, together * rows * keys)
        for start in range(0, queries, rows):
            for head in range(0, heads, together):
                some = slice(head, head + together), slice(start, start + rows)
                shape = (*q[some].shape[:2], keys)
                scores, attention = memory[:, : math.prod(shape)].view(2, *shape)
                np.matmul(q[some], k[some[0]], out=scores.numpy())  # torch's takes longer
                yield *some, scores, torch.softmax(scores, dim=-1, out=attention)

    def heads(self, attention: Tensor) -> Tensor:
        """A v: (W, h, rows, d)."""
        return attention @ self.v.float()

    def onto(self, attention: Tensor) -> Tensor:
        """A v in the four directions of the proof: (W, h, 4, rows)."""
        return directed(self.v) @ attention.transpose(2, 3)

    def tensors(self) -> tuple[Tensor, ...]:
        kept = (self.q, self.k, self.v, *self.output.tensors())
        return kept if self.bias is None else (*kept, self.bias)

    def moved(self, keep: Keep) -> "Record":
        """The same kept elsewhere; the bias stays, as it may be one for all windows."""
        q, k, v = keep(self.q), keep(self.k), keep(self.v)
        return replace(self, q=q, k=k, v=v, output=self.output.moved(keep))


@dataclass(frozen=True)
class SoftmaxRecord:
    """A softmax and the product with the values after it.

    `mixing`, a weight (h, h) and a bias (h,), is what the block does with its heads in between.
    """

    weights: Tensor  # (W, h, n, m)
    v: Tensor  # (W, h, m, d)
    output: Output | Proof
    mixing: tuple[Tensor, Tensor] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

    @property
    def half(self) -> bool:
        return self.v.dtype.itemsize < 4

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """What the softmax gave, before any mixing of heads: (W, h, rows, m)."""
        return self.weights[:, :, rows].float()

    def heads(self, attention: Tensor) -> Tensor:
        """A v: (W, h, rows, d)."""
        return self._mixed(attention) @ self.v.float()

    def onto(self, attention: Tensor) -> Tensor:
        """A v in the four directions of the proof: (W, h, 4, rows)."""
        return directed(self.v) @ self._mixed(attention).transpose(2, 3)

    def _mixed(self, attention: Tensor) -> Tensor:
        """A with the heads mixed as the block mixes them."""
        if self.mixing is None:
            return attention
        weight, bias = self.mixing
        mixed = torch.einsum("gh,whnm->wgnm", weight.float(), attention)
        return mixed + bias.float()[:, None, None]

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weights, self.v, *self.output.tensors(), *(self.mixing or ()))

    def moved(self, keep: Keep) -> "SoftmaxRecord":
        """The same kept elsewhere; the weights stay, which have a tensor of their own."""
        return replace(self, v=keep(self.v), output=self.output.moved(keep))


AnyRecord = Record | SoftmaxRecord


def directed(values: Tensor) -> Tensor:
    """Vectors (W, h, tokens, d) in four random directions: (W, h, 4, tokens)."""
    return directions(values.shape[-1]) @ values.float().transpose(2, 3)


def read_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Record:
    """The arguments of one `scaled_dot_product_attention` call; its batch are the windows."""
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -math.inf
            )
        bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    return Record(
        q=query,
        k=key,
        v=value,
        output=Output(output),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
    )


def expected_shape(
    layer: Layer, windows: Windows | None, dropped: int
) -> tuple[int, int, int, int]:
    """(W, h, n, m) of a layer's attention, with so many patches left out."""
    if windows is not None:
        count, queries = windows.queries.shape
        return count, layer.num_heads, queries, windows.keys.shape[1]
    keys = len(layer.prefix) + math.prod(layer.key_grid) - dropped
    return 1, layer.num_heads, 1 if layer.kind == "class" else keys, keys


def why_unlike(layer: Layer, expected: tuple[int, ...], calls: list[AnyRecord]) -> str | None:
    """Why what was called is not the one attention that the layer should have, or None."""
    if len(calls) != 1:
        return (
            f"{layer.name} of this model called attention {len(calls)} times instead of "
            "once, so its heads cannot be told apart."
        )
    found = calls[0].shape
    if found[1:3] != expected[1:3]:
        return (
            f"{layer.name} has {found[1]} heads and {found[2]} "
            f"tokens, expected {expected[1]} and {expected[2]}."
        )
    if found != expected:
        return (
            f"{layer.name} has {found[0]} windows of {found[3]} keys, "
            f"expected {expected[0]} of {expected[3]}."
        )
    return None


def why_rows_wrong(read: Sequence[tuple[Layer, AnyRecord]]) -> Iterator[str | None]:
    """Of each layer, why the first row and 8 others of A do not prove themselves, or None.

    Layers of one shape are compared together: in a small model a call takes longer than its work.
    """
    proofs = [
        (record.heads(record.attention(proof_rows(record.shape[2]))), record.output.rows)
        for _, record in read
    ]
    compared: list[tuple[float, float]] = []
    for _, alike in groupby(proofs, key=lambda proof: proof[0].shape):
        seen, own = map(torch.stack, zip(*alike, strict=True))
        numbers = (values.flatten(1).abs().amax(1).tolist() for values in (seen - own, own))
        compared += zip(*numbers, strict=True)
    for (layer, record), (error, largest) in zip(read, compared, strict=True):
        yield _why_off(layer, error, largest, record.half)


def why_wrong(layer: Layer, record: AnyRecord, attention: Tensor) -> str | None:
    """Why the whole A does not prove itself, or None.

    A v and the block's output are compared in four random directions r, A (v r) with (A v) r: what
    differs in one number differs in the directions, and no second product of matrices is needed.

    References
    ----------
    Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
    """
    return why_refused(layer, record.onto(attention), record.output.onto, record.half)


def why_refused(layer: Layer, seen: Tensor, own: Tensor, half: bool = False) -> str | None:
    """Why A v does not prove itself against the block's own attention output, or None."""
    return _why_off(layer, float((seen - own).abs().max()), float(own.abs().max()), half)


def _why_off(layer: Layer, error: float, largest: float, half: bool) -> str | None:
    if not math.isfinite(largest):  # NaN where any is
        return f"{layer.name} computed values that are not finite numbers, so no map is drawn."
    share = error / max(largest, 1e-12)
    allowed = HALF_TOLERANCE if half else TOLERANCE
    if share <= allowed:
        return None
    return (
        f"The attention read from {layer.name} does not reproduce the block's own output: "
        f"it is off by {share:.1%}, allowed are {allowed:.1%}."
    )


def expanded(attention: np.ndarray, windows: Windows, layer: Layer) -> np.ndarray:
    """Attention within windows (W, h, n, m) as one of all patches: (h, N queries, N keys)."""
    queries, keys = math.prod(layer.query_grid), math.prod(layer.key_grid)
    full = np.zeros((layer.num_heads, queries, keys), np.float32)
    for window, rows, cols in zip(attention, windows.queries, windows.keys, strict=True):
        there, seen = rows >= 0, cols >= 0  # without the padding
        full[:, rows[there][:, None], cols[seen]] = window[:, there][:, :, seen]
    return full
