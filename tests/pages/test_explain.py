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
    address,
    alts,
    assert_works,
    at_page,
    charts,
    figures,
    forget,
    numbers,
    of_sample,
    open_data,
    opened,
    opened_with,
    opened_with_data,
    prose,
)
from vitviz import Model, ModelError, attribution, inspection, intervention
from vitviz.app.screens import explain_curves, explain_recorded
from vitviz.app.shared import pictures, queue, results
from vitviz.common import SMALL_MODEL
from vitviz.common.language import as_percent, use_language
from vitviz.profiling import load_faithfulness


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()
    results.capture_cache.clear()


def drawn(at: AppTest) -> list[np.ndarray]:
    """The ranks of the maps on screen, from 0 to 1."""
    traces = json.loads(charts(at)[0].spec)["data"]
    return [numbers(one["z"]) / 100 for one in traces if one["type"] == "heatmap"]


def put_method(
    monkeypatch: pytest.MonkeyPatch, function: Callable[..., np.ndarray], **more: Any
) -> None:
    methods: Any = attribution.METHODS
    monkeypatch.setitem(methods, "relevance", replace(methods["relevance"], map=function, **more))


def test_the_maps_are_of_the_most_probable_class_then_of_the_chosen_one(
    serve: Callable[..., Model],
) -> None:
    model = serve("plain")
    acts = of_sample(model)
    assert acts.probabilities is not None
    top = int(acts.probabilities.argmax())
    names = ("relevance", "gradient", "grad_cam")
    labels = [attribution.METHODS[name].label for name in names]
    at = opened_with_data("explain", maps=" ".join(names))
    assert_works(at)
    assert at.selectbox(key="class").options[0] == f"most probable: output {top}"
    image = pictures.sample(pictures.DEFAULT).image
    for index in (top, (top + 1) % 5):
        at.selectbox(key="class").set_value(index).run()
        values = [attribution.METHODS[name].map(model, image, index) for name in names]
        ranks = list(map(inspection.patch_ranks, values))
        for found, own in zip(drawn(at), ranks, strict=True):
            np.testing.assert_allclose(found, own, atol=1e-6)
        hovers = [one["customdata"] for one in figures(at)[0]["data"] if one["type"] == "heatmap"]
        table = at.dataframe[0].value
        for name, label, each, rank, hover in zip(
            names, labels, values, ranks, hovers, strict=True
        ):
            np.testing.assert_allclose(table[label], each.ravel(), rtol=1e-4)
            np.testing.assert_allclose(table[f"{label}, rank"], rank.ravel(), rtol=1e-4)
            assert hover[2][3][1] == f"{each[2, 3]:.3g}"
            row, col = np.unravel_index(each.argmax(), each.shape)
            (line,) = [one for one in prose(at).splitlines() if one.startswith(f"- **{label}**")]
            largest = f"{each.max():.3g}"
            if attribution.METHODS[name].is_share:
                largest = as_percent(each.max())
            assert line.endswith(f"Largest: row {row + 1}, column {col + 1}, {largest}.")
        like = np.corrcoef([rank.ravel() for rank in ranks])
        pairs = {like[i, j]: (labels[i], labels[j]) for i, j in ((0, 1), (0, 2), (1, 2))}
        most, least = max(pairs), min(pairs)
        assert (
            f"ranks of {pairs[most][0]} and {pairs[most][1]} (correlation {most:.2f}), least those "
            f"of {pairs[least][0]} and {pairs[least][1]} ({least:.2f})." in prose(at)
        )
    assert f"**output {index}** ({as_percent(acts.probabilities[index])})" in prose(at)
    assert address(at)["class"] == str(index)


def test_maps_that_know_no_class_stand_beside_them(serve: Callable[..., Model]) -> None:
    acts = of_sample(serve("plain"))
    at = opened("explain", maps="rollout last")
    rollout, last = drawn(at)
    whole = inspection.attention_rollout(acts)
    np.testing.assert_allclose(rollout, inspection.patch_ranks(whole[1:].reshape(4, 6)), atol=1e-6)
    reads = acts.attention(2)[:, 0, 1:].mean(axis=0).reshape(4, 6)
    np.testing.assert_allclose(last, inspection.patch_ranks(reads), atol=1e-6)
    assert address(at) == {"maps": "rollout last"}
    for label, what, values in (
        ("rollout", "all layers multiplied", whole[1:].reshape(4, 6)),
        ("attention of the last layer", "the last layer, mean of its heads", reads),
    ):
        (line,) = [one for one in prose(at).splitlines() if one.startswith(f"- **{label}**")]
        assert f"The attention of {what}" in line
        assert line.endswith(f", {as_percent(values.max())}.")


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
    plain = of_sample(model)
    assert plain.probabilities is not None
    monkeypatch.setattr(explain_curves, "CURVE_STEPS", 3)
    link = {"class": "3", "fill": "mean"}
    at = opened("explain", **link, maps="relevance rollout")
    (button,) = [each for each in at.button if each.key == "run curves"]
    assert button.label == f"Deletion and insertion ({2 * 22 * 4} passes)"
    button.click().run()
    assert_works(at)
    assert not [each for each in at.button if each.key in ("run curves", "cancel curves")]
    assert prose(at).count("is the mean of 20 random orders") == 2
    pair = [figure["data"] for figure in figures(at)[-2:]]
    deleted, inserted = (
        numbers(next(one["y"] for one in traces if one.get("name") == "rollout")) for traces in pair
    )
    image = pictures.sample(pictures.DEFAULT).image
    maps = {
        "relevance": attribution.relevance(model, image, 3),
        "rollout": inspection.attention_rollout(plain)[1:].reshape(4, 6),
    }
    kinds = (intervention.deletion_curve, intervention.insertion_curve)
    options: Any = dict(target=3, steps=3, removal="mean")
    table = open_data(at, "explain").dataframe[1].value
    assert "Probability of output 3 as patches go (mean colour) or come back" in prose(at)
    np.testing.assert_allclose(table.iloc[:, 0], np.arange(4) * 100 / 3, rtol=1e-4)
    better = []
    for which, way in enumerate(("removed", "put back")):
        curves = {name: kinds[which](model, image, each, **options) for name, each in maps.items()}
        chance = intervention.random_curve(kinds[which], model, image, **options)
        traces = {one.get("name"): numbers(one["y"]) for one in pair[which]}
        assert f"while patches are {way}" in charts(at)[which - 2].alt
        for name, curve in (*curves.items(), ("random", chance)):
            probabilities = 100 * curve.probabilities
            np.testing.assert_allclose(traces[name], probabilities, rtol=1e-4)
            np.testing.assert_allclose(table[f"{name}, {way}, %"], probabilities, rtol=1e-4)
        np.testing.assert_allclose(traces[None], 100 * np.append(chance.low, chance.high[::-1]))
        for end, values in (("5th", chance.low), ("95th", chance.high)):
            column = table[f"random, {way}, {end} percentile, %"]
            np.testing.assert_allclose(column, 100 * values, rtol=1e-4)
        low, high = chance.interval
        best = ("deletion: smaller", "insertion: larger")[which]
        assert f"Area ({best} is better; removed patches: mean colour): relevance" in prose(at)
        for name, curve in curves.items():
            assert f"{name} **{curve.area:.2f}**" in prose(at)
        assert f"areas from {low:.2f} to {high:.2f}" in prose(at)
        areas = {name: curve.area for name, curve in curves.items()}
        better.append({n for n, area in areas.items() if (area > high if which else area < low)})
    (both,) = better[0] & better[1]
    assert better[0] != better[1]
    assert f"Better than chance in both: **{both}**." in prose(at)
    answer = 100 * plain.probabilities[3]
    # A deletion begins with the whole picture, and an insertion ends with it.
    np.testing.assert_allclose((deleted[0], inserted[-1]), answer, rtol=1e-4)
    assert deleted[-1] == pytest.approx(inserted[0], rel=1e-4)
    assert deleted[-1] != pytest.approx(answer, rel=1e-2)
    # Another map needs its own curves alone: chance is known.
    more = opened("explain", **link, maps="relevance grad_cam")
    (button,) = [each for each in more.button if each.key == "run curves"]
    assert button.label == f"Deletion and insertion ({2 * 4} passes)"
    button.click().run()
    assert {"relevance", "Grad-CAM"} <= {one.get("name") for one in figures(more)[-1]["data"]}


def test_curves_that_the_cache_dropped_one_by_one_can_be_had_again(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(explain_curves, "CURVE_STEPS", 1)
    at = opened("explain", maps="relevance", fill="blur")
    at.button(key="run curves").click().run()
    before = alts(at)
    cache = results.capture_cache()
    for key in [key for key in cache._values if "curve" in key]:  # type: ignore[operator]
        del cache._values[key]
    at.run()
    for button in [each for each in at.button if each.key == "run curves"]:
        button.click().run()
    assert alts(at) == before
    with use_language("ko"):  # the driver calls the options what the menus call them
        korean = opened("explain", maps="relevance", fill="blur", lang="ko")
        columns = open_data(korean, "explain").dataframe[1].value.columns
    assert len(columns) == 9
    assert not re.findall("[a-z]{3}", " ".join(columns))


def test_recorded_figures_are_folded_and_drawn_only_when_opened() -> None:
    at = opened("explain", model=SMALL_MODEL, maps="last")
    assert len(charts(at)) == 1
    assert "drew the maps of" not in prose(at)
    found = load_faithfulness(SMALL_MODEL)
    at = opened_with("explain", "recorded", model=SMALL_MODEL, maps="last", fill="drop")
    assert_works(at)
    assert "**Deletion, tokens dropped** · less is better" in prose(at)
    assert "**Insertion, tokens dropped** · more is better" in prose(at)
    marked = found.means["pointing"]["random"][3]
    assert f"measured on the {marked:,} pictures in which the object is marked" in prose(at)
    assert figures(at)[-1]["layout"]["xaxis"]["type"] == "log"  # of seconds
    for measure, title in (
        ("other_class", "Does the map change with the class?"),
        ("random_weights", "Does the map change with the weights?"),
    ):
        (drawn_,) = [one for one in charts(at) if one.alt.startswith(title)]
        same = {name for name, (mean, *_) in found.means[measure].items() if mean >= 0.99}
        labels = {explain_recorded.marked_label(name) for name in same}
        traces = json.loads(drawn_.spec)["data"]
        assert {one["y"][0] for one in traces if "open" in one["marker"]["symbol"]} == labels
        (line,) = [one for one in prose(at).splitlines() if one.startswith(f"- **{title}**")]
        assert {label for label in labels if label in line} == labels
        assert ("These do not change" in line) == bool(labels)
    assert f"drew the maps of **{found.about['pictures']:,} pictures**" in prose(at)
    traces = json.loads(charts(at)[1].spec)["data"]
    by_name = {trace["y"][0]: trace for trace in traces}
    assert {"attention of the last layer", "rollout", "random"} < by_name.keys()
    assert len(by_name) == len(found.means["deletion_drop"])
    mean, low, high, _ = found.means["deletion_drop"]["relevance"]
    drawn_mean = numbers(by_name["relevance"]["x"])[0]
    assert drawn_mean == pytest.approx(mean)
    assert numbers(by_name["relevance"]["error_x"]["array"])[0] == pytest.approx(high - mean)
    assert "open" not in by_name["relevance"]["marker"]["symbol"]
    insertion = json.loads(charts(at)[2].spec)["data"]
    hollow = {one["y"][0] for one in insertion if "open" in one["marker"]["symbol"]}
    assert hollow == {
        attribution.METHODS[name].label
        for name in attribution.METHODS
        if not found.is_better("insertion_drop", name, "random")
    } | {
        explain_recorded.marked_label(name)
        for name in ("rollout", "attention")
        if not found.is_better("insertion_drop", name, "random")
    }
    for label in hollow:
        (line,) = [one for one in prose(at).splitlines() if "**Insertion, tokens dropped**:" in one]
        assert label in line
    assert "is better than all others" not in line  # intervals overlap
    open_data(at, "explain")
    table = at.dataframe[-1].value
    row = table[(table["measure"] == "Deletion, tokens dropped") & (table["map"] == "relevance")]
    assert row["95 % interval, low"].item() == pytest.approx(low, rel=1e-4)


@pytest.mark.parametrize("link", [{"weights": "random"}, {"size": "96x64"}])
def test_figures_of_other_weights_or_another_input_are_not_shown(link: dict[str, str]) -> None:
    at = opened_with("explain", "recorded", model=SMALL_MODEL, maps="last", **link)
    assert_works(at)
    assert len(charts(at)) == 1
    assert "`vitviz faithfulness MODEL PICTURES --out FOLDER`" in prose(at)


def test_a_model_without_recorded_figures_says_how_to_measure_them(
    serve: Callable[..., Model],
) -> None:
    at = opened_with("explain", "recorded", model=serve("plain").name, maps="last")
    assert_works(at)
    assert "Nothing is recorded of" in prose(at)
