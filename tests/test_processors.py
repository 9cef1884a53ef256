"""Image processors of transformers and their files become a `Preprocessing`, or one sentence."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, picture, vit_of_transformers
from PIL import Image

import vitviz
from vitviz import ModelError
from vitviz.zoo.processors import (
    labels_from,
    preprocessing_from,
    preprocessing_in,
    preprocessing_in_folder,
)

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
        (dict(image_std=[0.5]), "image_std"),
        (dict(resample=6), "resample is 6"),
        (dict(resample=[]), "settings are invalid"),
        (dict(size={"height": 0, "width": 0}), "settings are invalid"),
        (dict(size={"height": 10**9, "width": 10**9}), "settings are invalid"),
        (dict(size={"shortest_edge": 224}, crop_pct="all"), "settings are invalid"),
        (dict(do_center_crop=True, crop_size={"shortest_edge": 5}), "settings are invalid"),
        (dict(image_mean=[math.inf] * 3), "settings are invalid"),
        (dict(image_std=[0.0] * 3), "settings are invalid"),
        (dict(rescale_factor="1/255"), "settings are invalid"),
        (dict(do_resize=False), "does not resize"),
        (dict(rescale_factor=0), "settings are invalid"),
        (dict(do_pad=True), "do_pad is True"),
        (dict(do_sharpen=True), "do_sharpen is True"),
        (dict(gamma=2.2), "gamma is 2.2"),
        (dict(keep_aspect_ratio=True), "keep_aspect_ratio"),
        (dict(image_processor_type="MyImageProcessor"), "no image processor MyImageProcessor"),
    ],
)
def test_what_is_not_known_is_refused_in_one_sentence(change: dict[str, Any], words: str) -> None:
    if "image_processor_type" in change:  # transformers knows its own
        pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError, match=words) as caught:
        preprocessing_from({**PLAIN, **change})
    assert_clear_error(caught.value)


def test_labels_are_names_in_the_order_of_the_outputs() -> None:
    assert labels_from({"1": "dog", "0": "cat"}) == ("cat", "dog")  # a file's keys are strings
    assert labels_from({0: "LABEL_0", 1: "LABEL_1"}) is None
    assert labels_from({1: "dog", 2: "fox"}) is None
    assert labels_from({}) is None
    assert labels_from(None) is None


HW = {"height": 32, "width": 32}
#: Settings of classes that people use with ViTs, beside those of every class.
CLASSES: dict[str, list[dict[str, Any]]] = {
    "ViT": [],
    "DeiT": [],
    "Beit": [],
    "Bit": [],
    "Blip": [],
    "ChineseCLIP": [],
    "CLIP": [],
    "ConvNext": [dict(size={"shortest_edge": 32}, crop_pct=0.8), dict(size={"shortest_edge": 384})],
    "DINOv3ViT": [dict(size=HW, resample=2)],
    "DPT": [dict(size={"height": 40, "width": 60}, ensure_multiple_of=14, do_center_crop=False)],
    "EfficientNet": [
        dict(size=HW, rescale_offset=True),
        dict(size=HW, include_top=True),
        dict(size=HW, include_top=False, rescale_offset=True, rescale_factor=1 / 127.5),
    ],
    "Levit": [dict(size={"shortest_edge": 35}, crop_size=32)],
    "MobileNetV2": [],
    "MobileViT": [
        dict(size=HW, do_center_crop=False, do_flip_channel_order=flip) for flip in (True, False)
    ],
    "Perceiver": [
        dict(size=HW, crop_size=36),
        dict(size={"height": 32, "width": 40}, crop_size=35),
    ],
    "PoolFormer": [
        dict(size={"shortest_edge": 32}, crop_pct=0.8, crop_size=32),
        dict(size={"height": 24, "width": 40}, crop_pct=0.9, crop_size=32),
    ],
    "Pvt": [],
    "Segformer": [dict(size=HW, do_center_crop=True, crop_size=24)],
    "Siglip": [],
}
EVERY: list[dict[str, Any]] = [
    dict(size={"height": 32, "width": 48}, do_center_crop=False),
    dict(size={"shortest_edge": 36}, do_center_crop=True, crop_size=32),
    dict(size={"shortest_edge": 37}, do_center_crop=True, crop_size={"height": 32, "width": 20}),
    dict(size={"shortest_edge": 32}, do_center_crop=True, crop_size=35),  # black around it
    dict(size={"height": 40, "width": 50}, do_center_crop=True, crop_size=33),
    dict(size=HW, do_center_crop=False, do_rescale=False, image_mean=[127.5] * 3),
    dict(size=HW, do_center_crop=False, rescale_factor=1 / 127.5, resample=3),
    dict(size=HW, do_center_crop=False, do_normalize=False, resample=2),
    dict(size=HW, do_center_crop=False, resample=1, do_pad=True),
]
SIZES = [(90, 60), (61, 97), (20, 17), (40, 40), (131, 40), (33, 200), (39, 40)]


def levels_off(own: Any, wanted: np.ndarray, std: Any) -> np.ndarray:
    found: np.ndarray = np.abs(np.asarray(own) - wanted) * np.reshape(std, (-1, 1, 1)) * 255
    return found


@pytest.mark.parametrize("backend", ["", "Pil"])
@pytest.mark.parametrize("name", CLASSES)
def test_pictures_become_what_the_image_processor_makes_of_them(name: str, backend: str) -> None:
    """Or are refused: portrait, landscape, smaller than the target, and one pixel off a square."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    kind = getattr(transformers, f"{name}ImageProcessor{backend}", None)
    if kind is None:
        pytest.skip("there is one backend alone")
    compared, own_settings = 0, CLASSES[name]
    for settings in EVERY + own_settings:
        processor = kind(**settings)
        try:
            found = preprocessing_in(processor)
        except ModelError:
            assert settings not in own_settings
            continue
        for size in SIZES:
            image = picture(*size)
            try:
                wanted = np.asarray(processor(image, return_tensors="pt")["pixel_values"][0])
            except ValueError:
                continue  # transformers pads no picture of one pixel's difference, say
            own = found(image)
            assert tuple(own.shape) == wanted.shape, (settings, size)
            off = levels_off(own, wanted, found.std)
            assert off.max() <= 4, (settings, size)
            assert off.mean() <= 1, (settings, size)
            compared += 1
    assert compared >= 7 * max(1, len(own_settings))


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("ViT", dict(do_thumbnail=True), "do_thumbnail"),
        ("ViT", dict(do_resize=False), "do_resize"),
        ("DPT", dict(keep_aspect_ratio=True, ensure_multiple_of=14), "keep_aspect_ratio"),
        ("DPT", dict(do_pad=True, size_divisor=14), "do_pad"),
        ("DPT", dict(size=HW, ensure_multiple_of=64), "ensure_multiple_of"),  # 0.5 of it
        ("ViT", dict(do_pad=True, pad_size={"height": 300, "width": 300}), "do_pad"),
        ("CLIP", dict(do_center_crop=False), "size is"),
        ("Bit", dict(size={"shortest_edge": 20, "longest_edge": 40}), "size is"),
        ("Bit", dict(resample=0), "resample"),
        ("DINOv3ViT", dict(resample=3), "resample"),
        ("Siglip2", dict(), "patch_size|max_num_patches"),
    ],
)
def test_a_setting_that_is_not_obeyed_is_named(
    name: str, settings: dict[str, Any], words: str
) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    with pytest.raises(ModelError, match=words):
        preprocessing_in(getattr(transformers, f"{name}ImageProcessor")(**settings))


def test_a_processor_that_does_more_than_it_says_is_refused() -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

    class Darkened(transformers.ViTImageProcessor):  # type: ignore[misc]
        def rescale_and_normalize(self, images: Any, *rest: Any) -> Any:
            return super().rescale_and_normalize(images // self.dark, *rest)

    made = Darkened(size=HW)
    made.dark = 2
    with pytest.raises(ModelError, match=r"Darkened computes other pixels.*\(dark\)"):
        preprocessing_in(made)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("Bit", EVERY[1]),
        ("CLIP", EVERY[2]),
        ("CLIP", EVERY[3]),
        ("DeiT", EVERY[4]),
        ("Perceiver", dict(size={"height": 32, "width": 40}, crop_size=35)),
    ],
)
def test_a_crop_on_the_picture_is_where_the_pixels_come_from(
    name: str, settings: dict[str, Any], size: tuple[int, int]
) -> None:
    """Two ramps across the picture tell the place that each pixel of the input comes from."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    plain = dict(do_normalize=False, resample=2)
    processor = getattr(transformers, f"{name}ImageProcessor")(**{**settings, **plain})
    (width, height), ramps = size, np.zeros((size[1], size[0], 3), np.uint8)
    ramps[..., 0] = np.linspace(20, 230, width).round()
    ramps[..., 1] = np.linspace(20, 230, height).round()[:, None]
    ramps[..., 2] = 255  # where there is picture at all
    image = Image.fromarray(ramps)
    x = np.asarray(processor(image, return_tensors="pt")["pixel_values"][0])
    left, top, right, bottom = preprocessing_in(processor).place(image).crop
    across = left + (np.arange(x.shape[2]) + 0.5) * (right - left) / x.shape[2]
    down = top + (np.arange(x.shape[1]) + 0.5) * (bottom - top) / x.shape[1]
    inside = x[2] > 0.999
    for channel, places, side in ((0, across[None], width), (1, down[:, None], height)):
        seen = 0.5 + (255 * x[channel] - 20) / 210 * (side - 1)
        middle = inside & (places > 2) & (places < side - 2)
        off = np.abs(seen - places)[middle]
        assert not off.size or off.max() <= 1.0


def test_a_whole_processor_has_an_image_processor_inside(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    inside = transformers.CLIPImageProcessor(size={"shortest_edge": 36}, crop_size=32)
    words = {"<|startoftext|>": 0, "<|endoftext|>": 1, "a": 2}
    tokens = transformers.CLIPTokenizer(vocab=words, merges=[])
    whole = transformers.CLIPProcessor(inside, tokens)
    assert preprocessing_in(whole) == preprocessing_in(inside)
    whole.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "processor_config.json").read_text())
    assert settings["image_processor"]["size"] == {"shortest_edge": 36}  # of transformers 5
    assert preprocessing_in_folder(tmp_path, "clip") == preprocessing_in(inside)
    with pytest.raises(ModelError, match="got CLIPTokenizer"):
        preprocessing_in(tokens)


def test_a_file_leaves_out_what_its_class_knows(tmp_path: Path) -> None:
    """As the files of ViT and CLIP from before transformers 4.26 do."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    old = dict(size=32, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    found = preprocessing_from(old, "vit")
    assert (found.input_size, found.interpolation) == ((32, 32), "bilinear")
    clip = preprocessing_from(
        {**old, "feature_extractor_type": "CLIPFeatureExtractor", "crop_size": 32}
    )
    assert (clip.interpolation, clip.crop_mode) == ("bicubic", "center")
    assert clip.place(picture(90, 60)).resized == (48, 32)


def composed(*steps: Any) -> Any:
    from torchvision import transforms  # type: ignore[import-untyped]

    return transforms.Compose([*steps, transforms.Normalize((0.5, 0.4, 0.3), (0.2, 0.3, 0.25))])


def test_transforms_of_torchvision_and_timm_are_read() -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    from timm.data import create_transform
    from torchvision.transforms import CenterCrop, GaussianBlur, RandomCrop, Resize, ToTensor, v2  # type: ignore[import-untyped]
    from torchvision.transforms._presets import ImageClassification  # type: ignore[import-untyped]

    for transforms in (
        composed(Resize(36), CenterCrop(33), ToTensor()),
        composed(Resize((40, 36)), CenterCrop((33, 31)), ToTensor()),
        composed(v2.ToImage(), v2.Resize((36, 40)), v2.ToDtype(torch.float32, scale=True)),
        composed(ToTensor(), Resize((36, 40))),
        create_transform((3, 32, 32), is_training=False, crop_pct=0.9, interpolation="bicubic"),
        ImageClassification(crop_size=32, resize_size=37),
    ):
        found = preprocessing_in(transforms)
        for size in SIZES:
            wanted = np.asarray(transforms(picture(*size)))
            assert levels_off(found(picture(*size)), wanted, found.std).max() <= 4
    for wrong, words in (
        (composed(Resize((36, 36)), GaussianBlur(3), ToTensor()), "GaussianBlur"),
        (composed(Resize(36), RandomCrop(32), ToTensor()), "RandomCrop"),
        (composed(ToTensor(), Resize((36, 36), antialias=None)), "antialias=None"),
        (composed(v2.ToImage(), v2.Resize((36, 36), "nearest-exact"), ToTensor()), "nearest-exact"),
        (composed(Resize(36), ToTensor()), "size is"),
        (composed(CenterCrop(36), ToTensor()), "do_resize"),
    ):
        with pytest.raises(ModelError, match=words):
            preprocessing_in(wrong)


def test_a_module_from_a_folder_knows_its_pictures(tmp_path: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    module = vit_of_transformers(image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"})
    module.save_pretrained(tmp_path)
    loaded = transformers.ViTForImageClassification.from_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"preprocessing of .* is unknown"):
        vitviz.watch(loaded)
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path)
    model = vitviz.watch(loaded)
    assert model.preprocess.input_size == (32, 32)
    acts = vitviz.capture(model, picture())
    assert acts.labels == ("cat", "dog")
    processor = transformers.ViTImageProcessor.from_pretrained(tmp_path)
    assert vitviz.watch(loaded, preprocessing=processor).preprocess == model.preprocess
    (tmp_path / "preprocessor_config.json").write_text("{")
    with pytest.raises(ModelError, match="is not valid JSON") as caught:
        vitviz.watch(loaded)
    assert_clear_error(caught.value)
