"""What is said of a checkpoint beside its file: labels, mean, std, crop and input size."""

from pathlib import Path
from typing import Any

import pytest
import torch
from examples import assert_clear_error, picture, timm_module
from torch.testing import assert_close

from vitviz import ModelError, load_model
from vitviz.model import Preprocessing

NAME = "test_vit"
GIVEN: dict[str, Any] = dict(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop_pct=0.8)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "mine.pth"
    torch.save(timm_module(NAME, num_classes=3).state_dict(), path)
    return path


def test_a_dictionary_names_what_differs(file: Path) -> None:
    own = load_model(NAME, checkpoint=file)
    model = load_model(NAME, checkpoint=file, preprocessing=GIVEN, labels=["cat", "dog", "fox"])
    assert model.labels == ("cat", "dog", "fox")
    made = model.preprocess
    assert (made.mean, made.std, made.crop_pct) == tuple(GIVEN.values())
    assert (made.input_size, made.interpolation) == (
        own.preprocess.input_size,
        own.preprocess.interpolation,
    )
    assert model.weights == f"{own.weights}, preprocessing as given"
    expected = Preprocessing(input_size=(160, 160), interpolation=made.interpolation, **GIVEN)
    assert_close(made(picture(300, 200)), expected(picture(300, 200)), rtol=0, atol=0)


def test_a_whole_preprocessing_gives_the_input_size_too(file: Path) -> None:
    given = Preprocessing(input_size=(96, 128), **GIVEN, crop_mode="squash")
    model = load_model(NAME, checkpoint=file, preprocessing=given)
    assert model.preprocess == given
    assert model.layers[0].query_grid == (6, 8)
    assert ", positions resampled from 10x10 to 6x8" in model.weights
    other = load_model(NAME, checkpoint=file, preprocessing=given, image_size=64)
    assert other.preprocess.input_size == (64, 64)
    assert other.preprocess.mean == given.mean
    by_name = load_model(NAME, checkpoint=file, preprocessing=dict(input_size=(96, 128)))
    assert by_name.preprocess.input_size == (96, 128)


def test_an_image_processor_of_transformers_is_taken(file: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    kind = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
    made = kind(size={"height": 64, "width": 64}, resample=2, image_mean=[0.1] * 3)
    model = load_model(NAME, checkpoint=file, preprocessing=made)
    assert model.preprocess.input_size == (64, 64)
    assert model.preprocess.mean == (0.1, 0.1, 0.1)
    assert model.preprocess.interpolation == "bilinear"


def test_a_model_without_a_checkpoint_takes_it_too() -> None:
    model = load_model(NAME, pretrained=False, preprocessing=GIVEN, crop=False)
    assert model.preprocess.mean == GIVEN["mean"]
    assert (model.preprocess.crop_mode, model.preprocess.crop_pct) == ("squash", 1.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(colour=3), "Unknown field colour of the preprocessing. Known are input_size, mean, "),
        (
            dict(std=(0.0, 1.0, 1.0)),
            r"Invalid preprocessing: std \(0\.0, 1\.0, 1\.0\)",
        ),
        (dict(mean=(float("nan"),) * 3), "Invalid preprocessing"),
        (dict(mean=(0.5,)), "Invalid preprocessing"),
        (dict(crop_pct=0.0), "Invalid preprocessing"),
        (dict(crop_mode="mirror"), "Invalid preprocessing"),
        (dict(interpolation="magic"), "Invalid preprocessing"),
        (dict(mean="grey"), "Invalid preprocessing"),
        (dict(input_size=0), "Expected an image size"),
        (3, "Expected a vitviz.Preprocessing"),
    ],
)
def test_what_fits_no_picture_is_refused(given: Any, said: str, file: Path) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load_model(NAME, checkpoint=file, preprocessing=given)
    assert_clear_error(caught.value)
