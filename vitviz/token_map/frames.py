"""The encoding of maps for the browser: numbers as bytes, windows, and where the tokens lie."""

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

if TYPE_CHECKING:
    from PIL import Image

Kind = Literal["share", "cosine"]
#: (rows, columns) of a grid of patches, and its (left, top, right, bottom) in the picture.
Placed = tuple[tuple[int, int], tuple[float, ...]]
PHOTO_SIDE = 744  # pixels: twice the size on screen


@dataclass(frozen=True, eq=False)
class Frame:
    """The maps of one layer as the browser gets them; frames are counted from 0.

    Attributes
    ----------
    codes : ndarray of uint8, shape (heads, queries, patches that a query meets)
    peaks : ndarray of float32, shape (heads, queries)
        Each query's largest value over the patches.
    prefix : ndarray of float32, shape (heads, queries, prefix tokens)
    window_of : ndarray of int32, shape (queries,)
    places : ndarray of int32, shape (windows, patches that a query meets)
        Numbers of the patches of each window; no windows where every query meets every patch.
    """

    index: int
    codes: np.ndarray
    peaks: np.ndarray
    prefix: np.ndarray
    window_of: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    places: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), np.int32))

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.peaks.nbytes + self.prefix.nbytes + self.places.nbytes


@dataclass(frozen=True)
class Shape:
    """Where the tokens of a frame lie.

    Attributes
    ----------
    grid, key_grid : (rows, columns)
    crop, key_crop : (left, top, right, bottom) of the grids, in pixels of the picture
    prefix : names of the tokens before the patches
    home : the query while none is chosen; -1 is the mean of the patches
    heads : int
    prefix_only : whether no patch looks, but the first prefix token alone
    equal_share : what each key has where all are looked at alike; None where maps are no shares
    within : whether that is in a window
    """

    grid: tuple[int, int]
    key_grid: tuple[int, int]
    crop: tuple[float, ...]
    key_crop: tuple[float, ...]
    prefix: tuple[str, ...]
    home: int
    heads: int
    prefix_only: bool = False
    equal_share: float | None = None
    within: bool = False

    def sent(self, name: str) -> dict[str, Any]:
        """As the browser gets it."""
        return {
            "name": name,
            "rows": self.grid[0],
            "cols": self.grid[1],
            "keyRows": self.key_grid[0],
            "keyCols": self.key_grid[1],
            "crop": list(self.crop),
            "keyCrop": list(self.key_crop),
            "prefix": list(self.prefix),
            "home": self.home,
            "heads": self.heads,
            "prefixOnly": self.prefix_only,
            "equalShare": self.equal_share,
            "within": self.within,
        }


def moved(patch: tuple[int, int], at: Placed, to: Placed) -> tuple[int, int]:
    """The patch of another grid of the same picture in which the middle of a patch lies.

    Where that is on a border between two, it is the one below or to the right; beyond the grid,
    the nearest. The unit of both boxes is the same, whichever it is. (`moved` in maps.js.)
    """

    def along(axis: int) -> int:
        (count, first, last), (others, start, end) = (
            (grid[axis], box[1 - axis], box[3 - axis]) for grid, box in (at, to)
        )
        middle = first + (patch[axis] + 0.5) / count * (last - first)
        found = math.floor((middle - start) / (end - start) * others + 1e-9)
        return min(others - 1, max(0, found))

    return along(0), along(1)


def encode(index: int, values: np.ndarray, num_prefix_tokens: int, kind: Kind) -> Frame:
    """One byte a patch: an error of at most 0.4 % of the query's largest value.

    Parameters
    ----------
    values : ndarray of shape (heads, queries, keys)
        Shares, or cosines from -1 to 1; prefix tokens first.
    """
    values = np.asarray(values, np.float32)
    prefix, patches = np.split(values, [num_prefix_tokens], axis=2)
    peaks = patches.max(axis=2)
    if kind == "cosine":
        codes = np.rint(patches * 127 + 127)
        peaks = np.ones_like(peaks)
    else:
        codes = np.rint(255 * np.sqrt(patches / np.maximum(peaks, 1e-30)[..., None]))
    return Frame(index, codes.astype(np.uint8), peaks, np.ascontiguousarray(prefix))


def encode_windows(
    index: int, attention: np.ndarray, queries: np.ndarray, keys: np.ndarray
) -> Frame:
    """The same of attention within windows.

    Parameters
    ----------
    attention : ndarray of shape (windows, heads, queries, keys)
    queries, keys : ndarray of shape (windows, queries) and (windows, keys)
        Numbers of the patches, -1 for padding.
    """
    there = queries >= 0  # padding looks too, but nobody asks it
    whole = encode(index, attention.swapaxes(0, 1)[:, there], 0, "share")
    order = np.argsort(queries[there])
    return Frame(
        index,
        whole.codes[:, order],
        whole.peaks[:, order],
        whole.prefix[:, order],
        window_of=np.nonzero(there)[0][order].astype(np.int32),
        places=keys.astype(np.int32),
    )


def packed(
    stack_id: str, frames: Sequence[Frame], shapes: Sequence[Shape], kind: Kind, picture: str
) -> dict[str, Any]:
    """A stack as the browser gets it: what it is, and four flat arrays of all frames' numbers.

    Parameters
    ----------
    shapes : sequence of Shape
        Of every frame that there is, those that are not sent too.
    picture : str
        Its address, as `photo` makes it.
    """
    described: list[dict[str, Any]] = []
    code = row = share = place = 0
    for frame in frames:
        heads, queries, keys = frame.codes.shape
        shape = shapes[frame.index]
        described.append(
            {
                "index": frame.index,
                "heads": heads,
                "queries": queries,
                "keys": keys,
                "rows": shape.grid[0],
                "cols": shape.grid[1],
                "keyRows": shape.key_grid[0],
                "keyCols": shape.key_grid[1],
                "prefixTokens": frame.prefix.shape[2],
                "windows": len(frame.places),
                "firstCode": code,
                "firstRow": row,
                "firstPrefix": share,
                "firstPlace": place,
            }
        )
        code += frame.codes.size
        row += frame.peaks.size
        share += frame.prefix.size
        place += frame.window_of.size + frame.places.size
    return {
        "stack": {"id": stack_id, "kind": kind, "frames": described, "picture": picture},
        "codes": np.concatenate([frame.codes.ravel() for frame in frames]),
        "peaks": np.concatenate([frame.peaks.ravel() for frame in frames]),
        "prefix": np.concatenate([frame.prefix.ravel() for frame in frames]),
        "places": np.concatenate(
            [one.ravel() for frame in frames for one in (frame.window_of, frame.places)]
        ),
    }


def photo(image: "Image.Image") -> str:
    """The picture as a data address, no larger than the screen needs."""
    small = image.copy()
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=92)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
