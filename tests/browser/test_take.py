"""Pictures from the clipboard and from the camera."""

import base64
import io
from typing import TYPE_CHECKING

import pytest
from app_server import HERE, Server
from PIL import Image

from .conftest import CHROMIUM, FLAGS, watched

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
COPY = """async (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const blob = new Blob([bytes], { type: "image/png" });
  await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
}"""
PASTE = """(text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""


def png() -> str:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((90, 60)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def opened(page: "Page", server: Server) -> "Page":
    page.goto(f"{server.url}/attention")
    page.locator(".st-key-provenance").wait_for()
    page.locator("canvas[data-part=map][aria-label]").wait_for()  # components listen by now
    return page


def expect_picture(page: "Page", name: str) -> None:
    page.locator(".st-key-provenance").get_by_text(name).wait_for()
    assert "sample" not in page.locator(".st-key-provenance").inner_text()


def test_the_button_takes_what_was_copied_if_it_is_a_picture(page: "Page", server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, server)
    page.evaluate("navigator.clipboard.writeText('words')")
    page.get_by_role("button", name="Your picture").click()
    page.get_by_role("button", name="Paste from the clipboard").click()
    page.get_by_text("There is no picture on the clipboard.").wait_for()
    assert "sample: dog" in page.locator(".st-key-provenance").inner_text()
    page.evaluate(COPY, png())
    page.get_by_role("button", name="Paste from the clipboard").click()
    expect_picture(page, "from the clipboard")
    photo = page.locator("canvas[data-part=photo]")
    shape = photo.evaluate("canvas => canvas.width / canvas.height")
    assert shape == pytest.approx(90 / 60, abs=0.02)


def test_a_picture_is_pasted_anywhere_on_the_page_and_what_is_wrong_gets_its_sentence(
    page: "Page", server: Server
) -> None:
    opened(page, server).evaluate(PASTE, base64.b64encode(b"no picture").decode())
    page.get_by_text("The previous picture is kept.").wait_for()
    assert "sample: dog" in page.locator(".st-key-provenance").inner_text()
    page.evaluate(
        """() => {
          const clipboardData = new DataTransfer();
          const bytes = new Uint8Array(25e6 + 1);
          clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }"""
    )
    said = "The picture from the clipboard is larger than 25 MB. The previous picture is kept."
    page.get_by_text(said, exact=True).wait_for()
    assert "sample: dog" in page.locator(".st-key-provenance").inner_text()
    page.evaluate(PASTE, png())
    expect_picture(page, "from the clipboard")
    assert page.get_by_text(said, exact=True).count() == 0


def test_the_camera_takes_a_picture(browser: "Browser", server: Server) -> None:
    chromium = browser.browser_type.launch(executable_path=CHROMIUM, args=[*FLAGS, *CAMERA])
    try:
        with watched(chromium) as page:
            page.context.grant_permissions(["camera"], origin=f"http://{HERE}")
            opened(page, server)
            page.get_by_role("button", name="Your picture").click()
            assert page.locator("video").count() == 0  # off until it is asked for
            page.get_by_text("Use the camera").click()
            # A photo taken before the first frame arrives is empty, and Streamlit drops it.
            page.wait_for_function("document.querySelector('video')?.readyState >= 2")
            page.get_by_role("button", name="Take Photo").click()
            expect_picture(page, ".jpg")
    finally:
        chromium.close()
