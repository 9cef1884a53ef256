"""timm is the oracle: the same weights give the same logits, and loading them is a copy."""

import math
from collections.abc import Mapping
from typing import Any

import pytest
import timm
import torch
from examples import OWN, example, own_module, randomise
from examples import picture as photo
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor
from torch.testing import assert_close

import vitviz
from vitviz.vit import (
    CONFIGURATIONS,
    Block,
    HybridStem,
    Positions,
    PreTrainingHead,
    VisionTransformer,
    resize_position_embedding,
)
from vitviz.zoo.architectures import on_meta_device


def tiny(**options: Any) -> VisionTransformer:
    """Two blocks of width 32 on pictures of 16 x 16, all parameters random."""
    return own_module(**{"image_size": 16, "depth": 2, **options})


def picture(height: int = 16, width: int = 16, count: int = 2) -> Tensor:
    return torch.randn(count, 3, height, width, generator=torch.Generator().manual_seed(1))


TIMM = [
    ("vit_tiny_patch16_224", "Ti/16"),
    ("vit_small_patch16_224", "S/16"),
    ("vit_base_patch16_224", "B/16"),
    ("vit_large_patch16_224", "L/16"),
    ("vit_base_patch32_224", "B/32"),
    ("deit_tiny_patch16_224", "Ti/16"),
    ("deit_small_patch16_224", "S/16"),
    ("deit_base_patch16_224", "B/16"),
    ("deit_tiny_distilled_patch16_224", "Ti/16"),
]


def ours_for(name: str, size: str, **changes: int) -> VisionTransformer:
    configuration: dict[str, Any] = {**CONFIGURATIONS[size], **changes}
    return VisionTransformer(distillation_token="distilled" in name, **configuration)


@pytest.mark.parametrize(("name", "size"), TIMM)
def test_state_dict_has_timms_names_and_shapes(name: str, size: str) -> None:
    with on_meta_device():
        theirs, ours = timm.create_model(name), ours_for(name, size)
    shapes = {key: value.shape for key, value in theirs.state_dict().items()}
    assert {key: value.shape for key, value in ours.state_dict().items()} == shapes
    ours.load_state_dict(theirs.state_dict(), strict=True, assign=True)


@pytest.mark.parametrize(  # those of DeiT without a distillation token are the same modules
    ("name", "size"), [case for case in TIMM if "distilled" in case[0] or "deit" not in case[0]]
)
def test_logits_are_timms(name: str, size: str) -> None:
    # The first block says the same of the others; all their shapes are compared above.
    shallow: dict[str, Any] = {} if name == TIMM[0][0] else {"depth": 1}
    with on_meta_device():
        theirs, ours = timm.create_model(name, **shallow), ours_for(name, size, **shallow)
    theirs = theirs.to_empty(device="cpu").eval()
    randomise(theirs)
    ours.load_state_dict(theirs.state_dict(), strict=True, assign=True)
    with torch.inference_mode():
        x = picture(224, 224, count=1)
        expected, logits = theirs(x), ours.eval()(x)
    assert logits.shape == (1, 1000)
    assert logits.std() > 0.1
    assert_close(logits, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("size", "millions"), [("B/16", 86), ("L/16", 307), ("H/14", 632)])
def test_parameter_count_is_the_papers(size: str, millions: int) -> None:
    with on_meta_device():
        model = VisionTransformer(**CONFIGURATIONS[size], num_classes=1000)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert count == pytest.approx(millions * 1e6, rel=0.01)


def test_giant_is_that_of_scaling_vision_transformers() -> None:
    with on_meta_device():
        model = VisionTransformer(**CONFIGURATIONS["G/14"])
    assert len(model.blocks) == 48
    for block in model.blocks:
        assert isinstance(block, Block)
        assert block.attn.qkv.weight.shape == (3 * 1664, 1664)
        assert block.mlp.fc1.weight.shape == (8192, 1664)
        assert block.attn.num_heads == 16
    assert model.patch_embed.patch_size == (14, 14)


def test_block_is_equations_2_and_3() -> None:
    block = tiny().blocks[0]
    assert isinstance(block, Block)
    z = torch.randn(2, 7, 32, generator=torch.Generator().manual_seed(2))
    p: Mapping[str, Tensor] = block.state_dict()

    def layer_norm(x: Tensor, name: str) -> Tensor:
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, unbiased=False, keepdim=True)
        return (x - mean) / torch.sqrt(variance + 1e-6) * p[f"{name}.weight"] + p[f"{name}.bias"]

    x = layer_norm(z, "norm1")
    u, offset = p["attn.qkv.weight"], p["attn.qkv.bias"]
    heads = []
    for head in range(4):  # d = 8: q, k and v each hold the heads one after another
        q, k, v = (
            x @ u[first : first + 8].T + offset[first : first + 8]
            for first in (8 * head, 32 + 8 * head, 64 + 8 * head)
        )
        A = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(8), dim=-1)
        heads.append(A @ v)
    attended = torch.cat(heads, dim=-1) @ p["attn.proj.weight"].T + p["attn.proj.bias"]
    assert_close(block.attn(x), attended, rtol=0, atol=1e-5)

    middle = attended + z  # eq. 2
    hidden = layer_norm(middle, "norm2") @ p["mlp.fc1.weight"].T + p["mlp.fc1.bias"]
    hidden = hidden * (1 + torch.erf(hidden / math.sqrt(2))) / 2  # GELU
    expected = hidden @ p["mlp.fc2.weight"].T + p["mlp.fc2.bias"] + middle  # eq. 3
    assert_close(block(z), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in OWN if "sincos" not in kind])
def test_attention_is_what_a_capture_reads(kind: str) -> None:
    """Equation 6 as it is written, against q and k as they reach the fused call."""
    model = example(kind)
    acts = vitviz.capture(model, photo())
    module = model.module
    assert isinstance(module, VisionTransformer)
    with torch.inference_mode():
        z = module.embed(model.preprocess(photo())[None])
        for layer, block in enumerate(module.blocks):
            assert isinstance(block, Block)
            A = block.attn.attention(block.norm1(z))
            assert A.shape == (1, 4, z.shape[1], z.shape[1])
            assert A.std() > 0.01  # far from equal shares
            assert_close(A.sum(dim=-1), torch.ones(A.shape[:-1]))
            assert_close(A[0], torch.tensor(acts.attention(layer)), rtol=0, atol=1e-6)
            z = block(z)


def test_embedding_is_equation_1() -> None:
    model = tiny(image_size=(8, 12), positions="learned")
    x = picture(8, 12, count=1)
    kernel, bias = model.patch_embed.proj.parameters()
    rows = [
        kernel.flatten(1) @ x[0, :, 4 * row : 4 * row + 4, 4 * col : 4 * col + 4].flatten() + bias
        for row in range(2)
        for col in range(3)
    ]
    assert model.cls_token is not None
    assert isinstance(model.pos_embed, Tensor)
    expected = torch.stack([model.cls_token[0, 0], *rows]) + model.pos_embed[0]
    assert_close(model.embed(x)[0], expected, rtol=0, atol=1e-5)


def test_y_is_the_normalised_class_token() -> None:
    model = tiny(num_classes=0)
    z = model.embed(picture())
    for block in model.blocks:
        z = block(z)
    assert model(picture()).shape == (2, 32)
    assert_close(model(picture()), model.norm(z)[:, 0])  # eq. 4


def test_y_without_class_token_is_the_mean_of_the_patches() -> None:
    model = tiny(num_classes=0, class_token=False, registers=3)
    z = model.forward_features(picture())
    assert z.shape == (2, 3 + 16, 32)
    assert_close(model(picture()), z[:, 3:].mean(dim=1))


@pytest.mark.parametrize("positions", ["sincos1d", "sincos2d"])
def test_fixed_positions_are_no_parameters_and_leave_the_prefix_alone(
    positions: Positions,
) -> None:
    model = tiny(positions=positions, registers=2)
    assert "pos_embed" not in dict(model.named_parameters())
    assert model.pos_embed is not None
    assert model.pos_embed.shape == (1, 3 + 16, 32)
    assert not model.pos_embed[:, :3].any()


def sines_and_cosines(position: int, dim: int) -> list[float]:
    angles = [position / 10000 ** (i / (dim // 2)) for i in range(dim // 2)]
    return [math.sin(angle) for angle in angles] + [math.cos(angle) for angle in angles]


def test_sincos1d_counts_the_patches_row_by_row() -> None:
    table = tiny(image_size=(8, 12), positions="sincos1d", class_token=False).pos_embed
    assert table is not None
    expected = torch.tensor([sines_and_cosines(patch, 32) for patch in range(6)])
    assert_close(table[0], expected, rtol=0, atol=1e-6)


def test_sincos2d_tells_rows_from_columns() -> None:
    table = tiny(image_size=(8, 12), positions="sincos2d", class_token=False).pos_embed
    assert table is not None
    expected = torch.tensor(
        [
            sines_and_cosines(row, 16) + sines_and_cosines(col, 16)
            for row in range(2)
            for col in range(3)
        ]
    )
    assert_close(table[0], expected, rtol=0, atol=1e-6)
    assert torch.cdist(table[0], table[0]).add(torch.eye(6)).min() > 0.1


def test_prefix_is_class_distillation_registers() -> None:
    model = tiny(distillation_token=True, registers=2, positions="none")
    assert model.num_prefix_tokens == 4
    z = model.embed(picture())
    assert z.shape == (2, 4 + 16, 32)
    for tokens, rows in (
        (model.cls_token, [0]),
        (model.dist_token, [1]),
        (model.reg_token, [2, 3]),
    ):
        assert tokens is not None
        assert_close(z[:, rows], tokens.expand(2, -1, -1))


def test_pretraining_head_has_one_hidden_layer_with_tanh() -> None:
    model = tiny(pretraining_head=True)
    head = model.head
    assert isinstance(head, PreTrainingHead)
    y = model.forward_features(picture())[:, 0]
    hidden = torch.tanh(y @ head.pre_logits.weight.T + head.pre_logits.bias)
    assert_close(model(picture()), hidden @ head.out.weight.T + head.out.bias)


def test_hybrid_cuts_the_feature_map_into_patches() -> None:
    model = tiny(image_size=64, patch_size=16, stem_width=16)
    assert isinstance(model.patch_embed.backbone, HybridStem)
    assert model.patch_embed.backbone(picture(64, 64)).shape == (2, 16, 16, 16)
    assert model.patch_embed.proj.kernel_size == (4, 4)
    assert model.patch_embed.grid_size == (4, 4)
    assert model.embed(picture(64, 64)).shape == (2, 1 + 16, 32)
    assert model(picture(64, 64)).shape == (2, 5)


def test_other_channel_counts() -> None:
    assert tiny(in_channels=4)(torch.zeros(1, 4, 16, 16)).shape == (1, 5)


def test_no_classes_leaves_no_head_behind() -> None:
    model = tiny(num_classes=0, distillation_token=True, pretraining_head=True)
    assert not [name for name, _ in model.named_parameters() if name.startswith("head")]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(image_size=(16, 18)), "16 x 18 is not a multiple of the patch size 4"),
        (dict(image_size=0), "0 x 0 is not a multiple"),
        (dict(num_heads=5), "5 heads do not divide a width of 32"),
        (dict(positions="rotary"), "must be learned, sincos1d, sincos2d or none, got 'rotary'"),
        (dict(positions="sincos2d", embed_dim=34, num_heads=2), "divisible by 4, got 34"),
        (dict(positions="sincos1d", embed_dim=33, num_heads=3), "divisible by 2, got 33"),
        (dict(class_token=False, distillation_token=True), "needs a class token"),
        (dict(patch_size=2, stem_width=8), "must be a multiple of 4, got 2"),
        (dict(image_size=18, patch_size=6, stem_width=8), "must be a multiple of 4, got 6"),
    ],
)
def test_impossible_models_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**options)


def test_pictures_of_another_size_are_refused() -> None:
    with pytest.raises(ValueError, match="16 x 16 pixels, got 24 x 8"):
        tiny()(picture(24, 8))


@st.composite
def embeddings(draw: st.DrawFn) -> tuple[Tensor, tuple[int, int], int]:
    grid = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)))
    prefix = draw(st.sampled_from([0, 1, 2, 5]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    return torch.randn(1, prefix + grid[0] * grid[1], 6, generator=generator), grid, prefix


grids = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=150)
@given(embedding=embeddings(), grid=grids)
def test_resizing_equals_timms(
    embedding: tuple[Tensor, tuple[int, int], int], grid: tuple[int, int]
) -> None:
    pos_embed, old_grid, prefix = embedding
    resized = resize_position_embedding(
        pos_embed, grid=grid, num_prefix_tokens=prefix, old_grid=old_grid
    )
    expected = resample_abs_pos_embed(
        pos_embed, list(grid), old_size=list(old_grid), num_prefix_tokens=prefix
    )
    assert resized.shape == (1, prefix + grid[0] * grid[1], 6)
    assert_close(resized, expected, rtol=0, atol=1e-6)
    assert torch.equal(resized[:, :prefix], pos_embed[:, :prefix])


@settings(max_examples=30)
@given(side=st.integers(1, 9), grid=grids, prefix=st.sampled_from([0, 1, 2, 5]))
def test_resizing_takes_the_old_grid_for_square(
    side: int, grid: tuple[int, int], prefix: int
) -> None:
    assume(grid != (side, side))
    pos_embed = torch.randn(1, prefix + side**2, 6, generator=torch.Generator().manual_seed(side))
    resized = resize_position_embedding(pos_embed, grid=grid, num_prefix_tokens=prefix)
    expected = resample_abs_pos_embed(pos_embed, list(grid), num_prefix_tokens=prefix)
    assert_close(resized, expected, rtol=0, atol=1e-6)


def test_resizing_keeps_half_precision() -> None:
    pos_embed = torch.randn(1, 17, 6).half()
    resized = resize_position_embedding(pos_embed, grid=(6, 2), num_prefix_tokens=1)
    assert resized.dtype == torch.float16


@pytest.mark.parametrize(
    ("tokens", "prefix", "old_grid", "message"),
    [
        (18, 1, None, "17 patch positions do not fill a grid of 4 x 4"),
        (16, 1, (4, 4), "15 patch positions do not fill a grid of 4 x 4"),
        (13, 1, (3, 5), "12 patch positions do not fill a grid of 3 x 5"),
        (4, 5, None, "0 patch positions"),
    ],
)
def test_resizing_refuses_counts_that_do_not_fit(
    tokens: int, prefix: int, old_grid: tuple[int, int] | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resize_position_embedding(
            torch.zeros(1, tokens, 6), grid=(2, 2), num_prefix_tokens=prefix, old_grid=old_grid
        )
