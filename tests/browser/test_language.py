"""Every page in Korean, whose words are longer or shorter than the English ones."""

from typing import TYPE_CHECKING

import pytest

from vitviz.text import PAGES

from .conftest import WIDTH, Server
from .test_every_screen import TOO_WIDE, resized
from .walk import opened

if TYPE_CHECKING:
    from playwright.sync_api import Page


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_window_in_korean(
    name: str, page: "Page", server: Server
) -> None:
    opened(page, server, f"{name}?lang=ko")
    assert {*page.locator(".save-menu summary").all_inner_texts()} <= {"저장"}
    for width in (WIDTH, 390):
        resized(page, width)
        found = page.evaluate(TOO_WIDE)
        assert found["wide"] <= 0, width
        assert not found["cut"], width
