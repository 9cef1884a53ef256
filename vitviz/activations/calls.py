"""Calls of attention as they were recorded, from which A is computed when it is asked for.

Letters in the shape comments: W windows (1 where every token meets every token), h heads, n queries
and m keys of a window, d head_dim.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..families import Layer, Windows
from ..language import Message
from .proof import ComparedOutput, Copy, Output, compared_rows, exact, random_projection

BLOCK = 1 << 18  # numbers computed at a time: they fit into the processor's cache


@dataclass(frozen=True)
class FusedCall:
    """A call of `scaled_dot_product_attention`; q, k and v are (W, h, tokens, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    output: Output | ComparedOutput
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

        A large one is written block by block into one tensor: allocating memory for every step
        would take a third of the time.
        """
        q, k = exact(self.q[:, :, rows]) * self.scale, exact(self.k).transpose(2, 3)
        bias = None if self.bias is None else exact(self.bias[:, :, rows])
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

        Heads are numbered through all windows. The next block is written over the last one, so that
        no memory is allocated. All products are torch's: the threads of numpy's BLAS go on for a
        while after each, and torch's would wait for them.
        """
        q = self.q.flatten(0, 1).float() * self.scale
        k = self.k.flatten(0, 1).float().contiguous().transpose(1, 2)  # (h, d, m)
        (heads, queries, _), keys = q.shape, k.shape[2]
        rows = min(queries, max(1, BLOCK // keys))
        together = max(1, BLOCK // (rows * keys)) if rows == queries else 1  # heads in a block
        memory = torch.empty(2, together * rows * keys)
        for start in range(0, queries, rows):
            for head in range(0, heads, together):
                some = slice(head, head + together), slice(start, start + rows)
                shape = (*q[some].shape[:2], keys)
                scores, attention = memory[:, : math.prod(shape)].view(2, *shape)
                torch.matmul(q[some], k[some[0]], out=scores)
                yield *some, scores, torch.softmax(scores, dim=-1, out=attention)

    def rows(self) -> Tensor:
        """A v, to compare with `output.rows`: (W, h, rows, d)."""
        return self.attention(compared_rows(self.shape[2])) @ exact(self.v)

    def projected(self, attention: Tensor) -> Tensor:
        """A v, to compare with `output.projected`: (W, h, 4, n)."""
        return random_projection(self.v) @ attention.transpose(2, 3)

    def of(self, number: int, pictures: int) -> "FusedCall":
        """The call of one picture of a batch, in the same memory."""
        some = _windows_of(self.q, number, pictures)
        return replace(
            self,
            q=self.q[some],
            k=self.k[some],
            v=self.v[some],
            output=self.output.of(some),
            bias=None if self.bias is None else self.bias[some],
        )

    def cpu(self) -> "FusedCall":
        """The same in the memory of the CPU, where it is asked for attention and numbers."""
        if self.q.device.type == "cpu":
            return self
        bias = None if self.bias is None else self.bias.cpu()
        q, k, v = self.q.cpu(), self.k.cpu(), self.v.cpu()
        return replace(self, q=q, k=k, v=v, output=self.output.cpu(), bias=bias)

    def tensors(self) -> tuple[Tensor, ...]:
        kept = (self.q, self.k, self.v, *self.output.tensors())
        return kept if self.bias is None else (*kept, self.bias)

    def copied(self, copy: Copy) -> "FusedCall":
        """A copy in other memory, but for the bias, which may be one for all windows."""
        q, k, v = copy(self.q), copy(self.k), copy(self.v)
        return replace(self, q=q, k=k, v=v, output=self.output.copied(copy))


@dataclass(frozen=True)
class SoftmaxCall:
    """A softmax and the product with the values that follows it.

    `mixing`, a weight (h, h) and a bias (h,), mixes the heads in between (CaiT's talking heads).
    """

    weights: Tensor  # (W, h, n, m)
    v: Tensor  # (W, h, m, d)
    output: Output | ComparedOutput
    mixing: tuple[Tensor, Tensor] | None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

    @property
    def half(self) -> bool:
        return self.v.dtype.itemsize < 4

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """What the softmax gave, before any mixing of heads: (W, h, rows, m)."""
        return exact(self.weights[:, :, rows])

    def rows(self) -> Tensor:
        """A v, to compare with `output.rows`: (W, h, rows, d)."""
        return self._mixed(self.attention(compared_rows(self.shape[2]))) @ exact(self.v)

    def projected(self, attention: Tensor) -> Tensor:
        """A v, to compare with `output.projected`: (W, h, 4, n)."""
        return random_projection(self.v) @ self._mixed(attention).transpose(2, 3)

    def _mixed(self, attention: Tensor) -> Tensor:
        """A with the heads mixed as the block mixes them."""
        if self.mixing is None:
            return attention
        weight, bias = self.mixing
        mixed = torch.einsum("gh,whnm->wgnm", exact(weight), attention)
        return mixed + exact(bias)[:, None, None]

    def cpu(self) -> "SoftmaxCall":
        """The same in the memory of the CPU, where it is asked for attention."""
        if self.v.device.type == "cpu":
            return self
        mixing = None if self.mixing is None else (self.mixing[0].cpu(), self.mixing[1].cpu())
        weights, v, output = self.weights.cpu(), self.v.cpu(), self.output.cpu()
        return replace(self, weights=weights, v=v, output=output, mixing=mixing)

    def of(self, number: int, pictures: int) -> "SoftmaxCall":
        """The call of one picture of a batch, in the same memory."""
        some = _windows_of(self.weights, number, pictures)
        return replace(
            self, weights=self.weights[some], v=self.v[some], output=self.output.of(some)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weights, self.v, *self.output.tensors(), *(self.mixing or ()))

    def copied(self, copy: Copy) -> "SoftmaxCall":
        """A copy in other memory, but for the weights, which have a tensor of their own."""
        return replace(self, v=copy(self.v), output=self.output.copied(copy))


Call = FusedCall | SoftmaxCall


def _windows_of(tensor: Tensor, number: int, pictures: int) -> slice:
    """Where the windows of one picture are: each picture's follow those of the one before."""
    count = len(tensor) // pictures
    return slice(number * count, (number + 1) * count)


def fused_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> FusedCall:
    """The arguments of one `scaled_dot_product_attention` call; its batch are the windows."""
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -math.inf
            )
        bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    return FusedCall(
        q=query,
        k=key,
        v=value,
        output=Output(output),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
    )


def sealed_call(attn: nn.MultiheadAttention, tokens: Tensor) -> tuple[FusedCall, Tensor]:
    """The attention that an `nn.MultiheadAttention` computes among tokens (1, T, D).

    Returns
    -------
    call : FusedCall
    heads : Tensor of shape (1, T, D)
        What the heads give, side by side.

    Notes
    -----
    Its weights make the queries, keys and values a second time: in inference it does all in one
    kernel, which nobody sees into, and which computes other last digits than its parts do.
    """
    together = F.linear(tokens, attn.in_proj_weight, attn.in_proj_bias)
    q, k, v = together.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    heads = F.scaled_dot_product_attention(q, k, v)  # (1, h, T, d)
    return fused_call(heads, q, k, v), heads.transpose(1, 2).flatten(2)


def expected_shape(
    layer: Layer, windows: Windows | None, dropped: int
) -> tuple[int, int, int, int]:
    """(W, h, n, m) of a layer's attention, with so many patches left out."""
    if windows is not None:
        count, queries = windows.queries.shape
        return count, layer.num_heads, queries, windows.keys.shape[1]
    keys = len(layer.prefix) + math.prod(layer.key_grid) - dropped
    return 1, layer.num_heads, 1 if layer.kind == "class" else keys, keys


def why_unexpected(
    layer: Layer, expected: tuple[int, ...], calls: list[Call], pictures: int
) -> Message | None:
    """Why these calls are not the one call that the layer should make, in one sentence; or None."""
    if len(calls) != 1:
        return Message(
            "{layer} of this model called attention {count} times instead of once, so its heads "
            "cannot be told apart.",
            layer=layer.name,
            count=len(calls),
        )
    found = (calls[0].shape[0] / pictures, *calls[0].shape[1:])
    if found[1:3] != expected[1:3]:
        return Message(
            "{layer} has {heads} heads and {tokens} tokens, expected {own_heads} and {own_tokens}.",
            layer=layer.name,
            heads=found[1],
            tokens=found[2],
            own_heads=expected[1],
            own_tokens=expected[2],
        )
    if found != expected:
        return Message(
            "{layer} has {windows:g} windows of {keys} keys, expected {own_windows} of {own_keys}.",
            layer=layer.name,
            windows=found[0],
            keys=found[3],
            own_windows=expected[0],
            own_keys=expected[3],
        )
    return None


def expanded(attention: np.ndarray, windows: Windows, layer: Layer) -> np.ndarray:
    """Attention within windows (W, h, n, m) as one of all patches: (h, N queries, N keys)."""
    queries, keys = math.prod(layer.query_grid), math.prod(layer.key_grid)
    full = np.zeros((layer.num_heads, queries, keys), np.float32)
    for window, rows, cols in zip(attention, windows.queries, windows.keys, strict=True):
        there, seen = rows >= 0, cols >= 0  # without the padding
        full[:, rows[there][:, None], cols[seen]] = window[:, there][:, :, seen]
    return full
