"""The size of the input and names of the hub in the menu: by keys, in the light and in the dark."""

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
from app_server import Server, serving

from .conftest import Scheme, watched
from .readable import LOOK, SMALLEST
from .walk import opened, settled

try:
    from playwright.sync_api import Browser, Page, expect
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

POPOVER = "[data-testid=stPopoverBody]"


@pytest.fixture(scope="module")
def hub(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose operator allows names of the hub, and which reaches none."""
    with serving(tmp_path_factory.mktemp("hub") / "log", "--", "--hub") as server:
        yield server


@pytest.fixture(scope="module", params=["light", "dark"])
def page(browser: Browser, hub: Server, request: pytest.FixtureRequest) -> Iterator[Page]:
    scheme: Scheme = request.param
    with watched(browser, scheme) as page:
        yield opened(page, hub)


def typed(page: Page, label: str, words: str) -> None:
    """Fill a menu by keys alone."""
    field = page.get_by_role("combobox", name=re.compile(label))
    field.focus()
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type(words)
    page.keyboard.press("Enter")
    settled(page)


def test_the_size_of_the_input_is_chosen_by_keys_and_can_be_read(page: Page) -> None:
    page.get_by_role("button", name=re.compile("^Input 64 × 64")).focus()
    page.keyboard.press("Enter")
    expect(page.locator(POPOVER)).to_contain_text("16 × 16 patches, 257 tokens.")
    look: Any = page.evaluate(
        LOOK.replace('querySelector("main")', f'querySelector("{POPOVER}")', 1)
    )
    assert len(look["texts"]) >= 2
    assert all(text["contrast"] >= 4.5 and text["size"] >= SMALLEST for text in look["texts"])
    typed(page, "Size of the input", "48x64")
    expect(page.get_by_role("button", name=re.compile("^Input 48 × 64"))).to_be_visible()
    expect(page.locator(POPOVER)).to_contain_text("12 × 16 patches, 193 tokens instead of 257")
    typed(page, "Size of the input", "64x64")
    expect(page.get_by_role("button", name=re.compile("^Input 64 × 64"))).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator(POPOVER)).to_be_hidden()


def test_a_name_of_the_hub_is_typed_by_keys_and_what_fails_is_one_sentence(page: Page) -> None:
    said = page.get_by_text("is neither in the menu nor a name of the hub")
    typed(page, "^Model", "no/model")
    expect(said).to_be_visible()
    typed(page, "^Model", "hf-hub:nobody/nothing")
    expect(page.get_by_role("alert")).to_contain_text("config.json of hf-hub:nobody/nothing")
    expect(page.locator(".st-key-provenance")).to_contain_text("vitviz_things200")
