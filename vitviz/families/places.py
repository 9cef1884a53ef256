"""By what a model tells apart two patches of the same pixels that lie at two places."""

from typing import Any

from torch import Tensor, nn

from .description import Layer

_OFFSETS = ("rel_pos", "relative_position", "cpb_mlp", "meta_mlp")  # in the names of modules


def place_sources(module: nn.Module, layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """What tells a module of a known family where a patch lies.

    Returns
    -------
    tuple of str
        Of these, in this order: "embedding" (one vector a place, added to the patch), "offsets" (a
        bias of attention by the offset from query to key), "rotation" (of queries and keys),
        "convolutions" (which see more than their own patch), "mixing" (an MLP over the places).
        Empty where nothing does: then the answer stays the same when patches are exchanged.
    """
    named: list[tuple[str, Any]] = [*module.named_modules(), *module.named_parameters()]
    there = {
        "embedding": isinstance(getattr(module, "pos_embed", None), Tensor),
        "offsets": any(part in name for name, _ in named for part in _OFFSETS),
        "rotation": getattr(module, "rope", None) is not None,
        "convolutions": any(
            isinstance(part, nn.Conv2d) and max(part.kernel_size) > min(part.stride)
            for _, part in named
        ),
        "mixing": any(layer.kind == "mixing" for layer in layers),
    }
    return tuple(source for source, is_there in there.items() if is_there)
