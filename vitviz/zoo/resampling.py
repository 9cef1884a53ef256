"""Position tables of a model at another input size: how they are resampled, and notes on it."""

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from torch import nn

from ..common.language import Message
from ..model.families import ModelError, family_of
from .checkpoints import CheckpointError

MAX_INPUT_SIDE = 4096  # pixels of the input; attention over more patches is out of reach

InputSize = tuple[int, int]  # height and width in pixels
Sizes = tuple[int, ...]


def trained_size(
    shapes: Mapping[str, Sizes], outline: nn.Module, default: InputSize
) -> InputSize | None:
    """Return the input size (height, width) at which the position tables in a file fit.

    Parameters
    ----------
    shapes : shapes of the file's tensors, by timm's names
    outline : the architecture at its default size; it may be on the meta device
    default : that size in pixels

    Returns
    -------
    None if no table depends on it: rotary positions and windows of a fixed size are the same for
    any input size.

    Raises
    ------
    CheckpointError
        When the number of positions is not a square, so that its rows are unknown.
    """
    family = family_of(outline)
    embedding: Any = family.parts(outline).embedding
    for name, tensor in outline.state_dict().items():
        own, shape = tuple(tensor.shape), shapes.get(name, ())
        if len(shape) != len(own):
            continue
        scale: tuple[Fraction, Fraction] | None = None
        if name == "pos_embed" or name.endswith("mlp_tokens.fc1.weight"):
            scale = _patch_scale(own[1], shape[1], embedding.grid_size)
        elif name.endswith("relative_position_bias_table") and not family.fixed_windows:
            scale = _offset_scale(own, shape)
        if scale is not None:
            height, width = (side * times for side, times in zip(default, scale, strict=True))
            if max(height, width) > MAX_INPUT_SIDE:
                raise CheckpointError(
                    "The file's {name} is for an input of {side:,.0f} pixels a side; at most "
                    "{most:,} are possible.",
                    name=name,
                    side=float(max(height, width)),
                    most=MAX_INPUT_SIDE,
                )
            if height.denominator == width.denominator == 1:
                return int(height), int(width)
    return None


def _patch_scale(own: int, count: int, grid: InputSize) -> tuple[Fraction, Fraction] | None:
    """Return how rows and columns grow from `own` to `count` absolute positions."""
    prefix = own - math.prod(grid)  # 0 if the table has patches only
    patches = count - prefix
    if patches == math.prod(grid):
        return Fraction(1), Fraction(1)
    if prefix < 0 or patches < 1:
        return None
    side = _side(patches, Message("patch positions"))
    return Fraction(side, grid[0]), Fraction(side, grid[1])


def _offset_scale(own: Sizes, shape: Sizes) -> tuple[Fraction, Fraction]:
    """Return how the grid grows by its relative position bias: 2 s - 1 offsets for s patches."""
    if len(own) == 3:  # (heads, rows, columns)
        return Fraction(shape[1] + 1, own[1] + 1), Fraction(shape[2] + 1, own[2] + 1)
    side = math.isqrt(own[0])
    of_prefix = own[0] - side * side
    times = Fraction(
        _side(max(shape[0] - of_prefix, 0), Message("offsets of patches")) + 1, side + 1
    )
    return times, times


def _side(count: int, what: str) -> int:
    side = math.isqrt(count)
    if side * side != count:
        raise CheckpointError(
            "The file's {count} {what} do not fill a square, so their rows and columns are "
            "unknown. Give image_size=(rows, columns) in pixels.",
            count=count,
            what=what,
        )
    return side


def resampling_note(grids: tuple[InputSize, InputSize] | None) -> Message | str:
    """Return the provenance's note on resampled positions, or ""."""
    if grids is None:
        return ""
    before, after = (f"{rows}x{cols}" for rows, cols in grids)
    return Message(", positions resampled from {before} to {after}", before=before, after=after)


def timm_resampling_note(before: nn.Module, after: nn.Module) -> str:
    """Return the provenance's note on positions that timm resamples to another input size."""
    note = resampling_note(_grids(before, after))
    if relative_tables(before) != relative_tables(after):
        more = Message(", relative positions resampled")
        note = Message(note) + more if note else more
    return note


def relative_tables(module: nn.Module) -> dict[str, Any]:
    """Return the window of each table of relative positions, by the path of its module.

    The shape of a table does not tell it: windows of 5 x 13 and 8 x 8 patches have equal tables.
    """
    return {
        path: tuple(part.window_size)
        for path, part in module.named_modules()
        if hasattr(part, "relative_position_bias_table")
    }


def timm_leaves_positions(before: nn.Module, after: nn.Module) -> bool:
    """Whether timm loads absolute positions without resampling them to the other grid.

    Older versions do not if the number of positions is equal.
    """
    if _grids(before, after) is None:
        return False
    tables: list[Any] = [module.state_dict()["pos_embed"] for module in (before, after)]
    return not family_of(before).is_resampled or tables[0].shape == tables[1].shape


def check_mixing(architecture: str, before: nn.Module, size: InputSize, own: InputSize) -> None:
    """Refuse trained token-mixing weights for an input of another size.

    Raises
    ------
    ModelError
        Even if both grids have equally many patches.
    """
    if size != own and any("mlp_tokens" in name for name in before.state_dict()):
        raise ModelError(
            "{architecture} mixes its patches with weights trained for an input of {height} x "
            "{width} pixels. Choose this image_size.",
            architecture=architecture,
            height=own[0],
            width=own[1],
        )


def _grids(before: nn.Module, after: nn.Module) -> tuple[InputSize, InputSize] | None:
    """Return the grids of absolute positions before and after; None if they are equal."""
    if "pos_embed" not in after.state_dict():
        return None
    embeds: list[Any] = [module.get_submodule("patch_embed") for module in (before, after)]
    old, new = (tuple(embed.grid_size) for embed in embeds)
    return None if old == new else (old, new)
