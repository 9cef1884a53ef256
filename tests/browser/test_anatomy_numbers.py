"""What Anatomy's component draws of a picture that is not square is what the library computes."""

import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np
import pytest
from examples import example, own_model, patch_box, picture, randomise
from test_anatomy_map import blue_first_or_grey

import vitviz
from vitviz import Activations
from vitviz.plots.template import KEY, QUERY, colour_table
from vitviz.web import anatomy
from vitviz.web.report import components

from .sources import open_sources
from .test_token_map import SVG, as_pixels, near
from .walk import saved as save
from .walk import written

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

MODEL, PREFIX = "distilled", 2
SIZE = (60, 50)  # of the picture: width, height
LAYER, HEAD, TOKEN = 2, 2, PREFIX + 2 * 6 + 4  # row 3, column 5 of 4 x 6
ITEMS = "[data-part=items]"


@pytest.fixture(scope="module")
def acts() -> Activations:
    return vitviz.capture(example(MODEL), picture())


@pytest.fixture
def shown(page: "Page", acts: Activations) -> "Page":
    made = components.anatomy(
        example(MODEL),
        picture(),
        acts,
        acts.provenance,
        layer=LAYER,
        head=HEAD,
        query=TOKEN,
    )
    page.emulate_media(reduced_motion="reduce")
    open_sources(page, "anatomy", made)
    page.locator(f"{ITEMS} .item").first.wait_for()  # until it is drawn for the first time
    return page


def go(page: "Page", step: str) -> None:
    page.evaluate("(step) => component.go(step)", step)
    wait_for_frame(page)


def wait_for_frame(page: "Page") -> None:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => setTimeout(done)))")


def assert_written(text: str, *wanted: float, digits: int = 3) -> None:
    found = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text)]
    np.testing.assert_allclose(found, wanted, rtol=0.6 * 10 ** (1 - digits), err_msg=text)


def pixels_of(canvas: "Locator") -> np.ndarray:
    return as_pixels(canvas.evaluate("canvas => canvas.toDataURL()"))


def saved(page: "Page") -> ElementTree.Element:
    """The scene on screen, as it would be saved."""
    drawing = "new XMLSerializer().serializeToString(component.drawing().drawn)"
    return ElementTree.fromstring(page.evaluate(drawing))


def numbers_of(node: ElementTree.Element, *names: str) -> list[float]:
    return [float(node.get(name) or 0) for name in names]


def texts_of(svg: ElementTree.Element) -> list[str]:
    return ["".join(one.itertext()).replace("\u00a0", " ") for one in svg.iter(f"{SVG}text")]


def bars_of(svg: ElementTree.Element, side: str) -> np.ndarray:
    """One side of each bar that is drawn."""
    bars = [one for one in svg.iter(f"{SVG}rect") if one.get("class") == "bar"]
    return np.array([numbers_of(bar, side)[0] for bar in bars])


def colours(values: np.ndarray, limit: float) -> np.ndarray:
    """Of signed numbers from -limit to limit."""
    table = np.frombuffer(bytes.fromhex(colour_table(True)), np.uint8).reshape(256, 3)
    places = np.clip(0.5 + values / limit / 2, 0, 1)
    return table[np.floor(255 * places + 0.5).astype(int)].astype(int)


def limit_of(*strips: np.ndarray) -> float:
    """What nearly all of the numbers of each strip lie within, as in the browser."""
    sizes = [np.sort(np.abs(values)) for values in strips]
    return float(max(one[int(0.98 * (len(one) - 1))] for one in sizes))


def names_of(page: "Page") -> dict[str, str]:
    """The places of the query and of the key, as they are written below the picture."""
    wait_for_frame(page)
    lines = page.locator("[data-part=names]").inner_text().split("\n")
    return {role: place for role, _, place in (line.partition(" ") for line in lines)}


def place(token: int, cols: int = 6) -> str:
    row, col = divmod(token - PREFIX, cols)
    return ("CLS", "DIST")[token] if token < PREFIX else f"row {row + 1} column {col + 1}"


def gaps(clear: Any) -> np.ndarray:
    """The middle of each run of what is clear, without those at the ends."""
    edges = np.flatnonzero(np.diff(clear.astype(int))) + 1
    return np.round(edges[1:-1].reshape(-1, 2).mean(axis=1))


def test_the_picture_is_cut_into_its_rows_and_columns(shown: "Page", acts: Activations) -> None:
    go(shown, "patches")
    whole, one = shown.locator(f"{ITEMS} .cut canvas").all()
    assert whole.get_attribute("aria-label") == "The picture in 4 × 6 patches"
    assert "one patch: 4 × 4 pixels" in shown.locator(f"{ITEMS} .cut").inner_text()
    values = example(MODEL).preprocess(picture()).permute(1, 2, 0).numpy()
    mean, std = example(MODEL).preprocess.mean, example(MODEL).preprocess.std
    colours = np.clip(255 * (values * std + mean), 0, 255)
    drawn = as_pixels(whole.evaluate("canvas => canvas.toDataURL()"))
    side = drawn.shape[1] // 6
    assert drawn.shape[:2] == (4 * side, 6 * side)
    clear = whole.evaluate(
        """canvas => { const [w, h] = [canvas.width, canvas.height];
          const { data } = canvas.getContext("2d").getImageData(0, 0, w, h);
          return Array.from({ length: w * h }, (_, i) => data[4 * i + 3] === 0) }"""
    )
    clear = np.reshape(clear, drawn.shape[:2])
    # A gap between columns, and between rows: seen in the first ones, where no patch is outlined.
    np.testing.assert_array_equal(gaps(np.all(clear[:side], axis=0)), np.arange(1, 6) * side)
    np.testing.assert_array_equal(gaps(np.all(clear[:, :side], axis=1)), np.arange(1, 4) * side)
    for row, col in set(np.ndindex(4, 6)) - {(2, 4)}:  # without the outlined one
        found = drawn[row * side + side // 2 + 2, col * side + side // 2 + 2]
        np.testing.assert_allclose(found, colours[4 * row + 2, 4 * col + 2], atol=3)
    np.testing.assert_allclose(
        as_pixels(one.evaluate("canvas => canvas.toDataURL()")), colours[8:12, 16:20], atol=2
    )


@pytest.mark.parametrize("kind", ["blue first", "grey"])
def test_other_inputs_are_shown_in_the_colours_of_the_picture(kind: str, page: "Page") -> None:
    model = blue_first_or_grey(kind)
    made = components.anatomy(model, picture(), vitviz.capture(model, picture()), "x", query=1 + 7)
    open_sources(page, "anatomy", made)
    page.locator(f"{ITEMS} .item").first.wait_for()
    x = model.preprocess(picture())
    canvases = page.locator(f"{ITEMS} .channels canvas:visible")
    channels = x.numpy() if kind == "grey" else x.numpy()[::-1]
    for channel, canvas in zip(channels, canvases.all(), strict=True):
        np.testing.assert_allclose(pixels_of(canvas), colours(channel, 2.2), atol=8)
    images = [one.get("href") or "" for one in saved(page).iter(f"{SVG}image")]
    assert sum("image/png" in one for one in images) == len(channels)
    go(page, "patches")
    wanted = np.asarray(model.preprocess.picture_of(x), int)[16:32, 16:32]
    patch = pixels_of(page.locator(f"{ITEMS} .cut canvas").last)
    np.testing.assert_allclose(patch, wanted, atol=2)


def test_the_charts_number_the_layers_and_mark_the_one_that_is_open(
    shown: "Page", acts: Activations
) -> None:
    residual = anatomy.residual_stream(acts)
    wanted = [(0, [residual.patches, residual.cls]), (1, [residual.attention, residual.mlp])]
    charts = shown.evaluate(
        """() => [...component.box.querySelectorAll("figure svg")].map((svg) => {
          const at = (node, name) => Number(node.getAttribute(name));
          const numbers = [...svg.querySelectorAll("text[text-anchor=middle]")];
          return {
            numbers: numbers.map((text) => [Number(text.textContent), at(text, "x")]),
            dots: [...svg.querySelectorAll("circle")].map((dot) => [at(dot, "cx"), at(dot, "cy")]),
            here: at(svg.querySelector(".here"), "x1"),
            zero: at(svg.querySelector(".axis"), "y1"),
            most: svg.querySelectorAll("text[text-anchor=end]")[1].textContent,
            about: svg.getAttribute("aria-label"),
            styles: [...svg.querySelectorAll("polyline")].map((line) => line.className.baseVal),
            legend: [...svg.parentElement.querySelectorAll(".legend span")].map(
              (name) => [name.className, name.textContent]),
          };
        })"""
    )
    names = [["mean of patches", "CLS"], ["attention", "MLP"]]
    assert len(charts) == 2
    for chart, (first, lines), called in zip(charts, wanted, names, strict=True):
        assert [number for number, _ in chart["numbers"]] == [*range(first, acts.depth + 1)]
        places = dict(chart["numbers"])
        assert chart["here"] == places[LAYER + 1]
        x, y = np.array(chart["dots"]).T
        np.testing.assert_allclose(x, [*places.values()] * 2)
        values = np.concatenate(lines)
        np.testing.assert_allclose(
            (chart["zero"] - y) / (chart["zero"] - y).max(), values / values.max()
        )
        unit = 100 if first else 1  # shares are in per cent
        assert_written(chart["most"], unit * values.max(), digits=2)
        assert_written(chart["about"], *(unit * line[-1] for line in lines))
        assert chart["legend"] == [list(pair) for pair in zip(chart["styles"], called, strict=True)]


def test_no_line_is_drawn_through_a_layer_without_a_value(page: "Page") -> None:
    """As where a stage begins, of which Swin's first layer has no input of the same shape."""
    model = own_model(depth=5)
    made = components.anatomy(model, picture(), vitviz.capture(model, picture()), "x")
    made["view"]["residual"]["attention"][2] = None
    open_sources(page, "anatomy", made)
    lines = page.locator(".charts figure").last.locator("polyline.attn")
    ends = lines.evaluate_all("all => all.map((line) => line.points.length)")
    assert ends == [2, 2]
    assert page.locator(".charts figure").last.locator("circle.attn").count() == 4


def test_a_click_on_a_bar_chooses_its_key(shown: "Page") -> None:
    go(shown, "scores")
    bars = shown.locator(f"{ITEMS} canvas[aria-label^=softmax]")
    box = bars.bounding_box()
    assert box is not None
    for key in (PREFIX + 6 + 3, 25):  # row 2, column 4; row 4, column 6, the last of 26
        bars.click(position={"x": (key + 0.5) / 26 * box["width"], "y": box["height"] / 2})
        assert names_of(shown)["key"] == place(key)


def test_the_pointer_and_the_keys_choose_the_token_that_they_point_at(
    shown: "Page", acts: Activations
) -> None:
    """With two tokens in front, and on a picture of which the model sees a part."""
    go(shown, "scores")
    photo = shown.locator("[data-part=photo]")

    def middle(row: int, col: int) -> Any:
        box = photo.bounding_box()
        assert box is not None
        scale = box["width"] / SIZE[0]
        left, top, right, bottom = patch_box(
            shown.evaluate("component.shape.crop"), (4, 6), row, col
        )
        return {"x": scale * (left + right) / 2, "y": scale * (top + bottom) / 2}

    photo.hover(position=middle(0, 4))
    assert names_of(shown) == {"query": place(TOKEN), "key": place(PREFIX + 4)}
    photo.click(position=middle(1, 3))
    shown.mouse.move(2, 2)
    assert names_of(shown)["query"] == place(PREFIX + 6 + 3)
    shown.get_by_role("button", name="click: key").click()
    photo.click(position=middle(3, 2))
    shown.mouse.move(2, 2)
    for arrow, key in (("", 18 + 2), ("ArrowRight", 18 + 3), ("ArrowUp", 12 + 3)):
        if arrow:
            photo.press(arrow)
        assert names_of(shown) == {"query": place(PREFIX + 6 + 3), "key": place(PREFIX + key)}
    shown.get_by_role("button", name="click: query").click()
    for name, token in (("DIST", 1), ("CLS", 0)):
        shown.get_by_role("button", name=name, exact=True).click()
        assert names_of(shown)["query"] == place(token)
    photo.press("ArrowUp")  # from the middle, where a token in front has no neighbours
    assert names_of(shown)["query"] == place(PREFIX + 6 + 3)
    photo.press("Escape")
    assert names_of(shown)["query"] == "CLS"
    assert shown.locator("[data-part=sideTitle]").inner_text().startswith(f"Layer {LAYER + 1} ")
    for head in (HEAD + 1, 4, 1):
        photo.press(str(head))
        wait_for_frame(shown)
        menus = shown.locator("[data-part=menus] option:checked").all_inner_texts()
        assert menus == [f"layer {LAYER + 1} of 3", f"head {head} of 4"]


def test_what_is_drawn_has_the_colour_of_its_number_and_marks_what_was_chosen(
    shown: "Page", acts: Activations
) -> None:
    def frame_on(canvas: "Locator") -> tuple[float, float, float, float]:
        """Of the frame around a part: left, top, right and bottom as shares of the canvas."""
        found: tuple[float, float, float, float] = canvas.evaluate(
            """canvas => { const [whole, part] = [canvas, canvas.parentElement.querySelector("i")]
                .map((node) => node.getBoundingClientRect());
              return [(part.left - whole.left) / whole.width, (part.top - whole.top) / whole.height,
                (part.right - whole.left) / whole.width,
                (part.bottom - whole.top) / whole.height] }"""
        )
        return found

    def saved_frame() -> list[float]:
        """Left, top, width and height of the same frame in the scene as it is saved."""
        frames = [one for one in saved(shown).iter(f"{SVG}rect") if one.get("stroke-width") == "2"]
        (frame,) = (one for one in frames if one.get("fill") == "none")
        return numbers_of(frame, "x", "y", "width", "height")

    items = shown.locator(f"{ITEMS} canvas")
    go(shown, "picture")
    values = example(MODEL).preprocess(picture()).numpy()
    for channel, canvas in zip(values, items.all(), strict=True):
        np.testing.assert_allclose(pixels_of(canvas), colours(channel, 2.2), atol=8)

    go(shown, "before")
    tokens = acts.tokens(LAYER)
    found, wanted = pixels_of(items.first), colours(tokens, limit_of(tokens.ravel()))
    np.testing.assert_allclose(found, wanted, atol=8)  # of half precision
    top, bottom = TOKEN / len(tokens), (TOKEN + 1) / len(tokens)
    np.testing.assert_allclose(frame_on(items.first)[1::2], (top, bottom), atol=0.02)
    np.testing.assert_allclose(saved_frame()[1::2], (84 * top, 84 / len(tokens)))

    go(shown, "concatenated")
    left, right = HEAD / 4, (HEAD + 1) / 4
    np.testing.assert_allclose(frame_on(items.first)[::2], (left, right), atol=0.01)
    np.testing.assert_allclose(saved_frame()[::2], (370 * left, 370 / 4))

    go(shown, "scores")
    scores = anatomy.head_scores(acts, LAYER, HEAD)[1][TOKEN]
    assert scores.min() < 0 < scores.max()
    key = PREFIX + int(acts.attention(LAYER)[HEAD, TOKEN, PREFIX:].argmax())
    bars = items.nth(3)
    drawn = np.array(
        bars.evaluate(
            """canvas => { const { width, height } = canvas;
              const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
              return Array.from({ length: width * height }, (_, i) => data[4 * i + 3] > 200) }"""
        )
    ).reshape(120, -1)
    marked = near(pixels_of(bars), KEY)
    most, least = max(0.0, scores.max()), min(0.0, scores.min())
    for each, score in enumerate(scores):
        column = round((each + 0.5) * drawn.shape[1] / len(scores))
        ends = 1 + 118 * (most - np.array([max(score, 0), min(score, 0)])) / (most - least)
        rows = np.flatnonzero(drawn[:, column])
        np.testing.assert_allclose((rows[0], rows[-1] + 1), ends, atol=2)
        assert marked[:, column].any() == (each == key)

    photo = pixels_of(shown.locator("[data-part=photo]"))
    scale = photo.shape[1] / SIZE[0]
    for token, colour in ((TOKEN, QUERY), (key, KEY)):
        lit = near(photo, colour)
        left, upper, right, lower = (
            scale * side for side in patch_box(acts.crop, (4, 6), *divmod(token - PREFIX, 6))
        )
        down = slice(max(0, int(upper) - 4), int(lower) + 5)
        within = down, slice(max(0, int(left) - 4), int(right) + 5)
        assert lit.sum() == lit[within].sum() > 30


def test_a_strip_in_two_lines_is_marked_and_clicked_where_its_number_stands(page: "Page") -> None:
    model = own_model(embed_dim=516, num_heads=3)  # lines of 258 numbers; head 2 has 172 to 343
    acts = vitviz.capture(model, picture())
    page.emulate_media(reduced_motion="reduce")
    open_sources(page, "anatomy", components.anatomy(model, picture(), acts, "x", layer=1, head=1))

    def boxes(canvas: "Locator") -> np.ndarray:
        """Left, top, right and bottom of the marks, in numbers and lines."""
        places = canvas.evaluate(
            """canvas => { const whole = canvas.getBoundingClientRect();
              const [x, y] = [whole.width / canvas.width, whole.height / canvas.height];
              const marks = canvas.parentElement.querySelectorAll("i:not([hidden])");
              return [...marks].map((mark) => mark.getBoundingClientRect()).map((box) =>
                [(box.left - whole.left) / x, (box.top + 2 - whole.top) / y,
                  (box.right - whole.left) / x, (box.bottom - 2 - whole.top) / y]) }"""
        )
        return np.array(places)

    def saved_boxes() -> np.ndarray:
        frames = [one for one in saved(page).iter(f"{SVG}rect") if one.get("stroke-width") == "2"]
        x, y, width, height = np.transpose(
            [
                numbers_of(one, "x", "y", "width", "height")
                for one in frames
                if one.get("fill") == "none"
            ]
        )
        sides = (x, y + 1, x + width, y + height - 1)
        return np.transpose(sides) * np.tile([258 / 370, 2 / 23], 2)

    go(page, "concatenated")
    strip = page.locator(f"{ITEMS} .strip canvas")
    wanted = [(172, 0, 258, 1), (0, 1, 86, 2)]
    np.testing.assert_allclose(boxes(strip.first), wanted, atol=0.2)
    np.testing.assert_allclose(saved_boxes(), wanted, atol=1e-6)
    go(page, "norm1")
    box = strip.nth(1).bounding_box()
    assert box
    for line, column in ((1, 60), (0, 200), (1, 257)):
        place: Any = {
            "x": (column + 0.5) / 258 * box["width"],
            "y": (line + 0.5) / 2 * box["height"],
        }
        strip.nth(1).click(position=place)
        wait_for_frame(page)
        number = 258 * line + column
        assert f"Number {number + 1}: " in page.locator(ITEMS).inner_text()
        ((left, top, right, bottom),) = boxes(strip.nth(1))
        assert left - 1 < column + 0.5 < right + 1
        np.testing.assert_allclose((top, bottom), (line, line + 1), atol=0.05)


def test_few_tokens_are_written_as_the_whole_matrix_and_a_click_chooses_a_pair(
    page: "Page",
) -> None:
    model = own_model(image_size=(16, 12), class_token=False)  # 4 x 3 patches
    randomise(model.module)
    acts = vitviz.capture(model, picture())
    page.emulate_media(reduced_motion="reduce")
    made = components.anatomy(model, picture(), acts, "x", layer=LAYER, head=HEAD, query=5)
    open_sources(page, "anatomy", made)
    edges = [f"{row + 1}.{col + 1}" for row, col in np.ndindex(4, 3)]
    places = [f"row {row + 1} column {col + 1}" for row, col in np.ndindex(4, 3)]
    lines = page.locator(f"{ITEMS} tr")
    rows = page.locator(f"{ITEMS} tbody tr")

    def marked(name: str) -> list[int]:
        places: list[int] = rows.evaluate_all(
            """(all, name) => all.flatMap((row, at) => name === "query"
              ? (row.classList.contains(name) ? [at] : [])
              : [[...row.children].findIndex((one) => one.classList.contains(name)) - 1])""",
            name,
        )
        return places

    go(page, "attention")
    assert marked("query") == [5]
    rows.nth(2).locator("td").nth(7).click()
    scores, shares = anatomy.head_scores(acts, LAYER, HEAD)[1], acts.attention(LAYER)[HEAD]
    assert scores.min() < 0 < scores.max()
    for step, values, error in (("scores", scores, 0.06), ("attention", 100 * shares, 0.51)):
        go(page, step)
        head, *table = [line.split("\t") for line in lines.all_inner_texts()]
        assert (head[1:], [line[0] for line in table]) == (edges, edges)
        found = [[float(text.replace("−", "-")) for text in line[1:]] for line in table]
        np.testing.assert_allclose(found, values, atol=error)
        cells = rows.locator("td").evaluate_all("all => all.map((td) => [td.title, td.className])")
        for (title, style), (query, key) in zip(cells, np.ndindex(12, 12), strict=True):
            assert title.startswith(f"{places[query]} → {places[key]}: ")
            assert ("below" in style) == (values[query, key] < 0)
        saved = ElementTree.fromstring(
            page.evaluate("new XMLSerializer().serializeToString(component.drawing().drawn)")
        )
        (grid,) = (one for one in saved.iter(f"{SVG}g") if len(one.findall(f"{SVG}text")) == 144)
        texts, boxes = grid.findall(f"{SVG}text"), grid.findall(f"{SVG}rect")
        wide, high, first = numbers_of(boxes[0], "width", "height", "y")
        for cell, text, (query, key) in zip(boxes, texts, np.ndindex(12, 12), strict=False):
            assert text.text == table[query][1 + key]
            at = numbers_of(cell, "x", "y")
            np.testing.assert_allclose(at, (key * wide, first + query * high))
            assert (cell.get("fill") == "#2166ac") == (values[query, key] < 0)
        assert marked("query") == [2]
        assert marked("key") == [7] * 12
        frames = [numbers_of(box, "x", "y") for box in boxes[144:]]
        np.testing.assert_allclose(frames, [(0, first + 2 * high), (7 * wide, first)])

    page.locator("[data-part=photo]").press("Escape")  # to the token in the middle
    wait_for_frame(page)
    assert marked("query") == [2 * 3 + 1]


@pytest.mark.parametrize(
    ("step", "line", "chosen"), [("head", "tr", "component.dim"), ("scores", "td", "component.key")]
)
def test_a_table_is_clicked_while_numbers_move_and_keeps_the_focus(
    step: str, line: str, chosen: str, page: "Page"
) -> None:
    model = own_model(image_size=(16, 12), class_token=False)  # 4 x 3 patches
    acts = vitviz.capture(model, picture())
    open_sources(page, "anatomy", components.anatomy(model, picture(), acts, "x", layer=1))
    page.locator(f"{ITEMS} .item").first.wait_for()
    go(page, step)
    page.locator(f"{ITEMS} {line} >> nth=4").hover()
    page.evaluate("() => { component.begun = performance.now(); component.redraw() }")
    page.mouse.down()
    wait_for_frame(page)
    page.mouse.up()
    wanted = 3 if line == "tr" else 4 - 1  # behind the row of titles, behind the empty corner
    assert page.evaluate(chosen) == wanted
    if line == "tr":
        page.locator(f"{ITEMS} tr >> nth=2").press("Enter")
        wait_for_frame(page)
        assert page.evaluate(chosen) == 1
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.evaluate(chosen) == 2


def test_the_time_of_the_walk_stays_as_another_layer_arrives(shown: "Page") -> None:
    menu = shown.get_by_label("Time for all steps")
    menu.select_option("4 min")
    assert shown.evaluate("component.minutes") == 4
    again = "({ ...component.data, layerId: 'another', state: { ...component.state, frame: 0 } })"
    shown.evaluate(f"component.receive({again}, () => {{}})")
    wait_for_frame(shown)
    assert menu.evaluate("menu => menu.selectedOptions[0].textContent") == "4 min"


def test_scene_answer_and_chart_are_saved_with_the_numbers_of_the_capture(
    shown: "Page", acts: Activations
) -> None:
    go(shown, "scores")
    shares = acts.attention(LAYER)[HEAD, TOKEN]
    key = PREFIX + int(shares[PREFIX:].argmax())
    q, k = acts.queries(LAYER)[HEAD, TOKEN], acts.keys(LAYER)[HEAD, key]
    scores = anatomy.head_scores(acts, LAYER, HEAD)[1][TOKEN]
    assert shown.evaluate("component.drawing().title").endswith("layer 3, row 3 column 5")
    svg = saved(shown)
    images = [one.get("href") or "" for one in svg.iter(f"{SVG}image")]
    strips = [as_pixels(one) for one in images if "image/png" in one]
    step = 2 * np.abs(np.diff(colours(np.linspace(-1, 1, 256), 1), axis=0)).max()
    limits = limit_of(q, k), limit_of(q, k), limit_of(q * k)
    for drawn, values, limit in zip(strips, (q, k, q * k), limits, strict=True):
        np.testing.assert_allclose(drawn[0], colours(values, limit), atol=step)
    said = f"softmax over 26 keys = {written(float(shares[key]))}"
    assert said in " ".join(texts_of(svg))
    fills = {"".join(one.itertext()): one.get("fill") for one in svg.iter(f"{SVG}text")}
    for role, token, fill in (("query", TOKEN, "#006b80"), ("key", key, "#b4005f")):  # as on page
        (found,) = (words for words in fills if words.startswith(f"{role} row "))
        assert (found.replace("\u00a0", " "), fills[found]) == (f"{role} {place(token)}", fill)
    heights = bars_of(svg, "height")
    of_scores, of_shares = heights[:26], heights[27:53]  # each with the marked one after it
    sizes = np.abs(scores)
    np.testing.assert_allclose(of_scores / of_scores.max(), sizes / sizes.max(), atol=1e-5)
    np.testing.assert_allclose(of_shares / 66, shares / shares.max(), atol=1e-5)
    assert len([one for one in svg.iter(f"{SVG}rect") if one.get("stroke") == QUERY]) == 1

    go(shown, "head")
    answer = saved(shown)
    assert acts.probabilities is not None
    order = np.argsort(-acts.probabilities)[:5]
    widths, best = bars_of(answer, "width"), acts.probabilities[order]
    np.testing.assert_allclose(widths / widths[0], best / best[0], atol=1e-4)
    assert all(acts.output_names[index] in " ".join(texts_of(answer)) for index in order)

    go(shown, "picture")
    menu = shown.locator(".side .save-menu").first
    name, file = save(shown, menu, "SVG, with title")
    assert name == "vitviz_residual_stream_z_by_layer.svg"
    chart = ElementTree.fromstring(file)
    assert len([*chart.iter(f"{SVG}circle")]) == 2 * (acts.depth + 1)
    words = " ".join(texts_of(chart))
    assert "mean of patches" in words
    assert acts.provenance in words
