"""The app without a browser: every page, every control, uploads good and bad, other models.

Nothing here depends on how good the shipped model is, and no test reaches the network.
"""

import html
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from examples import OWN, assert_clear_error, picture
from PIL import Image
from streamlit.testing.v1 import AppTest

import vitviz
from pages.driver import (
    MINE,
    OPENING_TRAITS,
    SHIPPED,
    address,
    assert_works,
    at_page,
    charts,
    choose,
    commit,
    complaints,
    components,
    drawn,
    encoded,
    forget,
    of_sample,
    opened,
    prose,
    provenance,
    schema,
    shown,
    stack,
    token_map,
    token_maps,
    upload,
)
from vitviz import Model, inspection
from vitviz.activations import edited_input
from vitviz.app.pages import MODEL, PAGES
from vitviz.app.shared import models, pictures, results
from vitviz.app.shared.view import MapStyle, View, describe_reading
from vitviz.plots.template import KEY, QUERY
from vitviz.text import findings, page_text
from vitviz.zoo import catalogue

SHOWN = [page for page in PAGES if PAGES[page].shows_model]  # what shows the picture and the model
every_page = pytest.mark.parametrize("page", SHOWN)
ALL = {"layer": "layer 6 of 6", "head": "mean of heads", "scale": "each map on its own scale"}
#: What the provenance line says of the settings that a page uses, at the defaults.
SETTINGS = {page: dict[str, str]() for page in SHOWN} | {
    "anatomy": {"layer": ALL["layer"]},
    "attention": ALL,
    "distance": {name: ALL[name] for name in ("layer", "head")},
    "rollout": {name: ALL[name] for name in ("layer", "scale")},
    "tokens": {"layer": ALL["layer"]},
    "compare": {"layer": ALL["layer"]},
}


def own_line(at: AppTest) -> str:
    """The provenance line without what Compare puts beside what was chosen."""
    line = re.sub(r" · beside .* · (?=sample)", " · ", provenance(at))
    return re.sub(r" and sample: .*", "", line)


# --- pages --------------------------------------------------------------------------------------


@every_page
def test_a_page_opens_on_the_sample_with_the_shipped_model(page: str) -> None:
    at = shown(page)
    assert_works(at)
    words = page_text(page)
    (title,) = at.title
    assert title.value == f"{words.title}: {words.question}"
    assert not at.info
    line = own_line(at)
    assert line.startswith(SHIPPED)
    assert "shipped weights" in line
    assert "random weights" not in line
    settings = SETTINGS[page].values()
    subject = pictures.samples()[PAGES[page].picture or pictures.DEFAULT]
    assert line.split(" · ")[2:] == [*settings, f"sample: {subject}"]


@pytest.mark.parametrize("page", PAGES)
def test_a_control_is_drawn_where_it_changes_something(page: str) -> None:
    at = shown(page)
    aside = {one.key for one in (*at.sidebar.selectbox, *at.sidebar.get("button_group"))}
    used = PAGES[page].settings
    assert {*MODEL} & aside == {*MODEL} & {*used}
    in_shell = "layer" in used and not PAGES[page].has_layer_menu
    assert ("layer" in {slider.key for slider in at.main.slider}) == in_shell


def test_a_change_of_page_keeps_every_setting() -> None:
    at = opened("attention")
    at.selectbox(key="picture").set_value("moose")
    at.segmented_control(key="weights").set_value("random")
    at.slider(key="layer").set_value(2).run()
    chosen: dict[str, Any] = dict(
        head=2, query=42, direction="column", view="spotlight", scale="log"
    )
    commit(at, **chosen, leaveOut=True)
    state = token_map(at)["state"]
    assert state == {**state, **chosen, "leaveOut": True, "smooth": False}
    commit(at, leaveOut=False, smooth=True)
    state = token_map(at)["state"]
    assert state == {**state, **chosen, "leaveOut": False, "smooth": True}
    before, state_before = provenance(at), token_map(at)["state"]
    assert "random weights, input 64 × 64 px · layer 2 of 6 · head 3 · logarithmic" in before
    at_page(at, "rollout").run()
    at.selectbox(key="fusion").set_value("max").run()
    parts = dict(zip(ALL, before.split(" · ")[2:], strict=False))
    for page in ("tokens", "distance", "filters", "classify", "attention"):
        at_page(at, page).run()
        assert_works(at)
        used = [parts[name] for name in SETTINGS[page]]
        assert provenance(at).split(" · ")[2:-1] == used
    assert token_map(at)["state"] == state_before
    at_page(at, "rollout").run()
    assert at.selectbox(key="fusion").value == "max"


# --- controls -----------------------------------------------------------------------------------


# --- links --------------------------------------------------------------------------------------

LINK = {"picture": "moose", "weights": "random", "layer": "2", "head": "3", "query": "4.9"}
LOOKS = {"read": "column", "view": "spotlight", "scale": "shared", "leave_out": "on"}


@every_page
def test_a_link_shows_what_it_was_copied_from(page: str) -> None:
    at = opened(page, **LINK, **LOOKS, smooth="on", fusion="max", residual="0.3")
    assert_works(at)
    assert not at.info
    line = own_line(at)
    told = {"layer": "layer 2 of 6", "head": "head 3", "scale": "one scale for all maps"}
    used = [told[name] for name in SETTINGS[page]]
    assert line.split(" · ")[1:-1] == ["random weights, input 64 × 64 px", *used]
    assert line.endswith("sample: moose")
    assert address(at) == {**LINK, **LOOKS, "smooth": "on", "fusion": "max", "residual": "0.3"}


def test_what_is_at_its_default_is_not_in_the_address() -> None:
    at = opened()
    assert address(at) == {}
    at.slider(key="layer").set_value(2).run()
    commit(at, query=17)
    assert address(at) == {"layer": "2", "query": "2.1"}
    at.slider(key="layer").set_value(6).run()
    commit(at, query=0)
    assert address(at) == {}


BAD_VALUES: dict[str, tuple[str, ...]] = {
    "layer": ("0", "7", "x", "-1", "1e3", ""),
    "head": ("0", "7", "Mean"),
    "query": ("0.1", "17.1", "1", "reg1"),
    **dict(picture=("cat.jpg",), model=("resnet50",), weights=("pretrained",)),
    **dict(read=("diagonal",), view=("rainbow",), scale=("<b>",), smooth=("True",)),
}


@pytest.mark.parametrize("number", range(max(map(len, BAD_VALUES.values()))))
def test_values_that_do_not_fit_fall_back_and_it_is_said(number: int) -> None:
    link = {name: values[number] for name, values in BAD_VALUES.items() if number < len(values)}
    at = opened(**link)
    said = {info.value.partition(":")[0].lower(): info.value for info in at.info}
    assert len(at.info) == len(said) == len(link)
    for name, value in link.items():
        assert value in html.unescape(said[name])
        assert "is not valid here" in said[name]
    assert not at.exception
    assert token_map(at)["state"] == token_map(shown())["state"]
    assert address(at) == {}
    assert not at.run().info  # said once


def test_a_setting_of_another_page_that_does_not_fit_is_told_there() -> None:
    at = opened(fusion="median")
    assert not at.info
    at_page(at, "rollout").run()
    assert "median is not valid here" in at.info[0].value
    assert at.selectbox(key="fusion").value == "mean"


def test_words_that_are_no_settings_leave_the_address() -> None:
    at = opened(layer="2", utm_source="x", upload_error="boo", uploaded="y")
    assert_works(at)
    assert address(at) == {"layer": "2"}


def test_a_link_to_an_upload_shows_the_sample_and_says_so() -> None:
    at = opened(picture="upload", layer="3")
    (said,) = [info.value for info in at.info]
    assert_clear_error(said)
    assert said.startswith("A link cannot include an uploaded picture, and a reload forgets it;")
    assert provenance(at).endswith(f"sample: {pictures.samples()[pictures.DEFAULT]}")
    assert address(at) == {"layer": "3"}
    assert address(upload(at, "mine.png", MINE)) == {"layer": "3", "picture": "upload"}


# --- uploads ------------------------------------------------------------------------------------


def test_a_second_upload_takes_the_place_of_the_first() -> None:
    at = upload(opened(), "mine.png", MINE)
    first = drawn(at)
    upload(at, "other.png", encoded(picture(30, 80, seed=1)))
    assert_works(at)
    assert provenance(at).endswith("other.png")
    assert drawn(at) != first
    assert at.selectbox(key="picture").options[0] == "other.png"
    assert "mine.png" not in at.selectbox(key="picture").options
    second = drawn(at)
    upload(at, "other.png", MINE)  # other bytes under the same name
    assert drawn(at) == first
    assert drawn(at) != second


def test_the_same_picture_under_another_name_is_captured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = upload(opened(), "mine.png", MINE)
    first = drawn(at)
    monkeypatch.setattr("vitviz.capture", None)  # a second capture would fail
    upload(at, "again.png", MINE)
    assert_works(at)
    assert provenance(at).endswith("again.png")
    assert drawn(at) == first


def test_a_session_keeps_the_file_of_its_picture_and_no_pixels() -> None:
    at = upload(opened(), "mine.png", MINE)
    kept = at.session_state.uploaded
    assert kept.data == MINE
    assert kept.size == (90, 40)
    assert not [name for name, value in vars(kept).items() if isinstance(value, Image.Image)]


def test_a_picture_that_others_took_the_place_of_is_decoded_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = upload(opened("classify"), "mine.png", MINE)
    before = drawn(at)
    pictures.images.clear()
    opened_images: list[bytes] = []
    real = vitviz.open_image

    def counted(data: bytes) -> Image.Image:
        opened_images.append(data)
        return real(data)

    monkeypatch.setattr("vitviz.open_image", counted)
    assert_works(at.run())
    assert drawn(at) == before
    assert opened_images == [MINE]


def test_a_picture_of_an_extreme_shape() -> None:
    at = opened()
    for size in ((3, 2000), (2000, 3), (1, 1)):
        assert_works(upload(at, "thin.png", encoded(Image.new("RGB", size))))
        assert_works(at_page(at, "tokens").run())
        at_page(at, "attention")


BAD = {
    "random bytes": ("x.png", np.random.default_rng(0).bytes(5000), "image/png"),
    "HEIC": ("IMG_0001.HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500), "image/heic"),
    "truncated": ("cut.jpg", encoded(picture(200, 160), "JPEG")[:2000], "image/jpeg"),
    "empty": ("empty.png", b"", "image/png"),
    "text": ("notes.txt", b"not a picture", "text/plain"),
}


def test_a_bad_upload_leaves_one_sentence_and_the_last_picture() -> None:
    at = upload(opened(), "mine.png", MINE)
    for layer, bad in enumerate(BAD.values(), start=1):
        good = drawn(at)
        upload(at, *bad)
        (said,) = complaints(at)
        sentence = said.removesuffix(" The previous picture is kept.")
        assert sentence != said
        assert_clear_error(sentence)
        assert not at.exception
        assert drawn(at) == good
        assert provenance(at).endswith("mine.png")
        at.slider(key="layer").set_value(layer).run()  # and it stays
        assert complaints(at) == [said]
    at_page(at, "classify").run()
    assert complaints(at) == [said]


def test_a_bad_upload_that_is_taken_back_or_followed_by_a_good_one_ends_the_complaint() -> None:
    at = upload(opened(), *BAD["random bytes"])
    assert complaints(at)
    assert drawn(at) == drawn(shown())
    at.file_uploader(key="uploader").clear()
    assert_works(at.run())
    assert complaints(upload(at, *BAD["random bytes"]))
    assert_works(upload(at, "mine.png", MINE))


# --- models -------------------------------------------------------------------------------------


def test_the_menu_offers_every_model() -> None:
    options = shown().selectbox(key="model").options
    assert options[0] == SHIPPED
    named = [option.split(" · ")[0] for option in options]
    assert named == [
        entry.name if entry.shipped else f"{entry.family}: {entry.name}" for entry in catalogue()
    ]


@every_page
def test_random_weights_are_called_so_and_have_a_caption_of_their_own(page: str) -> None:
    trained = shown(page)
    assert not trained.warning
    assert page_text(page, OPENING_TRAITS).see in prose(trained)
    at = opened(page, weights="random")
    assert_works(at)
    assert "random weights" in provenance(at)
    (said,) = [warning.value for warning in at.warning]
    assert "**random weights**" in said
    assert "learn" not in said
    assert drawn(at) != drawn(trained)
    words = page_text(page, frozenset(("global", "all-to-all", "prefix", "cls", "classes")))
    assert words.see in prose(at)
    assert words.try_this in prose(at)


@pytest.mark.usefixtures("narrow")
def test_other_models_fit_themselves_to_the_controls() -> None:
    at = opened(query="16.16", head="6", weights="random")
    choose(at, "deit_tiny_distilled_patch16_224")
    assert_works(at)
    assert not at.info  # though it has three heads alone
    assert address(at)["query"] == "14.14"  # the same corner
    shown = token_map(at)
    assert shown["prefix"] == ["CLS", "DIST"]
    assert (shown["rows"], shown["cols"]) == (14, 14)
    assert (shown["state"]["query"], shown["state"]["head"]) == (2 + 14 * 14 - 1, -1)
    assert "DeiT distilled" in provenance(at)
    assert "layer 6 of 12 · mean of heads" in provenance(at)


@pytest.mark.usefixtures("narrow")
def test_another_model_is_chosen_without_a_complaint() -> None:
    """Of the layer and the token that were chosen, where the next model has no such."""
    at = opened(weights="random")
    assert address(commit(at, query=1)).get("query") == "1.1"
    choose(commit(at, query=0), "swin_tiny_patch4_window7_224")  # which has no CLS
    at.slider(key="layer").set_value(12).run()
    choose(at, "mixer_b16_224")
    choose(at, SHIPPED)  # which has 6 layers, and no mean
    assert_works(at)
    assert not at.info
    assert "layer 6 of 6" in provenance(at)
    assert token_map(at)["state"]["query"] == 0
    choose(at, "deit_tiny_distilled_patch16_224")
    commit(at, query=1)
    assert address(at)["query"] == "dist"
    for model in (SHIPPED, "swin_tiny_patch4_window7_224", "deit_tiny_distilled_patch16_224"):
        choose(at, model)
        assert_works(at)
        assert not at.info


# --- models of all kinds ------------------------------------------------------------------------


REFUSALS = {
    ("stem", "filters"): "its filters are not pictures",
    ("no head", "classify"): "no head",
}


WITHOUT_CLS = ("no class token", "registers alone")


def assert_no_cls(at: AppTest, page: str) -> None:
    """No heading and no figure of a page speaks of the token that the model lacks."""
    said = [*(head.value for head in at.subheader), *(chart.alt for chart in charts(at))]
    assert not [words for words in said if "CLS" in words]
    if page in ("attention", "rollout", "tokens"):
        assert "CLS" not in token_map(at)["prefix"]


#: The pages that treat a kind unlike any other; what is not named here is shown on all. The plain
#: one is shown with one layer, the model that opens first has a square grid, and registers stand
#: beside CLS as a distillation token does.
UNLIKE: dict[str, tuple[str, ...]] = {
    "plain": (),
    "square": (),
    "registers": (),
    **dict.fromkeys(("sincos1d", "sincos2d", "no positions"), ("classify",)),
    "stem": ("filters", "positions", "attention"),
    "no head": ("attention", "rollout", "classify", "compare"),
}
ALL_BUT_ANATOMY = [page for page in SHOWN if page != "anatomy"]  # whose own tests show every kind


@pytest.mark.parametrize(
    ("kind", "page"),
    [(kind, page) for kind in OWN for page in UNLIKE.get(kind, ALL_BUT_ANATOMY)],
)
def test_a_page_works_or_says_in_a_sentence_why_not(
    kind: str, page: str, serve: Callable[[str], Model]
) -> None:
    model = serve(kind)
    at = opened(page)
    assert provenance(at).startswith(model.name)
    if kind in WITHOUT_CLS:
        assert_no_cls(at, page)
    if (kind, page) not in REFUSALS:
        assert_works(at)
        assert not at.info
        return
    assert not at.exception
    assert not charts(at)
    (said,) = at.info
    assert said.value.startswith(model.name)
    assert REFUSALS[kind, page] in said.value
    assert SHIPPED in said.value  # the nearest model that the page applies to


@every_page
def test_a_model_of_one_layer_and_one_head(page: str, serve: Callable[..., Model]) -> None:
    model = serve("plain", depth=1, num_heads=1)
    at = opened(page)
    assert_works(at)
    assert not at.info
    assert provenance(at).startswith(model.name)
    assert ("layer 1 of 1" in provenance(at)) == ("layer" in SETTINGS[page])


@every_page
def test_a_model_of_one_patch(page: str, serve: Callable[..., Model]) -> None:
    serve("plain", image_size=16, patch_size=16)
    assert not opened(page).exception


def test_the_message_to_the_token_map_holds_what_its_schema_states() -> None:
    (sent,) = [data for data in components(shown(), "vitviz_token_map") if "state" in data]
    assert set(sent) == schema("ViewMessage")
    assert set(sent["state"]) == schema("State")
    assert set(sent["distance"]) == schema("Distance")
    matched = token_maps(opened("compare", compare="pictures"))[1]
    assert set(matched["matches"]) == schema("Matches")
    assert (sent["queryColour"], sent["keyColour"]) == (QUERY, KEY)  # of the other figures


@pytest.mark.parametrize(
    ("page", "module"),
    [
        ("attention", "screens.attention"),
        ("rollout", "widgets.token_map"),
        ("tokens", "widgets.token_map"),
    ],
)
def test_a_model_of_too_many_maps_sends_one_layer(
    page: str, module: str, serve: Callable[..., Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    acts = of_sample(serve("plain", depth=3))
    whole = np.split(stack(opened(page))["codes"], 3)
    monkeypatch.setattr(f"vitviz.app.{module}.MAX_MAP_BYTES", 10)
    monkeypatch.setattr("vitviz.app.screens.attention.MOST_MEASURED", 10)
    forget()
    for layer in (2, 3):
        at = opened(page, layer=str(layer))
        assert_works(at)
        assert token_map(at)["state"]["frame"] == layer - 1
        np.testing.assert_array_equal(stack(at)["codes"], whole[layer - 1])
        pattern = inspection.attention_patterns(
            acts.attention(layer - 1), grid=acts.grid, num_prefix_tokens=1
        )
        found = findings.attention([layer], [pattern], acts.grid[1], ("cls",))
        assert page != "attention" or found in prose(at)


@pytest.mark.parametrize("page", ["attention", "rollout", "tokens"])
def test_a_token_is_called_by_its_own_name(page: str, serve: Callable[[str], Model]) -> None:
    serve("registers")
    at = opened(page, query="reg3")
    assert_works(at)
    shown = token_map(at)
    assert shown["prefix"][shown["state"]["query"]] == "REG3"
    assert not any(re.search(r"\bCLS\b", chart.alt) for chart in charts(at)[:2])


@pytest.mark.parametrize("page", ["training", "zoo"])
def test_no_record_speaks_of_a_token_that_the_model_lacks(
    page: str, serve: Callable[[str], Model]
) -> None:
    serve("registers alone")
    assert_no_cls(opened(page), page)


@pytest.mark.parametrize("page", ["attention", "rollout", "tokens", "filters", "zoo", "positions"])
def test_the_models_input_may_take_the_place_of_the_photo(page: str) -> None:
    before = drawn(shown(page))
    at = opened(page, seen="True")
    assert_works(at)
    assert address(at)["seen"] == "True"
    assert drawn(at) != before
    at.toggle(key="seen").set_value(False).run()
    assert "seen" not in address(at)
    assert drawn(at) == before


def view_of(model: Model, picture: pictures.Picture, **choices: Any) -> View:
    acts = results.capture_picture(model, picture)
    style = MapStyle("row", "heat", "map", leave_out=False, smooth=False, seen=True)
    own = dict(layer=0, head=None, query=None, style=style) | choices
    return View(**models.view_fields(model, picture, acts), **own)


@pytest.mark.parametrize(
    ("kind", "reading"),
    [
        ("plain", "at CLS"),
        ("no class token", "at the mean of the patches"),
        ("registers", "at CLS"),
        ("distilled", "at CLS (the head reads DIST too)"),
    ],
)
def test_a_view_tells_its_query_from_the_prefix_and_what_the_head_reads(
    kind: str, reading: str, serve: Callable[..., Model]
) -> None:
    model, picture = serve(kind), pictures.sample(pictures.DEFAULT)
    prefix = len(model.layers[0].prefix)
    rows, cols = model.layers[0].query_grid
    for row, col in np.ndindex(rows, cols):
        view = view_of(model, picture, query=prefix + row * cols + col)
        assert view.query_patch == (row, col)
    assert all(view_of(model, picture, query=one).query_patch is None for one in range(prefix))
    assert describe_reading(view.acts) == reading
    of_layers = [results.row_shares(view, "values", layer) for layer in range(2)]
    assert not np.array_equal(of_layers[0], of_layers[1])
    for layer, shares in enumerate(of_layers):
        lengths = np.linalg.norm(view.acts.values(layer), axis=2)
        counted = view.acts.attention(layer) * lengths[:, None]
        np.testing.assert_allclose(shares, counted / counted.sum(axis=2, keepdims=True), atol=1e-6)


@pytest.mark.usefixtures("narrow")
@pytest.mark.parametrize("name", ["vitviz_tiny_cifar10", "swin_tiny_patch4_window7_224"])
def test_the_input_lies_where_its_patches_lie_in_the_photo(name: str) -> None:
    """Each pixel of the input, found in the middle of its place in the picture."""
    model = models.load_by_name(name, "trained" if name == "vitviz_tiny_cifar10" else "random")
    picture = pictures.sample(pictures.DEFAULT)
    view = view_of(model, picture)
    acts = view.acts
    shown = np.asarray(results.reduced_photo(view))
    pixels = edited_input(model, picture.image, [])[..., :3]
    left, top, right, bottom = (round(edge) for edge in acts.crop)
    height, width = pixels.shape[:2]
    for row, col in [(0, 0), (height // 2, width // 3), (height - 1, width - 1)]:
        y = top + int((row + 0.5) * (bottom - top) / height)
        x = left + int((col + 0.5) * (right - left) / width)
        np.testing.assert_array_equal(shown[y, x], pixels[row, col])
    outside = np.asarray(picture.image)
    if left > 0:
        np.testing.assert_array_equal(shown[:, : left - 1], outside[:, : left - 1])
