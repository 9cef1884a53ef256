"""Reads a QR code from a picture of it by the rules of ISO/IEC 18004, to check one that was drawn.

Small ones without a damaged module: versions 1 to 3 with one block of bytes.
"""

import numpy as np
from PIL import Image

#: Data codewords by version, for the error correction levels L, M, Q as format bits write them.
_CODEWORDS = {(1, 1): 19, (1, 0): 16, (1, 3): 13, (2, 1): 34, (2, 0): 28, (2, 3): 22}
_CODEWORDS |= {(3, 1): 55, (3, 0): 44}
_FORMAT_MASK = 0b101010000010010


def modules(image: Image.Image) -> np.ndarray:
    """The dark modules (side, side), found by the finder pattern at the top left."""
    dark = np.asarray(image.convert("L")) < 128
    rows, cols = (np.flatnonzero(dark.any(axis=axis)) for axis in (1, 0))
    code = dark[rows[0] : rows[-1] + 1, cols[0] : cols[-1] + 1]
    size = int(np.argmin(code[0])) / 7  # pixels of a module: a finder is seven wide
    side = round(len(code) / size)
    middles = ((np.arange(side) + 0.5) * len(code) / side).astype(int)
    return code[np.ix_(middles, middles)]


def read(image: Image.Image) -> str:
    """The text of the code."""
    code = modules(image)
    side = len(code)
    version = (side - 17) // 4
    bits = [(8, col) for col in (0, 1, 2, 3, 4, 5, 7, 8)]
    bits += [(row, 8) for row in (7, 5, 4, 3, 2, 1, 0)]
    form = _number([code[at] for at in bits]) ^ _FORMAT_MASK
    level, mask = form >> 13, (form >> 10) & 7
    function = _function(side, version)
    path = [at for at in _way(side) if not function[at]]
    stream = [bool(code[at]) ^ _masked(mask, *at) for at in path]
    count = 8 * _CODEWORDS[version, level]
    assert len(stream) >= count
    assert _number(stream[:4]) == 0b0100, "the mode is not bytes"
    length = _number(stream[4:12])
    data = [_number(stream[12 + 8 * k : 20 + 8 * k]) for k in range(length)]
    return bytes(data).decode("ascii")


def _number(bits: list[bool]) -> int:
    return int("".join("01"[int(bit)] for bit in bits), 2)


def _function(side: int, version: int) -> np.ndarray:
    """Finders with the format beside them, timing, and the one alignment pattern."""
    found = np.zeros((side, side), bool)
    found[:9, :9] = found[:9, -8:] = found[-8:, :9] = True
    found[6] = found[:, 6] = True
    if version > 1:
        found[side - 9 : side - 4, side - 9 : side - 4] = True
    return found


def _way(side: int) -> list[tuple[int, int]]:
    """Modules in the order of the bits: two columns up, two down, from the right."""
    way, up = [], True
    for right in (col for col in range(side - 1, 0, -2)):
        col = right if right > 6 else right - 1  # the timing column is left out
        rows = range(side - 1, -1, -1) if up else range(side)
        way += [(row, at) for row in rows for at in (col, col - 1)]
        up = not up
    return way


def _masked(mask: int, i: int, j: int) -> bool:
    return (
        (i + j) % 2 == 0,
        i % 2 == 0,
        j % 3 == 0,
        (i + j) % 3 == 0,
        (i // 2 + j // 3) % 2 == 0,
        (i * j) % 2 + (i * j) % 3 == 0,
        ((i * j) % 2 + (i * j) % 3) % 2 == 0,
        ((i + j) % 2 + (i * j) % 3) % 2 == 0,
    )[mask]
