"""Augment data: flips and shifts, random resized crops, colour jitter, and CutMix."""

import torch
from torch import Tensor
from torch.nn import functional as F

LUMA = (0.299, 0.587, 0.114)  # weights of red, green and blue (ITU-R BT.601)


def flip_and_shift(pictures: Tensor, shift: int, generator: torch.Generator) -> Tensor:
    """Flip half of the pictures and move each by up to `shift` pixels, reflecting at the edge."""
    count, size = pictures.shape[0], pictures.shape[1]
    steps = torch.randint(-shift, shift + 1, (2, count, 1), generator=generator)
    row, col = torch.arange(size) + steps  # each (n, size)
    row, col = (size - 1 - (size - 1 - axis.abs()).abs() for axis in (row, col))
    flip = torch.rand(count, 1, generator=generator) < 0.5
    col = torch.where(flip, size - 1 - col, col)
    return pictures[torch.arange(count)[:, None, None], row[:, :, None], col[:, None, :]]


def random_resized_crop(
    pictures: Tensor, size: int, smallest: float, generator: torch.Generator
) -> Tensor:
    """Cut a random window out of each picture, mirror half of them, and resample to `size` pixels.

    Parameters
    ----------
    pictures : Tensor of shape (n, side, side, 3), uint8
    size : int
        At least half of `side`: bilinear interpolation skips pixels when it reduces further.
    smallest : float
        Smallest share of the picture's area that is kept; sides are between 3:4 and 4:3.
    generator : torch.Generator

    Returns
    -------
    Tensor of shape (n, size, size, 3), uint8

    References
    ----------
    Szegedy et al., "Going Deeper with Convolutions" (CVPR 2015), section 6.
    """
    count = len(pictures)
    area, shape, across, down, mirror = torch.rand(5, count, generator=generator)
    area = smallest + (1 - smallest) * area
    shape = (3 / 4) ** (1 - 2 * shape)
    width, height = (area * shape).sqrt().clamp(max=1), (area / shape).sqrt().clamp(max=1)
    affine = torch.zeros(count, 2, 3)
    affine[:, 0, 0] = torch.where(mirror < 0.5, -width, width)
    affine[:, 1, 1] = height
    affine[:, 0, 2] = (1 - width) * (2 * across - 1)
    affine[:, 1, 2] = (1 - height) * (2 * down - 1)
    grid = F.affine_grid(affine, [count, 3, size, size], align_corners=False)
    x = pictures.permute(0, 3, 1, 2).float()
    x = F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)
    return x.round().byte().permute(0, 2, 3, 1)


def colour_jitter(pictures: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Change brightness, contrast and saturation of each picture by at most `share` of it."""
    count = len(pictures)
    factors = 1 + share * (2 * torch.rand(3, count, 1, 1, 1, generator=generator) - 1)
    brightness, contrast, saturation = factors
    x = pictures.float() * brightness
    grey = (x * torch.tensor(LUMA)).sum(dim=-1, keepdim=True)  # (n, side, side, 1)
    x = grey + (x - grey) * saturation
    mean = grey.mean(dim=(1, 2), keepdim=True)
    return (mean + (x - mean) * contrast).round().clamp(0, 255).byte()


def cutmix(pictures: Tensor, labels: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Fill one random window in all pictures of a batch from other pictures of the batch.

    Parameters
    ----------
    pictures : Tensor of shape (n, side, side, 3), uint8
    labels : Tensor of shape (n, K)
        Shares of the classes, which sum to 1.
    generator : torch.Generator

    Returns
    -------
    The mixed pictures, and their labels mixed by the shares of the area.

    References
    ----------
    Yun et al., "CutMix" (ICCV 2019), https://arxiv.org/abs/1905.04899.
    """
    side = pictures.shape[1]
    area, row, col = torch.rand(3, generator=generator).tolist()
    half = side * area**0.5 / 2
    top, bottom = (max(0, min(side, round(row * side + step))) for step in (-half, half))
    left, right = (max(0, min(side, round(col * side + step))) for step in (-half, half))
    other = torch.randperm(len(pictures), generator=generator)
    result = pictures.clone()
    result[:, top:bottom, left:right] = pictures[other, top:bottom, left:right]
    share = (bottom - top) * (right - left) / side**2
    return result, (1 - share) * labels + share * labels[other]
