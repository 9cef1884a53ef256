"""Distance and cost window by window: closed forms, and what torch and the papers count."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import narrow_stages, own_model, picture, seeded, watched
from numpy.testing import assert_allclose
from timm.models.vision_transformer import Block
from torch.utils.flop_counter import FlopCounterMode

from vitviz.activations import capture
from vitviz.inspection import (
    allowed_pairs,
    attention_distance,
    multiply_adds,
    windowed_distance,
)


def places(rows: int, cols: int, step: float = 4.0) -> np.ndarray:
    grid = np.stack(np.meshgrid(np.arange(rows), np.arange(cols), indexing="ij"), axis=2)
    return (grid.reshape(-1, 2) + 0.5) * step


def test_one_hot_rows_give_their_own_distance() -> None:
    where = np.array([[0.0, 0.0], [3.0, 4.0]])
    swap = np.eye(2)[None, ::-1]
    assert_allclose(windowed_distance([(swap, where, where)]), [5.0])
    far = np.add(where, (0, 30))
    mixed = windowed_distance([(swap, where, where), (np.eye(2)[None], where, far)])
    assert_allclose(mixed, [(5 + 5 + 30 + 30) / 4])


def test_tokens_without_a_place_are_left_out() -> None:
    where = np.array([[np.nan, np.nan], [0.0, 0.0], [0.0, 6.0]])
    attention = np.array([[[1.0, 0, 0], [0.5, 0.25, 0.25], [1.0, 0, 0]]])
    assert_allclose(windowed_distance([(attention, where, where)]), [3.0])  # one row is left
    on_prefix = np.zeros((1, 3, 3))
    on_prefix[..., 0] = 1
    assert np.isnan(windowed_distance([(on_prefix, where, where)])).all()


@pytest.mark.parametrize(
    "options", [dict(), dict(class_token=False), dict(distillation_token=True, registers=2)]
)
def test_it_is_attention_distance_where_every_token_meets_every_token(
    options: dict[str, Any],
) -> None:
    acts = capture(own_model(**options), picture())
    expected = attention_distance(
        acts.attention_layers(),
        grid=acts.grid,
        patch_size=acts.patch_size,
        num_prefix_tokens=acts.num_prefix_tokens,
    )
    found = [windowed_distance(acts.windows(layer)) for layer in range(acts.depth)]
    assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "narrow"),
    [
        ("swin_tiny_patch4_window7_224", dict(embed_dim=24)),
        ("maxvit_tiny_tf_224", narrow_stages()),
    ],
)
def test_windows_give_what_the_whole_matrix_gives(name: str, narrow: dict[str, Any]) -> None:
    options: Any = {**narrow, "img_size": (64, 96), "depths": (1, 2, 1, 1)}
    acts = capture(watched(timm.create_model(name, **options).eval(), (64, 96)), picture())
    for number, layer in enumerate(acts.layers):
        (expected,) = attention_distance(
            [acts.attention(number)],
            grid=layer.query_grid,
            patch_size=layer.patch_size,
            num_prefix_tokens=0,
        )
        assert_allclose(windowed_distance(acts.windows(number)), expected, rtol=1e-5)


@pytest.mark.parametrize(
    "windows", [[], [(np.zeros((1, 2, 3)), np.zeros((2, 2)), np.zeros((2, 2)))]]
)
def test_what_does_not_fit_is_an_error(windows: list[Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        windowed_distance(windows)


def test_a_pair_is_allowed_where_any_head_gives_more_than_a_mask_leaves() -> None:
    masked = float(np.exp(np.float32(-100)))
    assert masked > 0
    attention = np.array([[[1.0, masked], [0.0, 1.0]], [[1.0, masked], [1e-12, 1.0]]], np.float32)
    assert allowed_pairs(attention).tolist() == [[True, False], [True, True]]
    assert allowed_pairs(attention[:, 0]).tolist() == [True, False]


# --- multiply-adds -------------------------------------------------------------------------------


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
