"""Hierarchical families, whose later stages have coarser grids: Swin, PVT, MaxViT and CoAtNet."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from .description import Family, Grid, Site, Windows, is_timm, layer_at
from .plain import timm_grid, timm_step
from .windows import dilated_windows, neighbour_windows, one_window, shifted_windows

# By class: timm's file, the class of its blocks, and the name of its stages.
_SWIN = {
    "SwinTransformer": ("swin_transformer", "SwinTransformerBlock", "layers"),
    "SwinTransformerV2": ("swin_transformer_v2", "SwinTransformerV2Block", "layers"),
    "SwinTransformerV2Cr": ("swin_transformer_v2_cr", "SwinTransformerV2CrBlock", "stages"),
}


def _is_swin(module: Any) -> bool:
    file, block, stages = _SWIN.get(type(module).__name__, ("", "", ""))
    return is_timm(module, file, type(module).__name__) and all(
        type(part).__name__ == block for stage in getattr(module, stages) for part in stage.blocks
    )


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Swin halves the grid at the start of each later stage, after padding it to even sides."""
    place = _SWIN[type(module).__name__][-1]
    if type(module).__name__ == "SwinTransformerV2Cr":  # whose patch embedding is its own
        grid, step = module.patch_embed.grid_size, module.patch_embed.patch_size
    else:
        grid, step = timm_grid(module, input_size), timm_step(module)
    sites = []
    for number, stage in enumerate(getattr(module, place)):
        if not isinstance(stage.downsample, nn.Identity):
            grid, step = halved(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage.blocks):
            name, heads = f"{place}.{number}.blocks.{index}", block.attn.num_heads
            sites.append(
                Site(
                    layer=layer_at(name, grid, step, input_size, heads=heads, stage=number),
                    block=block,
                    middle="norm2" if type(block).__name__ == "SwinTransformerBlock" else "mlp",
                    layout="rows",
                    windows=shifted_windows(grid, block.window_size, block.shift_size),
                )
            )
    return tuple(sites)


def halved(grid: Grid) -> Grid:
    """The grid of the next stage, after padding to even sides."""
    return (grid[0] + 1) // 2, (grid[1] + 1) // 2


def _pvt_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    return pvt_sites(
        [
            (f"stages.{number}.blocks", (stage.downsample or module.patch_embed).proj, stage.blocks)
            for number, stage in enumerate(module.stages)
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
    """PVT v2 embeds overlapping patches by padded convolutions, and pools its keys.

    Parameters
    ----------
    stages : of each the path of its blocks, its convolution, and its blocks
    attention : callable(block) -> its number of heads, and what pools its keys to a fixed size or
        strides over them, or None
    """
    grid, step, sites = input_size, (1, 1), []
    steps: tuple[nn.Module, ...] = ()
    for number, (path, conv, blocks) in enumerate(stages):
        steps, grid = (*steps, conv), _convolved(grid, conv)
        step = step[0] * conv.stride[0], step[1] * conv.stride[1]
        for index, block in enumerate(blocks):
            heads, pool, strided = attention(block)
            windows, keys = _pooled(pool, strided, grid)
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


def _convolved(grid: Grid, conv: Any) -> Grid:
    """The grid that a convolution makes."""
    rows, cols = (
        (grid[axis] + 2 * conv.padding[axis] - conv.kernel_size[axis]) // conv.stride[axis] + 1
        for axis in (0, 1)
    )
    return rows, cols


def _pooled(pool: Any, strided: Any, grid: Grid) -> tuple[Windows, Grid]:
    """The keys of PVT's spatial-reduction attention: pooled to 7 x 7, strided, or all of them."""
    if pool is not None:
        size = pool.output_size
        keys = (size, size) if isinstance(size, int) else (size[0], size[1])
        return one_window(grid, keys, (grid[0] / keys[0], grid[1] / keys[1])), keys
    if strided is None:
        return one_window(grid, grid), grid
    keys = _convolved(grid, strided)
    return one_window(grid, keys, strided.stride), keys


def _maxxvit_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """MaxViT and CoAtNet halve the grid in the stem and at the start of each stage."""
    grid, step = halved(input_size), 2
    steps: tuple[nn.Module, ...] = (module.stem,)
    sites = []
    for number, stage in enumerate(module.stages):
        grid, step = halved(grid), 2 * step
        steps = *steps, _downsampling(stage.blocks[0])
        for name, kind, block, windows in _maxxvit_blocks(number, stage, grid):
            heads, side = block.attn.num_heads, (step, step)
            sites.append(
                Site(
                    layer=layer_at(
                        name, grid, side, input_size, heads=heads, kind=kind, stage=number
                    ),
                    block=block,
                    layout="rows" if type(block).__name__ == "PartitionAttentionCl" else "channels",
                    windows=windows,
                    biased=block.attn.rel_pos is not None,
                    steps=steps,
                )
            )
    return tuple(sites)


def _downsampling(block: Any) -> nn.Module:
    """What downsamples the grid in the first block of a stage of MaxViT or CoAtNet."""
    if type(block).__name__ == "TransformerBlock2d":
        return block.shortcut  # it pools as the path through its attention does
    return block.conv if type(block).__name__ == "MaxxVitBlock" else block


def _maxxvit_blocks(number: int, stage: Any, grid: Grid) -> Iterator[tuple[str, str, Any, Windows]]:
    """Path, kind and module of each attention of a stage, and its windows."""
    for index, block in enumerate(stage.blocks):
        name = f"stages.{number}.blocks.{index}"
        if type(block).__name__ == "TransformerBlock2d":
            yield name, "global", block, one_window(grid, grid)
        elif type(block).__name__ == "MaxxVitBlock":
            block_attention, grid_attention = block.attn_block, block.attn_grid
            if block_attention is not None:
                windows = neighbour_windows(grid, block_attention.partition_size)
                yield f"{name}.attn_block", "window", block_attention, windows
            windows = dilated_windows(grid, grid_attention.partition_size)
            yield f"{name}.attn_grid", "grid", grid_attention, windows


def _is_maxxvit(module: Any) -> bool:
    if not is_timm(module, "maxxvit", "MaxxVit"):
        return False
    kinds = {type(block).__name__ for stage in module.stages for block in stage.blocks}
    known = {"MbConvBlock", "ConvNeXtBlock", "TransformerBlock2d", "MaxxVitBlock"}
    return kinds <= known and bool(kinds & {"TransformerBlock2d", "MaxxVitBlock"})


STAGED = (
    Family(
        name="Swin",
        recognises=_is_swin,
        sites=_swin_sites,
        positional_attention=lambda module: True,
    ),
    Family(
        name="PVT v2",
        recognises=lambda module: is_timm(module, "pvt_v2", "PyramidVisionTransformerV2"),
        sites=_pvt_sites,
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
