"""Each family is recognised with its tokens, grid and patch size; every other one is refused."""

import warnings
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import assert_clear_error, own_module, picture, timm_module, watched
from timm.models.vision_transformer import Attention as TimmAttention
from timm.models.vision_transformer import Block as TimmBlock
from timm.models.vision_transformer import VisionTransformer as TimmViT
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    apply_activation_checkpointing,
)

import vitviz
from vitviz.model.families import ModelError, family_of
from vitviz.vit import VisionTransformer
from vitviz.zoo.architectures import on_meta_device


def on_meta(name: str, **options: Any) -> Any:
    """A model of timm without numbers: its structure is all that a family reads."""
    with on_meta_device():
        return timm.create_model(name, **options)


# --- tokens before the patches ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "prefix"),
    [
        (dict(), ("cls",)),
        (dict(class_token=False), ()),
        (dict(distillation_token=True), ("cls", "dist")),
        (dict(registers=3), ("cls", "reg1", "reg2", "reg3")),
        (dict(class_token=False, registers=1), ("reg1",)),
        (dict(distillation_token=True, registers=1), ("cls", "dist", "reg1")),
    ],
)
def test_prefix_of_the_own_model(options: dict[str, Any], prefix: tuple[str, ...]) -> None:
    module = own_module(**options)
    family = family_of(module)
    layers = family.layers(module, (16, 24))
    assert family.name == "ViT"
    assert [layer.name for layer in layers] == ["blocks.0", "blocks.1", "blocks.2"]
    for layer in layers:
        assert layer.prefix == prefix
        assert (layer.kind, layer.stage, layer.num_heads) == ("global", 0, 4)
        assert layer.query_grid == layer.key_grid == (4, 6)
        assert layer.patch_size == 4
        assert layer.refusal is None


@pytest.mark.parametrize(
    ("name", "family", "prefix"),
    [
        ("vit_tiny_patch16_224", "ViT", ("cls",)),
        ("vit_wee_patch16_reg1_gap_256", "ViT", ("reg1",)),
        ("deit_tiny_distilled_patch16_224", "DeiT distilled", ("cls", "dist")),
        ("vit_small_r26_s32_224", "ViT", ("cls",)),
        ("eva02_tiny_patch14_224", "EVA", ("cls",)),
        ("beit_base_patch16_224", "BEiT", ("cls",)),
        ("test_vit_relpos", "ViT with relative positions", ()),
    ],
)
def test_prefix_of_timms_models(name: str, family: str, prefix: tuple[str, ...]) -> None:
    module = on_meta(name, depth=2)
    found = family_of(module)
    layers = found.layers(module, module.patch_embed.img_size)
    assert found.name == family
    assert {layer.prefix for layer in layers} == {prefix}
    assert {layer.num_heads for layer in layers} == {module.blocks[0].attn.num_heads}
    assert len(layers) == 2
    assert len(prefix) == module.num_prefix_tokens


# --- grid and patch size ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "input_size", "grid", "patch_size"),
    [
        ("vit_tiny_patch16_224", dict(), (224, 224), (14, 14), 16),
        ("vit_tiny_patch16_224", dict(img_size=(160, 224)), (160, 224), (10, 14), 16),
        ("vit_small_patch32_224", dict(img_size=(224, 96)), (224, 96), (7, 3), 32),
        ("vit_small_patch14_dinov2", dict(img_size=(140, 196)), (140, 196), (10, 14), 14),
        ("deit_tiny_distilled_patch16_224", dict(img_size=(160, 224)), (160, 224), (10, 14), 16),
        # The picture size is dynamic: what the module keeps as its own grid says nothing.
        ("vit_tiny_patch16_224", dict(dynamic_img_size=True), (160, 224), (10, 14), 16),
        ("vit_small_patch14_dinov2", dict(dynamic_img_size=True), (70, 42), (5, 3), 14),
        # Patches of another height than width.
        ("vit_tiny_patch16_224", dict(patch_size=(16, 8)), (224, 224), (14, 28), (16, 8)),
        # Pictures that the patches do not fill: the step stays the patch's.
        ("vit_so400m_patch14_siglip_384", dict(), (384, 384), (27, 27), 14),
        ("vit_tiny_patch16_224", dict(img_size=239), (239, 239), (14, 14), 16),
        (
            "vit_tiny_patch16_224",
            dict(img_size=230, dynamic_img_pad=True),
            (230, 230),
            (15, 15),
            16,
        ),
        # One step of a hybrid's grid is the product of its CNN's stride and its patch.
        ("vit_tiny_r_s16_p8_224", dict(), (224, 224), (7, 7), 32),
    ],
)
def test_grid_of_timms_models(
    name: str,
    options: dict[str, Any],
    input_size: tuple[int, int],
    grid: tuple[int, int],
    patch_size: int | tuple[int, int],
) -> None:
    module = on_meta(name, depth=1, **options)
    (layer,) = family_of(module).layers(module, input_size)
    assert layer.query_grid == layer.key_grid == grid
    assert layer.patch_size == patch_size
    assert layer.patch_side == (patch_size if isinstance(patch_size, tuple) else (patch_size,) * 2)


# --- refusals -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("xcit_nano_12_p16_224", "Xcit cannot be read: it attends between channels"),
        ("hiera_tiny_224", "Hiera cannot be read: it reorders its tokens"),
        ("mobilevit_xxs", "folds pixel positions into the batch"),
        ("mobilevitv2_050", "weighs tokens by one context score"),
        ("vit_dwee_patch16_reg1_gap_256", "subtracts one attention from another"),
        ("vit_small_patch16_18x2_224", "runs two attentions side by side"),
        ("samvit_base_patch16_224", "attends in padded windows"),
        ("naflexvit_base_patch16_gap", "takes pictures as lists of patches"),
        ("convit_tiny", "blends content and position attention"),
        ("crossvit_9_240", "two grids of patches"),
        ("volo_d1_224", "computes its weights from single tokens"),
        ("resnet18", "ResNet has no attention to draw a map of"),
    ],
)
def test_other_families_are_refused_with_what_is_missing(name: str, words: str) -> None:
    with on_meta_device(), pytest.raises(ModelError, match=words) as caught:
        vitviz.load_model(name, pretrained=False)
    assert_clear_error(caught.value)


def test_attention_hidden_in_pytorchs_own_layer_is_refused() -> None:
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    with pytest.raises(ModelError, match=r"nn\.MultiheadAttention") as caught:
        family_of(nn.TransformerEncoder(layer, 2))
    assert_clear_error(caught.value)


def test_a_traced_module_is_refused() -> None:
    module = own_module()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls its own tracing outdated
        traced = torch.jit.trace(module, torch.zeros(1, 3, 16, 24))
    for kind in (traced, torch.fx.symbolic_trace(nn.Linear(2, 2))):
        with pytest.raises(ModelError, match="is a traced module") as caught:
            family_of(kind)
        assert_clear_error(caught.value)


def test_one_unusual_attention_is_enough_to_be_refused() -> None:
    class TalkingHeads(nn.Module):
        pass

    module = TimmViT(img_size=32, embed_dim=16, depth=3, num_heads=2)
    family_of(module)
    module.blocks[1].attn = TalkingHeads()
    with pytest.raises(ModelError):
        family_of(module)


@pytest.mark.parametrize("parent", [VisionTransformer, TimmViT])
def test_a_subclass_is_read_as_what_it_extends(parent: type[nn.Module]) -> None:
    class Derived(parent):  # type: ignore[misc, valid-type]
        def last_attention(self) -> None:
            """One method more, as DINO's ViT has."""

    sizes: dict[str, Any] = {"embed_dim": 16, "depth": 2, "num_heads": 2}
    plain, module = (kind(**sizes).eval() for kind in (parent, Derived))
    module.load_state_dict(plain.state_dict())
    own, acts = (vitviz.capture(watched(each, (224, 224)), picture()) for each in (plain, module))
    np.testing.assert_array_equal(acts.attention(1), own.attention(1))
    np.testing.assert_array_equal(acts.logits, own.logits)


def test_what_a_subclass_of_a_block_does_is_proved() -> None:
    class Parallel(TimmBlock):
        def forward(self, x: torch.Tensor, *mask: Any, **options: Any) -> torch.Tensor:
            return x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))

    class OfOwn(TimmAttention):
        minus = 0.0

        def forward(self, x: torch.Tensor, *mask: Any, **options: Any) -> torch.Tensor:
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-2, -1)).softmax(dim=-1)
            return self.proj((weights @ v - self.minus * v).transpose(1, 2).flatten(2))

    module = timm_module("test_vit")
    acts = vitviz.capture(watched(module, (160, 160)), picture())
    module.blocks[0].__class__, module.blocks[1].attn.__class__ = Parallel, OfOwn
    changed = vitviz.capture(watched(module, (160, 160)), picture())
    np.testing.assert_array_equal(changed.attention(0), acts.attention(0))
    with pytest.raises(ModelError, match="a forward of its own"):
        changed.tokens_after_attention(0)
    assert changed.tokens_after_attention(1).shape == changed.tokens(1).shape
    np.testing.assert_array_equal(changed.attention(1).sum(axis=2).round(5), 1)
    module.blocks[1].attn.minus = 1.0
    with pytest.raises(ModelError, match="does more to its heads than join them"):
        vitviz.capture(watched(module, (160, 160)), picture()).attention(1)


@pytest.mark.parametrize("wrapped", ["Block", "Attention", "Mlp"])
def test_blocks_in_a_checkpoint_wrapper_are_read(wrapped: str) -> None:
    module = timm_module("test_vit")
    plain = vitviz.capture(watched(module, (160, 160)), picture())
    apply_activation_checkpointing(module, check_fn=lambda part: type(part).__name__ == wrapped)
    module.eval()
    model = watched(module, (160, 160))
    acts = vitviz.capture(model, picture())
    for layer in range(acts.depth):
        np.testing.assert_array_equal(acts.attention(layer), plain.attention(layer))
        after = plain.tokens_after_attention(layer)
        np.testing.assert_array_equal(acts.tokens_after_attention(layer), after)
    np.testing.assert_array_equal(acts.logits, plain.logits)
    assert model.read_tokens == plain.read_tokens
    with pytest.raises(ModelError, match="CheckpointWrapper of PyTorch"):
        vitviz.attribution.relevance(model, picture(), target=0)
