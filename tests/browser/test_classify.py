"""Classify as a class uses it: a head is muted and patches are taken away by clicks alone."""

from typing import TYPE_CHECKING

import pytest
from app_server import Server

from .walk import open_menu, opened, settled, until

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

PATCHES, HEADS, ANSWER = "The picture as the model gets it", "muted", "Most probable classes"
HEAD_COUNT, COLUMNS = 6, 16  # of the shipped model: heads a layer, columns of patches


@pytest.fixture
def classify(page: "Page", server: Server) -> "Page":
    return opened(page, server, "classify")


def figure(page: "Page", words: str) -> "Locator":
    """The figure in whose alt text these words are."""
    return page.locator(f"main [aria-label*='{words}']").filter(has=page.locator(".main-svg"))


def alt(page: "Page", words: str) -> str:
    return figure(page, words).first.get_attribute("aria-label") or ""


def middle(page: "Page", words: str, number: int) -> tuple[float, float]:
    """Where the point of this number is on screen."""
    point = figure(page, words).locator(".points path").nth(number)
    point.scroll_into_view_if_needed()
    box = point.bounding_box()
    assert box
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def click(page: "Page", words: str, number: int, then: str) -> None:
    """Click a point, and wait until the address has what follows from it."""
    before = page.url
    page.mouse.click(*middle(page, words, number))
    until(page, lambda: page.url != before)
    settled(page)
    assert page.url.partition("?")[2] == then


def test_a_head_that_is_clicked_is_mute_and_the_answer_is_another_for_a_presenter_too(
    classify: "Page",
) -> None:
    page, before = classify, alt(classify, ANSWER)
    assert "No head is muted" in alt(page, HEADS)
    number = 1 * HEAD_COUNT + 3
    click(page, HEADS, number, "muted=2.4")
    until(page, lambda: "1 of 36 heads are muted: layer 2, head 4" in alt(page, HEADS))
    until(page, lambda: alt(page, ANSWER) != before)
    assert " and then " in alt(page, ANSWER)
    click(page, HEADS, number, "")  # once more, and it speaks again
    until(page, lambda: "No head is muted" in alt(page, HEADS))
    until(page, lambda: alt(page, ANSWER) == before)
    open_menu(page)
    page.get_by_text("Presenter").click()
    until(page, lambda: "presenter=True" in page.url)
    page.keyboard.press("Escape")
    settled(page)
    click(page, HEADS, number, "presenter=True&muted=2.4")
    until(page, lambda: "1 of 36 heads are muted: layer 2, head 4" in alt(page, HEADS))


def test_patches_that_are_dragged_over_or_clicked_are_gone_and_the_answer_is_another(
    classify: "Page",
) -> None:
    page, before = classify, alt(classify, ANSWER)
    left, top = middle(page, PATCHES, 2 * COLUMNS + 3)
    right, bottom = middle(page, PATCHES, 4 * COLUMNS + 8)
    page.mouse.move(left - 2, top - 2)
    page.mouse.down()
    page.mouse.move(right, bottom, steps=5)
    page.mouse.move(right + 2, bottom + 2)
    page.mouse.up()
    until(page, lambda: "painted=3.4-5.9" in page.url)
    until(page, lambda: "18 of 256 patches removed" in alt(page, PATCHES))
    until(page, lambda: alt(page, ANSWER) != before)
    settled(page)
    dragged = alt(page, ANSWER)
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("radio", name="click").click()
    until(page, lambda: "brush=click" in page.url)
    page.keyboard.press("Escape")
    settled(page)
    click(page, PATCHES, 8 * COLUMNS + 7, "painted=3.4-5.9+9.8&brush=click")
    click(page, PATCHES, 9 * COLUMNS + 7, "painted=3.4-5.9+9.8-10.8&brush=click")
    until(page, lambda: "20 of 256 patches removed (tokens dropped)" in alt(page, PATCHES))
    until(page, lambda: alt(page, ANSWER) not in (before, dragged))
    assert " and then " in alt(page, ANSWER)
    page.get_by_role("button", name="Settings").click()
    page.get_by_role("radio", name="mean colour").click()
    until(page, lambda: "20 of 256 patches removed (mean colour)" in alt(page, PATCHES))
