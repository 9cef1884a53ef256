"""Bars of time, which need the machine for themselves: `pytest -m bars`."""

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
from app_server import Server

from vitviz.app.pages import OPENING, PAGES
from vitviz.text import page_text

from .walk import opened, slowness, turn

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.bars

ROUNDS = 5  # one that is quick enough will do: the machine may have other work


def test_the_title_is_there_within_15_s_of_the_servers_start(page: "Page", server: Server) -> None:
    begun = time.monotonic()
    page.goto(server.url)
    page.locator("h1").get_by_text(page_text(OPENING).title).wait_for()
    took = server.start + time.monotonic() - begun
    print(f"the title: {took:.1f} s")
    assert took < 15 * slowness()


def test_the_first_figure_is_there_within_3_s(visit: "Callable[[], Page]", server: Server) -> None:
    rounds = []
    for _ in range(ROUNDS):
        page = visit()
        begun = time.monotonic()
        page.goto(server.url)
        page.locator("main canvas[data-part=photo][aria-label]").wait_for()
        rounds.append((time.monotonic() - begun, slowness()))
        print("the first figure: {:.1f} s, slowness {:.2f}".format(*rounds[-1]))
        if rounds[-1][0] <= 3 * rounds[-1][1]:
            return
    pytest.fail(f"seconds and slowness: {rounds}")


ANSWERED = """([heading, words]) =>
  document.querySelector("h1")?.innerText.trim() === heading
  && document.querySelector(".st-key-provenance")?.innerText.includes(words)
  && document.querySelector("[data-test-script-state=notRunning]")
  && !document.querySelector("main [data-stale=true]")
  && [...document.querySelectorAll(".stPlotlyChart")].every((chart) =>
       chart.querySelector(".main-svg"))"""


def seconds_to_answer(page: "Page", ask: Callable[[], None], name: str, words: str) -> float:
    """From the asking until everything of the page is drawn, looked at in every frame.

    A locator's own waiting looks every 500 ms in the end, too seldom to time with.
    """
    heading = f"{page_text(name).title}: {page_text(name).question}"
    begun = time.monotonic()
    ask()
    page.wait_for_function(ANSWERED, arg=[heading, words])
    return time.monotonic() - begun


def test_pages_and_the_layer_answer_within_a_second(page: "Page", server: Server) -> None:
    opened(page, server)
    for name in PAGES:  # what is made once is made here
        turn(page, name)
    for _ in range(ROUNDS):
        times = {}
        for name in PAGES:
            link = page.get_by_role("link", name=PAGES[name].tab, exact=True)
            times[name] = seconds_to_answer(page, link.click, name, " · ")
            if "layer" not in PAGES[name].settings or PAGES[name].has_layer_menu:
                continue
            slider = page.locator(".st-key-layer input")
            for key, words in (("Home", "layer 1 of 6"), ("End", "layer 6 of 6")):
                press = partial(slider.press, key)
                times[f"{name} {key}"] = seconds_to_answer(page, press, name, words)
        most, slow = np.quantile(list(times.values()), 0.95), slowness()
        print(f"a page or a layer, 95th percentile: {most:.2f} s, slowness {slow:.2f}")
        if most <= slow:
            return
    pytest.fail(f"too slow: { ({what: round(took, 2) for what, took in times.items()}) }")
