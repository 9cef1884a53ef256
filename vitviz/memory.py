"""Memory said before it is spent: what a model and a capture of it need, and what is free."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from .families import ModelError, Site

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True, kw_only=True)
class Footprint:
    """Bytes that a model needs, from its structure alone.

    Attributes
    ----------
    weights : int
        Parameters and buffers.
    capture : int
        What one capture keeps: queries, keys, values and outputs of attention (its weights where
        they are read at a softmax), and the residual stream.
    layer : int
        The attention of the largest layer, which is computed when it is asked for.
    """

    weights: int
    capture: int
    layer: int

    @property
    def total(self) -> int:
        return self.weights + self.capture + self.layer


def footprint(module: nn.Module, sites: Sequence[Site]) -> Footprint:
    """Estimate what a module and one capture of it need; it may lie on the meta device."""
    held = [*module.parameters(), *module.buffers()]
    return Footprint(
        weights=sum(tensor.numel() * tensor.element_size() for tensor in held),
        capture=capture_bytes(sites),
        layer=2 * 4 * max(_matrix(site) for site in sites),  # float32, once more for the proof
    )


def capture_bytes(sites: Sequence[Site]) -> int:
    """What one capture keeps, at most."""
    size = next(sites[0].block.parameters()).element_size()
    numbers = 0
    for site in sites:
        numbers += _tokens(site) * _width(site) * _vectors(site)
        if site.reader == "softmax" or site.biased:
            numbers += _matrix(site)
    return numbers * size


def check(needed: int, what: str) -> None:
    """Refuse what does not fit into the memory that is free.

    Raises
    ------
    ModelError
        With both numbers.
    """
    free = free_bytes()
    if free is not None and needed > free:
        raise ModelError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free."
        )


def free_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not tell."""
    try:
        available = _MEMINFO.read_text().partition("\nMemAvailable:")[2]
        free = 1024 * int(available.split(maxsplit=1)[0])
    except (OSError, IndexError, ValueError):
        return None
    try:  # a container may be allowed less
        allowed = int((_GROUP / "memory.max").read_text())
        free = min(free, allowed - int((_GROUP / "memory.current").read_text()))
    except (OSError, ValueError):  # no such limit, or "max"
        pass
    return max(free, 0)


def _vectors(site: Site) -> int:
    """Vectors of width D that are kept of each token, at most."""
    if site.layer.kind == "mixing":
        return 2  # the residual stream, before and after
    # and the output of attention, and q, k, v in one tensor; rotated q and k are two more
    return 6 if site.reader == "softmax" or site.biased else 8


def _tokens(site: Site) -> int:
    if site.windows is not None:
        return site.windows.queries.size
    return len(site.layer.prefix) + math.prod(site.layer.query_grid)


def _matrix(site: Site) -> int:
    """Numbers in the attention of one layer."""
    layer = site.layer
    if site.windows is not None:
        return layer.num_heads * site.windows.queries.size * site.windows.keys.shape[1]
    queries = 1 if layer.kind == "class" else _tokens(site)
    return layer.num_heads * queries * _tokens(site)


def _width(site: Site) -> int:
    """D: the rows of the block's output projection, or the size of its first norm."""
    block: Any = site.block
    attn = getattr(block, "attn", block)
    for name in ("proj", "attn_out_proj", "out_proj"):
        projection = getattr(attn, name, None)
        if projection is not None:
            return projection.weight.shape[0]
    return next(block.parameters()).numel()
