"""`Comparison`: what differs between two models over the same pictures, picture by picture.

The first model is called A and the second B; every difference is B minus A.
"""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .heads import KEPT
from .pictures import ProfileError
from .results import Profile
from .similarity import cka
from .state import Moments
from .writing import replace as replace_file

_CROP = ("input_size", "crop_pct", "crop_mode")  # what says where patches lie in a picture


@dataclass(frozen=True)
class Answers:
    """The answers of two models to the same pictures.

    Attributes
    ----------
    pictures : int
    agreement : float or None
        Share of the pictures to which both give the same answer; None where their classes differ.
    labelled : int
        Pictures with a label that both models know.
    accuracy : (float, float) or None
        Of A and of B over these, from 0 to 1.
    difference : float or None
        Accuracy of B minus that of A.
    interval : (float, float) or None
        95 % interval of the difference, by Student's t of the paired differences.
    only_first, only_second : int
        Labelled pictures that A alone, and that B alone, gets right.
    p_value : float or None
        Of McNemar's exact test: how probable two counts at least so unequal are where both models
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
    """Two models over the same pictures; every difference is that of B minus A.

    Attributes
    ----------
    first, second : Profile
        Of A and of B.
    left_out : dict of str
        By the picture's name, why one of the models could not take it; it counts in neither.
    not_compared : dict of str
        What is not compared, and why, in one sentence: "heads", "maps", "cls", "cka", "answers".
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
        tables = first.pictures, second.pictures
        skipped = zip(*(table["skipped"] for table in tables), strict=True)
        self._kept = np.array([why == (None, None) for why in skipped])
        self._tables = tables

    def __repr__(self) -> str:
        names = (profile.about["model"] for profile in (self.first, self.second))
        return f"Comparison({', '.join(names)}, {self.pictures} pictures)"

    @property
    def pictures(self) -> int:
        """How many pictures both models took."""
        return int(self._kept.sum())

    def values(self, measure: str) -> tuple[np.ndarray, np.ndarray]:
        """The measure in every picture that both took, of A and of B.

        Two float32 ndarrays of shape (pictures, layers, heads), NaN where a layer has no such
        number. Of "distance" (pixels), "entropy" (bits), "prefix_mass", "self_mass" and
        "outlier_mass" (0 to 1).
        """
        self._check("heads")
        first, second = (one.values(measure)[self._kept] for one in (self.first, self.second))
        return first, second

    def difference(self, measure: str) -> Moments:
        """Paired differences of a measure, B minus A, over the pictures.

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
        Each interval stands for itself: where nothing differs, 5 of 100 miss zero by chance.
        """
        first, second = self.values(measure)
        return Moments.of(second.astype(np.float64) - first)

    def cka(self) -> np.ndarray:
        """Linear CKA of the tokens after every layer of A and after every layer of B.

        Returns
        -------
        ndarray of shape (depth of A + 1, depth of B + 1)
            By the unbiased estimate over minibatches of 256 pictures in the order of the list, as
            `Profile.cka`.

        Raises
        ------
        ProfileError
            When it is not known, as of two saved profiles.

        References
        ----------
        Nguyen, Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?" (ICLR 2021).
        """
        self._check("cka")
        assert self._hsic is not None
        of_first = len(self.first.about["layers"]) + 1
        return cka(self._hsic)[:of_first, of_first:]

    def offset_difference(self, layer: int) -> np.ndarray:
        """Mean attention by offset of B minus that of A: (heads, 2 rows - 1, 2 cols - 1).

        Shares of 1; NaN where one has none. See `Profile.offset_attention`.
        """
        self._check("maps")
        return self.second.offset_attention(layer) - self.first.offset_attention(layer)

    def cls_difference(self, layer: int) -> np.ndarray:
        """Mean attention from CLS to the patches of B minus that of A: (heads, rows, cols).

        Shares of 1. See `Profile.cls_attention`.
        """
        self._check("maps")
        self._check("cls")
        return self.second.cls_attention(layer) - self.first.cls_attention(layer)

    @property
    def answers(self) -> Answers | None:
        """How the answers agree, and how often each is right; None where one has no classes."""
        if any(profile.about["num_classes"] == 0 for profile in (self.first, self.second)):
            return None
        answer, label = (
            np.array([np.array(table[name], object)[self._kept] for table in self._tables])
            for name in ("answer", "label")
        )
        same = None if "answers" in self.not_compared else float(np.mean(answer[0] == answer[1]))
        known = (label != None).all(axis=0)  # noqa: E711, of every item
        right = (answer == label)[:, known].astype(np.float64)
        labelled = int(known.sum())
        only = [int(((right[0] != right[1]) & (right[side] == 1)).sum()) for side in (0, 1)]
        found = Answers(self.pictures, same, labelled, None, None, None, only[0], only[1], None)
        if not labelled:
            return found
        apart = Moments.of(right[1] - right[0])
        from scipy.stats import binomtest  # here: it takes longer to import than all else

        low, high = apart.interval()
        return replace(
            found,
            accuracy=(float(right[0].mean()), float(right[1].mean())),
            difference=float(apart.mean),
            interval=(float(low), float(high)) if labelled > 1 else None,
            p_value=float(binomtest(only[1], sum(only)).pvalue) if sum(only) else 1.0,
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `heads.csv`, `compare.html`, which shows all figures and needs no other file, and
        `run.json`, which says how it came to be.

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
                replace_file(place / "heads.csv", self._heads_csv().encode())
            replace_file(place / "compare.html", page(self).encode())
            replace_file(place / "run.json", (json.dumps(self._about(), indent=2) + "\n").encode())
        except OSError as error:
            raise ProfileError(f"{place} cannot be written: {error}.") from error

    def _about(self) -> dict[str, Any]:
        return {
            "first": self.first.about,
            "second": self.second.about,
            "pictures": self.pictures,
            "left_out": self.left_out,
            "not_compared": self.not_compared,
            "answers": None if self.answers is None else asdict(self.answers),
        }

    def _heads_csv(self) -> str:
        """A line for each head: of every measure both means, and the paired difference."""
        text = io.StringIO()
        table = csv.writer(text, lineterminator="\n")
        kinds = ("first", "second", "difference", "sem", "low", "high")
        table.writerow(["layer", "head", *(f"{name}_{kind}" for name in KEPT for kind in kinds)])
        columns: list[np.ndarray] = []
        for name in KEPT:
            apart = self.difference(name)
            columns += [Moments.of(side).means for side in self.values(name)]
            columns += [apart.means, apart.sem, *apart.interval()]
        for number, layer in enumerate(self.first.about["layers"]):
            for head in range(layer["num_heads"]):
                values = (float(column[number, head]) for column in columns)
                cells = ("" if np.isnan(value) else f"{value:.8g}" for value in values)
                table.writerow([number + 1, head + 1, *cells])
        return text.getvalue()

    def _check(self, what: str) -> None:
        if what in self.not_compared:
            raise ProfileError(self.not_compared[what])


def reasons_against(first: Profile, second: Profile) -> dict[str, str]:
    """What two profiles cannot be compared in, and why."""
    found: dict[str, str] = {}
    apart = _why_layers_differ(first.about["layers"], second.about["layers"])
    if apart:
        found |= {"heads": apart, "maps": apart, "cls": apart}
    else:
        for name, one in (("A", first), ("B", second)):
            if not any(key.startswith("cls/") for key in one.state.sums):
                found["cls"] = f"{name} has no CLS token that attends beside the patches."
        crops = [[one.about["preprocessing"][key] for key in _CROP] for one in (first, second)]
        if crops[0] != crops[1]:
            found["cls"] = "A and B crop pictures differently, so their patches lie elsewhere."
    classes = [one.about["num_classes"] for one in (first, second)]
    labels = [one.about["labels"] for one in (first, second)]
    if 0 in classes:
        found["answers"] = f"{'A' if classes[0] == 0 else 'B'} has no head for classes."
    elif classes[0] != classes[1]:
        found["answers"] = f"A has {classes[0]} classes and B {classes[1]}."
    elif None not in labels and labels[0] != labels[1]:
        found["answers"] = "The classes of A have other names than those of B."
    return found


def _why_layers_differ(first: Sequence[Any], second: Sequence[Any]) -> str | None:
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
    """The path of a folder that holds no run yet; a ProfileError where it does."""
    place = Path(folder)
    if (place / "run.json").exists():
        raise ProfileError(f"{place} holds the files of a run already: name another folder.")
    return place
