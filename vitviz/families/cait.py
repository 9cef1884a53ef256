"""CaiT: patches attend among themselves, then the class token alone attends to all of them."""

from typing import Any

from .description import Family, Grid, Layer, Site, checked_grid, is_timm, kinds_of, present, side
from .plain import timm_grid, timm_step


def _sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Self-attention layers with talking heads (mixed around the softmax), then class attention.

    References
    ----------
    Touvron et al., "Going deeper with Image Transformers" (ICCV 2021), sections 3 and 4.
    """
    grid, step = checked_grid(timm_grid(module, input_size), input_size), timm_step(module)

    def layer(name: str, kind: str, block: Any, prefix: tuple[str, ...]) -> Layer:
        return Layer(
            name=name,
            kind=kind,
            stage=0,
            num_heads=block.attn.num_heads,
            query_grid=grid,
            key_grid=grid,
            prefix=prefix,
            patch_size=side(*step),
        )

    patches = tuple(
        Site(
            layer=layer(f"blocks.{index}", "global", block, ()),
            block=block,
            mixing=block.attn.proj_w,
        )
        for index, block in present(module.blocks)
    )
    return patches + tuple(
        Site(layer=layer(f"blocks_token_only.{index}", "class", block, ("cls",)), block=block)
        for index, block in present(module.blocks_token_only)
    )


def _is_cait(module: Any) -> bool:
    return (
        is_timm(module, "cait", "Cait")
        and kinds_of(module.blocks) == {("LayerScaleBlock", "TalkingHeadAttn")}
        and module.blocks_token_only is not None
        and kinds_of(module.blocks_token_only) == {("LayerScaleBlockClassAttn", "ClassAttn")}
    )


CAIT = (Family(name="CaiT", recognises=_is_cait, sites=_sites),)
