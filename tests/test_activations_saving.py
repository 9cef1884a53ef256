"""A saved capture gives the same numbers as the one it was made of, or says why it cannot."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    assert_clear_error,
    example,
    narrow_mixer,
    narrow_stages,
    own_model,
    picture,
    randomise,
    watched,
)
from numpy.testing import assert_array_equal

import vitviz
from vitviz import intervention
from vitviz.activations import Activations, DropPatches, capture
from vitviz.common.images import SHOWN_SIDE
from vitviz.model import Model
from vitviz.model.families import ModelError

#: Windows, shifted windows, pooled keys, biases of positions, class attention, talking heads.
SMALL: dict[str, tuple[tuple[int, int], dict[str, Any]]] = {
    "swin_tiny_patch4_window7_224": (
        (64, 96),
        dict(img_size=(64, 96), depths=(1, 1, 1, 2), embed_dim=24),
    ),
    "swinv2_cr_tiny_224": ((64, 64), dict(img_size=64, depths=(1, 1, 1, 1), embed_dim=24)),
    "maxvit_tiny_tf_224": ((64, 64), dict(img_size=64, **narrow_stages())),
    "coatnet_nano_rw_224": ((64, 64), dict(img_size=64, **narrow_stages())),
    "cait_xxs24_224": ((64, 64), dict(img_size=64, depth=2)),
    "pvt_v2_b0": ((64, 64), dict(depths=(1, 1, 1, 1))),
    "twins_svt_small": ((64, 64), dict(depths=(2, 1, 1, 1))),
    "test_vit_relpos": ((64, 64), dict(img_size=64)),
    "mixer_s32_224": ((64, 64), dict(img_size=64)),
}


def small(name: str) -> Model:
    size, options = SMALL[name]
    mixer = name.startswith("mixer")
    module = narrow_mixer(**options) if mixer else timm.create_model(name, **options).eval()
    randomise(module)
    return watched(module, size)


def reloaded(acts: Activations, folder: Path) -> Activations:
    acts.save(folder / "x.npz")
    return vitviz.load_activations(folder / "x.npz")


def assert_same(acts: Activations, again: Activations) -> None:
    """Bit by bit, all that a capture answers."""
    assert repr(again) == repr(acts)
    assert again.layers == acts.layers
    for name in ("labels", "output_names", "read_tokens", "crop", "picture_size", "provenance"):
        assert getattr(again, name) == getattr(acts, name), name
    for name in ("logits", "probabilities", "patches"):
        assert_array_equal(getattr(again, name), getattr(acts, name))
    assert_array_equal(np.asarray(again.photo), np.asarray(acts.photo))
    for depth in range(acts.depth + 1):
        assert_array_equal(again.tokens(depth), acts.tokens(depth))
    for layer, described in enumerate(acts.layers):
        assert again.crop_of(layer, keys=True) == acts.crop_of(layer, keys=True)
        same_or_refused("tokens_after_attention", layer, acts, again)
        if described.refusal:
            same_or_refused("attention", layer, acts, again)
            continue
        assert_array_equal(again.attention(layer), acts.attention(layer))
        assert_array_equal(again.attention_map(layer), acts.attention_map(layer))
        for one, other in zip(again.windows(layer), acts.windows(layer), strict=True):
            for mine, theirs in zip(one, other, strict=True):
                assert_array_equal(mine, theirs)
        for kind in ("queries", "keys", "values"):
            same_or_refused(kind, layer, acts, again)


def same_or_refused(ask: str, number: int, *both: Activations, **asked: bool) -> None:
    """Both give the same, or refuse in the same words."""
    found: list[Any] = []
    for acts in both:
        try:
            found.append(getattr(acts, ask)(number, **asked))
        except ModelError as error:
            found.append(str(error))
    assert_array_equal(*found)


@pytest.mark.parametrize("name", [*OWN, "test_vit", "test_vit2", "test_vit3", "test_vit4"])
def test_a_saved_capture_is_the_capture_bit_by_bit(name: str, tmp_path: Path) -> None:
    acts = capture(example(name), picture())
    again = reloaded(acts, tmp_path)
    assert_same(acts, again)
    mine, theirs = again.measure(), acts.measure()
    for measured in vars(theirs):
        assert_array_equal(getattr(mine, measured), getattr(theirs, measured))
    assert not again.attention(0).flags.writeable


@pytest.mark.parametrize("name", SMALL)
def test_families_with_windows_and_biases_are_saved_too(name: str, tmp_path: Path) -> None:
    acts = capture(small(name), picture())
    again = reloaded(acts, tmp_path)
    assert_same(acts, again)
    same_or_refused("tokens", acts.depth, acts, again, normalised=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    model = own_model()
    model.module.to(dtype)
    acts = capture(model, picture())
    again = reloaded(acts, tmp_path)
    assert_same(acts, again)
    assert again._stream[-1].dtype == dtype


def test_patches_that_were_dropped_stay_so(tmp_path: Path) -> None:
    mask = np.zeros((4, 6), bool)
    mask[1, 2] = mask[3, 5] = True
    acts = capture(example("plain"), picture(), edits=[DropPatches(mask)])
    again = reloaded(acts, tmp_path)
    assert_same(acts, again)
    with pytest.raises(ModelError, match="was dropped"):
        again.attention_map(0, (1, 2))


def test_normalised_tokens_are_kept_where_the_norm_is_a_layer_norm(tmp_path: Path) -> None:
    model = example("plain")
    acts = capture(model, picture())
    again = reloaded(acts, tmp_path)
    assert_array_equal(again.tokens(2, normalised=True), acts.tokens(2, normalised=True))
    wanted = intervention.logit_lens(model, acts)
    assert_array_equal(intervention.logit_lens(model, again), wanted)


def test_another_norm_is_refused_in_a_sentence(tmp_path: Path) -> None:
    acts = capture(example("test_vit4"), picture())
    assert np.isfinite(acts.tokens(1, normalised=True)).all()
    with pytest.raises(ModelError, match="RmsNorm") as error:
        reloaded(acts, tmp_path).tokens(1, normalised=True)
    assert_clear_error(error.value)


def test_numpy_reads_the_file_by_itself(tmp_path: Path) -> None:
    acts = capture(example("plain"), picture())
    acts.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz", allow_pickle=False) as file:
        assert_array_equal(file["logits"], acts.logits)
        assert_array_equal(file["tokens_2"], acts.tokens(2))
        scores = file["scale_1"] * file["q_1"] @ file["k_1"].swapaxes(2, 3)
        about = json.loads(str(file["about"]))
    weights = np.exp(scores[0] - scores[0].max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    np.testing.assert_allclose(weights, acts.attention(1), atol=1e-6)
    assert "random weights" in about["provenance"]


def test_a_capture_keeps_a_small_copy_of_the_picture() -> None:
    large = picture(150, 80).resize((3000, 1600))
    acts = capture(example("plain"), large)
    assert acts.picture_size == (3000, 1600)
    assert SHOWN_SIDE <= max(acts.photo.size) < 2 * SHOWN_SIDE
    assert acts.photo.width / acts.photo.height == pytest.approx(3000 / 1600, rel=0.01)
    before = np.asarray(acts.photo).copy()
    large.paste((0, 0, 0), (0, 0, *large.size))
    assert_array_equal(np.asarray(acts.photo), before)
    assert acts.nbytes > 4 * acts.photo.width * acts.photo.height


# --- files that are not what they should be -----------------------------------------------------


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "x.npz"
    capture(example("plain"), picture()).save(path)
    return path


def rewritten(path: Path, **changed: Any) -> None:
    """The file with other arrays, or without those that are None."""
    with np.load(path) as file:
        arrays = {**file, **changed}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


@pytest.mark.parametrize("missing", ["about", "tokens_1", "k_0", "rows_2", "photo", "patches"])
def test_a_file_without_a_part_is_refused(missing: str, saved: Path) -> None:
    rewritten(saved, **{missing: None})
    with pytest.raises(ModelError, match=r"x\.npz is not a capture") as error:
        vitviz.load_activations(saved)
    assert_clear_error(error.value)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"a" * 1000, None])
def test_a_file_that_is_none_or_was_cut_is_refused(content: bytes | None, saved: Path) -> None:
    saved.write_bytes(saved.read_bytes()[:-200] if content is None else content)
    with pytest.raises(ModelError, match=r"x\.npz is not a capture"):
        vitviz.load_activations(saved)


def test_a_file_of_pickles_is_not_unpacked(saved: Path) -> None:
    rewritten(saved, photo=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ModelError, match=r"x\.npz is not a capture"):
        vitviz.load_activations(saved)


def test_another_format_is_refused(saved: Path) -> None:
    with np.load(saved) as file:
        about = {**json.loads(str(file["about"])), "format": 2}
    rewritten(saved, about=np.array(json.dumps(about)))
    with pytest.raises(ModelError, match="format 2") as error:
        vitviz.load_activations(saved)
    assert_clear_error(error.value)


def test_what_was_changed_in_the_file_fails_the_proof(saved: Path) -> None:
    with np.load(saved) as file:
        keys = file["k_1"].copy()
    rewritten(saved, k_1=keys[:, :, ::-1])
    again = vitviz.load_activations(saved)
    assert again.attention(0).shape == (4, 25, 25)
    with pytest.raises(ModelError, match="does not reproduce"):
        again.attention(1)


def test_a_file_that_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        vitviz.load_activations(tmp_path / "none.npz")
