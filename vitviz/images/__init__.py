"""Uploaded bytes -> upright RGB picture, and where preprocessing crops it."""

from .decoding import LONG_SIDE, MAX_BYTES, MAX_SCANS, MAX_SIDE, ImageError
from .opening import open_image
from .placement import SHOWN_SIDE, Box, Placement, fit, patch_mask, place, reduced

__all__ = [
    "LONG_SIDE",
    "MAX_BYTES",
    "MAX_SCANS",
    "MAX_SIDE",
    "SHOWN_SIDE",
    "Box",
    "ImageError",
    "Placement",
    "fit",
    "open_image",
    "patch_mask",
    "place",
    "reduced",
]
