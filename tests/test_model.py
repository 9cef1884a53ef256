"""A Model tells what its module is, preprocesses as configured, and watches without being felt."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    assert_one_sentence,
    hook_count,
    own_model,
    own_module,
    picture,
    plain_logits,
    timm_model,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import capture
from vitviz.families import ModelError
from vitviz.model import RECORDER, Model, Preprocessing
from vitviz.vit import VisionTransformer

# --- the module ---------------------------------------------------------------------------------


def test_a_model_tells_what_it_was_made_of() -> None:
    module = own_module()
    model = watched(module, (16, 24), name="mine", weights="by hand", labels=tuple("abcde"))
    assert model.module is module
    assert (model.name, model.family, model.weights) == ("mine", "ViT", "by hand")
    assert model.trained is False
    assert model.labels == tuple("abcde")
    assert model.parameter_count == sum(weight.numel() for weight in module.parameters())
    assert len(model.layers) == 3


def test_the_module_is_put_in_evaluation_mode_and_frozen() -> None:
    module = own_module().train().requires_grad_(True)
    model = watched(module, (16, 24))
    assert not any(part.training for part in model.module.modules())
    assert not any(weight.requires_grad for weight in model.module.parameters())


def test_a_module_of_no_family_is_refused_and_left_alone() -> None:
    module = nn.Sequential(nn.Linear(2, 2)).train()
    with pytest.raises(ModelError, match="Sequential") as caught:
        watched(module, (16, 24))
    assert_one_sentence(caught.value)
    assert module.training
    assert hook_count(module) == 0


@pytest.mark.parametrize("name", ["plain", "no positions"])
def test_state_dict_is_the_modules(name: str) -> None:
    assert list(own_model(**OWN[name]).module.state_dict()) == list(
        own_module(**OWN[name]).state_dict()
    )


# --- hooks --------------------------------------------------------------------------------------


def test_hooks_are_installed_once_a_block_and_once_at_the_embedding() -> None:
    module = own_module()
    assert hook_count(module) == 0
    watched(module, (16, 24))
    assert hook_count(module) == 1 + 3 * len(module.blocks)


def test_a_second_model_of_the_same_module_installs_no_second_hooks() -> None:
    module = own_module()
    first = watched(module, (16, 24))
    expected = capture(first, picture())
    hooks = hook_count(module)
    second = watched(module, (16, 24))
    assert hook_count(module) == hooks
    for model in (first, second):
        told: list[tuple[int, int]] = []
        acts = capture(model, picture(), progress=lambda *block: told.append(block))  # noqa: B023
        assert told == [(0, 3), (1, 3), (2, 3)]
        assert_array_equal(acts.tokens(1), expected.tokens(1))
        assert_array_equal(acts.attention(2), expected.attention(2))


def test_the_copy_of_a_watched_module_can_be_watched() -> None:
    original = own_model()
    module: Any = copy.deepcopy(original.module)
    with torch.no_grad():
        module.blocks[0].attn.qkv.weight.mul_(2)
    hooks = hook_count(module)
    model = watched(module, (16, 24))
    assert hook_count(module) == hooks
    acts = capture(model, picture())
    assert acts.logits is not None
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert [layer.refusal for layer in acts.layers] == [None] * 3
    assert np.abs(acts.attention(0) - capture(original, picture()).attention(0)).max() > 0.01


def test_hooks_are_silent_while_nobody_watches() -> None:
    module = own_module()
    x = torch.randn(2, 3, 16, 24, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before = module(x)
        after = watched(module, (16, 24)).module(x)
    assert RECORDER.get() is None
    assert torch.equal(before, after)


# --- what the module holds ----------------------------------------------------------------------


def test_patch_kernel_is_the_embeddings_weight() -> None:
    model = own_model()
    kernel = model.patch_kernel
    assert kernel is not None
    assert kernel.shape == (32, 3, 4, 4)
    assert kernel.dtype == np.float32
    assert_array_equal(kernel, model.module.state_dict()["patch_embed.proj.weight"])
    with pytest.raises(ValueError, match="read-only"):
        kernel[...] = 0


def test_a_hybrid_has_no_patch_kernel() -> None:
    assert own_model(**OWN["stem"]).patch_kernel is None


@pytest.mark.parametrize(
    ("name", "rows"),
    [("plain", 1 + 24), ("no class token", 24), ("registers", 5 + 24), ("sincos2d", 1 + 24)],
)
def test_position_embedding_is_the_modules_table(name: str, rows: int) -> None:
    model = own_model(**OWN[name])
    table = model.position_embedding
    assert table is not None
    assert table.shape == (rows, 32)
    assert_array_equal(table, model.module.state_dict()["pos_embed"][0])
    assert model.position_grid == (4, 6)
    with pytest.raises(ValueError, match="read-only"):
        table[...] = 0


def test_a_model_without_positions_has_no_table() -> None:
    model = own_model(positions="none")
    assert model.position_embedding is None
    assert model.position_grid == (4, 6)


def test_what_a_model_hands_out_does_not_follow_its_weights() -> None:
    model = own_model()
    kernel, table = model.patch_kernel, model.position_embedding
    assert kernel is not None
    assert table is not None
    kept = kernel.copy(), table.copy()
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.zero_()
    assert_array_equal(kernel, kept[0])
    assert_array_equal(table, kept[1])


def test_positions_of_another_grid_than_the_pictures_have_no_known_places() -> None:
    module = timm_module("test_vit", dynamic_img_size=True)  # 10 x 10 positions
    assert watched(module, (160, 160)).position_grid == (10, 10)
    model = watched(timm_module("test_vit", dynamic_img_size=True), (48, 80))
    assert capture(model, picture()).grid == (3, 5)
    with pytest.raises(ModelError, match="3 x 5") as caught:
        _ = model.position_grid
    assert_one_sentence(caught.value)


def test_positions_may_leave_the_prefix_out() -> None:
    model = watched(timm_module("test_vit2"), (160, 160))  # a register before the patches
    assert model.layers[0].prefix == ("reg1",)
    assert model.position_embedding is not None
    assert len(model.position_embedding) in (100, 101)
    assert model.position_grid == (10, 10)


@pytest.mark.parametrize(("name", "norm"), [("test_vit", "norm"), ("test_vit2", "fc_norm")])
def test_final_norm_is_the_one_that_is_not_idle(name: str, norm: str) -> None:
    model = timm_model(name)
    assert model.final_norm is model.module.get_submodule(norm)
    assert not isinstance(model.final_norm, nn.Identity)


# --- preprocessing ------------------------------------------------------------------------------


def preprocessing(**options: Any) -> Preprocessing:
    settings = dict(input_size=(16, 24), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.1))
    return Preprocessing(**{**settings, **options})


def test_a_picture_of_the_right_size_is_only_scaled() -> None:
    image = picture(24, 16)
    x = preprocessing()(image)
    assert x.dtype == torch.float32
    assert x.shape == (3, 16, 24)
    expected = (np.asarray(image) / 255 - [0.5, 0.4, 0.3]) / [0.25, 0.2, 0.1]
    assert_allclose(x.permute(1, 2, 0), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "CMYK"])
def test_every_colour_mode_gives_three_channels(mode: str) -> None:
    image = picture(50, 40).convert(mode)
    assert torch.equal(preprocessing()(image), preprocessing()(image.convert("RGB")))


@pytest.mark.parametrize("crop_mode", ["center", "squash", "border"])
@pytest.mark.parametrize("size", [(24, 16), (100, 30), (30, 100), (7, 5)])
def test_the_input_has_its_size_whatever_the_picture_has(
    size: tuple[int, int], crop_mode: str
) -> None:
    assert preprocessing(crop_mode=crop_mode)(picture(*size)).shape == (3, 16, 24)


def test_padding_has_the_mean_colour() -> None:
    wide = Image.new("RGB", (240, 40), "white")  # padded above and below
    x = preprocessing(crop_mode="border")(wide)
    assert_allclose(x[:, 0], 0, atol=0.5 / 255 / 0.1 + 1e-6)  # half a level of 8 bits
    assert (x[:, 8] > 1).all()


def test_a_picture_keeps_the_detail_that_is_asked_for() -> None:
    """Stripes of one pixel are lost at half the resolution, stripes of four are not."""
    fine, coarse = (
        Image.fromarray(np.tile((np.arange(24) // width % 2 * 255).astype(np.uint8), (16, 1)))
        for width in (1, 4)
    )
    whole = preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    half = replace(whole, detail=0.5)
    assert whole(fine).std() > 5 * half(fine).std()
    assert half(coarse).std() > 0.7 * whole(coarse).std()
    assert half(fine).shape == whole(fine).shape


@pytest.mark.parametrize("size", [(50, 33), (33, 50), (101, 40), (24, 16), (7, 5)])
@pytest.mark.parametrize("crop_mode", ["center", "squash"])
def test_a_picture_of_less_detail_lies_where_its_placement_says(
    size: tuple[int, int], crop_mode: str
) -> None:
    """A ramp across the picture is found again at the columns and rows of the crop."""
    rule = preprocessing(mean=(0, 0, 0), std=(1, 1, 1), detail=0.5, crop_mode=crop_mode)
    width, height = size
    ramps = np.zeros((height, width, 3), np.uint8)
    ramps[..., 0] = np.linspace(0, 255, width).round()
    ramps[..., 1] = np.linspace(0, 255, height).round()[:, None]
    image = Image.fromarray(ramps)
    x = rule(image).numpy()
    left, top, right, bottom = rule.place(image).crop
    col = left + (np.arange(24) + 0.5) / 24 * (right - left) - 0.5
    row = top + (np.arange(16) + 0.5) / 16 * (bottom - top) - 0.5
    inside = (slice(6, 10), slice(9, 15))  # away from the edges, whose colour is held
    assert_allclose(x[0][inside], np.tile(col / (width - 1), (16, 1))[inside], atol=0.02)
    assert_allclose(x[1][inside], np.tile(row / (height - 1), (24, 1)).T[inside], atol=0.03)


def test_a_picture_of_the_detail_is_enlarged_once() -> None:
    image = picture(12, 8)
    rule = preprocessing(mean=(0, 0, 0), std=(1, 1, 1), detail=0.5)
    x = torch.from_numpy(np.array(image)).permute(2, 0, 1).float() / 255
    enlarged = F.interpolate(x[None], size=(16, 24), mode="bicubic", antialias=True)[0].clamp(0, 1)
    assert_allclose(rule(image), enlarged, rtol=0, atol=1e-5)


def test_preprocessing_places_as_it_crops() -> None:
    image = Image.new("RGB", (120, 40))
    image.paste((255, 255, 255), (30, 0, 90, 40))  # what a centre crop to 3 : 2 keeps
    rule = preprocessing(mean=(0, 0, 0), std=(1, 1, 1))
    assert rule.place(image).crop == pytest.approx((30, 0, 90, 40))
    assert rule(image).min() > 0.9


def test_preprocessing_leaves_the_picture_alone() -> None:
    image = picture()
    before = image.tobytes()
    preprocessing()(image)
    assert image.tobytes() == before


def test_the_model_is_shown_what_preprocessing_gives() -> None:
    model: Model = own_model()
    seen: list[Tensor] = []
    handle = model.module.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    capture(model, picture())
    handle.remove()
    assert torch.equal(seen[0], model.preprocess(picture())[None])


def test_the_oracle_has_the_same_kind_of_module() -> None:
    """timm's plain ViT and the own one are read as one family."""
    assert isinstance(own_module(), VisionTransformer)
    assert timm_model("test_vit").family == own_model().family
    assert timm.is_model("test_vit")
