"""The size of the input in the menu: by keys, in the light and in the dark."""

import os
import re
from typing import Any

import pytest
from app_server import Server

from .readable import LOOK, SMALLEST
from .walk import opened, settled

try:
    from playwright.sync_api import Page, expect
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

POPOVER = "[data-testid=stPopoverBody]"


def typed(page: Page, label: str, words: str) -> None:
    """Fill a menu by keys alone."""
    field = page.get_by_role("combobox", name=re.compile(label))
    field.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    settled(page)


def expect_readable(page: Page) -> str:
    """What stands in the open menu can be read; returns the colour of its ground."""
    look: Any = page.evaluate(
        LOOK.replace('querySelector("main")', f'querySelector("{POPOVER}")', 1)
    )
    assert len(look["texts"]) >= 2
    assert all(text["contrast"] >= 4.5 and text["size"] >= SMALLEST for text in look["texts"])
    ground = page.locator(POPOVER).evaluate("menu => getComputedStyle(menu).backgroundColor")
    return str(ground)


def test_the_size_of_the_input_is_chosen_by_keys_and_can_be_read(
    page: Page, server: Server
) -> None:
    opened(page, server)
    page.get_by_role("button", name=re.compile("^Input 64 × 64")).focus()
    page.keyboard.press("Enter")
    expect(page.locator(POPOVER)).to_contain_text("16 × 16 patches, 257 tokens.")
    light = expect_readable(page)
    page.emulate_media(color_scheme="dark")
    expect(page.locator(POPOVER)).not_to_have_css("background-color", light)
    expect_readable(page)
    typed(page, "Size of the input", "48x64")
    expect(page.get_by_role("button", name=re.compile("^Input 48 × 64"))).to_be_visible()
    expect(page.locator(POPOVER)).to_contain_text("12 × 16 patches, 193 tokens instead of 257")
    typed(page, "Size of the input", "64x64")
    expect(page.get_by_role("button", name=re.compile("^Input 64 × 64"))).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(POPOVER)).to_be_hidden()
