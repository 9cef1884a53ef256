"""`vitviz fetch` and `vitviz prepare`: get the models of a lesson ready to work offline."""

import argparse
import csv
import io
import json
import sys
import time
import zipfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..app.options import LocalFile, OptionError, Options, options_in
from ..common import DEFAULT_MODEL
from ..common.files import assets
from .early import STOPPED, allow_interrupts
from .terminal import CLEAR_LINE, print_refusal

#: Models of the teacher's guide for a class with more time; the lessons work without them.
MORE_MODELS = ("vit_small_patch16_224", "vit_small_r26_s32_224")
READY = "Everything that the seven lessons and the worksheet need is on disk."
MISSING = 'The lessons will not work as the teacher\'s guide describes them: see each "no" above.'


#: What a line says of a model with a text tower that works.
TAKES_WORDS = ", takes words"
WITH_WORDS = "The optional step 6.3, in words, works with {names}."
WITHOUT_WORDS = (
    "The optional step 6.3, in words, needs a model with a text tower, which none of these has. To "
    "try one: vitviz prepare --lesson hf-hub:OWNER/NAME, or --checkpoint FOLDER."
)


def _damage_message(path: Path) -> str:
    place = f"assets/{path.parent.name}/{path.name}"
    return f"The file {place} is missing or damaged. Install vitviz again."


def _read(path: Path, *needed: str) -> dict[str, Any]:
    """Read entries of a record, JSON or arrays; by default all.

    Raises
    ------
    ModelError
        When the file is missing or cannot be read.
    """
    from ..zoo import ModelError

    try:
        if path.suffix == ".json":
            record = json.loads(path.read_text(encoding="utf-8"))
        else:
            with np.load(io.BytesIO(path.read_bytes())) as arrays:
                record = dict(arrays)
        return {name: record[name] for name in needed or record}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ModelError(_damage_message(path)) from error


def _samples() -> str:
    """Open and capture every sample picture."""
    from .. import ImageError, capture, load_model, open_image
    from ..activations import check_finite
    from ..zoo import ModelError

    folder = assets() / "samples"
    model = load_model(DEFAULT_MODEL)
    try:
        with (folder / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
            names = [row["file"] for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_damage_message(folder / "LICENCES.csv")) from error
    if not names:
        raise ModelError(_damage_message(folder / "LICENCES.csv"))
    for name in names:
        try:
            image = open_image((folder / name).read_bytes())
        except (OSError, ImageError) as error:
            raise ModelError(_damage_message(folder / name)) from error
        check_finite(model, capture(model, image))
    return f"{len(names)} pictures opened and captured"


def _records() -> str:
    """Read the records of training, whose last moment must equal the weights."""
    from .. import load_model
    from ..zoo import ModelError

    folder = assets() / "curves"
    run = _read(folder / f"{DEFAULT_MODEL}.json", "epochs", "test_accuracy")
    record = _read(folder / f"{DEFAULT_MODEL}.npz")
    hunger = _read(folder / "data_hunger.json", "runs")
    weights, moments = load_model(DEFAULT_MODEL).patch_kernel, len(record.get("epoch", ()))
    last = record.get(f"filters_{moments - 1}")  # as the weights are, in half precision
    if weights is None or last is None or not np.array_equal(last, weights.astype(last.dtype)):
        raise ModelError(
            f"The record of {DEFAULT_MODEL} and its weights do not belong together. Install "
            "vitviz again."
        )
    epochs, runs = len(run["epochs"]), len(hunger["runs"])
    return (
        f"{epochs} epochs and {moments} moments of {DEFAULT_MODEL}, "
        f"{runs} runs on parts of the data"
    )


def _profile() -> str:
    """Read the profile, which must be of the shipped weights."""
    from .. import load_model
    from ..profiling import ProfileError, fits, load_profile
    from ..zoo import ModelError

    path = assets() / "profiles" / f"{DEFAULT_MODEL}.npz"
    try:
        profile = load_profile(path)
    except ProfileError as error:
        raise ModelError(_damage_message(path)) from error
    if not fits(profile, load_model(DEFAULT_MODEL)):
        raise ModelError(
            f"The profile of {DEFAULT_MODEL} and its weights do not belong together. Install "
            "vitviz again."
        )
    return f"{profile.about['pictures']:,} pictures of {profile.about['source']}, of these weights"


#: Checks by title; each returns its result in words, or raises a ModelError.
CHECKS: Mapping[str, Callable[[], str]] = {
    "sample pictures": _samples,
    "training records": _records,
    "profile": _profile,
}


def run_fetch(arguments: argparse.Namespace) -> int:
    """Download into the cache; the exit code is 1 if a download failed, 130 after Ctrl-C."""
    from ..zoo import ModelError
    from ..zoo.checkpoints import files_of, shipped_names

    allow_interrupts()
    code = 0
    for name in arguments.names:
        if name in shipped_names():
            print(f"{name}: comes with vitviz.")
            continue
        try:
            path = _fetch_weights(name)
        except ModelError as error:
            print(error, file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            print(f"{name}: cancelled.", file=sys.stderr)
            return STOPPED
        else:
            size = sum(file.stat().st_size for file in files_of(path))
            print(f"{name}: {size / 1e6:,.1f} MB, on disk.")
    return code


def _fetch_weights(name: str) -> Path:
    """Download trained weights of timm into the cache, checked; a terminal shows the progress.

    Raises
    ------
    ModelError
        When they cannot be downloaded.
    """
    from ..zoo import fetch_weights

    live = sys.stdout.isatty()

    def progress(done: int, total: int | None) -> None:
        of = "" if total is None else f" of {total / 1e6:,.1f}"
        if live:
            print(f"{CLEAR_LINE}{name}: {done / 1e6:,.1f}{of} MB", end="", flush=True)

    try:
        return fetch_weights(name, progress=progress, verify=True)
    finally:
        print(CLEAR_LINE if live else "", end="")


def lesson_models() -> tuple[str, ...]:
    """Return the models that the steps of the lessons open with, the app's own first."""
    from ..text.lessons import LESSONS

    steps = [step for lesson in LESSONS for step in lesson.required]
    named = [step.settings.get("model", DEFAULT_MODEL) for step in steps]
    return tuple(dict.fromkeys((DEFAULT_MODEL, *named)))


def run_prepare(arguments: argparse.Namespace) -> int:
    """Download a lesson's models and run each once; the exit code is 1 if one fails."""
    from ..model.devices import find_device
    from ..profiling import ProfileError, load_profile
    from ..zoo import ModelError, leave_cores_free
    from ..zoo.checkpoints import shipped_names

    try:
        options = options_in(arguments)
        find_device(options.device)
        for path in options.profiles:
            load_profile(path)
    except (OptionError, ModelError, ProfileError) as error:
        return print_refusal(error)
    leave_cores_free()
    allow_interrupts()
    models: dict[str, LocalFile | tuple[str]] = {}
    lesson = lesson_models() if arguments.lesson else ()
    for name in (*lesson, *arguments.names, *(options.models or ())):
        models[name] = (name,)
    models |= options.checkpoints
    models = models or {name: (name,) for name in shipped_names()}
    checks: dict[str, Callable[[], str]] = {
        title: partial(_try_model, options, *each) for title, each in models.items()
    }
    extra: dict[str, Callable[[], str]] = {}
    if arguments.lesson:
        checks |= CHECKS
        extra = {
            name: partial(_try_model, options, name) for name in MORE_MODELS if name not in models
        }
    width, code = max(map(len, (*checks, *extra))), 0
    with_words = []
    print(f"{'model':{width}}  works offline")
    for title, check in (checks | extra).items():
        try:
            line = f"yes  {check()}"
            if TAKES_WORDS in line:
                with_words.append(title)
        except ModelError as error:
            line = f"no   {error}"
            if title in extra:
                line += " The lessons work without it."
            else:
                code = 1
        except KeyboardInterrupt:
            print(f"{title}: cancelled.", file=sys.stderr)
            return STOPPED
        print(f"{title:{width}}  {line}", flush=True)
    if arguments.lesson:
        note = WITH_WORDS.format(names=", ".join(with_words)) if with_words else WITHOUT_WORDS
        print(note)
        print(MISSING if code else READY)
    return code


def _try_model(
    options: Options,
    name: str,
    file: Path | None = None,
    size: tuple[int, int] | None = None,
    part: str | None = None,
) -> str:
    """Load a model, capture one picture, and return the result in words.

    Raises
    ------
    ModelError
        When it cannot be loaded, or the app could not show it.
    """
    from .. import capture, load_model, open_image
    from ..activations import check_finite
    from ..zoo import ModelError, catalogue
    from ..zoo.checkpoints import shipped_names

    size = size or options.image_size
    if file is None and name not in shipped_names():
        # First the outline, so that a model that cannot be read is not downloaded.
        load_model(name, pretrained=False, image_size=size)
        _fetch_weights(name)
    model = load_model(
        name,
        checkpoint=file,
        part=part,
        image_size=size,
        labels=options.labels if file else None,
        preprocessing=options.preprocessing if file and not file.is_dir() else None,
        answers=options.answers if file else None,
        device=options.device,
    )
    image = open_image((assets() / "samples" / "dog.jpg").read_bytes())
    start_time = time.monotonic()
    acts = capture(model, image)
    seconds = time.monotonic() - start_time
    check_finite(model, acts)
    readable = [layer for layer in range(acts.depth) if acts.layers[layer].refusal is None]
    for layer in readable:
        acts.attention(layer)  # proved as a whole
    line = (
        f"{model.weights}, {len(readable)} of {acts.depth} layers proved, {seconds:.2f} s a picture"
    )
    if model.text_loader is not None:
        try:
            model.with_words(["a dog"])
            line += TAKES_WORDS
        except ModelError as error:
            line += f", takes no words: {error}"
    if not file and name not in (entry.name for entry in catalogue()):
        line += ", only in Python: it is not in the menu"
    return line
