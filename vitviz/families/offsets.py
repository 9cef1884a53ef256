"""Where in the picture the cells of a grid look, when convolutions that overlap have made it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .description import Grid, Site

Offset = tuple[float, float]


def offsets(module: nn.Module, sites: Sequence[Site], input_size: Grid) -> tuple[Offset, ...]:
    """How far (down, right) the cells of each layer lie from where patches would tile the input.

    Cell i of a convolution of kernel k, stride s and padding p looks at pixels around
    i s + (k - 1) / 2 - p, and the middle of patch i is at i s + (s - 1) / 2. Where a shortcut leads
    around a kernel, the weights say which way counts for more. So it is measured, with the module's
    own weights: the centroid, at the input, of the magnitude of the gradient of the cells in the
    middle of the grid. The input is noise; what stands between the steps of `Site.steps` is left
    out, as it moves no cell.

    Returns
    -------
    tuple of (float, float)
        For each layer, in pixels of the input; 0 where patches are cut out of the picture, and
        where nothing has a gradient.
    """
    steps = max((site.steps for site in sites), key=len)
    wanted = {len(site.steps) for site in sites}
    found: dict[int, Offset] = {}  # by the number of steps
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        noise = torch.randn(1, 3, *input_size, generator=random)
        noise = noise.to(next(module.parameters())).requires_grad_()
        x: Any = noise
        size = [1, 1]  # of a cell in pixels
        for number, step in enumerate(steps, start=1):
            before, x = x, step(x)
            x = x[-1] if isinstance(x, list | tuple) else x
            size = [
                size[axis] * round(before.shape[axis - 2] / x.shape[axis - 2]) for axis in (0, 1)
            ]
            if number not in wanted:
                continue
            share = _seen(x, noise, random)
            if share.isfinite().all():  # else the weights are all zero, or no numbers
                found[number] = (
                    _centroid(share.sum(dim=1)) - size[0] * x.shape[2] / 2,
                    _centroid(share.sum(dim=0)) - size[1] * x.shape[3] / 2,
                )
    return tuple(found.get(len(site.steps), (0.0, 0.0)) for site in sites)


def _seen(grid: Tensor, picture: Tensor, random: torch.Generator) -> Tensor:
    """How much the cells in the middle of a grid look at each pixel: (height, width)."""
    rows, cols = ([(count - 1) // 2, count // 2] for count in grid.shape[2:])
    share = torch.zeros(picture.shape[2:], dtype=torch.float64)
    for cell in (grid[0, :, row, col] for row in rows for col in cols):
        # A sum of positive parts: neither a norm nor a kernel of one sign takes it to zero.
        probe = torch.rand(cell.shape, generator=random).to(cell)
        (gradient,) = torch.autograd.grad(cell, picture, probe, retain_graph=True)
        seen = gradient[0].abs().sum(dim=0).double().cpu()
        share += seen / seen.sum()
    return share


def _centroid(share: Tensor) -> float:
    """In pixels; the middle of the first is at 0.5."""
    return float(share @ (torch.arange(len(share)).to(share) + 0.5) / share.sum())
