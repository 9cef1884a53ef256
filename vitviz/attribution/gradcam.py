"""Grad-CAM: the channels of the last layer's input, weighted by the gradient of the target."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..activations.targets import Target
from ..model import Model
from ..model.devices import own_precision
from ..model.families import NORM1, ModelError, Site
from ..model.inputs import Picture, prepare
from ..model.recording import hook_this_thread
from .outputs import output_question, output_value


@own_precision()
def grad_cam(model: Model, image: Picture, target: Target) -> np.ndarray:
    """Map one target by the last block's input: its channels, weighted by their mean gradient.

    What enters the attention of the last block, after its norm, has D channels for each patch. A
    channel's weight is the gradient of the target with respect to it, averaged over the patches;
    the map is the weighted sum, with negative values set to 0.

    Parameters
    ----------
    model, image, target
        As in `relevance`, but a target that is a token has no such map.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        In the grid of the first layer; where the last one is coarser, each of its patches is
        repeated. Without unit and not normalised: compare where two maps are high, not how high.

    Raises
    ------
    ModelError
        When the model has no such output, the last block has no norm before its attention, or no
        finite gradient reaches it.
    ValueError
        When there is no such class, or the target does not fit the output.

    Notes
    -----
    The norm before the last attention is where the common library for class activation maps reads
    a ViT. The map uses the last block alone, and one weight for a channel in the whole picture.

    References
    ----------
    Selvaraju et al., "Grad-CAM: Visual Explanations from Deep Networks via Gradient-based
    Localization", ICCV 2017, equations 1 and 2; https://github.com/jacobgil/pytorch-grad-cam for
    its use with a ViT.
    """
    question = output_question(model, target, "Grad-CAM", first=len(model.layers) - 1)
    site = model.sites[-1]
    norms = (getattr(site.block, name, None) for name in NORM1)
    norm = next((part for part in norms if part is not None), None)
    if norm is None:
        raise _no_norm_before(site)
    with torch.inference_mode(False), torch.enable_grad(), _leaf_after(norm, site.attn) as reads:
        x = model.to_device(prepare(model, image).x)[None]
        value = output_value(question, model.run(x)[0])
        if not reads.precede_attention and site.attn is not site.block:
            raise _no_norm_before(site)
        if len(reads.outputs) > 1:
            raise ModelError(
                "The norm before the attention of {layer} runs {count} times in a pass. Grad-CAM "
                "reads a norm that runs once.",
                layer=site.layer.name,
                count=len(reads.outputs),
            )
        gradient = None
        if value.requires_grad:
            (gradient,) = torch.autograd.grad(value, reads.outputs, allow_unused=True)
        if gradient is None:
            raise ModelError(
                "No gradient of the answer reaches {layer}. Check whether a later part of the "
                "model computes without gradients.",
                layer=site.layer.name,
            )
    rows, cols = site.layer.query_grid
    channels, gradient = (
        _patches(each[0].detach().cpu().double(), site) for each in (*reads.outputs, gradient)
    )
    map_ = (channels * gradient.mean(dim=0)).sum(dim=1).clamp(min=0)
    if not torch.isfinite(map_).all():
        raise ModelError(
            "The gradient in {layer} is NaN or infinite, so no map is drawn.", layer=site.layer.name
        )
    values = map_.reshape(rows, cols).numpy()
    first = model.layers[0]
    for axis, count in enumerate(first.query_grid):
        merged = site.layer.patch_side[axis] // first.patch_side[axis]
        # A last patch may reach beyond the picture, where a stage padded its grid to even sides.
        values = values.repeat(merged, axis=axis).take(range(count), axis=axis)
    values.setflags(write=False)
    return values


def _patches(tokens: Tensor, site: Site) -> Tensor:
    """Return the patches (N, D) of the tokens of one picture, without prefix tokens."""
    if site.layout == "channels":
        tokens = tokens.flatten(1).T
    tokens = tokens.reshape(-1, tokens.shape[-1])
    prefix, count = len(site.layer.prefix), math.prod(site.layer.query_grid)
    if len(tokens) not in (count, prefix + count):  # CaiT's last blocks add CLS after this
        raise ModelError(
            "{layer} has {tokens} tokens, expected {expected}. The places of its patches are "
            "unknown.",
            layer=site.layer.name,
            tokens=len(tokens),
            expected=prefix + count,
        )
    return tokens[-count:]


def _no_norm_before(site: Site) -> ModelError:
    return ModelError(
        "{layer} has no norm before its attention, where Grad-CAM reads a ViT.",
        layer=site.layer.name,
    )


@dataclass
class _Reads:
    """The outputs of a norm in a pass, and whether one of them precedes the attention."""

    outputs: list[Tensor] = field(default_factory=list)
    precede_attention: bool = False


@contextmanager
def _leaf_after(norm: nn.Module, attention: nn.Module) -> Iterator[_Reads]:
    """Make each output of the norm a leaf of the graph, in this thread; collect them."""
    reads = _Reads()

    def cut(part: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        reads.outputs.append(output.detach().requires_grad_())
        return reads.outputs[-1]

    def compare(part: nn.Module, inputs: Any) -> None:
        reads.precede_attention = bool(reads.outputs)

    with (
        hook_this_thread(norm.register_forward_hook, cut),
        hook_this_thread(attention.register_forward_pre_hook, compare),
    ):
        yield reads
