"""What the app promises: links, no message on hover, the keyboard."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, urlsplit

from app_server import Server

from vitviz.app.pages import PAGES

from .walk import opened, reading, settled, turn, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

# --- links --------------------------------------------------------------------------------------


def chosen(page: "Page") -> tuple[str, str]:
    """The layer and the query in the address."""
    settings = dict(parse_qsl(urlsplit(page.url).query))
    return settings.get("layer", ""), settings.get("query", "")


def chosen_by_keys(page: "Page") -> tuple[str, str, str]:
    """Another layer and query are chosen: the link, what the map says and the line below."""
    layer, query = chosen(page)
    page.locator("main canvas[data-part=photo]").focus()
    for key in ("p", "p", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    until(page, lambda: chosen(page)[0] != layer and chosen(page)[1] != query)
    settled(page)
    return page.url, reading(page), page.locator(".st-key-provenance").inner_text()


def expect_shown(page: "Page", link: str, said: str, line: str) -> None:
    """What a link shows in a browser that knows nothing of what was chosen."""
    page.evaluate("localStorage.clear(); sessionStorage.clear()")
    page.goto("about:blank")
    page.goto(link)
    page.locator(".st-key-provenance").wait_for()
    settled(page)
    until(page, lambda: reading(page) == said)
    assert page.url == link
    assert page.locator(".st-key-provenance").inner_text() == line


def test_a_copied_link_shows_the_same(page: "Page", server: Server) -> None:
    opened(page, server, "attention")
    shown = [chosen_by_keys(page)]
    for name in ("rollout", "tokens"):
        turn(page, name)
        shown.append(chosen_by_keys(page))
    assert len({said for _, said, _ in shown}) == len(shown)
    for link, said, line in shown:
        expect_shown(page, link, said, line)


# --- answers ------------------------------------------------------------------------------------


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


# --- for everyone -------------------------------------------------------------------------------


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
