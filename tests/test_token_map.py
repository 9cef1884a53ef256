"""The token map's modules without a browser: maps.js is run by node, on numbers that are known."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import timm
from examples import example, narrow_stages, picture, watched
from node import evaluate
from pages.driver import schema

from vitviz import DropPatches, ModelError, capture, plots
from vitviz.common.language import as_percent
from vitviz.web.token_map import (
    Frame,
    MapKind,
    MapShape,
    capture_frames,
    capture_view,
    encode_frame,
    encode_window_frame,
    frame_shape,
    matching_patch,
    pack_stack,
)

GRID, KEYS = (5, 4), (3, 2)
CROP, KEY_CROP = (70.0, 20.0, 560.0, 370.0), (70.0, 20.0, 640.0, 400.0)
Node = Callable[..., Any]


@pytest.fixture
def run() -> Node:
    """The value of an expression over the names of maps.js, of keys.js and of what is given."""
    return partial(evaluate, modules=("token_map/maps", "token_map/keys"))


def shape(prefix: tuple[str, ...] = (), heads: int = 2, **options: Any) -> MapShape:
    options = {"key_grid": GRID, "key_crop": CROP} | options
    return MapShape(grid=GRID, crop=CROP, prefix=prefix, home=-1, heads=heads, **options)


def stack_of(frame: Frame, shape: MapShape, kind: MapKind = "share") -> dict[str, Any]:
    """What `Stack` is made of, as JSON can hold it."""
    sent = pack_stack("id", [frame], [shape], kind, "")
    return {name: part if name == "stack" else part.tolist() for name, part in sent.items()}


def attention(queries: int, keys: int, heads: int = 2) -> np.ndarray:
    return np.random.default_rng(0).dirichlet(np.full(keys, 0.3), (heads, queries))


def windowed() -> tuple[Frame, np.ndarray]:
    """Attention in windows of 5 x 2 patches, one key of each is padding; and over all patches."""
    queries = np.arange(20).reshape(5, 2, 2).swapaxes(0, 1).reshape(2, 10)
    keys = queries.copy()
    keys[:, 3] = -1
    values = np.stack([attention(10, 10), attention(10, 10)[:, ::-1]])  # (windows, heads, n, m)
    whole = np.zeros((2, 20, 20))
    for window, numbers, met in zip(values, queries, keys, strict=True):
        whole[:, numbers[:, None], met[met >= 0]] = window[:, :, met >= 0]
    return encode_window_frame(0, values, queries, keys), whole


def kinds_of_frames() -> dict[str, tuple[Frame, np.ndarray, MapShape]]:
    """Frames with what they hold, (heads, queries, keys), and where their tokens lie."""
    plain, pooled, windows = attention(22, 22), attention(20, 6), windowed()
    return {
        "prefix": (encode_frame(0, plain, 2, "share"), plain, shape(("CLS", "REG1"))),
        "pooled": (
            encode_frame(0, pooled, 0, "share"),
            pooled,
            shape(key_grid=KEYS, key_crop=KEY_CROP),
        ),
        "windows": (*windows, shape()),
    }


STACK = """(() => {
  const [codes, places] = [Uint8Array.from(sent.codes), Int32Array.from(sent.places)];
  const [peaks, prefix] = [sent.peaks, sent.prefix].map((values) => Float32Array.from(values));
  return new Stack({ ...sent, codes, places, peaks, prefix });
})()"""
ALL_MAPS = f"""(() => {{
  const stack = {STACK};
  const tokens = Array.from({{ length: count }}, (_, token) => token);
  const map = (head, token) => {{
    const {{ prefix, patches }} = stack.map(0, head, token, direction);
    return [...prefix, ...patches];
  }};
  return [0, 1, MEAN].map((head) => [...tokens, MEAN].map((token) => map(head, token)));
}})()"""


@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("name", kinds_of_frames())
def test_maps_are_the_attention_and_kept_sums_its_mean(
    name: str, direction: str, run: Node
) -> None:
    frame, values, where = kinds_of_frames()[name]
    if direction == "column":
        values = values.swapaxes(1, 2)
    count, prefix = values.shape[1], len(where.prefix)
    sent = stack_of(frame, where)
    found = np.array(run(ALL_MAPS, sent=sent, count=count, direction=direction))
    tolerance = 0.004 * values.max()
    np.testing.assert_allclose(found[:2, :-1], values, atol=tolerance)
    np.testing.assert_allclose(found[2], found[:2].mean(axis=0), rtol=1e-12)  # the mean of heads
    direct = found[:, prefix:-1].mean(axis=1)  # of the patches, each map made by itself
    np.testing.assert_allclose(found[:, -1], direct, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize(
    ("grid", "prefix", "most", "length"),
    [((5, 4), 2, 64, 1), ((5, 4), 2, 10, 2), ((4, 6), 0, 8, 3), ((3, 7), 1, 5, 7)],
)
def test_the_matrix_is_all_of_the_attention_in_runs_of_patches(
    grid: tuple[int, int], prefix: int, most: int, length: int, run: Node
) -> None:
    count = prefix + grid[0] * grid[1]
    values = attention(count, count)
    names = tuple(f"P{number}" for number in range(prefix))
    where = replace(shape(names), grid=grid, key_grid=grid)
    sent = stack_of(encode_frame(0, values, prefix, "share"), where)
    ask = (
        f"[0, 1, MEAN].map((head) => {STACK}.matrix(0, head, most)).map(({{ cells, run, side }}) =>"
    )
    found = run(f"{ask} ({{ cells: [...cells], run, side }}))", sent=sent, most=most)
    starts = [*range(prefix), *range(prefix, count, length)]
    sizes = np.diff([*starts, count])
    sums = np.add.reduceat(np.add.reduceat(values, starts, axis=1), starts, axis=2)
    means = sums / np.outer(sizes, sizes)
    for one, expected in zip(found, [*means, means.mean(axis=0)], strict=True):
        assert (one["run"], one["side"]) == (length, len(starts))
        cells = np.reshape(one["cells"], expected.shape)
        np.testing.assert_allclose(cells, expected, atol=0.004 * values.max())


def test_there_is_no_matrix_where_not_every_token_meets_every_token(run: Node) -> None:
    for name in ("pooled", "windows"):
        frame, _, where = kinds_of_frames()[name]
        assert run(f"{STACK}.matrix(0, 0)", sent=stack_of(frame, where)) is None


def test_maps_are_exact_in_their_own_codes(run: Node) -> None:
    """To the last digit of float32: what is shown is the code that was sent, and no other."""
    frame, _, where = kinds_of_frames()["prefix"]
    found = np.array(run(ALL_MAPS, sent=stack_of(frame, where), count=22, direction="row"))
    shares = (frame.codes / 255) ** 2 * frame.peaks[..., None].astype(float)
    np.testing.assert_allclose(found[:2, :-1, 2:], shares, rtol=1e-12)
    np.testing.assert_allclose(found[:2, :-1, :2], frame.prefix)


def test_cosines_keep_their_sign(run: Node) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (2, 20, 20))
    sent = stack_of(encode_frame(0, values, 0, "cosine"), shape(), "cosine")
    found = np.array(run(ALL_MAPS, sent=sent, count=20, direction="row"))
    np.testing.assert_allclose(found[:2, :-1], values, atol=0.5 / 127 + 1e-6)


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("share", "map", lambda x: x / 0.5),
        ("share", "log", lambda x: 1 + np.log10(np.maximum(x, 5e-5) / 0.5) / 4),
        ("cosine", "log", lambda x: (x + 1) / 2),  # cosines have no logarithm
    ],
)
def test_a_scale_is_linear_or_logarithmic(
    kind: str, name: str, expected: Callable[[np.ndarray], np.ndarray], run: Node
) -> None:
    values = np.array([0, 1e-5, 0.001, 0.1, 0.5, 0.9])
    found = run(
        "(() => { const maps = [[0.25, 5e-5], [0.5, 1e-3]]"
        "   .map(([value, least]) => ({ strongest: { value }, least }));"
        " const scale = new Scale(kind, name, maps);"
        " return values.map((value) => scale.position(value)) })()",
        **{"kind": kind, "name": name, "values": values.tolist()},
    )
    np.testing.assert_allclose(found, np.clip(expected(values), 0, 1), atol=1e-12)


def test_cosines_may_begin_at_their_minimum(run: Node) -> None:
    found = run(
        "(() => { const scale = new Scale('cosine', 'map', [{ strongest: { value: 1 }, least: 1 }],"
        " 0.4); return [0.1, 0.4, 0.7, 1].map((value) => scale.position(value)) })()"
    )
    np.testing.assert_allclose(found, [0, 0, 0.5, 1], atol=1e-12)


@pytest.mark.parametrize("share", [1e-30, 9.9e-9])
def test_a_share_that_is_not_zero_is_not_written_as_zero(share: float, run: Node) -> None:
    assert run("percent(share)", share=share) == as_percent(share) == "< 0.000001 %"


def test_a_share_is_written_as_in_the_sentences_of_the_server(run: Node) -> None:
    shares = [0.0, 0.0995, 0.09960, 0.09994, 0.1, 0.00999, 0.996, 1.0, 5.4e-8, 1.2e-8, 7.3e-6]
    shares += [1 / 16, 1 / 8, 5 / 8, 1 / 512]  # of which the last digit is followed by a 5 alone
    shares += (10 ** np.random.default_rng(0).uniform(-8, 0, 300)).tolist()
    found = run("shares.map(percent)", shares=shares)
    assert found == [as_percent(share) for share in shares]
    assert found[2] == "10 %"


@pytest.mark.parametrize(
    ("least", "ends"),
    [(0.002, [0.002, 0.4]), (1e-9, [4e-7, 0.4]), (0.4, [0.4, 0.4]), (1e300, [0.4, 0.4])],
)
def test_a_logarithmic_scale_spans_the_data_but_at_most_six_decades(
    least: float, ends: list[float], run: Node
) -> None:
    """Where all values are the same, or none is positive, it has no length."""
    found, positions = run(
        "(() => { const scale = new Scale('share', 'log', [{ strongest: { value: 0.4 }, least }]);"
        " return [[scale.min, scale.max], [0, 0.4].map((value) => scale.position(value))] })()",
        least=least,
    )
    assert found == pytest.approx(ends)
    assert positions == [0, 1]


def test_the_least_value_is_positive_and_leaves_the_query_out(run: Node) -> None:
    assert run("smallest(values, -1)", values=[0, 0.3, 1e-3, 0.02]) == 1e-3
    assert run("smallest(values, 2)", values=[0, 0.3, 1e-3, 0.02]) == 0.02


@pytest.mark.parametrize(
    ("key", "given", "changes"),
    [
        ("n", {"frame": 1}, None),  # the last
        ("N", {}, {"frame": 1}),
        ("p", {"frame": 1}, {"frame": 0}),
        ("p", {}, None),
        ("0", {}, {"head": -1}),
        ("2", {}, {"head": 1}),
        ("3", {}, None),  # of two heads
        ("Escape", {}, None),
        ("Escape", {"query": 3, "pinned": True}, {"query": 0, "pinned": False}),
        ("ArrowDown", {}, {"query": 1 + 2 * 4 + 2, "pinned": True}),  # from CLS to the middle
        ("ArrowDown", {"query": 1 + 17, "pinned": True}, {"query": 1 + 17, "pinned": True}),
        ("ArrowLeft", {"query": 1 + 5, "pinned": True}, {"query": 1 + 4, "pinned": True}),
        ("ArrowRight", {"hover": 1 + 9}, {"query": 1 + 10, "pinned": True}),
        ("ArrowRight", {"hover": 1 + 9, "query": 1, "pinned": True}, {"query": 2, "pinned": True}),
        ("c", {"query": 3, "pinned": True}, None),
        ("Enter", {}, None),
        (" ", {}, None),
    ],
)
def test_what_a_key_changes(
    key: str, given: dict[str, Any], changes: dict[str, Any] | None, run: Node
) -> None:
    """From CLS unless something else is chosen; a pin moves from where it is."""
    frames = [replace(shape(("CLS",)), home=0).to_message(f"layer {number}") for number in (1, 2)]
    state = {"frame": 0, "head": 0, "query": 0, "pinned": False} | given
    hover = state.pop("hover", None)
    found = run(
        "keyed(key, state, frames, hover)", key=key, state=state, frames=frames, hover=hover
    )
    assert found == changes


def test_where_cls_alone_is_a_query_no_key_moves_it(run: Node) -> None:
    frames = [shape(("CLS",), prefix_only=True).to_message("layer 1")]
    state = {"frame": 0, "query": 0, "pinned": False}
    assert run("keyed('ArrowUp', state, frames, null)", state=state, frames=frames) is None


def test_a_patch_is_found_where_its_box_lies(run: Node) -> None:
    grid = {"rows": 5, "cols": 4, "crop": CROP}
    found = run(
        "Array.from({ length: 20 }, (_, patch) => { const [x, y, w, h] = patchBox(patch, grid);"
        " return [patchAt(x + 0.01 * w, y + 0.99 * h, grid), patchAt(x - 500, y, grid)] })",
        grid=grid,
    )
    assert found == [[patch, None] for patch in range(20)]


def test_a_patch_of_another_grid_is_the_same_in_python_and_in_the_browser(run: Node) -> None:
    """On random boxes; and on grids twice as fine, where the middle is on a border."""
    random = np.random.default_rng(0)
    cases = []
    for number in range(400):
        rows, cols = (int(count) for count in random.integers(1, 30, 2))
        left, top = random.uniform(-30, 30, 2)
        crop = (left, top, *(random.uniform(300, 700, 2)))
        at = (rows, cols), crop
        other = tuple(float(side) for side in random.uniform(-1, 1, 4) * 40 + crop)
        doubled = (2 * rows, 2 * cols), crop
        grid = (int(random.integers(1, 30)), int(random.integers(1, 30)))
        to = (grid, other) if number % 2 else doubled
        patch = int(random.integers(rows)), int(random.integers(cols))
        cases.append((patch, at, to))
    found = run(
        "cases.map(([patch, from, to]) => moved(patch, from, to))",
        cases=[
            (row * at[0][1] + col, *({"rows": g[0], "cols": g[1], "crop": c} for g, c in (at, to)))
            for (row, col), at, to in cases
        ],
    )
    expected = [matching_patch(*case) for case in cases]
    assert [divmod(at, to[0][1]) for at, (_, _, to) in zip(found, cases, strict=True)] == expected
    for (row, col), (patch, _, _) in list(zip(expected, cases, strict=True))[::2]:
        assert (row, col) == (2 * patch[0] + 1, 2 * patch[1] + 1)


def test_the_query_is_asked_for_in_the_grid_of_the_keys(run: Node) -> None:
    where = shape(key_grid=KEYS, key_crop=KEY_CROP)
    state = {"query": 3 * 4 + 2, "direction": "column"}
    found = run("selected(shape, state, null)", shape=where.to_message("layer 1"), state=state)
    row, col = matching_patch((3, 2), (where.grid, where.crop), (KEYS, KEY_CROP))
    assert (found["patch"], found["name"]) == (row * 2 + col, f"row {row + 1} column {col + 1}")
    assert found["itself"] == -1  # no patch of the map is the query
    assert (found["role"], found["other"]) == ("key", "query")


@pytest.mark.parametrize(
    ("query", "expected"),
    [(-1, -1), (0, 1), (1, -1), (2 + 3, None)],  # the mean; CLS; what is not there; a patch
)
def test_in_another_model_a_token_is_the_one_of_its_name(
    query: int, expected: int | None, run: Node
) -> None:
    before, after = shape(("CLS", "DIST")), shape(("REG1", "CLS"))
    shapes = {"before": before.to_message("layer 1"), "after": after.to_message("layer 1")}
    found = run("fitted({ head: 0, query }, before, after, 'heads')", query=query, **shapes)
    assert found == {"head": 0, "query": query if expected is None else expected}


def test_across_two_pictures_the_same_place_is_another_patch(run: Node) -> None:
    given = {"shape": shape().to_message("layer 1"), "state": {"query": 6, "direction": "row"}}
    assert run("selected(shape, state, null).itself", **given) == 6
    assert run("selected(shape, state, null, true).itself", **given) == -1


def test_a_match_is_the_one_that_was_found_in_all_digits(run: Node) -> None:
    """Two patches may have one code: the map alone would name the first of them."""
    tile = {"map": {"patches": [0.5, 0.9, 0.9]}, "strongest": {"at": 1, "value": 0.9}}
    matches = {"nearest": [[0, 1], [2, 1]], "mutual": [False, True], "back": [[0], [1]]}
    found = run("matched(tile, matches, 1).strongest", tile=tile, matches=matches)
    assert found == {"at": 2, "value": 0.9}


def test_the_message_holds_what_its_schema_states() -> None:
    frame, _, where = kinds_of_frames()["windows"]
    sent = pack_stack("id", [frame], [where], "share", "")
    assert set(sent) == schema("StackMessage")
    assert set(sent["stack"]) == schema("StackInfo")
    assert set(sent["stack"]["frames"][0]) == schema("FrameInfo")
    assert set(where.to_message("layer 1")) == schema("Shape")


def test_the_view_of_a_capture_pins_patches_and_says_where_keys_are_those_of_a_window() -> None:
    acts = capture(example("distilled"), picture())
    for query, (token, pinned) in {None: (0, False), 1: (1, False), 2: (2, True)}.items():
        view = capture_view(acts, "x", layer=1, head=None, query=query)
        state = view["state"]
        assert (state["query"], state["pinned"], state["head"]) == (token, pinned, -1)
        assert view["alone"] is False  # reports and notebooks scroll by arrows
    module = timm.create_model("maxvit_tiny_tf_224", img_size=64, **narrow_stages()).eval()
    acts = capture(watched(module, (64, 64)), picture())
    for number, layer in enumerate(acts.layers):
        shape = frame_shape(acts, number)
        assert layer.kind in ("window", "grid")
        assert shape.within
        assert shape.equal_share == pytest.approx(1 / acts.attention_by_window(number).shape[-1])


# --- what the map of a capture says --------------------------------------------------------------

READINGS = f"""(() => {{
  const stack = {STACK};
  return cases.map(([state, pointed]) => {{
    const shape = view.frames[state.frame];
    const selection = selected(shape, state, null);
    const tiles = tilesOf(stack, view, state, selection);
    const chosen = tiles.find(({{ head }}) => head === state.head);
    return {{ ...reading("share", shape, selection, chosen, pointed),
      tiles: tiles.map(({{ name, strongest }}) => [name, strongest.value, strongest.at]) }};
  }});
}})()"""


def assert_share(words: str, share: float, step: float) -> None:
    """Two digits of a share in per cent, and no more wrong than by a step of the map's codes."""
    number = words.split()[-2]
    digits = len(number.partition(".")[2])
    assert abs(float(number) - 100 * share) <= 0.51 * 10**-digits + 100 * step, (words, share)


@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("name", ["plain", "distilled", "registers", "no class token"])
def test_the_reading_of_a_capture_is_its_attention(name: str, direction: str, run: Node) -> None:
    acts = capture(example(name), picture())
    layer, prefix, cols = 1, len(acts.layers[1].prefix), acts.grid[1]
    shapes = [frame_shape(acts, number) for number in range(acts.depth)]
    sent = pack_stack("x", capture_frames(acts, [layer]), shapes, "share", "")
    sent = {name: part if name == "stack" else part.tolist() for name, part in sent.items()}
    view = capture_view(acts, "x", layer=layer, head=0, query=None)
    asked = [(head, token) for head in (-1, 0, 3) for token in (0, prefix + 2 * cols + 5)]
    patch = 3 * cols + 1
    cases = [
        (view["state"] | {"head": head, "query": token, "direction": direction}, pointed)
        for head, token in asked
        for pointed in (None, patch)
    ]
    found = iter(run(READINGS, sent=sent, view=view, cases=cases))
    attention = acts.attention(layer)
    step = 0.004 * float(attention[..., prefix:].max())
    for head, token in asked:
        whole = attention if direction == "row" else attention.swapaxes(1, 2)
        heads = whole[:, token]
        shares = heads.mean(axis=0) if head < 0 else heads[head]
        patches = shares[prefix:]
        said, pointed = next(found), next(found)
        names = ["mean", *(f"head {number}" for number in range(1, len(heads) + 1))]
        assert [tile[0] for tile in said["tiles"]] == names
        for tile, values in zip(said["tiles"], (heads.mean(axis=0), *heads), strict=True):
            assert tile[1] == pytest.approx(float(values[prefix:].max()), abs=step)
            assert values[prefix:][tile[2]] == pytest.approx(float(values[prefix:].max()), abs=step)
        first, equal, *rest = re.split(r"\.(?: |$)", said["words"].replace("; ", ". "))
        assert_share(first, float(patches.max()), step)
        assert_share(equal, 1 / len(shares), 0)
        assert_share(said["line"], float(patches.max()), step)
        assert pointed["words"].startswith(
            f"{'Key' if direction == 'row' else 'Query'} row 4 column 2: "
        )
        assert_share(pointed["words"].split(". ")[0], float(patches[patch]), step)
        if direction == "column":
            assert rest[0] == "A column need not add up to 100 %"
            continue
        ten, together, _ = rest
        assert ten.startswith(f"The 10 strongest of {len(patches)} patches take ")
        assert_share(ten, float(np.sort(patches)[-10:].sum()), 10 * step)
        assert_share(together, 1, len(patches) * step / 4)


def test_no_token_map_is_drawn_where_patches_were_dropped() -> None:
    """Its tokens would stand in the places of other patches."""
    mask = np.zeros((4, 6), bool)
    mask[1, 2] = True
    acts = capture(example("plain"), picture(), edits=[DropPatches(mask)])
    with pytest.raises(ModelError, match="Patches of this capture were dropped"):
        acts.show()
    with pytest.raises(ValueError, match="Expected 1 \\+ 4 x 6 = 25 tokens, got 24"):
        plots.attention_rollout(acts)
