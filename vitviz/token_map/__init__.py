"""The token map: a component in the browser that answers hover, keys and clicks by itself.

A host mounts it twice: one mount carries a stack of maps, which the browser keeps as long as it is
the same; the other carries what to show of it, a few hundred bytes. The schema of both stands in
maps.js.
"""

from pathlib import Path

from .frames import Frame, Kind, Shape, encode, encode_windows, moved, packed, photo

__all__ = [
    "Frame",
    "Kind",
    "Shape",
    "encode",
    "encode_windows",
    "moved",
    "packed",
    "photo",
    "script",
    "style",
]

_HERE = Path(__file__).parent


def script() -> str:
    """The component's source: one ES module, whose default export mounts it."""
    return (_HERE / "view.js").read_text(encoding="utf-8")


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")
