"""The token map: a component in the browser that answers hover, keys and clicks by itself.

A host mounts it twice: one mount carries a stack of maps, which the browser keeps until it changes;
the other carries what to show of it, a few hundred bytes. message.d.ts states both messages.
"""

from pathlib import Path

from .frames import (
    MAP_KINDS,
    Frame,
    MapKind,
    MapShape,
    PlacedGrid,
    capture_frames,
    capture_view,
    count_map_bytes,
    default_query,
    encode_frame,
    encode_window_frame,
    frame_shape,
    layer_names,
    map_colours,
    map_message,
    map_titles,
    matching_patch,
    pack_stack,
    photo_url,
)

__all__ = [
    "MAP_KINDS",
    "Frame",
    "MapKind",
    "MapShape",
    "PlacedGrid",
    "capture_frames",
    "capture_view",
    "count_map_bytes",
    "default_query",
    "encode_frame",
    "encode_window_frame",
    "frame_shape",
    "layer_names",
    "map_colours",
    "map_message",
    "map_titles",
    "matching_patch",
    "pack_stack",
    "photo_url",
    "script",
    "style",
]

_HERE = Path(__file__).parent


def script() -> str:
    """Return the component's source: one ES module, whose default export mounts it."""
    return (_HERE / "view.built.js").read_text(encoding="utf-8")


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")
