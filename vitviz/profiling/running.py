"""Measure a list of pictures piece by piece, and resume a run that was stopped."""

import hashlib
import json
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from ..common import Progress
from ..common.files import LockedError, creation_record, lock_folder, printable, replace_file
from ..common.language import format_count
from ..model import Model
from ..model.origin import weights_digest
from .cluster import (
    Measure,
    PieceProgress,
    Pieces,
    measure_in_processes,
    measure_on_ray,
)
from .entries import Entry, EntrySource, ProfileError, Sample, spool_file
from .heads import BY_PICTURE, MutingKind, muting_values
from .labels import LabelNumbers, number_labels
from .measuring import COLUMNS, PIECE, Piece, measure_piece
from .pictures import list_pictures, sample_entries, source_names
from .results import Part, Profile, load_profile, with_defaults
from .state import State

#: Where workers run: on this machine, or as actors of Ray.
Engine = Literal["local", "ray"]
#: Settings that must be the same to resume a run.
_SETTINGS = (
    "model",
    "weights_sha256",
    "preprocessing",
    "list_sha256",
    "batch_size",
    "minibatch",
    "importance",
    "list_of_words",
    "answers",
    "sinks",
)


def profile(
    model: Model,
    pictures: EntrySource | Sample | Iterable[EntrySource | Sample],
    *,
    labels: LabelNumbers | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    importance: Sequence[MutingKind] = (),
    sinks: bool = False,
    workers: int = 0,
    engine: Engine = "local",
    called: str | None = None,
    out: str | PathLike[str] | None = None,
    resume: bool = False,
    progress: Progress | None = None,
) -> Profile:
    """Measure a model over many pictures.

    Parameters
    ----------
    model : Model
    pictures : pictures, paths of files and folders, or globs
        Picture files; parquet files with a column of pictures, or with packed sheets; tar shards of
        WebDataset. A folder stands for all of these in it. Pictures that cannot be read are skipped
        and listed in `Profile.pictures`. Or the items of a Dataset or a DataLoader: prepared inputs
        (see `vitviz.capture`), (picture, label), or dictionaries with "image" or "pixel_values" and
        "label" or "labels". A run counts its pictures first: items of an iterator, a Dataset or a
        DataLoader are read once and kept in a temporary file (in the folder that TMPDIR names)
        until they are measured. With Ray they stay in memory.
    labels : path, mapping or sequence, optional
        Class numbers or names: a table (CSV) of pictures and labels, or of labels alone in the
        order of the list; a folder of class folders; or the same in Python. Parquet files and
        shards have their own. A label with two meanings is refused.
    limit : int, optional
        Measure a random sample of this many pictures.
    seed : int
        Of the random sample.
    batch_size : int
        Pictures in one forward pass.
    importance : "zero" and "mean"
        Mute every head in turn, to 0 or to its mean output over the first 256 pictures, and measure
        how the answer changes. This takes one forward pass per head.
    sinks : bool
        Count by layer the pictures in which a key is a no-op sink or a broadcast, as
        `inspection.attention_sinks` tells them. It takes over twice as long.
    workers : int
        Number of processes that measure 256 pictures at a time. Each has its own model; they share
        the threads of this process. If one is killed, its pictures are measured again. With 0, this
        process measures.
    engine : "local" or "ray"
        Where the workers run: as processes of this machine, or as actors of Ray (with
        `vitviz[cluster]`), in the cluster that RAY_ADDRESS names or the caller is connected to,
        else on this machine. With Ray every actor has its own CUDA device if the model is on one,
        and all machines must find the files of the pictures under the same paths.
    called : str, optional
        The name of the pictures in figures; by default the names of their folders and shards.
    out : path, optional
        Folder to write, see `Profile.save`. With it, a stopped run can be resumed, and the memory
        needed does not grow with the number of pictures.
    resume : bool
        Resume the run that was stopped in `out`.
    progress : callable, optional
        Called as progress(done, total) before the first batch and after each, with Ray after 256
        pictures. An error that it raises stops the run.

    Returns
    -------
    Profile

    Raises
    ------
    ProfileError
        When the pictures, labels or settings do not fit, or `out` holds another run.
    ModelError
        When the model cannot be watched.

    Notes
    -----
    Sums over the same pictures do not depend on who measured them: they agree to 1e-12 if batches
    and threads per worker are the same, and else to about 1e-5.
    """
    if batch_size < 1:
        raise ProfileError(f"Expected batches of at least one picture, got {batch_size}.")
    with open_list(
        model,
        pictures,
        labels=labels,
        limit=limit,
        seed=seed,
        batch_size=batch_size,
        importance=importance,
        workers=workers,
        engine=engine,
        called=called,
    ) as (entries, about):
        about["sinks"] = sinks
        folder = None if out is None else Path(out)
        if folder is not None and resume and (folder / "run.json").is_file():
            return _load_finished(folder, about)
        with hold_folder(folder):
            if folder is not None:
                prepare_folder(folder, about, resume)
            return _measure_all(model, entries, about, folder, progress)


@contextmanager
def open_list(
    model: Model,
    pictures: EntrySource | Sample | Iterable[EntrySource | Sample],
    *,
    labels: LabelNumbers | None,
    limit: int | None,
    seed: int,
    batch_size: int,
    importance: Sequence[MutingKind],
    workers: int,
    engine: Engine,
    called: str | None,
) -> Iterator[tuple[list[Entry], dict[str, Any]]]:
    """List the pictures of a run, whose parameters are those of `profile`, and describe the run.

    The pictures of an iterable are kept in a file within the `with` block.

    Yields
    ------
    entries : list of Entry
    about : dict
        As `describe_run`, with the settings and the notes on what was left out.

    Raises
    ------
    ProfileError
        When the settings do not fit, or the model's classes do not fit the labels that were asked
        for.
    """
    _check_workers(model, workers, engine)
    notes: list[str] = []
    with spool_file() as file:
        spool = file if engine == "local" else None
        entries = list_pictures(pictures, labels=labels, notes=notes, spool=spool)
        entries, why_unlabelled = number_labels(entries, model, strict=labels is not None)
        # Only now: labels are read alike whatever the sample. A part of 1..10 would pass for 0..9.
        entries = sample_entries(entries, limit, seed)
        if why_unlabelled is not None:
            if labels is not None and model.num_classes:
                raise ProfileError(why_unlabelled)
            notes.append(f"The labels of the pictures are left out: {why_unlabelled}")
        about = describe_run(model, entries, batch_size, importance)
        about |= {"notes": notes, "seed": seed, "limit": limit}
        about |= {"workers": workers, "engine": engine}
        about["source"] = called or about["source"]
        about["threads"] = max(1, about["threads"] // max(1, workers))
        yield entries, about


def _measure_all(
    model: Model,
    entries: Sequence[Entry],
    about: dict[str, Any],
    folder: Path | None,
    progress: Progress | None,
) -> Profile:
    """Measure all pieces that the folder does not hold yet, and merge all pieces."""
    batch_size = about["batch_size"]
    muting = muting_values(model, about["importance"], entries[:PIECE], batch_size)
    start_time = time.monotonic()
    settings = {"batch_size": batch_size, "muting": muting, "sinks": about["sinks"]}
    pieces = split_list(entries, PIECE)
    read_pieces = complete_pieces(
        measure_piece, model, settings, pieces, about, folder, progress, _read_piece
    )
    return _gather(about, read_pieces, folder, time.monotonic() - start_time)


def split_list(entries: Sequence[Entry], size: int) -> Pieces:
    starts = range(0, len(entries), size)
    return {number: entries[first : first + size] for number, first in enumerate(starts)}


def complete_pieces(
    measure: Measure,
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    about: Mapping[str, Any],
    folder: Path | None,
    progress: Progress | None,
    read: Callable[[Path, Sequence[Entry], Mapping[str, Any]], object],
) -> Callable[[], Iterator[Any]]:
    """Measure all pieces that the folder does not hold yet, and write each as soon as it is done.

    Parameters
    ----------
    measure : callable(model, entries, progress=..., **settings)
        Its result has `to_bytes`.
    read : callable(path, entries, about)
        Raises a ProfileError where the file holds no such piece.

    Returns
    -------
    callable() -> iterator
        Yields all pieces in their order; reads them, if there is a folder.
    """
    total = sum(map(len, pieces.values()))
    paths = {} if folder is None else {n: folder / "pieces" / f"{n:06}.npz" for n in pieces}
    counts = {number: len(pieces[number]) for number, path in paths.items() if path.is_file()}
    for number in counts:  # a damaged file would else end the run after hours of work
        read(paths[number], pieces[number], about)
    remaining = {number: some for number, some in pieces.items() if number not in counts}

    def report(number: int, pictures: int) -> None:
        counts[number] = pictures
        if progress is not None:
            progress(sum(counts.values()), total)

    by_number: dict[int, Any] = {}
    if remaining:
        report(min(remaining), 0)
        with closing(
            _measure_pieces(measure, model, settings, remaining, report, about)
        ) as results:
            for number, piece in results:
                if folder is None:
                    by_number[number] = piece
                else:
                    replace_file(paths[number], piece.to_bytes())

    def read_pieces() -> Iterator[Any]:
        for number, some in pieces.items():
            yield by_number[number] if folder is None else read(paths[number], some, about)

    return read_pieces


def _measure_pieces(
    measure: Measure,
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    report: PieceProgress,
    about: Mapping[str, Any],
) -> Generator[tuple[int, Any]]:
    """Measure pieces here or by workers; yield each with its number as soon as it is done."""
    if not about["workers"]:
        for number, some in pieces.items():
            yield number, measure(model, some, progress=partial(report, number), **settings)
        return
    by_workers = measure_on_ray if about["engine"] == "ray" else measure_in_processes
    workers, threads = min(about["workers"], len(pieces)), about["threads"]
    yield from by_workers(
        measure, model, settings, pieces, report, workers=workers, threads=threads
    )


def _check_workers(model: Model, workers: int, engine: Engine) -> None:
    if engine not in get_args(Engine):
        raise ProfileError(f'Expected the engine "local" or "ray", got {engine!r}.')
    if workers < 0:
        raise ProfileError(f"Expected at least 0 workers, got {workers}.")
    if engine == "ray" and not workers:
        raise ProfileError('The engine "ray" needs at least one worker, got 0.')
    device = model.device.type
    if workers and device != "cpu" and not (device == "cuda" and engine == "ray"):
        raise ProfileError(
            f"Workers cannot share the device {model.device}. Leave them out; on CUDA, the engine "
            '"ray" gives every worker its own device.'
        )


def _gather(
    about: dict[str, Any],
    read_pieces: Callable[[], Iterator[Piece]],
    folder: Path | None,
    seconds: float,
) -> Profile:
    """Merge all pieces, in order, into a profile; write it if the pieces lie in a folder."""

    def parts() -> Iterator[Part]:
        return ((piece.table, piece.rows) for piece in read_pieces())

    state = State()
    about |= {"seconds": round(seconds, 1), "skipped": 0, "proof_error": 0.0, "refused_layers": {}}
    for piece in read_pieces():
        state = state.merge(piece.state)
        about["skipped"] += sum(why is not None for why in piece.table["skipped"])
        about["proof_error"] = max(about["proof_error"], piece.proof_error)
        about["refused_layers"] |= piece.refusals
    if about["skipped"] == about["pictures"]:
        first = next(why for table, _ in parts() for why in table["skipped"])
        if folder is not None:
            shutil.rmtree(folder / "pieces")  # else a second run would not read the pictures again
        tried = format_count(about["pictures"], "picture")
        raise ProfileError(f"None of {tried} could be measured: {first}")
    profile = Profile(about, state, parts)
    if folder is None:
        return profile
    profile.save(folder)
    shutil.rmtree(folder / "pieces")
    return load_profile(folder)


def prepare_folder(folder: Path, about: Mapping[str, Any], resume: bool) -> None:
    """Create the folder of a run, or check that the run to resume in it has the same settings."""
    pieces = folder / "pieces"
    run_file = pieces / "run.json"
    if not resume:
        check_unused(folder)
    elif run_file.is_file():
        try:
            before = json.loads(run_file.read_bytes())
            if not isinstance(before, dict):
                raise ValueError("it holds something else")
        except (OSError, ValueError, RecursionError) as error:
            raise ProfileError(
                f"{printable(run_file)} cannot be read: {error}. Delete the folder "
                f"{printable(pieces)}, and start again."
            ) from error
        check_same(folder, before, about)
    try:
        pieces.mkdir(parents=True, exist_ok=True)
        replace_file(run_file, json.dumps(about).encode())
    except OSError as error:
        raise ProfileError(f"{folder} cannot be written: {error.strerror or error}.") from error


def check_unused(folder: Path) -> None:
    """Raise a ProfileError if the folder holds a profile, finished or not."""
    if (folder / "pieces" / "run.json").is_file() or (folder / "run.json").is_file():
        raise ProfileError(f"{folder} holds a profile already. Resume it, or name another folder.")


@contextmanager
def hold_folder(folder: Path | None) -> Iterator[None]:
    """Lock a folder against other runs, if there is one."""
    try:
        with nullcontext() if folder is None else lock_folder(folder):
            yield
    except LockedError as error:
        raise ProfileError(str(error)) from error


def unreadable_piece(path: Path, why: object = "it holds something else") -> ProfileError:
    return ProfileError(
        f"{printable(path)} cannot be read: {why}. Delete this file; with --resume "
        "(resume=True) its pictures are measured again."
    )


def _read_piece(path: Path, entries: Sequence[Entry], about: Mapping[str, Any]) -> Piece:
    """Read the piece of these pictures from a file.

    Raises
    ------
    ProfileError
        When the file is damaged, or holds other pictures.
    """
    layers = about["layers"]
    shape = len(entries), len(layers), max(layer["num_heads"] for layer in layers)
    try:
        piece = Piece.from_bytes(path.read_bytes())
        State().merge(piece.state).merge(piece.state)  # fails if its arrays do not fit together
        is_whole = (
            piece.table["picture"] == [entry.name for entry in entries]
            and all(len(piece.table[name]) == len(entries) for name in COLUMNS)
            and all(piece.rows[name].shape == shape for name in BY_PICTURE)
            and all(isinstance(why, str | None) for why in piece.table["skipped"])
            and 0 <= piece.proof_error < np.inf
        )
        dict(piece.refusals)
    except Exception as error:  # a damaged archive or JSON raises nearly anything
        raise unreadable_piece(path, error) from error
    if not is_whole:
        raise unreadable_piece(path)
    return piece


def _load_finished(folder: Path, about: Mapping[str, Any]) -> Profile:
    """Load the profile of a finished run, if it has the same settings."""
    try:
        profile = load_profile(folder)
    except ProfileError as error:
        raise ProfileError(
            f"{error} Delete this folder, or name another one, and start again."
        ) from error
    check_same(folder, profile.about, about)
    return profile


def check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Raise a ProfileError if the run in a folder has other settings."""
    for key in (*_SETTINGS, *now.get("settings", ())):
        if with_defaults(before).get(key) != with_defaults(now)[key]:
            what = "kind of answers" if key == "answers" else key.replace("_", " ")
            raise ProfileError(
                f"The run in {folder} has another {what}, so it cannot be resumed. Use the same "
                "settings, or name another folder."
            )


def describe_run(
    model: Model, entries: Sequence[Entry], batch_size: int, importance: Sequence[MutingKind]
) -> dict[str, Any]:
    """Describe a run, as `run.json` holds it before anything is measured."""
    weight, words = next(model.module.parameters()), model.words
    about = {
        "model": model.name,
        "provenance": model.provenance,
        "trained": model.trained,
        "weights_sha256": weights_digest(model.module),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "labels": model.labels,
        "list_of_words": None if words is None else f"{words.provenance}: {'; '.join(words.names)}",
        "num_classes": model.num_classes,
        "answers": model.answers,
        "one_answer": model.has_one_answer,
        "preprocessing": asdict(model.preprocess),
        "layers": [asdict(layer) for layer in model.layers],
        "pictures": len(entries),
        "source": source_names(entries),
        "list_sha256": list_digest(entries),
        "batch_size": batch_size,
        "minibatch": PIECE,
        "importance": list(importance),
        "threads": torch.get_num_threads(),
        **creation_record(),
    }
    as_read: dict[str, Any] = json.loads(json.dumps(about))  # tuples become lists, as in the file
    return as_read


class _Result(Protocol):
    about: dict[str, Any]


def fits(result: _Result, model: Model) -> bool:
    """Whether a `Profile` or a `Faithfulness` is of this model.

    It is of its weights, of its preprocessing and, where they are recorded, of its layers.
    """
    facts = dict(preprocessing=asdict(model.preprocess), layers=[*map(asdict, model.layers)])
    facts = json.loads(json.dumps(facts))
    about = with_defaults(result.about)
    return all(about.get(name, values) == values for name, values in facts.items()) and (
        result.about["weights_sha256"] == weights_digest(model.module)  # last: reads all weights
    )


def list_digest(entries: Sequence[Entry]) -> str:
    """Return the sha256 of all names and labels, and of the bytes of pictures without a file."""
    digest = hashlib.sha256()
    for entry in entries:
        line = f"{entry.name}\0{entry.label}\0{entry.digest}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()
