"""What a notebook shows of a model and a capture: the map is live without a kernel or a network."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from examples import example, picture

import vitviz
from vitviz import Activations, capture
from vitviz.common.files import assets
from vitviz.zoo.toys import toy_model

from .conftest import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Cells(HTMLParser):
    """The words of the cells of a table."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.words: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_a_model_and_a_capture_are_tables_without_markup_of_others() -> None:
    model = vitviz.load_model("vitviz_tiny_cifar10")
    acts = capture(model, picture())
    model.name = "<script>alert(1)</script>"
    found = Cells(model._repr_html_())
    assert found.tags == {"table", "caption", "tr", "th", "td"}
    assert model.name in found.words
    assert "64 x 64 pixels" in found.words
    told = Cells(capture(model, picture())._repr_html_())
    assert told.tags == found.tags
    assert acts.probabilities is not None
    best = int(acts.probabilities.argmax())
    answer = next(words for words in told.words if acts.output_names[best] in words)
    assert answer.startswith(f"{acts.output_names[best]} {acts.probabilities[best]:.1%}")
    assert "60 x 50 pixels" in told.words


def test_untrained_weights_are_named() -> None:
    model = vitviz.load_model("vitviz_tiny_cifar10", pretrained=False)
    for shown in (model, capture(model, picture())):
        assert "random weights" in shown._repr_html_()


def saved(acts: Activations, folder: Path) -> Path:
    """A notebook's output as a page: what nbconvert or a viewer makes of its text/html."""
    output = acts.show(layer=1, head=None, query=(2, 5))._repr_html_()
    cell = json.loads(json.dumps({"data": {"text/html": output}}))  # as a notebook's file holds it
    path = folder / "notebook.html"
    path.write_text(f"<!doctype html><body>{cell['data']['text/html']}</body>", encoding="utf-8")
    return path


def test_the_map_of_a_saved_notebook_is_live_with_the_network_cut(
    browser: "Browser", tmp_path: Path
) -> None:
    acts = capture(example("plain"), picture())
    with watched(browser, online=False) as page:
        page.goto(saved(acts, tmp_path).as_uri())
        frame = page.frame_locator("iframe")
        frame.locator("body[data-ready]").wait_for(state="attached")
        map_ = frame.locator("canvas[data-part=map]")

        def strongest(layer: int, head: int | None) -> str:
            found = acts.attention_map(layer, (2, 5))
            shares = found.mean(axis=0) if head is None else found[head]
            row, col = np.unravel_index(shares.argmax(), shares.shape)
            return f"strongest key row {row + 1} column {col + 1}"

        frame.locator("canvas[data-part=map][aria-label]").wait_for()  # drawn a frame later
        said = str(map_.get_attribute("aria-label"))
        assert "row 3 column 6" in said
        assert strongest(1, None) in said
        frame.locator(".strip button", has_text="head 2").click()
        frame.locator(".sections h4", has_text="layer 2, head 2").wait_for()
        assert strongest(1, 1) in str(map_.get_attribute("aria-label"))
        assert frame.locator("p.line").inner_text() == acts.provenance


def test_show_captures_and_shows() -> None:
    photo = assets() / "samples" / "dog.jpg"
    shown = vitviz.show(example("plain"), photo)
    assert repr(shown).startswith("Shown(Activations(3 layers")
    again = capture(example("plain"), photo).show()
    pages = {re.sub(r"T\d\d:\d\d:\d\d", "", one._repr_html_()) for one in (shown, again)}
    assert len(pages) == 1  # but for the second in which each was made


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(layer=3), r"layer in 0\.\.2, got 3"),
        (dict(head=4), r"head in 0\.\.3, got 4"),
        (dict(query=25), r"query in 0\.\.24, .*got 25"),
        (dict(query=(4, 0)), r"of 4 x 6, .*got \(4, 0\)"),
    ],
)
def test_what_is_not_there_is_not_shown(asked: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        capture(example("plain"), picture()).show(**asked)


@pytest.mark.parametrize("name", ["show", "widget"])
def test_a_capture_takes_no_other_picture(name: str) -> None:
    if name == "widget":
        pytest.importorskip("anywidget", reason="anywidget is not installed")
    way, acts = getattr(vitviz, name), capture(example("plain"), picture())
    for other in (dict(image=picture()), dict(picture=picture())):
        with pytest.raises(TypeError, match="has its picture already"):
            way(acts, **other)


def test_a_model_without_attention_has_anatomy_and_no_map() -> None:
    mixer = toy_model("MLP-Mixer")
    with pytest.raises(vitviz.ModelError, match="has no attention"):
        vitviz.show(mixer, picture())
    assert "Shown(" in repr(vitviz.show(mixer, picture(), view="anatomy"))
    with pytest.raises(ValueError, match="view attention or anatomy, got map"):
        vitviz.show(mixer, picture(), view="map")  # type: ignore[arg-type]
