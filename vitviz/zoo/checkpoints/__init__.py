"""Read files of weights into state dicts: shipped ones (`shipped`), and checkpoints of the user.

A checkpoint is read in one of three formats (`reading`; torch's without its code, `pickles`), one
model in it is chosen (`contents`), its names become timm's (`naming`), and it is loaded strictly
(`fitting`).
"""

from .contents import left_out_note
from .errors import CheckpointError
from .fitting import load_state
from .reading import INDEX, Checkpoint, check_kinds, digest_of, files_of, shard_names
from .shipped import (
    Shipped,
    classes_named_in,
    count_patches,
    initial_filters,
    initial_positions,
    initialisations,
    load_shipped,
    load_trained,
    shipped_names,
    weights_file,
    write_metadata,
)

__all__ = [
    "INDEX",
    "Checkpoint",
    "CheckpointError",
    "Shipped",
    "check_kinds",
    "classes_named_in",
    "count_patches",
    "digest_of",
    "files_of",
    "initial_filters",
    "initial_positions",
    "initialisations",
    "left_out_note",
    "load_shipped",
    "load_state",
    "load_trained",
    "shard_names",
    "shipped_names",
    "weights_file",
    "write_metadata",
]
