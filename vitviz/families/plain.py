"""Families with global attention in every layer and one grid of patches: ViT, DeiT, EVA, BEiT."""

from collections.abc import Callable
from typing import Any

from torch import nn

from ..vit import VisionTransformer
from .description import Family, Grid, Site, is_timm, kinds_of, layer_at, present

_USUAL = {("Block", "Attention")}
_VIT = (_USUAL, {("ResPostBlock", "Attention")}, {("ParallelScalingBlock", "NoneType")})
_EVA = (
    {("EvaBlock", "EvaAttention")},
    {("EvaBlock", "AttentionRope")},
    {("EvaBlockPostNorm", "EvaAttention")},
)
_RELPOS = ({("RelPosBlock", "RelPosAttention")}, {("ResPostRelPosBlock", "RelPosAttention")})


def _middle(block: nn.Module) -> str:
    """The module whose input is the stream between attention and MLP: pre-norm or post-norm."""
    kind = type(block).__name__
    if kind.startswith("Parallel"):
        return ""
    return "mlp" if kind.startswith("ResPost") or kind.endswith("PostNorm") else "norm2"


def _global_sites(
    prefix: Callable[[Any], tuple[str, ...]],
    grid: Callable[[Any, Grid], Grid],
    step: Callable[[Any], Grid],
    *,
    biased: bool = False,
) -> Callable[[Any, Grid], tuple[Site, ...]]:
    """What makes the sites of a module with global attention in every layer."""

    def sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
        cnn = getattr(module.patch_embed, "backbone", None)
        return tuple(
            Site(
                layer=layer_at(
                    f"blocks.{index}",
                    grid(module, input_size),
                    step(module),
                    input_size,
                    heads=getattr(block, "attn", block).num_heads,
                    kind="global",
                    prefix=prefix(module),
                ),
                block=block,
                middle=_middle(block),
                biased=biased,
                steps=() if cnn is None else (cnn,),
            )
            for index, block in present(module.blocks)
        )

    return sites


def _timm(place: str, name: str, *kinds: set[tuple[str, str]]) -> Callable[[nn.Module], bool]:
    return lambda module: is_timm(module, place, name) and kinds_of(module.blocks) in kinds


def _own_prefix(module: VisionTransformer) -> tuple[str, ...]:
    names = [
        name
        for name, token in (("cls", module.cls_token), ("dist", module.dist_token))
        if token is not None
    ]
    return (*names, *_registers(module))


def _timm_prefix(module: Any) -> tuple[str, ...]:
    return (("cls",) if module.cls_token is not None else ()) + _registers(module)


def _registers(module: Any) -> tuple[str, ...]:
    token = getattr(module, "reg_token", None)
    count = 0 if token is None else token.shape[1]
    return tuple(f"reg{number + 1}" for number in range(count))


def timm_grid(module: Any, input_size: Grid) -> Grid:
    """Rows and columns of patches: never a square root, and never `grid_size`, which is stale
    when the picture size is dynamic."""
    rows, cols = module.patch_embed.dynamic_feat_size(input_size)
    return rows, cols


def timm_step(module: Any) -> Grid:
    height, width = module.patch_embed.feat_ratio(as_scalar=False)
    return height, width


_timm_sites = _global_sites(_timm_prefix, timm_grid, timm_step)
_biased_sites = _global_sites(_timm_prefix, timm_grid, timm_step, biased=True)

PLAIN = (
    Family(
        name="ViT",
        recognises=lambda module: type(module) is VisionTransformer,
        sites=_global_sites(
            _own_prefix,
            lambda module, input_size: module.patch_embed.grid_size,
            lambda module: module.patch_embed.patch_size,
        ),
    ),
    Family(
        name="ViT",
        recognises=_timm("vision_transformer", "VisionTransformer", *_VIT),
        sites=_timm_sites,
    ),
    Family(
        name="DeiT distilled",
        recognises=_timm("deit", "VisionTransformerDistilled", _USUAL),
        sites=_global_sites(lambda module: ("cls", "dist"), timm_grid, timm_step),
    ),
    Family(
        name="EVA",  # and DINOv3, and the ViTs with a rotary position embedding
        recognises=_timm("eva", "Eva", *_EVA),
        sites=_timm_sites,
        positional_attention=lambda module: module.rope is not None,
    ),
    Family(
        name="BEiT",
        recognises=_timm("beit", "Beit", _USUAL),
        sites=_biased_sites,
        positional_attention=lambda module: (
            module.rel_pos_bias is not None
            or any(b.attn.relative_position_bias_table is not None for b in module.blocks)
        ),
    ),
    Family(
        name="ViT with relative positions",
        recognises=_timm("vision_transformer_relpos", "VisionTransformerRelPos", *_RELPOS),
        sites=_biased_sites,
        positional_attention=lambda module: True,
    ),
)
