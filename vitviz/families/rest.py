"""What a module computes after its last block, for modules that have no function of their own."""

import copy
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn


class _Given(nn.Module):
    """Returns what it was made with, whatever it is called with."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.output


def exchanged(module: nn.Module, path: str, part: nn.Module | Tensor) -> Any:
    """The module with another part or tensor at `path`; all else is shared, and stays as it is."""
    first, _, rest = path.partition(".")
    other: Any = copy.copy(module)
    for kind in ("_modules", "_parameters", "_buffers"):
        own = dict(getattr(module, kind))
        if first in own:
            own[first] = exchanged(module.get_submodule(first), rest, part) if rest else part
            object.__setattr__(other, kind, own)
    return other


def given_outputs(module: nn.Module, outputs: Mapping[str, Any]) -> Any:
    """The module in which the parts at these paths return what is given, and compute nothing."""
    for path, output in outputs.items():
        module = exchanged(module, path, _Given(output))
    return module


def given_tokens(module: nn.Module, blocks: str, tokens: Tensor) -> Any:
    """The module with one part in place of its blocks, which returns these tokens (B, T, D).

    Its own forward pass, of any picture, then is what it computes after its blocks, which so is not
    written a second time.

    Parameters
    ----------
    blocks : path of the container of the blocks
    """
    container: Any = type(module.get_submodule(blocks))  # a ModuleList or a Sequential
    given = nn.Sequential(_Given(tokens))
    return exchanged(module, blocks, given if container is nn.Sequential else container(given))
