"""Figures of the Tokens page: colours, thumbnails, stars and crosses are where the data says."""

import base64
import io
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from PIL import Image

from vitviz import plots

#: A picture of 4 x 3 patches of 20 pixels in one colour each, with a rim that is no patch.
GRID, CROP = (3, 4), (10.0, 5.0, 90.0, 65.0)
COLOURS = np.random.default_rng(0).integers(40, 216, (*GRID, 3), dtype=np.uint8)
IMAGE = Image.new("RGB", (100, 70))
IMAGE.paste(Image.fromarray(COLOURS.repeat(20, axis=0).repeat(20, axis=1)), (10, 5))
POINTS = np.stack([np.tile(np.arange(4.0), 3), np.repeat(np.arange(3.0), 4)], axis=1)


def alt(figure: go.Figure) -> str:
    words: str = figure.layout.meta["alt"]
    return words


def scatter(
    patches: np.ndarray = POINTS, prefix: np.ndarray | None = None, **options: Any
) -> go.Figure:
    points = patches if prefix is None else np.vstack([prefix, patches])
    names = [] if prefix is None else ["CLS", "DIST"][: len(prefix)]
    return plots.token_scatter(
        points,
        np.array([0.4, 0.125]),
        IMAGE,
        crop=CROP,
        grid=GRID,
        prefix=names,
        numbers=(2, 3),
        **options,
    )


def sheet(figure: go.Figure) -> np.ndarray:
    """What is drawn below the points: (height, width, 4)."""
    (layer,) = figure.layout.images
    kind, data = layer.source.split(",", 1)
    assert kind == "data:image/webp;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"), int)


def under(figure: go.Figure, x: float, y: float) -> np.ndarray:
    """The colour of the sheet below a place of the axes."""
    (layer,) = figure.layout.images
    pixels = sheet(figure)
    col = (x - layer.x) / layer.sizex * pixels.shape[1]
    row = (layer.y - y) / layer.sizey * pixels.shape[0]
    return pixels[int(row), int(col)]


# --- colours ------------------------------------------------------------------------------------


def components(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(*GRID, 3))


def test_patches_that_were_left_out_are_clear_and_the_picture_is_grey_below() -> None:
    values = components()
    values[1:, 0] = np.nan
    figure = plots.token_components(values, IMAGE, crop=CROP, query=None, numbers=(2, 3, 4))
    colours = np.asarray(figure.data[0].z)
    expected = np.full(GRID, 255)
    expected[1:, 0] = 0
    np.testing.assert_array_equal(colours[..., 3], expected)
    for channel in range(3):  # the colours run from end to end of what is kept
        assert colours[..., channel][expected > 0].min() == 0
        assert colours[..., channel][expected > 0].max() == 255
    (layer,) = figure.layout.images
    photo = Image.open(io.BytesIO(base64.b64decode(layer.source.split(",", 1)[1])))
    assert photo.mode == "L"
    assert "10 of 12 patches" in alt(figure)
    assert not plots.token_components(components(), IMAGE, crop=CROP, query=None).layout.images


def test_colours_may_have_ends_that_pictures_share() -> None:
    values, reach = components(), np.array([1.0, 2.0, 0.5])
    expected = np.round(255 * np.clip((values + reach) / (2 * reach), 0, 1))
    figure = plots.token_components(values, IMAGE, crop=CROP, query=None, reach=reach)
    np.testing.assert_array_equal(np.asarray(figure.data[0].z)[..., :3], expected)
    both = np.stack([values, values])
    film = plots.token_film(
        both, names=["layer 1", "layer 2"], selected=None, reach=np.stack([reach, 2 * reach])
    )
    tiles = np.asarray(film.data[0].z)[-GRID[0] :, :, :3]
    np.testing.assert_array_equal(tiles[:, : GRID[1]], expected)
    wider = np.round(255 * np.clip((values + 2 * reach) / (4 * reach), 0, 1))
    np.testing.assert_array_equal(tiles[:, -GRID[1] :], wider)


def test_the_words_say_which_component_is_which_colour_and_where_it_is_largest() -> None:
    values = np.zeros((*GRID, 3))
    values[0, 3, 0] = values[2, 1, 1] = values[1, 0, 2] = 9
    words = alt(plots.token_components(values, IMAGE, crop=CROP, query=None, numbers=(3, 4, 5)))
    assert "component 3 as red, largest at row 1, column 4" in words
    assert "component 4 as green, largest at row 3, column 2" in words
    assert "component 5 as blue, largest at row 2, column 1" in words


# --- film ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "across"), [(1, 1), (3, 3), (6, 3), (12, 4), (16, 4)])
def test_layers_are_tiles_of_one_picture_in_reading_order(count: int, across: int) -> None:
    layers = np.stack([components(seed) for seed in range(count)])
    names = [f"layer {number + 1}" for number in range(count)]
    figure = plots.token_film(layers, names=names, selected=count - 1)
    (sprite,) = figure.data
    canvas = np.asarray(sprite.z)
    labels = figure.layout.annotations
    assert [label.text for label in labels[:-1]] == names[:-1]
    assert labels[-1].text == f"<b>{names[-1]}</b>"
    for index, label in enumerate(labels):
        x, y = round(label.x + 0.5), round(label.y + 0.5)
        alone = plots.token_components(layers[index], IMAGE, crop=CROP, query=None)
        tile = canvas[y : y + GRID[0], x : x + GRID[1]]
        np.testing.assert_array_equal(tile, alone.data[0].z)
    assert len({label.x for label in labels}) == across
    assert (canvas[..., 3] > 0).sum() == count * 12  # the rest is clear
    (frame,) = figure.layout.shapes
    assert (frame.x0, frame.y0) == (labels[-1].x, labels[-1].y)
    assert (frame.x1 - frame.x0, frame.y1 - frame.y0) == (GRID[1], GRID[0])
    of_wide_patches = plots.token_film(layers, names=names, selected=None, aspect=1.5)
    assert not of_wide_patches.layout.shapes
    assert of_wide_patches.layout.yaxis.scaleratio == 1.5


# --- scatter ------------------------------------------------------------------------------------


def test_each_patch_lies_at_its_place_as_a_piece_of_the_picture() -> None:
    figure = scatter()
    for index, (x, y) in enumerate(POINTS):
        colour = COLOURS[divmod(index, 4)]
        assert np.abs(under(figure, x, y)[:3] - colour).max() < 30, index
    assert under(figure, 0.5, 0.5)[3] == 0  # between them, nothing


def test_hover_and_clicks_know_each_patch() -> None:
    prefix = np.array([[1.5, 1.5], [0.5, 0.5]])
    patches = scatter(prefix=prefix).data[0]
    assert patches.marker.opacity == 0  # the thumbnails are below
    assert patches.selected.marker.opacity == patches.unselected.marker.opacity == 0
    np.testing.assert_allclose(np.stack([patches.x, patches.y], axis=1), POINTS)
    assert patches.text[6] == "row 2, column 3"
    assert patches.customdata[6][0] == 2 + 6


def test_prefix_tokens_are_stars_with_their_names() -> None:
    prefix = np.array([[1.5, 1.25], [0.5, 0.75]])
    figure = scatter(prefix=prefix)
    stars = figure.data[1]
    assert stars.marker.symbol == "star"
    np.testing.assert_allclose(np.stack([stars.x, stars.y], axis=1), prefix)
    assert [star[0] for star in stars.customdata] == [0, 1]
    assert [label.text for label in figure.layout.annotations] == ["<b>CLS</b>", "<b>DIST</b>"]
    assert [(label.x, label.y) for label in figure.layout.annotations] == [*map(tuple, prefix)]
    assert alt(figure).endswith("CLS, DIST as a star.")
    assert len(scatter().data) == 1
    assert "star" not in alt(scatter())


def test_a_star_far_out_stands_at_the_rim_and_says_so() -> None:
    near = scatter(prefix=np.array([[4.0, 1.0]]))
    assert near.layout.xaxis.range[1] > 4
    assert near.layout.annotations[0].text == "<b>CLS</b>"
    far = scatter(prefix=np.array([[500.0, 1.0]]))
    right = far.layout.xaxis.range[1]
    assert right < 10
    assert far.data[1].x[0] == right
    assert far.layout.annotations[0].text == "<b>CLS, outside</b>"
    assert list(far.data[1].customdata[0]) == [0, 500.0, 1.0]


@pytest.mark.parametrize("stretch", [(1, 1), (9, 1), (1, 9)])
def test_both_axes_have_one_unit_and_hold_every_patch(stretch: tuple[int, int]) -> None:
    patches = POINTS * stretch
    figure = scatter(patches)
    (left, right), (low, high) = figure.layout.xaxis.range, figure.layout.yaxis.range
    assert left < patches[:, 0].min() < patches[:, 0].max() < right
    assert low < patches[:, 1].min() < patches[:, 1].max() < high
    assert figure.layout.yaxis.scaleanchor == "x"
    pixels = sheet(figure)
    assert pixels.shape[1] / pixels.shape[0] == pytest.approx((right - left) / (high - low), 0.01)
    assert 0.99 <= (right - left) / (high - low) <= 1.61
    (layer,) = figure.layout.images
    assert (layer.x, layer.y) == (left, high)
    assert (layer.sizex, layer.sizey) == pytest.approx((right - left, high - low))


def test_only_the_patches_kept_are_shown() -> None:
    kept = np.zeros(GRID, bool)
    kept[1, 1:] = kept[2, 3] = True
    figure = scatter(kept=kept, query=0)
    assert list(figure.data[0].text) == [
        *(f"row 2, column {col}" for col in (2, 3, 4)),
        "row 3, column 4",
    ]
    assert [number for (number,) in figure.data[0].customdata] == [5, 6, 7, 11]
    assert under(figure, 2, 1)[3] == 255
    assert len(figure.data) == 1  # the query is not among them
    assert alt(figure).startswith("4 patches on component 2 (40 % of the variance), from 1.0 to")


@pytest.mark.parametrize(("query", "place"), [(0, (1.5, 1.25)), (1, (0.0, 0.0)), (7, (2.0, 1.0))])
def test_the_query_has_a_box(query: int, place: tuple[float, float]) -> None:
    box = scatter(prefix=np.array([[1.5, 1.25]]), query=query).data[2]
    assert (box.x[0], box.y[0]) == place
    assert box.marker.symbol == "square-open"
    assert box.marker.color == plots.QUERY


def test_axes_name_their_component_and_patches_at_one_place_have_axes() -> None:
    figure = scatter(np.zeros((12, 2)))
    assert figure.layout.xaxis.title.text == "component 2 (40 % of the variance)"
    assert figure.layout.yaxis.title.text == "component 3 (13 % of the variance)"
    assert np.isfinite([*figure.layout.xaxis.range, *figure.layout.yaxis.range]).all()
    assert figure.layout.xaxis.range[0] < 0 < figure.layout.xaxis.range[1]


# --- norms --------------------------------------------------------------------------------------


def test_outliers_have_a_cross_in_the_middle_of_their_patch() -> None:
    norms = np.full(GRID, 3.0)
    norms[0, 3], norms[2, 1] = 9, 8
    figure = plots.token_norms(norms, norms > 5, IMAGE, crop=CROP, query=None)
    crosses = figure.data[1]
    assert crosses.marker.symbol == "x-thin"
    assert list(zip(crosses.x, crosses.y, strict=True)) == [(80, 15), (40, 55)]
    assert "the largest is 9.00 at row 1, column 4" in alt(figure)
    assert alt(figure).endswith("2 outliers: row 1, column 4; row 3, column 2.")


def test_what_is_only_long_has_a_ring() -> None:
    norms = np.full(GRID, 3.0)
    norms[0, 3], norms[2, 1] = 30, 4
    figure = plots.token_norms(norms, norms > 15, IMAGE, crop=CROP, query=None, long=norms > 3.5)
    crosses, rings = figure.data[1:]
    assert (list(crosses.x), list(crosses.y)) == ([80], [15])
    assert rings.marker.symbol == "circle-open"
    assert (list(rings.x), list(rings.y)) == ([40], [55])
    assert alt(figure).endswith("1 outlier: row 1, column 4; 1 large one: row 3, column 2.")


def test_no_outlier_is_said_and_many_are_not_all_named() -> None:
    none, many = (
        plots.token_norms(np.ones(GRID), np.full(GRID, mark), IMAGE, crop=CROP, query=None)
        for mark in (False, True)
    )
    assert len(none.data[1].x) == 0
    assert alt(none).endswith("no outlier.")
    assert alt(many).count("row ") == 1 + 5
    assert "12 outliers: " in alt(many)
    assert alt(many).endswith("; ….")
