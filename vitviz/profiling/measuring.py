"""Measure one piece of a list of pictures, and sum its measures into a `State`.

A piece is a minibatch of CKA: `PIECE` entries in the order of the list. It is the unit of work. The
state of the whole list is that of its pieces merged in order, whoever measured them.
"""

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ..activations import Activations, captures, check_finite
from ..common.images import ImageError
from ..inspection import norm_outliers
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture
from ..model.memory import free_bytes
from .entries import Entry
from .heads import BY_PICTURE, Heads, Muting, head_importance, measure_heads
from .state import Moments, State, gram, hsic

PIECE = 256  # pictures in a minibatch of CKA
#: Edges of the bins of token norms, 16 to a decade; norms beyond the ends go into the end bins.
NORM_BINS = np.logspace(-3, 5, 8 * 16 + 1)
CONFIDENCE_BINS = 15
_SMALLEST = float(np.finfo(np.float32).tiny)

#: What is counted in each layer: pictures with a no-op sink, with a broadcast, and all of them.
SINKS = ("no_ops", "broadcasts", "pictures")

#: Columns of the table of pictures.
COLUMNS = ("picture", "sha256", "label", "answer", "confidence", "skipped")


@dataclass(frozen=True, eq=False)
class Piece:
    """The measures of some pictures.

    Attributes
    ----------
    state : State
    table : dict of list
        By column, an item for every picture, skipped ones included.
    rows : dict of ndarray
        By measure, float32 of shape (pictures, layers, heads), NaN for skipped pictures.
    refusals : dict of str
        By the layer's name, why it could not be measured in one of the pictures.
    proof_error : float
        Largest relative error of a proof.
    grams : ndarray of shape (depth + 1, n, n) of the n measured pictures, or None
        `state.gram` of the tokens at each depth, if requested.
    """

    state: State
    table: dict[str, list[Any]]
    rows: dict[str, np.ndarray]
    refusals: dict[str, str]
    proof_error: float
    grams: np.ndarray | None = None

    def to_bytes(self) -> bytes:
        about = dict(table=self.table, refusals=self.refusals, proof_error=self.proof_error)
        rows = {f"row/{name}": values for name, values in self.rows.items()}
        file = io.BytesIO()
        np.savez(
            file, allow_pickle=False, about=json.dumps(about), **rows, **self.state.to_arrays()
        )
        return file.getvalue()

    @classmethod
    def from_bytes(cls, data: bytes) -> "Piece":
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = dict(file)
        about = json.loads(str(arrays.pop("about")))
        rows = {key[4:]: arrays.pop(key) for key in list(arrays) if key.startswith("row/")}
        return cls(state=State.from_arrays(arrays), rows=rows, **about)


def measure_piece(
    model: Model,
    entries: Sequence[Entry],
    *,
    batch_size: int = 16,
    muting: Muting = MappingProxyType({}),
    sinks: bool = False,
    progress: Callable[[int], object] | None = None,
    keep_grams: bool = False,
) -> Piece:
    """Measure one piece.

    Parameters
    ----------
    model : Model
    entries : sequence of Entry
        At most `PIECE` entries, whose labels are class numbers or None.
    batch_size : int
        Pictures in one forward pass.
    muting : mapping, optional
        The outputs of muted heads, by kind of importance; see `muting_values`.
    sinks : bool
        Look for no-op sinks and broadcasts.
    progress : callable, optional
        Called as progress(pictures done) after each batch. An error that it raises stops the
        measurement.
    keep_grams : bool
        Keep the Gram matrices, for CKA with another model. `Piece.to_bytes` drops them.

    Raises
    ------
    ModelError
        When the model cannot be watched, or fails on pictures of its own preprocessing.
    """
    shape = len(entries), len(model.layers), max(layer.num_heads for layer in model.layers)
    table: dict[str, list[Any]] = {name: [None] * len(entries) for name in COLUMNS}
    table["picture"] = [entry.name for entry in entries]
    table["label"] = [entry.label for entry in entries]
    rows = {name: np.full(shape, np.nan, np.float32) for name in BY_PICTURE}
    refusals: dict[str, str] = {}
    state, proof_error = State(), 0.0
    features: Sequence[np.ndarray] = ()  # by depth: (pictures, tokens * D)
    count = 0  # pictures in `features` so far
    for start in range(0, len(entries), batch_size):
        end = min(start + batch_size, len(entries))
        places, images = _read_batch(entries, range(start, end), table)
        batch, inputs = [], []
        stream = captures(model, images, batch_size=max(1, len(images)))
        for place, image, acts in zip([*places], images, stream, strict=True):
            try:
                check_finite(model, acts)
                batch.append(acts)
                inputs.append(image)
            except ModelError as error:
                table["skipped"][place] = str(error)
                places.remove(place)
        if not batch:
            continue
        norms = [_token_norms(batch, depth) for depth in range(batch[0].depth + 1)]
        heads = measure_heads(batch, [outliers for _, _, outliers in norms])
        refusals |= heads.refusals
        for name in BY_PICTURE:
            rows[name][places] = heads.values[name]
        if batch[0].batch is not None:
            proof_error = max(proof_error, batch[0].batch.proof_error)
        answers = _sum_answers(batch, places, table) if model.has_one_answer else State()
        for more in (_sum_heads(heads), _sum_tokens(batch, norms), answers):
            state = state.merge(more)
        if sinks:
            state = state.merge(_count_sinks(model, batch, refusals))
        for kind, values in muting.items():
            changes, falls = map(Moments.of, head_importance(model, inputs, batch, values))
            moments = {f"importance/{kind}/changed": changes, f"importance/{kind}/lost": falls}
            state = state.merge(State(moments))
        if not features:
            sizes = [batch[0].tokens(depth).size for depth in range(batch[0].depth + 1)]
            features = _feature_tables(sizes, len(entries))
        for acts in batch:
            for depth, rows_at in enumerate(features):
                rows_at[count] = acts.tokens(depth).ravel()
            count += 1
        if progress is not None:
            progress(end)
    grams = None
    if count >= 4:  # the unbiased HSIC needs four pictures
        grams = np.stack([gram(each[:count]) for each in features])
        state = state.merge(State({}, {"hsic": count * hsic(grams)}))
    return Piece(state, table, rows, refusals, proof_error, grams if keep_grams else None)


def _read_batch(
    entries: Sequence[Entry], places: Sequence[int], table: dict[str, list[Any]]
) -> tuple[list[int], list[Picture]]:
    """Read pictures; return the places and pictures read, and note in `table` why others fail."""
    images = {}
    for place in places:
        try:
            images[place], table["sha256"][place] = entries[place].read()
        except ImageError as error:
            table["skipped"][place] = str(error)
    return list(images), list(images.values())


def _feature_tables(sizes: Sequence[int], pictures: int) -> Sequence[np.ndarray]:
    """Allocate float32 tables (pictures, size), in unnamed files if memory is too small."""
    if 4 * sum(sizes) * pictures <= free_bytes() // 4:
        return [np.empty((pictures, size), np.float32) for size in sizes]
    tables = []
    for size in sizes:
        with tempfile.TemporaryFile() as file:
            tables.append(np.memmap(file, np.float32, "w+", shape=(pictures, size)))
    return tables


def _token_norms(batch: Sequence[Activations], depth: int) -> tuple[np.ndarray, int, np.ndarray]:
    """Return the token norms (P, T), the number of prefix tokens, and the outliers (P, T)."""
    rows, cols = batch[0].layers[max(0, depth - 1)].query_grid
    norms = np.stack([np.linalg.norm(acts.tokens(depth), axis=1) for acts in batch])
    tokens = norms.shape[1]
    prefix = tokens - rows * cols if tokens >= rows * cols else tokens  # no patches at this depth
    outliers = np.zeros(norms.shape, bool)
    for place, row in enumerate(norms):
        if prefix < tokens:
            outliers[place, prefix:] = norm_outliers(row[prefix:])
    return norms, prefix, outliers


def _sum_heads(heads: Heads) -> State:
    moments = {f"head/{name}": Moments.of(values) for name, values in heads.values.items()}
    sums: dict[str, np.ndarray] = {}
    for layer, (attention, pairs) in heads.offsets.items():
        sums |= {f"offset/{layer}": attention, f"offset_pairs/{layer}": pairs}
    for layer, (maps, pictures) in heads.from_cls.items():
        sums |= {f"cls/{layer}": maps, f"cls_pictures/{layer}": np.array(float(pictures))}
    return State(moments, sums)


def _count_sinks(model: Model, batch: Sequence[Activations], refusals: dict[str, str]) -> State:
    """Count by layer the pictures with a no-op sink, those with a broadcast, and all of them.

    Write into `refusals` why they cannot be told in a layer.
    """
    counts = np.zeros((len(SINKS), len(model.layers)))
    for layer, info in enumerate(model.layers):
        for acts in batch:
            try:
                sinks = acts.sinks(model, layer)
            except ModelError as error:
                refusals[f"{info.name}, sinks"] = str(error)
                continue
            counts[:, layer] += bool(sinks.no_ops), bool(sinks.broadcasts), 1
    return State({}, {"sinks": counts})


def _sum_tokens(
    batch: Sequence[Activations], norms: Sequence[tuple[np.ndarray, int, np.ndarray]]
) -> State:
    counts = np.zeros((2, len(norms), len(NORM_BINS) - 1))  # prefix tokens; patches
    shares = np.full((len(batch), len(norms)), np.nan)
    for depth, (lengths, prefix, outliers) in enumerate(norms):
        inside = np.clip(lengths, NORM_BINS[0], NORM_BINS[-1])
        for part, some in enumerate((inside[:, :prefix], inside[:, prefix:])):
            counts[part, depth] = np.histogram(some, NORM_BINS)[0]
        if prefix < lengths.shape[1]:
            shares[:, depth] = outliers[:, prefix:].mean(axis=1)
    moments = {"outlier_share": Moments.of(shares)}
    prefixes = [prefix for _, prefix, _ in norms]
    for branch in ("attention", "mlp"):
        ratios = [
            [_skip_ratio(acts, layer, prefixes, branch) for layer in range(acts.depth)]
            for acts in batch
        ]
        moments[f"skip_{branch}"] = Moments.of(ratios)
    moments["tokens"] = Moments.of_vectors(
        np.concatenate([_last_tokens(acts)[prefixes[-1] :] for acts in batch])
    )
    return State(moments, {"norms": counts})


def _last_tokens(acts: Activations) -> np.ndarray:
    """Return the last tokens after the final LayerNorm, or without it where it does not fit."""
    try:
        return acts.tokens(acts.depth, normalised=True)
    except ModelError:
        return acts.tokens(acts.depth)


def _skip_ratio(acts: Activations, layer: int, prefixes: Sequence[int], branch: str) -> np.ndarray:
    """Return the skip connection's norm divided by the branch's, for prefix and for patches.

    Each is a mean over tokens. NaN where there are no such tokens, where the layer has no separate
    branch, or where the branch changes the tokens' shape.
    """
    ratio = np.full(2, np.nan)
    try:
        middle = acts.tokens_after_attention(layer)
    except ModelError:
        return ratio
    before, after = acts.tokens(layer), acts.tokens(layer + 1)
    into, out = (before, middle) if branch == "attention" else (middle, after)
    if into.shape != out.shape:
        return ratio
    branch_norm = np.linalg.norm(out - into, axis=1)
    skip_norm = np.linalg.norm(into, axis=1)
    # Below that, the branch's norm is rounding error.
    is_exact = branch_norm > 4 * np.finfo(np.float32).eps * skip_norm
    by_token = np.divide(
        skip_norm, branch_norm, out=np.full_like(branch_norm, np.nan), where=is_exact
    )
    for part, some in enumerate(np.split(by_token, [prefixes[layer + 1]])):
        if np.isfinite(some).any():
            ratio[part] = np.nanmean(some, dtype=np.float64)
    return ratio


def _sum_answers(
    batch: Sequence[Activations], places: Sequence[int], table: dict[str, list[Any]]
) -> State:
    """Write answers and confidences into the table; return the sums of accuracy and calibration."""
    counts = {name: np.zeros(CONFIDENCE_BINS) for name in ("count", "confidence", "right")}
    top, loss = np.zeros(2), np.zeros(())
    for place, acts in zip(places, batch, strict=True):
        shares = acts.probabilities
        assert shares is not None  # as there is one answer
        answer, label = int(shares.argmax()), table["label"][place]
        table["answer"][place], table["confidence"][place] = answer, float(shares[answer])
        if label is None:
            continue
        number = min(int(shares[answer] * CONFIDENCE_BINS), CONFIDENCE_BINS - 1)
        counts["count"][number] += 1
        counts["confidence"][number] += shares[answer]
        counts["right"][number] += answer == label
        ahead = shares > shares[label]
        ahead[:label] |= shares[:label] == shares[label]  # as argmax: the first of equals is best
        top += answer == label, ahead.sum() < 5
        loss = loss - np.log(max(float(shares[label]), _SMALLEST))
    sums = {f"answers/{name}": number for name, number in counts.items()}
    return State({}, sums | {"answers/top": top, "answers/loss": loss})
