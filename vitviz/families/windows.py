"""Which patches meet in windows: places in, places out."""

import numpy as np

from .description import Grid, Windows


def shifted_windows(grid: Grid, size: Grid, shift: Grid) -> Windows:
    """Windows of neighbours, as Swin cuts them: shifted up and left, then padded to fit.

    Parameters
    ----------
    grid : (rows, columns) of patches
    size, shift : (rows, columns) of a window, and how far the picture moves before it is cut

    References
    ----------
    Liu et al., "Swin Transformer" (ICCV 2021), Fig. 4: the shift is cyclic.
    """
    places = np.roll(_places(grid), (-shift[0], -shift[1]), axis=(0, 1))
    over = [(0, -extent % window) for extent, window in zip(grid, size, strict=True)]
    return _same(_neighbours(np.pad(places, over, constant_values=-1), size))


def neighbour_windows(grid: Grid, size: Grid) -> Windows:
    """Windows of neighbours, as the block attention of MaxViT cuts them."""
    return _same(_neighbours(_places(grid), size))


def spread_windows(grid: Grid, size: Grid) -> Windows:
    """Windows of patches equally far apart, as the grid attention of MaxViT cuts them.

    References
    ----------
    Tu et al., "MaxViT: Multi-Axis Vision Transformer" (ECCV 2022), Fig. 3.
    """
    (rows, cols), (height, width) = grid, size
    cut = _places(grid).reshape(height, rows // height, width, cols // width)
    return _same(cut.transpose(1, 3, 0, 2).reshape(-1, height * width))


def one_window(grid: Grid, keys: Grid, key_step: tuple[float, float] = (1, 1)) -> Windows:
    """Every patch looks at every key, each pooled from `key_step` patches."""
    return Windows(
        queries=_places(grid).reshape(1, -1),
        keys=_places(keys).reshape(1, -1),
        key_step=key_step,
    )


def _places(grid: Grid) -> np.ndarray:
    return np.arange(grid[0] * grid[1]).reshape(grid)


def _neighbours(places: np.ndarray, size: Grid) -> np.ndarray:
    (rows, cols), (height, width) = places.shape, size
    cut = places.reshape(rows // height, height, cols // width, width)
    return cut.transpose(0, 2, 1, 3).reshape(-1, height * width)


def _same(places: np.ndarray) -> Windows:
    return Windows(queries=places, keys=places)
