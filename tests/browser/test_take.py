"""Pictures from the clipboard, from the camera and from a file."""

import base64
import io
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import pytest
from app_server import HERE, Server
from PIL import Image

from vitviz.app.shared import pictures

from .conftest import noted
from .walk import opened, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page, Route, WebSocketRoute

COPY = """async (text) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const blob = new Blob([bytes], { type: "image/png" });
  await navigator.clipboard.write([new ClipboardItem({ "image/png": blob })]);
}"""
PASTE = """([text, name, type]) => {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([bytes], name, { type }));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""


FILE = '[data-testid="stFileUploader"] input[type=file]'


def paste(page: "Page", data: bytes, name: str = "image.png", kind: str = "image/png") -> None:
    page.evaluate(PASTE, [base64.b64encode(data).decode(), name, kind])


def choose(field: "Locator", name: str, data: bytes) -> None:
    """Choose a file, as in the window of the system."""
    field.set_input_files({"name": name, "mimeType": "", "buffer": data})


def choose_in_box(page: "Page", name: str, data: bytes) -> None:
    page.get_by_role("button", name="Your picture").click()
    choose(page.locator(FILE), name, data)


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((width, height)).save(file, "PNG")
    return file.getvalue()


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
    paste(page, b"no picture")
    page.get_by_text("The previous picture is kept.").wait_for()
    assert "sample: red panda" in page.locator(".st-key-provenance").inner_text()
    page.evaluate(
        """() => {
          const clipboardData = new DataTransfer();
          const bytes = new Uint8Array(25e6 + 1);
          clipboardData.items.add(new File([bytes], "image.png", { type: "image/png" }));
          document.body.dispatchEvent(
            new ClipboardEvent("paste", { clipboardData, bubbles: true }));
        }"""
    )
    said = "The picture is larger than 25 MB. The previous picture is kept."
    page.get_by_text(said, exact=True).wait_for()
    assert "sample: red panda" in page.locator(".st-key-provenance").inner_text()
    paste(page, png(90, 60))
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
    page.evaluate(COPY, base64.b64encode(png(60, 90)).decode())
    page.get_by_role("button", name="Paste from the clipboard").click()
    expect_picture(page, "from the clipboard")
    photo = page.locator("canvas[data-part=photo]")
    shape = photo.evaluate("canvas => canvas.width / canvas.height")
    assert shape == pytest.approx(60 / 90, abs=0.02)


# A bitmap of 24.9 MB, which is made where it is pasted.
PASTE_LARGE = """() => {
  const side = 2880;
  const head = new DataView(new ArrayBuffer(54));
  [[0, 0x4d42], [26, 1], [28, 24]].forEach(([at, value]) => head.setUint16(at, value, true));
  [[2, 54 + 3 * side * side], [10, 54], [14, 40], [18, side], [22, side]].forEach(
    ([at, value]) => head.setUint32(at, value, true));
  const clipboardData = new DataTransfer();
  const bytes = new Uint8Array(3 * side * side).fill(99);
  clipboardData.items.add(new File([head, bytes], "image.bmp", { type: "image/bmp" }));
  document.body.dispatchEvent(new ClipboardEvent("paste", { clipboardData, bubbles: true }));
}"""


def listening(page: "Page", server: Server) -> None:
    opened(page, server)
    page.locator("canvas[data-part=map][aria-label]").wait_for()


def test_a_paste_of_nearly_25_mb_arrives_and_of_other_kinds_is_named(
    page: "Page", server: Server
) -> None:
    listening(page, server)
    page.evaluate(PASTE_LARGE)
    expect_picture(page, "from the clipboard")
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(200)
    for data, name, kind, said in (
        (heic, "IMG_1.HEIC", "", "HEIC is not supported"),
        (b"%PDF-1.4", "a.pdf", "application/pdf", "PDF is not supported"),
        (b"\1\2\3", "a.bin", "", "format of the file is unknown"),
    ):
        paste(page, data, name, kind)
        page.get_by_role("alert").get_by_text(said).wait_for()
    paste(page, png(90, 60), "a.jfif", "")  # its kind is in its bytes
    page.get_by_role("alert").wait_for(state="detached")
    assert "from the clipboard" in page.locator(".st-key-provenance").inner_text()


@pytest.mark.parametrize("leave", ["Escape", "another page"])
def test_an_upload_goes_on_when_its_box_is_closed(leave: str, page: "Page", server: Server) -> None:
    listening(page, server)
    slow = page.context.new_cdp_session(page)
    slow.send("Network.enable")
    rate = {"latency": 5, "downloadThroughput": 4e6, "uploadThroughput": 2e5}
    slow.send("Network.emulateNetworkConditions", {"offline": False, **rate})
    try:
        with page.expect_request("**/upload_file/**"):
            bitmap = io.BytesIO()
            Image.linear_gradient("L").resize((500, 400)).save(bitmap, "BMP")  # 200 kB: a second
            choose_in_box(page, "slow.bmp", bitmap.getvalue())
        if leave == "Escape":
            page.keyboard.press("Escape")
        else:
            turn(page, "distance")
        page.locator(FILE).wait_for(state="detached")
        expect_picture(page, "slow.bmp")
    finally:
        slow.detach()


def test_an_upload_that_breaks_off_behind_a_closed_box_is_told(
    browser: "Browser", server: Server
) -> None:
    with noted(browser, "light", online=True, host=HERE, locale="en-US") as (page, _):
        listening(page, server)
        asked: list[Route] = []
        page.route("**/upload_file/**", lambda route: asked.append(route))
        with page.expect_request("**/upload_file/**"):
            choose_in_box(page, "a.png", png(90, 60))
        page.keyboard.press("Escape")
        page.locator(FILE).wait_for(state="detached")
        asked[0].abort()
        page.get_by_role("alert").get_by_text("The picture did not arrive").wait_for()
        assert "sample: red panda" in page.locator(".st-key-provenance").inner_text()


def test_an_upload_has_its_own_maps_on_every_page(page: "Page", server: Server) -> None:
    pages, sample = ("rollout", "tokens", "attention"), {}

    def maps() -> set[str]:
        parts = page.locator("main :is(canvas[data-part=photo], canvas[data-part=map])")
        return {*parts.evaluate_all("all => all.map((canvas) => canvas.toDataURL())")}

    def are_others(than: set[str]) -> bool:
        return len(maps()) >= len(than) and maps().isdisjoint(than)

    listening(page, server)
    for name in pages:
        turn(page, name)
        page.wait_for_timeout(500)  # the picture is decoded a little later
        sample[name] = maps()
    size = pictures.sample(pictures.DEFAULT).size  # of another size, all would be drawn elsewhere
    choose_in_box(page, "mine.png", png(*size))
    expect_picture(page, "mine.png")
    page.keyboard.press("Escape")
    for name in pages:
        turn(page, name)
        expect_picture(page, "mine.png")
        until(page, partial(are_others, sample[name]))


def test_an_upload_stays_where_the_answer_takes_long(
    visit: "Callable[[], Page]", server: Server
) -> None:
    """What the page sends before it has the answer holds its menus as they were."""
    page = visit()
    sockets: list[WebSocketRoute] = []
    held: list[str | bytes] = []
    holds = False

    def pass_on(message: str | bytes) -> None:
        if holds:
            held.append(message)
        else:
            sockets[0].send(message)

    def route(to_page: "WebSocketRoute") -> None:
        sockets.append(to_page)
        to_page.connect_to_server().on_message(pass_on)

    page.route_web_socket("**/_stcore/stream", route)
    listening(page, server)
    with page.expect_request("**/upload_file/**"):
        choose_in_box(page, "mine.png", png(300, 200))
    holds = True
    page.wait_for_timeout(2500)
    holds = False
    for message in held:
        sockets[0].send(message)
    expect_picture(page, "mine.png")
    settled(page)
    expect_picture(page, "mine.png")


def test_a_sample_that_is_chosen_by_a_key_keeps_the_focus(page: "Page", server: Server) -> None:
    opened(page, server, "attention")
    settled(page)
    name = next(one for one in pictures.samples() if one != pictures.DEFAULT)
    sample = page.get_by_role("button", name=pictures.title(name), exact=True)
    sample.focus()
    page.keyboard.press("Enter")
    page.locator(".st-key-provenance").filter(has_text=pictures.title(name)).wait_for()
    settled(page)
    assert sample.get_attribute("aria-pressed") == "true"
    assert sample.evaluate("button => button.getRootNode().activeElement === button")
