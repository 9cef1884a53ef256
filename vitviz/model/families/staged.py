"""Hierarchical families, whose later stages have coarser grids.

Swin, PVT, Twins, MaxViT and CoAtNet.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from torch import nn

from ...common.query import Grid
from .description import (
    Family,
    ModelError,
    Parts,
    Site,
    Windows,
    class_name,
    is_features_only,
    is_timm,
    kinds_of,
    layer_at,
    present,
    timm_parts,
    without_adapter,
)
from .plain import embedding_steps, timm_grid, timm_step


def shifted_windows(grid: Grid, size: Grid, shift: Grid, *, padded_first: bool = False) -> Windows:
    """Return Swin's windows of neighbours: the grid is shifted, and padded to whole windows.

    Parameters
    ----------
    grid : (rows, columns) of patches
    size, shift : (rows, columns) of a window, and of the cyclic shift up and left
    padded_first : bool
        Whether the padding is shifted too, as in torchvision and transformers; timm pads the
        shifted grid.

    References
    ----------
    Liu et al., "Swin Transformer" (ICCV 2021), Fig. 4: the shift is cyclic.
    """
    over = [(0, -extent % window) for extent, window in zip(grid, size, strict=True)]

    def pad(places: np.ndarray) -> np.ndarray:
        return np.pad(places, over, constant_values=-1)

    def roll(places: np.ndarray) -> np.ndarray:
        return np.roll(places, (-shift[0], -shift[1]), axis=(0, 1))

    places = _patch_numbers(grid)
    places = roll(pad(places)) if padded_first else pad(roll(places))
    return _self_attention(_partition(places, size))


def neighbour_windows(grid: Grid, size: Grid) -> Windows:
    """Return windows of neighbours, as in MaxViT's block attention."""
    return _self_attention(_partition(_patch_numbers(grid), size))


def dilated_windows(grid: Grid, size: Grid) -> Windows:
    """Return windows of patches at equal distances, as in MaxViT's grid attention.

    References
    ----------
    Tu et al., "MaxViT: Multi-Axis Vision Transformer" (ECCV 2022), Fig. 3.
    """
    (rows, cols), (height, width) = grid, size
    cut = _patch_numbers(grid).reshape(height, rows // height, width, cols // width)
    return _self_attention(cut.transpose(1, 3, 0, 2).reshape(-1, height * width))


def one_window(grid: Grid, keys: Grid, key_step: tuple[float, float] = (1, 1)) -> Windows:
    """Return one window of all patches and all keys; a key is pooled from `key_step` patches."""
    return Windows(
        queries=_patch_numbers(grid).reshape(1, -1),
        keys=_patch_numbers(keys).reshape(1, -1),
        key_step=key_step,
    )


def _patch_numbers(grid: Grid) -> np.ndarray:
    return np.arange(grid[0] * grid[1]).reshape(grid)


def _partition(places: np.ndarray, size: Grid) -> np.ndarray:
    (rows, cols), (height, width) = places.shape, size
    cut = places.reshape(rows // height, height, cols // width, width)
    return cut.transpose(0, 2, 1, 3).reshape(-1, height * width)


def _self_attention(places: np.ndarray) -> Windows:
    return Windows(queries=places, keys=places)


#: timm's file and the class of the blocks, by the class of the module.
_SWIN = {
    "SwinTransformer": ("swin_transformer", "SwinTransformerBlock"),
    "SwinTransformerV2": ("swin_transformer_v2", "SwinTransformerV2Block"),
    "SwinTransformerV2Cr": ("swin_transformer_v2_cr", "SwinTransformerV2CrBlock"),
}


def _stages(module: nn.Module) -> list[tuple[str, Any]]:
    """Return the stages with their paths: layers.0, or layers_0 after `features_only`."""
    return [
        (path, part)
        for path, part in module.named_modules()
        if re.fullmatch(r"(?:layers|stages)[._]\d+", path)
    ]


def _kinds(module: nn.Module) -> set[str]:
    """Return the classes of the blocks in all stages."""
    return {
        class_name(block)
        for _, stage in _stages(module)
        for block in getattr(stage, "blocks", (stage,))
    }


def _is_swin(module: Any) -> bool:
    kinds = _kinds(module) if is_features_only(module) else set()
    if kinds:
        return any(kinds == {block} for _, block in _SWIN.values())
    file, block = _SWIN.get(class_name(module), ("", ""))
    return is_timm(module, file, class_name(module)) and _kinds(module) == {block}


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe Swin: each later stage starts by padding the grid to even sides and halving it."""
    if _kinds(module) == {"SwinTransformerV2CrBlock"}:  # which has a patch embedding of its own
        grid, step = module.patch_embed.grid_size, module.patch_embed.patch_size
    else:
        grid, step = timm_grid(module, input_size), timm_step(module)
    sites, steps = [], embedding_steps(module.patch_embed)
    for number, (path, stage) in enumerate(_stages(module)):
        if not isinstance(stage.downsample, nn.Identity):
            grid, step = halve_grid(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage.blocks):
            name, heads = f"{path}.blocks.{index}", block.attn.num_heads
            sites.append(
                Site(
                    layer=layer_at(name, grid, step, input_size, heads=heads, stage=number),
                    block=block,
                    middle="norm2" if class_name(block) == "SwinTransformerBlock" else "mlp",
                    layout="rows",
                    windows=shifted_windows(grid, block.window_size, block.shift_size),
                    steps=steps,
                )
            )
    return tuple(sites)


def halve_grid(grid: Grid) -> Grid:
    """Return the grid of the next stage, after padding to even sides."""
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2


def _is_pvt(module: Any) -> bool:
    return is_timm(module, "pvt_v2", "PyramidVisionTransformerV2") or (
        is_features_only(module)
        and {class_name(stage) for _, stage in _stages(module)} == {"PyramidVisionTransformerStage"}
    )


def _pvt_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    return pvt_sites(
        [
            (f"{path}.blocks", (stage.downsample or module.patch_embed).proj, stage.blocks)
            for path, stage in _stages(module)
        ],
        input_size,
        lambda block: (block.attn.num_heads, block.attn.pool, block.attn.sr),
        middle="norm2",
    )


def pvt_sites(
    stages: Iterable[tuple[str, Any, Any]],
    input_size: Grid,
    attention: Callable[[Any], tuple[int, Any, Any]],
    *,
    middle: str,
) -> tuple[Site, ...]:
    """Describe PVT v2: padded convolutions embed overlapping patches, and keys are pooled.

    Parameters
    ----------
    stages : for each stage, the path of its blocks, its convolution, and its blocks
    attention : callable(block) -> its number of heads; the module that pools keys to a fixed size,
        or None; the convolution with a stride that pools keys, or None
    """
    grid, step, sites = input_size, (1, 1), []
    steps: tuple[nn.Module, ...] = ()
    for number, (path, conv, blocks) in enumerate(stages):
        steps, grid = (*steps, conv), _convolve_grid(grid, conv)
        stride = without_adapter(conv).stride
        step = step[0] * stride[0], step[1] * stride[1]
        for index, block in enumerate(blocks):
            heads, pool, strided = attention(block)
            windows, keys = _pool_keys(pool, strided, grid)
            layer = layer_at(
                f"{path}.{index}",
                grid,
                step,
                input_size,
                heads=heads,
                kind="global" if keys == grid else "pooled",
                stage=number,
                keys=keys,
            )
            sites.append(
                Site(layer=layer, block=block, middle=middle, windows=windows, steps=steps)
            )
    return tuple(sites)


def _convolve_grid(grid: Grid, conv: Any) -> Grid:
    """Return the grid that a convolution computes."""
    conv = without_adapter(conv)
    rows, cols = (
        (grid[axis] + 2 * conv.padding[axis] - conv.kernel_size[axis]) // conv.stride[axis] + 1
        for axis in (0, 1)
    )
    return rows, cols


def _pool_keys(pool: Any, strided: Any, grid: Grid) -> tuple[Windows, Grid]:
    """Return windows and key grid of spatial-reduction attention: pooled, strided, or all keys."""
    if pool is not None:
        size = pool.output_size
        keys = (size, size) if isinstance(size, int) else (size[0], size[1])
        return one_window(grid, keys, (grid[0] / keys[0], grid[1] / keys[1])), keys
    if strided is None:
        return one_window(grid, grid), grid
    keys = _convolve_grid(grid, strided)
    return one_window(grid, keys, without_adapter(strided).stride), keys


def _is_twins(module: Any) -> bool:
    kinds = {("Block", "LocallyGroupedAttn"), ("Block", "GlobalSubSampleAttn")}
    return is_timm(module, "twins", "Twins") and all(kinds_of(b) <= kinds for b in module.blocks)


def _twins_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe Twins.

    Layers of Twins-SVT attend in windows and to pooled keys by turns, all layers of Twins-PCPVT to
    pooled keys.

    References
    ----------
    Chu et al., "Twins: Revisiting the Design of Spatial Attention in Vision Transformers"
    (NeurIPS 2021), section 3.
    """
    grid, step, sites = input_size, (1, 1), []
    for number, (embed, blocks) in enumerate(zip(module.patch_embeds, module.blocks, strict=True)):
        grid, stride = _convolve_grid(grid, embed.proj), without_adapter(embed.proj).stride
        step = step[0] * stride[0], step[1] * stride[1]
        for index, block in present(blocks):
            if class_name(block.attn) == "LocallyGroupedAttn":
                size = (block.attn.ws, block.attn.ws)
                windows, keys, kind = shifted_windows(grid, size, (0, 0)), grid, "window"
            else:
                windows, keys = _pool_keys(None, block.attn.sr, grid)
                kind = "global" if keys == grid else "pooled"
            layer = layer_at(
                f"blocks.{number}.{index}",
                grid,
                step,
                input_size,
                heads=block.attn.num_heads,
                kind=kind,
                stage=number,
                keys=keys,
                follows=index != 1,  # its positions come from a convolution after the first block
            )
            sites.append(Site(layer=layer, block=block, windows=windows))
    return tuple(sites)


def _twins_parts(module: Any) -> Parts:
    embedding = module.patch_embeds[0]
    return replace(
        timm_parts(module),
        embedding=embedding,
        kernel=embedding.proj,
        width=module.num_features,
    )


def _maxxvit_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe MaxViT and CoAtNet: the stem and the start of each stage halve the grid."""
    grid, step = halve_grid(input_size), 2
    steps: tuple[nn.Module, ...] = (module.stem,)
    sites = []
    for number, (path, stage) in enumerate(_stages(module)):
        grid, step = halve_grid(grid), 2 * step
        steps = *steps, _downsampling(stage.blocks[0])
        for name, kind, block in _maxxvit_blocks(path, stage):
            windows = _maxxvit_windows(kind, block, grid, input_size, number)
            heads, side = block.attn.num_heads, (step, step)
            sites.append(
                Site(
                    layer=layer_at(
                        name, grid, side, input_size, heads=heads, kind=kind, stage=number
                    ),
                    block=block,
                    layout="rows" if class_name(block) == "PartitionAttentionCl" else "channels",
                    windows=windows,
                    biased=block.attn.rel_pos is not None,
                    steps=steps,
                )
            )
    return tuple(sites)


def _downsampling(block: Any) -> nn.Module:
    """Return the module that downsamples the grid in the first block of a stage."""
    if class_name(block) == "TransformerBlock2d":
        return block.shortcut  # it pools as the path through its attention does
    return block.conv if class_name(block) == "MaxxVitBlock" else block


def _maxxvit_blocks(path: str, stage: Any) -> Iterator[tuple[str, str, Any]]:
    """Yield path, kind and module of each attention in a stage."""
    for index, block in enumerate(stage.blocks):
        name = f"{path}.blocks.{index}"
        if class_name(block) == "TransformerBlock2d":
            yield name, "global", block
        elif class_name(block) == "MaxxVitBlock":
            if block.attn_block is not None:
                yield f"{name}.attn_block", "window", block.attn_block
            yield f"{name}.attn_grid", "grid", block.attn_grid


def _maxxvit_windows(kind: str, block: Any, grid: Grid, input_size: Grid, stage: int) -> Windows:
    """Return an attention's windows, which divide MaxViT's grid and are CoAtNet's whole grid."""
    positions = block.attn.rel_pos
    if kind == "global":
        side: Grid = grid if positions is None else tuple(positions.window_size)
        fits = side == grid
    else:
        side = block.partition_size
        fits = grid[0] % side[0] == grid[1] % side[1] == 0
    if not fits:
        raise ModelError(
            "Stage {stage} of this model attends in windows of {down} x {across} patches, and a "
            "picture of {height} x {width} pixels has {rows} x {cols} there. Choose an input size "
            "that fits the windows.",
            stage=stage + 1,
            down=side[0],
            across=side[1],
            height=input_size[0],
            width=input_size[1],
            rows=grid[0],
            cols=grid[1],
        )
    if kind == "global":
        return one_window(grid, grid)
    return (neighbour_windows if kind == "window" else dilated_windows)(grid, side)


def _is_maxxvit(module: Any) -> bool:
    if not (is_timm(module, "maxxvit", "MaxxVit") or is_features_only(module)):
        return False
    kinds = _kinds(module)
    known_kinds = {"MbConvBlock", "ConvNeXtBlock", "TransformerBlock2d", "MaxxVitBlock"}
    return kinds <= known_kinds and bool(kinds & {"TransformerBlock2d", "MaxxVitBlock"})


STAGED = (
    Family(
        name="Swin",
        recognises=_is_swin,
        sites=_swin_sites,
        positional_attention=lambda module: True,
        fixed_windows=True,
    ),
    Family(
        name="PVT v2",
        recognises=_is_pvt,
        sites=_pvt_sites,
        positional_attention=lambda module: True,
        any_size=True,
    ),
    Family(
        name="Twins",
        recognises=_is_twins,
        sites=_twins_sites,
        parts=_twins_parts,
        positional_attention=lambda module: True,
        any_size=True,
    ),
    Family(
        name="MaxViT and CoAtNet",
        recognises=_is_maxxvit,
        sites=_maxxvit_sites,
        positional_attention=lambda module: True,
    ),
)
