"""`AttentionRecorder`: record one forward pass while it runs, and apply edits to it.

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

from ..common import Progress
from ..common.language import Message
from ..model import Model
from ..model.families import Layer, ModelError
from ..model.families.description import without_adapter
from ..model.model import RECORDER, Recorder
from .batches import Arena, Batch
from .calls import (
    Call,
    FusedCall,
    Output,
    SoftmaxCall,
    expected_shape,
    explain_mismatch,
    explain_unexpected_call,
    fused_call,
    multihead_call,
)
from .edits import DropPatches, Edit, MuteHeads, SwapTokens, union_mask

_FUSED = F.scaled_dot_product_attention
_SOFTMAX = {Tensor.softmax, torch.softmax, F.softmax}
_PRODUCTS = {Tensor.matmul, Tensor.__matmul__, torch.matmul}
_INTERCEPTED = {_FUSED, *_SOFTMAX, *_PRODUCTS}
#: The residual stream as (B, T, D), by `Site.layout`.
_FLATTEN: dict[str, Callable[[Tensor], Tensor]] = {
    "tokens": lambda z: z,
    "rows": lambda z: z.flatten(1, 2),
    "channels": lambda z: z.flatten(2).transpose(1, 2),
}


def check_droppable(first: Layer, tokens: Tensor) -> None:
    """Refuse to drop patches where the first layer gets others than its own tokens (B, T, D)."""
    if tokens.ndim != 3 or tokens.shape[1] != first.num_tokens:
        raise ModelError(
            "Patches cannot be dropped: {layer} has {tokens} tokens, expected {expected}.",
            layer=first.name,
            tokens=tokens.shape[1],
            expected=first.num_tokens,
        )


class AttentionRecorder(TorchFunctionMode, Recorder):
    """Record the attention and the tokens of one forward pass, and apply the edits to it.

    A TorchFunctionMode slows every call of torch down, so it is entered for the attention of each
    block and left again.
    """

    #: Whether the pass needs no gradient, and so is made in inference mode.
    inference = True

    def __init__(
        self,
        model: Model,
        pictures: int = 1,
        arena: Arena | None = None,
        edits: Sequence[Edit] = (),
        progress: Progress | None = None,
    ) -> None:
        super().__init__()
        self.pictures = pictures
        self.arena = arena
        self.layers = model.layers
        self.read_tokens = model.read_tokens
        self.sites = model.sites
        self.progress = progress
        self.in_progress = False  # while `progress` runs, whose exceptions are passed on
        self.muted: dict[int, dict[int, np.ndarray | None]] = {}
        for edit in edits:
            if isinstance(edit, MuteHeads):
                for layer, head in edit.heads:
                    self.muted.setdefault(layer, {})[head] = edit.values.get((layer, head))
        self.swaps = [pair for edit in edits if isinstance(edit, SwapTokens) for pair in edit.pairs]
        self.dropped = union_mask(edits, DropPatches, model.layers[0].query_grid)
        self.patches = np.flatnonzero(~self.dropped.ravel())
        self.patches.flags.writeable = False
        self.running: int | None = None  # the layer whose attention is being computed
        self.weights: Tensor | None = None  # of a softmax whose product is still to come
        self.calls: list[list[Call]] = [[] for _ in model.layers]
        self.refusals: dict[int, list[Message | None]] = {}  # by picture
        for layer, site in enumerate(self.sites):
            if site.overrides_forward and not site.is_multihead:  # until `on_joined_heads` compares
                why = Message(
                    "{layer} has a forward of its own that does more to its heads than join them.",
                    layer=site.layer.name,
                )
                self.refusals[layer] = [why] * pictures
        self.muted_layers: set[int] = set()  # so far in the pass
        self.stream: list[Tensor] = []
        self.after_attention: list[Tensor | None] = [None] * len(model.layers)

    def on_patches(self, patches: Tensor) -> Tensor | None:
        if not self.swaps:
            return None
        flat = patches.flatten(1, -2)  # (B, N, D), also where timm keeps a grid (B, R, S, D)
        order = np.arange(flat.shape[1])
        for first, second in self.swaps:
            order[[first, second]] = order[[second, first]]
        return flat[:, torch.from_numpy(order).to(flat.device)].reshape(patches.shape)

    def before_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        if self.progress is not None:
            self.in_progress = True
            self.progress(layer, len(self.layers))
            self.in_progress = False
        remaining = None
        if layer == 0:
            remaining = self._drop_patches(tokens) if self.dropped.any() else None
            self.stream.append(self._flatten(layer, tokens if remaining is None else remaining))
        if not self.sites[layer].is_multihead:  # with a mode it would compute other last digits
            self.running = layer
            TorchFunctionMode.__enter__(self)
        return remaining

    def _drop_patches(self, tokens: Tensor) -> Tensor:
        first = self.layers[0]
        prefix = len(first.prefix)
        check_droppable(first, tokens)
        if self.dropped.all() and not set(self.read_tokens) & set(first.prefix):
            raise ModelError(
                "This model reads its output from the patches. Keep at least one of them."
            )
        places = np.concatenate([np.arange(prefix), prefix + self.patches])
        return tokens[:, torch.from_numpy(places).to(tokens.device)]

    def on_multihead_attention(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor | None:
        attn = self.sites[layer].attn
        call, heads = multihead_call(attn, tokens)
        self.refusals[layer] = explain_mismatch(
            self.layers[layer], attn.out_proj(heads), output, call.half, self.pictures
        )
        self.calls[layer].append(call if self.arena is None else call.copy_to(self.arena.copy))
        return attn.out_proj(self.before_projection(layer, heads)) if layer in self.muted else None

    def on_joined_heads(self, layer: int, heads: Tensor) -> None:
        calls = self.calls[layer]
        if len(calls) != 1 or not isinstance(calls[0].output, Output):
            return
        own = calls[0].output.whole.transpose(1, 2).flatten(2)
        if own.numel() == heads.numel():
            mismatches = explain_mismatch(
                self.layers[layer], own, heads.reshape(own.shape), calls[0].half, self.pictures
            )
            self.refusals[layer] = [
                why if mismatch else None
                for why, mismatch in zip(self.refusals[layer], mismatches, strict=True)
            ]

    def before_projection(self, layer: int, heads: Tensor) -> Tensor:
        calls = self.calls[layer]
        self.muted_layers.add(layer)
        if len(calls) != 1:
            raise ModelError(
                "Heads of {layer} cannot be muted: it called attention {count} times instead of "
                "once.",
                layer=self.layers[layer].name,
                count=len(calls),
            )
        width = calls[0].v.shape[-1]
        projection = without_adapter(self.sites[layer].projection)
        axis = 1 if isinstance(projection, nn.Conv2d) else -1
        heads = heads.clone()
        for head, values in self.muted[layer].items():
            part = heads.narrow(axis, head * width, width)
            if values is None:
                part.zero_()
            else:
                part.copy_(self._replacement(layer, values, part))
        return heads

    def _replacement(self, layer: int, values: np.ndarray, part: Tensor) -> Tensor:
        """Return the values that replace a head's own output (1, tokens, head_dim)."""
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

    def before_mlp(self, layer: int, tokens: Tensor) -> None:
        self.stop()
        self.after_attention[layer] = self._flatten(layer, tokens)

    def after_block(self, layer: int, tokens: Tensor) -> None:
        self.stop()

    def on_block_output(self, layer: int, tokens: Tensor, output: Any) -> None:
        self.stream.append(self._flatten(layer, tokens))

    def stop(self) -> None:
        """Leave the mode, after a block's attention or when the pass was interrupted."""
        layer, self.running, self.weights = self.running, None, None
        if layer is None:
            return
        TorchFunctionMode.__exit__(self, None, None, None)
        if self.arena is not None:  # before the rest of the block can change them in place
            self.calls[layer] = [call.copy_to(self.arena.copy) for call in self.calls[layer]]

    def _flatten(self, layer: int, tokens: Tensor) -> Tensor:
        """Return the tokens of each picture in row-major order: (B, T, D)."""
        flat = _FLATTEN[self.sites[layer].layout](tokens) if tokens.ndim > 3 else tokens
        return flat if self.arena is None else self.arena.copy(flat)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **kwargs) if kwargs else func(*args)
        if func not in _INTERCEPTED or (here := self.running) is None:
            return output  # by far the most calls
        if RECORDER.get() is not self:
            return output  # of another forward pass within this one
        if func is _FUSED:
            return self.record_fused(here, fused_call(output, *args, **(kwargs or {})), output)
        if func in _SOFTMAX:
            self.weights = output if self.inference else output.requires_grad_()
        elif self.weights is not None:
            self._record_product(here, self.weights, output, *args)
        return output

    def record_fused(self, layer: int, call: FusedCall, output: Tensor) -> Tensor:
        """Record a call of the fused kernel, and return what the block is given as its output."""
        self.calls[layer].append(call)
        return output

    def _record_product(
        self, layer: int, weights: Tensor, output: Any, first: Any, second: Any
    ) -> None:
        """Record a product of matrices if one of them is the output of the last softmax."""
        if second.data_ptr() == weights.data_ptr():  # CoAtNet has its tokens in columns
            v, output = first.transpose(-2, -1), output.transpose(-2, -1)
        elif first.shape == weights.shape:
            v = second
        else:
            return
        v = v.expand(*weights.shape[:-2], *v.shape[-2:])  # heads may share their values
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

    def batch(self) -> Batch:
        """Return the calls of the pass, to be proved when a layer is asked for."""
        dropped = int(self.dropped.sum())
        layers = tuple(
            replace(
                layer,
                refusal=layer.refusal
                or explain_unexpected_call(
                    layer, expected_shape(layer, site.windows, dropped), calls, self.pictures
                ),
            )
            for layer, site, calls in zip(self.layers, self.sites, self.calls, strict=True)
        )
        return Batch(
            layers=layers,
            calls=[
                None if layer.refusal else calls[0]
                for layer, calls in zip(layers, self.calls, strict=True)
            ],
            refusals=self.refusals,
            pictures=self.pictures,
            patches=self.patches,
            read_tokens=self.read_tokens,
        )
