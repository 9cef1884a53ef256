"""What one layer's attention left behind, and the proof of it.

Letters in the shape comments: W windows (1 where every token meets every token), h heads, n queries
and m keys of a window, d head_dim.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..families import Layer, Windows

#: Of A v against the block's own attention output, relative to its maximum.
TOLERANCE = 1e-3
#: The same where the model computes in half precision, whose own rounding is larger than that.
HALF_TOLERANCE = 2e-2

BLOCK = 1 << 19  # numbers that are worked on at a time: what fits into a core's cache


@dataclass
class Record:
    """A call of `scaled_dot_product_attention`; v and output are (W, h, tokens, d), as q and k."""

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    scale: float
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.q.shape[:3], self.k.shape[2])  # (W, h, n, m)

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """softmax(q k^T / sqrt(d) + bias) of the chosen query rows: (W, h, rows, m).

        A large one is written block by block into one tensor: fresh memory for every step would
        take a third of the time.
        """
        q, k = self.q[:, :, rows].float() * self.scale, self.k.float().transpose(2, 3)
        bias = None if self.bias is None else self.bias[:, :, rows]
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

    def heads(self, attention: Tensor, onto: Tensor | None = None) -> Tensor:
        """A v: (W, h, rows, d); or A v r for a matrix r of shape (d, few)."""
        v = self.v.float()
        return attention @ (v if onto is None else v @ onto)

    def tensors(self) -> tuple[Tensor, ...]:
        kept = (self.q, self.k, self.v, self.output)
        return kept if self.bias is None else (*kept, self.bias)


@dataclass
class SoftmaxRecord:
    """A softmax and the product with the values after it.

    `mixing`, a weight (h, h) and a bias (h,), is what the block does with its heads in between.
    """

    weights: Tensor  # (W, h, n, m)
    v: Tensor  # (W, h, m, d)
    output: Tensor  # (W, h, n, d)
    mixing: tuple[Tensor, Tensor] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """What the softmax gave, before any mixing of heads: (W, h, rows, m)."""
        return self.weights[:, :, rows].float()

    def heads(self, attention: Tensor, onto: Tensor | None = None) -> Tensor:
        """A v, or A v r, with the heads mixed as the block mixes them."""
        if self.mixing is not None:
            weight, bias = self.mixing
            attention = torch.einsum("gh,whnm->wgnm", weight.float(), attention)
            attention = attention + bias.float()[:, None, None]
        v = self.v.float()
        return attention @ (v if onto is None else v @ onto)

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weights, self.v, self.output, *(self.mixing or ()))


AnyRecord = Record | SoftmaxRecord


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
        output=output,
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


def why_wrong(layer: Layer, record: AnyRecord, attention: Tensor) -> str | None:
    """Why the whole A does not prove itself, or None.

    A v and the block's output are compared in four random directions r, A (v r) with (A v) r: what
    differs in one number differs in the directions, and no second product of matrices is needed.

    References
    ----------
    Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
    """
    size = record.output.shape[-1]
    onto = torch.randn(size, 4, generator=torch.Generator().manual_seed(size)) * size**-0.5
    half = record.output.dtype != torch.float32
    return why_refused(layer, record.heads(attention, onto), record.output.float() @ onto, half)


def why_refused(layer: Layer, seen: Tensor, own: Tensor, half: bool = False) -> str | None:
    """Why A v does not prove itself against the block's own attention output, or None."""
    largest = float(own.abs().max())  # NaN where any is
    if not math.isfinite(largest):
        return f"{layer.name} computed values that are not finite numbers, so no map is drawn."
    error = float((seen - own).abs().max()) / max(largest, 1e-12)
    allowed = HALF_TOLERANCE if half else TOLERANCE
    if error <= allowed:
        return None
    return (
        f"The attention read from {layer.name} does not reproduce the block's own output: "
        f"it is off by {error:.1%}, allowed are {allowed:.1%}."
    )


def expanded(attention: np.ndarray, windows: Windows, layer: Layer) -> np.ndarray:
    """Attention within windows (W, h, n, m) as one of all patches: (h, N queries, N keys)."""
    queries, keys = math.prod(layer.query_grid), math.prod(layer.key_grid)
    full = np.zeros((layer.num_heads, queries, keys), np.float32)
    for window, rows, cols in zip(attention, windows.queries, windows.keys, strict=True):
        there, seen = rows >= 0, cols >= 0  # without the padding
        full[:, rows[there][:, None], cols[seen]] = window[:, there][:, :, seen]
    return full
