"""Pictures from the clipboard and from the camera."""

import base64
import io
from typing import TYPE_CHECKING

import pytest
from app_server import Server
from PIL import Image

from .walk import opened

if TYPE_CHECKING:
    from playwright.sync_api import Page

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


def png(width: int, height: int) -> str:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def expect_picture(page: "Page", name: str) -> None:
    page.locator(".st-key-provenance").get_by_text(name).wait_for()
    assert "sample" not in page.locator(".st-key-provenance").inner_text()


def test_a_picture_is_pasted_on_the_page_or_by_the_button_or_taken_by_the_camera(
    page: "Page", server: Server
) -> None:
    """And what is no picture, or too large a one, gets its sentence; the last picture is kept."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write", "camera"])
    opened(page, server)
    page.locator("canvas[data-part=map][aria-label]").wait_for()  # components listen by now
    page.evaluate(PASTE, base64.b64encode(b"no picture").decode())
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
    page.evaluate(PASTE, png(90, 60))
    expect_picture(page, "from the clipboard")
    assert page.get_by_text(said, exact=True).count() == 0

    page.get_by_role("button", name="Your picture").click()
    assert page.locator("video").count() == 0  # the camera is off until it is asked for
    page.get_by_text("Use the camera").click()
    # A photo taken before the first frame arrives is empty, and Streamlit drops it.
    page.wait_for_function("document.querySelector('video')?.readyState >= 2")
    page.get_by_role("button", name="Take Photo").click()
    expect_picture(page, ".jpg")

    page.evaluate("navigator.clipboard.writeText('words')")
    page.get_by_role("button", name="Paste from the clipboard").click()
    page.get_by_text("There is no picture on the clipboard.").wait_for()
    expect_picture(page, ".jpg")
    page.evaluate(COPY, png(60, 90))
    page.get_by_role("button", name="Paste from the clipboard").click()
    expect_picture(page, "from the clipboard")
    photo = page.locator("canvas[data-part=photo]")
    shape = photo.evaluate("canvas => canvas.width / canvas.height")
    assert shape == pytest.approx(60 / 90, abs=0.02)
