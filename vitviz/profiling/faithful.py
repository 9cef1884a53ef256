"""`faithfulness`: judge the maps of a model's answers over many pictures, with intervals."""

import io
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np

from ..common import Progress
from ..common.files import assets, printable, replace_file
from ..common.language import format_count
from ..intervention import RANDOM_ORDERS, Removal
from ..model import Model
from .entries import Entry, EntrySource, ProfileError, Sample
from .judging import (
    IS_BETTER_HIGH,
    JUDGED_AT_A_TIME,
    MAPS,
    RANDOM,
    Judgement,
    judge_piece,
    mask_of,
)
from .labels import LabelNumbers
from .measuring import COLUMNS
from .pictures import check_seed
from .running import (
    Engine,
    check_same,
    complete_pieces,
    hold_folder,
    open_list,
    prepare_folder,
    split_list,
    unreadable_piece,
)
from .state import Moments

#: Settings beside those of a profile that must be the same to resume a run.
_SETTINGS = ("maps", "removals", "steps", "orders", "masks", "seed")
#: Mean, ends of its 95 % interval, and number of pictures.
Interval = tuple[float, float, float, int]


class Faithfulness:
    """How faithful maps of a model's answers are, over a set of pictures.

    Attributes
    ----------
    about : dict
        Model, weights, versions, settings, pictures, what was skipped, and why a map or a measure
        is missing.
    means : dict by measure of dict by map of (mean, low, high, pictures)
        Measures: "deletion_mean", "insertion_mean" and so on, areas of curves; "pointing" and
        "overlap" (area under the ROC curve) with the objects' masks; "other_class" and
        "random_weights", the rank correlation with the map of the second class and with that of the
        same model with shuffled weights; "seconds" for a map. The map "random" stands for random
        orders. The interval is the mean's over pictures, by Student's t, 95 %.
    differences : dict by measure of dict by map of dict by map of (mean, low, high, pictures)
        The first map minus the second, picture by picture.
    agreement : dict by map of dict by map of (mean, low, high, pictures)
        Rank correlation of two maps.
    values : dict of ndarray
        By measure, the values (pictures, maps) of the pictures; empty in a file without them.
    """

    def __init__(
        self,
        about: dict[str, Any],
        means: Mapping[str, Mapping[str, Interval]],
        differences: Mapping[str, Mapping[str, Mapping[str, Interval]]],
        agreement: Mapping[str, Mapping[str, Interval]],
        values: Mapping[str, np.ndarray],
    ) -> None:
        self.about = about
        self.means = means
        self.differences = differences
        self.agreement = agreement
        self.values = values

    def __repr__(self) -> str:
        pictures = format_count(self.about["pictures"], "picture")
        return f"Faithfulness({self.about['model']}, {pictures})"

    @property
    def pictures(self) -> dict[str, list[Any]]:
        """Table of the pictures, by column, if they were measured in this process."""
        table: dict[str, list[Any]] = self.about["table"]
        return table

    @property
    def maps(self) -> tuple[str, ...]:
        return (*self.about["maps"], RANDOM)

    def is_better(self, measure: str, one: str, other: str) -> bool:
        """Whether a map does better than another, beyond the interval of their difference.

        False for "other_class" and "random_weights": they say of each map whether it changes.
        """
        interval = self.differences[measure].get(one, {}).get(other)
        is_better_high = IS_BETTER_HIGH[measure]
        if interval is None or is_better_high is None:
            return False
        _, low, high, _ = interval
        return bool(low > 0 if is_better_high else high < 0)

    def winner(self, measure: str) -> str | None:
        """Return the map that does better than every other one; None where there is no such map.

        Its interval overlaps with that of no other map.
        """
        by_map = self.means[measure]
        for name, (_, low, high, _) in by_map.items():
            others = {other: ends for other, ends in by_map.items() if other != name}
            if others and all(
                self.is_better(measure, name, other) and (end < low or high < start)
                for other, (_, start, end, _) in others.items()
            ):
                return name
        return None

    def table(self) -> str:
        """Return all means with their intervals as text."""
        if not self.means:
            return "Means and their intervals need at least two measured pictures."
        lines = []
        for measure, by_map in self.means.items():
            best = {True: "more is better", False: "less is better", None: "near 0 it changes"}
            is_better_high = IS_BETTER_HIGH[measure]
            lines.append(f"{measure} ({best[is_better_high]})")
            rows = sorted(by_map.items(), key=lambda item: item[1][0], reverse=bool(is_better_high))
            for name, (mean, low, upper, count) in rows:
                line = f"  {name:22} {mean:8.3f}  {low:8.3f} to {upper:8.3f}  {count:5} pictures"
                if name != RANDOM and RANDOM in by_map:
                    better = self.is_better(measure, name, RANDOM)
                    worse = self.is_better(measure, RANDOM, name)
                    line += "  better than random" if better else ""
                    line += "  worse than random" if worse else ""
                    line += "" if better or worse else "  like random"
                lines.append(line)
            winner = self.winner(measure)
            if is_better_high is None:
                continue
            lines.append(f"  {winner} does better than all." if winner else "  No map wins.")
        return "\n".join(lines)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write `faithfulness.json`, the means; `faithfulness.npz`, the pictures; `run.json`."""
        place = Path(folder)
        place.mkdir(parents=True, exist_ok=True)
        file = io.BytesIO()
        np.savez_compressed(file, allow_pickle=False, **self.values)
        replace_file(place / "faithfulness.npz", file.getvalue())
        replace_file(place / "faithfulness.json", self.to_json().encode())
        # last: a folder with run.json is complete
        replace_file(place / "run.json", (json.dumps(self.about, indent=2) + "\n").encode())

    def to_json(self) -> str:
        """Return the means, and how they were measured, without the values of single pictures."""
        short = {key: value for key, value in self.about.items() if key not in _LEFT_OUT}
        if short.get("masks"):  # a folder, or a column
            short["masks"] = Path(short["masks"]).name
        parts = dict(
            about=short,
            means=self.means,
            differences=self.differences,
            agreement=self.agreement,
        )
        return json.dumps(parts) + "\n"


#: Entries of `about` that the file of means leaves out: the model's description, and what is said
#: of single pictures, with their paths.
_LEFT_OUT = ("labels", "layers", "table", "notes")


def summarise(about: dict[str, Any], values: Mapping[str, np.ndarray]) -> Faithfulness:
    """Compute means, differences and their intervals from the values of the pictures."""
    names = (*about["maps"], RANDOM)
    of_maps = {name: each for name, each in values.items() if name != "agreement"}
    means = {name: _by_map(names, intervals(each)) for name, each in of_maps.items()}
    means = {name: by_map for name, by_map in means.items() if by_map}
    differences = {
        name: _by_pair(names, intervals(each[:, :, None] - each[:, None, :]))
        for name, each in of_maps.items()
    }
    agreement = _by_pair(names, intervals(values["agreement"]))
    return Faithfulness(about, means, differences, agreement, values)


def intervals(values: np.ndarray) -> np.ndarray:
    """Return mean, low, high and count of values (pictures, ...) as an array (..., 4)."""
    moments = Moments.of(values)
    return np.stack([moments.means, *moments.interval(), moments.count], axis=-1)


def _by_map(names: Sequence[str], table: np.ndarray) -> dict[str, Interval]:
    """Name the rows (maps, 4), without those of fewer than two pictures."""
    return {
        name: (*(round(float(number), 6) for number in row[:3]), int(row[3]))  # type: ignore[misc]
        for name, row in zip(names, table, strict=True)
        if row[3] > 1
    }


def _by_pair(names: Sequence[str], table: np.ndarray) -> dict[str, dict[str, Interval]]:
    by_pair = {name: _by_map(names, rows) for name, rows in zip(names, table, strict=True)}
    for name, others in by_pair.items():
        others.pop(name, None)
    return {name: others for name, others in by_pair.items() if others}


def faithfulness(
    model: Model,
    pictures: EntrySource | Sample | Iterable[EntrySource | Sample],
    *,
    methods: Sequence[str] | None = None,
    baseline: Sequence[Removal] = ("mean", "blur", "drop"),
    masks: str | os.PathLike[str] | None = None,
    steps: int = 8,
    orders: int = RANDOM_ORDERS,
    labels: LabelNumbers | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    workers: int = 0,
    engine: Engine = "local",
    called: str | None = None,
    out: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Faithfulness:
    """Judge maps of what a model's answers rest on, over many pictures.

    Each map is of the model's own answer, whether it is right or wrong. It is judged by what
    happens when patches are removed in its order, by whether it lies on the object, by whether it
    changes with the class and with the weights, and by its time.

    Parameters
    ----------
    model : Model
        With classes of which one is the answer.
    pictures, labels, limit, batch_size, workers, engine, called, out, resume, progress
        As in `profile`. A stopped run loses at most 4 pictures for each worker.
    methods : sequence of str, optional
        Names in `attribution.METHODS`, and two maps that do not depend on the class: "attention"
        (of the last layer, from where the answer is read, mean of heads) and "rollout". All of them
        by default.
    baseline : "mean", "blur" and "drop"
        What stands in place of removed patches, as `removal` of `intervention.deletion_curve`.
    masks : path or str, optional
        A folder with the mask `NAME_mask.png` or `NAME.png` of the picture `NAME.jpg`, white where
        the object is; or the name of a parquet column with boxes [left, top, right, bottom] in
        pixels of the picture's file. A patch is inside if the mask covers more than half of it.
    steps : int
        Of the curves, from the whole picture to none of it.
    orders : int
        Random orders of each picture, every second the reverse of the one before it.
    seed : int
        Of the sample, the random orders and the shuffled weights.

    Returns
    -------
    Faithfulness

    Raises
    ------
    ProfileError
        When the pictures or settings do not fit, the model does not answer with one class, or `out`
        holds another run.

    Notes
    -----
    Intervals are over pictures, by Student's t, and differences are taken picture by picture. With
    many pairs of maps some differences lie beyond their interval by chance: 1 of 20. Weights are
    made random by shuffling each tensor. A faithful map may lie beside the object: the model, not
    the map, decides what the answer rests on.

    References
    ----------
    Petsiuk et al., "RISE", BMVC 2018 (deletion, insertion); Zhang et al., "Top-down Neural
    Attention by Excitation Backprop", ECCV 2016 (the pointing game); Adebayo et al., "Sanity Checks
    for Saliency Maps", NeurIPS 2018 (random weights).
    """
    maps = list(dict.fromkeys(MAPS if methods is None else methods))
    _check_settings(model, maps, baseline, steps, orders, batch_size)
    check_seed(seed)
    with open_list(
        model,
        pictures,
        labels=labels,
        limit=limit,
        seed=seed,
        batch_size=batch_size,
        importance=(),
        workers=workers,
        engine=engine,
        called=called,
    ) as (entries, about):
        own = dict(maps=maps, removals=list(baseline), steps=steps, orders=orders, seed=seed)
        own["masks"] = None if masks is None else str(masks)
        if masks is not None and Path(masks).is_dir():  # workers may have another folder
            own["masks"] = mask_folder = os.path.abspath(masks)
            _check_masks(entries, mask_folder)
        about |= {"minibatch": JUDGED_AT_A_TIME, "settings": _SETTINGS, **own}
        folder = None if out is None else Path(out)
        if folder is not None and resume and (folder / "run.json").is_file():
            earlier = load_faithfulness(folder)
            check_same(folder, earlier.about, json.loads(json.dumps(about)))
            return earlier
        with hold_folder(folder):
            if folder is not None:
                prepare_folder(folder, about, resume)
            start_time = time.monotonic()
            read_pieces = complete_pieces(
                judge_piece,
                model,
                {**own, "batch_size": batch_size},
                split_list(entries, JUDGED_AT_A_TIME),
                about,
                folder,
                progress,
                _read_piece,
            )
            about["seconds"] = round(time.monotonic() - start_time, 1)
            result = _gather(about, [*read_pieces()], folder)
            if folder is not None:
                result.save(folder)
                shutil.rmtree(folder / "pieces")
            return result


def _check_settings(
    model: Model,
    maps: Sequence[str],
    removals: Sequence[str],
    steps: int,
    orders: int,
    batch_size: int,
) -> None:
    for names, options in ((maps, MAPS), (removals, get_args(Removal))):
        for name in names:
            if name not in options:
                raise ProfileError(f"Expected one of {', '.join(options)}, got {name!r}.")
    for name, number in (("step", steps), ("random order", orders), ("picture", batch_size)):
        if number < 1:
            raise ProfileError(f"Expected at least one {name}, got {number}.")
    if not model.has_one_answer or model.num_classes < 2:
        raise ProfileError(
            f"{model.name} does not answer with one of several classes, so there is no answer "
            "whose maps could be judged."
        )


def _check_masks(entries: Iterable[Entry], folder: str) -> None:
    """Refuse a folder of masks if one of them may be for two pictures, or none is for any."""
    entry_of: dict[Path, Entry] = {}
    for entry in entries:
        path = mask_of(entry, folder)
        if path is not None and entry_of.setdefault(path, entry) is not entry:
            raise ProfileError(
                f"The mask {printable(path)} may be for {entry_of[path].name} or {entry.name}. "
                "Give one of the pictures another name."
            )
    if not entry_of:
        raise ProfileError(
            f"No picture has a mask in {printable(folder)}. The mask of NAME.jpg is NAME_mask.png "
            "or NAME.png."
        )


def _read_piece(path: Path, entries: Sequence[Entry], about: Mapping[str, Any]) -> Judgement:
    """Read the piece of these pictures from a file.

    Raises
    ------
    ProfileError
        When the file is damaged, or holds other pictures.
    """
    try:
        piece = Judgement.from_bytes(path.read_bytes())
        shape = len(entries), len(about["maps"]) + 1
        is_whole = piece.table["picture"] == [entry.name for entry in entries] and all(
            each.shape[:2] == shape for each in piece.values.values()
        )
    except Exception as error:  # a damaged archive or JSON raises nearly anything
        raise unreadable_piece(path, error) from error
    if not is_whole:
        raise unreadable_piece(path)
    return piece


def _gather(
    about: dict[str, Any], pieces: Sequence[Judgement], folder: Path | None
) -> Faithfulness:
    table = {name: [each for piece in pieces for each in piece.table[name]] for name in COLUMNS}
    values = {
        name: np.concatenate([piece.values[name] for piece in pieces]) for name in pieces[0].values
    }
    skipped = [why for why in table["skipped"] if why is not None]
    if len(skipped) == about["pictures"]:
        if folder is not None:
            shutil.rmtree(folder / "pieces")  # else a second run would not read the pictures again
        tried = format_count(len(skipped), "picture")
        raise ProfileError(f"None of {tried} could be measured: {skipped[0]}")
    refusals: dict[str, str] = {}
    for piece in pieces:
        refusals |= piece.refusals
    about |= {"skipped": len(skipped), "refused": refusals, "table": table}
    return summarise(about, values)


def load_faithfulness(name: str | os.PathLike[str]) -> Faithfulness:
    """Load what `faithfulness` has measured.

    Parameters
    ----------
    name : str or path
        A shipped model's name; or the folder of a run, or its `faithfulness.json` alone, which has
        no values by picture.

    Raises
    ------
    ProfileError
        When there is none, or it cannot be read.
    """
    place = Path(name)
    if not place.exists() and (shipped := assets() / "faithfulness" / f"{name}.json").is_file():
        place = shipped
    values: dict[str, np.ndarray] = {}
    try:
        if place.is_dir():
            with np.load(place / "faithfulness.npz", allow_pickle=False) as file:
                values = dict(file)
            about = json.loads((place / "run.json").read_bytes())
            return summarise(about, values)
        parts = json.loads(place.read_bytes())
        result = Faithfulness(
            parts["about"], parts["means"], parts["differences"], parts["agreement"], values
        )
        result.table()  # fails if its parts do not fit together
    except Exception as error:  # a damaged archive or JSON raises nearly anything
        raise ProfileError(
            f"{printable(place)} holds no figures on maps that can be read: {error}."
        ) from error
    return result
