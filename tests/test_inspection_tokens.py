"""Tokens: cosines, projections, foreground and lengths, in closed forms."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from vitviz.common.query import Grid
from vitviz.inspection import (
    foreground,
    norm_outliers,
    token_components,
    token_norms,
    token_scatter,
    token_similarity,
)

quick = settings(max_examples=40)
grids = st.tuples(st.integers(1, 5), st.integers(1, 6))
prefixes = st.sampled_from([0, 1, 5])
seeds = st.integers(0, 2**32 - 1)


def random_tokens(count: int, width: int = 6, seed: int = 0) -> np.ndarray:
    tokens = np.random.default_rng(seed).normal(size=(count, width)) * np.arange(width, 0, -1)
    tokens.setflags(write=False)
    return tokens


# --- similarity ---------------------------------------------------------------------------------


def test_similarity_is_one_of_direction() -> None:
    tokens = np.array([[3.0, 0, 0], [0, 0.5, 0], [-7, 0, 0], [1, 1, 0], [0, 0, 0]])
    half = math.sqrt(0.5)
    expected = [
        [1, 0, -1, half, 0],
        [0, 1, 0, half, 0],
        [-1, 0, 1, -half, 0],
        [half, half, -half, 1, 0],
        [0, 0, 0, 0, 0],  # without a direction
    ]
    assert_allclose(token_similarity(tokens), np.array(expected), atol=1e-12)
    alike = np.full((5, 3), 0.1, np.float32)
    assert token_similarity(alike).max() <= 1  # rounding must not leave the range
    assert token_similarity(alike).dtype == np.float32


# --- scatter ------------------------------------------------------------------------------------


@quick
@given(grid=grids, prefix=prefixes, seed=seeds)
def test_patches_lie_where_their_components_say(grid: Grid, prefix: int, seed: int) -> None:
    count = grid[0] * grid[1]
    assume(count > 3)
    tokens = random_tokens(prefix + count, seed=seed)
    where: dict[str, Any] = dict(grid=grid, num_prefix_tokens=prefix, n_components=3)
    points, explained = token_scatter(tokens, **where)
    components, shares = token_components(tokens, **where)
    assert points.shape == (prefix + count, 3)
    assert_allclose(points[prefix:], components.reshape(count, 3), atol=1e-9)
    assert_allclose(explained, shares)


def test_prefix_tokens_are_projected_and_not_fitted() -> None:
    patches = np.zeros((6, 4))
    patches[:, 1] = [-2, -1, 0, 0, 1, 2]
    patches[:, 3] = [0.1, -0.1, 0, 0, -0.1, 0.1]
    for outlier in ([1000.0, 5, 7, 3], [0.0, -5, 0, -3]):
        tokens = np.vstack([outlier, patches])
        points, explained = token_scatter(tokens, grid=(2, 3))
        assert_allclose(points[0], [outlier[1], outlier[3]], atol=1e-9)
        assert_allclose(points[1:], patches[:, [1, 3]], atol=1e-9)
        assert_allclose(explained, np.array([10, 0.04]) / 10.04)


def test_only_the_patches_kept_are_fitted() -> None:
    tokens = random_tokens(1 + 12, seed=3)
    kept = np.zeros((3, 4), bool)
    kept[1:, 1:] = True
    points, explained = token_scatter(tokens, grid=(3, 4), n_components=3, kept=kept)
    chosen = tokens[1:][kept.ravel()]
    alone, shares = token_scatter(chosen, grid=(2, 3), num_prefix_tokens=0, n_components=3)
    assert points.shape == (13, 3)
    assert_allclose(points[1:][kept.ravel()], alone, atol=1e-9)
    assert_allclose(explained, shares)
    everything, _ = token_scatter(tokens, grid=(3, 4), n_components=3)
    assert np.abs(points - everything).max() > 0.1


# --- foreground ---------------------------------------------------------------------------------

RAMP = np.array([[-4.0, -3, -2], [-1, 0, 6]])  # from -4 to 6: places 0, .1, .2, .3, .4 and 1


@pytest.mark.parametrize(
    ("threshold", "flip", "kept"),
    [
        (0.0, False, [[1, 1, 1], [1, 1, 1]]),
        (0.15, False, [[0, 0, 1], [1, 1, 1]]),
        (0.35, False, [[0, 0, 0], [0, 1, 1]]),
        (1.0, False, [[0, 0, 0], [0, 0, 1]]),
        (0.0, True, [[1, 1, 1], [1, 1, 1]]),
        (0.65, True, [[1, 1, 1], [1, 0, 0]]),
        (1.0, True, [[1, 0, 0], [0, 0, 0]]),
    ],
)
def test_the_threshold_cuts_between_the_smallest_and_the_largest(
    threshold: float, flip: bool, kept: list[list[int]]
) -> None:
    found = foreground(RAMP, threshold=threshold, flip=flip)
    assert found.dtype == bool
    assert_array_equal(found, np.array(kept, bool))


@pytest.mark.parametrize("flip", [False, True])
@pytest.mark.parametrize("threshold", [0.0, 0.5, 1.0])
def test_patches_that_do_not_differ_are_all_kept(threshold: float, flip: bool) -> None:
    assert foreground(np.full((2, 3), 0.7), threshold=threshold, flip=flip).all()


# --- norms --------------------------------------------------------------------------------------


def lengths(*norms: float, prefix: float | None = None) -> np.ndarray:
    """Tokens of given lengths, in all directions."""
    wanted = [*([] if prefix is None else [prefix]), *norms]
    directions = random_tokens(len(wanted), seed=5)
    unit: np.ndarray = directions / np.linalg.norm(directions, axis=1, keepdims=True)
    return unit * np.array(wanted)[:, None]


def test_a_long_token_is_above_the_median() -> None:
    # Median 3, absolute deviations 2 1 0 0 1 97: their median is 1.
    tokens = lengths(1, 2, 3, 3, 4, 100, prefix=900)
    norms, long, limit = token_norms(tokens, grid=(2, 3))
    assert_allclose(norms, [[1, 2, 3], [3, 4, 100]])
    assert limit == pytest.approx(3 + 5 * 1)
    assert_array_equal(long, [[0, 0, 0], [0, 0, 1]])


def test_the_limit_itself_is_not_long_and_what_is_short_neither() -> None:
    tokens = lengths(3, 3, 2, 4, 7.99, 0.001)  # deviations 0 0 1 1 4.99 2.999: median 1
    _, long, limit = token_norms(tokens, grid=(1, 6), num_prefix_tokens=0)
    median, spread = 3, 1
    assert limit == pytest.approx(median + 5 * spread)
    assert not long.any()
    _, long, limit = token_norms(tokens, grid=(1, 6), num_prefix_tokens=0, deviations=4)
    assert limit == pytest.approx(7)
    assert_array_equal(long, [[0, 0, 0, 0, 1, 0]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_of_equal_lengths_none_is_long(dtype: Any) -> None:
    tokens = lengths(*[2.5] * 300).astype(dtype)
    _, long, limit = token_norms(tokens, grid=(20, 15), num_prefix_tokens=0)
    assert not long.any()  # they differ by rounding
    assert limit == pytest.approx(2.5, rel=1e-5)


def test_an_outlier_is_five_times_as_long_as_the_median() -> None:
    norms = np.array([[2.0, 2, 2], [9.99, 10, 1]])
    assert_array_equal(norm_outliers(norms), [[0, 0, 0], [0, 1, 0]])
    assert_array_equal(norm_outliers(norms, times=4.9), [[0, 0, 0], [1, 1, 0]])
    assert not norm_outliers(np.full((3, 4), 2.5)).any()
    assert not norm_outliers(np.zeros((3, 4))).any()


# --- what is refused ----------------------------------------------------------------------------

TOKENS = random_tokens(7)
REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: token_similarity(TOKENS[0]), r"\(tokens, D\), got \(6,\)"),
    (lambda: token_scatter(TOKENS, grid=(2, 4)), r"1 \+ 2 x 4 = 9 tokens, got 7"),
    (
        lambda: token_scatter(TOKENS, grid=(2, 3), kept=np.ones((3, 2), bool)),
        r"kept patches of shape \(2, 3\), got \(3, 2\)",
    ),
    (
        lambda: token_scatter(TOKENS, grid=(2, 3), kept=np.zeros((2, 3), bool)),
        "at least one kept patch, got none",
    ),
    (
        lambda: token_scatter(TOKENS, grid=(2, 3), kept=np.eye(2, 3, dtype=bool), n_components=3),
        "1 to 2 components, got 3",
    ),
    (lambda: foreground(RAMP, threshold=1.1), "threshold from 0 to 1, got 1.1"),
    (lambda: token_norms(TOKENS, grid=(3, 3)), r"1 \+ 3 x 3 = 10 tokens, got 7"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_each_refusal_says_what_was_expected(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected .*{sentence}[^.]*\.$"):
        call()
