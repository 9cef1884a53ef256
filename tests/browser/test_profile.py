"""The page of a profile in a browser: its figures are drawn, and it asks for no other file."""

from pathlib import Path
from typing import TYPE_CHECKING

from examples import example, picture

from vitviz.profiling import profile

from .conftest import watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_the_page_of_a_profile_makes_no_request(tmp_path: Path, browser: "Browser") -> None:
    pictures = [picture(seed=seed) for seed in range(6)]
    profile(example("plain"), pictures, labels=[0, 1, 2, 3, 4, 0], out=tmp_path)
    address = (tmp_path / "profile.html").as_uri()
    with watched(browser, online=False) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        figures = page.locator("figure")
        assert figures.count() > 10
        for number in range(figures.count()):
            figures.nth(number).locator(".main-svg").first.wait_for()
        assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [address]
