"""What the sentences of all lessons need: places, shares and classes in words."""

import numpy as np

from ..activations import Activations
from ..language import told, tr
from ..text.lessons import Step


def percent(share: float) -> str:
    value = 100 * float(share)
    return f"{value:.0f} %" if value >= 10 or value == 0 else f"{value:.2g} %"


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


def patch_name(acts: Activations, number: int) -> str:
    row, col = divmod(number, acts.grid[1])
    return tr("row {row}, column {column}", row=row + 1, column=col + 1)


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
