"""open_clip's image towers: attention, embedding and words are those of the model itself."""

from typing import Any

import numpy as np
import pytest
import torch
from examples import picture, randomise, watched
from numpy.testing import assert_allclose, assert_array_equal
from planting import assert_found, plant, scene

import vitviz
from vitviz import ModelError
from vitviz.intervention import head_effects
from vitviz.intervention.equivariance import shuffle_patches
from vitviz.model.families import position_encodings
from vitviz.web.anatomy import layer_boxes

open_clip: Any = pytest.importorskip("open_clip.model", reason="open_clip is not installed")

VISION: dict[str, Any] = dict(layers=2, width=32, head_width=16, patch_size=8, image_size=(32, 48))
TEXT: dict[str, Any] = dict(context_length=8, vocab_size=50, width=32, heads=4, layers=1)
#: What the towers of published models differ in, and the tokens that they read.
TOWERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "plain": ({}, ("cls",)),
    "LayerScale": (dict(ls_init_value=0.1), ("cls",)),
    "mean": (dict(pool_type="avg", final_ln_after_pool=True), ("patches",)),
    "pooled by attention": (
        dict(attentional_pool=True, attn_pooler_heads=2),
        ("cls", "patches"),
    ),
    "own blocks": (dict(block_type="custom", qk_norm=True), ("cls",)),
}


def module_of(name: str, kind: str = "CLIP", **options: Any) -> Any:
    vision = open_clip.CLIPVisionCfg(**{**VISION, **TOWERS[name][0], **options})
    module = getattr(open_clip, kind)(6, vision, open_clip.CLIPTextCfg(**TEXT)).eval()
    randomise(module)
    return module


@pytest.mark.parametrize("name", TOWERS)
def test_a_tower_is_read_as_it_computes(name: str) -> None:
    tower = module_of(name).visual
    model = watched(tower, (32, 48))
    inputs: list[torch.Tensor] = []
    handle = tower.transformer.resblocks[1].attn.register_forward_pre_hook(
        lambda attn, given: inputs.append(given[0])
    )
    acts = vitviz.capture(model, picture())
    handle.remove()
    with torch.inference_mode():
        own = tower(model.preprocess(picture())[None])[0]
        if name != "own blocks":
            attn = tower.transformer.resblocks[1].attn
            (z,) = inputs
            _, weights = attn(z, z, z, need_weights=True, average_attn_weights=False)
            assert_allclose(acts.attention(1), weights[0], atol=1e-5)
    assert_array_equal(acts.logits, own)
    assert (acts.grid, acts.layers[0].prefix, model.embeds) == ((4, 6), ("cls",), True)
    assert model.read_tokens == TOWERS[name][1]
    assert_allclose(acts.attention(0).sum(axis=2), 1, atol=1e-5)
    assert {"queries", "hidden", "mlp"} <= {box.name for box in layer_boxes(model, acts, 1)}
    assert not any(part._forward_hooks for part in tower.modules())
    muted = vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(1, 0)])])
    assert acts.logits is not None
    assert muted.logits is not None
    assert np.abs(muted.logits - acts.logits).max() > 1e-4


def test_every_head_is_found_to_look_at_the_planted_patch() -> None:
    tower = module_of("plain", image_size=(48, 40)).visual
    plant(tower, (48, 40))
    image, _ = scene(8, (6, 5), (4, 1))
    acts = vitviz.capture(watched(tower, (48, 40)), image)
    assert_found(acts, (4, 1), 8)


@pytest.mark.parametrize("kind", ["CLIP", "CustomTextCLIP"])
def test_words_are_the_classes_of_a_whole_model(kind: str) -> None:
    module = module_of("plain", kind)
    how = watched(module.visual, (32, 48)).preprocess
    vectors = np.random.default_rng(0).normal(size=(3, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    words = vitviz.Words(names=("a", "b", "c"), vectors=vectors, logit_scale=20.0)
    with vitviz.watch(module, preprocessing=how) as model, torch.inference_mode():
        acts = vitviz.capture(model.with_words(words), picture())
        own = module.encode_image(how(picture())[None], normalize=True)[0].numpy()
        head_effects(model.with_words(words), picture())
    assert acts.logits is not None
    assert_allclose(acts.logits, 20 * vectors @ own, atol=1e-4)


@pytest.mark.parametrize("is_whole", [False, True])
def test_its_position_embedding_is_known_and_can_be_left_out(is_whole: bool) -> None:
    module = module_of("plain")
    how = watched(module.visual, (32, 48)).preprocess
    with vitviz.watch(module if is_whole else module.visual, preprocessing=how) as model:
        assert position_encodings(model.part, model.layers) == ("embedding",)
        shuffled = shuffle_patches(model, picture())
    assert_allclose(shuffled.outputs[1, 0], shuffled.outputs[1, 1], rtol=1e-3, atol=1e-4)
    assert np.abs(shuffled.outputs[0, 0] - shuffled.outputs[0, 1]).max() > 1e-4


def test_another_size_than_its_own_is_refused() -> None:
    with pytest.raises(ModelError, match="32 x 48 pixels only, got 48 x 48"):
        watched(module_of("plain").visual, (48, 48))
