"""All measurements of attention from one pass over the layers."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike

from .attention import (
    entropy_of_scores,
    head_distance,
    head_entropy,
    head_prefix_mass,
    mean_distance,
    patch_distances,
    query_attention,
)
from .inputs import Array, Grid, PatchSize, check_tokens, checked_layers
from .rollout import first_row, fuse, rolled_out


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
        `query_attention` of CLS.
    rollout : ndarray of shape (tokens,)
        `attention_rollout` of CLS, with its defaults.
    """

    distance: Array
    entropy: Array
    prefix_mass: Array
    query_attention: Array
    rollout: Array

    def __post_init__(self) -> None:
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)


@runtime_checkable
class RowBlocks(Protocol):
    """Attention that comes a block of rows at a time, of any layer; `shape` is (layers, h, T)."""

    shape: tuple[int, int, int]

    def row_blocks(self, layer: int) -> Iterator[tuple[slice, slice, Array, Array]]:
        """Heads, rows, scores before the softmax and attention, both (heads, rows, T).

        The next block may be written over them.
        """


def measurements(
    attention: Iterable[ArrayLike],
    *,
    grid: Grid,
    patch_size: PatchSize,
    num_prefix_tokens: int = 1,
) -> Measurements:
    """All measurements of attention in one pass, so that no layer is computed twice.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens)
        What has a method `row_blocks`, as a capture's `attention_layers()` may have, is read in
        blocks of rows instead, and no matrix is ever whole.
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.
    num_prefix_tokens : int

    Returns
    -------
    Measurements
        Each field is what the function of its name returns with its defaults.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols.

    Notes
    -----
    Of layers that come whole, one matrix (tokens, tokens) each is kept until the end, for the
    rollout, which goes from the last layer back. Blocks are read in that order to begin with.
    """
    if isinstance(attention, RowBlocks):
        return _streamed(attention, grid, patch_size, num_prefix_tokens)
    pixels = patch_distances(grid, patch_size)
    prefix = num_prefix_tokens
    distance, entropy, mass, maps, fused = [], [], [], [], []
    for layer in checked_layers(attention, prefix, grid):
        pixels = pixels.astype(layer.dtype, copy=False)
        distance.append(head_distance(layer, pixels, prefix, "renormalised"))
        entropy.append(head_entropy(layer))
        mass.append(head_prefix_mass(layer, prefix))
        maps.append(query_attention(layer, grid=grid, num_prefix_tokens=prefix))
        fused.append(fuse(layer, "mean", 0.0, prefix))
    return Measurements(
        distance=np.stack(distance),
        entropy=np.stack(entropy),
        prefix_mass=np.stack(mass),
        query_attention=np.stack(maps),
        rollout=rolled_out(fused, query=None, num_prefix_tokens=prefix, residual=0.5),
    )


def _streamed(attention: RowBlocks, grid: Grid, patch_size: PatchSize, prefix: int) -> Measurements:
    """The same of blocks of rows, from the last layer back."""
    layers, heads, tokens = attention.shape
    check_tokens(tokens, prefix, grid)
    # Of all tokens: a prefix token is at no distance, and adds none.
    pixels = np.pad(patch_distances(grid, patch_size, np.float32), (prefix, 0))
    parts = np.zeros((2, tokens), np.float32)  # products are faster than sums of slices
    parts[0, prefix:] = parts[1, :prefix] = 1
    far, on_patches, on_prefix, bits = np.empty((4, layers, heads, tokens), np.float32)
    maps = np.zeros((layers, heads, tokens), np.float32)
    rollout = first_row(tokens, None, prefix)
    for layer in reversed(range(layers)):
        row = rollout.astype(np.float32)
        through = np.zeros(tokens)  # the rollout's row times the sum of the heads
        for some, rows, scores, block in attention.row_blocks(layer):
            here = layer, some, rows
            far[here] = np.vecdot(block, pixels[rows])
            on_patches[here], on_prefix[here] = (parts @ block.swapaxes(1, 2)).swapaxes(0, 1)
            bits[here] = entropy_of_scores(scores, block)
            if not prefix:
                maps[layer, some] += block.sum(axis=1) / tokens
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
