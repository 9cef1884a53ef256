"""Load a state dict into a module, strictly, with position embeddings resized to its grid."""

import math
import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ...common.query import Grid
from ...vit import resize_position_embedding
from .errors import CheckpointError


def load_state(
    module: Any, state: Mapping[str, Tensor], *, prefix: int, grid: Grid | None = None
) -> tuple[Grid, Grid] | None:
    """Copy `state` into `module`, with positions resized to its grid; all names must match.

    Parameters
    ----------
    prefix : int
        Number of tokens before the patches in the module.
    grid : (rows, columns), optional
        Grid of the positions in `state`. Default: a square.

    Returns
    -------
    The grids before and after the resizing of positions; None if they were not resized.

    Raises
    ------
    CheckpointError
        With the first difference, when names or shapes differ.
    """
    own = {key: part for key, part in module.state_dict().items() if part.is_floating_point()}
    state, grids = _resize_positions(module, own.get("pos_embed"), dict(state), prefix, grid)
    state = {key: part for key, part in state.items() if key in own or not _adds_nothing(key, part)}
    _check_classifier(own, state)
    for key in sorted(own.keys() ^ state.keys()):
        if key not in own:
            raise CheckpointError("The file has, and the model lacks, {key}.", key=key)
        if longer := next((name for name in state if name.endswith(f".{key}")), None):
            raise CheckpointError(
                "The file lacks {key}, and has {longer} beside parts without this prefix.",
                key=key,
                longer=longer,
            )
        raise CheckpointError("The file lacks {key}.", key=key)
    for key, tensor in own.items():
        if state[key].shape != tensor.shape:
            raise CheckpointError(
                "{key} has shape {shape} in the file, expected {expected}.",
                key=key,
                shape=tuple(state[key].shape),
                expected=tuple(tensor.shape),
            )
    module.load_state_dict(state, strict=False)  # integer buffers are not in the file
    return grids


def _adds_nothing(key: str, part: Tensor) -> bool:
    """Whether a tensor is a bias of 0, which some files of DINOv3 have and its models lack."""
    return key.endswith("bias") and not bool(part.any())


def _check_classifier(own: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Refuse a head of several layers: the functions between them are unknown.

    It is a classifier, or a projector of the training as in MoCo v3, which has the same names.
    """
    for head in ("head", "head.fc", "classifier", "fc"):
        layers = [
            key for key in state if re.match(rf"{re.escape(head)}\.(?:\w+\.)*\d+\.weight$", key)
        ]
        if layers and not own.keys() & set(layers):
            raise CheckpointError(
                "The file's head has several layers ({layers}), and the architecture's has one. "
                "Delete the head from the file to load the rest, or build the model in Python, and "
                "give it to vitviz.watch.",
                layers=", ".join(layers[:3]),
            )


def _resize_positions(
    module: Any, own: Tensor | None, state: dict[str, Tensor], prefix: int, old_grid: Grid | None
) -> tuple[dict[str, Tensor], tuple[Grid, Grid] | None]:
    table = state.get("pos_embed")
    if own is None or table is None or table.ndim != 3 or own.shape[::2] != table.shape[::2]:
        return state, None  # not a table of this model
    grid: Grid = tuple(module.patch_embed.grid_size)
    num_prefix = prefix if own.shape[1] == prefix + math.prod(grid) else 0
    count = table.shape[1] - num_prefix
    if count < 1:
        return state, None
    side = math.isqrt(count)
    old = (side, side) if side * side == count else grid
    if old_grid is not None and math.prod(old_grid) == count:
        old = old_grid
    if math.prod(old) != count:
        raise CheckpointError(
            "{count} patch positions fill neither a square nor the grid of {rows} x {cols}.",
            count=count,
            rows=grid[0],
            cols=grid[1],
        )
    if old == grid:
        return state, None
    table = resize_position_embedding(table, grid=grid, num_prefix_tokens=num_prefix, old_grid=old)
    return {**state, "pos_embed": table}, (old, grid)
