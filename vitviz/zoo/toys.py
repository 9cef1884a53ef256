"""Small models with random weights, one for each family, to show which tokens attend to which."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..model import Model
from .architectures import create, import_timm, preprocessing_of


@dataclass(frozen=True, kw_only=True)
class Toy:
    """Options that make a family's architecture small.

    Attributes
    ----------
    architecture : str
        timm's name of an architecture in the menu.
    narrow : mapping
        Options of timm that reduce channels and heads only.
    small : mapping
        Further options, for few layers on a small grid.
    size : int
        Side of the small model's input in pixels.
    """

    architecture: str
    narrow: Mapping[str, Any]
    small: Mapping[str, Any]
    size: int


_PLAIN: dict[str, Any] = dict(embed_dim=16, num_heads=1)
_MAXXVIT: dict[str, Any] = dict(stem_width=16, embed_dim=(32, 32, 32, 32))
TOYS: Mapping[str, Toy] = {
    "ViT": Toy(architecture="vit_tiny_patch16_224", narrow=_PLAIN, small=dict(depth=1), size=48),
    "DeiT": Toy(
        architecture="deit_tiny_distilled_patch16_224", narrow=_PLAIN, small=dict(depth=1), size=48
    ),
    "Hybrid": Toy(
        architecture="vit_small_r26_s32_224", narrow=_PLAIN, small=dict(depth=1), size=96
    ),
    "Swin": Toy(
        architecture="swin_tiny_patch4_window7_224",
        narrow=dict(embed_dim=16, num_heads=(1, 1, 1, 1)),
        small=dict(window_size=4, depths=(2,), num_heads=(1,)),
        size=32,
    ),
    "PVT": Toy(
        architecture="pvt_v2_b0",
        narrow=dict(embed_dims=(8, 8, 8, 8), num_heads=(1, 1, 1, 1)),
        small=dict(
            depths=(1, 1), sr_ratios=(2, 1), embed_dims=(8, 8), num_heads=(1, 1), mlp_ratios=(4, 4)
        ),
        size=32,
    ),
    "CoAtNet": Toy(
        architecture="coatnet_0_rw_224",
        narrow=_MAXXVIT,
        small=dict(depths=(1, 1, 1, 1)),
        size=64,
    ),
    "MaxViT": Toy(
        architecture="maxvit_tiny_tf_224",
        narrow=_MAXXVIT,
        small=dict(depths=(1,), embed_dim=(32,), block_type=("M",), transformer_partition_ratio=8),
        size=32,
    ),
    "CaiT": Toy(
        architecture="cait_xxs24_224",
        narrow=_PLAIN,
        small=dict(depth=1, depth_token_only=1),
        size=48,
    ),
    "MLP-Mixer": Toy(
        architecture="mixer_b16_224",
        narrow=dict(num_blocks=12, embed_dim=16),
        small=dict(num_blocks=1),
        size=48,
    ),
}


def narrow_model(family: str) -> Model:
    """Build the family's architecture with its own layers and grids, and few channels.

    Parameters
    ----------
    family : a key of TOYS
    """
    toy = TOYS[family]
    return _build_toy(f"{toy.architecture}, narrow", toy.architecture, toy.narrow, None)


def toy_model(family: str) -> Model:
    """Build the family's architecture with few layers on a small grid.

    Parameters
    ----------
    family : a key of TOYS
    """
    toy = TOYS[family]
    return _build_toy(f"{family}, toy", toy.architecture, {**toy.narrow, **toy.small}, toy.size)


def _build_toy(name: str, architecture: str, options: Mapping[str, Any], side: int | None) -> Model:
    size = None if side is None else (side, side)
    if size is not None and not architecture.startswith(
        "pvt"
    ):  # PVT takes any size without an option
        options = {**options, "img_size": side}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = _create_module(architecture, dict(options))
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=preprocessing_of(module, size),
        trained=False,
        weights="random weights",
    )


def _create_module(architecture: str, options: dict[str, Any]) -> Any:
    if architecture.startswith("mixer"):  # timm's name would fix its width
        return import_timm().models.MlpMixer(**options)
    return create(architecture, options)
