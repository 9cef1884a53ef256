"""Sets of cells of a grid, of heads or patches, and their text in the address."""

import re
from collections.abc import Sequence

import numpy as np

_SIDES = (1, 2, 4)  # patches along a block that is hidden
_PIECE = re.compile(r"(\d{1,4})\.(\d{1,4})(?:-(\d{1,4})\.(\d{1,4}))?")


def read_cells(text: str, shape: tuple[int, int]) -> np.ndarray | None:
    """Return the cells as a bool ndarray of `shape`; None where the text does not fit it."""
    mask = np.zeros(shape, bool)
    for piece in text.split():
        match = _PIECE.fullmatch(piece)
        if match is None:
            return None
        top, left, *end = (int(number) for number in match.groups() if number is not None)
        bottom, right = end or (top, left)
        if not (1 <= top <= bottom <= shape[0] and 1 <= left <= right <= shape[1]):
            return None
        mask[top - 1 : bottom, left - 1 : right] = True
    return mask


def cells_text(mask: np.ndarray) -> str:
    """Return the text of the cells where `mask` (rows, columns) is true, in few rectangles."""
    left_over, pieces = mask.astype(bool), []
    for row, col in np.argwhere(mask):
        if not left_over[row, col]:
            continue
        right = _run(left_over[row, col:]) + col
        bottom = _run(np.atleast_1d(left_over[row:, col:right].all(axis=1))) + row
        left_over[row:bottom, col:right] = False
        first, last = f"{row + 1}.{col + 1}", f"{bottom}.{right}"
        pieces.append(first if first == last else f"{first}-{last}")
    return " ".join(pieces)


def toggle_cells(mask: np.ndarray, chosen: list[int]) -> np.ndarray:
    """Add the chosen cells (row-major numbers), or remove them where all are in the set."""
    changed = mask.copy()
    changed.flat[chosen] = not mask.flat[chosen].all()
    return changed


def block_sides(grid: tuple[int, int]) -> Sequence[int]:
    """Return the sides that a hidden block may have, in patches, the default last.

    No block is the whole grid, unless that is one patch.
    """
    return [side for side in _SIDES if side < max(grid)][-2:] or [1]


def _run(values: np.ndarray) -> int:
    """Return the number of leading true values."""
    return int(values.argmin()) if not values.all() else len(values)
