"""torchvision's ViT and Swin; a module that comes from there is known by its class's name."""

from typing import Any

import torch
from torch import Tensor, nn

from .description import Family, Grid, ModelError, Parts, Site, layer_at
from .rest import given_tokens
from .staged import halved
from .windows import shifted_windows

_SWIN_BLOCKS = ("SwinTransformerBlock", "SwinTransformerBlockV2")


def _is(module: nn.Module, place: str, name: str) -> bool:
    kind = type(module)
    return (kind.__module__, kind.__name__) == (f"torchvision.models.{place}", name)


def _is_vit(module: Any) -> bool:
    return (
        _is(module, "vision_transformer", "VisionTransformer")
        and isinstance(module.conv_proj, nn.Conv2d)  # and no stem of several
        and all(
            _is(block, "vision_transformer", "EncoderBlock")
            and type(block.self_attention) is nn.MultiheadAttention
            for block in module.encoder.layers
        )
    )


def _vit_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    patch, own = module.patch_size, module.image_size
    if input_size != (own, own):
        raise ModelError(
            "This ViT of torchvision takes pictures of {own} x {own} pixels and no "
            "others, got {height} x {width}.",
            own=own,
            height=input_size[0],
            width=input_size[1],
        )
    return tuple(
        Site(
            layer=layer_at(
                f"encoder.layers.{name}",
                (input_size[0] // patch, input_size[1] // patch),
                (patch, patch),
                input_size,
                heads=block.num_heads,
                kind="global",
                prefix=("cls",),
            ),
            block=block,
            middle="ln_2",
        )
        for name, block in module.encoder.layers.named_children()
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
        outputs=outputs_of(module.heads),
    )


def _vit_answer(module: Any, tokens: Tensor) -> Tensor:
    picture = torch.zeros(1, 3, module.image_size, module.image_size).to(tokens)
    answer: Tensor = given_tokens(module, "encoder.layers", tokens)(picture)
    return answer


def outputs_of(head: nn.Module) -> int:
    """How many numbers the last linear layer of a head gives; 0 where there is none."""
    linear = [part for part in head.modules() if isinstance(part, nn.Linear)]
    return linear[-1].out_features if linear else 0


def _is_swin(module: Any) -> bool:
    return _is(module, "swin_transformer", "SwinTransformer") and all(
        type(block).__name__ in _SWIN_BLOCKS for stage in module.features[1::2] for block in stage
    )


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """The stages have the odd numbers; between them the grid is halved, after padding."""
    step: Grid = module.features[0][0].kernel_size
    grid, sites = (input_size[0] // step[0], input_size[1] // step[1]), []
    for number, stage in enumerate(module.features[1::2]):
        if number:
            grid, step = halved(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage):
            name, heads = f"features.{2 * number + 1}.{index}", block.attn.num_heads
            layer = layer_at(name, grid, step, input_size, heads=heads, stage=number)
            size = (block.attn.window_size[0], block.attn.window_size[1])
            shift = tuple(
                0 if window >= extent + -extent % window else by
                for window, extent, by in zip(size, grid, block.attn.shift_size, strict=True)
            )
            windows = shifted_windows(grid, size, (shift[0], shift[1]), padded_first=True)
            middle = "mlp" if type(block).__name__.endswith("V2") else "norm2"
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
        outputs=outputs_of(module.head),
    )


TORCHVISION = (
    Family(
        name="ViT",
        recognises=_is_vit,
        sites=_vit_sites,
        parts=_vit_parts,
        answer=_vit_answer,
    ),
    Family(
        name="Swin",
        recognises=_is_swin,
        sites=_swin_sites,
        parts=_swin_parts,
        positional_attention=lambda module: True,
    ),
)
