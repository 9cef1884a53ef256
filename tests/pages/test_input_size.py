"""The size and shape of the model's input: in the menu, in links, and on the command line."""

import gc
import sys
from pathlib import Path
from typing import Any

import pytest
from examples import timm_module
from safetensors.torch import save_file
from streamlit.testing.v1 import AppTest

import vitviz
from pages import driver
from pages.driver import (
    MINE,
    SHIPPED,
    address,
    assert_works,
    complaints,
    opened,
    provenance,
    told,
    typed,
    upload,
)
from vitviz import Activations
from vitviz.app.pages import PAGES
from vitviz.app.shared import models, results, started
from vitviz.app.shared.models import Input
from vitviz.common import SMALL_MODEL

pytestmark = pytest.mark.usefixtures("read_anew")


def costs(at: AppTest) -> str:
    """The sentence beneath the control."""
    (words,) = [text.value for text in at.markdown if " tokens" in text.value[:40]]
    return words


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_a_whole_picture(page: str) -> None:
    at = opened(page, size="whole", picture="dog")
    assert_works(at)
    if PAGES[page].shows_model:
        assert "positions resampled from 16x16 to 14x19" in provenance(at)
        assert "input 56 × 76 px, the whole picture" in provenance(at)
    assert address(at) == {"size": "whole", "picture": "dog"}


def test_a_size_says_what_it_costs() -> None:
    at = opened("attention")
    assert costs(at) == "16 × 16 patches, 257 tokens."
    own, whole, *others = at.selectbox(key="size").options
    assert (own, whole[:17]) == ("64 × 64, the model's own", "The whole picture")
    assert others == ["32 × 32", "96 × 96"]  # twice the side has 1025 tokens, one too many
    typed(at, "size", "32x48")
    assert_works(at)
    assert costs(at) == (
        "8 × 12 patches, 97 tokens instead of 257, and 0.14 times as many attention weights."
    )
    assert "positions resampled from 16x16 to 8x12, input 32 × 48 px" in provenance(at)
    assert address(at)["size"] == "32x48"
    at.selectbox(key="size").set_value("own").run()
    assert costs(at) == "16 × 16 patches, 257 tokens."
    assert "size" not in address(at)


def test_a_large_factor_is_written_out() -> None:
    at = opened("attention", model=SMALL_MODEL, size="384x384")
    assert costs(at) == (  # 577² / 17²
        "24 × 24 patches, 577 tokens instead of 17, and 1,152 times as many attention weights."
    )


def test_a_whole_picture_has_the_shape_of_the_one_on_screen() -> None:
    at = opened("attention", size="whole", picture="dog")
    assert "267 tokens instead of 257" in costs(at)
    assert costs(at).endswith(" The picture becomes 2 % wider to fill it.")
    upload(at, "mine.png", MINE)  # 90 x 40 pixels
    assert_works(at)
    assert "input 44 × 100 px, the whole picture" in provenance(at)
    assert "mine.png" in provenance(at)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("33x40", "The image size 33 x 40 is not a multiple of the patch size 4."),
        ("4096", "at 4096 x 4096 pixels needs about "),
        ("5000", "Expected an image size of one number or (rows, columns) from 1 to 4096"),
        ("0x32", "Size: 0x32 is not valid here; own is used."),
        ("<b>large</b>", "Size: &#60;b&#62;large&#60;/b&#62; is not valid here; own is used."),
    ],
)
def test_a_bad_size_gets_a_sentence_and_nothing_is_lost(size: str, said: str) -> None:
    at = opened("attention", size=size, layer="2")
    for typing in (False, True):
        if typing:
            typed(at, "size", size)
        assert not complaints(at)
        assert_works(at)
        (message,) = told(at)
        assert said in message
        assert costs(at) == "16 × 16 patches, 257 tokens."
        assert "layer 2 of 6" in provenance(at)
        assert address(at) == {"layer": "2"}
        at.run()
        assert not told(at)


@pytest.mark.usefixtures("narrow")
def test_a_size_that_another_model_cannot_have_is_given_up_in_a_sentence() -> None:
    at = opened("attention", weights="random", size="40x60")
    assert_works(at)
    at.selectbox(key="model").set_value("vit_small_patch16_dinov3").run()
    (message,) = told(at)
    assert "does not take pictures of 40 x 60 pixels" in message
    assert "input 256 × 256 px" in provenance(at)
    assert not complaints(at)


def test_the_operator_sets_the_usual_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.safetensors"
    save_file(timm_module("test_vit").state_dict(), path)
    words = ["app.py", "--image-size=48", f"--checkpoint=test_vit={path}@96x160"]
    monkeypatch.setattr(sys, "argv", words)
    models.cache.clear()
    at = opened("attention")
    assert "input 48 × 48 px" in provenance(at)
    at.selectbox(key="model").set_value("test_vit · mine.safetensors @ 96x160").run()
    assert_works(at)
    assert "positions resampled from 10x10 to 6x10, input 96 × 160 px" in provenance(at)
    at.segmented_control(key="weights").set_value("random").run()
    assert "random weights, input 96 × 160 px" in provenance(at)
    typed(at, "size", "64")
    assert "input 64 × 64 px" in provenance(at)
    started.options.clear()
    models.cache.clear()
    words[1] = "--image-size=99"  # which no patch of the shipped model divides
    assert "input 64 × 64 px" in provenance(opened("attention"))
    models.cache.clear()


# --- at most so many tokens -----------------------------------------------------------------------


def test_a_size_of_too_many_tokens_is_not_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One visitor's link must not take the memory of all."""
    asked: list[object] = []
    own = models._load

    def load(name: str, weights: str, wanted: models.Input) -> object:
        asked.append(wanted.size)
        return own(name, weights, wanted)

    monkeypatch.setattr(models, "_load", load)
    at = opened("attention", model="vitviz_tiny_cifar10", size="352x352")
    assert not complaints(at)
    (said,) = told(at)
    assert "352 × 352 pixels has 7,746 tokens" in said
    assert "up to 1,024" in said
    assert "--max-tokens" in said
    assert (352, 352) not in asked
    assert "size" not in address(at)


def test_the_operator_may_raise_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["app.py", "--max-tokens=40"])
    driver.read_anew()
    at = opened("attention", model="vitviz_tiny_cifar10", size="96x96")
    assert ["up to 258" in said for said in told(at)] == [True]  # as many as the model's own has
    monkeypatch.setattr(sys, "argv", ["app.py", "--max-tokens=578"])
    driver.read_anew()
    at = opened("attention", model="vitviz_tiny_cifar10", size="96x96")
    assert_works(at)
    assert not told(at)
    assert "input 96 × 96 px" in provenance(at)


def test_maps_too_large_for_a_message_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for page in ("attention", "rollout", "tokens", "positions"):
        driver.forget()
        monkeypatch.setattr("vitviz.app.shared.results.MAX_MESSAGE_BYTES", 100)
        at = opened(page)
        assert any("a page sends at most" in said for said in complaints(at)), page
        assert not at.exception
        monkeypatch.undo()


def test_another_size_shares_the_weights_and_is_dropped_before_them() -> None:
    model, wide = models.load_by_name(SHIPPED), models.load_by_name(SHIPPED, wanted=Input((32, 48)))
    own, other = (dict(each.module.named_parameters()) for each in (model, wide))
    apart = [name for name in own if own[name].data_ptr() != other[name].data_ptr()]
    assert apart == ["pos_embed"]
    alone = vitviz.load_model(SHIPPED, image_size=(32, 48)).module.state_dict()
    for name, values in wide.module.state_dict().items():
        assert values.equal(alone[name]), name
    cached: list[Any] = list(models.cache()._values)  # tuples
    keys = [key for key in cached if key[1] == "trained"]
    assert keys.index((SHIPPED, "trained", Input((32, 48)))) < keys.index(
        (SHIPPED, "trained", models.OWN_INPUT)
    )


@pytest.mark.parametrize("page", ["attention", "distance", "classify", "anatomy", "compare"])
def test_a_session_does_not_hold_the_model_and_the_capture_of_its_last_page(page: str) -> None:
    at = opened(page, size="32x44")
    assert_works(at)
    for cache in (models.cache(), results.capture_cache()):
        kept = [*cache._values]
        for key in kept:
            if "32, 44" in str(key):
                del cache._values[key]
        cache._evicted.clear()
    gc.collect()
    held = [each for each in gc.get_objects() if isinstance(each, Activations | vitviz.Model)]
    assert not [each for each in held if "32 × 44" in each.provenance]
    at.selectbox(key="lang").set_value("ko").run()  # and the page is drawn again
    assert_works(at)
