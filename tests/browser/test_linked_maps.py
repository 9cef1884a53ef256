"""Two token maps of one link, in a real browser: one place, one scale, one message."""

import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from app_server import Server

from vitviz.plots.template import KEY
from vitviz.web.token_map import encode_frame, matching_patch

from .test_token_map import (
    CROP,
    GRID,
    SIZE,
    around,
    as_pixels,
    middle_of,
    near,
    planted,
    sent,
    sent_stack,
    shape_of,
    show,
)
from .walk import opened, settled, until

if TYPE_CHECKING:
    from playwright.sync_api import Page

__all__ = ["show"]
COARSE = (5, 4)
COARSE_CROP = (100.0, 20.0, 450.0, 370.0)
SECOND = """([stack, change]) => {
  const columns = {};
  for (const name of ["codes", "peaks", "prefix", "places"]) {
    const [type, text] = stack[name];
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    columns[name] = new globalThis[type](bytes.buffer);
  }
  const host = document.createElement("div");
  document.body.append(host);
  const nowhere = document.createElement("div");
  show.mount({ data: { stack: stack.stack, ...columns }, parentElement: nowhere });
  window.told = [];
  show.mount({
    data: { ...view, ...change }, parentElement: host,
    setTriggerValue: (...event) => told.push(event),
  });
  window.other = host.view;
}"""
SAVED = """(colour) => {
  const boxes = component.drawing(false).drawn.querySelectorAll(`rect[stroke="${colour}"]`);
  return [...boxes].map((box) => ["x", "y"].map((name) => Number(box.getAttribute(name))));
}"""
STATES = "[component, other].map(({ state, hover }) => [hover, state.query, state.head])"


def label(page: "Page", which: int) -> str:
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return page.locator("canvas[data-part=map]").nth(which).get_attribute("aria-label") or ""


def scale_end(page: "Page", which: int) -> str:
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return page.locator(".bar").nth(which).locator("span").last.inner_text()


def pixels(page: "Page", part: str, *, first: bool = False) -> np.ndarray:
    """The last canvas of this part, or the first, (height, width, 3)."""
    canvases = page.locator(f"canvas[data-part={part}]")
    canvas = canvases.first if first else canvases.last
    return as_pixels(canvas.evaluate("canvas => canvas.toDataURL()"))


@pytest.fixture
def both(page: "Page", show: Callable[..., None]) -> None:
    """A fine grid with CLS beside a coarse one, without, that lies elsewhere in the picture."""
    first = planted()
    show(first, link="pair", matches=None, state={"scale": "shared"})
    second = np.random.default_rng(0).dirichlet(np.full(20, 0.1), (2, 20))
    shape = replace(
        shape_of(second, COARSE),
        grid=COARSE,
        key_grid=COARSE,
        crop=COARSE_CROP,
        key_crop=COARSE_CROP,
    )
    assert shape.prefix == ()
    stack = sent_stack([encode_frame(0, second, 0, "share")], [shape], "share")
    stack["stack"]["id"] = "second"
    change = {"stackId": "second", "frames": [shape.to_message("layer 1")]}
    page.evaluate(SECOND, [stack, json.loads(json.dumps(change))])
    page.locator("canvas[data-part=map][aria-label]").nth(1).wait_for()


def in_coarse(row: int, col: int) -> tuple[int, int]:
    return matching_patch((row, col), (GRID, CROP), (COARSE, COARSE_CROP))


@pytest.mark.usefixtures("both")
def test_where_the_pointer_is_on_one_map_the_other_looks_too(page: "Page") -> None:
    at = page.locator("canvas[data-part=photo]").first.bounding_box()
    assert at
    for place in ((7, 3), (0, 0), (9, 13)):
        page.mouse.move(*middle_of(page, "photo", *place))
        row, col = in_coarse(*place)
        assert label(page, 0).startswith(f"query row {place[0] + 1} column {place[1] + 1},")
        assert label(page, 1).startswith(f"query row {row + 1} column {col + 1},")
    page.mouse.move(5, at["y"] + at["height"] + 400)
    assert [state[0] for state in page.evaluate(STATES)] == [None, None]
    assert sent(page) == page.evaluate("told") == []


@pytest.mark.usefixtures("both")
def test_a_click_is_taken_by_both_and_told_once(page: "Page") -> None:
    page.mouse.click(*middle_of(page, "photo", 7, 3))
    row, col = in_coarse(7, 3)
    expected = [1 + 7 * 14 + 3, row * 4 + col]
    assert [state[1] for state in page.evaluate(STATES)] == expected
    assert [state["query"] for state in sent(page)] == [expected[0]]
    assert page.evaluate("told") == []
    page.locator("canvas[data-part=photo]").last.focus()
    page.keyboard.press("1")
    assert [state[2] for state in page.evaluate(STATES)] == [0, 0]
    assert len(sent(page)) == 1
    assert len(page.evaluate("told")) == 1
    assert page.evaluate("[component.commits.version, other.commits.version]") == [2, 2]


@pytest.mark.usefixtures("both")
def test_both_have_the_scale_of_the_larger_maximum(page: "Page") -> None:
    for place in ((7, 3), (2, 9)):
        page.mouse.move(*middle_of(page, "photo", *place))
        ends = [scale_end(page, which) for which in (0, 1)]
        assert ends[0] == ends[1]
        strongest = [label(page, which).rpartition(", ")[2] for which in (0, 1)]
        assert ends[0] in strongest
        assert float(ends[0][:-2]) == max(float(one[:-2]) for one in strongest)
        assert strongest[0] != strongest[1]


def test_what_the_host_asks_for_of_the_picture_is_drawn_and_clicked(
    page: "Page", show: Callable[..., None]
) -> None:
    left, top, right, bottom = CROP
    picture = {"width": SIZE[0], "height": SIZE[1], "crop": list(CROP), "area": list(CROP)}
    titles = {"row": "map", "strip": "", "caption": "a cat", "hint": "point here"}
    show(planted(), link="pair", matches=None, picture=picture, titles=titles)
    box = page.locator("canvas[data-part=photo]").bounding_box()
    assert box
    assert box["width"] / box["height"] == pytest.approx((right - left) / (bottom - top), rel=0.01)
    row, col = 7, 3
    share = (col + 0.5) / GRID[1], (row + 0.5) / GRID[0]
    page.mouse.click(box["x"] + share[0] * box["width"], box["y"] + share[1] * box["height"])
    assert [state["query"] for state in sent(page)] == [1 + row * GRID[1] + col]
    assert page.locator(".caption").inner_text() == "a cat · point here"


def test_matches_are_outlined_in_the_other_picture(page: "Page", show: Callable[..., None]) -> None:
    count = GRID[0] * GRID[1]
    cosines = np.random.default_rng(0).uniform(-1, 1, (1, count, count))
    shape = replace(shape_of(cosines, GRID, "cosine"), prefix=(), home=0)
    nearest = np.argsort(-cosines[0], axis=1)[:, :3]
    mutual = [query == 40 for query in range(count)]
    matches = {"nearest": nearest.tolist(), "mutual": mutual, "back": nearest.tolist()}
    show(
        *cosines[None],
        kind="cosine",
        shapes=[shape],
        link="pair",
        matches=matches,
        state={"query": 40, "pinned": True},
        strip="frames",
    )
    for part in ("photo", "map"):
        found = near(pixels(page, part), KEY)
        for patch in range(count):
            row, col = divmod(patch, GRID[1])
            outlined = found[around(found, row, col)].sum()
            neighbours = {
                (one // GRID[1] + down, one % GRID[1] + right)
                for one in nearest[40].tolist()
                for down in (-1, 0, 1)
                for right in (-1, 0, 1)
            }
            assert (
                outlined > 20 if patch in nearest[40] else (row, col) in neighbours or not outlined
            )
    words = page.locator("[data-part=reading]").inner_text()
    row, col = divmod(int(nearest[40, 0]), GRID[1])
    outlined = page.evaluate(SAVED, KEY)  # the best one, in a picture that is saved
    expected = [CROP[0] + col * (CROP[2] - CROP[0]) / 14, CROP[1] + row * (CROP[3] - CROP[1]) / 10]
    assert outlined == [pytest.approx(expected)]
    assert words.startswith(f"Most similar: row {row + 1} column {col + 1}, cosine")
    assert words.endswith("Each is the other's most similar.")
    before = page.evaluate("component.state.query")
    page.mouse.click(*middle_of(page, "photo", 2, 2))  # this picture is not the query's
    assert page.evaluate("component.state.query") == before
    page.locator("canvas[data-part=photo]").focus()
    page.keyboard.press("ArrowRight")
    assert page.evaluate("component.state.query") == 41
    assert "Each is" not in _reading(page)


def test_the_pointer_on_the_other_picture_shows_the_nearest_in_this_one(
    page: "Page", show: Callable[..., None]
) -> None:
    count, random = GRID[0] * GRID[1], np.random.default_rng(0)
    own, across = random.uniform(-1, 1, (2, 1, count, count))
    shape = replace(shape_of(own, GRID, "cosine"), prefix=(), home=0)
    here = {"query": 40, "pinned": True}
    show(
        *own[None],
        kind="cosine",
        shapes=[shape],
        link="pair",
        matches=None,
        state=here,
        strip="frames",
    )
    similarity = across[:, :, : COARSE[0] * COARSE[1]]
    nearest, back = (np.argsort(-one, axis=1)[:, :3] for one in (similarity[0], similarity[0].T))
    matches = {"nearest": nearest.tolist(), "mutual": [False] * count, "back": back.tolist()}
    other = replace(shape, key_grid=COARSE, key_crop=COARSE_CROP)
    stack = sent_stack([encode_frame(0, similarity, 0, "cosine")], [other], "cosine")
    stack["stack"]["id"] = "second"
    change = {"stackId": "second", "frames": [other.to_message("layer 1")], "matches": matches}
    page.evaluate(SECOND, [stack, json.loads(json.dumps(change))])
    page.locator("canvas[data-part=map][aria-label]").nth(1).wait_for()
    before = label(page, 0)
    assert before.startswith("query row 3 column 13,")
    photo = page.locator("canvas[data-part=photo]").nth(1)
    box = photo.bounding_box()
    assert box
    scale = box["width"] / SIZE[0]
    for row, col in ((0, 0), (4, 2), (3, 3)):
        x = COARSE_CROP[0] + (col + 0.5) / COARSE[1] * (COARSE_CROP[2] - COARSE_CROP[0])
        y = COARSE_CROP[1] + (row + 0.5) / COARSE[0] * (COARSE_CROP[3] - COARSE_CROP[1])
        photo.hover(position={"x": scale * x, "y": scale * y})
        patch = row * COARSE[1] + col
        best = divmod(int(back[patch, 0]), GRID[1])
        said = label(page, 0)
        assert said.startswith(f"query row {row + 1} column {col + 1} of the other picture, ")
        cosine = similarity[0, back[patch, 0], patch]
        found = re.search(r"most similar row (\d+) column (\d+), cosine (-?[\d.]+)", said)
        assert found
        assert (int(found[1]) - 1, int(found[2]) - 1) == best
        assert float(found[3]) == pytest.approx(cosine, abs=0.01)
        drawn = near(pixels(page, "photo", first=True), KEY)
        for one in back[patch]:
            assert drawn[around(drawn, *divmod(one, GRID[1]))].sum() > 20
    page.mouse.move(5, 5)
    assert label(page, 0) == before
    assert sent(page) == page.evaluate("told") == []


def _reading(page: "Page") -> Any:
    page.evaluate("() => new Promise(requestAnimationFrame)")
    return page.locator("[data-part=reading]").inner_text()


def test_the_page_compares_under_the_pointer_and_keeps_what_was_clicked(
    page: "Page", server: Server
) -> None:
    opened(page, server, "compare?compare=models&other_model=vitviz_tiny_cifar10")
    photos = page.locator("main canvas[data-part=photo]")
    photos.nth(1).and_(page.locator("[aria-label]")).wait_for()
    settled(page)
    page.wait_for_timeout(500)  # what comes late moves the figures down
    said = [photos.nth(which).get_attribute("aria-label") for which in (0, 1)]
    box = photos.nth(1).bounding_box()
    assert box
    middle = box["x"] + 0.53 * box["width"], box["y"] + 0.53 * box["height"]  # of a patch
    page.mouse.move(*middle)
    until(page, lambda: photos.first.get_attribute("aria-label") != said[0])
    labels = [str(photos.nth(which).get_attribute("aria-label")) for which in (0, 1)]
    assert labels[0].split(",")[0] == labels[1].split(",")[0]
    assert labels[0].startswith("query row")
    page.mouse.click(*middle)
    until(page, lambda: "query=" in page.url)
    settled(page)
    page.mouse.move(5, 5)
    assert photos.first.get_attribute("aria-label") == labels[0]
    assert "correlation" in page.locator("main").inner_text()
