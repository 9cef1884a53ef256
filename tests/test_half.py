"""Models in half precision: every number is that of the same weights in single precision.

But for rounding: bfloat16 has 8 significant bits and float16 has 11.
"""

import copy
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from examples import own_model, picture, randomise, watched
from numpy.testing import assert_allclose

from vitviz.activations import DropPatches, Edit, FillPatches, MuteHeads, SwapTokens, capture
from vitviz.attribution import gradient_rollout, relevance
from vitviz.intervention import head_effects, logit_lens, mean_head_outputs, occlusion, patch_lens
from vitviz.model import Model
from vitviz.zoo import toy_model

GLOBAL: dict[str, dict[str, Any]] = {
    "plain": {},
    "distilled": dict(distillation_token=True),
    "no class token": dict(class_token=False),
    "registers": dict(registers=4),
}
FAMILIES = ("Swin", "PVT", "MaxViT", "CoAtNet", "CaiT")
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11}
every_precision = pytest.mark.parametrize("dtype", ROUNDING)


@cache
def pair(kind: str, dtype: torch.dtype) -> tuple[Model, Model]:
    """The model in half precision, and the same weights in single precision."""
    half = own_model(**GLOBAL[kind]) if kind in GLOBAL else toy_model(kind)
    if kind not in GLOBAL:
        randomise(half.module)
    half.module.to(dtype)
    single = watched(copy.deepcopy(half.module).float(), half.preprocess.input_size)
    single.preprocess = half.preprocess
    return half, single


@every_precision
@pytest.mark.parametrize("kind", [*GLOBAL, *FAMILIES])
def test_a_capture_is_whole_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    acts, expected = (capture(model, picture()) for model in pair(kind, dtype))
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth
    for layer in range(acts.depth):
        attention = acts.attention(layer)
        assert attention.dtype == np.float32
        assert_allclose(attention, expected.attention(layer), atol=20 * ROUNDING[dtype])
    assert acts.output is not None
    assert expected.output is not None
    largest = float(np.abs(expected.output).max())
    assert_allclose(acts.output, expected.output, atol=10 * ROUNDING[dtype] * largest)


@every_precision
@pytest.mark.parametrize("kind", GLOBAL)
def test_maps_of_a_class_are_whole_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    half, single = pair(kind, dtype)
    # The rows of a rollout are normalised, also those with little in them.
    for method, digits in ((relevance, 25), (gradient_rollout, 50)):
        found, expected = (method(model, picture(), 1).ravel() for model in (half, single))
        assert np.corrcoef(found, expected)[0, 1] > 1 - ROUNDING[dtype]
        assert_allclose(found, expected, atol=digits * ROUNDING[dtype] * expected.max())


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [*((kind, torch.bfloat16) for kind in GLOBAL), ("plain", torch.float16)],
)
def test_experiments_are_whole_in_half_precision(kind: str, dtype: torch.dtype) -> None:
    half, single = pair(kind, dtype)
    atol = 2 * ROUNDING[dtype]
    acts, expected = capture(half, picture()), capture(single, picture())
    assert_allclose(logit_lens(half, acts), logit_lens(single, expected), atol=atol)
    assert_allclose(patch_lens(half, acts, 2), patch_lens(single, expected, 2), atol=10 * atol)
    hidden = [occlusion(model, picture(), target=1, block=4) for model in (half, single)]
    assert_allclose(hidden[0], hidden[1], atol=atol)
    largest = float(np.abs(expected.logits).max())  # type: ignore[arg-type]
    muted = [head_effects(model, picture()) for model in (half, single)]
    assert_allclose(muted[0], muted[1], atol=8 * ROUNDING[dtype] * largest)
    mask = np.zeros((4, 6), bool)
    mask[1, 2] = True
    edits: list[Edit] = [
        MuteHeads([(0, 1)], mean_head_outputs([acts])),
        DropPatches(mask),
        FillPatches(~mask, "blur"),
        SwapTokens([(0, 5)]),
    ]
    edited = [capture(model, picture(), edits=edits).tokens(3) for model in (half, single)]
    largest = float(np.abs(edited[1]).max())
    assert_allclose(edited[0], edited[1], atol=8 * ROUNDING[dtype] * largest)


@pytest.mark.parametrize("factor", [2.0**-20, 2.0**8])
def test_a_gradient_is_scaled_into_the_range_of_half_precision(factor: float) -> None:
    """That of a small target would be 0 in the blocks; that of a large one, scaled, infinite."""
    maps = [
        relevance(model, picture(), lambda output: factor * output[1]).ravel()
        for model in pair("plain", torch.float16)
    ]
    assert np.corrcoef(maps)[0, 1] > 0.999
    assert_allclose(maps[0], maps[1], rtol=0.05)
