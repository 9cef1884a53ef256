"""`compare`: measure two models over the same pictures, or take two profiles of them."""

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from ..model import Model
from .comparison import Comparison, new_folder, reasons_against
from .measuring import PIECE, Piece, measured
from .pictures import Entry, ProfileError, Source, listed
from .results import Part, Profile
from .running import Progress, described, numbered
from .similarity import hsic
from .state import State


def compare(
    first: Model | Profile,
    second: Model | Profile,
    pictures: Source | Iterable[Source] | None = None,
    *,
    labels: str | os.PathLike[str] | Mapping[str, int | str] | Sequence[int | str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    out: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two models over many pictures, picture by picture.

    Parameters
    ----------
    first, second : two Models, or two Profiles over the same pictures
        A and B. Of profiles no picture is read again, and CKA between the two is not known.
    pictures, labels, limit, seed, batch_size, progress
        Of two models, as in `profile`.
    out : path, optional
        A folder that is written, see `Comparison.save`.

    Returns
    -------
    Comparison

    Raises
    ------
    ProfileError
        When the pictures or labels do not fit, the profiles are over other pictures, or nothing of
        the two can be compared.
    ModelError
        When a model cannot be watched.

    Notes
    -----
    The rows by picture of both models stay in memory: 3 kB a picture for two of ViT-S.
    """
    if out is not None:
        new_folder(out)
    if isinstance(first, Profile) and isinstance(second, Profile):
        if pictures is not None:
            raise ProfileError("Two profiles have pictures of their own: leave the pictures out.")
        found = _of_profiles(first, second)
    elif isinstance(first, Profile) or isinstance(second, Profile):
        raise ProfileError("Expected two models or two profiles, got one of each.")
    elif pictures is None:
        raise ProfileError("Expected pictures over which the two models are compared.")
    elif batch_size < 1:
        raise ProfileError(f"Expected batches of at least one picture, got {batch_size}.")
    else:
        entries = listed(pictures, labels=labels, limit=limit, seed=seed)
        asked = labels is not None
        sides = [_Side(one, numbered(entries, one, asked=asked)) for one in (first, second)]
        found = _of_models(*sides, batch_size=batch_size, progress=progress)
    if out is not None:
        found.save(out)
    return found


class _Side:
    """One of the two models, and what was measured of it so far."""

    def __init__(self, model: Model, entries: Sequence[Entry]) -> None:
        self.model, self.entries = model, entries
        self.state, self.parts = State(), list[Part]()
        self.refusals, self.proof_error = dict[str, str](), 0.0

    def measured(
        self, numbers: Sequence[int], batch_size: int, told: Callable[[int], object] | None = None
    ) -> Piece:
        entries = [self.entries[number] for number in numbers]
        return measured(self.model, entries, batch_size=batch_size, progress=told, keep_grams=True)

    def add(self, piece: Piece) -> None:
        there = [why is None for why in piece.table["skipped"]]
        table = {
            name: [value for value, kept in zip(column, there, strict=True) if kept]
            for name, column in piece.table.items()
        }
        self.parts.append((table, {name: rows[there] for name, rows in piece.rows.items()}))
        self.state = self.state.merged(piece.state)
        self.refusals |= piece.refusals
        self.proof_error = max(self.proof_error, piece.proof_error)

    def profile(self, kept: Sequence[int], batch_size: int, seconds: float) -> Profile:
        about = described(self.model, [self.entries[n] for n in kept], batch_size, ())
        about |= {"seconds": round(seconds, 1), "skipped": 0}
        about |= {"proof_error": self.proof_error, "refused_layers": self.refusals}
        return Profile(about, self.state, lambda: iter(self.parts))


def _of_models(
    first: _Side, second: _Side, *, batch_size: int, progress: Progress | None
) -> Comparison:
    left_out: dict[str, str] = {}
    kept: list[int] = []
    summed, begun, total = None, time.monotonic(), len(first.entries)
    for start in range(0, total, PIECE):
        some = [*range(start, min(start + PIECE, total))]

        def told(done: int, start: int = start) -> None:  # by both models together
            if progress is not None:
                progress(start + done // 2, total)

        def told_after(done: int, before: int = len(some)) -> None:
            told(before + done)

        told(0)
        one = first.measured(some, batch_size, told)
        by_first = _taken(some, one, left_out)
        other = second.measured(by_first, batch_size, told_after)
        by_both = _taken(by_first, other, left_out)
        if not by_both:
            continue
        if len(by_both) < len(by_first):
            one = first.measured(by_both, batch_size)  # without what only the second refused
        for side, piece in ((first, one), (second, other)):
            side.add(piece)
        kept += by_both
        if one.grams is not None and other.grams is not None:
            added = len(by_both) * hsic(np.concatenate([one.grams, other.grams]))
            summed = added if summed is None else summed + added
    if progress is not None:
        progress(total, total)
    if not kept:
        why = next(iter(left_out.values()))
        raise ProfileError(f"None of the {total} pictures could be measured with both: {why}")
    seconds = time.monotonic() - begun
    profiles = [side.profile(kept, batch_size, seconds) for side in (first, second)]
    reasons = reasons_against(*profiles)
    if summed is None:
        reasons["cka"] = "CKA needs at least 4 pictures."
    return Comparison(*profiles, left_out=left_out, hsic=summed, not_compared=reasons)


def _taken(numbers: Sequence[int], piece: Piece, left_out: dict[str, str]) -> list[int]:
    """Those pictures that the model took; why it did not take the others goes into `left_out`."""
    skipped = piece.table["skipped"]
    left_out |= {
        name: why for name, why in zip(piece.table["picture"], skipped, strict=True) if why
    }
    return [number for number, why in zip(numbers, skipped, strict=True) if why is None]


def _of_profiles(first: Profile, second: Profile) -> Comparison:
    tables = first.pictures, second.pictures
    names = tables[0]["picture"]
    if len(names) != len(tables[1]["picture"]):
        raise ProfileError(
            f"The two profiles are over other pictures: {len(names)} and "
            f"{len(tables[1]['picture'])} of them."
        )
    digests = zip(names, tables[0]["sha256"], tables[1]["sha256"], strict=True)
    for name, one, other in digests:
        if one != other:
            raise ProfileError(f"The two profiles are over other pictures: {name} is only in one.")
    skipped = [*zip(names, tables[0]["skipped"], tables[1]["skipped"], strict=True)]
    left_out = {name: one or other for name, one, other in skipped if one or other}
    if len(left_out) == len(names):
        raise ProfileError("The two profiles have no picture that both measured.")
    reasons = reasons_against(first, second)
    reasons["cka"] = (
        "CKA between two models needs the tokens of both at once, which profiles do not keep."
    )
    alone = sum((one is None) != (other is None) for _, one, other in skipped)
    if alone:
        reasons.setdefault(
            "maps",
            f"The mean maps of one profile hold pictures that the other lacks ({alone} of them).",
        )
    if {"heads", "answers"} <= reasons.keys():
        raise ProfileError(reasons["heads"])
    return Comparison(first, second, left_out=left_out, not_compared=reasons)
