"""All measurements of attention from one pass over the layers."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike

from .attention import (
    head_distance,
    head_entropy,
    head_prefix_mass,
    patch_distances,
    query_attention,
)
from .inputs import Array, Grid, PatchSize, checked_layers
from .rollout import fuse, rolled_out


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
    One matrix (tokens, tokens) a layer is kept until the end, for the rollout.
    """
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
