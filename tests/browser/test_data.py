"""The numbers of a page as one takes them away: opened, and saved as a file."""

from pathlib import Path
from typing import TYPE_CHECKING

from app_server import Server

from vitviz.text import PAGES

from .walk import opened, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page


def saved(page: "Page") -> list[str]:
    """The lines of the first file that the page offers."""
    settled(page)  # a click on a button that is drawn anew is lost
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    return Path(download.value.path()).read_text(encoding="utf-8").splitlines()


def line(page: "Page") -> str:
    return page.locator(".st-key-provenance").inner_text()


def test_every_page_gives_its_numbers_under_its_provenance(page: "Page", server: Server) -> None:
    opened(page, server)
    for name in PAGES:
        turn(page, name)
        assert page.get_by_role("button", name="CSV").count() == 0
        page.get_by_text("Data", exact=True).click()
        page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
        assert saved(page)[0] == f"# {line(page)}", name


def test_what_is_open_stays_open_and_follows_the_layer(page: "Page", server: Server) -> None:
    opened(page, server)
    page.get_by_text("Data", exact=True).click()
    before = saved(page)
    page.locator(".st-key-layer input").press("ArrowLeft")
    until(page, lambda: "layer 5 of 6" in line(page))
    settled(page)
    after = saved(page)
    assert after[0] == f"# {line(page)}"
    assert after[2] == before[2]  # the headings
    assert after[3:] != before[3:]
