"""The component of the page Anatomy: a picture's way through a model, answered in the browser.

A host mounts it three times: two mounts carry numbers, which the browser keeps as long as they are
the same; the third carries what to show of them.
"""

from pathlib import Path

from ..token_map import PICTURES, SHARED, joined
from .message import view_message
from .numbers import Anatomy, anatomy_of, sent_layer, sent_steps, token_name
from .packing import packed

__all__ = [
    "Anatomy",
    "anatomy_of",
    "packed",
    "script",
    "sent_layer",
    "sent_steps",
    "style",
    "token_name",
    "view_message",
]

_HERE = Path(__file__).parent
_MODULES = (
    "tensors.js",
    "drawing.js",
    "scenes.js",
    "steps.js",
    "boxes.js",
    "items.js",
    "pictures.js",
    "charts.js",
    "page.js",
    "walk.js",
    "view.js",
)


def script() -> str:
    """The component's source: one ES module, whose default export mounts it."""
    return joined([*SHARED, *PICTURES, *(_HERE / name for name in _MODULES)])


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")
