"""Activation patching: what is exchanged whole gives the other picture's answer, nothing none."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import hook_count, own_model, picture, vit_of_transformers, watched

import vitviz
from vitviz import Model, ModelError, MuteHeads, capture
from vitviz.common.files import assets
from vitviz.intervention import (
    PatchEffects,
    head_outputs,
    patch_heads,
    patch_tokens,
    token_blocks,
)

FIRST, SECOND = picture(seed=1), picture(seed=2)
CLASSES = [(0, 1)]


def of_transformers() -> Model:
    sizes = dict(image_size=(32, 48), patch_size=8, hidden_size=24, num_attention_heads=3)
    module = vit_of_transformers(**sizes, num_labels=4, initializer_range=0.3)
    return watched(module, (32, 48))


def of_timm(name: str, **options: Any) -> Model:
    torch.manual_seed(0)
    module = timm.create_model(name, num_classes=4, depth=2, **options).eval()
    with torch.no_grad():  # a head whose answers are not all about 0
        for name_of, parameter in module.named_parameters():
            if name_of.startswith("head"):
                parameter.normal_()
    return vitviz.watch(module)


MODELS = {
    "own": own_model,
    "registers": lambda: of_timm("vit_medium_patch16_reg4_gap_256", img_size=(48, 64)),
    "distilled": lambda: of_timm("deit_tiny_distilled_patch16_224", img_size=(48, 64)),
    "RoPE": lambda: of_timm("eva02_tiny_patch14_224", img_size=(56, 42)),
    "transformers": of_transformers,
}


def logits(model: Model, image: Any, *edits: Any) -> np.ndarray:
    found = capture(model, image, edits=edits).logits
    assert found is not None
    return found


def effect(model: Model, patched: np.ndarray) -> float:
    start, end, here = (
        float(each[1] - each[0]) for each in (logits(model, FIRST), logits(model, SECOND), patched)
    )
    return (here - start) / (end - start)


@pytest.mark.parametrize("name", MODELS)
def test_all_tokens_give_the_other_answer_and_none_leave_it(name: str) -> None:
    model = MODELS[name]()
    tokens = capture(model, FIRST).tokens(0).shape[0]
    half = np.arange(tokens) < tokens // 2
    masks = np.stack([np.ones(tokens, bool), np.zeros(tokens, bool), half])
    found = patch_tokens(model, [(FIRST, SECOND)], masks, classes=CLASSES).effects
    assert found.shape == (1, len(model.layers), 3)
    np.testing.assert_allclose(found[..., 0], 1, atol=1e-4)
    np.testing.assert_allclose(found[..., 1], 0, atol=1e-4)
    assert np.abs(found[..., 2] * (1 - found[..., 2])).min() > 1e-3
    assert not hook_count(model.module)


def test_only_tokens_that_the_head_reads_count_in_the_last_layer_of_a_model_without_attention() -> (
    None
):
    """What a patch has before the last layer reaches CLS by the attention of that layer alone."""
    model = own_model()
    masks = token_blocks(model, 2)
    last: Any = model.module.get_submodule("blocks.2.attn.proj")
    with torch.no_grad():
        last.weight.zero_()
    found = patch_tokens(model, [(FIRST, SECOND)], masks, classes=CLASSES).effects
    assert found[0, -1, 0] == pytest.approx(1, abs=1e-4)  # CLS
    np.testing.assert_allclose(found[0, -1, 1:], 0, atol=1e-5)
    assert np.abs(found[0, 0, 1:]).max() > 1e-3


@pytest.mark.parametrize("name", MODELS)
def test_a_head_gives_what_it_gives_for_the_other_picture(name: str) -> None:
    model = MODELS[name]()
    values = head_outputs(capture(model, SECOND))
    found = patch_heads(model, [(FIRST, SECOND)], classes=CLASSES).effects
    assert found.shape == (1, len(model.layers), model.layers[0].num_heads)
    for layer, head in [(0, 0), (1, 2)]:
        alone = logits(model, FIRST, MuteHeads([(layer, head)], values))
        assert found[0, layer, head] == pytest.approx(effect(model, alone), abs=1e-4)
    together = patch_heads(model, [(FIRST, SECOND)], together=True, classes=CLASSES).effects
    every = [(1, head) for head in range(model.layers[1].num_heads)]
    alone = logits(model, FIRST, MuteHeads(every, values))
    assert together.shape == (1, len(model.layers), 1)
    assert together[0, 1, 0] == pytest.approx(effect(model, alone), abs=1e-4)


def test_the_other_direction_is_another_experiment() -> None:
    model = own_model()
    there = patch_heads(model, [(FIRST, SECOND)], classes=[(0, 1)])
    back = patch_heads(model, [(SECOND, FIRST)], classes=[(1, 0)])
    assert np.abs(there.effects - back.effects).max() > 1e-3
    assert back.classes == ((1, 0),)


def test_classes_are_those_that_the_model_answers() -> None:
    model = vitviz.load_model("vitviz_things200")
    images = {
        name: vitviz.open_image((assets() / "samples" / f"{name}.jpg").read_bytes())
        for name in ("goldfish", "koala")
    }
    assert model.labels is not None
    found = patch_heads(model, [(images["goldfish"], images["koala"])], together=True)
    assert found.classes == ((model.labels.index("goldfish"), model.labels.index("koala")),)
    with pytest.raises(ModelError, match="pair 2 have the same answer, koala"):
        patch_heads(
            model, [(images["goldfish"], images["koala"]), (images["koala"], images["koala"])]
        )


def test_an_interval_is_that_of_students_t() -> None:
    effects = np.array([0.1, 0.3, 0.8])[:, None, None]
    found = PatchEffects(effects, ((0, 1),) * 3)
    low, high = found.interval()
    reach = 4.302652729911275 * effects.std(ddof=1) / np.sqrt(3)  # of two degrees of freedom
    assert found.mean[0, 0] == pytest.approx(0.4)
    assert (low[0, 0], high[0, 0]) == pytest.approx((0.4 - reach, 0.4 + reach))
    assert np.isnan(PatchEffects(effects[:1], ((0, 1),)).interval()).all()


def test_progress_counts_over_all_pairs_and_may_stop() -> None:
    model, told = own_model(), []
    pairs = [(FIRST, SECOND), (SECOND, FIRST)]
    classes = [(0, 1), (1, 0)]
    patch_heads(model, pairs, classes=classes, progress=lambda done, of: told.append((done, of)))
    heads = sum(layer.num_heads for layer in model.layers)
    assert told == [(done, 2 * heads) for done in range(2 * heads)]

    def stop(done: int, of: int) -> None:
        assert of == 2 * len(model.layers)
        if done == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        patch_tokens(model, pairs, token_blocks(model, 4), classes=classes, progress=stop)
    assert not hook_count(model.module)


def test_blocks_hold_each_token_once() -> None:
    model = own_model()  # CLS and 4 x 6 patches
    masks = token_blocks(model, 4)
    assert masks.shape == (3, 25)
    np.testing.assert_array_equal(masks.sum(axis=0), 1)
    np.testing.assert_array_equal(np.flatnonzero(masks[0]), [0])
    np.testing.assert_array_equal(
        np.flatnonzero(masks[2]), 1 + np.array([4, 5, 10, 11, 16, 17, 22, 23])
    )
    with pytest.raises(ValueError, match="at least 1 patch, got 0"):
        token_blocks(model, 0)


def test_what_does_not_fit_is_refused() -> None:
    model = own_model()
    with pytest.raises(ValueError, match=r"shape \(parts, 25\), got bool of shape \(1, 24\)"):
        patch_tokens(model, [(FIRST, SECOND)], np.ones((1, 24), bool), classes=CLASSES)
    with pytest.raises(ValueError, match="at least one pair"):
        patch_heads(model, [])
    with pytest.raises(ModelError, match="no classification head"):
        patch_heads(own_model(num_classes=0), [(FIRST, SECOND)])
    torch.manual_seed(0)
    swin = vitviz.watch(
        timm.create_model("swin_tiny_patch4_window7_224", embed_dim=24, depths=(1, 1, 1, 1)).eval()
    )
    with pytest.raises(ModelError, match="cannot be exchanged: its layers differ"):
        patch_tokens(swin, [(FIRST, SECOND)], np.ones((1, 1), bool), classes=CLASSES)
