"""Prepared inputs: what somebody's own DataLoader made, of 1, 3, 4 or 12 channels, everywhere."""

import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    picture,
    randomise,
    skip_random_weights,
    vit_of_transformers,
)
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from torch import Tensor

import vitviz
from vitviz import ModelError, attribution, inspection, intervention, plots
from vitviz.activations.edits import edited_input
from vitviz.intervention import equivariance
from vitviz.model.origin import picture_digest
from vitviz.profiling import ProfileError
from vitviz.profiling.entries import spool_file, spool_picture
from vitviz.web import report


def model_of(channels: int, architecture: str = "vit_tiny_patch16_224", **options: Any) -> Any:
    kwargs: dict[str, Any] = dict(img_size=48, depth=2, num_classes=5) | options
    with skip_random_weights():
        module = timm.create_model(architecture, in_chans=channels, **kwargs)
    randomise(module)
    return vitviz.watch(module.eval())


def input_of(model: Any, seed: int = 0) -> Tensor:
    shape = len(model.preprocess.mean), *model.preprocess.input_size
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("channels", [1, 3, 4, 12])
def test_a_prepared_input_is_what_the_module_gets(channels: int) -> None:
    model = model_of(channels)
    inputs = [input_of(model, seed) for seed in range(3)]
    with torch.no_grad():
        wanted = model.module(torch.stack(inputs)).numpy()
        alone = model.module(inputs[0][None])[0].numpy()
    acts = vitviz.capture(model, inputs[0])
    assert_array_equal(acts.logits, alone)
    for own, logits in zip(vitviz.captures(model, inputs, batch_size=3), wanted, strict=True):
        assert_array_equal(own.logits, logits)
    assert acts.crop == (0, 0, 48, 48)
    assert acts.photo.size == acts.picture_size == (48, 48)
    said = "mean and std undone" if channels in (1, 3) else "first channel"
    assert said in acts.provenance


@pytest.mark.parametrize("channels", [1, 4])
def test_all_of_the_library_takes_other_channels(channels: int) -> None:
    model = model_of(channels)
    x = input_of(model)
    acts = vitviz.capture(model, x)
    assert attribution.relevance(model, x, 1).shape == (3, 3)
    assert attribution.gradient_rollout(model, x, 1).shape == (3, 3)
    assert intervention.head_effects(model, x).shape[:2] == (2, 3)
    for removal in ("mean", "blur", "drop"):
        assert intervention.occlusion(model, x, 1, removal=removal).shape == (3, 3)
    mask = np.eye(3, dtype=bool)
    filled = vitviz.capture(model, x, edits=[vitviz.FillPatches(mask)])
    painted = x.clone()
    for place in range(3):
        patch = slice(16 * place, 16 * place + 16)
        painted[:, patch, patch] = x.mean(dim=(1, 2), keepdim=True)
    with torch.no_grad():
        assert_array_equal(filled.logits, model.module(painted[None])[0].numpy())
    assert edited_input(model, x, [vitviz.DropPatches(mask)]).shape == (48, 48, 4)
    assert acts.measure() is not None
    assert model.offsets == ((0.0, 0.0),) * 2
    kernel = model.patch_kernel
    assert kernel.shape == (192, channels, 16, 16)
    figure = plots.filter_components(*inspection.filter_components(kernel, n_components=6))
    assert f"mean of its {channels} channels" in figure.layout.meta["alt"]
    assert f"mean of its {channels} channels" in plots.filters(kernel[:4]).layout.meta["alt"]
    assert "channel" in plots.filter_tile(kernel[0], name="filter 1").layout.meta["alt"]
    assert equivariance.shuffle_patches(model, x).outputs.shape == (2, 2, 5)
    for view in ("attention", "anatomy"):
        assert "srcdoc" in vitviz.show(model, x, view=view)._repr_html_()
    made = report.html([report.CapturedPicture(model, "field 1", acts, x)])
    assert "field 1" in made
    inputs = [input_of(model, seed) for seed in range(4)]
    found = vitviz.profile(model, inputs, importance=["zero"])
    with torch.no_grad():
        answers = model.module(torch.stack(inputs)).argmax(dim=1).tolist()
    assert [*found.pictures["answer"]] == answers
    if channels > 1:
        with pytest.raises(ModelError, match=f"takes {channels} channels, and a picture has") as no:
            vitviz.capture(model, picture())
        assert_clear_error(no.value)


def test_a_picture_for_a_grey_model_is_its_luma() -> None:
    """As timm converts it; mean and std are those of the configuration, averaged as timm does."""
    model = model_of(1)
    image = picture(90, 60)
    assert_allclose(model.preprocess.mean, (0.5,))
    x = model.preprocess(image)
    assert x.shape == (1, 48, 48)
    grey = vitviz.Preprocessing(
        input_size=(48, 48),
        **dict(mean=(0.5,) * 3, std=(0.5,) * 3, crop_pct=model.preprocess.crop_pct),
    )(image.convert("L"))
    assert (x - grey).abs().max() <= 1.01 / 255 / 0.5  # rounded once before the resizing
    with torch.no_grad():
        wanted = model.module(x[None])[0].numpy()
    assert_array_equal(vitviz.capture(model, image).logits, wanted)
    own = vitviz.Preprocessing(input_size=(48, 48), mean=(0.1, 0.2, 0.6), std=(0.2, 0.3, 0.4))
    watched = vitviz.watch(model.module, preprocessing=own)
    assert_allclose([*watched.preprocess.mean, *watched.preprocess.std], (0.3, 0.3))


def test_a_prepared_input_that_does_not_fit_is_refused_clearly() -> None:
    model = model_of(3)
    x = input_of(model)
    nan = x.clone()
    nan[0, 0, 0] = torch.nan
    for wrong, words in (
        (x[None], r"no batch dimension.*x\[0\]"),
        (torch.stack([x, x]), "shape"),
        (x[:1], r"\(3, 48, 48\), got \(1, 48, 48\)"),
        (x[:, :32], r"\(3, 48, 48\), got \(3, 32, 48\)"),
        (x.permute(1, 2, 0), "channels, height, width"),
        ((255 * x).byte(), "floating-point numbers.*got uint8"),
        (x.long(), "got int64"),
        (nan, "NaN or infinite"),
        (x / 0, "NaN or infinite"),
    ):
        for call in (
            lambda given=wrong: vitviz.capture(model, given),
            lambda given=wrong: [*vitviz.captures(model, [given])],
            lambda given=wrong: attribution.relevance(model, given, 1),
            lambda given=wrong: intervention.occlusion(model, given, 1),
        ):
            with pytest.raises(ModelError, match=words) as no:
                call()
            assert_clear_error(no.value)
    with pytest.raises(TypeError, match="ndarray"):
        vitviz.capture(model, x.numpy())  # type: ignore[arg-type]


def test_a_picture_stands_for_a_prepared_input() -> None:
    model = model_of(3)
    image = picture(90, 60)
    x = model.preprocess(image)
    own, cropped = vitviz.capture(model, x, picture=image), vitviz.capture(model, image)
    assert_array_equal(own.logits, cropped.logits)
    assert own.crop == cropped.crop  # as the model's own preprocessing makes the input of it
    assert "a picture given for it" in own.provenance
    other = vitviz.capture(model, input_of(model), picture=image)
    assert other.crop == (0, 0, 90, 60)
    assert other.picture_size == (90, 60)
    (both,) = vitviz.captures(model, [x], picture=[image])
    assert both.crop == cropped.crop
    undone = np.asarray(vitviz.capture(model, x).photo, int)
    left, top, right, bottom = map(round, cropped.crop)
    shown = np.asarray(image.crop((left, top, right, bottom)).resize((48, 48)), int)
    assert np.abs(undone - shown).mean() < 8  # mean and std are undone: the colours of the crop
    with pytest.raises(TypeError, match="belongs to a prepared input"):
        vitviz.capture(model, image, picture=image)


def test_every_function_takes_a_path_and_bytes(tmp_path: Path) -> None:
    model = model_of(3)
    image = picture(50, 50)
    image.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    calls: list[Any] = [
        lambda given: attribution.relevance(model, given, 1),
        lambda given: intervention.head_effects(model, given),
        lambda given: intervention.occlusion(model, given, 1),
        lambda given: intervention.deletion_curve(model, given, np.eye(3), 1).probabilities,
        lambda given: equivariance.shuffle_patches(model, given).outputs,
        lambda given: edited_input(model, given, []),
    ]
    for call in calls:
        wanted = call(image)
        for given in (tmp_path / "a.png", str(tmp_path / "a.png"), data, model.preprocess(image)):
            assert_array_equal(call(given), wanted)


def test_a_profile_takes_what_a_dataset_and_a_loader_yield(tmp_path: Path) -> None:
    model = model_of(3)
    images = [picture(60, 50), picture(50, 70), picture(64, 64)]
    images[0].save(tmp_path / "a.png")
    inputs = [model.preprocess(image) for image in images]
    labels = [0, 1, 2]
    expected = vitviz.profile(model, images, labels=labels)
    keys = [("image", "label"), ("pixel_values", "labels"), ("image", "target")]
    pairs: Any = [*zip(inputs, labels, strict=True)]
    loader: Any = torch.utils.data.DataLoader(pairs, batch_size=2)
    for given in (
        [*zip(images, labels, strict=True)],
        zip(inputs, map(torch.tensor, labels), strict=True),
        [(tmp_path / "a.png", 0), *zip(images[1:], np.array(labels[1:]), strict=True)],
        [{a: x, b: y} for (a, b), x, y in zip(keys, inputs, labels, strict=True)],
        loader,
        [{"pixel_values": torch.stack(inputs), "labels": torch.tensor(labels)}],
    ):
        found = vitviz.profile(model, given)
        assert [*found.pictures["label"]] == labels
        assert [*found.pictures["answer"]] == [*expected.pictures["answer"]]
    for wrong, words in (
        ([{"x": images[0]}], "dictionary with one of image"),
        ([(images[0], 1, 2)], "got 3 parts"),
        ([(images[0], torch.tensor([0.0, 1.0]))], "number or the name of one class"),
        ([(torch.stack(inputs), [1])], "3 inputs but 1 label\\."),
        ([3], "got int"),
    ):
        with pytest.raises(ProfileError, match=words):
            vitviz.profile(model, wrong)


def test_a_profile_of_an_iterator_holds_few_of_its_pictures(tmp_path: Path) -> None:
    model, other = model_of(3), model_of(3, num_classes=7)
    alive: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
    counts: list[int] = []

    def pictures() -> Iterator[Any]:
        for seed in range(12):
            made: Any = picture(60, 50, seed=seed) if seed % 2 else input_of(model, seed)
            alive[seed] = made
            counts.append(len(alive))
            yield {"image": made, "label": seed % 5} if seed % 3 else (made, seed % 5)

    def count(*_: int) -> None:
        counts.append(len(alive))

    found = vitviz.profile(model, pictures(), batch_size=2, progress=count, out=tmp_path / "run")
    assert max(counts) <= 3
    assert len(counts) > 12
    assert not alive
    expected = vitviz.profile(model, [*pictures()], batch_size=2)
    assert_array_equal(found.values("distance"), expected.values("distance"))
    for name in ("picture", "sha256", "label", "answer", "confidence", "skipped"):
        assert [*found.pictures[name]] == [*expected.pictures[name]]
    for name in ("list_sha256", "source"):
        assert found.about[name] == expected.about[name]
    counts.clear()
    alive.clear()  # a profile in memory keeps its list
    vitviz.profiling.compare(model, other, pictures(), batch_size=2, progress=count)
    assert max(counts) <= 3


def test_an_iterator_leaves_no_file_and_is_profiled_by_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model = model_of(3)
    inputs = torch.stack([input_of(model, seed) for seed in range(3)])
    found = vitviz.profile(model, iter([(inputs, [0, 1, 2])]), workers=1)
    assert [*found.pictures["label"]] == [0, 1, 2]
    with torch.no_grad():
        assert [*found.pictures["answer"]] == model.module(inputs).argmax(dim=1).tolist()
    wrong: Any = 3
    with pytest.raises(ProfileError, match="got int"):
        vitviz.profile(model, iter([inputs[0], wrong]))
    assert not [*tmp_path.glob("vitviz-*")]


def test_a_profile_skips_grey_that_pillow_would_clip() -> None:
    pictures = [picture(), Image.new("I;16", (20, 20), 4095)]
    found = vitviz.profile(model_of(3), pictures, workers=1)
    assert not found.pictures["skipped"][0]
    assert "mode I;16 with values from 4095" in found.pictures["skipped"][1]


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "I;16", "CMYK", "1"])
def test_a_picture_of_any_mode_comes_back_from_the_spool(mode: str) -> None:
    given = picture(20, 16).convert("L" if mode == "I;16" else "RGB").convert(mode)
    given.info = {"transparency": 3, "icc_profile": open}  # the last cannot be pickled everywhere
    with spool_file() as file:
        laid = [spool_picture(each, file) for each in (given, input_of(model_of(3))[0], b"bytes")]
        file.flush()
        back, row, data = (each.read() for each in laid)
    assert isinstance(back, Image.Image)
    assert (back.mode, back.size) == (mode, given.size)
    assert back.info == {"transparency": 3}
    assert_array_equal(np.asarray(back), np.asarray(given))
    assert laid[0].sha256 == picture_digest(given)
    assert isinstance(row, Tensor)
    assert row.untyped_storage().nbytes() == row.nbytes
    assert data == b"bytes"


@pytest.mark.parametrize("channels", [1, 4])
def test_other_families_take_other_channels(channels: int) -> None:
    vision: Any = pytest.importorskip("torchvision.models", reason="torchvision is not installed")
    with skip_random_weights():
        modules: list[Any] = [
            vit_of_transformers(image_size=(32, 48), num_channels=channels),
            vision.VisionTransformer(
                image_size=32, patch_size=16, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48
            ),
        ]
    modules[1].conv_proj = torch.nn.Conv2d(channels, 32, 16, 16)
    for module, size in zip(modules, ((32, 48), (32, 32)), strict=True):
        randomise(module)
        how = vitviz.Preprocessing(input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3)
        model = vitviz.watch(module.eval(), preprocessing=how)
        x = input_of(model)
        with torch.no_grad():
            wanted = module(x[None])
        wanted = getattr(wanted, "logits", wanted)[0].numpy()
        assert_array_equal(vitviz.capture(model, x).logits, wanted)
        assert np.isfinite(attribution.relevance(model, x, 0)).all()


def test_an_input_that_the_module_itself_refuses_is_no_raw_error() -> None:
    """transformers' own DINOv2 takes no configuration whose grid of positions is not square."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, mlp_ratio=2,
        image_size=(48, 80), patch_size=16,
    )  # fmt: skip
    with skip_random_weights():
        module: Any = transformers.Dinov2Model(config)
    randomise(module)
    how = vitviz.Preprocessing(input_size=(48, 80), mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(ModelError, match="48 x 80 pixels: shape") as no:
        vitviz.capture(vitviz.watch(module.eval(), preprocessing=how), picture())
    assert_clear_error(no.value)


@pytest.mark.parametrize("family", ["timm", "transformers", "swin"])
def test_every_call_works_within_autocast(family: str) -> None:
    """The forward pass runs as the user would run it; what is computed of it loses no digits."""
    module: Any
    with skip_random_weights():
        if family == "transformers":
            module = vit_of_transformers(image_size=48, num_labels=5)
        elif family == "swin":
            module = timm.create_model(
                "swin_tiny_patch4_window7_224", img_size=32, window_size=4, depths=(1, 1),
                num_heads=(2, 2), embed_dim=16, num_classes=5,
            )  # fmt: skip
        else:
            module = timm.create_model("vit_tiny_patch16_224", img_size=48, depth=2, num_classes=5)
    randomise(module)
    side = 32 if family == "swin" else 48
    how = vitviz.Preprocessing(input_size=(side, side), mean=(0.5,) * 3, std=(0.5,) * 3)
    model, image = vitviz.watch(module.eval(), preprocessing=how), picture(60, 50)
    maps: list[Any] = [
        lambda: attribution.relevance(model, image, 1),
        lambda: attribution.gradient_rollout(model, image, 1),
        lambda: np.array(model.offsets),
    ]
    if family == "timm":
        maps.append(lambda: equivariance.shuffle_patches(model, image, seed=1).outputs)
    wanted = [call() for call in maps]
    whole = vitviz.capture(model, image)
    with torch.autocast("cpu", torch.bfloat16):
        for call, own in zip(maps, wanted, strict=True):
            assert_array_equal(call(), own)
        acts = vitviz.capture(model, image)
        with torch.no_grad():
            logits = module(model.preprocess(image)[None])
        logits = getattr(logits, "logits", logits)[0].float().numpy()
        assert_array_equal(acts.logits, logits)
        assert np.abs(logits - whole.logits).max() > 0  # it ran in bfloat16
        inside = [acts.attention(layer) for layer in range(2)]
        tokens = acts.tokens(2)
        if family != "swin":
            measured = acts.measure().distance
            normed = acts.tokens(2, normalised=True)
            lens = intervention.logit_lens(model, acts)
            assert acts.probabilities is not None
            assert_allclose(lens[-1], acts.probabilities, atol=0.02)
            assert intervention.head_effects(model, image) is not None
        assert intervention.occlusion(model, image, 1).shape == model.layers[0].query_grid
        found = vitviz.profile(model, [image] * 4, importance=["zero"])
        assert found.about["skipped"] == 0
        for view in ("attention", "anatomy"):
            vitviz.show(model, image, view=view)
    for layer, attention in enumerate(inside):
        assert_array_equal(acts.attention(layer), attention)
        assert_allclose(attention.sum(axis=-1), 1, atol=1e-5)
        assert_allclose(attention, whole.attention(layer), atol=0.05)
    assert_array_equal(acts.tokens(2), tokens)
    if family != "swin":
        assert_array_equal(acts.measure().distance, measured)
        assert_array_equal(acts.tokens(2, normalised=True), normed)
