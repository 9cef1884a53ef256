"""Models of transformers: what is planted is found, logits stay, configurations are believed."""

from typing import Any

import numpy as np
import pytest
import torch
from examples import (
    assert_clear_error,
    assert_same_in_a_batch,
    patch_box,
    picture,
    randomise,
    watched,
)
from planting import assert_found, in_brightness, plant, scene
from torch import nn

import vitviz
from vitviz import ModelError
from vitviz.intervention import logit_lens
from vitviz.model import Model

transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

SMALL: dict[str, Any] = dict(
    hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48, patch_size=8
)
REGISTERS = ("cls", "reg1", "reg2", "reg3")

#: By the class with a head, or that of an encoder which has none: the class of the encoder, options
#: of its configuration, and the prefix.
GLOBAL: dict[str, tuple[str, dict[str, Any], tuple[str, ...]]] = {
    "ViTForImageClassification": ("ViTModel", {}, ("cls",)),
    "ViTMSNForImageClassification": ("ViTMSNModel", {}, ("cls",)),
    "IJepaForImageClassification": ("IJepaModel", {}, ()),
    "DeiTForImageClassification": ("DeiTModel", {}, ("cls", "dist")),
    "DeiTForImageClassificationWithTeacher": ("DeiTModel", {}, ("cls", "dist")),
    "Dinov2ForImageClassification": ("Dinov2Model", {}, ("cls",)),
    "Dinov2WithRegistersForImageClassification": (
        "Dinov2WithRegistersModel",
        dict(num_register_tokens=3),
        REGISTERS,
    ),
    "DINOv3ViTModel": ("DINOv3ViTModel", dict(num_register_tokens=3), REGISTERS),
    "BeitForImageClassification": ("BeitModel", {}, ("cls",)),
    "CLIPVisionModelWithProjection": ("CLIPVisionModel", dict(projection_dim=6), ("cls",)),
    "CLIPForImageClassification": ("CLIPVisionModel", {}, ("cls",)),
    "MetaClip2ForImageClassification": ("MetaClip2VisionModel", {}, ("cls",)),
    "SiglipForImageClassification": ("SiglipVisionModel", {}, ()),
}
CLASSES = [*GLOBAL, *dict.fromkeys(base for base, _, _ in GLOBAL.values())]
ATTENTION = ("sdpa", "eager")
#: Two that are no squares, and the planted patch in each.
GRIDS = [((5, 7), (4, 1)), ((6, 4), (1, 3))]


def module_of(name: str, attention: str = "sdpa", size: Any = 32, **options: Any) -> Any:
    """A small module of this class, all parameters random."""
    kind = getattr(transformers, name)
    own = next(own for whole, (base, own, _) in GLOBAL.items() if name in (whole, base))
    settings = {**SMALL, **own, "image_size": size, **options}
    if kind.config_class.__name__ in ("CLIPConfig", "MetaClip2Config", "SiglipConfig"):
        settings = {"vision_config": settings}
    settings["num_labels"] = 5
    module = kind(kind.config_class(**settings)).eval()
    module.set_attn_implementation(attention)
    randomise(module)
    return module


def small(name: str, attention: str = "sdpa", /, **options: Any) -> Model:
    return watched(module_of(name, attention, **options), (32, 32))


def prefix_of(name: str) -> tuple[str, ...]:
    return next(prefix for whole, (base, _, prefix) in GLOBAL.items() if name in (whole, base))


@pytest.mark.parametrize(("grid", "target"), GRIDS)
@pytest.mark.parametrize("name", GLOBAL)
def test_every_head_is_found_to_look_at_the_planted_patch(
    name: str, grid: tuple[int, int], target: tuple[int, int]
) -> None:
    size = 8 * grid[0], 8 * grid[1]
    module = module_of(name, size=48)  # positions are interpolated
    plant(module, size)
    image, box = scene(8, grid, target)
    for attention in ATTENTION:
        module.set_attn_implementation(attention)
        acts = vitviz.capture(in_brightness(watched(module, size)), image)
        assert [layer.refusal for layer in acts.layers] == [None, None]
        assert acts.layers[0].prefix == prefix_of(name)
        assert (acts.grid, acts.patch_size) == (grid, 8)
        assert_found(acts, target, 8)
        assert patch_box(acts.crop, acts.grid, *target) == pytest.approx(box, abs=1)


@pytest.mark.parametrize("name", [name for name in GLOBAL if name[:4] not in ("DINO", "Beit")])
def test_the_positions_of_patches_are_those_of_their_own_grid(name: str) -> None:
    module = module_of(name, size=48)
    table = watched(module, (48, 48)).patch_positions
    assert table is not None
    parameters = dict(module.named_parameters())
    own = next(w for path, w in parameters.items() if "position_embedding" in path).detach()
    np.testing.assert_array_equal(table, own.flatten(0, -2)[-36:])
    assert watched(module, (40, 24)).patch_positions is None  # they are interpolated


def answer(module: nn.Module, x: torch.Tensor) -> torch.Tensor | None:
    """What a pass that nobody watches answers, by the names that transformers gives it."""
    with torch.inference_mode():
        returned = module(x)
    names = (
        "logits",
        "image_embeds",
        *(("pooler_output",) if "Siglip" in str(type(module)) else ()),
    )
    found = [getattr(returned, name) for name in names if getattr(returned, name, None) is not None]
    return found[0][0] if found else None


@pytest.mark.parametrize("name", CLASSES)
def test_watching_changes_nothing(name: str) -> None:
    module = module_of(name)
    for attention in ATTENTION:
        module.set_attn_implementation(attention)
        model = watched(module, (32, 32))
        acts = vitviz.capture(model, picture())
        expected = answer(module, model.preprocess(picture())[None])
        if expected is None:
            assert acts.logits is None
        else:
            np.testing.assert_array_equal(acts.logits, expected.numpy())
        for layer in range(acts.depth):
            np.testing.assert_allclose(acts.attention(layer).sum(axis=2), 1, rtol=0, atol=1e-5)
        assert model.patch_kernel is not None
        assert model.patch_kernel.shape == (32, 3, 8, 8)


@pytest.mark.parametrize("name", CLASSES)
def test_attention_and_tokens_are_those_that_transformers_returns(name: str) -> None:
    model = small(name, "eager")
    acts = vitviz.capture(model, picture())
    with torch.inference_mode():
        own = model.module(
            model.preprocess(picture())[None], output_attentions=True, output_hidden_states=True
        )
    for layer in range(acts.depth):
        np.testing.assert_allclose(acts.attention(layer), own.attentions[layer][0], atol=1e-6)
    for depth in range(acts.depth):
        np.testing.assert_array_equal(acts.tokens(depth), own.hidden_states[depth][0])


@pytest.mark.parametrize("name", [name for name in GLOBAL if "ForImageClassification" in name])
def test_the_lens_ends_with_the_answer(name: str) -> None:
    model = small(name)
    acts = vitviz.capture(model, picture())
    before = {key: value.clone() for key, value in model.module.state_dict().items()}
    lens = logit_lens(model, acts)
    assert acts.probabilities is not None
    np.testing.assert_allclose(lens[-1], acts.probabilities, atol=1e-6)
    assert np.abs(lens[0] - lens[-1]).max() > 1e-4
    after = model.module.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_what_the_head_reads() -> None:
    def read(name: str) -> tuple[str, ...]:
        return small(name).read_tokens

    assert read("ViTForImageClassification") == ("cls",)
    assert read("IJepaForImageClassification") == ("patches",)
    assert read("DeiTForImageClassification") == ("cls",)
    assert read("DeiTForImageClassificationWithTeacher") == ("cls", "dist")
    assert read("Dinov2ForImageClassification") == ("cls", "patches")
    assert read("Dinov2WithRegistersForImageClassification") == ("cls", "patches")
    assert read("BeitForImageClassification") == ("patches",)
    assert read("CLIPVisionModelWithProjection") == ("cls",)
    assert read("CLIPForImageClassification") == ("patches",)
    assert small("CLIPForImageClassification").final_norm is None  # its head reads what is before
    assert read("SiglipForImageClassification") == ("patches",)
    assert read("SiglipVisionModel") == ("patches",)


@pytest.mark.parametrize("shared", [False, True])
def test_the_relative_bias_of_beit_is_in_its_scores(shared: bool) -> None:
    options = dict(use_relative_position_bias=not shared, use_shared_relative_position_bias=shared)
    model = small("BeitForImageClassification", **options)
    assert model.positional_attention
    assert not small("BeitForImageClassification").positional_attention
    acts = vitviz.capture(model, picture())
    scale, bias = acts.score_terms(0)
    assert bias is not None
    scores = acts.queries(0) @ acts.keys(0).swapaxes(1, 2) * scale + bias
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    expected = weights / weights.sum(axis=2, keepdims=True)
    np.testing.assert_allclose(acts.attention(0), expected, atol=1e-6)
    assert np.abs(bias).max() > 0.1


@pytest.mark.parametrize("attention", ATTENTION)
def test_each_picture_of_a_batch_equals_its_own_capture(attention: str) -> None:
    model = small("ViTForImageClassification", attention)
    assert_same_in_a_batch(model, [picture(seed=seed) for seed in range(4)])


def test_flex_attention_is_refused_in_one_way_everywhere() -> None:
    module = module_of("ViTForImageClassification")
    model = watched(module, (32, 32))
    module.set_attn_implementation("flex_attention")
    for ask in (
        lambda: vitviz.capture(model, picture()),
        lambda: vitviz.capture(model, picture(), edits=[vitviz.MuteHeads([(0, 0)])]),
        lambda: vitviz.attribution.relevance(model, picture(), 0),
        lambda: vitviz.intervention.head_effects(model, picture()),
        lambda: model.read_tokens,
    ):
        with pytest.raises(ModelError, match=r"by flex_attention, whose weights no hook can read"):
            ask()
    module.set_attn_implementation("sdpa")
    assert not vitviz.capture(model, picture()).refusal


def test_attention_of_another_kernel_is_refused() -> None:
    """One that calls neither the fused kernel nor a softmax, as flash attention does not."""

    def hidden(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        weights = (q @ k.transpose(2, 3) * scaling).exp()
        heads = weights / weights.sum(dim=-1, keepdim=True) @ v
        return heads.transpose(1, 2).contiguous(), None

    def flipped(module: Any, q: Any, k: Any, v: Any, mask: Any, scaling: float, **_: Any) -> Any:
        weights = (q @ k.flip(2).transpose(2, 3) * scaling).softmax(dim=-1)
        return (weights @ v.flip(2)).transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register("vitviz_flipped", flipped)
    module = module_of("CLIPVisionModel", "vitviz_flipped")
    size = vitviz.Preprocessing(input_size=(32, 32), mean=(0.5,) * 3, std=(0.5,) * 3)
    acts = vitviz.capture(vitviz.watch(module, preprocessing=size), picture())
    assert all("puts its tokens into another order" in str(each.refusal) for each in acts.layers)
    transformers.AttentionInterface.register("vitviz_hidden", hidden)
    acts = vitviz.capture(small("CLIPVisionModel", "vitviz_hidden"), picture())
    assert all("uses neither softmax nor" in str(each.refusal) for each in acts.layers)
    assert_clear_error(str(acts.layers[0].refusal))
