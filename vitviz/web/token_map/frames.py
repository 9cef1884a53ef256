"""The messages to the token map in the browser: encoded maps, their shapes, and what to show.

message.d.ts states their form. Of a capture nothing is imported but its type.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from ...common.images import data_url
from ...common.language import mark, strings, tr, translate
from ...plots.template import KEY, QUERY, colour_table

if TYPE_CHECKING:
    from PIL import Image

    from ...activations import Activations
    from ...model.families import Layer

MapKind = Literal["share", "cosine"]
#: A grid of patches (rows, columns), and its (left, top, right, bottom) in the picture.
PlacedGrid = tuple[tuple[int, int], tuple[float, ...]]
PHOTO_SIDE = 744  # pixels: twice the size on screen
#: How the patches of each kind of layer attend.
MAP_KINDS = {
    "global": mark("every patch attends to every patch"),
    "class": mark("only CLS attends"),
    "window": mark("patches attend within windows"),
    "grid": mark("patches attend within spread-out windows"),
    "pooled": mark("patches attend to pooled keys"),
}


@dataclass(frozen=True, eq=False)
class Frame:
    """The encoded maps of one layer; frames count from 0.

    Attributes
    ----------
    codes : ndarray of uint8, shape (heads, queries, patches that a query meets)
        The values, as `encode_frame` rounds them.
    peaks : ndarray of float32, shape (heads, queries)
        Each query's largest value over the patches.
    prefix : ndarray of float32, shape (heads, queries, prefix tokens)
    window_of : ndarray of int32, shape (queries,)
    places : ndarray of int32, shape (windows, patches that a query meets)
        Patch numbers of each window; no windows if every query meets every patch.
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
class MapShape:
    """The places of a frame's tokens in the picture.

    Attributes
    ----------
    grid, key_grid : (rows, columns)
    crop, key_crop : (left, top, right, bottom) of the grids, in pixels of the picture
    prefix : names of the tokens before the patches
    home : the query while none is chosen; -1 is the mean of the patches
    heads : int
    prefix_only : whether the first prefix token is the only query
    equal_share : share of each key if attention is uniform; None if maps are no shares
    within : whether `equal_share` counts the keys of one window only
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

    def to_message(self, name: str) -> dict[str, Any]:
        """Return the `Shape` of message.d.ts for a frame of this name."""
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


def matching_patch(patch: tuple[int, int], at: PlacedGrid, to: PlacedGrid) -> tuple[int, int]:
    """Return the patch of another grid of the same picture that holds the middle of a patch.

    On a border, the patch below or to the right; outside of the grid, the nearest patch. Both
    grids must be placed in the same unit. (`moved` in maps.js does the same.)
    """

    def along(axis: int) -> int:
        (count, first, last), (others, start, end) = (
            (grid[axis], box[1 - axis], box[3 - axis]) for grid, box in (at, to)
        )
        middle = first + (patch[axis] + 0.5) / count * (last - first)
        index = math.floor((middle - start) / (end - start) * others + 1e-9)
        return min(others - 1, max(0, index))

    return along(0), along(1)


def encode_frame(index: int, values: np.ndarray, num_prefix_tokens: int, kind: MapKind) -> Frame:
    """Encode maps with one byte per patch; the error is at most 0.4 % of the query's largest value.

    Parameters
    ----------
    values : ndarray of shape (heads, queries, keys)
        Shares, or cosines from -1 to 1; prefix tokens first.
    """
    values = np.asarray(values, np.float32)
    prefix, patches = np.split(values, [num_prefix_tokens], axis=2)
    peaks = patches.max(axis=2)
    codes = np.empty(patches.shape, np.uint8)
    for head, shares in enumerate(patches):  # one by one: floats take four times the memory
        if kind == "cosine":
            codes[head] = np.rint(shares * 127 + 127)
        else:
            codes[head] = np.rint(255 * np.sqrt(shares / np.maximum(peaks[head], 1e-30)[:, None]))
    if kind == "cosine":
        peaks = np.ones_like(peaks)
    return Frame(index, codes, peaks, np.ascontiguousarray(prefix))


def encode_window_frame(
    index: int, attention: np.ndarray, queries: np.ndarray, keys: np.ndarray
) -> Frame:
    """Encode maps of attention within windows, as `encode_frame`.

    Parameters
    ----------
    attention : ndarray of shape (windows, heads, queries, keys)
    queries, keys : ndarray of shape (windows, queries) and (windows, keys)
        Patch numbers, -1 for padding.
    """
    is_patch = queries >= 0  # padding attends too, but cannot be chosen
    whole = encode_frame(index, attention.swapaxes(0, 1)[:, is_patch], 0, "share")
    order = np.argsort(queries[is_patch])
    return Frame(
        index,
        whole.codes[:, order],
        whole.peaks[:, order],
        whole.prefix[:, order],
        window_of=np.nonzero(is_patch)[0][order].astype(np.int32),
        places=keys.astype(np.int32),
    )


def pack_stack(
    stack_id: str, frames: Sequence[Frame], shapes: Sequence[MapShape], kind: MapKind, picture: str
) -> dict[str, Any]:
    """Return the `StackMessage` of message.d.ts: the numbers of some frames, as four flat arrays.

    Parameters
    ----------
    shapes : sequence of Shape
        Of all frames, also those that are not sent.
    picture : str
        Data address of the picture, see `photo_url`.
    """
    infos: list[dict[str, Any]] = []
    code = row = share = place = 0
    for frame in frames:
        heads, queries, keys = frame.codes.shape
        shape = shapes[frame.index]
        infos.append(
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
        "stack": {"id": stack_id, "kind": kind, "frames": infos, "picture": picture},
        "codes": np.concatenate([frame.codes.ravel() for frame in frames]),
        "peaks": np.concatenate([frame.peaks.ravel() for frame in frames]),
        "prefix": np.concatenate([frame.prefix.ravel() for frame in frames]),
        "places": np.concatenate(
            [one.ravel() for frame in frames for one in (frame.window_of, frame.places)]
        ),
    }


def photo_url(image: "Image.Image") -> str:
    """Return the picture as a data address, no larger than the screen needs."""
    small = image.copy()
    small.thumbnail((PHOTO_SIDE, PHOTO_SIDE))
    return data_url(small, "JPEG", quality=92)


def map_titles() -> dict[str, str]:
    """Return the headings of attention maps."""
    return {
        "row": tr("What it attends to"),
        "column": tr("Who attends to it"),
        "strip": tr("All heads of"),
    }


def default_query(acts: "Activations", layer: "Layer") -> int | None:
    """Return the query while none is chosen: 0 for CLS, None for the mean of the patches."""
    return 0 if "cls" in layer.prefix and "patches" not in acts.read_tokens else None


def frame_shape(acts: "Activations", layer: int) -> MapShape:
    """Return the shape of a layer's attention maps."""
    info = acts.layers[layer]
    home = default_query(acts, info)
    return MapShape(
        grid=info.query_grid,
        key_grid=info.key_grid,
        crop=acts.crop_of(layer),
        key_crop=acts.crop_of(layer, keys=True),
        prefix=tuple(token.upper() for token in info.prefix),
        home=-1 if home is None else home,
        heads=info.num_heads,
        prefix_only=info.kind == "class",
        equal_share=1 / acts.layout(layer).keys.shape[1],
        within=info.kind in ("window", "grid"),
    )


def layer_names(acts: "Activations") -> list[str]:
    """Return the names of the layers, with the kind of attention if the layers differ in it."""
    alike = all(layer.kind == "global" for layer in acts.layers)
    return [
        tr("layer {layer}", layer=number) + ("" if alike else f" ({tr(MAP_KINDS[layer.kind])})")
        for number, layer in enumerate(acts.layers, start=1)
    ]


def count_map_bytes(acts: "Activations", layers: Iterable[int] | None = None) -> int:
    """Count the bytes that the encoded maps of some layers, by default all, take."""
    total = 0
    for layer in range(acts.depth) if layers is None else layers:
        windows = acts.layout(layer)
        total += acts.layers[layer].num_heads * windows.queries.size * windows.keys.shape[1]
    return total


def capture_frames(
    acts: "Activations", layers: Iterable[int], *, mean: bool = False
) -> list[Frame]:
    """Encode the attention of some layers of a capture, of all heads or of their mean."""

    def frame(number: int) -> Frame:
        layer = acts.layers[number]
        if layer.kind in ("global", "class"):
            attention = acts.attention(number)
            values = attention.mean(axis=0, keepdims=True) if mean else attention
            return encode_frame(number, values, len(layer.prefix), "share")
        windows, attention = acts.layout(number), acts.attention_by_window(number)
        values = attention.mean(axis=1, keepdims=True) if mean else attention
        return encode_window_frame(number, values, windows.queries, windows.keys)

    return [frame(number) for number in layers]


def map_colours(*, signed: bool) -> dict[str, str]:
    """Return the colours of the components: a table of values, the query's and the key's."""
    return {"lut": colour_table(signed), "queryColour": QUERY, "keyColour": KEY}


def map_message(stack_id: str, kind: MapKind, **message: Any) -> dict[str, Any]:
    """Return the `ViewMessage` of message.d.ts; parts that the host leaves out have defaults."""
    return {
        "stackId": stack_id,
        "session": "",
        "version": 0,
        "kind": kind,
        "strip": "heads",
        "alone": True,
        "link": "",
        "matches": None,
        "tools": None,
        "guess": None,
        "distance": None,
        "strings": strings("browser"),
        **map_colours(signed=kind == "cosine"),
        **message,
    }


def capture_view(
    acts: "Activations", stack_id: str, *, layer: int, head: int | None, query: int | None
) -> dict[str, Any]:
    """Return the view message of all layers of a capture, for a host without settings."""
    shapes = [frame_shape(acts, number) for number in range(acts.depth)]
    token = shapes[layer].home if query is None else query
    width, height = acts.picture_size
    return map_message(
        stack_id,
        "share",
        state={
            "frame": layer,
            "head": -1 if head is None else head,
            "query": token,
            "pinned": token >= len(acts.layers[layer].prefix),
            "direction": "row",
            "view": "heat",
            "scale": "map",
            "leaveOut": False,
            "smooth": False,
        },
        frames=[
            shape.to_message(name) for shape, name in zip(shapes, layer_names(acts), strict=True)
        ],
        titles={**map_titles(), "slider": tr("Layer")},
        alone=False,
        picture={"width": width, "height": height, "crop": list(acts.crop)},
        provenance=translate(acts.provenance),
    )
