"""The Tokens page: similarity in the browser, components, foreground, thumbnails and lengths."""

import io
import json
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.driver import (
    address,
    assert_works,
    at_page,
    charts,
    click,
    commit,
    figures,
    numbers,
    of_sample,
    opened,
    opened_with_data,
    opened_with_norms,
    prose,
    stack,
    token_map,
)
from vitviz import Activations, Model, inspection
from vitviz.app.shared import pictures
from vitviz.common.language import as_percent
from vitviz.text import findings

COLOURS, FILM, SCATTER, NORMS = 0, 1, 2, 3


def after(acts: Activations, layer: int) -> np.ndarray:
    """All tokens after a layer, counted from 1, and the final LayerNorm."""
    return acts.tokens(layer, normalised=True)


def alt(at: AppTest, figure: int) -> str:
    words: str = charts(at)[figure].alt
    return words


def layout(at: AppTest, figure: int) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(charts(at)[figure].spec)["layout"]
    return found


# --- similarity ---------------------------------------------------------------------------------


@cache
def second_layer() -> AppTest:
    """The page with its data after the second of three layers, for tests that only read it."""
    return opened_with_data("tokens", layer="2", query="2.3")


@pytest.mark.parametrize(
    ("kind", "stars"), [("plain", "CLS"), ("distilled", "CLS, DIST"), ("no class token", "")]
)
def test_the_browser_gets_the_cosine_of_every_pair_after_every_layer(
    kind: str, stars: str, serve: Callable[[str], Model]
) -> None:
    acts = of_sample(serve(kind))
    at = opened("tokens")
    assert_works(at)
    shown, sent = token_map(at), stack(at)
    prefix = acts.num_prefix_tokens
    assert (shown["kind"], shown["strip"], shown["heads"]) == ("cosine", "frames", 1)
    assert shown["frames"] == ["layer 1", "layer 2", "layer 3"]
    assert shown["equalShare"] is None
    cosines = np.stack([inspection.token_similarity(after(acts, k)) for k in (1, 2, 3)])
    codes = sent["codes"].reshape(3, prefix + 24, 24)
    np.testing.assert_allclose((codes - 127.0) / 127, cosines[..., prefix:], atol=0.5 / 127 + 1e-5)
    np.testing.assert_allclose(
        sent["prefix"].reshape(3, prefix + 24, prefix), cosines[..., :prefix], atol=1e-5
    )
    np.testing.assert_array_equal(sent["peaks"], 1)
    assert len(layout(at, SCATTER)["images"]) == 1  # the picture, which is laid below
    assert ("★" in prose(at)) == bool(stars)
    if stars:
        assert f"★ {stars}: projected onto the components, not used to fit them." in prose(at)
        assert alt(at, SCATTER).endswith(f"{stars} as a star.")
    else:
        assert "star" not in alt(at, SCATTER)


def test_the_page_begins_with_a_typical_patch_of_what_the_head_attends_to(
    serve: Callable[[str], Model],
) -> None:
    acts = of_sample(serve("plain"))
    looks = acts.attention_map(acts.depth - 1, 0).mean(axis=0).ravel()
    most = 1 + np.argsort(-looks)[:3]  # a tenth of 24 patches
    rows = after(acts, acts.depth)[most]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    at = opened("tokens")
    assert token_map(at)["state"]["query"] == most[(rows @ rows.T).sum(axis=1).argmax()]
    assert "query" not in address(at)  # other pages keep theirs
    commit(at, frame=2, query=0)  # CLS can be chosen, and stays, also for whoever gets the link
    assert address(at)["query"] == "cls"
    for again in (at, opened("tokens", **address(at))):
        assert token_map(again)["state"]["query"] == 0
        assert token_map(again.run())["state"]["query"] == 0
    assert "query" not in address(at_page(at, "attention").run())
    assert address(opened("tokens", query="1.2")) == {"query": "1.2"}
    at = click(opened("tokens"), "token_scatter", {"point_index": 0, "customdata": [0]})
    assert token_map(at)["state"]["query"] == 0  # its star


def test_one_slider_sets_the_layer_and_norms_are_folded(serve: Callable[..., Model]) -> None:
    serve("plain")
    at = opened("tokens")
    assert "slider" not in token_map(at)["titles"]
    (folded,) = [one for one in at.expander if one.label.startswith("Norms of the tokens")]
    assert not folded.proto.expanded
    assert not folded.get("plotly_chart")  # and not drawn
    assert len(charts(at)) == 3
    assert len(charts(opened_with_norms())) == 4


def test_a_layer_and_a_query_chosen_in_the_map_hold_for_all_figures(
    serve: Callable[[str], Model],
) -> None:
    serve("plain")
    at = opened_with_norms()
    assert "after layer 3" in at.subheader[0].value
    commit(at, frame=0, query=1 + 9)  # the patch at row 2, column 4 of 4 x 6
    assert_works(at)
    assert address(at) == {"layer": "1", "query": "2.4"}
    assert "after layer 1" in at.subheader[0].value
    assert "after layer 1" in at.subheader[2].value
    assert len(layout(at, COLOURS)["shapes"]) == 2  # the picture's rim, and the query's box
    assert len(layout(at, NORMS)["shapes"]) == 2


# --- components and foreground ------------------------------------------------------------------


def test_three_components_are_red_green_and_blue(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    at = second_layer()
    components, explained = inspection.token_components(after(acts, 2), grid=acts.grid)
    for channel, colour in enumerate(("red", "green", "blue")):
        row, col = divmod(int(components[..., channel].argmax()), 6)
        where = f"component {channel + 1} as {colour}, largest at row {row + 1}, column {col + 1}"
        assert where in alt(at, COLOURS)
    assert f"Red is component 1 ({100 * explained[0]:.0f} % of the variance)" in prose(at)


def test_other_components_can_be_chosen(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    points, explained = inspection.token_scatter(
        after(acts, 3), grid=acts.grid, num_prefix_tokens=1, n_components=5
    )
    at = opened("tokens")
    first = alt(at, SCATTER)
    assert at.selectbox(key="components").options == [
        *("components 1, 2, 3", "components 2, 3, 4", "components 3, 4, 5")
    ]
    at.selectbox(key="components").set_value("3-5").run()
    assert_works(at)
    assert address(at).items() >= {"components": "3-5"}.items()
    assert "component 3 as red" in alt(at, COLOURS)
    assert "component 5 as blue" in alt(at, COLOURS)
    patches = figures(at)[SCATTER]["data"][0]
    for axis, number in (("x", 3), ("y", 4)):
        title = f"component {number} ({as_percent(explained[number - 1])} of the variance)"
        assert layout(at, SCATTER)[f"{axis}axis"]["title"]["text"] == title
        np.testing.assert_allclose(numbers(patches[axis]), points[1:, number - 1], atol=1e-4)
    assert alt(at, SCATTER) != first
    assert "components 3 and 4" in at.subheader[1].value


def test_the_threshold_keeps_one_end_of_the_first_component(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    components, _ = inspection.token_components(after(acts, 3), grid=acts.grid)
    at = opened("tokens")
    assert "24 patches on" in alt(at, SCATTER)
    assert at.toggle(key="flip").disabled  # nothing to flip yet
    at.select_slider(key="threshold").set_value(0.4).run()
    for flip in (False, True):
        if flip:
            at.toggle(key="flip").set_value(True).run()
        kept = inspection.foreground(components[..., 0], threshold=0.4, flip=flip)
        assert 4 < kept.sum() < 24
        assert_works(at)
        wanted = {"threshold": "0.4", **({"flip": "True"} if flip else {})}
        assert address(at).items() >= wanted.items()
        assert f"{kept.sum()} of 24 patches, component 1 as red" in alt(at, COLOURS)
        assert alt(at, SCATTER).startswith(f"{kept.sum()} patches on component 1")
        assert f"Fitted again on the {kept.sum()} of 24 patches that are kept." in prose(at)
        _, explained = inspection.token_scatter(after(acts, 3), grid=acts.grid, kept=kept)
        assert f"Red is component 1 ({100 * explained[0]:.0f} % of the variance)" in prose(at)


def test_the_mask_is_a_picture_of_the_size_of_the_original(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = of_sample(serve("plain"))
    components, _ = inspection.token_components(after(acts, 3), grid=acts.grid)
    kept = inspection.foreground(components[..., 0], threshold=0.4)
    made: list[bytes] = []

    def button(label: str, data: Callable[[], bytes], **options: Any) -> None:
        if label == "Foreground mask, PNG":
            made.append(data())

    monkeypatch.setattr("streamlit.download_button", button)
    opened("tokens")
    assert not made  # while all are kept there is nothing to cut out
    assert_works(opened("tokens", threshold="0.4"))
    (file,) = made
    mask = Image.open(io.BytesIO(file))
    width, height = mask.size
    assert mask.size == pictures.sample(pictures.DEFAULT).size
    assert mask.mode == "L"
    left, top, right, bottom = acts.crop
    for row, col in np.ndindex(4, 6):
        x = left + (col + 0.5) * (right - left) / 6
        y = top + (row + 0.5) * (bottom - top) / 4
        assert (mask.getpixel((int(x), int(y))) == 255) == kept[row, col]
    share = (right - left) * (bottom - top) / (width * height)
    assert np.mean(np.asarray(mask) == 255) == pytest.approx(kept.mean() * share, rel=0.02)


def test_too_few_patches_beyond_the_threshold_are_said_and_all_are_shown(
    serve: Callable[[str], Model],
) -> None:
    acts = of_sample(serve("plain"))
    components, _ = inspection.token_components(after(acts, 3), grid=acts.grid)
    kept = inspection.foreground(components[..., 0], threshold=0.95)
    assert kept.sum() < 3
    at = opened("tokens", threshold="0.95")
    assert_works(at)
    (said,) = [info.value for info in at.info]
    assert said.startswith(f"Only {kept.sum()} of 24 patches lie beyond the threshold")
    assert "24 patches on" in alt(at, SCATTER)
    assert "Fitted again" not in prose(at)


# --- film ---------------------------------------------------------------------------------------


def test_every_layer_has_its_tile_with_its_variance(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    at = second_layer()
    labels = [label["text"] for label in layout(at, FILM)["annotations"]]
    shares = [
        100 * inspection.token_components(after(acts, k), grid=acts.grid)[1].sum()
        for k in (1, 2, 3)
    ]
    expected = [f"layer {k + 1} · {share:.0f} %" for k, share in enumerate(shares)]
    expected[1] = f"<b>{expected[1]}</b>"
    assert labels == expected
    assert "evenly spaced" not in prose(at)


def test_of_many_layers_16_are_shown_and_it_is_said(serve: Callable[..., Model]) -> None:
    serve("plain", depth=20)
    at = opened("tokens")
    assert_works(at)
    labels = [label["text"] for label in layout(at, FILM)["annotations"]]
    layers = [int(text.removeprefix("<b>").split()[1]) for text in labels]
    assert len(layers) == 16
    assert (layers[0], layers[-1]) == (1, 20)
    assert {b - a for a, b in pairwise(layers)} == {1, 2}
    assert "16 of 20 layers, evenly spaced." in prose(at)
    assert labels[-1].startswith("<b>layer 20 ")  # the one on screen
    missing = min({*range(1, 21)} - {*layers})
    at.slider(key="layer").set_value(missing).run()
    assert_works(at)
    assert "shapes" not in layout(at, FILM)  # the layer on screen has no tile to frame


# --- scatter ------------------------------------------------------------------------------------


def test_a_click_on_a_thumbnail_makes_it_the_query(serve: Callable[[str], Model]) -> None:
    serve("plain")
    at = opened("tokens")
    click(at, SCATTER, {"customdata": [1 + 9]})
    assert_works(at)
    assert address(at) == {"query": "2.4"}
    assert token_map(at)["state"]["query"] == 10
    assert token_map(at)["state"]["pinned"]
    click(at, SCATTER)  # beside all of them
    assert address(at) == {"query": "2.4"}
    click(at, SCATTER, {"customdata": [0]})  # the star
    assert address(at) == {"query": "cls"}
    assert token_map(at.run())["state"]["query"] == 0


# --- norms --------------------------------------------------------------------------------------


def test_both_rules_for_lengths_are_on_screen_with_their_numbers(
    serve: Callable[[str], Model],
) -> None:
    acts = of_sample(serve("plain"))
    at = opened_with_norms(layer="1")
    norms, long, limit = inspection.token_norms(acts.tokens(1), grid=acts.grid)
    said = prose(at)
    assert f"○ large norm: {long.sum()} of 24 patches" in said
    assert f"by more than 5 median absolute deviations (above {limit:.2f})." in said
    assert "✕ outliers: 0 of 24 patches with at least 5 times the median norm" in said
    assert "about 2 % of the tokens and had about ten times the norm" in said
    assert f"The largest norm is {norms.max():.2f}" in said
    ratio = norms.max() / np.median(norms)
    assert f"{ratio:.1f} times the median of {np.median(norms):.2f}" in said
    assert f" CLS: {np.linalg.norm(acts.tokens(1)[0]):.2f}." in said
    row, col = divmod(int(norms.argmax()), 6)
    assert f"{norms.max():.2f} at row {row + 1}, column {col + 1}" in alt(at, NORMS)


@pytest.mark.parametrize("times", [1.5, 20])
def test_a_long_token_is_no_outlier_until_it_is_five_times_as_long(
    times: float, serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    real = Activations.tokens

    def stretched(acts: Activations, depth: int, *, normalised: bool = False) -> np.ndarray:
        tokens = real(acts, depth, normalised=normalised).copy()
        length = np.linalg.norm(tokens[1:], axis=1, keepdims=True)
        if not normalised:
            tokens[1:] *= (4 + 0.01 * np.arange(24)[:, None]) / length  # hardly any spread
            tokens[1 + 9] *= times
        return tokens

    monkeypatch.setattr(Activations, "tokens", stretched)
    at = opened_with_norms()
    assert "○ large norm: 1 of 24 patches" in prose(at)
    assert f"✕ outliers: {int(times > 5)} of 24 patches with at least 5 times" in prose(at)
    ends = {
        1.5: "no outlier; 1 large one: row 2, column 4.",
        20: "1 outlier: row 2, column 4; no large one.",
    }
    assert alt(at, NORMS).endswith(ends[times])


def test_the_numbers_are_there_as_a_table(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("plain"))
    at = second_layer()
    table = at.dataframe[0].value
    alike = [inspection.token_similarity(after(acts, layer))[1:, 1:] for layer in (1, 2, 3)]
    means = [float(each[~np.eye(24, dtype=bool)].mean()) for each in alike]
    assert findings.tokens(means, 2) in prose(at)
    assert "on the principal components of the patches that are kept, and its norm" in prose(at)
    cosines = inspection.token_similarity(after(acts, 2))[1 + 6 + 2, 1:]
    np.testing.assert_allclose(table["cosine with the query"], cosines, atol=1e-5)
    components, _ = inspection.token_components(after(acts, 2), grid=acts.grid)
    np.testing.assert_allclose(table["component 2"], components[..., 1].ravel(), atol=1e-3)
    norms, _, _ = inspection.token_norms(acts.tokens(2), grid=acts.grid)
    np.testing.assert_allclose(table["norm"], norms.ravel(), atol=1e-3)
    assert list(table["row"]) == [1] * 6 + [2] * 6 + [3] * 6 + [4] * 6
    assert list(table["column"]) == [1, 2, 3, 4, 5, 6] * 4
    assert table["kept"].all()


def test_the_mean_of_the_patches_is_a_query_too(serve: Callable[[str], Model]) -> None:
    acts = of_sample(serve("registers alone"))  # 2 registers
    table = opened_with_data("tokens", query="mean", layer="2").dataframe[0].value
    cosines = inspection.token_similarity(after(acts, 2))[2:, 2:].mean(axis=0)
    np.testing.assert_allclose(table["cosine with the query"], cosines, atol=1e-5)


# --- the smallest -------------------------------------------------------------------------------


@pytest.mark.parametrize(("side", "charts_left"), [(16, 1), (8, 3)])
def test_a_picture_of_few_patches_says_what_it_lacks(
    side: int, charts_left: int, serve: Callable[..., Model]
) -> None:
    serve("plain", image_size=16, patch_size=side)  # 1 and 4 patches
    at = opened("tokens")
    assert not at.exception
    assert len(charts(at)) == charts_left
    assert ("two patches have a cosine" in prose(at)) == (side == 8)
    assert [info.value for info in at.info] == (
        ["A picture of 1 x 1 patches has fewer than 3 components."] if side == 16 else []
    )
    assert token_map(at)
