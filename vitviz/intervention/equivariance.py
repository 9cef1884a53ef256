"""Experiments in which patches change places, with E_pos and without it.

Without E_pos a ViT is equivariant to permutations: shuffled patches give the same tokens in another
order, and so the same answer. The patch embedding alone is equivariant to translations by whole
patches.
"""

from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..activations.edits import grid_margins
from ..common.language import Message
from ..common.query import token_number
from ..model import Model
from ..model.devices import own_precision
from ..model.families import ModelError, position_encodings
from ..model.inputs import Picture, prepare
from ..model.recording import Recorder
from .lens import freeze

Patch = tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class ShuffleResult:
    """The model's outputs on a picture and on its shuffled patches; arrays are read-only.

    Attributes
    ----------
    order : ndarray of int, shape (N,)
        Number of the patch at each place of the shuffled picture, row by row.
    outputs : ndarray of shape (2, 2, K)
        With E_pos and without it; of the picture and of the shuffled picture. Probabilities, or
        the plain outputs if the model has no classification head.
    """

    order: np.ndarray
    outputs: np.ndarray

    @property
    def changes(self) -> tuple[float, float]:
        """Largest change of an output by the shuffling: with E_pos, and without it."""
        with_positions, without = np.abs(self.outputs[:, 0] - self.outputs[:, 1]).max(axis=1)
        return float(with_positions), float(without)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """Distances between two sets of tokens: the mean of |a - b| / |a|, 0 if they are equal.

    Attributes
    ----------
    embedded : float
        After the patch embedding, before E_pos.
    last, last_without : float
        After the last layer, with E_pos and without it.
    """

    embedded: float
    last: float
    last_without: float


@own_precision()
def shuffle_patches(model: Model, image: Picture, *, seed: int = 0) -> ShuffleResult:
    """Compute the answer with the patches in order and shuffled, with E_pos and without it.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    seed : int
        Of the permutation, which moves at least two patches.

    Raises
    ------
    ModelError
        When the model knows the place of a patch from more than E_pos, has no E_pos, or sees the
        picture as one patch.

    Notes
    -----
    Without E_pos the outputs differ only by rounding, as sums are added in another order.

    References
    ----------
    Dosovitskiy et al. (ICLR 2021), appendix D.4 and Table 8.
    """
    bare, x = _without_positions(model), prepare(model, image).x
    rows, cols = model.layers[0].query_grid
    if rows * cols == 1:
        raise ModelError(
            "{model} sees the picture as one patch, so there is no other order.", model=model.name
        )
    generator = np.random.default_rng(seed)
    order = generator.permutation(rows * cols)
    while (order == np.arange(rows * cols)).all():  # of 2 x 2 patches, with seed 1
        order = generator.permutation(rows * cols)
    pictures = (x, _rearrange(model, x, order))
    modules = (model.module, bare)
    outputs = torch.stack(
        [torch.cat([_run(model, module, one) for one in pictures]) for module in modules]
    )
    if model.num_classes:
        outputs = model.scores(outputs)
    return ShuffleResult(order=freeze(order), outputs=freeze(outputs.numpy()))


@own_precision()
def repeat_patch(model: Model, image: Picture, first: Patch, second: Patch) -> Distances:
    """Measure the distance between the tokens of two equal patches: `first` copied over `second`.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    first, second : (row, column)

    Raises
    ------
    ModelError
        When the model knows the place of a patch from more than E_pos, or has no E_pos.
    ValueError
        When a patch lies outside of the grid.
    """
    bare, x = _without_positions(model), prepare(model, image).x
    grid = model.layers[0].query_grid
    order = np.arange(grid[0] * grid[1])
    one, other = (token_number(patch, prefix=(), grid=grid) for patch in (first, second))
    order[other] = one
    patches = _patch_tokens(model, bare, _rearrange(model, x, order))
    return _distances(*((tokens[[one]], tokens[[other]]) for tokens in patches))


@own_precision()
def translate(model: Model, image: Picture, pixels: int) -> Distances:
    """Measure how much tokens change when the model's input moves to the right.

    A token of the moved picture is compared with the token that was at its place before; of the two
    nearest places with the nearer token, as a patch may come to lie between two. The pixels that
    move in at the left mirror the picture, and are left out of the comparison.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    pixels : int
        From 1 to the width of a patch.

    Raises
    ------
    ModelError
        When the model knows the place of a patch from more than E_pos, has no E_pos, or has its
        patches in one column.
    ValueError
        When the move is not from 1 pixel to a patch.
    """
    bare, x = _without_positions(model), prepare(model, image).x
    grid, width = model.layers[0].query_grid, x.shape[-1]
    if grid[1] == 1:
        raise ModelError(
            "The patches of {model} lie in one column, so the picture cannot move by a patch to "
            "the side.",
            model=model.name,
        )
    most = model.layers[0].patch_side[1]
    if not 1 <= pixels <= most:
        raise ValueError(f"Expected a move by 1 to {most} pixels, got {pixels}.")
    shifted = F.pad(x, (pixels, 0), mode="reflect")[..., :width]
    pairs = []
    for before, after in zip(
        _patch_tokens(model, bare, x), _patch_tokens(model, bare, shifted), strict=True
    ):
        before, after = (tokens.reshape(*grid, -1) for tokens in (before, after))
        after = after[:, 1:]  # the first column mirrors the picture in part
        candidates = torch.stack([before[:, :-1], before[:, 1:]])
        nearest = (after - candidates).norm(dim=-1).argmin(dim=0)
        origin = candidates.gather(0, nearest[None, ..., None].expand(1, *after.shape))[0]
        pairs.append((origin.flatten(0, 1), after.flatten(0, 1)))
    return _distances(*pairs)


def _rearrange(model: Model, x: Tensor, order: np.ndarray) -> Tensor:
    """Rearrange the patches of an input; pixels beyond the last whole patch stay as they are."""
    _, right, _, bottom = grid_margins(model, x.shape)
    if min(right, bottom) < 0:
        raise ModelError(
            "{model} pads its input to whole patches, so not all of them can change places.",
            model=model.name,
        )
    moved = x.clone()
    inside = moved[:, : x.shape[1] - bottom, : x.shape[2] - right]
    inside.copy_(rearrange_patches(inside, model.layers[0].query_grid, order))
    return moved


def rearrange_patches(x: Tensor, grid: tuple[int, int], order: np.ndarray) -> Tensor:
    """Return the picture (C, H, W) with patch number `order[n]` at place n."""
    height, width = (extent // count for extent, count in zip(x.shape[1:], grid, strict=True))
    patches = F.unfold(x[None], (height, width), stride=(height, width))  # (1, C P P, N)
    patches = patches[..., torch.from_numpy(order)]
    return F.fold(patches, x.shape[1:], (height, width), stride=(height, width))[0]


def _without_positions(model: Model) -> nn.Module:
    """Return the module with zeros in place of E_pos; it shares all other weights."""
    encodings = position_encodings(model.part, model.layers)
    if encodings != ("embedding",):
        why = Message("it has no position embedding")
        if others := [Message(name) for name in encodings if name != "embedding"]:
            names = reduce(lambda one, two: Message("{one} and {two}", one=one, two=two), others)
            why = Message("it also knows the place of a patch from {others}", others=names)
        raise ModelError(
            "{model} cannot run without its position embedding: {why}.",
            model=model.name,
            why=why,
        )
    assert model.positions is not None
    return model.with_exchanged(model.parts.positions, torch.zeros_like(model.positions))


def _run(model: Model, module: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model.run(model.to_device(x)[None], module).float().cpu()


class _Ends(Recorder):
    """Keep the outputs of the patch embedding and of the last block."""

    def on_patches(self, patches: Tensor) -> None:
        self.patches = patches.float().flatten(1, -2)[0]

    def on_block_output(self, layer: int, tokens: Tensor, output: Any) -> None:
        self.last = tokens


def _patch_tokens(model: Model, bare: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens (N, D): of the patch embedding, and the last layer with and without E_pos."""
    prefix = len(model.layers[0].prefix)
    ends, norm = _Ends(), model.parts.norm or nn.Identity()
    last = []
    with torch.inference_mode():
        batch = model.to_device(x)[None]
        for module in (model.module, bare):
            with model.recording(ends):
                model.run(batch, module)
            last.append(norm(ends.last)[0, prefix:].float())
    return ends.patches, last[0], last[1]


def _distances(*pairs: tuple[Tensor, Tensor]) -> Distances:
    at_embedding, last, without = (
        float(((a - b).norm(dim=-1) / a.norm(dim=-1)).mean()) for a, b in pairs
    )
    return Distances(embedded=at_embedding, last=last, last_without=without)
