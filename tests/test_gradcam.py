"""Grad-CAM against the formula on the module itself."""

import re
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import picture
from torch import nn

import vitviz
from vitviz import ModelError
from vitviz.attribution import Similarity, Token, direct_logit_attribution, grad_cam

NAMES = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_medium_patch16_reg4_gap_256",
)


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = timm.create_model(name, depth=2, num_classes=7, img_size=(48, 64))
    return module.eval()


@pytest.mark.parametrize("name", NAMES)
def test_it_is_the_weighted_sum_of_the_last_blocks_input(name: str) -> None:
    module = made(name)
    model = vitviz.watch(module)
    kept: list[torch.Tensor] = []
    norm: nn.Module = module.get_submodule("blocks.1.norm1")
    with norm.register_forward_hook(lambda _, __, output: kept.append(output)):
        output = module(model.preprocess(picture())[None])
    (gradient,) = torch.autograd.grad(output[0, 3], kept)
    patches = slice(len(model.layers[0].prefix), None)
    entering, gradient = kept[0][0, patches], gradient[0, patches]
    expected = (entering * gradient.mean(dim=0)).sum(dim=1).clamp(min=0).reshape(3, 4)
    found = grad_cam(model, picture(), 3)
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-4, atol=1e-7)


def test_a_coarser_last_grid_is_repeated_in_the_first() -> None:
    torch.manual_seed(0)
    module = timm.create_model("swin_tiny_patch4_window7_224", num_classes=7).eval()
    found = grad_cam(vitviz.watch(module), picture(), 3)
    assert found.shape == (56, 56)
    assert np.array_equal(found, found[::8, ::8].repeat(8, axis=0).repeat(8, axis=1))


@pytest.mark.parametrize("target", [Token("cls"), Similarity((0, 0))])
def test_a_target_that_is_no_output_is_refused(target: Token | Similarity) -> None:
    with pytest.raises(ValueError, match=re.escape(str(target))):
        grad_cam(vitviz.watch(made(NAMES[0])), picture(), target)


SMALL_SWIN = {"window_size": 2, "depths": (1, 1), "num_heads": (2, 2), "embed_dim": 24}
NORMS: dict[str, tuple[str, dict[str, Any]]] = {
    # The last block's norm follows its attention, has another name, or runs twice.
    "vit_relpos_small_patch16_rpn_224": ("no norm before its attention", {"depth": 2}),
    "swinv2_tiny_window8_256": ("no norm before its attention", SMALL_SWIN),
    "vit_base_patch16_xp_224": ("no norm before its attention", {"depth": 2}),
    "vit_tiny_patch16_224": ("runs 2 times", {"depth": 2}),
}


@pytest.mark.parametrize("name", NORMS)
def test_a_norm_that_does_not_feed_the_last_attention_alone_is_refused(name: str) -> None:
    reason, options = NORMS[name]
    module = timm.create_model(name, num_classes=7, img_size=64, **options).eval()
    if name == "vit_tiny_patch16_224":
        module.blocks[0].norm1 = module.blocks[-1].norm1  # type: ignore[index, union-attr]
    with pytest.raises(ModelError, match=reason):
        grad_cam(vitviz.watch(module), picture(), 3)


def test_a_mixing_block_is_read_before_it_mixes() -> None:
    model = vitviz.watch(timm.create_model("mixer_s32_224", num_classes=7).eval())
    assert grad_cam(model, picture(), 3).shape == (7, 7)


@pytest.mark.parametrize("more", [True, False])
def test_tokens_that_a_block_adds_or_drops_have_no_known_places(more: bool) -> None:
    module: Any = made("vit_tiny_patch16_224")
    block = module.blocks[-1]
    plain = block.forward
    block.forward = lambda x, **rest: plain(
        torch.cat([x, x[:, :2]], dim=1) if more else x[:, :9], **rest
    )
    model = vitviz.watch(module)
    acts = vitviz.capture(model, picture())
    for ask in (
        lambda: grad_cam(model, picture(), 3),
        lambda: direct_logit_attribution(model, picture(), 3),
        lambda: vitviz.intervention.patch_lens(model, acts, 2),
    ):
        with pytest.raises(ModelError, match=f" {15 if more else 9} tokens, expected .*13"):
            ask()
