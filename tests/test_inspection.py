"""Closed forms, and plain float64 references that follow the definitions word by word."""

import math
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import DTypeLike, NDArray

from vitviz.common.query import Grid
from vitviz.inspection import (
    attention_distance,
    attention_entropy,
    attention_patterns,
    attention_rollout,
    filter_components,
    filter_response,
    measurements,
    mirror_similarity,
    neighbour_similarity,
    offset_attention,
    position_profile,
    position_similarity,
    position_table,
    prefix_mass,
    query_attention,
    resized_positions,
    rollout_steps,
    token_components,
    uniform_distance,
)
from vitviz.inspection.attention import entropy_of_scores
from vitviz.inspection.inputs import Array
from vitviz.vit import VisionTransformer, resize_position_embedding

PREFIXES = [0, 1, 2, 5]
FUSIONS: dict[str, Callable[..., Array]] = {"mean": np.mean, "max": np.max, "min": np.min}

quick = settings(max_examples=40)
grids = st.tuples(st.integers(1, 5), st.integers(1, 6))
prefixes = st.sampled_from(PREFIXES)
seeds = st.integers(0, 2**32 - 1)
shares = st.sampled_from([0.0, 0.1, 0.5, 0.9, 1.0])


@dataclass(frozen=True)
class Stack:
    """Attention of some layers, read-only, so that no measurement can write into its input."""

    attention: Array
    grid: Grid
    prefix: int

    @property
    def tokens(self) -> int:
        return self.attention.shape[-1]


def stack(attention: Array, grid: Grid, prefix: int) -> Stack:
    attention.setflags(write=False)
    return Stack(attention, grid, prefix)


def softmax(scores: Array) -> Array:
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def random_stack(
    grid: Grid,
    prefix: int,
    *,
    layers: int = 2,
    heads: int = 3,
    sharpness: float = 1.0,
    seed: int = 0,
    dtype: DTypeLike = np.float32,
) -> Stack:
    tokens = prefix + grid[0] * grid[1]
    scores = np.random.default_rng(seed).normal(size=(layers, heads, tokens, tokens))
    return stack(softmax(sharpness * scores).astype(dtype), grid, prefix)


@st.composite
def stacks(draw: st.DrawFn) -> Stack:
    """Attention as a softmax leaves it, from nearly uniform to nearly one-hot."""
    return random_stack(
        draw(grids),
        draw(prefixes),
        layers=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 3)),
        sharpness=draw(st.sampled_from([0.1, 1.0, 10.0])),
        seed=draw(seeds),
        dtype=draw(st.sampled_from([np.float32, np.float64])),
    )


@st.composite
def tied_stacks(draw: st.DrawFn) -> Stack:
    """Attention of small whole numbers: full of ties and zeros, and some rows are empty."""
    grid, prefix = draw(grids), draw(prefixes)
    tokens = prefix + grid[0] * grid[1]
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 3)), tokens, tokens)
    counts = np.random.default_rng(draw(seeds)).integers(0, draw(st.integers(1, 4)), shape)
    return stack(counts.astype(np.float64), grid, prefix)


def one_hot(targets: NDArray[np.integer], tokens: int) -> Array:
    """Attention (1, 1, T, T) whose row i looks at targets[i] alone."""
    return np.asarray(np.eye(tokens)[targets][None, None])


def pixels_apart(a: int, b: int, grid: Grid, patch_size: tuple[int, int]) -> float:
    (row_a, col_a), (row_b, col_b) = divmod(a, grid[1]), divmod(b, grid[1])
    return math.hypot((row_a - row_b) * patch_size[0], (col_a - col_b) * patch_size[1])


# --- filters and positions ----------------------------------------------------------------------


def random_kernel(count: int = 192, seed: int = 0) -> Array:
    """Filters whose variance falls from one direction to the next."""
    rng = np.random.default_rng(seed)
    mixed = rng.normal(size=(count, 48)) * 0.9 ** np.arange(48)
    return np.asarray(mixed @ np.linalg.qr(rng.normal(size=(48, 48)))[0] + 1).reshape(-1, 3, 4, 4)


def test_filter_components_are_the_covariances_eigenvectors() -> None:
    kernel = random_kernel()
    components, explained = filter_components(kernel)
    values, vectors = np.linalg.eigh(np.cov(kernel.reshape(len(kernel), -1).T))
    flat = components.reshape(28, -1)
    assert components.shape == (28, 3, 4, 4)
    assert_allclose(explained, (values[::-1] / values.sum())[:28])
    assert_allclose(np.abs(flat @ vectors[:, ::-1])[:, :28], np.eye(28), atol=1e-8)


@quick
@given(seed=seeds)
def test_filter_components_have_a_positive_largest_entry(seed: int) -> None:
    kernel = random_kernel(seed=seed)
    components, _ = filter_components(kernel)
    flat = components.reshape(28, -1)
    assert (flat[np.arange(28), np.abs(flat).argmax(axis=1)] > 0).all()
    assert_allclose(filter_components(-kernel)[0], components, atol=1e-8)
    assert_allclose(filter_components(kernel[::-1])[0], components, atol=1e-8)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_equal_filters_have_no_components(dtype: DTypeLike) -> None:
    components, explained = filter_components(np.full((50, 3, 4, 4), 0.1, dtype))
    assert_array_equal(components, np.zeros((28, 3, 4, 4)))
    assert_array_equal(explained, np.zeros(28))


@quick
@given(grid=grids, prefix=prefixes, seed=seeds)
def test_position_similarity_is_the_cosine_of_each_pair(grid: Grid, prefix: int, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(prefix + grid[0] * grid[1], 7))
    similarity = position_similarity(table, grid=grid)
    patches = table[prefix:].reshape(*grid, 7)
    assert similarity.shape == (*grid, *grid)
    for i, j, k, m in product(*map(range, similarity.shape)):
        a, b = patches[i, j], patches[k, m]
        assert similarity[i, j, k, m] == pytest.approx(
            a @ b / np.linalg.norm(a) / np.linalg.norm(b)
        )
        assert similarity[i, j, k, m] == similarity[k, m, i, j]
        assert -1 <= similarity[i, j, k, m] <= 1


def test_a_response_is_that_of_the_models_own_convolution() -> None:
    rng = np.random.default_rng(0)
    image = rng.normal(size=(3, 14, 21)).astype(np.float32)  # 2 rows and 1 column fill no patch
    kernels = rng.normal(size=(6, 3, 4, 5)).astype(np.float32)
    own = torch.nn.functional.conv2d(
        torch.from_numpy(image)[None], torch.from_numpy(kernels), stride=(4, 5)
    )
    for kernel, wanted in zip(kernels, own[0].numpy(), strict=True):
        response = filter_response(image, kernel)
        assert response.dtype == np.float32
        assert_allclose(response, wanted, atol=1e-4)


@quick
@given(grid=grids, data=st.data())
def test_a_profile_holds_the_cosines_along_three_lines(grid: Grid, data: st.DataObject) -> None:
    rows, cols = grid
    row, col = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, cols - 1))
    numbers = np.random.default_rng(0).normal(size=(*grid, *grid))
    profile = position_profile(numbers, position=(row, col))
    steps = {"row": (0, 1), "column": (1, 0), "diagonal": (1, 1)}
    assert list(profile) == list(steps)
    for line, (down, right) in steps.items():
        offsets, cosines = profile[line]
        on_grid = [
            k
            for k in range(-rows - cols, rows + cols)
            if 0 <= row + k * down < rows and 0 <= col + k * right < cols
        ]
        assert offsets.tolist() == on_grid
        expected = [numbers[row, col, row + k * down, col + k * right] for k in on_grid]
        assert_array_equal(cosines, expected)


@quick
@given(grid=grids, seed=seeds)
def test_neighbours_are_all_pairs_one_step_apart(grid: Grid, seed: int) -> None:
    table = np.random.default_rng(seed).normal(size=(grid[0] * grid[1], 5))
    similarity = position_similarity(table, grid=grid)
    pairs = [
        similarity[i, j, k, m]
        for i, j, k, m in product(*map(range, similarity.shape))
        if abs(i - k) + abs(j - m) == 1
    ]
    expected = np.mean(pairs) if pairs else math.nan  # of a position alone
    assert neighbour_similarity(similarity) == pytest.approx(expected, nan_ok=True)


def test_mirror_images_are_compared_where_they_are_far_apart() -> None:
    """Against pairs that are listed one by one, on a table that is symmetric left to right."""
    half = np.random.default_rng(0).normal(size=(6, 4, 32))
    table = np.concatenate([half, half[:, ::-1]], axis=1).reshape(48, 32)
    similarity = position_similarity(table, grid=(6, 8))
    assert mirror_similarity(similarity)[0] == pytest.approx(1)
    pairs = [similarity[row, col, 5 - row, col] for row in range(1) for col in range(8)]
    assert mirror_similarity(similarity)[1] == pytest.approx(np.mean(pairs))
    assert all(math.isnan(value) for value in mirror_similarity(np.ones((3, 3, 3, 3))))


@pytest.mark.parametrize("kind", ["sincos1d", "sincos2d"])
@pytest.mark.parametrize("grid", [(4, 6), (1, 3)])
def test_fixed_tables_are_those_of_the_model(kind: Any, grid: Grid) -> None:
    module = VisionTransformer(
        image_size=(grid[0] * 2, grid[1] * 2),
        patch_size=2,
        embed_dim=16,
        depth=1,
        num_heads=2,
        mlp_dim=4,
        positions=kind,
    )
    assert module.pos_embed is not None
    table = position_table(kind, grid=grid, embed_dim=16)
    assert table.dtype == np.float32
    assert_allclose(table, module.pos_embed[0, 1:].numpy(), atol=2e-6)


def test_random_positions_are_the_same_each_time_and_tell_nothing() -> None:
    table = position_table("random", grid=(12, 10), embed_dim=400)
    assert table.shape == (120, 400)
    assert_array_equal(table, position_table("random", grid=(12, 10), embed_dim=400))
    assert (table != position_table("random", grid=(12, 10), embed_dim=400, seed=1)).all()
    assert table.std() == pytest.approx(1, abs=0.02)
    assert abs(neighbour_similarity(position_similarity(table, grid=(12, 10)))) < 0.02


RESIZED = [((4, 6), (7, 3)), ((14, 14), (7, 9)), ((1, 1), (3, 2)), ((3, 5), (3, 5))]


@pytest.mark.parametrize(("grid", "new_grid"), RESIZED)
def test_resizing_is_that_of_training(grid: Grid, new_grid: Grid) -> None:
    table = np.random.default_rng(0).normal(size=(2 + grid[0] * grid[1], 5)).astype(np.float32)
    resized = resized_positions(table, grid=grid, new_grid=new_grid)
    own = resize_position_embedding(
        torch.from_numpy(table)[None], grid=new_grid, old_grid=grid, num_prefix_tokens=2
    )
    assert resized.dtype == np.float32
    assert_array_equal(resized[:2], table[:2])
    assert_allclose(resized, own[0].numpy(), atol=1e-5)


@pytest.mark.parametrize(("grid", "new_grid"), RESIZED)
@pytest.mark.parametrize(
    ("interpolation", "mode"), [("bilinear", "bilinear"), ("nearest", "nearest-exact")]
)
def test_other_interpolations_are_those_of_torch(
    grid: Grid, new_grid: Grid, interpolation: Any, mode: str
) -> None:
    table = np.random.default_rng(1).normal(size=(grid[0] * grid[1], 3)).astype(np.float32)
    channels = torch.from_numpy(table).T.reshape(1, 3, *grid)
    own = torch.nn.functional.interpolate(
        channels, size=new_grid, mode=mode, antialias=mode == "bilinear"
    )
    resized = resized_positions(table, grid=grid, new_grid=new_grid, interpolation=interpolation)
    assert_allclose(resized, own[0].reshape(3, -1).T.numpy(), atol=1e-5)


# --- distance, entropy, prefix mass -------------------------------------------------------------


@pytest.mark.parametrize(
    ("side", "patch_size", "pixels"),
    [(14, 16, 116.49), (16, 14, 116.57), (7, 32, 115.50), (8, 4, 16.55), (16, 4, 33.30)],
)
def test_equal_sharing(side: int, patch_size: int, pixels: float) -> None:
    grid = (side, side)
    uniform = np.full((1, 1, side * side + 1, side * side + 1), 1 / (side * side + 1), np.float32)
    assert uniform_distance(grid, patch_size) == pytest.approx(pixels, abs=0.01)
    assert_allclose(attention_distance(uniform, grid=grid, patch_size=patch_size), pixels, 0, 0.01)


def test_patches_may_be_higher_than_wide() -> None:
    assert uniform_distance((1, 2), (8, 16)) == 8  # the mean of 0, 16, 16, 0
    assert uniform_distance((2, 1), (8, 16)) == 4


@quick
@given(grid=grids, prefix=prefixes, seed=seeds)
def test_one_hot_attention_has_the_exact_distance(grid: Grid, prefix: int, seed: int) -> None:
    count = grid[0] * grid[1]
    targets = np.random.default_rng(seed).integers(0, count, prefix + count) + prefix
    distance = attention_distance(
        one_hot(targets, prefix + count), grid=grid, patch_size=(3, 4), num_prefix_tokens=prefix
    )
    exact = [
        pixels_apart(patch, target - prefix, grid, (3, 4))
        for patch, target in enumerate(targets[prefix:])
    ]
    assert_allclose(distance, [[np.mean(exact)]], rtol=1e-12)


@quick
@given(stacks(), st.sampled_from(["renormalised", "paper"]))
def test_distance_is_the_weighted_mean_of_each_row(stack: Stack, variant: Any) -> None:
    distance = attention_distance(
        stack.attention,
        grid=stack.grid,
        patch_size=(14, 16),
        num_prefix_tokens=stack.prefix,
        variant=variant,
    )
    count = stack.tokens - stack.prefix
    pixels = [
        [pixels_apart(a, b, stack.grid, (14, 16)) for b in range(count)] for a in range(count)
    ]
    weights = stack.attention[..., stack.prefix :, stack.prefix :].astype(np.float64)
    if variant == "renormalised":
        weights /= weights.sum(axis=-1, keepdims=True)
    assert_allclose(distance, (weights * pixels).sum(axis=-1).mean(axis=-1), rtol=1e-5)


def test_rows_wholly_on_the_prefix_are_left_out() -> None:
    attention = np.zeros((1, 2, 4, 4))  # CLS and a grid of 1 x 3
    attention[0, 0, :, 0] = 1  # this head looks at CLS only
    attention[0, 1, [1, 2], 0] = 1  # of this one, the last patch looks two patches away
    attention[0, 1, 3, 1] = 1
    renormalised = attention_distance(attention, grid=(1, 3), patch_size=10)
    assert_array_equal(renormalised, [[np.nan, 20]])
    paper = attention_distance(attention, grid=(1, 3), patch_size=10, variant="paper")
    assert_allclose(paper, [[0, 20 / 3]])


@pytest.mark.parametrize("variant", ["renormalised", "paper"])
def test_attention_that_is_not_a_number_shows(variant: Any) -> None:
    attention = np.full((1, 1, 4, 4), 0.25)
    attention[0, 0, 2, 2] = np.nan
    distance = attention_distance(attention, grid=(1, 3), patch_size=10, variant=variant)
    assert np.isnan(distance).all()
    assert np.isnan(attention_entropy(attention)).all()


@quick
@given(stacks())
def test_entropy_and_prefix_mass_of_each_head(stack: Stack) -> None:
    weights = stack.attention.astype(np.float64)
    logarithm = np.log2(weights, out=np.zeros_like(weights), where=weights > 0)
    entropy = -(weights * logarithm).sum(axis=-1).mean(axis=-1)
    assert_allclose(attention_entropy(stack.attention), entropy, rtol=1e-5, atol=1e-7)
    mass = weights[..., stack.prefix :, : stack.prefix].sum(axis=-1).mean(axis=-1)
    measured = prefix_mass(stack.attention, num_prefix_tokens=stack.prefix)
    assert_allclose(measured, mass, rtol=1e-5)


@pytest.mark.parametrize("tokens", [2, 64, 197, 300])
def test_entropy_lies_between_one_hot_and_uniform(tokens: int) -> None:
    uniform = np.full((1, 2, tokens, tokens), 1 / tokens, np.float32)
    assert_allclose(attention_entropy(uniform), math.log2(tokens), rtol=1e-6)
    certain = attention_entropy(one_hot(np.arange(tokens)[::-1], tokens))
    assert_array_equal(certain, [[0]])
    assert not np.signbit(certain).any()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rare", [1e-4, 1e-9, 1e-30])
def test_rare_looks_count_in_the_entropy(rare: float, dtype: DTypeLike) -> None:
    attention = np.array([[[[1 - rare, rare], [rare, 1 - rare]]]], dtype)
    bits = -sum(float(share) * math.log2(share) for share in attention[0, 0, 0])
    assert_allclose(attention_entropy(attention), [[bits]], rtol=1e-5)


# --- query attention ----------------------------------------------------------------------------


@pytest.mark.parametrize("direction", ["row", "column"])
@pytest.mark.parametrize("prefix", PREFIXES)
def test_query_attention_reads_rows_and_columns(prefix: int, direction: Any) -> None:
    rows, cols = 2, 3
    tokens = prefix + rows * cols
    layer = np.arange(2.0 * tokens * tokens).reshape(2, tokens, tokens)  # every entry differs
    for query in range(tokens):
        seen = query_attention(
            layer, grid=(rows, cols), num_prefix_tokens=prefix, query=query, direction=direction
        )
        assert seen.shape == (2, rows, cols)
        for head, row, col in product(range(2), range(rows), range(cols)):
            patch = prefix + row * cols + col
            pair = (query, patch) if direction == "row" else (patch, query)
            assert seen[head, row, col] == layer[head, *pair]
        if query >= prefix:  # a patch may be named by its place
            place = divmod(query - prefix, cols)
            by_place = query_attention(
                layer, grid=(rows, cols), num_prefix_tokens=prefix, query=place, direction=direction
            )
            assert_array_equal(by_place, seen)


def test_no_query_means_cls_or_the_mean_of_the_patches() -> None:
    layer = random_stack((2, 3), 1).attention[0]
    assert_array_equal(
        query_attention(layer, grid=(2, 3)), query_attention(layer, grid=(2, 3), query=0)
    )
    layer = random_stack((2, 3), 0).attention[0]
    mean = query_attention(layer, grid=(2, 3), num_prefix_tokens=0)
    assert_allclose(mean, layer.mean(axis=1).reshape(-1, 2, 3), rtol=1e-6)
    column = query_attention(layer, grid=(2, 3), num_prefix_tokens=0, direction="column")
    assert_allclose(column, 1 / 6, rtol=1e-6)


# --- rollout ------------------------------------------------------------------------------------


def plain_rollout(
    stack: Stack, fusion: str, discard: float, residual: float, start_layer: int = 0
) -> Array:
    """The full product of matrices, in float64, with a stable sort for the discard."""
    result = np.eye(stack.tokens)
    for layer in stack.attention[start_layer:].astype(np.float64):
        fused = FUSIONS[fusion](layer, axis=0)
        entries = fused[:, stack.prefix :].flatten()
        count = math.floor(discard * entries.size)
        entries[np.argsort(entries, kind="stable")[:count]] = 0
        fused[:, stack.prefix :] = entries.reshape(stack.tokens, -1)
        for token, row in enumerate(fused):
            fused[token] = row / row.sum() if row.any() else np.eye(stack.tokens)[token]
        result = ((1 - residual) * fused + residual * np.eye(stack.tokens)) @ result
    return np.asarray(result)


@quick
@given(tied_stacks(), st.sampled_from(list(FUSIONS)), shares, shares, st.data())
def test_rollout_is_a_row_of_the_full_product(
    stack: Stack, fusion: Any, discard: float, residual: float, data: st.DataObject
) -> None:
    start_layer = data.draw(st.integers(0, len(stack.attention) - 1))
    query = data.draw(st.none() | st.integers(0, stack.tokens - 1))
    rollout = attention_rollout(
        stack.attention,
        num_prefix_tokens=stack.prefix,
        query=query,
        fusion=fusion,
        discard=discard,
        residual=residual,
        start_layer=start_layer,
    )
    full = plain_rollout(stack, fusion, discard, residual, start_layer)
    mean_of_patches = query is None and not stack.prefix
    expected = full.mean(axis=0) if mean_of_patches else full[query or 0]
    assert_allclose(rollout, expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("percent", [7, 29, 57, 58])
def test_a_share_of_100_entries_is_as_many_as_it_says(percent: int) -> None:
    """0.29 x 100 is 28.999999999999996 in floating point."""
    attention = np.full((1, 1, 10, 10), 0.1)
    share = percent / 100
    steps = next(rollout_steps([attention[0]], num_prefix_tokens=0, residual=0, discard=share))
    full, rest = divmod(percent, 10)
    assert_array_equal(steps[:full], np.eye(10)[:full])  # empty rows
    left = np.full(10, 1 / (10 - rest))
    left[:rest] = 0
    assert_allclose(steps[full], left)


@pytest.mark.parametrize("left", [0.0, 1e-45, 4e-44, 1e-30])
def test_what_a_mask_leaves_decides_nothing(left: float) -> None:
    """Patch 0 gives all its attention to CLS, but for what a mask of -100 leaves."""
    attention = np.full((2, 1, 5, 5), 0.2, np.float32)
    attention[:, :, 1] = [1, 0, left, 0, 0]
    where: dict[str, Any] = dict(grid=(2, 2))
    clean = attention.copy()
    clean[:, :, 1] = [1, 0, 0, 0, 0]
    for variant in ("renormalised", "paper"):
        options: dict[str, Any] = dict(patch_size=16, variant=variant, **where)
        assert_allclose(
            attention_distance(attention, **options), attention_distance(clean, **options)
        )
    assert_allclose(
        offset_attention(attention[0], **where), offset_attention(clean[0], **where), equal_nan=True
    )
    found, expected = (
        attention_patterns(one[0], grid=(2, 2), num_prefix_tokens=1) for one in (attention, clean)
    )
    for name, shares in expected.shares.items():
        assert_allclose(found.shares[name], shares)
    alone = np.stack([np.diag([1, 1, 1, 1, 1]), np.roll(np.eye(5), 1, axis=1)])[None]
    kept = np.maximum(alone, left).astype(np.float32)  # heads with no key in common
    mixed = attention_rollout(kept, fusion="min", residual=0.5)
    assert_array_equal(mixed, [1, 0, 0, 0, 0])


# --- all in one pass ----------------------------------------------------------------------------


def test_the_mean_over_heads_is_of_those_that_a_layer_has() -> None:
    layers = [np.random.default_rng(0).dirichlet(np.ones(7), (heads, 7)) for heads in (4, 2)]
    found = measurements(layers, grid=(2, 3), patch_size=4).mean_query_attention
    expected = [layer.mean(axis=0)[0, 1:].reshape(2, 3) for layer in layers]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@quick
@given(stacks())
def test_measurements_equal_the_separate_functions(stack: Stack) -> None:
    prefix: dict[str, Any] = dict(num_prefix_tokens=stack.prefix)
    where: dict[str, Any] = dict(grid=stack.grid, **prefix)
    record = measurements(iter(stack.attention), patch_size=14, **where)
    distance = attention_distance(stack.attention, patch_size=14, **where)
    assert_array_equal(record.distance, distance)
    assert_array_equal(record.entropy, attention_entropy(stack.attention))
    assert_array_equal(record.prefix_mass, prefix_mass(stack.attention, **prefix))
    maps = [query_attention(layer, **where) for layer in stack.attention]
    assert_array_equal(record.query_attention, np.stack(maps))
    assert_array_equal(record.rollout, attention_rollout(stack.attention, **prefix))


OVER_LAYERS: list[Callable[[Any], Any]] = [
    lambda attention: attention_distance(attention, grid=(2, 3), patch_size=16),
    lambda attention: attention_entropy(attention),
    lambda attention: prefix_mass(attention),
    lambda attention: attention_rollout(attention, start_layer=1),
    lambda attention: measurements(attention, grid=(2, 3), patch_size=16).distance,
]


@pytest.mark.parametrize("measure", OVER_LAYERS)
def test_any_iterable_of_any_numbers_will_do(measure: Callable[[Any], Any]) -> None:
    attention = random_stack((2, 3), 1).attention
    expected = measure(attention)
    assert_array_equal(measure(layer for layer in attention), expected)
    assert_allclose(measure(attention.tolist()), expected, rtol=1e-5)
    assert_allclose(measure(attention.astype(np.float16)), expected, rtol=1e-2)
    assert_allclose(measure(np.asfortranarray(attention)), expected, rtol=1e-5)


@pytest.mark.parametrize("measure", OVER_LAYERS)
def test_layers_are_let_go_once_read(measure: Callable[[Any], Any]) -> None:
    read: list[weakref.ref[Array]] = []

    def layers() -> Iterator[Array]:
        for seed in range(6):
            layer = random_stack((2, 3), 1, seed=seed).attention[0].copy()
            read.append(weakref.ref(layer))
            yield layer
            del layer
            assert sum(reference() is not None for reference in read) <= 1

    measure(layers())
    assert len(read) == 6


# --- tokens -------------------------------------------------------------------------------------


@quick
@given(grid=grids, prefix=prefixes, seed=seeds)
@example(grid=(3, 5), prefix=2, seed=0)
def test_token_components_are_fitted_on_the_patches(grid: Grid, prefix: int, seed: int) -> None:
    count = grid[0] * grid[1]
    assume(count > 3)
    rng = np.random.default_rng(seed)
    tokens = rng.normal(size=(prefix + count, 6)) * [9, 6, 4, 1, 1, 1]
    tokens[:prefix] *= 1000  # would be the first component, were it fitted
    components, explained = token_components(
        tokens.astype(np.float32), grid=grid, num_prefix_tokens=prefix
    )
    patches = tokens[prefix:] - tokens[prefix:].mean(axis=0)
    variances = np.linalg.svd(patches, compute_uv=False) ** 2
    flat = components.reshape(count, 3)
    assert components.shape == (*grid, 3)
    assert_allclose(explained, (variances / variances.sum())[:3], rtol=1e-4)
    assert_allclose(flat.T @ flat, np.diag(variances[:3]), rtol=1e-4, atol=variances[0] * 1e-5)
    assert explained.sum() <= 1 + 1e-9


def test_a_planted_direction_is_drawn_in_its_place() -> None:
    tokens = np.zeros((1 + 6, 4), np.float32)
    tokens[1:, 2] = [0, 0, 0, 0, 0, 6]  # the patch in row 1 and column 2 of a grid of 2 x 3
    components, explained = token_components(tokens, grid=(2, 3))
    assert_allclose(components[..., 0], [[-1, -1, -1], [-1, -1, 5]], atol=1e-6)
    assert_array_equal(components[..., 1:], 0)
    assert_allclose(explained, [1, 0, 0])


# --- what is refused ----------------------------------------------------------------------------

LAYER = np.full((2, 7, 7), 1 / 7)
TILES = np.ones((2, 3, 2, 3))
GRID: dict[str, Any] = dict(grid=(2, 3))
PLACE: dict[str, Any] = dict(grid=(2, 3), patch_size=16)

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: attention_entropy([]), "at least one layer, got none"),
    (lambda: measurements(iter([]), **PLACE), "at least one layer, got none"),
    (lambda: attention_entropy(LAYER), r"\(heads, tokens, tokens\), got \(7, 7\)"),
    (lambda: attention_entropy([LAYER[:, :6]]), r"tokens\), got \(2, 6, 7\)"),
    (lambda: attention_entropy([LAYER[:0]]), r"tokens\), got \(0, 7, 7\)"),
    (lambda: attention_entropy([LAYER, LAYER[:, :6, :6]]), "got 7 and then 6"),
    (lambda: attention_distance([LAYER], grid=(2, 4), patch_size=16), r"1 \+ 2 x 4 = 9 .* got 7"),
    (lambda: measurements([LAYER], **PLACE, num_prefix_tokens=2), r"2 \+ 2 x 3 = 8 .* got 7"),
    (lambda: query_attention(LAYER, grid=(7, 1)), r"1 \+ 7 x 1 = 8 tokens, got 7"),
    (lambda: query_attention(LAYER[0], **GRID), r"got \(7, 7\)"),
    (lambda: query_attention(LAYER, grid=(6, 0)), r"grid of \(rows, cols\).* got \(6, 0\)"),
    (lambda: uniform_distance((2, 3), 0), "patch size .* got 0"),
    (lambda: uniform_distance((2, 3), (1, 2, 3)), r"patch size .* got \(1, 2, 3\)"),  # type: ignore[arg-type]
    (lambda: prefix_mass([LAYER], num_prefix_tokens=7), "0 to 6 prefix tokens of 7, got 7"),
    (
        lambda: attention_distance([LAYER], **PLACE, variant="mean"),  # type: ignore[arg-type]
        "renormalised or paper, got 'mean'",
    ),
    (
        lambda: query_attention(LAYER, **GRID, direction="col"),  # type: ignore[arg-type]
        "row or column, got 'col'",
    ),
    (
        lambda: attention_rollout([LAYER], fusion="sum"),  # type: ignore[arg-type]
        "mean or max or min, got 'sum'",
    ),
    (lambda: attention_rollout([LAYER], discard=math.nan), "discard from 0 to 1, got nan"),
    (lambda: attention_rollout([LAYER], residual=-0.1), "residual from 0 to 1, got -0.1"),
    (lambda: attention_rollout([LAYER], start_layer=1), "start layer from 0 to 0, got 1"),
    (lambda: position_similarity(np.ones((5, 4)), **GRID), r"6 or more, D.* got \(5, 4\)"),
    (lambda: filter_components(np.ones((9, 48))), r"\(D, C, P, P\), got \(9, 48\)"),
    (lambda: filter_response(np.ones((1, 8, 8)), np.ones((3, 4, 4))), r"and \(3, 4, 4\)"),
    (lambda: filter_response(np.ones((3, 8, 3)), np.ones((3, 4, 4))), r"got \(3, 8, 3\) and"),
    (lambda: position_profile(np.ones((2, 3, 3, 2)), position=(0, 0)), r"got \(2, 3, 3, 2\)"),
    (lambda: position_profile(TILES, position=(0, -1)), r"on the 2 x 3 grid, got \(0, -1\)"),
    (lambda: neighbour_similarity(np.ones((6, 6))), r"cols\), got \(6, 6\)"),
    (lambda: position_table("sincos1d", **GRID, embed_dim=7), "by 2 for sincos1d, got 7"),
    (lambda: position_table("sincos2d", **GRID, embed_dim=6), "by 4 for sincos2d, got 6"),
    (
        lambda: position_table("none", **GRID, embed_dim=8),  # type: ignore[arg-type]
        "or random, got 'none'",
    ),
    (lambda: resized_positions(np.ones((6, 4)), **GRID, new_grid=(3, 0)), r"got \(3, 0\)"),
    (
        lambda: resized_positions(
            np.ones((6, 4)),
            **GRID,
            new_grid=(3, 3),
            interpolation="cubic",  # type: ignore[arg-type]
        ),
        "or nearest, got 'cubic'",
    ),
    (lambda: token_components(np.ones((1, 7, 4)), **GRID), r"\(tokens, D\), got \(1, 7, 4\)"),
    (lambda: token_components(np.ones((7, 2)), **GRID), "1 to 2 components, got 3"),
    (lambda: token_components(np.ones((7, 4)), **GRID, n_components=0), "1 to 4 .* got 0"),
]


@pytest.mark.parametrize(("call", "sentence"), REFUSED)
def test_each_refusal_says_what_was_expected(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=rf"^Expected .*{sentence}[^.]*\.$"):
        call()


def test_the_import_is_light() -> None:
    code = (
        "import sys, vitviz.inspection; "
        "print([name for name in ('torch', 'sklearn', 'timm', 'streamlit') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


@pytest.mark.parametrize(("scale", "peak"), [(1, 0), (20, 0), (5, 200)])
def test_entropy_of_scores_is_that_of_their_softmax(scale: float, peak: float) -> None:
    """Also where a row attends to a late token alone, and all the first entries are 0."""
    scores = scale * np.random.default_rng(0).normal(size=(2, 9, 300)).astype(np.float32)
    scores[0, :, 280] += peak
    exact = np.exp(scores - scores.max(axis=2, keepdims=True), dtype=np.float64)
    exact /= exact.sum(axis=2, keepdims=True)
    bits = -(exact * np.log2(np.where(exact > 0, exact, 1))).sum(axis=2)
    assert_allclose(entropy_of_scores(scores, exact.astype(np.float32)), bits, atol=5e-5)
