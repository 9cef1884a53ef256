"""Definitions in the caption card: opened by the pointer and by the keyboard, never cut off."""

from typing import TYPE_CHECKING

from vitviz.text import glossary

from .conftest import Server
from .test_every_screen import resized
from .walk import opened

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

WHOLE = """tip => { const box = tip.getBoundingClientRect();
  const at = (x, y) => tip.contains(document.elementFromPoint(x, y));
  return box.left >= 0 && box.right <= innerWidth && box.top >= 0
    && at(box.left + 3, box.top + 3) && at(box.right - 3, box.bottom - 3); }"""


def shown(page: "Page") -> "Locator":
    return page.locator(".st-key-caption .meaning:visible")


def test_a_definition_opens_on_hover_and_on_focus(page: "Page", server: Server) -> None:
    page.set_viewport_size({"width": 390, "height": 720})
    opened(page, server, "attention")
    term = page.locator(".st-key-caption .term").first
    for width in (390, 1280):
        resized(page, width)
        term.wait_for()
        assert shown(page).count() == 0
        for show in (term.hover, term.focus):
            show()
            shown(page).wait_for()
            assert shown(page).inner_text() == glossary()["query"]
            assert shown(page).evaluate(WHOLE)
            page.mouse.move(0, 0)
        page.keyboard.press("Tab")  # to the next term
        assert shown(page).inner_text() == glossary()["key"]
        page.evaluate("document.activeElement.blur()")
        shown(page).wait_for(state="hidden")
