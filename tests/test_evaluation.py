"""Accuracy is measured on what `capture` gives, on pictures made here."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar import coloured, write_cifar10, write_sheets
from examples import CONFIGURATION, randomise
from PIL import Image
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from vitviz import capture, load_model
from vitviz.model import Model
from vitviz.training import MEAN, STD, Split, evaluate, normalise
from vitviz.training.evaluation import top_accuracy
from vitviz.vit import VisionTransformer
from vitviz.zoo import checkpoints
from vitviz.zoo.checkpoints import load_shipped, shipped_names


def smooth(count: int, *, seed: int = 0) -> Split:
    """Pictures with edges of every sharpness, on whose classes the shipped models disagree."""
    rng = np.random.default_rng(seed)
    pictures = np.stack(
        [
            np.asarray(
                Image.fromarray(rng.integers(0, 256, (side, side, 3), np.uint8)).resize((32, 32))
            )
            for side in rng.integers(2, 20, count)
        ]
    )
    split = coloured(count, seed=seed)
    return replace(split, pictures=pictures)


@pytest.mark.parametrize("name", shipped_names())
def test_a_picture_of_the_training_size_reaches_a_shipped_model_as_in_training(name: str) -> None:
    shipped, model = load_shipped(name), load_model(name)
    side = round(shipped.detail * shipped.configuration["image_size"])
    levels = np.random.default_rng(0).integers(0, 256, (4, side, side, 3), dtype=np.uint8)
    trained_on = normalise(
        torch.from_numpy(levels), shipped.configuration["image_size"], shipped.mean, shipped.std
    )
    seen = torch.stack([model.preprocess(Image.fromarray(picture)) for picture in levels])
    assert_close(seen, trained_on, rtol=0, atol=1e-6)


def captured(model: Model, split: Split) -> np.ndarray:
    """Logits (n, K) by the public path."""
    found = [capture(model, Image.fromarray(picture)).logits for picture in split.pictures]
    return np.stack([logits for logits in found if logits is not None])


@pytest.fixture
def little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A shipped model of CIFAR-10 with random weights, for pictures enlarged to 64 pixels."""
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    sizes: dict[str, Any] = {**CONFIGURATION, "image_size": 64, "num_classes": 10}
    about: dict[str, Any] = dict(
        configuration=sizes, classes=list("abcdefghij"), mean=MEAN, std=STD
    )
    about |= dict(mean=MEAN, std=STD, test_accuracy=0.0, temperature=1.0, detail=0.5)
    module = VisionTransformer(**sizes)
    randomise(module)
    with torch.no_grad():  # no class is preferred to the others
        logits = module(normalise(torch.from_numpy(smooth(100).pictures), 64))
        assert isinstance(module.head, nn.Linear)
        module.head.bias.sub_(logits.mean(dim=0))
    (tmp_path / "weights").mkdir()
    path = tmp_path / "weights" / "little.safetensors"
    save_file(module.half().state_dict(), path, metadata={"vitviz": json.dumps(about)})
    return "little"


def test_evaluation_agrees_with_capture_on_60_pictures(little: str, tmp_path: Path) -> None:
    """The labels are the answers to the pictures as in training, a quarter of them changed. The
    last batch of evaluation is not full."""
    model, split = load_model(little), smooth(60)
    with torch.inference_mode():
        as_trained = model.module(normalise(torch.from_numpy(split.pictures), 64))
    answers = as_trained.argmax(dim=1).numpy()
    assert len(set(answers)) >= 4
    labels = np.where(np.arange(60) % 4 == 0, (answers + 1) % 10, answers)
    split = replace(split, labels=labels, classes=tuple("abcdefghij"))
    write_cifar10(tmp_path, coloured(10, seed=1), split)

    logits = captured(model, split)
    np.testing.assert_allclose(logits, as_trained, rtol=0, atol=1e-4)
    assert (logits.argmax(axis=1) == labels).mean() == 0.75
    assert evaluate(little, data=tmp_path).accuracy == pytest.approx(0.75)
    assert evaluate(tmp_path / "weights" / "little.safetensors", data=tmp_path).accuracy == 0.75


@pytest.mark.parametrize(("place", "share"), [(1, 1), (5, 1), (6, 0)])
def test_the_sixth_class_is_not_among_five(tmp_path: Path, place: int, share: float) -> None:
    name = "vitviz_tiny_cifar100"
    model, split = load_model(name), smooth(4)
    assert model.labels is not None
    labels = captured(model, split).argsort(axis=1)[:, -place]
    split = replace(split, labels=labels, classes=model.labels)
    write_sheets(tmp_path / "cifar100_test.parquet", split, cols=2)
    found = evaluate(name, data=tmp_path)
    assert (found.accuracy, found.among_five) == (place == 1, share)


def test_a_label_counts_where_it_is_among_the_best() -> None:
    logits = torch.tensor([[4.0, 3, 2, 1], [4.0, 3, 2, 1], [1.0, 2, 3, 4]])
    labels = torch.tensor([0, 1, 0])
    found = [top_accuracy(logits, labels, count) for count in (1, 2, 3, 4, 5)]
    assert found == pytest.approx([1 / 3, 2 / 3, 2 / 3, 1, 1])
