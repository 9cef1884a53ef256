"""Back and Forward walk through the views."""

import re
from typing import TYPE_CHECKING

from app_server import Server

from .walk import opened, reading, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def expect_view(page: "Page", settings: str, words: str, heading: str = "Attention") -> None:
    """What the address and the page say of the view on screen."""
    from playwright.sync_api import expect

    expect(page).to_have_url(re.compile(f"/{re.escape(settings)}$"))
    expect(page.locator(".st-key-provenance")).to_contain_text(words)
    expect(page.locator("h1")).to_contain_text(heading)
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


# A key chooses the patch to the right, and the page is turned at once.
AT_ONCE = """photo => {
  const how = { key: "ArrowRight", bubbles: true, composed: true };
  photo.dispatchEvent(new KeyboardEvent("keydown", how));
  [...document.querySelectorAll("a")].find(link => link.innerText.includes("Tokens")).click();
}"""


def test_back_and_forward_walk_through_views_and_pages_and_a_choice_is_kept_as_a_page_is_turned(
    page: "Page", server: Server
) -> None:
    opened(page, server)
    slider = page.locator(".st-key-layer input")
    first = reading(page)
    slider.press("ArrowLeft")
    expect_view(page, "attention?layer=5", "layer 5 of 6")
    until(page, lambda: reading(page) != first)
    second = reading(page)
    page.locator("main canvas[data-part=photo]").press("ArrowRight")
    expect_view(page, "attention?layer=5&query=9.9", "layer 5 of 6")
    third = reading(page)
    assert third != second

    page.go_back()
    expect_view(page, "attention?layer=5", "layer 5 of 6")
    until(page, lambda: reading(page) == second)
    page.go_back()
    expect_view(page, "attention", "layer 6 of 6")
    until(page, lambda: reading(page) == first)
    assert slider.input_value() == "6"
    page.go_forward()
    expect_view(page, "attention?layer=5", "layer 5 of 6")
    until(page, lambda: reading(page) == second)
    page.go_forward()
    expect_view(page, "attention?layer=5&query=9.9", "layer 5 of 6")
    until(page, lambda: reading(page) == third)

    page.go_back()
    expect_view(page, "attention?layer=5", "layer 5 of 6")
    until(page, lambda: reading(page) == second)  # the address changes before the page does
    slider.press("ArrowLeft")  # another way from here
    expect_view(page, "attention?layer=4", "layer 4 of 6")
    page.go_back()
    expect_view(page, "attention?layer=5", "layer 5 of 6")

    until(page, lambda: reading(page) == second)
    turn(page, "tokens")
    expect_view(page, "tokens?layer=5", "layer 5 of 6", "Tokens")
    page.locator(".st-key-layer input").press("ArrowLeft")
    expect_view(page, "tokens?layer=4", "layer 4 of 6", "Tokens")
    turn(page, "distance")
    expect_view(page, "distance?layer=4", "layer 4 of 6", "Distance")

    page.go_back()
    expect_view(page, "tokens?layer=4", "layer 4 of 6", "Tokens")
    page.go_back()
    expect_view(page, "tokens?layer=5", "layer 5 of 6", "Tokens")
    page.go_back()
    expect_view(page, "attention?layer=5", "layer 5 of 6")
    page.go_forward()
    page.go_forward()
    page.go_forward()
    expect_view(page, "distance?layer=4", "layer 4 of 6", "Distance")

    turn(page, "attention")
    page.locator("main canvas[data-part=photo]").evaluate(AT_ONCE)
    expect_view(page, "tokens?layer=4&query=9.9", "layer 4 of 6", "Tokens")
    turn(page, "attention")
    assert reading(page).startswith("query row 9 column 9,")
