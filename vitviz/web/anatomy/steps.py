"""Compute the steps from picture to answer: equations (1) and (4), and the layers as a whole.

Letters in shapes: H W picture height and width, C channels, P patch side, N patches,
T tokens, D width, h heads, d head_dim, M width of the MLP, K classes.
"""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ...model import Model
from ...model.devices import own_precision
from ...model.families import ModelError
from ...model.inputs import Picture, prepare
from ...vit import PreTrainingHead, VisionTransformer
from .layers import (
    Box,
    agree,
    box,
    is_norm,
    norm_box,
    numbers,
    stage_and_kind,
    statistics,
    tensor,
)

if TYPE_CHECKING:
    from ...activations import Activations


@own_precision()
def steps(model: Model, image: Picture, acts: "Activations") -> tuple[Box, ...]:
    """Return the picture at each step, from the model's input to its answer.

    Parameters
    ----------
    acts : Activations
        The capture of this picture, without edits.

    Returns
    -------
    tuple of Box
        Of a plain ViT: "picture" (H, W, C), "patches" (N, P, P, C), "flatten" (N, C P P), "project"
        (N, D), "prefix" (T, D), "positions" (T, D), "encoder" (T, D), "output" (D,) and "head"
        (K,), "value_head" (K,) or "no_head". Other families have steps of their own.

    Raises
    ------
    ModelError
        When patches were dropped from the capture.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), equations (1) to (4).
    """
    if len(acts.patches) != math.prod(model.layers[0].query_grid):
        raise ModelError("Patches of this capture were dropped. Capture it without DropPatches.")
    weight = next(model.module.parameters())
    with torch.inference_mode():
        x = model.reaching(prepare(model, image).x[None].to(weight))
        return (
            *_embedding(model, x, tensor(acts.tokens(0), weight)),
            *_stages(acts),
            *_answer(model, x, acts),
        )


def _embedding(model: Model, x: Tensor, z: Tensor) -> Iterator[Box]:
    """Yield the steps from the picture (1, C, H, W) to z_0 (T, D)."""
    embed: Any = model.parts.embedding
    yield box("picture", x[0].permute(1, 2, 0))
    cnn, conv = getattr(embed, "backbone", None), getattr(embed, "proj", model.parts.kernel)
    if cnn is not None:
        x = cnn(x)
        x = x[-1] if isinstance(x, list | tuple) else x
        yield box("stem", x[0].permute(1, 2, 0))
    patches = _cut(conv, x[0])  # (N, C, P, P)
    if patches is None or len(patches) != math.prod(model.layers[0].query_grid):
        yield box("embedding" if patches is None else "first_tokens", z)
        return
    flat = patches.flatten(1)
    yield box("patches", patches.permute(0, 2, 3, 1))
    yield box("flatten", flat)
    assert isinstance(conv, nn.Conv2d)
    tokens = conv(x)[0].flatten(1).T  # (N, D)
    parts = {"kernel": conv.weight.flatten(1)}
    yield box("project", tokens, parts if conv.bias is None else {**parts, "bias": conv.bias})
    norm = getattr(embed, "norm", None)
    if is_norm(norm):
        tokens = norm(tokens)
        yield norm_box("embedding_norm", norm, tokens, tokens)
    chain = [*_prefix_and_positions(model, tokens)]
    if not agree(chain[-1].values if chain else numbers(tokens), numbers(z)):
        chain = [box("first_tokens", z)]
    yield from chain


def _cut(conv: object, x: Tensor) -> Tensor | None:
    """Cut (C, H, W) into patches (N, C, P, P); None if the convolution's patches overlap."""
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or conv.groups > 1:
        return None
    if conv.padding not in ((0, 0), "valid") or set(conv.dilation) != {1}:
        return None
    height, width = conv.kernel_size
    cut = x.unfold(1, height, height).unfold(2, width, width)  # (C, R, S, P, P)
    return cut.permute(1, 2, 0, 3, 4).flatten(0, 1)


#: The norm before the first layer in timm, transformers and open_clip.
_PRE_NORMS = ("norm_pre", "pre_layrnorm", "ln_pre")


def _prefix_and_positions(model: Model, tokens: Tensor) -> Iterator[Box]:
    """Prepend the prefix tokens and add position embeddings, in the module's own order."""
    module, parts = model.part, model.parts
    prefix = None
    if parts.prefix and model.layers[0].prefix:  # CaiT adds its CLS later
        prefix = torch.cat([token.reshape(-1, tokens.shape[-1]) for token in parts.prefix])
    table = None if model.positions is None else model.positions.flatten(0, -2)
    first = prefix is not None and not (table is not None and len(table) == len(tokens))
    for name in ("prefix", "positions") if first else ("positions", "prefix"):
        if name == "prefix" and prefix is not None:
            tokens = torch.cat([prefix, tokens])
            yield box("prefix", tokens, {"tokens": prefix})
        if name == "positions" and table is not None and len(table) == len(tokens):
            tokens = tokens + table
            yield box("positions", tokens, {"table": table})
    norms = (part for path, part in module.named_modules() if path.endswith(_PRE_NORMS))
    norm = next(norms, None)
    if is_norm(norm):
        yield norm_box("pre_norm", norm, tokens, norm(tokens))


def _stages(acts: "Activations") -> Iterator[Box]:
    """Yield the encoder, or each of its stages."""
    starts = [
        number
        for number, layer in enumerate(acts.layers)
        if not number or stage_and_kind(layer) != stage_and_kind(acts.layers[number - 1])
    ]
    for start, end in zip(starts, [*starts[1:], acts.depth], strict=True):
        name = "encoder" if len(starts) == 1 else "stage"
        if acts.layers[start].kind == "class":
            name = "class_attention"
        yield box(name, acts.tokens(end), layers=range(start, end))


def _answer(model: Model, x: Tensor, acts: "Activations") -> Iterator[Box]:
    """Yield the input of the head, and its answer."""
    module: Any = model.part
    last = tensor(acts.tokens(acts.depth), x)
    if hasattr(module, "forward_features") and not model.read_tokens:
        features = module.forward_features(x)
    else:
        features = (model.parts.norm or nn.Identity())(last[None])
    output = _output(model, last, features)
    yield output
    if acts.answers == "values" and acts.logits is not None:
        yield box("value_head", torch.from_numpy(acts.logits.copy()))
        return
    if acts.logits is None or acts.probabilities is None or model.words is not None:
        yield Box(name="no_head" if acts.logits is None else "embedding_head", shape=())
        return
    y = tensor(output.values, x).reshape(-1, output.shape[-1])  # of each head
    heads = [_linear_of(module.get_submodule(path)) for path in model.parts.heads][: len(y)]
    if isinstance(heads[0], PreTrainingHead):
        y = torch.tanh(heads[0].pre_logits(y))
        yield box("head_hidden", y[0])
        heads = [heads[0].out]
    parts = {"probabilities": acts.probabilities}
    if all(isinstance(each, nn.Linear) for each in heads):
        weight = torch.stack([each.weight for each in heads], dim=1)  # (K, heads, D)
        none = torch.zeros(len(weight)).to(x)
        bias = torch.stack([none if e.bias is None else e.bias for e in heads], dim=1)
        logits = (torch.einsum("khd,hd->kh", weight, y) + bias).mean(dim=1)
        if agree(numbers(logits), acts.logits):
            parts |= {"weight": numbers(weight), "bias": numbers(bias)}
    yield box("head", acts.logits, parts)


def _linear_of(head: Any) -> Any:
    """Unwrap the linear layer of a head of timm or torchvision."""
    head = getattr(head, "fc", head)
    return head[0] if isinstance(head, nn.Sequential) and len(head) == 1 else head


def _output(model: Model, last: Tensor, features: Tensor) -> Box:
    """Return y of equation (4), named after the computation that reproduces it.

    "output": LN of CLS, which is the only token in CaiT; "output_cls": CLS as it is;
    "output_distilled": LN of CLS and DIST;
    "output_mean": the mean of the patches after LN; "output_mean_norm": LN of their mean;
    "output_features": anything else.
    """
    module: Any = model.part
    parts, prefix = model.parts, len(model.layers[0].prefix)
    norm, mean_first = parts.norm, parts.pooled_norm or nn.Identity()
    if len(parts.heads) == 2 and "dist" in model.read_tokens:
        return box("output_distilled", features[0, :2], statistics(norm, last[:2]))
    if isinstance(module, VisionTransformer):
        y = features[0, 0] if module.has_class_token else features[0, prefix:].mean(dim=0)
    elif hasattr(module, "forward_head"):
        y = module.forward_head(features, pre_logits=True)[0].flatten()
    elif model.read_tokens and model.has_head and len(parts.heads) < 2:
        y = (model.pool if parts.heads else model.answer)(last[None])[0]
    else:  # without a head; and where there are stages, torchvision and transformers pool the mean
        y = features[0, 0] if "cls" in model.read_tokens else features[0, prefix:].mean(dim=0)
    if model.layers[-1].kind == "class" and norm is not None:
        only = norm(last[None])[0, 0]
        if agree(numbers(only), numbers(y)):
            return box("output", y, statistics(norm, last))
    if not model.read_tokens:
        return box("output_features", y)
    cls, mean = features[0, 0], features[0, prefix:].mean(dim=0)
    candidates: list[tuple[str, Tensor, nn.Module | None, Tensor]] = []
    if "cls" in model.read_tokens:
        candidates = [("output_cls", cls, None, last[:1])]
        if is_norm(norm):
            candidates = [("output", cls, norm, last[:1])]
        elif is_norm(parts.pooled_norm):  # as in CLIP of transformers
            candidates = [("output", mean_first(cls), mean_first, last[:1])]
    else:
        if is_norm(norm):
            candidates = [("output_mean", mean, None, mean)]
        if is_norm(parts.pooled_norm):
            candidates.append(("output_mean_norm", mean_first(mean), mean_first, mean[None]))
    for name, value, by, read in candidates:
        if agree(numbers(value), numbers(y)):
            return box(name, y, statistics(by, read))
    return box("output_features", y)
