"""The page Anatomy in a real browser: its steps are walked, and what is chosen is told."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from app_server import Server

try:
    from playwright.sync_api import expect
except ImportError:
    pytest.skip("playwright is not installed", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Page

SAID = "[data-part=say]"
ITEMS = "[data-part=items]"


def arrive(page: "Page", server: Server, query: str = "") -> None:
    page.goto(f"{server.url}/anatomy{query}")
    expect(page.locator(f"{ITEMS} .item").nth(1)).to_be_visible()
    settle(page)


def settle(page: "Page") -> None:
    """Wait until the server has answered to all."""
    page.wait_for_timeout(400)  # what is committed is sent after a while
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


def test_it_opens_on_the_first_of_nine_steps_and_plays_and_each_key_is_a_box_further_or_back(
    visit: "Callable[[], Page]", server: Server
) -> None:
    page = visit()
    page.clock.install()
    arrive(page, server)
    expect(page.locator(".card")).to_have_count(9)
    expect(page.locator(".card[aria-pressed=true]")).to_contain_text("1 Picture")
    expect(page.locator("[data-part=equation1]")).to_have_class(re.compile("now"))
    drawn = page.locator(f"{ITEMS} canvas").first.evaluate(
        "canvas => new Set(canvas.getContext('2d').getImageData(0, 0, 64, 64).data).size"
    )
    assert drawn > 20

    play = page.locator("[data-part=play]")
    play.click()
    expect(play).to_contain_text("Pause")
    page.clock.fast_forward(5_000)
    expect(page.locator(SAID)).to_contain_text("Step 2")
    page.locator(".card").nth(6).click()
    expect(play).to_contain_text("Play")
    expect(page.locator(SAID)).to_contain_text("Step 7")
    expect(page.locator("[data-id=scores]")).to_have_attribute("aria-pressed", "true")
    page.clock.fast_forward(60_000)
    expect(page.locator(SAID)).to_contain_text("Step 7")

    page.emulate_media(reduced_motion="reduce")
    page.locator(".card").first.click()
    expect(page.locator(SAID)).to_contain_text("Step 1")
    seen = []
    while page.locator("[data-part=next]").is_enabled():
        seen.append(page.locator(SAID).inner_text())
        page.keyboard.press("Space")
        expect(page.locator(SAID)).not_to_have_text(seen[-1])
    assert len(set(seen)) == len(seen) == 8 + 14 - 1
    last = page.locator(SAID).inner_text()
    page.keyboard.press("Shift+Space")
    expect(page.locator(SAID)).to_have_text(seen[-1])
    assert last not in seen

    page.locator(".card").nth(6).click()
    page.locator(".anatomy").press("ArrowRight")  # from the middle
    expect(page.locator("[data-part=names]")).to_contain_text("row 9 column 10")
    page.locator(".anatomy").press("p")
    expect(page.locator("[data-part=sideTitle]")).to_contain_text("Layer 5 ")
    settle(page)
    expect(page).to_have_url(re.compile(r"layer=5&query=9\.10&step=scores"))
