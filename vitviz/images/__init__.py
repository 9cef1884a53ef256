"""Uploaded bytes -> upright RGB picture, and where preprocessing crops it."""

from .decoding import LONG_SIDE, MAX_BYTES, MAX_SCANS, MAX_SIDE, ImageError
from .opening import open_image
from .placement import Box, Placement, fit, place

__all__ = [
    "LONG_SIDE",
    "MAX_BYTES",
    "MAX_SCANS",
    "MAX_SIDE",
    "Box",
    "ImageError",
    "Placement",
    "fit",
    "open_image",
    "place",
]
