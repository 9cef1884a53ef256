"""Recorded trainings and measurements, which ship with the app, and where a training began."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from vitviz import inspection
from vitviz.common.files import assets
from vitviz.zoo.checkpoints import initial_positions, initialisations

if TYPE_CHECKING:
    from vitviz import Model

COMPONENTS = 9  # of the filters, as Training draws them and the lesson counts them


def _folder() -> Path:
    return assets() / "curves"


@cache
def run_names() -> list[str]:
    """Return the names of the models whose training was recorded."""
    return sorted(path.stem for path in _folder().glob("vitviz_*.json"))


@cache
def read(name: str) -> dict[str, Any]:
    """Return a record by the name of its file."""
    record: dict[str, Any] = json.loads((_folder() / f"{name}.json").read_text(encoding="utf-8"))
    return record


@cache
def read_moments(name: str) -> Mapping[str, np.ndarray]:
    """Return what was kept during the training of a model: arrays of all moments, and of each."""
    with np.load(_folder() / f"{name}.npz") as arrays:
        return dict(arrays)


def filters_at(name: str, moment: int) -> np.ndarray:
    """Return the filters (D, C, P, P) at a moment of a training."""
    kernel: np.ndarray = read_moments(name)[f"filters_{moment}"].astype(np.float32)
    return kernel


def positions_at(name: str, moment: int) -> np.ndarray:
    """Return the cosines of the position embeddings at a moment: (side, side, side, side)."""
    table = read_moments(name)[f"positions_{moment}"].astype(np.float32)
    side = math.isqrt(len(table))
    return inspection.position_similarity(table, grid=(side, side))


def accuracies(record: Mapping[str, Any], network: str, share: float) -> list[float]:
    """Return the test accuracy of each run of a network with a share of the training pictures."""
    return [
        run["test_accuracy"]
        for run in record["runs"]
        if run["network"] == network and run["share"] == share
    ]


def positions_put_in(model: "Model", grid: tuple[int, int]) -> np.ndarray | None:
    """Return the cosines of the sines and cosines with which a training began, on this grid.

    None for a model whose training did not begin with any, or whose weights are not shipped.
    """
    if not model.weights.startswith("shipped") or "mimetic" not in initialisations(model.name):
        return None
    table = initial_positions(model.name)
    assert table is not None
    side = math.isqrt(len(table))
    resized = inspection.resized_positions(table, grid=(side, side), new_grid=grid)
    return inspection.position_similarity(resized, grid=grid)
