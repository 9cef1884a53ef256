"""Pictures of what is on screen: every file is opened, and its colours are those of the numbers."""

import base64
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from app_server import Server
from PIL import Image
from plotly.colors import get_colorscale, sample_colorscale

import vitviz
from vitviz import Activations, inspection, plots
from vitviz.app.shared import pictures

from .walk import opened, saved, settled, until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

SVG = "{http://www.w3.org/2000/svg}"
HREF = "{http://www.w3.org/1999/xlink}href"


@pytest.fixture(scope="module")
def acts() -> Activations:
    """What the app shows when it is opened."""
    return vitviz.capture(
        vitviz.load_model("vitviz_things200"), pictures.sample(pictures.DEFAULT).image
    )


def norms_menu(page: "Page", server: Server) -> "Locator":
    """The menu of the norms, a figure of the page Tokens."""
    opened(page, server, "tokens")
    settled(page)
    page.get_by_text("Norms of the tokens").first.click()
    chart = page.locator("[data-testid=stPlotlyChart][aria-label*='Norm of each patch']")
    chart.locator(".heatmaplayer image").wait_for()
    return chart.locator("details")


def heat_map(svg: bytes) -> np.ndarray:
    """The colours of the heat map in a figure's SVG: (height, width, 3)."""
    (layer,) = [
        group
        for group in ElementTree.fromstring(svg).iter(f"{SVG}g")
        if group.get("class") == "heatmaplayer mlayer"
    ]
    (image,) = layer.iter(f"{SVG}image")
    address = image.get("href") or image.get(HREF) or ""
    png = base64.b64decode(address.removeprefix("data:image/png;base64,"))
    return np.asarray(Image.open(io.BytesIO(png)).convert("RGB"))


def colours(values: np.ndarray, scale: str) -> np.ndarray:
    """What a colour scale gives these numbers, from their least to their largest."""
    shares = ((values - values.min()) / np.ptp(values)).ravel().tolist()
    found = sample_colorscale(get_colorscale(scale), shares, colortype="tuple")
    return 255 * np.array(found).reshape(*values.shape, 3)


def middles(pixels: np.ndarray, grid: tuple[int, int]) -> np.ndarray:
    """The colour in the middle of each cell."""
    height, width = pixels.shape[:2]
    rows, cols = ((np.arange(n) + 0.5) / n for n in grid)
    return pixels[np.ix_((rows * height).astype(int), (cols * width).astype(int))]


def test_a_figure_is_saved_with_its_numbers(
    page: "Page", server: Server, acts: Activations
) -> None:
    menu = norms_menu(page, server)
    name, svg = saved(page, menu, "SVG, with title")
    assert name == "vitviz_norm_of_the_tokens_after_layer_6_before_the_final_normalisation.svg"
    values, _, _ = inspection.token_norms(acts)
    np.testing.assert_allclose(
        middles(heat_map(svg), acts.grid), colours(values, "Cividis"), atol=2
    )
    words = [text.text or "" for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    line = page.locator(".st-key-provenance").inner_text()
    assert line in " ".join(words)
    assert words.count("norm, no unit") == 1  # of the colour bar
    (title, *_) = ElementTree.fromstring(svg).iter(f"{SVG}title")
    assert title.text is not None
    assert title.text.startswith("Norm of each patch")

    # Bare: there are no words around the figure, and no ground.
    name, svg = saved(page, menu, "SVG, bare, transparent")
    assert name.endswith("_bare.svg")
    assert not list(ElementTree.fromstring(svg).iter(f"{SVG}text"))
    np.testing.assert_allclose(
        middles(heat_map(svg), acts.grid), colours(values, "Cividis"), atol=2
    )
    _, png = saved(page, menu, "PNG, bare, transparent")
    bare = Image.open(io.BytesIO(png))
    assert bare.mode == "RGBA"
    assert bare.getpixel((1, bare.height - 2))[3] == 0  # type: ignore[index]

    # The two scales differ by two.
    sizes: list[Any] = []
    for label in ("PNG, with title", "PNG × 2, with title"):
        name, png = saved(page, menu, label)
        image = Image.open(io.BytesIO(png)).convert("RGB")
        assert re.search(r"_2x\.png$", name) if "2" in label else name.endswith("normalisation.png")
        assert image.getpixel((1, 1)) == (255, 255, 255)
        sizes.append(image.size)
        # The brightest patch of Cividis is yellow, and nothing else in the picture is.
        red, green, blue = np.moveaxis(np.asarray(image).astype(int), 2, 0)
        yellow = np.argwhere((red > 245) & (green > 220) & (blue < 100))
        assert len(yellow) > 4
    assert sizes[1] == (2 * sizes[0][0], 2 * sizes[0][1])


MOUNT = """async (source) => {
  const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
  (await import(address)).default({ data: {} });
}"""


def test_a_number_in_a_cell_is_saved_in_its_own_colour(page: "Page") -> None:
    patch = np.array([[[1.0, 0.2], [-0.9, 0.1]]])  # of which two cells are dark
    figure = plots.filter_product(patch, np.ones((1, 2, 2)), names=("patch", "filter"))
    body = figure.to_html(include_plotlyjs=True, full_html=False)
    page.set_content(f"<body><div class=stPlotlyChart>{body}</div>")
    page.locator(".main-svg text", has_text="+1.00").wait_for()
    script = Path(vitviz.__file__).parent / "app/widgets/figure_pictures.built.js"
    page.evaluate(MOUNT, script.read_text(encoding="utf-8"))
    fill = "all => all.map((text) => [text.textContent, getComputedStyle(text).fill])"
    shown = dict(page.locator(".main-svg .textpoint text").evaluate_all(fill))
    assert (shown["+1.00"], shown["+0.20"]) == ("rgb(255, 255, 255)", "rgb(17, 17, 17)")
    for label in ("SVG, with title", "SVG, bare, transparent"):
        _, svg = saved(page, page.locator("details"), label)
        texts = ElementTree.fromstring(svg).iter(f"{SVG}text")
        fills = {text.text: text.get("style") or "" for text in texts}
        for name in ("+1.00", "+0.20"):
            assert f"fill: {shown[name]}" in fills[name], fills[name]


def test_every_figure_has_one_menu_and_a_files_name_is_text_in_a_picture(
    page: "Page", server: Server
) -> None:
    chart = norms_menu(page, server)
    charts = page.locator("[data-testid=stPlotlyChart]:has(.main-svg)")
    menus = page.locator("[data-testid=stPlotlyChart] summary")
    until(page, lambda: menus.count() == charts.count() >= 4)
    page.locator(".st-key-layer input").press("ArrowLeft")
    until(page, lambda: "layer 5 of 6" in page.locator(".st-key-provenance").inner_text())
    settled(page)
    until(page, lambda: menus.count() == charts.count() >= 4)
    menu = chart
    menu.locator("summary").press("Enter")
    assert menu.get_by_role("button").count() == 6
    page.keyboard.press("Escape")
    assert not menu.get_by_role("button").first.is_visible()

    name = "<b>dog & cat<img src=x>.png"
    file = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(file, "PNG")
    page.get_by_role("button", name="Your picture").click()
    picture: Any = {"name": name, "mimeType": "image/png", "buffer": file.getvalue()}
    page.locator("input[type=file]").set_input_files(picture)
    page.locator(".st-key-provenance").filter(has_text=name).wait_for()
    page.keyboard.press("Escape")
    settled(page)
    for menu in (chart, page.locator(".token-map").first.locator("details")):
        _, svg = saved(page, menu, "SVG, with title")
        found = ElementTree.fromstring(svg)
        assert name in " ".join(text.text or "" for text in found.iter(f"{SVG}text"))
        assert not {f"{SVG}{tag}" for tag in ("b", "img")} & {one.tag for one in found.iter()}
