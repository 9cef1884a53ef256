"""Read the shipped weights in assets/, and other files that `vitviz train` wrote."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from ...common import DEFAULT_MODEL
from ...common.files import assets, open_replacement
from ...model.answers import Grades
from .errors import CheckpointError


@dataclass(frozen=True)
class Shipped:
    """A file that `vitviz train` wrote: its state dict and its metadata."""

    state: dict[str, Tensor]
    configuration: Mapping[str, Any]  # keywords of VisionTransformer
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    test_accuracy: float  # share of 1
    temperature: float | None  # fitted on held-out pictures by `vitviz train`
    grades: Grades | None
    detail: float  # resolution of the training's pictures as a share of the input's
    initialisation: Mapping[str, Any] | None  # mimetic at the start of the training; None: plain


def shipped_names() -> tuple[str, ...]:
    """Return the names of the models whose weights are in assets/, the default model first."""
    folder, suffix = assets() / "weights", ".safetensors"
    files = os.listdir(folder) if folder.is_dir() else []
    names = (file.removesuffix(suffix) for file in files if file.endswith(suffix))
    return tuple(sorted(names, key=lambda name: (name != DEFAULT_MODEL, name)))


def weights_file(model: str | Path) -> Path:
    """Return the file of a shipped model by its name; any other text is taken as a path."""
    is_shipped = str(model) in shipped_names()
    return assets() / "weights" / f"{model}.safetensors" if is_shipped else Path(model)


def load_shipped(name: str) -> Shipped:
    """Read a shipped model."""
    return load_trained(weights_file(name))


def load_trained(path: Path) -> Shipped:
    """Read a file that `vitviz train` wrote.

    Raises
    ------
    CheckpointError
        When it is not such a file.
    """
    about = _metadata(path)
    return Shipped(
        state={key: tensor.float() for key, tensor in load_file(path).items()},
        configuration=about["configuration"],
        classes=tuple(about["classes"]),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        test_accuracy=about["test_accuracy"],
        temperature=about.get("temperature"),
        grades=Grades.read(about["grades"]) if "grades" in about else None,
        detail=about["detail"],
        initialisation=about.get("initialisation"),
    )


def write_metadata(path: Path, **about: Any) -> None:
    """Add to the metadata of a file that `vitviz train` wrote, without changing its tensors.

    Raises
    ------
    OSError
        When the file cannot be written.
    """
    metadata = {"vitviz": json.dumps({**_metadata(path), **about})}
    with open_replacement(path) as file:  # `save_file` raises no OSError
        file.write(save(load_file(path), metadata))


@cache
def count_patches(name: str) -> int:
    """Return the number of patches of a shipped model's input, without reading its weights."""
    configuration = _metadata(weights_file(name))["configuration"]
    return int((configuration["image_size"] // configuration["patch_size"]) ** 2)


def initialisations(name: str) -> tuple[str, ...]:
    """Return the initialisations of a model: "plain", and "mimetic" if its training used it."""
    if name not in shipped_names():
        return ("plain",)
    about = _metadata(weights_file(name))
    return ("plain", "mimetic") if about.get("initialisation") else ("plain",)


def initial_filters(name: str) -> np.ndarray | None:
    """Return E before the training, (D, C, P, P); None if the run was not recorded."""
    return _before_training(name, "filters")


def initial_positions(name: str) -> np.ndarray | None:
    """Return the position embeddings before the training, (N, D), of a square grid, or None."""
    return _before_training(name, "positions")


def _before_training(name: str, what: str) -> np.ndarray | None:
    path = assets() / "curves" / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        values: np.ndarray = arrays[f"{what}_0"].astype(np.float32)
    return values


def classes_named_in(path: Path) -> tuple[str, ...] | None:
    """Return the class names in a file that `vitviz train` wrote; None for any other file."""
    try:
        return tuple(map(str, _metadata(path)["classes"]))
    except (CheckpointError, KeyError, TypeError):
        return None


def _metadata(path: Path) -> Any:
    try:
        with safe_open(path, framework="pt") as file:
            return json.loads(file.metadata()["vitviz"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            "{file} was not written by `vitviz train`.", file=path.name
        ) from error
