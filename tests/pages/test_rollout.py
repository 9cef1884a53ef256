"""Rollout: beside the map that knows no class stands the one of a class, and says what it is."""

import base64
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import address, assert_works, at_page, charts, forget, opened, prose
from vitviz import Model, ModelError, attribution, capture
from vitviz.app.screens import rollout
from vitviz.app.shared import pictures, queue
from vitviz.inspection import attention_rollout, rollout_steps

MAP = 1  # among the charts, after the picture


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()


def shown(at: AppTest) -> np.ndarray:
    """The numbers of the map of a class."""
    z = json.loads(charts(at)[MAP].spec)["data"][0]["z"]  # as plotly writes arrays
    shape = [int(number) for number in z["shape"].split(",")]
    return np.frombuffer(base64.b64decode(z["bdata"]), z["dtype"]).reshape(shape)


def alt(at: AppTest) -> str:
    text: str = charts(at)[MAP].alt
    return text


def of_dog(model: Model, method: Callable[..., np.ndarray], index: int) -> np.ndarray:
    return method(model, pictures.sample("dog").image, index)


def top_class(model: Model) -> int:
    probabilities = capture(model, pictures.sample("dog").image).probabilities
    assert probabilities is not None
    return int(probabilities.argmax())


def test_the_map_is_the_relevance_of_the_most_probable_class(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    top = top_class(model)
    at = opened("rollout")
    assert_works(at)
    assert len(charts(at)) == 2
    wanted = of_dog(model, attribution.relevance, top)
    np.testing.assert_allclose(shown(at), wanted, rtol=1e-5)
    row, col = np.unravel_index(wanted.argmax(), wanted.shape)
    place = f"row {row + 1}, column {col + 1}"
    assert alt(at) == (
        f"Relevance of each patch for output {top}: largest at {place}, {wanted.max():.2g}."
    )
    assert f"Largest: {place}, {wanted.max():.2g}." in prose(at)
    assert "read at CLS. This is not attention itself" in prose(at)
    assert address(at) == {}


def test_the_map_is_compared_with_the_rollout(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    acts = capture(model, pictures.sample("dog").image)
    rollout = attention_rollout(acts.attention_layers())[1:]
    wanted = of_dog(model, attribution.relevance, 2)
    like = np.corrcoef(rollout, wanted.ravel())[0, 1]
    at = opened("rollout", **{"class": "2", "fusion": "max"})
    assert f"Correlation with rollout (mean of heads, r = 0.5): {like:.2f}." in prose(at)


def test_another_class_and_the_other_map_are_chosen(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    at = opened("rollout")
    at.selectbox(key="class").set_value(3).run()
    assert_works(at)
    np.testing.assert_allclose(shown(at), of_dog(model, attribution.relevance, 3), rtol=1e-5)
    at.segmented_control(key="class_map").set_value("gradient").run()
    assert_works(at)
    assert address(at) == {"class": "3", "class_map": "gradient"}
    wanted = of_dog(model, attribution.gradient_rollout, 3)
    np.testing.assert_allclose(shown(at), 100 * wanted, rtol=1e-4)  # per cent
    assert alt(at).startswith("Gradient rollout for output 3: strongest at")
    assert "shares of 100 %" in prose(at)
    same = opened("rollout", **address(at))
    np.testing.assert_array_equal(shown(same), shown(at))


def test_the_class_is_the_one_that_classify_asks_about(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("rollout", **{"class": "3"})
    at_page(at, "classify").run()
    assert at.selectbox(key="class").value == 3
    at.selectbox(key="class").set_value(1).run()
    at_page(at, "rollout").run()
    assert "for output 1:" in alt(at)


@pytest.mark.parametrize(("name", "value"), [("class", "5"), ("class_map", "shap")])
def test_what_does_not_fit_falls_back(name: str, value: str, serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("rollout", **{name: value})
    assert f"{value} is not valid here" in at.info[0].value
    assert not at.exception
    assert address(at) == {}


@pytest.mark.parametrize("kind", ["no class token", "registers alone"])
def test_without_cls_the_mean_of_the_patches_is_read(
    kind: str, serve: Callable[..., Model]
) -> None:
    """And compared with the rollout of the same."""
    model = serve(kind)
    prefix = len(model.layers[0].prefix)
    *_, every = rollout_steps(capture(model, pictures.sample("dog").image))
    wanted = of_dog(model, attribution.relevance, 2)
    like = np.corrcoef(every[prefix:, prefix:].mean(axis=0), wanted.ravel())[0, 1]
    words = prose(opened("rollout", **{"class": "2"}))
    assert "read at the mean of the patches." in words
    assert f"Correlation with rollout (mean of heads, r = 0.5): {like:.2f}." in words


def test_a_second_head_is_told(serve: Callable[..., Model]) -> None:
    serve("distilled")
    assert "The model's answer is read at CLS (the head reads DIST too)." in prose(
        opened("rollout")
    )


@pytest.mark.parametrize(("fusion", "query"), [("mean", "cls"), ("max", "2.3"), ("min", "cls")])
def test_the_maps_of_the_three_fusions_are_compared(
    fusion: Any, query: str, serve: Callable[..., Model]
) -> None:
    """By the numbers of the picture at hand."""
    acts = capture(serve("plain"), pictures.sample("dog").image)
    maps = []
    for one in ("mean", "max", "min"):
        _, second, _ = rollout_steps(acts, fusion=one, residual=0.3, discard=0.2)
        maps.append(second[0 if query == "cls" else 1 + 6 + 2, 1:])
    like: Any = np.corrcoef(maps)
    link = dict(fusion=fusion, residual="0.3", discard="0.2", layer="2", query=query)
    text = prose(opened("rollout", **link))
    assert (
        f"*mean* with *max* **{like[0, 1]:.2f}**, *mean* with *min* **{like[0, 2]:.2f}**, "
        f"*max* with *min* **{like[1, 2]:.2f}**." in text
    )
    odd = ("mean", "max", "min")[int(like.sum(axis=0).argmin())]
    assert f"differs most from the other two here is *{odd}*." in text
    shown = np.sort(maps[("mean", "max", "min").index(fusion)])[::-1]
    half = next(n for n in range(1, 25) if shown[:n].sum() >= shown.sum() / 2)
    named = "the CLS token" if query == "cls" else "the patch at row 2, column 3"
    assert f"Half of what reaches {named} up to layer 2 comes from **{half} of 24**" in text


@pytest.mark.parametrize(("peak", "collapsed"), [(200.0, True), (5.0, False)])
def test_a_map_on_few_patches_is_said_to_have_collapsed(peak: float, collapsed: bool) -> None:
    values = np.ones(100)
    values[[3, 50, 51]] = peak
    words = rollout._concentration(values, "what reaches CLS")
    assert f"**{'2' if collapsed else '44'} of 100** patches" in words
    assert ("collapsed" in words) == collapsed


def test_a_large_model_compares_the_chosen_fusion_with_the_usual_one(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(rollout, "MAX_BYTES", 10)
    text = prose(opened("rollout", fusion="max"))
    assert "by fusion: *mean* with *max*" in text
    assert "*min*" not in text.partition("Correlation of the maps")[2].partition(".")[0]


def test_a_model_without_classes_says_so_and_still_shows_its_rollout(
    serve: Callable[..., Model],
) -> None:
    model = serve("no head")
    at = opened("rollout")
    assert_works(at)
    assert not charts(at)
    assert f"{model.name} has no head that names classes" in prose(at)


def test_what_is_refused_is_one_sentence(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")

    def refused(*_: object) -> np.ndarray:
        raise ModelError("Not this one.")

    monkeypatch.setattr(attribution, "relevance", refused)
    at = opened("rollout")
    assert [warning.value for warning in at.warning][1:] == [
        "Not this one."
    ]  # after that of random weights
    assert not at.exception
    assert not charts(at)


def test_a_map_is_made_once_and_alone_on_its_model(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    passing: list[int] = []

    def watched(*_: Any) -> np.ndarray:
        passing.append(queue.passes().length)
        return np.eye(4, 6, dtype=np.float32)

    monkeypatch.setattr(attribution, "relevance", watched)
    at = opened("rollout")
    at.slider(key="layer").set_value(1).run()
    assert_works(opened("rollout"))
    assert passing == [1]
    assert not queue.passes().length
    at.selectbox(key="class").set_value(0).run()
    at.selectbox(key="class").set_value(1).run()
    assert len(passing) == 3
