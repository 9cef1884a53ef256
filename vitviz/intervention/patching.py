"""Activation patching: put what one picture makes of a part into the pass of another picture."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..activations import Activations, MuteHeads, capture
from ..activations.forward import check_memory, muted_answers
from ..activations.targets import Question
from ..common import Progress
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.recording import Recorder
from .lens import check_head, freeze
from .muting import head_outputs, report_progress

#: Two pictures: the one that is run, and the one whose parts are put into its pass.
Pair = tuple[Picture, Picture]
_LEAST = 1e-3  # difference of logits below which two pictures have the same answer


@dataclass(frozen=True, eq=False)
class PatchEffects:
    """How far a part of the second picture moves the answer for the first one to its own.

    Attributes
    ----------
    effects : ndarray of shape (pairs, layers, parts)
        0 where the answer stays that of the first picture, 1 where it becomes that of the second;
        below 0 where it moves the other way. NaN for heads that a layer lacks.
    classes : tuple of (int, int)
        Of each pair the class of the first picture, and that of the second.
    """

    effects: np.ndarray
    classes: tuple[tuple[int, int], ...]

    @property
    def mean(self) -> np.ndarray:
        """Mean over the pairs, (layers, parts)."""
        mean: np.ndarray = self.effects.mean(axis=0)
        return mean

    @property
    def nbytes(self) -> int:
        return self.effects.nbytes

    def interval(self, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the interval of Student's t around the mean, (layers, parts) each.

        NaN for a single pair.
        """
        from scipy.special import stdtrit  # late: slow to import

        count = len(self.effects)
        if count < 2:
            nothing = np.full(self.effects.shape[1:], np.nan)
            return nothing, nothing
        sem = self.effects.std(axis=0, ddof=1) / np.sqrt(count)
        reach = stdtrit(count - 1, (1 + share) / 2) * sem
        return self.mean - reach, self.mean + reach


def patch_heads(
    model: Model,
    pairs: Sequence[Pair],
    *,
    together: bool = False,
    classes: Sequence[tuple[int | str, int | str]] | None = None,
    progress: Progress | None = None,
) -> PatchEffects:
    """Give each head of the first picture the output that it has for the second one.

    Parameters
    ----------
    model : Model
    pairs : sequence of two pictures, each as in `vitviz.capture`
    together : bool
        Exchange all heads of a layer at once, the whole output of its attention.
    classes : sequence of two classes by index or name, optional
        Of each pair; by default the model's answers for the two pictures.
    progress : callable, optional
        Called as progress(done, of) before each pass with exchanged heads; it may raise to stop.

    Returns
    -------
    PatchEffects
        Parts are the heads, or one for all heads of a layer.

    Raises
    ------
    ModelError
        When the model has no classification head, a layer's heads cannot be exchanged, or both
        pictures of a pair have the same answer.

    Notes
    -----
    The answer is the logit of the second picture's class minus that of the first picture's. A
    large effect says that what the head writes for the second picture is enough to move the
    answer, in a pass that otherwise is the first picture's. It does not say that the head is
    needed, and the two directions of a pair differ. A pass with exchanged parts is out of
    distribution.

    References
    ----------
    Vig et al., "Investigating Gender Bias in Language Models Using Causal Mediation Analysis",
    NeurIPS 2020; Meng et al., "Locating and Editing Factual Associations in GPT", NeurIPS 2022,
    section 2; Zhang and Nanda, "Towards Best Practices of Activation Patching in Language Models",
    ICLR 2024, for the difference of logits.
    """
    comparisons = _compare(model, pairs, classes)
    counts = [layer.num_heads for layer in model.layers]
    heads = [(layer, head) for layer, count in enumerate(counts) for head in range(count)]
    if not heads:
        raise ModelError("{model} has no heads to exchange.", model=model.name)
    passes = len(counts) if together else len(heads)
    effects = np.full((len(pairs), len(counts), 1 if together else max(counts)), np.nan)
    for number, one in enumerate(comparisons):
        values = head_outputs(one.other)
        onward = _within(progress, number * passes, len(pairs) * passes)
        if not together:
            steps = report_progress(heads, onward)
            answers = muted_answers(model, [one.picture], steps, values)
            for place, (answer,) in zip(heads, answers, strict=True):
                effects[(number, *place)] = one.effect(answer)
            continue
        for layer in report_progress(range(len(counts)), onward):
            own = [(layer, head) for head in range(counts[layer])]
            acts = capture(model, one.picture, edits=[MuteHeads(own, values)])
            assert acts.logits is not None
            effects[number, layer] = one.effect(acts.logits)
    return PatchEffects(freeze(effects), tuple(one.classes for one in comparisons))


def patch_tokens(
    model: Model,
    pairs: Sequence[Pair],
    masks: np.ndarray,
    *,
    classes: Sequence[tuple[int | str, int | str]] | None = None,
    progress: Progress | None = None,
) -> PatchEffects:
    """Give some tokens of the first picture, before each layer, the values that the second has.

    Parameters
    ----------
    model, pairs, classes
        As in `patch_heads`.
    masks : bool ndarray of shape (parts, tokens)
        The tokens of each part; `token_blocks` makes those of blocks of patches.
    progress : callable, optional
        Called as progress(done, of) before the pass of each layer and pair, which exchanges the
        parts side by side; it may raise to stop.

    Returns
    -------
    PatchEffects
        Parts are those of `masks`. Layer l is the residual stream before it: layer 0 is the
        embedding. With all tokens exchanged the answer is the second picture's, effect 1.

    Raises
    ------
    ModelError
        When the model has no classification head, its layers differ in their tokens or keep them
        as a map, or both pictures of a pair have the same answer.
    ValueError
        When the masks do not fit the tokens.

    Notes
    -----
    As of `patch_heads`. Tokens carry their position: those of the second picture come from the same
    place.

    References
    ----------
    As of `patch_heads`; Meng et al. exchange states by layer and token.
    """
    comparisons = _compare(model, pairs, classes)
    _ = capture_grid(model)
    tokens = model.layers[0].num_tokens
    masks = np.asarray(masks)
    if masks.ndim != 2 or masks.shape[1] != tokens or masks.dtype != bool:
        raise ValueError(
            f"Expected masks of bool of shape (parts, {tokens}), got {masks.dtype} of shape "
            f"{masks.shape}."
        )
    check_memory(model, len(masks))
    depth = len(model.layers)
    effects = np.empty((len(pairs), depth, len(masks)))
    is_exchanged = torch.from_numpy(masks)[..., None].to(model.device)  # (parts, T, 1)
    for number, one in enumerate(comparisons):
        x = model.to_device(prepare(model, one.picture).x)
        x = x.expand(len(masks), *x.shape).contiguous()
        onward = _within(progress, number * depth, len(pairs) * depth)
        for layer in report_progress(range(depth), onward):
            others = model.to_device(torch.tensor(one.other.tokens(layer)))
            exchange = _Exchange(layer, is_exchanged, others)
            with torch.inference_mode(), model.recording(exchange):
                answers = model.run(x).float().cpu().numpy()
            effects[number, layer] = [one.effect(answer) for answer in answers]
    return PatchEffects(freeze(effects), tuple(one.classes for one in comparisons))


def token_blocks(model: Model, block: int) -> np.ndarray:
    """Return masks for `patch_tokens`: of each token outside the picture, and of blocks of patches.

    Parameters
    ----------
    block : int
        Side of a block in patches, as in `occlusion`.

    Returns
    -------
    bool ndarray of shape (parts, tokens)
        The prefix tokens first, then the blocks in row-major order; each token is in one part.
    """
    if block < 1:
        raise ValueError(f"Expected a block of at least 1 patch, got {block}.")
    rows, cols = capture_grid(model)
    prefix = len(model.layers[0].prefix)
    across = -(-cols // block)
    row, col = np.indices((rows, cols)) // block
    part = np.concatenate([np.arange(prefix), prefix + (row * across + col).ravel()])
    masks: np.ndarray = part == np.arange(part.max() + 1)[:, None]
    return masks


def capture_grid(model: Model) -> tuple[int, int]:
    """Return the grid of patches of a model whose layers all have the same tokens in a row.

    Raises
    ------
    ModelError
        When they differ, or are kept as a map.
    """
    first = model.layers[0]
    alike = {(layer.prefix, layer.query_grid, layer.key_grid) for layer in model.layers}
    if len(alike) > 1 or any(site.layout != "tokens" for site in model.sites):
        raise ModelError(
            "Tokens of {model} cannot be exchanged: its layers differ in their tokens, or keep "
            "them as a map.",
            model=model.name,
        )
    return first.query_grid


class _Exchange(Recorder):
    """Replace tokens (T, D) before one layer where a mask of each picture (B, T, 1) is true."""

    def __init__(self, layer: int, masks: Tensor, others: Tensor) -> None:
        self.layer, self.masks, self.others = layer, masks, others

    def before_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        if layer != self.layer:
            return None
        return torch.where(self.masks, self.others.to(tokens), tokens)


@dataclass(frozen=True, eq=False)
class _Comparison:
    """Two pictures: the first, the capture of the second, and what they are compared by."""

    picture: Picture
    other: Activations
    classes: tuple[int, int]
    start: float
    end: float

    def effect(self, logits: np.ndarray) -> float:
        return (_difference(logits, self.classes) - self.start) / (self.end - self.start)


def _difference(logits: np.ndarray, classes: tuple[int, int]) -> float:
    return float(logits[classes[1]]) - float(logits[classes[0]])


def _compare(
    model: Model,
    pairs: Sequence[Pair],
    classes: Sequence[tuple[int | str, int | str]] | None,
) -> list[_Comparison]:
    check_head(model)
    if not pairs:
        raise ValueError("Expected at least one pair of pictures, got none.")
    comparisons = []
    for number, (first, second) in enumerate(pairs):
        prepared_input = prepare(model, first)
        plain, other = capture(model, prepared_input), capture(model, second)
        assert plain.logits is not None
        assert other.logits is not None
        both = int(plain.logits.argmax()), int(other.logits.argmax())
        if classes is not None:
            one, two = (Question(model, each).class_index for each in classes[number])
            assert one is not None
            assert two is not None
            both = one, two
        start, end = (_difference(logits, both) for logits in (plain.logits, other.logits))
        if both[0] == both[1] or not abs(end - start) > _LEAST:
            raise ModelError(
                "Both pictures of pair {number} have the same answer, {name}. Choose another "
                "picture.",
                number=number + 1,
                name=plain.output_names[both[1]],
            )
        comparisons.append(_Comparison(prepared_input, other, both, start, end))
    return comparisons


def _within(progress: Progress | None, earlier: int, of: int) -> Progress | None:
    """Report the passes of one pair as a part of those of all pairs."""
    return None if progress is None else lambda here, _: progress(earlier + here, of)
