"""Matched patches, joint components and maps of two grids, in closed forms."""

import math
from typing import Any

import numpy as np
import pytest
from examples import example, picture
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from vitviz import capture
from vitviz.inspection import (
    cross_similarity,
    joint_components,
    map_correlation,
    mutual_matches,
    nearest_depth,
    nearest_patches,
    patch_ranks,
    resampled,
    token_components,
    token_similarity,
)
from vitviz.inspection.comparison import correlation

GRID = (5, 7)


def patches(count: int = math.prod(GRID), width: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, width))


def planted_shift(down: int, right: int) -> tuple[np.ndarray, np.ndarray, list[tuple[int, int]]]:
    """Patches of a picture, those of the same one shifted, and which patch went where."""
    first = patches().reshape(*GRID, -1)
    second = patches(seed=1).reshape(*GRID, -1)  # what comes into view
    rows, cols = GRID
    moved = []
    for row in range(max(0, -down), min(rows, rows - down)):
        for col in range(max(0, -right), min(cols, cols - right)):
            second[row + down, col + right] = 3 * first[row, col]  # a cosine knows no length
            moved.append((row * cols + col, (row + down) * cols + col + right))
    return first.reshape(-1, 16), second.reshape(-1, 16), moved


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_rounding_decides_neither_a_match_nor_a_correlation(kind: Any) -> None:
    eps = np.finfo(kind).eps
    table = np.full((3, 4), 0.5, kind)
    table[0, 2] += eps  # all equal but for rounding
    table[1, 3] = 0.6
    table[2, 1] = 0.5 - 100 * eps  # this one is smaller
    assert nearest_patches(table, k=4).tolist() == [[0, 1, 2, 3], [3, 0, 1, 2], [0, 2, 3, 1]]
    assert mutual_matches(table).tolist() == [[0, 0], [1, 3]]
    rng = np.random.default_rng(0)
    varied = rng.random((4, 5)).astype(kind)
    nearly = (0.7 * (1 + eps * rng.integers(-1, 2, (4, 5)))).astype(kind)
    assert np.ptp(nearly) > 0
    box = (0.0, 0.0, 10.0, 8.0)
    for one, other in ((varied, nearly), (nearly, varied), (nearly, nearly), (0 * nearly, varied)):
        assert math.isnan(correlation(one, other))
        assert math.isnan(map_correlation(one, other, crop=box, other_crop=box)[0])
    faint = (0.7 + 1e-3 * varied).astype(kind)
    assert correlation(faint, varied) == pytest.approx(1, abs=1e-3)
    assert correlation(1e-30 * varied, -varied) == pytest.approx(-1)


@pytest.mark.parametrize("shift", [(0, 0), (2, 0), (0, -3), (-1, 2)])
def test_a_planted_shift_is_recovered_exactly(shift: tuple[int, int]) -> None:
    first, second, moved = planted_shift(*shift)
    similarity = cross_similarity(first, second)
    nearest = nearest_patches(similarity, k=3)
    assert all(nearest[before, 0] == after for before, after in moved)
    pairs = {tuple(pair) for pair in mutual_matches(similarity).tolist()}
    assert set(moved) <= pairs
    assert_allclose([similarity[pair] for pair in moved], 1, atol=1e-6)


def test_a_shift_of_the_pixels_is_recovered_where_tokens_know_no_position() -> None:
    """Of patches that are embedded alone: each is found where it went."""
    model = example("no positions")
    rows, cols = model.layers[0].query_grid
    image = picture(24, 16)  # the input of the model: 4 x 6 patches of 4 pixels
    shifted = image.transform(
        image.size, Image.Transform.AFFINE, (1, 0, -8, 0, 1, -4)
    )  # 2 columns right, 1 row down
    first, second = (capture(model, one) for one in (image, shifted))
    similarity = cross_similarity(first, second, depth=0)
    assert similarity.shape == (rows * cols, rows * cols)
    pairs = {tuple(pair) for pair in mutual_matches(similarity).tolist()}
    for row in range(rows - 1):
        for col in range(cols - 2):
            assert (row * cols + col, (row + 1) * cols + col + 2) in pairs


def test_cosines_within_one_picture_are_those_of_its_tokens() -> None:
    acts = capture(example("registers"), picture())
    prefix = acts.num_prefix_tokens
    for depth in (1, None):
        assert_allclose(
            cross_similarity(acts, acts, depth=depth),
            token_similarity(acts, depth=depth)[prefix:, prefix:],
            atol=1e-6,
        )


def test_the_nearest_stand_in_order_and_equal_ones_by_number() -> None:
    similarity = np.array([[0.1, 0.9, 0.9, -1.0], [0.0, 0.0, 0.0, 0.0]])
    assert_array_equal(nearest_patches(similarity, k=3), [[1, 2, 0], [0, 1, 2]])
    for wrong in (0, 5):
        with pytest.raises(ValueError, match="Expected a k from 1 to 4"):
            nearest_patches(similarity, k=wrong)


def test_a_mutual_pair_is_the_best_of_its_row_and_of_its_column() -> None:
    similarity = np.array([[0.5, 0.9, 0.1], [0.2, 0.95, 0.3], [0.6, 0.0, 0.4]])
    assert_array_equal(mutual_matches(similarity), [[1, 1], [2, 0]])
    assert_array_equal(mutual_matches(similarity.T), [[0, 2], [1, 1]])


def test_tokens_of_different_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="one width, got 16 and 4 numbers"):
        cross_similarity(patches(), patches(width=4))


# --- joint components ---------------------------------------------------------------------------


def test_joint_components_are_those_of_all_patches_together() -> None:
    first, second = patches(12), patches(20, seed=1)
    one, other, explained = joint_components(first, second, n_components=4)
    whole, share = token_components(
        np.concatenate([first, second]), grid=(4, 8), num_prefix_tokens=0, n_components=4
    )
    assert_allclose(np.concatenate([one, other]), whole.reshape(32, 4))
    assert_allclose(explained, share)


# --- maps of two grids --------------------------------------------------------------------------

CROP = (10.0, 20.0, 90.0, 60.0)


def test_a_coarser_cell_has_the_mean_of_what_it_covers() -> None:
    values = np.arange(32.0).reshape(4, 8)
    coarse = resampled(values, crop=CROP, to_grid=(2, 4), to_crop=CROP)
    assert_allclose(coarse, values.reshape(2, 2, 4, 2).mean(axis=(1, 3)))
    thirds = resampled(
        np.array([[0.0, 3.0]]), crop=(0, 0, 2, 1), to_grid=(1, 3), to_crop=(0, 0, 2, 1)
    )
    assert_allclose(thirds, [[0, 1.5, 3]])


def test_a_part_of_the_picture_has_the_values_that_lie_there() -> None:
    values = np.arange(32.0).reshape(4, 8)
    part = resampled(values, crop=CROP, to_grid=(1, 2), to_crop=(15, 30, 35, 40))
    assert_allclose(part, [[8.5 + 0.0, 9.5 + 0.0]])
    with pytest.raises(ValueError, match="Expected a grid within"):
        resampled(values, crop=CROP, to_grid=(1, 2), to_crop=(5, 30, 35, 40))


def test_the_correlation_of_one_grid_is_that_of_the_values() -> None:
    one, other = patches(4, 8), patches(4, 8, seed=1)
    found, grid = map_correlation(one, other, crop=CROP, other_crop=CROP)
    assert found == pytest.approx(np.corrcoef(one.ravel(), other.ravel())[0, 1])
    assert grid == (4, 8)
    assert map_correlation(one, 7 * one + 3, crop=CROP, other_crop=CROP)[0] == pytest.approx(1)
    assert map_correlation(one, -one, crop=CROP, other_crop=CROP)[0] == pytest.approx(-1)


def test_one_field_in_two_grids_correlates_by_one() -> None:
    coarse = patches(2, 4)
    fine = np.repeat(np.repeat(coarse, 2, axis=0), 2, axis=1)
    found, grid = map_correlation(fine, coarse, crop=CROP, other_crop=CROP)
    assert found == pytest.approx(1)
    assert grid == (2, 4)
    turned, _ = map_correlation(fine[::-1], coarse, crop=CROP, other_crop=CROP)
    assert abs(turned) < 0.9


def test_only_what_both_grids_cover_is_compared() -> None:
    whole = patches(4, 8)
    part = whole[1:3, 2:6]
    found, grid = map_correlation(whole, part, crop=CROP, other_crop=(30, 30, 70, 50))
    assert grid == (2, 4)
    # the whole map's 4 x 8 patches are compared where the part lies
    assert found == pytest.approx(1)
    with pytest.raises(ValueError, match="Expected grids that overlap"):
        map_correlation(whole, part, crop=CROP, other_crop=(90, 20, 99, 60))


def test_layers_correspond_by_relative_depth() -> None:
    assert [nearest_depth(layer, 6, 6) for layer in range(6)] == list(range(6))
    assert [nearest_depth(layer, 6, 12) for layer in range(6)] == [1, 3, 5, 7, 9, 11]
    assert [nearest_depth(layer, 12, 6) for layer in range(12)] == [at // 2 for at in range(12)]
    assert nearest_depth(0, 24, 3) == 0
    assert nearest_depth(23, 24, 1) == 0
    with pytest.raises(ValueError, match="Expected a layer from 0 to 5"):
        nearest_depth(6, 6, 6)


def test_ranks_are_the_share_of_the_others_that_are_smaller() -> None:
    values = np.array([[3.0, -1.0, 0.0], [0.0, 0.0, 9.0]])
    # One is smaller than the three zeros, of which two others count half.
    np.testing.assert_allclose(patch_ranks(values), [[0.8, 0, 0.4], [0.4, 0.4, 1]])
    np.testing.assert_allclose(patch_ranks(7 * values - 2), patch_ranks(values))
    np.testing.assert_allclose(patch_ranks(np.full((2, 3), 4.0)), np.full((2, 3), 0.5))
    np.testing.assert_allclose(patch_ranks([[4.0]]), [[0.5]])
    with pytest.raises(ValueError, match="got NaN or infinity"):
        patch_ranks([1.0, np.nan])
