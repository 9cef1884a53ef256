"""Which tokens the head pools, by a gradient of its output."""

from typing import Any

import pytest
import timm
import torch
from examples import OWN, TIMM, example, own_model, picture, randomise, watched
from torch import Tensor, nn

from vitviz.activations import capture
from vitviz.model import Model
from vitviz.zoo import toy_model

_SMALL = dict(img_size=64, embed_dim=48, depth=2, num_heads=3)
POOLING = {  # timm's and a pooling of its own, or another one
    "beit_base_patch16_224": "avg",
    "beit_base_patch16_224, token": "token",
    "eva02_tiny_patch14_336": "avg",
    "vit_small_patch16_dinov3": "avg",
    "vit_pe_core_tiny_patch16_384": "map",
    "vit_base_patch16_siglip_224": "map",
    "vit_base_patch16_224, avg": "avg",
    "vit_base_patch16_224, avgmax": "avgmax",
    "vit_base_patch16_224, max": "max",
}
NAMES = [*OWN, *TIMM, *POOLING]


def model_of(name: str) -> Model:
    if name not in POOLING:
        return example(name)
    size = 56 if "patch14" in name else 64
    options: dict[str, Any] = {**_SMALL, "img_size": size, "global_pool": POOLING[name]}
    module = timm.create_model(name.partition(",")[0], **options).eval()
    randomise(module)
    return watched(module, (size, size))


def gradient_of(model: Model) -> Tensor:
    """Of the answer, for each token after the last block: (tokens, D)."""
    found: list[Tensor] = []

    def watch(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        found.append(inputs[0].detach().requires_grad_())
        return (found[0],)

    handle = model.module.get_submodule("norm").register_forward_pre_hook(watch)
    try:
        answer = model.module(model.preprocess(picture())[None])[0]
    finally:
        handle.remove()
    (gradient,) = torch.autograd.grad(answer.square().sum(), found)
    return gradient[0]


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_read_from_which_the_answer_has_a_gradient(name: str) -> None:
    model = model_of(name)
    graded = (gradient_of(model) != 0).any(dim=1).tolist()
    prefix = model.layers[0].prefix
    read = [one for one, some in zip(prefix, graded, strict=False) if some]
    read += ["patches"] * any(graded[len(prefix) :])
    assert model.read_tokens == tuple(read)
    assert capture(model, picture()).read_tokens == tuple(read)


def test_asking_leaves_no_trace() -> None:
    model = own_model()
    before = torch.get_rng_state()
    with torch.inference_mode():
        assert model.read_tokens == ("cls",)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.module.parameters())


@pytest.mark.parametrize(("kind", "read"), [("plain", "cls"), ("registers alone", "patches")])
def test_a_head_of_zeros_reads_what_is_usual(kind: str, read: str) -> None:
    model = own_model(**OWN[kind])
    nn.init.zeros_(model.module.get_submodule("head").get_parameter("weight"))
    assert model.read_tokens == (read,)


def test_a_head_without_a_gradient_is_asked_too() -> None:
    """As one is that was quantised."""

    class Cut(nn.Linear):
        def forward(self, z: Tensor) -> Tensor:
            return super().forward(z).detach()

    model = own_model(**OWN["registers"])
    head: Any = model.module.get_submodule("head")
    head.__class__ = Cut
    assert model.read_tokens == ("cls",)


@pytest.mark.parametrize("family", ["Swin", "CoAtNet"])
def test_layers_of_different_tokens_have_none(family: str) -> None:
    model = toy_model(family)
    assert model.read_tokens == ()
    assert capture(model, picture()).read_tokens == ()
