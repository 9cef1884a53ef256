"""Arrays as the component of Anatomy gets them."""

from collections.abc import Mapping
from typing import Any

import numpy as np

_HALF = float(np.finfo(np.float16).max)


def packed(
    stack_id: str,
    exact: Mapping[str, np.ndarray],
    half: Mapping[str, np.ndarray],
    *,
    only: Mapping[str, int] | None = None,
) -> dict[str, Any]:
    """Numbers as the browser gets them.

    Parameters
    ----------
    exact, half : mappings of names to ndarrays
        Those that are sent as float32, and those that half precision is enough for.
    only : mapping of names to int, optional
        The one row of an array that is sent, where it is not all of them.

    Returns
    -------
    dict
        `stack`, what the numbers are; `exact`, a flat ndarray of float32; and `half`, a flat
        ndarray of uint16, the bits of float16.
    """
    only = only or {}
    listed: list[dict[str, Any]] = []
    flat: list[list[np.ndarray]] = []
    for precise, arrays in ((True, exact), (False, half)):
        numbers: list[np.ndarray] = [np.zeros(0, np.float32)]
        first = 0
        for name, array in arrays.items():
            row = only.get(name)
            sent = array if row is None else array[row]
            listed.append(
                {
                    "name": name,
                    "shape": list(array.shape),
                    "exact": precise,
                    "first": first,
                    "only": row,
                }
            )
            numbers.append(sent.ravel())
            first += sent.size
        flat.append(numbers)
    single, short = (np.concatenate(numbers, dtype=np.float32) for numbers in flat)
    bits = np.clip(short, -_HALF, _HALF).astype(np.float16).view(np.uint16)
    return {"stack": {"id": stack_id, "tensors": listed}, "exact": single, "half": bits}
