"""The Zoo page: every family, its keys on the picture, its matrices, sizes, and the way to it."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from examples import narrow_stems
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    SHIPPED,
    alts,
    assert_works,
    charts,
    click,
    figures,
    opened,
    opened_with_data,
    prose,
    provenance,
    shown,
    upload,
)
from pages.test_other_families import REFUSED
from vitviz import Model
from vitviz.app.pages import PAGES
from vitviz.app.screens import zoo
from vitviz.app.shared import models, pictures, results
from vitviz.text import page_text
from vitviz.text.families import CARDS
from vitviz.zoo import PAPER_SIZES, TOYS

KEYS, MATRICES, COST = range(3)


def choose(at: AppTest, family: str) -> AppTest:
    return at.segmented_control(key="family").set_value(family).run()


def test_every_family_has_a_card_and_a_toy() -> None:
    assert list(zoo.SHOWN_FAMILIES) == list(CARDS)
    assert set(CARDS) == set(TOYS)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize(
    ("family", "layer", "words"),
    [
        ("ViT", 1, "may attend to 196 of 196 patches and CLS."),
        ("DeiT", 1, "may attend to 196 of 196 patches and CLS and DIST."),
        ("Hybrid", 1, "7 x 7 patches: the patch at row 4, column 4 may attend to 49 of 49"),
        ("Swin", 2, "**Shifted windows**, stage 1, 56 x 56 patches"),
        ("PVT", 1, "56 x 56 patches: the patch at row 26, column 26 may attend to 49 of 49 keys"),
        ("CoAtNet", 1, "**Global attention**, stage 3, 14 x 14 patches"),
        ("MaxViT", 2, "**Grid attention**, stage 1, 56 x 56 patches"),
        ("CaiT", 25, "CLS may attend to 196 of 196 patches and CLS."),
        ("MLP-Mixer", 1, "reads 196 of 196 patches"),
    ],
)
def test_every_family_is_drawn_and_says_what_a_query_may_look_at(
    family: str, layer: int, words: str
) -> None:
    with narrow_stems():
        at = opened("zoo", family=family, zoo_layer=str(layer))
    assert_works(at)
    assert not at.info
    assert len(charts(at)) == 3
    assert words in prose(at)
    card = CARDS[family]
    for told in (card.differs, card.omissions, card.source, TOYS[family].architecture):
        assert told in prose(at)
    assert provenance(at).startswith(f"{TOYS[family].architecture}: allowed pairs")
    assert provenance(at).endswith("sample: red panda")
    depth = int(at.slider(key="zoo_layer").max)
    at.slider(key="zoo_layer").set_value(depth).run()
    assert_works(at)
    assert f"layer {depth} of {depth}" in provenance(at)


def test_windows_and_shifted_windows_of_swin() -> None:
    at = shown("zoo")
    assert "row 26, column 26 may attend to 49 of 3136 keys" in alts(at)[KEYS]
    assert "1024 of 4096 pairs" in alts(at)[MATRICES]
    assert "shifted windows, 64 x 64: 14 %: 576 of 4096 pairs" in alts(at)[MATRICES]
    at = opened_with_data("zoo", family="Swin", zoo_layer="2")
    assert "**Shifted windows**, stage 1, 56 x 56 patches" in prose(at)
    layers, keys, sizes = (frame.value for frame in at.dataframe)
    # Shifted, the windows are 3, then 7 times 7, then 4 patches wide.
    shifted = (3**2 + 7 * 7**2 + 4**2) ** 2
    assert list(layers["pairs"][:2]) == [56**2 * 49, shifted]
    assert list(layers["kind"][:2]) == ["windows", "shifted windows"]
    assert keys["allowed"].sum() == 49
    assert list(sizes["heads"]) == [12, 16, 16, 16]
    for name in ("zoo_down", "zoo_across"):
        at.slider(key=name).set_value(99)
    at.run()
    # Shifted by 3 of 7, the windows begin at 3, 10, ... 52: four rows and columns are left.
    assert "row 56, column 56 may attend to 16 of 3136 keys" in alts(at)[KEYS]
    at.slider(key="zoo_layer").set_value(1).run()
    assert "row 56, column 56 may attend to 49 of 3136 keys" in alts(at)[KEYS]


def test_tokens_that_are_no_patches_have_a_row_and_a_column_of_their_own() -> None:
    at = opened_with_data("zoo", family="DeiT", zoo_down="99", zoo_across="0")
    layout = json.loads(charts(at)[MATRICES].spec)["layout"]
    assert layout["xaxis"]["ticktext"] == layout["yaxis"]["ticktext"] == ["CLS", "DIST"]
    assert at.dataframe[0].value["pairs"][0] == 198**2
    column, row = layout["shapes"]
    assert (row["y0"], row["y1"]) == (8.5, 9.5)  # CLS, DIST, and the 7th of 3 x 3 patches
    assert (column["x0"], column["x1"]) == (8.5, 9.5)


def test_what_is_no_attention_is_said() -> None:
    assert "Stages 1 to 2 are convolutions: there is no A." in prose(
        opened("zoo", family="CoAtNet")
    )
    mixer = opened_with_data("zoo", family="MLP-Mixer")
    assert "There is no A: these are the weights of the MLP" in prose(mixer)
    layout = json.loads(charts(mixer)[MATRICES].spec)["layout"]
    assert layout["yaxis"]["title"]["text"] == "unit of the MLP"
    assert not layout.get("shapes")
    assert mixer.dataframe[0].value["pairs"][0] == 196**2


def test_a_click_on_the_picture_asks_another_patch() -> None:
    at = opened("zoo", family="ViT")
    click(at, "keys", {"curve_number": 2, "point_index": 0, "customdata": [10, 89]})
    assert_works(at)
    assert "row 2, column 13 may attend" in alts(at)[KEYS]
    assert (at.slider(key="zoo_down").value, at.slider(key="zoo_across").value) == (10, 89)
    before = alts(at)
    click(at, "keys")
    assert alts(at) == before


@pytest.mark.parametrize("count", [1, 7, 56, 64, 96])
def test_a_place_in_per_cent_is_that_of_the_patch(count: int) -> None:
    for patch in range(count):
        middle = int(100 * (patch + 0.5) / count)
        assert zoo._patch((middle, 0), (count, 1)) == (patch, 0)


def strip(at: AppTest) -> dict[str, tuple[str, bool]]:
    """The picture of each family's first layer, and whether it is the chosen one, by its words."""
    (body,) = [one.proto.body for one in at.get("html") if 'class="strip"' in one.proto.body]
    pattern = r'<figure( class="chosen")?><img src="(.*?)" alt="(.*?)"><figcaption>.*?</b> (.*?)<'
    found = re.findall(pattern, body)
    assert all(words.endswith(f" {below} keys.") for *_, words, below in found)
    return {words: (source, bool(chosen)) for chosen, source, words, _ in found}


def test_the_first_layers_of_all_families_follow_the_place_and_the_photo() -> None:
    at = opened_with_data("zoo", family="PVT")
    before = strip(at)
    (chosen,) = [words for words, (_, is_chosen) in before.items() if is_chosen]
    assert chosen == "PVT: the patch may read from 49 of 49 keys."
    assert "Swin: the patch may read from 49 of 3136 keys." in before
    for change in (dict(zoo_down="10"), dict(zoo_across="80"), dict(seen="True")):
        after = strip(opened("zoo", family="PVT", **change))
        assert after.keys() == before.keys()
        assert not set(after.values()) & set(before.values())
    assert "| PVT | pooled keys | 56 x 56 | 7 x 7 | 49 of 49 keys (100 %) |" in prose(at)
    layers, _, sizes = (frame.value for frame in at.dataframe)
    assert (layers["queries"][0], layers["keys"][0]) == ("56 x 56", "7 x 7")
    body = sizes["counted, with head"] - sizes["of which head"]
    assert body[0] == pytest.approx(85.8e6, rel=1e-3)


def test_the_keys_of_a_layer_lie_where_its_grid_lies() -> None:
    """Each stage of PVT pads its picture anew."""
    acts = results.capture_picture(zoo._narrow("PVT"), pictures.sample("dog"))
    crops = [acts.crop_of(layer) for layer in (0, acts.depth - 1)]
    assert crops[0] != crops[1]
    for layer, (left, top, *_) in zip((1, acts.depth), crops, strict=True):
        at = opened("zoo", family="PVT", picture="dog", zoo_layer=str(layer))
        (veil,) = [one for one in figures(at)[KEYS]["data"] if "x0" in one]
        corner = (veil["x0"] - veil["dx"] / 2, veil["y0"] - veil["dy"] / 2)
        assert corner == pytest.approx((left, top))


def test_another_family_begins_at_its_first_layer() -> None:
    at = opened("zoo", family="CaiT", zoo_layer="26")
    choose(at, "PVT")
    assert_works(at)
    assert at.slider(key="zoo_layer").value == 1
    assert not at.info


def test_the_picture_is_the_readers() -> None:
    at = opened("zoo")
    before = [chart.spec for chart in charts(at)]
    upload(at, "mine.png", MINE)
    assert_works(at)
    after = [chart.spec for chart in charts(at)]
    assert after[KEYS] != before[KEYS]
    assert after[1:] == before[1:]
    assert provenance(at).endswith("mine.png")


def test_it_is_the_same_whatever_model_is_on_screen(serve: Callable[..., Model]) -> None:
    usual = [chart.spec for chart in charts(shown("zoo"))]
    serve("registers")
    at = opened("zoo", weights="random")
    assert_works(at)
    assert not at.warning
    assert [chart.spec for chart in charts(at)] == usual
    assert "| registers {} | 3 | 32 | 48 | 4 |  |" in prose(at)


def test_sizes_stand_beside_those_of_the_papers() -> None:
    text = prose(shown("zoo"))
    assert "| Base | 12 | 768 | 3072 | 12 | 86 M | 85.8 M | 86.6 M |" in text
    assert "| G | 48 | 1664 | 8192 | 16 | 1843 M | 1842.8 M | 1844.4 M |" in text
    assert f"| {SHIPPED} | 6 | 192 | 768 |" in text
    for paper in PAPER_SIZES:
        assert paper.source in text


def test_the_cost_of_a_base() -> None:
    at = shown("zoo")
    traces = {trace["name"]: trace for trace in json.loads(charts(at)[COST].spec)["data"]}
    assert list(traces) == ["A, all pairs", "A, 7 x 7 windows", "the rest"]
    assert traces["A, all pairs"]["y"][1] == 2 * 196**2 * 768
    assert traces["A, 7 x 7 windows"]["y"][1] == 2 * 196 * 49 * 768
    assert traces["the rest"]["y"][1] == 12 * 196 * 768**2
    assert "A takes 4.1 % of the multiply-adds; above N = 4608 it" in prose(at)


def test_the_edge_sees_less_in_shifted_layers_alone() -> None:
    """What "Try this" asks, and what the card says of Swin's last stage."""
    assert "Why does it see less there in layer 2, and not in layer 1?" in page_text("zoo").try_this
    assert "not in the last stage here" in CARDS["Swin"].differs
    model = zoo._narrow("Swin")
    acts = results.capture_picture(model, pictures.sample(pictures.DEFAULT))
    less = []
    for layer, described in enumerate(acts.layers):
        rows, cols = described.query_grid
        corner = zoo._find_allowed_keys(model, acts, layer, (rows - 1, cols - 1)).sum()
        middle = zoo._find_allowed_keys(model, acts, layer, (rows // 2, cols // 2)).sum()
        less.append(corner < middle)
    assert less == [
        described.stage < 3 and layer % 2 for layer, described in enumerate(acts.layers)
    ]


@pytest.mark.parametrize("family", CARDS)
def test_a_card_names_the_pages_that_do_not_show_the_family(family: str) -> None:
    about_one = [page_text(page).title for page in PAGES if PAGES[page].shows_model]
    # Most families have one grid, in which every token looks at every other.
    refused = REFUSED.get(TOYS[family].architecture, {"filters"} if family == "Hybrid" else set())
    missing = {page_text(page).title for page in refused}
    named = set(re.findall(r"\b(?:" + "|".join(about_one) + r")\b", CARDS[family].omissions))
    assert named == missing


# --- the way to the family ----------------------------------------------------------------------


@pytest.mark.usefixtures("narrow")
def test_a_family_is_opened_on_the_attention_page() -> None:
    at = opened("zoo", family="DeiT", picture="moose")
    at.button(key="open_family").click().run()
    assert not at.exception
    words = page_text("attention")
    assert at.title[0].value == f"{words.title}: {words.question}"
    assert provenance(at).startswith(f"{TOYS['DeiT'].architecture} (")
    assert "random weights" in provenance(at)  # as the trained ones are not on disk
    assert at.selectbox(key="picture").value == "moose"


def test_trained_weights_are_opened_where_they_are_on_disk(monkeypatch: Any) -> None:
    name = TOYS["DeiT"].architecture
    asked: list[tuple[str, str]] = []
    shipped = models.load_by_name(SHIPPED)

    def load(name: str, weights: str = "trained") -> Any:
        asked.append((name, weights))
        return shipped

    monkeypatch.setattr(models, "load_by_name", load)
    monkeypatch.setattr(models, "weights_marks", lambda: {name: models.ON_DISK})
    monkeypatch.setattr(models, "needs_download", lambda name: False)
    monkeypatch.setattr(models, "families", lambda: {name: "DeiT"})
    at = opened("zoo", family="DeiT", weights="random")
    at.button(key="open_family").click().run()
    assert not at.exception
    assert asked[-1] == (name, "trained")


def test_a_family_that_is_not_in_the_menu_has_no_button(monkeypatch: Any) -> None:
    monkeypatch.setattr(models, "model_names", lambda: [SHIPPED])
    at = opened("zoo", family="Swin")
    assert_works(at)
    assert not [button for button in at.button if button.key == "open_family"]
    assert "It is not in the menu" in prose(at)
