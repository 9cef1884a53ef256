"""From which tokens a model reads its answer, by what changes the answer."""

from typing import Any

import pytest
import timm
import torch
from examples import OWN, TIMM, example, own_model, picture, randomise, watched
from torch import Tensor, nn

from vitviz.activations import capture
from vitviz.model import Model

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


def answer_without(model: Model, tokens: slice) -> Tensor:
    """The answer with other tokens in some places after the last block."""

    def changed(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        z = inputs[0].clone()
        z[:, tokens] = 5 * torch.randn(z[:, tokens].shape, generator=torch.Generator())
        return (z,)

    handle = model.module.get_submodule("norm").register_forward_pre_hook(changed)
    try:
        with torch.no_grad():
            answer: Tensor = model.module(model.preprocess(picture())[None])[0]
    finally:
        handle.remove()
    return answer


@pytest.mark.parametrize("name", NAMES)
def test_tokens_are_read_where_others_change_the_answer(name: str) -> None:
    model = model_of(name)
    prefix = model.layers[0].prefix
    plain = answer_without(model, slice(0))
    places = {**{one: slice(at, at + 1) for at, one in enumerate(prefix)}}
    places["patches"] = slice(len(prefix), None)
    read = [
        one for one, place in places.items() if not torch.equal(answer_without(model, place), plain)
    ]
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


@pytest.mark.parametrize("name", ["swin_tiny_patch4_window7_224", "coatnet_nano_rw_224"])
def test_layers_of_different_tokens_have_none(name: str) -> None:
    module: Any = timm.create_model(name, img_size=224).eval()
    model = watched(module, (224, 224))
    assert model.read_tokens == ()
    assert capture(model, picture()).read_tokens == ()
