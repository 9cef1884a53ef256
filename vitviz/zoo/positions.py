"""The input size that a checkpoint was trained at, from the shapes of its position tables."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from torch import nn

from ..checkpoints import CheckpointError
from ..families import family_of
from ..language import Message

MAX_SIDE = 4096  # pixels of the input; attention over more patches is out of reach

Size = tuple[int, int]
Shape = tuple[int, ...]


def trained_size(shapes: Mapping[str, Shape], outline: nn.Module, default: Size) -> Size | None:
    """The input's height and width at which the tables of positions in a file fit.

    Parameters
    ----------
    shapes : of the file's tensors, by timm's names
    outline : the architecture at its default size; it may lie on the meta device
    default : that size in pixels

    Returns
    -------
    None where no table depends on it: rotary positions, and windows of a fixed size, are the same
    for an input of any size.

    Raises
    ------
    CheckpointError
        When the number of positions is that of no square, so that its rows are not known.
    """
    family = family_of(outline)
    embedding: Any = family.parts(outline).embedding
    for name, tensor in outline.state_dict().items():
        own, found = tuple(tensor.shape), shapes.get(name, ())
        if len(found) != len(own):
            continue
        scale: tuple[Fraction, Fraction] | None = None
        if name == "pos_embed" or name.endswith("mlp_tokens.fc1.weight"):
            scale = _of_patches(own[1], found[1], embedding.grid_size)
        elif name.endswith("relative_position_bias_table") and family.name != "Swin":
            scale = _of_offsets(own, found)
        if scale is not None:
            height, width = (side * times for side, times in zip(default, scale, strict=True))
            if max(height, width) > MAX_SIDE:
                raise CheckpointError(
                    "The file's {name} is for an input of {side:,.0f} pixels a side, and at most "
                    "{most:,} can be.",
                    name=name,
                    side=float(max(height, width)),
                    most=MAX_SIDE,
                )
            if height.denominator == width.denominator == 1:
                return int(height), int(width)
    return None


def _of_patches(own: int, found: int, grid: Size) -> tuple[Fraction, Fraction] | None:
    """The grid's growth from `own` to `found` absolute positions, in rows and columns."""
    prefix = own - math.prod(grid)  # 0 where the table is of the patches alone
    patches = found - prefix
    if patches == math.prod(grid):
        return Fraction(1), Fraction(1)
    if prefix < 0 or patches < 1:
        return None
    side = _side(patches, Message("patch positions"))
    return Fraction(side, grid[0]), Fraction(side, grid[1])


def _of_offsets(own: Shape, found: Shape) -> tuple[Fraction, Fraction]:
    """The grid's growth by its relative position bias: 2 s - 1 offsets for s patches a side."""
    if len(own) == 3:  # (heads, rows, columns)
        return Fraction(found[1] + 1, own[1] + 1), Fraction(found[2] + 1, own[2] + 1)
    side = math.isqrt(own[0])
    of_prefix = own[0] - side * side
    times = Fraction(
        _side(max(found[0] - of_prefix, 0), Message("offsets of patches")) + 1, side + 1
    )
    return times, times


def _side(count: int, what: str) -> int:
    side = math.isqrt(count)
    if side * side != count:
        raise CheckpointError(
            "The file's {count} {what} do not fill a square, so their rows and columns "
            "are not known: give image_size=(rows, columns) in pixels.",
            count=count,
            what=what,
        )
    return side
