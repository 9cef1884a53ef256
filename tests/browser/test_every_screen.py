"""Every page at the widths of telephones, laptops and projectors; and what stands first."""

from typing import TYPE_CHECKING, Any

import pytest

from vitviz.app.main import RECORDS
from vitviz.text import PAGES

from .conftest import Server
from .walk import opened, settled, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

WIDTHS = (390, 768, 1024, 1280, 1920)
MAPS = ("attention", "positions", "rollout", "tokens")
FIGURE = "main :is(canvas[data-part=map], [role=figure], [role=img])"
PROVENANCE = ".st-key-provenance"

# Of the document and all that could scroll it: how much wider it is than the window; and of what
# may not be cut off, what is wider than its box.
TOO_WIDE = """() => {
  const main = document.querySelector("main");
  const around = main.closest("[data-testid=stAppViewContainer]");
  const wide = [document.documentElement, main, main.firstElementChild, around]
    .map((one) => one.scrollWidth - innerWidth);
  const cut = [...document.querySelectorAll("main .katex-display")]
    .filter((one) => one.scrollWidth > one.clientWidth && one.clientWidth)
    .map((one) => `${one.textContent.slice(0, 30)} ${one.scrollWidth} > ${one.clientWidth}`);
  return { wide: Math.max(...wide), cut };
}"""


def resized(page: "Page", width: int, height: int = 720) -> None:
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(400)  # figures follow a little later
    settled(page)


def box(page: "Page", what: str) -> dict[str, float]:
    """Left, top, right and bottom on the screen."""
    found: Any = page.locator(what).first.bounding_box()
    assert found
    return {
        "left": found["x"],
        "top": found["y"],
        "right": found["x"] + found["width"],
        "bottom": found["y"] + found["height"],
        "width": found["width"],
    }


@pytest.mark.parametrize("presenter", [False, True])
@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window_or_cut_off(
    name: str, presenter: bool, page: "Page", server: Server
) -> None:
    opened(page, server, f"{name}?presenter=True" if presenter else name)
    for width in WIDTHS:
        resized(page, width)
        found = page.evaluate(TOO_WIDE)
        assert found["wide"] <= 0, width
        assert not found["cut"], width


@pytest.mark.parametrize("name", PAGES)
def test_caption_and_main_figure_stand_in_the_first_screen(
    name: str, page: "Page", server: Server
) -> None:
    opened(page, server, name)
    resized(page, 1280)
    end = box(page, PROVENANCE)["top"]
    caption = box(page, ".st-key-caption")
    assert caption["bottom"] < end
    words = box(page, ".st-key-caption p")
    assert words["top"] >= caption["top"]
    if name in MAPS:
        assert box(page, "main canvas[data-part=map]")["bottom"] <= end
    elif name not in RECORDS:
        page.locator("main canvas, main .main-svg").first.wait_for()
        assert box(page, "main canvas, main .main-svg")["top"] < end - 100


def test_photo_and_map_grow_with_the_window_and_type_does_not(page: "Page", server: Server) -> None:
    opened(page, server, "attention")
    label = "main .distance text"
    widths, types = [], []
    for width, height in ((1280, 720), (1440, 900), (1920, 1080)):
        resized(page, width, height)
        photo, drawn = (box(page, f"main canvas[data-part={part}]") for part in ("photo", "map"))
        assert photo["width"] == pytest.approx(drawn["width"])
        widths.append(photo["width"])
        types.append(box(page, label)["bottom"] - box(page, label)["top"])
    assert widths[0] > 350
    assert widths[2] > 1.3 * widths[1] > 1.3 * widths[0]
    assert types == pytest.approx([types[0]] * 3)
    resized(page, 1280)
    page.get_by_text("Presenter").click()
    until(page, lambda: "presenter=True" in page.url)
    until(page, lambda: box(page, "main canvas[data-part=photo]")["width"] > 1.05 * widths[0])


def test_parts_stand_under_one_another_where_there_is_no_room(page: "Page", server: Server) -> None:
    opened(page, server, "attention")
    photo, shown, heads = (f"main [data-part={part}]" for part in ("photo", "map", "strip"))
    resized(page, 1280)
    assert box(page, heads)["left"] > box(page, shown)["right"] > box(page, photo)["right"]
    resized(page, 1024)
    assert box(page, heads)["top"] > box(page, shown)["bottom"]
    cut = "all => all.filter(one => one.scrollWidth > one.clientWidth).length"
    assert page.locator(f"{heads} button").evaluate_all(cut) == 0
    resized(page, 390)
    assert box(page, shown)["top"] > box(page, photo)["bottom"]
    assert box(page, heads)["top"] > box(page, shown)["bottom"]
    assert box(page, photo)["width"] > 240


def test_charts_stand_under_one_another_where_there_is_no_room(
    page: "Page", server: Server
) -> None:
    opened(page, server, "classify")
    charts = "main .stPlotlyChart"
    resized(page, 1099)
    tops = page.locator(charts).evaluate_all("all => all.map(o => o.getBoundingClientRect().top)")
    assert len(set(map(round, tops))) == len(tops) >= 3
    resized(page, 1280)
    tops = page.locator(charts).evaluate_all("all => all.map(o => o.getBoundingClientRect().top)")
    assert max(tops[:3]) - min(tops[:3]) < 150


@pytest.mark.parametrize(
    ("what", "mark"), [(PROVENANCE, "The whole line"), (".st-key-caption", "The whole caption")]
)
def test_what_is_folded_opens(what: str, mark: str, page: "Page", server: Server) -> None:
    opened(page, server, "attention")
    resized(page, 390, 844)

    def height() -> float:
        return box(page, what)["bottom"] - box(page, what)["top"]

    folded = height()
    page.get_by_label(mark).focus()
    page.keyboard.press("Enter")
    until(page, lambda: height() > 1.5 * folded)
    page.keyboard.press("Enter")
    until(page, lambda: height() == pytest.approx(folded))


def test_a_link_is_copied(page: "Page", server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, server, "attention?layer=3")
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert page.url.endswith("layer=3")


def test_a_link_is_shown_where_nothing_can_be_copied(page: "Page", server: Server) -> None:
    """As on a server without HTTPS."""
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    opened(page, server, "attention?layer=3")
    page.get_by_role("button", name="Copy link").click()
    field = page.get_by_role("textbox", name="Link to what is on screen")
    field.wait_for()
    assert field.input_value() == page.url
    chosen = field.evaluate("one => one.value.slice(one.selectionStart, one.selectionEnd)")
    assert chosen == page.url
