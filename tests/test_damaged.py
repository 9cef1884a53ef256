"""Readers of captures and words give one ModelError for whatever a damaged file holds."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from examples import damaged, example, picture

from vitviz import ModelError, capture, load_activations, load_model
from vitviz.model import Model
from vitviz.model.words import Words

FILES = 300


def swin() -> Model:
    return load_model("swin_tiny_patch4_window7_224", pretrained=False, image_size=(64, 64))


@pytest.mark.parametrize("make", [partial(example, "distilled"), swin], ids=["ViT", "Swin"])
def test_a_damaged_capture_is_one_model_error(make: Callable[[], Model], tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    capture(make(), picture(24, 16)).save(path)
    data, whole = path.read_bytes(), 0
    for seed in range(FILES // 2):
        path.write_bytes(damaged(data, seed))
        with suppress(ModelError):
            acts = load_activations(path)
            repr(acts), acts.logits, acts.labels, acts.crop, acts.provenance, acts.nbytes
            with suppress(ModelError):
                acts.probabilities  # noqa: B018
            for depth in range(acts.depth + 1):
                acts.tokens(depth)
            for layer in range(acts.depth):
                with suppress(ModelError):
                    acts.attention(layer)
                    acts.attention_map(layer, 0)
                with suppress(ModelError):
                    acts.tokens_after_attention(layer)
            whole += 1
    assert whole < FILES // 4


def test_damaged_words_are_one_model_error(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(4, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    path, whole = tmp_path / "words.npz", 0
    np.savez(path, names=["cat", "owl", "ship", "dog"], vectors=vectors, logit_scale=100.0)
    data = path.read_bytes()
    for seed in range(FILES):
        path.write_bytes(damaged(data, seed))
        with suppress(ModelError):
            found = Words.read(path)
            assert len(found.names) == len(found.vectors)
            repr(found), found.provenance, found.activation
            whole += 1
    assert whole < FILES // 4
