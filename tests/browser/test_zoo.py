"""The Zoo page in a browser: a click on the picture, and the way to a family."""

import re
from typing import TYPE_CHECKING

import pytest

from .conftest import Server
from .walk import opened, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def test_a_click_on_the_picture_asks_that_patch_and_a_family_is_opened_and_its_link_stays(
    page: "Page", server: Server
) -> None:
    opened(page, server, "attention?family=PVT&picture=moose&weights=random")
    turn(page, "zoo")
    picture = page.locator("main [aria-label*='may attend to 49 of 49 keys'] .nsewdrag")
    box = picture.bounding_box()
    assert box
    page.mouse.click(box["x"] + 0.5 * box["width"], box["y"] + 0.3 * box["height"])
    until(page, lambda: "zoo_down" in page.url)
    settled(page)
    # The model sees the middle 90 % of the picture's height, and as much of its width.
    places = dict(re.findall(r"zoo_(down|across)=(\d+)", page.url))
    assert int(places["down"]) == pytest.approx(28, abs=3)
    assert int(places["across"]) == pytest.approx(50, abs=3)
    page.get_by_role("button", name="Open this model").click()
    page.locator("h1").get_by_text("Attention: ").wait_for()
    page.locator(".st-key-provenance").get_by_text("pvt_v2_b0 (").wait_for()
    settled(page)
    for part in ("model=pvt_v2_b0", "picture=moose", "weights=random", "family=PVT"):
        assert part in page.url
    assert "/zoo" not in page.url
