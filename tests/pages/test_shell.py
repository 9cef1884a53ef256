"""The app without a browser: every page, every control, uploads good and bad, other models.

Nothing here depends on how good the shipped model is, and no test reaches the network.
"""

import io
import re
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pytest
import timm
from examples import OWN, assert_one_sentence, own_module, picture, watched
from PIL import Image
from streamlit.testing.v1 import AppTest
from streamlit.util import calc_hash

from vitviz import Model
from vitviz.app import state
from vitviz.app.state import BoundedCache
from vitviz.text import PAGES, lesson
from vitviz.zoo import catalogue

APP = str(Path(__file__).parents[1] / "app.py")
FIGURES = {  # on each page, with the shipped model and CLS as the query
    "filters": 2,
    "positions": 2,
    "attention": 4,
    "distance": 1,
    "rollout": 3,
    "tokens": 4,
    "classify": 2,
}
OF_THE_PICTURE = ("attention", "distance", "rollout", "tokens", "classify")
SHIPPED = "vitviz_tiny_cifar10"
every_page = pytest.mark.parametrize("page", PAGES)


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloads fail as they do where there is no network."""
    create = timm.create_model

    def offline(*args: Any, pretrained: bool = False, **options: Any) -> Any:
        if pretrained:
            raise OSError("no network in tests")
        return create(*args, **options)

    monkeypatch.setattr(timm, "create_model", offline)


def opened(page: str = "attention") -> AppTest:
    """The app at one of its pages."""
    return at_page(AppTest.from_file(APP, default_timeout=120), page).run()


def at_page(at: AppTest, page: str) -> AppTest:
    """Ask for a page in the next run.

    `AppTest.switch_page` knows pages by their files; these are functions, known by their address.
    """
    at._page_hash = calc_hash("" if page == "attention" else page)
    return at


def charts(at: AppTest) -> list[Any]:
    """What the browser is sent of each plotly chart."""
    return [chart.proto for chart in at.get("plotly_chart")]


def specs(at: AppTest) -> list[str]:
    return [chart.spec for chart in charts(at)]


def provenance(at: AppTest) -> str:
    (line,) = [text.value for text in at.text if " · " in text.value]
    return line


def complaints(at: AppTest) -> list[str]:
    return [error.value for error in at.error]


def prose(at: AppTest) -> str:
    return "\n".join(text.value for text in at.markdown)


def assert_works(at: AppTest) -> None:
    """No exception, no complaint; figures, each with alt text; what was measured."""
    assert not at.exception, [error.value for error in at.exception]
    assert not at.error, complaints(at)
    assert not at.warning, [warning.value for warning in at.warning]
    assert charts(at)
    for chart in charts(at):
        assert re.fullmatch(r"\S[^\n]+\.", chart.alt)
        assert "nan" not in chart.alt.lower()
    assert provenance(at)


def upload(at: AppTest, name: str, data: bytes, kind: str = "image/png") -> AppTest:
    at.file_uploader(key="uploader").set_value((name, data, kind))
    return at.run()


def encoded(image: Image.Image, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    image.save(file, kind)
    return file.getvalue()


def choose(at: AppTest, model: str) -> AppTest:
    return at.selectbox(key="model").set_value(model).run()


MINE = encoded(picture(90, 40, seed=7))  # neither square nor like any sample


# --- pages --------------------------------------------------------------------------------------


def test_the_pages_are_those_of_the_lesson() -> None:
    assert tuple(FIGURES) == PAGES


@every_page
def test_a_page_opens_on_the_sample_with_the_shipped_model(page: str) -> None:
    at = opened(page)
    assert_works(at)
    words = lesson(page)
    (title,) = at.title
    assert title.value == f"{words.title}: {words.question}"
    assert len(charts(at)) == FIGURES[page]
    assert not at.info
    line = provenance(at)
    assert line.startswith(SHIPPED)
    assert "shipped weights" in line
    assert "random weights" not in line
    assert "layer 6 of 6" in line
    assert "mean of heads" in line
    assert line.endswith(f"sample: {state.samples()[state.DEFAULT_PICTURE]}")


@every_page
def test_the_caption_card_holds_the_lesson(page: str) -> None:
    at, words = opened(page), lesson(page)
    assert words.equation in "\n".join(latex.value for latex in at.latex)
    assert words.see in prose(at)
    assert words.try_this in prose(at)


def test_at_most_six_controls_stand_above_every_page() -> None:
    for page in PAGES:
        at = opened(page)
        for key in ("picture", "model", "head", "query"):
            assert at.selectbox(key=key)
        assert at.slider(key="layer")
        assert at.file_uploader(key="uploader")


def test_a_change_of_page_keeps_picture_model_layer_head_and_query() -> None:
    at = opened("attention")
    at.selectbox(key="picture").set_value("moose").run()
    choose(at, f"{SHIPPED} · random weights")
    at.slider(key="layer").set_value(2).run()
    at.selectbox(key="head").set_value(3).run()
    at.selectbox(key="query").set_value("row 4, column 9").run()
    before = provenance(at)
    assert "random weights · layer 2 of 6 · head 3" in before
    for page in ("tokens", "distance", "attention"):
        at_page(at, page).run()
        assert_works(at)
        assert provenance(at) == before
        assert at.selectbox(key="query").value == "row 4, column 9"


def test_an_upload_is_still_there_on_the_next_page() -> None:
    at = upload(opened("attention"), "mine.png", MINE)
    for page in ("tokens", "classify", "attention"):
        at_page(at, page).run()
        assert_works(at)
        assert provenance(at).endswith("mine.png")


# --- controls -----------------------------------------------------------------------------------


def test_every_sample_picture_gives_its_own_map() -> None:
    at, seen = opened(), set()
    for name, subject in state.samples().items():
        at.selectbox(key="picture").set_value(name).run()
        assert_works(at)
        assert provenance(at).endswith(f"sample: {subject}")
        seen.add(tuple(specs(at)))
    assert len(seen) == len(state.samples())


@pytest.mark.parametrize("page", ["attention", "distance", "rollout", "tokens"])
def test_every_layer_and_head(page: str) -> None:
    at = opened(page)
    for layer in range(1, 7):
        at.slider(key="layer").set_value(layer).run()
        assert_works(at)
        assert f"layer {layer} of 6" in provenance(at)
    for head in range(1, 7):
        at.selectbox(key="head").set_value(head).run()
        assert_works(at)
        assert f"head {head}" in provenance(at)
    at.selectbox(key="head").set_value(0).run()
    assert "mean of heads" in provenance(at)


def test_layer_and_head_choose_what_is_drawn() -> None:
    at, seen = opened(), set()
    for layer in (1, 6):
        for head in (0, 1, 6):
            at.slider(key="layer").set_value(layer)
            at.selectbox(key="head").set_value(head).run()
            seen.add(specs(at)[2])
    assert len(seen) == 6


@every_page
def test_queries_at_the_corners_and_within(page: str) -> None:
    at = opened(page)
    menu = at.selectbox(key="query").options
    assert menu[:2] == ["CLS", "row 1, column 1"]
    assert len(menu) == 1 + 16 * 16
    assert menu[-1] == "row 16, column 16"
    for query in ("row 1, column 16", "row 16, column 1", "row 5, column 9", "CLS"):
        at.selectbox(key="query").set_value(query).run()
        assert_works(at)


def test_the_query_box_is_on_the_chosen_patch() -> None:
    at = opened()
    at.selectbox(key="query").set_value("row 5, column 9").run()
    assert "row 5, column 9" in charts(at)[0].alt


@pytest.mark.parametrize("page", ["attention", "rollout", "tokens"])
def test_every_query_of_a_small_model(page: str, serve: "Callable[[str], Model]") -> None:
    serve("distilled")
    at = opened(page)
    menu = at.selectbox(key="query").options
    assert menu[:2] == ["CLS", "DIST"]
    assert len(menu) == 2 + 4 * 6
    for query in menu:
        at.selectbox(key="query").set_value(query).run()
        assert_works(at)


def test_row_and_column_are_different_maps() -> None:
    at = opened()
    row = specs(at)
    at.segmented_control(key="direction").set_value("column").run()
    assert_works(at)
    assert specs(at)[1] != row[2]
    assert "does not add up to 100 %" in prose(at)


def test_a_switch_that_is_switched_off_stays_on_its_default() -> None:
    at = opened()
    row = specs(at)
    at.segmented_control(key="direction").set_value(None).run()
    assert_works(at)
    assert specs(at) == row
    at = opened("distance")
    at.segmented_control(key="variant").set_value(None).run()
    assert_works(at)


def test_the_distance_of_the_paper_is_shorter() -> None:
    at = opened("distance")
    renormalised = float(at.metric[0].value.removesuffix(" px"))
    at.segmented_control(key="variant").set_value("paper").run()
    assert_works(at)
    assert float(at.metric[0].value.removesuffix(" px")) < renormalised


def test_the_settings_of_rollout() -> None:
    at, seen = opened("rollout"), set()
    for fusion in ("mean", "max", "min"):
        at.selectbox(key="fusion").set_value(fusion).run()
        assert_works(at)
        seen.add(specs(at)[1])
    for key, values in {
        "residual": (0.0, 1.0, 0.5),
        "discard": (0.95, 0.0),
        "start_layer": (6, 1),
    }.items():
        for value in values:
            at.slider(key=key).set_value(value).run()
            assert_works(at)
            seen.add(specs(at)[1])
            assert "All tokens together: 100.0 %" in prose(at)
    assert len(seen) == 7  # the last value of each setting is its default again


# --- uploads ------------------------------------------------------------------------------------


@every_page
def test_an_upload_is_shown_and_named(page: str) -> None:
    at = opened(page)
    sample = specs(at)
    upload(at, "mine.png", MINE)
    assert_works(at)
    assert provenance(at).endswith("mine.png")
    assert at.selectbox(key="picture").options[0] == "mine.png"
    if page in OF_THE_PICTURE:
        assert all(own != before for own, before in zip(specs(at), sample, strict=True))
    else:
        assert specs(at) == sample  # of the model alone
    at.selectbox(key="picture").set_value("dog").run()
    assert specs(at) == sample
    at.selectbox(key="picture").set_value(state.UPLOAD).run()
    assert provenance(at).endswith("mine.png")


def test_a_second_upload_takes_the_place_of_the_first() -> None:
    at = upload(opened(), "mine.png", MINE)
    first = specs(at)
    upload(at, "other.png", encoded(picture(30, 80, seed=1)))
    assert_works(at)
    assert provenance(at).endswith("other.png")
    assert specs(at) != first
    assert "mine.png" not in at.selectbox(key="picture").options


def test_the_same_picture_under_another_name_is_captured_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at = upload(opened(), "mine.png", MINE)
    first = specs(at)
    monkeypatch.setattr("vitviz.capture", None)  # a second capture would fail
    upload(at, "again.png", MINE)
    assert_works(at)
    assert provenance(at).endswith("again.png")
    assert specs(at) == first


def test_a_name_with_markup_stays_plain_text() -> None:
    name = "<b>**$x$** :red[a]</b>.png"
    at = upload(opened(), name, MINE)
    assert_works(at)
    assert provenance(at).endswith(name)
    assert name not in prose(at)


@pytest.mark.parametrize("size", [(3, 2000), (2000, 3), (1, 1)])
@pytest.mark.parametrize("page", ["attention", "tokens"])
def test_a_picture_of_an_extreme_shape(page: str, size: tuple[int, int]) -> None:
    assert_works(upload(opened(page), "thin.png", encoded(Image.new("RGB", size))))


BAD = {
    "random bytes": ("x.png", np.random.default_rng(0).bytes(5000), "image/png"),
    "HEIC": ("IMG_0001.HEIC", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(500), "image/heic"),
    "truncated": ("cut.jpg", encoded(picture(200, 160), "JPEG")[:2000], "image/jpeg"),
    "empty": ("empty.png", b"", "image/png"),
    "text": ("notes.txt", b"not a picture", "text/plain"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_upload_leaves_one_sentence_and_the_last_picture(kind: str) -> None:
    at = upload(opened(), "mine.png", MINE)
    good = specs(at)
    upload(at, *BAD[kind])
    (said,) = complaints(at)
    sentence = said.removesuffix(" The last picture stays.")
    assert sentence != said
    assert_one_sentence(sentence)
    assert not at.exception
    assert specs(at) == good
    assert provenance(at).endswith("mine.png")
    at.slider(key="layer").set_value(2).run()  # and it stays
    assert complaints(at) == [said]
    at_page(at, "classify").run()
    assert complaints(at) == [said]


def test_a_bad_first_upload_leaves_the_sample() -> None:
    at = opened()
    sample = specs(at)
    upload(at, *BAD["HEIC"])
    (said,) = complaints(at)
    assert "HEIC is not supported" in said
    assert specs(at) == sample
    assert "sample: " in provenance(at)


def test_a_good_upload_ends_the_complaint() -> None:
    at = upload(opened(), *BAD["random bytes"])
    assert complaints(at)
    assert_works(upload(at, "mine.png", MINE))


def test_a_bad_upload_that_is_taken_back_ends_the_complaint() -> None:
    at = upload(opened(), *BAD["random bytes"])
    at.file_uploader(key="uploader").clear()
    assert_works(at.run())


# --- models -------------------------------------------------------------------------------------


def test_the_menu_offers_every_model_trained_and_random() -> None:
    options = opened().selectbox(key="model").options
    assert options[0] == f"{SHIPPED} · trained"
    assert set(options) == {
        f"{entry.name} · {weights}"
        for entry in catalogue()
        for weights in ("trained", "random weights")
    }


@every_page
def test_random_weights_are_called_so(page: str) -> None:
    at = opened(page)
    trained = specs(at)
    choose(at, f"{SHIPPED} · random weights")
    assert_works(at)
    assert "random weights" in provenance(at)
    assert specs(at) != trained
    if page == "classify":
        assert "**random weights**" in prose(at)


def test_the_answer_lists_all_classes_of_a_small_head() -> None:
    at = opened("classify")
    assert "All 10 classes that it knows: " in prose(at)
    assert charts(at)[1].alt.count(" %") == 5


def test_other_models_fit_themselves_to_the_controls() -> None:
    at = opened()
    at.selectbox(key="query").set_value("row 16, column 16").run()
    at.selectbox(key="head").set_value(6).run()
    choose(at, "deit_tiny_distilled_patch16_224 · random weights")
    assert_works(at)
    menu = at.selectbox(key="query").options
    assert menu[:3] == ["CLS", "DIST", "row 1, column 1"]
    assert len(menu) == 2 + 14 * 14
    assert at.selectbox(key="query").value == "CLS"  # this grid has no row 16
    assert at.selectbox(key="head").options == ["mean", "head 1", "head 2", "head 3"]
    assert "DeiT distilled" in provenance(at)
    assert "layer 6 of 12 · mean of heads" in provenance(at)
    at.slider(key="layer").set_value(12).run()
    at.selectbox(key="query").set_value("DIST").run()
    assert_works(at)
    choose(at, f"{SHIPPED} · trained")  # which has 6 layers and no DIST
    assert_works(at)
    assert "layer 6 of 6" in provenance(at)
    assert at.selectbox(key="query").value == "CLS"


@pytest.mark.parametrize("model", ["deit_tiny_distilled_patch16_224", "vit_tiny_patch16_224"])
def test_every_page_of_a_larger_model(model: str) -> None:
    at = choose(opened(), f"{model} · random weights")
    for page in PAGES:
        at_page(at, page).run()
        if model not in provenance(at):
            choose(at, f"{model} · random weights")
        assert_works(at)
        assert "random weights" in provenance(at)
        assert not at.info
        if page == "classify":
            assert "1,000 classes" in prose(at)


def test_weights_that_cannot_be_had_leave_one_sentence_and_the_last_model() -> None:
    at = opened()
    before = specs(at)
    choose(at, "vit_tiny_patch16_224 · trained")
    (said,) = complaints(at)
    sentence = said.removesuffix(" The last model stays.")
    assert sentence != said
    assert_one_sentence(sentence)
    assert "vit_tiny_patch16_224" in sentence
    assert not at.exception
    assert specs(at) == before
    assert provenance(at).startswith(SHIPPED)
    at.slider(key="layer").set_value(3).run()
    assert complaints(at) == [said]
    assert "layer 3 of 6" in provenance(at)
    choose(at, f"{SHIPPED} · random weights")
    assert_works(at)


# --- models of all kinds ------------------------------------------------------------------------


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Model]:
    """Makes the app show a small model instead of those of the menu."""

    def show(kind: str, **options: Any) -> Model:
        module = own_module(**OWN.get(kind, {}), **options)
        model = watched(module, module.patch_embed.image_size, name=f"{kind} {options}")
        monkeypatch.setattr(state, "load", lambda name, pretrained: (model, Lock()))
        return model

    return show


REFUSALS = {
    ("stem", "filters"): "filters are no pictures",
    ("no positions", "positions"): "no position embedding",
    ("no head", "classify"): "no head",
}


@every_page
@pytest.mark.parametrize("kind", OWN)
def test_a_page_works_or_says_in_a_sentence_why_not(
    kind: str, page: str, serve: Callable[[str], Model]
) -> None:
    model = serve(kind)
    at = opened(page)
    assert provenance(at).startswith(model.name)
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
    serve("plain", depth=1, num_heads=1)
    at = opened(page)
    assert_works(at)
    assert "layer 1 of 1" in provenance(at)


@every_page
def test_a_model_of_one_patch(page: str, serve: Callable[..., Model]) -> None:
    serve("plain", image_size=16, patch_size=16)
    assert not opened(page).exception


def test_24_heads_are_drawn_as_16_and_it_is_said(serve: Callable[..., Model]) -> None:
    serve("plain", embed_dim=48, num_heads=24)
    at = opened()
    assert_works(at)
    assert [caption.value for caption in at.caption] == ["The first 16 of 24 heads are drawn."]


@pytest.mark.parametrize("page", ["attention", "rollout", "tokens"])
def test_a_token_is_called_by_its_own_name(page: str, serve: Callable[[str], Model]) -> None:
    serve("registers")
    at = opened(page)
    at.selectbox(key="query").set_value("REG3").run()
    assert_works(at)
    said = "\n".join([*(head.value for head in at.subheader), *(c.alt for c in charts(at)[:2])])
    assert "REG3" in said
    assert not re.search(r"\bthe CLS token\b|Similarity to CLS", said)


@pytest.mark.parametrize("kind", ["no class token", "registers alone"])
def test_no_page_speaks_of_a_token_that_the_model_lacks(
    kind: str, serve: Callable[[str], Model]
) -> None:
    serve(kind)
    for page in PAGES:
        at = opened(page)
        said = [*(head.value for head in at.subheader), *(chart.alt for chart in charts(at))]
        assert not [words for words in said if "CLS" in words]


# --- the cache ----------------------------------------------------------------------------------


class Maker:
    """Makes a value, and counts how often."""

    def __init__(self, value: object = "value", *, wait: float = 0) -> None:
        self.value, self.wait, self.made = value, wait, 0

    def __call__(self) -> object:
        self.made += 1
        time.sleep(self.wait)
        return self.value


def kept(cache: BoundedCache, key: str, size: int = 10) -> bool:
    """Whether the cache still has the value; asking makes it the most recently used."""
    make = Maker(key)
    assert cache.get(key, make, lambda value: size) == key
    return not make.made


def test_a_value_is_made_once() -> None:
    cache, make = BoundedCache(100), Maker()
    assert cache.get("key", make, lambda value: 10) == "value"
    assert cache.get("key", make, lambda value: 10) == "value"
    assert make.made == 1
    assert cache.nbytes == 10


def test_the_least_recently_used_is_dropped_first() -> None:
    cache = BoundedCache(30)
    for key in "abc":
        assert not kept(cache, key)
    assert kept(cache, "a")  # now b is the oldest
    assert not kept(cache, "d")
    assert cache.nbytes == 30
    assert [key for key in "acd" if kept(cache, key)] == ["a", "c", "d"]
    assert not kept(cache, "b")


def test_bytes_are_the_bound() -> None:
    cache, random = BoundedCache(1000), np.random.default_rng(0)
    for step in range(200):
        kept(cache, str(step), size=int(random.integers(0, 400)))
        assert cache.nbytes <= 1000
    assert kept(cache, "199")


def test_one_value_larger_than_the_bound_is_kept_alone() -> None:
    cache = BoundedCache(30)
    kept(cache, "small")
    kept(cache, "large", size=50)
    assert kept(cache, "large", size=50)
    assert cache.nbytes == 50
    assert not kept(cache, "small")
    assert cache.nbytes == 10


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])  # Streamlit stops with such
def test_a_failure_is_not_kept(error: type[BaseException]) -> None:
    cache = BoundedCache(100)

    def fail() -> str:
        raise error

    for _ in range(2):
        with pytest.raises(error):
            cache.get("key", fail, len)
    assert cache.nbytes == 0
    assert cache.get("key", lambda: "value", len) == "value"


def test_threads_that_ask_for_one_key_make_it_once() -> None:
    cache, make, count = BoundedCache(100), Maker(wait=0.05), 8
    together = threading.Barrier(count)

    def ask(_: int) -> object:
        together.wait()
        return cache.get("key", make, lambda value: 10)

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(ask, range(count))) == ["value"] * count
    assert make.made == 1


def test_threads_that_ask_for_different_keys_do_not_wait_for_each_other() -> None:
    cache, both = BoundedCache(100), threading.Barrier(2)

    def ask(key: str) -> str:
        return cache.get(key, lambda: f"{key}{both.wait(timeout=10) < 2}", len)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, "ab")) == ["aTrue", "bTrue"]


def test_a_value_is_made_once_also_after_the_first_who_made_it_failed() -> None:
    """One run is stopped while a second waits; a third comes while the second is at work."""
    cache, made = BoundedCache(100), Lock()
    first_runs, first_may_fail, second_runs, second_may_end = (threading.Event() for _ in range(4))
    count = 0

    def first() -> str:
        first_runs.set()
        assert first_may_fail.wait(10)
        raise OSError

    def later() -> str:
        nonlocal count
        with made:
            count += 1
        second_runs.set()
        assert second_may_end.wait(10)
        return "value"

    with ThreadPoolExecutor(3) as pool:
        stopped = pool.submit(cache.get, "key", first, len)
        assert first_runs.wait(10)
        waiting = pool.submit(cache.get, "key", later, len)
        time.sleep(0.1)  # until it waits for the first
        first_may_fail.set()
        assert isinstance(stopped.exception(10), OSError)
        assert second_runs.wait(10)
        late = pool.submit(cache.get, "key", later, len)
        time.sleep(0.1)  # until it waits for the second, or makes its own
        second_may_end.set()
        assert waiting.result(10) == late.result(10) == "value"
    assert count == 1


def test_pictures_of_one_name_are_told_apart_by_their_bytes() -> None:
    at = upload(opened(), "a.png", MINE)
    first = specs(at)
    upload(at, "a.png", encoded(picture(90, 40, seed=8)))
    assert specs(at) != first


@pytest.fixture(autouse=True, scope="module")
def _released() -> Iterator[None]:
    yield
    state.load.clear()
    state.captures.clear()
