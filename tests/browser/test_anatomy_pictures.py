"""Anatomy in a notebook's output: what is saved of it is opened, and its numbers compared."""

import base64
import io
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np
import pytest
from examples import example, picture
from PIL import Image

import vitviz
from vitviz import Activations
from vitviz.plots.template import QUERY, colour_table
from vitviz.web import anatomy, anatomy_map

from .conftest import watched
from .test_anatomy import written

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

SVG = "{http://www.w3.org/2000/svg}"
QUERY_TOKEN = 1 + 2 * 6 + 5  # row 3, column 6
LAYER, HEAD = 1, 2


@pytest.fixture(scope="module")
def acts() -> Activations:
    return vitviz.capture(example("plain"), picture())


@pytest.fixture(scope="module")
def shown(browser: "Browser", tmp_path_factory: pytest.TempPathFactory) -> "Iterator[Page]":
    """The output as a page that is opened from disk."""
    output = vitviz.show(
        example("plain"), picture(), view="anatomy", layer=LAYER, head=HEAD, query=(2, 5)
    )._repr_html_()
    path = tmp_path_factory.mktemp("notebook") / "anatomy.html"
    path.write_text(f"<!doctype html><body>{output}</body>", encoding="utf-8")
    with watched(browser, online=False) as page:
        page.goto(path.as_uri())
        page.frame_locator("iframe").locator("body[data-ready]").wait_for(state="attached")
        yield page


def at_step(page: "Page", step: str) -> "Locator":
    """The component, with a box of the opened layer or a card on screen."""
    found = page.frame_locator("iframe").locator(".anatomy")
    if step == "scores":
        found.locator(".card", has_text="Encoder").click()
        found.locator("[data-id=scores]").click()
    else:
        found.locator(".card", has_text=step).click()
    found.locator("[data-part=items] .item").first.wait_for()
    return found


def saved(page: "Page", menu: "Locator", label: str) -> tuple[str, bytes]:
    menu.locator("summary").click()
    with page.expect_download() as download:
        menu.get_by_role("button", name=label, exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def words_of(svg: ElementTree.Element) -> str:
    lines = ("".join(text.itertext()) for text in svg.iter(f"{SVG}text"))
    return " ".join(lines).replace("\u00a0", " ")


def pixels_of(svg: ElementTree.Element) -> list[np.ndarray]:
    """The colours of what is drawn by number, each (height, width, 3)."""
    found = [image.get("href") or "" for image in svg.iter(f"{SVG}image")]
    files = [address.partition("base64,")[2] for address in found if "image/png" in address]
    images = [Image.open(io.BytesIO(base64.b64decode(file))) for file in files]
    return [np.asarray(image.convert("RGB")).astype(int) for image in images]


def colours(values: np.ndarray, limit: float) -> np.ndarray:
    """Of signed numbers from -limit to limit."""
    table = np.frombuffer(bytes.fromhex(colour_table(True)), np.uint8).reshape(256, 3)
    places = np.clip(0.5 + values / limit / 2, 0, 1)
    return table[np.floor(255 * places + 0.5).astype(int)].astype(int)


def limit_of(*strips: np.ndarray) -> float:
    """What nearly all of the numbers of each strip lie within, as in the browser."""
    sizes = [np.sort(np.abs(values)) for values in strips]
    return float(max(one[int(0.98 * (len(one) - 1))] for one in sizes))


def test_the_scene_is_saved_with_the_numbers_of_the_capture(
    shown: "Page", acts: Activations
) -> None:
    menu = at_step(shown, "scores").locator(".photo .save-menu")
    shares = acts.attention(LAYER)[HEAD, QUERY_TOKEN]
    key = 1 + int(shares[1:].argmax())
    q, k = acts.queries(LAYER)[HEAD, QUERY_TOKEN], acts.keys(LAYER)[HEAD, key]
    scores = anatomy.head_scores(acts, LAYER, HEAD)[1][QUERY_TOKEN]
    for label, bare in (("SVG, with title", False), ("SVG, bare, transparent", True)):
        name, file = saved(shown, menu, label)
        assert name.endswith("_bare.svg" if bare else "_layer_2_row_3_column_6.svg")
        svg = ElementTree.fromstring(file)
        strips = pixels_of(svg)
        both = limit_of(q, k)
        for drawn, values, limit in zip(
            strips, (q, k, q * k), (both, both, limit_of(q * k)), strict=True
        ):
            step = 2 * np.abs(np.diff(colours(np.linspace(-1, 1, 256), 1), axis=0)).max()
            np.testing.assert_allclose(drawn[0], colours(values, limit), atol=step)
        words = words_of(svg)
        assert f"softmax over 25 keys = {written(float(shares[key]))}" in words
        assert "query row 3 column 6" in words
        texts = {"".join(one.itertext()): one.get("fill") for one in svg.iter(f"{SVG}text")}
        for role, fill in (("query", "#006b80"), ("key", "#b4005f")):  # as on the page
            assert [texts[one] for one in texts if one.startswith(f"{role} row ")] == [fill], texts
        assert (acts.provenance in words) != bare
        bars = [one for one in svg.iter(f"{SVG}rect") if one.get("class") == "bar"]
        heights = np.array([float(bar.get("height") or 0) for bar in bars])
        of_scores, of_shares = heights[:25], heights[26:51]  # each with the marked one after it
        np.testing.assert_allclose(
            of_scores / of_scores.max(), np.abs(scores) / np.abs(scores).max(), atol=1e-5
        )
        np.testing.assert_allclose(of_shares / 66, shares / shares.max(), atol=1e-5)
        boxes = [one.get("stroke") for one in svg.iter(f"{SVG}rect") if one.get("stroke") == QUERY]
        assert len(boxes) == 1


def test_both_sizes_of_a_picture_and_its_ground(shown: "Page") -> None:
    menu = at_step(shown, "Picture").locator(".photo .save-menu")
    sizes = []
    for label in ("PNG, bare, transparent", "PNG × 2, bare, transparent", "PNG, with title"):
        image = Image.open(io.BytesIO(saved(shown, menu, label)[1]))
        corner = image.convert("RGBA").getpixel((image.width - 1, image.height - 1))
        assert isinstance(corner, tuple)
        assert corner[3] == (255 if "title" in label else 0)
        sizes.append(image.size)
    assert sizes[1] == (2 * sizes[0][0], 2 * sizes[0][1])
    assert sizes[2][1] > sizes[0][1]


def test_the_answer_is_saved_as_it_stands(shown: "Page", acts: Activations) -> None:
    menu = at_step(shown, "Head").locator(".photo .save-menu")
    svg = ElementTree.fromstring(saved(shown, menu, "SVG, with title")[1])
    assert acts.probabilities is not None
    order = np.argsort(-acts.probabilities)[:5]
    bars = [float(b.get("width") or 0) for b in svg.iter(f"{SVG}rect") if b.get("class") == "bar"]
    shares = acts.probabilities[order]
    np.testing.assert_allclose(np.array(bars) / bars[0], shares / shares[0], atol=1e-4)
    for index in order:
        assert acts.output_names[index] in words_of(svg)


def test_the_residual_stream_is_saved_as_a_chart(shown: "Page", acts: Activations) -> None:
    menu = at_step(shown, "Picture").locator(".side .save-menu").first
    name, file = saved(shown, menu, "SVG, with title")
    assert name == "vitviz_residual_stream_z_by_layer.svg"
    svg = ElementTree.fromstring(file)
    found = anatomy.residual_stream(acts)
    heights = [float(dot.get("cy") or 0) for dot in svg.iter(f"{SVG}circle")]
    zero = max(float(line.get("y1") or 0) for line in svg.iter(f"{SVG}line"))
    above = zero - np.array(heights)
    expected = np.concatenate([found.patches, found.cls])
    np.testing.assert_allclose(above / above.max(), expected / expected.max(), atol=1e-6)
    words = words_of(svg)
    assert "mean of patches" in words
    assert acts.provenance in words


def test_the_page_is_anatomys_module_byte_for_byte(shown: "Page") -> None:
    source = shown.locator("iframe").get_attribute("srcdoc") or ""
    assert f'<script type="module">{anatomy_map.script()}' in source
