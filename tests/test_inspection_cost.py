"""Multiply-adds of a layer: what torch counts, and the numbers of the papers."""

from typing import Any

import pytest
import torch
from examples import seeded
from timm.models.vision_transformer import Block
from torch.utils.flop_counter import FlopCounterMode

from vitviz.inspection import multiply_adds


@pytest.mark.parametrize(("tokens", "width", "mlp"), [(10, 24, 96), (37, 16, 40)])
def test_torch_counts_the_same(tokens: int, width: int, mlp: int) -> None:
    with seeded():
        block: Any = Block(dim=width, num_heads=2, mlp_ratio=mlp / width)
    block.attn.fused_attn = False
    counter = FlopCounterMode(display=False)
    with torch.inference_mode(), counter:
        block(torch.zeros(1, tokens, width))
    counted = counter.get_flop_counts()["Global"]
    both = sum(flops for op, flops in counted.items() if "bmm" in str(op))
    matrices, rest = multiply_adds(tokens, embed_dim=width, mlp_dim=mlp)
    assert 2 * matrices == both
    assert 2 * (matrices + rest) == counter.get_total_flops()


def test_windows_cost_as_much_as_their_keys() -> None:
    everywhere = multiply_adds(196, embed_dim=768, mlp_dim=3072)
    windows = multiply_adds(196, 49, embed_dim=768, mlp_dim=3072)
    assert windows == (everywhere[0] // 4, everywhere[1])


def test_a_base_needs_what_the_swin_paper_says_of_deit_b() -> None:
    """Its Table 1a: 17.5 G at 224 px; the layers are the same."""
    layer = sum(multiply_adds(197, embed_dim=768, mlp_dim=3072))
    embedding = 196 * 768 * 768
    assert (12 * layer + embedding) / 1e9 == pytest.approx(17.5, abs=0.1)
