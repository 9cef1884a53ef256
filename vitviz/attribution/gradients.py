"""One forward and backward pass: of each layer, its attention times the gradient of the target.

The forward pass computes the attention of every layer without the fused kernel, so that a gradient
reaches it. The model is not changed: no gradient of a weight and no hook is left in it.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..activations.calls import FusedCall, expected_shape, fused_call, sealed_call
from ..activations.proof import why_differs
from ..activations.watch import PRODUCTS, SOFTMAX
from ..families import ModelError, without_gradients
from ..language import Message
from ..memory import check, gradient_bytes
from ..model import RECORDER, Model, Recorder
from ..targets import Question, Seen

LOSS_SCALE = 4096.0  # of the target, a power of two: it changes no digit of a gradient


def attention_gradients(
    model: Model, image: Image.Image, question: Question
) -> tuple[list[Tensor], Tensor, Tensor]:
    """Gradient times attention, and what the pass gave.

    Returns
    -------
    products : list of Tensor of shape (W, n, m)
        Of each layer the mean over heads of the positive part of gradient times A, by window.
    last : Tensor of shape (1, T, D), or with the layout of the last stage
        The tokens after the last layer.
    output : Tensor of shape (K,)

    Raises
    ------
    ModelError
        When the layers cannot be multiplied or proved on this picture, the memory does not suffice,
        or a gradient is missing or not finite.
    """
    _check(model)
    watch = _Watch(model)
    # Gradients are computed also where the caller has disabled them for itself.
    with torch.inference_mode(False), torch.enable_grad():
        with model.watched(watch), watch:
            output = model.run(model.placed(model.preprocess(image))[None])[0]
        attention = watch.attention()
        seen = Seen(
            output=_wide(output),
            tokens=_wide(watch.last[0]),
            normalised=lambda: _wide(_normed(model, watch.last)[0]),
            patches=np.arange(math.prod(model.layers[0].query_grid)),
        )
        gradients = _gradients(question.value(seen, question.reference(seen)), attention)
    products = []
    for site, own, gradient in zip(model.sites, attention, gradients, strict=True):
        layer = site.layer
        if gradient is None:
            raise ModelError(
                "No gradient of the answer reaches the attention of {layer}, as where a part "
                "after it computes without one, so no map is drawn.",
                layer=layer.name,
            )
        matrix = (_wide(gradient) * _wide(own.detach())).clamp(min=0).mean(dim=1)
        if not torch.isfinite(matrix).all():
            raise ModelError(
                "The gradient in {layer} has values that are not finite numbers, so no map "
                "is drawn.",
                layer=layer.name,
            )
        products.append(matrix)
    return products, watch.last.detach(), output.detach()


def why_not_multiplied(model: Model) -> Message | None:
    """Why the layers of a model cannot be multiplied, in one sentence; None where they can."""
    for layer in model.layers:
        if layer.refusal:
            return layer.refusal
        if layer.kind not in ("global", "window"):
            return Message(
                "{layer} has {kind} attention: only layers in which each token attends to tokens "
                "as they are, of the whole picture or of a window, can be multiplied.",
                layer=layer.name,
                kind=layer.kind,
            )
    if any(site.steps for site in model.sites) and not model.read_tokens:
        return Message(
            "The layers of {model} differ in their tokens, and convolutions lead from one to the "
            "next, so they cannot be multiplied.",
            model=model.name,
        )
    return None


def _check(model: Model) -> None:
    if refusal := why_not_multiplied(model):
        raise ModelError(refusal)
    if getattr(model.module, "grad_checkpointing", False):
        raise ModelError(
            "{model} keeps no attention for its gradient while checkpointing is on: call "
            "set_grad_checkpointing(False) on its module first.",
            model=model.name,
        )
    if without_gradients(model.module):
        raise ModelError(
            "The weights of {model} were made under torch.inference_mode, and torch "
            "computes no gradient with such weights: make the module outside of it.",
            model=model.name,
        )
    check(
        gradient_bytes(model.sites),
        Message("A map of one class of {model}", model=model.name),
        model.device,
    )


def _gradients(value: Tensor, attention: list[Tensor]) -> Sequence[Tensor | None]:
    """Of the target with respect to each layer's attention; None where there is no gradient.

    In half precision a gradient below 6e-8 would become 0, so it is scaled, unless it overflows.

    References
    ----------
    Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2.
    """
    if not value.requires_grad:
        return [None] * len(attention)
    for scale in (LOSS_SCALE, 1.0):
        found = torch.autograd.grad(scale * value, attention, allow_unused=True, retain_graph=True)
        if all(each is None or torch.isfinite(each).all() for each in found):
            break
    return [None if each is None else _wide(each) / scale for each in found]


def _wide(values: Tensor) -> Tensor:
    """The same values in single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _normed(model: Model, tokens: Tensor) -> Tensor:
    if model.final_norm is None:
        raise ModelError(
            "{model} has no final norm, after which tokens could be compared.", model=model.name
        )
    normed: Tensor = model.final_norm(tokens)
    return normed


class _Watch(TorchFunctionMode, Recorder):
    """Replaces the fused kernel in one forward pass by softmax and product, and keeps A."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.sites = model.sites
        self.running: int | None = None
        self.softmax: Tensor | None = None  # whose product with the values is still to come
        self.calls: list[list[Tensor]] = [[] for _ in model.layers]

    def entering(self, layer: int, tokens: Tensor) -> None:
        self.running = layer

    def sealed(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor:
        attn = self.sites[layer].attn
        _, heads = sealed_call(attn, tokens)  # whose kernel is replaced, too
        own: Tensor = attn.out_proj(heads)
        self._prove(layer, own, output, own.dtype.itemsize < 4)
        return own

    def attended(self, layer: int, tokens: Tensor) -> None:
        self.softmax = None

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.running, self.softmax = None, None
        self.last = tokens

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        here = self.running if RECORDER.get() is self else None  # not a pass nested in this one
        if here is None:
            return output
        if func is F.scaled_dot_product_attention:
            return self._computed(here, fused_call(output, *args, **(kwargs or {})), output)
        if func in SOFTMAX:
            self.softmax = output.requires_grad_()
        elif func in PRODUCTS and self.softmax is not None and args[0].shape == self.softmax.shape:
            self.calls[here].append(self.softmax)
            self.softmax = None
        return output

    def _computed(self, layer: int, call: FusedCall, output: Tensor) -> Tensor:
        """What the fused kernel gave, by way of an attention that has a gradient."""
        scores = (_wide(call.q) * call.scale) @ _wide(call.k).transpose(2, 3)
        scores = scores if call.bias is None else scores + _wide(call.bias)
        attention = scores.softmax(dim=-1).requires_grad_()  # (W, h, n, m)
        mixed = attention @ _wide(call.v)
        self._prove(layer, mixed, output, call.half)
        self.calls[layer].append(attention)
        return mixed.to(output.dtype)

    def _prove(self, layer: int, seen: Tensor, own: Tensor, half: bool) -> None:
        described = self.sites[layer].layer
        (refusal,) = why_differs(described, _wide(seen.detach()), _wide(own.detach()), half)
        if refusal:
            raise ModelError(refusal)

    def attention(self) -> list[Tensor]:
        """Of each layer: (W, heads, n, m); a ModelError where its shape is another."""
        for site, calls in zip(self.sites, self.calls, strict=True):
            expected = expected_shape(site.layer, site.windows, 0)
            if [tuple(attention.shape) for attention in calls] != [expected]:
                _, heads, tokens, _ = expected
                raise ModelError(
                    "{layer} did not compute one attention of {heads} heads and {tokens} tokens, "
                    "so no gradient of it can be shown.",
                    layer=site.layer.name,
                    heads=heads,
                    tokens=tokens,
                )
        return [attention for (attention,) in self.calls]
