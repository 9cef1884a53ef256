"""Edits of one forward pass: mute heads, drop patches, paint them over, exchange tokens."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare, shown_input


@dataclass(frozen=True)
class MuteHeads:
    """Replace these heads' slices of the concatenated heads, before the output projection.

    Attributes
    ----------
    heads : iterable of (layer, head), both from 0
    values : mapping of (layer, head) to ndarray of shape (tokens, head_dim)
        The output that replaces a head's own, such as `intervention.head_outputs` of another
        picture; zeros for heads that are not in the mapping.
    """

    heads: Iterable[tuple[int, int]]
    values: Mapping[tuple[int, int], np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", tuple(self.heads))


@dataclass(frozen=True)
class DropPatches:
    """Remove the patches where `mask` (rows, columns) is true, after positions were added."""

    mask: np.ndarray


@dataclass(frozen=True)
class FillPatches:
    """Paint over the patches where `mask` (rows, columns) is true, in the model's input.

    "mean" takes the mean colour of the input, "blur" the input blurred over about one patch; both
    are computed before any edit. Where masks overlap, the last edit is seen.
    """

    mask: np.ndarray
    fill: Literal["mean", "blur"] = "mean"


@dataclass(frozen=True)
class SwapTokens:
    """Exchange pairs of patches, by their number in row-major order, before positions are added."""

    pairs: Iterable[tuple[int, int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", tuple(self.pairs))


Edit = MuteHeads | DropPatches | FillPatches | SwapTokens


def edited_input(model: Model, image: Picture, edits: Sequence[Edit]) -> np.ndarray:
    """Return the model's input after the edits, as a picture.

    Returns
    -------
    ndarray of uint8 of shape (height, width, 4)
        Red, green, blue and alpha of the area that the grid of patches covers, at the model's
        resolution; alpha is 0 where a patch was dropped. MuteHeads and SwapTokens change nothing
        here.
    """
    layer = model.layers[0]
    (rows, cols), (height, width) = layer.query_grid, layer.patch_side
    x = fill_patches(model, prepare(model, image).x, edits)
    x = F.pad(x, [-margin for margin in grid_margins(model, x.shape)])  # to the grid of patches
    colours = np.asarray(shown_input(model, x))
    is_dropped = union_mask(edits, DropPatches, (rows, cols)).repeat(height, 0).repeat(width, 1)
    alpha = np.where(is_dropped, 0, 255).astype(np.uint8)
    return np.concatenate([colours, alpha[..., None]], axis=2)


def union_mask(
    edits: Sequence[Edit], kind: type[DropPatches] | type[FillPatches], grid: tuple[int, int]
) -> np.ndarray:
    """Return the union of the masks of all edits of one kind: bool ndarray of shape `grid`."""
    mask = np.zeros(grid, bool)
    for edit in edits:
        if isinstance(edit, kind):
            own = np.asarray(edit.mask)
            if own.shape != grid:
                raise ModelError(
                    "Expected a mask of shape {grid}, got {shape}.", grid=grid, shape=own.shape
                )
            mask |= own.astype(bool)
    return mask


def fill_patches(model: Model, x: Tensor, edits: Sequence[Edit]) -> Tensor:
    """Paint over the patches of each FillPatches in the model's input (C, H, W)."""
    layer = model.layers[0]
    grid, (height, width) = layer.query_grid, layer.patch_side
    original = x
    for edit in edits:
        if not isinstance(edit, FillPatches):
            continue
        mask = torch.from_numpy(union_mask([edit], FillPatches, grid))
        mask = mask.repeat_interleave(height, 0).repeat_interleave(width, 1)
        pixels = F.pad(mask, grid_margins(model, x.shape))  # (H, W)
        if edit.fill == "mean":
            paint = original.mean(dim=(1, 2), keepdim=True).expand_as(x)
        elif edit.fill == "blur":
            # torch resizes no half precision on the CPU with antialiasing.
            wide = original[None].to(torch.promote_types(x.dtype, torch.float32))
            small = F.interpolate(wide, size=grid, mode="bilinear", antialias=True)
            paint = F.interpolate(small, size=x.shape[1:], mode="bicubic")[0].to(x.dtype)
        else:
            raise ModelError('Expected the fill "mean" or "blur", got {fill!r}.', fill=edit.fill)
        x = torch.where(pixels, paint, x)
    return x


def grid_margins(model: Model, shape: Sequence[int]) -> list[int]:
    """Return the pixels between the grid of patches and the input's left, right, top and bottom.

    `shape` is the input's, (..., H, W).

    They are negative where the grid covers padding beyond the input.
    """
    layer, (top, left) = model.layers[0], map(round, model.offsets[0])
    (rows, cols), (height, width) = layer.query_grid, layer.patch_side
    return [left, shape[-1] - left - cols * width, top, shape[-2] - top - rows * height]
