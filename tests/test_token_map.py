"""The token map's modules without a browser: maps.js is run by node, on numbers that are known."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages.driver import schema

from vitviz import anatomy_map, token_map
from vitviz.token_map import Frame, Kind, Shape, encode, encode_windows, moved, packed

MAPS = Path(token_map.__file__).with_name("maps.js")
PRESSES = MAPS.with_name("keys.js")
GRID, KEYS = (5, 4), (3, 2)
CROP, KEY_CROP = (70.0, 20.0, 560.0, 370.0), (70.0, 20.0, 640.0, 400.0)
Node = Callable[..., Any]


@pytest.fixture(scope="session")
def node() -> str:
    """A node: playwright brings one."""
    try:
        from playwright._impl._driver import compute_driver_executable
    except ImportError:
        found = shutil.which("node")
    else:
        found = str(compute_driver_executable()[0])
    if not found:
        pytest.skip("There is neither playwright nor node to run JavaScript with.")
    return found


@pytest.fixture
def run(node: str, tmp_path: Path) -> Node:
    """The value of an expression over the names of maps.js, of keys.js and of what is given."""

    def value(expression: str, **given: Any) -> Any:
        names = ", ".join(given)
        code = f"const {{ {names} }} = {json.dumps(given)};\n" if given else ""
        file = tmp_path / "code.mjs"
        modules = token_map.joined((token_map.STRINGS, MAPS, PRESSES))
        file.write_text(
            f"{modules}\n{code}console.log(JSON.stringify({expression}));", encoding="utf-8"
        )
        return json.loads(printed([node, str(file)]))

    return value


def printed(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def shape(prefix: tuple[str, ...] = (), heads: int = 2, **options: Any) -> Shape:
    options = {"key_grid": GRID, "key_crop": CROP} | options
    return Shape(grid=GRID, crop=CROP, prefix=prefix, home=-1, heads=heads, **options)


def stack_of(frame: Frame, shape: Shape, kind: Kind = "share") -> dict[str, Any]:
    """What `Stack` is made of, as JSON can hold it."""
    sent = packed("id", [frame], [shape], kind, "")
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
    return encode_windows(0, values, queries, keys), whole


def kinds_of_frames() -> dict[str, tuple[Frame, np.ndarray, Shape]]:
    """Frames with what they hold, (heads, queries, keys), and where their tokens lie."""
    plain, pooled, windows = attention(22, 22), attention(20, 6), windowed()
    return {
        "prefix": (encode(0, plain, 2, "share"), plain, shape(("CLS", "REG1"))),
        "pooled": (encode(0, pooled, 0, "share"), pooled, shape(key_grid=KEYS, key_crop=KEY_CROP)),
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


def test_the_sum_over_the_patches_is_made_once(run: Node) -> None:
    frame, _, where = kinds_of_frames()["prefix"]
    ask = "stack.map(0, 1, MEAN, 'column')"
    same = run(f"((stack) => {ask} === {ask})({STACK})", sent=stack_of(frame, where))
    assert same is True


def test_maps_are_exact_in_their_own_codes(run: Node) -> None:
    """To the last digit of float32: what is shown is the code that was sent, and no other."""
    frame, _, where = kinds_of_frames()["prefix"]
    found = np.array(run(ALL_MAPS, sent=stack_of(frame, where), count=22, direction="row"))
    shares = (frame.codes / 255) ** 2 * frame.peaks[..., None].astype(float)
    np.testing.assert_allclose(found[:2, :-1, 2:], shares, rtol=1e-12)
    np.testing.assert_allclose(found[:2, :-1, :2], frame.prefix)


def test_cosines_keep_their_sign(run: Node) -> None:
    values = np.random.default_rng(0).uniform(-1, 1, (2, 20, 20))
    sent = stack_of(encode(0, values, 0, "cosine"), shape(), "cosine")
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
    frames = [replace(shape(("CLS",)), home=0).sent(f"layer {number}") for number in (1, 2)]
    state = {"frame": 0, "head": 0, "query": 0, "pinned": False} | given
    hover = state.pop("hover", None)
    found = run(
        "keyed(key, state, frames, hover)", key=key, state=state, frames=frames, hover=hover
    )
    assert found == changes


def test_where_cls_alone_is_a_query_no_key_moves_it(run: Node) -> None:
    frames = [shape(("CLS",), prefix_only=True).sent("layer 1")]
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
    expected = [moved(*case) for case in cases]
    assert [divmod(at, to[0][1]) for at, (_, _, to) in zip(found, cases, strict=True)] == expected
    for (row, col), (patch, _, _) in list(zip(expected, cases, strict=True))[::2]:
        assert (row, col) == (2 * patch[0] + 1, 2 * patch[1] + 1)


def test_the_query_is_asked_for_in_the_grid_of_the_keys(run: Node) -> None:
    where = shape(key_grid=KEYS, key_crop=KEY_CROP)
    state = {"query": 3 * 4 + 2, "direction": "column"}
    found = run("selected(shape, state, null)", shape=where.sent("layer 1"), state=state)
    row, col = moved((3, 2), (where.grid, where.crop), (KEYS, KEY_CROP))
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
    shapes = {"before": before.sent("layer 1"), "after": after.sent("layer 1")}
    found = run("fitted({ head: 0, query }, before, after, 'heads')", query=query, **shapes)
    assert found == {"head": 0, "query": query if expected is None else expected}


def test_across_two_pictures_the_same_place_is_another_patch(run: Node) -> None:
    given = {"shape": shape().sent("layer 1"), "state": {"query": 6, "direction": "row"}}
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
    sent = packed("id", [frame], [where], "share", "")
    assert set(sent) == schema("StackMessage")
    assert set(sent["stack"]) == schema("StackInfo")
    assert set(sent["stack"]["frames"][0]) == schema("FrameInfo")
    assert set(where.sent("layer 1")) == schema("Shape")


components = pytest.mark.parametrize("component", [token_map, anatomy_map])


@components
def test_the_joined_module_is_valid(component: Any, node: str, tmp_path: Path) -> None:
    """As node reads it, which refuses a name that two modules give; it imports nothing."""
    source, file = component.script(), tmp_path / "joined.mjs"
    file.write_text(source, encoding="utf-8")
    printed([node, "--check", str(file)])
    found = re.findall(r"^(?:im|ex)port .*", source, re.MULTILINE)
    assert found == ["export default mount;"]


@components
def test_the_modules_are_valid_alone_and_import_names_that_are_there(
    component: Any, node: str, tmp_path: Path
) -> None:
    for folder in (MAPS.parent, Path(anatomy_map.__file__).parent):
        shutil.copytree(folder, tmp_path / folder.name)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    printed([node, str(tmp_path / Path(component.__file__).parent.name / "view.js")])
