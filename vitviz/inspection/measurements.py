"""`measurements`: make all measurements of attention in one pass over the layers."""

from dataclasses import InitVar, dataclass, fields
from typing import Any

import numpy as np

from ..common.query import Grid
from .attention import (
    entropy_of_scores,
    head_distance,
    head_entropy,
    head_prefix_mass,
    mean_distance,
    patch_distances,
    query_attention,
)
from .inputs import Array, PatchSize, check_tokens, stack_layers
from .rollout import first_row, fuse_heads, roll_out
from .sources import Attention, CapturedLayers, Source, read_source


@dataclass(frozen=True, eq=False)
class Measurements:
    """The results of `measurements`; the arrays are read-only.

    NaN stands for heads that a layer lacks because another has more, and for measures that a model
    does not have: `missing` says why.

    Attributes
    ----------
    distance : ndarray of shape (layers, heads)
        `attention_distance`, renormalised, in pixels.
    entropy : ndarray of shape (layers, heads)
        `attention_entropy`, in bits.
    prefix_mass : ndarray of shape (layers, heads)
        `prefix_mass`, from 0 to 1.
    query_attention : ndarray of shape (layers, heads, rows, cols)
        `query_attention` of CLS, or of the mean of the patches if the head reads that.
    rollout : ndarray of shape (tokens,)
        `attention_rollout` of the same, with its defaults.
    missing : str
        Reason why prefix mass, query attention and rollout are NaN; "" if they are known. Only
        `Activations.measure` measures the layers of a capture with windows or pooled keys.
    """

    distance: Array
    entropy: Array
    prefix_mass: Array
    query_attention: Array
    rollout: Array
    why: InitVar[str] = ""  # not a field, as all fields are arrays

    def __post_init__(self, why: str) -> None:
        object.__setattr__(self, "_missing", why)
        for field in fields(self):
            getattr(self, field.name).setflags(write=False)

    @property
    def mean_query_attention(self) -> Array:
        """`query_attention` averaged over the heads that each layer has: (layers, rows, cols)."""
        exists = np.isfinite(self.query_attention).any(axis=(2, 3), keepdims=True)
        with np.errstate(invalid="ignore"):  # NaN where no head of a layer is known
            mean: Array = np.nansum(self.query_attention, axis=1) / exists.sum(axis=1)
        return mean

    @property
    def missing(self) -> str:
        reason: str = vars(self)["_missing"]
        return reason


def measurements(
    attention: Attention,
    *,
    grid: Grid | None = None,
    patch_size: PatchSize | None = None,
    num_prefix_tokens: int | None = None,
    cls: bool | None = None,
) -> Measurements:
    """Make all measurements of attention in one pass, so that no layer is computed twice.

    Parameters
    ----------
    attention : iterable over layers of arrays of shape (heads, tokens, tokens), or a capture
        A capture whose attention is a plain softmax of q k^T is read in blocks of rows, without a
        whole matrix.
    grid : (rows, cols)
    patch_size : int or (height, width)
        In pixels of the model's input.
    num_prefix_tokens : int
        Default 1. A capture knows this, the grid and the size.
    cls : bool
        As in `attention_rollout`.

    Returns
    -------
    Measurements
        Each field is the result of the function of its name with its defaults.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, or an argument contradicts the capture.

    Notes
    -----
    Of whole layers, one matrix (tokens, tokens) each is kept until the end for the rollout, which
    goes from the last layer back. Blocks are read in that order.
    """
    source = read_source(
        attention, grid=grid, patch_size=patch_size, num_prefix_tokens=num_prefix_tokens, cls=cls
    )
    # Two paths: whole matrices of DINOv2-S at 518 px take 929 ms and 152 MB, blocks of their rows
    # 573 ms and 1 MB (at 224 px there is no difference; `matrices` in benchmarks/capture.py).
    # Arrays cannot be read in blocks: they come once, from the first layer on, without scores.
    if source.blocks is not None:
        return batch_measurements(source.blocks, cls=cls)[0]
    pixels = patch_distances(source.grid, source.patch_size)
    where: Any = dict(grid=source.grid, num_prefix_tokens=source.prefix, cls=source.cls)
    distance, entropy, mass, maps, fused = [], [], [], [], []
    for layer in source.arrays(source.grid):
        pixels = pixels.astype(layer.dtype, copy=False)
        distance.append(head_distance(layer, pixels, source.prefix, "renormalised"))
        entropy.append(head_entropy(layer))
        mass.append(head_prefix_mass(layer, source.prefix))
        maps.append(query_attention(layer, **where))
        fused.append(fuse_heads(layer, "mean", 0.0, source.prefix))
    return Measurements(
        distance=stack_layers(distance),
        entropy=stack_layers(entropy),
        prefix_mass=stack_layers(mass),
        query_attention=stack_layers(maps),
        rollout=roll_out(fused, source),
    )


def batch_measurements(
    attention: CapturedLayers, *, cls: bool | None = None
) -> tuple[Measurements, ...]:
    """Measure each picture of a batch, in blocks of rows, from the last layer back.

    Parameters
    ----------
    attention : the `attention_layers` of a batch, or of a capture, whose attention is a plain
        softmax of q k^T
    """
    source: Source = read_source(attention, cls=cls)
    layers, heads, tokens = attention.shape
    pictures, prefix, grid = attention.pictures, source.prefix, source.grid
    check_tokens(tokens, prefix, grid)
    # Between all tokens: prefix tokens get distance 0, so that they add nothing.
    pixels = np.pad(patch_distances(grid, source.patch_size, np.float32), (prefix, 0))
    # The heads of all pictures are numbered through: H = pictures * heads.
    weighted, on_patches, on_prefix, bits = np.empty(
        (4, layers, pictures * heads, tokens), np.float32
    )
    maps = np.zeros((layers, pictures * heads, tokens), np.float32)
    rollout = np.tile(first_row(tokens, source), (pictures, 1))  # (P, T)
    for layer in reversed(range(layers)):
        row = rollout.astype(np.float32).repeat(heads, axis=0)[:, None]  # (H, 1, T)
        through = np.zeros(row.shape, np.float64)  # the rollout's row times each head
        for some, rows, scores, block, shares in attention.row_blocks(layer):
            here = layer, some, rows
            weighted[here] = np.vecdot(block, pixels[rows])
            on_prefix[here], on_patches[here] = shares.swapaxes(0, 1)
            bits[here] = entropy_of_scores(scores, block)
            if not source.cls:
                of_patches = block[:, max(0, prefix - rows.start) :]
                maps[layer, some] += of_patches.sum(axis=1) / (tokens - prefix)
            elif rows.start == 0:
                maps[layer, some] = block[:, 0]
            through[some] += row[some, :, rows] @ block
        fused = through.reshape(pictures, heads, tokens).sum(axis=1)
        rollout = 0.5 * rollout + 0.5 * fused / fused.sum(axis=1, keepdims=True)
    each = layers, pictures, heads
    distance = mean_distance(weighted[..., prefix:], on_patches[..., prefix:]).reshape(each)
    entropy = bits.mean(axis=2, dtype=np.float64).reshape(each)
    mass = on_prefix[..., prefix:].mean(axis=2, dtype=np.float64).reshape(each)
    of_query = maps[:, :, prefix:].reshape(*each, *grid)
    return tuple(
        Measurements(
            distance=distance[:, picture],
            entropy=entropy[:, picture],
            prefix_mass=mass[:, picture],
            query_attention=of_query[:, picture],
            rollout=rollout[picture].astype(np.float32),
        )
        for picture in range(pictures)
    )
