"""A layer is shown only when it proves itself, and what is planted is found where it lies."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    narrow_stages,
    own_model,
    own_module,
    patch_box,
    picture,
    plain_logits,
    seeded,
    sharpened,
    timm_model,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from planting import assert_found, planted, spotlight
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz.activations import Activations, DropPatches, calls, capture, captures
from vitviz.inspection import attention_entropy, attention_rollout
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.vit import Attention

# --- a layer is shown only when it proves itself ------------------------------------------------


class Mutated(Attention):
    """Attention in which something goes on that a naive reader would not see."""

    def forward(self, z: Tensor) -> Tensor:
        B, T, D = z.shape
        qkv = self.qkv(z).reshape(B, T, 3, self.num_heads, D // self.num_heads)
        heads = self.attend(*qkv.permute(2, 0, 3, 1, 4))
        return self.proj(heads.transpose(1, 2).reshape(B, T, D))

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        raise NotImplementedError


class ChangesValuesAfterwards(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v)
        v.mul_(2)
        return heads


class ChangesQueriesAfterwards(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v)
        q.neg_()
        return heads


class AttendsTwice(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        first = F.scaled_dot_product_attention(q, k, v)
        return first - 0.5 * F.scaled_dot_product_attention(k, q, v)


class NeverAttends(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return v.mean(dim=2, keepdim=True).expand_as(v)


class WrittenOut(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return self.changed((q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5).softmax(dim=-1)) @ v

    def changed(self, attention: Tensor) -> Tensor:
        return attention


class SharpensAfterwards(WrittenOut):
    def changed(self, attention: Tensor) -> Tensor:
        return attention**2


class SoftensInPlaceAfterwards(WrittenOut):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        attention = (q @ k.transpose(-2, -1)).softmax(dim=-1)
        heads = attention @ v
        attention.sqrt_()
        return heads


class LosesAToken(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(q[:, :, 1:], k, v)
        return torch.cat([v[:, :, :1], heads], dim=2)


def mutated(kind: type[Mutated], layer: int = 1) -> Model:
    model = own_model()
    module: Any = model.module
    block = module.blocks[layer]
    changed = kind(32, 4)
    changed.load_state_dict(block.attn.state_dict())
    block.attn = changed.eval()
    return model


def assert_only_refused(acts: Activations, layer: int, words: str) -> None:
    """That layer alone is refused, by the same sentence wherever it is asked for."""
    for number, described in enumerate(acts.layers):
        if number != layer:
            assert described.refusal is None
            acts.attention(number)
            continue
        assert described.refusal is not None
        assert words in described.refusal
        assert described.name in described.refusal
        assert_clear_error(described.refusal)
        assert acts.refusal == described.refusal
        asked: list[Callable[[], object]] = [
            lambda: acts.attention(layer),
            lambda: acts.attention_map(layer, 0),
            lambda: acts.queries(layer),
            lambda: acts.keys(layer),
            lambda: acts.values(layer),
            lambda: list(acts.attention_layers()),
        ]
        for question in asked:
            with pytest.raises(ModelError) as caught:
                question()
            assert str(caught.value) == described.refusal


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (ChangesValuesAfterwards, "does not reproduce"),
        (ChangesQueriesAfterwards, "does not reproduce"),
        (AttendsTwice, "2 times"),
        (NeverAttends, "cannot be read"),
        (SharpensAfterwards, "does not reproduce"),
        (SoftensInPlaceAfterwards, "does not reproduce"),
        (LosesAToken, "24 tokens, expected 4 and 25"),
    ],
)
def test_a_layer_that_does_not_prove_itself_is_refused(kind: type[Mutated], words: str) -> None:
    model = mutated(kind)
    acts = capture(model, picture())
    assert_only_refused(acts, 1, words)
    assert acts.logits is not None
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert acts.tokens(2).shape == (25, 32)  # the residual stream is there all the same
    with pytest.raises(ModelError, match=words):
        capture(model, picture()).measure()  # before anything else was asked of it
    if kind in (AttendsTwice, ChangesQueriesAfterwards):
        _, second = captures(model, [picture(), picture()])
        with pytest.raises(ModelError, match=words):
            second.measure()


_PLACE = torch.arange(25)


@pytest.mark.parametrize(
    ("heads", "options"),
    [
        (4, dict(attn_mask=-(_PLACE[:, None] - 2 * _PLACE).abs().float())),
        (4, dict(attn_mask=_PLACE[:, None] >= _PLACE)),
        (4, dict(is_causal=True)),
        (4, dict(scale=0.9)),
        (2, dict(enable_gqa=True)),
        (1, dict(enable_gqa=True)),
    ],
)
def test_each_option_of_the_fused_call_is_part_of_attention(
    heads: int, options: dict[str, Any]
) -> None:
    """Also where several heads share their keys and values."""
    given: list[tuple[Tensor, Tensor]] = []

    class Optional(Mutated):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            given.append((q, k[:, :heads]))
            return F.scaled_dot_product_attention(*given[-1], v[:, :heads], **options)

    model = mutated(Optional)
    acts = capture(model, picture())
    assert acts.refusal is None
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    one_hot = torch.eye(25).expand(1, heads, 25, 25)
    expected = F.scaled_dot_product_attention(*given[0], one_hot, **options)
    assert_allclose(acts.attention(1), expected[0].numpy(), atol=1e-6)
    assert acts.keys(1).shape == acts.values(1).shape == (4, 25, 8)
    measured = acts.measure()
    assert_allclose(measured.entropy[1], attention_entropy([acts.attention(1)])[0], atol=1e-4)


def test_heads_may_share_values_where_attention_is_written_out() -> None:
    class Shares(WrittenOut):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return super().attend(q, k[:, :1], v[:, :1])

    acts = capture(mutated(Shares), picture())
    assert acts.refusal is None
    assert np.isfinite(acts.measure().distance).all()


#: An architecture of each family that timm lets attend by one call, or step by step.
SWITCHED: dict[str, dict[str, Any]] = {
    "test_vit": {},
    "vit_tiny_patch16_224": dict(img_size=(48, 80), depth=2, reg_tokens=4, qk_norm=True),
    "vit_huge_patch14_gap_224": dict(img_size=56, embed_dim=32, num_heads=2, depth=2),
    "deit_tiny_distilled_patch16_224": dict(img_size=(48, 80), depth=2),
    "eva02_tiny_patch14_224": dict(img_size=56, embed_dim=32, num_heads=2, depth=2),
    "vit_small_patch16_dinov3": dict(img_size=64, depth=2),
    "beit_base_patch16_224": dict(img_size=64, embed_dim=32, num_heads=2, depth=2),
    "test_vit_relpos": dict(img_size=64),
    "cait_xxs24_224": dict(img_size=64, depth=2),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "coatnet_nano_rw_224": dict(img_size=64, **{**narrow_stages(), "depths": (1, 1, 6, 3)}),
    "maxvit_tiny_tf_224": dict(img_size=64, **narrow_stages()),
}


@pytest.mark.parametrize("name", SWITCHED)
def test_attention_reads_the_same_with_timms_fused_call_switched_off(name: str) -> None:
    def made(fused: bool) -> Model:
        timm.layers.set_fused_attn(fused)
        try:
            with seeded():
                module: Any = timm.create_model(name, num_classes=5, **SWITCHED[name]).eval()
        finally:
            timm.layers.set_fused_attn(True)
        size = SWITCHED[name].get("img_size", 64)  # PVT is not told it
        return sharpened(watched(module, size if isinstance(size, tuple) else (size, size)))

    fused, written = made(True), made(False)
    assert sum(site.is_fused for site in fused.sites) > 0
    assert not any(site.is_fused for site in written.sites)
    expected, acts = capture(fused, picture()), capture(written, picture())
    assert_array_equal(acts.logits, plain_logits(written, picture()).numpy())
    for layer in range(acts.depth):
        assert acts.layers[layer].refusal is None
        assert_allclose(acts.attention(layer), expected.attention(layer), atol=1e-4)
        assert_allclose(acts.attention_map(layer), expected.attention_map(layer), atol=1e-4)
    tensors = acts.nbytes - 4 * acts.photo.width * acts.photo.height  # which holds the picture too
    assert written.capture_bytes >= tensors


def test_attention_switched_off_later_is_read_at_its_softmax() -> None:
    model = timm_model("test_vit")
    expected = capture(model, picture())
    module: Any = model.module
    module.blocks[2].attn.fused_attn = False
    acts = capture(model, picture())
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    assert_allclose(acts.attention(2), expected.attention(2), atol=1e-5)


@pytest.mark.parametrize(
    "stale",
    [
        dict(prefix=()),
        dict(prefix=("cls", "dist")),
        dict(query_grid=(3, 6), key_grid=(3, 6)),
        dict(query_grid=(14, 14), key_grid=(14, 14)),
        dict(num_heads=2),
    ],
    ids=["prefix too short", "prefix too long", "grid too small", "grid too large", "heads"],
)
def test_a_stale_description_is_refused_and_changes_nothing(stale: dict[str, Any]) -> None:
    model = own_model()
    expected, right = capture(model, picture()), model.layers
    model.reading.layers = (*right[:2], replace(right[2], **stale))
    acts = capture(model, picture())
    assert_array_equal(acts.logits, expected.logits)
    assert_array_equal(acts.tokens(3), expected.tokens(3))
    refusal = acts.layers[2].refusal
    assert refusal is not None
    assert "expected" in refusal
    with pytest.raises(ModelError) as caught:
        acts.attention(2)
    assert str(caught.value) == refusal
    assert_clear_error(refusal)


def test_a_stale_grid_of_all_layers_is_refused() -> None:
    model = own_model()
    model.reading.layers = tuple(
        replace(layer, query_grid=(3, 6), key_grid=(3, 6)) for layer in model.layers
    )
    mask = np.zeros((3, 6), bool)
    mask[0, 0] = True
    assert all("expected" in str(layer.refusal) for layer in capture(model, picture()).layers)
    with pytest.raises(ModelError) as caught:
        capture(model, picture(), edits=[DropPatches(mask)])
    assert_clear_error(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_weights_that_are_no_numbers_are_refused_where_they_matter(value: float) -> None:
    model = own_model()
    module: Any = model.module
    with torch.no_grad():
        module.blocks[1].attn.qkv.weight[70] = value
    acts = capture(model, picture())
    assert acts.layers[0].refusal is None
    acts.attention(0)
    for layer in (1, 2):  # what follows inherits them
        refusal = acts.layers[layer].refusal
        assert refusal is not None
        assert "NaN or infinite" in refusal
        assert_clear_error(refusal)
        with pytest.raises(ModelError, match="NaN or infinite"):
            acts.attention_map(layer, 0)


def test_one_wrong_number_is_enough_to_be_refused() -> None:
    class SpoilsOneNumber(Mutated):
        def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            heads = F.scaled_dot_product_attention(q, k, v)
            heads[0, 2, 1, 3] += 0.05 * heads.abs().max()
            return heads

    acts = capture(mutated(SpoilsOneNumber), picture())
    assert acts.layers[1].refusal is None  # row 1 is not among those checked of every layer
    with pytest.raises(ModelError, match="does not reproduce"):
        acts.attention(1)


@pytest.mark.parametrize("name", ["test_vit", "test_vit_relpos", "maxvit_tiny_tf_224"])
def test_attention_is_the_same_in_blocks_of_any_size(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: Any = dict(img_size=64, **(narrow_stages() if name.startswith("maxvit") else {}))
    model = watched(timm.create_model(name, **options).eval(), (64, 64))
    acts = capture(model, picture())
    expected = [acts.attention(layer) for layer in range(acts.depth)]
    for block in (1, 60, 10**9):
        monkeypatch.setattr(calls, "BLOCK_NUMBERS", block)
        for layer, attention in enumerate(expected):
            assert_allclose(acts.attention(layer), attention, atol=1e-6)


class IsOffALittle(Mutated):
    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        heads = F.scaled_dot_product_attention(q, k, v)
        heads += 5e-3 * heads.abs().max()
        return heads


@pytest.mark.parametrize(
    ("kind", "dtype", "percent"),
    [
        (ChangesValuesAfterwards, torch.bfloat16, "2.0"),
        (ChangesValuesAfterwards, torch.double, "0.1"),
        (IsOffALittle, torch.double, "0.1"),
    ],
)
def test_a_model_proves_itself_as_well_as_it_computes(
    kind: type[Mutated], dtype: torch.dtype, percent: str
) -> None:
    model = mutated(kind)
    model.module.to(dtype)
    assert_only_refused(capture(model, picture()), 1, f"at most {percent} %")


@pytest.mark.parametrize(
    "name", ["beit_base_patch16_224", "test_vit_relpos", "coatnet_nano_rw_224", "pvt_v2_b0"]
)
def test_a_model_in_double_precision_is_read_with_its_bias(name: str) -> None:
    def made() -> Any:
        with seeded():
            return timm.create_model(name, **{"num_classes": 5, **SWITCHED[name]}).eval()

    side = SWITCHED[name].get("img_size", 64)
    model, double = (watched(one, (side, side)) for one in (made(), made().double()))
    for one in (model, double):
        sharpened(one)
    expected, acts = capture(model, picture()), capture(double, picture())
    with torch.inference_mode():
        logits = double.module(double.preprocess(picture())[None].double())[0]
    assert_array_equal(acts.logits, logits.float().numpy())
    for layer in range(acts.depth):
        assert acts.layers[layer].refusal is None
        assert_allclose(acts.attention(layer), expected.attention(layer), atol=1e-4)


# --- planted attention --------------------------------------------------------------------------


def tiny_module(**options: Any) -> Any:
    return timm_module("vit_tiny_patch16_224", depth=3, embed_dim=48, num_heads=3, **options)


PLANTED: dict[str, tuple[Callable[..., nn.Module], dict[str, Any], int]] = {
    "own": (own_module, dict(image_size=(40, 56)), 4),
    "own, square": (own_module, dict(image_size=40), 4),
    "own, no prefix": (own_module, dict(image_size=(40, 56), class_token=False), 4),
    "own, two prefix tokens": (own_module, dict(image_size=(40, 56), distillation_token=True), 4),
    "own, five prefix tokens": (own_module, dict(image_size=(40, 56), registers=4), 4),
    "timm, pixels left over": (tiny_module, dict(img_size=(155, 239)), 16),
    "timm, padded": (
        tiny_module,
        dict(img_size=(155, 213), dynamic_img_pad=True, dynamic_img_size=True),
        16,
    ),
    "timm, no prefix": (
        tiny_module,
        dict(img_size=(160, 224), class_token=False, global_pool="avg"),
        16,
    ),
}


@pytest.mark.parametrize("target", [(8, 3), (2, 9), (0, 0)])
@pytest.mark.parametrize("name", PLANTED)
def test_planted_attention_is_found_where_it_was_planted(
    name: str, target: tuple[int, int]
) -> None:
    make, options, side = PLANTED[name]
    module = make(**options)
    size = options.get("image_size", options.get("img_size"))
    height, width = size if isinstance(size, tuple) else (size, size)
    top, left = target[0] * side, target[1] * side
    # The picture is twice as large as the input and wider, so that its sides are cropped.
    margin = 30
    box = (margin + 2 * left, 2 * top, margin + 2 * (left + side), 2 * (top + side))
    image = spotlight(2 * height, 2 * width + 2 * margin, box)
    acts = capture(planted(module, (height, width)), image)
    assert [layer.refusal for layer in acts.layers] == [None] * 3

    (rows, cols), prefix = acts.grid, acts.num_prefix_tokens
    up = math.ceil if options.get("dynamic_img_pad") else math.floor
    assert (rows, cols) == (up(height / side), up(width / side))
    assert_found(acts, target, side, rtol=1e-3)

    # In the coordinates of the picture itself, the patch is the bright box.
    assert patch_box(acts.crop, acts.grid, *target) == pytest.approx(box, abs=1)

    # Every head adds half of its look to half of the identity: CLS keeps 1/2 ** layers of itself.
    count, kept = rows * cols, 0.5**acts.depth
    rollout = attention_rollout(acts.attention_layers(), num_prefix_tokens=prefix)
    expected = 1 - kept if prefix else 1 / count + (1 - 1 / count) * (1 - kept)
    assert rollout[prefix:].max() == pytest.approx(expected, abs=1e-3)
