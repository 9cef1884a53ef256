"""torchvision's ViT and Swin, and open_clip's image tower, recognised by their class names."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ...common.query import Grid
from .description import (
    Family,
    ModelError,
    Parts,
    Site,
    class_name,
    has_weights,
    is_class,
    layer_at,
    unwrap,
    without_adapter,
)
from .staged import halve_grid, shifted_windows

_SWIN_BLOCKS = ("SwinTransformerBlock", "SwinTransformerBlockV2")


def _is(module: nn.Module, place: str, name: str) -> bool:
    return is_class(module, f"torchvision.models.{place}", name)


def _is_vit(module: Any) -> bool:
    return (
        _is(module, "vision_transformer", "VisionTransformer")
        and isinstance(without_adapter(module.conv_proj), nn.Conv2d)  # not a stem of several layers
        and all(
            class_name(block) == "EncoderBlock"
            and isinstance(unwrap(block.self_attention), nn.MultiheadAttention)
            for block in module.encoder.layers
        )
    )


def _vit_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    return fixed_size_sites(
        "torchvision",
        {f"encoder.layers.{name}": block for name, block in module.encoder.layers.named_children()},
        lambda block: block.num_heads,
        sizes=((module.image_size,) * 2, (module.patch_size,) * 2),
        input_size=input_size,
    )


def fixed_size_sites(
    library: str,
    blocks: Mapping[str, Any],
    heads: Callable[[Any], int],
    *,
    sizes: tuple[Grid, Grid],
    input_size: Grid,
) -> tuple[Site, ...]:
    """Describe the blocks, by their paths, of a ViT for one picture size and patch size."""
    own, patch = sizes
    if input_size != own:
        raise ModelError(
            "This ViT of {library} takes pictures of {own_height} x {own_width} pixels only, got "
            "{height} x {width}.",
            library=library,
            own_height=own[0],
            own_width=own[1],
            height=input_size[0],
            width=input_size[1],
        )
    return tuple(
        Site(
            layer=layer_at(
                name,
                (own[0] // patch[0], own[1] // patch[1]),
                patch,
                input_size,
                heads=heads(block),
                kind="global",
                prefix=("cls",),
            ),
            block=block,
            middle="ln_2",
        )
        for name, block in blocks.items()
    )


def _vit_parts(module: Any) -> Parts:
    return Parts(
        embedding=module.conv_proj,
        kernel=module.conv_proj,
        norm=module.encoder.ln,
        pooled_norm=None,
        positions="encoder.pos_embedding",
        prefix=(module.class_token,),
        heads=("heads",),
        width=module.hidden_dim,
        has_head=has_weights(module.heads),
    )


def _is_swin(module: Any) -> bool:
    return _is(module, "swin_transformer", "SwinTransformer") and all(
        class_name(block) in _SWIN_BLOCKS for stage in module.features[1::2] for block in stage
    )


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe Swin: stages have the odd numbers, and the modules between them halve the grid."""
    step: Grid = without_adapter(module.features[0][0]).kernel_size
    grid, sites = (input_size[0] // step[0], input_size[1] // step[1]), []
    for number, stage in enumerate(module.features[1::2]):
        if number:
            grid, step = halve_grid(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage):
            name, heads = f"features.{2 * number + 1}.{index}", block.attn.num_heads
            layer = layer_at(name, grid, step, input_size, heads=heads, stage=number)
            size = (block.attn.window_size[0], block.attn.window_size[1])
            shift = tuple(
                0 if window >= extent + -extent % window else by
                for window, extent, by in zip(size, grid, block.attn.shift_size, strict=True)
            )
            windows = shifted_windows(grid, size, (shift[0], shift[1]), padded_first=True)
            middle = "mlp" if class_name(block).endswith("V2") else "norm2"
            sites.append(
                Site(layer=layer, block=block, middle=middle, layout="rows", windows=windows)
            )
    return tuple(sites)


def _swin_parts(module: Any) -> Parts:
    return Parts(
        embedding=module.features[0],
        kernel=module.features[0][0],
        norm=module.norm,
        pooled_norm=None,
        positions="",
        prefix=(),
        heads=("head",),
        width=int(module.norm.normalized_shape[0]),
        has_head=has_weights(module.head),
    )


TORCHVISION = (
    Family(
        name="ViT",
        recognises=_is_vit,
        sites=_vit_sites,
        parts=_vit_parts,
    ),
    Family(
        name="Swin",
        recognises=_is_swin,
        sites=_swin_sites,
        parts=_swin_parts,
        positional_attention=lambda module: True,
    ),
)

# open_clip's image tower is a ViT with a projection; its embedding is compared with words.


def _is_tower(module: Any) -> bool:
    return is_class(module, "open_clip.transformer", "VisionTransformer") and all(
        _has_known_attention(block) for block in module.transformer.resblocks
    )


def _has_known_attention(block: Any) -> bool:
    attn = unwrap(block.attn)
    if isinstance(attn, nn.MultiheadAttention):
        return class_name(block) == "ResidualAttentionBlock" and attn.batch_first
    return class_name(block) == "CustomResidualAttentionBlock" and attn.logit_scale is None


def _tower_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    blocks = enumerate(module.transformer.resblocks)
    return fixed_size_sites(
        "open_clip",
        {f"transformer.resblocks.{index}": block for index, block in blocks},
        lambda block: unwrap(block.attn).num_heads,
        sizes=(module.image_size, module.patch_size),
        input_size=input_size,
    )


def _tower_parts(module: Any) -> Parts:
    norm, pooled_norm = (
        (None, module.ln_post) if module.final_ln_after_pool else (module.ln_post, None)
    )
    if module.attn_pool is not None:  # its norm follows the pooling, in another width
        norm = pooled_norm = None
    width = int(module.class_embedding.shape[0])
    return Parts(
        embedding=module.conv1,
        kernel=module.conv1,
        norm=norm,
        pooled_norm=pooled_norm,
        positions="positional_embedding",
        prefix=(module.class_embedding,),
        heads=(),
        width=width,
        has_head=module.proj is not None,
        embeds=True,
    )


def _run_tower(module: Any, x: Tensor, options: Mapping[str, Any]) -> Any:
    """Return only the embedding, even if the tower is set to return its tokens too."""
    output = module(x)
    return output[0] if isinstance(output, tuple) else output


OPEN_CLIP = (
    Family(
        name="CLIP", recognises=_is_tower, sites=_tower_sites, parts=_tower_parts, run=_run_tower
    ),
)
