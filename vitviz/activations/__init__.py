"""`capture`: run one picture through a model, with or without edits, and return `Activations`.

`captures` does so for many pictures, a batch in one forward pass.

Attention is read where it is computed: a TorchFunctionMode sees the queries, keys and values that
`scaled_dot_product_attention` is called with, so that logits stay bit-identical and the model is
not changed. Before a layer is shown, its attention times the values is compared with the block's
own output on this picture.
"""

from ..common.query import Query
from ..model.devices import TOLERANCE
from .activations import Activations
from .calls import PROOF_ROWS
from .carried import Carried
from .edits import DropPatches, Edit, FillPatches, MuteHeads, SwapTokens, edited_input
from .forward import Picture, capture, captures, check_finite
from .loading import load_activations

__all__ = [
    "PROOF_ROWS",
    "TOLERANCE",
    "Activations",
    "Carried",
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
]
