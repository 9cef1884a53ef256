"""`Watch`: what records one forward pass while it runs, and makes the edits in it.

Letters in the shape comments: B pictures, T tokens, D width.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..families import Layer, ModelError
from ..language import Message
from ..model import RECORDER, Model, Recorder
from .arena import Arena
from .batches import Read
from .calls import (
    Call,
    SoftmaxCall,
    expected_shape,
    fused_call,
    sealed_call,
    why_unexpected,
)
from .edits import DropPatches, Edit, MuteHeads, SwapTokens, mask_of
from .proof import Output, why_differs, why_rows_differ

_FUSED = F.scaled_dot_product_attention
SOFTMAX = {Tensor.softmax, torch.softmax, F.softmax}
PRODUCTS = {Tensor.matmul, Tensor.__matmul__, torch.matmul}
_WATCHED = {_FUSED, *SOFTMAX, *PRODUCTS}
_FLAT: dict[str, Callable[[Tensor], Tensor]] = {  # the stream as (B, T, D)
    "tokens": lambda z: z,
    "rows": lambda z: z.flatten(1, 2),
    "channels": lambda z: z.flatten(2).transpose(1, 2),
}


class Watch(TorchFunctionMode, Recorder):
    """Records one forward pass, and applies the edits to it.

    A TorchFunctionMode slows every call of torch down, so it is entered for the attention of each
    block and left again.
    """

    def __init__(
        self,
        model: Model,
        pictures: int,
        arena: Arena | None,
        edits: Sequence[Edit],
        progress: Callable[[int, int], object] | None,
    ) -> None:
        super().__init__()
        self.pictures = pictures
        self.arena = arena
        self.layers = model.layers
        self.read_tokens = set(model.read_tokens)
        self.sites = model.sites
        self.progress = progress
        self.interrupting = False  # while `progress` runs: what it raises is passed on as it is
        self.muted: dict[int, dict[int, np.ndarray | None]] = {}
        for edit in edits:
            if isinstance(edit, MuteHeads):
                for layer, head in edit.heads:
                    self.muted.setdefault(layer, {})[head] = edit.values.get((layer, head))
        self.swaps = [pair for edit in edits if isinstance(edit, SwapTokens) for pair in edit.pairs]
        self.dropped = mask_of(edits, DropPatches, model.layers[0].query_grid)
        self.patches = np.flatnonzero(~self.dropped.ravel())
        self.patches.flags.writeable = False
        self.running: int | None = None  # the layer whose attention is being computed
        self.weights: Tensor | None = None  # of a softmax whose product is still to come
        self.calls: list[list[Call]] = [[] for _ in model.layers]
        self.refusals: dict[int, list[Message | None]] = {}  # of nn.MultiheadAttention, by picture
        self.joined: set[int] = set()  # the layers whose heads were muted
        self.stream: list[Tensor] = []
        self.after_attention: list[Tensor | None] = [None] * len(model.layers)

    def embedded(self, patches: Tensor) -> Tensor | None:
        if not self.swaps:
            return None
        flat = patches.flatten(1, -2)  # (B, N, D), also where timm keeps a grid (B, R, S, D)
        order = np.arange(flat.shape[1])
        for first, second in self.swaps:
            order[[first, second]] = order[[second, first]]
        return flat[:, torch.from_numpy(order).to(flat.device)].reshape(patches.shape)

    def entering(self, layer: int, tokens: Tensor) -> Tensor | None:
        if self.progress is not None:
            self.interrupting = True
            self.progress(layer, len(self.layers))
            self.interrupting = False
        kept = None
        if layer == 0:
            kept = self._kept(tokens) if self.dropped.any() else None
            self.stream.append(self._flat(layer, tokens if kept is None else kept))
        if not self.sites[layer].sealed:  # with a mode it would compute other last digits
            self.running = layer
            TorchFunctionMode.__enter__(self)
        return kept

    def _kept(self, tokens: Tensor) -> Tensor:
        """The tokens without those of the dropped patches."""
        first = self.layers[0]
        prefix = len(first.prefix)
        if tokens.shape[1] != prefix + self.dropped.size:
            raise ModelError(
                "{layer} has {tokens} tokens, expected {expected}, so no patch can be dropped.",
                layer=first.name,
                tokens=tokens.shape[1],
                expected=prefix + self.dropped.size,
            )
        if self.dropped.all() and not self.read_tokens & set(first.prefix):
            raise ModelError("Every patch was dropped, and this model reads its output from them.")
        places = np.concatenate([np.arange(prefix), prefix + self.patches])
        return tokens[:, torch.from_numpy(places).to(tokens.device)]

    def sealed(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor | None:
        attn = self.sites[layer].attn
        call, heads = sealed_call(attn, tokens)
        own = attn.out_proj(heads)
        self.refusals[layer] = why_differs(
            self.layers[layer], own, output, call.half, self.pictures
        )
        copied = call if self.arena is None else call.copied(self.arena.copy)
        self.calls[layer].append(copied)
        return attn.out_proj(self.projecting(layer, heads)) if layer in self.muted else None

    def projecting(self, layer: int, heads: Tensor) -> Tensor:
        calls = self.calls[layer]
        self.joined.add(layer)
        if len(calls) != 1:
            raise ModelError(
                "{layer} called attention {count} times instead of once, so no head of it "
                "can be muted.",
                layer=self.layers[layer].name,
                count=len(calls),
            )
        width = calls[0].v.shape[-1]
        axis = 1 if isinstance(self.sites[layer].projection, nn.Conv2d) else -1
        heads = heads.clone()
        for head, values in self.muted[layer].items():
            part = heads.narrow(axis, head * width, width)
            if values is None:
                part.zero_()
            else:
                part.copy_(self._replacement(layer, values, part))
        return heads

    def _replacement(self, layer: int, values: np.ndarray, part: Tensor) -> Tensor:
        """What a head gives instead of its own part (1, tokens, head_dim)."""
        described = self.layers[layer]
        prefix = len(described.prefix)
        if len(values) == prefix + self.dropped.size:  # without the patches that were dropped
            values = np.concatenate([values[:prefix], values[prefix:][self.patches]])
        if part.ndim != 3 or values.shape != tuple(part.shape[1:]):
            raise ModelError(
                "Expected values of shape {expected} for a head of {layer}, got {shape}.",
                expected=tuple(part.shape[1:]),
                layer=described.name,
                shape=values.shape,
            )
        return torch.from_numpy(values)[None].to(part)

    def attended(self, layer: int, tokens: Tensor) -> None:
        self.stop()
        self.after_attention[layer] = self._flat(layer, tokens)

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.stop()
        self.stream.append(self._flat(layer, tokens))

    def stop(self) -> None:
        """Leave the mode: the block's attention is over, or the pass was broken off."""
        layer, self.running, self.weights = self.running, None, None
        if layer is None:
            return
        TorchFunctionMode.__exit__(self, None, None, None)
        if self.arena is not None:  # before the rest of the block can change them in place
            self.calls[layer] = [call.copied(self.arena.copy) for call in self.calls[layer]]

    def _flat(self, layer: int, tokens: Tensor) -> Tensor:
        """The tokens of each picture in row-major order: (B, T, D)."""
        flat = _FLAT[self.sites[layer].layout](tokens) if tokens.ndim > 3 else tokens
        return flat if self.arena is None else self.arena.copy(flat)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **kwargs) if kwargs else func(*args)
        if func not in _WATCHED or (here := self.running) is None:
            return output  # by far the most calls
        if RECORDER.get() is not self:
            return output  # of another forward pass within this one
        if func is _FUSED:
            self.calls[here].append(fused_call(output, *args, **(kwargs or {})))
        elif func in SOFTMAX:
            self.weights = output
        elif self.weights is not None:
            self._product(here, self.weights, output, *args)
        return output

    def _product(self, layer: int, weights: Tensor, output: Any, first: Any, second: Any) -> None:
        """Record a product of matrices, one of which is what the last softmax gave."""
        if second.data_ptr() == weights.data_ptr():  # CoAtNet has its tokens in columns
            v, output = first.transpose(-2, -1), output.transpose(-2, -1)
        elif first.shape == weights.shape:
            v = second
        else:
            return
        mixing = self.sites[layer].mixing
        self.calls[layer].append(
            SoftmaxCall(
                weights=weights,
                v=v,
                output=Output(output),
                mixing=None if mixing is None else (mixing.weight.clone(), mixing.bias.clone()),
            )
        )
        self.weights = None

    def proved(self) -> tuple[tuple[Layer, ...], list[Read | None]]:
        """Each layer, with its call and why it is not shown of each picture, where it has one."""
        dropped, count = int(self.dropped.sum()), self.pictures
        shapes = (
            expected_shape(layer, site.windows, dropped)
            for layer, site in zip(self.layers, self.sites, strict=True)
        )
        layers = tuple(
            replace(layer, refusal=layer.refusal or why_unexpected(layer, shape, calls, count))
            for layer, shape, calls in zip(self.layers, shapes, self.calls, strict=True)
        )
        read = [
            (layer, calls[0])
            for layer, calls in zip(layers, self.calls, strict=True)
            if not layer.refusal
        ]
        differing = why_rows_differ(
            [(layer, call.rows(), call.output.rows, call.half) for layer, call in read], count
        )
        found: list[Read | None] = []
        for number, (layer, calls) in enumerate(zip(layers, self.calls, strict=True)):
            if layer.refusal:
                found.append(None)
                continue
            sealed = self.refusals.get(number, [None] * count)
            both = zip(sealed, next(differing), strict=True)
            found.append((calls[0], [(known or why, error) for known, (why, error) in both]))
        return layers, found
