"""A box: what one picture is at one place of a model; and the proof that it belongs there."""

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn

#: The largest difference between a chain of boxes and the capture, relative to its largest number.
TOLERANCE = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """What the picture is at one place.

    Attributes
    ----------
    name : str
        As `vitviz.text.anatomy` knows it.
    shape : tuple of int
    values : read-only ndarray of float32, or None where it is too large to be kept
    parts : mapping of str to ndarray
        What it was made with: weights, or statistics of each token.
    layers : range
        The layers that it stands for, where it is one or several of them.
    """

    name: str
    shape: tuple[int, ...]
    values: np.ndarray | None = None
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    layers: range = range(0)


def normed(name: str, norm: nn.Module, before: Tensor, after: Tensor) -> Box:
    return box(name, after, statistics(norm, before))


def statistics(norm: nn.Module | None, z: Tensor) -> dict[str, Tensor]:
    """Of a LayerNorm: each token's mean and standard deviation, and its gamma and beta."""
    if not isinstance(norm, nn.LayerNorm):
        return {}
    deviation = (z.var(dim=-1, correction=0) + norm.eps).sqrt()
    found = {"mean": z.mean(dim=-1), "deviation": deviation}
    named = {"gamma": norm.weight, "beta": norm.bias}
    return found | {part: value for part, value in named.items() if value is not None}


def box(
    name: str,
    values: Tensor | np.ndarray,
    parts: Mapping[str, Tensor | np.ndarray] | None = None,
    layers: range = range(0),
) -> Box:
    array = numbers(values)
    made = {part: numbers(value) for part, value in (parts or {}).items()}
    return Box(name=name, shape=array.shape, values=array, parts=made, layers=layers)


def numbers(values: Tensor | np.ndarray) -> np.ndarray:
    array = (
        values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    )
    array = np.ascontiguousarray(array, np.float32).view()
    array.flags.writeable = False
    return array


def agree(made: np.ndarray | None, captured: np.ndarray) -> bool:
    if made is None or made.shape != captured.shape:
        return False
    largest = max(float(np.abs(captured).max()), 1e-12)
    return float(np.abs(made - captured).max()) <= TOLERANCE * largest


def tensor(values: np.ndarray | None, like: Tensor) -> Tensor:
    """The numbers of a box or a capture, to compute with."""
    assert values is not None
    return torch.tensor(values, dtype=like.dtype, device=like.device)
