"""The position encodings that are named are those on which the output depends."""

from typing import Any

import pytest
import timm
import torch
from examples import narrow_stems, own_module, randomise
from torch import nn

from vitviz.model.families import family_of, position_encodings
from vitviz.zoo import toy_model


def sources_of(module: nn.Module, input_size: tuple[int, int]) -> tuple[str, ...]:
    return position_encodings(module, family_of(module).layers(module, input_size))


def exchanged(x: torch.Tensor, patch: int) -> torch.Tensor:
    """The input with its first patch and one of the middle in each other's places."""
    first, other = slice(0, patch), slice(2 * patch, 3 * patch)
    changed = x.clone()
    changed[..., first, first] = x[..., other, first]
    changed[..., other, first] = x[..., first, first]
    return changed


def depends_on_places(module: Any, input_size: tuple[int, int], patch: int) -> bool:
    """Whether the answer is another when two patches are exchanged, without an embedding."""
    table = getattr(module, "pos_embed", None)
    if table is not None:
        with torch.no_grad():
            table.zero_()
    x = torch.randn(1, 3, *input_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        before, after = module(x), module(exchanged(x, patch))
    return bool((before - after).abs().max() > 1e-3 * before.abs().max())


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({}, ("embedding",)),
        (dict(class_token=False), ("embedding",)),
        (dict(distillation_token=True, registers=2), ("embedding",)),
        (dict(positions="sincos2d"), ("embedding",)),
        (dict(positions="none"), ()),
        (dict(stem_width=8), ("embedding", "convolutions")),
        (dict(positions="none", stem_width=8), ("convolutions",)),
    ],
)
def test_own_models(options: dict[str, Any], wanted: tuple[str, ...]) -> None:
    module = own_module(**options)
    size = module.patch_embed.image_size
    assert sources_of(module, size) == wanted
    assert depends_on_places(module, size, 4) == bool(set(wanted) - {"embedding"})


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("vit_tiny_patch16_224", ("embedding",)),
        ("deit_tiny_distilled_patch16_224", ("embedding",)),
        ("vit_base_patch16_siglip_224", ("embedding",)),
        ("beit_base_patch16_224", ("relative bias",)),
        ("vit_relpos_small_patch16_224", ("relative bias",)),
        ("vit_relpos_base_patch16_clsgap_224", ("relative bias",)),
        ("eva02_tiny_patch14_224", ("embedding", "rotary")),
        ("vit_small_patch16_dinov3", ("rotary",)),
    ],
)
def test_models_of_timm_in_one_grid(name: str, wanted: tuple[str, ...]) -> None:
    patch = 14 if "14" in name else 16
    module: Any = timm.create_model(name, img_size=4 * patch, depth=2, embed_dim=48, num_heads=2)
    randomise(module.eval())
    size = (4 * patch, 4 * patch)
    assert sources_of(module, size) == wanted
    assert depends_on_places(module, size, patch) == bool(set(wanted) - {"embedding"})


@pytest.mark.parametrize(
    ("family", "wanted"),
    [
        ("Hybrid", ("embedding", "convolutions")),
        ("CaiT", ("embedding",)),
        ("Swin", ("relative bias",)),
        ("PVT", ("convolutions",)),
        ("CoAtNet", ("relative bias", "convolutions")),
        ("MaxViT", ("relative bias", "convolutions")),
        ("MLP-Mixer", ("mixing",)),
    ],
)
def test_other_families(family: str, wanted: tuple[str, ...]) -> None:
    with narrow_stems():
        model = toy_model(family)
    module, size = model.module, model.preprocess.input_size
    randomise(module)
    assert position_encodings(module, model.layers) == wanted
    patch = model.layers[0].patch_size
    assert isinstance(patch, int)
    found = depends_on_places(module, size, patch)
    assert found == bool(set(wanted) - {"embedding"})
