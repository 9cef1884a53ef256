"""Models of torchvision: what is planted is found, and watching changes no logit."""

from typing import Any

import numpy as np
import pytest
import torch
from examples import (
    assert_clear_error,
    assert_same_in_a_batch,
    patch_box,
    picture,
    randomise,
    seeded,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from planting import assert_found, planted, scene
from torch.nn import functional as F

import vitviz
from vitviz import ModelError
from vitviz.intervention import logit_lens
from vitviz.model import Model

torchvision: Any = pytest.importorskip("torchvision", reason="torchvision is not installed")


def vit(size: int = 32, **options: Any) -> Any:
    settings: dict[str, Any] = dict(
        image_size=size, patch_size=8, num_layers=2, num_heads=2, hidden_dim=32, mlp_dim=48
    )
    module = torchvision.models.VisionTransformer(**{**settings, "num_classes": 5, **options})
    randomise(module)
    return module.eval()


def plain(model: Model) -> np.ndarray:
    with torch.inference_mode():
        logits: np.ndarray = model.module(model.preprocess(picture())[None])[0].numpy()
    return logits


@pytest.mark.parametrize("target", [(8, 3), (2, 9), (0, 0)])
def test_every_head_of_a_vit_is_found_to_look_at_the_planted_patch(
    target: tuple[int, int],
) -> None:
    model = planted(vit(80), (80, 80))
    image, box = scene(8, (10, 10), target)
    acts = vitviz.capture(model, image)
    assert [layer.refusal for layer in acts.layers] == [None, None]
    assert acts.layers[0].prefix == ("cls",)
    assert_found(acts, target, 8)
    assert patch_box(acts.crop, acts.grid, *target) == pytest.approx(box, abs=1)


@pytest.mark.parametrize("size", [(32, 48), (64, 64), (33, 33)])
def test_a_vit_takes_pictures_of_its_own_size_alone(size: tuple[int, int]) -> None:
    with pytest.raises(ModelError, match="32 x 32 pixels only") as caught:
        watched(vit(), size)
    assert_clear_error(caught.value)


@pytest.mark.parametrize("heads", [2, 1])  # torch's kernel for inference takes even numbers only
def test_watching_a_vit_changes_nothing(heads: int) -> None:
    model = watched(vit(num_heads=heads), (32, 32))
    before = plain(model)
    acts = vitviz.capture(model, picture())
    assert_array_equal(acts.logits, before)
    assert_array_equal(plain(model), before)
    assert model.read_tokens == ("cls",)
    assert acts.probabilities is not None
    assert_allclose(logit_lens(model, acts)[-1], acts.probabilities, atol=1e-6)


@pytest.mark.parametrize("heads", [2, 1])
def test_each_picture_of_a_batch_equals_its_own_capture(heads: int) -> None:
    model = watched(vit(num_heads=heads), (32, 32))
    assert_same_in_a_batch(model, [picture(seed=seed) for seed in range(4)])


def test_attention_is_what_nn_multiheadattention_returns_when_asked() -> None:
    model = watched(vit(), (32, 32))
    acts = vitviz.capture(model, picture())
    for layer, site in enumerate(model.sites):
        block: Any = site.block
        z = block.ln_1(torch.tensor(acts.tokens(layer)[None]))
        _, own = site.attn(z, z, z, average_attn_weights=False)
        assert_allclose(acts.attention(layer), own[0].detach().numpy(), atol=1e-6)


def test_a_kernel_that_computes_something_else_is_noticed() -> None:
    """The inside of an nn.MultiheadAttention is computed again: it must give what the block did."""
    module = vit()
    attn = module.encoder.layers[1].self_attention
    attn.register_forward_hook(lambda *args: (args[-1][0] * 1.01, None))
    acts = vitviz.capture(watched(module, (32, 32)), picture())
    assert acts.layers[0].refusal is None
    assert "does not reproduce the block's own output" in str(acts.layers[1].refusal)
    with pytest.raises(ModelError) as caught:
        acts.attention(1)
    assert_clear_error(caught.value)


def swin(name: str, **options: Any) -> Any:
    models = torchvision.models.swin_transformer
    second = name == "swin_v2_t"
    settings: dict[str, Any] = dict(
        patch_size=[4, 4],
        embed_dim=16,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=[4, 4],
        num_classes=5,
        block=models.SwinTransformerBlockV2 if second else None,
        downsample_layer=models.PatchMergingV2 if second else models.PatchMerging,
    )
    with seeded():
        return models.SwinTransformer(**{**settings, **options}).eval()


SWIN = ("swin_t", "swin_v2_t")
#: In patches of the first stage: filled windows, padded ones, and fewer patches than a window has.
GRIDS = ((8, 16), (10, 14), (3, 9))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SWIN)
def test_watching_a_swin_changes_nothing(name: str, grid: tuple[int, int]) -> None:
    module = swin(name)
    randomise(module)
    model = watched(module, (4 * grid[0], 4 * grid[1]))
    acts = vitviz.capture(model, picture())
    assert_array_equal(acts.logits, plain(model))
    assert [layer.refusal for layer in acts.layers] == [None] * 4
    assert [layer.query_grid for layer in acts.layers][::2] == [
        grid,
        ((grid[0] + 1) // 2, (grid[1] + 1) // 2),
    ]
    for layer in range(acts.depth):
        acts.attention(layer)
    with pytest.raises(ModelError, match="cannot be muted: no hook"):
        vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(0, 1)])])


def windows_of(grid: tuple[int, int], shift: int, side: int = 4) -> list[np.ndarray]:
    """Of each window (row, column) of its cells in the padded grid, by the paper's Figure 4."""
    padded = [extent + -extent % side for extent in grid]
    by = [shift if side < extent else 0 for extent in padded]
    cells = np.moveaxis(np.indices(padded), 0, -1)
    cells = np.roll(cells, (-by[0], -by[1]), axis=(0, 1))
    return [
        cells[top : top + side, left : left + side].reshape(-1, 2)
        for top in range(0, padded[0], side)
        for left in range(0, padded[1], side)
    ]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", SWIN)
def test_windows_of_swin_lie_where_its_tokens_lie(name: str, grid: tuple[int, int]) -> None:
    """Queries and keys of the captured tokens, patch by patch, make the same attention."""
    second = name == "swin_v2_t"
    module = swin(name)
    randomise(module)
    acts = vitviz.capture(watched(module, (4 * grid[0], 4 * grid[1])), picture())
    for layer in (0, 1):
        block = module.features[1][layer]
        attn: Any = block.attn
        z = torch.tensor(acts.tokens(layer))
        z = F.pad(z if second else block.norm1(z), (0, 0, 0, 1))  # the last is padding
        bias = attn.qkv.bias.clone()
        if second:
            bias[16:32] = 0
        made = F.linear(z, attn.qkv.weight, bias).unflatten(-1, (3, 2, 8))
        q, k, _ = made.permute(1, 2, 0, 3)  # (h, tokens, d)
        scale = 8**-0.5
        if second:
            q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
            scale = attn.logit_scale.clamp(max=np.log(100)).exp()
        for number, cells in enumerate(windows_of(grid, 2 * layer)):
            rows, cols = cells.T
            there = (rows < grid[0]) & (cols < grid[1])
            patches = np.where(there, rows * grid[1] + cols, len(z) - 1)
            scores = q[:, patches] @ k[:, patches].transpose(1, 2) * scale
            scores = scores + attn.get_relative_position_bias()[0]
            near = (np.abs(cells[:, None] - cells) < 4).all(axis=-1)  # not across the wrap
            scores = scores - 100 * torch.tensor(~near)
            own = acts.attention_by_window(layer)[number]
            assert_allclose(own, scores.softmax(dim=-1).detach().numpy(), atol=1e-5)
            assert_array_equal(acts.layout(layer).queries[number], np.where(there, patches, -1))


def test_attention_that_blocks_share_is_read_in_each_of_them() -> None:
    module = vit()
    first, second = module.encoder.layers
    second.self_attention = first.self_attention
    model = watched(module, (32, 32))
    acts = vitviz.capture(model, picture())
    own: list[np.ndarray] = []
    for block, depth in ((first, 0), (second, 1)):
        z = block.ln_1(torch.from_numpy(acts.tokens(depth).copy())[None])
        weights = block.self_attention(z, z, z, average_attn_weights=False)[1]
        own.append(weights[0].detach().numpy())
    for layer, expected in enumerate(own):
        assert_allclose(acts.attention(layer), expected, atol=1e-6)
