"""From the picture to the answer: equations (1) and (4), and the layers between as a whole.

Letters in the shape comments: H W picture height and width, C channels, P patch side, N patches,
T tokens, D width, h heads, d head_dim, M width of the MLP, K classes.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn

from ..activations import Activations
from ..families import ModelError
from ..model import Model
from ..vit import PreTrainingHead, VisionTransformer
from .boxes import Box, agree, box, normed, numbers, statistics, tensor
from .layers import kind_of


def steps(model: Model, image: Image.Image, acts: Activations) -> tuple[Box, ...]:
    """The picture at each step, from the model's input to its answer.

    Parameters
    ----------
    acts : Activations
        The capture of this picture, made without edits.

    Returns
    -------
    tuple of Box
        Of a plain ViT: "picture" (H, W, C), "patches" (N, P, P, C), "flatten" (N, C P P), "project"
        (N, D), "prefix" (T, D), "positions" (T, D), "encoder" (T, D), "output" (D,) and "head"
        (K,), or "no_head". Other families have the steps that are theirs.

    Raises
    ------
    ModelError
        When patches were dropped from the capture.

    References
    ----------
    Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021), equations (1) to (4).
    """
    if len(acts.patches) != math.prod(model.layers[0].query_grid):
        raise ModelError("Patches were dropped from this pass, so its steps are not all there.")
    weight = next(model.module.parameters())
    with torch.inference_mode():
        x = model.preprocess(image)[None].to(weight)
        return (
            *_embedding(model, x, tensor(acts.tokens(0), weight)),
            *_stages(acts),
            *_answer(model, x, acts),
        )


def _embedding(model: Model, x: Tensor, z: Tensor) -> Iterator[Box]:
    """From the picture (1, C, H, W) to z_0 (T, D)."""
    module: Any = model.module
    embed: Any = model.parts.embedding
    yield box("picture", x[0].permute(1, 2, 0))
    cnn, conv = getattr(embed, "backbone", None), getattr(embed, "proj", None)
    if cnn is not None:
        x = cnn(x)
        x = x[-1] if isinstance(x, list | tuple) else x
        yield box("stem", x[0].permute(1, 2, 0))
    patches = _cut(conv, x[0])  # (N, C, P, P)
    if patches is None or len(patches) != math.prod(model.layers[0].query_grid):
        yield box("embedding", z)
        return
    flat = patches.flatten(1)
    yield box("patches", patches.permute(0, 2, 3, 1))
    yield box("flatten", flat)
    assert isinstance(conv, nn.Conv2d)
    tokens = conv(x)[0].flatten(1).T  # (N, D)
    made = {"kernel": conv.weight.flatten(1)}
    yield box("project", tokens, made if conv.bias is None else {**made, "bias": conv.bias})
    norm = getattr(embed, "norm", None)
    if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
        tokens = norm(tokens)
        yield normed("embedding_norm", norm, tokens, tokens)
    chain = [*_prefixed(module, tokens)]
    if not agree(chain[-1].values if chain else numbers(tokens), numbers(z)):
        chain = [box("embedding", z)]
    yield from chain


def _cut(conv: object, x: Tensor) -> Tensor | None:
    """The patches (N, C, P, P) of (C, H, W); None where the convolution does more than to cut."""
    if not isinstance(conv, nn.Conv2d) or conv.kernel_size != conv.stride or conv.groups > 1:
        return None
    if conv.padding not in ((0, 0), "valid") or set(conv.dilation) != {1}:
        return None
    height, width = conv.kernel_size
    cut = x.unfold(1, height, height).unfold(2, width, width)  # (C, R, S, P, P)
    return cut.permute(1, 2, 0, 3, 4).flatten(0, 1)


def _prefixed(module: Any, tokens: Tensor) -> Iterator[Box]:
    """CLS and its like in front, positions added: in the order in which the module does so."""
    named = (getattr(module, f"{name}_token", None) for name in ("cls", "dist", "reg"))
    own = [token[0] for token in named if isinstance(token, Tensor)]
    prefix = torch.cat(own) if own else None
    if not hasattr(module, "blocks") or hasattr(module, "blocks_token_only"):
        prefix = None  # CaiT has its CLS later
    table = getattr(module, "pos_embed", None)
    table = table.flatten(0, -2) if isinstance(table, Tensor) else None
    first = prefix is not None and not (table is not None and len(table) == len(tokens))
    for name in ("prefix", "positions") if first else ("positions", "prefix"):
        if name == "prefix" and prefix is not None:
            tokens = torch.cat([prefix, tokens])
            yield box("prefix", tokens, {"tokens": prefix})
        if name == "positions" and table is not None and len(table) == len(tokens):
            tokens = tokens + table
            yield box("positions", tokens, {"table": table})
    norm = getattr(module, "norm_pre", None)
    if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
        yield normed("pre_norm", norm, tokens, norm(tokens))


def _stages(acts: Activations) -> Iterator[Box]:
    """The encoder; where it has stages, each of them."""
    starts = [
        number
        for number, layer in enumerate(acts.layers)
        if not number or kind_of(layer) != kind_of(acts.layers[number - 1])
    ]
    for start, end in zip(starts, [*starts[1:], acts.depth], strict=True):
        name = "encoder" if len(starts) == 1 else "stage"
        if acts.layers[start].kind == "class":
            name = "class_attention"
        yield box(name, acts.tokens(end), layers=range(start, end))


def _answer(model: Model, x: Tensor, acts: Activations) -> Iterator[Box]:
    """What the head reads, and what it answers."""
    module: Any = model.module
    last = tensor(acts.tokens(acts.depth), x)
    features = module.norm(last[None]) if model.read_tokens else module.forward_features(x)
    output = _output(model, last, features)
    yield output
    if acts.logits is None or acts.probabilities is None:
        yield Box(name="no_head" if acts.logits is None else "embedding_head", shape=())
        return
    y = tensor(output.values, x).reshape(-1, output.shape[-1])  # of each head
    head = getattr(module.head, "fc", module.head)
    if isinstance(head, PreTrainingHead):
        y = torch.tanh(head.pre_logits(y))
        yield box("head_hidden", y[0])
        head = head.out
    heads = [head, module.head_dist][: len(y)] if len(y) > 1 else [head]
    made = {"probabilities": acts.probabilities}
    if all(isinstance(each, nn.Linear) for each in heads):
        weight = torch.stack([each.weight for each in heads], dim=1)  # (K, heads, D)
        none = torch.zeros(len(weight)).to(x)
        bias = torch.stack([none if e.bias is None else e.bias for e in heads], dim=1)
        logits = (torch.einsum("khd,hd->kh", weight, y) + bias).mean(dim=1)
        if agree(numbers(logits), acts.logits):
            made |= {"weight": numbers(weight), "bias": numbers(bias)}
    yield box("head", acts.logits, made)


def _output(model: Model, last: Tensor, features: Tensor) -> Box:
    """y of equation (4), named by how it was proved to come about.

    "output": LN of CLS; "output_distilled": of CLS and DIST; "output_mean": the mean of the
    patches after LN; "output_mean_norm": before it; "output_features": by another way.
    """
    module: Any = model.module
    prefix = len(model.layers[0].prefix)
    if getattr(module, "head_dist", None) is not None and "dist" in model.read_tokens:
        return box("output_distilled", features[0, :2], statistics(module.norm, last[:2]))
    mean_first = getattr(module, "fc_norm", nn.Identity())
    if isinstance(module, VisionTransformer):
        y = features[0, 0] if module.has_class_token else features[0, prefix:].mean(dim=0)
    else:
        y = module.forward_head(features, pre_logits=True)[0].flatten()
    if not model.read_tokens:
        return box("output_features", y)
    mean = features[0, prefix:].mean(dim=0)
    for name, made, norm, read in (
        ("output", features[0, 0], module.norm, last[:1]),
        ("output_mean", mean, None, mean),
        ("output_mean_norm", mean_first(mean), mean_first, mean[None]),
    ):
        if (name == "output") == ("cls" in model.read_tokens) and agree(numbers(made), numbers(y)):
            return box(name, y, statistics(norm, read))
    return box("output_features", y)
