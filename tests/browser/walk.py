"""What several browser tests do: open the app, turn to a page, wait until something holds."""

import time
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from app_server import PATIENCE, Server

from vitviz.app.pages import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Position

    from vitviz import Activations


WORK = 0.03  # seconds that a million small steps of Python took where the limits were set


def slowness(timer: Callable[[], float] = time.perf_counter) -> float:
    """How many times as long as there the same work takes here and now, at least 1.

    Time limits are multiplied by it, as machines differ and may have other work.
    """
    work = "for i in range(10**6): s += i * i"
    took = timeit.repeat(work, "s = 0", timer, number=1, repeat=10)
    return max(1.0, sum(took) / len(took) / WORK)


def settled(page: "Page") -> None:
    """Wait until the server has drawn all it has to say, and the code of each control has come."""
    page.locator("[data-test-script-state=notRunning]").wait_for()
    page.wait_for_function("!document.querySelector('[data-testid=stSkeleton]')")


def opened(page: "Page", server: Server, rest: str = "attention") -> "Page":
    page.goto(f"{server.url}/{rest}")
    page.locator(".st-key-provenance").wait_for()
    settled(page)
    return page


def turn(page: "Page", name: str) -> None:
    page.get_by_role("link", name=PAGES[name].tab, exact=True).click()
    page.locator("h1").get_by_text(PAGES[name].heading, exact=True).wait_for()
    page.locator(".st-key-provenance").wait_for()
    settled(page)


def open_menu(page: "Page", name: str = "Menu") -> None:
    """Open the menu of language, presenter, link and report, where it is closed."""
    menu = page.get_by_role("button", name=name, exact=True)
    if menu.get_attribute("aria-expanded") != "true":
        menu.click()


def written(share: float) -> str:
    """Write a share in per cent with two significant digits."""
    value = 100 * share
    digits = max(0, 1 - int(f"{value:e}".partition("e")[2]))
    return f"{value:.{digits}f} %"


def reading(page: "Page") -> str:
    photo = page.locator("main canvas[data-part=photo][aria-label]")
    photo.wait_for()
    return photo.get_attribute("aria-label") or ""


def saved(page: "Page", menu: "Locator", label: str) -> tuple[str, bytes]:
    """The name and the content of the file that a choice of a menu of pictures gives."""
    menu.locator("summary").click()
    with page.expect_download() as download:
        menu.get_by_role("button", name=label, exact=True).click()
    return download.value.suggested_filename, Path(download.value.path()).read_bytes()


def middle_of(photo: "Locator", acts: "Activations", row: int, col: int) -> "Position":
    """The middle of a patch on a canvas of the picture."""
    box, (left, top, right, bottom) = photo.bounding_box(), acts.crop
    assert box is not None
    (rows, cols), (width, height) = acts.grid, acts.picture_size
    x = (left + (col + 0.5) / cols * (right - left)) / width
    y = (top + (row + 0.5) / rows * (bottom - top)) / height
    return {"x": x * box["width"], "y": y * box["height"]}


def until(page: "Page", holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(50)
