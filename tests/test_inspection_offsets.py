"""Attention by offset and by distance: closed forms, and references that follow the words."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from vitviz.common.query import Grid
from vitviz.inspection import (
    attention_distance,
    distance_histogram,
    offset_attention,
    prefix_mass,
    uniform_histogram,
)
from vitviz.inspection.inputs import Array

quick = settings(max_examples=40)
grids = st.tuples(st.integers(1, 4), st.integers(1, 5))
prefixes = st.sampled_from([0, 1, 5])
variants = st.sampled_from(["renormalised", "paper"])
seeds = st.integers(0, 2**32 - 1)
every_prefix = pytest.mark.parametrize("prefix", [0, 1, 5])
every_variant = pytest.mark.parametrize("variant", ["renormalised", "paper"])


def random_layer(grid: Grid, prefix: int, seed: int, heads: int = 2) -> Array:
    tokens = prefix + grid[0] * grid[1]
    weights = np.random.default_rng(seed).random((heads, tokens, tokens)) ** 4
    layer: Array = weights / weights.sum(axis=2, keepdims=True)
    layer.setflags(write=False)
    return layer


def shifted(grid: Grid, prefix: int, down: int, right: int) -> tuple[Array, float]:
    """Each patch looks at the one so far down and right, or else at itself; and how many can."""
    rows, cols = grid
    layer = np.eye(prefix + rows * cols)[None].copy()
    able = 0
    for row, col in np.ndindex(grid):
        if 0 <= row + down < rows and 0 <= col + right < cols:
            query = prefix + row * cols + col
            layer[0, query] = 0
            layer[0, query, prefix + (row + down) * cols + col + right] = 1
            able += 1
    return layer, able / (rows * cols)


# --- offsets ------------------------------------------------------------------------------------


@quick
@given(grid=grids, prefix=prefixes, variant=variants, seed=seeds)
def test_an_offset_is_the_mean_over_the_queries_that_have_it(
    grid: Grid, prefix: int, variant: Any, seed: int
) -> None:
    layer = random_layer(grid, prefix, seed)
    offsets = offset_attention(layer, grid=grid, num_prefix_tokens=prefix, variant=variant)
    patches = layer[:, prefix:, prefix:].copy()
    if variant == "renormalised":
        patches /= patches.sum(axis=2, keepdims=True)
    rows, cols = grid
    block = patches.reshape(-1, rows, cols, rows, cols)
    for down, right in np.ndindex(2 * rows - 1, 2 * cols - 1):
        y, x = down - rows + 1, right - cols + 1
        having = [
            block[:, row, col, row + y, col + x]
            for row, col in np.ndindex(grid)
            if 0 <= row + y < rows and 0 <= col + x < cols
        ]
        assert_allclose(offsets[:, down, right], np.mean(having, axis=0), rtol=1e-9)


def test_offsets_of_few_queries_are_left_out() -> None:
    layer = random_layer((3, 4), 1, seed=0, heads=1)
    (whole,) = offset_attention(layer, grid=(3, 4))
    (some,) = offset_attention(layer, grid=(3, 4), min_queries=4)
    having = np.outer([1, 2, 3, 2, 1], [1, 2, 3, 4, 3, 2, 1])
    assert np.isfinite(whole).all()
    assert_array_equal(np.isnan(some), having < 4)
    assert_array_equal(some[having >= 4], whole[having >= 4])


# --- distances ----------------------------------------------------------------------------------


@every_prefix
@every_variant
@pytest.mark.parametrize(
    ("grid", "patch_size", "down", "right", "pixels"),
    [
        ((3, 5), 4, 1, 1, 4 * math.sqrt(2)),
        ((5, 3), 16, -3, 2, 16 * math.sqrt(13)),
        ((5, 3), (6, 2), 2, 0, 12),
    ],
)
def test_attention_at_one_distance_is_in_its_bin_alone(
    grid: Grid,
    patch_size: Any,
    down: int,
    right: int,
    pixels: float,
    prefix: int,
    variant: Any,
) -> None:
    layer, able = shifted(grid, prefix, down, right)
    width = float(np.min(patch_size))
    (histogram,) = distance_histogram(
        layer,
        grid=grid,
        patch_size=patch_size,
        bin_width=width,
        num_prefix_tokens=prefix,
        variant=variant,
    )
    expected = np.zeros_like(histogram)
    expected[0] = 1 - able
    expected[round(pixels / width)] = able
    assert_allclose(histogram, expected, atol=1e-12)


def test_equal_sharing_counts_the_pairs() -> None:
    # On a grid of 1 x 3: 3 pairs at 0, 4 at one patch, 2 at two.
    assert_allclose(uniform_histogram((1, 3), 16, bin_width=16), [3 / 9, 4 / 9, 2 / 9])
    # On a grid of 2 x 2 the diagonal, at 1.41 patches, is closer to 1 than to 2.
    assert_allclose(uniform_histogram((2, 2), 16, bin_width=16), [4 / 16, 12 / 16])


@every_prefix
@pytest.mark.parametrize("grid", [(3, 5), (4, 2), (1, 1)])
def test_uniform_attention_has_the_histogram_of_equal_sharing(grid: Grid, prefix: int) -> None:
    tokens = prefix + grid[0] * grid[1]
    uniform = np.full((2, tokens, tokens), 1 / tokens)
    where: dict[str, Any] = dict(grid=grid, patch_size=4, bin_width=4, num_prefix_tokens=prefix)
    equal = uniform_histogram(grid, 4, bin_width=4)
    assert_allclose(distance_histogram(uniform, **where), np.stack([equal, equal]))
    paper = distance_histogram(uniform, **where, variant="paper")
    assert_allclose(paper[0], equal * (1 - prefix / tokens))


@quick
@given(grid=grids, prefix=prefixes, variant=variants, seed=seeds)
def test_a_histogram_sums_to_what_goes_to_patches_and_has_the_mean_distance(
    grid: Grid, prefix: int, variant: Any, seed: int
) -> None:
    layer = random_layer(grid, prefix, seed)
    where: dict[str, Any] = dict(
        grid=grid, patch_size=(30, 40), num_prefix_tokens=prefix, variant=variant
    )
    histogram = distance_histogram(layer, **where, bin_width=0.01)
    spent = 1 - (prefix_mass([layer], num_prefix_tokens=prefix)[0] if variant == "paper" else 0)
    assert_allclose(histogram.sum(axis=1), spent, atol=1e-12)  # 1 - mass is exact to 1e-16 at best
    mean = histogram @ (0.01 * np.arange(histogram.shape[1]))
    assert_allclose(mean, attention_distance([layer], **where)[0], atol=0.01)


# --- rows that look at no patch -----------------------------------------------------------------


def test_rows_wholly_on_the_prefix_are_left_out() -> None:
    layer = np.zeros((2, 4, 4))  # CLS and a grid of 1 x 3
    layer[0, :, 0] = 1  # this head looks at CLS only
    layer[1, [1, 2], 0] = 1  # of this one, the last patch looks two patches away
    layer[1, 3, 1] = 1
    where: dict[str, Any] = dict(grid=(1, 3))
    near: dict[str, Any] = dict(patch_size=10, bin_width=10)
    assert_array_equal(
        offset_attention(layer, **where),
        [[[np.nan] * 5], [[1, 0, 0, np.nan, np.nan]]],  # the last patch has no right-hand side
    )
    assert_array_equal(distance_histogram(layer, **where, **near), [[np.nan] * 3, [0, 0, 1]])
    paper: dict[str, Any] = dict(variant="paper")
    assert_array_equal(offset_attention(layer, **where, **paper), [[[0] * 5], [[1, 0, 0, 0, 0]]])
    third = np.array([[0, 0, 0], [0, 0, 1 / 3]])
    assert_allclose(distance_histogram(layer, **where, **near, **paper), third)


def test_attention_that_is_not_a_number_shows() -> None:
    layer = random_layer((2, 3), 1, seed=0).copy()
    layer[0, 3] = np.nan
    offsets = offset_attention(layer, grid=(2, 3))
    histogram = distance_histogram(layer, grid=(2, 3), patch_size=4, bin_width=4)
    assert np.isnan(offsets[0]).any()
    assert np.isnan(histogram[0]).any()
    assert np.isfinite(offsets[1]).all()
    assert np.isfinite(histogram[1]).all()


# --- what is refused ----------------------------------------------------------------------------

LAYER = np.full((2, 7, 7), 1 / 7)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: offset_attention(LAYER, grid=(2, 4)), r"1 \+ 2 x 4 = 9 tokens, got 7"),
    (
        lambda: offset_attention(LAYER, grid=(2, 3), variant="mean"),  # type: ignore[arg-type]
        "renormalised or paper, got 'mean'",
    ),
    (
        lambda: distance_histogram(LAYER, grid=(2, 3), patch_size=4, bin_width=0),
        "width above 0 pixels, got 0",
    ),
    (
        lambda: distance_histogram(LAYER, grid=(2, 3), patch_size=0, bin_width=4),
        "patch size .* got 0",
    ),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_each_refusal_says_what_was_expected(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected .*{sentence}[^.]*\.$"):
        call()
