"""The grades of an answer, on rates that are planted."""

import json

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from vitviz import plots
from vitviz.common.language import tr, use_language
from vitviz.model.answers import CONFIDENT, GRADES, WEAK, Grades
from vitviz.text.class_names import common_names, full_names, other_names, table_names
from vitviz.training.evaluation import fit_thresholds, measure_grades
from vitviz.training.recipes import RECIPES
from vitviz.zoo.checkpoints import load_trained, weights_file


def planted(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Answers that are right exactly as often as their probability squared says."""
    rng = np.random.default_rng(seed)
    confidence = rng.uniform(0, 1, 40_000)
    return confidence, rng.uniform(0, 1, 40_000) < confidence**2


def test_grades_begin_where_answers_are_right_as_often_as_is_said() -> None:
    assert fit_thresholds(*planted()) == pytest.approx((0.5**0.5, 0.8**0.5), abs=0.03)


def test_no_answer_is_confident_where_none_is_right_often_enough() -> None:
    confidence = np.linspace(0, 1, 1000)
    weak, confident = fit_thresholds(confidence, np.arange(1000) % 10 == 0)
    assert weak > 1
    assert confident > 1


def test_the_rates_are_those_of_other_pictures() -> None:
    thresholds = fit_thresholds(*planted())
    confidence, right = planted(seed=1)
    found = measure_grades(confidence, right, thresholds)
    assert sum(share for share, _ in found.values()) == pytest.approx(1, abs=1e-3)
    sure = confidence >= thresholds[1]
    assert found["confident"] == pytest.approx([sure.mean(), right[sure].mean()], abs=1e-4)
    assert found["weak"][1] < found["unsure"][1] < found["confident"][1]
    low, high = thresholds
    about = dict(weak_below=low, confident_from=high, test=found, test_pictures=len(right))
    grades = Grades.read(about)
    assert [grades.of(one) for one in (high, high - 1e-6, low, low - 1e-6)] == [
        *("confident", "unsure", "unsure", "weak")
    ]
    assert set(grades.rates) == set(GRADES)


def test_a_class_has_the_name_that_a_student_would_say() -> None:
    labels = ("lesser panda", "jinrikisha", "dog, hound", "lawn_mower")
    assert common_names(labels) == ("red panda", "rickshaw", "dog", "lawn mower")
    assert other_names(labels) == ("lesser panda", "jinrikisha", "hound", "")
    assert common_names(("__init__", "a_b", "_", ", c")) == ("__init__", "a b", "_", ", c")
    for other in (("organ", "liver"), ("cat", "dog"), (*map(str, range(9)), "cat")):
        assert common_names(other) == other  # of another vocabulary
        with use_language("ko"):
            assert common_names(other) == other


@pytest.mark.parametrize(
    "name", ["vitviz_things200", "vitviz_tiny_cifar10", "vitviz_tiny_cifar100"]
)
def test_every_class_has_a_korean_name_of_its_own(name: str) -> None:
    classes = load_trained(weights_file(name)).classes
    english = common_names(classes)
    with use_language("ko"):
        korean, others = common_names(classes), other_names(classes)
        assert [*map(tr, table_names(classes))] == [*korean]
        assert table_names(classes) == english  # as a file has them
    assert len({*korean}) == len(classes)
    assert not {*korean} & {*english}
    for shown, other in zip(english, others, strict=True):
        assert shown in other.split(", ")


@pytest.mark.parametrize("recipe", ["things200", "cifar10", "cifar100"])
def test_shipped_grades_come_from_all_held_out_pictures(recipe: str) -> None:
    file = weights_file(RECIPES[recipe].model)
    with safe_open(file, "np") as weights:
        about = json.loads(weights.metadata()["vitviz"])["grades"]
    assert about["held_out_pictures"] == RECIPES[recipe].held_out
    for split in ("held_out", "test"):
        right = [about[split][grade][1] for grade in ("weak", "unsure", "confident")]
        assert right[0] < WEAK < right[1] < CONFIDENT < right[2]
    shown = load_trained(file).grades
    assert shown is not None
    assert shown.rates["confident"] == about["test"]["confident"][1]


def test_hovering_shows_the_other_names_of_a_class() -> None:
    labels = ("lesser panda", "jinrikisha", "dog, hound")
    full = full_names(labels)
    assert full == ("red panda (lesser panda)", "rickshaw (jinrikisha)", "dog (hound)")
    shares, names = np.array([0.5, 0.3, 0.2]), common_names(labels)
    bars = plots.class_probabilities(shares, names, full_names=full)
    assert bars.data[0].hovertext == full
    pairs = plots.answer_change(shares, shares[::-1], names, full_names=full)
    assert {trace.hovertext for trace in pairs.data} == {full}
    lines = plots.logit_lens(np.tile(shares, (2, 1)), names, full_names=full)
    assert [line.hovertemplate.split(" after")[0] for line in lines.data] == [*full]
    of_patches = plots.patch_answers(
        np.tile(shares, (2, 2, 1)),
        Image.new("RGB", (8, 8)),
        crop=(0, 0, 8, 8),
        labels=names,
        index=1,
        full_names=full,
    )
    assert "red panda (lesser panda)" in of_patches.data[0].customdata[0][0]
