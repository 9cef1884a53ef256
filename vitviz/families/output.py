"""From which tokens a model reads its answer."""

from typing import Any

import torch
from torch import Tensor


def read_tokens(module: Any, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the tokens on which the output depends; "patches" for those of the picture.

    The module's own final norm, pooling and head are run on random tokens, once more with others in
    each place: neither its settings nor a CLS token that is there tell what the head reads, and a
    part that was quantised has no gradient to ask. The output of a head whose weights are all zero
    depends on nothing: then it is taken to read CLS, or the patches where there is none.
    """
    weight = next(module.parameters())
    size = (1, len(prefix) + 2, module.embed_dim)
    random = torch.Generator().manual_seed(0)
    tokens, others = (torch.randn(size, generator=random).to(weight) for _ in range(2))

    def answer(changed: slice) -> Tensor:
        z = tokens.clone()
        z[:, changed] = others[:, changed]
        output: Tensor = module.forward_head(module.norm(z))
        return output

    places = {name: slice(at, at + 1) for at, name in enumerate(prefix)}
    places["patches"] = slice(len(prefix), None)
    with torch.inference_mode():
        plain = answer(slice(0))
        read = tuple(
            name
            for name, place in places.items()
            if not torch.equal(answer(place).nan_to_num(), plain.nan_to_num())
        )
    return read or (("cls",) if "cls" in prefix else ("patches",))
