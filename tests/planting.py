"""Weights planted so that every head of every layer looks at the one bright patch.

A patch's brightness becomes coordinate 0 of its token and all else is 0 but coordinate 1, which is
1 everywhere; blocks add nothing to the stream; keys copy coordinate 0 and queries copy coordinate
1, both into the last coordinate of a head, which rotary embeddings turn least.
"""

from dataclasses import replace
from typing import Any

import torch
from examples import watched
from PIL import Image
from torch import Tensor, nn

from vitviz.model import Model

LONG = 300.0  # of the queries


@torch.no_grad()
def plant(module: Any) -> None:
    """Set every weight of a model in which all tokens attend to all."""
    silence(module)
    plant_embedding(module)
    for block in module.blocks:
        plant_attention(block)


def silence(module: nn.Module) -> None:
    """Zero everything, and let norms be norms."""
    for parameter in module.parameters():
        parameter.zero_()
    for part in module.modules():
        weight = getattr(part, "weight", None)
        if "Norm" in type(part).__name__ and isinstance(weight, Tensor):
            weight.fill_(1)


def plant_embedding(module: Any) -> None:
    embed = module.patch_embed
    stem = getattr(embed, "backbone", None)
    if stem is not None:
        plant_stem(stem)
    kernel = embed.proj.weight
    kernel[0] = 1 / kernel[0].numel()
    if getattr(module, "pos_embed", None) is not None:
        module.pos_embed[..., 1] = 1
    else:
        embed.proj.bias[1] = 1
    for name in ("cls_token", "dist_token", "reg_token"):
        token = getattr(module, name, None)
        if token is not None:
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


def plant_attention(block: Any) -> None:
    """Keys copy coordinate 0 of the normalised token, queries coordinate 1."""
    attn = getattr(block, "attn", block)
    heads = attn.num_heads
    rows = key_rows(attn)
    for weight, coordinate, size in zip(rows, (1, 0), (LONG, 1.0), strict=True):
        step = len(weight) // heads
        weight[step - 1 :: step, coordinate] = size
    norm = getattr(getattr(attn, "q_norm", None), "weight", None)
    if norm is not None:  # it makes every query as long as the next
        norm.fill_(LONG)


def key_rows(attn: Any) -> tuple[Tensor, Tensor]:
    """The rows of the weights that make the queries and the keys."""
    if getattr(attn, "in_proj", None) is not None:  # attention and MLP side by side
        _, q, k, _ = attn.in_proj.weight.split(attn.in_split)
    elif getattr(attn, "qkv", None) is not None:
        q, k, _ = attn.qkv.weight.chunk(3)
    else:
        q, k = attn.q_proj.weight, attn.k_proj.weight
    return q, k


def spotlight(height: int, width: int, box: tuple[int, int, int, int]) -> Image.Image:
    image = Image.new("RGB", (width, height))
    image.paste((255, 255, 255), box)
    return image


def planted(module: nn.Module, input_size: tuple[int, int]) -> Model:
    """The planted module, whose input is the picture's brightness from 0 to 1."""
    plant(module)
    return in_brightness(watched(module, input_size))


def in_brightness(model: Model) -> Model:
    model.preprocess = replace(model.preprocess, mean=(0.0,) * 3, std=(1.0,) * 3)
    return model
