"""Figures: what is drawn is where the data says, the alt text too, and nothing is too small."""

import base64
import html
import inspect
import io
import json
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from examples import example, patch_box, picture
from hostile import NAMES
from PIL import Image

from vitviz import capture, plots
from vitviz.common.images import Crop
from vitviz.common.language import use_language
from vitviz.inspection import patch_ranks
from vitviz.plots.profiles import layer_similarity
from vitviz.plots.template import colour_table

MapPlot = Callable[[np.ndarray, Image.Image, Crop], go.Figure]
Grid = tuple[int, int]

WIDE = Image.new("RGB", (480, 365), (90, 120, 60))
#: Of a picture that is not square, on a grid that is not square, with rows unlike columns.
CROP, GRID = (37.5, 12.25, 437.5, 352.25), (5, 8)
PEAK = (3, 6)  # row and column; on another diagonal than its mirror images
LARGEST_SIDE = 640  # pixels of a photo as it is sent to the browser


def shares(*shape: int, seed: int = 0) -> np.ndarray:
    """Shares like those of attention: positive, and very unequal."""
    values = np.random.default_rng(seed).random(shape).astype(np.float32) ** 4
    return values / values.sum(axis=(-2, -1), keepdims=True)


def planted(grid: Grid = GRID, peak: Grid = PEAK) -> np.ndarray:
    """A map whose largest value is at `peak`."""
    values = np.full(grid, 0.01, np.float32)
    values[peak] = 0.4
    return values


def rollout_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.attention_rollout(values, image, crop=crop, equal_share=1 / (values.size + 1))


def relevance_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.relevance(values, image, crop=crop, name="dog")


def answer_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    """Of two classes, the second of which has these probabilities."""
    answers = np.stack([1 - values, values], axis=-1)
    return plots.patch_answers(answers, image, crop=crop, labels=("cat", "dog"), index=1)


def norm_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.token_norms(values, values > 1, image, crop=crop, query=(0, 0))


def response_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.filter_response(values, image, crop=crop, name="component 2")


def phrase_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.word_map(values, image, crop=crop, title="cosine with a cat", signed=False)


def component_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    components = np.repeat(values[..., None], 3, axis=2)
    return plots.token_components(components, image, crop=crop, query=(0, 0))


def distances(distance: np.ndarray, selected: tuple[int, int | None] = (0, None)) -> go.Figure:
    mass = np.full(distance.shape, 0.25)
    return plots.attention_distance(distance, mass, equal_sharing=33.3, side=64, selected=selected)


def similarity(rows: int, cols: int) -> np.ndarray:
    vectors = np.random.default_rng(0).normal(size=(rows * cols, 6))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors @ vectors.T).reshape(rows, cols, rows, cols)


def kernel(count: int, side: int = 4) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(count, 3, side, side))


def test_colours_of_a_phrase_span_its_map_and_those_of_two_begin_at_0() -> None:
    values = np.array([[0.2, 0.25, 0.3], [0.21, 0.22, -0.1]])
    options: dict[str, Any] = dict(crop=CROP, title="cosine")
    one = plots.word_map(values, WIDE, signed=False, **options).data[0]
    two = plots.word_map(values, WIDE, signed=True, **options).data[0]
    assert (one.zmin, one.zmax, two.zmin, two.zmax) == (-0.1, 0.3, -0.3, 0.3)
    words = plots.word_map(values, WIDE, signed=True, **options).layout.meta["alt"]
    assert words == "cosine: from -0.1 at row 2, column 3 to +0.3 at row 1, column 3."


def test_a_hidden_blocks_number_stands_in_its_middle_over_the_photo() -> None:
    values = np.kron([[0.31, -0.02, 0.0]], np.ones((2, 2)))[:, :5]  # the last block is narrow
    figure = plots.occlusion(values, WIDE, crop=CROP, name="dog", block=2)
    (numbers,) = (trace for trace in figure.data if trace.type == "scatter")
    assert list(numbers.text) == ["+31", "-2", "+0"]
    left, top, right, bottom = CROP
    np.testing.assert_allclose(numbers.x, left + (right - left) * np.array([0.2, 0.6, 0.9]))
    np.testing.assert_allclose(numbers.y, (top + bottom) / 2)
    assert figure.layout.images[0].source.startswith("data:image")
    assert figure.data[0].opacity < 1


def occlusion_map(values: np.ndarray, image: Image.Image = WIDE, crop: Crop = CROP) -> go.Figure:
    return plots.occlusion(values, image, crop=crop, name="dog")


def removed(mask: np.ndarray) -> go.Figure:
    pixels = np.full((*(4 * side for side in mask.shape), 4), 255, np.uint8)
    return plots.removed_patches(pixels, crop=CROP, mask=mask, removal="blur")


CURVES = {
    "rollout": (np.array([0.0, 0.5, 1.0]), np.array([0.9, 0.2, 0.1])),
    "random": (np.array([0.0, 0.5, 1.0]), np.array([0.9, 0.6, 0.1])),
}
PROFILE = {
    "row": (np.arange(-2, 2), np.array([0.2, -0.6, 1.0, 0.5])),
    "column": (np.arange(0, 3), np.array([1.0, 0.25, 0.75])),
    "diagonal": (np.arange(0, 1), np.array([1.0])),
}

MAPS: dict[str, MapPlot] = {
    "attention_rollout": rollout_map,
    "relevance": relevance_map,
    "patch_answers": answer_map,
    "token_norms": norm_map,
    "filter_response": response_map,
    "word_map": phrase_map,
    "occlusion": occlusion_map,
    "token_components": component_map,
}

#: Every public function, on ordinary data.
RUN = [
    dict(image_size=32, epoch=1.0, loss=2.0, held_out_accuracy=0.3),
    dict(image_size=64, epoch=0.5, loss=1.5, held_out_accuracy=0.6),
]
EXAMPLES: dict[str, Callable[[], go.Figure]] = {
    "picture": lambda: plots.picture(WIDE, crop=CROP, grid=GRID, query=PEAK),
    "attention_map": lambda: plots.attention_map(capture(example("plain"), picture()), 1, 2),
    "attention_distance": lambda: distances(40 * shares(3, 4) + 10, (1, 2)),
    "allowed_pairs": lambda: plots.allowed_pairs(
        [np.eye(4, dtype=bool), np.ones((1, 3), bool)],
        titles=["layer 1", "layer 2"],
        chosen=[(2, 1), (0, 1)],
        prefixes=[(), ("CLS",)],
    ),
    "allowed_keys": lambda: plots.allowed_keys(
        np.eye(*GRID, dtype=bool), WIDE, crop=CROP, grid=GRID, query=(1, 2), query_name="this patch"
    ),
    "attention_cost": lambda: plots.attention_cost(
        (112, 224), (49, 196), {"A": (1e6, 16e6), "the rest": (2e6, 8e6)}
    ),
    "enlarged": lambda: plots.enlarged(distances(40 * shares(3, 4) + 10, (1, 2)), 1.25),
    "token_mixing": lambda: plots.token_mixing(
        np.random.default_rng(0).normal(size=(9, *GRID)), names=[f"unit {k}" for k in range(9)]
    ),
    "distance_histogram": lambda: plots.distance_histogram(
        np.array([0.2, 0.5, 0.3]),
        np.array([0.1, 0.6, 0.3]),
        bin_width=4,
        mean=4.4,
        name="layer 2, head 3",
    ),
    "offset_attention": lambda: plots.offset_attention(
        shares(9, 15), equal_share=1 / 40, name="layer 2, head 3"
    ),
    "attention_rollout": lambda: rollout_map(shares(*GRID)),
    "relevance": lambda: relevance_map(shares(*GRID)),
    "patch_answers": lambda: answer_map(shares(*GRID)),
    "receptive_fields": lambda: plots.receptive_fields(
        WIDE, crop=CROP, grid=GRID, patch=PEAK, pixel=2.5
    ),
    "filter_components": lambda: plots.filter_components(kernel(28), np.linspace(0.2, 0.001, 28)),
    "filters": lambda: plots.filters(kernel(40)),
    "filter_product": lambda: plots.filter_product(*kernel(2), names=("patch", "filter 7")),
    "filter_tile": lambda: plots.filter_tile(kernel(1)[0], name="Filter 7"),
    "filter_response": lambda: response_map(shares(*GRID) - 0.02),
    "word_map": lambda: phrase_map(shares(*GRID) - 0.02),
    "parts_by_head": lambda: plots.parts_by_head(shares(3, 4) - 0.1, name="a cat"),
    "position_tile": lambda: plots.position_tile(similarity(5, 8), position=(3, 6)),
    "position_similarity": lambda: plots.position_similarity(similarity(5, 8)),
    "position_profile": lambda: plots.position_profile(PROFILE, position=PEAK),
    "token_components": lambda: component_map(shares(*GRID)),
    "token_film": lambda: plots.token_film(
        shares(6, *GRID, 3), names=[f"layer {number}" for number in range(6)], selected=2
    ),
    "token_scatter": lambda: plots.token_scatter(
        shares(41, 2),
        np.array([0.3, 0.1]),
        WIDE,
        crop=CROP,
        grid=GRID,
        prefix=["CLS"],
        numbers=(1, 2),
        query=7,
    ),
    "token_norms": lambda: plots.token_norms(
        planted(), planted() > 0.3, WIDE, crop=CROP, query=(0, 0)
    ),
    "training_curves": lambda: plots.training_curves(
        {"": RUN}, test_accuracy={"": 0.6}, reference=0.5, chosen=1.0
    ),
    "distance_by_layer": lambda: plots.distance_by_layer(
        np.array([[0.2, 0.5]]), np.array([[0.5, 0.5]]), equal_sharing=0.52
    ),
    "entropy_by_layer": lambda: plots.entropy_by_layer(
        np.array([[0.6, 0.95]]), np.array([[0.7, 0.7]])
    ),
    "conditions": lambda: plots.conditions({"plain": [0.2, 0.4]}, axis="accuracy, %"),
    "data_hunger": lambda: plots.data_hunger(
        {"ViT": [(100, 0.2, 0.01), (1000, 0.6, 0.01)], "CNN": [(100, 0.4, 0.02), (1000, 0.7, 0.01)]}
    ),
    "class_probabilities": lambda: plots.class_probabilities(
        np.array([0.1, 0.6, 0.3]), ["cat", "dog", "owl"]
    ),
    "answer_change": lambda: plots.answer_change(
        np.array([0.1, 0.6, 0.3]), np.array([0.5, 0.3, 0.2]), ["cat", "dog", "owl"]
    ),
    "patch_effects": lambda: plots.patch_effects(
        np.array([[0.2, -0.1, 0.5], [0.0, np.nan, 0.9]]), ["1", "2", "all"], axis="head"
    ),
    "judged_maps": lambda: plots.judged_maps(
        {"one": (0.2, 0.1, 0.35), "other": (0.4, 0.35, 0.45), "random": (0.42, 0.4, 0.44)},
        measure="deletion",
        unit="area",
        better=["one"],
        chance="random",
    ),
    "logit_lens": lambda: plots.logit_lens(
        np.array([[0.4, 0.3, 0.3], [0.1, 0.6, 0.3]]), ["cat", "dog", "owl"]
    ),
    "muted_heads": lambda: plots.muted_heads(
        np.eye(3, 4) > 0, effects=np.linspace(-1, 2, 12).reshape(3, 4), name="dog"
    ),
    "occlusion": lambda: occlusion_map(shares(*GRID) - 0.02),
    "guesses": lambda: plots.guesses((planted() > 0.1).astype(int), WIDE, crop=CROP),
    "guesses_by_layer": lambda: plots.guesses_by_layer({0: 2, 3: 5}, 4),
    "guesses_of_percent": lambda: plots.guesses_of_percent({40: 2, 66: 5}),
    "with_guess": lambda: plots.with_guess(occlusion_map(shares(*GRID) - 0.02), CROP),
    "with_guessed_layer": lambda: plots.with_guessed_layer(
        distances(40 * shares(3, 4) + 10, (1, 2)), 2
    ),
    "ranked_maps": lambda: plots.ranked_maps(
        {"one": planted(), "other": 1 - planted()},
        WIDE,
        crop=CROP,
        values={"one": planted(), "other": shares(*GRID)},
        patch=PEAK,
    ),
    "removal_curves": lambda: plots.removal_curves(CURVES, name="dog", putting_back=False),
    "removed_patches": lambda: removed(planted() > 0.1),
    "mutual_matches": lambda: plots.mutual_matches(
        np.array([[0, 39], [14, 8]]),
        np.array([0.5, 0.9]),
        (WIDE, WIDE),
        crops=(CROP, CROP),
        grid=GRID,
    ),
    "joint_components": lambda: plots.joint_components(
        (shares(*GRID, 3), shares(*GRID, 3, seed=1)), (WIDE, WIDE), crops=(CROP, CROP)
    ),
    "distance_difference": lambda: plots.distance_difference(
        np.linspace(-4, 9, 12).reshape(3, 4), unit="px", names=("this one", "the other")
    ),
    "distance_by_depth": lambda: plots.distance_by_depth(
        [np.array([0.2, 0.5]), np.array([0.3, 0.4, 0.5])],
        names=["this one", "the other"],
        equal_sharing=[np.full(2, 0.52), np.full(3, 0.5)],
    ),
}
every_example = pytest.mark.parametrize("name", EXAMPLES)
every_map = pytest.mark.parametrize("draw", MAPS.values(), ids=MAPS)


@cache
def drawn(name: str) -> go.Figure:
    """The example, which no test changes."""
    return EXAMPLES[name]()


def alt(figure: go.Figure) -> str:
    words = figure.layout.meta["alt"]
    assert isinstance(words, str)
    return words


def content(packed: str) -> dict[str, Any]:
    """A figure as it is sent to the browser, without plotly's own template."""
    sent: dict[str, Any] = json.loads(packed)
    sent["layout"].pop("template", None)
    return sent


def walk(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every value of a nested figure, with the keys that lead to it."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from walk(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from walk(inner, path)
    else:
        yield path, value


def font_sizes(sent: dict[str, Any]) -> dict[tuple[str, ...], float]:
    return {at: size for at, size in walk(sent) if at[-1] == "size" and "font" in at[-2]}


def axes(figure: go.Figure) -> list[Any]:
    return [*figure.select_xaxes(), *figure.select_yaxes()]


def cell(trace: Any, row: int, col: int) -> Crop:
    """Left, top, right and bottom of one cell of a heat map or an image, as plotly draws it."""
    x, y = trace.x0 + col * trace.dx, trace.y0 + row * trace.dy
    return (x - trace.dx / 2, y - trace.dy / 2, x + trace.dx / 2, y + trace.dy / 2)


def brightest(trace: Any) -> Grid:
    """Row and column of the cell with the largest value."""
    values = np.asarray(trace.z, dtype=float)
    if values.ndim == 3:
        values = values.sum(axis=2)
    row, col = np.unravel_index(int(np.argmax(values)), values.shape)
    return int(row), int(col)


def boxes(figure: go.Figure, colour: str) -> list[Crop]:
    found = [s for s in figure.layout.shapes if s.type == "rect" and s.line.color == colour]
    return [(shape.x0, shape.y0, shape.x1, shape.y1) for shape in found]


# --- guesses --------------------------------------------------------------------------------------


@every_example
def test_the_ticks_of_a_colour_bar_are_numbers_up_to_its_ends(name: str) -> None:
    for trace in drawn(name).to_plotly_json()["data"]:
        for owner, ends in ((trace, ("zmin", "zmax")), (trace.get("marker", {}), ("cmin", "cmax"))):
            bar = owner.get("colorbar", {})
            if "tickvals" not in bar:
                continue
            low, high = (owner[end] for end in ends)
            ticks = bar["tickvals"]
            assert len({*ticks}) == len(ticks)
            assert (low <= min(ticks), max(ticks) <= high) == (True, True)
            assert low == pytest.approx(min(ticks)) or high == pytest.approx(max(ticks))
            assert (min(ticks) < 0) == (low < 0)
            for tick, words in zip(ticks, bar["ticktext"], strict=True):
                number = re.search(r"[-+]?\d+(\.\d+)?", words)
                assert number is None or float(number[0]) == pytest.approx(tick, rel=0.05, abs=0.05)


def test_guesses_are_counted_on_the_patches_that_were_guessed() -> None:
    counts = np.zeros(GRID, int)
    counts[PEAK], counts[0, 1] = 3, 1
    figure = plots.guesses(counts, WIDE, crop=CROP)
    drawn = np.array(figure.data[0].z, float)
    np.testing.assert_array_equal(np.nan_to_num(drawn), counts)
    assert np.isnan(drawn).sum() == counts.size - 2  # the picture is seen where nobody guessed
    assert (figure.data[0].zmin, figure.data[0].zmax) == (0, 3)
    assert len(figure.layout.images) == 1
    row, col = PEAK
    assert f"most at row {row + 1}, column {col + 1}, 3 of 4." in alt(figure)
    assert "none yet" in alt(plots.guesses(0 * counts, WIDE, crop=CROP))


def test_guessed_layers_are_bars_of_all_layers() -> None:
    figure = drawn("guesses_by_layer")
    assert list(figure.data[0].x) == [1, 2, 3, 4]
    assert list(figure.data[0].y) == [2, 0, 0, 5]
    assert alt(figure) == "Guesses of the class: most for layer 4, 5 of 7."
    assert alt(plots.guesses_by_layer({}, 4)) == "Guesses of the class: none yet."
    assert alt(drawn("guesses_of_percent")) == "Guesses of the class: the middle one of 7 is 66 %."


def test_a_guess_is_outlined_in_the_coordinates_of_its_figure() -> None:
    before = occlusion_map(planted() - 0.11)
    count = len(before.layout.shapes)
    figure = plots.with_guess(occlusion_map(planted() - 0.11), (10, 20, 30, 50))
    boxes = [(one.x0, one.y0, one.x1, one.y1) for one in figure.layout.shapes[count:]]
    assert boxes == [(10, 20, 30, 50)] * 2  # white on black
    assert figure.data[0] == before.data[0]
    assert alt(figure) == f"{alt(before)} A white box is around the guess."


def test_a_guessed_layer_is_outlined_around_its_number() -> None:
    figure = drawn("with_guessed_layer")
    box = figure.layout.shapes[-1]
    assert (box.x0 + box.x1) / 2 == 3
    assert box.x1 - box.x0 < 1
    assert alt(figure).endswith(" Layer 3 was guessed.")


def test_below_0_is_blue_and_above_it_red() -> None:
    table = bytes.fromhex(colour_table(signed=True))
    (red, _, blue), (last_red, _, last_blue) = table[:3], table[-3:]
    assert blue > 2 * red
    assert last_red > 2 * last_blue
    heat = plots.distance_difference(np.array([[-1.0, 2.0]]), unit="px", names=("A", "B")).data[0]
    low, high = heat.colorscale[0][1], heat.colorscale[-1][1]
    assert bytes(map(int, re.findall(r"\d+", low))) == table[:3]
    assert bytes(map(int, re.findall(r"\d+", high))) == table[-3:]


def test_equal_sharing_is_drawn_across_its_own_layer() -> None:
    shapes = drawn("attention_distance").layout.shapes
    lines = [shape for shape in shapes if shape.line.dash == "dash"]
    assert [(line.x0, line.x1) for line in lines] == [(0.5, 1.5), (1.5, 2.5), (2.5, 3.5)]


# --- every figure -------------------------------------------------------------------------------


def test_every_public_function_has_an_example_here() -> None:
    public = {
        name
        for name, function in inspect.getmembers(plots, inspect.isfunction)
        if not name.startswith("_") and function.__module__.startswith(f"{plots.__name__}.")
    }
    assert public - {"for_paper", "head_grid", "save"} == set(
        EXAMPLES
    )  # those of tests/test_plots_paper.py


@every_example
def test_it_has_one_line_of_alt_text_large_type_and_titles_on_its_axes(name: str) -> None:
    figure = drawn(name)
    assert re.fullmatch(r"\S[^\n]{15,}\.", alt(figure))
    assert "nan" not in alt(figure)
    assert figure.layout.height > 100
    sent = content(str(figure.to_json()))
    sizes = font_sizes(sent)
    assert sizes
    assert min(sizes.values()) >= 14, sizes
    # Streamlit's theme takes #000001 to #000033 for placeholders and paints them in its own
    # colours: the darkest colour of plotly's Inferno, #000004, came out pink.
    replaced = r"#0000(0[1-9a-f]|[12][0-9a-f]|3[0-3])\b"
    assert not re.search(replaced, json.dumps(sent), re.IGNORECASE)
    if name not in ("class_probabilities", "answer_change", "conditions", "judged_maps"):
        for axis in axes(figure):  # of those four, the ticks name an axis
            assert axis.showticklabels is False or axis.title.text


@pytest.mark.parametrize(
    ("name", "units"),
    [
        ("class_probabilities", ["%"]),
        ("answer_change", ["%"]),
        ("logit_lens", ["%"]),
        ("removal_curves", ["%"]),
        ("attention_distance", ["pixels", "%"]),
        ("distance_histogram", ["px", "%"]),
    ],
)
def test_a_quantity_has_its_unit_on_the_axis(name: str, units: list[str]) -> None:
    titles = [axis.title.text or "" for axis in axes(drawn(name))]
    for unit in units:
        assert any(re.search(rf"\b{unit}|, {unit}", title) for title in titles), titles


# --- maps in the picture's coordinates ----------------------------------------------------------


@every_map
def test_a_planted_peak_lies_on_its_patch_of_the_picture(draw: MapPlot) -> None:
    figure = draw(planted(), WIDE, CROP)
    trace = figure.data[0]
    assert brightest(trace) == PEAK
    for row, col in np.ndindex(GRID):
        assert cell(trace, row, col) == pytest.approx(patch_box(CROP, GRID, row, col), abs=1e-6)
    # The same by hand: patches of 50 x 68 pixels, the crop's corner at (37.5, 12.25).
    assert cell(trace, *PEAK) == pytest.approx((337.5, 216.25, 387.5, 284.25), abs=1e-6)
    # In the frame of the whole upright picture.
    assert list(figure.layout.xaxis.range) == [0, WIDE.width]
    assert list(figure.layout.yaxis.range) == [WIDE.height, 0]  # row 1 on top
    assert figure.layout.yaxis.scaleanchor == "x"
    assert figure.layout.xaxis.constrain == figure.layout.yaxis.constrain == "domain"


def luminance(colour: np.ndarray) -> np.ndarray:
    """Relative luminance of sRGB colours from 0 to 255, shape (..., 3), as WCAG 2.2 defines it."""
    part = colour / 255
    linear = np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    return np.asarray(linear @ (0.2126, 0.7152, 0.0722))


def test_the_key_is_seen_on_black_on_white_and_on_the_colours_of_shares() -> None:
    """A contrast of 3, as WCAG asks of marks; and far from each colour of Inferno, red to blue."""
    key = np.array([int(plots.KEY[i : i + 2], 16) for i in (1, 3, 5)])
    for ground in (0, 255):
        levels = sorted(luminance(np.array([key, [ground] * 3])))
        assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 3
    table = np.frombuffer(bytes.fromhex(colour_table(False)), np.uint8).reshape(256, 3)
    assert np.linalg.norm(table - key, axis=1).min() >= 90


def test_the_alt_text_of_a_map_names_the_strongest_patch() -> None:
    assert "strongest at row 1, column 8" in alt(rollout_map(planted(peak=(0, 7))))
    assert "largest is 0.40 at row 4, column 7" in alt(norm_map(planted()))
    figure = plots.attention_rollout(
        planted(), WIDE, crop=CROP, equal_share=0.02, name="Gradient rollout for dog"
    )
    assert alt(figure).startswith("Gradient rollout for dog: strongest at row 4, column 7, 40 %")


def test_relevance_is_no_share_and_prints_its_maximum() -> None:
    figure = relevance_map(planted())
    (trace,) = figure.data
    assert (trace.zmin, trace.zmax) == (0, pytest.approx(0.4))
    assert list(trace.colorbar.ticktext) == ["0", "0.4 max"]
    assert "relevance for dog" in trace.colorbar.title.text
    assert "%" not in json.dumps([trace.colorbar.title.text, *trace.colorbar.ticktext])
    assert alt(figure) == "Relevance of each patch for dog: largest at row 4, column 7, 0.4."


@pytest.mark.parametrize("draw", [component_map, norm_map])
def test_the_query_has_a_cyan_box_on_its_patch(draw: MapPlot) -> None:
    assert boxes(draw(planted(), WIDE, CROP), plots.QUERY) == [
        pytest.approx(patch_box(CROP, GRID, 0, 0))
    ]
    of_no_patch = plots.token_norms(planted(), planted() > 1, WIDE, crop=CROP, query=None)
    assert boxes(of_no_patch, plots.QUERY) == []


def test_a_map_of_shares_prints_its_maximum_equal_sharing_and_its_patches() -> None:
    trace = rollout_map(planted()).data[0]
    assert (trace.zmin, trace.zmax) == (0, pytest.approx(40))
    assert "40 % max" in trace.colorbar.ticktext
    assert "%" in trace.colorbar.title.text
    assert 0 in trace.colorbar.tickvals
    marked = dict(zip(trace.colorbar.tickvals, trace.colorbar.ticktext, strict=True))
    assert [value for value, text in marked.items() if "equal" in text] == [pytest.approx(100 / 41)]
    assert trace.customdata[PEAK[0]][PEAK[1]] == "row 4, column 7"
    assert "%{customdata}" in trace.hovertemplate


def test_components_are_clipped_at_the_2nd_and_98th_percentile() -> None:
    values = np.linspace(0, 1, 100).reshape(10, 10)
    values[0, 0], values[-1, -1] = -1000, 1000  # outliers must not flatten the rest
    figure = component_map(values)
    red = np.asarray(figure.data[0].z)[..., 0]
    assert red[0, 0] == 0
    assert red[-1, -1] == 255
    assert abs(int(red.flat[50]) - 128) < 5


def test_the_picture_shows_the_photo_and_the_lines_of_its_patches() -> None:
    figure = drawn("picture")
    (photo,) = figure.layout.images
    assert photo.source.startswith("data:image/jpeg;base64,")
    assert (photo.x, photo.y, photo.sizex, photo.sizey) == (0, 0, *WIDE.size)
    assert photo.sizing == "stretch"
    (path,) = [shape.path for shape in figure.layout.shapes if shape.type == "path"]
    down = re.findall(r"M([\d.]+),12\.[23]V352\.[23]", path)
    across = re.findall(r"M37\.5,([\d.]+)H437\.5", path)
    assert [float(x) for x in down] == pytest.approx(np.linspace(37.5, 437.5, 9), abs=0.1)
    assert [float(y) for y in across] == pytest.approx(np.linspace(12.25, 352.25, 6), abs=0.1)
    assert boxes(figure, plots.QUERY) == [pytest.approx(patch_box(CROP, GRID, *PEAK))]
    assert "row 4, column 7" in alt(figure)
    assert "5 rows and 8 columns" in alt(figure)


def test_a_large_picture_is_sent_small() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1200, 2048, 3), dtype=np.uint8)
    image = Image.fromarray(noise)
    figure = plots.picture(image, crop=(0, 0, 2048, 1200), grid=(4, 4), query=None)
    assert image.size == (2048, 1200)  # a thumbnail made in place would shrink the caller's
    assert len(figure.layout.images[0].source) < 2 * LARGEST_SIDE * LARGEST_SIDE


@pytest.mark.parametrize("largest", [0.5, 0.034, 0.0051, 0.00034, 0.000021])
def test_a_printed_maximum_is_right_to_half_of_its_second_digit(largest: float) -> None:
    (title,) = (
        text
        for text in rollout_map(np.full(GRID, largest)).data[0].colorbar.ticktext
        if "max" in text
    )
    printed = float(re.search(r"([\d.]+) % max", title)[1])  # type: ignore[index]
    assert printed / 100 == pytest.approx(largest, rel=0.05)


# --- bars and dots ------------------------------------------------------------------------------


def test_one_dot_a_head_at_its_layer_and_distance() -> None:
    distance = np.array([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]])
    figure = distances(distance, (1, 2))
    dots = figure.data[0]
    np.testing.assert_array_equal(dots.y, distance.ravel())
    np.testing.assert_array_equal(np.round(np.asarray(dots.x, dtype=float)), [1, 1, 1, 2, 2, 2])
    assert len(set(dots.x)) == 6
    assert dots.customdata[5][0] == "layer 2, head 3"
    assert "from 10.0 to 60.0 pixels; 3 lie below equal sharing at 33.3 pixels" in alt(figure)


def test_the_mean_of_heads_marks_the_whole_layer() -> None:
    marked = distances(np.full((2, 3), 20.0), (1, None)).data[0].marker
    assert list(marked.symbol) == ["circle"] * 3 + ["diamond"] * 3
    assert len(set(marked.color)) == 2


def test_dots_grow_with_the_attention_on_the_prefix() -> None:
    mass = np.array([[0.0, 0.3, 0.9]])
    figure = plots.attention_distance(
        np.full((1, 3), 20.0), mass, equal_sharing=30, side=64, selected=(0, None)
    )
    assert list(figure.data[0].marker.size) == sorted(set(figure.data[0].marker.size))


def test_an_enlarged_figure_has_larger_text_and_the_same_numbers() -> None:
    figure = drawn("attention_distance")
    larger = plots.enlarged(figure, 1.5)
    sizes = font_sizes(content(figure.to_json()))
    assert font_sizes(content(larger.to_json())) == {at: 1.5 * one for at, one in sizes.items()}
    assert len(sizes) > 5
    assert larger.layout.height == 1.5 * figure.layout.height
    assert larger.layout.margin.r == 1.5 * figure.layout.margin.r
    np.testing.assert_array_equal(larger.data[0].y, figure.data[0].y)
    np.testing.assert_array_equal(larger.data[0].marker.size, figure.data[0].marker.size)
    assert figure.layout.font.size == 14  # the one that was given is as it was


def test_all_distances_and_equal_sharing_are_in_sight_on_both_scales() -> None:
    figure = distances(np.array([[5.0, 90.0]]))
    low, high = figure.layout.yaxis.range
    assert low == 0
    assert high > 90
    assert list(figure.layout.yaxis2.range) == [0, pytest.approx(100 * high / 64)]
    (line,) = figure.layout.shapes
    assert line.y0 == line.y1 == 33.3
    assert "33.3 px" in figure.layout.annotations[0].text
    assert distances(np.array([[1.0]])).layout.yaxis.range[1] > 33.3


def test_a_distance_that_is_not_there_is_a_gap() -> None:
    distance = np.array([[10.0, np.nan], [20.0, 30.0]])
    figure = distances(distance)
    assert np.isnan(figure.data[0].y[1])
    assert np.isfinite(figure.layout.yaxis.range).all()
    assert "Attention distance of 3 heads, from 10.0 to 30.0 pixels" in alt(figure)
    assert "3 lie below" in alt(figure)
    nothing = distances(np.full((2, 2), np.nan))
    assert "no distance" in alt(nothing)
    assert np.isfinite(nothing.layout.yaxis.range).all()


def test_the_most_probable_classes_come_first() -> None:
    labels = [f"class {index}" for index in range(10)]
    probabilities = np.arange(10) / 45
    figure = plots.class_probabilities(probabilities, labels)
    assert list(figure.data[0].x) == pytest.approx(100 * np.arange(9, 4, -1) / 45)
    assert list(figure.data[0].y) == [f"{rank + 1}. class {9 - rank}" for rank in range(5)]
    assert figure.layout.yaxis.autorange == "reversed"
    assert "class 9 20.0 %" in alt(figure)
    assert alt(figure).index("class 9") < alt(figure).index("class 8")
    of_one_name = plots.class_probabilities(np.array([0.4, 0.6]), ["crane", "crane"])
    assert len(set(of_one_name.data[0].y)) == 2


# --- tiles and positions ------------------------------------------------------------------------


def test_tiles_are_in_reading_order_and_grey_where_the_filter_is_0() -> None:
    tiles = np.zeros((5, 3, 2, 2))
    tiles[3, 0] = [[1, -1], [0, 0]]  # red: first up, then down
    figure = plots.filters(tiles, columns=3)
    canvas = np.asarray(figure.data[0].z)
    step = 3  # a tile of 2 pixels and a gap of 1
    assert canvas.shape == (2 * step - 1, 3 * step - 1, 4)
    fourth = canvas[step : step + 2, :2]  # the first of the second row
    assert fourth[0, 0, :3].tolist() == [255, 128, 128]
    assert fourth[0, 1, :3].tolist() == [0, 128, 128]
    assert (canvas[:2, :2, :3] == 128).all()
    assert (canvas[:2, 2] == 0).all()  # transparent between tiles
    assert "5 raw filters" in alt(figure)


@pytest.mark.parametrize(("gain", "seen"), [(0.5, 191), (1.0, 255), (4.0, 255)])
def test_gain_is_the_contrast_around_mid_grey(gain: float, seen: int) -> None:
    tile = np.zeros((1, 3, 2, 2))
    tile[0, 0] = [[0.8, -0.8], [0.1, 0]]
    red = np.asarray(plots.filters(tile, gain=gain).data[0].z)[..., 0].ravel().tolist()
    assert red[0] == seen
    assert red[1] == 255 - seen
    assert red[2] == round(255 * (0.5 + gain * 0.0625))
    assert red[3] == 128


@pytest.mark.parametrize("labelled", [True, False])
def test_a_point_on_each_tile_names_it_and_the_chosen_one_has_a_frame(labelled: bool) -> None:
    if labelled:
        figure = plots.filter_components(
            kernel(7), np.linspace(0.2, 0.05, 7), columns=3, selected=4
        )
    else:
        names = [f"Filter {number}" for number in range(7)]
        figure = plots.filters(kernel(7), names=names, columns=3, selected=4)
    canvas, points = np.asarray(figure.data[0].z), figure.data[1]
    assert points.marker.opacity == 0
    assert points.text[4] == ("component 5: 10 % of the variance" if labelled else "Filter 4")
    (frame,) = boxes(figure, plots.QUERY)
    left, top, right, bottom = (round(edge + 0.5) for edge in frame)
    assert (right - left, bottom - top) == (4, 4)
    assert (canvas[top:bottom, left:right, 3] == 255).all()
    assert (points.x[4], points.y[4]) == ((left + right - 1) / 2, (top + bottom - 1) / 2)
    for x, y in zip(points.x, points.y, strict=True):
        assert canvas[int(y), int(x), 3] == 255
    assert len({*zip(points.x, points.y, strict=True)}) == 7


def test_a_click_leaves_the_points_invisible() -> None:
    for name in ("filters", "filter_components", "position_similarity"):
        points = drawn(name).data[1]
        assert points.selected.marker.opacity == points.unselected.marker.opacity == 0


def test_a_large_tile_says_its_weights() -> None:
    tile = np.zeros((3, 2, 2))
    tile[2, 0, 1], tile[0, 1, 0] = 0.25, -0.5
    figure = plots.filter_tile(tile, name="Filter 7")
    assert figure.data[0].text[0][1] == "row 1, column 2: red +0.000, green +0.000, blue +0.250"
    assert np.asarray(figure.data[0].z)[1, 0].tolist() == [0, 128, 128]
    assert alt(figure) == (
        "Filter 7: weights from red -0.500 at row 2, column 1 to blue +0.250 at row 1, column 2."
    )
    with use_language("ko"):
        figures = plots.filter_tile(tile, name=""), layer_similarity(np.full((3, 3), np.nan))
    assert not any(re.search("[a-z]{2}", alt(figure)) for figure in figures)


def test_a_product_is_that_of_the_patch_on_the_left_and_the_filter_on_the_right() -> None:
    patch, weights = np.arange(12.0).reshape(3, 2, 2) / 12, np.ones((3, 2, 2))
    weights[0] = -2
    figure = plots.filter_product(patch, weights, names=("patch", "filter 7"))
    left, right, product, labels, numbers = figure.data
    for tile, at, values in ((left, 0.25, patch), (right, 1.55, weights)):
        assert tile.x0 == pytest.approx(at)
        assert tile.text[0][1] == "row 1, column 2: " + ", ".join(
            f"{colour} {value:+.3f}"
            for colour, value in zip(("red", "green", "blue"), values[:, 0, 1], strict=True)
        )
    total = (patch * weights).sum(axis=0)
    np.testing.assert_allclose(product.z, total)
    assert [*numbers.text] == [f"{one:+.2f}" for one in total.flat]
    places = dict(zip(labels.text, labels.x, strict=True))
    assert places["patch"] < places["×"] < places["filter 7"]
    assert f"adds up to {total.sum():+.2f}" in labels.text[-1]


def test_a_response_is_centred_at_0_and_prints_its_extremes() -> None:
    values = np.full(GRID, 0.1, np.float32)
    values[PEAK], values[0, 7] = 2.0, -0.9
    figure = response_map(values)
    trace = figure.data[0]
    assert (trace.zmin, trace.zmax) == (-2, 2)
    assert list(trace.colorbar.tickvals) == pytest.approx([-0.9, 2, 0])
    assert list(trace.colorbar.ticktext) == ["-0.90 min", "+2.00 max", "0"]
    assert alt(figure) == (
        "Response of each patch to component 2: from -0.90 at row 1, column 8 "
        "to +2.00 at row 4, column 7."
    )
    outside = [shape for shape in figure.layout.shapes if shape.layer == "below"]
    assert [(shape.x1, shape.y1) for shape in outside] == [WIDE.size]  # white means 0


@pytest.mark.parametrize(
    ("low", "high", "printed"),
    [
        (-1.0, 1.0, ["-1.00 min", "+1.00 max", "0"]),
        (-0.1, 1.0, ["-0.10 min", "+1.00 max"]),  # 0 has no room beside the smallest
        (0.9, 1.0, ["+1.00 max", "0"]),
        (-1.0, -0.9, ["-1.00 min", "0"]),
        (0.0, 0.0, ["+0.00 max"]),
    ],
)
def test_numbers_on_a_signed_bar_do_not_overlap(
    low: float, high: float, printed: list[str]
) -> None:
    trace = response_map(np.array([[low, high]])).data[0]
    assert list(trace.colorbar.ticktext) == printed


def test_each_component_prints_its_share_of_the_variance() -> None:
    explained = np.array([0.5, 0.25, 0.012])
    figure = plots.filter_components(kernel(3), explained)
    assert list(figure.data[2].text) == ["50 %", "25 %", "1.2 %"]
    assert "3 principal components" in alt(figure)
    assert "76 %" in alt(figure)


def test_a_position_tile_is_that_positions_row_with_the_position_boxed() -> None:
    cosine = similarity(5, 8)
    figure = plots.position_tile(cosine, position=PEAK)
    trace = figure.data[0]
    np.testing.assert_allclose(trace.z, cosine[PEAK])
    assert (trace.zmin, trace.zmax) == (-1, 1)
    assert boxes(figure, plots.QUERY) == [pytest.approx((6.5, 3.5, 7.5, 4.5))]
    others = np.delete(cosine[PEAK].ravel(), PEAK[0] * 8 + PEAK[1])
    assert f"row 4, column 7 with every other; the largest is {others.max():.2f}" in alt(figure)


@pytest.mark.parametrize(
    ("grid", "step"), [((5, 8), 1), ((10, 13), 1), ((14, 14), 2), ((9, 27), 3)]
)
def test_each_position_has_its_tile_at_its_own_place(grid: Grid, step: int) -> None:
    rows, cols = grid
    cosine = similarity(rows, cols)
    figure = plots.position_similarity(cosine)
    sprite = figure.data[0].source
    colours = np.asarray(Image.open(io.BytesIO(base64.b64decode(sprite.split(",")[1]))))
    table = np.frombuffer(bytes.fromhex(colour_table(True)), np.uint8).reshape(256, 3).astype(int)
    for row, col in np.ndindex(len(range(0, rows, step)), len(range(0, cols, step))):
        y, x = row * (rows + 2), col * (cols + 2)
        tile = colours[y : y + rows, x : x + cols]
        wanted = table[np.rint(127.5 * (cosine[row * step, col * step] + 1)).astype(int)]
        np.testing.assert_array_equal(tile[..., :3], wanted)
        assert (tile[..., 3] == 255).all()
    assert (colours[rows : rows + 2, ..., 3] == 0).all()  # gaps between tiles
    assert list(figure.layout.xaxis.ticktext) == [str(c + 1) for c in range(0, cols, step)]
    assert list(figure.layout.yaxis.ticktext) == [str(r + 1) for r in range(0, rows, step)]
    which = {1: "every position", 2: "every second position", 3: "every third position"}
    assert which[step] in alt(figure)


def test_a_point_on_each_tile_names_its_position_and_its_most_similar_other() -> None:
    cosine = similarity(14, 20)
    points = plots.position_similarity(cosine).data[1]
    assert [tuple(at) for at in points.customdata] == [
        (row, col) for row in range(0, 14, 2) for col in range(0, 20, 2)
    ]
    at = 4 * 10 + 3
    row, col = points.customdata[at]
    assert (points.x[at], points.y[at]) == (3 * 22 + 9.5, 4 * 16 + 6.5)
    assert points.text[at] == "row 9, column 7"
    others = np.delete(cosine[row, col].ravel(), row * 20 + col)
    assert points.marker.color[at] == pytest.approx(others.max())
    assert points.marker.opacity == 0
    assert (points.marker.cmin, points.marker.cmax) == (-1, 1)


@pytest.mark.parametrize(("position", "framed"), [((4, 6), True), ((4, 7), False), (None, False)])
def test_the_chosen_positions_tile_has_a_frame_where_it_is_drawn(
    position: Grid | None, framed: bool
) -> None:
    figure = plots.position_similarity(similarity(14, 14), position=position)
    frames = boxes(figure, plots.QUERY)
    assert len(frames) == framed
    if framed:
        left, top, right, bottom = frames[0]
        assert left < 3 * 16 - 0.5 < 3 * 16 + 13.5 < right  # around the tile, not on it
        assert top < 2 * 16 - 0.5 < 2 * 16 + 13.5 < bottom


def test_colours_of_positions_begin_at_the_lowest_cosine_that_is_given() -> None:
    cosine = (1 + similarity(4, 6)) / 2
    sprite = plots.position_similarity(cosine, low=0.2).data[0].source
    colours = np.asarray(Image.open(io.BytesIO(base64.b64decode(sprite.split(",")[1]))))
    table = np.frombuffer(bytes.fromhex(colour_table(False)), np.uint8).reshape(256, 3).astype(int)
    wanted = table[np.rint(255 * (cosine[0, 0] - 0.2) / 0.8).astype(int).clip(0, 255)]
    np.testing.assert_array_equal(colours[:4, :6, :3], wanted)


def test_units_of_a_mixing_layer_lie_in_reading_order_above_their_names() -> None:
    maps = np.random.default_rng(0).normal(size=(3, 2, 4))
    figure = plots.token_mixing(maps, names=["a", "b", "c"], columns=2)
    canvas, names = np.asarray(figure.data[0].z), figure.data[1]
    for unit, (top, left) in enumerate([(0, 0), (0, 5), (3, 0)]):
        np.testing.assert_array_equal(canvas[top : top + 2, left : left + 4], maps[unit])
        assert (names.text[unit], names.x[unit], names.y[unit]) == (
            "abc"[unit],
            left + 1.5,
            top + 1.5,
        )


def test_a_profile_has_a_line_for_each_direction_that_needs_no_colour() -> None:
    figure = drawn("position_profile")
    lines = figure.data
    assert [line.name for line in lines] == ["row", "column", "diagonal"]
    for line, (offset, cosine) in zip(lines, PROFILE.values(), strict=True):
        np.testing.assert_array_equal(line.x, offset)
        np.testing.assert_array_equal(line.y, cosine)
    assert len({line.marker.symbol for line in lines}) == 3
    assert len({line.line.dash for line in lines}) == 3
    assert figure.layout.showlegend
    low, high = figure.layout.yaxis.range
    assert low < -1 < 1 < high
    assert "patches" in figure.layout.xaxis.title.text
    assert "row 4, column 7" in alt(figure)
    assert "-0.60 along its row, at offset -1" in alt(figure)
    assert "0.25 along its column, at offset +1" in alt(figure)


# --- what is at the edge ------------------------------------------------------------------------


@every_map
@pytest.mark.parametrize("value", [0.0, 1.0, 0.2])
def test_a_map_that_is_the_same_everywhere(draw: MapPlot, value: float) -> None:
    figure = draw(np.full(GRID, value, np.float32), WIDE, CROP)
    assert "nan" not in alt(figure).lower()
    trace = figure.data[0]
    assert np.isfinite(np.asarray(trace.z, dtype=float)).all()
    if trace.type == "heatmap" and draw is not norm_map:  # whose colours begin at its least
        assert trace.zmin < trace.zmax


@every_map
def test_a_grid_of_one_patch(draw: MapPlot) -> None:
    figure = draw(np.full((1, 1), 0.7, np.float32), WIDE, CROP)
    assert cell(figure.data[0], 0, 0) == pytest.approx(CROP)


@pytest.mark.parametrize(
    "figure",
    [
        lambda: plots.picture(WIDE, crop=CROP, grid=(1, 1), query=(0, 0)),
        lambda: plots.position_tile(similarity(1, 1), position=(0, 0)),
        lambda: plots.position_similarity(similarity(1, 1)),
        lambda: plots.filter_components(kernel(1, side=1), np.ones(1)),
        lambda: plots.filters(np.zeros((1, 3, 1, 1))),
        lambda: plots.filter_tile(np.zeros((3, 1, 1)), name="Filter 1"),
        lambda: plots.position_profile({"row": (np.zeros(1, int), np.ones(1))}, position=(0, 0)),
        lambda: plots.class_probabilities(np.ones(1), ["all"]),
    ],
)
def test_the_smallest_of_everything(figure: Callable[[], go.Figure]) -> None:
    assert "nan" not in alt(figure()).lower()


def test_one_patch_has_no_distances() -> None:
    figure = plots.attention_distance(
        np.zeros((1, 1)), np.ones((1, 1)), equal_sharing=0, side=16, selected=(0, 0)
    )
    low, high = figure.layout.yaxis.range
    assert low < high


@pytest.mark.parametrize("size", [(3, 2000), (2000, 3)])
def test_a_picture_of_3_by_2000_pixels(size: Grid) -> None:
    image = Image.new("RGB", size)
    left, top = (size[0] - 3) / 2, (size[1] - 3) / 2
    crop = (left, top, left + 3, top + 3)
    drawn = [plots.picture(image, crop=crop, grid=(2, 2), query=(1, 1))]
    drawn += [draw(planted((2, 2), (1, 0)), image, crop) for draw in MAPS.values()]
    for figure in drawn:
        assert 100 < figure.layout.height < 600
        assert list(figure.layout.xaxis.range) == [0, size[0]]
    for figure in drawn[1:]:
        wanted = (left, top + 1.5, left + 1.5, top + 3)
        assert cell(figure.data[0], 1, 0) == pytest.approx(wanted)


# --- experiments --------------------------------------------------------------------------------


def test_each_patch_has_a_point_in_its_middle_and_a_removed_one_a_mark() -> None:
    mask = planted() > 0.1
    figure = removed(mask)
    points = figure.data[0]
    assert points.marker.opacity == 0
    for number, (row, col) in enumerate(np.ndindex(GRID)):
        left, top, right, bottom = patch_box(CROP, GRID, row, col)
        middle = ((left + right) / 2, (top + bottom) / 2)
        assert (points.x[number], points.y[number]) == pytest.approx(middle)
        assert points.customdata[number] == f"row {row + 1}, column {col + 1}"
    (mark,) = [
        shape.path
        for shape in figure.layout.shapes
        if shape.type == "path" and re.search(r"L", shape.path)
    ]
    assert [float(number) for number in re.findall(r"[\d.]+", mark)] == pytest.approx(
        [350.0, 233.2, 375.0, 267.2], abs=0.1
    )
    assert "1 of 40 patches removed (blur)" in alt(figure)
    effect = np.kron([[0.31, -0.02]], np.ones((2, 2)))
    pixels = np.full((8, 16, 4), 255, np.uint8)
    costs = plots.removed_patches(
        pixels, crop=CROP, mask=effect > 1, removal="mean", effect=effect, block=2
    )
    assert [note.text for note in costs.layout.annotations] == ["<b>+31.0</b>", "<b>-2.0</b>"]
    assert "costs from -2.0 percentage points at row 1, column 3 to +31.0" in alt(costs)
    assert "0 of 40 patches removed." in alt(removed(mask & False))


@pytest.mark.parametrize("effects", [None, np.linspace(-1, 2, 384).reshape(24, 16)])
def test_a_muted_head_has_another_shape(effects: np.ndarray | None) -> None:
    muted = np.zeros((24, 16), bool)
    muted[1, 15] = True
    figure = plots.muted_heads(muted, effects=effects, name="dog")
    points = figure.data[0]
    assert [at for at, symbol in enumerate(points.marker.symbol) if symbol == "x"] == [31]
    assert (points.x[31], points.y[31]) == (2, 16)
    assert points.customdata[31][0] == "layer 2, head 16"
    assert "layer 2, head 16" in alt(figure)
    if effects is not None:
        assert points.marker.cmin == -points.marker.cmax == -2
        assert "layer 1, head 1 changes the logit of dog by -1.00" in alt(figure)
        assert "layer 24, head 16 by +2.00" in alt(figure)


def test_a_head_that_a_layer_lacks_is_not_drawn() -> None:
    """As `intervention.head_effects` gives them of models whose stages differ in heads."""
    effects = np.array([[-0.5, np.nan], [0.25, 1.5]])
    muted = np.array([[True, False], [False, False]])
    figure = plots.muted_heads(muted, effects=effects, name="dog")
    points = figure.data[0]
    np.testing.assert_array_equal(points.x, [1, np.nan, 2, 2])
    assert points.marker.cmax == -points.marker.cmin == 1.5
    assert alt(figure) == (
        "1 of 3 heads are muted: layer 1, head 1; muted alone, layer 1, head 1 changes the logit "
        "of dog by -0.50 and layer 2, head 2 by +1.50."
    )


def test_patches_are_dragged_over_or_clicked_and_heads_are_clicked() -> None:
    pixels, mask = np.full((20, 32, 4), 255, np.uint8), planted() > 0.1
    dragged = plots.removed_patches(pixels, crop=CROP, mask=mask, removal="blur", drag=True)
    assert dragged.layout.dragmode == "select"
    for figure in (removed(mask), drawn("muted_heads")):
        assert figure.layout.clickmode == "event+select"
        assert all(axis.fixedrange for axis in axes(figure))


def test_classes_among_the_first_before_or_after_are_shown_with_both_places() -> None:
    before, after = np.array([0.4, 0.3, 0.2, 0.1]), np.array([0.1, 0.3, 0.2, 0.4])
    figure = plots.answer_change(before, after, ["a", "b", "c", "d"], k=2)
    assert list(figure.data[0].y) == ["a (1 → 4)", "b (2 → 2)", "d (4 → 1)"]
    np.testing.assert_allclose(figure.data[0].x, [40, 30, 10])
    np.testing.assert_allclose(figure.data[1].x, [10, 30, 40])
    assert figure.data[0].marker.pattern.shape != figure.data[1].marker.pattern.shape
    assert [bars.name for bars in figure.data] == ["before", "after"]
    assert "a 40.0 % and then 10.0 %" in alt(figure)


def test_an_occlusion_map_is_centred_at_0_in_percentage_points() -> None:
    figure = occlusion_map(planted() - 0.11)
    trace = figure.data[0]
    assert -trace.zmin == trace.zmax == pytest.approx(29)
    assert "points" in trace.colorbar.title.text
    assert "+29.0 at row 4, column 7" in alt(figure)


def test_lines_that_are_compared_differ_in_more_than_colour() -> None:
    for name in ("logit_lens", "removal_curves"):
        lines = drawn(name).data
        assert len({line.line.dash for line in lines}) == len(lines)
        assert len({line.marker.symbol for line in lines}) == len(lines)


def test_the_lens_follows_the_classes_of_the_last_layer_from_the_embedding() -> None:
    probabilities = np.array([[0.7, 0.1, 0.2], [0.3, 0.3, 0.4], [0.1, 0.6, 0.3]])
    figure = plots.logit_lens(probabilities, ["cat", "dog", "cow"], k=2)
    assert [line.name for line in figure.data] == ["dog", "cow"]
    for line, index in zip(figure.data, (1, 2), strict=True):
        assert list(line.x) == [0, 1, 2]
        np.testing.assert_allclose(line.y, 100 * probabilities[:, index])
    assert "dog from 10.0 % to 60.0 %, cow from 20.0 % to 30.0 %" in alt(figure)


@pytest.mark.parametrize(("putting_back", "done"), [(True, "put back"), (False, "removed")])
def test_a_removal_curve_says_what_is_done_and_where_it_is_at_half(
    putting_back: bool, done: str
) -> None:
    values = np.array([0.9, 0.5, 0.1])
    shares_ = np.array([0.0, 0.4, 1.0])
    band = {"random": (np.array([0.8, 0.2, 0.1]), np.array([0.9, 0.6, 0.3]))}
    curves = {"map": (shares_, values), "random": (shares_, values)}
    figure = plots.removal_curves(curves, name="dog", putting_back=putting_back, ranges=band)
    assert figure.layout.xaxis.title.text == f"patches {done}, %"
    assert f"while patches are {done}, the most important first" in alt(figure)
    assert "by map 43.3 % at half" in alt(figure)
    filled, line, chance = figure.data
    np.testing.assert_allclose(filled.x, [0, 40, 100, 100, 40, 0])
    np.testing.assert_allclose(filled.y, [80, 20, 10, 30, 60, 90])
    np.testing.assert_allclose(line.x, [0, 40, 100])
    np.testing.assert_allclose(line.y, [90, 50, 10])
    assert chance.line.color == filled.fillcolor != line.line.color


def test_effects_of_parts_are_centred_at_0_and_marked_where_their_interval_leaves_it_out() -> None:
    mean = np.array([[0.2, -0.1], [0.1, -0.6]])
    interval = mean - np.array([[0.1, 0.3], [0.2, 0.1]]), mean + np.array([[0.1, 0.3], [0.2, 0.1]])
    figure = plots.patch_effects(mean, ["CLS", "1.1"], axis="token", interval=interval)
    heat, dots = figure.data
    assert -heat.zmin == heat.zmax == pytest.approx(60)
    assert [*zip(dots.x, dots.y, strict=True)] == [(0, 1), (1, 2)]
    assert "most in layer 2, 1.1, -60 %" in alt(figure)
    assert heat.customdata[1][1] == "layer 2, 1.1, -70 to -50 %"


def test_judged_maps_show_intervals_and_chance() -> None:
    figure = drawn("judged_maps")
    one, other, chance = figure.data
    assert (one.x[0], one.error_x.array[0], one.error_x.arrayminus[0]) == pytest.approx(
        (0.2, 0.15, 0.1)
    )
    assert [each.marker.symbol for each in (one, other, chance)] == [
        "circle",
        "circle-open",
        "diamond",
    ]
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == 0.42
    assert figure.layout.xaxis.title.text == "area"
    assert "other 0.4 (0.35 – 0.45)" in alt(figure)
    below = plots.judged_maps(
        {"a": (0.1, -0.1, 0.3)}, measure="m", unit="s", better=[], logarithmic=True
    )
    assert below.layout.xaxis.type is None


def test_parts_of_a_logit_say_which_are_largest() -> None:
    heads = np.array([[0.5, np.nan], [-2.0, 1.0], [0.0, 0.25]])
    figure = plots.parts_by_head(heads, mlps=np.array([3.0, -1.0, 0.5]), name="dog")
    words = figure.layout.meta["alt"]
    assert "most by layer 2, head 1, -2.00. Most by an MLP: layer 1, +3.00." in words
    (heat,) = figure.data
    assert heat.zmax == 3
    assert list(heat.y) == [1, 2, 3]
    assert (
        plots.parts_by_head(heads, name="dog")
        .data[0]
        .hovertemplate.startswith("layer %{y}, head %{x}: ")
    )
    assert [list(row) for row in heat.customdata] == [["1", "2", "MLP"]] * 3
    np.testing.assert_array_equal(heat.z[:, 2], [3, -1, 0.5])


@pytest.mark.parametrize("count", [1, 5, 8])
def test_ranked_maps_have_one_scale_and_each_its_place(count: int) -> None:
    maps = {f"map {number}": shares(*GRID, seed=number) for number in range(count)}
    ranks = {name: patch_ranks(values) for name, values in maps.items()}
    figure = plots.ranked_maps(ranks, WIDE, crop=CROP, values=maps, patch=PEAK)
    heats = [trace for trace in figure.data if trace.type == "heatmap"]
    assert {(heat.zmin, heat.zmax) for heat in heats} == {(0, 100)}
    assert [heat.showscale for heat in heats] == [True] + [False] * (count - 1)
    bar = heats[0].colorbar
    assert dict(zip(bar.tickvals, bar.ticktext, strict=True)) == {0: "lowest", 100: "highest"}
    for heat, (name, values) in zip(heats, maps.items(), strict=True):
        np.testing.assert_allclose(heat.z, 100 * ranks[name])
        assert heat.customdata[1][2][1] == f"{values[1, 2]:.3g}"
        assert f"{name} row" in figure.layout.meta["alt"]
    assert ("1 map by rank" in figure.layout.meta["alt"]) == (count == 1)
    places = {
        (tuple(figure.layout[f"x{axis[1:]}"].domain), tuple(figure.layout[f"y{axis[1:]}"].domain))
        for axis in ("xaxis", *(f"xaxis{number + 2}" for number in range(count)))
    }
    assert len(places) == count + 1  # with the picture
    boxes = [shape for shape in figure.layout.shapes if shape.line.color == plots.QUERY]
    assert len({(box.xref, box.yref) for box in boxes}) == len(boxes) == count + 1
    assert len({(box.x0, box.y0) for box in boxes}) == 1


def test_equal_patches_of_a_ranked_map_are_higher_than_none_of_each_other() -> None:
    maps = {"flat": np.full((2, 2), 0.3), "half": np.array([[0, 0], [0, 1.0]])}
    ranks = {name: patch_ranks(values) for name, values in maps.items()}
    figure = plots.ranked_maps(ranks, WIDE, crop=CROP, values=maps)
    flat, half = (trace for trace in figure.data if trace.type == "heatmap")
    assert flat.customdata[..., 2].tolist() == [[0, 0], [0, 0]]
    assert half.customdata[..., 2].tolist() == [[0, 0], [0, 100]]
    assert "higher than %{customdata[2]} % of the other patches" in half.hovertemplate
    assert "highest: flat nowhere, half row 2, column 2." in figure.layout.meta["alt"]


def test_a_patch_says_its_own_answer_beside_the_class_in_question() -> None:
    figure = answer_map(np.array([[0.25, 0.65]]), WIDE, CROP)
    heat = figure.data[0]
    assert [list(row) for row in heat.customdata] == [
        ["row 1, column 1: cat 75 %", "row 1, column 2: dog 65 %"]
    ]
    np.testing.assert_allclose(heat.z, [[25, 65]])
    assert "50 % of the patches answer dog" in figure.layout.meta["alt"]


def test_fields_of_a_cnn_grow_by_two_pixels_a_layer() -> None:
    figure = drawn("receptive_fields")
    boxes = [s for s in figure.layout.shapes if s.line.color == plots.KEY]
    assert [box.x1 - box.x0 for box in boxes] == pytest.approx([17.5, 12.5, 7.5])
    left, top, right, bottom = CROP
    middle = (
        left + (PEAK[1] + 0.5) * (right - left) / GRID[1],
        top + (PEAK[0] + 0.5) * (bottom - top) / GRID[0],
    )
    for box in boxes:
        assert ((box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2) == pytest.approx(middle)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_text_in_every_figure(name: str) -> None:
    """Plotly reads HTML, LaTeX and templates: nothing of them is left in what it is given."""
    labels, shares = [name, "b", "c"], np.array([0.6, 0.3, 0.1])
    image = Image.new("RGB", (40, 40))
    crop, grid = (0.0, 0.0, 40.0, 40.0), np.array([[0.1, 0.2], [0.3, 0.4]])
    each = np.tile(shares, (2, 2, 1))
    figures = [
        plots.class_probabilities(shares, labels),
        plots.answer_change(shares, shares[::-1], labels),
        plots.logit_lens(np.tile(shares, (3, 1)), labels),
        plots.removal_curves({name: (shares, shares)}, name=name, putting_back=False),
        plots.occlusion(grid, image, crop=crop, name=name),
        plots.relevance(grid, image, crop=crop, name=name),
        plots.ranked_maps({name: grid}, image, crop=crop, values={name: grid}),
        plots.patch_answers(each, image, crop=crop, labels=labels, index=0),
        plots.muted_heads(np.zeros((2, 2), bool), effects=grid, name=name),
        plots.distance_by_depth([shares, shares], names=[name, "b"], equal_sharing=[shares] * 2),
    ]
    drawn = [set(texts_of(figure.to_plotly_json())) for figure in figures]
    for figure, texts in zip(figures, drawn, strict=True):
        bare = [re.sub(r"</?extra>|<br>|%{(?:[xyz]|customdata)[^}]*}", "", one) for one in texts]
        assert not [one for one in bare if re.search(r"[<>$]|%{", one)]
        assert any(name in html.unescape(one.replace("<br>", " ")) for one in texts)
        assert name in figure.layout.meta["alt"]


def texts_of(part: Any, key: str = "") -> Iterator[str]:
    """All texts of a figure that are drawn."""
    if isinstance(part, dict):
        for name, one in part.items():
            if name not in ("meta", "template", "images", "source"):
                yield from texts_of(one, name)
    elif isinstance(part, (list, tuple)) or (isinstance(part, np.ndarray) and part.dtype == object):
        for one in part:
            yield from texts_of(one, key)
    elif isinstance(part, str) and key not in ("color", "type"):
        yield part
