"""Compare two models over the same pictures, picture by picture.

The first model is called A and the second B; every difference is B minus A.
"""

import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..common import Progress
from ..common.files import creation_record, replace_file
from ..common.language import format_count
from ..inspection.head_table import as_csv, head_table
from ..model import Model
from .entries import Entry, EntrySource, ProfileError, spool_file
from .heads import BY_PICTURE
from .labels import LabelNumbers, number_labels
from .measuring import PIECE, Piece, measure_piece
from .pictures import list_pictures, sample_entries
from .results import Part, Profile, summary
from .running import describe_run, hold_folder
from .state import Moments, State, cka, hsic

if TYPE_CHECKING:
    import pandas

_CROP = ("input_size", "crop_pct", "crop_mode")  # these decide where patches lie in a picture


@dataclass(frozen=True)
class Answers:
    """Agreement and accuracy of two models over the same pictures.

    Attributes
    ----------
    pictures : int
    agreement : float or None
        Share of pictures to which both give the same answer; None if their classes differ.
    labelled : int
        Number of pictures with a label that both models know.
    accuracy : (float, float) or None
        Of A and of B over the labelled pictures, from 0 to 1.
    difference : float or None
        Accuracy of B minus that of A.
    interval : (float, float) or None
        95 % interval of the difference, by Student's t of the paired differences.
    only_first, only_second : int
        Number of labelled pictures that only A, and that only B, gets right.
    p_value : float or None
        Of McNemar's exact test: the probability of two counts at least this unequal if both models
        are right equally often.
    """

    pictures: int
    agreement: float | None
    labelled: int
    accuracy: tuple[float, float] | None
    difference: float | None
    interval: tuple[float, float] | None
    only_first: int
    only_second: int
    p_value: float | None


class Comparison:
    """Two models over the same pictures; every difference is B minus A.

    Attributes
    ----------
    first, second : Profile
        Of A and of B.
    left_out : dict of str
        By picture name, why a model rejected the picture. It is excluded from both.
    not_compared : dict of str
        Why "heads", "maps", "cls", "cka" or "answers" cannot be compared.
    """

    def __init__(
        self,
        first: Profile,
        second: Profile,
        *,
        left_out: Mapping[str, str],
        hsic: np.ndarray | None = None,
        not_compared: Mapping[str, str],
    ) -> None:
        self.first, self.second = first, second
        self.left_out = dict(left_out)
        self.not_compared = dict(not_compared)
        self._hsic = hsic
        self._made_with = creation_record()
        self._tables = first.pictures, second.pictures
        skipped = zip(*(table["skipped"] for table in self._tables), strict=True)
        self._in_both = np.array([why == (None, None) for why in skipped])

    def __repr__(self) -> str:
        names = (profile.about["model"] for profile in (self.first, self.second))
        return f"Comparison({', '.join(names)}, {format_count(self.pictures, 'picture')})"

    @property
    def pictures(self) -> int:
        """Number of pictures that both models measured."""
        return int(self._in_both.sum())

    def values(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """Return a measure of A and of B in every picture that both measured.

        Two float32 ndarrays of shape (pictures, layers, heads), NaN where a layer does not have the
        measure. It is "distance" (pixels), "entropy" (bits), "prefix_mass", "self_mass" or
        "outlier_mass" (0 to 1).
        """
        self._check("heads")
        first, second = (one.values(measure)[self._in_both] for one in (self.first, self.second))
        return first, second

    def difference(self, measure: str) -> Moments:
        """Return the paired differences of a measure over the pictures, B minus A.

        Parameters
        ----------
        measure : "distance" (pixels), "entropy" (bits), "prefix_mass", "self_mass" or
            "outlier_mass" (0 to 1)

        Returns
        -------
        Moments of values of shape (layers, heads)
            `means`, `sem` and `interval()`, the 95 % interval of each head's mean difference.

        Raises
        ------
        ProfileError
            When the two models have other layers, heads or grids.

        Notes
        -----
        The intervals are not corrected for multiple comparisons: if nothing differs, 5 of 100 miss
        zero by chance.
        """
        first, second = self.values(measure)
        return Moments.of(second.astype(np.float64) - first)

    def to_frame(self) -> "pandas.DataFrame":
        """Return a table with a row for each layer, head and measure, as `heads.csv` has it.

        Returns
        -------
        pandas.DataFrame
            `layer` and `head`, counted from 1 as on screen, `measure`, `unit` ("px", "bit" or
            "share"), the means of `first` and `second`, and `value`, the mean of the paired
            differences B minus A. `std` is the sample standard deviation (n - 1) of the
            differences, `sem` their mean's standard error, `low` and `high` its 95 % interval by
            Student's t, `pictures` how many have both values.

        Raises
        ------
        ProfileError
            When the two models have other layers, heads or grids.
        """
        import pandas

        return pandas.DataFrame(self._columns())

    def cka(self) -> np.ndarray:
        """Return linear CKA between the tokens at every depth of A and at every depth of B.

        Returns
        -------
        ndarray of shape (depth of A + 1, depth of B + 1)
            The unbiased estimate over minibatches of 256 pictures in the order of the list, as
            `Profile.cka`.

        Raises
        ------
        ProfileError
            When it was not measured: two saved profiles do not hold the tokens.

        References
        ----------
        Nguyen, Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?" (ICLR 2021).
        """
        self._check("cka")
        assert self._hsic is not None
        of_first = len(self.first.about["layers"]) + 1
        return cka(self._hsic)[:of_first, of_first:]

    def offset_difference(self, layer: int) -> np.ndarray:
        """Return the mean attention by offset, B minus A: (heads, 2 rows - 1, 2 cols - 1).

        Shares of 1; NaN where either has no value. See `Profile.offset_attention`.
        """
        self._check("maps")
        return self.second.offset_attention(layer) - self.first.offset_attention(layer)

    def cls_difference(self, layer: int) -> np.ndarray:
        """Return the mean attention from CLS to the patches, B minus A: (heads, rows, cols).

        Shares of 1. See `Profile.cls_attention`.
        """
        self._check("maps")
        self._check("cls")
        return self.second.cls_attention(layer) - self.first.cls_attention(layer)

    @property
    def answers(self) -> Answers | None:
        """Agreement and accuracy; None unless both models choose among classes."""
        if not all(_has_one_answer(profile.about) for profile in (self.first, self.second)):
            return None
        answer, label = (
            np.array([np.array(table[name], object)[self._in_both] for table in self._tables])
            for name in ("answer", "label")
        )
        same = None if "answers" in self.not_compared else float(np.mean(answer[0] == answer[1]))
        is_labelled = (label != None).all(axis=0)  # noqa: E711, item by item
        right = (answer == label)[:, is_labelled].astype(np.float64)
        count = int(is_labelled.sum())
        only = [int(((right[0] != right[1]) & (right[side] == 1)).sum()) for side in (0, 1)]
        answers = Answers(self.pictures, same, count, None, None, None, only[0], only[1], None)
        if not count:
            return answers
        difference = Moments.of(right[1] - right[0])
        from scipy.stats import binomtest  # late: slow to import

        low, high = difference.interval()
        return replace(
            answers,
            accuracy=(float(right[0].mean()), float(right[1].mean())),
            difference=float(difference.mean),
            interval=(float(low), float(high)) if count > 1 else None,
            p_value=float(binomtest(only[1], sum(only)).pvalue) if sum(only) else 1.0,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the comparison into a folder.

        `heads.csv` (every measure of every head), `compare.html`, which shows all figures and needs
        no other file, and `run.json`, which describes the run.

        Raises
        ------
        ProfileError
            When the folder holds a profile or a comparison, or cannot be written.
        """
        from ..plots.profile_pairs import page

        place = new_folder(folder)
        try:
            place.mkdir(parents=True, exist_ok=True)
            if "heads" not in self.not_compared:
                replace_file(place / "heads.csv", as_csv(self._columns()).encode())
            replace_file(place / "compare.html", page(self).encode(errors="backslashreplace"))
            replace_file(place / "run.json", (json.dumps(self.about, indent=2) + "\n").encode())
        except OSError as error:
            raise ProfileError(f"{place} cannot be written: {error.strerror or error}.") from error

    @property
    def about(self) -> dict[str, Any]:
        """The content of `run.json`: versions, date, both profiles, and what was not compared."""
        return {
            **self._made_with,
            "first": self.first.about,
            "second": self.second.about,
            "pictures": self.pictures,
            "left_out": self.left_out,
            "not_compared": self.not_compared,
            "answers": None if self.answers is None else asdict(self.answers),
        }

    def _columns(self) -> dict[str, list[Any]]:
        measures = {}
        for name in BY_PICTURE:
            sides = zip(("first", "second"), self.values(name), strict=True)
            means = {side: Moments.of(values).means for side, values in sides}
            measures[name] = means | summary(self.difference(name))
        heads = [layer["num_heads"] for layer in self.first.about["layers"]]
        return head_table(heads, measures)

    def _check(self, what: str) -> None:
        if what in self.not_compared:
            raise ProfileError(self.not_compared[what])


def incompatibilities(first: Profile, second: Profile) -> dict[str, str]:
    """Return what two profiles cannot be compared in, each with the reason."""
    reasons: dict[str, str] = {}
    both = {"A": first.about, "B": second.about}
    layers_differ = _explain_layers(first.about["layers"], second.about["layers"])
    if layers_differ:
        reasons |= dict.fromkeys(("heads", "maps", "cls"), layers_differ)
    else:
        for name, one in (("A", first), ("B", second)):
            if not any(key.startswith("cls/") for key in one.state.sums):
                reasons["cls"] = f"{name} has no CLS token that attends beside the patches."
        crops = [[about["preprocessing"][key] for key in _CROP] for about in both.values()]
        if crops[0] != crops[1]:
            reasons["cls"] = "A and B crop pictures differently, so their patches do not coincide."
    classes = [about["num_classes"] for about in both.values()]
    labels = [about["labels"] for about in both.values()]
    undecided = [name for name, about in both.items() if not _has_one_answer(about)]
    if 0 in classes:
        reasons["answers"] = f"{'A' if classes[0] == 0 else 'B'} has no head for classes."
    elif undecided:
        kind = both[undecided[0]]["answers"]
        reasons["answers"] = f"{undecided[0]} answers with {kind} and does not choose one class."
    elif classes[0] != classes[1]:
        reasons["answers"] = f"A has {classes[0]} classes and B {classes[1]}."
    elif None not in labels and labels[0] != labels[1]:
        reasons["answers"] = "The classes of A have other names than those of B."
    return reasons


def _has_one_answer(about: Mapping[str, Any]) -> bool:
    """Whether the model of a profile chooses among classes."""
    return bool(about["num_classes"]) and about.get("one_answer", True)


def _explain_layers(first: Sequence[Any], second: Sequence[Any]) -> str | None:
    """Say in which layer two models differ; None if all layers correspond."""
    if len(first) != len(second):
        return f"A has {len(first)} layers and B {len(second)}, so no head has a counterpart."
    for number, (one, other) in enumerate(zip(first, second, strict=True), start=1):
        heads = [layer["num_heads"] for layer in (one, other)]
        if heads[0] != heads[1]:
            return (
                f"Layer {number} has {heads[0]} heads in A and {heads[1]} in B, so they have no "
                "counterparts."
            )
        grids = [_grid_words(layer) for layer in (one, other)]
        if grids[0] != grids[1]:
            return (
                f"Layer {number} has {grids[0]} in A and {grids[1]} in B, so their measures have "
                "other scales."
            )
    return None


def _grid_words(layer: Mapping[str, Any]) -> str:
    rows, cols = layer["query_grid"]
    size = layer["patch_size"]
    height, width = size if isinstance(size, Sequence) else (size, size)
    return f"{rows} x {cols} patches of {height} x {width} pixels"


def new_folder(folder: str | os.PathLike[str]) -> Path:
    """Return the path of a folder; raise a ProfileError if it holds a run already."""
    place = Path(folder)
    if (place / "run.json").exists():
        raise ProfileError(f"{place} holds the files of a run already. Name another folder.")
    return place


def compare(
    first: Model | Profile,
    second: Model | Profile,
    pictures: EntrySource | Iterable[EntrySource] | None = None,
    *,
    labels: LabelNumbers | None = None,
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
        A and B. With profiles, no picture is read again, and CKA between the two is not available.
    pictures, labels, limit, seed, batch_size, progress
        For two models, as in `profile`.
    out : path, optional
        Folder to write, see `Comparison.save`.

    Returns
    -------
    Comparison

    Raises
    ------
    ProfileError
        When the pictures or labels do not fit, the profiles are of different pictures, or nothing
        can be compared.
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
            raise ProfileError("Two profiles have pictures of their own. Leave out `pictures`.")
        if labels is not None or limit is not None:
            raise ProfileError(
                "Two profiles have the labels and the sample with which they were measured. Leave "
                "out `labels` and `limit`, or measure again."
            )
        comparison = _compare_profiles(first, second)
    elif isinstance(first, Profile) or isinstance(second, Profile):
        raise ProfileError("Expected two models or two profiles, got one of each.")
    elif pictures is None:
        raise ProfileError("Two models need pictures to be compared over, got none.")
    elif batch_size < 1:
        raise ProfileError(f"Expected batches of at least one picture, got {batch_size}.")
    else:
        notes: list[str] = []
        with spool_file() as spool:
            entries = list_pictures(pictures, labels=labels, notes=notes, spool=spool)
            sides = []
            for one in (first, second):
                own_entries, why_unlabelled = number_labels(entries, one, strict=labels is not None)
                if why_unlabelled is not None:
                    notes.append(f"The labels of the pictures are left out: {why_unlabelled}")
                sides.append(_Side(one, sample_entries(own_entries, limit, seed)))
            with hold_folder(None if out is None else Path(out)):
                comparison = _compare_models(*sides, batch_size=batch_size, progress=progress)
                comparison.first.about["notes"] = [*dict.fromkeys(notes)]
                for side in (comparison.first, comparison.second):
                    side.about |= {"seed": seed, "limit": limit}
                if out is not None:
                    comparison.save(out)
        return comparison
    if out is not None:
        comparison.save(out)
    return comparison


class _Side:
    """One of the two models, with its measures so far."""

    def __init__(self, model: Model, entries: Sequence[Entry]) -> None:
        self.model, self.entries = model, entries
        self.state, self.parts = State(), list[Part]()
        self.refusals, self.proof_error = dict[str, str](), 0.0

    def measure(
        self, numbers: Sequence[int], batch_size: int, report: Callable[[int], object] | None = None
    ) -> Piece:
        entries = [self.entries[number] for number in numbers]
        return measure_piece(
            self.model, entries, batch_size=batch_size, progress=report, keep_grams=True
        )

    def add(self, piece: Piece) -> None:
        is_measured = [why is None for why in piece.table["skipped"]]
        table = {
            name: [value for value, is_in in zip(column, is_measured, strict=True) if is_in]
            for name, column in piece.table.items()
        }
        self.parts.append((table, {name: rows[is_measured] for name, rows in piece.rows.items()}))
        self.state = self.state.merge(piece.state)
        self.refusals |= piece.refusals
        self.proof_error = max(self.proof_error, piece.proof_error)

    def profile(self, numbers: Sequence[int], batch_size: int, seconds: float) -> Profile:
        about = describe_run(self.model, [self.entries[n] for n in numbers], batch_size, ())
        about |= {"seconds": round(seconds, 1), "skipped": 0}
        about |= {"proof_error": self.proof_error, "refused_layers": self.refusals}
        return Profile(about, self.state, lambda: iter(self.parts))


def _compare_models(
    first: _Side, second: _Side, *, batch_size: int, progress: Progress | None
) -> Comparison:
    left_out: dict[str, str] = {}
    in_both: list[int] = []
    total_hsic, start_time, count = None, time.monotonic(), len(first.entries)
    for start in range(0, count, PIECE):
        some = [*range(start, min(start + PIECE, count))]

        # A picture counts half for each model.
        def report(pictures: int, start: int = start) -> None:
            if progress is not None:
                progress(start + pictures // 2, count)

        def report_second(pictures: int, before: int = len(some)) -> None:
            report(before + pictures)

        report(0)
        one = first.measure(some, batch_size, report)
        by_first = _measured_by(some, one, left_out)
        other = second.measure(by_first, batch_size, report_second)
        by_both = _measured_by(by_first, other, left_out)
        if not by_both:
            continue
        if len(by_both) < len(by_first):
            one = first.measure(by_both, batch_size)  # again, without what the second rejected
        for side, piece in ((first, one), (second, other)):
            side.add(piece)
        in_both += by_both
        if one.grams is not None and other.grams is not None:
            share = len(by_both) * hsic(np.concatenate([one.grams, other.grams]))
            total_hsic = share if total_hsic is None else total_hsic + share
    if progress is not None:
        progress(count, count)
    if not in_both:
        why = next(iter(left_out.values()))
        tried = format_count(count, "picture")
        raise ProfileError(f"None of {tried} could be measured with both: {why}")
    seconds = time.monotonic() - start_time
    profiles = [side.profile(in_both, batch_size, seconds) for side in (first, second)]
    reasons = incompatibilities(*profiles)
    if total_hsic is None:
        reasons["cka"] = "CKA needs at least 4 pictures."
    return Comparison(*profiles, left_out=left_out, hsic=total_hsic, not_compared=reasons)


def _measured_by(numbers: Sequence[int], piece: Piece, left_out: dict[str, str]) -> list[int]:
    """Return the pictures that the model measured; add its reasons for the others to `left_out`."""
    skipped = piece.table["skipped"]
    left_out |= {
        name: why for name, why in zip(piece.table["picture"], skipped, strict=True) if why
    }
    return [number for number, why in zip(numbers, skipped, strict=True) if why is None]


def _compare_profiles(first: Profile, second: Profile) -> Comparison:
    tables = first.pictures, second.pictures
    names = tables[0]["picture"]
    if len(names) != len(tables[1]["picture"]):
        raise ProfileError(
            f"The two profiles are of different pictures: {len(names)} and "
            f"{len(tables[1]['picture'])} of them."
        )
    digests = zip(names, tables[0]["sha256"], tables[1]["sha256"], strict=True)
    for name, one, other in digests:
        if one != other:
            raise ProfileError(
                f"The two profiles are of different pictures: {name} is only in one of them."
            )
    skipped = [*zip(names, tables[0]["skipped"], tables[1]["skipped"], strict=True)]
    left_out = {name: one or other for name, one, other in skipped if one or other}
    if len(left_out) == len(names):
        raise ProfileError("The two profiles have no picture that both measured.")
    reasons = incompatibilities(first, second)
    if "answers" not in reasons:
        for name, one, other in zip(names, tables[0]["label"], tables[1]["label"], strict=True):
            if None not in (one, other) and one != other:
                raise ProfileError(
                    f"{name} has the label {one} in A and {other} in B, so their accuracies are "
                    "over other labels. Measure both with the same labels."
                )
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
