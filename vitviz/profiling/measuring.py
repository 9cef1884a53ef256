"""`measured`: all measures of one piece of a list of pictures, summed into a `State`.

A piece is a minibatch of CKA: so many entries of the list, in its order. It is the unit of work:
whoever measures the pieces, and when, the state of the whole is that of its pieces, merged in
order.
"""

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from PIL import Image

from ..activations import Activations, captures, check_finite
from ..families import ModelError
from ..images import ImageError
from ..inspection import norm_outliers
from ..memory import free_bytes
from ..model import Model
from .heads import KEPT, Heads, measured_heads
from .importance import Muting, head_importance
from .pictures import Entry
from .similarity import gram, hsic
from .state import Moments, State

PIECE = 256  # pictures in a minibatch of CKA
#: Lengths of tokens are counted in bins, 16 to a decade; beyond the ends in the last ones.
NORM_BINS = np.logspace(-3, 5, 8 * 16 + 1)
CONFIDENCE_BINS = 15
_SMALLEST = float(np.finfo(np.float32).tiny)

#: Column of the table of pictures.
COLUMNS = ("picture", "sha256", "label", "answer", "confidence", "skipped")


@dataclass(frozen=True, eq=False)
class Piece:
    """What was measured of some pictures.

    Attributes
    ----------
    state : State
    table : by column, a list with an item for every picture, also those that were skipped
    rows : by measure, float32 ndarray of shape (pictures, layers, heads), NaN where skipped
    refusals : by the layer's name, why it was not measured in one of the pictures
    proof_error : the largest share by which a proof was off
    grams : ndarray of shape (depth + 1, n, n) of the n pictures that were measured, or None
        `similarity.gram` of the tokens at each depth, where they were asked for.
    """

    state: State
    table: dict[str, list[Any]]
    rows: dict[str, np.ndarray]
    refusals: dict[str, str]
    proof_error: float
    grams: np.ndarray | None = None

    def saved(self) -> bytes:
        about = dict(table=self.table, refusals=self.refusals, proof_error=self.proof_error)
        rows = {f"row/{name}": values for name, values in self.rows.items()}
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, about=json.dumps(about), **rows, **self.state.arrays())
        return file.getvalue()

    @classmethod
    def of_saved(cls, data: bytes) -> "Piece":
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        rows = {key[4:]: arrays.pop(key) for key in list(arrays) if key.startswith("row/")}
        return cls(state=State.of_arrays(arrays), rows=rows, **about)


def measured(
    model: Model,
    entries: Sequence[Entry],
    *,
    batch_size: int = 16,
    muting: Muting = MappingProxyType({}),
    progress: Callable[[int], object] | None = None,
    keep_grams: bool = False,
) -> Piece:
    """Measure one piece.

    Parameters
    ----------
    model : Model
    entries : at most `PIECE` entries; their labels are numbers of classes, or None
    batch_size : pictures in one forward pass
    muting : what heads give whose importance is measured, see `muting_of`
    progress : callable, optional
        Called as progress(pictures done) after each batch; what it raises stops.
    keep_grams : bool
        Whether the piece has its Gram matrices, for CKA with another model. `saved` drops them.

    Raises
    ------
    ModelError
        When the model cannot be watched, or fails on pictures of its own preprocessing.
    """
    shape = len(entries), len(model.layers), max(layer.num_heads for layer in model.layers)
    table: dict[str, list[Any]] = {name: [None] * len(entries) for name in COLUMNS}
    table["picture"] = [entry.name for entry in entries]
    table["label"] = [entry.label for entry in entries]
    rows = {name: np.full(shape, np.nan, np.float32) for name in KEPT}
    refusals: dict[str, str] = {}
    state, proof_error = State(), 0.0
    features: Sequence[np.ndarray] = ()  # of each depth (pictures, tokens * D)
    held = 0  # pictures in them
    for start in range(0, len(entries), batch_size):
        end = min(start + batch_size, len(entries))
        places, images = _opened(entries, range(start, end), table)
        captured, shown = [], []
        for place, image, acts in zip([*places], images, _captured(model, images), strict=True):
            try:
                check_finite(model, acts)
                captured.append(acts)
                shown.append(image)
            except ModelError as error:
                table["skipped"][place] = str(error)
                places.remove(place)
        if not captured:
            continue
        lengths = [_lengths(captured, depth) for depth in range(captured[0].depth + 1)]
        heads = measured_heads(captured, [outliers for _, _, outliers in lengths])
        refusals |= heads.refusals
        for name in KEPT:
            rows[name][places] = heads.values[name]
        if captured[0].batch is not None:
            proof_error = max(proof_error, captured[0].batch.proof_error)
        answers = _answers(captured, places, table)
        for more in (_of_heads(heads), _of_tokens(captured, lengths), answers):
            state = state.merged(more)
        for kind, values in muting.items():
            changed, lost = map(Moments.of, head_importance(model, shown, captured, values))
            moments = {f"importance/{kind}/changed": changed, f"importance/{kind}/lost": lost}
            state = state.merged(State(moments))
        if not features:
            sizes = [captured[0].tokens(depth).size for depth in range(captured[0].depth + 1)]
            features = _feature_tables(sizes, len(entries))
        for acts in captured:
            for depth, table_of in enumerate(features):
                table_of[held] = acts.tokens(depth).ravel()
            held += 1
        if progress is not None:
            progress(end)
    grams = None
    if held >= 4:  # HSIC needs as many
        grams = np.stack([gram(each[:held]) for each in features])
        state = state.merged(State({}, {"hsic": held * hsic(grams)}))
    return Piece(state, table, rows, refusals, proof_error, grams if keep_grams else None)


def _opened(
    entries: Sequence[Entry], places: Sequence[int], table: dict[str, list[Any]]
) -> tuple[list[int], list[Image.Image]]:
    """Those pictures that can be read, and their places; why another is not goes into the table."""
    images = {}
    for place in places:
        try:
            images[place], table["sha256"][place] = entries[place].read()
        except ImageError as error:
            table["skipped"][place] = str(error)
    return list(images), list(images.values())


def _captured(model: Model, images: list[Image.Image]) -> list[Activations]:
    return list(captures(model, images, batch_size=max(1, len(images))))


def _feature_tables(sizes: Sequence[int], pictures: int) -> Sequence[np.ndarray]:
    """Float32 tables (pictures, size): in memory, or where they are large in a file of no name."""
    if 4 * sum(sizes) * pictures <= free_bytes() // 4:
        return [np.empty((pictures, size), np.float32) for size in sizes]
    tables = []
    for size in sizes:
        with tempfile.TemporaryFile() as file:
            tables.append(np.memmap(file, np.float32, "w+", shape=(pictures, size)))
    return tables


def _lengths(captured: Sequence[Activations], depth: int) -> tuple[np.ndarray, int, np.ndarray]:
    """Lengths of the tokens (P, T), how many are of the prefix, and which are outliers (P, T)."""
    rows, cols = captured[0].layers[max(0, depth - 1)].query_grid
    norms = np.stack([np.linalg.norm(acts.tokens(depth), axis=1) for acts in captured])
    tokens = norms.shape[1]
    prefix = tokens - rows * cols if tokens >= rows * cols else tokens  # or it has no patches
    outliers = np.zeros(norms.shape, bool)
    for place, lengths in enumerate(norms):
        if prefix < tokens:
            outliers[place, prefix:] = norm_outliers(lengths[prefix:])
    return norms, prefix, outliers


def _of_heads(heads: Heads) -> State:
    moments = {f"head/{name}": Moments.of(values) for name, values in heads.values.items()}
    sums: dict[str, np.ndarray] = {}
    for layer, (attention, pairs) in heads.offsets.items():
        sums |= {f"offset/{layer}": attention, f"offset_pairs/{layer}": pairs}
    for layer, (maps, pictures) in heads.from_cls.items():
        sums |= {f"cls/{layer}": maps, f"cls_pictures/{layer}": np.array(float(pictures))}
    return State(moments, sums)


def _of_tokens(
    captured: Sequence[Activations], lengths: Sequence[tuple[np.ndarray, int, np.ndarray]]
) -> State:
    counts = np.zeros((2, len(lengths), len(NORM_BINS) - 1))  # of prefix tokens, and of patches
    shares = np.full((len(captured), len(lengths)), np.nan)
    for depth, (norms, prefix, outliers) in enumerate(lengths):
        inside = np.clip(norms, NORM_BINS[0], NORM_BINS[-1])
        for part, some in enumerate((inside[:, :prefix], inside[:, prefix:])):
            counts[part, depth] = np.histogram(some, NORM_BINS)[0]
        if prefix < norms.shape[1]:
            shares[:, depth] = outliers[:, prefix:].mean(axis=1)
    moments = {"outlier_share": Moments.of(shares)}
    prefixes = [prefix for _, prefix, _ in lengths]
    for name, ratio in (("attention", _attention_ratio), ("mlp", _mlp_ratio)):
        moments[f"skip_{name}"] = Moments.of([ratio(acts, prefixes) for acts in captured])
    moments["tokens"] = Moments.of_vectors(
        np.concatenate([_last(acts)[prefixes[-1] :] for acts in captured])
    )
    return State(moments, {"norms": counts})


def _last(acts: Activations) -> np.ndarray:
    """The last tokens after the final LayerNorm, or as they are where none fits them."""
    try:
        return acts.tokens(acts.depth, normalised=True)
    except ModelError:
        return acts.tokens(acts.depth)


def _attention_ratio(acts: Activations, prefixes: Sequence[int]) -> np.ndarray:
    return np.stack([_ratio(acts, layer, prefixes, before=True) for layer in range(acts.depth)])


def _mlp_ratio(acts: Activations, prefixes: Sequence[int]) -> np.ndarray:
    return np.stack([_ratio(acts, layer, prefixes, before=False) for layer in range(acts.depth)])


def _ratio(acts: Activations, layer: int, prefixes: Sequence[int], *, before: bool) -> np.ndarray:
    """Length of what passes a branch by to that of what the branch adds, of prefix and patches.

    The mean over tokens, NaN where there is none, or no branch of its own, or the tokens that go in
    are others.
    """
    ratio = np.full(2, np.nan)
    try:
        middle = acts.tokens_after_attention(layer)
    except ModelError:
        return ratio
    into, out = (acts.tokens(layer), middle) if before else (middle, acts.tokens(layer + 1))
    if into.shape != out.shape:
        return ratio
    added = np.linalg.norm(out - into, axis=1)
    by_token = np.divide(
        np.linalg.norm(into, axis=1), added, out=np.full_like(added, np.nan), where=added > 0
    )
    for part, some in enumerate(np.split(by_token, [prefixes[layer + 1]])):
        if np.isfinite(some).any():
            ratio[part] = np.nanmean(some, dtype=np.float64)
    return ratio


def _answers(
    captured: Sequence[Activations], places: Sequence[int], table: dict[str, list[Any]]
) -> State:
    """Fill in the answers, and sum up how many are right and how sure the model is."""
    counts = {name: np.zeros(CONFIDENCE_BINS) for name in ("count", "confidence", "right")}
    top, loss = np.zeros(2), np.zeros(())
    for place, acts in zip(places, captured, strict=True):
        shares = acts.probabilities
        if shares is None:
            return State()
        answer, label = int(shares.argmax()), table["label"][place]
        table["answer"][place], table["confidence"][place] = answer, float(shares[answer])
        if label is None:
            continue
        number = min(int(shares[answer] * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
        counts["count"][number] += 1
        counts["confidence"][number] += shares[answer]
        counts["right"][number] += answer == label
        rank = int((shares > shares[label]).sum())
        top += rank == 0 and answer == label, rank < 5
        loss = loss - np.log(max(float(shares[label]), _SMALLEST))
    sums = {f"answers/{name}": number for name, number in counts.items()}
    return State({}, sums | {"answers/top": top, "answers/loss": loss})
