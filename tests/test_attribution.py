"""The maps of one class are those of a reference that is written out, and nothing is left behind.

The reference is the equations over attention in plain operations and its gradient; for models of
timm, attention on their own path without the fused call.
"""

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import timm
import torch
from examples import (
    OWN,
    TIMM,
    assert_clear_error,
    equal_captures,
    example,
    hook_count,
    narrow_stages,
    own_model,
    picture,
    randomise,
    seeded,
    shallow,
    sharpened,
    timm_model,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from timm.models import maxxvit
from torch import Tensor, nn
from torch.nn import functional as F

from vitviz import inspection
from vitviz.activations import capture
from vitviz.attribution import gradient_rollout, gradients, relevance
from vitviz.common.language import Message
from vitviz.model import Model, memory
from vitviz.model.families import ModelError
from vitviz.model.inputs import prepare
from vitviz.model.memory import gradient_bytes
from vitviz.model.model import RECORDER
from vitviz.profiling.judging import draw_map
from vitviz.vit import Attention

METHODS = [relevance, gradient_rollout]
WRITTEN_OUT = ["plain", "no class token", "registers", "registers alone"]
#: Small ones of timm that have CLS, and whose head pools the patches.
_SMALL = dict(img_size=(64, 96), embed_dim=48, depth=3, num_heads=3)
POOLING: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": _SMALL,
    "beitv2_base_patch16_224": _SMALL,
    "eva02_tiny_patch14_336": {**_SMALL, "img_size": (56, 84)},
    "vit_small_patch16_dinov3": {**_SMALL, "num_classes": 7},
    "vit_pe_core_tiny_patch16_384": _SMALL,
}
every_method = pytest.mark.parametrize("method", METHODS)


# --- the reference ------------------------------------------------------------------------------


def written_out(model: Model, class_index: int) -> list[tuple[Any, Any]]:
    """Attention in plain operations and its gradient, of each layer of one of ours."""
    kept: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        kept.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1))
        return kept[-1] @ v

    with patch.object(F, "scaled_dot_product_attention", attend):
        logits = model.module(model.preprocess(picture())[None])[0]
    assert len(kept) == len(model.layers)
    gradients = torch.autograd.grad(logits[class_index], kept)
    return [
        (own[0].detach().double().numpy(), gradient[0].double().numpy())
        for own, gradient in zip(kept, gradients, strict=True)
    ]


def of_timm(model: Model, class_index: int) -> list[tuple[Any, Any]]:
    """The same by timm's own path that is not fused: its dropout is given the attention."""
    module, kept, handles = model.module, [], []

    def keep(_: Any, inputs: tuple[Tensor]) -> None:
        kept.append(inputs[0].requires_grad_())
        inputs[0].retain_grad()

    blocks: Any = module.blocks
    for block in blocks:
        block.attn.fused_attn = False
        handles.append(block.attn.attn_drop.register_forward_pre_hook(keep))
    try:
        module(model.preprocess(picture())[None])[0, class_index].backward()
    finally:
        for block, handle in zip(blocks, handles, strict=True):
            block.attn.fused_attn = True
            handle.remove()
    return [
        (own[0].detach().double().numpy(), own.grad[0].double().numpy())
        for own in kept
        if own.grad is not None
    ]


def expected_relevance(layers: Sequence[tuple[Any, Any]], rows: Sequence[int]) -> np.ndarray:
    """By the update R <- R + A R, all of R: the mean of its `rows`."""
    found = np.eye(layers[0][0].shape[-1])
    for attention, gradient in layers:
        found = found + weighted(attention, gradient) @ found
    return found[list(rows)].mean(axis=0)


def expected_rollout(layers: Sequence[tuple[Any, Any]], rows: Sequence[int]) -> np.ndarray:
    found = np.eye(layers[0][0].shape[-1])
    for attention, gradient in layers:
        matrix = weighted(attention, gradient)
        for number, row in enumerate(matrix):
            if row.sum() == 0:
                row[number] = 1
            row /= row.sum()
        found = (matrix / 2 + np.eye(len(matrix)) / 2) @ found
    return found[list(rows)].mean(axis=0)


def weighted(attention: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    return np.maximum(attention * gradient, 0).mean(axis=0)


def output_rows(model: Model) -> Sequence[int]:
    """What the class is read from: CLS (also where another is read beside it), or the patches."""
    layer = model.layers[0]
    first, patches = len(layer.prefix), math.prod(layer.query_grid)
    return range(first, first + patches) if "patches" in model.read_tokens else [0]


def on_grid(values: np.ndarray, model: Model) -> np.ndarray:
    layer = model.layers[0]
    return values[len(layer.prefix) :].reshape(layer.query_grid)


def steep(model: Model) -> Model:
    """With a hundred times the logits, so that relevance is not all but the identity: only then
    does it matter which layer comes first.
    """
    with torch.no_grad():
        for name, parameter in model.module.named_parameters():
            if name.startswith("head"):
                parameter.mul_(100)
    return model


# --- the maps -----------------------------------------------------------------------------------


@pytest.mark.parametrize("class_index", [0, 4])
@pytest.mark.parametrize("kind", WRITTEN_OUT)
def test_both_maps_are_those_written_out(kind: str, class_index: int) -> None:
    model = steep(own_model(**OWN[kind]))
    layers, rows = written_out(model, class_index), output_rows(model)
    for method, expected in ((relevance, expected_relevance), (gradient_rollout, expected_rollout)):
        found = method(model, picture(), class_index)
        wanted = on_grid(expected(layers, rows), model)
        assert np.ptp(wanted) > 0.1 * wanted.max()  # else any map would do
        assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * wanted.max())
        assert found.dtype == np.float64
        assert not found.flags.writeable


def pooling(name: str) -> Model:
    """All parameters random, but not the tables of positions, which `timm_model` leaves empty."""
    module: Any = timm.create_model(name, **POOLING[name]).eval()
    randomise(module)
    return steep(watched(module, module.patch_embed.img_size))


@pytest.mark.parametrize("name", [*TIMM, *POOLING])
def test_both_maps_are_those_of_timms_own_path(name: str) -> None:
    model = pooling(name) if name in POOLING else steep(timm_model(name, **shallow(name)))
    found = [method(model, picture(), 3) for method in METHODS]
    layers, rows = of_timm(model, 3), output_rows(model)
    wanted = expected_relevance(layers, rows), expected_rollout(layers, rows)
    for own, other in zip(found, wanted, strict=True):
        shown = on_grid(other, model)
        assert np.ptp(shown) > 0.1 * shown.max()
        assert_allclose(own, shown, rtol=1e-3, atol=1e-3 * shown.max())


def test_a_pooling_that_is_changed_is_followed() -> None:
    model = pooling("beit_base_patch16_224")
    module: Any = model.module
    pooled = relevance(model, picture(), 3)
    module.reset_classifier(7, global_pool="token")
    randomise(module.head)
    assert model.read_tokens == ("cls",)
    layers = of_timm(model, 3)
    wanted = on_grid(expected_relevance(layers, [0]), model)
    found = relevance(model, picture(), 3)
    assert_allclose(found, wanted, rtol=1e-3, atol=1e-3 * wanted.max())
    assert np.abs(found - pooled).max() > 0.05 * pooled.max()


@every_method
def test_a_class_that_hangs_on_nothing_has_an_empty_map(method: Callable[..., np.ndarray]) -> None:
    """The logit is its bias, so that no gradient is left: R stays the identity."""
    for kind, each in (("plain", 0.0), ("no class token", 1 / 24)):
        model = own_model(**OWN[kind])
        module: Any = model.module
        with torch.no_grad():
            module.head.weight[2] = 0
        assert_allclose(method(model, picture(), 2), np.full((4, 6), each), rtol=1e-6)


@pytest.mark.parametrize("kind", ["no class token", "plain"])
@pytest.mark.parametrize("factor", [1e-3, 1e-9])
def test_a_small_logit_has_a_map_and_no_rounding(kind: str, factor: float) -> None:
    model = own_model(**OWN[kind])
    module: Any = model.module
    with torch.no_grad():
        module.head.weight *= factor
        module.head.bias *= factor
    layers, rows = written_out(model, 2), output_rows(model)
    added = np.zeros_like(np.eye(layers[0][0].shape[-1]))  # R - I
    for attention, gradient in layers:
        matrix = weighted(attention, gradient)
        added = added + matrix @ added + matrix
    begin = np.eye(len(added))[list(rows)].mean(axis=0)
    expected = on_grid(added[list(rows)].mean(axis=0), model)
    found = relevance(model, picture(), 2) - on_grid(begin, model)
    kept = 1e-15 if begin[-1] else 0  # what float64 loses beside 1 / N
    assert_allclose(found, expected, rtol=1e-3, atol=1e-3 * expected.max() + kept)


def test_only_relevance_changes_its_pattern_with_the_factor_of_its_target() -> None:
    def mapped(method: Callable[..., np.ndarray], factor: float) -> np.ndarray:
        def target(output: Tensor) -> Tensor:
            return factor * output[2]

        found = method(example("plain"), picture(), target)
        return found / found.sum()

    small, usual, large = (mapped(relevance, factor) for factor in (1e-4, 1.0, 1e4))
    assert np.abs(small - usual).max() > 1e-3 * usual.max()
    assert np.abs(large - usual).max() > 1e-2 * usual.max()
    one, other = (mapped(gradient_rollout, factor) for factor in (1.0, 1e4))
    assert_allclose(one, other, rtol=1e-4)
    turned = mapped(gradient_rollout, -1.0)  # evidence against the class
    assert np.abs(turned - one).max() > 1e-2 * one.max()


def test_gradient_rollout_is_made_of_shares() -> None:
    """A model without a prefix has all of them on its patches."""
    assert gradient_rollout(example("no class token"), picture(), 1).sum() == pytest.approx(1)
    assert 0.01 < gradient_rollout(example("plain"), picture(), 1).sum() < 1


# --- nothing is left behind ---------------------------------------------------------------------


def untouched(model: Model) -> tuple[object, ...]:
    return (
        {name: tensor.clone() for name, tensor in model.module.state_dict().items()},
        [(one.requires_grad, one.grad) for one in model.module.parameters()],
        hook_count(model.module),
        RECORDER.get(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
    )


def assert_same(before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
    assert before[1:] == after[1:]
    for name, tensor in before[0].items():
        assert torch.equal(tensor, after[0][name]), name


@every_method
def test_the_model_stays_as_it_was(method: Callable[..., np.ndarray]) -> None:
    model = own_model()
    before, seen = untouched(model), capture(model, picture())
    method(model, picture(), 0)
    with pytest.raises(ValueError, match="a class in 0"):
        method(model, picture(), 10_000)

    def stop(*_: object) -> Tensor:
        raise KeyboardInterrupt

    mlp = model.module.get_submodule("blocks.2.mlp")
    with patch.object(mlp, "forward", stop), pytest.raises(KeyboardInterrupt):
        method(model, picture(), 0)
    assert_same(before, untouched(model))
    assert equal_captures(capture(model, picture()), seen)


@every_method
@pytest.mark.parametrize("off", [torch.no_grad, torch.inference_mode])
def test_a_caller_without_gradients_gets_the_same(
    off: Callable[[], Any], method: Callable[..., np.ndarray]
) -> None:
    wanted = method(example("plain"), picture(), 0)
    with off():
        assert_array_equal(method(example("plain"), picture(), 0), wanted)


def test_threads_do_not_mix_their_passes() -> None:
    model = example("plain")
    pictures = [picture(seed=seed) for seed in range(4)]
    wanted = [(relevance(model, one, 0), capture(model, one)) for one in pictures]

    def both(number: int) -> bool:
        at = number % len(pictures)
        found = relevance(model, pictures[at], 0)
        seen = capture(model, pictures[at])
        return np.array_equal(found, wanted[at][0]) and equal_captures(seen, wanted[at][1])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(both, range(12)))


# --- what is refused ----------------------------------------------------------------------------


def refusal(model: Model) -> str:
    """Return the error that both methods raise."""
    said = set()
    for method in METHODS:
        with pytest.raises(ModelError) as caught:
            method(model, picture(), 0)
        said.add(str(caught.value))
    (sentence,) = said
    assert_clear_error(sentence)
    return sentence


def test_a_model_without_classes_is_refused() -> None:
    assert "no classification head" in refusal(example("no head"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(kind="pooled"), "blocks.2 has pooled attention"),
        (dict(refusal=Message("It has none.")), "It has none."),
    ],
)
def test_a_layer_that_is_no_factor_refuses_the_map(change: dict[str, Any], words: str) -> None:
    model = own_model()
    model.reading.layers = (*model.layers[:2], replace(model.layers[2], **change))
    assert words in refusal(model)


class DropsShares(Attention):
    def forward(self, z: Tensor) -> Tensor:
        q, k, v = self.qkv(z).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        with seeded():
            heads = F.scaled_dot_product_attention(q, k, v, dropout_p=0.5)
        return self.proj(heads.transpose(1, 2).flatten(2))


class NeverCalls(Attention):
    def forward(self, z: Tensor) -> Tensor:
        return self.proj(z)


class HalvesOneHead(Attention):
    def forward(self, z: Tensor) -> Tensor:
        q, k, v = self.qkv(z).unflatten(2, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v)
        factors = torch.ones(self.num_heads, 1, 1)
        factors[0] = 0.5
        return self.proj((factors * heads).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (DropsShares, "does not reproduce"),
        (NeverCalls, "uses neither softmax nor"),
        (HalvesOneHead, "does more to its heads"),
    ],
)
def test_attention_that_cannot_be_proved_is_refused(kind: type[Attention], words: str) -> None:
    model = own_model()
    module: Any = model.module
    changed = kind(32, 4)
    changed.load_state_dict(module.blocks[1].attn.state_dict())
    module.blocks[1].attn = changed.eval().requires_grad_(False)
    said = refusal(model)
    assert words in said
    assert "blocks.1" in said


def test_a_gradient_that_is_not_finite_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = own_model()
    module: Any = model.module
    with torch.no_grad():
        module.head.weight[0] = torch.inf
    assert "NaN or infinite" in refusal(model)
    # Below 0 it would be cut off before the map is made.
    monkeypatch.setattr(
        gradients,
        "_gradients",
        lambda value, attention: [torch.full_like(each, -torch.inf) for each in attention],
    )
    assert "NaN or infinite" in refusal(own_model())


def test_layers_of_different_tokens_are_refused() -> None:
    options: Any = dict(num_classes=5, img_size=64, **narrow_stages())
    module = timm.create_model("coatnet_nano_rw_224", **options).eval()
    assert "convolutions lie between" in refusal(watched(module, (64, 64)))


def coatnet(*, fused: bool) -> Model:
    """A CoAtNet whose attention is all in its last stage, so that no convolutions lie between."""
    timm.layers.set_fused_attn(fused)
    attention = maxxvit.MaxxVitTransformerCfg(dim_head=8, rel_pos_type="bias")
    config = maxxvit.MaxxVitCfg(
        embed_dim=(16, 16, 16, 16),
        depths=(1, 1, 1, 3),
        block_type=("C", "C", "C", "T"),
        stem_width=16,
        transformer_cfg=attention,
    )
    try:
        with seeded():
            module: Any = maxxvit.MaxxVit(config, img_size=(64, 96), num_classes=5).eval()
    finally:
        timm.layers.set_fused_attn(True)
    return sharpened(watched(module, (64, 96)))


@pytest.mark.parametrize("fused", [True, False])
def test_a_coatnet_without_convolutions_between_its_layers_has_a_map(fused: bool) -> None:
    """Written out, its attention is transposed: the values stand left of it in the product."""
    written: Any = coatnet(fused=False)
    kept: list[Tensor] = []
    for site in written.sites:
        site.attn.attn_drop.register_forward_hook(lambda part, inputs, out: kept.append(out))
    x = prepare(written, picture()).x[None]
    gradients = torch.autograd.grad(written.module(x)[0, 3], kept)
    expected = torch.eye(6)
    for attention, gradient in zip(kept, gradients, strict=True):
        expected = expected + (attention * gradient).clamp(min=0).mean(dim=1)[0] @ expected
    seen = relevance(coatnet(fused=fused), picture(), 3)
    assert np.ptp(seen) > 1e-3 * seen.max()
    assert_allclose(seen, expected.mean(dim=0).detach().reshape(2, 3), rtol=1e-4)


def test_rollout_of_a_coatnet_is_read_at_the_mean_of_its_patches() -> None:
    model = coatnet(fused=True)
    acts = capture(model, picture())
    layers = [acts.attention(layer) for layer in range(acts.depth)]
    product = np.eye(6)
    for layer in layers:
        product = (layer.mean(axis=0) / 2 + np.eye(6) / 2) @ product
    assert_allclose(inspection.attention_rollout(acts), product.mean(axis=0), rtol=1e-5)
    measured = acts.measure()
    assert_allclose(measured.rollout, product.mean(axis=0), rtol=1e-5)
    assert_allclose(measured.query_attention[0].reshape(-1, 6), layers[0].mean(axis=1), rtol=1e-5)
    drawn = draw_map(model, acts, picture(), "attention", 0)
    assert_allclose(drawn.ravel(), layers[-1].mean(axis=(0, 1)), rtol=1e-5)


def test_a_gradient_that_is_checkpointed_is_refused() -> None:
    model = timm_model("test_vit")
    module: Any = model.module
    module.set_grad_checkpointing(True)
    assert "set_grad_checkpointing(False)" in refusal(model)
    module.set_grad_checkpointing(False)
    assert relevance(model, picture(), 0).max() > 0


def test_a_module_that_was_made_in_inference_mode_is_refused() -> None:
    with torch.inference_mode():
        model = own_model()
    assert "under torch.inference_mode" in refusal(model)


@pytest.mark.parametrize("name", ["head", "blocks.1.mlp.fc2", "blocks.2.attn.qkv"])
def test_a_gradient_that_does_not_arrive_is_refused(name: str) -> None:
    """Also where a skip connection would let a part of it pass."""

    class Cut(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            return super().forward(z).detach()

    model = own_model()
    part: Any = model.module.get_submodule(name)
    part.__class__ = Cut
    assert refusal(model).startswith(f"{name} in {model.name} computes without gradients")


@every_method
@pytest.mark.parametrize("name", ["beit_base_patch16_224", "eva02_tiny_patch14_336"])
def test_models_of_timm_in_double_precision_give_the_same_map(
    name: str, method: Callable[..., np.ndarray]
) -> None:
    model = pooling(name)
    expected = method(model, picture(), 3)
    model.module.double()
    found = method(model, picture(), 3)
    assert_allclose(found, expected, atol=1e-4 * expected.max())


def test_more_memory_than_is_free_is_refused_before_it_is_spent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = own_model()
    needed = gradient_bytes(model.sites)
    before = untouched(model)
    monkeypatch.setattr(memory, "free_bytes", lambda: needed - 1)
    _ = model.read_tokens, model.outputs  # each is found once, by passes of its own

    def fail(*_: object) -> None:
        raise AssertionError("a pass was made")

    handle = model.module.register_forward_pre_hook(fail)
    said = refusal(model)
    handle.remove()
    assert said.startswith(f"A map of one class of {model.name} needs about ")
    assert_same(before, untouched(model))
    monkeypatch.undo()
    monkeypatch.setattr(memory, "free_bytes", lambda: needed)
    assert relevance(model, picture(), 0).max() > 0


def test_the_estimate_holds_the_attention_and_its_gradient() -> None:
    sites = own_model().sites
    tokens, heads, width = 25, 4, 32
    matrix = heads * tokens * tokens
    assert gradient_bytes(sites) >= 4 * (2 * 3 * matrix + 3 * tokens * width * 20)
    assert gradient_bytes(sites) <= 4 * (2 * 3 * matrix + 3 * matrix + 3 * tokens * width * 30)
