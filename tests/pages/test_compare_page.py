"""The page Compare: two columns whose numbers are those of both captures."""

import json
import re
from collections.abc import Callable
from functools import cache, lru_cache
from html import unescape
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from examples import assert_clear_error, own_model
from streamlit.testing.v1 import AppTest

from pages import driver
from pages.driver import (
    MINE,
    SHIPPED,
    address,
    assert_works,
    charts,
    commit,
    numbers,
    of_sample,
    open_data,
    prose,
    provenance,
    stacks,
    token_maps,
    upload,
)
from vitviz import Activations, Model, ModelError, capture, inspection, intervention
from vitviz.app.screens import compare_patching
from vitviz.app.shared import models, pictures
from vitviz.common import SMALL_MODEL
from vitviz.common.language import as_percent
from vitviz.text.class_names import common_names
from vitviz.web.token_map import matching_patch

OTHER = "vitviz_tiny_cifar10"
SMALLER = "vit_tiny_patch16_224"  # another grid, and another crop
SWIN, MIXER = "swin_tiny_patch4_window7_224", "mixer_b16_224"
pytestmark = pytest.mark.usefixtures("narrow")


def opened(page: str, **link: str) -> AppTest:
    """The page on the picture that the app opens with."""
    return driver.opened(page, **{"picture": pictures.DEFAULT, **link})


def opened_with_data(page: str, **link: str) -> AppTest:
    return driver.opened_with_data(page, **{"picture": pictures.DEFAULT, **link})


@lru_cache(maxsize=4)
def acts_of(
    name: str = SHIPPED, weights: str = "trained", picture: str = pictures.DEFAULT
) -> Activations:
    return capture(models.load_by_name(name, weights), pictures.sample(picture).image)


def frames(at: AppTest, which: int) -> np.ndarray:
    """The attention or the cosines that a side was sent, (heads, queries, patches)."""
    sent, shown = stacks(at)[which], token_maps(at)[which]
    keys = shown["keyRows"] * shown["keyCols"]
    codes = sent["codes"].astype(np.float64).reshape(shown["heads"], -1, keys)
    if shown["kind"] == "cosine":
        return (codes - 127) / 127
    return (codes / 255) ** 2 * sent["peaks"].reshape(*codes.shape[:2], 1)


def captions(at: AppTest) -> list[str]:
    """What stands below the photos."""
    return [one["titles"]["caption"] for one in token_maps(at)]


def tables(at: AppTest) -> list[Any]:
    """Those of the page where it is open with its data."""
    assert not at.exception
    return [frame.value for frame in at.dataframe]


def said(at: AppTest) -> str:
    (sentence,) = [
        m.value for m in at.markdown if "correlation is **" in m.value or "match in" in m.value
    ]
    return str(sentence)


# --- two models ---------------------------------------------------------------------------------


def test_it_opens_with_two_animals_of_one_kind_until_a_picture_is_chosen() -> None:
    at = driver.opened("anatomy")
    at.query_params.clear()
    driver.at_page(at, "compare").run()
    assert_works(at)
    assert address(at) == {}
    shown, beside = "sample: cat", "sample: cat's face"
    assert shown in provenance(at)
    assert captions(at) == [shown, beside]
    at.selectbox(key="picture").set_value("dog").run()
    assert address(at)["picture"] == "dog"


def test_a_chosen_picture_stays_though_another_page_opens_with_it() -> None:
    at = driver.opened("attention")
    for page, picture in (("attention", "cat"), ("compare", pictures.DEFAULT)):
        driver.at_page(at, page).run()
        at.selectbox(key="picture").set_value(picture).run()
        for turned in ("compare", "attention", "compare"):
            driver.at_page(at, turned).run()
            assert at.selectbox(key="picture").value == picture


def test_trained_and_random_weights_of_a_model_stand_side_by_side() -> None:
    at = opened_with_data("compare", compare="weights")
    assert_works(at)
    left, right = token_maps(at)
    assert left["link"] == right["link"] != ""
    assert left["state"] == right["state"]
    for which, weights in enumerate(("trained", "random")):
        acts = acts_of(weights=weights)
        whole = acts.attention(acts.depth - 1)
        shown = frames(at, which)
        np.testing.assert_allclose(shown, whole[..., 1:], atol=0.004 * whole.max())
    assert captions(at) == [f"{SHIPPED}, trained", f"{SHIPPED}, random weights"]
    assert "beside" in provenance(at)
    assert provenance(at).count("random weights") == 1
    names = captions(at)
    assert charts(at)[0].alt.startswith(
        f"Attention distance of {names[1]} minus that of {names[0]}"
    )
    assert address(at) == {"picture": pictures.DEFAULT, "compare": "weights"}
    trained, random = (acts_of(weights=one).measure().distance for one in ("trained", "random"))
    (heat,) = json.loads(charts(at)[0].spec)["data"]
    np.testing.assert_allclose(numbers(heat["z"]), random - trained, rtol=1e-3, atol=1e-4)
    table = tables(at)[2]
    np.testing.assert_allclose(
        table["difference, px"], (random - trained).ravel(), rtol=1e-3, atol=1e-4
    )
    assert list(table["layer"][:7]) == [1] * 6 + [2]


def test_with_random_weights_on_the_left_the_trained_ones_stand_on_the_right() -> None:
    at = opened("compare", compare="weights", weights="random")
    assert "shipped weights" in provenance(at).split("beside")[1]
    assert "random weights" in provenance(at).split("beside")[0]


def test_other_weights_get_the_input_that_was_chosen() -> None:
    at = opened("compare", compare="weights", size="32x48")
    assert not at.exception
    assert [(shown["rows"], shown["cols"]) for shown in token_maps(at)] == [(8, 12)] * 2


def test_the_correlation_is_that_of_the_two_maps() -> None:
    names = OTHER, "vitviz_tiny_cifar100"  # of pictures of one size, so that the crops are equal
    models = dict(compare="models", model=names[0], other_model=names[1])
    at = opened("compare", **models, layer="3", head="2", query="4.7")
    both = [acts_of(name) for name in names]  # one has a distillation token, too
    first, second = (acts.attention_map(2, (3, 6))[1].ravel() for acts in both)
    expected = np.corrcoef(first, second)[0, 1]
    assert f"**{expected:.2f}**" in said(at)
    table = tables(open_data(at, "compare"))[1]
    np.testing.assert_allclose(table.iloc[:, 2], 100 * first, rtol=1e-5)
    np.testing.assert_allclose(table.iloc[:, 3], 100 * second, rtol=1e-5)
    assert names[1] in provenance(at)
    assert "head 2 · beside" in provenance(at)


def test_where_the_grids_differ_the_place_and_the_relative_depth_are_kept() -> None:
    link = dict(compare="models", other_model=SMALLER, other_weights="random")
    at = opened_with_data("compare", **link, layer="2", query="4.13", head="2")
    first, second = acts_of(), acts_of(SMALLER, "random")
    left, right = token_maps(at)
    size = pictures.sample(pictures.DEFAULT).size
    boxes = [np.array(acts.crop) / (*size, *size) for acts in (first, second)]
    row, col = matching_patch((3, 12), ((16, 16), tuple(boxes[0])), ((14, 14), tuple(boxes[1])))
    assert left["state"]["query"] == 1 + 3 * 16 + 12
    assert right["state"]["query"] == 1 + row * 14 + col
    assert right["frames"] == ["layer 4, mean of heads"]  # 2 of 6 is 4 of 12
    edges = np.array([acts.crop for acts in (first, second)])
    drawn = [*edges[:, :2].min(axis=0), *edges[:, 2:].max(axis=0)]  # what one of the models saw
    assert left["picture"]["area"] == right["picture"]["area"] == drawn
    maps = [
        acts.attention(layer)[:, query, 1:].mean(axis=0).reshape(acts.grid)
        for acts, layer, query in (
            (first, 1, left["state"]["query"]),
            (second, 3, right["state"]["query"]),
        )
    ]
    expected, common = inspection.map_correlation(*maps, crop=first.crop, other_crop=second.crop)
    assert common == (14, 14)
    assert f"**{expected:.2f}**" in said(at)
    assert "16 x 16 and of 14 x 14 patches" in said(at)
    assert "resampled by area to 14 x 14" in said(at)
    assert "Mean of heads: 6 on the left, 3 on the right" in prose(at)
    assert frames(at, 0).shape[0] == frames(at, 1).shape[0] == 1
    np.testing.assert_allclose(
        frames(at, 1)[0], second.attention(3).mean(axis=0)[:, 1:], atol=0.004
    )
    assert "so the means of their layers are compared" in prose(at)
    table = tables(at)[2]
    other = table[table["model"] == f"{SMALLER}, random weights"]
    by_layer = second.measure().distance.mean(axis=1)
    (figure,) = (one for one in charts(at) if one.alt.startswith("Mean attention distance from"))
    lines = [numbers(one["y"]) for one in json.loads(figure.spec)["data"]]
    by_depth, *_ = (line for line in lines if len(line) == 12)  # of the model with 12 layers
    np.testing.assert_allclose(by_depth, 100 * by_layer / 224, rtol=1e-4)
    equal = inspection.uniform_distance((14, 14), 16)
    assert any(np.allclose(line, 100 * equal / 224) for line in lines)
    np.testing.assert_allclose(other["mean distance, px of its input"], by_layer, rtol=1e-4)
    np.testing.assert_allclose(
        other["mean distance, % of the side"], 100 * by_layer / 224, rtol=1e-4
    )


def test_both_answers_stand_side_by_side() -> None:
    at = opened_with_data("compare", compare="models", other_model=OTHER)
    answers = [acts_of(name) for name in (SHIPPED, OTHER)]
    table = tables(at)[0]
    for acts, chart in zip(answers, charts(at)[-2:], strict=True):
        assert acts.probabilities is not None
        top = common_names(acts.output_names)[int(acts.probabilities.argmax())]
        assert chart.alt.startswith(
            f"Most probable classes: {top} {100 * acts.probabilities.max():.1f} %"
        )
        assert top in list(table["class"])
    assert table["probability, %"].sum() == pytest.approx(200, abs=0.01)


def test_a_click_on_either_side_is_taken_by_both() -> None:
    link = dict(compare="models", other_model=SMALLER, other_weights="random")
    at = opened("compare", **link)
    commit(at, query=1 + 5 * 16 + 4, pinned=True)
    assert address(at)["query"] == "6.5"
    before = token_maps(at)
    right = before[1]["state"]["query"]
    commit(at, 1, query=right + 14, pinned=True)  # a row further down on the right
    after = token_maps(at)
    assert after[1]["state"]["query"] == right + 14
    assert after[0]["state"]["query"] - 1 == (before[0]["state"]["query"] - 1) + 16
    assert after[0]["version"] == after[1]["version"] == 2
    assert not at.info


def test_the_other_model_is_asked_for_the_same_patch_after_its_own_tokens() -> None:
    at = opened("compare", compare="models", other_model=OTHER, query="6.5")
    left, right = (one["state"]["query"] for one in token_maps(at))
    assert (left, right) == (1 + 5 * 16 + 4, 2 + 5 * 16 + 4)  # CLS, and CLS and DIST


def test_a_head_that_is_chosen_in_the_browser_is_kept() -> None:
    at = opened("compare", compare="weights")
    commit(at, head=3)
    assert address(at)["head"] == "4"
    assert [one["state"]["head"] for one in token_maps(at)] == [3, 3]
    assert at.selectbox(key="head").value == 4


def test_what_other_pages_chose_for_their_maps_stays_theirs() -> None:
    at = opened("compare", compare="weights", view="spotlight", scale="log", smooth="on")
    assert token_maps(at)[0]["state"]["view"] == "heat"
    commit(at, query=9, pinned=True)
    kept = {"view": "spotlight", "scale": "log", "smooth": "on"}
    assert kept.items() <= address(at).items()


@pytest.mark.parametrize(
    ("scale", "drawn"), [("map", "shared"), ("shared", "shared"), ("log", "log")]
)
def test_both_maps_have_one_scale_and_it_is_logarithmic_where_attentions_is(
    scale: str, drawn: str
) -> None:
    at = opened("compare", compare="weights", scale=scale)
    assert [one["state"]["scale"] for one in token_maps(at)] == [drawn, drawn]
    words = {"shared": "one scale for all maps", "log": "logarithmic scale"}
    assert words[drawn] in provenance(at)


def test_windows_are_compared_with_whole_pictures() -> None:
    at = opened_with_data(
        "compare", compare="models", model=SWIN, weights="random", layer="5", query="3.3"
    )
    assert not at.exception
    acts = acts_of(SWIN, "random")
    expected = acts.attention_map(4, (2, 2)).mean(axis=0)
    windows, other = token_maps(at)
    assert windows["within"]
    table = tables(at)[1]
    common = inspection.common_maps(
        expected, np.ones((16, 16)), crop=acts.crop_of(4), other_crop=acts_of().crop
    )[0]
    np.testing.assert_allclose(table.iloc[:, 2], 100 * common.ravel(), rtol=1e-4, atol=1e-5)
    assert "on the left and" not in prose(at)
    assert other["state"]["query"] > 0


def test_a_model_without_attention_is_refused_in_one_sentence_and_answers() -> None:
    for link in (
        {"model": MIXER, "weights": "random"},
        {"compare": "models", "other_model": MIXER, "other_weights": "random"},
    ):
        at = opened_with_data("compare", **link)
        assert not at.exception
        (refusal,) = at.info
        assert refusal.value == f"{MIXER} has no attention, so there are no maps to compare."
        assert not token_maps(at)
        assert len(charts(at)) == 2
        assert len(tables(at)) == 1


def test_weights_that_would_be_downloaded_are_refused_in_one_sentence() -> None:
    at = opened("compare", compare="models", other_model=SMALLER)
    assert not at.exception
    (refusal,) = at.info
    assert_clear_error(refusal.value)
    assert f"The trained weights of {SMALLER} are not on this server" in refusal.value
    assert len(charts(at)) == 1  # its own answer


def test_a_model_without_a_head_has_no_answer(serve: Callable[..., Model]) -> None:
    serve("no head")
    at = opened("compare", compare="models")
    assert not at.exception
    assert prose(at).count("No answer: this model has no head.") == 2
    assert "**1.00**" in said(at)


# --- two pictures -------------------------------------------------------------------------------


@cache
def pair() -> AppTest:
    link = dict(compare="pictures", other_picture="horse", layer="4", query="6.9", matches="2")
    return opened_with_data("compare", **link)


def patches(picture: str) -> np.ndarray:
    return acts_of(picture=picture).tokens(4, normalised=True)[1:]


def test_the_right_map_holds_the_cosines_of_both_pictures() -> None:
    at = pair()
    assert_works(at)
    expected = inspection.cross_similarity(patches(pictures.DEFAULT), patches("horse"))
    np.testing.assert_allclose(frames(at, 1)[0], expected, atol=0.5 / 127 + 1e-6)
    own = inspection.token_similarity(patches(pictures.DEFAULT))
    np.testing.assert_allclose(frames(at, 0)[0], own, atol=0.5 / 127 + 1e-6)
    left, right = token_maps(at)
    assert left["state"]["query"] == right["state"]["query"] == 5 * 16 + 8
    assert left["picture"] != right["picture"]
    assert [side["picture"]["area"] for side in (left, right)] == [
        side["picture"]["crop"] for side in (left, right)
    ]
    assert (right["crop"], right["keyCrop"]) == (left["crop"], right["picture"]["crop"])
    assert left["matches"] is None


def test_the_outlined_patches_are_the_nearest() -> None:
    at = pair()
    similarity = inspection.cross_similarity(patches(pictures.DEFAULT), patches("horse"))
    matches = token_maps(at)[1]["matches"]
    assert matches["nearest"] == inspection.nearest_patches(similarity, k=2).tolist()
    assert matches["back"] == inspection.nearest_patches(similarity.T, k=2).tolist()
    pairs = inspection.mutual_matches(similarity)
    assert np.flatnonzero(matches["mutual"]).tolist() == pairs[:, 0].tolist()
    assert f"**{len(pairs)} of 256** patches" in said(at)
    assert charts(at)[0].alt.startswith(f"{len(pairs)} pairs of patches")
    assert provenance(at).endswith("layer 4 of 6 · sample: red panda and sample: horse")
    answers = [one.value for one in at.subheader if one.value.startswith("Answer for")]
    assert answers == ["Answer for sample: red panda", "Answer for sample: horse"]
    for chart, name in zip(charts(at)[-2:], (pictures.DEFAULT, "horse"), strict=True):
        acts = acts_of(picture=name)
        assert acts.probabilities is not None
        top = common_names(acts.output_names)[int(acts.probabilities.argmax())]
        assert chart.alt.startswith(f"Most probable classes: {top} ")


def test_the_table_has_matches_and_joint_components() -> None:
    table = tables(pair())[1]
    words = "\n".join(one.value for one in [*pair().caption, *pair().markdown])
    assert "Each patch of the first picture after layer 4" in words
    similarity = inspection.cross_similarity(patches(pictures.DEFAULT), patches("horse"))
    nearest = inspection.nearest_patches(similarity, k=2)
    second = 16 * (table["row of match 2"] - 1) + table["column of match 2"] - 1
    assert list(second) == nearest[:, 1].tolist()
    mutual = inspection.mutual_matches(similarity)[:, 0]
    assert np.flatnonzero(table["mutual"]).tolist() == mutual.tolist()
    first, other, explained = inspection.joint_components(
        patches(pictures.DEFAULT), patches("horse")
    )
    red, green, blue = map(as_percent, explained)
    colours = f"red explains {red} of the variance of all patches, green {green}, blue {blue}."
    assert colours in prose(pair())
    np.testing.assert_allclose(table["component 1"], first[:, 0], rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        table["component 1 of the other picture here"], other[:, 0], rtol=1e-4, atol=1e-4
    )


def test_a_picture_matches_itself_everywhere() -> None:
    at = opened("compare", compare="pictures", other_picture=pictures.DEFAULT)
    assert "**256 of 256** patches" in said(at)
    assert "median cosine of 1.00; 256 of them at the same place" in said(at)


def test_the_pictures_are_swapped() -> None:
    at = opened("compare", compare="pictures", other_picture="horse", query="6.9")
    (swap,) = [button for button in at.button if button.label == "Swap the pictures"]
    assert_works(swap.click().run())
    assert provenance(at).endswith("sample: horse and sample: red panda")


def test_a_click_on_the_right_side_is_a_query_of_the_left() -> None:
    at = opened("compare", compare="pictures", model=OTHER)  # with CLS and DIST
    commit(at, 1, query=33, pinned=True)  # by a key: the pointer chooses on the left
    assert address(at)["query"] == "3.2"
    commit(at, 0, query=136, pinned=False)
    assert "query" not in address(at)


def test_an_upload_is_compared_with_a_sample_and_the_name_of_a_file_is_no_markup() -> None:
    name = "![x](y) <b> :red[z] *a* `c`.png"
    at = upload(opened("compare", compare="pictures"), name, MINE)
    assert_works(at)
    assert provenance(at).endswith(f"{name} and sample: red panda")
    said = [text.value for text in (*at.markdown, *at.subheader) if name in unescape(text.value)]
    assert len(said) == 1  # above the answer
    assert captions(at)[0] == name
    for text in said:
        assert not re.search(r"!\[|<b>|:red\[|`|\*a", text)
    before = {text.value for text in at.markdown}
    assert not open_data(at, "compare").exception
    assert all("[x]" not in text.value for text in at.markdown if text.value not in before)


def test_patches_of_windows_are_not_matched() -> None:
    at = opened("compare", compare="pictures", model=SWIN, weights="random")
    assert not at.exception
    (refusal,) = at.info
    assert_clear_error(refusal.value)
    assert not token_maps(at)
    assert len(charts(at)) == 2  # the answers


# --- what the maps count -------------------------------------------------------------------------


def test_both_maps_can_count_what_the_keys_add() -> None:
    link = dict(compare="weights", model=SMALL_MODEL, layer="3", head="2", query="2.3")
    at = opened_with_data("compare", counts="output", **link)
    assert_works(at)
    columns = []
    for which, weights in enumerate(("trained", "random")):
        model = models.load_by_name(SMALL_MODEL, weights)
        acts = of_sample(model)
        matrix = acts.carried(model, 2).by_head
        wanted = matrix / matrix.sum(axis=2, keepdims=True)
        np.testing.assert_allclose(
            frames(at, which), wanted[..., 1:], atol=0.004 * wanted[..., 1:].max()
        )
        columns.append(100 * wanted[1, 1 + 6, 1:])
    table = tables(at)[1]
    for name, column in zip(table.columns[2:4], columns, strict=True):
        np.testing.assert_allclose(table[name], column, rtol=1e-4)
    correlation = np.corrcoef(*columns)[0, 1]
    assert f"correlation is **{correlation:.2f}" in said(at).replace("−", "-")
    assert "what the key adds after the projection" in provenance(at)
    assert "What is added to it" in json.dumps(token_maps(at)[0])


# --- parts of one picture in the other's pass ----------------------------------------------------


def patched(model: str = SMALL_MODEL, **link: str) -> AppTest:
    """The page with its experiment open, on two samples with different answers."""
    asked = dict(picture="dog", other_picture="bison", model=model) | link
    return driver.opened_with("compare", "patching", "data_compare", **asked)


def exchange(at: AppTest) -> AppTest:
    (button,) = [each for each in at.button if each.key == "run patching"]
    button.click().run()
    assert_works(at)
    assert not [each for each in at.button if each.key in ("run patching", "cancel patching")]
    return at


def images(*names: str) -> list[Any]:
    return [pictures.sample(name).image for name in names]


def effects(at: AppTest) -> np.ndarray:
    """What the last chart of the page shows, (layers, parts)."""
    return numbers(json.loads(charts(at)[-1].spec)["data"][0]["z"])


def test_the_effects_of_heads_and_of_layers_are_those_of_the_library() -> None:
    driver.forget()
    assert not [each for each in opened("compare").button if each.key == "run patching"]
    at = exchange(patched())
    model = models.load_by_name(SMALL_MODEL)
    pair = [(*images("dog", "bison"),)]
    heads = intervention.patch_heads(model, pair).mean
    together = intervention.patch_heads(model, pair, together=True).mean
    wanted = 100 * np.concatenate([heads, together], axis=1)
    np.testing.assert_allclose(effects(at), wanted, rtol=1e-4, atol=1e-4)
    layer, head = np.unravel_index(int(np.abs(heads).argmax()), heads.shape)
    assert (
        f"Layer {layer + 1}, head {head + 1} moves the answer most: "
        f"**{100 * heads[layer, head]:+.0f} %** of the way." in prose(at)
    )
    assert f"in layer {together.argmax() + 1}: **{100 * together.max():+.0f} %**." in prose(at)
    assert "The answers are German shepherd → bison." in prose(at)
    assert at.selectbox(key="pairs").options[0] == "these two: sample: dog → sample: bison"
    table = tables(at)[-1]
    np.testing.assert_allclose(table["effect, %"], wanted.ravel(), rtol=1e-4, atol=1e-4)
    assert list(table["head"][:7]) == ["1", "2", "3", "4", "5", "6", "all"]
    at.segmented_control(key="part").set_value("tokens").run()
    (button,) = [each for each in at.button if each.key == "run patching"]  # another experiment
    assert button.label == "Exchange each part (6 passes)"
    back = effects(exchange(patched(picture="bison", other_picture="dog")))
    assert np.abs(back - wanted).max() > 1  # the other direction is another experiment


def test_pairs_have_an_interval_and_leave_out_those_of_one_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver.forget()
    pairs = (("dog", "bison"), ("dog", "dog"), ("koala", "goldfish"))
    monkeypatch.setitem(compare_patching.PRESETS, "animals", pairs)
    at = patched(part="tokens", pairs="animals")
    (button,) = [each for each in at.button if each.key == "run patching"]
    assert button.label == "Exchange each part (18 passes)"
    exchange(at)
    model = models.load_by_name(SMALL_MODEL)
    masks = intervention.token_blocks(model, 1)
    kept = [(*images(*names),) for names in (pairs[0], pairs[2])]
    found = intervention.patch_tokens(model, kept, masks)
    np.testing.assert_allclose(effects(at), 100 * found.mean, rtol=1e-3, atol=1e-3)
    assert "Left out, as the model gives both pictures the same answer: 1." in prose(at)
    low, high = found.interval()
    most = np.unravel_index(int(np.abs(found.mean).argmax()), found.mean.shape)
    ends = f"(95 % interval {100 * low[most]:+.0f} to {100 * high[most]:+.0f} %, 2 pairs)"
    assert ends in prose(at)
    table = tables(at)[-1]
    assert list(table["token"][:3]) == ["CLS", "1.1", "1.2"]
    np.testing.assert_allclose(table["95 % interval, low"], 100 * low.ravel(), rtol=1e-3, atol=0.1)
    clear = int(((low > 0) | (high < 0)).sum())
    assert f"A dot marks the {clear} of {low.size} parts" in prose(at)
    dots = json.loads(charts(at)[-1].spec)["data"][1:]
    assert sum(len(numbers(each["x"])) for each in dots) == clear
    assert address(at)["pairs"] == "animals"


def test_blocks_are_named_by_the_place_of_their_first_patch() -> None:
    view: Any = SimpleNamespace(model=own_model())  # of 4 x 6 patches
    assert compare_patching._block(view) == 2
    masks = intervention.token_blocks(view.model, 2)
    names = ("CLS", "1.1", "1.3", "1.5", "3.1", "3.3", "3.5")
    assert compare_patching._token_names(view, masks) == names


def test_what_moves_the_answer_away_counts_of_all_heads_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    said: list[str] = []
    monkeypatch.setattr(compare_patching, "show_figure", lambda *_, **__: None)
    monkeypatch.setattr(compare_patching.st, "markdown", said.append)
    view: Any = SimpleNamespace(acts=SimpleNamespace(output_names=("cat", "dog")))
    effects = np.array([[[0.1, 0.2], [-0.3, -1.5]]])  # one head, and all, of two layers
    moved = intervention.PatchEffects(effects, ((0, 1),))
    compare_patching._show(view, compare_patching.PartEffects(moved, ("1", "all"), 0), "heads")
    assert "Layer 2, head 1 moves the answer most: **-30 %**" in said[0]
    assert "All heads together move it most in layer 2: **-150 %**" in said[0]


def test_a_register_is_no_block() -> None:
    view: Any = SimpleNamespace(model=own_model(registers=1))
    names = compare_patching._token_names(view, intervention.token_blocks(view.model, 2))
    words = [compare_patching._part_words("tokens", name) for name in names]
    assert words[:3] == ["CLS", "REG1", "block 1.1"]


def test_two_pictures_of_one_answer_have_none_to_move_to() -> None:
    driver.forget()
    at = exchange(patched(model=OTHER, picture="cat", other_picture="cat_face"))
    assert "The model gives both pictures the same answer, cat," in at.info[0].value
    assert_works(at)


def test_what_cannot_be_exchanged_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ModelError("Cannot be exchanged.")

    driver.forget()
    monkeypatch.setattr(intervention, "patch_tokens", refuse)
    at = exchange(patched(part="tokens"))
    assert "Cannot be exchanged." in [said.value for said in at.info]


@pytest.mark.parametrize("pairs", compare_patching.PRESETS.values())
def test_presets_are_of_samples_with_different_answers(pairs: tuple[tuple[str, str], ...]) -> None:
    for both in pairs:
        first, second = (acts_of(picture=name).logits for name in both)
        assert first is not None
        assert second is not None
        assert first.argmax() != second.argmax()
