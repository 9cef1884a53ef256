"""`watch`: modules in memory become models, and are put back as they were."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import (
    Net,
    assert_one_sentence,
    narrow_stages,
    own_module,
    picture,
    randomise,
    seeded,
)
from torch import nn

import vitviz
from vitviz import ModelError
from vitviz.model import Preprocessing

SIZE = Preprocessing(input_size=(16, 24), mean=(0.5, 0.4, 0.3), std=(0.25, 0.2, 0.3))


#: Names of timm, and what keeps them small without another input size.
OF_TIMM: dict[str, dict[str, Any]] = {
    "test_vit": {},
    "vit_tiny_patch16_224": dict(depth=3),
    "swin_tiny_patch4_window7_224": dict(depths=(2, 1, 1, 1), embed_dim=24),
    "pvt_v2_b0": dict(depths=(1, 1, 1, 1)),
    "coatnet_nano_rw_224": narrow_stages(),  # whose stem is no patch embedding
    "maxvit_nano_rw_256": narrow_stages(),
}


@pytest.mark.parametrize("name", OF_TIMM)
def test_a_module_of_timm_needs_nothing_else(name: str) -> None:
    with seeded():
        module = timm.create_model(name, **OF_TIMM[name])
    model = vitviz.watch(module)
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None])[0].numpy()
    np.testing.assert_array_equal(acts.logits, expected)
    config = timm.data.resolve_model_data_config(module)
    assert model.preprocess.input_size == config["input_size"][-2:]
    assert model.name == type(module).__name__
    assert model.weights == "weights in memory"


def test_another_input_size_is_that_of_the_module() -> None:
    module = timm.create_model("vit_tiny_patch16_224", img_size=(64, 96), depth=1)
    model = vitviz.watch(module)
    assert model.preprocess.input_size == (64, 96)
    assert vitviz.capture(model, picture()).grid == (4, 6)


def test_every_part_has_its_mode_again_afterwards() -> None:
    module = own_module().train()
    module.blocks[1].eval()  # as somebody may freeze a part
    before = {name: part.training for name, part in module.named_modules()}
    wanted = {name: p.requires_grad for name, p in module.named_parameters()}
    with vitviz.watch(module, preprocessing=SIZE) as model:
        assert not module.training
        vitviz.capture(model, picture())
    assert {name: part.training for name, part in module.named_modules()} == before
    assert {name: p.requires_grad for name, p in module.named_parameters()} == wanted
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    with pytest.raises(ZeroDivisionError), vitviz.watch(module, preprocessing=SIZE):
        raise ZeroDivisionError
    assert {name: part.training for name, part in module.named_modules()} == before
    with pytest.raises(ModelError, match="training mode"):
        vitviz.capture(model, picture())


def test_a_wrapper_is_watched_in_its_one_part() -> None:
    backbone = own_module()
    fc = nn.Linear(5, 2)
    net = Net(backbone=backbone, fc=fc).train()
    with vitviz.watch(net, preprocessing=SIZE) as model:
        assert model.module is backbone
        assert model.name == "Net.backbone"
        assert vitviz.capture(model, picture()).depth == 3
    assert fc.training
    assert backbone.training


def test_labels_and_a_name_of_ones_own() -> None:
    labels = ["cat", "dog", "bird", "ship", "frog"]
    model = vitviz.watch(own_module(), preprocessing=SIZE, labels=labels, name="mine")
    assert model.name == "mine"
    assert vitviz.capture(model, picture()).labels == tuple(labels)


def two_backbones() -> nn.Module:
    return Net(left=own_module(), right=own_module())


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (two_backbones, dict(preprocessing=SIZE), "2 parts that can be watched: left, right"),
        (own_module, {}, "VisionTransformer does not say how it wants its pictures"),
        (own_module, dict(preprocessing=SIZE, labels=["a"]), "each of 5 outputs, got 1"),
        (lambda: nn.Linear(3, 3), {}, "Linear"),
        (lambda: Net(fc=nn.Linear(3, 3)), {}, "Net"),
    ],
)
def test_what_cannot_be_watched_is_refused_in_one_sentence(
    make: Any, options: dict[str, Any], words: str
) -> None:
    module = make().train()
    with pytest.raises(ModelError, match=words) as caught:
        vitviz.watch(module, **options)
    assert_one_sentence(caught.value)
    assert all(part.training for part in module.modules())


def test_a_name_is_no_module() -> None:
    name: Any = "vit_tiny_patch16_224"
    with pytest.raises(ModelError, match="a module of torch, got str: load_model") as caught:
        vitviz.watch(name)
    assert_one_sentence(caught.value)


def test_the_oracle_sees_what_the_wrapper_computes() -> None:
    """A backbone inside a wrapper: tokens equal those that a hook of one's own reads."""
    with seeded():
        backbone: Any = timm.create_model("test_vit", num_classes=0)
    randomise(backbone)
    net = Net(encoder=backbone)
    seen: list[torch.Tensor] = []
    handle = backbone.blocks[0].register_forward_hook(lambda *args: seen.append(args[-1]))
    acts = vitviz.capture(vitviz.watch(net), picture())
    handle.remove()
    np.testing.assert_array_equal(acts.tokens(1), seen[-1][0].detach().numpy())
