"""Position tables of a model at another input size: which are resampled, and in which words."""

from typing import Any

from torch import nn

from ..families import ModelError
from ..language import Message
from .positions import Size


def resampling_words(grids: tuple[Size, Size] | None) -> Message | str:
    """The words of the provenance on resampled positions; "" where none were."""
    if grids is None:
        return ""
    before, after = (f"{rows}x{cols}" for rows, cols in grids)
    return Message(", positions resampled from {before} to {after}", before=before, after=after)


def resampled_by_timm(before: nn.Module, after: nn.Module) -> str:
    """The words where timm resamples the positions of one input size to those of another."""
    words = resampling_words(_grids(before, after))
    if relative_tables(before) != relative_tables(after):
        more = Message(", relative positions resampled")
        words = Message(words) + more if words else more
    return words


def relative_tables(module: nn.Module) -> dict[str, Any]:
    """The window of each table of relative positions, by the path of what has it.

    The shape of a table alone does not tell it: one of 5 x 13 patches has as many rows as one of
    8 x 8.
    """
    return {
        path: tuple(part.window_size)
        for path, part in module.named_modules()
        if hasattr(part, "relative_position_bias_table")
    }


def timm_leaves_positions(before: nn.Module, after: nn.Module) -> bool:
    """Whether timm loads absolute positions without resampling them to the other grid.

    CaiT's it never resamples, and in older versions none that are as many as before.
    """
    if _grids(before, after) is None:
        return False
    tables: list[Any] = [module.state_dict()["pos_embed"] for module in (before, after)]
    return type(before).__name__ == "Cait" or tables[0].shape == tables[1].shape


def check_mixing(architecture: str, before: nn.Module, size: Size, own: Size) -> None:
    """Refuse trained weights that mix the patches of one grid, for an input of another size.

    Raises
    ------
    ModelError
        Also where both grids have as many patches.
    """
    if size != own and any("mlp_tokens" in name for name in before.state_dict()):
        raise ModelError(
            "{architecture} mixes its patches with weights for an input of {height} x "
            "{width} pixels, so that its trained weights take no other.",
            architecture=architecture,
            height=own[0],
            width=own[1],
        )


def _grids(before: nn.Module, after: nn.Module) -> tuple[Size, Size] | None:
    """The grids of a table of absolute positions before and after; None where nothing changes."""
    if "pos_embed" not in after.state_dict():
        return None
    embeds: list[Any] = [module.get_submodule("patch_embed") for module in (before, after)]
    old, new = (tuple(embed.grid_size) for embed in embeds)
    return None if old == new else (old, new)
