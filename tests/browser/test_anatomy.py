"""The page Anatomy in a real browser: what it works out is what the capture holds."""

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest
from app_server import Server

from vitviz import capture, load_model
from vitviz.app.shared import pictures

try:
    from playwright.sync_api import expect
except ImportError:
    pytest.skip("playwright is not installed", allow_module_level=True)

if TYPE_CHECKING:
    from playwright.sync_api import Page

PHOTO = "canvas[data-part=photo]"
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


def share_on_screen(page: "Page") -> str:
    (share,) = re.findall(r"softmax over \d+ keys = ([\d.]+ %)", page.locator(ITEMS).inner_text())
    return str(share)


def written(share: float) -> str:
    """Two significant digits of a share in per cent."""
    value = 100 * share
    digits = max(0, 1 - int(f"{value:e}".partition("e")[2]))
    return f"{value:.{digits}f} %"


def test_a_click_moves_the_query_and_the_number_is_that_of_the_capture(
    page: "Page", server: Server
) -> None:
    model = load_model("vitviz_things200")
    acts = capture(model, pictures.sample(pictures.DEFAULT).image)
    arrive(page, server, "?step=scores&layer=3&head=2")
    attention, cols = acts.attention(2)[1], acts.grid[1]
    key = 1 + int(attention[0, 1:].argmax())
    assert share_on_screen(page) == written(attention[0, key])
    photo = page.locator(PHOTO)
    box, (left, top, right, bottom) = photo.bounding_box(), acts.crop
    assert box is not None
    width, height = pictures.sample(pictures.DEFAULT).image.size
    x = (left + 2.5 / cols * (right - left)) / width * box["width"]
    y = (top + 4.5 / acts.grid[0] * (bottom - top)) / height * box["height"]
    photo.click(position={"x": x, "y": y})  # the middle of the patch in row 5, column 3
    page.mouse.move(2, 2)
    query = 1 + 4 * cols + 2
    key = 1 + int(attention[query, 1:].argmax())
    expect(page.locator("[data-part=names]")).to_contain_text("row 5 column 3")
    assert share_on_screen(page) == written(attention[query, key])
    settle(page)
    expect(page).to_have_url(re.compile(r"query=5\.3"))
    page.locator(".anatomy").press("ArrowRight")
    expect(page.locator("[data-part=names]")).to_contain_text("row 5 column 4")
    key = 1 + int(attention[query + 1, 1:].argmax())
    assert share_on_screen(page) == written(attention[query + 1, key])
    for letter, layer in (("n", 4), ("p", 3)):
        page.locator(".anatomy").press(letter)
        expect(page.locator("[data-part=sideTitle]")).to_contain_text(f"Layer {layer} ")


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
    settle(page)
