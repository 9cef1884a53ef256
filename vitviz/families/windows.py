"""Window partitions: which patches attend to each other in Swin, MaxViT and PVT."""

import numpy as np

from .description import Grid, Windows


def shifted_windows(grid: Grid, size: Grid, shift: Grid, *, padded_first: bool = False) -> Windows:
    """Swin's windows of neighbours: the grid is shifted up and left, and padded to whole windows.

    Parameters
    ----------
    grid : (rows, columns) of patches
    size, shift : (rows, columns) of a window, and of the cyclic shift before the partition
    padded_first : bool
        Whether the padding is shifted too, as in torchvision and transformers; timm adds it to the
        shifted grid.

    References
    ----------
    Liu et al., "Swin Transformer" (ICCV 2021), Fig. 4: the shift is cyclic.
    """
    over = [(0, -extent % window) for extent, window in zip(grid, size, strict=True)]

    def padded(places: np.ndarray) -> np.ndarray:
        return np.pad(places, over, constant_values=-1)

    def rolled(places: np.ndarray) -> np.ndarray:
        return np.roll(places, (-shift[0], -shift[1]), axis=(0, 1))

    places = _patch_numbers(grid)
    places = rolled(padded(places)) if padded_first else padded(rolled(places))
    return _self_attention(_partition(places, size))


def neighbour_windows(grid: Grid, size: Grid) -> Windows:
    """Windows of neighbours, as in MaxViT's block attention."""
    return _self_attention(_partition(_patch_numbers(grid), size))


def dilated_windows(grid: Grid, size: Grid) -> Windows:
    """Windows of patches equally far apart, as in MaxViT's grid attention.

    References
    ----------
    Tu et al., "MaxViT: Multi-Axis Vision Transformer" (ECCV 2022), Fig. 3.
    """
    (rows, cols), (height, width) = grid, size
    cut = _patch_numbers(grid).reshape(height, rows // height, width, cols // width)
    return _self_attention(cut.transpose(1, 3, 0, 2).reshape(-1, height * width))


def one_window(grid: Grid, keys: Grid, key_step: tuple[float, float] = (1, 1)) -> Windows:
    """Every patch attends to every key, each pooled from `key_step` patches."""
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
