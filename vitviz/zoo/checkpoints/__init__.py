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
