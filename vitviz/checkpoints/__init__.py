"""Files of weights -> state dicts: the shipped ones, and checkpoints that the operator names.

A checkpoint is read in one of three formats (`reading`), its names become timm's (`naming`), and it
is loaded strictly (`fitting`).
"""

from .fitting import load_state
from .reading import Checkpoint, CheckpointError
from .shipped import (
    SUCCEEDED,
    SUCCESSORS,
    Shipped,
    assets,
    classes_named_in,
    initial_filters,
    initial_positions,
    initialisations,
    load_shipped,
    load_trained,
    shipped_names,
)

__all__ = [
    "SUCCEEDED",
    "SUCCESSORS",
    "Checkpoint",
    "CheckpointError",
    "Shipped",
    "assets",
    "classes_named_in",
    "initial_filters",
    "initial_positions",
    "initialisations",
    "load_shipped",
    "load_state",
    "load_trained",
    "shipped_names",
]
