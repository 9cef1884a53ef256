"""Explain: maps of one class side by side, by rank, and whether they are better than chance."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import (
    APP,
    address,
    assert_works,
    at_page,
    charts,
    forget,
    open_data,
    opened,
    prose,
)
from pages.test_distance import numbers
from vitviz import Model, ModelError, attribution, capture, inspection
from vitviz.app.screens import explain_curves, explain_recorded
from vitviz.app.shared import pictures, queue, results
from vitviz.common import SMALL_MODEL
from vitviz.profiling import load_faithfulness


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()
    results.captures.clear()


def drawn(at: AppTest) -> list[np.ndarray]:
    """The ranks of the maps on screen, from 0 to 1."""
    traces = json.loads(charts(at)[0].spec)["data"]
    return [numbers(one["z"]) / 100 for one in traces if one["type"] == "heatmap"]


def wanted(model: Model, *names: str, index: int) -> list[np.ndarray]:
    image = pictures.sample(pictures.DEFAULT).image
    maps = [attribution.METHODS[name].map(model, image, index) for name in names]
    return [inspection.patch_ranks(each) for each in maps]


def put_method(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., np.ndarray], **more: Any
) -> None:
    methods: Any = attribution.METHODS
    monkeypatch.setitem(methods, "relevance", replace(methods["relevance"], map=function, **more))


def test_the_maps_are_of_the_most_probable_class_then_of_the_chosen_one(
    serve: Callable[..., Model],
) -> None:
    model = serve("plain")
    acts = capture(model, pictures.sample(pictures.DEFAULT).image)
    assert acts.probabilities is not None
    top = int(acts.probabilities.argmax())
    at = opened("explain", maps="relevance gradient grad_cam")
    assert_works(at)
    for index in (top, (top + 1) % 5):
        at.selectbox(key="class").set_value(index).run()
        for ranks, own in zip(
            drawn(at), wanted(model, "relevance", "gradient", "grad_cam", index=index), strict=True
        ):
            np.testing.assert_allclose(ranks, own, atol=1e-6)
    assert f"**output {index}**" in prose(at)
    assert address(at)["class"] == str(index)


def test_maps_that_know_no_class_stand_beside_them(serve: Callable[..., Model]) -> None:
    acts = capture(serve("plain"), pictures.sample(pictures.DEFAULT).image)
    at = opened("explain", maps="rollout last")
    rollout, last = drawn(at)
    whole = inspection.attention_rollout(acts)
    np.testing.assert_allclose(rollout, inspection.patch_ranks(whole[1:].reshape(4, 6)), atol=1e-6)
    reads = acts.attention(2)[:, 0, 1:].mean(axis=0).reshape(4, 6)
    np.testing.assert_allclose(last, inspection.patch_ranks(reads), atol=1e-6)
    assert address(at) == {"maps": "rollout last"}


@pytest.mark.parametrize(("name", "value"), [("class", "5"), ("maps", "shap"), ("maps", " ")])
def test_what_does_not_fit_falls_back(name: str, value: str, serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("explain", **{name: value})
    assert "is not valid here" in at.info[0].value
    assert_works(at)
    assert address(at) == {}


def test_the_class_is_the_one_that_classify_asks_about(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("explain", **{"class": "3"})
    at_page(at, "classify").run()
    assert at.selectbox(key="class").value == 3
    at.selectbox(key="class").set_value(1).run()
    at_page(at, "explain").run()
    assert "**output 1**" in prose(at)


def test_an_old_link_to_a_map_on_rollout_leads_here(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("rollout", **{"class": "2", "class_map": "gradient"})
    assert_works(at)
    assert at.title[0].value.startswith("Explain")
    assert "stand on this page now" in at.info[0].value
    assert address(at) == {"class": "2", "maps": "gradient"}


def test_a_method_that_is_not_defined_says_why_in_its_place(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")

    def refused(*_: object) -> np.ndarray:
        raise ModelError("Not this one.")

    put_method(monkeypatch, refused)
    at = opened("explain", maps="relevance grad_cam")
    assert [said.value for said in at.info] == ["**relevance**: Not this one."]
    assert_works(at)
    assert len(drawn(at)) == 1
    at = opened("explain", maps="relevance")
    assert [said.value for said in at.info] == ["**relevance**: Not this one."]
    assert not charts(at)
    assert not at.exception


def test_a_map_is_made_once_and_alone_on_its_model(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    passing: list[int] = []

    def watched(*_: Any) -> np.ndarray:
        passing.append(queue.pass_queue().length)
        return np.arange(24.0).reshape(4, 6)

    put_method(monkeypatch, watched)
    at = opened("explain")
    assert_works(opened("explain", maps="relevance"))
    assert passing == [1]
    assert not queue.pass_queue().length
    at.selectbox(key="class").set_value(0).run()
    at.selectbox(key="class").set_value(1).run()
    assert len(passing) == 3


def test_a_map_of_many_passes_waits_for_its_button(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    seen: list[tuple[int, int]] = []

    def made(*_: object, progress: Callable[[int, int], object]) -> np.ndarray:
        for done in (0, 25):
            progress(done, 50)
            seen.append((done, queue.pass_queue().length))
        return np.arange(24.0).reshape(4, 6)

    put_method(monkeypatch, made, passes=50)
    few = [name for name, method in attribution.METHODS.items() if method.passes < 50]
    assert len(drawn(opened("explain"))) == len(few) + 2  # of attention
    at = opened("explain", maps="relevance grad_cam")
    (button,) = [each for each in at.button if each.label == "relevance (50 passes)"]
    assert len(drawn(at)) == 1
    button.click().run()
    assert_works(at)
    assert seen == [(0, 1), (25, 1)]
    assert len(drawn(at)) == 2
    assert not [each for each in at.button if each.label == "relevance (50 passes)"]
    np.testing.assert_allclose(drawn(at)[0], np.arange(24.0).reshape(4, 6) / 23)


def test_a_model_without_classes_says_so(serve: Callable[..., Model]) -> None:
    model = serve("no head")
    at = opened("explain")
    assert not at.exception
    assert not charts(at)
    assert f"{model.name} has no head that names classes" in at.info[0].value


def test_curves_wait_for_their_button_and_stand_beside_chance(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain")
    plain = capture(model, pictures.sample(pictures.DEFAULT).image)
    assert plain.probabilities is not None
    monkeypatch.setattr(explain_curves, "STEPS", 3)
    at = opened("explain", **{"class": "3", "maps": "relevance rollout"})
    (button,) = [each for each in at.button if each.key == "run curves"]
    assert button.label == f"Deletion and insertion ({2 * 22 * 4} passes)"
    button.click().run()
    assert_works(at)
    assert not [each for each in at.button if each.key in ("run curves", "cancel curves")]
    assert prose(at).count("rollout **0.") == 2  # the areas
    assert prose(at).count("is the mean of 20 random orders") == 2
    assert len(re.findall(r"areas from 0\.\d\d to 0\.\d\d", prose(at))) == 2
    pair = [json.loads(chart.spec)["data"] for chart in charts(at)[-2:]]
    deleted, inserted = (
        numbers(next(one["y"] for one in traces if one.get("name") == "rollout")) for traces in pair
    )
    answer = 100 * plain.probabilities[3]
    # A deletion begins with the whole picture, and an insertion ends with it.
    np.testing.assert_allclose((deleted[0], inserted[-1]), answer, rtol=1e-4)
    assert deleted[-1] == pytest.approx(inserted[0], rel=1e-4)
    assert deleted[-1] != pytest.approx(answer, rel=1e-2)
    open_data(at, "explain")
    curves = at.dataframe[1].value
    for way in ("removed", "put back"):
        low, high = (curves[f"random, {way}, {end} percentile, %"] for end in ("5th", "95th"))
        assert (low <= high).all()
        assert (low < high).any()
    assert curves["relevance, removed, %"][0] == pytest.approx(answer, rel=1e-4)
    # Another map needs its own curves alone: chance is known.
    more = opened("explain", **{"class": "3", "maps": "relevance grad_cam"})
    (button,) = [each for each in more.button if each.key == "run curves"]
    assert button.label == f"Deletion and insertion ({2 * 4} passes)"


def recorded(model: str, **link: str) -> AppTest:
    at = AppTest.from_file(APP, default_timeout=120)
    at.query_params["model"] = model
    for name, value in link.items():
        at.query_params[name] = value
    at.session_state["recorded"] = True
    return at_page(at, "explain").run()


def test_recorded_figures_are_folded_and_drawn_only_when_opened() -> None:
    at = opened("explain", model=SMALL_MODEL, maps="last")
    assert len(charts(at)) == 1
    assert "drew the maps of" not in prose(at)
    found = load_faithfulness(SMALL_MODEL)
    at = recorded(SMALL_MODEL, maps="last", fill="mean")
    assert_works(at)
    assert f"drew the maps of **{found.about['pictures']:,} pictures**" in prose(at)
    traces = json.loads(charts(at)[1].spec)["data"]
    by_name = {trace["y"][0]: trace for trace in traces}
    mean, low, high, _ = found.means["deletion_mean"]["relevance"]
    drawn_mean = numbers(by_name["relevance"]["x"])[0]
    assert drawn_mean == pytest.approx(mean)
    assert numbers(by_name["relevance"]["error_x"]["array"])[0] == pytest.approx(high - mean)
    assert "open" not in by_name["relevance"]["marker"]["symbol"]
    insertion = json.loads(charts(at)[2].spec)["data"]
    hollow = {one["y"][0] for one in insertion if "open" in one["marker"]["symbol"]}
    assert hollow == {
        attribution.METHODS[name].label
        for name in attribution.METHODS
        if not found.is_better("insertion_mean", name, "random")
    } | {
        explain_recorded.marked_label(name)
        for name in ("rollout", "attention")
        if not found.is_better("insertion_mean", name, "random")
    }
    for label in hollow:
        (line,) = [one for one in prose(at).splitlines() if "**Insertion, mean colour**:" in one]
        assert label in line
    assert "is better than all others" not in line  # intervals overlap
    open_data(at, "explain")
    table = at.dataframe[-1].value
    row = table[(table["measure"] == "deletion_mean") & (table["map"] == "relevance")]
    assert row["95 % interval, low"].item() == pytest.approx(low, rel=1e-4)


@pytest.mark.parametrize("link", [{"weights": "random"}, {"size": "96x64"}])
def test_figures_of_other_weights_or_another_input_are_not_shown(link: dict[str, str]) -> None:
    at = recorded(SMALL_MODEL, maps="last", **link)
    assert_works(at)
    assert len(charts(at)) == 1
    assert "`vitviz faithfulness MODEL PICTURES --out FOLDER`" in prose(at)


def test_a_model_without_recorded_figures_says_how_to_measure_them(
    serve: Callable[..., Model],
) -> None:
    at = recorded(serve("plain").name, maps="last")
    assert_works(at)
    assert "Nothing is recorded of" in prose(at)
