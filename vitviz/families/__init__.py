"""The families of Vision Transformers that can be read: one `Family` each in `FAMILIES`.

A family says how a module is recognised, and where its layers, their tokens and their attention
are. A module that none recognises is refused in one sentence that says why.
"""

from torch import nn

from .cait import CAIT
from .description import Family, Layer, ModelError, Parts, Site, Windows
from .mixer import MIXER, token_weights
from .plain import PLAIN
from .pooling import read_tokens
from .position_encoding import position_encodings
from .receptive_fields import Offset, receptive_field_offsets, without_gradients
from .refusals import is_compiled, why_unknown, why_unready
from .rest import exchanged, given_outputs
from .staged import STAGED
from .torchvision import TORCHVISION
from .transformers import TRANSFORMERS
from .transformers_staged import TRANSFORMERS_STAGED

__all__ = [
    "FAMILIES",
    "Family",
    "Layer",
    "ModelError",
    "Offset",
    "Parts",
    "Site",
    "Windows",
    "exchanged",
    "family_of",
    "given_outputs",
    "position_encodings",
    "read_tokens",
    "receptive_field_offsets",
    "token_weights",
    "why_unready",
    "without_gradients",
]

FAMILIES: tuple[Family, ...] = (
    *(*PLAIN, *CAIT, *STAGED, *MIXER),
    *(*TRANSFORMERS, *TRANSFORMERS_STAGED, *TORCHVISION),
)


def family_of(module: nn.Module) -> Family:
    """The family that recognises `module`.

    Raises
    ------
    ModelError
        When there is none; the sentence says why.
    """
    if not is_compiled(module):
        for family in FAMILIES:
            if family.recognises(module):
                return family
    raise ModelError(why_unknown(module, [family.name for family in FAMILIES]))
