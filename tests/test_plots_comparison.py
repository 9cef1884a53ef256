"""Figures of two pictures in one model, and of two models on one picture."""

import numpy as np
import plotly.graph_objects as go
import pytest
from examples import picture

from vitviz.plots import (
    KEY,
    QUERY,
    distance_by_depth,
    distance_difference,
    joint_components,
    mutual_matches,
)

IMAGES = (picture(100, 50), picture(40, 80, seed=1))  # 2 wide and 0.5 wide, each 1 high
CROPS = ((10.0, 0.0, 90.0, 50.0), (0.0, 20.0, 40.0, 60.0))
GRID = (2, 4)
SECOND = 2 + 0.06 * 2.5  # where the second picture begins


def matches(count: int = 2, **options: int) -> go.Figure:
    pairs = np.array([[0, 7], [5, 2], [6, 6]])[:count].reshape(-1, 2)
    cosines = np.array([0.25, 0.75, 0.5])[:count]
    return mutual_matches(pairs, cosines, IMAGES, crops=CROPS, grid=GRID, **options)


def test_a_match_joins_the_middles_of_its_patches() -> None:
    (*_, first, second) = matches().data
    assert first.marker.color == QUERY
    assert second.marker.color == KEY
    # patch 5 is row 2, column 2 of the first; patch 2 is row 1, column 3 of the second
    np.testing.assert_allclose((first.x[0], first.y[0]), ((10 + 1.5 * 20) / 50, 1.5 * 25 / 50))
    np.testing.assert_allclose(
        (second.x[0], second.y[0]), (SECOND + 2.5 * 10 / 80, (20 + 0.5 * 20) / 80)
    )
    line = matches().data[1]
    assert line.x[:2] == (first.x[0], second.x[0])
    assert line.x[2] is None  # the next line begins elsewhere
    assert line.y[3:5] == (first.y[1], second.y[1])


def test_both_pictures_stand_side_by_side_in_one_scale() -> None:
    figure = matches()
    left, right = figure.layout.images
    assert (left.x, left.sizex, left.sizey) == (0, 2, 1)
    assert (right.x, right.sizex, right.sizey) == pytest.approx((SECOND, 0.5, 1))
    assert figure.layout.xaxis.range == pytest.approx((0, SECOND + 0.5))
    assert figure.layout.yaxis.range == (1, 0)
    assert figure.layout.yaxis.scaleanchor == "x"


def test_the_best_matches_are_drawn_and_all_are_counted() -> None:
    figure = matches(3, most=2)
    assert [text[-4:] for text in figure.data[-1].text] == ["0.75", "0.50"]
    assert figure.layout.meta["alt"] == (
        "3 pairs of patches are each other's most similar in the two pictures; the 2 with the "
        "largest cosines are joined; the best: row 2, column 2 and row 1, column 3: cosine 0.75."
    )
    assert matches(0).layout.meta["alt"].startswith("0 pairs of patches")


def test_equal_components_have_one_colour_in_both_pictures() -> None:
    random = np.random.default_rng(0)
    first, second = random.normal(size=(2, 4, 3)), random.normal(size=(3, 2, 3))
    second[2, 1] = first[1, 3]
    figure = joint_components((first, second), IMAGES, crops=CROPS)
    one, other = (np.asarray(trace.z) for trace in figure.data)
    assert (one.shape, other.shape) == ((2, 4, 4), (3, 2, 4))
    assert one[1, 3].tolist() == other[2, 1].tolist()
    assert len(np.unique(one.reshape(-1, 4), axis=0)) == 8
    left, right = figure.data
    np.testing.assert_allclose((left.x0, left.dx, left.y0, left.dy), (0.4, 0.4, 0.25, 0.5))
    np.testing.assert_allclose(
        (right.x0, right.dx, right.y0, right.dy),
        (SECOND + 0.125, 0.25, 0.25 + 1 / 12, 1 / 6),
    )


def test_a_difference_is_centred_at_0_and_says_its_extremes() -> None:
    values = np.array([[1.0, -2.0], [np.nan, 8.0], [0.0, 0.5]])
    figure = distance_difference(values, unit="px", names=("A", "B"))
    (heat,) = figure.data
    assert (heat.zmin, heat.zmax) == (-8, 8)
    np.testing.assert_array_equal(heat.z, values)
    assert (heat.x0, heat.y0) == (1, 1)
    assert figure.layout.meta["alt"] == (
        "Attention distance of B minus that of A, of each head: from -2.0 px in layer 1, head 2 to "
        "+8.0 px in layer 2, head 2."
    )
    nothing = distance_difference(np.full((2, 2), np.nan), unit="px", names=("A", "B"))
    assert nothing.layout.meta["alt"].endswith("no head has one.")


def test_layers_of_models_of_any_depth_end_at_the_same_place() -> None:
    figure = distance_by_depth(
        [np.array([0.1, 0.4]), np.array([0.2, np.nan, 0.3, 0.6])],
        names=["A", "B"],
        equal_sharing=[np.full(2, 0.5), np.full(4, 0.45)],
    )
    a, equal, b, _ = figure.data
    assert list(a.x) == [50, 100]
    assert list(b.x) == [25, 50, 75, 100]
    np.testing.assert_allclose(a.y, [10, 40])
    np.testing.assert_allclose(equal.y, [50, 50])
    assert figure.layout.yaxis.range[1] == pytest.approx(115 * 0.6)
    assert figure.layout.meta["alt"] == (
        "Mean attention distance from the first layer to the last: A from 10 % to 40 % of the "
        "side; B from 20 % to 60 % of the side."
    )
