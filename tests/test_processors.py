"""Image processors of transformers and their files become a `Preprocessing`, or one sentence."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from examples import assert_one_sentence, picture, seeded

import vitviz
from vitviz import ModelError
from vitviz.zoo.processors import labels_from, preprocessing_from, preprocessing_in

PLAIN: dict[str, Any] = dict(
    size={"height": 32, "width": 48}, image_mean=[0.5] * 3, image_std=[0.25] * 3, resample=2
)


def test_a_file_says_all_that_there_is_to_know() -> None:
    found = preprocessing_from(PLAIN)
    assert (found.input_size, found.interpolation) == ((32, 48), "bilinear")
    assert (found.crop_mode, found.crop_pct) == ("squash", 1.0)
    assert (found.mean, found.std) == ((0.5,) * 3, (0.25,) * 3)
    cropped = preprocessing_from(
        {**PLAIN, "size": {"shortest_edge": 236}, "do_center_crop": True, "crop_size": 224}
    )
    assert (cropped.input_size, cropped.crop_mode) == ((224, 224), "center")
    assert cropped.place(picture(300, 400)).resized == (236, 314)
    plain = preprocessing_from({**PLAIN, "do_normalize": False})
    assert (plain.mean, plain.std) == ((0.0,) * 3, (1.0,) * 3)


@pytest.mark.parametrize("crop", [160, 224, 384, 518])
@pytest.mark.parametrize("resized", [160, 232, 236, 256, 400, 511, 600])
def test_a_crop_keeps_the_size_that_it_is_cut_out_of(crop: int, resized: int) -> None:
    size = {"height": resized, "width": resized}
    settings = {**PLAIN, "size": size, "do_center_crop": True, "crop_size": crop}
    assert preprocessing_from(settings).place(picture()).resized == (resized, resized)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(size=None), "size is None"),
        (dict(size={"longest_edge": 224}), "expected a height and a width"),
        (dict(size={"shortest_edge": 224}), "keeps the shape"),
        (dict(size=256, do_center_crop=True, crop_size=224), "size is 256"),
        (dict(image_mean=None), "image_mean is None, expected three numbers"),
        (dict(image_std=[0.5]), "image_std"),
        (dict(resample=5), "resample is 5"),
        (dict(resample=None), "resample is None"),
        (dict(resample=[]), "settings cannot be used"),
        (dict(size={"height": 0, "width": 0}), "settings cannot be used"),
        (dict(size={"height": -3, "width": 5}), "settings cannot be used"),
        (dict(size={"height": 10**9, "width": 10**9}), "settings cannot be used"),
        (dict(size={"shortest_edge": 224}, crop_pct="all"), "settings cannot be used"),
        (dict(do_center_crop=True, crop_size={"shortest_edge": 5}), "settings cannot be used"),
        (dict(image_mean=["r", "g", "b"]), "settings cannot be used"),
        (dict(image_mean=[math.inf] * 3), "settings cannot be used"),
        (dict(image_std=[0.0] * 3), "settings cannot be used"),
        (dict(image_std=[math.nan] * 3), "settings cannot be used"),
        (dict(rescale_factor="1/255"), "settings cannot be used"),
        (dict(do_resize=False), "does not resize"),
        (dict(do_pad=True), "pads or scales"),
        (dict(rescale_factor=1 / 127.5), "pads or scales"),
        (
            dict(do_center_crop=True, crop_size={"height": 16, "width": 16}),
            "the two shapes differ",
        ),
    ],
)
def test_what_is_not_known_is_refused_in_one_sentence(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        preprocessing_from({**PLAIN, **change})
    assert_one_sentence(caught.value)


def test_what_is_no_preprocessing_is_refused() -> None:
    wrong: Any = 224
    with pytest.raises(ModelError, match="got int") as caught:
        preprocessing_in(wrong)
    assert_one_sentence(caught.value)


def test_labels_are_names_in_the_order_of_the_outputs() -> None:
    assert labels_from({"1": "dog", "0": "cat"}) == ("cat", "dog")  # a file's keys are strings
    assert labels_from({0: "LABEL_0", 1: "LABEL_1"}) is None
    assert labels_from({1: "dog", 2: "fox"}) is None
    assert labels_from({}) is None
    assert labels_from(None) is None


PROCESSORS: dict[str, dict[str, Any]] = {
    "ViTImageProcessor": dict(size={"height": 32, "width": 48}),
    "DeiTImageProcessor": dict(size={"height": 40, "width": 40}, crop_size=32),
    "CLIPImageProcessor": dict(size={"shortest_edge": 32}, crop_size=32),
    "BitImageProcessor": dict(size={"shortest_edge": 36}, crop_size=32),
    "SiglipImageProcessor": dict(size={"height": 32, "width": 32}),
    "ConvNextImageProcessor": dict(size={"shortest_edge": 32}, crop_pct=0.875),
}


@pytest.mark.parametrize("name", PROCESSORS)
def test_pictures_become_what_the_image_processor_makes_of_them(name: str) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    processor = getattr(transformers, name)(**PROCESSORS[name])
    for image in (picture(90, 60), picture(50, 70)):
        expected = processor(image, return_tensors="np")["pixel_values"][0]
        own = preprocessing_in(processor)(image).numpy()
        assert own.shape == expected.shape
        step = 1 / 255 / min(processor.image_std)  # of one level of a colour
        difference = np.abs(own - expected)
        assert difference.max() <= 3 * step
        assert difference.mean() <= 0.6 * step


def test_a_module_from_a_folder_knows_its_pictures(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48,
        image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"},
    )  # fmt: skip
    with seeded():
        transformers.ViTForImageClassification(config).save_pretrained(tmp_path)
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match="does not say how"):
        vitviz.watch(loaded)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    model = vitviz.watch(loaded)
    assert model.preprocess.input_size == (32, 32)
    acts = vitviz.capture(model, picture())
    assert acts.labels == ("cat", "dog")
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    assert vitviz.watch(loaded, preprocessing=processor).preprocess == model.preprocess
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match="is no JSON") as caught:
        vitviz.watch(loaded)
    assert_one_sentence(caught.value)
