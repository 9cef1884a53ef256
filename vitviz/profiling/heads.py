"""What a profile measures of each head in each picture of a batch.

Letters in the shape comments: P pictures, L layers, h heads, H = P h heads of all pictures numbered
through, T tokens, N patches.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ..activations import Activations
from ..families import Layer, ModelError
from ..inspection import windowed_distance
from ..inspection.attention import entropy_of_scores, mean_distance, patch_distances
from ..inspection.inputs import Grid
from ..inspection.offsets import offset_numbers

#: What is measured of each head, and its unit.
MEASURES = {
    "distance": "px",
    "distance_paper": "px",
    "entropy": "bit",
    "prefix_mass": "share",
    "self_mass": "share",
    "outlier_mass": "share",
    "mutual_information": "share",
}
#: Of which the numbers of every picture are kept.
KEPT = ("distance", "entropy", "prefix_mass", "self_mass", "outlier_mass")

#: Heads, rows, scores where they are known, attention (heads, rows, T), and what each row spends on
#: the prefix tokens and on the patches (heads, 2, rows).
Block = tuple[slice, slice, np.ndarray | None, np.ndarray, np.ndarray]


@dataclass
class Heads:
    """Measures of the heads in the pictures of a batch.

    Attributes
    ----------
    values : by name, ndarray of shape (P, L, most heads of a layer); NaN where there is none
    offsets : by number of the layer: attention by offset summed over pictures and queries, and the
        pairs that were summed, both (h, 2 rows - 1, 2 cols - 1)
    from_cls : by number of the layer: attention from CLS to the patches summed over pictures
        (h, rows, cols), and how many they are
    refusals : by the layer's name, why it was not measured in a picture
    """

    values: dict[str, np.ndarray]
    offsets: dict[int, tuple[np.ndarray, np.ndarray]] = field(default_factory=dict)
    from_cls: dict[int, tuple[np.ndarray, int]] = field(default_factory=dict)
    refusals: dict[str, str] = field(default_factory=dict)


def measured_heads(captured: Sequence[Activations], outliers: Sequence[np.ndarray]) -> Heads:
    """Measure the heads of a batch.

    Parameters
    ----------
    captured : captures of one batch
    outliers : by layer, ndarray of bool of shape (P, T)
        Which of the tokens that it is given are outliers.

    Notes
    -----
    Every layer is proved as a whole. `distance` and `distance_paper` are `attention_distance` in
    its two variants, `entropy` and `prefix_mass` the measurements of those names. Of the attention
    of the patches, `self_mass` is what a patch gives to itself, and `outlier_mass` what it gives to
    patches that are outliers. `mutual_information` is that of queries and keys, over all tokens,
    divided by the geometric mean of their entropies: 0 where all queries look alike.

    References
    ----------
    Park et al., "What Do Self-Supervised Vision Transformers Learn?" (ICLR 2023), section 2.
    """
    layers, pictures = captured[0].layers, len(captured)
    shape = pictures, len(layers), max(layer.num_heads for layer in layers)
    found = Heads({name: np.full(shape, np.nan) for name in MEASURES})
    batch = captured[0].batch
    together = None if batch is None else batch.attention_layers()
    for number, layer in enumerate(layers):
        if together is not None:
            try:
                blocks = together.row_blocks(number)
                _measure(found, layer, number, slice(pictures), blocks, outliers[number])
                continue
            except ModelError:  # of one of the pictures: each is asked on its own
                pass
        for place, acts in enumerate(captured):
            try:
                _measure_one(found, acts, number, place, outliers[number])
            except ModelError as error:
                if layer.kind != "mixing":
                    found.refusals[layer.name] = str(error)
    return found


def _measure_one(
    found: Heads, acts: Activations, number: int, place: int, outliers: np.ndarray
) -> None:
    """Measure one layer of one picture, whatever its attention is."""
    layer = acts.layers[number]
    some = slice(place, place + 1)
    if layer.kind == "global":
        attention = acts.attention(number)
        heads, tokens, _ = attention.shape
        parts = np.split(attention, [len(layer.prefix)], axis=2)
        shares = np.stack([part.sum(axis=2) for part in parts], axis=1)
        block: Block = slice(0, heads), slice(0, tokens), None, attention, shares
        _measure(found, layer, number, some, [block], outliers[some])
        return
    windows = acts.attention_by_window(number)  # (W, h, n, m)
    there = acts.layout(number).queries >= 0
    if layer.kind == "class":  # whose one query is no patch
        there[:] = True
    rows = windows.swapaxes(1, 2)[there].swapaxes(0, 1)  # (h, queries, m)
    heads = slice(0, layer.num_heads)
    found.values["distance"][place, number, heads] = windowed_distance(acts, layer=number)
    found.values["entropy"][place, number, heads] = _row_entropy(rows).mean(axis=1)


def _measure(
    found: Heads,
    layer: Layer,
    number: int,
    some: slice,
    blocks: Iterable[Block],
    outliers: np.ndarray,
) -> None:
    """Measure one layer of those pictures whose blocks these are."""
    heads, prefix, pictures = layer.num_heads, len(layer.prefix), len(outliers)
    tokens = prefix + layer.query_grid[0] * layer.query_grid[1]
    known = outliers.shape[1] == tokens  # not where the grid was made smaller before the layer
    outliers = outliers if known else np.zeros((pictures, tokens), bool)
    pixels = np.pad(patch_distances(layer.query_grid, layer.patch_size, np.float32), (prefix, 0))
    count = pictures * heads
    marked = np.repeat(np.float32(outliers), heads, axis=0)[:, None]  # (H, 1, T)
    of_rows = np.zeros((6, count, tokens), np.float32)
    far, bits, own, on_prefix, on_patches, on_outliers = of_rows
    received = np.zeros((count, tokens))
    cls = layer.prefix.index("cls") if "cls" in layer.prefix else tokens
    from_cls = np.zeros((count, tokens))
    summed = np.zeros((heads, tokens, tokens), np.float32)
    kept = np.zeros((heads, tokens))
    for which, rows, scores, block, shares in blocks:
        here = which, rows
        far[here] = np.vecdot(block, pixels[rows])
        bits[here] = _row_entropy(block) if scores is None else entropy_of_scores(scores, block)
        own[here] = np.diagonal(block[:, :, rows], axis1=1, axis2=2)
        on_prefix[here], on_patches[here] = shares.swapaxes(0, 1)
        on_outliers[here] = np.vecdot(block, marked[which])
        received[which] += block.sum(axis=1)
        first, last, _ = rows.indices(tokens)
        if first <= cls < last:
            from_cls[which] = block[:, cls - first]
        mass = on_patches[here]
        share = np.divide(1, mass, out=np.zeros_like(mass), where=mass != 0)
        for place, head in enumerate(range(*which.indices(count))):
            summed[head % heads, rows] += block[place] * share[place][:, None]
            kept[head % heads, rows] += mass[place] != 0
    far, own, on_prefix, on_patches, on_outliers = (
        values[:, prefix:] for values in (far, own, on_prefix, on_patches, on_outliers)
    )
    entropy, nothing = bits.mean(axis=1, dtype=np.float64), np.full(count, np.nan)
    results: dict[str, np.ndarray] = {
        "distance": mean_distance(far, on_patches),
        "distance_paper": far.mean(axis=1, dtype=np.float64),
        "entropy": entropy,
        "prefix_mass": on_prefix.mean(axis=1, dtype=np.float64),
        "self_mass": own.mean(axis=1, dtype=np.float64),
        "outlier_mass": on_outliers.mean(axis=1, dtype=np.float64) if known else nothing,
        "mutual_information": _mutual_information(received / tokens, entropy),
    }
    for name, values in results.items():
        found.values[name][some, number, :heads] = values.reshape(pictures, heads)
    sums = _by_offset(summed[:, prefix:, prefix:], kept[:, prefix:], layer.query_grid)
    before = found.offsets.get(number)
    found.offsets[number] = sums if before is None else (before[0] + sums[0], before[1] + sums[1])
    if cls < tokens:
        maps = from_cls[:, prefix:].reshape(pictures, heads, *layer.query_grid).sum(axis=0)
        summed_maps, of = found.from_cls.get(number, (0, 0))
        found.from_cls[number] = summed_maps + maps, of + pictures


def _by_offset(
    attention: np.ndarray, kept: np.ndarray, grid: Grid
) -> tuple[np.ndarray, np.ndarray]:
    """Attention (h, N, N) and how many rows of it were summed (h, N), by offset."""
    rows, cols = grid
    shape = len(kept), 2 * rows - 1, 2 * cols - 1
    number = offset_numbers(grid).ravel()
    sums = [np.bincount(number, head.ravel(), shape[1] * shape[2]) for head in attention]
    pairs = [np.bincount(number, np.repeat(head, head.size), shape[1] * shape[2]) for head in kept]
    return np.stack(sums).reshape(shape), np.stack(pairs).reshape(shape)


def _row_entropy(block: np.ndarray) -> np.ndarray:
    logarithm = np.log2(np.maximum(block, np.finfo(block.dtype).tiny))
    bits: np.ndarray = np.maximum(-np.vecdot(block, logarithm), 0)
    return bits


def _mutual_information(received: np.ndarray, entropy: np.ndarray) -> np.ndarray:
    """Of queries that are equally likely and the keys they look at, normalised: (H,)."""
    tokens = received.shape[1]
    logarithm = np.log2(np.maximum(received, np.finfo(np.float64).tiny))
    of_keys = -np.vecdot(received, logarithm)
    shared = np.maximum(of_keys - entropy, 0)  # rounding may go below 0
    scale = np.sqrt(np.maximum(of_keys, 0) * np.log2(tokens))
    information: np.ndarray = np.divide(shared, scale, out=np.zeros_like(shared), where=scale > 0)
    return information
