"""Recorded calls of attention: A is computed from them on demand, and proved.

The proof compares A v, attention times the values before the heads are concatenated, with what the
block itself computed: a few rows of every layer when one is first asked for, and of a layer that is
shown or measured all rows along random directions.

Letters in the shape comments: W windows (1 where every token meets every token), h heads, n queries
and m keys of a window, d head_dim.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.language import Message
from ..model.devices import HALF_TOLERANCE, TOLERANCE, own_precision
from ..model.families import Layer, ModelError, Windows

PROOF_ROWS = 8  # query rows of every layer that are compared, beside the first

Copy = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Output:
    """The block's own A v."""

    whole: Tensor  # (W, h, n, d)

    @property
    def rows(self) -> Tensor:
        """The first query's row and about 8 others: (W, h, rows, d)."""
        return self.whole[:, :, compared_rows(self.whole.shape[2])]

    @property
    def projection(self) -> Tensor:
        """Products of all rows with four random directions: (W, h, 4, n)."""
        return random_projection(self.whole)

    def select(self, windows: slice) -> "Output":
        return Output(self.whole[windows])

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.whole,)

    def copy_to(self, copy: Copy) -> "ComparedOutput":
        return ComparedOutput(copy(self.rows), copy(self.projection))

    def cpu(self) -> "Output":
        return Output(self.whole.cpu())


@dataclass(frozen=True)
class ComparedOutput:
    """The parts of an `Output` that are compared, which is all that a large capture keeps."""

    rows: Tensor  # (W, h, rows, d)
    projection: Tensor  # (W, h, 4, n)

    def select(self, windows: slice) -> "ComparedOutput":
        return ComparedOutput(self.rows[windows], self.projection[windows])

    def tensors(self) -> tuple[Tensor, ...]:
        return self.rows, self.projection

    def copy_to(self, copy: Copy) -> "ComparedOutput":
        return self

    def cpu(self) -> "ComparedOutput":
        return ComparedOutput(self.rows.cpu(), self.projection.cpu())


def as_exact(values: Tensor) -> Tensor:
    """Convert values to a precision in which the rounding of products is negligible.

    On CUDA to double precision: a product in single precision may use TF32, which has three
    digits, and the switch for that is one for all threads. Elsewhere to single precision.
    """
    return values.double() if values.is_cuda else values.float()


def compared_rows(queries: int) -> slice:
    """Return the queries whose rows are compared in every layer."""
    return slice(0, None, max(1, (queries - 1) // PROOF_ROWS))


def random_projection(vectors: Tensor) -> Tensor:
    """Project vectors (W, h, tokens, d) on four random directions: (W, h, 4, tokens).

    For a direction r, A (v r) is compared with (A v) r: a difference in one number of A v shows
    along r, and a product of A with four columns is cheaper than one with all of v.

    References
    ----------
    Freivalds, "Probabilistic machines can use less running time" (IFIP 1977).
    """
    directions = _directions(vectors.shape[-1]).numpy()  # torch's product takes twice as long
    return torch.from_numpy(directions @ vectors.float().numpy().swapaxes(2, 3))


@cache
def _directions(size: int) -> Tensor:
    """Return four random directions (4, d), the same ones at every call."""
    random = torch.Generator().manual_seed(size)
    directions = torch.randn(4, size, generator=random, device="cpu", dtype=torch.float32)
    return directions * size**-0.5


def explain_row_mismatches(
    rows: Sequence[tuple[Layer, Tensor, Tensor, bool]], pictures: int
) -> Iterator[list[tuple[Message | None, float]]]:
    """Yield for each layer and each picture the mismatch, if any, and the size of the difference.

    Parameters
    ----------
    rows : sequence of (layer, rows of A v, rows of the block's output, half precision)
    pictures : int

    Yields
    ------
    list of (Message or None, float)
        For each picture what `explain_mismatch` returns, and the difference as a share of the
        output's largest magnitude.
    """
    compared: list[tuple[list[float], list[float]]] = []  # by layer, of each picture
    # In a small model a call takes longer than its work, so layers of one shape are joined.
    for _, alike in groupby(rows, key=lambda each: each[1].shape):
        _, products, outputs, _ = zip(*alike, strict=True)
        product, own = torch.stack(products), torch.stack(outputs)
        compared += zip(
            *(_largest(values, len(products), pictures) for values in (product - own, own)),
            strict=True,
        )
    for (layer, _, _, half), (errors, largest) in zip(rows, compared, strict=True):
        yield [
            (_explain(layer, error, most, half), error / max(most, 1e-12))
            for error, most in zip(errors, largest, strict=True)
        ]


def explain_mismatch(
    layer: Layer, product: Tensor, own: Tensor, half: bool = False, pictures: int = 1
) -> list[Message | None]:
    """Explain for each picture why A v is not the block's own output; None where it is.

    The tensors may be parts or projections of both, and begin with those of the first picture.
    """
    errors, largest = _largest(torch.stack([product - own, own]), 2, pictures)
    return [_explain(layer, *both, half) for both in zip(errors, largest, strict=True)]


def _largest(values: Tensor, *parts: int) -> Any:
    """Return the largest magnitude in each of the parts that the tensor consists of, as lists."""
    return values.abs().reshape(*parts, -1).amax(-1).tolist()


def _explain(layer: Layer, error: float, largest: float, half: bool) -> Message | None:
    if not math.isfinite(largest):  # NaN where any is
        return Message(
            "{layer} computed NaN or infinite values, so no map is drawn.", layer=layer.name
        )
    share = error / max(largest, 1e-12)
    allowed = HALF_TOLERANCE if half else TOLERANCE
    if share <= allowed:
        return None
    return Message(
        "The attention read from {layer} does not reproduce the block's own output. It is off by "
        "{off:.1f} %; at most {allowed:.1f} % is allowed.",
        layer=layer.name,
        off=100 * share,
        allowed=100 * allowed,
    )


# Numbers computed at a time: the fastest of 2^17 to 2^20 for ViT-Ti, B and S/14.
BLOCK_NUMBERS = 3 << 17


@dataclass(frozen=True, kw_only=True)
class _ProvableCall:
    v: Tensor  # (W, h, m, d)
    output: Output | ComparedOutput

    @property
    def shape(self) -> tuple[int, ...]:
        """(W, h, n, m)."""
        raise NotImplementedError

    @property
    def half(self) -> bool:
        return self.v.dtype.itemsize < 4

    def attention(self, rows: slice = slice(None)) -> Tensor:
        raise NotImplementedError

    def _mix_heads(self, attention: Tensor) -> Tensor:
        return attention

    @own_precision()
    def rows(self) -> Tensor:
        """Return A v, to compare with `output.rows`: (W, h, rows, d)."""
        return self._mix_heads(self.attention(compared_rows(self.shape[2]))) @ as_exact(self.v)

    @own_precision()
    def projection(self, attention: Tensor) -> Tensor:
        """Return A v, to compare with `output.projection`: (W, h, 4, n)."""
        return random_projection(self.v) @ self._mix_heads(attention).transpose(2, 3)


@dataclass(frozen=True, kw_only=True)
class FusedCall(_ProvableCall):
    """A call of `scaled_dot_product_attention`; q, k and v are (W, h, tokens, d)."""

    q: Tensor
    k: Tensor
    scale: float
    bias: Tensor | None

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.q.shape[:3], self.k.shape[2])

    @own_precision()
    def attention(self, rows: slice = slice(None)) -> Tensor:
        """Return softmax(q k^T / sqrt(d) + bias) of the given query rows: (W, h, rows, m).

        A large matrix is filled block by block: allocating memory for every step would take a third
        of the time.
        """
        q, k = as_exact(self.q[:, :, rows]) * self.scale, as_exact(self.k).transpose(2, 3)
        bias = None if self.bias is None else as_exact(self.bias[:, :, rows])
        if q.shape[0] * q.shape[1] * q.shape[2] * k.shape[3] <= BLOCK_NUMBERS:
            scores = q @ k
            return (scores if bias is None else scores + bias).softmax(dim=-1)
        full = q.new_empty(*q.shape[:3], k.shape[3])
        step = max(1, BLOCK_NUMBERS // k.shape[3])
        for head in np.ndindex(*q.shape[:2]):  # of each window
            for start in range(0, q.shape[2], step):
                some = (*head, slice(start, start + step))
                block = torch.mm(q[some], k[head], out=full[some])
                if bias is not None:
                    block += bias[some]
                torch.softmax(block, dim=-1, out=block)
        return full

    def row_blocks(self) -> Iterator[tuple[slice, slice, Tensor, Tensor]]:
        """Yield heads, rows, their q k^T / sqrt(d) and its softmax, both (heads, rows, m).

        Heads are numbered through all windows. The next block is written over the last one, so that
        no memory is allocated. All products are torch's: the threads of numpy's BLAS keep running
        for a while after each, and torch's would wait for them.
        """
        q = self.q.flatten(0, 1).float()
        k = self.k.flatten(0, 1).float().transpose(1, 2)  # (h, d, m)
        (heads, queries, _), keys = q.shape, k.shape[2]
        rows = min(queries, max(1, BLOCK_NUMBERS // keys))
        together = (
            max(1, BLOCK_NUMBERS // (rows * keys)) if rows == queries else 1
        )  # heads in a block
        memory = q.new_empty(2, together * rows * keys)
        for start in range(0, queries, rows):
            for head in range(0, heads, together):
                some = slice(head, head + together), slice(start, start + rows)
                shape = (*q[some].shape[:2], keys)
                scores, attention = memory[:, : math.prod(shape)].view(2, *shape)
                # With `out` nothing is cast within `torch.autocast`.
                torch.baddbmm(scores, q[some], k[some[0]], beta=0, alpha=self.scale, out=scores)
                torch.softmax(scores, dim=-1, out=attention)
                yield *some, scores, attention

    def select(self, number: int, pictures: int) -> "FusedCall":
        """Return the call of one picture of a batch, in the same memory."""
        some = _windows_of(self.q, number, pictures)
        return replace(
            self,
            q=self.q[some],
            k=self.k[some],
            v=self.v[some],
            output=self.output.select(some),
            bias=None if self.bias is None else self.bias[some],
        )

    def cpu(self) -> "FusedCall":
        """Return the call in the memory of the CPU, where attention and measures are computed."""
        if self.q.device.type == "cpu":
            return self
        bias = None if self.bias is None else self.bias.cpu()
        q, k, v = self.q.cpu(), self.k.cpu(), self.v.cpu()
        return replace(self, q=q, k=k, v=v, output=self.output.cpu(), bias=bias)

    def tensors(self) -> tuple[Tensor, ...]:
        own = (self.q, self.k, self.v, *self.output.tensors())
        return own if self.bias is None else (*own, self.bias)

    def copy_to(self, copy: Copy) -> "FusedCall":
        """Copy all but the bias, which windows may share, into other memory."""
        q, k, v = copy(self.q), copy(self.k), copy(self.v)
        return replace(self, q=q, k=k, v=v, output=self.output.copy_to(copy))


@dataclass(frozen=True, kw_only=True)
class SoftmaxCall(_ProvableCall):
    """A softmax, and the product with the values that follows it.

    `mixing`, a weight (h, h) and a bias (h,), mixes the heads in between (CaiT's talking heads).
    """

    weights: Tensor  # (W, h, n, m)
    mixing: tuple[Tensor, Tensor] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.weights.shape)

    def attention(self, rows: slice = slice(None)) -> Tensor:
        """Return the softmax before any mixing of heads: (W, h, rows, m)."""
        return as_exact(self.weights[:, :, rows])

    def _mix_heads(self, attention: Tensor) -> Tensor:
        """Mix the heads of A as the block does."""
        if self.mixing is None:
            return attention
        weight, bias = self.mixing
        mixed = torch.einsum("gh,whnm->wgnm", as_exact(weight), attention)
        return mixed + as_exact(bias)[:, None, None]

    def cpu(self) -> "SoftmaxCall":
        """Return the call in the memory of the CPU, where attention is computed."""
        if self.v.device.type == "cpu":
            return self
        mixing = None if self.mixing is None else (self.mixing[0].cpu(), self.mixing[1].cpu())
        weights, v, output = self.weights.cpu(), self.v.cpu(), self.output.cpu()
        return replace(self, weights=weights, v=v, output=output, mixing=mixing)

    def select(self, number: int, pictures: int) -> "SoftmaxCall":
        """Return the call of one picture of a batch, in the same memory."""
        some = _windows_of(self.weights, number, pictures)
        return replace(
            self, weights=self.weights[some], v=self.v[some], output=self.output.select(some)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weights, self.v, *self.output.tensors(), *(self.mixing or ()))

    def copy_to(self, copy: Copy) -> "SoftmaxCall":
        """Copy all but the weights, which have a tensor of their own, into other memory."""
        return replace(self, v=copy(self.v), output=self.output.copy_to(copy))


Call = FusedCall | SoftmaxCall


def _windows_of(tensor: Tensor, number: int, pictures: int) -> slice:
    """Return where the windows of one picture lie: pictures follow one another."""
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
    """Build the record of one `scaled_dot_product_attention` call, whose batch are the windows."""
    bias = None
    if enable_gqa:  # heads share keys and values
        key, value = (
            each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value)
        )
    if is_causal:
        attn_mask = query.new_ones(query.shape[-2], key.shape[-2], dtype=torch.bool).tril()
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -math.inf
            )
        bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])
    if query.ndim == 5:  # Twins has the windows of each picture in a dimension of their own
        output, query, key, value = (each.flatten(0, 1) for each in (output, query, key, value))
        bias = None if bias is None else bias.flatten(0, 1)
    return FusedCall(
        q=query,
        k=key,
        v=value,
        output=Output(output),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
    )


def multihead_call(attn: nn.MultiheadAttention, tokens: Tensor) -> tuple[FusedCall, Tensor]:
    """Compute the attention of an `nn.MultiheadAttention` among tokens (1, T, D) once more.

    Returns
    -------
    call : FusedCall
    heads : Tensor of shape (1, T, D)
        The concatenated heads.

    Notes
    -----
    Its weights make the queries, keys and values a second time: in inference the module runs one
    kernel that no hook or function mode reaches, and whose last digits differ from those of its
    parts.
    """
    together = F.linear(tokens, attn.in_proj_weight, attn.in_proj_bias)
    q, k, v = together.unflatten(-1, (3, attn.num_heads, -1)).permute(2, 0, 3, 1, 4)
    heads = F.scaled_dot_product_attention(q, k, v)  # (1, h, T, d)
    return fused_call(heads, q, k, v), heads.transpose(1, 2).flatten(2)


def expected_shape(
    layer: Layer, windows: Windows | None, dropped: int
) -> tuple[int, int, int, int]:
    """Return (W, h, n, m) of a layer's attention, with so many patches dropped."""
    if windows is not None:
        count, queries = windows.queries.shape
        return count, layer.num_heads, queries, windows.keys.shape[1]
    keys = len(layer.prefix) + math.prod(layer.key_grid) - dropped
    return 1, layer.num_heads, 1 if layer.kind == "class" else keys, keys


def explain_unexpected_call(
    layer: Layer, expected: tuple[int, ...], calls: list[Call], pictures: int
) -> Message | None:
    """Explain why these calls are not the one call that the layer should make; None if they are."""
    if not calls:
        return Message(
            "The attention of {layer} cannot be read: it uses neither softmax nor "
            "scaled_dot_product_attention.",
            layer=layer.name,
        )
    if len(calls) != 1:
        return Message(
            "The heads of {layer} cannot be told apart: it called attention {count} times instead "
            "of once.",
            layer=layer.name,
            count=len(calls),
        )
    shape = (calls[0].shape[0] / pictures, *calls[0].shape[1:])
    if shape[1:3] != expected[1:3]:
        return Message(
            "{layer} has {heads} heads and {tokens} tokens, expected {own_heads} and {own_tokens}.",
            layer=layer.name,
            heads=shape[1],
            tokens=shape[2],
            own_heads=expected[1],
            own_tokens=expected[2],
        )
    if shape != expected:
        return Message(
            "{layer} has {windows:g} windows of {keys} keys, expected {own_windows} of {own_keys}.",
            layer=layer.name,
            windows=shape[0],
            keys=shape[3],
            own_windows=expected[0],
            own_keys=expected[3],
        )
    return None


def expand_windows(attention: np.ndarray, windows: Windows, layer: Layer) -> np.ndarray:
    """Put attention within windows (W, h, n, m) into a matrix of all patches: (h, N, N keys)."""
    queries, keys = math.prod(layer.query_grid), math.prod(layer.key_grid)
    full = np.zeros((layer.num_heads, queries, keys), np.float32)
    for window, rows, cols in zip(attention, windows.queries, windows.keys, strict=True):
        is_query, is_key = rows >= 0, cols >= 0  # without the padding
        full[:, rows[is_query][:, None], cols[is_key]] = window[:, is_query][:, :, is_key]
    return full


class RowBlocks:
    """The attention of all layers of one picture or of a batch, in blocks of rows.

    Attributes
    ----------
    shape : (layers, heads, tokens)
    pictures : number of pictures
    grid : (rows, cols) of patches
    patch_size : int or (height, width)
    prefix : names of the prefix tokens
    read_tokens : names of the tokens from which the head reads the answer
    in_blocks : whether `row_blocks` can read it: every layer is a plain softmax of q k^T, and all
        have the same number of heads
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
        alike = len({layer.num_heads for layer in layers}) == 1
        self.in_blocks = alike and len(calls) == len(layers)
        self._layers = layers
        self._calls = calls
        # To sum over the prefix tokens, and over the patches.
        parts = torch.zeros(2, tokens, device="cpu", dtype=torch.float32)
        parts[0, : len(self.prefix)] = parts[1, len(self.prefix) :] = 1
        self._parts = parts

    def row_blocks(
        self, layer: int
    ) -> Iterator[tuple[slice, slice, np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the attention of one layer, block by block.

        The heads of all pictures are numbered through, those of the first picture first. A block of
        rows stays in the processor's cache; a whole matrix of 1370 tokens and 6 heads takes 45 MB.

        Yields
        ------
        heads, rows : slice
        scores : ndarray of shape (heads, rows, tokens)
            q k^T / sqrt(d). The next block overwrites it.
        attention : ndarray of shape (heads, rows, tokens)
            Its softmax. The next block overwrites it.
        shares : ndarray of shape (heads, 2, rows)
            The share of each row on the prefix tokens, and on the patches.

        Raises
        ------
        ModelError
            After the last block, when A v is not the block's own output.
        """
        call = self._calls[layer].cpu()
        v = random_projection(call.v).flatten(0, 1)  # (h, 4, m)
        parts = self._parts.expand(len(v), -1, -1)
        columns = torch.cat([v, parts], dim=1)  # one product takes less than two
        projection = v.new_empty(*v.shape[:2], call.shape[2])
        for heads, rows, scores, attention in call.row_blocks():
            product = v.new_empty(len(attention), columns.shape[1], attention.shape[1])
            torch.bmm(columns[heads], attention.transpose(1, 2), out=product)
            projection[heads, :, rows] = product[:, :-2]
            yield heads, rows, scores.numpy(), attention.numpy(), product[:, -2:].numpy()
        own = call.output.projection.flatten(0, 1)
        for refusal in explain_mismatch(
            self._layers[layer], projection, own, call.half, self.pictures
        ):
            if refusal:
                raise ModelError(refusal)


class AttentionLayers(RowBlocks, Iterable[np.ndarray]):
    """Iterate over the attention (heads, tokens, tokens) of each layer, computed when reached."""

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
