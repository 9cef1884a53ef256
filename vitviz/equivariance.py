"""What happens when patches change places, with E_pos and without it.

Without E_pos a ViT is equivariant to permutations: shuffled patches give the same tokens in another
order, and so the same answer. The patch embedding alone is equivariant to translations, by whole
patches.
"""

from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from .families import ModelError, exchanged, position_encodings
from .language import Message
from .model import Model, Recorder

Patch = tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Shuffled:
    """The model's outputs on a picture and on its shuffled patches; arrays are read-only.

    Attributes
    ----------
    order : ndarray of int, shape (N,)
        The number of the patch that stands at each place of the shuffled picture, row by row.
    outputs : ndarray of shape (2, 2, K)
        With E_pos and without it; of the picture and of the shuffled picture. Probabilities, or
        the plain outputs of a model that names no classes.
    """

    order: np.ndarray
    outputs: np.ndarray

    @property
    def changes(self) -> tuple[float, float]:
        """The largest change of an output by the shuffling: with E_pos, and without it."""
        with_positions, without = np.abs(self.outputs[:, 0] - self.outputs[:, 1]).max(axis=1)
        return float(with_positions), float(without)


@dataclass(frozen=True, kw_only=True)
class Distances:
    """How far apart two sets of tokens are: the mean of |a - b| / |a|, 0 where they are equal.

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


def shuffle_patches(model: Model, image: Image.Image, *, seed: int = 0) -> Shuffled:
    """The answer with the patches in order and shuffled, with E_pos and without it.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    seed : int
        Of the permutation.

    Raises
    ------
    ModelError
        When something beside E_pos tells the model where a patch is, or nothing does.

    Notes
    -----
    Without E_pos the outputs differ by rounding alone, as sums are added up in another order.

    References
    ----------
    Dosovitskiy et al. (ICLR 2021), appendix D.4 and Table 8.
    """
    bare, x = _without_positions(model), model.preprocess(image)
    rows, cols = model.layers[0].query_grid
    order = np.random.default_rng(seed).permutation(rows * cols)
    pictures = (x, rearranged(x, (rows, cols), order))
    modules = (model.module, bare)
    outputs = torch.stack(
        [torch.cat([_run(model, module, one) for one in pictures]) for module in modules]
    )
    if model.num_classes:
        outputs = model.probabilities(outputs)
    return Shuffled(order=_read_only(order), outputs=_read_only(outputs.numpy()))


def repeat_patch(model: Model, image: Image.Image, first: Patch, second: Patch) -> Distances:
    """How far apart the tokens of two equal patches are, where `first` is copied over `second`.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    first, second : (row, column)

    Raises
    ------
    ModelError
        As `shuffle_patches`.
    """
    bare, x = _without_positions(model), model.preprocess(image)
    grid = model.layers[0].query_grid
    order = np.arange(grid[0] * grid[1])
    one, other = (row * grid[1] + col for row, col in (first, second))
    order[other] = one
    patches = _patch_tokens(model, bare, rearranged(x, grid, order))
    return _apart(*((tokens[[one]], tokens[[other]]) for tokens in patches))


def translate(model: Model, image: Image.Image, pixels: int) -> Distances:
    """How much tokens change when the model's input moves to the right.

    A token of the moved picture is compared with the one that was at its place before: of the two
    nearest places the one whose token is nearer, as half a patch lies between two. What moves in at
    the left mirrors the picture, and is left out of the comparison.

    Parameters
    ----------
    model : Model
    image : PIL.Image, upright
    pixels : int
        From 1 to the width of a patch.

    Raises
    ------
    ModelError
        As `shuffle_patches`.
    """
    bare, x = _without_positions(model), model.preprocess(image)
    grid, width = model.layers[0].query_grid, x.shape[-1]
    moved = F.pad(x, (pixels, 0), mode="reflect")[..., :width]
    pairs = []
    for before, after in zip(
        _patch_tokens(model, bare, x), _patch_tokens(model, bare, moved), strict=True
    ):
        before, after = (tokens.reshape(*grid, -1) for tokens in (before, after))
        there = after[:, 1:]  # the first column mirrors the picture in part
        places = torch.stack([before[:, :-1], before[:, 1:]])
        nearest = (there - places).norm(dim=-1).argmin(dim=0)
        was = places.gather(0, nearest[None, ..., None].expand(1, *there.shape))[0]
        pairs.append((was.flatten(0, 1), there.flatten(0, 1)))
    return _apart(*pairs)


def rearranged(x: Tensor, grid: tuple[int, int], order: np.ndarray) -> Tensor:
    """The picture (C, H, W) with patch number `order[n]` at place n: a tensor of its shape."""
    height, width = (extent // count for extent, count in zip(x.shape[1:], grid, strict=True))
    patches = F.unfold(x[None], (height, width), stride=(height, width))  # (1, C P P, N)
    chosen = patches[..., torch.from_numpy(order)]
    return F.fold(chosen, x.shape[1:], (height, width), stride=(height, width))[0]


def _without_positions(model: Model) -> nn.Module:
    """The same module with zeros in place of E_pos; it shares all other weights."""
    encodings = position_encodings(model.module, model.layers)
    if encodings != ("embedding",):
        why = Message("it has none")
        if others := [Message(name) for name in encodings if name != "embedding"]:
            listed = reduce(lambda one, two: Message("{one} and {two}", one=one, two=two), others)
            why = Message("{others} tell it too where a patch is", others=listed)
        raise ModelError(
            "{model} cannot be tried without its position embedding: {why}.",
            model=model.name,
            why=why,
        )
    assert model.positions is not None
    bare: nn.Module = exchanged(
        model.module, model.parts.positions, torch.zeros_like(model.positions)
    )
    return bare


def _run(model: Model, module: nn.Module, x: Tensor) -> Tensor:
    with torch.inference_mode():
        return model.run(model.placed(x)[None], module).float().cpu()


class _Ends(Recorder):
    """Keeps what the patch embedding and the last block give."""

    def embedded(self, patches: Tensor) -> None:
        self.patches = patches.float().flatten(1, -2)[0]

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.last = tokens


def _patch_tokens(model: Model, bare: nn.Module, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens (N, D) of the patch embedding, of the last layer, and of that without E_pos."""
    prefix = len(model.layers[0].prefix)
    ends, norm = _Ends(), model.parts.norm or nn.Identity()
    last = []
    with torch.inference_mode():
        batch = model.placed(x)[None]
        for module in (model.module, bare):
            with model.watched(ends):
                model.run(batch, module)
            last.append(norm(ends.last)[0, prefix:].float())
    return ends.patches, last[0], last[1]


def _apart(*pairs: tuple[Tensor, Tensor]) -> Distances:
    embedded, last, without = (
        float(((a - b).norm(dim=-1) / a.norm(dim=-1)).mean()) for a, b in pairs
    )
    return Distances(embedded=embedded, last=last, last_without=without)


def _read_only(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
