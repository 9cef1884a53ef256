"""The size and shape of the input: what it costs, whole pictures, positions at another size."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import (
    LITTLE,
    assert_clear_error,
    assert_same_answer,
    example,
    own_module,
    patch_box,
    timm_module,
    write_shipped,
)
from hub_server import put_in_cache
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from planting import planted, spotlight
from safetensors.torch import save, save_file
from test_checkpoints_foreign import as_jax, of_transformers
from timm.layers import resample_abs_pos_embed

from vitviz import ModelError, capture, load_model
from vitviz.model import Model
from vitviz.zoo import checkpoints, input_cost, step_of, weights_of, whole_picture
from vitviz.zoo.architectures import build_outline, on_meta_device, preprocessing_of
from vitviz.zoo.checkpoints import CheckpointError
from vitviz.zoo.resampling import timm_resampling_note, trained_size

TABLE = "blocks.0.attn.relative_position_bias_table"
LIST = ("vit_tiny_patch16_224", "vit_small_patch14_dinov2", "swin_tiny_patch4_window7_224")


@cache
def outline(name: str, **options: Any) -> Model:
    """A model without weights, which no test changes."""
    with on_meta_device():
        return load_model(name, pretrained=False, **options)


# --- what it costs ------------------------------------------------------------------------------


def test_where_all_attend_to_all_the_cost_is_the_square_of_the_tokens() -> None:
    cost = input_cost(outline("vit_tiny_patch16_224", image_size=(160, 256)))
    assert (cost.size, cost.grid, cost.tokens) == ((160, 256), (10, 16), 161)
    assert cost.attention == 12 * 3 * 161**2  # layers, heads


def test_windows_cost_as_much_as_their_tokens() -> None:
    usual, twice = (
        input_cost(outline("swin_tiny_patch4_window7_224", image_size=(height, 224)))
        for height in (224, 448)
    )
    assert twice.tokens == 2 * usual.tokens == 2 * 56**2
    assert twice.attention == 2 * usual.attention


# --- the whole picture --------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIST)
@pytest.mark.parametrize("size", [(300, 200), (200, 300), (1920, 1080), (500, 500), (999, 1000)])
def test_the_input_has_the_shape_of_the_picture_at_about_the_same_cost(
    name: str, size: tuple[int, int]
) -> None:
    model = outline(name)
    height, width = found = whole_picture(model, size)
    step, own = step_of(model), model.preprocess.input_size
    assert (height % step[0], width % step[1]) == (0, 0)
    assert height * width == pytest.approx(own[0] * own[1], rel=0.25)
    assert width / height == pytest.approx(size[0] / size[1], rel=0.12)
    if size[0] == size[1]:
        assert found == own


@given(st.integers(1, 5000), st.integers(1, 5000))
def test_no_picture_is_without_an_input(width: int, height: int) -> None:
    model = example("plain")  # 4 x 6 patches of 4 pixels
    size = whole_picture(model, (width, height))
    assert size[0] % 4 == size[1] % 4 == 0
    assert 12 <= size[0] * size[1] / 16 <= 48


@pytest.mark.parametrize("size", [(300, 200), (160, 250)])
def test_what_is_planted_at_the_edge_of_a_whole_picture_is_found(size: tuple[int, int]) -> None:
    """The last patch lies in a corner that a centre crop would have cut off."""
    model = outline("vit_tiny_patch16_224")
    shape = whole_picture(model, size)
    module = timm_module("vit_tiny_patch16_224", img_size=shape, embed_dim=64, num_heads=2, depth=2)
    seen = planted(module, shape)
    rows, cols = seen.layers[0].query_grid
    whole = outline("vit_tiny_patch16_224", image_size=shape, crop=False).preprocess
    brightness: Any = dict(mean=(0.0,) * 3, std=(1.0,) * 3, interpolation="nearest")
    seen.preprocess = replace(whole, **brightness)
    box = patch_box((0, 0, *size), (rows, cols), rows - 1, cols - 1)
    left, top, right, bottom = (round(edge) for edge in box)
    acts = capture(seen, spotlight(size[1], size[0], (left, top, right, bottom)))
    assert acts.crop == (0, 0, *size)
    for layer in range(acts.depth):
        for head in acts.attention_map(layer, 0):
            assert np.unravel_index(head.argmax(), head.shape) == (rows - 1, cols - 1)
            assert head[-1, -1] > 0.999
    assert_allclose(patch_box(acts.crop, acts.grid, rows - 1, cols - 1), box)


# --- resampled, or refused ----------------------------------------------------------------------


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("test_vit", (96, 160)),
        ("test_vit", (80, 320)),  # as many patches as before
        ("cait_xxs24_224", (96, 160)),
    ],
)
def test_trained_positions_are_resampled_to_the_grid_and_that_is_said(
    name: str, size: tuple[int, int], hub: Path
) -> None:
    module = timm_module(name)
    put_in_cache(hub, weights_of(name), save(module.state_dict()))
    model = load_model(name, image_size=size)
    grid = (size[0] // 16, size[1] // 16)
    before = "x".join(map(str, module.patch_embed.grid_size))
    assert model.weights.endswith(f", positions resampled from {before} to {grid[0]}x{grid[1]}")
    assert model.layers[0].query_grid == grid
    table = module.state_dict()["pos_embed"]
    patches = module.patch_embed.num_patches
    expected = resample_abs_pos_embed(table, list(grid), num_prefix_tokens=table.shape[1] - patches)
    found = model.module.state_dict()["pos_embed"]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert torch.equal(model.module.state_dict()["head.weight"], module.state_dict()["head.weight"])


def test_relative_positions_of_timms_weights_are_resampled_and_that_is_said() -> None:
    def made(size: tuple[int, int]) -> torch.nn.Module:
        return build_outline("beit_base_patch16_224", {"img_size": size, "depth": 2})

    before, after = made((224, 224)), made((160, 256))
    assert timm_resampling_note(before, after) == ", relative positions resampled"
    assert timm_resampling_note(before, before) == ""
    # Windows of 5 x 13 and of 8 x 8 have tables of one length.
    before, after = made((128, 128)), made((80, 208))
    tables = [module.state_dict()[TABLE].shape for module in (before, after)]
    assert tables[0] == tables[1]
    assert timm_resampling_note(before, after) == ", relative positions resampled"


def test_relative_positions_of_a_file_are_not_taken_for_those_of_another_grid(
    tmp_path: Path,
) -> None:
    name = "beit_base_patch16_224"
    path = tmp_path / "mine.safetensors"
    save_file(timm_module(name, img_size=128, depth=2).state_dict(), path)
    assert load_model(name, checkpoint=path).layers[0].query_grid == (8, 8)
    with pytest.raises(ModelError, match="are for an input of 128 x 128 pixels") as caught:
        load_model(name, checkpoint=path, image_size=(80, 208))  # whose table is as long
    assert_clear_error(caught.value)


def test_weights_that_mix_one_grid_are_for_no_other(hub: Path) -> None:
    name = "mixer_s32_224"
    path = hub.parent / "mine.safetensors"
    save_file(timm_module(name).state_dict(), path)
    for size in ((96, 160), (32, 1568)):  # the second has as many patches: 1 x 49
        with pytest.raises(ModelError, match="trained for an input of 224 x 224") as caught:
            load_model(name, image_size=size)
        assert_clear_error(caught.value)
        assert outline(name, image_size=size).layers[0].query_grid == (size[0] // 32, size[1] // 32)
        with pytest.raises(ModelError, match="trained for an input of 224 x 224"):
            load_model(name, checkpoint=path, image_size=size)


def test_a_shipped_model_too_is_refused_before_memory_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("vitviz.model.memory.free_bytes", lambda: 10**9)
    with pytest.raises(ModelError, match=r"at 2048 x 2048 pixels needs about .* GB") as caught:
        load_model("vitviz_tiny_cifar10", image_size=2048)
    assert_clear_error(caught.value)


# --- the input size of a checkpoint, from its positions ------------------------------------------


def file_of(module: torch.nn.Module, folder: Path) -> Path:
    path = folder / "mine.safetensors"
    save_file(module.state_dict(), path)
    return path


def test_a_file_is_run_at_the_size_that_it_was_trained_at(tmp_path: Path) -> None:
    module = timm_module("test_vit", img_size=96)
    model = load_model("test_vit", checkpoint=file_of(module, tmp_path))
    assert model.preprocess.input_size == (96, 96)
    assert model.layers[0].query_grid == (6, 6)
    assert "resampled" not in model.weights
    assert_same_answer(model, module)
    assert torch.equal(model.module.state_dict()["pos_embed"], module.state_dict()["pos_embed"])


def test_positions_that_fill_no_square_need_a_size(tmp_path: Path) -> None:
    module = timm_module("test_vit", img_size=(64, 112))
    path = file_of(module, tmp_path)
    with pytest.raises(
        ModelError, match=r"28 patch positions do not .*\. Give image_size="
    ) as caught:
        load_model("test_vit", checkpoint=path)
    assert_clear_error(caught.value)
    model = load_model("test_vit", checkpoint=path, image_size=(64, 112))
    assert "resampled" not in model.weights
    assert_same_answer(model, module)
    with pytest.raises(ModelError, match="28 patch positions fill neither a square nor the grid"):
        load_model("test_vit", checkpoint=path, image_size=96)


def test_other_libraries_files_tell_their_size_too(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    np.savez(tmp_path / "jax.npz", **as_jax(192, 2, 3, 5, 100))
    model = load_model(name, checkpoint=tmp_path / "jax.npz")
    assert model.preprocess.input_size == (160, 160)
    sizes: dict[str, Any] = dict(
        hidden_size=192, intermediate_size=768, image_size=96, patch_size=16
    )
    save_file(of_transformers(**sizes), tmp_path / "hf.safetensors")
    model = load_model(name, checkpoint=tmp_path / "hf.safetensors")
    assert model.preprocess.input_size == (96, 96)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("vit_small_patch14_dinov2", 224),
        ("vit_small_patch14_reg4_dinov2", 224),
        ("deit_tiny_distilled_patch16_224", 384),
        ("vit_base_patch16_siglip_224", 384),
        ("vit_small_r26_s32_224", 320),
        ("eva02_tiny_patch14_336", 224),
        ("cait_xxs24_224", 384),
        ("beit_base_patch16_224", 384),
        ("mixer_s32_224", 256),
        ("coatnet_0_rw_224", 256),
        ("maxvit_tiny_tf_224", 384),
        ("maxvit_nano_rw_256", 320),
        # these tell nothing
        ("vit_small_patch16_dinov3", 320),
        ("vit_relpos_small_patch16_224", 320),
        ("swinv2_tiny_window8_256", 320),
        ("swin_tiny_patch4_window7_224", 448),
    ],
)
def test_what_can_be_known_of_each_family(name: str, size: int) -> None:
    staged = name.startswith(("coatnet", "maxvit", "swin"))
    options: dict[str, Any] = {"depths": (1, 1, 1, 1)} if staged else {"depth": 2}
    options = {} if name.startswith("mixer") else options
    usual = build_outline(name, options)
    other = build_outline(name, {**options, "img_size": size}).state_dict()
    default = preprocessing_of(usual, None).input_size
    tells = not name.startswith(("swin", "vit_small_patch16_dinov3", "vit_relpos"))
    found = [
        trained_size({key: tuple(tensor.shape) for key, tensor in state.items()}, usual, default)
        for state in (usual.state_dict(), other)
    ]
    assert found == ([default, (size, size)] if tells else [None, None])


def test_a_size_out_of_reach_is_refused() -> None:
    usual = build_outline("test_vit", {})
    with pytest.raises(CheckpointError, match="for an input of 16,000 pixels a side"):
        trained_size({"pos_embed": (1, 1 + 1000**2, 64)}, usual, (160, 160))


def test_a_size_that_a_file_does_not_tell_is_said_to_be_the_architectures(tmp_path: Path) -> None:
    path = file_of(timm_module("pvt_v2_b0"), tmp_path)
    untold = ", input size of the architecture, as the file does not tell it"
    assert load_model("pvt_v2_b0", checkpoint=path).weights.endswith(untold)
    assert untold not in load_model("pvt_v2_b0", checkpoint=path, image_size=96).weights


def test_a_shipped_architecture_is_told_its_size_by_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    write_shipped(tmp_path)
    path = file_of(own_module(**{**LITTLE, "image_size": 16}), tmp_path)
    model = load_model("little", checkpoint=path)
    assert (model.preprocess.input_size, model.layers[0].query_grid) == ((16, 16), (4, 4))
    assert "resampled" not in model.weights
    model = load_model("little", image_size=(16, 24))
    assert model.weights.endswith(", positions resampled from 8x8 to 4x6")
    assert "resampled" not in load_model("little").weights


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("coatnet_nano_rw_224", (208, 240)),  # odd grids, which its shortcuts do not halve alike
        ("maxvit_tiny_tf_224", (100, 100)),  # no whole windows
        ("vit_small_patch16_dinov3", (208, 250)),  # no whole patches
    ],
)
def test_a_size_that_timm_fails_at_is_refused_in_a_sentence(
    name: str, size: tuple[int, int]
) -> None:
    with pytest.raises(ModelError, match=rf"pictures? of {size[0]} x {size[1]}") as caught:
        load_model(name, pretrained=False, image_size=size)
    assert_clear_error(caught.value)
