"""The Training page: recorded runs, their moments, and what is missing is said."""

import json
import re
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    alts,
    assert_works,
    components,
    figures,
    numbers,
    opened,
    opened_with_data,
    prose,
    provenance,
    specs,
    trigger,
)
from vitviz import inspection
from vitviz.app import records as recorded
from vitviz.app.screens import training
from vitviz.common.files import assets
from vitviz.plots.training import running_epochs

CIFAR10, CIFAR100 = "vitviz_tiny_cifar10", "vitviz_tiny_cifar100"
CURVES = assets() / "curves"


def _forget() -> None:
    for read in (recorded.run_names, recorded.read, recorded.read_moments):
        read.cache_clear()


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    """What a test read is not known to the next one, nor to those of other files."""
    _forget()
    yield
    _forget()


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the shipped records that the page reads instead of them."""
    monkeypatch.setattr(recorded, "assets", lambda: tmp_path)
    return Path(shutil.copytree(CURVES, tmp_path / "curves"))


def write_run(folder: Path, name: str, accuracy: float, **more: Any) -> None:
    rows = [dict(image_size=32, epoch=e, loss=2.0, held_out_accuracy=accuracy) for e in (1, 2)]
    about = dict(minutes=1, picture_side=32, label_smoothing=0.1)
    content = {"model": name, "test_accuracy": accuracy, **about, "epochs": rows, **more}
    (folder / f"{name}.json").write_text(json.dumps(content))


def prose_after_growth(folder: Path, **more: Any) -> str:
    """The text on a run of two stages, the second on pictures of 64 pixels."""
    rows = [
        dict(image_size=size, epoch=epoch, loss=1.0, held_out_accuracy=accuracy)
        for size, epoch, accuracy in ((32, 5.0, 0.5), (64, 0.8, 0.6))
    ]
    write_run(folder, CIFAR10, 0.6, epochs=rows, **more)
    _forget()
    return prose(opened("training", model=CIFAR10))


@cache
def page_of(name: str) -> AppTest:
    """The page of a shipped model with its data, for tests that only read it."""
    return opened_with_data("training", model=name)


def test_the_run_of_the_model_on_screen_is_shown() -> None:
    at = page_of(CIFAR100)
    assert_works(at)
    run = json.loads((CURVES / f"{CIFAR100}.json").read_text())
    curve, filters, positions, distance = alts(at)[:4]
    assert f"{100 * run['test_accuracy']:.1f} % of the test pictures" in curve
    assert "44.08 %" in curve
    assert "9 principal components" in filters
    assert f"They explain {filters.rpartition('they explain ')[2]}" in prose(at)
    record = np.load(CURVES / f"{CIFAR100}.npz")
    last = len(record["epoch"]) - 1
    share = record[f"distance_{last}"].mean() / record["image_size"][last]
    assert f"{100 * share:.0f} % of the side on average" in distance
    equal = inspection.uniform_distance((16, 16), 4) / 64
    assert f"equal sharing is {100 * equal:.0f} %." in distance
    assert "position of the grid" in positions
    assert "16 x 16" in " ".join(heading.value for heading in at.subheader)
    assert "enlarged to 64 px, with 4 times as many patches" in prose(at)


def card_of(name: str) -> str:
    return (CURVES.parent / "weights" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [CIFAR10, CIFAR100])
def test_the_loss_on_the_page_is_the_one_that_the_run_minimised(name: str) -> None:
    """The recipe stands in the model card; the objective is tested in test_distillation.py."""
    recipe = dict(re.findall(r"^\| (\w+) \| (.+) \|$", card_of(name), re.MULTILINE))
    taught = recipe.get("teacher", "None") != "None"
    at = page_of(name)
    assert_works(at)
    words = prose(at)
    assert f"cross-entropy with smoothed labels (ε = {recipe['label_smoothing']}:" in words
    assert ("The loss is the mean of two terms" in words) == taught
    assert ("temperature τ" in words) == taught
    assert ("for the distillation token" in words) == ("distillation" in recipe["configuration"])
    if taught:
        assert f"τ = {float(recipe['temperature']):g}," in words
    assert sum("smoothed labels" in text.value for text in at.markdown) == 2


def test_mixed_pictures_are_part_of_the_loss(records: Path) -> None:
    write_run(records, CIFAR10, 0.5, cutmix=0.25)
    words = prose(opened("training", model=CIFAR10))
    assert "all classes), and in 25 % of the batches part of each picture" in words
    write_run(records, CIFAR10, 0.5, cutmix=0.0)
    _forget()
    assert "of the batches part of each" not in prose(opened("training", model=CIFAR10))


def test_small_pictures_that_were_enlarged_are_called_so(records: Path) -> None:
    words = prose_after_growth(records, picture_side=32)
    assert "0.8 epochs were on the same pictures of 32 px, enlarged to 64 px, with 4" in words
    assert "held-out accuracy was 50.0 % before and 60.0 % after." in words
    words = prose_after_growth(records, picture_side=64)
    assert "0.8 epochs were on pictures of 64 px, with 4 times as many patches" in words


def test_the_page_says_when_the_test_pictures_were_used(records: Path) -> None:
    once = "The test pictures were used only once"
    assert once in prose_after_growth(records)
    before = dict(image_size=64, epoch=1.0, test_accuracy=0.555)
    twice = prose_after_growth(records, tested_before=[before, {**before, "epoch": 2.0}])
    assert "(55.5 % right at epoch 1 at 64 px, 55.5 % right at epoch 2 at 64 px)" in twice
    assert once not in twice


@pytest.mark.parametrize("name", [CIFAR10, CIFAR100])
def test_card_and_page_agree_on_time_and_on_how_often_the_test_pictures_were_used(
    name: str,
) -> None:
    (minutes,) = re.findall(r"Wall time: (\d+) minutes", card_of(name))
    assert f"that of {name} took {minutes}." in prose(page_of(name))
    run = json.loads((CURVES / f"{name}.json").read_text())
    once = "chose nothing." in card_of(name)
    assert once == ("tested_before" not in run)
    assert once == ("used only once" in prose(page_of(name)))


def test_a_link_holds_the_moment_and_the_slider_goes_back_to_the_untrained_model() -> None:
    at = opened("training", model=CIFAR100, moment="3")
    assert_works(at)
    assert dict(at.query_params)["moment"] == "3"
    assert at.session_state["moment"] == 3
    record = np.load(CURVES / f"{CIFAR100}.npz")
    (line,) = [
        each for each in figures(at)[0]["layout"]["shapes"] if each["line"].get("width") == 3
    ]
    assert line["x0"] == line["x1"] == record["epoch"][2]
    at.select_slider(key="moment").set_value(1).run()
    assert_works(at)
    now, before = alts(page_of(CIFAR100)), alts(at)
    assert all(one != other for one, other in zip(now[1:4], before[1:4], strict=True))
    share = f"{100 * record['distance_0'].mean() / 32:.0f} %"
    assert f"{share} of the side on average, {share} before training" in before[3]
    assert "8 x 8" in " ".join(heading.value for heading in at.subheader)


def test_positions_of_all_moments_are_painted_from_their_minimum() -> None:
    """From -1 they would all be of one colour."""

    def begins(**settings: str) -> float:
        drawn = [json.loads(spec)["data"] for spec in specs(opened("training", **settings))]
        markers = [trace["marker"] for traces in drawn for trace in traces if "marker" in trace]
        (low,) = {marker["cmin"] for marker in markers if "cmin" in marker}
        return float(low)

    with np.load(assets() / "curves" / "vitviz_things200.npz") as record:
        tables = [record[f"positions_{at}"].astype(float) for at in range(len(record["epoch"]))]
    rows = [table / np.linalg.norm(table, axis=1, keepdims=True) for table in tables]
    least = min((row @ row.T).min() for row in rows)
    assert least - 0.011 < begins() == begins(moment="1") <= least


def test_the_line_and_the_files_tell_of_the_record() -> None:
    """Also where the weights on screen are random: nothing here is theirs."""
    at = opened_with_data("training", model=CIFAR100, weights="random", moment="2")
    assert_works(at)
    assert not at.warning
    assert provenance(at) == f"{CIFAR100} · recorded during training · epoch 0.5, input of 32 px"
    curve, distance = (frame.value for frame in at.dataframe[:2])
    run = json.loads((CURVES / f"{CIFAR100}.json").read_text())
    assert list(curve["held-out accuracy"]) == [row["held_out_accuracy"] for row in run["epochs"]]
    record = np.load(CURVES / f"{CIFAR100}.npz")
    wanted = record["distance_1"].ravel()
    np.testing.assert_allclose(distance["distance, px"], wanted, rtol=1e-5)


@pytest.mark.parametrize("name", [path.stem for path in sorted(CURVES.glob("vitviz_*.npz"))])
def test_the_last_moment_is_the_end_of_the_run(name: str) -> None:
    rows = json.loads((CURVES / f"{name}.json").read_text())["epochs"]
    at = page_of(name)
    end = running_epochs(rows)[-1]
    assert at.select_slider(key="moment").options[-1] == f"epoch {end:.1f}, input of 64 px"


def test_a_model_of_others_is_not_claimed(serve: Any) -> None:
    serve("plain")
    at = opened("training")
    assert_works(at)
    said = " ".join(box.value for box in at.info)
    assert "has no recorded training run: that of vitviz_things200 is shown" in said


@pytest.mark.parametrize("token", [True, False])
def test_the_teacher_of_a_run_is_named(token: bool, records: Path) -> None:
    teacher = {"model": "cnn", "test_accuracy": 0.7654, "minutes": 15}
    about: Any = dict(teacher=teacher, minutes=131, temperature=3, distillation_token=token)
    write_run(records, CIFAR10, 0.6, **about)
    at = opened("training", model=CIFAR10)
    assert_works(at)
    assert "the mean of two terms: the cross-entropy" in prose(at)
    assert ("distillation token" in prose(at)) == token
    assert "a CNN with a test accuracy of 76.5 %, whose own training took 15 minutes" in prose(at)
    assert f"that of {CIFAR10} took 131." in prose(at)
    write_run(records, CIFAR10, 0.6)
    _forget()
    assert "The teacher is" not in prose(opened("training", model=CIFAR10))


def runs_of(converged: bool) -> dict[str, Any]:
    runs = [
        dict(
            network=network,
            share=share,
            seed=seed,
            test_accuracy=accuracy,
            converged=done,
            pictures_seen=64_000 - 1000 * done,
        )
        for network, done in (("vit", False), ("cnn", converged))
        for share, values in ((0.1, (0.2, 0.3, 0.4)), (1.0, (0.6,)))
        for seed, accuracy in enumerate(values)
    ]
    return {"most_seen": 64_000, "pictures": 45_000, "runs": runs}


def test_data_hunger_has_intervals(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    (records / "data_hunger.json").write_text(json.dumps(runs_of(converged=False)))
    at = opened_with_data("training", model=CIFAR10)
    assert_works(at)
    (counts,) = [t.value["training pictures"] for t in at.dataframe if "network" in t.value]
    assert list(counts) == [*3 * [4500], 45_000] * 2
    assert "ViT 30.0 % with 4,500 pictures and 60.0 % with 45,000" in " ".join(alts(at))
    assert "Every run ended when it had seen about 64,000 pictures. Points" in prose(at)
    mean, half = training._interval((0.2, 0.3, 0.4))
    assert (mean, half) == pytest.approx((0.3, 4.303 * 0.1 / 3**0.5))
    assert training._interval([0.6])[1] == pytest.approx(0.0096, abs=1e-4)


def test_runs_that_were_cut_are_counted(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    (records / "data_hunger.json").write_text(json.dumps(runs_of(converged=True)))
    said = prose(opened("training", model=CIFAR10))
    assert "had seen about 64,000 pictures. 4 of the 8 runs ended at this limit" in said
    assert "Every run ended when it had seen about 64,000" not in said
    assert "flat lines" not in said  # CNNs with all pictures had stopped rising
    # The reason for flat lines is said where all runs were cut.
    found = runs_of(converged=True)
    for run in found["runs"]:
        run["converged"] &= run["share"] < 1
    found["runs"] += [run | {"share": 0.5} for run in found["runs"] if run["share"] == 1]
    (records / "data_hunger.json").write_text(json.dumps(found))
    _forget()
    assert "All runs with 22,500 training pictures or more are among" in prose(
        opened("training", model=CIFAR10)
    )


def test_conditions_are_compared_by_seed(records: Path) -> None:
    """Of all seeds the teacher's run has two points more, whatever else they have."""
    write_run(records, CIFAR10, 0.5)
    gains = dict(zip(training.CONDITIONS, (0.0, 0.01, -0.03, 0.02), strict=True))
    runs: list[dict[str, Any]] = [
        dict(
            condition=name,
            seed=seed,
            test_accuracy=base + gain + (0.02 * seed if name == "CutMix" else 0),
            core_minutes=None if seed == 2 else 10 + 4 * seed + 100 * gain,
            converged=seed == 0,
            distance=[[0.2, 0.5], [0.9, 1.0]],
            entropy=[[0.6, 0.7], [0.9, 1.0]],
            neighbours=[0.01, 0.3 + 0.1 * seed],
        )
        for name, gain in gains.items()
        for seed, base in enumerate((0.5, 0.6, 0.55))
    ]
    found = {"most_seen": 900_000, "pictures": 45_000, "runs": runs[::-1]}
    (records / "inductive_bias.json").write_text(json.dumps(found))
    at = opened_with_data("training", model=CIFAR10)
    assert_works(at)
    accuracy, distance, entropy = alts(at)[-3:]
    assert "mimetic initialisation 51.0 to 61.0 %, 56.0 % on average" in accuracy
    assert "plain initialisation 20.0 to 100.0 %, 65.0 % on average" in distance
    assert "plain initialisation 60.0 to 100.0 %, 80.0 % on average" in entropy
    said = prose(at)
    teacher = (
        "a CNN as teacher: +2.0 percentage points (95 % interval from +2.0 to +2.0), 14 minutes"
    )
    assert teacher in said
    mean, half = -1.0, 4.303 * 2 / 3**0.5
    words = f"CutMix: {mean:+.1f} percentage points (95 % interval from "
    assert words + f"{mean - half:+.1f} to {mean + half:+.1f})" in said
    assert "with plain initialisation 12 minutes of one core on average" in said
    assert "8 of the 12 runs ended at this limit" in said
    assert "That is 20 passes over the training pictures" in said
    assert "before training and after it: plain initialisation 0.01 → 0.40; mimetic" in said

    each, heads = (frame.value for frame in at.dataframe[-2:])
    measured = [run["test_accuracy"] for run in runs[::-1]]
    np.testing.assert_allclose(each["test accuracy"], measured, rtol=1e-5)
    assert each["condition"].iloc[0] == "a CNN as teacher"
    np.testing.assert_allclose(each["cosine of neighbours before"], 0.01)
    np.testing.assert_allclose(each["cosine of neighbours after"], [0.5, 0.4, 0.3] * 4)
    assert len(heads) == 12 * 4
    assert heads["distance / equal sharing"].tolist()[:4] == [0.2, 0.5, 0.9, 1.0]
    assert heads["head"].tolist()[:4] == [1, 2, 1, 2]


def test_the_shipped_runs_on_data_hunger_are_those_of_both_networks() -> None:
    """Both networks have the same shares and seeds, three at both ends, and none saw too much."""
    found = json.loads((CURVES / "data_hunger.json").read_text())
    seeds: dict[str, dict[float, list[int]]] = {"vit": {}, "cnn": {}}
    for run in found["runs"]:
        seeds[run["network"]].setdefault(run["share"], []).append(run["seed"])
        assert run["converged"] or run["pictures_seen"] > 0.95 * found["most_seen"]
    assert seeds["vit"] == seeds["cnn"]
    assert sorted(seeds["vit"]) == [0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0]
    assert seeds["vit"][0.01] == seeds["vit"][1.0] == [0, 1, 2]


def test_the_shipped_experiment_has_three_seeds_of_each_condition() -> None:
    found = json.loads((CURVES / "inductive_bias.json").read_text())
    seeds: dict[str, list[int]] = {name: [] for name in training.CONDITIONS}
    for run in found["runs"]:
        seeds[run["condition"]].append(run["seed"])
        assert run["pictures_seen"] == pytest.approx(found["most_seen"], rel=0.005)
        assert np.shape(run["distance"]) == np.shape(run["entropy"]) == (6, 4)
    assert all(sorted(each) == [0, 1, 2] for each in seeds.values())


def write_record(folder: Path, name: str, moments: int = 3) -> dict[str, np.ndarray]:
    """A record of three layers and two heads, the last moment on larger pictures."""
    noise = np.random.default_rng(0)
    sizes = np.array([32] * (moments - 1) + [64])
    arrays = {"image_size": sizes, "epoch": np.arange(moments, dtype=float)}
    for number, size in enumerate(sizes):
        arrays[f"filters_{number}"] = noise.normal(size=(20, 3, 4, 4)).astype(np.float16)
        arrays[f"positions_{number}"] = noise.normal(size=((size // 4) ** 2, 8)).astype(np.float16)
        arrays[f"distance_{number}"] = noise.uniform(5, 30, (3, 2))
        arrays[f"entropy_{number}"] = noise.uniform(3, 6, (3, 2))
    np.savez(folder / f"{name}.npz", **arrays)  # type: ignore[arg-type]
    return arrays


def test_distance_and_entropy_are_shares_of_the_side_and_of_equal_sharing(records: Path) -> None:
    """Of 32 pixels, 64 patches and CLS before training, and of 64, 256 and CLS at the end."""
    write_run(records, CIFAR10, 0.5)
    arrays = write_record(records, CIFAR10)
    at = opened_with_data("training", model=CIFAR10)
    assert_works(at)
    (told,) = [alt for alt in alts(at) if "Entropy" in alt]
    now, before = (
        arrays["entropy_2"].mean() / np.log2(257),
        arrays["entropy_0"].mean() / np.log2(65),
    )
    assert f"{100 * now:.0f} % of that of equal sharing on average, {100 * before:.0f} %" in told
    axes = [
        figure["layout"].get("yaxis", {}).get("title", {}).get("text") for figure in figures(at)
    ]
    shown = figures(at)[axes.index("distance, % of the side")]
    first, last = shown["data"]
    np.testing.assert_allclose(numbers(first["y"]), 100 * arrays["distance_0"].ravel() / 32)
    np.testing.assert_allclose(numbers(last["y"]), 100 * arrays["distance_2"].ravel() / 64)
    equal = inspection.uniform_distance((16, 16), 4) / 64
    assert shown["layout"]["shapes"][0]["y0"] == pytest.approx(100 * equal)
    np.testing.assert_allclose(
        at.dataframe[1].value["entropy, bits"], arrays["entropy_2"].ravel(), rtol=1e-5
    )


def test_the_player_begins_at_the_moment_on_screen_and_moves_it(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    write_record(records, CIFAR10)
    at = opened("training", model=CIFAR10, moment="2")
    (player,) = components(at, "vitviz_player")
    assert (player["moment"], player["count"]) == (1, 3)
    at = trigger(at, "vitviz_player", "moment", 2)
    assert_works(at)
    assert at.session_state["moment"] == 3
    (player,) = components(at, "vitviz_player")
    assert (player["moment"], player["count"]) == (2, 3)
