"""The shipped weights in assets/, and other files that `vitviz train` wrote."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..language import mark
from .reading import CheckpointError


@dataclass(frozen=True)
class Shipped:
    """One file of assets/weights: its state dict and what its metadata says of it."""

    state: dict[str, Tensor]
    configuration: Mapping[str, Any]  # keywords of VisionTransformer
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    test_accuracy: float  # of 1
    temperature: float | None  # fitted on held-out pictures, see `vitviz.training.calibration`
    detail: float  # share of the input's resolution that the training's pictures had
    initialisation: Mapping[str, Any] | None  # mimetic, with which the training began; None: plain


@cache
def assets() -> Path:
    """The folder assets/: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "assets"
    return inside if inside.is_dir() else package.parent / "assets"


#: The model that has taken the place of one that vitviz shipped before.
SUCCESSORS: Mapping[str, str] = {"vitviz_tiny_cifar10_distilled": "vitviz_tiny_cifar10"}
SUCCEEDED = mark("{name} is no longer shipped: {successor} has taken its place.")


def shipped_names() -> tuple[str, ...]:
    """Names of the models whose weights are in assets/."""
    folder, suffix = assets() / "weights", ".safetensors"
    files = os.listdir(folder) if folder.is_dir() else []
    return tuple(sorted(file.removesuffix(suffix) for file in files if file.endswith(suffix)))


def load_shipped(name: str) -> Shipped:
    """Read one of the shipped models."""
    return load_trained(assets() / "weights" / f"{name}.safetensors")


def load_trained(path: Path) -> Shipped:
    """Read a file that `vitviz train` wrote.

    Raises
    ------
    CheckpointError
        When it is no such file.
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
        # Files without it are of the first recipes, which all saw pictures of 32 pixels.
        detail=about.get("detail", min(1.0, 32 / about["configuration"]["image_size"])),
        initialisation=about.get("initialisation"),
    )


def initialisations(name: str) -> tuple[str, ...]:
    """Ways to draw random weights: "plain", and "mimetic" where the training began with that."""
    if name not in shipped_names():
        return ("plain",)
    about = _metadata(assets() / "weights" / f"{name}.safetensors")
    return ("plain", "mimetic") if about.get("initialisation") else ("plain",)


def initial_filters(name: str) -> np.ndarray | None:
    """E of a shipped model before its training, (D, C, P, P), where its run was recorded."""
    return _before_training(name, "filters")


def initial_positions(name: str) -> np.ndarray | None:
    """Its position embeddings then, (N, D), of the square grid with which the training began."""
    return _before_training(name, "positions")


def _before_training(name: str, what: str) -> np.ndarray | None:
    path = assets() / "curves" / f"{name}.npz"
    if not path.exists():
        return None
    with np.load(path) as arrays:
        values: np.ndarray = arrays[f"{what}_0"].astype(np.float32)
    return values


def classes_named_in(path: Path) -> tuple[str, ...] | None:
    """The names of the classes in a file that `vitviz train` wrote; None of any other file."""
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
            "{file} is no file that `vitviz train` wrote.", file=path.name
        ) from error
