"""A page that was open while the server went away and came back, now with names of the hub."""

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app_server import HERE, PATIENCE, free_port, serving

from .conftest import noted
from .test_menu import typed

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@contextmanager
def restarted(browser: "Browser", folder: Path, link: str, *keys: str) -> "Iterator[Page]":
    """A page that was opened by a link and given keys on its photo, with its server anew."""
    from playwright.sync_api import expect

    port = free_port()
    with noted(browser, "light", online=True, host=HERE, locale="en-US") as (page, wrong):
        with serving(folder / "first", port=port) as server:
            page.goto(f"{server.url}/{link}")
            photo = page.locator("main canvas[data-part=photo][aria-label]")
            for key in keys:
                photo.press(key)
                expect(page).to_have_url(re.compile("query="))
            slider = page.get_by_role("slider", name="Layer")
            line = page.locator(".st-key-provenance")
            expect(line).to_contain_text("layer 6 of 6")
            slider.press("ArrowLeft")
            expect(line).to_contain_text("layer 5 of 6")
            expect(page).to_have_url(re.compile("layer=5"))
            os.killpg(server.pid, signal.SIGKILL)
            expect(slider).to_be_disabled()
        with serving(folder / "second", "--", "--hub", port=port):
            expect(slider).to_be_enabled(timeout=1000 * 2 * PATIENCE)
            app = page.get_by_test_id("stApp")
            # The page asks by itself for what the address says.
            expect(app).to_have_attribute("data-test-script-state", "running")
            expect(app).to_have_attribute(
                "data-test-script-state", "notRunning", timeout=1000 * 3 * PATIENCE
            )
            wrong.clear()  # it had asked in vain for the server
            yield page
        assert not wrong, "\n".join(wrong)


def test_an_open_page_comes_back_with_its_settings_and_the_map_of_its_label_and_asks_the_hub(
    browser: "Browser", tmp_path: Path
) -> None:
    """The new session counts its messages from 0, and the map had counted further.

    The new server takes names of the hub, which are typed by keys; as it reaches no hub, they fail
    with one sentence.
    """
    from playwright.sync_api import expect

    with restarted(browser, tmp_path, "attention?picture=moose", "ArrowRight") as page:
        line = page.locator(".st-key-provenance")
        title = page.locator("main canvas[data-part=map]").locator("xpath=ancestor::section")
        expect(line).to_contain_text("layer 5 of 6")
        expect(line).to_contain_text("sample: moose")
        expect(title).to_contain_text("layer 5")
        page.get_by_role("slider", name="Layer").press("ArrowLeft")
        expect(line).to_contain_text("layer 4 of 6")
        expect(title).to_contain_text("layer 4")
        assert "picture=moose" in page.url
        expect(page).to_have_url(re.compile("layer=4"))
        typed(page, "^Model", "no/model")
        said = "is neither in the menu nor a name of the hub"
        expect(page.get_by_text(said)).to_be_visible()
        typed(page, "^Model", "hf-hub:nobody/nothing")
        expect(page.get_by_role("alert")).to_contain_text("config.json of hf-hub:nobody/nothing")
        expect(line).to_contain_text("vitviz_things200")
