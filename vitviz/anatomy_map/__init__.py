"""The component of the page Anatomy: a picture's way through a model, answered in the browser.

A host mounts it three times: two mounts carry numbers, which the browser keeps as long as they are
the same; the third carries what to show of them.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..token_map import SHARED, joined

_HERE = Path(__file__).parent
_MODULES = (
    "tensors.js",
    "drawing.js",
    "scenes.js",
    "steps.js",
    "boxes.js",
    "items.js",
    "charts.js",
    "page.js",
    "walk.js",
    "view.js",
)
_HALF = float(np.finfo(np.float16).max)


def script() -> str:
    """The component's source: one ES module, whose default export mounts it."""
    return joined([*SHARED, *(_HERE / name for name in _MODULES)])


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")


def packed(
    stack_id: str,
    exact: Mapping[str, np.ndarray],
    half: Mapping[str, np.ndarray],
    *,
    only: int | None = None,
) -> dict[str, Any]:
    """Numbers as the browser gets them.

    Parameters
    ----------
    exact, half : mappings of names to ndarrays
        Those that are sent as float32, and those that half precision is enough for.
    only : int, optional
        The one row that is sent of each of `half`; all where it is left out.

    Returns
    -------
    dict
        `stack`, what the numbers are; `exact`, a flat ndarray of float32; and `half`, a flat
        ndarray of uint16, the bits of float16.
    """
    listed: list[dict[str, Any]] = []
    flat: list[list[np.ndarray]] = []
    for precise, arrays in ((True, exact), (False, half)):
        numbers: list[np.ndarray] = [np.zeros(0, np.float32)]
        first = 0
        for name, array in arrays.items():
            rows = array if precise or only is None else array[only]
            listed.append(
                {
                    "name": name,
                    "shape": list(array.shape),
                    "exact": precise,
                    "first": first,
                    "only": None if precise else only,
                }
            )
            numbers.append(rows.ravel())
            first += rows.size
        flat.append(numbers)
    single, short = (np.concatenate(numbers, dtype=np.float32) for numbers in flat)
    bits = np.clip(short, -_HALF, _HALF).astype(np.float16).view(np.uint16)
    return {"stack": {"id": stack_id, "tensors": listed}, "exact": single, "half": bits}
