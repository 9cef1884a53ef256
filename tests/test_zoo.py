"""load_model: names, weights, seeds and sizes; timm is the oracle. No test reaches the network."""

import random
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
import timm
import torch
from examples import (
    LITTLE,
    assert_clear_error,
    own_module,
    picture,
    plain_logits,
    timm_module,
    write_shipped,
)
from hub_server import put_in_cache
from numpy.testing import assert_array_equal
from PIL import Image
from safetensors.torch import save
from threadpoolctl import threadpool_limits
from timm.data import create_transform, resolve_model_data_config
from timm.models import get_pretrained_cfg

import vitviz
from vitviz.model import Model, Preprocessing, memory
from vitviz.model.families import ModelError, position_encodings
from vitviz.text.families import POSITION_ENCODINGS, explain_positions
from vitviz.zoo import (
    Entry,
    catalogue,
    checkpoints,
    leave_cores_free,
    load_model,
    random_kernel,
    weights_of,
)
from vitviz.zoo.architectures import on_meta_device
from vitviz.zoo.checkpoints import load_shipped


@pytest.fixture
def shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a model whose weights are the only ones in assets/."""
    write_shipped(tmp_path)
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    return "little"


def without_numbers(name: str, **options: Any) -> Model:
    """A model whose weights are not even made: for what does not depend on them."""
    with on_meta_device():
        return load_model(name, pretrained=False, **options)


shared = cache(without_numbers)  # for tests that change nothing about it


def test_what_was_loaded_here_is_ready_and_frozen(shipped: str) -> None:
    for model in (load_model(shipped), load_model("test_vit", pretrained=False)):
        assert not any(part.training for part in model.module.modules())
        assert not any(weight.requires_grad for weight in model.module.parameters())


# --- the interface ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("vit_tinny_patch16_224", r"vit_tinny_patch16_224.*Did you mean vit_tiny_patch16_224\?"),
        ("litle", r"Did you mean little\?"),
        ("", "There is no model named"),
        ("../../etc/passwd", "There is no model named"),
    ],
)
def test_an_unknown_name_is_refused(name: str, said: str, shipped: str) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load_model(name)
    assert_clear_error(caught.value)


def test_a_torchvision_of_another_build_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timm.py").write_text('raise RuntimeError("operator torchvision::nms is missing")')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "timm")
    for use in (vitviz.load_model, vitviz.zoo.weights_of, vitviz.zoo.toy_model):
        name = "MLP-Mixer" if use is vitviz.zoo.toy_model else "resnet18"
        with pytest.raises(ModelError, match="torchvision::nms is missing") as refused:
            use(name)
        assert_clear_error(refused.value, torch.__version__)


def test_timms_prefix_is_understood() -> None:
    model = without_numbers("timm/test_vit")
    assert model.name == "timm/test_vit"
    assert type(model.module).__module__ == "timm.models.vision_transformer"


@pytest.mark.parametrize(
    "entry", [each for each in catalogue() if not each.shipped], ids=attrgetter("name")
)
def test_what_is_known_of_a_model_of_the_menu(entry: Entry) -> None:
    """timm's weights and their size; and no position encoding is claimed that is not there."""
    assert entry.weights == weights_of(entry.name) == weights_of(f"timm/{entry.name}")
    known = get_pretrained_cfg(entry.name)
    assert entry.weights is not None
    assert known is not None
    assert entry.weights.repo == known.hf_hub_id
    model = without_numbers(entry.name)
    assert model.layers
    bytes_of_numbers = 4 * model.parameter_count
    assert entry.size == pytest.approx(bytes_of_numbers / 1e6, abs=0.06)
    sources = position_encodings(model.module, model.layers)
    said = explain_positions(entry.name, sources)
    assert entry.name in said
    assert ("nothing tells" in said) == (sources == ("embedding",))
    assert all((words in said) == (key in sources) for key, words in POSITION_ENCODINGS.items())
    if len({layer.query_grid for layer in model.layers}) > 1:  # Positions says so of all of these
        assert "embedding" not in sources


def test_the_catalogue_knows_what_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert catalogue()[0].shipped
    assert {entry.on_disk for entry in catalogue() if entry.shipped} == {True}
    assert {entry.on_disk for entry in catalogue() if not entry.shipped} == {False}
    put_in_cache(tmp_path, weights_of("deit_tiny_patch16_224"), b"weights")
    assert [entry.name for entry in catalogue() if entry.on_disk and not entry.shipped] == [
        "deit_tiny_patch16_224"
    ]


# --- random weights -----------------------------------------------------------------------------


def same_weights(first: Model, second: Model) -> bool:
    states = first.module.state_dict(), second.module.state_dict()
    return all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("source", ["timm", "shipped"])
def test_random_weights_depend_on_the_seed_alone(source: str, shipped: str) -> None:
    name = {"timm": "test_vit", "shipped": shipped}[source]

    def load(seed: int | None = None) -> Model:
        return load_model(name, pretrained=False, seed=seed)

    first = load(3)
    torch.rand(7)  # moves the global generator
    assert same_weights(first, load(3))
    assert not same_weights(first, load(4))
    assert same_weights(load(), load(0))
    assert (first.trained, first.weights) == (False, "random weights")


@pytest.mark.parametrize("pretrained", [True, False])
@pytest.mark.parametrize("source", ["timm", "shipped"])
def test_loading_leaves_the_global_generators_alone(
    source: str, pretrained: bool, shipped: str, offline: None
) -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()  # type: ignore[index]
    load_model({"timm": "test_vit", "shipped": shipped}[source], pretrained=pretrained)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert_array_equal(np.random.get_state()[1], states[2])  # type: ignore[index]


def test_a_seed_of_weights_that_are_not_random_is_refused() -> None:
    file: Any = dict(checkpoint="weights.safetensors")
    for options in ({}, file, dict(file, pretrained=False)):
        with pytest.raises(ModelError, match=r"A seed belongs to random weights\. Add pretrained="):
            load_model("test_vit", seed=1, **options)


@pytest.mark.parametrize("size", [None, (48, 80)])
def test_a_mimetic_initialisation_depends_on_the_seed(size: tuple[int, int] | None) -> None:
    def load(seed: int | None) -> dict[str, Any]:
        model = load_model(
            "vitviz_tiny_cifar10",
            pretrained=False,
            initialisation="mimetic",
            seed=seed,
            image_size=size,
        )
        return dict(model.module.state_dict())

    one, other = load(1), load(2)
    drawn = [key for key in one if key.endswith("weight") and "norm" not in key]
    assert len(drawn) > 20
    for key in drawn:
        assert not torch.equal(one[key], other[key]), key
    assert all(torch.equal(value, one[key]) for key, value in load(1).items())
    began = load_shipped("vitviz_tiny_cifar10").initialisation
    assert began is not None
    own = load(began["seed"])  # without a seed: as its training began
    assert all(torch.equal(value, own[key]) for key, value in load(None).items())


# --- trained weights of timm --------------------------------------------------------------------


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No network, and timm's smallest ViT in the hub's cache."""
    weights = save(timm_module("test_vit").state_dict())
    put_in_cache(tmp_path / "hub", weights_of("test_vit"), weights)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))


# --- what a timm model is -----------------------------------------------------------------------


def test_a_tiny_vit_has_the_parameters_of_the_paper() -> None:
    model = without_numbers("vit_tiny_patch16_224")
    assert model.parameter_count == 5_717_416
    assert model.num_classes == 1000
    assert model.family == "ViT"
    assert model.name == "vit_tiny_patch16_224"


def test_classes_have_the_names_that_the_trained_weights_answer_with(
    offline: None, tmp_path: Path
) -> None:
    model = load_model("test_vit")
    assert model.labels is not None
    assert len(model.labels) == model.num_classes == 1000
    assert model.labels[0].startswith("tench")
    assert model.labels[281].startswith("tabby")
    assert vitviz.capture(model, picture()).labels == model.labels
    larger = "vit_tiny_patch16_224.augreg_in21k"
    put_in_cache(tmp_path / "hub", weights_of(larger), save(timm_module(larger).state_dict()))
    labels = load_model(larger).labels
    assert labels is not None
    assert len(labels) == 21843


@pytest.mark.parametrize("name", ["test_vit", "vitviz_tiny_cifar10"])
def test_outputs_of_random_weights_have_no_names(name: str) -> None:
    model = load_model(name, pretrained=False)
    assert model.labels is None
    acts = vitviz.capture(model, picture())
    assert acts.labels is None
    assert acts.output_names[5] == "output 5"
    assert len(acts.output_names) == model.num_classes > 5


@pytest.mark.parametrize(
    ("name", "embeds"),
    [
        ("vit_base_patch16_clip_224.openai", True),  # 512 numbers
        ("vit_base_patch32_clip_224.laion2b", True),
        ("vit_base_patch32_clip_224", False),  # trained further, on ImageNet
        ("eva02_base_patch16_clip_224", True),
        ("vit_pe_core_tiny_patch16_384", True),
        ("vit_huge_patch14_clip_224.dfn5b", True),  # 1,024
        ("vit_base_patch16_clip_224.laion2b_ft_in12k", False),
        ("vit_base_patch16_224.bamboo", False),  # 115,217 classes without names
        ("vit_tiny_patch16_224", False),
        ("vit_small_patch14_dinov2", False),  # no head
    ],
)
def test_an_embedding_is_told_from_classes(name: str, embeds: bool) -> None:
    model = without_numbers(name)
    assert model.embeds is embeds
    assert model.labels is None
    assert model.num_classes == (0 if embeds else model.module.num_classes)


def test_an_embedding_is_no_answer() -> None:
    model = load_model("vit_xsmall_patch16_clip_224", pretrained=False, image_size=32)
    acts = vitviz.capture(model, picture())
    assert acts.logits is not None
    assert acts.logits.shape == (512,)  # as the plain module gives it
    assert_array_equal(acts.logits, plain_logits(model, picture()).numpy())
    assert acts.probabilities is None
    assert acts.labels is None
    questions: list[Callable[[], object]] = [
        lambda: vitviz.attribution.relevance(model, picture(), 5),
        lambda: vitviz.attribution.gradient_rollout(model, picture(), 5),
        lambda: vitviz.intervention.logit_lens(model, acts),
        lambda: vitviz.intervention.head_effects(model, picture()),
        lambda: vitviz.intervention.occlusion(model, picture(), target=5),
    ]
    for ask in questions:
        with pytest.raises(ModelError, match="has no classification head") as caught:
            ask()
        assert_clear_error(caught.value)


@pytest.mark.parametrize("size", [(300, 200), (90, 400), (31, 17)])
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vit_tiny_patch16_224", {}),  # a crop of 0.9, mean and std of 0.5
        ("deit_tiny_patch16_224", {}),  # ImageNet's mean and std
        ("vit_base_patch16_clip_224", {}),
        ("vit_base_patch16_siglip_224", {}),
        ("vit_small_patch14_dinov2", dict(image_size=224)),
        ("vit_tiny_patch16_224", dict(image_size=(160, 224))),
    ],
)
def test_preprocessing_is_timms_evaluation_transform(
    name: str, options: dict[str, Any], size: tuple[int, int]
) -> None:
    model = shared(name, **options)
    config = resolve_model_data_config(model.module)
    config["input_size"] = (3, *model.preprocess.input_size)
    transform = create_transform(**config, is_training=False)
    image = picture(*size)
    x, expected = model.preprocess(image), transform(image)
    assert x.shape == expected.shape
    std = torch.tensor(config["std"])[:, None, None]
    levels = ((x - expected) * std * 255).abs()
    assert levels.mean() < 0.5
    assert levels.max() < 8


@pytest.mark.parametrize("crop_mode", ["squash", "border"])
def test_other_crop_modes_are_timms_too(crop_mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Any = resolve_model_data_config

    def resolve(module: Any) -> dict[str, Any]:
        return {**real(module), "crop_mode": crop_mode, "interpolation": "bilinear"}

    monkeypatch.setattr("timm.data.resolve_model_data_config", resolve)
    model = without_numbers("vit_tiny_patch16_224")
    config = resolve(model.module)
    for size in ((300, 200), (100, 250)):
        x = model.preprocess(picture(*size))
        expected = create_transform(**config, is_training=False)(picture(*size))
        assert ((x - expected) * 0.5 * 255).abs().mean() < 0.5


# --- what is said of a checkpoint beside its file -----------------------------------------------


SETTINGS: dict[str, Any] = dict(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop_pct=0.8)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("given") / "mine.pth"
    torch.save(timm_module("test_vit", num_classes=3).state_dict(), path)
    return path


def test_a_dictionary_names_what_differs(file: Path) -> None:
    own = load_model("test_vit", checkpoint=file)
    model = load_model(
        "test_vit", checkpoint=file, preprocessing=SETTINGS, labels=["cat", "dog", "fox"]
    )
    assert model.labels == ("cat", "dog", "fox")
    made = model.preprocess
    assert (made.mean, made.std, made.crop_pct) == tuple(SETTINGS.values())
    assert (made.input_size, made.interpolation) == (
        own.preprocess.input_size,
        own.preprocess.interpolation,
    )
    assert model.weights == f"{own.weights}, preprocessing as given"
    expected = Preprocessing(input_size=(160, 160), interpolation=made.interpolation, **SETTINGS)
    assert torch.equal(made(picture(300, 200)), expected(picture(300, 200)))


def test_a_whole_preprocessing_gives_the_input_size_too(file: Path) -> None:
    given = Preprocessing(input_size=(96, 128), **SETTINGS, crop_mode="squash")
    model = load_model("test_vit", checkpoint=file, preprocessing=given)
    assert model.preprocess == given
    assert model.layers[0].query_grid == (6, 8)
    assert ", positions resampled from 10x10 to 6x8" in model.weights
    other = load_model("test_vit", checkpoint=file, preprocessing=given, image_size=64)
    assert other.preprocess.input_size == (64, 64)
    assert other.preprocess.mean == given.mean
    by_name = load_model("test_vit", checkpoint=file, preprocessing=dict(input_size=(96, 128)))
    assert by_name.preprocess.input_size == (96, 128)


def test_an_image_processor_of_transformers_is_taken(file: Path) -> None:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    kind = getattr(transformers, "ViTImageProcessorPil", transformers.ViTImageProcessor)
    made = kind(size={"height": 64, "width": 64}, resample=2, image_mean=[0.1] * 3)
    model = load_model("test_vit", checkpoint=file, preprocessing=made)
    assert model.preprocess.input_size == (64, 64)
    assert model.preprocess.mean == (0.1, 0.1, 0.1)
    assert model.preprocess.interpolation == "bilinear"


def test_a_model_without_a_checkpoint_takes_it_too() -> None:
    model = load_model("test_vit", pretrained=False, preprocessing=SETTINGS, crop=False)
    assert model.preprocess.mean == SETTINGS["mean"]
    assert (model.preprocess.crop_mode, model.preprocess.crop_pct) == ("squash", 1.0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (dict(colour=3), "Unknown field colour of the preprocessing. Known are input_size, mean, "),
        (
            dict(std=(0.0, 1.0, 1.0)),
            r"Invalid preprocessing: std \(0\.0, 1\.0, 1\.0\)",
        ),
        (dict(crop_pct=0.0), "Invalid preprocessing"),
        (dict(crop_mode="mirror"), "Invalid preprocessing"),
        (dict(input_size=0), "Expected an image size"),
        (3, "Expected a vitviz.Preprocessing"),
    ],
)
def test_what_fits_no_picture_is_refused(given: Any, said: str, file: Path) -> None:
    with pytest.raises(ModelError, match=said) as caught:
        load_model("test_vit", checkpoint=file, preprocessing=given)
    assert_clear_error(caught.value)


# --- picture sizes ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image_size", "grid"), [(None, (8, 8)), (16, (4, 4)), ((40, 56), (10, 14))]
)
@pytest.mark.parametrize("pretrained", [True, False])
def test_a_shipped_model_of_another_size(
    image_size: Any, grid: tuple[int, int], pretrained: bool, shipped: str
) -> None:
    model = load_model(shipped, pretrained=pretrained, image_size=image_size)
    assert model.preprocess.input_size == (4 * grid[0], 4 * grid[1])
    assert vitviz.capture(model, picture()).attention_map(0, 0).shape == (4, *grid)


def test_an_impossible_size_is_refused_in_one_sentence() -> None:
    sizes: list[Any] = [0, -16, (0, 32), (32, -4), (32,), (32, 32, 3), 32.0, (32.0, 32.0), "32", ()]
    for image_size in (*sizes, 10**9):
        with pytest.raises(ModelError) as caught:
            load_model("test_vit", image_size=image_size)
        assert_clear_error(caught.value)
        assert "download" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "image_size", "words"),
    [
        ("vitviz_tiny_cifar10", 30, "30 x 30 is not a multiple of the patch size 4"),
        ("vit_tiny_patch16_224", 8, "8 x 8"),  # less than a patch
        ("resnet18", 64, "ResNet"),  # takes none
    ],
)
def test_a_size_that_the_architecture_cannot_have_is_refused(
    name: str, image_size: int, words: str
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load_model(name, pretrained=False, image_size=image_size)
    assert_clear_error(caught.value)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("eva02_tiny_patch14_224", (70, 112)),
        ("test_vit_relpos", (64, 112)),
        ("swin_tiny_patch4_window7_224", (96, 160)),
        ("coatnet_0_rw_224", (64, 96)),
        ("mixer_s32_224", (64, 96)),
        ("vit_tiny_patch16_224", (100, 100)),  # no whole patches
        ("pvt_v2_b0", (64, 160)),  # which takes any size and is not told it
    ],
)
def test_other_families_of_another_size(name: str, size: tuple[int, int]) -> None:
    model = without_numbers(name, image_size=size)
    assert model.preprocess.input_size == size
    rows, cols = model.layers[0].query_grid
    assert rows / cols == size[0] / size[1]


# --- memory -------------------------------------------------------------------------------------


def test_what_does_not_fit_is_refused_with_both_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda: 2 * 10**9)
    made: list[bool] = []
    real = timm.create_model

    def create(name: str, **options: Any) -> Any:
        made.append(torch.empty(1).is_meta)
        return real(name, **options)

    monkeypatch.setattr(timm, "create_model", create)
    with pytest.raises(ModelError, match=r"[78]\.\d GB of memory, and 2\.0 GB are free") as caught:
        load_model("vit_gigantic_patch14_224", pretrained=False)
    assert_clear_error(str(caught.value).replace(".", ",")[:-1] + ".")
    assert made == [True]  # without numbers, and no more than that
    load_model("test_vit", pretrained=False)


# --- shipped models -----------------------------------------------------------------------------


def test_a_shipped_model_describes_itself(shipped: str) -> None:
    model = load_model(shipped)
    assert model.name == shipped
    assert model.trained is True
    assert model.weights == "shipped weights, 87.5 % on its test pictures"
    assert model.labels == ("cat", "dog", "fox", "owl", "bat")
    assert model.preprocess.mean == (0.1, 0.2, 0.3)
    assert model.preprocess.std == (0.4, 0.5, 0.6)
    assert model.preprocess.input_size == (32, 32)
    expected = own_module(**LITTLE).state_dict()
    for key, value in model.module.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, expected[key].half().float()), key


def test_the_model_that_comes_with_the_project() -> None:
    model = load_model("vitviz_tiny_cifar10")
    assert model.trained is True
    assert model.weights.startswith("shipped weights")
    assert model.labels is not None
    assert set(model.labels) >= {"airplane", "cat", "dog", "ship", "truck"}
    assert len(model.labels) == 10
    assert load_shipped("vitviz_tiny_cifar10").test_accuracy > 0.7136
    acts = vitviz.capture(model, picture())
    assert acts.probabilities is not None
    assert acts.probabilities.shape == (10,)
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    assert catalogue()[0].name == "vitviz_things200"


@pytest.mark.parametrize("name", ["vitviz_tiny_cifar10", "vitviz_tiny_cifar100"])
def test_a_photo_reaches_the_shipped_models_as_soft_as_their_training(name: str) -> None:
    model = load_model(name)
    levels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    noise = Image.fromarray(levels)
    assert model.preprocess(noise).std() < 0.6 * replace(model.preprocess, detail=1.0)(noise).std()


# --- threads ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cores", "threads"), [(8, 4), (3, 1), (1, 1)])
def test_half_of_the_cores_that_joblib_counts_are_used(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """joblib heeds the affinity of the process and the quota of its container."""
    monkeypatch.setattr(joblib, "cpu_count", lambda: cores)
    before = torch.get_num_threads()
    try:
        with threadpool_limits(None):  # puts back what is changed within
            leave_cores_free()
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("vitviz_tiny_cifar10", False),
        ("deit_tiny_distilled_patch16_224", False),
        ("eva02_tiny_patch14_336", False),
        ("cait_xxs24_224", False),
        ("swin_tiny_patch4_window7_224", False),
        ("pvt_v2_b0", True),  # these two draw it themselves, after all else
        ("gmlp_ti16_224", True),
    ],
)
def test_random_filters_are_those_of_the_random_model(
    name: str, whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(name, pretrained=False)
    made: list[str] = []

    def load(name: str, **options: Any) -> Model:
        made.append(name)
        return load_model(name, **options)

    monkeypatch.setattr("vitviz.zoo.loading.load_model", load)
    before = torch.random.get_rng_state()
    kernel = random_kernel(model)
    assert model.patch_kernel is not None
    assert_array_equal(kernel, model.patch_kernel)
    assert made == [name] * whole
    assert_array_equal(torch.random.get_rng_state(), before)
