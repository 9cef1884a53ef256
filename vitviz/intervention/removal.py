"""Remove patches and watch the answer: occlusion, deletion and insertion curves.

Passes of one curve are recorded and not batched, which would save less than a tenth of the time on
a CPU. Those of many curves are batched and not recorded.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..activations import DropPatches, Edit, FillPatches, capture
from ..activations.edits import fill_patches
from ..activations.forward import check_edits, edited_captures
from ..activations.recorder import check_droppable
from ..activations.targets import Question, Similarity, Target, Token, pass_result
from ..common.language import Message
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.recording import Recorder
from .lens import freeze
from .muting import Progress, report_progress

RANDOM_ORDERS = 20  # as the area of one random order alone says little
_CUT = 5  # per cent of the orders left out at either end of an interval
#: How to remove patches: paint them over ("mean", "blur": `FillPatches`), or drop their tokens.
Removal = Literal["mean", "blur", "drop"]


@dataclass(frozen=True, eq=False)
class Curve:
    """A probability, or the value of another target, as patches are removed or put back.

    Attributes
    ----------
    shares : ndarray of shape (steps + 1,)
        Share of the patches that were removed (deletion) or put back (insertion), from 0 to 1.
    probabilities : ndarray of shape (steps + 1,)
        Probability of the class at each share, from 0 to 1; for another target, its value.
    """

    shares: np.ndarray
    probabilities: np.ndarray

    def __post_init__(self) -> None:
        for array in (self.shares, self.probabilities):
            array.setflags(write=False)

    @property
    def area(self) -> float:
        """Area under the curve by the trapezoidal rule; for a class from 0 to 1."""
        return float(np.trapezoid(self.probabilities, self.shares))


@dataclass(frozen=True, eq=False)
class RandomCurve(Curve):
    """The mean of many random orders, with the range of the middle 90 % of them.

    Attributes
    ----------
    low, high : ndarray of shape (steps + 1,)
        At each share; of 20 orders, the second lowest and the second highest.
    areas : ndarray of shape (orders,)
        In ascending order.
    """

    low: np.ndarray
    high: np.ndarray
    areas: np.ndarray

    @property
    def interval(self) -> tuple[float, float]:
        """Range of the middle 90 % of the areas."""
        cut = _CUT * len(self.areas) // 100
        return float(self.areas[cut]), float(self.areas[-1 - cut])


def occlusion(
    model: Model,
    image: Picture,
    target: Target,
    *,
    block: int = 1,
    removal: Removal = "mean",
    progress: Progress | None = None,
) -> np.ndarray:
    """Measure how far the probability of a class, or another target, falls as each block is hidden.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    target : int, str, array, callable, Token or Similarity
        As in `vitviz.attribution.relevance`; for a class, its probability is measured.
    block : int
        Side of a block in patches. Blocks lie side by side from the top left; those at the right
        and the bottom are smaller if the grid is not a multiple of the side.
    removal : "mean", "blur" or "drop"
        Paint the block over with the input's mean colour, or with the blurred input, or remove its
        tokens.
    progress : callable, optional
        Called as progress(done, of) before each pass: one with nothing hidden, and one per block.

    Returns
    -------
    ndarray of shape (rows, cols)
        In the grid of patches; every patch holds the value of its block, so `[::block, ::block]`
        has one value per block. Probability with nothing hidden minus probability with the block
        hidden, from -1 to 1: positive where the class needs the block. For another target, its
        value in place of the probability.

    Raises
    ------
    ModelError
        When the model has no such output, or dropping a block leaves nothing to read.
    ValueError
        When there is no such target or removal, or the block is smaller than one patch.

    Notes
    -----
    A probability near 1 hardly changes while its logit does, and hiding one block at a time misses
    blocks that are redundant. Paint is out of distribution, above all at its edges; dropping tokens
    needs no paint.

    References
    ----------
    Zeiler and Fergus, "Visualizing and Understanding Convolutional Networks", ECCV 2014,
    section 4.2.
    """
    question = Question(model, target)
    if block < 1:
        raise ValueError(f"Expected a block of at least 1 patch, got {block}.")
    rows, cols = model.layers[0].query_grid
    corners = [(top, left) for top in range(0, rows, block) for left in range(0, cols, block)]
    masks = np.zeros((1 + len(corners), rows, cols), bool)  # the first hides nothing
    for mask, (top, left) in zip(masks[1:], corners, strict=True):
        mask[top : top + block, left : left + block] = True
    plain, *values = _values(model, image, masks, question, removal, progress)
    effect = np.empty((rows, cols), np.float32)
    for mask, probability in zip(masks[1:], values, strict=True):
        effect[mask] = plain - probability
    return freeze(effect)


def deletion_curve(
    model: Model,
    image: Picture,
    importance: ArrayLike,
    target: Target,
    *,
    steps: int = 10,
    removal: Removal = "mean",
    progress: Progress | None = None,
) -> Curve:
    """Measure the probability of a class, or another target, without the most important patches.

    Parameters
    ----------
    model : Model
    image : PIL.Image (upright), bytes, path or a prepared input, as in `vitviz.capture`
    importance : array of shape (rows, cols)
        A map in the grid of patches. Only its order counts; equal patches go in row-major order.
    target : int, str, array, callable, Token or Similarity
        As in `occlusion`.
    steps : int
        Number of steps from the whole picture to none of it, of about equally many patches each;
        at most the number of patches.
    removal : "mean", "blur" or "drop"
        Paint the patches over with the input's mean colour, or with the blurred input, or remove
        their tokens.
    progress : callable, optional
        Called as progress(done, of) before each of the steps + 1 passes.

    Returns
    -------
    Curve
        From the whole picture (share 0) to none of it (share 1). A map that finds the patches that
        the class depends on gives a small area.

    Raises
    ------
    ModelError
        When the model has no such output, or dropping every patch leaves nothing to read.
    ValueError
        When the map does not fit the grid or is not finite, when there is no such target or
        removal, or with less than one step.

    Notes
    -----
    An area has a meaning only beside those of `random_curve` with the same removal and steps: show
    both. Painted pictures are out of distribution, so the fall is partly an effect of the paint;
    "drop" needs no paint.

    References
    ----------
    Petsiuk, Das and Saenko, "RISE: Randomized Input Sampling for Explanation of Black-box Models",
    BMVC 2018, section 4. Dropped tokens: Jain et al., "Missingness Bias in Model Debugging",
    ICLR 2022, section 2.
    """
    question = Question(model, target)
    masks, shares = _removals(importance, model.layers[0].query_grid, steps)
    # All patches are removed first: a model that cannot do without patches is refused at once.
    values = _values(model, image, masks[::-1], question, removal, progress)
    return Curve(shares, values[::-1])


def insertion_curve(
    model: Model,
    image: Picture,
    importance: ArrayLike,
    target: Target,
    *,
    steps: int = 10,
    removal: Removal = "mean",
    progress: Progress | None = None,
) -> Curve:
    """Measure the probability of a class, or another target, with the most important patches alone.

    Parameters, errors, notes and references are those of `deletion_curve`.

    Returns
    -------
    Curve
        From none of the picture (share 0) to the whole picture (share 1). A map that finds the
        patches that the class depends on gives a large area.
    """
    question = Question(model, target)
    masks, shares = _removals(importance, model.layers[0].query_grid, steps)
    return Curve(shares, _values(model, image, ~masks, question, removal, progress))


def random_map(grid: tuple[int, int], *, seed: int = 0) -> np.ndarray:
    """Return a map that ranks the patches at random, the baseline for the map under test.

    Parameters
    ----------
    grid : (rows, cols)
    seed : int
        The same seed gives the same map. Use several seeds to see the spread.

    Returns
    -------
    ndarray of shape (rows, cols)
        Ranks, without unit: each of 0 .. rows * cols - 1 once.
    """
    ranks = np.random.default_rng(seed).permutation(grid[0] * grid[1])
    return freeze(ranks.reshape(grid).astype(np.float32))


def random_curve(
    kind: Callable[..., Curve],
    model: Model,
    image: Picture,
    target: Target,
    *,
    orders: int = RANDOM_ORDERS,
    progress: Progress | None = None,
    **options: Any,
) -> RandomCurve:
    """Measure the curves of many random orders, with which the curve of a map is compared.

    Parameters
    ----------
    kind : deletion_curve or insertion_curve
    orders : int
        Number of random orders; their seeds are 0, 1, 2, …
    progress : callable, optional
        Called as progress(done, of) before each pass of all orders.
    target, options : target, steps and removal, as in `kind`
    """
    grid, curves = model.layers[0].query_grid, list[Curve]()

    def report(done: int, of: int) -> None:
        if progress is not None:
            progress(len(curves) * of + done, orders * of)

    for seed in range(orders):
        ranks = random_map(grid, seed=seed)
        curves.append(kind(model, image, ranks, target, progress=report, **options))
    every = np.sort([curve.probabilities for curve in curves], axis=0)
    return RandomCurve(
        shares=curves[0].shares,
        probabilities=every.mean(axis=0),
        low=every[_CUT * orders // 100],
        high=every[-1 - _CUT * orders // 100],
        areas=np.sort([curve.area for curve in curves]),
    )


def removal_areas(
    model: Model,
    image: Picture,
    maps: Sequence[ArrayLike],
    target: int | str,
    *,
    steps: int = 10,
    removal: Removal = "mean",
    batch_size: int = 16,
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the areas of the deletion and insertion curves of many maps, in batches.

    Parameters
    ----------
    model, image, steps, removal
        As in `deletion_curve`.
    maps : sequence of arrays of shape (rows, cols)
    target : int or str
        A class by index or name.
    batch_size : int
        Edited pictures in one forward pass.

    Returns
    -------
    deletion, insertion : ndarray of float64, shape (maps,)
        `deletion_curve(...).area` and `insertion_curve(...).area` of each map, up to rounding.

    Raises
    ------
    ModelError, ValueError
        As in `deletion_curve`.

    Notes
    -----
    No pass records attention: many small passes become a few large ones.
    """
    question, grid = Question(model, target), model.layers[0].query_grid
    if question.class_index is None:
        raise ValueError(f"Expected a class, got {target}.")
    deletion_masks = np.stack([_removals(map_, grid, steps)[0] for map_ in maps])
    _, shares = _removals(maps[0], grid, steps)
    masks = np.stack([deletion_masks, ~deletion_masks]).reshape(-1, np.prod(grid))  # of both curves
    # All curves share their ends, and an order that is another's reverse shares all its passes.
    once, places = np.unique(masks, axis=0, return_inverse=True)
    index = question.class_index
    values = _values_together(model, image, once.reshape(-1, *grid), index, removal, batch_size)
    deletion, insertion = values[places].reshape(2, len(maps), -1)
    return np.trapezoid(deletion, shares), np.trapezoid(insertion, shares)


class _DropEach(Recorder):
    """Drop other patches of each picture of a batch, of all as many."""

    def __init__(self, model: Model, masks: np.ndarray) -> None:
        patches = np.stack([np.flatnonzero(~mask.ravel()) for mask in masks])
        prefix = len(model.layers[0].prefix)
        first = np.broadcast_to(np.arange(prefix), (len(patches), prefix))
        self.layer = model.layers[0]
        self.places = torch.from_numpy(np.concatenate([first, prefix + patches], axis=1))

    def before_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        if layer:
            return None
        check_droppable(self.layer, tokens)
        places = self.places.to(tokens.device)
        return tokens.gather(1, places[..., None].expand(-1, -1, tokens.shape[2]))


def _values_together(
    model: Model,
    image: Picture,
    masks: np.ndarray,
    class_index: int,
    removal: Removal,
    batch_size: int,
) -> np.ndarray:
    """Return the probability of a class without the patches of each mask: float64 (masks,)."""
    original = prepare(model, image).x
    edits = [_removal_edit(mask, removal) for mask in masks]
    if removal == "drop":
        check_edits(edits[-1:], model)  # the first one removes nothing
        if not {*model.read_tokens} & {*model.layers[0].prefix}:
            raise ModelError(
                "This model reads its output from the patches. Keep at least one of them."
            )
    counts = masks.sum(axis=(1, 2)) * (removal == "drop")
    values = np.empty(len(masks))
    for count in np.unique(counts):
        (places,) = np.nonzero(counts == count)
        for start in range(0, len(places), batch_size):
            some = places[start : start + batch_size]
            inputs = [fill_patches(model, original, [edits[place]]) for place in some]
            x = model.to_device(torch.stack(inputs))
            recorder = _DropEach(model, masks[some]) if count else Recorder()
            with torch.inference_mode(), model.recording(recorder):
                scores = model.scores(model.run(x).float())[:, class_index]
            values[some] = scores.cpu().double().numpy()
    if not np.isfinite(values).all():
        mask = masks[np.isfinite(values).argmin()]
        raise _no_value(model, Message("finite probability"), mask)
    return values


def _values(
    model: Model,
    image: Picture,
    masks: np.ndarray,
    question: Question,
    removal: Removal,
    progress: Progress | None,
) -> np.ndarray:
    """Return the target's value without the patches of each mask (count, rows, cols): (count,)."""
    edits = [_removal_edit(mask, removal) for mask in masks]
    reference, what = None, Message("finite probability")
    if question.class_index is None:
        what = Message("finite number")
        if isinstance(question.target, Token | Similarity):  # compared with the picture as it is
            reference = question.reference(pass_result(capture(model, image)))
    values: list[float] = []
    for acts in edited_captures(model, image, report_progress(edits, progress)):
        if question.class_index is None:
            values.append(float(question.value(pass_result(acts), reference)))
        else:
            assert acts.scores is not None  # as the model has a head
            values.append(acts.scores[question.class_index])
        if not np.isfinite(values[-1]):
            raise _no_value(model, what, masks[len(values) - 1])
    return np.array(values, np.float32)


def _no_value(model: Model, what: Message, mask: np.ndarray) -> ModelError:
    return ModelError(
        "{model} gives no {what} with {removed} of {size} patches removed.",
        model=model.name,
        what=what,
        removed=mask.sum(),
        size=mask.size,
    )


def _removal_edit(mask: np.ndarray, removal: Removal) -> Edit:
    if removal == "drop":
        return DropPatches(mask)
    if removal not in ("mean", "blur"):
        raise ValueError(f'Expected the removal "mean", "blur" or "drop", got {removal!r}.')
    return FillPatches(mask, removal)


def _removals(
    importance: ArrayLike, grid: tuple[int, int], steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the patches removed at each step (steps + 1, rows, cols), and their share."""
    values = np.asarray(importance, np.float64)
    if values.shape != grid:
        raise ValueError(f"Expected an importance map of shape {grid}, got {values.shape}.")
    if not np.isfinite(values).all():
        raise ValueError("Expected an importance map of finite numbers, got NaN or infinity.")
    if steps < 1:
        raise ValueError(f"Expected at least 1 step, got {steps}.")
    steps = min(steps, values.size)
    order = np.argsort(-values, axis=None, kind="stable")
    rank = np.empty(values.size, int)
    rank[order] = np.arange(values.size)  # 0 for the most important patch
    counts = np.arange(steps + 1) * values.size // steps
    masks = rank.reshape(grid) < counts[:, None, None]
    return masks, (counts / values.size).astype(np.float32)
