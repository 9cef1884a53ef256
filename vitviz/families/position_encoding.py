"""How a model encodes positions: embedding, relative bias, rotary, convolutions or mixing."""

from typing import Any

from torch import Tensor, nn

from ..language import mark
from .description import Layer

#: The tables of vectors that transformers and torchvision add to the tokens.
_EMBEDDINGS = ("position_embeddings", "position_embedding.weight", "pos_embedding")
_RELATIVE_BIAS = ("rel_pos", "relative_position", "cpb_mlp", "meta_mlp")  # in the names of modules


def position_encodings(module: nn.Module, layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Every way in which a module of a known family knows where a patch lies.

    Returns
    -------
    tuple of str
        Of these, in this order: "embedding" (a vector for each position, added to the patch),
        "relative bias" (added to the scores, by the offset from query to key), "rotary" (RoPE),
        "convolutions" (which see more than their own patch), "mixing" (an MLP over the positions).
        Empty where there is none: then the output does not change when patches are permuted.
    """
    named: list[tuple[str, Any]] = [*module.named_modules(), *module.named_parameters()]
    there = {
        "embedding": isinstance(getattr(module, "pos_embed", None), Tensor)
        or any(isinstance(p, Tensor) and name.endswith(_EMBEDDINGS) for name, p in named),
        mark("relative bias"): any(part in name for name, _ in named for part in _RELATIVE_BIAS),
        mark("rotary"): getattr(module, "rope", None) is not None
        or any(name.endswith("rope_embeddings") for name, _ in named),
        mark("convolutions"): any(
            isinstance(part, nn.Conv2d) and max(part.kernel_size) > min(part.stride)
            for _, part in named
        ),
        mark("mixing"): any(layer.kind == "mixing" for layer in layers),
    }
    return tuple(encoding for encoding, is_there in there.items() if is_there)
