"""A batch in one forward pass gives, picture by picture, what a capture of each gives."""

import copy
import gc
import weakref
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    assert_clear_error,
    assert_same_in_a_batch,
    example,
    narrow_mixer,
    narrow_stems,
    own_model,
    picture,
    plain_logits,
    seeded,
    timm_module,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from test_families_staged import STAGED, staged_model
from torch import Tensor
from torch.nn import functional as F

import vitviz
from vitviz.activations import (
    Activations,
    DropPatches,
    Edit,
    FillPatches,
    MuteHeads,
    Picture,
    SwapTokens,
    calls,
    capture,
    captures,
    forward,
)
from vitviz.activations.forward import muted_answers
from vitviz.common.images import ImageError
from vitviz.inspection import measurements
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.model.model import RECORDER
from vitviz.vit import Attention

#: Families whose tokens all meet, and what keeps them small.
GLOBAL: dict[str, dict[str, Any]] = {
    "test_vit3": dict(img_size=64),
    "deit_tiny_distilled_patch16_224": dict(depth=2, img_size=64),
    "vit_small_patch16_dinov3": dict(depth=2, img_size=64),
    "eva02_tiny_patch14_224": dict(depth=2, img_size=56),
    "beit_base_patch16_224": dict(depth=2, img_size=64, embed_dim=96, num_heads=3),
    "test_vit_relpos": dict(img_size=64),
    "vit_tiny_r_s16_p8_224": dict(depth=2),
    "cait_xxs24_224": dict(depth=2, img_size=64),
    "Mixer": {},
}
FAMILIES = [*OWN, *GLOBAL, *STAGED]
PICTURES = [picture(seed=seed, width=60 + 10 * seed) for seed in range(5)]


@cache
def family(name: str) -> Model:
    if name in OWN:
        return example(name)
    if name in STAGED:
        side = 224 if name.startswith("pvt") else 128  # of few keys, rounding shows
        return staged_model(name, (side, side))
    if name == "Mixer":
        return watched(narrow_mixer(), (224, 224))
    if name == "test_vit3":
        module = timm_module(name, **GLOBAL[name])
    else:
        with seeded(), narrow_stems():
            module = timm.create_model(name, **GLOBAL[name]).eval()
    side = GLOBAL[name].get("img_size", module.pretrained_cfg["input_size"][-1])
    return watched(module, (side, side))


@pytest.mark.parametrize("name", FAMILIES)
def test_each_picture_of_a_batch_equals_its_own_capture(name: str) -> None:
    count = 4 if name in OWN else 3  # the fourth is in a batch of its own, as of every family
    assert_same_in_a_batch(family(name), PICTURES[:count])


@pytest.mark.parametrize("name", ["plain", "distilled", *sorted({*GLOBAL} - {"Mixer"}), *STAGED])
def test_a_pass_that_begins_at_the_muted_layer_gives_the_bits_of_a_whole_one(name: str) -> None:
    model, images = family(name), PICTURES[:2]
    depth = len(model.layers)
    heads = [
        (layer, model.layers[layer].num_heads - 1)
        for layer in sorted({1, depth - 1})
        if model.sites[layer].mixing is None
    ]
    assert heads
    plain = [acts.output for acts in captures(model, images)]
    for head, answers in zip(heads, muted_answers(model, images, heads, {}), strict=True):
        whole = [acts.output for acts in captures(model, images, edits=[MuteHeads([head])])]
        assert_array_equal(answers, whole)
        assert np.abs(answers - plain).max() > 0


@pytest.mark.parametrize("name", ["plain", "no class token", "registers", "test_vit_relpos"])
def test_measurements_made_together_are_those_of_each(name: str) -> None:
    model = family(name)
    for image, acts in zip(PICTURES, captures(model, PICTURES), strict=True):
        alone, found = measurements(capture(model, image)), acts.measure()
        for field in fields(found):
            values, expected = (getattr(each, field.name) for each in (found, alone))
            assert values.dtype == expected.dtype
            assert not values.flags.writeable
            assert_allclose(values, expected, rtol=2e-5, atol=1e-5, err_msg=field.name)


class Spoils(Attention):
    """Changes one row of one picture: one that is compared at capture, or one that is not."""

    row = 0

    def forward(self, z: Tensor) -> Tensor:
        B, T, D = z.shape
        qkv = self.qkv(z).reshape(B, T, 3, self.num_heads, D // self.num_heads)
        heads = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4))
        heads[1, :, self.row] += 1
        return self.proj(heads.transpose(1, 2).reshape(B, T, D))


def spoiled(row: int) -> list[Activations]:
    model = own_model()
    module: Any = model.module
    module.blocks[1].attn = Spoils(32, 4).eval()
    module.blocks[1].attn.row = row
    return list(captures(model, PICTURES[:3]))


def test_the_proof_is_of_each_picture() -> None:
    refusals = [[layer.refusal for layer in acts.layers] for acts in spoiled(0)]
    assert [[bool(refusal) for refusal in each] for each in refusals] == [
        [False] * 3,
        [False, True, False],
        [False] * 3,
    ]
    assert_clear_error(str(refusals[1][1]))


@pytest.mark.parametrize("row", [0, 1])  # row 1 is compared only when all is read
def test_a_picture_that_is_refused_keeps_no_other_from_being_measured(row: int) -> None:
    first, second, third = spoiled(row)
    for acts in (first, third):
        assert np.isfinite(acts.measure().distance).all()
    with pytest.raises(ModelError, match=r"blocks\.1 does not reproduce"):
        second.measure()


def test_edits_are_made_in_every_picture() -> None:
    model = example("plain")
    mask = np.zeros((4, 6), bool)
    mask[1:3, 2:] = True
    values = {(2, 0): np.random.default_rng(0).normal(size=(25, 8)).astype(np.float32)}
    muted, swapped = MuteHeads([(1, 2), (2, 0)], values), SwapTokens([(0, 9)])
    both: list[list[Edit]] = [[muted, FillPatches(mask), swapped], [DropPatches(mask)]]
    for edits in both:
        for image, acts in zip(PICTURES, captures(model, PICTURES, edits=edits), strict=True):
            alone = capture(model, image, edits=edits)
            assert acts.logits is not None
            assert alone.logits is not None
            assert_allclose(acts.logits, alone.logits, rtol=0, atol=1e-5)
            assert_array_equal(acts.patches, alone.patches)
            for layer in range(acts.depth):
                assert_allclose(acts.attention(layer), alone.attention(layer), rtol=0, atol=1e-6)


def test_logits_of_a_batch_are_those_of_the_plain_forward() -> None:
    model = example("plain")
    x = torch.stack([model.preprocess(image) for image in PICTURES])
    with torch.inference_mode():
        expected = model.module(x).numpy()
    found = [acts.logits for acts in captures(model, PICTURES)]
    assert_array_equal(np.stack(found), expected)  # type: ignore[arg-type]


def test_bytes_and_paths_are_opened(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    PICTURES[0].save(path)
    given: list[Picture] = [PICTURES[0], path, str(path), path.read_bytes()]
    found = [acts.logits for acts in vitviz.captures(example("plain"), given)]
    expected = plain_logits(example("plain"), PICTURES[0])
    for logits in found:
        assert logits is not None
        assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_pictures_are_read_a_batch_at_a_time() -> None:
    read = []

    def pictures() -> Any:
        for number, image in enumerate(PICTURES):
            read.append(number)
            yield image

    found = captures(example("plain"), pictures(), batch_size=2)
    assert read == []
    for number, _ in enumerate(found):
        assert len(read) == min(2 * (number // 2 + 1), 5)


def test_no_pictures_give_no_captures() -> None:
    assert list(captures(example("plain"), [])) == []


def test_empty_batches_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0") as caught:
        next(captures(example("plain"), PICTURES, batch_size=0))
    assert_clear_error(caught.value)


def test_a_bad_picture_is_an_error_and_leaves_nothing_behind() -> None:
    with pytest.raises(ImageError):
        list(captures(example("plain"), [PICTURES[0], b"no picture"]))
    assert RECORDER.get() is None


def test_a_batch_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = example("plain")
    monkeypatch.setattr("vitviz.model.memory.free_bytes", lambda: 4 * model.capture_bytes)
    assert len(list(captures(model, PICTURES, batch_size=4))) == 5
    with pytest.raises(ModelError, match="A capture of 5 pictures together of example") as caught:
        next(captures(model, PICTURES, batch_size=5))
    assert_clear_error(caught.value)


def test_memory_of_a_batch_is_counted_once_and_freed() -> None:
    found = list(captures(example("plain"), PICTURES))
    alone = capture(example("plain"), PICTURES[0])
    assert abs(found[0].nbytes - alone.nbytes) < 1024
    references = [weakref.ref(acts.batch) for acts in found]
    del found
    gc.collect()
    assert [reference() for reference in references] == [None] * 5


@pytest.mark.parametrize("setting", [torch.bfloat16, torch.float64, "meta"])
def test_torchs_default_precision_and_device_change_nothing(
    setting: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "_directions", calls._directions.__wrapped__)  # not from the cache
    expected = capture(family("plain"), PICTURES[0])
    measured = expected.measure()
    module = copy.deepcopy(family("plain").module)
    set_default = torch.set_default_device if setting == "meta" else torch.set_default_dtype
    set_default(setting)
    try:
        found = capture(watched(module, family("plain").preprocess.input_size), PICTURES[0])
        again = found.measure()
        assert_array_equal(found.attention(0), expected.attention(0))
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert_array_equal(found.logits, expected.logits)
    assert found.layers == expected.layers
    for measure in fields(measured):
        assert_array_equal(getattr(again, measure.name), getattr(measured, measure.name))


@pytest.mark.parametrize("name", ["plain", "cait_xxs24_224", "pvt_v2_b0"])
def test_a_large_batch_is_the_same_in_an_arena(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = family(name)
    small = list(captures(model, PICTURES[:2]))
    monkeypatch.setattr(forward, "LARGE", 0)
    large = list(captures(model, PICTURES[:2]))
    for one, other in zip(small, large, strict=True):
        assert_array_equal(one.logits, other.logits)
        assert_array_equal(one.tokens(one.depth), other.tokens(one.depth))
        for layer in range(one.depth):
            assert_array_equal(one.attention_by_window(layer), other.attention_by_window(layer))
