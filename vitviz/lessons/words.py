"""What the sentences of all lessons need: places, shares and classes in words."""

import numpy as np

from ..activations import Activations
from ..language import patch_name, told, tr
from ..text.lessons import Step


def label(acts: Activations, index: int) -> str:
    """The first name of a class."""
    return told(acts.output_names[index]).split(",")[0]


def halved(shares: np.ndarray) -> int:
    """How few entries hold half of the sum of all."""
    ordered = np.sort(shares.ravel())[::-1].cumsum()
    return int(np.searchsorted(ordered, ordered[-1] / 2)) + 1


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """The correlation of two maps of one grid; NaN where one is the same everywhere."""
    if not np.ptp(one) or not np.ptp(other):
        return float("nan")
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def reader(acts: Activations) -> str:
    """What the model's answer is read from, in words."""
    return "CLS" if "cls" in acts.read_tokens else tr("the mean of the patches")


def patch_at(acts: Activations, number: int) -> str:
    return patch_name(*divmod(number, acts.grid[1]))


def place(acts: Activations, step: Step) -> tuple[int, int | None, int]:
    """Layer, head and query of a step; the last, the mean and the middle where there are none."""
    (rows, cols), said = acts.grid, step.settings
    layer = min(int(said.get("layer", acts.depth)), acts.depth) - 1
    head = int(said["head"]) - 1 if "head" in said else None
    if head is not None and head >= acts.layers[layer].num_heads:
        head = 0
    row, _, col = said.get("query", "").partition(".")
    patch = (rows // 2, cols // 2)
    if col and int(row) <= rows and int(col) <= cols:
        patch = (int(row) - 1, int(col) - 1)
    return layer, head, acts.num_prefix_tokens + patch[0] * cols + patch[1]
