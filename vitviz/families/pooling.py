"""Which tokens the head pools: the class token, the patches, or others."""

from typing import Any

import torch
from torch import Tensor

from .description import Family


def read_tokens(family: Family, module: Any, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the tokens on which the output depends; "patches" for those of the picture.

    The module's own final norm, pooling and head are run on random tokens, and again with one of
    them exchanged: neither timm's settings nor the presence of CLS say what the head reads, and a
    quantised part has no gradient. The output of a head whose weights are all zero depends on
    nothing: then it is taken to read CLS, or the patches where there is none.
    """
    weight = next(module.parameters())
    size = (1, len(prefix) + 2, family.parts(module).width)
    random = torch.Generator().manual_seed(0)
    tokens, others = (torch.randn(size, generator=random).to(weight) for _ in range(2))

    def output_with(changed: slice) -> Tensor:
        z = tokens.clone()
        z[:, changed] = others[:, changed]
        return family.answer(module, z)

    places = {name: slice(at, at + 1) for at, name in enumerate(prefix)}
    places["patches"] = slice(len(prefix), None)
    with torch.inference_mode():
        plain = output_with(slice(0))
        read = tuple(
            name
            for name, place in places.items()
            if not torch.equal(output_with(place).nan_to_num(), plain.nan_to_num())
        )
    return read or (("cls",) if "cls" in prefix else ("patches",))
