"""Measure every head in every picture of a batch, and how much muting it changes the answer.

Letters in shapes: P pictures, L layers, h heads of a layer, H = P h heads of all pictures in one
row, T tokens, N patches.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from ..activations import Activations, captures
from ..activations.forward import is_finite, muted_answers
from ..common.query import Grid
from ..inspection import windowed_distance
from ..inspection.attention import entropy_of_scores, mean_distance, patch_distances
from ..inspection.head_table import UNITS
from ..inspection.inputs import attends
from ..inspection.offsets import offset_numbers
from ..intervention import mean_head_outputs
from ..model import Model
from ..model.families import Layer, ModelError
from ..model.inputs import Picture
from .entries import Entry, read_all

#: The output of a muted head: zero, or its mean output over pictures, token by token.
MutingKind = Literal["zero", "mean"]
#: By kind, the output of each muted (layer, head); zero where it is missing.
Muting = Mapping[MutingKind, Mapping[tuple[int, int], np.ndarray]]
#: Measures of a head, with their units.
MEASURES = UNITS
#: Measures whose values of every picture are kept.
BY_PICTURE = ("distance", "entropy", "prefix_mass", "self_mass", "outlier_mass")
#: (heads, rows, scores if known, attention (heads, rows, T), attention that each row pays to the
#: prefix tokens and to the patches (heads, 2, rows)).
AttentionBlock = tuple[slice, slice, np.ndarray | None, np.ndarray, np.ndarray]


def muting_values(
    model: Model, kinds: Sequence[MutingKind], entries: Sequence[Entry], batch_size: int
) -> Muting:
    """Return the outputs of muted heads; a mean is taken over the entries that are measured.

    Raises
    ------
    ModelError
        When the model does not choose one class, or one of its heads cannot be muted.
    """
    if kinds and not model.num_classes:
        raise ModelError(
            f"{model.name} has no head for classes, so the importance of its attention heads is "
            "not defined. Leave out importance=."
        )
    if kinds and not model.has_one_answer:
        raise ModelError(
            f"{model.name} answers with {model.answers} and does not choose one class, so the "
            "importance of its heads is not defined. Leave out importance=."
        )
    muting: dict[MutingKind, Mapping[tuple[int, int], np.ndarray]] = {}
    for kind in dict.fromkeys(kinds):
        if kind not in ("zero", "mean"):
            raise ModelError(f'Expected the importance "zero" or "mean", got {kind!r}.')
        muting[kind] = {}
    if "mean" in muting:
        images = (image for image, _ in read_all(entries))
        stream = captures(model, images, batch_size=batch_size)
        muting["mean"] = mean_head_outputs(acts for acts in stream if is_finite(acts))
    return muting


def head_importance(
    model: Model,
    images: Sequence[Picture],
    batch: Sequence[Activations],
    values: Mapping[tuple[int, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Mute each head in turn and measure how the model's answer changes.

    Returns
    -------
    changed : ndarray of shape (pictures, layers, most heads of a layer)
        1 if the answer becomes another class, else 0.
    lost : ndarray of the same shape
        Fall of the original answer's log-probability, in nats.

    References
    ----------
    Michel, Levy and Neubig, "Are Sixteen Heads Really Better than One?" (NeurIPS 2019).
    """
    pairs = [
        (layer, head)
        for layer, info in enumerate(model.layers)
        for head in range(info.num_heads)
        if not batch[0].layers[layer].refusal  # a layer that is not read is not muted either
    ]
    shape = len(images), len(model.layers), max(layer.num_heads for layer in model.layers)
    changes, falls = np.full(shape, np.nan), np.full(shape, np.nan)
    before = _log_probabilities(model, np.array([acts.logits for acts in batch], np.float64))
    answers, rows = before.argmax(axis=1), np.arange(len(images))
    for (layer, head), logits in zip(
        pairs, muted_answers(model, images, pairs, values), strict=True
    ):
        after = _log_probabilities(model, logits)
        changes[:, layer, head] = after.argmax(axis=1) != answers
        falls[:, layer, head] = before[rows, answers] - after[rows, answers]
    return changes, falls


def _log_probabilities(model: Model, logits: np.ndarray) -> np.ndarray:
    from scipy.special import log_expit, log_softmax  # late: slow to import

    wide = logits.astype(np.float64)
    result: np.ndarray = log_expit(wide) if model.answers == "labels" else log_softmax(wide, axis=1)
    return result


@dataclass
class Heads:
    """Measures of the heads in the pictures of a batch.

    Attributes
    ----------
    values : by measure, ndarray of shape (P, L, most heads of a layer); NaN where not measured
    offsets : by layer number, the attention by offset summed over pictures and queries, and the
        number of summed pairs, both (h, 2 rows - 1, 2 cols - 1)
    from_cls : by layer number, the attention from CLS to the patches summed over pictures
        (h, rows, cols), and the number of pictures
    refusals : by layer name, why the layer could not be measured in a picture
    """

    values: dict[str, np.ndarray]
    offsets: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    from_cls: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def measure_heads(batch: Sequence[Activations], outliers: Sequence[np.ndarray]) -> Heads:
    """Measure the heads of a batch.

    Parameters
    ----------
    batch : captures of one batch
    outliers : by layer, ndarray of bool of shape (P, T)
        Whether each of the layer's input tokens is an outlier.

    Notes
    -----
    Every layer is proved as a whole. `distance` and `distance_paper` are the two variants of
    `attention_distance`; `entropy` and `prefix_mass` are the measurements of those names.
    `self_mass` is the attention that a patch pays to itself, `outlier_mass` what it pays to patches
    that are outliers. `mutual_information` is that of queries and keys over all tokens, divided by
    the geometric mean of their entropies: 0 if all queries attend alike.

    References
    ----------
    Park et al., "What Do Self-Supervised Vision Transformers Learn?" (ICLR 2023), section 2.
    """
    layers, pictures = batch[0].layers, len(batch)
    shape = pictures, len(layers), max(layer.num_heads for layer in layers)
    heads = Heads({name: np.full(shape, np.nan) for name in MEASURES})
    own_batch = batch[0].batch
    whole = own_batch is not None and own_batch.pictures == pictures  # none was skipped
    row_blocks = own_batch.attention_layers() if own_batch is not None and whole else None
    for number, layer in enumerate(layers):
        if row_blocks is not None:
            try:
                blocks = row_blocks.row_blocks(number)
                _measure_blocks(heads, layer, number, slice(pictures), blocks, outliers[number])
                continue
            except ModelError:  # one of the pictures fails: measure them one by one
                pass
        for place, acts in enumerate(batch):
            try:
                _measure_picture(heads, acts, number, place, outliers[number])
            except ModelError as error:
                if layer.kind != "mixing":
                    heads.refusals[layer.name] = str(error)
    return heads


def _measure_picture(
    results: Heads, acts: Activations, number: int, place: int, outliers: np.ndarray
) -> None:
    """Measure one layer of one picture, for any kind of attention."""
    layer = acts.layers[number]
    some = slice(place, place + 1)
    if layer.kind == "global":
        attention = acts.attention(number)
        heads, tokens, _ = attention.shape
        parts = np.split(attention, [len(layer.prefix)], axis=2)
        shares = np.stack([part.sum(axis=2) for part in parts], axis=1)
        block: AttentionBlock = slice(0, heads), slice(0, tokens), None, attention, shares
        _measure_blocks(results, layer, number, some, [block], outliers[some])
        return
    windows = acts.attention_by_window(number)  # (W, h, n, m)
    is_query = acts.layout(number).queries >= 0  # not padding
    if layer.kind == "class":  # its only query is CLS
        is_query[:] = True
    rows = windows.swapaxes(1, 2)[is_query].swapaxes(0, 1)  # (h, queries, m)
    heads = slice(0, layer.num_heads)
    results.values["distance"][place, number, heads] = windowed_distance(acts, layer=number)
    results.values["entropy"][place, number, heads] = _row_entropy(rows).mean(axis=1)


def _measure_blocks(
    results: Heads,
    layer: Layer,
    number: int,
    some: slice,
    blocks: Iterable[AttentionBlock],
    outliers: np.ndarray,
) -> None:
    """Measure one layer of the pictures `some`, from blocks of its attention."""
    heads, prefix, pictures = layer.num_heads, len(layer.prefix), len(outliers)
    tokens = layer.num_tokens
    has_outliers = outliers.shape[1] == tokens  # False where the layer first makes its grid smaller
    outliers = outliers if has_outliers else np.zeros((pictures, tokens), bool)
    pixels = np.pad(patch_distances(layer.query_grid, layer.patch_size, np.float32), (prefix, 0))
    count = pictures * heads
    outlier_keys = np.repeat(np.float32(outliers), heads, axis=0)[:, None]  # (H, 1, T)
    by_query = np.zeros((6, count, tokens), np.float32)
    far, bits, own, on_prefix, on_patches, on_outliers = by_query
    on_keys = np.zeros((count, tokens))
    cls = layer.prefix.index("cls") if "cls" in layer.prefix else tokens
    from_cls = np.zeros((count, tokens))
    attention = np.zeros((heads, tokens, tokens), np.float32)
    row_counts = np.zeros((heads, tokens))
    for which, rows, scores, block, shares in blocks:
        here = which, rows
        far[here] = np.vecdot(block, pixels[rows])
        bits[here] = _row_entropy(block) if scores is None else entropy_of_scores(scores, block)
        own[here] = np.diagonal(block[:, :, rows], axis1=1, axis2=2)
        on_prefix[here], on_patches[here] = shares.swapaxes(0, 1)
        on_outliers[here] = np.vecdot(block, outlier_keys[which])
        on_keys[which] += block.sum(axis=1)
        first, last, _ = rows.indices(tokens)
        if first <= cls < last:
            from_cls[which] = block[:, cls - first]
        mass = on_patches[here]
        is_attending = attends(mass)
        share = np.divide(1, mass, out=np.zeros_like(mass), where=is_attending)
        for place, head in enumerate(range(*which.indices(count))):
            attention[head % heads, rows] += block[place] * share[place][:, None]
            row_counts[head % heads, rows] += is_attending[place]
    far, own, on_prefix, on_patches, on_outliers = (
        values[:, prefix:] for values in (far, own, on_prefix, on_patches, on_outliers)
    )
    entropy, nothing = bits.mean(axis=1, dtype=np.float64), np.full(count, np.nan)
    measures: dict[str, np.ndarray] = {
        "distance": mean_distance(far, on_patches),
        "distance_paper": far.mean(axis=1, dtype=np.float64),
        "entropy": entropy,
        "prefix_mass": on_prefix.mean(axis=1, dtype=np.float64),
        "self_mass": own.mean(axis=1, dtype=np.float64),
        "outlier_mass": on_outliers.mean(axis=1, dtype=np.float64) if has_outliers else nothing,
        "mutual_information": _mutual_information(on_keys / tokens, entropy),
    }
    for name, values in measures.items():
        results.values[name][some, number, :heads] = values.reshape(pictures, heads)
    sums, pairs = _sum_by_offset(
        attention[:, prefix:, prefix:], row_counts[:, prefix:], layer.query_grid
    )
    before = results.offsets.get(number, (0, 0))
    results.offsets[number] = before[0] + sums, before[1] + pairs
    if cls < tokens:
        maps = from_cls[:, prefix:].reshape(pictures, heads, *layer.query_grid).sum(axis=0)
        earlier_maps, of = results.from_cls.get(number, (0, 0))
        results.from_cls[number] = earlier_maps + maps, of + pictures


def _sum_by_offset(
    attention: np.ndarray, row_counts: np.ndarray, grid: Grid
) -> tuple[np.ndarray, np.ndarray]:
    """Sum attention (h, N, N), and the number of its summed rows (h, N), by offset."""
    rows, cols = grid
    shape = len(attention), 2 * rows - 1, 2 * cols - 1
    size, number = shape[1] * shape[2], offset_numbers(grid).ravel()
    sums = [np.bincount(number, head.ravel(), size) for head in attention]
    pairs = [np.bincount(number, np.repeat(head, head.size), size) for head in row_counts]
    return np.stack(sums).reshape(shape), np.stack(pairs).reshape(shape)


def _row_entropy(block: np.ndarray) -> np.ndarray:
    logarithm = np.log2(np.maximum(block, np.finfo(block.dtype).tiny))
    bits: np.ndarray = np.maximum(-np.vecdot(block, logarithm), 0)
    return bits


def _mutual_information(on_keys: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Return the mutual information (H,) of queries, all equally likely, and their keys.

    It is divided by the geometric mean of both entropies.
    """
    tokens = on_keys.shape[1]
    logarithm = np.log2(np.maximum(on_keys, np.finfo(np.float64).tiny))
    key_entropy = -np.vecdot(on_keys, logarithm)
    gain = np.maximum(key_entropy - entropy, 0)  # rounding may go below 0
    scale = np.sqrt(np.maximum(key_entropy, 0) * np.log2(tokens))
    information: np.ndarray = np.divide(gain, scale, out=np.zeros_like(gain), where=scale > 0)
    return information
