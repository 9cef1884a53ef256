"""Classes by words: the logits are those of the papers' formulas, and everything else follows."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import assert_clear_error, example, picture, randomise, seeded, watched
from numpy.testing import assert_allclose, assert_array_equal
from torch import Tensor

import vitviz
from vitviz.activations import capture
from vitviz.attribution import gradient_rollout, relevance
from vitviz.intervention import head_effects, logit_lens, occlusion
from vitviz.model import Model
from vitviz.model import words as words_module
from vitviz.model.families import ModelError
from vitviz.model.words import Words
from vitviz.text.class_names import full_names

NAMES = ("a cat", "a dog", "a teapot", "nothing at all")
SMALL: dict[str, Any] = dict(img_size=(64, 96), embed_dim=48, depth=2, num_heads=3)
CLIP = "vit_base_patch16_clip_224.openai"
SIGLIP = "vit_base_patch16_siglip_224"


@cache
def without_words(architecture: str) -> Model:
    with seeded():
        module: Any = timm.create_model(architecture, **SMALL).eval()
    randomise(module)
    clip = architecture == CLIP
    return watched(module, (64, 96), answers="embedding" if clip else None)


def words(architecture: str, **changes: Any) -> Words:
    random = np.random.default_rng(0)
    vectors = random.normal(size=(4, without_words(architecture).outputs))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    given: dict[str, Any] = dict(names=NAMES, vectors=vectors, logit_scale=100.0)
    if architecture == SIGLIP:
        given |= dict(logit_scale=117.3, logit_bias=-12.9)
    return Words(**{**given, **changes})


def model_of(architecture: str) -> Model:
    return without_words(architecture).with_words(words(architecture))


def by_the_paper(architecture: str) -> np.ndarray:
    """The formulas of CLIP, Figure 3, and of SigLIP, Algorithm 1, in double precision."""
    model, said = without_words(architecture), words(architecture)
    with torch.inference_mode():
        embedding = model.module(model.preprocess(picture())[None])[0].double().numpy()
    embedding /= np.linalg.norm(embedding)
    logits: np.ndarray = said.logit_scale * (said.vectors.astype(np.float64) @ embedding)
    return logits - 12.9 if architecture == SIGLIP else logits


both = pytest.mark.parametrize("architecture", [CLIP, SIGLIP])


@both
def test_logits_are_those_of_the_formula(architecture: str) -> None:
    acts = capture(model_of(architecture), picture())
    expected = by_the_paper(architecture)
    assert acts.logits is not None
    assert acts.probabilities is not None
    assert_allclose(acts.logits, expected, atol=1e-5)
    shares = 1 / (1 + np.exp(-expected)) if architecture == SIGLIP else np.exp(expected)
    if architecture == CLIP:
        shares /= shares.sum()
    assert_allclose(acts.probabilities, shares, rtol=1e-4, atol=1e-7)
    assert acts.labels == NAMES
    assert acts.output_names == NAMES


@both
def test_the_model_itself_is_left_without_words(architecture: str) -> None:
    model = without_words(architecture)
    with_words = model.with_words(words(architecture))
    assert with_words.module is model.module
    assert (model.words, model.num_classes, model.embeds) == (None, 0, True)
    assert (with_words.num_classes, with_words.labels) == (4, NAMES)
    acts = capture(model, picture())
    assert acts.logits is not None
    assert acts.probabilities is None
    assert len(acts.logits) == model.outputs
    assert "4 classes by text vectors in memory, scale " in with_words.weights


@both
def test_maps_and_experiments_ask_about_words(architecture: str) -> None:
    model, bare, said = model_of(architecture), without_words(architecture), words(architecture)
    acts = capture(model, picture())
    vector = torch.tensor(said.vectors[1])

    def logit(output: Tensor) -> Tensor:
        return said.logit_scale * (output @ vector) / output.norm()

    for method in (relevance, gradient_rollout):
        found = method(model, picture(), "a dog")
        assert_array_equal(found, method(model, picture(), 1))
        assert_allclose(found, method(bare, picture(), logit), rtol=1e-3, atol=1e-6)
    lens = logit_lens(model, acts)
    assert acts.probabilities is not None
    assert_allclose(lens[-1], acts.probabilities, rtol=1e-4, atol=1e-6)
    effects = head_effects(model, picture())
    assert effects.shape == (2, 3, 4)
    hidden = occlusion(model, picture(), target="a dog", block=4, removal="mean")
    assert np.abs(hidden).max() > 0


@both
def test_a_saved_capture_keeps_its_words(architecture: str, tmp_path: Path) -> None:
    names = ("a dog, asleep", *NAMES[1:])
    model = without_words(architecture).with_words(words(architecture, names=names))
    acts = capture(model, picture())
    acts.save(tmp_path / "acts.npz")
    loaded = vitviz.load_activations(tmp_path / "acts.npz")
    assert loaded.labels == names
    assert full_names(loaded.output_names) == full_names(acts.output_names) == names
    assert_array_equal(loaded.probabilities, acts.probabilities)


# --- files ----------------------------------------------------------------------------------------


@both
def test_words_are_read_from_a_file(architecture: str, tmp_path: Path) -> None:
    said = words(architecture)
    fields: dict[str, Any] = dict(
        names=np.array(NAMES), vectors=said.vectors, logit_scale=said.logit_scale
    )
    if architecture == SIGLIP:
        fields["logit_bias"] = np.array([said.logit_bias])
    np.savez(tmp_path / "animals.npz", **fields)
    read = Words.read(tmp_path / "animals.npz")
    assert read.names == NAMES
    assert (read.logit_scale, read.logit_bias) == (said.logit_scale, said.logit_bias)
    assert_array_equal(read.vectors, said.vectors)
    assert not read.vectors.flags.writeable
    assert read.source.startswith("words of animals.npz, sha256 ")
    assert read.activation == ("sigmoid" if architecture == SIGLIP else "softmax")
    assert read.activation in read.provenance


def test_a_bias_of_zero_is_a_bias(tmp_path: Path) -> None:
    said = words(SIGLIP, logit_bias=0.0)
    said.write(tmp_path / "words.npz")
    for each in (said, Words.read(tmp_path / "words.npz")):
        assert (each.logit_bias, each.activation) == (0, "sigmoid")
        assert "bias 0, sigmoid" in each.provenance
    assert words(CLIP).activation == "softmax"


def test_vectors_in_half_precision_are_of_length_1_but_for_rounding() -> None:
    vectors = words(CLIP).vectors.astype(np.float16)
    model = without_words(CLIP).with_words(words(CLIP, vectors=vectors))
    logits = capture(model, picture()).logits
    assert logits is not None
    assert_allclose(logits, by_the_paper(CLIP), atol=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (dict(names=NAMES[:3]), "vector for each of 3 names"),
        (dict(names=()), "vector for each of 0 names"),
        (dict(names=("a cat", "a dog", "a cat", "a fox")), "got 'a cat' twice"),
        (dict(vectors=np.ones((4, 48))), "length 1, got one of length 6.928"),
        (dict(vectors=np.full((4, 48), np.nan)), "got one of length nan"),
        (dict(vectors=np.ones(4)), "got an array of shape"),
        (dict(logit_scale=0.0), "logit_scale above 0"),
        (dict(logit_scale=np.inf), "logit_scale above 0"),
        (dict(logit_bias=np.nan), "finite logit_bias"),
    ],
)
def test_words_that_do_not_fit_together_are_refused(changes: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message) as refused:
        words(CLIP, **changes)
    assert_clear_error(refused.value)


def pickled(path: Path) -> None:
    np.savez(path, names=np.array(["a", None], object), vectors=np.eye(2), logit_scale=1.0)


FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (lambda path: None, "There is no file"),
    "text": (lambda path: path.write_text("cat,dog"), "is not a valid NPZ file"),
    "empty": (lambda path: path.write_bytes(b""), "is not a valid NPZ file"),
    "one array": (lambda path: np.save(path.open("wb"), np.eye(3)), "is not a valid NPZ file"),
    "pickled": (pickled, "is not a valid NPZ file"),
    "no scale": (
        lambda path: np.savez(path, names=np.array(["a"]), vectors=np.eye(1)),
        "has no logit_scale",
    ),
    "two scales": (
        lambda path: np.savez(
            path, names=np.array(["a"]), vectors=np.eye(1), logit_scale=np.ones(2)
        ),
        "has 2 numbers as logit_scale",
    ),
}


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")
@pytest.mark.parametrize("kind", FILES)
def test_a_file_that_holds_no_words_is_one_sentence(kind: str, tmp_path: Path) -> None:
    write, message = FILES[kind]
    write(tmp_path / "words.npz")
    with pytest.raises(ModelError, match=message) as refused:
        Words.read(tmp_path / "words.npz")
    assert_clear_error(str(refused.value).replace("words.npz", "words"))


def unpacks_to(path: Path, numbers: int) -> None:
    np.savez_compressed(
        path, names=np.array(["a"]), vectors=np.zeros((1, numbers), np.float32), logit_scale=1.0
    )


@pytest.mark.parametrize("write", [unpacks_to, lambda path, count: path.write_bytes(bytes(count))])
def test_a_file_that_is_too_large_is_refused_before_it_is_read(
    write: Callable[[Path, int], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(words_module, "MAX_WORDS_BYTES", 10_000)
    monkeypatch.setattr(np, "load", lambda *_, **__: pytest.fail("the arrays were read"))
    write(path := tmp_path / "words.npz", 20_000)
    with pytest.raises(
        ModelError, match=r"words.npz holds [28]0,\d{3} bytes, .* 10,000"
    ) as refused:
        Words.read(path)
    assert_clear_error(refused.value)


def test_words_of_another_model_are_refused() -> None:
    with pytest.raises(ModelError, match="48 numbers, and the vectors of the words have 512") as no:
        without_words(SIGLIP).with_words(words(CLIP))
    assert_clear_error(no.value)
    with pytest.raises(ModelError, match="gives no embedding") as no:
        example("plain").with_words(words(CLIP))
    assert_clear_error(no.value)
    with pytest.raises(ModelError, match="gives no embedding"):
        model_of(CLIP).with_words(words(CLIP))
