"""From which tokens a model reads its answer."""

from typing import Any

import torch


def read_tokens(module: Any, prefix: tuple[str, ...]) -> tuple[str, ...]:
    """Names of the tokens from which the output has a gradient; "patches" for those of the picture.

    The module's own final norm, pooling and head are run on random tokens: neither its settings nor
    a CLS token that is there tell what the head reads. The output of a head whose weights are all
    zero has no gradient: then it is taken to read CLS, or the patches where there is none.
    """
    weight = next(module.parameters())
    random = torch.Generator().manual_seed(0)
    # A gradient is wanted here, whatever the caller has switched off for itself.
    with torch.inference_mode(False), torch.enable_grad():
        tokens = torch.randn(1, len(prefix) + 2, module.embed_dim, generator=random)
        tokens = tokens.to(weight).requires_grad_()
        output = module.forward_head(module.norm(tokens))
        direction = torch.randn(output.shape, generator=random).to(output)
        (gradient,) = torch.autograd.grad((output * direction).sum(), tokens)
    read = (gradient[0] != 0).any(dim=1).tolist()  # also where it is NaN
    names = tuple(name for name, one in zip(prefix, read, strict=False) if one)
    if any(read[len(prefix) :]):
        return (*names, "patches")
    return names or (("cls",) if "cls" in prefix else ("patches",))
