"""Attribution to one class: attention weighted by the gradient of the class's logit.

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

from .activations.calls import fused_call
from .activations.maps import checked
from .activations.proof import why_differs
from .families import Layer, ModelError
from .memory import check, gradient_bytes
from .model import RECORDER, Model, Recorder

RESIDUAL = 0.5  # weight of the skip connection in `gradient_rollout`


def relevance(model: Model, image: Image.Image, class_index: int) -> np.ndarray:
    """How relevant each patch is for one class, by attention and its gradient.

    In each layer, A is multiplied elementwise with the gradient of the class's logit with respect
    to A; negative entries become 0, and the mean is taken over heads. Beginning with R = I, each
    layer in the order of the forward pass adds its product with R to R.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    class_index : int, from 0 to K - 1

    Returns
    -------
    ndarray of shape (rows, cols)
        R where the head reads the answer (`Model.read_tokens`): the row of CLS, or the mean of the
        rows of the patches where the head pools patches, whether or not there is a CLS token. Not
        negative, without unit and not normalised: compare where two maps are high, not how high.

    Raises
    ------
    ModelError
        When the model has no head for classes, its layers are not global attention over the same
        tokens or cannot be proved on this picture, it computes in half precision or checkpoints
        its gradients, the memory does not suffice, or a gradient is missing or not finite.
    ValueError
        When there is no such class.

    Notes
    -----
    This is not attention: a patch that gets much attention, but changes nothing for the class, has
    0. Evidence against the class is clipped, and a gradient holds for small changes only: to see
    what happens without a patch, remove it (`vitviz.intervention`). Where patches are pooled, each
    begins with its own share 1 / N of R = I, which is the smallest possible value; they count
    equally, also where the head weighs them (attention pooling). What reaches the logits only
    through prefix tokens that the head reads beside CLS (the second head of a distilled model) or
    beside the patches is not in the map.

    Keeps the attention and its gradient of all layers at once: 8 bytes a layer, head and pair of
    tokens, which is estimated first (`vitviz.memory`).

    References
    ----------
    Chefer, Gur and Wolf, "Generic Attention-model Explainability for Interpreting Bi-Modal and
    Encoder-Decoder Transformers", ICCV 2021, section 3, equations 5 and 6.
    """
    layers = _weighted_layers(model, image, class_index)
    row = _output_row(model, layers[0])
    for matrix in reversed(layers):  # a row of the product, from its left
        row = row + row @ matrix
    return _map(row, model.layers[0])


def gradient_rollout(model: Model, image: Image.Image, class_index: int) -> np.ndarray:
    """Attention rollout in which each layer is weighted by the gradient for one class.

    As `vitviz.inspection.attention_rollout`, with heads fused as in `relevance`: the rows of the
    mean over heads of the positive part of gradient times attention are normalised, and each layer
    is taken as half of that and half of the identity. A row without anything positive becomes the
    identity's.

    Parameters
    ----------
    model, image, class_index
        As in `relevance`.

    Returns
    -------
    ndarray of shape (rows, cols)
        Shares of 1: with those of the tokens outside the picture they sum to 1. Read where
        `relevance` is read.

    Raises
    ------
    ModelError, ValueError
        As in `relevance`.

    Notes
    -----
    Normalising makes every layer count equally, also one that hardly matters for the class: that is
    the difference from `relevance`.

    What the well-known vit-explain (https://github.com/jacobgil/vit-explain) calls gradient rollout
    is another map, which correlates with this one by -0.62 to 0.63: there heads are averaged before
    negative entries become 0, layers are paired with gradients in reverse order, as these are kept
    in the order of the backward pass, and the layers are normalised along the wrong axis.

    References
    ----------
    Abnar and Zuidema, "Quantifying Attention Flow in Transformers" (ACL 2020), for the product;
    Chefer, Gur and Wolf (ICCV 2021), for the weights.
    """
    layers = _weighted_layers(model, image, class_index)
    row = _output_row(model, layers[0])
    for matrix in reversed(layers):
        mass = matrix.sum(dim=1, keepdim=True)
        identity = torch.eye(len(matrix)).to(matrix)
        rows = torch.where(mass > 0, matrix / mass, identity)
        row = (1 - RESIDUAL) * (row @ rows) + RESIDUAL * row
    return _map(row, model.layers[0])


def _weighted_layers(model: Model, image: Image.Image, class_index: int) -> list[Tensor]:
    """Mean over heads of the positive part of gradient times A, for each layer: (T, T)."""
    _check(model, class_index)
    watch = _Watch(model)
    # Gradients are computed also where the caller has disabled them for itself.
    with torch.inference_mode(False), torch.enable_grad():
        with model.watched(watch), watch:
            logits = model.run(model.placed(model.preprocess(image))[None])[0]
        attention = watch.attention()
        gradients = _gradients(logits[class_index], attention)
    weighted = []
    for layer, own, gradient in zip(model.layers, attention, gradients, strict=True):
        if gradient is None:
            raise ModelError(
                f"No gradient of the answer reaches the attention of {layer.name}, as where a part "
                "after it computes without one, so no map is drawn."
            )
        matrix = (gradient * own.detach()).clamp(min=0).mean(dim=0)
        weighted.append(matrix)
        if not torch.isfinite(matrix).all():
            raise ModelError(
                f"The gradient in {layer.name} has values that are not finite numbers, so no map "
                "is drawn."
            )
    return weighted


def _gradients(logit: Tensor, attention: list[Tensor]) -> Sequence[Tensor | None]:
    """Of the logit with respect to each layer's attention; None where there is no gradient."""
    if not logit.requires_grad:
        return [None] * len(attention)
    return torch.autograd.grad(logit, attention, allow_unused=True)


class _Watch(TorchFunctionMode, Recorder):
    """Replaces the fused kernel in one forward pass by softmax and product, and keeps A."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.layers = model.layers
        self.running: int | None = None
        self.calls: list[list[Tensor]] = [[] for _ in model.layers]

    def entering(self, layer: int, tokens: Tensor) -> None:
        self.running = layer

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.running = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        here = self.running if RECORDER.get() is self else None  # not a pass nested in this one
        if func is not F.scaled_dot_product_attention or here is None:
            return output
        call = fused_call(output, *args, **(kwargs or {}))
        scores = (call.q[0] * call.scale) @ call.k[0].transpose(1, 2)
        scores = scores if call.bias is None else scores + call.bias[0]
        attention = scores.softmax(dim=-1).requires_grad_()  # (heads, T, T)
        mixed = attention @ call.v[0]
        (refusal,) = why_differs(self.layers[here], mixed.detach(), output[0].detach())
        if refusal:
            raise ModelError(refusal)
        self.calls[here].append(attention)
        return mixed[None]

    def attention(self) -> list[Tensor]:
        """Of each layer: (heads, tokens, tokens); a ModelError where its shape is another."""
        for layer, calls in zip(self.layers, self.calls, strict=True):
            tokens = len(layer.prefix) + math.prod(layer.query_grid)
            expected = [(layer.num_heads, tokens, tokens)]
            if [tuple(attention.shape) for attention in calls] != expected:
                raise ModelError(
                    f"{layer.name} did not compute one attention of {layer.num_heads} heads and "
                    f"{tokens} tokens, so no gradient of it can be shown."
                )
        return [attention for (attention,) in self.calls]


def _check(model: Model, class_index: int) -> None:
    if not model.num_classes:
        raise ModelError(
            f"{model.name} has no head that names classes, so none can be asked about."
        )
    checked(class_index, model.num_classes, "class_index")
    for layer in model.layers:
        if layer.refusal:
            raise ModelError(layer.refusal)
        if layer.kind != "global":
            raise ModelError(
                f"{layer.name} has {layer.kind} attention: only layers in which every token can "
                "attend to every token can be multiplied."
            )
    if not model.read_tokens:
        raise ModelError(
            f"The layers of {model.name} differ in their tokens, so they cannot be multiplied."
        )
    dtype = next(model.module.parameters()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise ModelError(
            f"The gradient is computed in single or double precision, and {model.name} is in "
            f"{str(dtype).removeprefix('torch.')}: call float() on its module first."
        )
    if getattr(model.module, "grad_checkpointing", False):
        raise ModelError(
            f"{model.name} keeps no attention for its gradient while checkpointing is on: call "
            "set_grad_checkpointing(False) on its module first."
        )
    check(gradient_bytes(model.sites), f"A map of one class of {model.name}", model.device)


def _output_row(model: Model, like: Tensor) -> Tensor:
    """The weights with which the head reads the rows of R: of CLS, or of all patches: (T,)."""
    row, prefix = torch.zeros_like(like[0]), model.layers[0].prefix
    if "patches" in model.read_tokens:
        row[len(prefix) :] = 1 / (len(row) - len(prefix))
    else:
        row[prefix.index("cls")] = 1.0
    return row


def _map(row: Tensor, layer: Layer) -> np.ndarray:
    patches: np.ndarray = row[len(layer.prefix) :].float().cpu().reshape(layer.query_grid).numpy()
    patches.setflags(write=False)
    return patches
