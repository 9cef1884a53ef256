"""Pages of models whose outputs are labels or values, and no classes."""

from typing import Any

import numpy as np
import pytest
from examples import own_module, watched
from streamlit.testing.v1 import AppTest

from pages.driver import assert_works, charts, components, open_data, opened, prose, provenance
from vitviz import Model
from vitviz.app.shared import models

pytestmark = pytest.mark.usefixtures("narrow", "read_anew")
NAMES = ("edema", "effusion", "normal")


def model_of(answers: Any) -> Model:
    module = own_module(image_size=32, num_classes=3)
    return watched(module, (32, 32), name=f"small {answers}", answers=answers, labels=NAMES)


def opened_with(model: Model, monkeypatch: pytest.MonkeyPatch, *page: str, **query: str) -> AppTest:
    monkeypatch.setattr(models, "load_by_name", lambda *_: model)
    return opened(*page, **query)


def answer_of(at: AppTest) -> str:
    words = ("label", "value")
    return next(text.value for text in at.text if any(word in text.value.lower() for word in words))


def test_labels_have_a_probability_each(monkeypatch: pytest.MonkeyPatch) -> None:
    at = opened_with(model_of("labels"), monkeypatch, "classify")
    assert_works(at)
    assert answer_of(at).startswith("Most probable label of random weights: ")
    assert "each output is a label with its own probability" in provenance(at)
    assert "It knows 3 labels: edema, effusion, normal. Each has a probability" in prose(at)
    assert "several may apply to a picture, or none" in prose(at)
    assert "can only answer with one of these names" not in prose(at).split("Often said")[0]
    assert list(at.table[0].value.columns) == ["label", "logit y", "1 / (1 + exp(-y))"]
    assert list(open_data(at, "classify").dataframe[0].value["label"]) == list(NAMES)
    assert any(r"p_k = \sigma(w_k \cdot y + b_k)" in formula.value for formula in at.latex)


def test_the_only_label_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a head of one output, for yes or no."""
    module = own_module(image_size=32, num_classes=1)
    model = watched(module, (32, 32), name="ill or not", answers="labels", labels=("ill",))
    at = opened_with(model, monkeypatch, "classify")
    assert_works(at)
    assert "It knows one label: ill." in prose(at)
    at.button(key="run head effects").click().run()
    assert_works(at)
    assert len(charts(at)) > 1
    assert "leaves the answer at" not in prose(at)  # it has no other
    unnamed = watched(module, (32, 32), name="without labels", answers="labels")
    at = opened_with(unnamed, monkeypatch, "classify")
    assert "Its output has no name that is known here." in prose(at)
    assert answer_of(at).endswith(" (its output has no name)")
    at = opened_with(model, monkeypatch, "anatomy")
    assert_works(at)
    (way,) = (data for data in components(at, "vitviz_anatomy") if "cards" in data)
    (card,) = (card for card in way["cards"] if card["id"] == "head")
    assert "into one number: the logit. The sigmoid turns it into the probability" in card["say"]


@pytest.mark.parametrize(("answers", "heading"), [("labels", "label"), ("values", "output")])
def test_outputs_that_are_no_classes_are_not_called_so_on_compare(
    answers: str, heading: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = opened_with(model_of(answers), monkeypatch, "compare")
    open_data(at, "compare")
    (table,) = (each.value for each in at.dataframe if "side" in each.value)
    assert "class" not in table
    assert {*table[heading]} == {*NAMES}
    assert "class" not in " ".join(
        text.value for text in at.markdown if "The answers" in text.value
    )


def test_values_are_shown_without_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("values")
    at = opened_with(model, monkeypatch, "classify")
    assert not at.exception
    assert answer_of(at).startswith("Values of random weights: edema ")
    assert "outputs are values with no known unit" in provenance(at)
    (info,) = [info.value for info in at.info]
    assert "gives values, as of a regression: 3 of them, with no known unit" in info
    assert "This model names no classes, so there is no answer to change here." in prose(at)
    assert "100 %" not in prose(at).split("Often said")[0]
    assert "probability" not in " ".join(subheader.value for subheader in at.subheader)
    open_data(at, "classify")
    assert [*at.dataframe[-1].value.columns] == ["output", "value"]


def test_the_order_of_patches_changes_outputs_that_are_no_probabilities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = opened_with(model_of("values"), monkeypatch, "anatomy", experiment="order")
    assert_works(at)
    assert "Largest change of an output: **" in prose(at)
    assert "a probability (0 to 1)" not in prose(at)


def test_values_stand_beside_probabilities(monkeypatch: pytest.MonkeyPatch) -> None:
    at = opened_with(model_of("values"), monkeypatch, "compare")
    assert_works(at)
    assert answer_of(at) in prose(at)
    open_data(at, "compare")
    (table,) = [each.value for each in at.dataframe if "value" in each.value.columns]
    assert np.isfinite(table["value"]).all()
    assert table["probability, %"].isna().all()
