"""Build a table with a row for each head and measure."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

#: Unit of each measure of a head.
UNITS = {
    "distance": "px",
    "distance_paper": "px",
    "entropy": "bit",
    "prefix_mass": "share",
    "self_mass": "share",
    "outlier_mass": "share",
    "mutual_information": "share",
}


def head_table(
    num_heads: Sequence[int], measures: Mapping[str, Mapping[str, ArrayLike]]
) -> dict[str, list[Any]]:
    """Return the columns of a table with a row for each layer, head and measure, in that order.

    Parameters
    ----------
    num_heads : of each layer
    measures : by name, columns of arrays of shape (layers, heads); all have the same columns

    Returns
    -------
    dict of lists: `layer` and `head`, counted from 1, `measure`, `unit`, and those of the measures
    """
    names = list(next(iter(measures.values())))
    arrays = {
        measure: {name: np.asarray(values, np.float64) for name, values in columns.items()}
        for measure, columns in measures.items()
    }
    table: dict[str, list[Any]] = {
        name: [] for name in ("layer", "head", "measure", "unit", *names)
    }
    for layer, heads in enumerate(num_heads):
        for head in range(heads):
            for measure, columns in arrays.items():
                unit = UNITS.get(measure, "nat" if measure.startswith("nats") else "share")
                row = (layer + 1, head + 1, measure, unit)
                for name, value in zip(table, row, strict=False):
                    table[name].append(value)
                for name in names:
                    table[name].append(float(columns[name][layer, head]))
    return table


def as_csv(table: Mapping[str, Sequence[Any]]) -> str:
    """Return a table as CSV; numbers have eight digits, and NaN is empty."""
    lines = [",".join(table)]
    for row in zip(*table.values(), strict=True):
        lines.append(",".join(_cell(value) for value in row))
    return "\n".join(lines) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return "" if np.isnan(value) else f"{value:.8g}"
    return str(value)
