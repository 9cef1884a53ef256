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
    own_model,
    picture,
    watched,
)
from numpy.testing import assert_array_equal
from test_families_staged import STAGED, staged_model

import vitviz
from vitviz import intervention
from vitviz.activations import Activations, DropPatches, capture
from vitviz.common.images import SHOWN_SIDE
from vitviz.model.families import ModelError
from vitviz.zoo import toy_model


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
    if name == "plain":
        lens = intervention.logit_lens(example(name), acts)
        assert_array_equal(intervention.logit_lens(example(name), again), lens)
    if name != "test_vit4":  # whose norm is another
        same_or_refused("tokens", 2, acts, again, normalised=True)


@pytest.mark.parametrize("name", [*STAGED, "CaiT", "MLP-Mixer", "test_vit_relpos"])
def test_families_with_windows_and_biases_are_saved_too(name: str, tmp_path: Path) -> None:
    if name in STAGED:
        model = staged_model(name, (96, 160))
    else:
        relpos = timm.create_model("test_vit_relpos", img_size=64).eval()
        model = watched(relpos, (64, 64)) if name == "test_vit_relpos" else toy_model(name)
    acts = capture(model, picture())
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


def test_a_norm_of_another_precision_than_its_tokens_is_saved(tmp_path: Path) -> None:
    """Swin's last block gives half precision within autocast, and its norm has single precision."""
    model = toy_model("Swin")
    with torch.autocast("cpu", torch.bfloat16):
        acts = capture(model, picture())
    assert acts._stream[-1].dtype == torch.bfloat16
    again = reloaded(acts, tmp_path)
    expected = acts.tokens(acts.depth, normalised=True)
    assert_array_equal(again.tokens(again.depth, normalised=True), expected)


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


@pytest.mark.parametrize(
    "damage",
    [
        *(dict.fromkeys([part]) for part in ("about", "tokens_1", "k_0", "rows_2", "photo")),
        dict(photo=np.array([{"a": 1}], dtype=object)),  # a pickle, which is not unpacked
        b"",
        b"a" * 1000,
    ],
)
def test_a_file_that_is_no_capture_is_refused(damage: Any, saved: Path) -> None:
    if isinstance(damage, bytes):
        saved.write_bytes(damage)
    else:
        rewritten(saved, **damage)
    with pytest.raises(ModelError, match=r"x\.npz is not a capture") as error:
        vitviz.load_activations(saved)
    assert_clear_error(error.value)


def test_another_format_is_refused(saved: Path) -> None:
    with np.load(saved) as file:
        about = {**json.loads(str(file["about"])), "format": 2}
    rewritten(saved, about=np.array(json.dumps(about)))
    with pytest.raises(ModelError, match="format 2") as error:
        vitviz.load_activations(saved)
    assert_clear_error(error.value)


def test_a_file_from_before_phrases_is_read(saved: Path) -> None:
    with np.load(saved) as file:
        about = json.loads(str(file["about"]))
    labels = vitviz.load_activations(saved).labels
    del about["phrases"]
    rewritten(saved, about=np.array(json.dumps(about)))
    assert vitviz.load_activations(saved).labels == labels


def test_what_was_changed_in_the_file_fails_the_proof(saved: Path) -> None:
    with np.load(saved) as file:
        keys = file["k_1"].copy()
    rewritten(saved, k_1=keys[:, :, ::-1])
    again = vitviz.load_activations(saved)
    assert again.attention(0).shape == (4, 25, 25)
    with pytest.raises(ModelError, match="does not reproduce"):
        again.attention(1)
