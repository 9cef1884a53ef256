"""The component of the page Anatomy: a picture's way through a model, explored in the browser.

A host mounts it three times: two mounts carry numbers, which the browser keeps until they change;
the third carries what to show of them.
"""

from pathlib import Path

from .message import anatomy_message
from .numbers import (
    MAX_LAYER_BYTES,
    Anatomy,
    compute_anatomy,
    layer_message,
    pack_numbers,
    steps_message,
    token_name,
)

__all__ = [
    "MAX_LAYER_BYTES",
    "Anatomy",
    "anatomy_message",
    "compute_anatomy",
    "layer_message",
    "pack_numbers",
    "script",
    "steps_message",
    "style",
    "token_name",
]

_HERE = Path(__file__).parent


def script() -> str:
    """Return the component's source: one ES module, whose default export mounts it."""
    return (_HERE / "view.built.js").read_text(encoding="utf-8")


def style() -> str:
    return (_HERE / "style.css").read_text(encoding="utf-8")
