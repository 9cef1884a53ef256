"""What the app promises: how it opens, no message on hover, and the keyboard."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from app_server import Server

from vitviz.app.pages import PAGES

from .walk import opened, reading, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

LOOKS = """window.looks = new Set();
(function look() {
  const main = document.querySelector(".stMainBlockContainer");
  const title = document.querySelector("h1");
  if (main) looks.add(`room ${getComputedStyle(main).paddingTop}`);
  if (title) looks.add(`title ${Math.round(title.getBoundingClientRect().y)}`);
  requestAnimationFrame(look);
})();"""


def test_it_opens_on_the_first_page_without_a_click_and_nothing_is_drawn_before_its_style(
    visit: Callable[[], "Page"], server: Server
) -> None:
    """Looked at in every frame, from the first."""
    page = visit()
    page.add_init_script(LOOKS)
    opened(page, server, "")
    looks: list[str] = page.evaluate("[...looks]")
    assert sorted(look.split()[0] for look in looks) == ["room", "title"], looks
    page.locator("h1").get_by_text(PAGES["anatomy"].heading, exact=True).wait_for()
    cards = page.locator("main .card canvas")  # the last of nine names the class
    draw = "all => all.map((canvas) => canvas.toDataURL())"
    until(page, lambda: len({*cards.evaluate_all(draw)}) == 8)
    assert page.locator(".st-key-provenance").inner_text().startswith("vitviz_things200 (ViT, ")


def frames_of(page: "Page") -> dict[str, list[int]]:
    """Sizes of what goes over the websocket from now on."""
    sizes: dict[str, list[int]] = {"sent": [], "received": []}

    def note(kind: str) -> Callable[[Any], None]:
        return lambda data: sizes[kind].append(len(data or ""))

    def connected(socket: Any) -> None:
        socket.on("framesent", note("sent"))
        socket.on("framereceived", note("received"))

    page.on("websocket", connected)
    return sizes


def test_hover_sends_nothing_a_click_one_small_message_and_unwanted_animation_stops(
    page: "Page", server: Server
) -> None:
    sizes = frames_of(page)
    opened(page, server)
    before = reading(page)
    box = page.locator("main canvas[data-part=photo]").bounding_box()
    assert box
    page.wait_for_timeout(500)
    sent = len(sizes["sent"])
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    for step in range(40):
        page.mouse.move(x + step, y + step)
    until(page, lambda: reading(page) != before)
    page.wait_for_timeout(500)
    assert len(sizes["sent"]) == sent
    received = sum(sizes["received"])
    page.mouse.click(x, y)
    until(page, lambda: "query=" in page.url)
    settled(page)
    assert len(sizes["sent"]) == sent + 1
    assert sum(sizes["received"]) - received < 200_000  # the maps stay in the browser

    button = page.locator("main .choice button").first
    lasting = "button => getComputedStyle(button).transitionDuration"
    assert button.evaluate(lasting) != "0s"
    page.emulate_media(reduced_motion="reduce")
    assert button.evaluate(lasting) == "0s"


def test_keys_are_heard_where_the_focus_is_elsewhere_and_on_pages_with_a_map_alone(
    page: "Page", server: Server
) -> None:
    opened(page, server, "attention?layer=2&query=5.9")
    assert reading(page)  # the map listens by now
    page.keyboard.press("n")  # nothing has the focus
    page.get_by_role("link", name=PAGES["rollout"].tab, exact=True).focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: "layer=3" in page.url and "query=5.10" in page.url)
    settled(page)
    before = reading(page)
    page.get_by_role("combobox", name="Picture").click()
    page.get_by_role("listbox").wait_for()
    for key in ("ArrowDown", "2", "Escape"):
        page.keyboard.press(key)
    page.wait_for_timeout(500)
    assert "query=5.10" in page.url  # Esc closed the menu, and is not heard here
    assert reading(page) == before
    turn(page, "rollout")
    page.get_by_role("link", name=PAGES["rollout"].tab, exact=True).focus()
    page.keyboard.press("ArrowRight")
    until(page, lambda: "query=5.11" in page.url)
    settled(page)
    assert reading(page).startswith("query row 5 column 11,")
    for name in ("filters", "anatomy"):
        turn(page, name)
        page.get_by_role("link", name=PAGES[name].tab, exact=True).focus()
        page.evaluate(HEARD)
        page.keyboard.press("ArrowRight")
        page.keyboard.press("n")
        assert page.evaluate("window.heard") == [["ArrowRight", False], ["n", False]]


HEARD = """() => {
  window.heard = [];
  window.onkeydown = ({ key, defaultPrevented }) => heard.push([key, defaultPrevented]);
}"""
