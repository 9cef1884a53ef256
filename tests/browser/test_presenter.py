"""Presenter mode: text larger by a quarter on every page, and clicks hit what they point at."""

from typing import TYPE_CHECKING

import pytest

from vitviz.text import PAGES

from .conftest import Server
from .test_classify import HEAD_COUNT, HEADS, alt, click
from .walk import opened, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# Font sizes of what is in sight, in pixels, by what it is.
SIZES = """() => {
  const size = (node) => node && parseFloat(getComputedStyle(node).fontSize);
  const figure = document.querySelector("main .js-plotly-plot .xtick text");
  return {
    label: size(document.querySelector("main label p")),
    title: size(document.querySelector("main h1")),
    figure: size(figure),
  };
}"""


def test_everything_is_larger_by_a_quarter_and_fits(page: "Page", server: Server) -> None:
    opened(page, server)
    for name in PAGES:
        turn(page, name)
        before = page.evaluate(SIZES)
        page.get_by_text("Presenter").click()
        until(page, lambda: "presenter=True" in page.url)
        settled(page)
        after = page.evaluate(SIZES)
        assert {part: size and 1.25 * size for part, size in before.items()} == pytest.approx(after)
        widths = (
            "[document.documentElement, document.querySelector('main')].map(e => e.scrollWidth)"
        )
        assert max(page.evaluate(widths)) <= 1280
        page.get_by_text("Presenter").click()
        until(page, lambda: "presenter" not in page.url)
        settled(page)


def test_a_click_hits_what_it_points_at(page: "Page", server: Server) -> None:
    opened(page, server)
    turn(page, "classify")
    page.get_by_text("Presenter").click()
    until(page, lambda: "presenter=True" in page.url)
    settled(page)
    click(page, HEADS, 1 * HEAD_COUNT + 3, "presenter=True&muted=2.4")
    until(page, lambda: "1 of 36 heads are muted: layer 2, head 4" in alt(page, HEADS))
