"""What each family of Vision Transformers is: one row each in `FAMILIES`.

A row tells how a module is recognised, and where its layers, their tokens and their attention are.
A module that no row recognises is refused in one sentence that says what is missing.
"""

from torch import nn

from .cait import CAIT
from .description import Family, Layer, ModelError, Site, Windows
from .mixer import MIXER, token_weights
from .offsets import Offset, offsets
from .output import read_tokens
from .places import place_sources
from .plain import PLAIN
from .refusals import is_compiled, why_unknown, why_unready
from .staged import STAGED

__all__ = [
    "FAMILIES",
    "Family",
    "Layer",
    "ModelError",
    "Offset",
    "Site",
    "Windows",
    "family_of",
    "offsets",
    "place_sources",
    "read_tokens",
    "token_weights",
    "why_unready",
]

FAMILIES: tuple[Family, ...] = (*PLAIN, *CAIT, *STAGED, *MIXER)


def family_of(module: nn.Module) -> Family:
    """The row that recognises `module`.

    Raises
    ------
    ModelError
        When there is none; the sentence says what is missing.
    """
    if not is_compiled(module):
        for family in FAMILIES:
            if family.recognises(module):
                return family
    raise ModelError(why_unknown(module, [family.name for family in FAMILIES]))
