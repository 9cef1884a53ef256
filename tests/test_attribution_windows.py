"""Maps of one class through windows, shifts and merged patches, beside matrices of all patches."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    assert_clear_error,
    narrow_stages,
    picture,
    randomise,
    seeded,
    watched,
)
from numpy.testing import assert_allclose
from torch import Tensor

from vitviz import ModelError
from vitviz.attribution import gradient_rollout, relevance
from vitviz.model import Model

Grid = tuple[int, int]
SIZE = (40, 56)  # pixels: grids of 10 x 14, 5 x 7 and 3 x 4, whose windows and pairs need padding
GRIDS: tuple[Grid, ...] = ((10, 14), (5, 7), (3, 4))
SWIN: dict[str, Any] = dict(
    embed_dim=16, depths=[2, 2, 2], num_heads=[1, 2, 2], window_size=2, image_size=40, num_labels=5
)


# --- an oracle: attention as transformers keeps it, its gradient, and matrices of all patches -----


def cells(grid: Grid, shift: int) -> np.ndarray:
    """Numbers of the patches in each window of 2 x 2, -1 for padding: (windows, 4)."""
    padded = np.full([extent + extent % 2 for extent in grid], -1)
    padded[: grid[0], : grid[1]] = np.arange(grid[0] * grid[1]).reshape(grid)
    rolled = np.roll(padded, (-shift, -shift), axis=(0, 1))
    return np.array(
        [
            rolled[row : row + 2, col : col + 2].ravel()
            for row in range(0, padded.shape[0], 2)
            for col in range(0, padded.shape[1], 2)
        ]
    )


def dense(windows: np.ndarray, grid: Grid, shift: int) -> np.ndarray:
    """The matrix of all patches (N, N) that matrices within windows (windows, 4, 4) make up."""
    count = grid[0] * grid[1]
    whole = np.zeros((count + 1, count + 1))
    for window, places in zip(windows, cells(grid, shift), strict=True):
        for query, row in zip(places, window, strict=True):
            for key, value in zip(places, row, strict=True):
                whole[query, key] += value
    return whole[:count, :count]


def merging(grid: Grid) -> np.ndarray:
    """The matrix (N / 4, N) that takes the mean of the patches that are merged into one."""
    rows, cols = (grid[0] + 1) // 2, (grid[1] + 1) // 2
    children = np.zeros((rows * cols, grid[0] * grid[1]))
    for row, col in np.ndindex(grid):
        children[row // 2 * cols + col // 2, row * grid[1] + col] = 1
    return children / children.sum(axis=1, keepdims=True)


def by_hand(module: Any, x: Tensor, label: int, *, rollout: bool) -> np.ndarray:
    kept: list[Tensor] = []
    blocks = [block for stage in module.swin.encoder.layers for block in stage.blocks]
    handles = [
        block.attention.register_forward_hook(lambda *args: kept.append(args[-1][1]))
        for block in blocks
    ]
    logits = module(x[None]).logits[0]
    for handle in handles:
        handle.remove()
    gradients = torch.autograd.grad(logits[label], kept)
    product = np.eye(GRIDS[0][0] * GRIDS[0][1])
    for number, (attention, gradient) in enumerate(zip(kept, gradients, strict=True)):
        stage, odd = divmod(number, 2)
        if number and not odd:
            product = merging(GRIDS[stage - 1]) @ product
        allowed = attention * (attention > 1e-20)  # a mask of -100 leaves 4e-44
        weighted = (allowed * gradient).clamp(min=0).mean(dim=1).detach().numpy()
        matrix = dense(weighted, GRIDS[stage], odd)
        if rollout:
            mass = matrix.sum(axis=1, keepdims=True)
            matrix = np.where(mass > 0, matrix / np.where(mass > 0, mass, 1), np.eye(len(matrix)))
            product = 0.5 * product + 0.5 * matrix @ product
        else:
            product = product + matrix @ product
    return product.mean(axis=0).reshape(GRIDS[0])


def swin(attention: str, **options: Any) -> Model:
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    with seeded():
        config = transformers.SwinConfig(**SWIN | options)
        module = transformers.SwinForImageClassification(config).eval()
    randomise(module)
    module.set_attn_implementation(attention)
    return watched(module, SIZE)


@pytest.mark.parametrize("label", [0, 3])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_maps_of_a_swin_are_those_of_matrices_of_all_patches(attention: str, label: int) -> None:
    model = swin(attention)
    x = model.preprocess(picture())
    oracle = swin("eager").module
    expected = by_hand(oracle, x, label, rollout=False)
    assert_allclose(relevance(model, picture(), label), expected, rtol=1e-3, atol=1e-7)
    assert np.ptp(expected) > 1e-4 * expected.max()
    shares = by_hand(oracle, x, label, rollout=True)
    assert_allclose(gradient_rollout(model, picture(), label), shares, rtol=1e-3, atol=1e-7)
    assert shares.sum() == pytest.approx(1)
    assert np.ptp(shares) > 0.1 * shares.mean()


@pytest.mark.parametrize("label", range(5))
def test_what_a_mask_leaves_decides_no_row(label: int) -> None:
    """Some rows of shifted windows have a positive gradient in masked pairs alone.

    A large logit lifts their product with the 4e-44 that the mask leaves from 0.
    """
    model = swin("sdpa", num_heads=[1, 1, 1])
    with torch.no_grad():
        head: Any = model.module
        head.classifier.weight *= 1e6
    oracle = swin("eager", num_heads=[1, 1, 1]).module
    expected = by_hand(oracle, model.preprocess(picture()), label, rollout=True)
    assert_allclose(gradient_rollout(model, picture(), label), expected, rtol=1e-3, atol=1e-7)


def test_a_small_logit_has_a_map_and_no_rounding_through_windows() -> None:
    model = swin("sdpa")
    oracle = swin("eager").module.double()
    x = model.preprocess(picture()).double()
    with torch.no_grad():
        for module in (model.module, oracle):
            head: Any = module
            head.classifier.weight *= 1e-6
            head.classifier.bias *= 1e-6
    own = by_hand(oracle, x, 3, rollout=False)
    start = np.eye(140)
    for fine, coarse in zip(GRIDS[:-1], range(2), strict=True):
        assert fine == GRIDS[coarse]
        start = merging(fine) @ start
    begin = start.mean(axis=0).reshape(GRIDS[0])  # of R = I
    found = relevance(model, picture(), 3) - begin
    assert_allclose(found, own - begin, rtol=1e-2, atol=1e-3 * (own - begin).max())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("swin_tiny_patch4_window7_224", dict(img_size=64, window_size=4)),
        ("swinv2_tiny_window8_256", dict(img_size=64, window_size=4)),
    ],
)
def test_a_swin_of_timm_has_maps_in_the_grid_of_its_first_layer(
    name: str, options: dict[str, Any]
) -> None:
    sizes: dict[str, Any] = dict(embed_dim=16, depths=(2, 2), num_heads=(2, 2), num_classes=5)
    with seeded():
        module = timm.create_model(name, **sizes, **options).eval()
    randomise(module)
    model = watched(module, (64, 64))
    shares = gradient_rollout(model, picture(), 1)
    assert shares.shape == (16, 16)
    assert shares.sum() == pytest.approx(1, abs=1e-5)
    assert relevance(model, picture(), 1).min() >= 1 / 256 - 1e-6  # its own share of R = I
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_head_that_reads_other_than_the_mean_is_refused() -> None:
    sizes: dict[str, Any] = dict(embed_dim=16, depths=(2, 2), num_heads=(2, 2), num_classes=5)
    with seeded():
        module: Any = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=64, window_size=4, **sizes
        ).eval()
    randomise(module)
    module.reset_classifier(5, global_pool="max")
    with pytest.raises(ModelError, match="does not read the mean") as caught:
        relevance(watched(module, (64, 64)), picture(), 1)
    assert_clear_error(caught.value)


@pytest.mark.parametrize("name", ["pvt_v2_b0", "maxvit_nano_rw_256"])
def test_pooled_keys_and_convolutions_are_refused(name: str) -> None:
    with seeded():
        options: Any = dict(depths=(1, 1, 1, 1))
        options |= narrow_stages() if name.startswith("maxvit") else {}
        module = timm.create_model(name, **options).eval()
    with pytest.raises(ModelError, match=r"can(not)? be multiplied") as caught:
        relevance(watched(module, (256, 256)), picture(), 1)
    assert_clear_error(caught.value)
