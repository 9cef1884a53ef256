"""Attention times the gradient of the target, for every layer in one forward and backward pass.

The forward pass computes the attention of every layer without the fused kernel, so that a gradient
reaches it. The model is not changed: no gradient of a weight and no hook remains in it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import torch
from torch import Tensor

from ..activations.calls import FusedCall, Output, SoftmaxCall, explain_mismatch, multihead_call
from ..activations.forward import run_recorded
from ..activations.recorder import AttentionRecorder
from ..activations.targets import PassResult, Question
from ..common.language import Message
from ..inspection.inputs import MASKED
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.memory import gradient_bytes, require_memory
from .outputs import check_gradients

LOSS_SCALE = 4096.0  # a power of two, which changes no digit of a gradient

Gradients = tuple[list[Tensor], Tensor]
#: By identities of model and picture, which stay as long as they are here, and class.
_SHARED: ContextVar[dict[tuple[int, int, int], tuple[Model, Picture, Gradients]] | None] = (
    ContextVar("vitviz_shared_gradients", default=None)
)


@contextmanager
def shared_gradients() -> Iterator[None]:
    """Let several methods map a class by one pass in this context.

    Models and pictures must not change meanwhile.
    """
    token = _SHARED.set({})
    try:
        yield
    finally:
        _SHARED.reset(token)


def attention_gradients(model: Model, image: Picture, question: Question) -> Gradients:
    """Compute gradient times attention, and the output of the pass.

    Returns
    -------
    products : list of Tensor of shape (W, n, m)
        For each layer, by window: the mean over heads of the positive part of gradient times A.
    output : Tensor of shape (K,)

    Raises
    ------
    ModelError
        When the layers cannot be multiplied or proved on this picture, the memory does not suffice,
        or a gradient is missing or not finite.
    """
    cache = _SHARED.get()
    if cache is None or question.class_index is None:
        return _compute_gradients(model, image, question)
    key = id(model), id(image), question.class_index
    if key not in cache:
        cache[key] = model, image, _compute_gradients(model, image, question)
    return cache[key][2]


def _compute_gradients(model: Model, image: Picture, question: Question) -> Gradients:
    _check(model)
    recorder = _GradientRecorder(model)
    # Gradients are also computed if the caller has disabled them.
    with torch.inference_mode(False), torch.enable_grad():
        output = run_recorded(model, model.to_device(prepare(model, image).x)[None], recorder)[0]
        attention, last = recorder.attention(), recorder.stream[-1]
        result = PassResult(
            output=_as_single(output),
            tokens=_as_single(last[0]),
            normalised=lambda: _as_single(_normalise(model, last)[0]),
            patches=recorder.patches,
        )
        gradients = _gradients(question.value(result, question.reference(result)), attention)
    products = []
    for layer, own, gradient in zip(model.layers, attention, gradients, strict=True):
        if gradient is None:
            raise ModelError(
                "No gradient of the answer reaches the attention of {layer}. Check whether a later "
                "part of the model computes without gradients.",
                layer=layer.name,
            )
        shares = _as_single(own.detach())
        product = _as_single(gradient) * shares
        # Swin's mask leaves 4e-44 of a share, and below 1e-38 a number has few digits, or none.
        is_lost = (shares <= MASKED) | (product < torch.finfo(product.dtype).tiny)
        matrix = product.masked_fill_(is_lost, 0).mean(dim=1)  # of the positive part
        if not (torch.isfinite(matrix).all() and torch.isfinite(gradient).all()):
            raise ModelError(
                "The gradient in {layer} is NaN or infinite, so no map is drawn.", layer=layer.name
            )
        products.append(matrix)
    return products, output.detach()


def why_not_multiplied(model: Model) -> Message | None:
    """Explain why the layers of a model cannot be multiplied; None if they can."""
    for layer in model.layers:
        if layer.refusal:
            return layer.refusal
        if layer.kind not in ("global", "window"):
            return Message(
                "{layer} has {kind} attention. Only layers whose tokens attend to each other, in "
                "the whole picture or in a window, can be multiplied.",
                layer=layer.name,
                kind=layer.kind,
            )
    if len({site.steps for site in model.sites}) > 1:
        return Message(
            "The layers of {model} cannot be multiplied: convolutions lie between them.",
            model=model.name,
        )
    return None


def _check(model: Model) -> None:
    if refusal := why_not_multiplied(model):
        raise ModelError(refusal)
    if getattr(model.part, "grad_checkpointing", False):
        raise ModelError(
            "{model} keeps no attention for its gradient while checkpointing is on. Call "
            "set_grad_checkpointing(False) on its module first.",
            model=model.name,
        )
    if any(type(part).__name__ == "CheckpointWrapper" for part in model.module.modules()):
        raise ModelError(
            "{model} keeps no attention for its gradient: a CheckpointWrapper of PyTorch computes "
            "it again in the backward pass. Unwrap those parts first.",
            model=model.name,
        )
    require_memory(
        gradient_bytes(model.sites),
        Message("A map of one class of {model}", model=model.name),
        model.device,
    )
    check_gradients(model)


def _gradients(value: Tensor, attention: list[Tensor]) -> Sequence[Tensor | None]:
    """Return the gradients of the target by each layer's attention; None if there is none.

    In half precision a gradient below 6e-8 would become 0, so it is scaled, unless it overflows.

    References
    ----------
    Micikevicius et al., "Mixed Precision Training" (ICLR 2018), section 3.2.
    """
    if not value.requires_grad:
        return [None] * len(attention)
    for scale in (LOSS_SCALE, 1.0):
        gradients = torch.autograd.grad(
            scale * value, attention, allow_unused=True, retain_graph=True
        )
        if all(each is None or torch.isfinite(each).all() for each in gradients):
            break
    return [None if each is None else _as_single(each) / scale for each in gradients]


def _as_single(values: Tensor) -> Tensor:
    """Convert to single precision at least."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _normalise(model: Model, tokens: Tensor) -> Tensor:
    if model.final_norm is None:
        raise ModelError(
            "{model} has no final norm, after which tokens could be compared.", model=model.name
        )
    normalised: Tensor = model.final_norm(tokens)
    return normalised


class _GradientRecorder(AttentionRecorder):
    """Replace the fused kernel by softmax and product, which have a gradient."""

    inference = False

    def on_multihead_attention(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor:
        attn = self.sites[layer].attn
        call, heads = multihead_call(attn, tokens)
        fused = heads.unflatten(2, (attn.num_heads, -1)).transpose(1, 2)
        heads = self.record_fused(layer, call, fused)
        own: Tensor = attn.out_proj(heads.transpose(1, 2).flatten(2))
        self._prove(layer, own, output, own.dtype.itemsize < 4)
        return own

    def record_fused(self, layer: int, call: FusedCall, output: Tensor) -> Tensor:
        scores = (_as_single(call.q) * call.scale) @ _as_single(call.k).transpose(2, 3)
        scores = scores if call.bias is None else scores + _as_single(call.bias)
        attention = scores.softmax(dim=-1).requires_grad_()  # (W, h, n, m)
        heads = attention @ _as_single(call.v)
        self._prove(layer, heads, output, call.half)
        heads = heads.to(output.dtype)
        self.calls[layer].append(SoftmaxCall(weights=attention, v=call.v, output=Output(heads)))
        return heads

    def _prove(self, layer: int, product: Tensor, own: Tensor, half: bool) -> None:
        both = _as_single(product.detach()), _as_single(own.detach())
        (refusal,) = explain_mismatch(self.layers[layer], *both, half)
        if refusal:
            raise ModelError(refusal)

    def attention(self) -> list[Tensor]:
        """Return the attention of each layer (W, h, n, m), or refuse as a capture does."""
        attention = []
        for layer, calls in zip(self.batch().layers_of(0), self.calls, strict=True):
            if layer.refusal:
                raise ModelError(layer.refusal)
            (call,) = calls
            assert isinstance(call, SoftmaxCall)
            attention.append(call.weights)
        return attention
