"""The size and shape of the model's input: in the menu, in links, and on the command line."""

import sys
from pathlib import Path

import pytest
from examples import timm_module
from safetensors.torch import save_file
from streamlit.testing.v1 import AppTest

from pages.driver import (
    MINE,
    SHIPPED,
    address,
    assert_works,
    complaints,
    drawn,
    opened,
    provenance,
    typed,
    upload,
)
from vitviz.app.main import RECORDS
from vitviz.app.shared import models
from vitviz.text import PAGES

pytestmark = pytest.mark.usefixtures("read_anew")


def costs(at: AppTest) -> str:
    """The sentence beneath the control."""
    (words,) = [text.value for text in at.markdown if " tokens" in text.value[:40]]
    return words


def told(at: AppTest) -> list[str]:
    return [message.value for message in at.info]


@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_a_whole_picture(page: str) -> None:
    at = opened(page, size="whole")
    assert_works(at)
    if page not in RECORDS:
        assert "positions resampled from 16x16 to 14x19" in provenance(at)
        assert "input 56 × 76 px, the whole picture" in provenance(at)
    assert address(at) == {"size": "whole"}


def test_a_size_says_what_it_costs() -> None:
    at = opened("attention")
    assert costs(at) == "16 × 16 patches, 257 tokens."
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


def test_a_whole_picture_has_the_shape_of_the_one_on_screen() -> None:
    at = opened("attention", size="whole")
    assert "267 tokens instead of 257" in costs(at)
    assert costs(at).endswith(" The picture becomes 2 % wider to fill it.")
    upload(at, "mine.png", MINE)  # 90 x 40 pixels
    assert_works(at)
    assert "input 44 × 100 px, the whole picture" in provenance(at)
    assert "mine.png" in provenance(at)


def test_one_picture_at_two_sizes_is_captured_twice() -> None:
    at = opened("attention", weights="random")  # whose weights are called the same at any size
    before = drawn(at)
    typed(at, "size", "32x48")
    assert_works(at)
    assert drawn(at) != before
    at.selectbox(key="size").set_value("own").run()
    assert drawn(at) == before


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("33x40", "The image size 33 x 40 is not a multiple of the patch size 4."),
        ("4096", "at 4096 x 4096 pixels needs about "),
        ("5000", "Expected an image size of one number or (rows, columns) from 1 to 4096"),
        ("0x32", "Size: 0x32 is not valid here; own is used."),
        ("<b>large</b>", "Size: ?b?large??b? is not valid here; own is used."),
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
    assert "cannot take pictures of 40 x 60 pixels" in message
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
    models.options.clear()
    models.cache.clear()
    words[1] = "--image-size=99"  # which no patch of the shipped model divides
    assert "input 64 × 64 px" in provenance(opened("attention"))
    models.cache.clear()


def test_reset_keeps_the_input() -> None:
    at = opened("attention", size="32x48", scale="log")
    next(button for button in at.button if button.label == "Reset view").click().run()
    assert address(at) == {"size": "32x48"}
    assert models.load(SHIPPED).preprocess.input_size == (64, 64)
