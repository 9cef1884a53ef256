"""What the lessons show beside models: whether it is on disk and whole."""

import csv
import io
import json
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MODEL = "vitviz_things200"  # which the lessons show
#: Models of the teacher's guide for a class with more time, which nothing else needs.
MORE_MODELS = ("vit_small_patch16_224", "vit_small_r26_s32_224")
READY = "Everything that the seven lessons and the worksheet need is on disk."
MISSING = 'The lessons will not work as the teacher\'s guide describes them: see each "no" above.'


def _damaged(path: Path) -> str:
    place = f"assets/{path.parent.name}/{path.name}"
    return f"The file {place} is missing or damaged: install vitviz again."


def _read(path: Path, *needed: str) -> dict[str, Any]:
    """Entries of a record, JSON or arrays; without names all.

    Raises
    ------
    ModelError
        When it is not there, or cannot be read.
    """
    from ..zoo import ModelError

    try:
        if path.suffix == ".json":
            found = json.loads(path.read_text(encoding="utf-8"))
        else:
            with np.load(io.BytesIO(path.read_bytes())) as arrays:
                found = dict(arrays)
        return {name: found[name] for name in needed or found}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise ModelError(_damaged(path)) from error


def _samples() -> str:
    """Open and capture every sample picture."""
    from .. import ImageError, capture, load_model, open_image
    from ..activations import check_finite
    from ..checkpoints import assets
    from ..zoo import ModelError

    folder = assets() / "samples"
    model = load_model(MODEL)
    try:
        with (folder / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
            names = [row["file"] for row in csv.DictReader(file)]
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_damaged(folder / "LICENCES.csv")) from error
    if not names:
        raise ModelError(_damaged(folder / "LICENCES.csv"))
    for name in names:
        try:
            image = open_image((folder / name).read_bytes())
        except (OSError, ImageError) as error:
            raise ModelError(_damaged(folder / name)) from error
        check_finite(model, capture(model, image))
    return f"{len(names)} pictures opened and captured"


def _records() -> str:
    """Read the records of training, the last moment of which is the weights themselves."""
    from .. import load_model
    from ..checkpoints import assets
    from ..zoo import ModelError

    folder = assets() / "curves"
    run = _read(folder / f"{MODEL}.json", "epochs", "test_accuracy")
    record = _read(folder / f"{MODEL}.npz")
    hunger = _read(folder / "data_hunger.json", "runs")
    weights, moments = load_model(MODEL).patch_kernel, len(record.get("epoch", ()))
    last = record.get(f"filters_{moments - 1}")  # as the weights are, in half precision
    if weights is None or last is None or not np.array_equal(last, weights.astype(last.dtype)):
        raise ModelError(
            f"The record of {MODEL} and its weights do not belong together: install vitviz again."
        )
    epochs, runs = len(run["epochs"]), len(hunger["runs"])
    return f"{epochs} epochs and {moments} moments of {MODEL}, {runs} runs on parts of the data"


def _profile() -> str:
    """Read the profile, which says of which weights it is."""
    from .. import load_model
    from ..checkpoints import assets
    from ..profiling import ProfileError, fits, load_profile
    from ..zoo import ModelError

    path = assets() / "profiles" / f"{MODEL}.npz"
    try:
        found = load_profile(path)
    except ProfileError as error:
        raise ModelError(_damaged(path)) from error
    if not fits(found, load_model(MODEL)):
        raise ModelError(
            f"The profile of {MODEL} and its weights do not belong together: install vitviz again."
        )
    return f"{found.about['pictures']:,} pictures of {found.about['source']}, of these weights"


#: What is tried, by what it is called; each returns what was found, or raises a ModelError.
CHECKS: Mapping[str, Callable[[], str]] = {
    "sample pictures": _samples,
    "training records": _records,
    "profile": _profile,
}
