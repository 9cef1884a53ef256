"""Resize and crop a picture for a model, and find the crop in the picture's own pixels."""

import base64
import io
import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from PIL import Image

from ..query import Crop

#: (left, top, right, bottom) in pixels of a picture.

#: Names in configurations of Pillow's resampling filters, in the order of their numbers.
INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")

SHOWN_SIDE = 744  # pixels of the longer side of a picture on screen, twice its usual size there

#: Pixels above which only the kept part of a resized picture is computed.
_GIANT = 2**22


@dataclass(frozen=True)
class Placement:
    """Geometry of preprocessing: a picture is resized as a whole, then a box is cut out.

    Attributes
    ----------
    size : (width, height) of the upright picture
    resized : (width, height) to which it is resized
    box : (left, top, right, bottom) cut out, in pixels of the resized picture
        Outside the resized picture there is padding.
    cut : (left, top, right, bottom), optional
        Part of the upright picture that is cut out before it is resized; black outside the picture.
    """

    size: tuple[int, int]
    resized: tuple[int, int]
    box: tuple[int, int, int, int]
    cut: tuple[int, int, int, int] | None = None

    @property
    def crop(self) -> Crop:
        """`box` in pixels of the upright picture."""
        x0, y0, x1, y1 = self.cut or (0, 0, *self.size)
        x, y = (x1 - x0) / self.resized[0], (y1 - y0) / self.resized[1]
        left, top, right, bottom = self.box
        return (x0 + left * x, y0 + top * y, x0 + right * x, y0 + bottom * y)


def place(
    size: tuple[int, int],
    *,
    input_size: tuple[int, int],
    crop_pct: float | tuple[float, float] = 1.0,
    crop_mode: str = "center",
    crop_start: str = "round",
) -> Placement:
    """Compute the geometry of an evaluation transform of timm or transformers.

    Parameters
    ----------
    size : (width, height) of the picture in pixels
    input_size : (height, width) of the model's input in pixels
    crop_pct : float or (float, float)
        Share of the resized picture that the input keeps, of the rows and of the columns.
    crop_mode : "center", "squash", "border", "shortest" or "cut"
        "center": fill the input and cut off the rest. "squash": ignore the aspect ratio. "border":
        fit the whole picture and pad. "shortest": resize the shorter side to the input's shorter
        side / `crop_pct`. "cut": cut out this share of the shorter side, then squash.
    crop_start : "round", "trunc" or "floor"
        Rounding of half a pixel before a centred crop: to even as in torchvision, or towards 0 or
        down as in the two backends of transformers.

    Raises
    ------
    ValueError
        When a number is not positive or a name is unknown.
    """
    shares = crop_pct if isinstance(crop_pct, tuple) else (crop_pct, crop_pct)
    if min(*size, *input_size) < 1 or not all(share > 0 for share in shares):
        raise ValueError(
            f"Expected positive sizes and crop_pct, got {size}, {input_size} and {crop_pct}."
        )
    if crop_start not in ("round", "trunc", "floor"):
        raise ValueError(f"crop_start must be round, trunc or floor, got {crop_start!r}.")
    width, height = size
    out_height, out_width = input_size
    if crop_mode == "cut":
        part_height, part_width = (max(1, int(share * min(size))) for share in shares)
        left = _centre_start(width, part_width, crop_start)
        top = _centre_start(height, part_height, crop_start)
        cut = (left, top, left + part_width, top + part_height)
        return Placement(size, (out_width, out_height), (0, 0, out_width, out_height), cut)
    scale_height, scale_width = (
        max(1, math.floor(x / share)) for x, share in zip(input_size, shares, strict=True)
    )
    if crop_mode == "shortest":
        scale_height = scale_width = min(scale_height, scale_width)
    if crop_mode == "squash":
        scaled_size = (scale_width, scale_height)
    elif crop_mode in ("center", "shortest") and scale_height == scale_width:
        long = int(scale_width * max(size) / min(size))  # floors, as torchvision's Resize
        scaled_size = (scale_width, long) if width <= height else (long, scale_width)
    elif crop_mode in ("center", "border"):  # timm's ResizeKeepRatio: rounds
        ratios = (height / scale_height, width / scale_width)
        ratio = max(ratios) if crop_mode == "border" else min(ratios)
        scaled_size = (max(1, round(width / ratio)), max(1, round(height / ratio)))
    else:
        raise ValueError(
            f"crop_mode must be center, squash, border, shortest or cut, got {crop_mode!r}."
        )
    left = _centre_start(scaled_size[0], out_width, crop_start)
    top = _centre_start(scaled_size[1], out_height, crop_start)
    return Placement((width, height), scaled_size, (left, top, left + out_width, top + out_height))


def _centre_start(have: int, want: int, how: str) -> int:
    """Return where a centred window of `want` pixels starts; negative with padding."""
    if how == "floor":
        return (have - want) // 2
    return round((have - want) / 2) if how == "round" and have >= want else int((have - want) / 2)


def reduce_picture(image: Image.Image) -> Image.Image:
    """Copy a picture in RGB, reduced to at most 1487 pixels along the longer side.

    Blocks of n x n pixels are replaced by their mean; a smaller picture keeps its size.
    """
    return image.convert("RGB").reduce(max(1, max(image.size) // SHOWN_SIDE))


def data_url(image: Image.Image, kind: Literal["JPEG", "PNG", "WEBP"], **options: Any) -> str:
    """Return a picture as a data URL; `options` are those of `PIL.Image.save`."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return f"data:image/{kind.lower()};base64,{base64.b64encode(file.getvalue()).decode()}"


def fit(
    image: Image.Image,
    placement: Placement,
    *,
    interpolation: str = "bicubic",
    fill: tuple[int, ...] = (0, 0, 0),
) -> Image.Image:
    """Resize and crop a picture as `placement` says, padded with `fill`.

    A picture of 3 x 2000 pixels would get very large; only the kept part of it is computed.

    Raises
    ------
    ValueError
        When the placement is for another picture size, or the interpolation is unknown.
    """
    if image.size != placement.size:
        raise ValueError(f"The placement is for {placement.size} pixels, got {image.size}.")
    if interpolation not in INTERPOLATIONS:
        raise ValueError(f"Unknown interpolation {interpolation!r}.")
    how = Image.Resampling[interpolation.upper()]
    if placement.cut is not None:
        image = image.crop(placement.cut)
    (width, height), (left, top, right, bottom) = placement.resized, placement.box
    visible = (max(left, 0), max(top, 0), min(right, width), min(bottom, height))
    if width * height < _GIANT:
        part = image.resize((width, height), how).crop(visible)
    else:
        x, y = image.width / width, image.height / height
        end = (min(visible[2] * x, image.width), min(visible[3] * y, image.height))
        size = (visible[2] - visible[0], visible[3] - visible[1])
        # Pillow rounds between its two passes, and runs them in the order that takes less work. The
        # whole picture, which is enlarged, would be resized along its rows first.
        rows = image.resize(
            (size[0], image.height), how, box=(visible[0] * x, 0, end[0], image.height)
        )
        part = rows.resize(size, how, box=(0, visible[1] * y, size[0], end[1]))
    if visible == placement.box:
        return part
    canvas = Image.new(image.mode, (right - left, bottom - top), fill)
    canvas.paste(part, (visible[0] - left, visible[1] - top))
    return canvas


def patch_mask(patches: np.ndarray, *, size: tuple[int, int], crop: Crop) -> Image.Image:
    """Draw a mask of patches in the pixels of the picture.

    Parameters
    ----------
    patches : ndarray of bool, shape (rows, columns)
    size : (width, height) of the upright picture in pixels
    crop : (left, top, right, bottom) of the grid in these pixels, as of a capture

    Returns
    -------
    PIL.Image in mode "L"
        255 where the middle of the pixel lies in a selected patch, else 0.
    """
    (rows, cols), (width, height), (left, top, right, bottom) = patches.shape, size, crop
    down = np.floor((np.arange(height) + 0.5 - top) / (bottom - top) * rows).astype(int)
    over = np.floor((np.arange(width) + 0.5 - left) / (right - left) * cols).astype(int)
    within = ((down >= 0) & (down < rows))[:, None] & ((over >= 0) & (over < cols))
    is_selected = patches[np.ix_(down.clip(0, rows - 1), over.clip(0, cols - 1))]
    return Image.fromarray(np.where(within & is_selected, np.uint8(255), np.uint8(0)))
