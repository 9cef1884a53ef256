"""The token map: a component in the browser that answers hover, keys and clicks by itself.

A host mounts it twice: one mount carries a stack of maps, which the browser keeps as long as it is
the same; the other carries what to show of it, a few hundred bytes. What both hold stands in
message.d.ts.
"""

import re
from pathlib import Path

from .frames import Frame, Kind, Placed, Shape, encode, encode_windows, moved, packed, photo

__all__ = [
    "Frame",
    "Kind",
    "Placed",
    "Shape",
    "encode",
    "encode_windows",
    "moved",
    "packed",
    "photo",
    "script",
    "style",
]

_MODULES = ("maps.js", "parts.js", "distance.js", "view.js")  # each imports from those before it


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def script() -> str:
    """The component's modules joined into one ES module, whose default export mounts it.

    A host takes one source, and a page opened from disk cannot import its neighbours.
    """
    joined = re.sub(r"^import [^;]+;\n", "", "".join(map(_read, _MODULES)), flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", joined, flags=re.MULTILINE)


def style() -> str:
    return _read("style.css")
