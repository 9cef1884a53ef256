"""What the outputs of a model mean, how many there are, and what they are called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    narrow_mixer,
    narrow_stages,
    own_module,
    picture,
    randomise,
    seeded,
    timm_module,
    vit_of_transformers,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from torch import nn

import vitviz
from vitviz import ModelError
from vitviz.attribution import relevance
from vitviz.intervention import deletion_curve, head_effects, logit_lens, occlusion, patch_lens
from vitviz.intervention.equivariance import shuffle_patches
from vitviz.model import Model, Preprocessing
from vitviz.model.answers import class_names

SIZE = Preprocessing(input_size=(64, 64), mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
SWIN: dict[str, Any] = dict(img_size=64, window_size=4, depths=(1, 1), num_heads=(2, 2))
VIT: dict[str, Any] = dict(img_size=64, embed_dim=48, depth=2, num_heads=3)


def vit(**options: Any) -> Any:
    return timm_module("vit_tiny_patch16_224", **{**VIT, **options})


def made_by_timm(name: str, **options: Any) -> Any:
    """A module with buffers, as of relative positions."""
    with seeded():
        module = timm.create_model(name, num_classes=5, **options).eval()
    randomise(module)
    return module


def torchvision_module(kind: str, *options: Any) -> Any:
    return getattr(pytest.importorskip("test_torchvision"), kind)(*options)


def swin_of_transformers() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes = dict(image_size=64, window_size=4, embed_dim=24, depths=[1, 1], num_heads=[2, 2])
    return transformers.SwinForImageClassification(transformers.SwinConfig(**sizes)).eval()


#: By name: what makes the module, and the path of the head that people exchange.
HEADS: dict[str, tuple[Callable[[], Any], str]] = {
    "ViT": (vit, "head"),
    "own": (lambda: own_module(image_size=64, patch_size=16, embed_dim=48), "head"),
    "EVA": (lambda: made_by_timm("eva02_tiny_patch14_224", **{**VIT, "img_size": 56}), "head"),
    "CaiT": (lambda: timm_module("cait_xxs24_224", **VIT), "head"),
    "Swin": (lambda: made_by_timm("swin_tiny_patch4_window7_224", embed_dim=24, **SWIN), "head.fc"),
    "CoAtNet": (
        lambda: made_by_timm("coatnet_0_rw_224", img_size=64, **narrow_stages()),
        "head.fc",
    ),
    "MLP-Mixer": (lambda: narrow_mixer(img_size=64), "head"),
    "torchvision's ViT": (lambda: torchvision_module("vit", 64), "heads.head"),
    "torchvision's Swin": (lambda: torchvision_module("swin", "swin_t"), "head"),
    "transformers' ViT": (lambda: vit_of_transformers(image_size=64), "classifier"),
    "transformers' Swin": (swin_of_transformers, "classifier"),
}


def model_of(module: nn.Module, **options: Any) -> Model:
    size = 56 if type(module).__name__ == "Eva" else 64
    return watched(module, (size, size), **options)


def exchange(module: nn.Module, path: str, head: Callable[[int], nn.Module]) -> None:
    """Put what `head` makes for its width in the place of a head."""
    parts = module.get_submodule(path).modules()
    width = next(part.in_features for part in parts if isinstance(part, nn.Linear))
    parent, _, name = path.rpartition(".")
    setattr(module.get_submodule(parent), name, head(width).eval())


def plain(model: Model) -> np.ndarray:
    with torch.inference_mode():
        found = model.module(model.preprocess(picture())[None])
    output: np.ndarray = getattr(found, "logits", found)[0].numpy()
    return output


def small_mlp(outputs: int) -> Callable[[int], nn.Module]:
    return lambda width: nn.Sequential(
        nn.Linear(width, 8), nn.GELU(), nn.Dropout(0.1), nn.Linear(8, outputs)
    )


HEADED = pytest.mark.parametrize(("make", "path"), HEADS.values(), ids=HEADS)
BEFORE = pytest.mark.parametrize("before", [True, False], ids=["before watch", "after watch"])


@HEADED
@BEFORE
def test_an_exchanged_head_is_counted_by_what_it_gives(
    make: Callable[[], Any], path: str, before: bool
) -> None:
    module = make()
    model = model_of(module)
    assert model.num_classes == model.outputs > 0
    for outputs, head in ((2, lambda width: nn.Linear(width, 2)), (3, small_mlp(3))):
        exchange(module, path, head)
        model = model_of(module) if before else model
        assert (model.num_classes, model.answers) == (outputs, "classes")
        acts = vitviz.capture(model, picture())
        assert acts.logits is not None
        assert acts.probabilities is not None
        assert_allclose(acts.logits, plain(model), rtol=1e-6)
        assert acts.probabilities.sum() == pytest.approx(1)
        with pytest.raises(ValueError, match=rf"a class in 0\.\.{outputs - 1}, got 500"):
            relevance(model, picture(), 500)
        model.labels = [f"class {number}" for number in range(outputs)]
        assert occlusion(model, picture(), target="class 1", block=4).shape


@HEADED
@BEFORE
def test_a_model_whose_head_is_an_identity_gives_features(
    make: Callable[[], Any], path: str, before: bool
) -> None:
    module = make()
    model = model_of(module)
    exchange(module, path, lambda width: nn.Identity())
    model = model_of(module) if before else model
    assert (model.num_classes, model.answers, model.has_head) == (0, "embedding", False)
    acts = vitviz.capture(model, picture())
    assert (acts.logits, acts.probabilities, acts.scores) == (None, None, None)
    assert acts.output is not None
    assert_allclose(acts.output, plain(model), rtol=1e-6)
    assert model.outputs == len(plain(model))
    with pytest.raises(ModelError, match="no classification head"):
        relevance(model, picture(), 0)
    with pytest.raises(ModelError, match="embedding of the picture"):
        model.labels = ("cat", "dog")


@pytest.mark.parametrize("outputs", [1, 2, 10])
def test_experiments_have_as_many_columns_as_the_head_has_outputs(outputs: int) -> None:
    module = vit(num_classes=1000)
    model = vitviz.watch(module)
    module.head = nn.Linear(48, outputs)
    acts = vitviz.capture(model, picture())
    assert acts.scores is not None
    assert head_effects(model, picture()).shape == (2, 3, outputs)
    assert logit_lens(model, acts).shape == (3, outputs)
    assert_allclose(logit_lens(model, acts)[-1], acts.scores, rtol=1e-5)
    assert patch_lens(model, acts, 1).shape == (4, 4, outputs)


def test_labels_of_another_head_are_forgotten() -> None:
    module = vit(num_classes=3)
    model = vitviz.watch(module, labels=["cat", "dog", "owl"])
    assert model.labels == ("cat", "dog", "owl")
    module.head = nn.Linear(48, 4)
    assert model.labels is None
    assert vitviz.capture(model, picture()).output_names[3] == "output 3"


def test_a_head_set_in_place_is_counted_again() -> None:
    module = vit(num_classes=3)
    model = vitviz.watch(module)
    assert model.num_classes == 3
    module.head.weight = nn.Parameter(torch.randn(6, 48))
    module.head.bias = None
    assert model.num_classes == 6


def test_an_embedding_of_timm_becomes_classes_with_another_head() -> None:
    module = timm_module("vit_base_patch16_clip_224.openai", **VIT)
    module.reset_classifier(512)
    model = vitviz.watch(module)
    assert (model.answers, model.num_classes, model.outputs) == ("embedding", 0, 512)
    assert vitviz.capture(model, picture()).logits is not None
    module.head = nn.Linear(48, 5)
    assert (model.answers, model.num_classes) == ("classes", 5)


class TestWhatTheOutputsMean:
    def test_a_multi_label_head_has_a_probability_for_each_label(self, tmp_path: Path) -> None:
        names = {0: "edema", 1: "effusion", 2: "normal"}
        module = vit_of_transformers(
            image_size=64, problem_type="multi_label_classification", id2label=names
        )
        model = model_of(module)
        acts = vitviz.capture(model, picture())
        assert acts.logits is not None
        assert acts.probabilities is not None
        expected = 1 / (1 + np.exp(-acts.logits))
        assert acts.answers == model.answers == "labels"
        assert_allclose(acts.probabilities, expected, rtol=1e-6)
        assert_allclose(logit_lens(model, acts)[-1], expected, rtol=1e-5)
        assert_allclose(shuffle_patches(model, picture()).outputs[0, 0], expected, rtol=1e-5)
        acts.save(tmp_path / "acts.npz")
        again = vitviz.load_activations(tmp_path / "acts.npz")
        assert again.answers == "labels"
        assert_array_equal(again.probabilities, acts.probabilities)
        assert repr(acts).endswith(f"labels: {acts._first_outputs()})")

    def test_a_regression_has_values_and_no_probabilities(self, tmp_path: Path) -> None:
        names = {0: "age", 1: "weight"}
        module = vit_of_transformers(image_size=64, problem_type="regression", id2label=names)
        module.save_pretrained(tmp_path / "folder")
        for model in (vitviz.load_model(tmp_path / "folder"), model_of(module, labels=names)):
            acts = vitviz.capture(model, picture())
            assert acts.logits is not None
            assert (acts.answers, model.num_classes, acts.probabilities) == ("values", 2, None)
            assert_array_equal(acts.scores, acts.logits)
            values = ", ".join(
                f"{n} {y:.4g}" for n, y in zip(names.values(), acts.logits, strict=True)
            )
            assert f"values: {values})" in repr(acts)
            assert_allclose(logit_lens(model, acts)[-1], acts.logits, rtol=1e-5)
            hidden = np.zeros((4, 4), bool)
            hidden[:2, :2] = True
            edit = vitviz.FillPatches(hidden, "mean")
            without = vitviz.capture(model, picture(), edits=[edit]).logits
            assert without is not None
            found = occlusion(model, picture(), target=1, block=2)
            assert found[0, 0] == pytest.approx(acts.logits[1] - without[1], rel=1e-4)
            curve = deletion_curve(model, picture(), np.arange(16).reshape(4, 4), target=1)
            assert curve.probabilities[0] == pytest.approx(acts.logits[1], rel=1e-5)
            assert np.isfinite(relevance(model, picture(), 1)).all()

    @pytest.mark.parametrize(
        ("problem", "answers"),
        [("multi_label_classification", "labels"), ("regression", "values")],
    )
    def test_a_class_of_transformers_around_a_part_says_so_too(
        self, problem: str, answers: str
    ) -> None:
        transformers: Any = pytest.importorskip("transformers")

        class Own(transformers.ViTPreTrainedModel):  # type: ignore[misc]
            def __init__(self, config: Any) -> None:
                super().__init__(config)
                self.vit = transformers.ViTModel(config, add_pooling_layer=False)
                self.answer = nn.Linear(config.hidden_size, config.num_labels)
                self.post_init()

            def forward(self, pixel_values: torch.Tensor) -> Any:
                return self.answer(self.vit(pixel_values).last_hidden_state[:, 0])

        timms = transformers.TimmWrapperConfig(
            architecture="test_vit",
            model_args=dict(img_size=64),
            num_labels=3,
            problem_type=problem,
        )
        with seeded():
            modules = (
                transformers.TimmWrapperForImageClassification(timms),
                Own(vit_of_transformers(image_size=64, problem_type=problem, num_labels=3).config),
            )
        for module in modules:
            model = vitviz.watch(module.eval(), preprocessing=SIZE)
            acts = vitviz.capture(model, picture())
            assert acts.answers == answers
            if answers == "labels":
                assert acts.logits is not None
                assert acts.probabilities is not None
                assert_allclose(acts.probabilities, 1 / (1 + np.exp(-acts.logits)), rtol=1e-5)

    def test_a_single_output_is_a_value(self) -> None:
        model = vitviz.watch(vit(num_classes=1))
        acts = vitviz.capture(model, picture())
        assert (model.answers, model.num_classes, acts.probabilities) == ("values", 1, None)
        assert "%" not in repr(acts) + acts._repr_html_()

    def test_a_single_output_with_two_labels_is_the_probability_of_the_second(self) -> None:
        model = vitviz.watch(vit(num_classes=1), labels=["healthy", "ill"])
        acts = vitviz.capture(model, picture())
        assert acts.logits is not None
        assert acts.probabilities is not None
        assert (model.answers, model.labels, acts.output_names) == ("labels", ("ill",), ("ill",))
        assert_allclose(acts.probabilities, 1 / (1 + np.exp(-acts.logits)), rtol=1e-6)
        assert np.isfinite(relevance(model, picture(), "ill")).all()

    @pytest.mark.parametrize("stated", ["labels", "values", "embedding", "classes"])
    def test_they_can_be_stated(self, stated: Any) -> None:
        model = vitviz.watch(vit(num_classes=4), answers=stated)
        acts = vitviz.capture(model, picture())
        assert acts.answers == model.answers == stated
        logits = torch.from_numpy(plain(model).copy())
        wanted = {"labels": logits.sigmoid(), "classes": logits.softmax(-1)}.get(stated)
        assert_array_equal(acts.logits, logits)
        if wanted is None:
            assert acts.probabilities is None
        else:
            assert acts.probabilities is not None
            assert_allclose(acts.probabilities, wanted, rtol=1e-6)
        assert model.embeds == (stated == "embedding")

    def test_load_model_can_be_told(self) -> None:
        model = vitviz.load_model("vitviz_tiny_cifar10", answers="labels")
        assert vitviz.capture(model, picture()).answers == "labels"

    def test_what_is_stated_is_checked(self) -> None:
        with pytest.raises(ModelError, match=r"'several'.*Expected one of classes, labels, values"):
            vitviz.watch(vit(), answers="several")  # type: ignore[arg-type]
        with pytest.raises(ModelError, match="single output, which cannot choose among classes"):
            vitviz.watch(vit(num_classes=1), answers="classes")
        model = vitviz.watch(vit(num_classes=2), answers="classes")
        model.module.head = nn.Linear(48, 1)
        assert model.answers == "values"


@pytest.mark.parametrize("classes", [0, 7])
def test_outputs_of_every_token_are_refused_everywhere(classes: int) -> None:
    module = vit(num_classes=classes, global_pool="")
    model = vitviz.watch(module)
    asked: tuple[Callable[[], object], ...] = (
        lambda: vitviz.capture(model, picture()),
        lambda: relevance(model, picture(), 3),
        lambda: head_effects(model, picture()),
        lambda: occlusion(model, picture(), target=3, block=2),
        lambda: vitviz.profile(model, [picture()] * 2),
        lambda: shuffle_patches(model, picture()),
    )
    for ask in asked:
        with pytest.raises(ModelError, match=r"output of shape \(17, |no classification head"):
            ask()
    module.global_pool = "token"
    assert vitviz.capture(model, picture()).output is not None


class TestLabelsInADictionary:
    @pytest.mark.parametrize(
        "labels",
        [
            {0: "cat", 1: "dog", 2: "owl"},
            {"0": "cat", "1": "dog", "2": "owl"},
            {2: "owl", 1: "dog", 0: "cat"},
            {"owl": 2, "cat": 0, "dog": 1},
            {"owl": np.int64(2), "cat": np.int64(0), "dog": np.int64(1)},
            ["cat", "dog", "owl"],
            np.array(["cat", "dog", "owl"]),
            dict.fromkeys(["cat", "dog", "owl"]).keys(),
        ],
    )
    def test_each_name_is_that_of_its_class(self, labels: Any) -> None:
        model = vitviz.watch(vit(num_classes=3), labels=labels)
        assert model.labels == ("cat", "dog", "owl")
        assert {type(label) for label in model.labels} == {str}
        assert np.isfinite(relevance(model, picture(), "dog")).all()

    @pytest.mark.parametrize(
        ("labels", "names"),
        [
            ({0: "1", 1: "0"}, ("1", "0")),  # numbers and text: only one way to read it
            ({"3": 0, "7": 1}, ("3", "7")),
            ({"0": 0, "1": 1}, ("0", "1")),  # both ways are the same
            ([3, 7], ("3", "7")),
            ({0: 3, 1: 7}, ("3", "7")),
        ],
    )
    def test_names_may_be_numbers(self, labels: Any, names: tuple[str, ...]) -> None:
        assert class_names(labels) == names

    @pytest.mark.parametrize(
        ("labels", "reason"),
        [
            ({"0": "1", "1": "2", "2": "0"}, "two ways: '0': '1' names class 0 1, or class 1 0"),
            (
                {"0": 0, "1": 1, "10": 2, "2": 3, **{str(n): n + 1 for n in range(3, 10)}},
                "two ways",
            ),
            ({0: "cat", 2: "dog"}, "a name for each number from 0 to 1"),
            ({"cat": 0, "dog": 0}, "a name for each number from 0 to 1"),
            ({1: "cat", 2: "dog"}, "a name for each number from 0 to 1"),
            ({"cat": "dog"}, "a name for each number from 0 to 0"),
            ({}, "a name for each number"),
            ({0: ["n01", "cat"]}, r"must be text, got \['n01', 'cat'\]"),
            ({True: "cat", False: "dog"}, "a name for each number"),
            ([None, "dog"], "must be text, got None"),
            ({"cat", "dog"}, "must have an order"),
            ("cat", "must have an order, got 'cat'"),
            (5, "must have an order, got 5"),
        ],
    )
    def test_what_is_ambiguous_or_incomplete_is_refused(self, labels: Any, reason: str) -> None:
        with pytest.raises(ModelError, match=reason):
            class_names(labels)
