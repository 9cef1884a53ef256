"""Estimate the memory of a model and its capture before it is allocated, and what is free."""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
import torch
from torch import nn

from ..common.language import Message
from .devices import CPU, free_on
from .families import ModelError, Site

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")
#: Files of a control group, in versions 2 and 1: limit, usage, and the parts of the usage that are
#: page cache, which the kernel reclaims when memory is needed.
_CGROUP_FILES = (
    ("memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")),
    (
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        ("total_inactive_file", "total_active_file"),
    ),
)
#: Vectors of width D that a layer keeps of each token for the backward pass, at most (a gated MLP).
_BACKWARD_VECTORS = 30
#: Copies of maps that Streamlit makes: the joined arrays, a table, a message, its bytes to be
#: hashed, and its bytes to be sent.
_COPIES_SENT = 5
#: A need of at most this share of free memory is compared with what was free up to a second ago:
#: to read it takes as long as a hundredth of a pass of ViT-Ti.
_SMALL = 1 / 256
_known_free: tuple[float, int] = (-math.inf, 0)  # when it was read, and the bytes


def model_bytes(module: nn.Module, sites: Sequence[Site]) -> int:
    """Estimate the bytes of a module, which may be on the meta device, and of one capture.

    Counted are parameters and buffers, what the capture keeps, and the attention of the largest
    layer, which is computed when it is asked for.
    """
    tensors = [*module.parameters(), *module.buffers()]
    weights = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    layer = 2 * 4 * max(map(_attention_size, sites))  # float32, twice for the proof
    return weights + capture_bytes(sites) + layer


def capture_bytes(sites: Sequence[Site]) -> int:
    """Return the bytes that one capture keeps, at most.

    Queries, keys, values and outputs of attention (and its weights, if they are read at a softmax),
    and the residual stream.
    """
    size = next(sites[0].block.parameters()).element_size()
    # The final norm; the residual stream before the first layer, whose grid is finer in CoAtNet.
    numbers = 2 * _width(sites[-1]) + 4 * _tokens(sites[0]) * _width(sites[0])
    for site in sites:
        numbers += _tokens(site) * _width(site) * _vectors_kept(site)
        if site.biased or not site.is_fused:
            numbers += _attention_size(site)
    return numbers * size


def page_bytes(sites: Sequence[Site]) -> int:
    """Return the bytes that a page of the app computes from one capture, at most.

    The attention of the largest layer, twice for its proof; its maps in one byte a number, and
    Streamlit's copies of them; and for a rollout, one matrix for each layer.
    """
    sizes = [_attention_size(site) for site in sites]
    maps = (2 * 4 + 1 + _COPIES_SENT) * max(sizes, default=0)
    all_to_all = all(site.layer.kind == "global" for site in sites)
    fused = 4 * (len(sites) + 4) * _tokens(sites[0]) ** 2 if all_to_all else 0
    return maps + fused


def attention_weights(sites: Sequence[Site]) -> int:
    """Count the attention weights of all layers and heads."""
    return sum(map(_attention_size, sites))


def largest_attention(sites: Sequence[Site]) -> int:
    """Count the attention weights of one head in the layer that has most of them."""
    return max(_attention_size(site) // max(1, site.layer.num_heads) for site in sites)


def gradient_bytes(sites: Sequence[Site]) -> int:
    """Return the bytes of a forward pass and a backward pass to all attention, at most."""
    size = max(4, next(sites[0].block.parameters()).element_size())
    attention = [_attention_size(site) for site in sites]
    # Attention and its gradient in each layer; in one layer, the products that make them.
    numbers = 2 * sum(attention) + 3 * max(attention)
    # Kept for the backward pass: inputs of norms, of linear layers and of the MLP's activation;
    # queries, keys and values.
    numbers += sum(_tokens(site) * _width(site) * _BACKWARD_VECTORS for site in sites)
    return numbers * size


def require_memory(needed: int, what: str, device: torch.device = CPU) -> None:
    """Raise a ModelError if `needed` bytes are not free in memory, or on a device.

    Parameters
    ----------
    what : str
        What needs the memory, for the error.
    """
    global _known_free
    read, free = _known_free
    if device.type != "cpu":
        free = free_on(device)
    elif needed > free * _SMALL or time.monotonic() > read + 1:
        free = free_bytes()
        _known_free = time.monotonic(), free
    if needed > free:
        where = "" if device.type == "cpu" else Message(" on {device}", device=device)
        raise ModelError(
            "{what} needs about {needed:.1f} GB of memory{where}, and {free:.1f} GB are free.",
            what=what,
            needed=needed / 1e9,
            where=where,
            free=free / 1e9,
        )


def free_bytes() -> int:
    """Return the bytes available without swapping, within the limits of the container."""
    free = psutil.virtual_memory().available
    for group in _cgroups():
        free = min(free, _cgroup_headroom(group, free))
    return max(0, int(free))


def _cgroups() -> Iterator[str]:
    """Yield the folders of the control groups of this process, innermost first."""
    try:
        lines = _read(_OWN_CGROUPS).decode().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controller, path = line.split(":", 2)
        if controller in ("", "memory"):  # version 2, version 1
            # In a container the path may be the host's; the own group is then at the top.
            names = [name for name in path.split("/") if name]
            for length in range(len(names), -1, -1):
                yield "/".join([f"{_CGROUPS}/{controller}", *names[:length]])


def _cgroup_headroom(group: str, enough: float) -> float:
    """Return the bytes that a control group may still allocate, or any number >= `enough`."""
    for limit, usage, caches in _CGROUP_FILES:
        with suppress(OSError, ValueError):  # no such file, or "max"
            free = int(_read(f"{group}/{limit}")) - int(_read(f"{group}/{usage}"))
            if free >= enough:
                return free  # page cache need not be counted
            lines = _read(f"{group}/memory.stat").decode().splitlines()
            stat = dict(line.split() for line in lines)
            return free + sum(int(stat.get(name, 0)) for name in caches)
    return math.inf


def _read(path: str | Path) -> bytes:
    """Read a system file; faster than pathlib, as this happens before each capture."""
    with open(path, "rb", buffering=0) as file:
        return file.read()


def _vectors_kept(site: Site) -> int:
    """Return how many vectors of width D are kept for each token, at most."""
    if site.layer.kind == "mixing":
        return 2  # the residual stream, before and after
    # Also the output of attention, and q, k, v in one tensor; rotated q and k are two more.
    return 6 if site.biased or not site.is_fused else 8


def _tokens(site: Site) -> int:
    if site.windows is not None:
        return site.windows.queries.size
    return site.layer.num_tokens


def _attention_size(site: Site) -> int:
    """Count the attention weights of one layer."""
    layer = site.layer
    if site.windows is not None:
        return layer.num_heads * site.windows.queries.size * site.windows.keys.shape[1]
    queries = 1 if layer.kind == "class" else _tokens(site)
    return layer.num_heads * queries * _tokens(site)


def _width(site: Site) -> int:
    """Return D: the rows of the block's output projection, or the size of its first norm."""
    for name in ("out_features", "out_channels"):
        if width := getattr(site.projection, name, None):
            return int(width)
    return next(site.block.parameters()).numel()
