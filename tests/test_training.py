"""The trainer on synthetic pictures: each class is a colour, so there is something to learn."""

import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from app_server import HERE, free_port
from cifar import (
    coloured,
    history,
    metadata,
    noise_pictures,
    part,
    python2_pickle,
    silent,
    write_cifar10,
    write_cifar100,
    write_sheets,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor
from torch.testing import assert_close

from vitviz import cli, inspection, training
from vitviz.training import (
    MEAN,
    RECIPES,
    STD,
    PlainAttention,
    Recipe,
    Split,
    Stage,
    accuracy,
    build,
    flip_and_shift,
    grow,
    load_cifar,
    normalise,
    predict,
    rate_factor,
    record,
    train,
)
from vitviz.training.objective import Objective, reduced_precision
from vitviz.vit import Attention, VisionTransformer, resize_position_embedding

SMOKE = RECIPES["smoke"]
EPOCHS = [(32, 1.0), (32, 2.0), (64, 1.0)]  # picture size and epoch of each row of its history


def assert_same(split: Split, expected: Split) -> None:
    assert split.pictures.dtype == np.uint8
    assert split.labels.dtype == np.int64
    np.testing.assert_array_equal(split.pictures, expected.pictures)
    np.testing.assert_array_equal(split.labels, expected.labels)
    assert split.classes == expected.classes


@pytest.mark.parametrize(
    ("dataset", "num_classes", "write", "subfolder"),
    [
        ("cifar10", 10, write_cifar10, "cifar-10-batches-py"),
        ("cifar10", 10, write_cifar10, "."),
        ("cifar100", 100, write_cifar100, "cifar-100-python"),
        ("cifar100", 100, write_cifar100, "."),
    ],
)
def test_both_formats_hold_the_same_pictures(
    dataset: str,
    num_classes: int,
    write: Callable[[Path, Split, Split], None],
    subfolder: str,
    tmp_path: Path,
) -> None:
    train_split = coloured(50, seed=1, num_classes=num_classes)
    test_split = coloured(30, seed=2, num_classes=num_classes)
    pickles, sheets = tmp_path / "pickles", tmp_path / "sheets"
    write(pickles / subfolder, train_split, test_split)
    sheets.mkdir()
    write_sheets(sheets / f"{dataset}_train_png.parquet", train_split)
    write_sheets(sheets / f"{dataset}_test.parquet", test_split, rows=3, cols=2)
    for folder in (pickles, sheets):
        assert_same(load_cifar(folder, dataset, "train"), train_split)
        assert_same(load_cifar(folder, dataset, "test"), test_split)


def test_of_several_files_of_a_split_none_is_chosen(tmp_path: Path) -> None:
    """They may be parts of it, or copies: neither the first nor all together are the split."""
    whole = coloured(120, seed=1)
    write_sheets(tmp_path / "cifar10_train_0.parquet", part(whole, 0, 60))
    write_sheets(tmp_path / "cifar10_train_1.parquet", part(whole, 60, 120))
    names = "cifar10_train_0.parquet, cifar10_train_1.parquet"
    with pytest.raises(ValueError, match=f"several files of the train pictures.*: {names}"):
        load_cifar(tmp_path, "cifar10", "train")


TOUCH = "__import__('pathlib').Path({!r}).touch()"


def evil_eval(marker: Path) -> bytes:
    code = TOUCH.format(str(marker)).encode()
    return b"cbuiltins\neval\n(" + python2_pickle(code) + b"tR"


def evil_system(marker: Path) -> bytes:
    return b"cos\nsystem\n(" + python2_pickle(b"touch " + str(marker).encode()) + b"tR"


def evil_instance(marker: Path) -> bytes:
    return b"(" + python2_pickle(TOUCH.format(str(marker)).encode()) + b"ibuiltins\nexec\n"


def evil_numpy(marker: Path) -> bytes:
    """A module of numpy that runs when it is imported, under a name that CIFAR's files use."""
    return b"cnumpy.f2py.__main__\ndtype\n"


@pytest.mark.parametrize("evil", [evil_eval, evil_system, evil_instance, evil_numpy])
@pytest.mark.parametrize("place", ["data_batch_2", "test_batch", "batches.meta"])
def test_a_pickle_that_would_run_code_is_refused(
    evil: Callable[[Path], bytes], place: str, tmp_path: Path
) -> None:
    marker = tmp_path / "ran"
    write_cifar10(tmp_path, coloured(30, seed=1), coloured(10, seed=2))
    content = python2_pickle({b"labels": [1]})[:-1]  # one more item, before the dict is closed
    content += python2_pickle(b"data") + evil(marker) + b"u"
    (tmp_path / place).write_bytes(b"\x80\x02" + content + b".")
    with pytest.raises(pickle.UnpicklingError, match="does not belong in a CIFAR file"):
        load_cifar(tmp_path, "cifar10", "test" if place == "test_batch" else "train")
    assert not marker.exists()
    assert "numpy.f2py.__main__" not in sys.modules


def test_a_shift_moves_by_at_most_shift_and_reflects_at_the_edge() -> None:
    pictures = noise_pictures(32)
    moved = flip_and_shift(pictures, 2, torch.Generator().manual_seed(0)).numpy()
    padded = np.pad(pictures.numpy(), ((0, 0), (2, 2), (2, 2), (0, 0)), mode="reflect")
    places = set()
    for number in range(32):
        found = [
            (row, col, step)
            for row in range(5)
            for col in range(5)
            for step in (1, -1)
            if (padded[number, row : row + 32, col : col + 32][:, ::step] == moved[number]).all()
        ]
        assert len(found) == 1
        places.add(found[0])
    assert len(places) > 16  # each picture its own step
    assert 8 < sum(step < 0 for _, _, step in places) < 24  # about half are mirrored


def test_normalise() -> None:
    pictures = noise_pictures(3)
    x = normalise(pictures, 32)
    expected = (pictures.numpy() / 255 - MEAN) / STD
    np.testing.assert_allclose(x.numpy(), expected.transpose(0, 3, 1, 2), atol=1e-5)
    enlarged = normalise(pictures, 64)
    assert enlarged.shape == (3, 3, 64, 64)
    black, white = normalise(
        torch.tensor([0, 255]).byte()[:, None, None, None].expand(-1, 1, 1, 3), 1
    )
    assert (enlarged >= black).all()  # bicubic interpolation overshoots; it is cut
    assert (enlarged <= white).all()


def graph_of(output: Tensor) -> set[str]:
    """Names of the operations that backward runs."""
    nodes, todo = set(), [output.grad_fn]
    while todo:
        node = todo.pop()
        if node is not None and node not in nodes:
            nodes.add(node)
            todo += [following for following, _ in node.next_functions]
    return {node.name() for node in nodes}


@pytest.mark.parametrize(
    ("device", "instructions", "reduced"),
    [("cpu", "AVX2", False), ("cpu", "AVX512", True), ("cuda", "AVX2", True)],
)
def test_bfloat16_is_used_where_it_is_not_emulated(
    device: str, instructions: str, reduced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: instructions)
    if device == "cuda":
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: True)
    with reduced_precision(torch.device(device)):
        assert torch.is_autocast_enabled(device) is reduced


def test_plain_attention_equals_the_fused_one() -> None:
    attention = build(SMOKE, SMOKE.stages[0]).blocks[0].attn
    assert isinstance(attention, Attention)
    z = 5 * torch.randn(2, 17, 32, generator=torch.Generator().manual_seed(5))

    def run() -> tuple[Tensor, list[Tensor]]:
        leaf = z.clone().requires_grad_()
        output = attention(leaf)
        gradients = torch.autograd.grad(
            output.square().sum(), [leaf, *attention.parameters()], retain_graph=True
        )
        return output, list(gradients)

    fused, fused_gradients = run()
    with PlainAttention():
        plain, plain_gradients = run()
    assert any("ScaledDotProduct" in name for name in graph_of(fused))
    assert not any("ScaledDotProduct" in name for name in graph_of(plain))
    assert_close(plain, fused, rtol=1e-5, atol=1e-5)
    assert_close(plain_gradients, fused_gradients, rtol=1e-5, atol=1e-5)


@given(steps=st.integers(1, 20_000), peak=st.floats(0.1, 1), last=st.sampled_from((0.0, 0.05)))
def test_rate_warms_up_and_falls_to_its_last_value(steps: int, peak: float, last: float) -> None:
    warmup = min(200, max(1, steps // 20))
    factors = [
        rate_factor(step, steps, peak, last) for step in range(0, steps + 1, max(1, warmup // 7))
    ]
    assert 0 < factors[0] == pytest.approx(peak / warmup)
    assert rate_factor(warmup - 1, steps, peak, last) == pytest.approx(peak)
    assert rate_factor(steps, steps, peak, last) == pytest.approx(last)
    assert max(factors) <= peak * (1 + 1e-9)
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)


def weights(model: VisionTransformer) -> list[Tensor]:
    return list(model.state_dict().values())


def test_build_depends_on_the_seed_alone() -> None:
    torch.rand(3)  # so that the state is not by chance the one that a build would leave
    before = torch.random.get_rng_state()
    first = build(SMOKE, SMOKE.stages[0])
    assert torch.equal(torch.random.get_rng_state(), before)
    torch.rand(3)
    again = build(SMOKE, SMOKE.stages[0])
    other = build(replace(SMOKE, seed=1), SMOKE.stages[0])
    assert_close(weights(first), weights(again), rtol=0, atol=0)
    assert not torch.equal(weights(first)[0], weights(other)[0])


@pytest.mark.parametrize("options", [{}, dict(distillation_token=True, registers=2)])
def test_grow_interpolates_the_positions_only(options: dict[str, Any]) -> None:
    recipe = replace(SMOKE, configuration={**SMOKE.configuration, **options})
    small, other = build(recipe, recipe.stages[0]), build(replace(recipe, seed=1), recipe.stages[1])
    large = grow(small, other)
    assert large is other
    before, after = small.state_dict(), large.state_dict()
    prefix = small.num_prefix_tokens
    assert torch.equal(after["pos_embed"][:, :prefix], before["pos_embed"][:, :prefix])
    expected = resize_position_embedding(
        before.pop("pos_embed"), grid=(8, 8), num_prefix_tokens=prefix
    )
    assert torch.equal(after.pop("pos_embed"), expected)
    assert_close(after, before, rtol=0, atol=0)
    assert small.patch_embed.image_size == (32, 32)


def test_grow_without_positions() -> None:
    recipe = replace(SMOKE, configuration={**SMOKE.configuration, "positions": "none"})
    small, large = (build(recipe, stage) for stage in recipe.stages)
    assert_close(weights(grow(small, large)), weights(small), rtol=0, atol=0)


def test_accuracy_is_the_share_of_right_labels() -> None:
    model = build(SMOKE, SMOKE.stages[0])
    split = coloured(40, seed=1)
    assert_close(predict(model, split, batch_size=7), predict(model, split))
    right = predict(model, split).argmax(1).numpy()
    assert accuracy(model, Split(split.pictures, right, split.classes)) == 1
    right[:10] = (right[:10] + 1) % 10
    assert accuracy(model, Split(split.pictures, right, split.classes)) == 0.75


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 training and 50 test pictures in the original format."""
    folder = tmp_path_factory.mktemp("data")
    write_cifar10(folder / "cifar-10-batches-py", coloured(120, seed=1), coloured(50, seed=2))
    return folder


class Watched:
    """What a run shows its model: the batches of training, and the splits that it measures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, interrupt_at: int | None = None) -> None:
        self.batches: list[Tensor] = []
        self.splits: list[Split] = []
        self.interrupt_at = interrupt_at
        monkeypatch.setattr(training.loop, "flip_and_shift", self.augment)
        monkeypatch.setattr(training.loop, "accuracy", self.accuracy)

    def augment(self, pictures: Tensor, shift: int, generator: torch.Generator) -> Tensor:
        if len(self.batches) == self.interrupt_at:
            self.interrupt_at = None
            raise KeyboardInterrupt
        self.batches.append(flip_and_shift(pictures, shift, generator))
        return self.batches[-1]

    def accuracy(self, model: VisionTransformer, split: Split) -> float:
        self.splits.append(split)
        return accuracy(model, split)


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Watched]:
    """The file that an uninterrupted run of the recipe "smoke" wrote, and what it showed."""
    with pytest.MonkeyPatch.context() as patch:
        watched = Watched(patch)
        path = train(SMOKE, data=data, out=tmp_path_factory.mktemp("run"), report=silent)
        return path, watched


@pytest.fixture(scope="module")
def finished(whole: tuple[Path, Watched]) -> Path:
    return whole[0]


def test_run_writes_a_model_that_describes_itself(finished: Path, data: Path) -> None:
    assert finished.name == "smoke.safetensors"
    state = load_file(finished)
    assert {tensor.dtype for tensor in state.values()} == {torch.float16}
    about = metadata(finished)
    assert about["configuration"] == {**SMOKE.configuration, "image_size": 64}
    assert about["classes"] == [f"class {number}" for number in range(10)]
    assert about["mean"] == pytest.approx(MEAN)
    assert about["std"] == pytest.approx(STD)

    model = VisionTransformer(**about["configuration"])
    model.load_state_dict({name: tensor.float() for name, tensor in state.items()})
    kept = load_file(finished.with_name("checkpoint.safetensors"))
    averages = {name: kept[f"average.{name}"] for name in state}
    assert_close(state, averages, rtol=0, atol=0)  # it was measured as it is shipped
    measured = accuracy(model, load_cifar(data, "cifar10", "test"))
    assert about["test_accuracy"] == measured
    card = finished.with_suffix(".md").read_text()
    assert f"**Test accuracy: {measured:.2%}** of all 50 test pictures" in card
    head, text = card.split("---\n", 2)[1:]
    assert "  - name: smoke" in head.splitlines()
    assert "- Licence: " in text
    for line in ("| batch_size | 20 |", "| seed | 0 |", "| held_out | 20 |"):
        assert line in text
    assert history(finished) == EPOCHS
    curve = json.loads(finished.with_suffix(".json").read_text())
    assert (curve["model"], curve["test_accuracy"]) == ("smoke", measured)
    rows = curve["epochs"]
    assert all(row["loss"] > 0 and 0 <= row["held_out_accuracy"] <= 1 for row in rows)
    assert f"held-out training pictures at the end: {rows[-1]['held_out_accuracy']:.2%}" in card
    assert curve["label_smoothing"] == RECIPES["smoke"].label_smoothing
    assert (curve["picture_side"], "temperature" in curve) == (32, False)


def test_a_card_claims_no_machine_copies_or_recipe_but_those_of_the_run(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    card = finished.with_suffix(".md").read_text()
    assert "`vitviz train --recipe smoke`" in card
    assert " minutes by the clock.\n" in card
    assert "copies" not in card
    write_sheets(tmp_path / "cifar10_train.parquet", coloured(120, seed=1), kind="JPEG")
    write_sheets(tmp_path / "cifar10_test.parquet", coloured(50, seed=2))
    other = replace(SMOKE, stages=SMOKE.stages[:1])
    path = train(other, data=tmp_path, out=tmp_path / "run", report=silent)
    card = path.with_suffix(".md").read_text()
    assert "The training pictures were read from lossy copies (JPEG)." in card
    assert "by `vitviz.training.train` and the recipe below." in card


class Interrupted:
    """A `report` that collects the lines and is interrupted at one of them, once."""

    def __init__(self, at: int) -> None:
        self.lines: list[str] = []
        self.at = at

    def __call__(self, line: str) -> None:
        self.lines.append(line)
        if len(self.lines) == self.at:
            raise KeyboardInterrupt


# At the end of an epoch each, the first, the second and that of the second stage, which is saved
# before or after; then at the test's result.
@pytest.mark.parametrize(
    ("at", "save_every"), [(1, 1), (1, 100), (2, 100), (3, 1), (3, 100), (4, 100)]
)
def test_interrupted_run_resumes(
    at: int, save_every: int, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = Watched(monkeypatch)

    def run(report: Callable[[str], None]) -> Path:
        return train(SMOKE, data=data, out=tmp_path, save_every=save_every, report=report)

    report = Interrupted(at)
    with pytest.raises(KeyboardInterrupt):
        run(report)
    assert not (tmp_path / "smoke.safetensors").exists()
    path = run(report)
    resumed = [line for line in report.lines if line.startswith("resuming at stage")]
    assert len(resumed) == (save_every == 1 or at > 1)
    assert history(path) == EPOCHS
    assert [len(split.labels) for split in watched.splits].count(50) == 1  # the test, once

    state = load_file(path)
    assert run(silent) == path  # a finished run is not trained or measured again
    assert [len(split.labels) for split in watched.splits].count(50) == 1
    assert_close(load_file(path), state, rtol=0, atol=0)


def test_training_and_held_out_pictures_are_kept_apart(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watched = Watched(monkeypatch)
    train(replace(SMOKE, shift=0), data=data, out=tmp_path, report=silent)
    everything = load_cifar(data, "cifar10", "train")
    *held_out, test = watched.splits
    for split in held_out:
        assert_same(split, part(everything, 100, 120))
    assert_same(test, load_cifar(data, "cifar10", "test"))

    known = {picture.tobytes(): number for number, picture in enumerate(everything.pictures)}
    known |= {
        picture[:, ::-1].tobytes(): known[picture.tobytes()] for picture in everything.pictures
    }
    order = [known[picture.numpy().tobytes()] for batch in watched.batches for picture in batch]
    epochs = [order[first : first + 100] for first in (0, 100, 200)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(100))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


def test_run_interrupted_between_two_steps_goes_on_with_the_next(
    data: Path, whole: tuple[Path, Watched], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    halved = Watched(monkeypatch, interrupt_at=7)  # of 15 steps; in the second epoch
    with pytest.raises(KeyboardInterrupt):
        train(SMOKE, data=data, out=tmp_path, save_every=1, report=silent)
    lines: list[str] = []
    path = train(SMOKE, data=data, out=tmp_path, save_every=1, report=lines.append)
    assert lines[0] == "resuming at stage 1, step 7"
    assert_close(halved.batches, whole[1].batches, rtol=0, atol=0)
    assert history(path) == EPOCHS


def test_a_loss_in_the_history_counts_the_steps_before_a_resumption(
    data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    values = iter(range(100))

    def count(objective: Objective, *_: object) -> Tensor:
        return next(objective.parameters()).sum() * 0 + next(values)

    monkeypatch.setattr(Objective, "forward", count)
    Watched(monkeypatch, interrupt_at=7)  # of five steps each epoch
    with pytest.raises(KeyboardInterrupt):
        train(SMOKE, data=data, out=tmp_path, save_every=1, report=silent)
    path = train(SMOKE, data=data, out=tmp_path, save_every=1, report=silent)
    rows = json.loads(path.with_suffix(".json").read_text())["epochs"]
    assert [row["loss"] for row in rows] == [2, 7, 12]  # the mean of 0..4, 5..9 and 10..14


def test_training_without_accelerate_names_the_extra(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(ValueError, match=r'pip install "vitviz\[train\]"'):
        train(SMOKE, data=data, out=tmp_path, report=silent)


def test_a_run_at_its_end_goes_on_where_its_recipe_is_longer(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    first = tmp_path / "first"
    shutil.copytree(finished.parent, first)
    *stages, last = SMOKE.stages
    for epochs in (2, 3):
        longer = replace(SMOKE, stages=(*stages, replace(last, epochs=epochs)))
        path = train(longer, data=data, out=first, report=silent)
    assert history(path) == [*EPOCHS, (64, 2.0), (64, 3.0)]
    curve = json.loads(path.with_suffix(".json").read_text())
    before = json.loads(finished.with_suffix(".json").read_text())
    assert [row["epoch"] for row in curve["tested_before"]] == [1.0, 2.0]
    assert curve["tested_before"][0]["test_accuracy"] == before["test_accuracy"]
    assert "tested_before" not in before
    cards = [each.with_suffix(".md").read_text() for each in (finished, path)]
    assert "chose nothing." in cards[0]
    assert f"({before['test_accuracy']:.1%} at epoch 1 at 64 pixels" in cards[1]
    assert "chose nothing else." in cards[1]
    weights, older = load_file(path), load_file(finished)
    assert any((weights[name] != older[name]).any() for name in weights)
    about = metadata(path)
    model = VisionTransformer(**about["configuration"])
    model.load_state_dict({name: tensor.float() for name, tensor in weights.items()})
    assert about["test_accuracy"] == accuracy(model, load_cifar(data, "cifar10", "test"))
    with pytest.raises(ValueError, match="another recipe"):  # which is shorter
        train(SMOKE, data=data, out=first, report=silent)


def test_a_run_begun_anew_keeps_no_moments_of_the_one_before(
    finished: Path, data: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(finished.parent, tmp_path / "run")
    (folder / "checkpoint.safetensors").unlink()
    path = train(replace(SMOKE, stages=SMOKE.stages[:1]), data=data, out=folder, report=silent)
    moments = record(path.with_name("moments.npz"))
    assert moments["image_size"].tolist() == [32, 32, 32]
    assert moments["epoch"].tolist() == [0, 1, 2]


@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.parametrize("other", [dict(batch_size=10), dict(seed=1)])
def test_another_recipe_in_the_same_folder_is_refused(
    other: dict[str, Any], epochs: int, finished: Path, data: Path
) -> None:
    before = finished.read_bytes()
    *stages, last = SMOKE.stages
    longer = replace(SMOKE, stages=(*stages, replace(last, epochs=epochs)), **other)
    with pytest.raises(ValueError, match="another recipe"):
        train(longer, data=data, out=finished.parent, report=silent)
    assert finished.read_bytes() == before


def test_missing_test_pictures_are_told_before_training(tmp_path: Path) -> None:
    write_sheets(tmp_path / "cifar10_train.parquet", coloured(120, seed=1))
    lines: list[str] = []
    with pytest.raises(ValueError, match="No test pictures of cifar10"):
        train(SMOKE, data=tmp_path, out=tmp_path / "run", report=lines.append)
    assert not lines
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("count", [10, 20, 30])
def test_too_few_pictures_are_told(count: int, tmp_path: Path) -> None:
    write_sheets(tmp_path / "cifar10_train.parquet", coloured(count, seed=1))
    write_sheets(tmp_path / "cifar10_test.parquet", coloured(10, seed=2))
    with pytest.raises(ValueError, match=f"{count} training pictures are too few"):
        train(SMOKE, data=tmp_path, out=tmp_path / "run", report=silent)
    assert not (tmp_path / "run").exists()


def test_it_learns_and_a_long_run_is_recorded_by_twelve_moments(tmp_path: Path) -> None:
    write_cifar10(tmp_path, coloured(60, seed=1), coloured(50, seed=2))
    recipe: Recipe = replace(
        SMOKE, stages=(Stage(image_size=32, epochs=21),), adamw_rate=0.01, label_smoothing=0.0
    )
    path = train(recipe, data=tmp_path, out=tmp_path / "run", report=silent)
    losses = [row["loss"] for row in json.loads(path.with_suffix(".json").read_text())["epochs"]]
    assert len(losses) == 21
    assert losses[0] > 1.5
    assert losses[-1] < losses[0] / 3
    assert metadata(path)["test_accuracy"] > 0.8
    epochs = record(path.with_name("moments.npz"))["epoch"].tolist()
    assert len(epochs) == 12
    assert (epochs[0], epochs[-1]) == (0, 21)
    assert epochs == sorted(epochs)


def test_command_trains_and_the_same_seed_gives_the_same_bits(
    data: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.rand(3)  # the global generator is not asked
    command = ["train", "--data", str(data), "--recipe", "smoke", "--out", str(tmp_path)]
    cli.main([*command, "--threads", "1"])
    assert capsys.readouterr().out.splitlines()[-1] == str(tmp_path / "smoke.safetensors")
    written = load_file(tmp_path / "smoke.safetensors")
    assert_close(written, load_file(finished), rtol=0, atol=0)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such limit")
def test_a_full_disk_is_told_and_leaves_the_last_checkpoint(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import resource

    command = ["train", "--data", str(data), "--recipe", "smoke", "--out", str(tmp_path)]
    checkpoint = tmp_path / "checkpoint.safetensors"
    with pytest.raises(KeyboardInterrupt):
        train(SMOKE, data=data, out=tmp_path, report=Interrupted(at=2))
    before = checkpoint.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) - 1, limits[1]))
    try:
        assert cli.main(command) == 2
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert capsys.readouterr().err.splitlines()[-1] == f"{checkpoint}: File too large."
    assert checkpoint.read_bytes() == before
    assert {one.name for one in tmp_path.iterdir()} == {checkpoint.name, "moments.npz"}


def test_the_second_of_two_trainings_in_a_folder_is_refused(
    finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    command = ["train", "--data", str(data), "--recipe", "smoke", "--out", str(out)]
    refused: list[str] = []

    def second(line: str) -> None:
        if not refused:
            assert cli.main(command) == 2
            refused.append(capsys.readouterr().err)

    train(SMOKE, data=data, out=out, report=second)
    assert f"Another process is writing into {out}." in refused[0]
    assert {one.name for one in out.iterdir()} == {one.name for one in finished.parent.iterdir()}


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_file_of_the_data_that_is_missing_is_named(
    command: str, finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(data, tmp_path / "data")
    (missing,) = folder.rglob("batches.meta")
    missing.unlink()
    own = ["--recipe", "smoke", "--out", str(tmp_path / "run")]
    words = own if command == "train" else [str(finished)]
    assert cli.main([command, *words, "--data", str(folder)]) == 2
    assert capsys.readouterr().err == f"{missing}: No such file or directory.\n"


#: Both processes are forks of one that has imported what they need.
TWO_PROCESSES = """
import os, sys
from dataclasses import replace
import torch._dynamo  # an optimizer does
from accelerate import PartialState
from vitviz import cli, training
from vitviz.training import Stage

training.RECIPES["smoke"] = replace(training.RECIPES["smoke"], **eval(sys.argv[1]))
rank = "1" if os.fork() else "0"
os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "2"}
status = cli.main(sys.argv[2:])
assert PartialState().num_processes == 2
PartialState().destroy_process_group()
if rank == "1":
    assert os.wait()[1] == 0
sys.exit(status)
"""


def run_two_processes(data: Path, out: Path, recipe: dict[str, Any]) -> str:
    """Train "smoke" with these settings in two processes, and return what both print."""
    training = ["train", "--data", str(data), "--recipe", "smoke", "--out", str(out)]
    root, place = Path(__file__).parents[1], {"MASTER_ADDR": HERE, "MASTER_PORT": str(free_port())}
    settings = {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(root)}
    done = subprocess.run(
        [sys.executable, "-c", TWO_PROCESSES, repr(recipe), *training],
        env={**os.environ, **place, **settings},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_two_processes_have_the_losses_of_one(finished: Path, data: Path, tmp_path: Path) -> None:
    """Each takes half of every batch; the gradients are averaged."""
    assert run_two_processes(data, tmp_path, {}).count("test accuracy") == 1
    one, two = (
        [row["loss"] for row in json.loads(path.read_text())["epochs"]]
        for path in (finished.with_suffix(".json"), tmp_path / "smoke.json")
    )
    assert two == pytest.approx(one, abs=1.01e-4)  # of numbers with four decimals


def test_two_processes_end_a_stage_at_the_same_step(data: Path, tmp_path: Path) -> None:
    """At a rate of 0 the accuracy never rises."""
    stages = tuple(Stage(image_size=side, epochs=4) for side in (32, 64))
    run_two_processes(data, tmp_path, dict(stages=stages, patience=1, adamw_rate=0, muon_rate=0))
    assert history(tmp_path / "smoke.safetensors") == [(32, 1.0), (32, 2.0), (64, 1.0), (64, 2.0)]


# --- calibration and records --------------------------------------------------------------------


def test_the_temperature_that_was_put_in_is_found() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(20_000, 10, generator=generator) * 2
    labels = torch.multinomial(logits.softmax(dim=1), 1, generator=generator)[:, 0]
    assert training.fit_temperature(logits, labels) == pytest.approx(1, abs=0.03)
    assert training.fit_temperature(2.5 * logits, labels) == pytest.approx(2.5, abs=0.07)
    assert training.calibration_error(logits.softmax(dim=1), labels) < 0.01
    assert training.calibration_error((2.5 * logits).softmax(dim=1), labels) > 0.1


def test_the_calibration_error_of_a_known_case() -> None:
    probabilities = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.6, 0.4], [0.2, 0.8]])
    labels = torch.tensor([0, 1, 0, 1])
    # Bins of 0.9 (half right), 0.6 (all right) and 0.8 (all right).
    expected = (2 * abs(0.9 - 0.5) + (1 - 0.6) + (1 - 0.8)) / 4
    assert training.calibration_error(probabilities, labels) == pytest.approx(expected)


def test_the_record_holds_the_run_from_its_beginning_to_its_end(finished: Path) -> None:
    record = np.load(finished.with_suffix(".npz"))
    assert record["image_size"].tolist() == [32, 32, 32, 64, 64]
    assert record["epoch"].tolist() == [0, 1, 2, 0, 1]
    first = build(SMOKE, SMOKE.stages[0])
    kernel = first.patch_embed.proj.weight.detach().half().numpy()
    np.testing.assert_array_equal(record["filters_0"], kernel)
    last = load_file(finished)
    np.testing.assert_array_equal(record["filters_4"], last["patch_embed.proj.weight"].numpy())
    np.testing.assert_array_equal(record["positions_4"], last["pos_embed"][0, 1:].numpy())
    for number, side in enumerate(record["image_size"]):
        assert record[f"positions_{number}"].shape == ((side // 8) ** 2, 32)
        distance = record[f"distance_{number}"]
        assert distance.shape == (1, 2)
        equal = inspection.uniform_distance((side // 8, side // 8), 8)
        assert (distance > 0.5 * equal).all()  # hardly trained: near equal sharing
        assert (distance < 1.5 * equal).all()


def test_a_model_is_evaluated_from_its_file_and_another_file_is_refused(
    finished: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["evaluate", str(finished), "--data", str(data)]) == 0
    said = capsys.readouterr().out
    assert f"{metadata(finished)['test_accuracy']:.2%}" in said
    assert "expected calibration error" in said
    wrong = tmp_path / "x.safetensors"
    wrong.write_bytes(b"no weights")
    for name in (str(wrong), "nothing"):
        assert cli.main(["evaluate", name, "--data", str(data)]) == 2
        assert "was not written by `vitviz train`." in capsys.readouterr().err


def test_grades_are_written_into_the_weights_or_it_is_said_why_not(
    finished: Path,
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / finished.name
    file.write_bytes(finished.read_bytes())
    command = ["evaluate", str(file), "--data", str(data), "--grades"]
    assert cli.main(command) == 0
    assert f"{SMOKE.held_out} held-out pictures" in capsys.readouterr().out
    graded, about = file.read_bytes(), metadata(file)
    assert about.pop("grades")["held_out_pictures"] == SMOKE.held_out
    assert about == metadata(finished)
    assert_close(load_file(file), load_file(finished), rtol=0, atol=0)

    def refuse(*paths: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "replace", refuse)
    assert cli.main(command) == 2
    assert capsys.readouterr().err == f"{file}: Permission denied.\n"
    assert file.read_bytes() == graded
