"""CaiT: patches attend among themselves, then the class token alone attends to all of them."""

from typing import Any

from .description import Family, Grid, Layer, Site, is_timm, kinds_of, layer_at, present
from .plain import timm_grid, timm_step


def _sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Self-attention layers with talking heads (mixed around the softmax), then class attention.

    References
    ----------
    Touvron et al., "Going deeper with Image Transformers" (ICCV 2021), sections 3 and 4.
    """
    grid, step = timm_grid(module, input_size), timm_step(module)

    def layer(name: str, kind: str, block: Any, prefix: tuple[str, ...]) -> Layer:
        heads = block.attn.num_heads
        return layer_at(name, grid, step, input_size, heads=heads, kind=kind, prefix=prefix)

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
