"""A model on a device: its tensors stay there until numbers are asked for, and those are the same.

No machine of the tests has a device. The one of `devices.py`, in its place, has real numbers and is
stricter than CUDA where tensors of several devices meet.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from devices import SECOND, second_device
from examples import (
    OWN,
    assert_clear_error,
    equal_captures,
    own_module,
    picture,
    randomise,
    watched,
)
from numpy.testing import assert_allclose, assert_array_equal
from torch._subclasses.fake_tensor import FakeTensorMode

import vitviz
from vitviz import cli, intervention
from vitviz.activations import (
    DropPatches,
    Edit,
    FillPatches,
    MuteHeads,
    SwapTokens,
    calls,
    capture,
    captures,
)
from vitviz.attribution import METHODS, direct_logit_attribution, gradient_rollout, relevance
from vitviz.intervention import equivariance
from vitviz.model import Model, memory
from vitviz.model.devices import find_device
from vitviz.model.families import ModelError
from vitviz.web import anatomy
from vitviz.zoo import loading, toy_model

#: Of timm: rotary and biased attention, pooled patches. The first has two layers.
SMALL: dict[str, dict[str, Any]] = {
    "test_vit": dict(img_size=64, depth=2),
    "vit_small_patch16_dinov3": dict(img_size=64, embed_dim=32, depth=1, num_heads=2),
    "beit_base_patch16_224": dict(img_size=64, embed_dim=32, depth=1, num_heads=2),
    "vit_base_patch16_siglip_224": dict(img_size=64, embed_dim=32, depth=1, num_heads=2),
}
TOYS = ("Swin", "PVT", "MaxViT", "CoAtNet", "CaiT", "MLP-Mixer")
KINDS = ("plain", "no class token", "distilled", "registers", "stem", "no head")


@pytest.fixture(autouse=True)
def _roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """The devices of the tests have memory, which they cannot tell."""
    monkeypatch.setattr(memory, "free_on", lambda device: 10**9)


def made(kind: str) -> Model:
    if kind in TOYS:
        return toy_model(kind)
    if kind in OWN:
        own = own_module(depth=2 if kind == "plain" else 1, num_heads=2, **OWN[kind])
        return watched(own, own.patch_embed.image_size)
    module: Any = timm.create_model(kind, **SMALL[kind]).eval()
    randomise(module)
    return watched(module, module.patch_embed.img_size)


def edits_for(model: Model) -> list[Edit]:
    """Edits of every kind that the model takes."""
    mask = np.zeros(model.layers[0].query_grid, bool)
    mask[0, 0] = True
    edits: list[Edit] = [FillPatches(mask, "mean"), FillPatches(mask, "blur")]
    if all(layer.kind == "global" for layer in model.layers):
        edits.append(MuteHeads([(0, 0)]))
        if model.sites[0].layout == "tokens":
            edits.append(SwapTokens([(0, 3)]))
        if not model.positional_attention:
            edits.append(DropPatches(mask))
    return edits


def arrays_of(model: Model) -> Iterator[np.ndarray]:
    """Everything that is computed of one picture, in float32 arrays."""
    acts = capture(model, picture())
    for layer, described in enumerate(acts.layers):
        if described.kind == "mixing":
            continue
        assert described.refusal is None
        yield acts.attention(layer)
        yield acts.attention_map(layer)
        try:
            yield from (acts.queries(layer), acts.keys(layer), acts.values(layer))
        except ModelError:  # read at its softmax
            continue
    yield from (acts.tokens(depth) for depth in range(acts.depth + 1))
    if acts.logits is not None:
        yield acts.logits
    edited = capture(model, picture(), edits=edits_for(model))
    yield edited.tokens(edited.depth)
    for box in anatomy.steps(model, picture(), acts):
        yield from () if box.values is None else (box.values,)
    yield from arrays_of_global(model, acts) if model.read_tokens else ()


def arrays_of_global(model: Model, acts: vitviz.Activations) -> Iterator[np.ndarray]:
    """What is defined where every token attends to every token."""
    yield acts.tokens(acts.depth, normalised=True)
    measured = acts.measure()
    yield from (measured.distance, measured.entropy, measured.rollout)
    for box in anatomy.layer_boxes(model, acts, 0):
        yield from () if box.values is None else (box.values,)
    values = intervention.mean_head_outputs([acts])
    yield capture(model, picture(), edits=[MuteHeads([(0, 0)], values)]).tokens(acts.depth)
    if model.num_classes:
        yield relevance(model, picture(), 1)
        yield gradient_rollout(model, picture(), 1)
        yield intervention.logit_lens(model, acts)
        yield intervention.head_effects(model, picture())
        yield intervention.occlusion(model, picture(), target=1, block=4)


def arrays_in_double(model: Model) -> Iterator[np.ndarray]:
    """What is computed in double precision from tensors of the device."""
    acts = capture(model, picture())
    yield acts.carried(model, 0).lengths
    for name, method in METHODS.items():
        if name != "integrated_gradients":  # it needs captum, and adds up as AttnLRP does
            yield method(model, picture(), 1)
    yield direct_logit_attribution(model, picture(), 1).heads
    ranks = np.arange(24).reshape(model.layers[0].query_grid)
    yield from intervention.removal_areas(model, picture(), [ranks], 1, steps=2)


@pytest.mark.parametrize("kind", [*KINDS, *SMALL, *TOYS])
def test_a_device_gives_the_numbers_of_the_cpu(kind: str) -> None:
    expected = list(arrays_of(made(kind)))
    with second_device() as device:
        model = made(kind)
        model.module.to(device)
        assert model.device == device
        found = list(arrays_of(model))
    assert len(found) == len(expected) > 5
    for one, other in zip(found, expected, strict=True):
        assert_array_equal(one, other)


def test_a_device_without_double_precision_gives_the_numbers_of_the_cpu() -> None:
    expected = list(arrays_in_double(made("plain")))
    with second_device() as device:
        model = made("plain")
        model.module.to(device)
        for one, other in zip(arrays_in_double(model), expected, strict=True):
            assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_a_batch_on_a_device_stays_there_and_is_measured_and_saved(tmp_path: Path) -> None:
    pictures = [picture(seed=seed) for seed in range(3)]
    expected = list(captures(made("plain"), pictures))
    shuffled = equivariance.shuffle_patches(made("plain"), picture()).outputs
    moved = equivariance.translate(made("plain"), picture(), 2)
    with second_device() as device:
        model = made("plain")
        model.module.to(device)
        for one, other in zip(captures(model, pictures), expected, strict=True):
            kept = [tensor for call in one._calls if call for tensor in call.tensors()]
            assert {tensor.device for tensor in (*kept, *one._stream)} == {device}
            assert equal_captures(one, other)
            assert_array_equal(one.measure().distance, other.measure().distance)
            assert all(call is not None and call.v.device == device for call in one._calls)
        one.save(tmp_path / "capture.npz")
        assert_array_equal(equivariance.shuffle_patches(model, picture()).outputs, shuffled)
        assert equivariance.translate(model, picture(), 2) == moved
    assert equal_captures(vitviz.load_activations(tmp_path / "capture.npz"), other)


def test_products_on_cuda_are_compared_where_tf32_does_not_reach() -> None:
    """On torch's own CUDA device, without numbers."""
    with FakeTensorMode():
        assert calls.as_exact(torch.empty(2, device="cuda")).dtype == torch.float64
    assert calls.as_exact(torch.empty(2, dtype=torch.float16)).dtype == torch.float32


def test_the_second_device_keeps_its_tensors_apart() -> None:
    with second_device() as device:
        here, there = torch.ones(2, 3), torch.ones(2, 3, device=device)
        assert (there + there).sum().item() == 12
        with pytest.raises(RuntimeError, match="several devices"):
            here + there
        with pytest.raises(RuntimeError, match="subclasses"):
            there.numpy()
        assert_array_equal((there.cpu() + here).numpy(), 2)


# --- what is there, and what is not ---------------------------------------------------------------


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        torch.accelerator, "current_accelerator", lambda check_available: torch.device("cuda")
    )
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: 2)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cpu", "cuda", "cuda:1", torch.device("cuda", 0)])
def test_a_device_that_is_there_is_found(name: str | torch.device) -> None:
    assert find_device(name) == torch.device(name)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("name", ["cuda:2", "mps", "meta", "gpu", ""])
def test_a_device_that_is_not_there_is_one_sentence(name: str) -> None:
    with pytest.raises(ModelError) as refused:
        find_device(name)
    assert_clear_error(refused.value)


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has a device")
def test_a_machine_without_a_device_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    words = "torch has no device cuda here. Choose one of these: cpu."
    with pytest.raises(ModelError) as refused:
        vitviz.load_model("vitviz_tiny_cifar10", device="cuda")
    assert str(refused.value) == words
    for command in (["app"], ["prepare"], ["evaluate", "vitviz_tiny_cifar10", "--data", "."]):
        assert cli.main([*command, "--device", "cuda"]) == 2
        assert capsys.readouterr().err == f"{words}\n"


def test_a_model_is_loaded_onto_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = capture(vitviz.load_model("vitviz_tiny_cifar10"), picture())
    monkeypatch.setattr(loading, "find_device", lambda name: SECOND)
    with second_device():
        model = vitviz.load_model("vitviz_tiny_cifar10", device="cuda")
        assert model.device == SECOND
        assert_array_equal(capture(model, picture()).logits, expected.logits)
        with vitviz.watch(model.module, preprocessing=model.preprocess) as watched_there:
            assert_array_equal(capture(watched_there, picture()).logits, expected.logits)


def test_the_memory_of_the_device_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    free = 10**9
    monkeypatch.setattr(memory, "free_on", lambda device: free)
    with second_device() as device:
        model = made("plain")
        model.module.to(device)
        acts = capture(model, picture())
        free = 1000
        for ask in (
            lambda: capture(model, picture()),
            lambda: relevance(model, picture(), 1),
        ):
            with pytest.raises(ModelError, match="of memory on meta") as refused:
                ask()
            assert_clear_error(str(refused.value).replace("0.0 GB", "0 GB"))
    assert acts.nbytes > 1000


def test_a_module_on_several_devices_is_refused() -> None:
    with second_device() as device:
        model = made("plain")
        model.module.get_submodule("head").to(device)
        with pytest.raises(ModelError, match="several devices") as refused:
            capture(model, picture())
    assert_clear_error(refused.value)
