"""A page that was open while the server went away and came back."""

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

from app_server import PATIENCE, free_port, serving

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def test_an_open_page_comes_back_with_its_settings(browser: "Browser", tmp_path: Path) -> None:
    from playwright.sync_api import expect

    port = free_port()
    page = browser.new_page()
    try:
        with serving(tmp_path / "first", port=port) as server:
            page.goto(f"{server.url}/?picture=moose")
            line = page.locator(".st-key-provenance")
            expect(line).to_contain_text("layer 6 of 6")
            slider = page.get_by_role("slider", name="Layer")
            slider.press("ArrowLeft")
            expect(line).to_contain_text("layer 5 of 6")
            before = line.inner_text()
            os.killpg(server.pid, signal.SIGKILL)
            expect(slider).to_be_disabled()
        with serving(tmp_path / "second", port=port):
            expect(slider).to_be_enabled(timeout=1000 * 2 * PATIENCE)
            # The new server knows the address alone, so it shows that, whatever is asked first.
            slider.press("ArrowLeft")
            app = page.get_by_test_id("stApp")
            expect(app).to_have_attribute("data-test-script-state", "running")
            expect(app).to_have_attribute(
                "data-test-script-state", "notRunning", timeout=1000 * 3 * PATIENCE
            )
            expect(line).to_have_text(before)
            slider.press("ArrowLeft")
            expect(line).to_have_text(before.replace("layer 5", "layer 4"))
            assert "picture=moose" in page.url
            assert "layer=4" in page.url
    finally:
        page.close()
