"""Initialisation of our own models: normal entries, or mimetic initialisation.

Mimetic initialisation gives weights that resemble those of trained Transformers.

W_q W_k^T is near Z + I and W_v W_proj near Z - I, with Z of independent normal entries: at first
tokens attend to similar tokens, and as positions are initialised with the sine-cosine table,
similar tokens are near ones. Attention that is local after training may come from here.

References
----------
Trockman and Kolter, "Mimetic Initialization of Self-Attention Layers" (ICML 2023),
https://arxiv.org/abs/2305.09828.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ..vit import Block, VisionTransformer, fixed_positions

QUERY_KEY = (0.7, 0.7)  # factors of Z and I in W_q W_k^T; section 3 of the paper
VALUE = (0.4, -0.4)  # and in W_v W_proj
# Of the sine-cosine table. With the usual 10,000, most of its numbers hardly change over the 8 rows
# of a small grid: the cosine between its left and right edge is .87, with 30 it is .64.
BASE = 30.0


@dataclass(frozen=True, kw_only=True)
class Mimetic:
    """Settings of mimetic initialisation, see `apply_mimetic`."""

    strengths: tuple[float, ...]  # of the heads: 1 as in the paper, larger is more local
    first: float = 1.0  # factor on the strengths in the first layer
    last: float = 1.0  # and in the last; it changes in equal steps between them
    embedding: float = 0.03  # standard deviation of E


def build_random_model(
    configuration: Mapping[str, Any], image_size: int, start: Mimetic | None, *, seed: int
) -> VisionTransformer:
    """Build a model with random weights that depend on the seed alone.

    Parameters
    ----------
    configuration : keywords of VisionTransformer, except image_size
    image_size : side of the square input in pixels
    start : None for normal entries of standard deviation 0.02
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = VisionTransformer(**{**configuration, "image_size": image_size})
        if start is not None:
            factors = torch.linspace(start.first, start.last, len(model.blocks)).tolist()
            strengths = [[factor * head for head in start.strengths] for factor in factors]
            apply_mimetic(model, strengths, embedding=start.embedding)
        return model


def apply_mimetic(
    model: VisionTransformer, strengths: Sequence[Sequence[float]], *, embedding: float
) -> None:
    """Initialise the attention, the positions and E of a fresh model in place.

    Parameters
    ----------
    model : VisionTransformer
        Its positions are learned; its width is a multiple of 4.
    strengths : sequence (layers) of sequences (heads) of float
        Factor on W_q W_k^T of each head: 1 as in the paper; larger is more local.
    embedding : float
        Standard deviation of E; its bias is not changed.
    """
    for block, heads in zip(model.blocks, strengths, strict=True):
        assert isinstance(block, Block)
        _initialise_attention(block, heads)
    grid, prefix = model.patch_embed.grid_size, model.num_prefix_tokens
    table = fixed_positions("sincos2d", model.embed_dim, grid, prefix, base=BASE)
    assert table is not None
    assert model.pos_embed is not None
    with torch.no_grad():
        model.pos_embed[:, prefix:] = table[:, prefix:]
        nn.init.normal_(model.patch_embed.proj.weight, std=embedding)


@torch.no_grad()
def _initialise_attention(block: Block, strengths: Sequence[float]) -> None:
    attention = block.attn
    width = attention.proj.in_features
    d = width // attention.num_heads
    queries, keys, values = attention.qkv.weight.split(width)  # each (D, D), views
    for head, strength in enumerate(strengths):
        rows = slice(head * d, (head + 1) * d)
        left, right = _factorise(_mix_identity(width, *QUERY_KEY), d)
        queries[rows], keys[rows] = left.T * strength**0.5, right * strength**0.5
    left, right = _factorise(_mix_identity(width, *VALUE), width)
    values.copy_(left.T)
    attention.proj.weight.copy_(right.T)


def _mix_identity(width: int, noise: float, identity: float) -> Tensor:
    """Return noise * Z + identity * I, (D, D); entries of Z have the variance 1 / D."""
    return noise * torch.randn(width, width) / width**0.5 + identity * torch.eye(width)


def _factorise(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return (D, rank) and (rank, D), whose product is the nearest matrix of that rank."""
    u, s, vt = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vt[:rank]
