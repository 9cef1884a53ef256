"""Every page: at the sizes of telephones, laptops and projectors, as it should look, its figure
first, in the light and in the dark, larger for a projector, its numbers as one takes them away, and
by the keyboard alone. It is loaded once for all of this, and seldom made wider or narrower, as its
figures are then drawn anew."""

from collections.abc import Callable, Iterator
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from vitviz.app.pages import PAGES
from vitviz.text import glossary
from vitviz.text.lessons import LESSONS, lesson_link

from .axe import ONE_FOR_ALL, expect_no_violation
from .conftest import HEIGHT, WIDTH, Scheme, Server, watched
from .golden import PATIENCE, expect_to_look
from .readable import expect_to_be_seen_and_read
from .walk import open_menu, opened, settled, until

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

#: Width and height of a laptop, as the window opens, one that enlarges by a quarter, a telephone
#: and a projector.
LAPTOP, ENLARGED, PHONE, PROJECTOR = (WIDTH, HEIGHT), (1093, 614), (390, 844), (1920, 1080)
MAPS = ("attention", "positions", "rollout", "tokens")
PROVENANCE = ".st-key-provenance"

# Of the document and all that could scroll it: how much wider it is than the window; and of what
# may not be cut off, what is wider than its box; and text that reaches beyond its figure.
TOO_WIDE = """() => {
  const main = document.querySelector("main");
  const around = main.closest("[data-testid=stAppViewContainer]");
  const wide = [document.documentElement, main, main.firstElementChild, around]
    .map((one) => one.scrollWidth - innerWidth);
  const scrolls = (one) => getComputedStyle(one).overflowX !== "visible";
  const buttons = [...document.querySelectorAll("main [data-testid=stButtonGroup] *")];
  const cut = [...document.querySelectorAll("main .katex-display"), ...buttons.filter(scrolls)]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 && one.clientWidth)
    .map((one) => `${one.textContent.slice(0, 30)} ${one.scrollWidth} > ${one.clientWidth}`);
  const beyond = [...document.querySelectorAll("main .js-plotly-plot text")].filter((text) => {
    const [own, figure] = [text, text.closest("svg")].map((one) => one.getBoundingClientRect());
    return own.width && (own.left < figure.left - 1 || own.right > figure.right + 1);
  });
  return { wide: Math.max(...wide), cut, beyond: beyond.map((text) => text.textContent) };
}"""


# Font sizes of what is in sight, in pixels, by what it is.
SIZES = """() => {
  const size = (node) => node && parseFloat(getComputedStyle(node).fontSize);
  const figure = document.querySelector("main .js-plotly-plot .xtick text");
  return {
    label: size(document.querySelector("main label p")),
    title: size(document.querySelector("main h1")),
    figure: size(figure),
  };
}"""

NAME = """const nameOf = (control) => {  // a group of radios is one stop, moved within by arrows
  const element = control.closest("[role=radiogroup]") ?? control;
  return [element.tagName, element.getAttribute("aria-label"),
    element.textContent.trim().slice(0, 30), element.type].join(" ");
};
function* all(root) {
  for (const element of root.querySelectorAll("*")) {
    yield element;
    if (element.shadowRoot) yield* all(element.shadowRoot);
  }
}"""
CONTROLS = f"""() => {{ {NAME}
  return [...all(document.querySelector("main"))]
    .filter((element) => element.matches("button, input, select, textarea, [tabindex='0']"))
    .filter((element) => !element.disabled && element.tabIndex >= 0 && element.checkVisibility())
    .map(nameOf); }}"""
FOCUSED = f"""() => {{ {NAME}
  let element = document.activeElement;
  while (element?.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  return element ? nameOf(element) : ""; }}"""


def resized(page: "Page", width: int, height: int = HEIGHT) -> None:
    if page.viewport_size == {"width": width, "height": height}:
        return
    page.set_viewport_size({"width": width, "height": height})
    page.wait_for_timeout(400)  # figures follow a little later
    settled(page)


def box(page: "Page", what: str) -> dict[str, float]:
    """Left, top, right and bottom on the screen."""
    found: Any = page.locator(what).first.bounding_box()
    assert found
    return {
        "left": found["x"],
        "top": found["y"],
        "right": found["x"] + found["width"],
        "bottom": found["y"] + found["height"],
        "width": found["width"],
    }


class Look(NamedTuple):
    """How a page is looked at."""

    screen: tuple[int, int] = LAPTOP
    scheme: Scheme = "light"
    presenter: bool = False

    def __str__(self) -> str:
        """As its picture is named."""
        dark = "_dark" if self.scheme == "dark" else ""
        return f"{'presenter_' if self.presenter else ''}{self.screen[0]}{dark}"


PLAIN = Look()
# In an order in which little changes from one to the next, as are the tests of this file.
DARK = tuple(Look(size, "dark") for size in (LAPTOP, PHONE))
LIGHT = (*map(Look, (PHONE, ENLARGED, PROJECTOR)), PLAIN)
PRESENTED = Look(presenter=True)
#: Those that are compared with a picture of the page.
PICTURED = {Look(PHONE), Look(PROJECTOR), PLAIN, Look(PHONE, "dark"), PRESENTED}
#: At most so many pixels above the first figure, and at least such a share of the screen.
BUDGETS = {
    PLAIN: (240, 0.45),
    PRESENTED: (200, 0.5),
    Look(ENLARGED): (240, 0.35),
    Look(PHONE): (300, 0.35),
    Look(PROJECTOR): (260, 0.45),
}

# Where the first figure begins and ends, and the share of the screen that figures take. A chart
# counts with its words and numbers; so do the scene of a step of Anatomy and its cards.
FIGURES = """() => {
  const figures = ".stPlotlyChart, canvas, .stImage img, figure img, .items, .cards";
  const found = [];
  let numbers = 0;
  const look = (root) => {
    for (const one of root.querySelectorAll("*")) {
      if (one.shadowRoot) look(one.shadowRoot);
      if (!one.matches(figures)) continue;
      if (!one.checkVisibility()) continue;
      const box = one.getBoundingClientRect();
      if (box.width > 80 && box.height > 60) found.push(box);
      if (one.matches(".items")) numbers = box.bottom;
    }
  };
  look(document.querySelector("main"));
  found.sort((one, other) => one.top - other.top);
  const cells = new Set();
  for (const { left, top, right, bottom } of found)
    for (let y = Math.max(0, top) >> 2; y < Math.min(innerHeight, bottom) >> 2; y++)
      for (let x = Math.max(0, left) >> 2; x < Math.min(innerWidth, right) >> 2; x++)
        cells.add(y * 4096 + x);
  const [{ top, bottom } = { top: Infinity, bottom: Infinity }] = found;
  const share = (16 * cells.size) / (innerWidth * innerHeight);
  return { top, bottom: Math.max(bottom, numbers), share };
}"""


@pytest.fixture(scope="module", params=PAGES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def only(name: str) -> pytest.MarkDecorator:
    """A test of one page."""
    return pytest.mark.parametrize("name", [name], indirect=True)


@pytest.fixture(scope="module")
def window(browser: "Browser") -> "Iterator[Page]":
    """One for all pages, as it loads the next in less processor time than a new one."""
    with watched(browser) as page:
        yield page


@pytest.fixture(scope="module")
def loaded(name: str, window: "Page", server: Server) -> "Page":
    window.goto("about:blank")
    window.emulate_media(color_scheme="dark")  # as the first tests want it
    window.set_viewport_size({"width": WIDTH, "height": HEIGHT})
    return opened(window, server, f"{name}?picture=dog")  # of 4:3; of wide ones models see half


@pytest.fixture
def look() -> Look:
    return PLAIN


@pytest.fixture
def screen(loaded: "Page", look: Look) -> "Page":
    """The page of this name in this look, seen from its top. A test leaves it as it was, but for
    the look, what has the focus and what was scrolled."""
    show_as_presenter(loaded, look.presenter)
    if loaded.evaluate(SCHEME) != look.scheme:
        loaded.emulate_media(color_scheme=look.scheme)
        loaded.wait_for_timeout(400)
        settled(loaded)
    resized(loaded, *look.screen)
    loaded.evaluate(TOP)
    return loaded


def show_as_presenter(page: "Page", presenter: bool) -> None:
    if ("presenter=True" in page.url) != presenter:
        open_menu(page)
        page.get_by_text("Presenter").click()
        until(page, lambda: ("presenter=True" in page.url) == presenter)
        page.keyboard.press("Escape")
        settled(page)


SCHEME = """() => matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light" """


TOP = """() => {
  document.activeElement.blur();
  for (const one of document.querySelectorAll("*")) if (one.scrollTop) one.scrollTop = 0;
}"""


@only(ONE_FOR_ALL)
@pytest.mark.parametrize("look", DARK[:1], ids=str)
def test_axe_finds_nothing_in_the_dark(name: str, look: Look, screen: "Page") -> None:
    """Of the other pages, each text stands out in the dark: see below."""
    expect_no_violation(screen, name)


@pytest.mark.parametrize("look", DARK, ids=str)
def test_it_looks_as_it_should_in_the_dark(name: str, look: Look, screen: "Page") -> None:
    """It is loaded so, and then turned to the light."""
    if look.screen == LAPTOP:
        expect_to_be_seen_and_read(screen, name, look.scheme)
    else:
        expect_to_look(screen, f"{name}_{look}")


@pytest.mark.parametrize("look", LIGHT, ids=str)
def test_it_fits_the_window_and_looks_as_it_should(name: str, look: Look, screen: "Page") -> None:
    expect_to_fit(screen, name, look)
    if look == PLAIN:
        expect_to_be_seen_and_read(screen, name, look.scheme)


def expect_to_fit(page: "Page", name: str, look: Look) -> None:
    """Nothing is wider than the window or cut off, its figure comes first, and what is pictured
    looks as its picture."""
    found = page.evaluate(TOO_WIDE)
    assert found["wide"] <= 0
    assert not found["cut"]
    assert not found["beyond"]
    expect_the_figure_first(page, name, look)
    if look in PICTURED:
        expect_to_look(page, f"{name}_{look}")


def expect_the_figure_first(page: "Page", name: str, look: Look) -> None:
    highest, share = BUDGETS[look]
    deadline = monotonic() + PATIENCE
    while True:  # figures follow a little later
        found: Any = page.evaluate(FIGURES)
        fits = look.screen != LAPTOP or found["bottom"] <= HEIGHT
        if fits and found["top"] <= highest and found["share"] >= share:
            return
        assert monotonic() < deadline, found
        page.wait_for_timeout(200)


@only("filters")
@pytest.mark.parametrize("look", [Look(ENLARGED)], ids=str)
def test_the_numbers_of_a_scale_are_above_the_last_line(look: Look, screen: "Page") -> None:
    numbers = box(screen, ".st-key-response .cbaxis text")
    assert numbers["bottom"] <= box(screen, PROVENANCE)["top"]


def test_every_control_is_reached_by_the_keyboard(screen: "Page") -> None:
    page = screen
    wanted: set[str] = set(page.evaluate(CONTROLS))
    assert len(wanted) >= 5
    reached: set[str] = set()
    for _ in range(3 * len(wanted) + 40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate(FOCUSED))
        if wanted <= reached:
            break
    assert wanted <= reached


def test_axe_finds_nothing_in_the_light(name: str, screen: "Page") -> None:
    expect_no_violation(screen, name)


@only("attention")
def test_it_gives_its_numbers_under_its_provenance(screen: "Page") -> None:
    page = screen
    assert page.get_by_role("button", name="CSV").count() == 0
    page.get_by_text("Data", exact=True).click()
    page.locator("[data-testid=stDataFrame] canvas").first.wait_for()
    settled(page)
    with page.expect_download() as download:
        page.get_by_role("button", name="CSV").first.click()
    lines = Path(download.value.path()).read_text(encoding="utf-8-sig").splitlines()
    assert lines[0] == f"# {page.locator(PROVENANCE).inner_text()}"
    page.get_by_text("Data", exact=True).click()
    until(page, lambda: page.get_by_role("button", name="CSV").count() == 0)
    settled(page)


@only("classify")
def test_charts_stand_under_one_another_where_there_is_no_room(screen: "Page") -> None:
    page = screen
    charts = "main .stPlotlyChart"
    resized(page, 1070)
    tops = page.locator(charts).evaluate_all("all => all.map(o => o.getBoundingClientRect().top)")
    assert len(set(map(round, tops))) == len(tops) >= 3
    resized(page, 1280)
    tops = page.locator(charts).evaluate_all("all => all.map(o => o.getBoundingClientRect().top)")
    assert max(tops[:3]) - min(tops[:3]) < 150


@only("explain")
def test_maps_are_swiped_on_a_phone_rather_than_drawn_small(screen: "Page") -> None:
    page = screen
    resized(page, *PHONE)
    maps = page.locator(".st-key-swipe .heatmaplayer image")
    sides = maps.evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
    assert len(sides) >= 6
    assert min(sides) > 90
    last = maps.last

    def right() -> float:
        return float(last.evaluate("(one) => one.getBoundingClientRect().right"))

    assert right() > PHONE[0]
    page.locator(".st-key-swipe").evaluate("(one) => one.scrollBy(1000, 0)")
    assert right() <= PHONE[0]
    page.locator(".st-key-swipe").evaluate("(one) => one.scrollTo(0, 0)")


@only("attention")
def test_what_is_folded_opens(screen: "Page") -> None:
    page, what, mark = screen, PROVENANCE, "The whole line"
    resized(page, 390, 844)

    def height() -> float:
        return box(page, what)["bottom"] - box(page, what)["top"]

    folded = height()
    page.get_by_label(mark).focus()
    page.keyboard.press("Enter")
    until(page, lambda: height() > 1.5 * folded)
    page.keyboard.press("Enter")
    until(page, lambda: height() == pytest.approx(folded))


@only("attention")
def test_a_definition_opens_on_hover_and_on_focus_and_is_never_cut_off(screen: "Page") -> None:
    page = screen
    term = page.locator(".st-key-lead .term").first
    shown = page.locator(".st-key-lead .meaning:visible")
    for width in (390, WIDTH):
        resized(page, width)
        term.wait_for()
        assert shown.count() == 0
        for show in (term.hover, term.focus):
            show()
            shown.wait_for()
            assert shown.inner_text() == glossary()["attention"]
            assert shown.evaluate(UNCUT)
            page.mouse.move(0, 0)
        page.evaluate("document.activeElement.blur()")
        shown.wait_for(state="hidden")


UNCUT = """tip => { const box = tip.getBoundingClientRect();
  const at = (x, y) => tip.contains(document.elementFromPoint(x, y));
  return box.left >= 0 && box.right <= innerWidth && box.top >= 0
    && at(box.left + 3, box.top + 3) && at(box.right - 3, box.bottom - 3); }"""


def test_everything_is_larger_by_a_quarter_for_a_presenter_and_fits(
    name: str, screen: "Page"
) -> None:
    before = screen.evaluate(SIZES)
    show_as_presenter(screen, True)
    screen.evaluate(TOP)
    after = screen.evaluate(SIZES)
    assert {part: size and 1.25 * size for part, size in before.items()} == pytest.approx(after)
    expect_to_fit(screen, name, PRESENTED)


@pytest.mark.parametrize(("lesson", "step"), [(1, 2), (3, 2), (6, 2)])
def test_a_step_of_a_lesson_has_its_figure_in_the_first_screen(
    lesson: int, step: int, page: "Page", server: Server
) -> None:
    opened(page, server, lesson_link(lesson, step))
    name = f"lesson_{lesson}.{step}"
    end, strip = box(page, PROVENANCE)["top"], box(page, ".st-key-lesson")
    assert page.locator(".st-key-lesson").get_by_role("button").count() >= 2
    assert strip["bottom"] - strip["top"] < 80  # of 720 pixels
    if LESSONS[lesson - 1].steps[step - 1].page in MAPS:
        assert box(page, "main canvas[data-part=map]")["bottom"] <= end
    else:
        page.locator("main canvas, main .main-svg").first.wait_for()
        assert box(page, "main canvas, main .main-svg")["top"] < end - 250
    expect_to_look(page, name)
    resized(page, 390, 844)
    found = page.evaluate(TOO_WIDE)
    assert found["wide"] <= 0
    assert not found["cut"]
    assert not found["beyond"]


def test_a_link_is_copied(page: "Page", server: Server) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, server, "attention?layer=3")
    open_menu(page)
    page.get_by_role("button", name="Copy link").click()
    page.get_by_text("Copied.").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    assert page.url.endswith("layer=3")


def test_a_link_is_shown_where_nothing_can_be_copied(
    visit: "Callable[[], Page]", server: Server
) -> None:
    """As on a server without HTTPS."""
    page = visit()
    page.add_init_script("Object.defineProperty(navigator, 'clipboard', { value: undefined })")
    opened(page, server, "attention?layer=3")
    open_menu(page)
    page.get_by_role("button", name="Copy link").click()
    field = page.get_by_role("textbox", name="Link to what is on screen")
    field.wait_for()
    assert field.input_value() == page.url
    chosen = field.evaluate("one => one.value.slice(one.selectionStart, one.selectionEnd)")
    assert chosen == page.url
