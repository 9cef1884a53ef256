"""`measurements`: all measurements of attention in one pass over the layers."""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from .attention import (
    entropy_of_scores,
    head_distance,
    head_entropy,
    head_prefix_mass,
    mean_distance,
    patch_distances,
    query_attention,
)
from .inputs import Array, Grid, PatchSize, check_tokens
from .rollout import first_row, fuse, rolled_out
from .sources import Attention, KnownLayers, Source, source_of


@dataclass(frozen=True, eq=False)
class Measurements:
    """What `measurements` finds in one pass over the layers; its arrays are read-only.

    Attributes
    ----------
    distance : ndarray of shape (layers, heads)
        `attention_distance`, renormalised, in pixels.
    entropy : ndarray of shape (layers, heads)
        `attention_entropy`, in bits.
    prefix_mass : ndarray of shape (layers, heads)
        `prefix_mass`, from 0 to 1.
    query_attention : ndarray of shape (layers, heads, rows, cols)
        `query_attention` of CLS, or of the mean of the patches where that is read.
    rollout : ndarray of shape (tokens,)
        `attention_rollout` of the same, with its defaults.
    """

    distance: Array
    entropy: Array
    prefix_mass: Array
    query_attention: Array
    rollout: Array

    def __post_init__(self) -> None:
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)


def measurements(
    attention: Attention,
    *,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    cls: bool | None = None,
) -> Measurements:
    """All measurements of attention in one pass, so that no layer is computed twice.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
        A capture whose attention is a plain softmax of q k^T is read in blocks of rows, and no
        matrix is ever whole.
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.
    num_prefix_tokens : int
        1 where left out. A capture knows this, the grid and the size.
    cls : bool
        As in `attention_rollout`.

    Returns
    -------
    Measurements
        Each field is what the function of its name returns with its defaults.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, or an argument contradicts the capture.

    Notes
    -----
    Of layers that come whole, one matrix (tokens, tokens) each is kept until the end, for the
    rollout, which goes from the last layer back. Blocks are read in that order to begin with.
    """
    source = source_of(
        attention, grid=grid, patch_size=patch_size, num_prefix_tokens=num_prefix_tokens, cls=cls
    )
    if source.blocks is not None:
        return _streamed(source.blocks, source)
    pixels = patch_distances(source.grid, source.patch_size)
    where: Any = dict(grid=source.grid, num_prefix_tokens=source.prefix, cls=source.cls)
    distance, entropy, mass, maps, fused = [], [], [], [], []
    for layer in source.checked(source.grid):
        pixels = pixels.astype(layer.dtype, copy=False)
        distance.append(head_distance(layer, pixels, source.prefix, "renormalised"))
        entropy.append(head_entropy(layer))
        mass.append(head_prefix_mass(layer, source.prefix))
        maps.append(query_attention(layer, **where))
        fused.append(fuse(layer, "mean", 0.0, source.prefix))
    return Measurements(
        distance=np.stack(distance),
        entropy=np.stack(entropy),
        prefix_mass=np.stack(mass),
        query_attention=np.stack(maps),
        rollout=rolled_out(fused, source),
    )


def _streamed(attention: KnownLayers, source: Source) -> Measurements:
    """`measurements` of attention in blocks of rows, from the last layer back."""
    layers, heads, tokens = attention.shape
    prefix, grid = source.prefix, source.grid
    check_tokens(tokens, prefix, grid)
    # Of all tokens: prefix tokens get distance 0, so that they add nothing.
    pixels = np.pad(patch_distances(grid, source.patch_size, np.float32), (prefix, 0))
    parts = np.zeros((2, tokens), np.float32)  # products are faster than sums of slices
    parts[0, prefix:] = parts[1, :prefix] = 1
    far, on_patches, on_prefix, bits = np.empty((4, layers, heads, tokens), np.float32)
    maps = np.zeros((layers, heads, tokens), np.float32)
    rollout = first_row(tokens, source)
    for layer in reversed(range(layers)):
        row = rollout.astype(np.float32)
        through = np.zeros(tokens)  # the rollout's row times the sum of the heads
        for some, rows, scores, block in attention.row_blocks(layer):
            here = layer, some, rows
            far[here] = np.vecdot(block, pixels[rows])
            on_patches[here], on_prefix[here] = (parts @ block.swapaxes(1, 2)).swapaxes(0, 1)
            bits[here] = entropy_of_scores(scores, block)
            if not source.cls:
                of_patches = block[:, max(0, prefix - rows.start) :]
                maps[layer, some] += of_patches.sum(axis=1) / (tokens - prefix)
            elif rows.start == 0:
                maps[layer, some] = block[:, 0]
            through += (row[rows] @ block).sum(axis=0)
        rollout = 0.5 * rollout + 0.5 * through / through.sum()
    return Measurements(
        distance=mean_distance(far[..., prefix:], on_patches[..., prefix:]),
        entropy=bits.mean(axis=2, dtype=np.float64),
        prefix_mass=on_prefix[..., prefix:].mean(axis=2, dtype=np.float64),
        query_attention=maps[:, :, prefix:].reshape(layers, heads, *grid),
        rollout=rollout.astype(np.float32),
    )
