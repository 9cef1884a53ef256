"""A CNN teaches a ViT: the two losses, the teacher's outputs, and shares of the data."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cifar import coloured, history, metadata, silent, write_cifar10, write_cifar100
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from vitviz.training import RECIPES, Recipe, Stage, load_cifar, loop, normalise, train
from vitviz.training.cnn import Cnn, ResidualBlock, WhitenedCnn
from vitviz.training.objective import Objective, build_optimisers
from vitviz.vit import VisionTransformer

TEACHER = replace(
    RECIPES["smoke"],
    model="small_cnn",
    network="cnn",
    configuration=dict(width=4, num_classes=10),
    stages=(Stage(image_size=32, epochs=30),),
    looks=5,
    sgd_rate=0.05,
)
PUPIL = replace(
    RECIPES["smoke"],
    model="pupil",
    configuration={**RECIPES["smoke"].configuration, "distillation_token": True},
    stages=(Stage(image_size=32, epochs=25),),
    looks=5,
    adamw_rate=0.01,
    label_smoothing=0.0,
    teacher="small_cnn",
)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder, coloured(60, seed=1), coloured(50, seed=2))
    return folder


@pytest.fixture(scope="module")
def teacher() -> Iterator[Recipe]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(RECIPES, "small_cnn", TEACHER)
        yield TEACHER


@pytest.fixture(scope="module")
def distilled(
    data: Path, teacher: Recipe, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[str]]:
    """What a run wrote that trained the teacher and then a pupil, and what it reported."""
    lines: list[str] = []
    recipe = replace(PUPIL, stages=(Stage(image_size=32, epochs=1),))
    out = tmp_path_factory.mktemp("run")
    return train(recipe, data=data, out=out, report=lines.append), lines


@pytest.fixture
def out(distilled: tuple[Path, list[str]], tmp_path: Path) -> Path:
    """The folder of a run whose teacher has been trained."""
    shutil.copytree(distilled[0].parent / "teacher", tmp_path / "teacher")
    return tmp_path


def pupil_of(path: Path) -> VisionTransformer:
    model = VisionTransformer(**metadata(path)["configuration"])
    model.load_state_dict({name: value.float() for name, value in load_file(path).items()})
    return model.eval()


def test_the_cnn_halves_the_picture_three_times() -> None:
    model = Cnn(width=4, num_classes=7).eval()
    x = torch.randn(2, 3, 32, 32)
    assert model.features(x).shape == (2, 32, 4, 4)
    assert_close(model(x), model.head(model.features(x).mean(dim=(2, 3))))
    assert model(torch.randn(2, 3, 48, 40)).shape == (2, 7)


def test_a_whitened_layer_whitens() -> None:
    """Neighbouring pixels of smooth pictures are alike; what the layer gives is uncorrelated."""
    noise = torch.randn(50, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    x = F.interpolate(noise, size=32, mode="bilinear")
    model = WhitenedCnn(widths=(32, 40), num_classes=7).eval()
    model.set_whitening(x)
    outputs = model.whiten(x)
    half = outputs[:, :12].transpose(0, 1).flatten(1)
    moments = half @ half.T / half.shape[1]
    strong = moments.diagonal() > 0.5  # directions that hardly occur are not blown up
    assert strong.sum() >= 9
    assert_close(moments[strong][:, strong], torch.eye(int(strong.sum())), rtol=0, atol=0.3)
    assert (moments - torch.diag(moments.diagonal())).abs().max() < 0.01
    assert_close(outputs[:, 12:], -outputs[:, :12])
    assert model(x).shape == (50, 7)
    convolution = model.features[2]
    assert isinstance(convolution, torch.nn.Conv2d)
    assert_close(convolution(x.repeat(1, 8, 1, 1))[:, :24], x.repeat(1, 8, 1, 1))


def test_the_whitened_layer_is_not_trained(data: Path, tmp_path: Path) -> None:
    recipe = replace(
        TEACHER,
        network="whitened",
        configuration=dict(widths=(24, 24, 24), num_classes=10),
        stages=(Stage(image_size=32, epochs=15),),
        average=0.5,
    )
    path = train(recipe, data=data, out=tmp_path / "run", report=silent)
    saved = load_file(path)
    split = load_cifar(data, "cifar10", "train")[:40]
    model = WhitenedCnn(**recipe.configuration)
    model.set_whitening(normalise(torch.from_numpy(split.pictures), 32))
    for prefix in ("", loop.AVERAGE):
        assert_close(saved[f"{prefix}whiten.weight"], model.whiten.weight.detach().half())
    for name, module in model.named_modules():  # of normalisation, the biases alone are learned
        if isinstance(module, torch.nn.BatchNorm2d):
            assert_close(saved[f"{name}.weight"], torch.ones(24).half())
            assert saved[f"{name}.bias"].abs().max() > 0
    curve = json.loads((tmp_path / "run" / "small_cnn.json").read_text())
    assert curve["test_accuracy"] > 0.6


def test_biases_of_its_normalisation_are_learned_faster_and_decay_alike() -> None:
    model = WhitenedCnn(widths=(24, 24, 24), num_classes=10)
    recipe = RECIPES["cifar10_teacher"]
    (optimiser,) = build_optimisers(model, recipe)
    biases = {m.bias for m in model.modules() if isinstance(m, torch.nn.BatchNorm2d)}
    rates = {p: g["lr"] for g in optimiser.param_groups for p in g["params"]}
    assert {rates[bias] for bias in biases} == {64 * recipe.sgd_rate}
    assert {rate for p, rate in rates.items() if p not in biases} == {recipe.sgd_rate}
    assert len({g["lr"] * g["weight_decay"] for g in optimiser.param_groups}) == 1


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_the_recipes_of_cifar_run(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a handful of pictures and for a step of each stage, the teacher first."""

    def short(recipe: Recipe) -> Recipe:
        stages = tuple(replace(stage, epochs=1) for stage in recipe.stages)
        return replace(recipe, stages=stages, held_out=2, batch_size=2, early=())

    recipe = short(RECIPES[name])
    if recipe.teacher:
        monkeypatch.setitem(RECIPES, recipe.teacher, short(RECIPES[recipe.teacher]))
    count = recipe.configuration["num_classes"]
    write = write_cifar10 if count == 10 else write_cifar100
    write(tmp_path, *(coloured(n, seed=n, num_classes=count) for n in (4, 2)))
    path = train(recipe, data=tmp_path, out=tmp_path / "run", report=silent)
    assert history(path) == [(32, 1.0), (64, 1.0)]
    assert path.stat().st_size < 16e6


def test_the_teacher_sees_what_the_pupil_sees(
    data: Path, out: Path, teacher: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Augmented and mixed, at its own size."""
    seen: list[torch.Tensor] = []

    class Watched(Objective):
        def forward(
            self, pictures: Tensor, labels: Tensor, taught: Tensor | None, image_size: int
        ) -> Tensor:
            if isinstance(self.network, VisionTransformer):
                assert taught is not None
                assert not taught.requires_grad
                seen.extend((pictures, taught))
            return super().forward(pictures, labels, taught, image_size)

    monkeypatch.setattr(loop, "Objective", Watched)
    stages = tuple(Stage(image_size=size, epochs=1) for size in (32, 64))
    train(replace(PUPIL, stages=stages, cutmix=1.0), data=data, out=out, report=silent)
    model = trained(teacher, out / "teacher" / "checkpoint.safetensors")
    assert len(seen) == 2 * 2 * 2  # pictures and logits, in two batches, at two sizes
    for pictures, taught in zip(seen[::2], seen[1::2], strict=True):
        with torch.no_grad():
            assert_close(taught, model(normalise(pictures, 32)), rtol=0, atol=0.2)  # bfloat16
        assert taught.std() > 1


def trained(recipe: Recipe, path: Path) -> Cnn:
    model, saved = Cnn(**recipe.configuration), load_file(path)
    model.load_state_dict({name: saved[loop.AVERAGE + name] for name in model.state_dict()})
    return model.eval()


def test_each_block_adds_to_what_it_was_given() -> None:
    block = ResidualBlock(4).eval()
    torch.nn.init.zeros_(block.conv2.weight)
    x = torch.rand(1, 4, 8, 8)
    assert_close(block(x), x)


def test_the_teacher_of_the_recipe_has_two_million_parameters() -> None:
    recipe = RECIPES["cifar10_teacher"]
    count = sum(p.numel() for p in WhitenedCnn(**recipe.configuration).parameters())
    assert count == pytest.approx(2.0e6, rel=0.05)
    assert RECIPES["cifar10"].teacher == "cifar10_teacher"


@pytest.mark.parametrize("token", [True, False])
def test_the_loss_is_the_mean_of_what_labels_and_teacher_ask(token: bool) -> None:
    """Of two heads, or both of the only one."""
    generator = torch.Generator().manual_seed(0)
    configuration = {**PUPIL.configuration, "distillation_token": token}
    model = VisionTransformer(image_size=32, **configuration)
    x = torch.randn(4, 3, 32, 32, generator=generator)
    labels, taught = torch.tensor([0, 3, 3, 9]), torch.randn(4, 10, generator=generator)
    z = model.forward_features(x)
    pupil = model.head_dist(z[:, 1]) if model.head_dist is not None else model.head(z[:, 0])
    assert (model.head_dist is not None) == token
    own, copied = model.head(z[:, 0]).softmax(1), (pupil / 2).softmax(1)
    wanted = (taught / 2).softmax(1)
    labelled = -own[torch.arange(4), labels].log().mean()
    distance = 4 * (wanted * (wanted.log() - copied.log())).sum(1).mean()  # of temperature 2
    recipe = replace(PUPIL, temperature=2.0)
    assert_close(Objective(model, recipe)._loss(x, labels, taught), (labelled + distance) / 2)
    plain = F.cross_entropy(model(x), labels)
    assert_close(Objective(model, recipe)._loss(x, labels, None), plain)


def test_smoothed_labels_give_every_class_its_share() -> None:
    """The target of the Training page's equation."""
    model = VisionTransformer(image_size=32, **PUPIL.configuration)
    x, labels, smoothing = torch.randn(4, 3, 32, 32), torch.tensor([0, 3, 3, 9]), 0.1
    target = (1 - smoothing) * F.one_hot(labels, 10) + smoothing / 10
    wanted = -(target * model(x).log_softmax(1)).sum(1).mean()
    recipe = replace(PUPIL, label_smoothing=smoothing)
    assert_close(Objective(model, recipe)._loss(x, labels, None), wanted)


def test_one_token_learns_the_labels_and_the_other_the_teacher(
    data: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A teacher that is always one class off tells the two apart."""

    class Off(torch.nn.Module):
        def __init__(self, right: torch.nn.Module) -> None:
            super().__init__()
            self.right = right

        def forward(self, x: Tensor) -> Tensor:
            return 20 * F.one_hot((self.right(x).argmax(1) + 1) % 10, 10).float()

    real, teachers = loop._teacher, []

    def off(*words: Any) -> Off:
        teachers.append(Off(real(*words)))
        return teachers[-1]

    monkeypatch.setattr(loop, "_teacher", off)
    path = train(PUPIL, data=data, out=out, report=silent)
    model, test = pupil_of(path), load_cifar(data, "cifar10", "test")
    labels = torch.from_numpy(test.labels)
    with torch.inference_mode():
        x = normalise(torch.from_numpy(test.pictures), 32)
        z, said = model.forward_features(x), teachers[0](x).argmax(1)
        assert model.head_dist is not None
        labelled, taught = model.head(z[:, 0]).argmax(1), model.head_dist(z[:, 1]).argmax(1)
    # The teacher is asked what it says: how much it knows depends on the CPU.
    for answers, own, other in ((labelled, labels, said), (taught, said, labels)):
        assert (answers == own).float().mean() > 0.6
        assert (answers == other).float().mean() < 0.3


def test_the_teacher_is_trained_first_and_once(
    data: Path, distilled: tuple[Path, list[str]], out: Path, teacher: Recipe
) -> None:
    path, lines = distilled
    assert lines[0] == "the teacher, small_cnn"
    curve = json.loads((out / "teacher" / "small_cnn.json").read_text())
    assert [row["epoch"] for row in curve["epochs"]] == [6, 12, 18, 24, 30]
    assert curve["test_accuracy"] > 0.5  # of ten classes; how far 60 steps lead depends on the CPU
    assert history(path) == [(32, 1.0)]
    own = json.loads(path.with_suffix(".json").read_text())
    assert (own["label_smoothing"], own["temperature"]) == (0.0, PUPIL.temperature)
    written = own["teacher"]
    wanted = {"test_accuracy": curve["test_accuracy"], "minutes": curve["minutes"]}
    assert written == {"model": "small_cnn", **wanted}

    weights = out / "teacher" / "checkpoint.safetensors"
    before = weights.read_bytes()
    more: list[str] = []
    again = loop._teacher("small_cnn", data, out / "teacher", more.append)
    assert not any("epoch" in line for line in more)
    assert weights.read_bytes() == before
    x = torch.randn(3, 3, 32, 32)
    assert_close(again(x), trained(teacher, weights)(x))
    assert not any(parameter.requires_grad for parameter in again.parameters())


def test_a_share_of_the_data_is_drawn_by_the_seed() -> None:
    split = coloured(100, seed=0)
    quarter = loop._share(split, replace(PUPIL, share=0.25))
    assert len(quarter.labels) == len(quarter.pictures) == 25
    places = [
        [i for i, whole in enumerate(split.pictures) if np.array_equal(whole, one)]
        for one in quarter.pictures
    ]
    assert all(len(found) == 1 for found in places)
    assert len({found[0] for found in places}) == 25
    assert [split.labels[found[0]] for found in places] == quarter.labels.tolist()
    again = loop._share(split, replace(PUPIL, share=0.25))
    other = loop._share(split, replace(PUPIL, share=0.25, seed=1))
    assert np.array_equal(again.pictures, quarter.pictures)
    assert not np.array_equal(other.pictures, quarter.pictures)
    assert loop._share(split, PUPIL) is split


def test_the_held_out_pictures_are_looked_at_as_often_as_asked(data: Path, tmp_path: Path) -> None:
    recipe = replace(RECIPES["smoke"], stages=(Stage(image_size=32, epochs=5),), looks=2)
    path = train(recipe, data=data, out=tmp_path / "run", report=silent)
    assert history(path) == [(32, 3.0), (32, 5.0)]
