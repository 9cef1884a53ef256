"""What several browser tests do: open the app, turn to a page, wait until something holds."""

import time
import timeit
from collections.abc import Callable
from typing import TYPE_CHECKING

from app_server import PATIENCE, Server

from vitviz.app.pages import PAGES

if TYPE_CHECKING:
    from playwright.sync_api import Page


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


def reading(page: "Page") -> str:
    photo = page.locator("main canvas[data-part=photo][aria-label]")
    photo.wait_for()
    return photo.get_attribute("aria-label") or ""


def until(page: "Page", holds: Callable[[], bool], seconds: float = PATIENCE) -> None:
    """Wait until it holds."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(50)
