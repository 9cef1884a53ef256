"""The token map alone, in a real browser, on captures whose numbers are known."""

import base64
import io
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image

from vitviz.plots.template import KEY, QUERY, colour_table
from vitviz.web.token_map import (
    Frame,
    MapShape,
    encode_frame,
    encode_window_frame,
    pack_stack,
    photo_url,
    style,
)

from .sources import serve_sources
from .walk import saved as save
from .walk import slowness

if TYPE_CHECKING:
    from playwright.sync_api import Page

HARNESS = """
async ([url, css, stack, view]) => {
  document.body.replaceChildren();
  document.body.style.margin = "0";
  const { default: mount } = await import(`${url}/token_map/view.js`);
  const table = ([type, text]) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const values = new globalThis[type](bytes.buffer);
    return { getChildAt: () => ({ toArray: () => values }) };
  };
  const host = document.createElement("div");
  const style = document.createElement("style");
  style.textContent = css;
  document.body.append(style, host);
  window.sent = [];
  window.view = view;
  window.show = (change) => {
    window.view = { ...window.view, ...change };
    const setTriggerValue = (...event) => sent.push(event);
    mount({ data: window.view, parentElement: host, setTriggerValue });
    return host.view;
  };
  const columns = {};
  for (const name of ["codes", "peaks", "prefix", "places"]) columns[name] = table(stack[name]);
  mount({ data: { stack: stack.stack, ...columns }, parentElement: document.createElement("div") });
  window.show.mount = mount;
  window.component = window.show({});
  await new Promise((done) => setTimeout(done, 100));  // until the picture is decoded
}
"""
SVG = "{http://www.w3.org/2000/svg}"
SIZE = (640, 400)  # of the picture: width, height
CROP = (70.0, 20.0, 560.0, 370.0)
GRID = (10, 14)  # a swap of rows and columns shows
PEAK = (3, 11)
TITLES = {"row": "Where it looks", "column": "Who looks at it", "strip": "All heads of"}
STATE = {
    "frame": 0,
    "head": 0,
    "query": 0,
    "pinned": False,
    "direction": "row",
    "view": "heat",
    "scale": "map",
    "leaveOut": False,
    "smooth": False,
}


def as_text(array: np.ndarray) -> tuple[str, str]:
    kinds = {"uint8": "Uint8Array", "float32": "Float32Array", "int32": "Int32Array"}
    return kinds[array.dtype.name], base64.b64encode(array.tobytes()).decode()


def sent_stack(frames: list[Frame], shapes: list[MapShape], kind: Any) -> Any:
    """What the server sends, its tables as base64."""
    image = Image.new("RGB", SIZE, (120, 120, 120))
    stack = pack_stack("known", frames, shapes, kind, photo_url(image))
    return {name: value if name == "stack" else as_text(value) for name, value in stack.items()}


def shape_of(values: np.ndarray, grid: tuple[int, int] = GRID, kind: Any = "share") -> MapShape:
    """Of maps of every token of one grid."""
    tokens = values.shape[-1]
    prefix = ("CLS", "REG1")[: tokens - grid[0] * grid[1]]
    return MapShape(
        grid=grid,
        key_grid=grid,
        crop=CROP,
        key_crop=CROP,
        prefix=prefix,
        home=0 if prefix else -1,
        heads=len(values),
        equal_share=1 / tokens if kind == "share" else None,
    )


@pytest.fixture
def show(page: "Page") -> Callable[..., None]:
    """Mounts the component with frames of known values."""

    def mount(
        *values: np.ndarray, kind: Any = "share", grid: tuple[int, int] = GRID, **view: Any
    ) -> None:
        shapes = view.pop("shapes", [shape_of(frame, grid, kind) for frame in values])
        frames = view.pop(
            "encoded",
            [encode_frame(i, one, len(shapes[i].prefix), kind) for i, one in enumerate(values)],
        )
        names = [f"layer {i + 1}" for i in range(len(shapes))]
        data = {
            "stackId": "known",
            "version": 0,
            "state": STATE | view.pop("state", {}),
            "kind": kind,
            "strip": "heads",
            "frames": [shape.to_message(name) for shape, name in zip(shapes, names, strict=True)],
            "titles": TITLES,
            "alone": True,
            "picture": {"width": SIZE[0], "height": SIZE[1], "crop": CROP},
            "distance": None,
            "lut": colour_table(kind == "cosine"),
            "queryColour": QUERY,
            "keyColour": KEY,
            "provenance": "",
            **view,
        }
        stack = sent_stack(frames, shapes, kind)
        page.evaluate(HARNESS, [serve_sources(page), style(), stack, json.loads(json.dumps(data))])

    return mount


def planted(heads: int = 2) -> np.ndarray:
    """Every query looks at one patch with 40 %, and at all others alike; CLS gets 10 %."""
    patches = GRID[0] * GRID[1]
    values = np.full((heads, patches + 1, patches + 1), 0.5 / (patches - 1), np.float32)
    values[:, :, 0] = 0.1
    values[:, :, 1 + PEAK[0] * GRID[1] + PEAK[1]] = 0.4
    return values


def drawn(page: "Page", part: str = "map") -> np.ndarray:
    """The pixels of a canvas, shape (height, width, 3)."""
    wait_for_frame(page)
    canvas = page.locator(f"canvas[data-part={part}]")
    return as_pixels(canvas.evaluate("canvas => canvas.toDataURL()"))


def as_pixels(url: str) -> np.ndarray:
    image = Image.open(io.BytesIO(base64.b64decode(url.split(",")[1])))
    return np.asarray(image.convert("RGB")).astype(int)


def colour(share: float) -> np.ndarray:
    table = np.frombuffer(bytes.fromhex(colour_table(False)), np.uint8).reshape(256, 3)
    return table[round(255 * share)].astype(int)


def inside(shape: tuple[int, ...], row: int, col: int, margin: int) -> tuple[slice, slice]:
    """A patch's pixels on a canvas, less a margin at each side."""
    scale = shape[1] / SIZE[0]
    left, top, right, bottom = (scale * side for side in CROP)
    dx, dy = (right - left) / GRID[1], (bottom - top) / GRID[0]
    x, y = left + col * dx, top + row * dy
    return (
        slice(round(y) + margin, round(y + dy) - margin),
        slice(round(x) + margin, round(x + dx) - margin),
    )


def wait_for_frame(page: "Page") -> None:
    """Until what has changed is drawn: it is in the next frame of the screen."""
    page.evaluate("() => new Promise(requestAnimationFrame)")


def label(page: "Page") -> str:
    wait_for_frame(page)
    return page.locator("canvas[data-part=photo]").get_attribute("aria-label") or ""


def text(page: "Page", part: str) -> str:
    wait_for_frame(page)
    return page.locator(f"[data-part={part}]").inner_text()


def redraws(page: "Page") -> list[float]:
    """Milliseconds of each redraw since the last time that this was asked."""
    wait_for_frame(page)
    times: list[float] = page.evaluate(
        """() => {
          const entries = performance.getEntriesByName("token map redraw");
          performance.clearMeasures();
          return entries.map(({ duration }) => duration);
        }"""
    )
    return times


def sent(page: "Page") -> list[Any]:
    page.wait_for_timeout(400)  # longer than the pause after which a change is told
    events: list[Any] = page.evaluate("sent.map(([name, state]) => state)")
    return events


def test_the_bright_patch_is_where_it_was_planted(page: "Page", show: Callable[..., None]) -> None:
    show(planted())
    pixels = drawn(page)
    height, width = pixels.shape[:2]
    assert height == pytest.approx(width * 400 / 640, abs=1)
    for row, col in np.ndindex(*GRID):
        share = 1.0 if (row, col) == PEAK else 0.5 / 139 / 0.4
        patch = pixels[inside(pixels.shape, row, col, 1)]
        assert np.abs(patch - colour(share)).max() <= 2, (row, col)
    left, top, right, bottom = (edge * width / 640 for edge in CROP)
    for outside in (  # dimmed, so that no map lies there
        pixels[:, : int(left) - 1],
        pixels[: int(top) - 1],
        pixels[:, int(right) + 2 :],
        pixels[int(bottom) + 2 :],
    ):
        assert outside.size
        assert np.abs(outside - 48).max() <= 2


def test_maps_in_a_row_have_their_own_scale_and_are_pale_while_they_are_of_another_token(
    page: "Page", show: Callable[..., None]
) -> None:
    values = np.ones(GRID[0] * GRID[1])
    values[PEAK[0] * GRID[1] + PEAK[1]] = 4
    show(
        planted(),
        beside=[
            {
                "title": "one layer",
                "note": "alike",
                "words": "words",
                "values": (values / 100).tolist(),
            }
        ],
    )

    def patch(row: int, col: int) -> np.ndarray:
        """The middle of a patch on the canvas of what the model saw alone."""
        pixels = drawn(page, "beside0")
        (height, width), (rows, cols) = pixels.shape[:2], GRID
        middle: np.ndarray = pixels[
            round((row + 0.5) * height / rows), round((col + 0.5) * width / cols)
        ]
        return middle

    assert np.abs(patch(*PEAK) - colour(1)).max() <= 2
    assert np.abs(patch(9, 0) - colour(0.25)).max() <= 2
    assert text(page, "besideBar0").split("\n") == ["0 %", "4.0 %"]
    assert text(page, "besideNote0") == "alike"
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("ArrowLeft")
    assert text(page, "besideNote0") == "…"
    assert np.abs(patch(*PEAK) - colour(1)).max() > 20
    state = sent(page)[-1]
    page.evaluate("state => { show({ version: state.version, state }) }", state)
    assert text(page, "besideNote0") == "alike"
    assert np.abs(patch(*PEAK) - colour(1)).max() <= 2


@pytest.mark.parametrize(
    ("direction", "grid", "run"), [("row", GRID, 7), ("column", GRID, 7), ("row", (5, 4), 1)]
)
def test_the_matrix_has_each_cell_at_its_place_and_the_chosen_token_lit(
    direction: str, grid: tuple[int, int], run: int, page: "Page", show: Callable[..., None]
) -> None:
    """On 10 x 14 patches each cell is a run of 7; two tokens in front have cells of their own."""
    count = 2 + grid[0] * grid[1]
    random = np.random.default_rng(0)
    values = random.dirichlet(np.full(count, 0.2), (1, count)).astype(np.float32)
    query = 2 + 2 * grid[1] + 2
    state = {"query": query, "pinned": True, "direction": direction}
    show(values, grid=grid, matrix=True, state=state)
    starts = [0, 1, *range(2, count, run)]
    sizes = np.diff([*starts, count])
    cells = np.add.reduceat(np.add.reduceat(values[0], starts, axis=0), starts, axis=1)
    cells /= np.outer(sizes, sizes)
    pixels = drawn(page, "matrix")
    side = len(starts)
    middles = ((np.arange(side) + 0.5) * len(pixels) / side).astype(int)
    for row, col in np.ndindex(side, side):
        wanted = colour(cells[row, col] / cells.max())
        # Codes are of 8 bits, and colours may be one step of the table apart.
        assert np.abs(pixels[middles[row], middles[col]] - wanted).max() <= 8, (row, col)

    def assert_lit(role: str, cell: int) -> None:
        """Lines across the matrix at the edges of this row or column: whole, or dashed for keys."""
        lit = near(drawn(page, "matrix"), QUERY if role == "query" else KEY)
        across = lit.mean(axis=1 if role == "query" else 0)
        edges = np.flatnonzero(across > (0.8 if role == "query" else 0.4)) * side / len(lit)
        assert np.abs(edges - cell).min() < 0.2
        assert np.abs(edges - (cell + 1)).min() < 0.2
        assert (np.minimum(np.abs(edges - cell), np.abs(edges - (cell + 1))) < 0.3).all()

    by_row = direction == "row"
    role, other = ("query", "key") if by_row else ("key", "query")
    assert_lit(role, 2 + (query - 2) // run)
    canvas = page.locator("canvas[data-part=matrix]")
    box = canvas.bounding_box()
    assert box is not None
    at: Any = {"x": box["width"] * 3.5 / side, "y": box["height"] * 12.5 / side}
    canvas.hover(position=at)
    patches = [(cell - 2) * run + run // 2 for cell in ((12, 3) if by_row else (3, 12))]
    chosen, met = (
        f"row {row + 1} column {col + 1}"
        for row, col in (divmod(patch, grid[1]) for patch in patches)
    )
    assert label(page).startswith(f"{role} {chosen}, head 1: ")
    assert met in text(page, "reading")  # under the pointer
    assert_lit(role, 12 if by_row else 3)
    assert_lit(other, 3 if by_row else 12)
    canvas.click(position=at)
    assert sent(page)[-1]["query"] == 2 + patches[0]


def test_spotlight_keeps_a_quarter_of_the_light(page: "Page", show: Callable[..., None]) -> None:
    show(planted(), state={"view": "spotlight"})
    pixels = drawn(page)
    bright, dark = (pixels[inside(pixels.shape, *patch, 1)] for patch in (PEAK, (9, 0)))
    assert np.abs(bright - 120).max() <= 3
    assert np.abs(dark - 120 * (0.25 + 0.75 * 0.5 / 139 / 0.4)).max() <= 3


def middle_of(page: "Page", part: str, row: int, col: int) -> tuple[float, float]:
    """The middle of a patch on the first such canvas, in pixels of the window."""
    box = page.locator(f"canvas[data-part={part}]").first.bounding_box()
    assert box
    scale = box["width"] / SIZE[0]
    x = CROP[0] + (col + 0.5) / GRID[1] * (CROP[2] - CROP[0])
    y = CROP[1] + (row + 0.5) / GRID[0] * (CROP[3] - CROP[1])
    return box["x"] + scale * x, box["y"] + scale * y


def near(pixels: np.ndarray, hexadecimal: str) -> np.ndarray:
    """Where a colour is, shape (height, width)."""
    rgb = [int(hexadecimal[i : i + 2], 16) for i in (1, 3, 5)]
    found: np.ndarray = np.abs(pixels - rgb).max(axis=2) <= 2
    return found


def around(pixels: np.ndarray, row: int, col: int) -> tuple[slice, slice]:
    return inside(pixels.shape, row, col, -4)


def test_in_the_column_direction_the_token_is_a_key(
    page: "Page", show: Callable[..., None]
) -> None:
    """Word, colour and dash; what is under the pointer on the map is a query."""
    show(planted(), state={"query": 1 + 4 * 14 + 8, "pinned": True})
    row = near(drawn(page, "photo"), QUERY)
    assert text(page, "photoTitle") == "The query: row 5 column 9 · pinned"
    cell = page.locator(".tile i").first
    assert cell.evaluate("mark => getComputedStyle(mark).outlineStyle") == "solid"
    marked = cell.evaluate(
        """mark => { const [inner, outer] = [mark, mark.previousSibling]
            .map((node) => node.getBoundingClientRect());
          return [(inner.left - outer.left) / outer.width, (inner.top - outer.top) / outer.height,
            inner.width / outer.width, inner.height / outer.height] }"""
    )
    np.testing.assert_allclose(marked, (8 / 14, 4 / 10, 1 / 14, 1 / 10), atol=0.01)
    page.get_by_role("button", name="column: attended to by").click()
    assert [state["direction"] for state in sent(page)] == ["column"]
    assert text(page, "photoTitle") == "The key: row 5 column 9 · pinned"
    assert text(page, "mapTitle").startswith(TITLES["column"])
    assert label(page).startswith("key row 5 column 9, head 1: strongest query row 1 column 1,")
    assert text(page, "reading").startswith("Strongest query: row 1 column 1, ")
    assert page.get_by_role("button", name="CLS as the key").is_visible()
    assert page.get_by_label("leave the key out of the scale").is_visible()
    assert cell.evaluate("mark => getComputedStyle(mark).outlineStyle") == "dashed"
    assert not near(drawn(page, "photo"), QUERY).any()
    column = near(drawn(page, "photo"), KEY)
    assert 0.3 * row.sum() < column.sum() < 0.8 * row.sum()  # the dashes
    place = around(column[..., None], 4, 8)
    assert column[place].sum() == column.sum()
    page.mouse.move(*middle_of(page, "map", 2, 3))
    assert text(page, "reading").startswith("Query row 3 column 4: 0.35 %")
    pixels = drawn(page)
    query = near(pixels, QUERY)
    assert query[around(pixels, 2, 3)].sum() == query.sum() > 100
    assert near(pixels, KEY)[around(pixels, 4, 8)].sum() > 50


def test_a_patch_under_the_pointer_is_a_dashed_key_where_rows_are_read_and_a_guess_white(
    page: "Page", show: Callable[..., None]
) -> None:
    guess = {"rows": 10, "cols": 14, "patch": 7 * 14 + 1}
    show(planted(), state={"query": 1 + 4 * 14 + 8, "pinned": True}, guess=guess)
    page.mouse.move(*middle_of(page, "map", 2, 3))
    pixels = drawn(page)
    key, query, guessed = (near(pixels, each) for each in (KEY, QUERY, "#ffffff"))
    assert 0 < key.sum() == key[around(pixels, 2, 3)].sum() < 0.8 * query.sum()
    assert query.sum() == query[around(pixels, 4, 8)].sum()
    assert guessed.sum() == guessed[around(pixels, 7, 1)].sum() > 50


def test_a_pin_is_what_is_left_of_a_preview(page: "Page", show: Callable[..., None]) -> None:
    """Until Esc, and with nothing told to the server but the click and Esc."""
    show(planted())
    page.mouse.move(*middle_of(page, "photo", 7, 2))
    assert label(page).startswith("query row 8 column 3,")
    page.mouse.move(*middle_of(page, "photo", 7, -1))  # outside of what the model sees
    assert label(page).startswith("query CLS,")
    assert sent(page) == []
    page.mouse.click(*middle_of(page, "photo", 7, 2))
    assert text(page, "photoTitle") == "The query: row 8 column 3 · pinned"
    assert [state["query"] for state in sent(page)] == [1 + 7 * 14 + 2]
    page.mouse.move(*middle_of(page, "photo", 7, 5))
    assert text(page, "photoTitle") == "The query: row 8 column 6 · preview"
    assert label(page).startswith("query row 8 column 6,")
    page.mouse.move(*middle_of(page, "map", 7, 5))
    assert text(page, "photoTitle") == "The query: row 8 column 3 · pinned"
    assert label(page).startswith("query row 8 column 3,")
    assert len(sent(page)) == 1
    page.keyboard.press("Escape")
    assert text(page, "photoTitle") == "The query: CLS"
    page.mouse.move(*middle_of(page, "photo", 7, 5))
    assert text(page, "photoTitle") == "The query: row 8 column 6"
    assert [state["query"] for state in sent(page)] == [1 + 7 * 14 + 2, 0]


def test_a_pin_stays_marked_while_another_patch_is_looked_at(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted(), state={"query": 1 + 4 * 14 + 8, "pinned": True})
    pinned = drawn(page, "photo")
    page.mouse.move(*middle_of(page, "photo", 2, 3))
    looked_at = drawn(page, "photo")
    assert near(looked_at, QUERY)[around(pinned, 2, 3)].sum() > 100
    pin = around(pinned, 4, 8)
    assert not near(looked_at, QUERY)[pin].any()  # paler
    assert (np.abs(looked_at - pinned).max(axis=2)[pin] > 20).sum() > 100
    page.keyboard.press("ArrowRight")  # moves the pin
    assert text(page, "photoTitle") == "The query: row 5 column 10 · pinned"
    page.mouse.move(*middle_of(page, "photo", 4, 9))  # upon it
    assert text(page, "photoTitle") == "The query: row 5 column 10 · pinned"
    page.mouse.move(*middle_of(page, "photo", 4, 10))
    assert text(page, "photoTitle") == "The query: row 5 column 11 · preview"
    (state,) = sent(page)
    assert state["query"] == 1 + 4 * 14 + 9


OTHERS = """() => {
  const field = "<input aria-label=text><input aria-label=range type=range><select></select>";
  const more = "<textarea></textarea><p contenteditable>editable</p><button>Button</button>";
  document.body.insertAdjacentHTML("beforeend", field + more);
}"""


def test_keys_work_wherever_the_focus_is_except_in_fields(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted(), planted(), planted())
    page.evaluate(OTHERS)
    page.keyboard.press("n")  # nothing has the focus
    page.get_by_text("Button").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_role("button", name="log").focus()
    page.keyboard.press("ArrowRight")
    page.get_by_label("smoothed").focus()
    page.keyboard.press("2")
    before = sent(page)
    assert (before[-1]["frame"], before[-1]["head"]) == (1, 1)
    assert before[-1]["query"] == 1 + 5 * GRID[1] + 8
    fields = ("[aria-label=text]", "[aria-label=range]", "select", "textarea", "[contenteditable]")
    for field in fields:
        page.locator(field).focus()
        for key in ("n", "1", "ArrowRight", "Escape"):
            page.keyboard.press(key)
    page.get_by_text("Button").focus()
    for key in ("Control+p", "Alt+1", "Space", "Enter"):
        page.keyboard.press(key)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<ul role=listbox></ul>')")
    page.keyboard.press("p")  # a menu is open
    assert sent(page) == before
    page.locator("ul").evaluate("menu => menu.remove()")
    page.keyboard.press("p")
    assert sent(page)[-1]["frame"] == 0


TWICE = """() => {
  window.other = document.createElement("div");
  document.body.append(other);
  window.alsoSent = [];
  const setTriggerValue = (...event) => alsoSent.push(event);
  window.close = show.mount({ data: view, parentElement: other, setTriggerValue });
}"""


def test_a_key_is_answered_by_one_of_two_maps_and_by_none_that_was_closed(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted(), planted(), planted())
    page.evaluate(TWICE)
    frames = "[component.state.frame, other.view.state.frame]"
    page.locator("canvas[data-part=photo]").last.wait_for()
    page.keyboard.press("n")
    assert page.evaluate(frames) == [0, 1]  # the last
    page.locator("canvas[data-part=photo]").first.focus()
    page.keyboard.press("n")
    assert page.evaluate(frames) == [1, 1]  # the one with the focus
    page.evaluate("close()")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("n")
    assert page.evaluate(frames) == [2, 1]
    page.evaluate("component.close()")
    prevented = "!document.body.dispatchEvent(new KeyboardEvent('keydown', {how}))"
    how = "{ key: 'p', bubbles: true, cancelable: true }"
    assert page.evaluate(prevented.replace("{how}", how)) is False
    assert page.evaluate(frames) == [2, 1]
    page.evaluate("show({})")
    assert page.evaluate(prevented.replace("{how}", how)) is True
    assert page.evaluate(frames) == [1, 1]
    page.evaluate("() => { document.body.onkeydown = (event) => event.preventDefault(); }")
    page.keyboard.press("p")  # another component took it
    assert page.evaluate(frames) == [1, 1]


def test_in_a_report_arrows_scroll_until_a_map_has_the_focus(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted(), alone=False)
    page.evaluate("document.body.style.height = '3000px'")
    page.keyboard.press("ArrowDown")
    page.wait_for_function("scrollY > 0")
    assert page.evaluate("component.state.query") == 0
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("component.state.query") == 1 + 5 * GRID[1] + 7  # the middle


def test_an_older_answer_of_the_server_changes_nothing(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted(), planted())
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("n")
    page.keyboard.press("ArrowLeft")
    page.evaluate("state => { show({ version: 1, state }) }", STATE | {"frame": 1})
    assert label(page).startswith("query row 6 column 8")
    page.evaluate("state => { show({ version: 2, state }) }", STATE)
    assert label(page).startswith("query CLS")


def test_an_answer_does_not_end_the_drag_of_the_slider(
    page: "Page", show: Callable[..., None]
) -> None:
    show(*[planted()] * 5, titles={**TITLES, "slider": "Layer"})
    box = page.get_by_role("slider", name="Layer").bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + 8, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, y)
    state = sent(page)[-1]
    assert state["frame"] == 2
    page.evaluate("state => { show({ version: state.version, state }) }", state)
    page.mouse.move(box["x"] + box["width"] - 8, y)
    page.mouse.up()
    assert sent(page)[-1]["frame"] == 4
    assert "layer 5" in text(page, "mapTitle")


def test_a_map_that_was_closed_and_mounted_again_draws_and_tells_the_server(
    page: "Page", show: Callable[..., None]
) -> None:
    """Streamlit does so now and then while a page is built, before the map knows its width."""
    show(planted(), planted())
    page.evaluate("component.close(); component.width = 0")
    page.evaluate("state => { show({ state }) }", STATE | {"frame": 1})
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("ArrowLeft")
    assert label(page).startswith("query row 6 column 8")
    page.evaluate("component.close()")
    assert sent(page) == []
    page.evaluate("show({})")
    (state,) = sent(page)
    assert (state["frame"], state["query"]) == (1, 1 + 5 * GRID[1] + 7)


def test_every_scale_says_what_its_ends_are(page: "Page", show: Callable[..., None]) -> None:
    values = planted()
    values[1] *= 0.1
    show(values, state={"head": 1})
    equal, least = 1 / 141, 0.05 / 139

    def assert_tick(place: float) -> None:
        tick = page.locator("[data-part=bar] .tick")
        left = tick.evaluate("tick => parseFloat(tick.style.left)")
        assert left == pytest.approx(100 * place, abs=0.2)
        assert tick.evaluate("tick => tick.classList.contains('beyond')") == (place == 1)

    assert text(page, "bar").split("\n") == ["0 %", "4.0 %"]
    assert_tick(equal / 0.04)
    page.get_by_role("button", name="shared").click()
    assert text(page, "bar").split("\n") == ["0 %", "40 %"]
    assert_tick(equal / 0.4)
    page.get_by_role("button", name="log").click()
    assert text(page, "bar").split("\n") == ["0.035 %", "40 %"]  # of all heads
    assert_tick(float(np.log(equal / least) / np.log(0.4 / least)))
    assert page.locator(".strip button").all_inner_texts() == [
        *("mean 22 %", "head 1 40 %", "head 2 4.0 %")
    ]
    show(values / 10, state={"head": 1})  # equal sharing is more than the largest share
    wait_for_frame(page)
    assert_tick(1)


def test_the_query_can_be_left_out_of_the_scale(page: "Page", show: Callable[..., None]) -> None:
    values = planted()
    values[:, 1, 1] = 0.9  # the first patch looks at itself
    show(values, state={"query": 1})
    assert text(page, "bar").split("\n")[1] == "90 %"
    page.get_by_label("leave the query out of the scale").check()
    assert text(page, "bar").split("\n")[1] == "40 %"
    assert "strongest key row 4 column 12" in label(page)
    values[:, 1, 1] = 1e-5  # it looks least at itself
    show(values, state={"query": 1, "scale": "log"})
    assert text(page, "bar").split("\n")[0] == "0.00062 %"
    page.get_by_label("leave the query out of the scale").check()
    assert text(page, "bar").split("\n")[0] == "0.35 %"


def test_smoothed_is_named_so_and_nearest_is_the_default(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted())
    assert "smoothed" not in text(page, "mapTitle")
    flat = drawn(page)
    page.get_by_label("smoothed").check()
    assert "smoothed" in text(page, "mapTitle")
    patch = inside(flat.shape, *PEAK, 2)
    assert np.ptp(flat[patch], axis=(0, 1)).max() == 0
    assert np.ptp(drawn(page)[patch], axis=(0, 1)).max() > 20


def test_tokens_outside_the_picture_have_cells_and_without_them_the_mean_of_the_patches_is_asked(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted())
    wait_for_frame(page)
    assert page.locator(".cell").all_inner_texts() == ["to CLS\n10 %"]
    chosen = page.get_by_role("button", name="CLS as the query")
    assert chosen.get_attribute("aria-pressed") == "true"
    show(planted()[:, 1:, 1:], state={"query": -1})
    said = "query mean of the patches, head 1: strongest key row 4 column 12"
    assert label(page).startswith(said)
    assert page.locator(".cell").count() == 0


def test_a_dot_leads_to_its_head(page: "Page", show: Callable[..., None]) -> None:
    distance = {"values": [[10.0, 20.0], [30.0, None]], "equal": [33.3, 25.0], "side": 64}
    show(planted(), planted(), distance=distance)
    dots = page.locator(".distance circle")
    assert dots.count() == 3  # a head with no distance has no dot
    assert "layer 1, head 2: 20.0 px" in (dots.nth(1).text_content() or "")
    chart = page.locator(".distance svg").evaluate(
        """svg => { const of = (what, ...names) => [...svg.querySelectorAll(what)].map((node) =>
            [...names.map((name) => parseFloat(node.getAttribute(name))), node.textContent]);
          return { dots: of("circle", "cx", "cy"), numbers: of("text[text-anchor=middle]", "x"),
            equal: of(".equal", "x1", "x2", "y1"), axis: of(".axis", "y1")[0][0] } }"""
    )
    assert [[x, number] for x, number in chart["numbers"]] == [[25, "1"], [75, "2"]]
    assert [line[:2] for line in chart["equal"]] == [[0, 50], [50, 100]]
    (first, *_), (second, *_), (third, *_) = chart["dots"]
    assert 0 < first < 25 < second < 50 < third < 75  # the heads of a layer from left to right
    heights = [
        chart["axis"] - y for y in (*(dot[1] for dot in chart["dots"]), chart["equal"][1][2])
    ]
    assert heights[0] > 0
    np.testing.assert_allclose(np.array(heights) / heights[0], (1, 2, 3, 2.5))
    dots.nth(1).click()
    (state,) = sent(page)
    assert (state["frame"], state["head"]) == (0, 1)


def test_the_keyboard_reaches_the_dots_and_chooses_a_head(
    page: "Page", show: Callable[..., None]
) -> None:
    distance = {"values": [[10.0, 20.0], [30.0, None]], "equal": [33.3, 33.3], "side": 64}
    show(planted(), planted(), distance=distance, state={"head": 1})
    wait_for_frame(page)
    page.locator(".strip button").last.focus()
    focused = "document.activeElement.ariaLabel"
    page.keyboard.press("Tab")  # one stop for all dots: at first the one of the head on screen
    assert page.evaluate(focused) == "layer 1, head 2: 20.0 px"
    for key, label in (
        ("ArrowRight", "layer 2, head 1: 30.0 px"),
        ("ArrowDown", "layer 2, head 1: 30.0 px"),  # the last
        ("ArrowLeft", "layer 1, head 2: 20.0 px"),
        ("ArrowUp", "layer 1, head 1: 10.0 px"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == label
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    (state,) = sent(page)  # arrows move no query here
    assert (state["frame"], state["head"], state["query"]) == (0, 0, 0)
    page.keyboard.press("Space")
    (_, state) = sent(page)
    assert (state["frame"], state["head"], state["query"]) == (1, 0, 0)
    dots = page.get_by_role("button", name=" px")
    pressed = [dot.get_attribute("aria-pressed") for dot in dots.all()]
    assert pressed == ["false", "false", "true"]
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Tab")
    assert page.evaluate(focused) == "layer 2, head 1: 30.0 px"


MOVES = """([part, points]) => {
  const canvas = document.querySelector(`canvas[data-part=${part}]`);
  const { left, top, width, height } = canvas.getBoundingClientRect();
  for (const [x, y] of points)
    canvas.dispatchEvent(new PointerEvent("pointermove",
      { clientX: left + x * width, clientY: top + y * height }));
}"""


@pytest.mark.parametrize("part", ["photo", "map"])
def test_many_moves_of_the_pointer_are_one_redraw_and_none_on_the_same_patch(
    part: str, page: "Page", show: Callable[..., None]
) -> None:
    show(planted())
    redraws(page)
    points = [(0.15 + 0.02 * step, 0.2 + 0.02 * step) for step in range(30)]
    page.evaluate(MOVES, [part, points])
    assert len(redraws(page)) == 1
    page.evaluate(MOVES, [part, [(x + 0.001, y) for x, y in points[-1:]] * 5])
    assert redraws(page) == []
    page.evaluate(MOVES, [part, points[:1]])
    assert len(redraws(page)) == 1


def test_a_frame_that_is_not_there_yet_is_waited_for(
    page: "Page", show: Callable[..., None]
) -> None:
    values = planted()
    show(values, shapes=[shape_of(values)] * 2)
    peak = inside(drawn(page).shape, *PEAK, 5)
    tiles = page.locator("[data-part=strip] > button")
    assert abs(drawn(page)[peak] - 120).min() > 20
    assert tiles.count() == 3
    page.evaluate("state => { show({ state }) }", STATE | {"frame": 1})
    assert text(page, "reading") == "Loading …"
    assert not page.locator(".save-menu").is_visible()  # else the map before would be saved
    assert abs(drawn(page)[peak] - 120).max() <= 2  # the picture alone
    assert tiles.count() == 0
    assert not label(page)
    page.evaluate("state => { show({ state }) }", STATE)
    assert abs(drawn(page)[peak] - 120).min() > 20
    assert tiles.count() == 3
    assert page.locator(".save-menu").is_visible()


def test_a_pointer_that_rests_while_another_model_comes_shows_no_token_of_the_one_before(
    page: "Page", show: Callable[..., None]
) -> None:
    show(planted())
    page.evaluate(MOVES, ["photo", [(0.8, 0.8)]])
    assert text(page, "photoTitle") == "The query: row 9 column 13"
    page.evaluate("state => { show({ version: 1, state }) }", STATE)  # an answer on the same model
    assert text(page, "photoTitle") == "The query: row 9 column 13"
    other = shape_of(np.zeros((1, 36, 36)), (5, 7)).to_message("layer 1")
    page.evaluate("frames => { show({ frames, stackId: 'other' }) }", [other])
    assert text(page, "photoTitle") == "The query: CLS"


@pytest.mark.bars
def test_a_vit_b_redraws_within_16_ms(page: "Page", show: Callable[..., None]) -> None:
    """The 95th percentile; the quickest of three rounds, as other work disturbs."""
    values = np.random.default_rng(0).dirichlet(np.ones(197), (12, 197)).astype(np.float32)
    show(*[values] * 12, grid=(14, 14))
    box = page.locator("canvas[data-part=photo]").bounding_box()
    assert box
    rounds = []
    for _ in range(3):
        redraws(page)
        for step in range(100):
            x = box["x"] + 60 + (step * 37) % 250
            page.mouse.move(x, box["y"] + 20 + (step * 11) % 180)
        times = redraws(page)
        assert len(times) > 50
        rounds.append(float(np.quantile(times, 0.95)))
    slow = slowness()
    print(f"redraw of a ViT-B/16, 95th percentile: {min(rounds):.1f} ms, slowness {slow:.2f}")
    assert min(rounds) <= 16 * slow


@pytest.mark.bars
@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_mean_query_redraws_within_16_ms(
    direction: str, page: "Page", show: Callable[..., None]
) -> None:
    """Of 6 heads and 1,369 patches, the mean of heads on screen; of each frame, its first. The
    quickest of four, as other work disturbs."""
    values = np.random.default_rng(0).dirichlet(np.ones(1369), (6, 1369)).astype(np.float32)
    state = {"query": -1, "head": -1, "direction": direction}
    show(*[values] * 5, grid=(37, 37), state=state)
    redraws(page)
    times = []
    for frame in (1, 2, 3, 4):
        page.evaluate("frame => component.change({ frame })", frame)
        times += redraws(page)
    assert len(times) == 4
    slow = slowness()
    print(f"redraw of a mean query, by {direction}: {times} ms, slowness {slow:.2f}")
    assert min(times) <= 16 * slow


#: Two layers without CLS: windows of 2 x 7 patches of GRID, and a grid half as fine that pools.
FINE, COARSE = (10, 14), (5, 7)


def windowed() -> Frame:
    """Random attention within windows of neighbours."""
    numbers = np.arange(140).reshape(5, 2, 2, 7).swapaxes(1, 2).reshape(10, 14)
    random = np.random.default_rng(0)
    values = random.dirichlet(np.full(14, 0.3), (10, 2, 14)).astype(np.float32)  # (W, h, n, m)
    return encode_window_frame(0, values, numbers, numbers)


def pooled() -> tuple[Frame, np.ndarray]:
    """Every patch of the fine grid looks at the keys of the coarse one."""
    values = np.random.default_rng(1).dirichlet(np.full(35, 0.3), (1, 3, 140)).astype(np.float32)
    return encode_window_frame(1, values, np.arange(140)[None], np.arange(35)[None]), values[0]


def patches_shape(heads: int, keys: tuple[int, int] = FINE, **options: Any) -> MapShape:
    return MapShape(
        grid=FINE,
        key_grid=keys,
        crop=CROP,
        key_crop=CROP,
        prefix=(),
        home=-1,
        heads=heads,
        **options,
    )


@pytest.fixture
def two_kinds(show: Callable[..., None]) -> Callable[..., None]:
    shapes = [
        patches_shape(2, equal_share=1 / 14, within=True),
        patches_shape(3, COARSE, equal_share=1 / 35),
    ]
    return lambda **view: show(shapes=shapes, encoded=[windowed(), pooled()[0]], **view)


def test_pooled_keys_lie_in_their_own_grid_and_a_click_finds_the_patch_of_the_picture(
    page: "Page", two_kinds: Callable[..., None]
) -> None:
    two_kinds(state={"frame": 1, "query": 3 * 14 + 11, "pinned": True})
    _, values = pooled()
    place = divmod(int(values[0, 3 * 14 + 11].argmax()), COARSE[1])
    assert (
        f"query row 4 column 12, head 1: strongest key row {place[0] + 1} column {place[1] + 1}"
        in (label(page))
    )
    # As a column: the key that the patch is pooled into, looked at by patches of the fine grid.
    page.get_by_role("button", name="column: attended to by").click()
    place = divmod(int(values[0, :, 1 * 7 + 5].argmax()), FINE[1])
    assert (
        f"key row 2 column 6, head 1: strongest query row {place[0] + 1} column {place[1] + 1}"
        in (label(page))
    )
    page.get_by_role("button", name="row: attends to").click()
    page.mouse.click(*middle_of(page, "map", 3, 10))
    assert text(page, "photoTitle") == "The query: row 4 column 11 · pinned"


@pytest.mark.parametrize(
    ("place", "patch"),
    [((0.87, 0.92), "row 10 column 14"), ((0.2, 0.15), "row 2 column 2")],
)
def test_a_window_says_what_equal_sharing_means_and_a_patch_under_the_pointer_may_be_gone_next(
    place: tuple[float, float], patch: str, page: "Page", two_kinds: Callable[..., None]
) -> None:
    two_kinds(state={"query": 5, "pinned": True})
    assert "equal sharing in a whole window, 7.1 %" in text(page, "reading")
    page.evaluate(MOVES, ["map", [place]])
    assert text(page, "reading").startswith(f"Key {patch}: ")
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("n")  # to a grid of 5 x 7 keys
    assert text(page, "reading").startswith("Strongest key: ")


def test_the_query_keeps_its_place_in_a_coarser_grid(
    page: "Page", show: Callable[..., None]
) -> None:
    fine, coarse = planted()[:, 1:, 1:], np.full((4, 35, 35), 1 / 35, np.float32)
    encoded = [encode_frame(0, fine, 0, "share"), encode_frame(1, coarse, 0, "share")]
    shapes = [shape_of(fine), shape_of(coarse, COARSE)]
    show(shapes=shapes, encoded=encoded, state={"query": 9 * 14 + 2, "pinned": True, "head": 1})
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("n")
    assert label(page).startswith("query row 5 column 2, head 2:")
    page.keyboard.press("4")
    page.keyboard.press("p")  # two heads alone here
    assert label(page).startswith("query row 10 column 4, mean:")
    (state,) = sent(page)
    assert (state["frame"], state["head"], state["query"]) == (0, -1, 9 * 14 + 3)


def test_where_cls_alone_looks_no_patch_is_asked(page: "Page", show: Callable[..., None]) -> None:
    patches = planted()[:, 1:, 1:]
    cls = np.full((2, 1, 141), 0.5 / 140, np.float32)
    cls[:, 0, 0], cls[:, 0, 1 + PEAK[0] * GRID[1] + PEAK[1]] = 0.1, 0.4
    shapes = [shape_of(patches), replace(shape_of(cls), prefix_only=True)]
    encoded = [encode_frame(0, patches, 0, "share"), encode_frame(1, cls, 1, "share")]
    show(shapes=shapes, encoded=encoded, state={"query": 20, "pinned": True, "direction": "column"})
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("n")
    assert label(page) == "query CLS, head 1: strongest key row 4 column 12, 40 %"
    page.keyboard.press("ArrowLeft")
    assert label(page).startswith("query CLS")
    page.keyboard.press("p")
    assert label(page).startswith("key row 2 column 7, ")


# --- signs, units and tokens in front ---


@pytest.mark.parametrize(("direction", "role"), [("row", "query"), ("column", "key")])
def test_a_click_with_several_tokens_in_front_chooses_the_patch_under_it(
    direction: str, role: str, page: "Page", show: Callable[..., None]
) -> None:
    values = np.random.default_rng(0).dirichlet(np.full(142, 0.3), (1, 142))
    show(values.astype(np.float32), state={"direction": direction})
    for part, (row, col) in (("photo", (6, 2)), ("map", (1, 9))):
        page.mouse.click(*middle_of(page, part, row, col))
        assert label(page).startswith(f"{role} row {row + 1} column {col + 1},")
        state = sent(page)[-1]
        assert (state["query"], state["pinned"]) == (2 + row * GRID[1] + col, True)
        assert state["direction"] == direction
    page.get_by_role("button", name=f"REG1 as the {role}").click()
    assert sent(page)[-1]["query"] == 1
    cells = page.locator("[data-part=prefix] .cell b")
    assert cells.evaluate_all("all => all.map((one) => one.className)") == ["", "chosen"]


def test_a_signed_map_is_red_where_it_is_positive_and_blue_where_it_is_negative(
    page: "Page", show: Callable[..., None]
) -> None:
    cosines = np.linspace(-1, 1, 140, dtype=np.float32)
    values = np.tile(np.append(np.float32(1), cosines), (1, 141, 1))
    titles = {"row": "Similar tokens", "strip": "Layers"}
    show(values, kind="cosine", strip="frames", titles=titles, state={"query": 0})
    pixels = drawn(page)
    for patch, value in enumerate(cosines):
        red, _, blue = (
            pixels[inside(pixels.shape, *divmod(patch, GRID[1]), 1)].reshape(-1, 3).mean(0)
        )
        if abs(value) > 0.1:
            assert (red > blue) == (value > 0), value
    gradient = as_pixels(
        page.locator("[data-part=bar] canvas").evaluate("canvas => canvas.toDataURL()")
    )
    assert gradient[0, 0, 2] > gradient[0, 0, 0]
    assert gradient[0, -1, 0] > gradient[0, -1, 2]
    assert page.locator("[data-part=bar] > span").all_inner_texts() == ["-1.00", "1.00"]


# --- saved as a picture -------------------------------------------------------------------------


def saved(page: "Page", label: str) -> bytes:
    name, file = save(page, page.locator(".tools details"), label)
    assert name.startswith("vitviz_where_it_looks_layer_1_head_2")
    return file


def fills(svg: ElementTree.Element) -> list[tuple[int, ...]]:
    """The colour of each patch, row by row."""
    (group,) = (one for one in svg.iter(f"{SVG}g") if one.get("class") == "patches")
    found = [re.findall(r"\d+", one.get("fill") or "") for one in group]
    return [tuple(map(int, colour)) for colour in found]


def wanted_colours(row: np.ndarray) -> np.ndarray:
    """Of shares on a scale of their own: the colour table at their place from 0 to the largest."""
    table = bytes.fromhex(colour_table(False))
    places = np.rint(255 * row / row.max()).astype(int)
    return np.frombuffer(table, np.uint8).reshape(256, 3)[places]


def test_the_map_is_saved_with_the_colours_of_its_numbers(
    show: Callable[..., None], page: "Page"
) -> None:
    values = np.random.default_rng(0).random((3, 141, 141), np.float32) ** 3
    values /= values.sum(axis=2, keepdims=True)
    show(values, state={"head": 1, "query": 20, "pinned": True}, provenance="a model · mine.png")
    shares = values[1, 20, 1:]
    table = np.frombuffer(bytes.fromhex(colour_table(False)), np.uint8).reshape(256, 3).astype(int)
    step = np.abs(np.diff(table, axis=0)).max()
    for label, bare in (("SVG, with title", False), ("SVG, bare, transparent", True)):
        svg = ElementTree.fromstring(saved(page, label))
        # a byte's rounding moves a colour by at most two steps of the table
        np.testing.assert_allclose(fills(svg), wanted_colours(shares), atol=2 * step)
        assert fills(svg)[int(shares.argmax())] == tuple(table[-1])
        words = " ".join(text.text or "" for text in svg.iter(f"{SVG}text"))
        assert ("a model · mine.png" in words) != bare
        assert ("Where it looks layer 1, head 2" in words) != bare
        stops = [
            re.findall(r"\d+", stop.get("stop-color") or "") for stop in svg.iter(f"{SVG}stop")
        ]
        assert bool(stops) != bare
        if not bare:  # the colour bar, from 0 to the largest share, and its mark
            wanted = wanted_colours(np.linspace(0, 1, len(stops)))
            np.testing.assert_allclose(np.array(stops, int), wanted, atol=step)
            ends = [one.text for one in svg.iter(f"{SVG}text") if one.get("text-anchor")]
            assert ends == ["0 %", f"{100 * shares.max():.1f} %", "equal sharing"]
            (mark,) = (
                one.get("d") or "" for one in svg.iter(f"{SVG}path") if "10z" in one.get("d", "")
            )
            place = float(mark[1:].split(",")[0])
            assert place == pytest.approx(90 + 460 / 141 / shares.max(), abs=1)
        assert outlines(svg) == [("#000", False), (QUERY, False)]
    for scale in (1, 2):
        label = "PNG × 2, bare, transparent" if scale == 2 else "PNG, bare, transparent"
        image = Image.open(io.BytesIO(saved(page, label)))
        assert image.size == (scale * 640, scale * 400)
        left, top, right, bottom = CROP
        corner = image.getpixel((0, 0))
        assert isinstance(corner, tuple)
        assert corner[3] == 0
        for patch, fill in enumerate(fills(svg)):
            row, col = divmod(patch, GRID[1])
            if abs(row - 1) <= 1 and abs(col - 5) <= 1:
                continue  # beside the outline of the query, patch 19
            x = left + (col + 0.5) * (right - left) / GRID[1]
            y = top + (row + 0.5) * (bottom - top) / GRID[0]
            found = image.getpixel((int(scale * x), int(scale * y)))
            assert isinstance(found, tuple)
            np.testing.assert_allclose(found[:3], fill, atol=1)


def outlines(svg: ElementTree.Element) -> list[tuple[str | None, bool]]:
    """The colour of each box around a patch, and whether it is dashed."""
    boxes = [one for one in svg.iter(f"{SVG}rect") if one.get("fill") == "none"]
    return [(one.get("stroke"), one.get("stroke-dasharray") is not None) for one in boxes]


def test_what_is_saved_is_smooth_and_of_a_key_as_it_is_on_screen(
    show: Callable[..., None], page: "Page"
) -> None:
    show(
        planted(),
        state={"head": 1, "query": 20, "pinned": True, "direction": "column", "smooth": True},
        titles={**TITLES, "column": TITLES["row"]},
    )
    svg = ElementTree.fromstring(saved(page, "SVG, bare, transparent"))
    assert outlines(svg) == [("#000", False), (KEY, True)]
    (image,) = svg.iter(f"{SVG}image")
    assert as_pixels(image.get("href") or "").shape[:2] == GRID
    left, top, right, bottom = CROP
    wanted = {"x": left, "y": top, "width": right - left, "height": bottom - top}
    assert {name: float(image.get(name) or 0) for name in wanted} == pytest.approx(wanted)


def test_a_spotlight_is_saved_with_the_photo_in_the_light(
    show: Callable[..., None], page: "Page"
) -> None:
    """The photo is grey, 120; the least light is a quarter."""
    show(planted(), state={"head": 1, "query": 0, "view": "spotlight"})
    dark = 120 * (0.25 + 0.75 * 0.5 / 139 / 0.4)
    for label, above in (("PNG, bare, transparent", 0), ("PNG, with title", 30)):
        image = np.asarray(Image.open(io.BytesIO(saved(page, label))).convert("RGB")).astype(int)
        left, top, right, bottom = CROP
        first = int(np.flatnonzero((image[:, 5] < 60).all(axis=1))[0])  # where the photo begins
        assert (first == 0) == (above == 0)
        for (row, col), wanted in ((PEAK, 120), ((9, 0), dark), ((0, 13), dark)):
            x = int(left + (col + 0.5) * (right - left) / GRID[1])
            y = int(top + (row + 0.5) * (bottom - top) / GRID[0])
            assert np.abs(image[first + y, x] - wanted).max() <= 4
    svg = ElementTree.fromstring(saved(page, "SVG, with title"))
    (photo_,) = svg.iter(f"{SVG}image")
    assert (photo_.get("href") or "").startswith("data:image/")
