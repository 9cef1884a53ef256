"""Windows, pooled keys, class attention and mixing weights on the pages."""

import json
from functools import cache

import numpy as np
import pytest
from examples import assert_clear_error, patch_box
from streamlit.testing.v1 import AppTest

from pages.driver import (
    SHIPPED,
    address,
    assert_works,
    at_page,
    choose,
    click,
    commit,
    components,
    of_sample,
    opened,
    opened_with_data,
    prose,
    provenance,
    specs,
    token_map,
)
from vitviz import Activations, Model, attribution, capture, inspection, intervention, load_model
from vitviz.app.pages import PAGES
from vitviz.app.screens import classify
from vitviz.app.shared import pictures
from vitviz.text import page_text

SWIN, PVT, CAIT, COATNET, MAXVIT, MIXER = OTHERS = (
    *("swin_tiny_patch4_window7_224", "pvt_v2_b0", "cait_xxs24_224"),
    *("coatnet_0_rw_224", "maxvit_tiny_tf_224", "mixer_b16_224"),
)
TWINS = "twins_svt_small"  # the windows of Swin and the pooled keys of PVT
pytestmark = pytest.mark.usefixtures("narrow")
KINDS = {  # the traits of each that choose its captions
    SWIN: {"window", "relative bias"},
    PVT: {"pooled", "global", "overlap"},
    TWINS: {"window", "pooled", "global"},
    CAIT: {"global", "class", "prefix"},
    COATNET: {"global", "relative bias"},
    MAXVIT: {"window", "grid", "relative bias"},
    MIXER: {"mixing"},
    "deit_tiny_distilled_patch16_224": {"global", "all-to-all", "prefix", "cls"},
    "beit_base_patch16_224": {"global", "all-to-all", "prefix", "relative bias"},
    "vit_small_patch16_dinov3": {"global", "all-to-all", "prefix", "rotary"},
    "vit_base_patch16_siglip_224": {"global", "all-to-all"},
}
REFUSED = {  # the pages that have no figure for each, and say why
    SWIN: {"positions", "rollout", "tokens"},
    PVT: {"positions", "rollout", "tokens"},
    TWINS: {"positions", "rollout", "tokens"},
    CAIT: {"rollout", "tokens"},
    COATNET: {"filters", "positions", "rollout", "tokens"},
    MAXVIT: {"filters", "positions", "rollout", "tokens"},
    MIXER: {"distance", "rollout", "tokens"},
}


def latex(at: AppTest) -> list[str]:
    return [formula.value.strip("$\n ") for formula in at.latex]


@cache
def on_sample(name: str) -> tuple[Model, Activations]:
    """A narrow model of this name, made beside the app, and its capture."""
    model = load_model(name, pretrained=False)
    return model, of_sample(model)


@pytest.mark.parametrize("model", OTHERS)
def test_every_page_draws_under_the_card_of_the_model_or_says_why_not(model: str) -> None:
    traits = frozenset({*KINDS[model], "classes"})
    first, *others = [name for name, page in PAGES.items() if page.shows_model]
    at = opened(first, model=model, weights="random")
    for page in (first, *others):
        if page != first:
            at_page(at, page).run()
        assert not at.exception
        assert not at.error
        assert provenance(at).startswith(f"{model} (")
        shown = page not in REFUSED[model]
        figures = specs(at) or token_map(at) or components(at, "vitviz_anatomy")
        assert bool(figures) == shown, page
        for said in at.info:
            assert_clear_error(said.value.split(". ")[-1])
        assert bool(at.info) or shown or bool(at.warning[1:])
        words = page_text(page, traits)
        assert (words.see in prose(at)) == shown, page
        assert (words.try_this in prose(at)) == shown, page
        assert (words.equation in latex(at)) == shown, page


def test_a_page_that_does_not_apply_leads_to_a_model_that_it_shows() -> None:
    at = opened("rollout", model=SWIN, weights="random")
    (said,) = at.info
    assert "patches attend within windows, in 4 grids" in said.value
    (button,) = [button for button in at.button if button.label == f"Show {SHIPPED}"]
    assert_works(button.click().run())
    assert provenance(at).startswith(SHIPPED)
    assert address(at) == {"weights": "random"}


@pytest.mark.parametrize(
    ("page", "name", "first", "second"),
    [
        ("explain", "fill", SHIPPED, SWIN),
        ("explain", "maps", SHIPPED, SWIN),
        ("positions", "kind", SHIPPED, "vit_small_patch16_dinov3"),
        ("attention", "query", SHIPPED, "vit_small_patch16_dinov3"),  # whose head reads no CLS
        ("anatomy", "depth", "vit_tiny_patch16_224", SHIPPED),
    ],
)
def test_what_nobody_chose_is_the_default_of_each_model(
    page: str, name: str, first: str, second: str
) -> None:
    at = opened(page, model=first, weights="random", experiment="answers")
    before = at.session_state[name]
    for model in (second, first):
        choose(at, model)
        assert not any("is not valid here" in said.value for said in at.info)
        assert name not in address(at)
        assert (at.session_state[name] == before) == (model == first)


def test_swin_has_maps_of_one_class_where_it_has_no_rollout() -> None:
    at = opened_with_data("explain", model=SWIN, weights="random")
    assert_works(at)
    words = [said.value for said in at.markdown]
    assert any("read at the mean of the patches" in said for said in words)
    table = at.dataframe[0].value
    assert (table["row"].max(), len(table)) == (56, 56 * 56)
    model, acts = on_sample(SWIN)
    best = int(acts.logits.argmax())  # type: ignore[union-attr]
    expected = attribution.relevance(model, pictures.sample(pictures.DEFAULT).image, best)
    shown = table["relevance"].to_numpy(dtype=float)
    np.testing.assert_allclose(shown, expected.ravel(), rtol=1e-4)


def test_a_patch_that_is_clicked_on_filters_is_that_of_the_first_layer() -> None:
    at = opened("filters", model=SWIN, weights="random")
    assert "layer" not in address(at)  # the last one, of 7 x 7 patches
    click(at, "response", 10 * 56 + 20)
    assert "Row 11, column 21" in [heading.value for heading in at.subheader]
    assert address(at) == {"model": SWIN, "weights": "random", "layer": "1", "query": "11.21"}


@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize(("model", "layer", "patch"), [(SWIN, 2, (30, 41)), (PVT, 1, (11, 50))])
def test_the_table_is_the_map_of_the_query(
    model: str, layer: int, patch: tuple[int, int], direction: str
) -> None:
    query = f"{patch[0] + 1}.{patch[1] + 1}"
    link = dict(model=model, weights="random", layer=str(layer), query=query, read=direction)
    table = opened_with_data(**link).dataframe[0].value
    _, acts = on_sample(model)
    key = (patch[0] // 8, patch[1] // 8) if model == PVT and direction == "column" else patch
    maps = 100 * acts.attention_map(layer - 1, key, direction=direction)  # type: ignore[arg-type]
    assert len(table) == maps[0].size
    for head, values in enumerate(maps, start=1):
        shown = table[f"head {head}, %"].to_numpy(dtype=float)
        np.testing.assert_allclose(shown, values.ravel(), rtol=1e-4, atol=1e-9)
    peak = np.unravel_index(maps[0].argmax(), maps[0].shape)
    line = table.iloc[int(maps[0].argmax())]
    assert (line["row"], line["column"]) == (peak[0] + 1, peak[1] + 1)


def test_the_query_keeps_its_place_at_a_change_of_stage() -> None:
    at = opened(model=SWIN, weights="random", layer="1", query="29.13")
    assert token_map(at)["state"]["query"] == 28 * 56 + 12
    at.slider(key="layer").set_value(12).run()
    assert_works(at)
    assert address(at)["query"] == "4.2"
    assert token_map(at)["state"]["query"] == 3 * 7 + 1
    commit(at, frame=0, query=8 * 56 + 3, pinned=True)  # the browser knows the grid of each layer
    assert (address(at)["layer"], address(at)["query"]) == ("1", "9.4")


def test_the_query_keeps_its_place_where_the_grids_of_the_stages_do_not_cover_the_same() -> None:
    """Each stage of PVT pads its picture anew: its grids lie beside one another."""
    acts = capture(load_model(PVT, pretrained=False), pictures.sample("dog").image)
    first, last = acts.crop_of(0), acts.crop_of(7)
    assert last[0] < first[0] - 30  # pixels, of 543 that both are wide
    for row, col in ((20, 4), (44, 30), (3, 48)):
        link = {"picture": "dog", "layer": "1", "query": f"{row}.{col}"}
        at = opened(model=PVT, weights="random", **link)
        at.slider(key="layer").set_value(8).run()
        found = [int(number) - 1 for number in address(at)["query"].split(".")]
        left, top, right, bottom = patch_box(first, (56, 56), row - 1, col - 1)
        box = patch_box(last, (7, 7), *found)
        assert box[0] <= (left + right) / 2 <= box[2]
        assert box[1] <= (top + bottom) / 2 <= box[3]


def test_cls_alone_looks_in_the_last_layers_of_cait() -> None:
    at = opened(model=CAIT, weights="random", layer="26", query="3.5")
    assert not at.info
    shown = token_map(at)
    assert shown["prefixOnly"]
    assert shown["prefix"] == ["CLS"]
    assert not token_map(opened(model=CAIT, weights="random", layer="24"))["prefixOnly"]
    at.slider(key="layer").set_value(24).run()
    assert address(at)["query"] == "3.5"


@pytest.mark.parametrize(
    ("code", "kind"),
    [("en", "patches attend within windows"), ("ko", "패치가 윈도우 안에서 어텐션을 줌")],
)
def test_the_kind_of_each_layer_is_named_in_words(code: str, kind: str) -> None:
    at = opened_with_data("distance", model=SWIN, weights="random", lang=code)
    assert {*at.dataframe[0].value.iloc[:, 2]} == {kind}


def test_every_head_has_a_dot_beside_equal_sharing_in_its_layer() -> None:
    at = opened_with_data("distance", model=SWIN, weights="random")
    (spec,) = specs(at)
    figure = json.loads(spec)
    _, acts = on_sample(SWIN)
    expected = [inspection.windowed_distance(acts.windows(layer)) for layer in range(acts.depth)]
    table = at.dataframe[0].value
    np.testing.assert_allclose(table["distance, px"], np.concatenate(expected), rtol=1e-5)
    heads = enumerate([3, 3, 6, 6, *[12] * 6, 24, 24], start=1)
    assert table.groupby("layer")["head"].max().to_dict() == dict(heads)
    # Two places of 7 on a side, each drawn alike, in steps of 4, 8, 16 and 32 pixels.
    sides = np.arange(7)
    apart = np.abs(sides[:, None] - sides)
    window = np.mean(np.hypot(apart[:, None, :, None], apart[None, :, None, :]))
    lines = [shape["y0"] for shape in figure["layout"]["shapes"]]
    assert lines[0] == pytest.approx(4 * window)
    assert lines[-1] == pytest.approx(32 * window)
    assert lines[1] < lines[0]  # a shifted window at the border is cut
    by_layer = table.groupby("layer")["equal sharing, px"]
    np.testing.assert_allclose(by_layer.min(), lines, rtol=1e-5)
    np.testing.assert_allclose(by_layer.max(), lines, rtol=1e-5)
    click(at, "distance_dots", 24 * 4 + 7)
    assert (address(at)["layer"], address(at)["head"]) == ("5", "8")


def test_classify_names_classes_and_hides_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    at = opened_with_data("classify", model=PVT, weights="random", size="64")
    table = at.dataframe[0].value
    loaded = load_model(PVT, pretrained=False, image_size=64)
    image = pictures.sample(pictures.DEFAULT).image
    probabilities = capture(loaded, image).probabilities
    assert probabilities is not None
    np.testing.assert_allclose(table["probability, %"], 100 * probabilities, rtol=1e-5)
    (button,) = [button for button in at.button if button.label.startswith("Hide blocks")]
    assert button.label == "Hide blocks (65 passes)"
    monkeypatch.setattr(classify, "BLOCKS_ALONG", 4)
    (button,) = [button for button in at.run().button if button.label.startswith("Hide blocks")]
    assert button.label == "Hide blocks (17 passes)"
    button.click().run()
    assert not at.exception
    assert not at.error
    hidden = specs(at)[1]
    best = int(probabilities.argmax())
    rows = loaded.layers[0].query_grid[0]
    wanted = intervention.occlusion(loaded, image, target=best, block=rows // 4)
    assert f"{100 * wanted.min():+.1f} to {100 * wanted.max():+.1f} percentage points" in hidden


def test_a_layer_in_which_no_patch_looks_has_no_line_and_no_dot() -> None:
    (spec,) = specs(opened("distance", model=CAIT, weights="random"))
    figure = json.loads(spec)
    lines = [(shape["x0"], shape["y0"] == shape["y1"]) for shape in figure["layout"]["shapes"]]
    assert lines == [(layer + 0.5, True) for layer in range(24)]  # none for the class layers


def test_the_weights_of_a_mixer_are_called_weights() -> None:
    at = opened_with_data(model=MIXER, weights="random", layer="2")
    (said,) = at.info
    assert "no attention" in said.value
    assert "the same for every picture" in said.value
    (spec,) = specs(at)
    trace = json.loads(spec)["data"][0]
    weights = on_sample(MIXER)[0].token_mixing(1)
    table = at.dataframe[0].value
    unit = next(name for name in map(str, table) if name.startswith("unit "))
    strongest = np.linalg.norm(weights.reshape(len(weights), -1), axis=1).argmax()
    assert unit == json.loads(spec)["data"][1]["text"][0] == f"unit {strongest + 1}"
    np.testing.assert_allclose(table[unit], weights[strongest].ravel(), rtol=1e-4)
    assert trace["zmax"] == -trace["zmin"]
    assert "no picture" in provenance(at)
    assert_works(at_page(at, "filters").run())
