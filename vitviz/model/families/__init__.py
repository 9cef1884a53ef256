"""The families of Vision Transformers that vitviz reads, one `Family` each in `FAMILIES`.

A family says how a module is recognised, and where its layers, their tokens and their attention
are. A module that no family recognises is refused with the reason.
"""

from torch import nn

from .description import (
    NORM1,
    Family,
    Layer,
    ModelError,
    Parts,
    Site,
    Windows,
    call,
    class_name,
    copy_returning,
    copy_with,
    filters,
    gives_logits,
    image_side,
    input_channels,
    is_changed,
    is_known_to_copy,
    is_tips,
    one_tensor,
    position_encodings,
    read_tokens,
    replaces_method,
)
from .plain import CAIT, MIXER, PLAIN, mixing_kinds, token_weights
from .receptive_fields import Offset, has_inference_tensors, receptive_field_offsets
from .refusals import explain_unknown, explain_unready, is_compiled
from .staged import STAGED
from .torchvision import OPEN_CLIP, TORCHVISION
from .transformers import TRANSFORMERS, TRANSFORMERS_STAGED

__all__ = [
    "FAMILIES",
    "NORM1",
    "Family",
    "Layer",
    "ModelError",
    "Offset",
    "Parts",
    "Site",
    "Windows",
    "call",
    "class_name",
    "copy_returning",
    "copy_with",
    "explain_unready",
    "family_of",
    "filters",
    "gives_logits",
    "has_inference_tensors",
    "image_side",
    "input_channels",
    "is_changed",
    "is_compiled",
    "is_known_to_copy",
    "is_tips",
    "mixing_kinds",
    "one_tensor",
    "position_encodings",
    "read_tokens",
    "receptive_field_offsets",
    "replaces_method",
    "token_weights",
]

FAMILIES: tuple[Family, ...] = (
    *(*PLAIN, *CAIT, *STAGED, *MIXER),
    *(*TRANSFORMERS, *TRANSFORMERS_STAGED, *TORCHVISION, *OPEN_CLIP),
)


def family_of(module: nn.Module) -> Family:
    """Return the family that recognises `module`.

    Raises
    ------
    ModelError
        With the reason why no family does.
    """
    if not is_compiled(module):
        for family in FAMILIES:
            if family.recognises(module):
                return family
    raise ModelError(explain_unknown(module, [family.name for family in FAMILIES]))
