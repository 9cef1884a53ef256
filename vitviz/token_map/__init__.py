"""The token map: a component in the browser that answers hover, keys and clicks by itself.

A host mounts it twice: one mount carries a stack of maps, which the browser keeps as long as it is
the same; the other carries what to show of it, a few hundred bytes. What both hold stands in
message.d.ts.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from .captures import (
    KINDS,
    bytes_of,
    default_query,
    frames_of,
    layer_names,
    shape_of,
    titles,
    view_message,
)
from .frames import Frame, Kind, Placed, Shape, encode, encode_windows, moved, packed, photo

__all__ = [
    "KINDS",
    "PICTURES",
    "SAVING",
    "SHARED",
    "STRINGS",
    "Frame",
    "Kind",
    "Placed",
    "Shape",
    "bytes_of",
    "default_query",
    "encode",
    "encode_windows",
    "frames_of",
    "joined",
    "layer_names",
    "moved",
    "packed",
    "photo",
    "script",
    "shape_of",
    "style",
    "titles",
    "view_message",
]

_HERE = Path(__file__).parent
#: The module of the strings, which imports nothing; and that which saves a drawing as a picture.
STRINGS, SAVING = _HERE / "strings.js", _HERE / "saving.js"
# Each imports from those before it; the page Anatomy takes the first ones too.
SHARED = [
    STRINGS,
    *(_HERE / f"{name}.js" for name in ("maps", "parts", "commits", "component", "keys")),
]
#: What makes pictures that are saved: the page Anatomy takes it too.
PICTURES = [SAVING, _HERE / "placed.js"]
_MODULES = [*SHARED, *PICTURES, *(_HERE / f"{name}.js" for name in ("distance", "drawing", "view"))]


def script() -> str:
    """The component's source: one ES module, whose default export mounts it."""
    return joined(_MODULES)


def joined(modules: Iterable[Path]) -> str:
    """ES modules joined into one, each after those that it imports from.

    A host takes one source, and a page opened from disk cannot import its neighbours.
    """
    source = "".join(module.read_text(encoding="utf-8") for module in modules)
    source = re.sub(r"^import [^;]+;\n", "", source, flags=re.MULTILINE)
    return re.sub(r"^export (?!default)", "", source, flags=re.MULTILINE)


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")
