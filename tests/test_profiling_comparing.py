"""Two models over the same pictures: every number against a direct computation; refusals; files."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
import timm
import torch
from cifar import coloured
from examples import assert_clear_error, own_model, own_module, seeded, watched
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from safetensors.torch import save_file
from test_profiling import features_of, hsic_of, noisy
from test_profiling_runs import assert_whole_page

import vitviz
from vitviz import cli
from vitviz.activations import Activations, capture
from vitviz.inspection import attention_distance, offset_attention
from vitviz.model import Model
from vitviz.profiling import (
    BY_PICTURE,
    Comparison,
    Moments,
    Profile,
    ProfileError,
    compare,
    profile,
)
from vitviz.profiling import comparison as comparing

COUNT = 40  # minibatches of 16, 16 and 8
MINIBATCHES = (slice(0, 16), slice(16, 32), slice(32, 40))
PICTURES = noisy(COUNT)
LABELS = [number % 5 for number in range(COUNT)]


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(comparing, "PIECE", 16)
        yield


def changed_model(share: float = 1.0, **options: Any) -> Model:
    """An own model whose weights lie beside those of `own_model`."""
    module, other = own_module(**options), own_module(**options)
    with seeded(7), torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(share * parameter.std(correction=0) * torch.randn_like(parameter))
    return watched(other, module.patch_embed.image_size)


MODELS = (own_model(), changed_model())


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare(*MODELS, PICTURES, labels=LABELS, batch_size=7)


@pytest.fixture(scope="module")
def profiles() -> list[Profile]:
    return [profile(model, PICTURES, labels=LABELS, batch_size=7) for model in MODELS]


@pytest.fixture(scope="module")
def captured() -> list[list[Activations]]:
    """By model, each picture captured on its own."""
    return [[capture(model, image) for image in PICTURES] for model in MODELS]


# --- numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize("measure", [profile, compare])
def test_labels_are_read_alike_whatever_the_sample(measure: Any) -> None:
    models, classes = MODELS[: 1 + (measure is compare)], MODELS[0].num_classes
    from_one = [1 + number % classes for number in range(COUNT)]
    words = f"The label {classes} of picture {classes} is none of the {classes} classes"
    for seed in range(9):  # in most samples of one, no label is too large
        with pytest.raises(ProfileError, match=words):
            measure(*models, PICTURES, labels=from_one, limit=1, seed=seed)


def test_differences_are_paired_by_picture(
    found: Comparison, captured: list[list[Activations]]
) -> None:
    from scipy import stats  # here: it takes long to import

    first, second = (
        np.stack([attention_distance(acts) for acts in each]).astype(np.float64)
        for each in captured
    )
    moments, test = found.difference("distance"), stats.ttest_rel(second, first)
    assert_allclose(moments.means, (second - first).mean(axis=0), atol=1e-5)
    assert_allclose(moments.sem, stats.sem(second - first, axis=0), rtol=1e-3, atol=1e-6)
    expected = test.confidence_interval(0.95)
    assert_allclose(moments.interval(), (expected.low, expected.high), rtol=1e-3, atol=1e-5)
    assert np.abs(moments.means).max() > 0.01
    unpaired = np.sqrt((first.var(axis=0) + second.var(axis=0)) / COUNT)
    assert np.abs(moments.sem / unpaired - 1).max() > 0.02  # so that pairing is told apart


@pytest.mark.parametrize("name", BY_PICTURE)
def test_differences_are_those_of_the_rows_of_two_profiles(
    found: Comparison, profiles: list[Profile], name: str
) -> None:
    rows = [each.values(name).astype(float) for each in profiles]
    apart = rows[1] - rows[0]
    assert_allclose(found.difference(name).means, apart.mean(axis=0), atol=1e-5)
    assert_allclose(found.difference(name).std, apart.std(axis=0, ddof=1), rtol=1e-3, atol=1e-6)


def test_cka_is_that_of_all_pairs_of_layers_over_the_minibatches(
    found: Comparison, captured: list[list[Activations]]
) -> None:
    first, second = (features_of(each) for each in captured)

    def summed(X: np.ndarray, Y: np.ndarray) -> float:
        return sum(len(X[part]) * hsic_of(X[part], Y[part]) for part in MINIBATCHES)

    expected = [
        [summed(X, Y) / np.sqrt(summed(X, X) * summed(Y, Y)) for Y in second] for X in first
    ]
    assert_allclose(found.cka(), expected, rtol=1e-4, atol=1e-5)
    assert np.abs(found.cka() - found.cka().T).max() > 0.01  # so that A and B are told apart


def test_maps_are_differences_of_means(
    found: Comparison, captured: list[list[Activations]]
) -> None:
    for layer in range(3):
        offsets, maps = (
            [np.mean([of(acts) for acts in each], axis=0) for each in captured]
            for of in (
                lambda acts, at=layer: offset_attention(acts, layer=at),
                lambda acts, at=layer: acts.attention(at)[:, 0, 1:].reshape(4, 4, 6),
            )
        )
        assert_allclose(found.offset_difference(layer), offsets[1] - offsets[0], atol=1e-6)
        assert_allclose(found.cls_difference(layer), maps[1] - maps[0], atol=1e-6)


def test_answers_are_those_of_the_logits(
    found: Comparison, captured: list[list[Activations]]
) -> None:
    from scipy import stats  # here: it takes long to import

    first, second = (
        np.array([np.argmax(acts.logits) for acts in each])  # type: ignore[arg-type]
        for each in captured
    )
    answers = found.answers
    assert answers is not None
    assert answers.accuracy is not None
    assert (answers.pictures, answers.labelled) == (COUNT, COUNT)
    assert answers.agreement == np.mean(first == second)
    right = [each == np.array(LABELS) for each in (first, second)]
    assert_allclose(answers.accuracy, [each.mean() for each in right])
    assert answers.difference == pytest.approx(right[1].mean() - right[0].mean())
    interval = stats.ttest_rel(*(each.astype(float) for each in right[::-1])).confidence_interval()
    assert_allclose(answers.interval, (interval.low, interval.high))  # type: ignore[arg-type]
    alone = [int((right[0] & ~right[1]).sum()), int((right[1] & ~right[0]).sum())]
    assert [answers.only_first, answers.only_second] == alone
    assert min(alone) > 0
    discordant = sum(alone)  # McNemar's exact test, written out
    tail = sum(comb(discordant, count) for count in range(min(alone) + 1)) / 2**discordant
    assert answers.p_value == pytest.approx(min(1, 2 * tail))


def test_a_model_does_not_differ_from_itself() -> None:
    found = compare(MODELS[0], own_model(), PICTURES[:20], labels=LABELS[:20])
    for name in BY_PICTURE:
        moments = found.difference(name)
        assert_array_equal(moments.means, 0)
        assert_array_equal(moments.interval(), 0)
    assert_allclose(np.diag(found.cka()), 1, rtol=1e-9)
    assert_array_equal(found.cls_difference(2), 0)
    answers = found.answers
    assert answers is not None
    assert (answers.agreement, answers.difference, answers.p_value) == (1, 0, 1)


# --- pictures that are left out ----------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pictures, the fifth of which cannot be read."""
    folder = tmp_path_factory.mktemp("pictures")
    for number, image in enumerate(PICTURES[:10]):
        image.save(folder / f"{number}.png")
    (folder / "4.png").write_bytes(b"no picture")
    return folder


def spoiled(number: int) -> Model:
    """A model that gives no numbers for one picture of every batch."""
    model = changed_model()

    def spoil(_: object, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor]:
        z = inputs[0].clone()
        z[number] = torch.nan
        return (z,)

    model.module.get_submodule("blocks.0").register_forward_pre_hook(spoil)
    return model


@pytest.mark.parametrize("turned", [False, True])
def test_what_one_model_cannot_take_counts_in_neither(folder: Path, turned: bool) -> None:
    first, second, third = MODELS[0], spoiled(2), MODELS[1]
    found = compare(*((second, first) if turned else (first, second)), folder)
    assert {Path(name).name for name in found.left_out} == {"2.png", "4.png"}
    assert "NaN or infinite" in found.left_out[str(folder / "2.png")]
    images = [image for number, image in enumerate(PICTURES[:10]) if number not in (2, 4)]
    expected = compare(*((third, first) if turned else (first, third)), images)
    assert found.pictures == expected.pictures == 8
    for name in BY_PICTURE:
        assert_allclose(
            found.difference(name).means, expected.difference(name).means, atol=1e-5, err_msg=name
        )
    assert_allclose(found.cka(), expected.cka(), rtol=1e-4)
    assert_allclose(found.offset_difference(1), expected.offset_difference(1), atol=1e-6)
    assert_allclose(found.cls_difference(1), expected.cls_difference(1), atol=1e-6)
    assert found.first.about["pictures"] == found.second.about["pictures"] == 8


def test_nothing_that_both_can_take_is_an_error(folder: Path) -> None:
    with pytest.raises(ProfileError, match="None of 1 picture could be measured with both"):
        compare(*MODELS, folder / "4.png")


# --- what cannot be compared -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "what", "words"),
    [
        (dict(depth=2), "heads", "A has 3 layers and B 2"),
        (dict(num_heads=2), "heads", "Layer 1 has 4 heads in A and 2 in B"),
        (dict(image_size=24), "maps", "4 x 6 patches of 4 x 4 pixels in A and 6 x 6 patches"),
        (dict(patch_size=8), "heads", "4 x 6 patches of 4 x 4 pixels in A and 2 x 3 patches"),
        (dict(class_token=False), "cls", "B has no CLS token"),
        (dict(num_classes=7), "answers", "A has 5 classes and B 7"),
        (dict(num_classes=0), "answers", "B has no head for classes"),
    ],
)
def test_what_has_no_counterpart_is_left_out_with_a_reason(
    options: dict[str, Any], what: str, words: str, tmp_path: Path
) -> None:
    found = compare(MODELS[0], own_model(**options), PICTURES[:6], out=tmp_path / "out")
    assert words in found.not_compared[what]
    assert_clear_error(found.not_compared[what])
    calls: dict[str, Any] = {
        "heads": lambda: found.difference("distance"),
        "maps": lambda: found.offset_difference(0),
        "cls": lambda: found.cls_difference(0),
    }
    if what in calls:
        with pytest.raises(ProfileError, match=words.split(" in A")[0]):
            calls[what]()
    elif found.answers is not None:
        assert found.answers.agreement is None
    assert found.cka().shape[0] == 4  # which has no need of counterparts
    assert (tmp_path / "out" / "heads.csv").exists() == ("heads" not in found.not_compared)
    assert words.split(" in A")[0] in (tmp_path / "out" / "compare.html").read_text()


@pytest.mark.parametrize("answers", ["labels", "values"])
def test_answers_of_a_model_that_chooses_no_class_are_not_compared(answers: Any) -> None:
    found = compare(MODELS[0], watched(own_module(), (16, 24), answers=answers), PICTURES[:6])
    reason = f"B answers with {answers} and does not choose one class."
    assert (found.answers, found.not_compared["answers"]) == (None, reason)
    assert np.isfinite(found.difference("distance").means).all()


def test_classes_of_other_names_are_not_compared() -> None:
    first, second = (
        watched(own_module(), (16, 24), labels=tuple(names)) for names in ("abcde", "abcdf")
    )
    found = compare(first, second, PICTURES[:6], labels=list("abcdab"))
    assert "other names" in found.not_compared["answers"]
    answers = found.answers
    assert answers is not None
    assert answers.agreement is None
    assert answers.labelled == 6


def test_maps_of_cls_are_not_compared_where_pictures_are_cropped_differently() -> None:
    other = own_model()
    other.preprocess = replace(other.preprocess, crop_pct=0.8)
    found = compare(MODELS[0], other, PICTURES[:4])
    assert_clear_error(found.not_compared["cls"])
    with pytest.raises(ProfileError, match="crop pictures differently"):
        found.cls_difference(0)
    assert np.isfinite(found.offset_difference(0)).any()


# --- saved profiles ----------------------------------------------------------------------------


def test_two_saved_profiles_are_compared_without_a_forward_pass(
    found: Comparison, profiles: list[Profile], tmp_path: Path
) -> None:
    for name, each in zip("ab", profiles, strict=True):
        each.save(tmp_path / name)
    saved = compare(vitviz.load_profile(tmp_path / "a"), vitviz.load_profile(tmp_path / "b"))
    for name in BY_PICTURE:
        assert_allclose(saved.difference(name).means, found.difference(name).means, atol=1e-5)
    assert_allclose(saved.cls_difference(0), found.cls_difference(0), atol=1e-7)
    assert saved.answers == found.answers
    with pytest.raises(ProfileError, match="needs the tokens of both at once"):
        saved.cka()
    words = (str(tmp_path / "a"), str(tmp_path / "b"), "--out", str(tmp_path / "out"))
    assert cli.main(["compare", *words]) == 0
    assert (tmp_path / "out" / "compare.html").is_file()


def test_maps_of_profiles_that_skipped_others_are_not_compared() -> None:
    sides = profile(MODELS[0], PICTURES[:10]), profile(spoiled(2), PICTURES[:10])
    found = compare(*sides)
    assert list(found.left_out) == ["picture 3"]
    rows = [np.delete(side.values("entropy"), 2, axis=0).astype(float) for side in sides]
    assert_allclose(found.difference("entropy").means, (rows[1] - rows[0]).mean(axis=0), atol=1e-7)
    with pytest.raises(ProfileError, match=r"hold pictures that the other lacks \(1 of them\)"):
        found.offset_difference(0)


@pytest.mark.parametrize(
    ("others", "words"),
    [(PICTURES[1:5], "picture 1 is only in one"), (PICTURES[:3], "4 and 3 of them")],
)
def test_profiles_over_other_pictures_are_refused(others: list[Image.Image], words: str) -> None:
    sides = profile(MODELS[0], PICTURES[:4]), profile(MODELS[1], others)
    with pytest.raises(ProfileError, match=words) as caught:
        compare(*sides)
    assert_clear_error(caught.value)


def test_profiles_with_other_labels_are_refused() -> None:
    """As if the file of labels was corrected after the first of the two."""
    corrected = [*LABELS[:3], (LABELS[3] + 1) % 5]
    first = profile(MODELS[0], PICTURES[:4], labels=LABELS[:4])
    second = profile(MODELS[1], PICTURES[:4], labels=corrected)
    with pytest.raises(ProfileError, match="picture 4 has the label 3 in A and 4 in B") as caught:
        compare(first, second)
    assert_clear_error(caught.value)


def test_what_is_asked_for_wrongly_is_refused(tmp_path: Path) -> None:
    side = profile(MODELS[0], PICTURES[:4])
    calls: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((side, side, PICTURES[:4]), {}, "Leave out `pictures`"),
        ((side, side), dict(labels=LABELS[:4]), "Leave out `labels` and `limit`"),
        ((side, side), dict(limit=2), "Leave out `labels` and `limit`"),
        ((side, MODELS[1]), {}, "got one of each"),
        (MODELS, {}, "need pictures"),
        ((*MODELS, PICTURES[:4]), dict(batch_size=0), "at least one picture"),
        ((*MODELS, PICTURES[:4]), dict(limit=2, seed=-1), "a seed of at least 0, got -1"),
    ]
    for given, options, words in calls:
        with pytest.raises(ProfileError, match=words) as caught:
            compare(*given, **options)
        assert_clear_error(caught.value)
    compare(side, side, out=tmp_path)
    with pytest.raises(ProfileError, match="ame another folder"):
        compare(side, side, out=tmp_path)


# --- files, and two checkpoints before and after fine-tuning -----------------------------------


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with 10 pictures of 10 classes, their labels, and both checkpoints."""
    folder = tmp_path_factory.mktemp("tuned")
    split = coloured(10, seed=2)
    (folder / "pictures").mkdir()
    images = [Image.fromarray(each) for each in split.pictures]
    for number, image in enumerate(images):
        image.save(folder / "pictures" / f"{number:02}.png")
    (folder / "labels.csv").write_text("".join(f"{int(label)}\n" for label in split.labels))
    with seeded(3):
        net: Any = timm.create_model("test_vit", num_classes=10)
        save_file(net.state_dict(), folder / "before.safetensors")
        model = watched(net.eval(), (160, 160))
        x = torch.stack([model.preprocess(image) for image in images])
        optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
        net.train()
        for _ in range(8):
            loss = torch.nn.functional.cross_entropy(net(x), torch.as_tensor(split.labels).long())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    save_file(net.state_dict(), folder / "after.safetensors")
    return folder


def test_two_checkpoints_before_and_after_fine_tuning(
    fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [f"test_vit={fine_tuned / name}.safetensors" for name in ("before", "after")]
    options = ["--labels", str(fine_tuned / "labels.csv"), "--out", str(tmp_path / "out")]
    assert cli.main(["compare", *sides, str(fine_tuned / "pictures"), *options]) == 0
    assert "10 pictures compared, 0 left out" in capsys.readouterr().out
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    answers = about["answers"]
    assert answers["accuracy"][1] > answers["accuracy"][0]
    assert answers["only_second"] > answers["only_first"]
    assert about["first"]["weights_sha256"] != about["second"]["weights_sha256"]
    assert about["versions"] == about["first"]["versions"] == about["second"]["versions"]
    assert about["date"] >= about["second"]["date"]
    assert [about[side]["seed"] for side in ("first", "second")] == [0, 0]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"compare.html", "heads.csv", "run.json"}
    page = (tmp_path / "out" / "compare.html").read_text()
    assert_whole_page(page, len(BY_PICTURE) + 3)  # and CKA, maps by offset, maps of CLS
    assert "McNemar" in page
    (drawn,) = re.findall(r'<script type="application/json" id="made-with">(.*?)</script>', page)
    assert json.loads(drawn) == about
    assert about["not_compared"] == {}
    table = pandas.read_csv(tmp_path / "out" / "heads.csv")
    assert list(table.columns) == [
        *("layer", "head", "measure", "unit", "first", "second"),
        *("value", "std", "sem", "low", "high", "pictures"),
    ]
    lines = table[table["measure"] == "distance"]
    models = [
        vitviz.load_model("test_vit", checkpoint=fine_tuned / f"{name}.safetensors")
        for name in ("before", "after")
    ]
    rows = [profile(model, fine_tuned / "pictures").values("distance") for model in models]
    apart = (rows[1].astype(float) - rows[0]).mean(axis=0)
    assert_allclose(lines["value"], apart.ravel(), atol=1e-4)
    assert_allclose(lines["second"] - lines["first"], lines["value"], atol=1e-5)
    low, _ = Moments.of(rows[1].astype(float) - rows[0]).interval()
    assert_allclose(lines["low"], low.ravel(), atol=1e-4)
    assert list(zip(lines["layer"], lines["head"], strict=True))[:3] == [(1, 1), (1, 2), (2, 1)]


def test_names_in_the_table_of_labels_need_the_names_of_the_classes(
    fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in the README: a table of files and names, and checkpoints that name no classes."""
    numbers = (fine_tuned / "labels.csv").read_text().split()
    table = "".join(f"{n:02}.png,kind {label}\n" for n, label in enumerate(numbers))
    (tmp_path / "labels.csv").write_text(f"picture,label\n{table}")
    (tmp_path / "classes.txt").write_text("".join(f"kind {n}\n" for n in range(10)))
    sides = [f"test_vit={fine_tuned / name}.safetensors" for name in ("before", "after")]
    command = ["compare", *sides, str(fine_tuned / "pictures"), "--labels"]
    command += [str(tmp_path / "labels.csv"), "--out"]
    classes = ["--classes", str(tmp_path / "classes.txt")]
    assert cli.main([*command, str(tmp_path / "named"), *classes]) == 0
    about = json.loads((tmp_path / "named" / "run.json").read_text())
    assert about["answers"]["accuracy"][1] > about["answers"]["accuracy"][0]
    capsys.readouterr()
    assert cli.main([*command, str(tmp_path / "unnamed")]) == 0
    said = capsys.readouterr().err
    assert said.count("The classes of test_vit have no names") == 1
    assert "--classes FILE" in said
    about = json.loads((tmp_path / "unnamed" / "run.json").read_text())
    assert not about["answers"].get("accuracy")


def test_the_preprocessing_of_both_models_can_be_given(
    fine_tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = [f"test_vit={fine_tuned / name}.safetensors" for name in ("before", "after")]
    command = ["compare", *sides, str(fine_tuned / "pictures"), "--out", str(tmp_path / "out")]
    assert cli.main([*command, "--mean", "0.5,0.4,0.3", "--std", "0.2", "--crop", "0.8"]) == 0
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    preprocessing = about["first"]["preprocessing"]
    assert preprocessing["mean"] == [0.5, 0.4, 0.3]
    assert preprocessing["std"] == [0.2, 0.2, 0.2]
    assert preprocessing["crop_pct"] == 0.8
    assert cli.main([*command, "--std", "0"]) == 2
    assert "Expected --std as three numbers" in capsys.readouterr().err


def test_the_command_says_what_was_left_out_and_what_was_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sides = ["vitviz_tiny_cifar10", "vitviz_tiny_cifar100"]
    files = [str(folder / name) for name in ("1.png", "3.png", "4.png")]
    assert cli.main(["compare", *sides, *files, "--out", str(tmp_path / "out")]) == 1
    said = capsys.readouterr()
    assert "2 pictures compared, 1 left out" in said.out
    assert "4.png: " in said.err
    assert "CKA needs at least 4 pictures." in said.err
    assert cli.main(["compare", *sides, "--out", str(tmp_path / "other")]) == 2
    assert_clear_error(capsys.readouterr().err.strip())
    assert cli.main(["compare", *sides, *files, "--out", str(tmp_path / "out")]) == 2


def test_ctrl_c_writes_nothing(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(comparing, "measure_piece", stop)
    sides = ["vitviz_tiny_cifar10", "vitviz_tiny_cifar100"]
    out = tmp_path / "out"
    assert cli.main(["compare", *sides, str(folder), "--out", str(out)]) == 130
    assert not out.exists()


def test_the_second_of_two_comparisons_into_a_folder_is_refused(tmp_path: Path) -> None:
    refused: list[str] = []
    told: list[tuple[int, int]] = []

    def second(done: int, total: int) -> None:
        told.append((done, total))
        if not refused:
            with pytest.raises(ProfileError) as caught:
                compare(*MODELS, PICTURES[:6], out=tmp_path / "out")
            refused.append(str(caught.value))

    compare(*MODELS, PICTURES[:6], out=tmp_path / "out", batch_size=2, progress=second)
    assert told == sorted(told)  # of pictures that both models have taken
    assert (told[0], told[-1]) == ((0, 6), (6, 6))
    assert refused[0].startswith("Another process is writing into")
    assert (tmp_path / "out" / "run.json").is_file()
    assert not (tmp_path / "out" / ".lock").exists()
