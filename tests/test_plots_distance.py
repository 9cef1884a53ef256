"""Figures of the Distance page: every bar, cell, tick and word is where the data says."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest

from vitviz import plots
from vitviz.plots.template import GREY

WEIGHTS = np.array([0.2, 0.5, 0.25, 0.05])
UNIFORM = np.array([0.1, 0.3, 0.4, 0.2])


def histogram(weights: np.ndarray = WEIGHTS, mean: float = 6.5) -> go.Figure:
    return plots.distance_histogram(
        weights, UNIFORM, bin_width=4, mean=mean, name="layer 2, head 3"
    )


def offsets(values: np.ndarray, equal_share: float = 0.1) -> go.Figure:
    return plots.offset_attention(values, equal_share=equal_share, name="layer 2, head 3")


def alt(figure: go.Figure) -> str:
    words: str = figure.layout.meta["alt"]
    return words


def dots(**options: Any) -> go.Figure:
    given: dict[str, Any] = dict(
        distance=np.array([[10.0, 20.0], [30.0, 40.0]]),
        prefix_mass=np.full((2, 2), 0.25),
        equal_sharing=33.3,
        side=64,
        selected=(0, None),
    )
    given.update(options)
    return plots.attention_distance(given.pop("distance"), given.pop("prefix_mass"), **given)


# --- histogram ----------------------------------------------------------------------------------


def test_each_bar_stands_at_its_distance_beside_equal_sharing() -> None:
    bars, equal = histogram().data
    assert bars.type == "bar"
    np.testing.assert_allclose(bars.x, [0, 4, 8, 12])
    np.testing.assert_allclose(bars.y, 100 * WEIGHTS)
    np.testing.assert_allclose(equal.x, bars.x)
    np.testing.assert_allclose(equal.y, 100 * UNIFORM)
    assert (bars.name, equal.name) == ("head 3", "equal sharing")
    assert histogram().layout.showlegend


@pytest.mark.parametrize("weights", [WEIGHTS, np.array([0.0, 0, 0, 1]), UNIFORM / 10])
def test_bars_and_equal_sharing_are_in_sight(weights: np.ndarray) -> None:
    figure = histogram(weights)
    low, high = figure.layout.yaxis.range
    assert low == 0
    assert high > 100 * max(weights.max(), UNIFORM.max())
    left, right = figure.layout.xaxis.range
    assert left < -0.43 * 4  # half a bar's width
    assert right > 12 + 0.43 * 4


def test_the_mean_is_a_line_with_its_number_and_the_words_name_the_largest_bars() -> None:
    figure = histogram()
    (line,) = figure.layout.shapes
    assert line.x0 == line.x1 == 6.5
    assert figure.layout.annotations[0].text == "mean 6.5 px"
    assert "layer 2, head 3" in alt(figure)
    assert "most, 50 %, at about 4 pixels" in alt(figure)
    assert "equal sharing has most, 40 %, at about 8 pixels" in alt(figure)


def test_a_head_that_looks_at_no_patch_has_no_bars_and_no_mean() -> None:
    figure = histogram(np.full(4, np.nan), np.nan)
    assert not figure.layout.shapes
    assert "none of it goes to any patch" in alt(figure)
    assert np.isfinite(figure.layout.yaxis.range).all()
    assert "nan" not in alt(figure)


# --- offsets ------------------------------------------------------------------------------------


def test_each_offset_has_its_cell_and_the_middle_is_the_query() -> None:
    values = np.arange(15.0).reshape(3, 5) / 100  # of a grid of 2 x 3
    figure = offsets(values)
    trace = figure.data[0]
    np.testing.assert_allclose(trace.z, 100 * values)
    columns = [trace.x0 + trace.dx * col for col in range(5)]
    rows = [trace.y0 + trace.dy * row for row in range(3)]
    assert columns == [-2, -1, 0, 1, 2]
    assert rows == [-1, 0, 1]
    across, down = figure.layout.xaxis.title.text, figure.layout.yaxis.title.text
    assert (across, down) == ("columns to the right", "rows down")
    assert figure.layout.yaxis.autorange == "reversed"  # down is down
    (box,) = figure.layout.shapes
    assert (box.x0, box.x1, box.y0, box.y1) == (-0.5, 0.5, -0.5, 0.5)
    assert box.line.color == plots.QUERY


@pytest.mark.parametrize(
    ("row", "col", "words"),
    [
        (1, 2, "on the query itself"),
        (0, 4, "1 row up and 2 columns right"),
        (2, 1, "1 row down and 1 column left"),
        (1, 0, "2 columns left"),
    ],
)
def test_the_words_name_the_strongest_offset(row: int, col: int, words: str) -> None:
    values = np.full((3, 5), 0.01)
    values[row, col] = 0.3
    assert f"most, 30 %, {words}; equal sharing is 10 %" in alt(offsets(values))


def test_the_colour_bar_prints_the_maximum_and_marks_equal_sharing() -> None:
    values = np.full((3, 5), 0.01)
    values[0, 0] = 0.25
    bar = offsets(values).data[0].colorbar
    ticks = dict(zip(bar.tickvals, bar.ticktext, strict=True))
    assert ticks.keys() == {0.0, 10.0, 25.0}
    assert ticks[25.0] == "25 % max"
    assert "equal 10 %" in ticks[10.0]
    assert "%" in bar.title.text
    beyond = offsets(values, equal_share=0.5).data[0].colorbar
    assert not any("equal" in text for text in beyond.ticktext)


def test_offsets_that_were_left_out_are_gaps() -> None:
    values = np.full((3, 5), 0.01)
    values[0, 0], values[2, 4] = np.nan, 0.2
    figure = offsets(values)
    assert np.isnan(figure.data[0].z[0, 0])
    assert figure.data[0].zmax == pytest.approx(20)
    assert "20 %, 1 row down and 2 columns right" in alt(figure)
    nothing = offsets(np.full((3, 5), np.nan))
    assert "none of it goes to any patch" in alt(nothing)
    assert nothing.data[0].zmax > 0


# --- dots ---------------------------------------------------------------------------------------


def test_the_spread_over_pictures_is_drawn_and_said() -> None:
    spread = np.array([[1.0, 2.0], [3.0, 9.0]])
    figure = dots(spread=spread)
    np.testing.assert_array_equal(figure.data[0].error_y.array, spread.ravel())
    assert figure.data[0].error_y.color == GREY  # seen on white and on black
    assert figure.data[0].text[3] == " ± 9.0"
    assert "%{text}" in figure.data[0].hovertemplate
    assert figure.layout.yaxis.range[1] > 40 + 9
    assert "the standard deviation (n − 1) over pictures is at most 9.0 pixels" in alt(figure)


def test_what_is_usual_stands_behind_the_dots_and_in_sight() -> None:
    mean, spread = np.array([[5.0, 30.0], [20.0, np.nan]]), np.array([[1.0, 2.0], [80.0, np.nan]])
    figure = dots(behind=("7 pictures", mean, spread))
    (bars,) = [one for one in figure.data if one.zorder == -1]
    np.testing.assert_array_equal(bars.y, mean.ravel())
    np.testing.assert_array_equal(bars.error_y.array, spread.ravel())
    assert list(bars.text)[:3] == [" ± 1.0", " ± 2.0", " ± 80.0"]
    np.testing.assert_array_equal(bars.x, figure.data[0].x)  # the dots are still the first
    assert "7 pictures: %{y:.1f}%{text} px" in bars.hovertemplate
    assert figure.layout.yaxis.range[1] > 100
    assert "over 7 pictures" in figure.layout.annotations[0].text
    assert "the means over 7 pictures, from 5.0 to 30.0 pixels." in alt(figure)
    nothing = dots(behind=("7 pictures", mean * np.nan, spread))
    assert "7 pictures" not in alt(nothing)


def test_a_head_with_one_distance_has_no_spread_and_stays_in_sight() -> None:
    spread = np.array([[1.0, 2.0], [3.0, np.nan]])
    figure = dots(spread=spread)
    assert figure.data[0].text[3] == ""
    assert figure.layout.yaxis.range[1] > figure.data[0].y[3]
    assert "at most 3.0 pixels" in alt(figure)
    alone = dots(spread=np.full((2, 2), np.nan), behind=("1 picture", *np.full((2, 2, 2), np.nan)))
    assert "deviation" not in alt(alone)
    of_one_picture = dots()
    assert of_one_picture.data[0].error_y.array is None
    assert "%{text}" not in of_one_picture.data[0].hovertemplate
    assert "deviation" not in alt(of_one_picture)


@pytest.mark.parametrize(("head", "y"), [(0, 30.0), (1, 40.0)])
def test_the_chosen_head_is_told_by_shape_colour_and_name(head: int, y: float) -> None:
    figure = dots(selected=(1, head))
    marker = figure.data[0].marker
    chosen = 2 + head
    assert [symbol == "diamond" for symbol in marker.symbol] == [k == chosen for k in range(4)]
    assert [colour == plots.QUERY for colour in marker.color] == [k == chosen for k in range(4)]
    label = figure.layout.annotations[1]
    assert label.text == f"<b>head {head + 1}</b>"
    assert (label.x, label.y) == (figure.data[0].x[chosen], y)
    above = figure.data[1]  # no neighbour hides it
    assert (above.x[0], above.y[0], above.marker.symbol) == (label.x, y, "diamond")
    assert above.hoverinfo == "skip"  # hover and click reach the dot


@pytest.mark.parametrize(("chosen", "below"), [((0, 0), False), ((1, 1), True)])
def test_the_name_stands_in_the_other_half_of_the_axis(
    chosen: tuple[int, int], below: bool
) -> None:
    figure = dots(distance=np.array([[30.0, 31.0], [32.0, 36.0]]), selected=chosen)
    assert figure.layout.yaxis.range[0] == 27
    (name,) = [one for one in figure.layout.annotations if "<b>head" in one.text]
    assert (name.ay > 0) == below


def test_no_name_stands_where_there_is_no_dot() -> None:
    gap = np.array([[10.0, np.nan], [30.0, 40.0]])
    assert len(dots(distance=gap, selected=(0, 1)).layout.annotations) == 1
    assert len(dots(selected=(1, None)).layout.annotations) == 1
    assert len(dots(distance=gap, selected=(0, 1)).data) == len(dots(selected=(1, None)).data)


def test_a_dot_fades_under_no_click_and_says_its_share_on_the_prefix_by_name() -> None:
    shares = np.array([[0.25, 0.5], [0.0, 1.0]])
    figure = dots(prefix_mass=shares, prefix_name="CLS, DIST")
    (trace, *_) = figure.data
    assert trace.selected.marker.opacity == trace.unselected.marker.opacity == trace.marker.opacity
    assert [float(each[1]) for each in trace.customdata] == [25, 50, 0, 100]
    assert "% on CLS, DIST" in trace.hovertemplate
    assert "more on CLS, DIST" in figure.layout.annotations[0].text


def test_an_axis_that_does_not_begin_at_0_says_so() -> None:
    far = np.array([[28.0, 30.0], [31.0, 33.0]])
    figure = dots(distance=far, selected=(1, 1))
    low, high = figure.layout.yaxis.range
    assert low == pytest.approx(0.9 * 28)
    assert high > 33.3
    np.testing.assert_allclose(figure.layout.yaxis2.range, [100 * low / 64, 100 * high / 64])
    assert any("begins at 25 px, not at 0" in note.text for note in figure.layout.annotations)
    near = dots()
    assert near.layout.yaxis.range[0] == 0
    assert not any("not at 0" in note.text for note in near.layout.annotations)


def test_a_recorded_model_has_squares_in_shares_of_the_same_side() -> None:
    shares = np.array([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    figure = dots(recorded=("a recorded model", shares))
    (squares,) = (trace for trace in figure.data if trace.marker.symbol == "square-open")
    np.testing.assert_allclose(squares.y, 64 * shares.ravel())
    assert figure.layout.xaxis.range[1] == 3.5
    assert figure.layout.yaxis.range[1] > 64 * 0.6
    assert "Squares: a recorded model, from 10 to 60 % of the side." in alt(figure)
    assert "Squares" not in alt(dots())


def test_a_cnn_sees_one_pixel_farther_in_each_layer() -> None:
    figure = dots(with_cnn=True, distance=np.full((2, 2), 30.0))
    (line,) = (trace for trace in figure.data if trace.mode == "lines")
    np.testing.assert_array_equal(line.x, [1, 2])
    np.testing.assert_array_equal(line.y, [1, 2])
    assert figure.layout.yaxis.range[0] == 0


def test_layers_have_marks_of_two_kinds_above_them() -> None:
    figure = dots(sinks={"no-op sink": [1], "broadcast": [0, 1]})
    one, other = (each for each in figure.data if str(each.marker.symbol).endswith("-open"))
    assert (one.marker.symbol, other.marker.symbol) == ("triangle-down-open", "star-open")
    assert (list(one.customdata), list(other.customdata)) == ([2], [1, 2])
    assert [round(x) for x in (*one.x, *other.x)] == [2, 1, 2]
    assert "Marked above layers 2: no-op sink. Marked above layers 1, 2: broadcast." in alt(figure)
