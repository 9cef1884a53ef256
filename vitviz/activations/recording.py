"""One forward pass, watched, with its edits applied."""

import copy
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..families import Layer, ModelError
from ..model import RECORDER, Model
from .edits import (
    DropPatches,
    Edit,
    FillPatches,
    MuteHeads,
    SwapTokens,
    filled,
    mask_of,
    patch_side,
)
from .reading import Activations, Record, checked, why_refused

PROOF_ROWS = 8  # query rows checked at capture, beside the first


class _Watch(TorchFunctionMode):
    """Records one forward pass, and applies the edits to it."""

    def __init__(
        self,
        model: Model,
        edits: Sequence[Edit],
        progress: Callable[[int, int], object] | None,
    ) -> None:
        super().__init__()
        self.layers = model.layers
        self.progress = progress
        self.muted = [pair for edit in edits if isinstance(edit, MuteHeads) for pair in edit.heads]
        self.swaps = [pair for edit in edits if isinstance(edit, SwapTokens) for pair in edit.pairs]
        self.dropped = mask_of(edits, DropPatches, model.layers[0].query_grid)
        self.patches = np.flatnonzero(~self.dropped.ravel())
        self.patches.flags.writeable = False
        self.running: int | None = None
        self.calls: list[list[Record]] = [[] for _ in model.layers]
        self.stream: list[Tensor] = []
        self.after_attention: list[Tensor] = []

    def embedded(self, patches: Tensor) -> Tensor | None:
        if not self.swaps:
            return None
        flat = patches.flatten(1, -2)  # (B, N, D), also where timm keeps a grid (B, R, S, D)
        order = torch.arange(flat.shape[1])
        for first, second in self.swaps:
            order[[first, second]] = order[[second, first]]
        return flat[:, order].reshape(patches.shape)

    def entering(self, layer: int, tokens: Tensor) -> Tensor | None:
        if self.progress is not None:
            self.progress(layer, len(self.layers))
        self.running = layer
        if layer:
            return None
        kept = self._kept(tokens) if self.dropped.any() else None
        self.stream.append((tokens if kept is None else kept)[0])
        return kept

    def _kept(self, tokens: Tensor) -> Tensor:
        """The tokens without those of the dropped patches."""
        first = self.layers[0]
        prefix = len(first.prefix)
        if tokens.shape[1] != prefix + self.dropped.size:
            raise ModelError(
                f"{first.name} has {tokens.shape[1]} tokens, expected "
                f"{prefix + self.dropped.size}, so no patch can be dropped."
            )
        if self.dropped.all() and "cls" not in first.prefix:
            raise ModelError("Every patch was dropped, and this model reads its output from them.")
        patches = torch.from_numpy(prefix + self.patches)
        return tokens[:, torch.cat([torch.arange(prefix), patches])]

    def attended(self, layer: int, tokens: Tensor) -> None:
        self.after_attention.append(tokens[0])

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.running = None
        self.stream.append(tokens[0])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        here = self.running if RECORDER.get() is self else None  # not a pass nested in this one
        if func is F.scaled_dot_product_attention and here is not None:
            self.calls[here].append(read_call(output, *args, **(kwargs or {})))
            heads = [head for layer, head in self.muted if layer == here]
            if heads:
                output = output.clone()
                output[:, heads] = 0
        return output

    def records(self) -> Iterator[tuple[Layer, Record | None]]:
        """Each layer as it proved itself, or with the sentence that says why it is not shown."""
        for layer, calls in zip(self.layers, self.calls, strict=True):
            dropped = int(self.dropped.sum())
            tokens = len(layer.prefix) + math.prod(layer.query_grid) - dropped
            refusal = None
            if len(calls) != 1:
                refusal = (
                    f"{layer.name} of this model called attention {len(calls)} times instead of "
                    "once, so its heads cannot be told apart."
                )
            elif calls[0].q.shape[:2] != (layer.num_heads, tokens):
                refusal = (
                    f"{layer.name} has {calls[0].q.shape[0]} heads and {calls[0].q.shape[1]} "
                    f"tokens, expected {layer.num_heads} and {tokens}."
                )
            else:
                rows = torch.linspace(0, tokens - 1, min(tokens, PROOF_ROWS + 1)).long()
                seen = calls[0].attention(rows) @ calls[0].v
                refusal = why_refused(layer, seen, calls[0].output[:, rows])
            yield (replace(layer, refusal=refusal), None) if refusal else (layer, calls[0])


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
    """The arguments of one `scaled_dot_product_attention` call, for the first of the batch."""
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -math.inf
            )
        bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])[0]
    return Record(
        q=query[0],
        k=key[0],
        v=value[0],
        output=output[0],
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
    )


def capture(
    model: Model,
    image: Image.Image,
    *,
    edits: Sequence[Edit] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Activations:
    """Run one picture through the model and keep what happened inside.

    Parameters
    ----------
    model : Model
        May be shared by any number of threads.
    image : PIL.Image
        Upright, as `vitviz.open_image` returns it.
    edits : sequence of MuteHeads, DropPatches, FillPatches, SwapTokens
        Changes made in this pass alone.
    progress : callable, optional
        Called as progress(block, of) before each block; what it raises stops the pass.

    Returns
    -------
    Activations

    Raises
    ------
    ModelError
        When an edit does not fit the model.
    """
    edits = tuple(edits)
    _check_edits(edits, model)
    x = filled(model.preprocess(image), edits, model.layers[0])[None]
    watch = _Watch(model, edits, progress)
    token = RECORDER.set(watch)
    try:
        with torch.inference_mode(), watch:
            logits = model.module(x)[0]
    finally:
        RECORDER.reset(token)
    with torch.inference_mode():
        layers, records = zip(*watch.records(), strict=True)
    return Activations(
        layers=layers,
        labels=model.labels,
        crop=_crop(model, image),
        logits=logits if getattr(model.module, "num_classes", 0) else None,
        records=records,
        stream=tuple(watch.stream),
        after_attention=tuple(watch.after_attention),
        patches=watch.patches,
        final_norm=copy.deepcopy(model.final_norm),
    )


def _check_edits(edits: Sequence[Edit], model: Model) -> None:
    heads = model.layers[0].num_heads
    patches = math.prod(model.layers[0].query_grid)
    for edit in edits:
        if isinstance(edit, MuteHeads):
            for layer, head in edit.heads:
                checked(layer, len(model.layers), "layer", ModelError)
                checked(head, heads, "head", ModelError)
        elif isinstance(edit, SwapTokens):
            for pair in edit.pairs:
                for patch in pair:
                    checked(patch, patches, "patch", ModelError)
        elif not isinstance(edit, DropPatches | FillPatches):
            raise ModelError(f"{type(edit).__name__} is no edit that vitviz knows.")


def _crop(model: Model, image: Image.Image) -> tuple[float, float, float, float]:
    """Where the grid of patches lies in the picture; it need not fill the model's input."""
    left, top, right, bottom = model.preprocess.place(image).crop
    layer, (height, width) = model.layers[0], model.preprocess.input_size
    (rows, cols), side = layer.query_grid, patch_side(layer)
    right -= (right - left) * (1 - cols * side[1] / width)
    bottom -= (bottom - top) * (1 - rows * side[0] / height)
    return left, top, right, bottom
