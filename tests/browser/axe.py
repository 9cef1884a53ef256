"""What axe-core finds wrong on a page for readers with a screen reader: WCAG 2.2, level AA."""

import os
from typing import TYPE_CHECKING

import pytest
from app_server import ROOT

from .walk import until

if TYPE_CHECKING:
    from playwright.sync_api import Page

AXE = ROOT / "node_modules" / "axe-core" / "axe.min.js"
# Each finding in a line: the rule, where, and the element.
VIOLATIONS = """async () => {
  const tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];
  const { violations } = await axe.run({ runOnly: tags, resultTypes: ["violations"] });
  return violations.flatMap(({ help, nodes }) => nodes.map(
    ({ html, failureSummary }) => `${help}: ${html.slice(0, 160)} (${failureSummary})`));
}"""


MENUS = ("Your picture", "Input", "Lessons", "Menu")
ONE_FOR_ALL = "attention"  # the page on which the menus are opened that all pages have


def expect_no_violation(page: "Page", name: str) -> None:
    """Neither the page nor a menu that is open breaks a rule that axe-core knows."""
    if not AXE.exists():
        assert not os.environ.get("CI"), "npm ci installs axe-core"
        pytest.skip("axe-core is not installed: npm ci")
    explanation = page.locator(".st-key-explanation summary")
    explanation.click()
    _expect_none(page, name)
    explanation.click()
    for menu in ("Settings", *(MENUS if name == ONE_FOR_ALL else ())):
        button = page.locator("[data-testid=stPopover] button").filter(has_text=menu)
        if menu == "Settings" and not button.count():
            continue
        button.click()
        page.locator("[data-testid=stPopoverBody]").wait_for()
        _expect_none(page, f"{name}, with {menu} open")
        page.keyboard.press("Escape")
        page.locator("[data-testid=stPopoverBody]").wait_for(state="hidden")


def _expect_none(page: "Page", where: str) -> None:
    """Look again while there are any, as colours change over a moment."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(AXE.read_text(encoding="utf-8"))
    found: list[str] = []

    def holds() -> bool:
        found[:] = page.evaluate(VIOLATIONS)
        return not found

    try:
        until(page, holds, seconds=5)
    except AssertionError:
        raise AssertionError("\n".join([where, *found])) from None
