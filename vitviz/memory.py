"""Memory said before it is spent: what a model and a capture of it need, and what is free."""

import ctypes
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from torch import nn

from .families import ModelError, Site

_M_ARENA_MAX, _M_MMAP_THRESHOLD = -8, -3  # of glibc's malloc.h
_LARGE = 4 * 2**20  # bytes; the tensors of a forward pass are smaller
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUPS = Path("/proc/self/cgroup")
#: The limit of a control group and what it uses, in versions 2 and 1, and which of that is cache
#: of files: it counts as used, and the kernel gives it up when memory is wanted.
_ACCOUNTS = (
    ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)


#: Vectors of width D that a layer keeps of each token for the pass back, at most (a gated MLP).
_GRADED_VECTORS = 30


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
        if site.biased or not site.fused:
            numbers += _matrix(site)
    return numbers * size


def gradient_bytes(sites: Sequence[Site]) -> int:
    """What one pass forward and one back to the attention of all layers take, at most."""
    size = max(4, next(sites[0].block.parameters()).element_size())
    # The attention and its gradient of each layer; of one, the products that make them.
    numbers = 2 * sum(_matrix(site) for site in sites) + 3 * max(_matrix(site) for site in sites)
    # What the layers keep for the pass back: inputs of norms, of linear layers and of the MLP's
    # activation, queries, keys and values.
    numbers += sum(_tokens(site) * _width(site) * _GRADED_VECTORS for site in sites)
    return numbers * size


def check(needed: int, what: str) -> None:
    """Refuse what does not fit into the memory that is free.

    Raises
    ------
    ModelError
        With both numbers.
    """
    free = free_bytes()
    if needed > free:
        raise ModelError(
            f"{what} needs about {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free."
        )


def free_bytes() -> int:
    """Memory that can be had without swapping; a container may be allowed less than is there."""
    return max(0, int(min([psutil.virtual_memory().available, *map(_left_in, _groups())])))


def give_memory_back() -> None:
    """Keep a server of many short threads small, where glibc gives out its memory.

    Threads share two arenas: else they have up to eight for a core, and what is freed in one is no
    room for another. What is larger than `_LARGE`, such as the pixels of a picture, lies outside of
    them, and is the system's again when it is freed: else glibc raises that bound to 32 MB, and the
    holes that pictures leave are filled with what stays. Elsewhere nothing changes.
    """
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_ARENA_MAX, 2)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE)


def _groups() -> Iterator[Path]:
    """The folders in which the system accounts for the memory of this process."""
    try:
        lines = _OWN_GROUPS.read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controller, path = line.split(":", 2)
        if controller in ("", "memory"):  # of version 2 and of version 1
            # In a container the path may be that of its host; its own group is then at the top.
            top = _GROUPS / controller
            group = top / path[1:]
            yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _left_in(group: Path) -> float:
    """What a control group may still take; infinite where it has no limit."""
    for limit, used, cached in _ACCOUNTS:
        with suppress(OSError, ValueError):  # no such file, or "max"
            free = int((group / limit).read_text()) - int((group / used).read_text())
            stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
            return free + sum(int(stat.get(name, 0)) for name in cached)
    return math.inf


def _vectors(site: Site) -> int:
    """Vectors of width D that are kept of each token, at most."""
    if site.layer.kind == "mixing":
        return 2  # the residual stream, before and after
    # and the output of attention, and q, k, v in one tensor; rotated q and k are two more
    return 6 if site.biased or not site.fused else 8


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
    for name in ("out_features", "out_channels"):
        if width := getattr(site.projection, name, None):
            return int(width)
    return next(site.block.parameters()).numel()
