"""Figures of attention patterns, and of the multiply-adds of attention."""

import re
from typing import Any

import numpy as np
import pytest
from examples import picture

from vitviz.plots import KEY, QUERY, allowed_keys, allowed_pairs, attention_cost

CROP = (10.0, 20.0, 90.0, 60.0)


def coloured(figure: Any, colour: str) -> list[Any]:
    return [shape for shape in figure.layout.shapes if shape.line.color == colour]


def test_a_matrix_has_its_row_in_cyan_and_its_column_in_magenta() -> None:
    first, second = np.eye(4, dtype=bool), np.ones((1, 3), bool)
    figure = allowed_pairs(
        [first, second],
        titles=["layer 1<br>windows", "layer 2"],
        chosen=[(2, 1), None],
        prefixes=[(), ("CLS",)],
    )
    assert figure.data[0].z.tolist() == np.eye(4).tolist()
    assert figure.data[1].z.tolist() == [[1, 1, 1]]
    (row,), (column,) = coloured(figure, QUERY), coloured(figure, KEY)
    assert (row.x0, row.x1, row.y0, row.y1) == (0.5, 4.5, 2.5, 3.5)
    assert (column.x0, column.x1, column.y0, column.y1) == (1.5, 2.5, 0.5, 4.5)
    assert row.line.dash is None
    assert column.line.dash
    assert figure.layout.xaxis.title.text == "key j"
    assert figure.layout.yaxis.title.text == "query i"
    assert figure.layout.yaxis.range == (4.6, 0.4)  # row 1 on top
    assert not figure.layout.xaxis.showticklabels
    assert figure.layout.xaxis2.ticktext == ("CLS",)
    assert figure.layout.meta["alt"] == (
        "Allowed pairs: layer 1, windows: 4 of 16 pairs; layer 2: 3 of 3 pairs."
    )


def test_what_the_query_never_meets_is_dimmed() -> None:
    allowed = np.zeros((4, 8), bool)
    allowed[1, 2:4] = allowed[2, 3] = True  # the line has a corner within
    figure = allowed_keys(
        allowed, picture(100, 80), crop=CROP, grid=(4, 8), query=(1, 2), query_name="this patch"
    )
    (veil,) = (trace for trace in figure.data if trace.type == "image")
    alpha = np.asarray(veil.z)[..., 3] / veil.zmax[3]
    assert (alpha[allowed] == 0).all()
    assert (alpha[~allowed] > 0.4).all()
    assert (alpha[~allowed] < 1).all()  # it can still be seen
    assert (veil.x0, veil.dx, veil.y0, veil.dy) == (15, 10, 25, 10)
    (box,) = coloured(figure, QUERY)
    assert (box.x0, box.x1, box.y0, box.y1) == (30, 40, 30, 40)
    (outline,) = coloured(figure, KEY)
    edges = [tuple(map(float, re.findall(r"[\d.]+", one))) for one in outline.path.split("M")]
    assert {*edges} - {()} == {
        *((30, 30, 50, 30), (30, 40, 40, 40), (40, 50, 50, 50)),  # across
        *((30, 30, 30, 40), (40, 40, 40, 50), (50, 30, 50, 50)),  # down
    }
    assert figure.layout.shapes[-1] == box  # on top
    assert "this patch may attend to 3 of 32 keys" in figure.layout.meta["alt"]


def test_every_pooled_key_has_an_outline() -> None:
    figure = allowed_keys(
        np.ones((2, 4), bool),
        picture(100, 80),
        crop=CROP,
        grid=(4, 8),
        query=None,
        query_name="CLS",
    )
    (outline,) = coloured(figure, KEY)
    assert outline.path.count("M") == 3 + 5  # lines across and down
    assert not coloured(figure, QUERY)


@pytest.mark.parametrize(("grid", "count"), [((4, 8), 32), ((56, 56), 28 * 28), ((30, 7), 15 * 7)])
def test_patches_can_be_clicked_by_their_place(grid: tuple[int, int], count: int) -> None:
    figure = allowed_keys(
        np.ones(grid, bool), picture(100, 80), crop=CROP, grid=grid, query=None, query_name="CLS"
    )
    points = figure.data[-1]
    assert len(points.x) == count
    for x, y, (down, across), words in zip(
        points.x, points.y, points.customdata, points.text, strict=True
    ):
        row, col = int((y - 20) / 40 * grid[0]), int((x - 10) / 80 * grid[1])
        assert words == f"row {row + 1}, column {col + 1}"
        assert int((down + 0.5) * grid[0] / 100) == row
        assert int((across + 0.5) * grid[1] / 100) == col


def test_costs_stand_on_logarithmic_scales() -> None:
    figure = attention_cost((16, 32), (1, 4), {"A": (2e6, 32e6), "the rest": (1e6, 4e6)})
    assert [trace.name for trace in figure.data] == ["A", "the rest"]
    assert figure.data[0].y == (2e6, 32e6)
    assert figure.layout.xaxis.type == figure.layout.yaxis.type == "log"
    assert figure.layout.xaxis.ticktext == ("1<br>16 px", "4<br>32 px")
    assert "A from 2 M to 32 M" in figure.layout.meta["alt"]
