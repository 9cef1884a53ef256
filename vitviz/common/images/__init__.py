"""Turn uploaded bytes into an upright RGB picture; resize and crop it for a model."""

from .decoding import LONG_SIDE, MAX_FILE_BYTES, MAX_PICTURE_SIDE, MAX_SCANS, ImageError, is_photo
from .opening import open_image, read_file, require_eight_bits
from .placement import (
    INTERPOLATIONS,
    SHOWN_SIDE,
    Crop,
    Placement,
    data_url,
    fit,
    patch_mask,
    place,
    reduce_picture,
)

__all__ = [
    "INTERPOLATIONS",
    "LONG_SIDE",
    "MAX_FILE_BYTES",
    "MAX_PICTURE_SIDE",
    "MAX_SCANS",
    "SHOWN_SIDE",
    "Crop",
    "ImageError",
    "Placement",
    "data_url",
    "fit",
    "is_photo",
    "open_image",
    "patch_mask",
    "place",
    "read_file",
    "reduce_picture",
    "require_eight_bits",
]
