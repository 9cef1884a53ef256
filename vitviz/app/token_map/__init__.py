"""The token map: the component in the browser that answers hover, keys and clicks by itself.

It is mounted twice: one mount carries a stack of maps, which the browser keeps as long as it is
the same; the other carries what to show of it, a few hundred bytes.
"""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
import streamlit as st

from vitviz.app import settings
from vitviz.plots.template import colour_table

if TYPE_CHECKING:
    from PIL import Image

    from vitviz.app.state import View

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
    codes : ndarray of uint8, shape (heads, queries, patches)
    peaks : ndarray of float32, shape (heads, queries)
        Each query's largest value over the patches.
    prefix : ndarray of float32, shape (heads, queries, prefix tokens)
    """

    index: int
    codes: np.ndarray
    peaks: np.ndarray
    prefix: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.codes.nbytes + self.peaks.nbytes + self.prefix.nbytes


def encode(index: int, values: np.ndarray, num_prefix_tokens: int, kind: Kind) -> Frame:
    """One byte a patch: an error of at most 0.4 % of the query's largest value.

    Parameters
    ----------
    values : ndarray of shape (heads, queries, keys)
        Shares, or cosines from -1 to 1.
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
    distance: dict[str, Any] | None = None,
    version: str = "",
    patches_only: bool = False,
) -> None:
    """Draw the component and take what is committed in it.

    Parameters
    ----------
    frames : sequence of Frame
        Those that the browser may move between without asking; all of one grid.
    name : str
        Of the page's component; one a page.
    strip : "heads" or "frames"
        What the small maps are.
    titles : dict
        Headings: "row", "column" and "strip"; "slider" where the frames have a slider.
    frame_setting : (name, values)
        The shared setting that a frame is, and its value for each frame.
    frame_names : sequence of str
    distance : dict, optional
        `values` by layer and head, `equal` and `side`, in pixels, for the dots that lead to a head.
    version : str
        What the numbers depend on beside model, picture and frames.
    patches_only : bool
        The maps have no prefix tokens; while one of them is the query, the middle stands for it.
    """
    acts, picture = view.acts, view.picture
    key, values = f"token_map_{name}", list(frame_setting[1])
    prefix = [] if patches_only else [token.upper() for token in view.prefix]
    query = -1 if view.query is None else view.query
    home = 0 if "cls" in view.prefix else -1
    if patches_only:
        home = _number(acts.grid, middle(acts.grid))
        query = _number(acts.grid, view.query_patch or middle(acts.grid))
    stack_id = "-".join(
        (name, picture.digest[:16], *map(str, view.key[:2]), version, str(frames[0].index))
    )

    def commit() -> None:
        committed = st.session_state[key]["commit"]
        _take(committed, frame_setting[0], values, kind)
        if not patches_only:
            settings.change("query", view.query_text(int(committed["query"])))
        elif committed["pinned"]:
            settings.change("query", view.query_text(len(view.prefix) + int(committed["query"])))
        elif view.query_patch is not None:  # let go: back to the token that is no patch
            settings.change("query", view.query_text(0 if "cls" in view.prefix else None))

    _component(
        key=f"{key}_stack",
        height=1,
        data=_stack(stack_id, frames, acts.grid, prefix, kind, picture.image),
    )
    _component(
        key=key,
        on_commit_change=commit,
        data={
            "stackId": stack_id,
            "version": st.session_state.setdefault("map_version", 0),
            "state": {
                "frame": values.index(st.session_state[frame_setting[0]]),
                "head": -1 if view.head is None else view.head,
                "query": query,
                "pinned": view.query_patch is not None,
                "direction": view.looks.direction if kind == "share" else "row",
                "view": view.looks.view,
                "scale": view.looks.scale,
                "leaveOut": view.looks.leave_out,
                "smooth": view.looks.smooth,
            },
            "kind": kind,
            "strip": strip,
            "rows": acts.grid[0],
            "cols": acts.grid[1],
            "prefix": prefix,
            "home": home,  # the query that Esc goes back to
            "heads": int(frames[0].codes.shape[0]),
            "frames": list(frame_names),
            "columns": "column" in titles,
            "titles": titles,
            "stripTitle": titles["strip"],
            "slider": titles.get("slider"),
            "equalShare": 1 / frames[0].codes.shape[1] if kind == "share" else None,
            "picture": {
                "width": picture.image.width,
                "height": picture.image.height,
                "crop": list(acts.crop),
            },
            "distance": distance,
            "lut": colour_table(kind == "cosine"),
        },
    )


def _stack(
    stack_id: str,
    frames: Sequence[Frame],
    grid: tuple[int, int],
    prefix: Sequence[str],
    kind: Kind,
    image: "Image.Image",
) -> dict[str, Any]:
    described: list[dict[str, Any]] = []
    code = row = share = 0
    for frame in frames:
        heads, queries, _ = frame.codes.shape
        described.append(
            {
                "index": frame.index,
                "heads": heads,
                "queries": queries,
                "rows": grid[0],
                "cols": grid[1],
                "keyRows": grid[0],
                "keyCols": grid[1],
                "prefix": list(prefix),
                "firstCode": code,
                "firstRow": row,
                "firstPrefix": share,
            }
        )
        code += frame.codes.size
        row += frame.peaks.size
        share += frame.prefix.size
    return {
        "stack": {"id": stack_id, "kind": kind, "frames": described, "picture": _photo(image)},
        "codes": _column([frame.codes for frame in frames]),
        "peaks": _column([frame.peaks for frame in frames]),
        "prefix": _column([frame.prefix for frame in frames]),
    }


def _column(arrays: Sequence[np.ndarray]) -> pa.Table:
    return pa.table({"values": np.concatenate([array.ravel() for array in arrays])})


def _photo(image: "Image.Image") -> str:
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
