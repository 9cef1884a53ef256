"""Layers with different numbers of heads: NaN stands for the heads that a layer has not."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from examples import picture, randomise, timm_module, watched
from numpy.testing import assert_allclose, assert_array_equal
from timm.layers import Attention

import vitviz
from vitviz import inspection
from vitviz.activations import Activations
from vitviz.intervention import head_effects
from vitviz.model import Model

HEADS = (4, 3, 8)


@cache
def uneven() -> Model:
    module = timm_module("vit_tiny_patch16_224", img_size=64, depth=3, num_classes=5)
    for block, heads in zip(module.blocks, HEADS, strict=True):
        block.attn = Attention(192, num_heads=heads, qkv_bias=True)
    randomise(module)
    return watched(module.eval(), (64, 64))


@cache
def seen() -> Activations:
    return vitviz.capture(uneven(), picture())


def test_rollout_is_that_of_the_mean_over_each_layers_heads() -> None:
    product = np.eye(17)
    for layer, heads in enumerate(HEADS):
        attention = seen().attention(layer)
        assert attention.shape == (heads, 17, 17)
        product = (0.5 * attention.mean(axis=0) + 0.5 * np.eye(17)) @ product
    assert_allclose(inspection.attention_rollout(seen()), product[0], atol=1e-6)
    assert_allclose(seen().measure().rollout, product[0], atol=1e-6)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("distance", inspection.attention_distance),
        ("entropy", inspection.attention_entropy),
        ("prefix_mass", inspection.prefix_mass),
        ("query_attention", None),
    ],
)
def test_measurements_are_those_of_each_layer_alone(name: str, function: Any) -> None:
    found = getattr(seen().measure(), name)
    assert found.shape[:2] == (3, 8)
    if function is not None:
        assert_allclose(function(seen()), found, rtol=1e-5, atol=1e-6)
    for acts in vitviz.captures(uneven(), [picture(), picture()]):
        assert_allclose(getattr(acts.measure(), name), found, rtol=1e-5, atol=1e-4)
    for layer, heads in enumerate(HEADS):
        alone = inspection.measurements(
            [seen().attention(layer)], grid=(4, 4), patch_size=16, num_prefix_tokens=1
        )
        assert_allclose(found[layer, :heads], getattr(alone, name)[0], rtol=1e-5, atol=1e-6)
        assert np.isnan(found[layer, heads:]).all()


def test_the_effect_of_each_head_is_that_of_muting_it() -> None:
    effects = head_effects(uneven(), picture())
    assert effects.shape == (3, 8, 5)
    for layer, heads in enumerate(HEADS):
        assert np.isnan(effects[layer, heads:]).all()
        muted = vitviz.capture(uneven(), picture(), edits=[vitviz.MuteHeads([(layer, heads - 1)])])
        assert_array_equal(effects[layer, heads - 1], muted.logits)
