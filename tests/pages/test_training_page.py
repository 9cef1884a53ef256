"""The Training page: recorded runs, their moments, and what is missing is said."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pages.driver import assert_works, charts, open_data, opened, prose, provenance
from vitviz import checkpoints
from vitviz.app import training

CIFAR10, CIFAR100 = "vitviz_tiny_cifar10", "vitviz_tiny_cifar100"
CURVES = checkpoints.assets() / "curves"


@pytest.fixture(autouse=True)
def _read_anew() -> None:
    training._runs.clear()
    training._record.clear()


@pytest.fixture
def records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of records that the page reads instead of the shipped one."""
    folder = tmp_path / "curves"
    folder.mkdir()
    monkeypatch.setattr(training, "assets", lambda: tmp_path)
    return folder


def write_run(folder: Path, name: str, accuracy: float, **more: Any) -> None:
    rows = [dict(image_size=32, epoch=e, loss=2.0, held_out_accuracy=accuracy) for e in (1, 2)]
    content = {"model": name, "test_accuracy": accuracy, "epochs": rows, **more}
    (folder / f"{name}.json").write_text(json.dumps(content))


def alts(at: Any) -> list[str]:
    return [chart.alt for chart in charts(at)]


def test_the_run_of_the_model_on_screen_is_shown() -> None:
    at = opened("training", model=CIFAR100)
    assert_works(at)
    run = json.loads((CURVES / f"{CIFAR100}.json").read_text())
    curve, filters, positions, distance = alts(at)[:4]
    assert f"{run['test_accuracy']:.1%} of the test pictures" in curve
    assert "44.08%" in curve
    assert "12 principal components" in filters
    record = np.load(CURVES / f"{CIFAR100}.npz")
    last = len(record["epoch"]) - 1
    share = record[f"distance_{last}"].mean() / record["image_size"][last]
    assert f"{100 * share:.0f} % of the side on average" in distance
    assert "position of the grid" in positions
    assert "16 x 16" in " ".join(heading.value for heading in at.subheader)
    assert "62.4% after, with 4 times as many patches" in prose(at)


def test_the_slider_goes_back_to_the_untrained_model() -> None:
    at = opened("training", model=CIFAR100)
    now = alts(at)
    at.select_slider(key="moment").set_value(1).run()
    assert_works(at)
    before = alts(at)
    assert all(one != other for one, other in zip(now[1:4], before[1:4], strict=True))
    record = np.load(CURVES / f"{CIFAR100}.npz")
    share = f"{100 * record['distance_0'].mean() / 32:.0f} %"
    assert f"{share} of the side on average, {share} before training" in before[3]
    assert "8 x 8" in " ".join(heading.value for heading in at.subheader)


def test_the_line_and_the_files_tell_of_the_record() -> None:
    """Also where the weights on screen are random: nothing here is theirs."""
    at = opened("training", model=CIFAR100, weights="random", moment="2")
    assert_works(at)
    assert not at.warning
    assert provenance(at) == f"{CIFAR100} · recorded while it was trained · epoch 2.0, 32 px"
    at = open_data(at, "training")
    curve, distance = (frame.value for frame in at.dataframe)
    run = json.loads((CURVES / f"{CIFAR100}.json").read_text())
    assert list(curve["held-out accuracy"]) == [row["held_out_accuracy"] for row in run["epochs"]]
    record = np.load(CURVES / f"{CIFAR100}.npz")
    wanted = record["distance_1"].ravel()
    np.testing.assert_allclose(distance["distance, px"], wanted, rtol=1e-5)


def test_a_link_holds_the_moment() -> None:
    at = opened("training", model=CIFAR100, moment="3")
    assert_works(at)
    assert dict(at.query_params)["moment"] == "3"
    assert at.session_state["moment"] == 3


def test_a_model_of_others_is_not_claimed(records: Path, serve: Any) -> None:
    write_run(records, CIFAR10, 0.5)
    serve("plain")
    at = opened("training")
    assert_works(at)
    assert f"was not trained here: the run of {CIFAR10} is shown" in at.info[0].value


def test_a_run_without_kept_weights_shows_its_curve_alone(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    at = opened("training")
    assert_works(at)
    assert len(alts(at)) == 1
    assert "No weights were kept" in at.info[0].value


def test_with_and_without_a_teacher(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    teacher = {"model": "cnn", "test_accuracy": 0.7654}
    write_run(records, f"{CIFAR10}_distilled", 0.6, teacher=teacher)
    at = opened("training")
    assert_works(at)
    assert "with a teacher, from 60.0 %" in alts(at)[1]
    assert "76.5% of the test pictures" in prose(at)


def test_data_hunger_has_intervals(records: Path) -> None:
    write_run(records, CIFAR10, 0.5)
    runs = [
        dict(network=network, share=share, seed=seed, test_accuracy=accuracy)
        for network in ("vit", "cnn")
        for share, values in ((0.1, (0.2, 0.3, 0.4)), (1.0, (0.6,)))
        for seed, accuracy in enumerate(values)
    ]
    found = {"seen": 64_000, "pictures": 45_000, "runs": runs}
    (records / "data_hunger.json").write_text(json.dumps(found))
    at = opened("training")
    assert_works(at)
    assert "ViT 30.0% with 4,500 pictures and 60.0% with 45,000" in alts(at)[-1]
    mean, half = training._interval(runs, "vit", 0.1)
    assert (mean, half) == pytest.approx((0.3, 4.303 * 0.1 / 3**0.5))
    assert training._interval(runs, "cnn", 1.0)[1] == pytest.approx(0.0096, abs=1e-4)
