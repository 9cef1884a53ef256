"""Figures of training."""

import numpy as np
import pytest

from vitviz.plots import conditions, data_hunger, distance_by_layer, training_curves

ROWS = [
    dict(image_size=32, epoch=1.0, loss=2.0, held_out_accuracy=0.3),
    dict(image_size=32, epoch=2.0, loss=1.5, held_out_accuracy=0.5),
    dict(image_size=64, epoch=0.4, loss=1.4, held_out_accuracy=0.55),
    dict(image_size=96, epoch=0.4, loss=1.3, held_out_accuracy=0.6),
]


def test_a_run_shows_accuracy_loss_test_and_the_line_to_compare_with() -> None:
    figure = training_curves({"": ROWS}, test_accuracy={"": 0.58}, reference=0.25, chosen=1.0)
    held_out, test, loss = figure.data
    assert held_out.y == pytest.approx([30, 50, 55, 60])
    assert held_out.x == pytest.approx([1, 2, 2.4, 2.8])
    assert (test.x[0], test.y[0]) == pytest.approx((2.8, 58))
    assert loss.y == (2.0, 1.5, 1.4, 1.3)
    assert loss.yaxis == "y2"
    lines = [(shape.x0, shape.y0) for shape in figure.layout.shapes]
    assert {(2.0, 0), (2.4, 0)} <= {*lines}  # where larger inputs begin
    assert (1.0, 0) in lines  # the chosen moment
    assert (0, 25.0) in lines
    assert [note.text for note in figure.layout.annotations] == ["input 64 px", "input 96 px"]
    named = [(shape.y0, shape.name) for shape in figure.layout.shapes if shape.showlegend]
    assert named == [(25.0, "a ViT written for a course, 25.00 %")]
    alt = figure.layout.meta["alt"]
    for words in ("30.0 % after epoch 1", "60.0 % of the held-out", "58.0 %", "25.00 %"):
        assert words in alt


def test_two_runs_are_told_apart_without_colour() -> None:
    other = [
        {**row, "held_out_accuracy": row["held_out_accuracy"] + 0.1, "loss": row["loss"] / 2}
        for row in ROWS
    ]
    figure = training_curves(
        {"alone": ROWS, "taught": other}, test_accuracy={"alone": 0.5, "taught": 0.6}
    )
    first, _, _, second, *_ = figure.data
    assert first.line.dash != second.line.dash
    assert first.marker.symbol != second.marker.symbol
    assert (first.name, second.name) == ("alone, held out", "taught, held out")
    assert "taught, from 40.0 %" in figure.layout.meta["alt"]
    *_, loss = (line for line in figure.data if line.yaxis == "y2")
    assert loss.name == "taught, training loss"
    assert list(loss.y) == [row["loss"] for row in other]


def test_distance_stands_beside_what_it_was_before_training() -> None:
    now, before = np.array([[0.1, 0.3], [0.4, 0.5]]), np.full((2, 2), 0.52)
    figure = distance_by_layer(now, before, equal_sharing=0.5)
    untrained, trained = figure.data
    assert (untrained.name, trained.name) == ("untrained", "now")
    assert untrained.y == pytest.approx([52] * 4)
    assert trained.y == pytest.approx([10, 30, 40, 50])
    assert trained.x == pytest.approx([0.7, 1.3, 1.7, 2.3])
    assert figure.layout.shapes[0].y0 == 50
    assert "32 % of the side on average, 52 % before training" in figure.layout.meta["alt"]


def test_hunger_shows_both_networks_with_their_intervals() -> None:
    figure = data_hunger({"ViT": [(100, 0.2, 0.02), (1000, 0.6, 0.01)], "CNN": [(100, 0.4, 0.03)]})
    vit, cnn = figure.data
    assert vit.x == (100, 1000)
    assert vit.y == pytest.approx([20, 60])
    assert vit.error_y.array == pytest.approx([2, 1])
    assert cnn.error_y.array == pytest.approx([3])
    assert list(figure.layout.xaxis.ticktext) == ["100", "1,000"]
    assert "ViT 20.0 % with 100 pictures and 60.0 % with 1,000" in figure.layout.meta["alt"]


def test_hunger_labels_every_second_of_many_counts_and_the_last() -> None:
    counts = [450, 900, 2250, 4500, 11250, 22500, 45000]
    figure = data_hunger({"ViT": [(count, 0.5, 0.01) for count in counts]})
    assert sorted(figure.layout.xaxis.tickvals) == counts[::2]
    assert "45,000" in figure.layout.xaxis.ticktext


def test_every_condition_has_a_row_with_its_runs_and_their_mean() -> None:
    half = {"plain": 0.02, "CutMix": 0.01}
    values = {"plain": [0.2, 0.4], "CutMix": [0.5, 0.5, 0.8]}
    figure = conditions(values, axis="accuracy, %", half=half, reference=0.7)
    runs, mean, others, _ = figure.data
    assert list(runs.x) == pytest.approx([20, 40])
    assert list(runs.y) == ["plain", "plain"]
    assert list(mean.x) == pytest.approx([30])
    assert list(mean.error_x.array) == pytest.approx([2])
    assert list(others.y) == ["CutMix"] * 3
    assert figure.layout.shapes[0].x0 == pytest.approx(70)
    assert figure.layout.xaxis.title.text == "accuracy, %"
    assert "CutMix 50.0 to 80.0 %, 60.0 % on average" in figure.layout.meta["alt"]
