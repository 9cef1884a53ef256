"""Direct logit attribution: the parts of a model sum to its answer."""

from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import picture
from numpy.testing import assert_allclose
from torch import Tensor
from torch.nn import functional as F

import vitviz
from vitviz import ModelError, MuteHeads, capture
from vitviz.activations.targets import Question
from vitviz.attribution import direct_logit_attribution
from vitviz.attribution.logits import _read_linearly
from vitviz.attribution.outputs import hold_scale

SMALL: dict[str, Any] = dict(img_size=(48, 64), num_classes=7)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "class token": ("vit_tiny_patch16_224", dict(depth=3)),
    "distilled": ("deit_tiny_distilled_patch16_224", dict(depth=2)),
    "LayerScale": ("deit3_small_patch16_224", dict(depth=2, init_values=0.3)),
    "LayerScale as it begins": ("deit3_small_patch16_224", dict(depth=2)),
    "registers, mean of patches": ("vit_medium_patch16_reg4_gap_256", dict(depth=2)),
    "RoPE": ("eva02_tiny_patch14_224", dict(depth=2, img_size=(56, 42))),
}


def watched(name: str) -> vitviz.Model:
    kind, options = MODELS[name]
    torch.manual_seed(0)
    module = timm.create_model(kind, **{**SMALL, **options}).eval()
    with torch.no_grad():  # a head whose answers are not all about 0
        for name_of, parameter in module.named_parameters():
            if name_of.startswith("head"):
                parameter.normal_()
    return vitviz.watch(module)


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_sum_to_the_answer(name: str) -> None:
    model, image = watched(name), picture()
    logits = capture(model, image).logits
    assert logits is not None
    for target in (3, np.eye(7)[2] - np.eye(7)[5]):
        parts = direct_logit_attribution(model, image, target)
        expected = logits[3] if isinstance(target, int) else logits[2] - logits[5]
        assert parts.answer == pytest.approx(float(expected), rel=1e-5, abs=1e-5)
        assert parts.total == pytest.approx(parts.answer, rel=1e-5, abs=1e-5)


@pytest.mark.parametrize("name", ["class token", "LayerScale", "registers, mean of patches"])
def test_a_head_writes_what_the_stream_lacks_without_it(name: str) -> None:
    model, image = watched(name), picture()
    acts = capture(model, image)
    _, weights, _ = _read_linearly(model, acts, Question(model, 3))
    parts = direct_logit_attribution(model, image, 3)
    for layer, head in np.ndindex(*parts.heads.shape):
        without = capture(model, image, edits=[MuteHeads([(layer, head)])])
        lost = acts.tokens_after_attention(layer) - without.tokens_after_attention(layer)
        expected = float((weights * lost).sum())
        assert parts.heads[layer, head] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("name", ["class token", "registers, mean of patches"])
def test_a_head_writes_from_a_token_what_the_stream_lacks_without_that_token(name: str) -> None:
    model, image = watched(name), picture()
    acts = capture(model, image)
    _, weights, _ = _read_linearly(model, acts, Question(model, 3))
    parts = direct_logit_attribution(model, image, 3)
    np.testing.assert_allclose(parts.by_token.sum(axis=2), parts.heads)
    for token in (0, 7):
        attention, values = acts.attention(1)[2], acts.values(1)[2]
        rest = attention @ values - np.outer(attention[:, token], values[token])
        without = capture(model, image, edits=[MuteHeads([(1, 2)], {(1, 2): rest})])
        lost = acts.tokens_after_attention(1) - without.tokens_after_attention(1)
        expected = float((weights * lost).sum())
        assert parts.by_token[1, 2, token] == pytest.approx(expected, abs=1e-4)


def test_an_mlp_writes_what_it_adds_to_the_stream() -> None:
    model, image = watched("class token"), picture()
    acts = capture(model, image)
    _, weights, _ = _read_linearly(model, acts, Question(model, 3))
    added = [acts.tokens(n + 1) - acts.tokens_after_attention(n) for n in range(acts.depth)]
    parts = direct_logit_attribution(model, image, 3)
    np.testing.assert_allclose(parts.mlps, [(weights * z).sum() for z in added], atol=1e-5)


def test_a_head_that_is_not_linear_is_refused() -> None:
    torch.manual_seed(0)
    module = timm.create_model("vit_base_patch16_siglip_224", depth=1, num_classes=5).eval()
    with pytest.raises(ModelError, match=r"more than a linear layer"):
        direct_logit_attribution(vitviz.watch(module), picture(), 3)


def test_a_token_is_no_sum_of_parts() -> None:
    with pytest.raises(ValueError, match="a class or a vector"):
        direct_logit_attribution(watched("class token"), picture(), lambda output: output[0])


@pytest.mark.parametrize("eps", [None, 0.0, 0.5])
def test_a_norm_with_its_own_factor_held_is_that_norm(eps: float | None) -> None:
    x, weight, bias = (torch.randn(*shape, 6) for shape in ((4, 7), (7,), (7,)))
    centred = dict(weight=weight, bias=bias) | ({} if eps is None else dict(eps=eps))
    options: Any
    for norm, options in ((F.layer_norm, centred), (F.rms_norm, dict(weight=weight, eps=eps))):
        held = hold_scale(Tensor.detach, norm, x, (7, 6), **options)
        assert_allclose(held, norm(x, (7, 6), **options), atol=1e-5)
