"""What Anatomy's component draws of a picture that is not square is what the library computes."""

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from examples import example, own_model, picture, randomise

import vitviz
from vitviz import Activations
from vitviz.web import anatomy
from vitviz.web.report import components

from .sources import open_sources
from .test_token_map import as_pixels

if TYPE_CHECKING:
    from playwright.sync_api import Page

LAYER, HEAD, QUERY = 1, 2, 1 + 2 * 6 + 4  # row 3, column 5 of 4 x 6
ITEMS = "[data-part=items]"


@pytest.fixture(scope="module")
def acts() -> Activations:
    return vitviz.capture(example("plain"), picture())


@pytest.fixture
def shown(page: "Page", acts: Activations) -> "Page":
    made = components.anatomy(
        example("plain"), picture(), acts, "x", layer=LAYER, head=HEAD, query=QUERY
    )
    page.emulate_media(reduced_motion="reduce")
    open_sources(page, "anatomy", made)
    return page


def go(page: "Page", step: str) -> None:
    page.evaluate("(step) => component.go(step)", step)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def gaps(clear: Any) -> np.ndarray:
    """The middle of each run of what is clear, without those at the ends."""
    edges = np.flatnonzero(np.diff(clear.astype(int))) + 1
    return np.round(edges[1:-1].reshape(-1, 2).mean(axis=1))


def test_the_picture_is_cut_into_its_rows_and_columns(shown: "Page", acts: Activations) -> None:
    go(shown, "patches")
    whole, one = shown.locator(f"{ITEMS} .cut canvas").all()
    assert whole.get_attribute("aria-label") == "The picture in 4 × 6 patches"
    assert "one patch: 4 × 4 pixels" in shown.locator(f"{ITEMS} .cut").inner_text()
    values = example("plain").preprocess(picture()).permute(1, 2, 0).numpy()
    mean, std = example("plain").preprocess.mean, example("plain").preprocess.std
    colours = np.clip(255 * (values * std + mean), 0, 255)
    drawn = as_pixels(whole.evaluate("canvas => canvas.toDataURL()"))
    side = drawn.shape[1] // 6
    assert drawn.shape[:2] == (4 * side, 6 * side)
    clear = whole.evaluate(
        """canvas => { const [w, h] = [canvas.width, canvas.height];
          const { data } = canvas.getContext("2d").getImageData(0, 0, w, h);
          return Array.from({ length: w * h }, (_, i) => data[4 * i + 3] === 0) }"""
    )
    clear = np.reshape(clear, drawn.shape[:2])
    # A gap between columns, and between rows: seen in the first ones, where no patch is outlined.
    np.testing.assert_array_equal(gaps(np.all(clear[:side], axis=0)), np.arange(1, 6) * side)
    np.testing.assert_array_equal(gaps(np.all(clear[:, :side], axis=1)), np.arange(1, 4) * side)
    for row, col in set(np.ndindex(4, 6)) - {(2, 4)}:  # without the outlined one
        found = drawn[row * side + side // 2 + 2, col * side + side // 2 + 2]
        np.testing.assert_allclose(found, colours[4 * row + 2, 4 * col + 2], atol=3)
    np.testing.assert_allclose(
        as_pixels(one.evaluate("canvas => canvas.toDataURL()")), colours[8:12, 16:20], atol=2
    )


def test_the_charts_number_the_layers_and_mark_the_one_that_is_open(
    shown: "Page", acts: Activations
) -> None:
    residual = anatomy.residual_stream(acts)
    wanted = [(0, [residual.patches, residual.cls]), (1, [residual.attention, residual.mlp])]
    charts = shown.evaluate(
        """() => [...component.box.querySelectorAll("figure svg")].map((svg) => {
          const at = (node, name) => Number(node.getAttribute(name));
          const numbers = [...svg.querySelectorAll("text[text-anchor=middle]")];
          return {
            numbers: numbers.map((text) => [Number(text.textContent), at(text, "x")]),
            dots: [...svg.querySelectorAll("circle")].map((dot) => [at(dot, "cx"), at(dot, "cy")]),
            here: at(svg.querySelector(".here"), "x1"),
            zero: at(svg.querySelector(".axis"), "y1"),
          };
        })"""
    )
    assert len(charts) == 2
    for chart, (first, lines) in zip(charts, wanted, strict=True):
        assert [number for number, _ in chart["numbers"]] == [*range(first, acts.depth + 1)]
        places = dict(chart["numbers"])
        assert chart["here"] == places[LAYER + 1]
        x, y = np.array(chart["dots"]).T
        np.testing.assert_allclose(x, [*places.values()] * 2)
        values = np.concatenate(lines)
        np.testing.assert_allclose(
            (chart["zero"] - y) / (chart["zero"] - y).max(), values / values.max()
        )


def test_the_numbers_on_the_page_are_those_of_the_chosen_head_and_token(
    shown: "Page", acts: Activations
) -> None:
    go(shown, "qkv")
    names = shown.locator(f"{ITEMS} canvas").evaluate_all(
        "all => all.map((canvas) => canvas.getAttribute('aria-label'))"
    )
    for name, letter, values in zip(
        names[1:], "qkv", (acts.queries(LAYER), acts.keys(LAYER), acts.values(LAYER)), strict=True
    ):
        label, _, begins = name.partition("; it begins with ")
        assert label.startswith(f"{letter}, head {HEAD + 1}: ")
        found = [float(number.replace("−", "-")) for number in begins.split(", ")]
        np.testing.assert_allclose(found, values[HEAD, QUERY, :3], rtol=6e-3)
    for digit in "41":
        shown.locator("[data-part=photo]").press(digit)
        go(shown, "qkv")
        name = shown.locator(f"{ITEMS} canvas").nth(1).get_attribute("aria-label") or ""
        assert name.startswith(f"q, head {digit}: ")
    shown.locator("[data-part=photo]").press(str(HEAD + 1))
    go(shown, "scores")
    shares = acts.attention(LAYER)[HEAD, QUERY]
    key = 1 + int(shares[1:].argmax())
    said = shown.locator("[data-part=names]").inner_text()
    row, col = divmod(key - 1, 6)
    assert f"row {row + 1} column {col + 1}" in said.split("key")[1]
    assert "row 3 column 5" in said.split("key")[0]


def test_a_click_on_a_bar_chooses_its_key(shown: "Page") -> None:
    go(shown, "scores")
    bars = shown.locator(f"{ITEMS} canvas[aria-label^=softmax]")
    box = bars.bounding_box()
    assert box is not None
    for key in (1 + 6 + 3, 24):  # row 2, column 4; row 4, column 6, the last of 25
        bars.click(position={"x": (key + 0.5) / 25 * box["width"], "y": box["height"] / 2})
        go(shown, "scores")  # the change is drawn in the next frame
        row, col = divmod(key - 1, 6)
        names = shown.locator("[data-part=names]").inner_text()
        assert f"row {row + 1} column {col + 1}" in names.split("key")[1]


def test_few_tokens_are_written_as_the_whole_matrix_and_a_click_chooses_a_pair(
    page: "Page",
) -> None:
    model = own_model(image_size=(16, 12))  # 4 x 3 patches and CLS
    randomise(model.module)
    acts = vitviz.capture(model, picture())
    page.emulate_media(reduced_motion="reduce")
    made = components.anatomy(model, picture(), acts, "x", layer=LAYER, head=HEAD, query=5)
    open_sources(page, "anatomy", made)
    go(page, "attention")
    rows = page.locator(f"{ITEMS} tbody tr")
    written = [line.split("\t")[1:] for line in rows.all_inner_texts()]
    found = np.array(written, float)
    np.testing.assert_allclose(found, 100 * acts.attention(LAYER)[HEAD], atol=0.51)

    def marked(name: str) -> list[int]:
        places: list[int] = rows.evaluate_all(
            """(all, name) => all.flatMap((row, at) => name === "query"
              ? (row.classList.contains(name) ? [at] : [])
              : [[...row.children].findIndex((one) => one.classList.contains(name)) - 1])""",
            name,
        )
        return places

    assert marked("query") == [5]
    rows.nth(2).locator("td").nth(7).click()
    go(page, "attention")
    assert marked("query") == [2]
    assert marked("key") == [7] * 13
