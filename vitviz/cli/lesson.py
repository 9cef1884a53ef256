"""`vitviz fetch` and `vitviz prepare`: the models of a lesson, ready to work offline."""

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from ..options import OptionError, Options, options_in
from . import lesson_files
from .terminal import CLEAR, refused


def fetch(arguments: argparse.Namespace) -> int:
    """Download into the cache; the exit code is 1 where a download failed, 130 after Ctrl-C."""
    from ..checkpoints import shipped_names
    from ..zoo import ModelError

    code = 0
    for name in arguments.names:
        if name in shipped_names():
            print(f"{name}: comes with vitviz.")
            continue
        try:
            path = _fetched(name)
        except ModelError as error:
            print(error, file=sys.stderr)
            code = 1
        except KeyboardInterrupt:
            print(f"{name}: cancelled.", file=sys.stderr)
            return 130
        else:
            print(f"{name}: {path.stat().st_size / 1e6:,.1f} MB, on disk.")
    return code


def _fetched(name: str) -> Path:
    """Trained weights of timm in the cache, checked; a terminal shows the progress.

    Raises
    ------
    ModelError
        When they cannot be had.
    """
    from ..zoo import fetch_weights

    live = sys.stdout.isatty()

    def progress(done: int, total: int | None) -> None:
        of = "" if total is None else f" of {total / 1e6:,.1f}"
        if live:
            print(f"{CLEAR}{name}: {done / 1e6:,.1f}{of} MB", end="", flush=True)

    try:
        return fetch_weights(name, progress=progress, verify=True)
    finally:
        print(CLEAR if live else "", end="")


def prepare(arguments: argparse.Namespace) -> int:
    """Download a lesson's models and run each once; the exit code is 1 where one fails."""
    from ..checkpoints import shipped_names
    from ..devices import device_named
    from ..profiling import ProfileError, load_profile
    from ..zoo import ModelError, leave_cores_free

    try:
        options = options_in(arguments)
        device_named(options.device)
        for path in options.profiles:
            load_profile(path)
    except (OptionError, ModelError, ProfileError) as error:
        return refused(error)
    leave_cores_free()
    wanted: dict[str, tuple[str, Path | None, tuple[int, int] | None]] = {}
    lesson = (lesson_files.MODEL,) if arguments.lesson else ()
    for name in (*lesson, *arguments.names, *(options.models or ())):
        wanted[name] = (name, None, None)
    wanted |= options.checkpoints
    wanted = wanted or {name: (name, None, None) for name in shipped_names()}
    checks: dict[str, Callable[[], str]] = {
        title: partial(_tried, *each, options) for title, each in wanted.items()
    }
    extra: dict[str, Callable[[], str]] = {}
    if arguments.lesson:
        checks |= lesson_files.CHECKS
        extra = {
            name: partial(_tried, name, None, None, options)
            for name in lesson_files.MORE_MODELS
            if name not in wanted
        }
    width, code = max(map(len, (*checks, *extra))), 0
    print(f"{'model':{width}}  works offline")
    for title, check in (checks | extra).items():
        try:
            line = f"yes  {check()}"
        except ModelError as error:
            line = f"no   {error}"
            if title in extra:
                line += " The lessons work without it."
            else:
                code = 1
        except KeyboardInterrupt:
            print(f"{title}: cancelled.", file=sys.stderr)
            return 130
        print(f"{title:{width}}  {line}", flush=True)
    if arguments.lesson:
        print(lesson_files.MISSING if code else lesson_files.READY)
    return code


def _tried(name: str, file: Path | None, size: tuple[int, int] | None, options: Options) -> str:
    """Load a model and capture one picture; returns the result in words.

    Raises
    ------
    ModelError
        When it cannot be had, or the app could not show it.
    """
    from .. import capture, load_model, open_image
    from ..activations import check_finite
    from ..checkpoints import assets, shipped_names
    from ..zoo import catalogue

    size = size or options.image_size
    if file is None and name not in shipped_names():
        # a model that cannot be read is not downloaded
        load_model(name, pretrained=False, image_size=size)
        _fetched(name)
    model = load_model(
        name,
        checkpoint=file,
        image_size=size,
        labels=options.labels if file else None,
        device=options.device,
    )
    image = open_image((assets() / "samples" / "dog.jpg").read_bytes())
    begun = time.monotonic()
    acts = capture(model, image)
    seconds = time.monotonic() - begun
    check_finite(model, acts)
    readable = [layer for layer in range(acts.depth) if acts.layers[layer].refusal is None]
    for layer in readable:
        acts.attention(layer)  # proved as a whole
    line = (
        f"{model.weights}, {len(readable)} of {acts.depth} layers proved, {seconds:.2f} s a picture"
    )
    if not file and name not in (entry.name for entry in catalogue()):
        line += ", in Python alone: the menu does not have it"
    return line
