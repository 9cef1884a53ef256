"""The token map: the component in the browser that answers hover, keys and clicks by itself.

It is mounted twice: one mount carries a stack of maps, which the browser keeps as long as it is
the same; the other carries what to show of it, a few hundred bytes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import numpy as np
import pyarrow as pa
import streamlit as st

from vitviz.app import settings
from vitviz.app.shared import results
from vitviz.app.shared.view import default_query, token_text
from vitviz.plots.template import colour_table

if TYPE_CHECKING:
    from PIL import Image

    from vitviz import Activations
    from vitviz.app.shared.view import View
    from vitviz.families import Windows

Kind = Literal["share", "cosine"]
MAX_BYTES = 16_000_000  # of all frames' maps; where they take more, send one frame at a time
PHOTO_SIDE = 744  # pixels: twice the size on screen
_HERE = Path(__file__).parent
_component = st.components.v2.component(
    "vitviz_token_map",
    css=(_HERE / "token_map.css").read_text(encoding="utf-8"),
    js=(_HERE / "token_map.js").read_text(encoding="utf-8"),
)


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

    def key_of(self, patch: tuple[int, int]) -> tuple[int, int]:
        """The patch of the key grid in which the middle of a patch of the query grid lies."""
        row, col = (
            int((start + (at + 0.5) * (end - start) / count - first) / (last - first) * keys)
            for at, start, end, count, first, last, keys in (
                (patch[0], *self.crop[1::2], self.grid[0], *self.key_crop[1::2], self.key_grid[0]),
                (patch[1], *self.crop[::2], self.grid[1], *self.key_crop[::2], self.key_grid[1]),
            )
        )
        return min(row, self.key_grid[0] - 1), min(col, self.key_grid[1] - 1)

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


def shape_of(acts: "Activations", layer: int, *, patches_only: bool = False) -> Shape:
    """Where the tokens of a layer lie; without the prefix tokens where only patches have maps."""
    described = acts.layers[layer]
    prefix = () if patches_only else tuple(token.upper() for token in described.prefix)
    home = default_query(acts, described)
    if patches_only:
        home = _number(described.query_grid, middle(described.query_grid))
    return Shape(
        grid=described.query_grid,
        key_grid=described.key_grid,
        crop=acts.crop_of(layer),
        key_crop=acts.crop_of(layer, keys=True),
        prefix=prefix,
        home=-1 if home is None else home,
        heads=described.num_heads,
        prefix_only=described.kind == "class",
        equal_share=1 / acts.layout(layer).keys.shape[1],
        within=described.kind in ("window", "grid"),
    )


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


def encode_windows(index: int, attention: np.ndarray, windows: "Windows") -> Frame:
    """The same of attention within windows, of shape (windows, heads, queries, keys)."""
    there = windows.queries >= 0  # padding looks too, but nobody asks it
    queries = windows.queries[there]
    whole = encode(index, attention.swapaxes(0, 1)[:, there], 0, "share")
    order = np.argsort(queries)
    return Frame(
        index,
        whole.codes[:, order],
        whole.peaks[:, order],
        whole.prefix[:, order],
        window_of=np.nonzero(there)[0][order].astype(np.int32),
        places=windows.keys.astype(np.int32),
    )


def token_map(
    view: "View",
    frames: Sequence[Frame],
    *,
    name: str,
    kind: Kind,
    strip: Literal["heads", "frames"],
    titles: dict[str, str],
    frame_setting: tuple[str, Sequence[object]],
    frame_names: Sequence[str],
    shapes: Sequence[Shape] | None = None,
    distance: dict[str, Any] | None = None,
    version: str = "",
    patches_only: bool = False,
) -> None:
    """Draw the component and take what is committed in it.

    Parameters
    ----------
    frames : sequence of Frame
        Those that the browser may move between without asking.
    name : str
        Of the page's component; one a page.
    strip : "heads" or "frames"
        What the small maps are.
    titles : dict
        Headings: "row", "column" and "strip"; "slider" where the frames have a slider.
    frame_setting : (name, values)
        The shared setting that a frame is, and its value for each frame.
    frame_names : sequence of str
    shapes : sequence of Shape, optional
        Where the tokens of each frame lie; left out where all are as in the first layer.
    distance : dict, optional
        `values` by layer and head, `equal` of each layer and `side`, in pixels, for the dots that
        lead to a head.
    version : str
        What the numbers depend on beside model, picture and frames.
    patches_only : bool
        The maps have no prefix tokens; while one of them is the query, the middle stands for it.
    """
    acts, picture = view.acts, view.picture
    key, values = f"token_map_{name}", list(frame_setting[1])
    if shapes is None:
        one = shape_of(acts, 0, patches_only=patches_only)
        heads = frames[0].codes.shape[0]
        shapes = [
            replace(one, heads=heads, equal_share=one.equal_share if kind == "share" else None)
        ]
        shapes *= len(values)
    query = -1 if view.query is None else view.query
    if patches_only:
        query = _number(shapes[0].grid, view.query_patch) if view.query_patch else shapes[0].home
    stack_id = "-".join(
        (name, picture.digest[:16], *map(str, view.key[:2]), version, str(frames[0].index))
    )

    def commit() -> None:
        committed = st.session_state[key]["commit"]
        _take(committed, frame_setting[0], values, kind)
        layer = acts.layers[int(committed["frame"]) if frame_setting[0] == "layer" else view.layer]
        asked, st.session_state.query_grid = int(committed["query"]), layer.query_grid
        if not patches_only:
            settings.change("query", token_text(layer, asked))
        elif committed["pinned"]:
            settings.change("query", token_text(layer, len(view.prefix) + asked))
        elif view.query_patch is not None:  # let go: back to the token that is no patch
            settings.change("query", token_text(layer, default_query(acts, layer)))

    photo = results.captures().get((picture.digest, "photo"), lambda: encoded(picture.image), len)
    _component(
        key=f"{key}_stack",
        height=1,
        data=_stack(stack_id, frames, shapes, kind, photo),
    )
    _component(
        key=key,
        on_commit_change=commit,
        data={
            "stackId": stack_id,
            "session": st.session_state.setdefault("map_session", uuid4().hex),
            "version": st.session_state.setdefault("map_version", 0),
            "state": {
                "frame": values.index(st.session_state[frame_setting[0]]),
                "head": -1 if view.head is None else view.head,
                "query": query,
                "pinned": view.query_patch is not None,
                "direction": view.style.direction if kind == "share" else "row",
                "view": view.style.view,
                "scale": view.style.scale,
                "leaveOut": view.style.leave_out,
                "smooth": view.style.smooth,
            },
            "kind": kind,
            "strip": strip,
            "frames": [shape.sent(name) for shape, name in zip(shapes, frame_names, strict=True)],
            "columns": "column" in titles,
            "titles": titles,
            "stripTitle": titles["strip"],
            "slider": titles.get("slider"),
            "picture": {
                "width": picture.size[0],
                "height": picture.size[1],
                "crop": list(acts.crop),
            },
            "distance": distance,
            "lut": colour_table(kind == "cosine"),
        },
    )


def _stack(
    stack_id: str,
    frames: Sequence[Frame],
    shapes: Sequence[Shape],
    kind: Kind,
    photo: str,
) -> dict[str, Any]:
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
        "stack": {"id": stack_id, "kind": kind, "frames": described, "picture": photo},
        "codes": _column([frame.codes for frame in frames]),
        "peaks": _column([frame.peaks for frame in frames]),
        "prefix": _column([frame.prefix for frame in frames]),
        "places": _column([one for frame in frames for one in (frame.window_of, frame.places)]),
    }


def _column(arrays: Sequence[np.ndarray]) -> pa.Table:
    return pa.table({"values": np.concatenate([array.ravel() for array in arrays])})


def encoded(image: "Image.Image") -> str:
    """The picture as a data address, no larger than the screen needs."""
    small = image.copy()
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
    file = io.BytesIO()
    small.save(file, "JPEG", quality=92)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"


def middle(grid: tuple[int, int]) -> tuple[int, int]:
    """Row and column of the patch in the middle."""
    return grid[0] // 2, grid[1] // 2


def _number(grid: tuple[int, int], patch: tuple[int, int]) -> int:
    return patch[0] * grid[1] + patch[1]


def _take(committed: dict[str, Any], frame: str, values: Sequence[object], kind: Kind) -> None:
    """Write what was committed into the shared settings; what does not fit falls back there."""
    st.session_state.map_version = committed["version"]
    settings.change(frame, values[int(committed["frame"])])
    settings.change("head", "mean" if committed["head"] < 0 else committed["head"] + 1)
    if kind == "share":  # a cosine has no direction: the maps of attention keep theirs
        settings.change("read", committed["direction"])
    settings.change("view", committed["view"])
    settings.change("scale", committed["scale"])
    settings.change("leave_out", "on" if committed["leaveOut"] else "off")
    settings.change("smooth", "on" if committed["smooth"] else "off")
