"""The page Anatomy: what the browser is sent of each step, and what a commit changes."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import OWN
from numpy.testing import assert_allclose, assert_array_equal
from streamlit.testing.v1 import AppTest

from pages.driver import (
    address,
    assert_works,
    at_page,
    components,
    of_sample,
    open_data,
    opened,
    prose,
    provenance,
    stacks,
    token_map,
    trigger,
)
from vitviz import Model
from vitviz.app.shared import pictures
from vitviz.app.widgets import anatomy as widget
from vitviz.common import SMALL_MODEL
from vitviz.web import anatomy
from vitviz.web.anatomy_map import token_name

STEPS = [
    *("picture", "patches", "flatten", "project", "prefix", "positions", "encoder", "output"),
    "head",
]
SWIN = "swin_tiny_patch4_window7_224"
BOXES = [
    *("before", "norm1", "qkv", "scores", "attention", "heads", "concatenated", "projected"),
    *("after_attention", "norm2", "hidden", "activated", "mlp", "after"),
]


def shown(at: AppTest) -> dict[str, Any]:
    """What the component is told to show."""
    (data,) = [data for data in components(at, "vitviz_anatomy") if "state" in data]
    return data


def ids(listed: list[dict[str, Any]]) -> list[str]:
    return [each["id"] for each in listed]


def sent(at: AppTest, stack: str) -> dict[str, np.ndarray]:
    """The numbers of the picture's steps, or of the layer, by their names."""
    listed = [data["stack"] for data in components(at, "vitviz_anatomy") if "stack" in data]
    ((tensors, flat),) = [
        (one["tensors"], flat)
        for one, flat in zip(listed, stacks(at), strict=True)
        if one["id"] == stack
    ]
    assert flat["exact"].dtype == np.float32
    assert flat["half"].dtype == np.uint16
    flat |= {"half": flat["half"].view(np.float16)}
    found = {}
    for told in tensors:
        shape = told["shape"] if told["only"] is None else told["shape"][1:]
        values = flat["exact" if told["exact"] else "half"][told["first"] :]
        found[told["name"]] = values[: int(np.prod(shape))].reshape(shape)
    return found


def commit(at: AppTest, **changes: object) -> AppTest:
    """What the browser tells the server after a click or a key."""
    data = shown(at)
    payload = {**data["state"], **changes, "version": data["version"] + 1}
    return trigger(at, "vitviz_anatomy", "commit", payload)


@pytest.fixture
def model(serve: Callable[..., Model]) -> Model:
    return serve("plain")


def test_it_shows_nine_steps_and_one_layer(model: Model) -> None:
    at = opened("anatomy")
    assert_works(at)
    data = shown(at)
    assert ids(data["cards"]) == STEPS
    assert ids(data["boxes"]) == BOXES
    shapes = ["16×24×3", "24×4×4×3", "24×48", "24×32", "25×32", "25×32", "25×32", "32"]
    assert [card["shape"] for card in data["cards"]] == [*shapes, "32 → 5"]
    assert data["state"]["step"] == "picture"
    equations = [card["equation"] for card in data["cards"]]
    assert equations == [1, 1, 1, 1, 1, 1, 2, 4, 4]
    assert {box["equation"] for box in data["boxes"]} == {2, 3}
    best = of_sample(model).probabilities
    assert best is not None
    assert data["answers"][0]["share"] == pytest.approx(best.max())


def test_the_numbers_sent_are_those_of_the_capture(model: Model) -> None:
    at, acts = opened("anatomy", layer="2"), of_sample(model)
    data = shown(at)
    layer, steps = sent(at, data["layerId"]), sent(at, data["stepsId"])
    assert_array_equal(layer["queries"], acts.queries(1))
    assert_array_equal(layer["keys"], acts.keys(1))
    assert data["facts"]["scale"] == 8**-0.5
    for name, values in {
        "values": acts.values(1),
        "before": acts.tokens(1),
        "after_attention": acts.tokens_after_attention(1),
        "after": acts.tokens(2),
    }.items():
        assert_allclose(layer[name], values, rtol=1e-3, atol=1e-3)
    walk = anatomy.steps(model, pictures.sample(pictures.DEFAULT).image, acts)
    boxes = {box.name: box for box in walk}
    for name in ("flatten", "project", "prefix", "positions", "encoder", "output"):
        expected = boxes[name].values
        assert expected is not None
        assert_allclose(steps[name], expected, rtol=1e-3, atol=1e-3)
    assert_array_equal(steps["flatten"], boxes["flatten"].values)
    assert_array_equal(steps["project.kernel"], boxes["project"].parts["kernel"])
    best = np.argsort(-boxes["head"].parts["probabilities"])
    assert_array_equal(steps["head.weight"], boxes["head"].parts["weight"][best])
    assert_allclose(steps["output.read"], acts.tokens(3)[:1], rtol=1e-6)
    found = anatomy.residual_stream(acts)
    assert_allclose(data["residual"]["cls"], found.cls)
    assert_allclose(data["residual"]["mlp"], found.mlp)


def test_a_commit_changes_the_settings_that_all_pages_share(model: Model) -> None:
    at = opened("anatomy")
    commit(at, frame=1, head=2, query=9, step="scores", key=-1)
    assert address(at) == {"layer": "2", "head": "3", "query": "2.3", "step": "scores"}
    assert shown(at)["frame"] == 1
    commit(at, key=3)
    assert address(at)["key"] == "1.3"
    assert shown(at)["state"]["key"] == 3
    at_page(at, "attention").run()
    state = token_map(at)["state"]
    assert (state["frame"], state["head"], state["query"]) == (1, 2, 9)


def test_a_link_opens_the_step_the_pair_and_the_layer(model: Model) -> None:
    at = opened("anatomy", layer="2", head="3", query="2.3", step="attention", key="cls")
    state = shown(at)["state"]
    chosen = {"frame": 1, "head": 2, "query": 9, "step": "attention", "key": 0, "tokensOf": 1}
    assert state == chosen
    assert not at.info


@pytest.mark.parametrize(("name", "value"), [("step", "elsewhere"), ("key", "9.9")])
def test_what_does_not_fit_is_said(model: Model, name: str, value: str) -> None:
    at = opened("anatomy", **{name: value})
    assert any(value in said.value for said in at.info)
    assert shown(at)["state"]["step"] == "picture"
    assert shown(at)["state"]["key"] == -1


@pytest.mark.parametrize("kind", OWN)
def test_every_sentence_is_filled_for_every_kind(serve: Callable[..., Model], kind: str) -> None:
    model = serve(kind)
    at = opened("anatomy")
    assert_works(at)
    # The experiment that it opens on, shuffled patches, needs a position embedding.
    refused = [info.value for info in at.info]
    assert len(refused) == (kind in ("no positions", "stem"))
    assert all("cannot run without" in said for said in refused)
    assert provenance(at).startswith(model.name)
    data = shown(at)
    for words in (*data["cards"], *data["boxes"]):
        for said in (words["title"], words["say"]):
            assert said
            assert not re.search(r"(?<![_^])\{\w+\}", said), said
        assert re.search(r"\.\Z", words["say"]), words["say"]
    named = "".join(card["title"] + card["say"] for card in data["cards"])
    assert ("CLS" in named) == (kind not in ("no class token", "registers alone"))
    assert ("no head" in data["cards"][-1]["say"]) == (kind == "no head")
    assert ("DIST" in named) == (kind == "distilled")
    assert ("register" in named.lower()) == kind.startswith("registers")
    assert ("CNN" in named) == (kind == "stem")
    assert any("nothing tells" in card["say"].lower() for card in data["cards"]) == (
        kind == "no positions"
    )
    assert ("fixed (sine and cosine) vector" in named) == kind.startswith("sincos")


@pytest.mark.usefixtures("narrow")
def test_names_keep_their_letters_where_no_positions_are_added() -> None:
    at = opened("anatomy", model="vit_small_patch16_dinov3", weights="random")
    said = "".join(card["say"] for card in shown(at)["cards"])
    assert "vit_small_patch16_dinov3 where a patch lies" in said
    assert "(RoPE)" in said


def test_of_a_large_layer_the_rows_of_one_token_are_sent(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(widget, "MAX_LAYER_BYTES", 100)
    at, acts = opened("anatomy", query="2.3"), of_sample(model)
    layer = sent(at, shown(at)["layerId"])
    assert_array_equal(layer["queries"], acts.queries(2))
    assert_array_equal(layer["values"], acts.values(2).astype(np.float16))
    assert_allclose(layer["before"], acts.tokens(2)[9], rtol=1e-3, atol=1e-3)
    other = shown(commit(at, query=10))["layerId"]
    assert_allclose(sent(at, other)["before"], acts.tokens(2)[10], rtol=1e-3, atol=1e-3)


def test_the_tables_hold_the_number_that_is_worked_out(model: Model) -> None:
    at = opened("anatomy", layer="2", head="3", query="2.3", key="1.4")
    shapes, strips, row, *_ = (frame.value for frame in open_data(at, "anatomy").dataframe)
    acts = of_sample(model)
    assert len(shapes) == len(STEPS) + len(BOXES) + 2  # q, k and v are three boxes
    assert [*shapes["where"].unique()] == ["the picture's way", "layer 2"]
    assert_allclose(strips["q"], acts.queries(1)[2, 9], rtol=1e-5)
    assert_allclose(strips["k"], acts.keys(1)[2, 4], rtol=1e-5)
    scores = anatomy.head_scores(acts, 1, 2)[1][9]
    assert strips["product"].sum() / np.sqrt(8) == pytest.approx(scores[4], rel=1e-4)
    assert_allclose(row["score"], scores, rtol=1e-4)
    assert_allclose(row["share, %"], 100 * acts.attention(1)[2, 9], rtol=1e-4)
    assert row["key"][4] == "row 1 column 4"


@pytest.mark.parametrize(
    ("kind", "link", "query"),
    [("plain", {"query": "2.3"}, 1 + 6 + 2), ("no class token", {}, 2 * 6 + 3)],
)
def test_without_a_key_the_one_that_gets_most_is_worked_out(
    kind: str, link: dict[str, str], query: int, serve: Callable[[str], Model]
) -> None:
    acts = of_sample(serve(kind))
    prefix, described = acts.num_prefix_tokens, acts.layers[1]
    key = prefix + int(acts.attention(1)[2, query, prefix:].argmax())
    at = open_data(opened("anatomy", layer="2", head="3", **link), "anatomy")
    asked, seen = (token_name(described, token) for token in (query, key))
    assert f"layer 2, head 3: q of {asked}, k of {seen} and their product" in prose(at)


def test_the_number_of_patches_chooses_between_two_shipped_models() -> None:
    at = opened("anatomy", size="32x32")
    at.segmented_control(key="patches").set_value(SMALL_MODEL).run()
    assert_works(at)
    assert provenance(at).startswith(SMALL_MODEL)
    assert "size" not in address(at)


@pytest.mark.usefixtures("narrow")
def test_a_layer_chosen_before_the_last_is_on_screen_keeps_the_query() -> None:
    """Until the browser has drawn a layer, it counts tokens in the grid of the layer before."""
    at = opened("anatomy", model=SWIN, weights="random", layer="2", query="29.13")
    before = shown(at)["state"]
    assert before["query"] == 28 * 56 + 12
    commit(at, frame=2)
    assert shown(at)["state"]["query"] == 14 * 28 + 6
    commit(at, **{**before, "frame": 3})
    assert not at.info
    assert address(at)["query"] == "15.7"
    assert shown(at)["state"]["query"] == 14 * 28 + 6


@pytest.mark.usefixtures("narrow")
def test_a_layer_of_windows_is_not_opened_and_says_what_it_does() -> None:
    at = opened("anatomy", model=SWIN, weights="random", layer="2")
    assert_works(at)
    data = shown(at)
    assert ids(data["boxes"]) == ["before", "after_attention", "after"]
    assert "attention within windows" in data["boxes"][1]["say"]
    assert [card["id"] for card in data["cards"] if card["layers"]] == [
        f"stage{number}" for number in (1, 2, 3, 4)
    ]
    assert not any(box["equation"] for box in data["boxes"])
