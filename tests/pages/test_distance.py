"""The Distance page: dots lead to heads, and every number is that of the measurements."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import own_module, picture, watched
from planting import plant_sink
from streamlit.testing.v1 import AppTest

from pages.driver import (
    address,
    assert_works,
    at_page,
    charts,
    click,
    encoded,
    forget,
    numbers,
    of_sample,
    open_data,
    opened,
    opened_with_data,
    prose,
    provenance,
    token_map,
    upload,
)
from pages.test_data import written
from vitviz import Activations, Model, ModelError, inspection
from vitviz.app.shared import models, pictures
from vitviz.app.shared.view import MEAN
from vitviz.common.language import tr, use_language
from vitviz.inspection.patterns import Sinks

DOTS, MAP, HISTOGRAM, OFFSETS = 0, 1, 2, 3


def trace(at: AppTest, figure: int, number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(charts(at)[figure].spec)["data"][number]
    return found


def here(acts: Activations) -> dict[str, Any]:
    return dict(grid=acts.grid, num_prefix_tokens=acts.num_prefix_tokens)


def distances(acts: Activations, variant: Any = "renormalised") -> np.ndarray:
    return inspection.attention_distance(
        acts.attention_layers(), **here(acts), patch_size=acts.patch_size, variant=variant
    )


def facts(at: AppTest) -> str:
    (line,) = [text.value for text in at.markdown if "entropy" in text.value]
    return line


# --- one picture --------------------------------------------------------------------------------


def test_the_dots_beside_the_maps_of_attention_are_these(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    sent = token_map(opened("attention"))["distance"]
    np.testing.assert_allclose(sent["values"], distances(acts), atol=0.006)
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    assert sent["equal"] == pytest.approx([equal] * acts.depth)
    assert sent["side"] == 24


def test_a_click_on_a_dot_chooses_its_layer_and_head_on_every_page(
    serve: Callable[[str], Model],
) -> None:
    serve("plain")
    at = opened("distance")
    assert "layer 3 of 3 · mean of heads" in provenance(at)
    click(at, DOTS, 6)  # the third head of the second layer of four heads
    assert_works(at)
    assert "layer 2 of 3 · head 3" in provenance(at)
    assert address(at) == {"layer": "2", "head": "3"}
    assert at.slider(key="layer").value == 2
    assert at.selectbox(key="head").value == 3
    symbols = trace(at, DOTS)["marker"]["symbol"]
    assert [symbol == "diamond" for symbol in symbols] == [index == 6 for index in range(12)]
    assert facts(at).startswith("**Layer 2, head 3**")
    click(at, DOTS, 11)
    assert address(at) == {"head": "4"}  # the last layer is the default
    click(at, DOTS)  # beside every dot
    assert address(at) == {"head": "4"}
    at_page(at, "attention").run()
    assert "layer 3 of 3 · head 4" in provenance(at)


@pytest.mark.parametrize("kind", ["plain", "no class token"])
def test_the_map_is_that_of_the_chosen_head_and_a_click_chooses_the_query(
    kind: str, serve: Callable[[str], Model]
) -> None:
    acts = of_sample(serve(kind))
    at = opened("distance", layer="2", head="3")
    middle = acts.attention_map(1, (2, 3))[2]
    np.testing.assert_allclose(numbers(trace(at, MAP)["z"]), 100 * middle, rtol=1e-5)
    assert "from row 3, column 4; click another patch" in prose(at)
    click(at, MAP, 1 * 6 + 5)
    assert_works(at)
    assert address(at) == {"layer": "2", "head": "3", "query": "2.6"}
    chosen = acts.attention_map(1, (1, 5))[2]
    np.testing.assert_allclose(numbers(trace(at, MAP)["z"]), 100 * chosen, rtol=1e-5)
    at.selectbox(key="head").set_value(MEAN).run()
    assert address(at) == {"layer": "2", "query": "2.6"}
    mean = acts.attention_map(1, (1, 5)).mean(axis=0)
    np.testing.assert_allclose(numbers(trace(at, MAP)["z"]), 100 * mean, rtol=1e-5)
    assert "attention from the patch at row 2, column 6: strongest at" in charts(at)[MAP].alt


@pytest.mark.parametrize("carries", [False, True])
def test_sinks_are_named_and_marked_above_their_layers(
    carries: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = own_module()
    plant_sink(module, carries=carries)
    model = watched(module, module.patch_embed.image_size)
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    forget()
    at = opened("distance")
    assert "No-op sinks" not in prose(at)
    (button,) = [each for each in at.button if each.label == "Find no-op sinks and broadcasts"]
    before = len(json.loads(charts(at)[DOTS].spec)["data"])
    button.click().run()
    assert_works(at)
    assert button.label not in [each.label for each in at.button]
    where = {True: "layer 1 (CLS).", False: "in no layer."}
    assert f"less than an equal share: {where[not carries]}" in prose(at)
    assert f"at least nine in ten queries: {where[carries]}" in prose(at)
    traces = json.loads(charts(at)[DOTS].spec)["data"]
    assert len(traces) == before + 1
    (above,) = [one for one in traces if "-open" in str(one.get("marker", {}).get("symbol"))]
    assert round(numbers(above["x"])[0]) == 1
    name = "broadcast" if carries else "no-op sink"
    assert f"Marked above layers 1: {name}." in charts(at)[DOTS].alt
    click(at, DOTS, {"curve_number": traces.index(above), "point_index": 0})
    assert address(at) == {}  # a mark is no head
    open_data(at, "distance")
    assert at.dataframe[1].value.values.tolist() == [[1, name, "CLS", None, None]]
    other = opened("distance", over="samples")
    assert "No-op sinks" not in prose(other)  # they are of one picture


def test_sinks_and_broadcasts_among_the_patches_are_named_by_their_places(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    forget()

    def found(acts: Activations, model: Model, layer: int) -> Sinks:
        return Sinks((1 + 6 + 3,) if layer == 1 else (), ())

    monkeypatch.setattr(Activations, "sinks", found)
    at = opened_with_data("distance")
    at.button(key="run sinks of layers").click().run()
    assert "less than an equal share: layer 2 (row 2, column 4)." in prose(at)
    assert at.dataframe[1].value.values.tolist() == [[2, "no-op sink", "patch", 2, 4]]
    forget()


NO_PROJECTION = "{layer} has no output projection to split by heads."


def test_sinks_that_cannot_be_told_say_why(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    forget()

    def refuse(acts: Activations, model: Model, layer: int) -> None:
        raise ModelError(NO_PROJECTION, layer="layer 1")

    monkeypatch.setattr(Activations, "sinks", refuse)
    at = opened("distance")
    at.button(key="run sinks of layers").click().run()
    assert [said.value for said in at.info] == [NO_PROJECTION.format(layer="layer 1")]
    assert_works(at)
    at = opened("distance", lang="ko")  # another visitor, who finds it computed
    with use_language("ko"):
        assert [said.value for said in at.info] == [tr(NO_PROJECTION, layer="layer 1")]


@pytest.mark.parametrize("counts", ["values", "output"])
def test_the_map_can_count_what_the_keys_add(counts: Any, serve: Callable[[str], Model]) -> None:
    model = serve("registers")
    acts = of_sample(model)
    at = opened("distance", layer="2", head="3", query="2.6", counts=counts)
    assert_works(at)
    weighted = acts.attention_map(1, (1, 5), of=counts, model=model)[2]
    shown = numbers(trace(at, MAP)["z"])
    np.testing.assert_allclose(shown / shown.sum(), weighted / weighted.sum(), rtol=1e-4)
    assert shown.sum() < 100  # the rest is on the prefix
    plain = numbers(trace(opened("distance", layer="2", head="3", query="2.6"), MAP)["z"])
    assert np.abs(plain - shown).max() > 0.1
    assert {"values": "length of the value", "output": "after the projection"}[counts] in prose(at)


@pytest.mark.parametrize(
    ("kind", "head", "variant"),
    [
        ("plain", 1, "renormalised"),
        ("no class token", None, "renormalised"),
        ("registers", 4, "paper"),
    ],
)
def test_the_chosen_head_is_shown_by_distance_and_by_offset(
    kind: str, head: int | None, variant: Any, serve: Callable[[str], Model]
) -> None:
    acts = of_sample(serve(kind))
    link = {} if head is None else {"head": str(head)}
    at = opened("distance", layer="2", variant=variant, **link)
    assert_works(at)
    rows = slice(None) if head is None else slice(head - 1, head)
    attention = acts.attention(1)[rows]
    where = {**here(acts), "variant": variant}
    histogram = inspection.distance_histogram(
        attention, **where, patch_size=acts.patch_size, bin_width=4
    ).mean(axis=0)
    offsets = inspection.offset_attention(attention, **where, min_queries=2).mean(axis=0)
    np.testing.assert_allclose(numbers(trace(at, HISTOGRAM)["y"]), 100 * histogram, rtol=1e-4)
    np.testing.assert_allclose(numbers(trace(at, OFFSETS)["z"]), 100 * offsets, rtol=1e-4)
    assert offsets.shape == (7, 11)  # of 4 x 6 patches
    equal = inspection.uniform_histogram(acts.grid, acts.patch_size, bin_width=4)
    np.testing.assert_allclose(numbers(trace(at, HISTOGRAM, 1)["y"]), 100 * equal)
    name = "layer 2, mean of heads" if head is None else f"layer 2, head {head}"
    assert name in charts(at)[HISTOGRAM].alt
    assert name in charts(at)[OFFSETS].alt
    ticks = trace(at, OFFSETS)["colorbar"]["ticktext"]
    assert any(f"{100 / 24:.1f}" in tick for tick in ticks), ticks  # equal sharing
    assert ("prefix tokens counts as 0 px" in prose(at)) == (variant == "paper")


def test_the_facts_are_those_of_the_head(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    at = opened("distance", layer="1", head="2")
    layer = [acts.attention(0)]
    pixels = distances(acts)[0, 1]
    mass = inspection.prefix_mass(layer)[0, 1]
    bits = inspection.attention_entropy(layer)[0, 1]
    assert facts(at) == (
        f"**Layer 1, head 2**: {pixels:.1f} px, {100 * pixels / 24:.0f} % of the side; "
        f"{100 * mass:.1f} % on CLS, entropy {bits:.1f} of {np.log2(25):.1f} bits."
    )


def test_the_extremes_are_named(serve: Callable[[str], Model]) -> None:
    distance = distances(of_sample(serve("plain")))
    said = prose(opened("distance"))
    for words, index in (("Most local", distance.argmin()), ("most global", distance.argmax())):
        layer, head = divmod(int(index), 4)
        assert (
            f"{words}: layer {layer + 1}, head {head + 1} ({distance.flat[index]:.1f} px)" in said
        )
    means = ", ".join(f"{pixels:.1f}" for pixels in distance.mean(axis=1))
    assert f"Mean of the heads from layer 1 to 3: {means} px." in said


@pytest.mark.parametrize(
    ("kind", "words"),
    [("distilled", "on CLS, DIST,"), ("registers alone", "on REG1, REG2,"), ("no class token", "")],
)
def test_tokens_outside_the_picture_are_called_by_name(
    kind: str, words: str, serve: Callable[[str], Model]
) -> None:
    serve(kind)
    at = opened("distance")
    assert words in facts(at)
    assert (" on " in facts(at)) == bool(words)
    assert ("CLS" in charts(at)[DOTS].spec) == (kind == "distilled")


@pytest.mark.parametrize(
    ("variant", "rows"),
    [("renormalised", "patches only, renormalised"), ("paper", "as commonly implemented")],
)
def test_the_numbers_are_there_as_a_table(
    variant: str, rows: str, serve: Callable[[str], Model]
) -> None:
    acts = of_sample(serve("plain"))
    at = opened_with_data("distance", variant=variant)
    dots = trace(at, DOTS)
    np.testing.assert_allclose(numbers(dots["y"]), distances(acts, variant).ravel(), rtol=1e-5)
    assert "error_y" not in dots or "array" not in dots["error_y"]
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    assert f"equal sharing at {equal:.1f} pixels" in charts(at)[DOTS].alt
    assert f"in pixels of the input; rows of A: {rows}." in prose(at)
    table = at.dataframe[0].value
    assert list(table.columns) == [
        *("layer", "head", "distance, px"),
        *("on prefix tokens, %", "entropy, bits"),
    ]
    assert list(table["layer"]) == [1] * 4 + [2] * 4 + [3] * 4
    assert list(table["head"]) == [1, 2, 3, 4] * 3
    np.testing.assert_allclose(table["distance, px"], distances(acts, variant).ravel(), atol=1e-3)
    mass = inspection.prefix_mass(acts.attention_layers())
    np.testing.assert_allclose(table["on prefix tokens, %"], 100 * mass.ravel(), rtol=1e-4)
    bits = inspection.attention_entropy(acts.attention_layers())
    np.testing.assert_allclose(table["entropy, bits"], bits.ravel(), rtol=1e-4)


# --- all sample pictures ------------------------------------------------------------------------


@pytest.mark.usefixtures("few_samples")
def test_the_samples_give_a_mean_and_a_spread(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain")
    all_acts = [of_sample(model, name) for name in pictures.samples()]
    each = np.stack([distances(acts) for acts in all_acts])
    files = written(monkeypatch, "csv")
    at = opened("distance", layer="2", head="3")
    at.segmented_control(key="over").set_value("samples")
    open_data(at, "distance")
    assert_works(at)
    assert address(at)["over"] == "samples"
    dots = trace(at, DOTS)
    np.testing.assert_allclose(numbers(dots["y"]), each.mean(axis=0).ravel(), rtol=1e-5)
    np.testing.assert_allclose(
        numbers(dots["error_y"]["array"]), each.std(axis=0, ddof=1).ravel(), rtol=1e-4, atol=1e-6
    )
    assert f"{each.mean(axis=0)[1, 2]:.1f} ± {each.std(axis=0, ddof=1)[1, 2]:.1f} px" in facts(at)
    assert f"Mean ± standard deviation (n − 1) over {len(each)} pictures." in prose(at)
    maps = [
        inspection.offset_attention(acts.attention(1), grid=(4, 6), min_queries=2)[2]
        for acts in all_acts
    ]
    np.testing.assert_allclose(
        numbers(trace(at, OFFSETS)["z"]), 100 * np.mean(maps, axis=0), rtol=1e-4
    )
    histograms = [
        inspection.distance_histogram(
            acts.attention(1), **here(acts), patch_size=acts.patch_size, bin_width=4
        )[2]
        for acts in all_acts
    ]
    np.testing.assert_allclose(
        numbers(trace(at, HISTOGRAM)["y"]), 100 * np.mean(histograms, axis=0), rtol=1e-4
    )
    table = at.dataframe[0].value
    bits = [inspection.attention_entropy(acts.attention_layers()) for acts in all_acts]
    np.testing.assert_allclose(table["entropy, bits"], np.mean(bits, axis=0).ravel(), rtol=1e-4)
    np.testing.assert_allclose(
        table["standard deviation (n - 1), px"], each.std(axis=0, ddof=1).ravel(), rtol=1e-4
    )
    words = f" · all {len(each)} sample pictures"
    assert provenance(at).endswith(words)
    line, _, made, *_ = files[-1].splitlines()
    assert line.endswith(words)
    of = json.loads(made.removeprefix("# made with "))["picture"]
    assert of == {"name": words.removeprefix(" · "), "sha256": None, "of": None}
    assert "standard deviation (n - 1), px" in files[-1]


@pytest.mark.usefixtures("few_samples")
def test_the_samples_are_measured_once_for_a_model_and_an_upload_is_none_of_them(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    at = opened("distance", over="samples")
    before = charts(at)[DOTS].spec

    def fail(*_: object) -> None:
        raise AssertionError("measured again")

    with monkeypatch.context() as patch:
        patch.setattr("vitviz.app.screens.distance._measure", fail)
        patch.setattr("vitviz.app.screens.distance._stack", fail)
        at.run()
        assert_works(at)
        assert charts(at)[DOTS].spec == before
        again = opened("distance", over="samples", picture="cat")  # somebody else
        assert_works(again)
        assert charts(again)[DOTS].spec == before
    upload(at, "mine.png", encoded(picture(90, 40, seed=7)))
    assert_works(at)
    assert charts(at)[DOTS].spec == before
    serve("registers")
    assert charts(opened("distance", over="samples"))[DOTS].spec != before


# --- what cannot be shown -----------------------------------------------------------------------

SENTENCE = "The attention read from blocks.0 does not reproduce the block's own output."


def refuse_rows(read: Any, pictures: int) -> Any:
    return iter([[(SENTENCE, 1.0)] * pictures] * len(read))


@pytest.mark.parametrize(
    ("over", "proof", "refuse"),
    [
        ("image", "batches.explain_row_mismatches", refuse_rows),
        ("image", "activations.explain_mismatch", lambda *_: [SENTENCE]),
        ("samples", "activations.explain_mismatch", lambda *_: [SENTENCE]),
    ],
)
def test_attention_that_fails_a_proof_leaves_its_sentence(
    over: str,
    proof: str,
    refuse: Any,
    serve: Callable[[str], Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    serve("plain")
    forget()
    monkeypatch.setattr(f"vitviz.activations.{proof}", refuse)
    at = opened("distance", over=over)
    assert not at.exception
    assert [warning.value for warning in at.warning][1:] == [SENTENCE]  # the first: random weights
    assert not charts(at)
    assert at.segmented_control(key="variant")  # the controls stay
    forget()


def test_a_head_that_looks_at_no_patch_is_a_gap(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = serve("plain")
    real = Activations.attention

    def on_cls(acts: Activations, layer: int) -> np.ndarray:
        attention = real(acts, layer).copy()
        if layer == 1:
            attention[2] = np.eye(25)[0]
        return attention

    forget()
    monkeypatch.setattr(Activations, "attention", on_cls)
    monkeypatch.setattr(models, "load_by_name", lambda name, weights="trained": model)
    at = opened("distance", layer="2", head="3")
    assert_works(at)
    assert np.isnan(numbers(trace(at, DOTS)["y"])[6])
    assert facts(at).startswith("**Layer 2, head 3**: it attends to no patch; 100.0 % on CLS")
    assert "none of it goes to any patch" in charts(at)[OFFSETS].alt
    at.selectbox(key="head").set_value(MEAN).run()
    assert_works(at)  # the other heads have a mean
    assert "none of it" not in charts(at)[OFFSETS].alt
    forget()


@pytest.mark.parametrize("beside", ["recorded", "cnn", "both"])
def test_others_are_shown_beside_the_model_where_they_are_asked_for(beside: str) -> None:
    at = opened("distance", beside=beside)
    assert_works(at)
    words = prose(at)
    assert ("Squares: A ViT-S/14 tuned for saliency" in words) == (beside != "cnn")
    assert ("CNN of 3 x 3 kernels" in words) == (beside != "recorded")
