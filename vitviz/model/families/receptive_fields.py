"""Offsets of receptive fields from the patches of a grid that convolutions computed."""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...common.query import Grid
from .description import Site, input_channels

Offset = tuple[float, float]


def receptive_field_offsets(
    module: nn.Module, sites: Sequence[Site], input_size: Grid
) -> tuple[Offset, ...]:
    """Measure how far (down, right) receptive fields are centred from the patches of the input.

    Cell i of a convolution of kernel k, stride s and padding p has a receptive field around pixel
    i s + (k - 1) / 2 - p, and the middle of patch i is at i s + (s - 1) / 2. If a shortcut bypasses
    a kernel, the weights decide which path dominates. So the effective receptive field is measured:
    the centroid of the gradient's magnitude, for the cells in the middle of the grid, at an input
    of noise. Blocks between the modules of `Site.steps` are skipped, as they move no cell.

    Returns
    -------
    tuple of (float, float)
        For each layer, in pixels of the input; 0 if patches are cut from the picture, or if there
        is no gradient.

    References
    ----------
    Luo et al., "Understanding the Effective Receptive Field in Deep Convolutional Neural Networks"
    (NeurIPS 2016), section 3.
    """
    steps = max((site.steps for site in sites), key=len)
    lengths = {len(site.steps) for site in sites}
    offsets: dict[int, Offset] = {}  # by the number of steps
    random = torch.Generator().manual_seed(0)
    with torch.inference_mode(False), torch.enable_grad():
        if has_inference_tensors(*steps):
            steps = copy.deepcopy(steps)  # copies made outside inference mode have gradients
        noise = torch.randn(1, input_channels(module), *input_size, generator=random, device="cpu")
        noise = noise.to(next(module.parameters())).requires_grad_()
        x: Any = noise
        size = [1, 1]  # of a cell, in pixels
        for number, step in enumerate(steps, start=1):
            before, x = x, step(x)
            x = x[-1] if isinstance(x, list | tuple) else x
            size = [
                size[axis] * round(before.shape[axis - 2] / x.shape[axis - 2]) for axis in (0, 1)
            ]
            if number not in lengths:
                continue
            share = _effective_receptive_field(x, noise, random)
            if share.isfinite().all():  # else the weights are all zero or not finite
                offsets[number] = (
                    _centroid(share.sum(dim=1)) - size[0] * x.shape[2] / 2,
                    _centroid(share.sum(dim=0)) - size[1] * x.shape[3] / 2,
                )
    return tuple(offsets.get(len(site.steps), (0.0, 0.0)) for site in sites)


def has_inference_tensors(*modules: nn.Module) -> bool:
    """Whether any tensor was made under `torch.inference_mode`, so that it has no gradient."""
    return any(
        tensor.is_inference()
        for module in modules
        for tensor in (*module.parameters(), *module.buffers())
    )


def _effective_receptive_field(grid: Tensor, picture: Tensor, random: torch.Generator) -> Tensor:
    """Return the share of each pixel (height, width) in the middle cells' gradients."""
    rows, cols = ([(count - 1) // 2, count // 2] for count in grid.shape[2:])
    share = torch.zeros(picture.shape[2:], dtype=torch.float64, device="cpu")
    for cell in (grid[0, :, row, col] for row in rows for col in cols):
        # A random projection with positive weights, which neither a norm nor a kernel cancels.
        projection = torch.rand(cell.shape, generator=random, device="cpu").to(cell)
        (gradient,) = torch.autograd.grad(cell, picture, projection, retain_graph=True)
        magnitude = gradient[0].abs().sum(dim=0).cpu().double()  # MPS has no doubles
        share += magnitude / magnitude.sum()
    return share


def _centroid(share: Tensor) -> float:
    """Return the centre of mass in pixels; the middle of the first pixel is at 0.5."""
    return float(
        share @ (torch.arange(len(share), device=share.device).to(share) + 0.5) / share.sum()
    )
