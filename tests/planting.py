"""Weights planted so that every head of every layer looks at the one bright patch.

A patch's brightness becomes coordinate 0 of its token and all else is 0 but coordinate 1, which is
1 everywhere; blocks add nothing to the stream; keys copy coordinate 0 and queries copy coordinate
1, both into the last coordinate of a head, which rotary embeddings turn least.
"""

import math
from dataclasses import replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from examples import watched
from numpy.testing import assert_allclose
from PIL import Image
from torch import Tensor, nn

from vitviz.activations import Activations
from vitviz.inspection import attention_distance, attention_rollout
from vitviz.model import Model
from vitviz.model.families import family_of

LONG = 300.0  # of the queries
#: By how much the score of the bright patch exceeds the others in windows: enough to look at it
#: only, but not to look through Swin's mask, which subtracts 100 from a score where two patches
#: lie on opposite sides of the picture.
IN_WINDOWS = 40.0
MARGIN = 30  # pixels on each side of the picture that the centre crop leaves out


@torch.no_grad()
def plant(module: Any, input_size: tuple[int, int]) -> None:
    """Set every weight of a model in which all tokens attend to all."""
    silence(module)
    plant_embedding(module)
    for site in family_of(module).sites(module, input_size):
        plant_attention(site.attn)


@torch.no_grad()
def plant_sink(module: Any, *, carries: bool) -> None:
    """Let every token of layer 1 attend to CLS, which adds much to all of them, or nothing.

    In the other layers all tokens share equally.
    """
    for block in module.blocks:
        q, k = query_and_key(block.attn)
        q.zero_()
        k.zero_()
        block.attn.qkv.bias.zero_()
    first = module.blocks[0]
    first.norm1.reset_parameters()
    conv = module.patch_embed.proj
    for part in (conv.weight[0], conv.bias[0], module.pos_embed[..., 0]):
        part.zero_()
    module.cls_token[..., 0] = 20  # coordinate 0 is that of CLS alone
    along = 1 / first.norm1(module.cls_token[0, 0] + module.pos_embed[0, 0])[0]
    _, k = query_and_key(first.attn)
    heads, size, width = k.shape
    first.attn.qkv.bias[:width].view(heads, size)[:, 0] = 9 * math.sqrt(size)
    k[:, 0, 0] = along  # the score of CLS is 9
    if not carries:  # the value of CLS is 0, and those of all others are nearly alike
        first.attn.qkv.weight[2 * width :] = 0
        first.attn.qkv.weight[2 * width :, 0] = -along
        first.attn.qkv.bias[2 * width :] = 1


def mean_distance(grid: tuple[int, int], target: tuple[int, int]) -> float:
    """From every patch of a grid to one of them, in patches."""
    return float(np.hypot(*(np.indices(grid) - np.reshape(target, (2, 1, 1)))).mean())


def silence(module: nn.Module) -> None:
    """Zero everything, and let norms be norms."""
    for parameter in module.parameters():
        parameter.zero_()
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if "Norm" in type(part).__name__ and isinstance(weight, Tensor):
            weight.fill_(1)


def plant_embedding(module: Any) -> None:
    parts = family_of(module).parts(module)
    stem = getattr(parts.embedding, "backbone", None)
    if stem is not None:
        plant_stem(stem)
    conv: Any = getattr(parts.embedding, "proj", parts.kernel)
    conv.weight[0] = 1 / conv.weight[0].numel()
    if parts.positions:
        attrgetter(parts.positions)(module)[..., 1] = 1
    else:
        conv.bias[1] = 1
    for token in parts.prefix:
        token[..., 1] = 1


def plant_stem(stem: nn.Module) -> None:
    """Let channel 0 of a CNN hand on what lies in the middle of each kernel, and nothing else.

    A kernel that is the same everywhere would do nothing where kernels are standardised.
    """
    for name, part in stem.named_modules():
        if isinstance(part, nn.Conv2d):
            height, width = part.kernel_size
            colours = 3 if part.in_channels == 3 else 1
            part.weight[0, :colours, height // 2, width // 2] = 1
        if name.endswith("norm3"):  # the last of a residual branch
            part.weight.zero_()


def plant_attention(attn: Any, length: float = LONG) -> None:
    """Keys copy coordinate 0 of the normalised token, queries coordinate 1."""
    attn = getattr(attn, "self", attn)  # Swin V2 of transformers has its projection beside it
    q, k = query_and_key(attn)
    q[:, -1, 1] = length
    k[:, -1, 0] = 1
    norm = getattr(getattr(attn, "q_norm", None), "weight", None)
    if norm is not None:  # it makes every query as long as the next
        norm.fill_(length)
    if hasattr(attn, "logit_scale"):  # Swin V2 makes all queries and keys of length 1
        attn.logit_scale.fill_(math.log(20))
    for name in ("proj_l", "proj_w"):  # CaiT mixes heads before and after the softmax
        if hasattr(attn, name):
            weight = getattr(attn, name).weight
            weight.copy_(torch.eye(len(weight)).flip(0))


def query_and_key(attn: Any) -> tuple[Tensor, Tensor]:
    """The weights that make the queries and the keys, each as a view (heads, d, channels)."""
    attn = getattr(attn, "self", attn)
    heads = getattr(attn, "num_heads", None) or attn.num_attention_heads
    if getattr(attn, "in_proj_weight", None) is not None:  # an nn.MultiheadAttention
        q, k, _ = attn.in_proj_weight.chunk(3)
    elif getattr(attn, "in_proj", None) is not None:  # attention and MLP side by side
        _, q, k, _ = attn.in_proj.weight.split(attn.in_split)
    elif getattr(attn, "head_first", False):
        q, k, _ = attn.qkv.weight.view(heads, 3, attn.dim_head, -1).unbind(1)
        return q, k
    elif getattr(attn, "qkv", None) is not None:
        q, k, _ = attn.qkv.weight.chunk(3)
    elif hasattr(attn, "query"):
        q, k = attn.query.weight, attn.key.weight
    elif hasattr(attn, "kv"):
        q, k = attn.q.weight, attn.kv.weight.chunk(2)[0]
    elif hasattr(attn, "k"):
        q, k = attn.q.weight, attn.k.weight
    else:
        q, k = attn.q_proj.weight, attn.k_proj.weight
    return tuple(rows.view(heads, len(rows) // heads, -1) for rows in (q, k))


@torch.no_grad()
def plant_stages(model: Model) -> None:
    """Set every weight of a model with stages; its sites say where attention is."""
    module: Any = model.module
    silence(module)
    for name, part in module.named_modules():
        if isinstance(part, nn.Conv2d) and hands_on(name):
            carry(part, first=part.in_channels == 3)
        if name.endswith(".reduction"):  # where Swin joins four patches
            width = part.in_features // 4
            for coordinate in (0, 1):
                part.weight[coordinate, coordinate::width] = 1
    first: Any = module.stem.norm1 if hasattr(module, "stem") else model.parts.kernel
    first.bias[1] = 1
    for site in model.sites:
        q, _ = query_and_key(site.attn)
        _, head_dim, width = q.shape  # a normalised token has two coordinates of some width^0.5
        plant_attention(site.attn, IN_WINDOWS * head_dim**0.5 / (width / 2))


def hands_on(name: str) -> bool:
    """Whether a convolution lies on the stream: in a stem, a shortcut, or where grids shrink."""
    words = name.split(".")
    return (
        words[0] in ("stem", "patch_embed", "patch_embeds")
        or "patch_embedding" in words  # of transformers
        or "patch_embeddings" in words
        or words[-1] == "spatial_reduction"
        or "shortcut" in words
        or "downsample" in words
        or words[-1] == "sr"
        or "down" in words
    )


def carry(conv: nn.Conv2d, *, first: bool) -> None:
    """Hand on coordinates 0 and 1 from the middle of the kernel, or the mean of a pooling one."""
    if first:
        height, width = conv.kernel_size
        conv.weight[0, :, height // 2, width // 2] = 1 / 3
        return
    for coordinate in (0, 1):
        if conv.kernel_size == conv.stride:
            conv.weight[coordinate, coordinate] = 1 / conv.weight[0, 0].numel()
        else:
            height, width = conv.kernel_size
            conv.weight[coordinate, coordinate, height // 2, width // 2] = 1


def spotlight(height: int, width: int, box: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", (width, height))
    image.paste((255, 255, 255), box)
    return image


def planted(module: nn.Module, input_size: tuple[int, int]) -> Model:
    """The planted module, whose input is the picture's brightness from 0 to 1."""
    plant(module, input_size)
    return in_brightness(watched(module, input_size))


def in_brightness(model: Model) -> Model:
    """Let the input be the picture's brightness, with sharp edges."""
    model.preprocess = replace(
        model.preprocess, mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="nearest"
    )
    return model


def scene(side: int, grid: tuple[int, int], target: tuple[int, int]) -> tuple[Image.Image, Any]:
    """A picture twice as large as the input and wider, with one bright patch; and its box."""
    top, left = target[0] * side, target[1] * side
    box = (MARGIN + 2 * left, 2 * top, MARGIN + 2 * (left + side), 2 * (top + side))
    size = 2 * grid[0] * side, 2 * grid[1] * side + 2 * MARGIN
    return spotlight(*size, box), box


def assert_found(acts: Activations, target: tuple[int, int], side: int, rtol: float = 2e-3) -> None:
    """Every map, the rollout and the distance point at the patch."""
    (rows, cols), prefix = acts.grid, acts.num_prefix_tokens
    for layer in range(acts.depth):
        for query in (None, 0, prefix + 5, (rows - 1, cols - 1), target):
            for head in acts.attention_map(layer, query):
                assert np.unravel_index(head.argmax(), head.shape) == target
                assert head[target] > 0.999
        assert acts.attention_map(layer, target, direction="column").min() > 0.999
    rollout = attention_rollout(acts.attention_layers(), num_prefix_tokens=prefix)
    assert rollout[prefix:].argmax() == target[0] * cols + target[1]
    distance = attention_distance(
        acts.attention_layers(),
        grid=acts.grid,
        patch_size=acts.patch_size,
        num_prefix_tokens=prefix,
    )
    assert_allclose(distance, side * mean_distance((rows, cols), target), rtol=rtol)
