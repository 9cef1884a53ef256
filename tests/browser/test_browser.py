"""The app as a class sees it: pages, pictures and settings, in a browser that stays offline.

The tests walk by clicks. What they know of the look of a page stands at the top.
"""

import io
import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from app_server import PATIENCE, ROOT, Server
from PIL import Image, ImageChops

from vitviz.app.pages import PAGES
from vitviz.text import page_text

from .readable import FIGURES, MODEL, expect_to_be_seen_and_read
from .walk import settled

try:
    from playwright.sync_api import Locator, Page, expect
except ImportError:
    if os.environ.get("CI"):
        raise
    pytest.skip("playwright is not installed", allow_module_level=True)

# --- what the pages look like -------------------------------------------------------------------

PHOTO = "main canvas[data-part=photo]"  # of the Attention page, as is the map
MAP = "main canvas[data-part=map]"
CARDS = "main .card"  # of the Anatomy page, with small pictures
OF_A_PROFILE = "[aria-label^=CKA], [aria-label^=Lengths]"  # figures of other pictures
# What is drawn of the picture; and the small maps, which have nothing beneath them.
DRAWN = f"{FIGURES}:not({OF_A_PROFILE}), main button canvas"
UPLOAD = "Your picture"  # the button that opens the box with the file input
PROVENANCE = ".st-key-provenance"
OF_THE_PICTURE = ("tokens", "rollout", "attention")  # pages whose every picture is of the upload

# A digest of the pictures that each figure holds, whatever it is made of.
PICTURES = """figures => {
  const bytes = part => {
    const { width, height } = part;
    if (part.matches("canvas"))
      return width && height ? part.getContext("2d").getImageData(0, 0, width, height).data : [];
    return new TextEncoder().encode(
      part.matches("image") ? part.href.baseVal : part.matches("img") ? part.src : "");
  };
  const digest = async held =>
    new Uint8Array(await crypto.subtle.digest("SHA-256", held)).join();
  return Promise.all(figures.map(async figure => {
    const parts = [figure, ...figure.querySelectorAll("canvas, image, img")].map(bytes);
    return (await Promise.all(parts.filter(held => held.length).map(digest))).join();
  }));
}"""


def provenance(page: Page) -> Locator:
    return page.locator(PROVENANCE)


def complaint(page: Page) -> Locator:
    return page.get_by_role("alert")


def slider(page: Page) -> Locator:
    return page.get_by_role("slider", name="Layer")


def menu(page: Page, label: str) -> Locator:
    return page.get_by_role("combobox", name=label)


# --- what one does with them --------------------------------------------------------------------


def until(page: Page, holds: Callable[[], bool]) -> None:
    """Wait for what no locator can say."""
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        page.wait_for_timeout(100)


def open_app(page: Page, server: Server, name: str = "attention") -> Page:
    page.goto(f"{server.url}/{name}")
    expect(provenance(page)).to_contain_text("sample: red panda")
    return page


def go(page: Page, name: str) -> None:
    """Click the page's entry, and wait until it is drawn to its last line."""
    words = page_text(name)
    settled(page)
    entry, heading = page.get_by_role("link", name=PAGES[name].tab, exact=True), page.locator("h1")
    entry.click()
    try:
        expect(heading).to_have_text(f"{words.title}: {words.question}", timeout=15_000)
    except (
        AssertionError
    ):  # Streamlit forgets a click while a change of the same page is on its way
        settled(page)
        entry.click()
    expect(heading).to_have_text(f"{words.title}: {words.question}")
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")


def choose(page: Page, label: str, option: str) -> None:
    menu(page, label).click()
    menu(page, label).fill(option)
    page.get_by_role("option", name=option, exact=True).click()
    page.mouse.move(0, 0)  # a pointer over a figure would change it


def upload(page: Page, name: str, data: bytes, *, refused: str | None = None) -> None:
    """Give a file to the real input, one click away, and close its box when it has been taken."""
    page.get_by_role("button", name=UPLOAD).click()
    file: Any = {"name": name, "mimeType": "image/png", "buffer": data}
    page.locator("input[type=file]").set_input_files(file)
    taken = provenance(page).filter(has_text=name)
    expect(complaint(page).filter(has_text=refused) if refused else taken).to_be_visible()
    page.keyboard.press("Escape")
    page.mouse.move(0, 0)


def pictures(page: Page, figures: str = DRAWN) -> list[str]:
    """A digest of what each figure with pictures holds now."""
    held: list[str] = page.locator(figures).evaluate_all(PICTURES)
    return [digest for digest in held if digest]


def drawn(page: Page) -> list[str]:
    """The pictures of a page, once they stand still."""
    seen: list[list[str]] = []

    def still() -> bool:
        seen.append(pictures(page))
        return len(seen) > 1 and bool(seen[-1]) and seen[-1] == seen[-2]

    until(page, still)
    return seen[-1]


def expect_other_pictures(page: Page, than: list[str]) -> None:
    """As many pictures as before, none of them the same."""

    def other() -> bool:
        now = pictures(page)
        return len(now) >= len(than) and set(now).isdisjoint(than)

    until(page, other)


def png(size: tuple[int, int], colour: str | None = None) -> bytes:
    """A picture of one colour, or else from black to white."""
    picture = Image.new("RGB", size, colour) if colour else Image.linear_gradient("L").resize(size)
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def app(page: Page, server: Server) -> Page:
    return open_app(page, server)


# --- opening ------------------------------------------------------------------------------------


LOOKS = """window.looks = new Set();
(function look() {
  const main = document.querySelector(".stMainBlockContainer");
  const title = document.querySelector("h1");
  if (main) looks.add(`room ${getComputedStyle(main).paddingTop}`);
  if (title) looks.add(`title ${Math.round(title.getBoundingClientRect().y)}`);
  requestAnimationFrame(look);
})();"""


def test_it_opens_on_the_first_page_without_a_click_and_nothing_is_drawn_before_its_style(
    visit: Callable[[], Page], server: Server
) -> None:
    """Looked at in every frame, from the first."""
    page = visit()
    page.add_init_script(LOOKS)
    open_app(page, server, "")
    looks: list[str] = page.evaluate("[...looks]")
    assert sorted(look.split()[0] for look in looks) == ["room", "title"], looks
    words = page_text("anatomy")
    expect(page.locator("h1")).to_have_text(f"{words.title}: {words.question}")
    expect(page.locator(CARDS)).to_have_count(9)
    until(page, lambda: len(set(pictures(page, CARDS))) == 8)  # the last one names the class
    expect(provenance(page)).to_be_visible()
    expect(provenance(page)).to_contain_text(f"{MODEL} (ViT, ")
    expect(provenance(page)).to_contain_text(" · ")
    expect_to_be_seen_and_read(page, "anatomy", "light")


# --- pictures -----------------------------------------------------------------------------------


def test_a_sample_has_its_own_map(app: Page) -> None:
    first = drawn(app)
    choose(app, "Picture", "moose")
    expect(provenance(app)).to_contain_text("sample: moose")
    expect_other_pictures(app, first)
    choose(app, "Picture", "red panda")
    expect(provenance(app)).to_contain_text("sample: red panda")
    until(app, lambda: set(pictures(app)) >= set(first))


def test_an_upload_has_its_own_maps_on_every_page(app: Page) -> None:
    sample = {}
    for name in OF_THE_PICTURE:
        go(app, name)
        sample[name] = drawn(app)
    upload(app, "mine.png", png((300, 200)))
    for name in OF_THE_PICTURE:
        go(app, name)
        expect(provenance(app)).to_have_text(re.compile(r" · mine\.png$"))
        expect_other_pictures(app, sample[name])


def test_a_portrait_keeps_its_aspect_and_the_name_of_its_file_is_text(app: Page) -> None:
    name = "<img src=x onerror=alert(1)>.png"
    upload(app, name, png((150, 240), "#00d000"))
    expect(provenance(app)).to_have_text(re.compile(re.escape(name) + "$"))
    expect(menu(app, "Picture")).to_have_value(name)
    expect(app.locator("img[src=x]")).to_have_count(0)
    drawn(app)
    shot = Image.open(io.BytesIO(app.locator(PHOTO).screenshot())).convert("RGB")
    left, top, right, bottom = green(shot)
    assert right - left > 50
    assert (bottom - top) / (right - left) == pytest.approx(240 / 150, rel=0.03)


def green(shot: Image.Image) -> tuple[int, int, int, int]:
    """The box around all that is clearly green."""
    red, green, blue = shot.split()
    excess = ImageChops.subtract(green, ImageChops.lighter(red, blue))
    box = excess.point(lambda value: 255 * (value > 50)).getbbox()
    assert box
    return box


def test_a_bad_upload_leaves_a_sentence_and_the_last_picture(app: Page) -> None:
    sentence = re.compile(r"^[A-Z][^\n]+\. The previous picture is kept\.$")
    jpeg = (ROOT / "assets" / "samples" / "dog.jpg").read_bytes()
    upload(app, "mine.png", png((300, 200)))
    mine, before = drawn(app), provenance(app).inner_text()
    upload(app, "evil.png", b"text", refused="not supported")
    expect(complaint(app)).to_have_text(sentence)
    expect(provenance(app)).to_have_text(before)
    upload(app, "half.jpg", jpeg[: len(jpeg) // 2], refused="cut off")
    expect(complaint(app)).to_have_text(sentence)
    expect(provenance(app)).to_have_text(before)
    until(app, lambda: set(pictures(app)) >= set(mine))

    slider(app).press("ArrowLeft")
    after = before.replace("layer 6", "layer 5")
    expect(provenance(app)).to_have_text(after)
    expect(complaint(app)).to_have_text(sentence)
    go(app, "tokens")  # which has no heads and one scale
    after = after.replace(" · mean of heads · each map on its own scale", "")
    expect(provenance(app)).to_have_text(after)
    expect(complaint(app)).to_have_text(sentence)

    upload(app, "other.png", png((200, 300)))
    expect(provenance(app)).to_have_text(after.replace("mine.png", "other.png"))
    expect(complaint(app)).to_have_count(0)


# --- settings -----------------------------------------------------------------------------------


def test_a_change_of_page_keeps_the_settings(app: Page) -> None:
    slider(app).press("ArrowLeft")
    expect(provenance(app)).to_contain_text("layer 5 of 6 · mean of heads")
    app.locator(PHOTO).press("ArrowRight")  # from CLS to the middle
    app.get_by_role("button", name=re.compile("head 3 .* its maximum")).click()
    expect(provenance(app)).to_contain_text("layer 5 of 6 · head 3")
    before = provenance(app).inner_text()
    go(app, "tokens")
    expect(provenance(app)).to_contain_text("layer 5 of 6")
    go(app, "filters")
    go(app, "attention")
    expect(provenance(app)).to_have_text(before)
    expect(slider(app)).to_have_value("5")
    expect(app.locator(MAP)).to_have_attribute(
        "aria-label", re.compile("^query row 9 column 9, head 3:")
    )


def test_two_readers_share_neither_picture_nor_settings(
    app: Page, visit: Callable[[], Page], server: Server
) -> None:
    mine, theirs = app, open_app(visit(), server)
    slider(mine).press("ArrowLeft")
    expect(provenance(mine)).to_contain_text("layer 5 of 6")
    upload(mine, "mine.png", png((30, 20)))
    choose(theirs, "Picture", "moose")
    expect(provenance(theirs)).to_contain_text("sample: moose")
    expect(provenance(theirs)).to_contain_text("layer 6 of 6")
    menu(theirs, "Picture").click()
    expect(theirs.get_by_role("option", name="red panda")).to_be_visible()
    expect(theirs.get_by_role("option", name="mine.png")).to_have_count(0)
    go(mine, "tokens")
    expect(provenance(mine)).to_contain_text("layer 5 of 6")
    expect(provenance(mine)).to_contain_text("mine.png")
