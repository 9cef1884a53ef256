"""The methods that explain an output, each against its reference, and all by one interface."""

import importlib
import sys
import types
import warnings
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import picture, randomise, seeded, vit_of_transformers
from torch import Tensor, nn
from torch.nn import functional as F

import vitviz
from vitviz import ModelError
from vitviz.attribution import (
    METHODS,
    Similarity,
    Token,
    attention_gradient,
    attn_lrp,
    direct_logit_attribution,
    grad_cam,
    gradient_rollout,
    gradients,
    integrated_gradients,
    relevance,
    shared_gradients,
)

NAMES = (
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "vit_medium_patch16_reg4_gap_256",
)
needs_captum = pytest.mark.skipif(
    importlib.util.find_spec("captum") is None, reason="captum is not installed"
)
every_method = pytest.mark.parametrize(
    "method",
    [
        pytest.param(name, marks=needs_captum if name == "integrated_gradients" else ())
        for name in METHODS
    ],
)


def of_timm(name: str) -> nn.Module:
    torch.manual_seed(0)
    module: nn.Module = timm.create_model(name, depth=2, num_classes=7, img_size=(48, 64))
    return module.eval()


def of_torchvision() -> nn.Module:
    models = pytest.importorskip("torchvision.models")
    torch.manual_seed(0)
    module: Any = models.VisionTransformer(64, 16, 2, 2, 32, 64, num_classes=7)
    nn.init.normal_(module.heads.head.weight)  # zeros in a new module
    built: nn.Module = module.eval()
    return built


def built(name: str) -> nn.Module:
    if name == "transformers":
        module: nn.Module = vit_of_transformers(image_size=(48, 64), num_labels=7)
        return module
    return of_torchvision() if name == "torchvision" else of_timm(name)


def watched(module: nn.Module) -> vitviz.Model:
    if hasattr(module, "pretrained_cfg"):
        return vitviz.watch(module)
    size = (64, 64) if hasattr(module, "conv_proj") else (48, 64)
    own = vitviz.Preprocessing(input_size=size, mean=(0.5,) * 3, std=(0.5,) * 3)
    return vitviz.watch(module, preprocessing=own)


def output(module: nn.Module, x: Tensor) -> Tensor:
    result = module(x)
    logits: Tensor = getattr(result, "logits", result)
    return logits


def summed(pixels: Tensor) -> np.ndarray:
    """Sums over the channels and over patches of 16 x 16 pixels."""
    channels, height, width = pixels.shape
    parts = pixels.detach().reshape(channels, height // 16, 16, width // 16, 16)
    return parts.sum(dim=(0, 2, 4)).numpy()


@needs_captum
@pytest.mark.parametrize("name", [NAMES[0], "transformers"])
def test_integrated_gradients_is_the_integral_and_complete(name: str) -> None:
    module = built(name)
    model = watched(module)
    x = model.preprocess(picture())
    points, weights = np.polynomial.legendre.leggauss(60)
    inputs = torch.stack([x * float((1 + at) / 2) for at in points]).requires_grad_()
    (gradients,) = torch.autograd.grad(output(module, inputs)[:, 3].sum(), inputs)
    mean = torch.einsum("s,schw->chw", torch.tensor(weights / 2, dtype=x.dtype), gradients)
    found = integrated_gradients(model, picture(), 3, steps=60)
    np.testing.assert_allclose(found, summed(x * mean), rtol=1e-4, atol=1e-6 * found.max())
    with torch.no_grad():
        ends = output(module, torch.stack([x, torch.zeros_like(x)]))[:, 3]
    assert found.sum() == pytest.approx(float(ends[0] - ends[1]), rel=1e-3)


@needs_captum
def test_integrated_gradients_tells_its_progress_and_can_be_stopped() -> None:
    model, seen = watched(built(NAMES[0])), []
    method = METHODS["integrated_gradients"]
    found = method(model, picture(), 3, progress=lambda *at: seen.append(at))
    np.testing.assert_array_equal(found, method(model, picture(), 3))
    assert seen == [(done, method.passes) for done in range(0, method.passes, 10)]

    def stop(done: int, of: int) -> None:
        if done == 20:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        method(model, picture(), 3, progress=stop)


def test_without_captum_it_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "captum.attr", None)
    with pytest.raises(ModelError, match=r"vitviz\[explain\]"):
        integrated_gradients(vitviz.watch(of_timm(NAMES[0])), picture(), 3)


@pytest.mark.parametrize("name", [*NAMES, "torchvision", "transformers"])
def test_attention_gradient_is_the_mean_over_layers_heads_and_queries(name: str) -> None:
    module = built(name)
    model = watched(module)
    kept: list[Tensor] = []

    def attend(q: Tensor, k: Tensor, v: Tensor, *_: Any, **__: Any) -> Tensor:
        kept.append((q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(dim=-1))
        return kept[-1] @ v

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", attend)
        answer = output(module, model.preprocess(picture())[None])[0, 3]
    gradients = torch.autograd.grad(answer, kept)
    products = [a * gradient.relu() for a, gradient in zip(kept, gradients, strict=True)]
    columns = torch.stack(products).mean(dim=(0, 1, 2, 3))  # layers, picture, heads, queries
    expected = columns[len(model.layers[0].prefix) :].detach().numpy()
    found = attention_gradient(model, picture(), 3)
    np.testing.assert_allclose(found.ravel(), expected, rtol=1e-4, atol=1e-9)


def authors() -> tuple[Any, Any]:
    """Load the rules and patches of lxt, whose package needs an older transformers as a whole."""
    spec = importlib.util.find_spec("lxt")
    if spec is None or spec.submodule_search_locations is None:
        pytest.skip("lxt, the package of AttnLRP's authors, is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "efficient"
    package = types.ModuleType("lxt.efficient")
    package.__path__ = [str(folder)]
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in ("lxt.efficient", "lxt.efficient.rules", "lxt.efficient.patches"):
            patch.delitem(sys.modules, name, raising=False)
        patch.setitem(sys.modules, "lxt.efficient", package)
        return (
            importlib.import_module("lxt.efficient.rules"),
            importlib.import_module("lxt.efficient.patches"),
        )


@pytest.mark.parametrize("name", [*NAMES, "torchvision", "transformers"])
def test_attn_lrp_is_that_of_the_authors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rules, patches = authors()
    module = built(name)
    model = watched(module)
    found = attn_lrp(model, picture(), 3)
    x = model.preprocess(picture())[None].requires_grad_()
    own = F.scaled_dot_product_attention
    attend = patches.wrap_attention_forward(lambda _, q, k, v, *__, **___: own(q, k, v))
    monkeypatch.setattr(F, "scaled_dot_product_attention", partial(attend, None))
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.forward = types.MethodType(patches.layer_norm_forward, part)  # type: ignore[method-assign]
        elif "GELU" in type(part).__name__:
            part.forward = partial(rules.identity_rule_implicit, part.forward)
    (gradient,) = torch.autograd.grad(output(module, x)[0, 3], x)
    expected = summed((x * gradient)[0])
    assert np.ptp(expected) > 0
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


def test_attn_lrp_keeps_all_relevance_where_no_bias_takes_any() -> None:
    """One head without biases whose softmax has one key: what enters is what comes out."""

    class Alone(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net: Any = timm.create_model(
                "vit_tiny_patch16_224",
                depth=2,
                num_classes=3,
                img_size=(48, 64),
                class_token=False,
                global_pool="avg",
                pos_embed="none",
                qkv_bias=False,
            ).eval()
            for name, weight in self.net.named_parameters():
                if name.endswith("bias"):
                    nn.init.zeros_(weight)
                if name.endswith("attn.proj.weight"):
                    nn.init.zeros_(weight)  # no product halves anything

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.net(x)
            return logits

    torch.manual_seed(0)
    module = Alone().eval()
    model = watched(module)
    with torch.no_grad():
        answer = float(module(model.preprocess(picture())[None])[0, 1])
    assert attn_lrp(model, picture(), 1).sum() == pytest.approx(answer, rel=1e-4)


class _Odd(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.exp(x)


def test_an_operation_without_a_rule_is_refused_by_its_name() -> None:
    module = of_timm(NAMES[0])
    module.blocks[1].mlp.act = _Odd().eval()  # type: ignore[index, union-attr]
    with pytest.raises(ModelError, match="no rule for the operation exp"):
        attn_lrp(vitviz.watch(module), picture(), 3)


class _Quick(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class _Gate(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(x.mean(dim=-1, keepdim=True))


def test_an_activation_written_as_a_product_is_one_and_another_gate_is_refused() -> None:
    module = of_timm(NAMES[0])
    model = watched(module)
    module.blocks[1].mlp.act = _Quick().eval()  # type: ignore[index, union-attr]
    quick = attn_lrp(model, picture(), 3)
    module.blocks[1].mlp.act = nn.GELU().eval()  # type: ignore[index, union-attr]
    assert np.corrcoef(quick.ravel(), attn_lrp(model, picture(), 3).ravel())[0, 1] > 0.999
    module.blocks[1].mlp.act = _Gate().eval()  # type: ignore[index, union-attr]
    with pytest.raises(ModelError, match="no rule for the operation sigmoid"):
        attn_lrp(vitviz.watch(module), picture(), 3)


@pytest.mark.parametrize("method", [attn_lrp, grad_cam, integrated_gradients])
@pytest.mark.parametrize("target", [Token("cls"), Similarity((0, 0))])
def test_a_target_that_is_no_output_is_refused(method: Any, target: Token | Similarity) -> None:
    with pytest.raises(ValueError, match="explains an output of the model"):
        method(vitviz.watch(of_timm(NAMES[0])), picture(), target)


@pytest.mark.parametrize("name", NAMES)
def test_grad_cam_is_the_weighted_sum_of_the_last_blocks_input(name: str) -> None:
    module = of_timm(name)
    model = vitviz.watch(module)
    kept: list[Tensor] = []
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


def test_a_last_patch_that_reaches_beyond_the_picture_stays_in_its_place() -> None:
    sizes: Any = dict(embed_dim=8, depths=(1, 1, 1), num_heads=(1, 2, 2), num_classes=7)
    with seeded():
        module = timm.create_model(
            "swin_tiny_patch4_window7_224", img_size=(40, 56), window_size=2, **sizes
        ).eval()
    randomise(module)
    model = vitviz.watch(module)
    assert [layer.query_grid for layer in model.layers] == [(10, 14), (5, 7), (3, 4)]
    found = grad_cam(model, picture(), 3)
    whole = found[::4, ::4].repeat(4, axis=0).repeat(4, axis=1)
    assert found.shape == (10, 14)
    assert np.ptp(found) > 0
    assert np.array_equal(found, whole[:10, :14])


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
    module: Any = of_timm("vit_tiny_patch16_224")
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


class Ungraded(nn.Module):
    """Computes a part without gradients, as one does that is not trained."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part = part

    def forward(self, x: Tensor) -> Any:
        with torch.no_grad():
            return self.part(x)


class Table(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[-1])


class Shifted(nn.Module):
    """Adds what does not depend on its input, and so has no gradient."""

    def __init__(self, part: nn.Module) -> None:
        super().__init__()
        self.part, self.table = part, Table()

    def forward(self, x: Tensor) -> Any:
        return self.part(x) + self.table(x)


@every_method
@pytest.mark.parametrize("layer", [0, 1])
def test_each_method_names_the_part_that_loses_a_gradient_that_it_needs(
    method: str, layer: int
) -> None:
    module: Any = of_timm("vit_tiny_patch16_224")
    block = module.blocks[layer]
    block.mlp = Shifted(block.mlp)
    model = vitviz.watch(module)
    expected = METHODS[method](model, picture(), 3)
    block.mlp = Ungraded(block.mlp)
    model = vitviz.watch(module)
    if method == "grad_cam" and layer == 0:  # it reads the last block's input
        np.testing.assert_array_equal(METHODS[method](model, picture(), 3), expected)
        return
    with pytest.raises(ModelError, match=rf"blocks\.{layer}\.mlp.* computes without gradients"):
        METHODS[method](model, picture(), 3)


def test_methods_share_a_pass_only_where_they_are_told_to(monkeypatch: pytest.MonkeyPatch) -> None:
    model, image = vitviz.watch(of_timm(NAMES[0])), picture()
    own, passes = gradients._compute_gradients, []

    def counted(*words: Any) -> Any:
        passes.append(words)
        return own(*words)

    monkeypatch.setattr(gradients, "_compute_gradients", counted)
    methods = relevance, gradient_rollout, attention_gradient
    alone = [method(model, image, index) for index in (3, 0) for method in methods]
    assert len(passes) == 6
    with shared_gradients():
        shared = [method(model, image, index) for index in (3, 0) for method in methods]
        assert len(passes) == 8
        relevance(model, picture(), 3)  # another picture, and a target that is no class
        relevance(model, image, Token("cls"))
    assert len(passes) == 10
    for one, other in zip(alone, shared, strict=True):
        np.testing.assert_array_equal(one, other)


@every_method
@pytest.mark.parametrize("name", [*NAMES, "torchvision", "transformers"])
def test_each_method_is_called_alike_and_leaves_no_trace(method: str, name: str) -> None:
    module = built(name)
    model = watched(module)
    x = model.preprocess(picture())[None]
    with torch.inference_mode():
        before = output(module, x)
    one, other = (METHODS[method](model, picture(), target) for target in (3, 0))
    with torch.inference_mode():
        assert torch.equal(output(module, x), before)
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in module.modules())
    assert all(parameter.grad is None for parameter in module.parameters())
    assert one.shape == other.shape == model.layers[0].query_grid
    assert not np.array_equal(one, other)
    assert (min(one.min(), other.min()) < 0) == (method in {"integrated_gradients", "attn_lrp"})
