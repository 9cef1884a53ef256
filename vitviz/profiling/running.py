"""`profile`: measure a list of pictures piece by piece, and go on where a run was stopped."""

import hashlib
import json
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from ..model import Model
from .cluster import on_ray
from .importance import Kind, muting_of
from .measuring import PIECE, Piece, measured
from .pictures import Entry, ProfileError, Source, listed, named
from .results import Part, Profile, load_profile
from .state import State
from .workers import Pieces, Told, in_processes
from .writing import replace as replace_file

#: Called as progress(pictures done, pictures in all) after each batch; what it raises stops.
Progress = Callable[[int, int], object]
#: Where the workers of a profile are.
Engine = Literal["local", "ray"]
#: What a run that goes on must share with the one that was stopped.
_SETTINGS = (
    "model",
    "weights_sha256",
    "preprocessing",
    "list_sha256",
    "batch_size",
    "minibatch",
    "importance",
)


def profile(
    model: Model,
    pictures: Source | Iterable[Source],
    *,
    labels: str | PathLike[str] | Mapping[str, int | str] | Sequence[int | str] | None = None,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 16,
    importance: Sequence[Kind] = (),
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
        Picture files; parquet files with a column of them, or with packed sheets; tar shards of
        WebDataset. A folder stands for all of these in it. Those that cannot be read are skipped
        and listed in `Profile.pictures`.
    labels : path, mapping or sequence, optional
        A CSV file of names and labels, or of labels alone in the order of the list, or the same in
        Python: numbers or names of classes. Parquet files and shards have their own.
    limit : int, optional
        So many of the pictures are chosen by `seed`.
    batch_size : int
        Pictures in one forward pass.
    importance : "zero" and "mean"
        Mute every head in turn, to 0 or to the mean of what it gives over the first 256 pictures,
        and measure what happens to the answer. It takes a forward pass a head.
    workers : int
        So many processes, each with the model, measure 256 pictures at a time. Where one is killed,
        the pictures that it was at are measured again. They share the threads of this process. 0
        measures in this process.
    engine : "local" or "ray"
        Where the workers are: processes of this machine, or actors of Ray, with `vitviz[cluster]`:
        of the cluster that RAY_ADDRESS names, or that the caller has connected to, else on this
        machine. There every actor has a CUDA device of its own where the model is on one, and all
        machines must find the pictures' files under the same paths.
    called : str, optional
        What figures call the pictures; the names of their files where left out.
    out : path, optional
        A folder that is written, see `Profile.save`. Then what is done is kept when the run is
        stopped, and no number of pictures takes more memory.
    resume : bool
        Go on with the run that was stopped in `out`.
    progress : callable, optional
        Called as progress(done, total) before the first batch and after each, with Ray after 256
        pictures; what it raises stops the run.

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
    Sums over the same pictures are the same whatever measured them, to 1e-12 where the batches and
    the threads of a worker are the same, and else to about 1e-5.
    """
    if batch_size < 1:
        raise ProfileError(f"Expected batches of at least one picture, got {batch_size}.")
    _check_workers(model, workers, engine)
    entries = listed(pictures, labels=labels, limit=limit, seed=seed)
    entries = numbered(entries, model, asked=labels is not None)
    about = described(model, entries, batch_size, importance)
    if called:
        about["source"] = called
    folder = None if out is None else Path(out)
    if folder is not None:
        if resume and (folder / "run.json").is_file():
            return _finished(folder, about)
        _prepare(folder, about, resume)
    muting = muting_of(model, importance, entries[:PIECE], batch_size)
    begun = time.monotonic()
    starts = range(0, len(entries), PIECE)
    cut = {number: entries[first : first + PIECE] for number, first in enumerate(starts)}
    paths = {} if folder is None else {n: folder / "pieces" / f"{n:06}.npz" for n in cut}
    done = {number: len(cut[number]) for number, path in paths.items() if path.is_file()}
    left = {number: some for number, some in cut.items() if number not in done}

    def told(number: int, pictures: int) -> None:
        done[number] = pictures
        if progress is not None:
            progress(sum(done.values()), len(entries))

    threads = max(1, about["threads"] // max(1, workers))
    about |= {"workers": workers, "engine": engine, "threads": threads}
    settings = {"batch_size": batch_size, "muting": muting}
    found: dict[int, Piece] = {}
    if left:
        told(min(left), 0)
        with closing(_measured(model, settings, left, told, about)) as results:
            for number, piece in results:
                if folder is None:
                    found[number] = piece
                else:
                    replace_file(paths[number], piece.saved())
    pieces = [found[number] for number in sorted(found)]
    return _gathered(about, pieces, folder, time.monotonic() - begun)


def _measured(
    model: Model, settings: Mapping[str, Any], pieces: Pieces, told: Told, about: Mapping[str, Any]
) -> Generator[tuple[int, Piece]]:
    """Measure pieces where they are to be; they come as they are done, with their numbers."""
    if not about["workers"]:
        for number, some in pieces.items():
            yield number, measured(model, some, progress=partial(told, number), **settings)
        return
    by_workers = on_ray if about["engine"] == "ray" else in_processes
    workers = min(about["workers"], len(pieces))
    yield from by_workers(model, settings, pieces, told, workers=workers, threads=about["threads"])


def _check_workers(model: Model, workers: int, engine: Engine) -> None:
    if engine not in get_args(Engine):
        raise ProfileError(f'Expected the engine "local" or "ray", got {engine!r}.')
    if workers < 0:
        raise ProfileError(f"Expected a number of workers from 0 on, got {workers}.")
    if engine == "ray" and not workers:
        raise ProfileError('The engine "ray" measures by workers: ask for at least one.')
    device = model.device.type
    if workers and device != "cpu" and not (device == "cuda" and engine == "ray"):
        raise ProfileError(
            f"Workers cannot share the device {model.device}: leave them out, or on CUDA take the "
            'engine "ray", which gives every worker a device of its own.'
        )


def _gathered(
    about: dict[str, Any], pieces: Sequence[Piece], folder: Path | None, seconds: float
) -> Profile:
    """The profile of all pieces, in order; where they lie in a folder it is written."""

    def each() -> Iterator[Piece]:
        if folder is None:
            yield from pieces
        else:
            for path in sorted((folder / "pieces").glob("*.npz")):
                yield Piece.of_saved(path.read_bytes())

    def parts() -> Iterator[Part]:
        return ((piece.table, piece.rows) for piece in each())

    state = State()
    about |= {"seconds": round(seconds, 1), "skipped": 0, "proof_error": 0.0, "refused_layers": {}}
    for piece in each():
        state = state.merged(piece.state)
        about["skipped"] += sum(why is not None for why in piece.table["skipped"])
        about["proof_error"] = max(about["proof_error"], piece.proof_error)
        about["refused_layers"] |= piece.refusals
    if about["skipped"] == about["pictures"]:
        first = next(why for table, _ in parts() for why in table["skipped"])
        raise ProfileError(f"None of the {about['pictures']} pictures could be measured: {first}")
    found = Profile(about, state, parts)
    if folder is None:
        return found
    found.save(folder)
    shutil.rmtree(folder / "pieces")
    return load_profile(folder)


def _prepare(folder: Path, about: Mapping[str, Any], resume: bool) -> None:
    """Make the folder of a run, or check that the run in it is this one."""
    pieces = folder / "pieces"
    known = pieces / "run.json"
    if not resume:
        check_unused(folder)
    elif known.is_file():
        _check_same(folder, json.loads(known.read_text(encoding="utf-8")), about)
    try:
        pieces.mkdir(parents=True, exist_ok=True)
        replace_file(known, json.dumps(about).encode())
    except OSError as error:
        raise ProfileError(f"{folder} cannot be written: {error}.") from error


def check_unused(folder: Path) -> None:
    """Raise a ProfileError when there is a profile in the folder, or the beginning of one."""
    if (folder / "pieces" / "run.json").is_file() or (folder / "run.json").is_file():
        raise ProfileError(f"{folder} holds a profile already: resume it, or name another folder.")


def _finished(folder: Path, about: Mapping[str, Any]) -> Profile:
    """The profile in a folder whose run had come to its end."""
    found = load_profile(folder)
    _check_same(folder, found.about, about)
    return found


def _check_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    for key in _SETTINGS:
        if before.get(key) != now[key]:
            raise ProfileError(
                f"The run in {folder} has another {key.replace('_', ' ')}, so it cannot go on."
            )


def numbered(entries: Sequence[Entry], model: Model, *, asked: bool) -> list[Entry]:
    """The entries with the numbers of their classes.

    Labels that came with the pictures are left out where one of them is no class of the model.

    Raises
    ------
    ProfileError
        When a label that was `asked` for is no class of the model.
    """
    names = {name: number for number, name in enumerate(model.labels or ())}
    found = []
    for entry in entries:
        label = names.get(entry.label) if isinstance(entry.label, str) else entry.label
        if entry.label is None or (label is not None and 0 <= label < model.num_classes):
            found.append(replace(entry, label=label))
        elif asked:
            raise ProfileError(
                f"The label {entry.label} of {entry.name} is none of the {model.num_classes} "
                f"classes of {model.name}."
            )
        else:
            return [replace(entry, label=None) for entry in entries]
    return found


def described(
    model: Model, entries: Sequence[Entry], batch_size: int, importance: Sequence[Kind]
) -> dict[str, Any]:
    """What `run.json` says before anything was measured, as JSON gives it back."""
    weight = next(model.module.parameters())
    about = {
        "model": model.name,
        "provenance": model.provenance,
        "trained": model.trained,
        "weights_sha256": weights_digest(model),
        "dtype": str(weight.dtype).removeprefix("torch."),
        "labels": model.labels,
        "num_classes": model.num_classes,
        "preprocessing": asdict(model.preprocess),
        "layers": [asdict(layer) for layer in model.layers],
        "pictures": len(entries),
        "source": named(entries),
        "list_sha256": list_digest(entries),
        "batch_size": batch_size,
        "minibatch": PIECE,
        "importance": list(importance),
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            **{name: _version(name) for name in ("vitviz", "torch", "timm", "numpy", "pillow")},
        },
    }
    found: dict[str, Any] = json.loads(json.dumps(about))
    return found


def fits(profile: Profile, model: Model) -> bool:
    """Whether a profile is of this model: of its weights, layers and preprocessing."""
    known = dict(preprocessing=asdict(model.preprocess), layers=[*map(asdict, model.layers)])
    known = json.loads(json.dumps(known))
    return known == {name: profile.about[name] for name in known} and (
        profile.about["weights_sha256"] == weights_digest(model)  # last: it reads all weights
    )


def weights_digest(model: Model) -> str:
    """sha256 of all parameters and buffers, with their names."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.module.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def list_digest(entries: Sequence[Entry]) -> str:
    """sha256 of the names and labels; of pictures without a file their bytes count, too."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.name}\0{entry.label}\0".encode(errors="surrogateescape"))
        if isinstance(entry.source, bytes):
            digest.update(entry.source)
        elif not isinstance(entry.source, str):
            digest.update(entry.source.tobytes())
    return digest.hexdigest()


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"
