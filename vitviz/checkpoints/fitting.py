"""Loads a state dict into a module: strictly, with position embeddings resized to its grid."""

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..vit import resize_position_embedding
from .reading import CheckpointError

Grid = tuple[int, int]


def load_state(
    module: Any, state: Mapping[str, Tensor], *, prefix: int, grid: Grid | None = None
) -> tuple[Grid, Grid] | None:
    """Copy `state` into `module`, its positions resized to the grid; every name must match.

    Parameters
    ----------
    prefix : int
        Tokens before the patches in the module's sequence.
    grid : (rows, columns), optional
        Of the positions in `state`, where they are known to fill it; else a square is assumed.

    Returns
    -------
    The grids from which and to which positions were resized; None where none were.

    Raises
    ------
    CheckpointError
        When names or shapes differ; the first difference is named.
    """
    own = {key: part for key, part in module.state_dict().items() if part.is_floating_point()}
    state, grids = _resized(module, own.get("pos_embed"), dict(state), prefix, grid)
    for key in sorted(own.keys() ^ state.keys()):
        if key not in own:
            raise CheckpointError("The file has, and the model lacks, {key}.", key=key)
        if longer := next((name for name in state if name.endswith(f".{key}")), None):
            raise CheckpointError(
                "The file lacks {key}, and has {longer} beside parts without such a prefix.",
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
    module.load_state_dict(state, strict=False)  # its own whole numbers are not in the file
    return grids


def _resized(
    module: Any, own: Tensor | None, state: dict[str, Tensor], prefix: int, known: Grid | None
) -> tuple[dict[str, Tensor], tuple[Grid, Grid] | None]:
    table = state.get("pos_embed")
    if own is None or table is None or table.ndim != 3 or own.shape[::2] != table.shape[::2]:
        return state, None  # no table of this model at any size
    grid: Grid = tuple(module.patch_embed.grid_size)
    kept = prefix if own.shape[1] == prefix + math.prod(grid) else 0
    count = table.shape[1] - kept
    if count < 1:
        return state, None
    side = math.isqrt(count)
    old = (side, side) if side * side == count else grid
    if known is not None and math.prod(known) == count:
        old = known
    if math.prod(old) != count:
        raise CheckpointError(
            "{count} patch positions fill neither a square nor the grid of {rows} x {cols}.",
            count=count,
            rows=grid[0],
            cols=grid[1],
        )
    if old == grid:
        return state, None
    table = resize_position_embedding(table, grid=grid, num_prefix_tokens=kept, old_grid=old)
    return {**state, "pos_embed": table}, (old, grid)
