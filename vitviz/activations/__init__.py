"""`capture` runs one picture through a model, with or without edits, and returns `Activations`.

`captures` does so with many, a batch in one forward pass.

Attention is read where it is computed: a TorchFunctionMode sees the queries, keys and values that
`scaled_dot_product_attention` is called with, so that logits stay bit-identical and nothing of the
model is changed. Before a layer is shown, what its attention gives with the values is compared with
the block's own output on this picture.
"""

from .activations import Activations
from .edits import DropPatches, Edit, FillPatches, MuteHeads, SwapTokens, edited_input
from .forward import Picture, capture, captures, check_finite, show, widget
from .loading import load_activations
from .maps import Query
from .proof import PROOF_ROWS, TOLERANCE

__all__ = [
    "PROOF_ROWS",
    "TOLERANCE",
    "Activations",
    "DropPatches",
    "Edit",
    "FillPatches",
    "MuteHeads",
    "Picture",
    "Query",
    "SwapTokens",
    "capture",
    "captures",
    "check_finite",
    "edited_input",
    "load_activations",
    "show",
    "widget",
]
