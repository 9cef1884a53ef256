"""Rollout: beside the map that knows no class stands the one of a class, and says what it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from pages.driver import address, assert_works, at_page, charts, forget, opened, prose, token_map
from vitviz import Model, ModelError, attribution, capture
from vitviz.app.screens import rollout
from vitviz.app.shared import pictures, queue
from vitviz.inspection import rollout_steps


@pytest.fixture(autouse=True)
def _nothing_kept() -> None:
    forget()


def beside(at: AppTest) -> list[dict[str, Any]]:
    """The maps in a row with the rollout: the attention of the layer, and that of the class."""
    sent: list[dict[str, Any]] = token_map(at)["beside"]
    return sent


def shown(at: AppTest) -> np.ndarray:
    """The numbers of the map of a class."""
    return np.array(beside(at)[1]["values"]).reshape(4, 6)


def alt(at: AppTest) -> str:
    text: str = beside(at)[1]["words"]
    return text


def of_sample(model: Model, method: Callable[..., np.ndarray], index: int) -> np.ndarray:
    return method(model, pictures.sample(pictures.DEFAULT).image, index)


def top_class(model: Model) -> int:
    probabilities = capture(model, pictures.sample(pictures.DEFAULT).image).probabilities
    assert probabilities is not None
    return int(probabilities.argmax())


def test_the_map_is_the_relevance_of_the_most_probable_class(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    top = top_class(model)
    at = opened("rollout")
    assert_works(at)
    assert not charts(at)
    wanted = of_sample(model, attribution.relevance, top)
    np.testing.assert_allclose(shown(at), wanted, rtol=1e-5)
    row, col = np.unravel_index(wanted.argmax(), wanted.shape)
    place = f"row {row + 1}, column {col + 1}"
    assert alt(at) == (
        f"Class map: relevance for output {top}: largest at {place}, {wanted.max():.2g}."
    )
    assert f"Largest: {place}, {wanted.max():.2g}." in prose(at)
    assert "read at CLS. This is not attention itself" in prose(at)
    assert address(at) == {}


@pytest.mark.parametrize(
    ("link", "row", "layers", "how"),
    [
        ({}, True, (0, 3), "to the CLS token, layers 1 to 3, heads fused by mean, r = 0.5"),
        (dict(layer="2"), True, (0, 2), "layers 1 to 2, heads fused by mean"),
        (dict(layer="2", start_layer="2", fusion="max"), True, (1, 2), "layers 2 to 2, "),
        (dict(residual="0.3", discard="0.2"), True, (0, 3), "r = 0.3, the smallest 0.2 discarded"),
        (dict(read="column", layer="1"), False, (0, 1), "from the CLS token, layers 1 to 1"),
    ],
)
def test_the_map_is_compared_with_the_rollout_that_is_shown(
    link: dict[str, str],
    row: bool,
    layers: tuple[int, int],
    how: str,
    serve: Callable[..., Model],
) -> None:
    model = serve("plain")
    acts = capture(model, pictures.sample(pictures.DEFAULT).image)
    settings: Any = dict(
        fusion=link.get("fusion", "mean"),
        residual=float(link.get("residual", 0.5)),
        discard=float(link.get("discard", 0)),
        start_layer=layers[0],
    )
    *_, matrix = [*rollout_steps(acts, **settings)][: layers[1] - layers[0]]
    beside = (matrix[0] if row else matrix[:, 0])[1:]
    wanted = of_sample(model, attribution.relevance, 2)
    like = np.corrcoef(beside, wanted.ravel())[0, 1]
    words = prose(opened("rollout", **{"class": "2", "layer": "3", **link}))
    said = words.partition("Correlation with the rollout shown (")[2].partition("\n")[0]
    assert how in said
    assert said.endswith(f"): {like:.2f}.")
    half = next(n for n in range(1, 25) if np.sort(beside)[::-1][:n].sum() >= beside.sum() / 2)
    end = "comes from" if row else "goes to"
    assert f"up to layer {layers[1]} {end} **{half} of 24** patches" in words


@pytest.mark.parametrize(
    ("kind", "link", "read"),
    [
        ("plain", {}, lambda mean: mean[0, 1:]),
        ("plain", dict(layer="2", query="2.3"), lambda mean: mean[1 + 6 + 2, 1:]),
        ("plain", dict(layer="1", query="2.3", read="column"), lambda mean: mean[1:, 1 + 6 + 2]),
        ("no class token", {}, lambda mean: mean.mean(axis=0)),
    ],
)
def test_attention_rollout_and_class_map_stand_in_a_row_with_their_correlation(
    kind: str,
    link: dict[str, str],
    read: Callable[[np.ndarray], np.ndarray],
    serve: Callable[..., Model],
) -> None:
    model = serve(kind)
    acts = capture(model, pictures.sample(pictures.DEFAULT).image)
    layer = int(link.get("layer", 3))
    attention = read(acts.attention(layer - 1).mean(axis=0))
    rollout_ = read([*rollout_steps(acts)][layer - 1])
    of_class = of_sample(model, attribution.relevance, 1).ravel()
    at = opened("rollout", **{"class": "1", **link})
    assert_works(at)
    first, second = beside(at)
    assert first["title"] == f"Attention in layer {layer}"
    assert second["title"] == "Class map: relevance for output 1"
    np.testing.assert_allclose(first["values"], attention, rtol=1e-5)
    for one, values in ((first, attention), (second, of_class)):
        like = np.corrcoef(rollout_, values)[0, 1]
        assert one["note"] == f"Correlation with rollout: {like:.2f}"
    assert [slider.key for slider in at.slider] == ["layer"]
    assert "slider" not in token_map(at)["titles"]


@pytest.mark.parametrize(
    "link", [dict(fusion="max"), dict(residual="0.9"), dict(discard="0.3", start_layer="2")]
)
def test_a_changed_map_is_compared_with_that_of_the_usual_settings(
    link: dict[str, str], serve: Callable[..., Model]
) -> None:
    acts = capture(serve("plain"), pictures.sample(pictures.DEFAULT).image)
    settings: Any = dict(
        fusion=link.get("fusion", "mean"),
        residual=float(link.get("residual", 0.5)),
        discard=float(link.get("discard", 0)),
        start_layer=int(link.get("start_layer", 1)) - 1,
    )
    *_, usual = rollout_steps(acts)
    *_, changed = rollout_steps(acts, **settings)
    like = np.corrcoef(usual[0, 1:], changed[0, 1:])[0, 1]
    words = "Correlation with *mean*, r = 0.5"
    assert f"{words}: **{like:.2f}**" in prose(opened("rollout", **link))
    assert words not in prose(opened("rollout"))


def test_another_class_and_the_other_map_are_chosen(serve: Callable[..., Model]) -> None:
    model = serve("plain")
    at = opened("rollout")
    at.selectbox(key="class").set_value(3).run()
    assert_works(at)
    np.testing.assert_allclose(shown(at), of_sample(model, attribution.relevance, 3), rtol=1e-5)
    at.segmented_control(key="class_map").set_value("gradient").run()
    assert_works(at)
    assert address(at) == {"class": "3", "class_map": "gradient"}
    wanted = of_sample(model, attribution.gradient_rollout, 3)
    np.testing.assert_allclose(shown(at), wanted, rtol=1e-4)
    assert alt(at).startswith("Class map: gradient rollout for output 3: strongest at")
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
    *_, every = rollout_steps(capture(model, pictures.sample(pictures.DEFAULT).image))
    wanted = of_sample(model, attribution.relevance, 2)
    like = np.corrcoef(every[prefix:, prefix:].mean(axis=0), wanted.ravel())[0, 1]
    words = prose(opened("rollout", **{"class": "2"}))
    assert "read at the mean of the patches." in words
    assert "Correlation with the rollout shown (to the mean of the patches, layers" in words
    assert f"the smallest 0.0 discarded): {like:.2f}." in words


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
    acts = capture(serve("plain"), pictures.sample(pictures.DEFAULT).image)
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
    words = rollout._concentration(values, "Half of what reaches CLS comes from")
    assert f"**{'2' if collapsed else '44'} of 100** patches" in words
    assert ("collapsed" in words) == collapsed


def test_a_large_model_compares_the_chosen_fusion_with_the_usual_one(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    monkeypatch.setattr(rollout, "MAX_MAP_BYTES", 10)
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


def put_method(monkeypatch: pytest.MonkeyPatch, function: Callable[..., np.ndarray]) -> None:
    methods: Any = attribution.METHODS
    monkeypatch.setitem(methods, "relevance", replace(methods["relevance"], map=function))


def test_what_is_refused_is_one_sentence(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")

    def refused(*_: object) -> np.ndarray:
        raise ModelError("Not this one.")

    put_method(monkeypatch, refused)
    at = opened("rollout")
    assert [warning.value for warning in at.warning][1:] == [
        "Not this one."
    ]  # after that of random weights
    assert not at.exception
    assert len(beside(at)) == 1


def test_a_map_is_made_once_and_alone_on_its_model(
    serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    passing: list[int] = []

    def watched(*_: Any) -> np.ndarray:
        passing.append(queue.pass_queue().length)
        return np.eye(4, 6, dtype=np.float32)

    put_method(monkeypatch, watched)
    at = opened("rollout")
    at.slider(key="layer").set_value(1).run()
    assert_works(opened("rollout"))
    assert passing == [1]
    assert not queue.pass_queue().length
    at.selectbox(key="class").set_value(0).run()
    at.selectbox(key="class").set_value(1).run()
    assert len(passing) == 3


def test_the_first_layer_of_the_steps_is_told(serve: Callable[..., Model]) -> None:
    serve("plain")
    assert token_map(opened("rollout", start_layer="2"))["titles"]["strip"] == "From layer 2 up to"
