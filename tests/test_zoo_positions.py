"""The input size of a checkpoint, from its positions; and the provenance of resampled ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import LITTLE, assert_clear_error, own_module, picture, timm_module, write_shipped
from hub_server import put_in_cache
from safetensors.torch import save, save_file
from test_checkpoints_foreign import _VIT_BLOCK, as_hugging_face, as_jax
from timm.layers import resample_abs_pos_embed

from vitviz import ModelError, capture, load_model
from vitviz.zoo import checkpoints, weights_of
from vitviz.zoo.architectures import build_outline, preprocessing_of
from vitviz.zoo.checkpoints import CheckpointError
from vitviz.zoo.resampling import trained_size

SALIENCY = Path(__file__).parents[2] / "shared" / "models" / "vit_s14_saliency_224.safetensors"


def file_of(module: torch.nn.Module, folder: Path) -> Path:
    path = folder / "mine.safetensors"
    save_file(module.state_dict(), path)
    return path


def answers(module: Any, model: Any) -> tuple[np.ndarray, np.ndarray]:
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None])[0].numpy()
    logits = capture(model, picture()).logits
    assert logits is not None
    return logits, expected


def test_a_file_is_run_at_the_size_that_it_was_trained_at(tmp_path: Path) -> None:
    module = timm_module("test_vit", img_size=96)
    model = load_model("test_vit", checkpoint=file_of(module, tmp_path))
    assert model.preprocess.input_size == (96, 96)
    assert model.layers[0].query_grid == (6, 6)
    assert "resampled" not in model.weights
    np.testing.assert_allclose(*answers(module, model), atol=1e-5)
    assert torch.equal(model.module.state_dict()["pos_embed"], module.state_dict()["pos_embed"])


def test_positions_that_are_resampled_are_told(tmp_path: Path) -> None:
    path = file_of(timm_module("test_vit", img_size=96), tmp_path)
    model = load_model("test_vit", checkpoint=path, image_size=160)
    assert model.weights.endswith(", positions resampled from 6x6 to 10x10")
    model = load_model("test_vit", checkpoint=path, image_size=(64, 112))
    assert model.weights.endswith(", positions resampled from 6x6 to 4x7")
    assert "resampled" not in load_model("test_vit", checkpoint=path, image_size=96).weights


def test_a_square_of_positions_is_one_in_a_grid_of_as_many_patches_too(tmp_path: Path) -> None:
    module = timm_module("test_vit", img_size=96)
    model = load_model("test_vit", checkpoint=file_of(module, tmp_path), image_size=(64, 144))
    assert model.weights.endswith(", positions resampled from 6x6 to 4x9")
    table = module.state_dict()["pos_embed"]
    expected = resample_abs_pos_embed(table, [4, 9], num_prefix_tokens=1)
    torch.testing.assert_close(model.module.state_dict()["pos_embed"], expected, rtol=0, atol=1e-6)


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
    np.testing.assert_allclose(*answers(module, model), atol=1e-5)
    with pytest.raises(ModelError, match="28 patch positions fill neither a square nor the grid"):
        load_model("test_vit", checkpoint=path, image_size=96)


def test_other_libraries_files_tell_their_size_too(tmp_path: Path) -> None:
    name = "vit_tiny_patch16_224"
    np.savez(tmp_path / "jax.npz", **as_jax(192, 2, 3, 5, 100))
    model = load_model(name, checkpoint=tmp_path / "jax.npz")
    assert model.preprocess.input_size == (160, 160)
    module = timm_module(name, img_size=96, num_classes=3, depth=2)
    save_file(as_hugging_face(module.state_dict(), _VIT_BLOCK, "vit."), tmp_path / "hf.safetensors")
    model = load_model(name, checkpoint=tmp_path / "hf.safetensors")
    assert model.preprocess.input_size == (96, 96)
    np.testing.assert_allclose(*answers(module, model), atol=1e-5)


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


def test_timms_weights_are_told_to_be_resampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_in_cache(tmp_path, weights_of("test_vit"), save(timm_module("test_vit").state_dict()))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert "resampled" not in load_model("test_vit").weights
    model = load_model("test_vit", image_size=96)
    assert model.weights.endswith(", positions resampled from 10x10 to 6x6")


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
    with pytest.raises(
        ModelError, match=f"does not take pictures of {size[0]} x {size[1]}"
    ) as caught:
        load_model(name, pretrained=False, image_size=size)
    assert_clear_error(caught.value)


def test_a_real_file_of_224_pixels_is_not_run_at_518() -> None:
    if not SALIENCY.exists():
        pytest.skip("The trained ViT-S/14 is not here: it does not come with vitviz.")
    model = load_model("vit_small_patch14_dinov2", checkpoint=SALIENCY)
    assert model.preprocess.input_size == (224, 224)
    assert "resampled" not in model.weights
    model = load_model("vit_small_patch14_dinov2", checkpoint=SALIENCY, image_size=518)
    assert model.weights.endswith(", positions resampled from 16x16 to 37x37")
