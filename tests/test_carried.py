"""What attention carries: the vectors of all keys sum to what the layer adds."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    own_module,
    picture,
    randomise,
    skip_random_weights,
    vit_of_transformers,
    watched,
)
from planting import plant_sink

import vitviz
from vitviz import DropPatches, ModelError, capture, inspection

SMALL: dict[str, Any] = dict(img_size=(48, 64), num_classes=7)


def of_timm(name: str, **options: Any) -> Any:
    with skip_random_weights():
        module = timm.create_model(name, **{**SMALL, "depth": 2, **options}).eval()
    randomise(module)
    return module


def of_torchvision() -> Any:
    torchvision = pytest.importorskip("torchvision")
    module = torchvision.models.VisionTransformer(
        image_size=48, patch_size=16, num_layers=2, num_heads=4, hidden_dim=48, mlp_dim=96
    )
    return module.eval(), (48, 48)


MODELS: dict[str, Any] = {
    "class token": lambda: (of_timm("vit_tiny_patch16_224"), None),
    "distilled": lambda: (of_timm("deit_tiny_distilled_patch16_224"), None),
    "LayerScale": lambda: (of_timm("deit3_small_patch16_224", init_values=0.3), None),
    "registers, mean of patches": lambda: (of_timm("vit_medium_patch16_reg4_gap_256"), None),
    "RoPE": lambda: (of_timm("eva02_tiny_patch14_224", img_size=(56, 42)), None),
    "transformers": lambda: (vit_of_transformers(image_size=(48, 64), num_labels=7), (48, 64)),
    "torchvision": of_torchvision,
    "our own": lambda: (own_module(), (16, 24)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_keys_carry_sums_to_what_the_layer_adds(name: str) -> None:
    torch.manual_seed(0)
    module, size = MODELS[name]()
    model = watched(module, size) if size else vitviz.watch(module)
    acts = capture(model, picture())
    for layer in range(acts.depth):
        carried = acts.carried(model, layer)
        added = acts.tokens_after_attention(layer) - acts.tokens(layer)
        size = np.abs(acts.tokens_after_attention(layer)).max()  # whose last digits are lost
        np.testing.assert_allclose(carried.output + carried.bias, added, atol=1e-5 * size)
        pairs = np.einsum("hnm,hmD->hnmD", carried.attention, carried.vectors)
        np.testing.assert_allclose(carried.by_head, np.linalg.norm(pairs, axis=3), rtol=1e-9)
        together = pairs.sum(axis=0)
        np.testing.assert_allclose(carried.lengths, np.linalg.norm(together, axis=2), rtol=1e-6)
        along = np.einsum("nmw,nw->nm", together, carried.output)
        lengths = np.square(carried.output).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(carried.shares, along / lengths, atol=1e-9)
        np.testing.assert_allclose(carried.shares.sum(axis=1), 1, rtol=1e-9)
        own = np.einsum("nnw->nw", together)
        stays = np.linalg.norm(acts.tokens(layer) + own, axis=1)
        comes = np.linalg.norm(together.sum(axis=1) - own, axis=1)
        np.testing.assert_allclose(
            carried.own_shares(acts.tokens(layer)), stays / (stays + comes), rtol=1e-6
        )


@pytest.mark.parametrize("direction", ["row", "column"])
def test_a_map_counts_weights_values_or_what_is_added(direction: Any) -> None:
    model = vitviz.watch(of_timm("vit_tiny_patch16_224"))
    acts = capture(model, picture())
    attention, values, carried = acts.attention(1), acts.values(1), acts.carried(model, 1)
    matrices = {
        "weights": attention,
        "values": attention * np.linalg.norm(values, axis=2)[:, None],
        "output": carried.by_head,
    }
    for of, matrix in matrices.items():
        shown = acts.attention_map(1, (2, 3), direction=direction, of=of, model=model)  # type: ignore[arg-type]
        token = 1 + 2 * 4 + 3
        expected = matrix[:, token] if direction == "row" else matrix[:, :, token]
        np.testing.assert_allclose(shown.reshape(len(shown), -1), expected[:, 1:], rtol=1e-5)


def test_patches_that_were_dropped_carry_nothing() -> None:
    model = vitviz.watch(of_timm("vit_tiny_patch16_224"))
    dropped = np.zeros((3, 4), bool)
    dropped[1, 2] = True
    acts = capture(model, picture(), edits=[DropPatches(dropped)])
    shown = acts.attention_map(0, of="output", model=model)
    assert (shown[:, 1, 2] == 0).all()
    assert (shown[:, ~dropped] > 0).all()


def test_what_cannot_be_known_is_refused() -> None:
    model = vitviz.watch(of_timm("vit_tiny_patch16_224"))
    acts = capture(model, picture())
    with pytest.raises(ValueError, match='of="weights", "values" or "output", got \'norms\''):
        acts.attention_map(0, of="norms")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="Expected the model of the capture"):
        acts.attention_map(0, of="output")
    with pytest.raises(ModelError, match="Give the model of the capture"):
        acts.carried(vitviz.watch(of_timm("vit_tiny_patch16_224", depth=1)), 0)
    other = vitviz.watch(of_timm("vit_tiny_patch16_224", img_size=(64, 64)))
    with pytest.raises(ModelError, match="does more to its heads"):
        acts.carried(other, 0)
    model.module.bfloat16()
    with pytest.raises(ModelError, match="computes in half precision"):
        capture(model, picture()).carried(model, 0)


def test_windows_are_refused() -> None:
    with skip_random_weights():
        module = timm.create_model("swin_tiny_patch4_window7_224", depths=(1, 1, 1, 1)).eval()
    randomise(module)
    model = vitviz.watch(module)
    acts = capture(model, picture())
    with pytest.raises(ModelError, match="not every token attends"):
        acts.carried(model, 0)
    counted = acts.attention_map(0, (3, 5), of="values")
    assert (counted[acts.attention_map(0, (3, 5)) == 0] == 0).all()
    assert counted.sum() > 0


def test_keys_that_get_attention_for_nothing_and_keys_that_add_to_all_are_told_apart() -> None:
    attention = np.full((2, 20, 20), 0.3 / 18)
    attention[:, :, 3], attention[:, :, 7] = 0.4, 0.3  # both are attended to by all
    lengths = np.ones(20)
    lengths[3], lengths[7] = 0.001, 2.0
    added = (attention * lengths).sum(axis=0)
    assert inspection.attention_sinks(attention, added) == inspection.Sinks((3,), (7,))
    added[:4, 7] = 0  # not to nearly all any more
    assert inspection.attention_sinks(attention, added) == inspection.Sinks((3,), ())
    even = np.full((2, 20, 20), 1 / 20)
    assert inspection.attention_sinks(even, even[0]) == inspection.Sinks((), ())
    with pytest.raises(ValueError, match=r"Expected lengths of shape \(20, 20\)"):
        inspection.attention_sinks(attention, added[:5])


@pytest.mark.parametrize("carries", [False, True])
def test_sinks_of_a_layer_are_told_on_a_picture(carries: bool) -> None:
    module = own_module()
    plant_sink(module, carries=carries)
    model = watched(module, module.patch_embed.image_size)
    acts = capture(model, picture())
    assert acts.attention(0)[:, :, 0].min() > 0.8
    wanted = inspection.Sinks((), (0,)) if carries else inspection.Sinks((0,), ())
    assert acts.sinks(model, 0) == wanted
    assert acts.sinks(model, 1) == inspection.Sinks((), ())


def test_rollout_takes_what_each_token_keeps() -> None:
    generator = np.random.default_rng(0)
    attention = generator.dirichlet(np.ones(7), size=(3, 2, 7))  # 3 layers of 2 heads
    fused = attention.mean(axis=1)
    own = np.diagonal(fused, axis1=1, axis2=2)
    usual = inspection.attention_rollout(attention, residual=0.3)
    kept = 0.3 + 0.7 * own  # the same, said otherwise
    np.testing.assert_allclose(inspection.attention_rollout(attention, kept=kept), usual)
    kept = generator.uniform(size=(3, 7))
    product = np.eye(7)
    for matrix, stays in zip(fused, kept, strict=True):
        others = matrix * (1 - np.eye(7))
        others *= (1 - stays)[:, None] / others.sum(axis=1, keepdims=True)
        product = (others + np.diag(stays)) @ product
    *_, last = inspection.rollout_steps(attention, kept=kept)
    np.testing.assert_allclose(last, product)
    np.testing.assert_allclose(inspection.attention_rollout(attention, kept=kept), product[0])
    np.testing.assert_allclose(product.sum(axis=1), 1)
    for discard in (0.5, 0.9, 1.0):  # which empties rows, but for their own key
        *_, last = inspection.rollout_steps(
            attention, num_prefix_tokens=0, kept=kept, discard=discard
        )
        np.testing.assert_allclose(last.sum(axis=1), 1)
    with pytest.raises(ValueError, match=r"Expected shares kept of shape \(layers, 7\)"):
        inspection.attention_rollout(attention, kept=kept[:2])
    with pytest.raises(ValueError, match="Expected shares kept from 0 to 1"):
        inspection.attention_rollout(attention, kept=kept + 1)
