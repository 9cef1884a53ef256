"""The resize and crop of preprocessing: applied to a picture, and in its own pixels."""

import math
from dataclasses import dataclass

import numpy as np
from PIL import Image

Box = tuple[float, float, float, float]

SHOWN_SIDE = 744  # pixels of the longer side of a picture on screen, twice its usual size there

#: A resized picture with more pixels is not made as a whole.
_GIANT = 2**22


@dataclass(frozen=True)
class Placement:
    """The geometry of preprocessing: a picture is resized as a whole, then a box is cut out.

    Attributes
    ----------
    size : (width, height) of the upright picture
    resized : (width, height) to which it is resized
    box : (left, top, right, bottom) cut out, in pixels of the resized picture
        Beyond the resized picture lies padding.
    """

    size: tuple[int, int]
    resized: tuple[int, int]
    box: tuple[int, int, int, int]

    @property
    def crop(self) -> Box:
        """`box` in pixels of the upright picture."""
        x, y = self.size[0] / self.resized[0], self.size[1] / self.resized[1]
        left, top, right, bottom = self.box
        return (left * x, top * y, right * x, bottom * y)


def place(
    size: tuple[int, int],
    *,
    input_size: tuple[int, int],
    crop_pct: float = 1.0,
    crop_mode: str = "center",
) -> Placement:
    """The resize and crop of timm's evaluation transform, rounding included.

    Parameters
    ----------
    size : (width, height) of the picture in pixels
    input_size : (height, width) of the model's input in pixels
    crop_pct : float
        Share of the resized picture that the input keeps.
    crop_mode : "center", "squash" or "border"
        Fill the input and cut off the rest; ignore the aspect ratio; fit all of it and pad.

    Raises
    ------
    ValueError
        When a number is not positive or the mode is not one of the three.
    """
    if min(*size, *input_size) < 1 or not crop_pct > 0:
        raise ValueError(
            f"Expected positive sizes and crop_pct, got {size}, {input_size} and {crop_pct}."
        )
    width, height = size
    out_height, out_width = input_size
    scale_height, scale_width = (max(1, math.floor(x / crop_pct)) for x in input_size)
    if crop_mode == "squash":
        resized = (scale_width, scale_height)
    elif crop_mode == "center" and scale_height == scale_width:  # torchvision's Resize: floors
        long = int(scale_width * max(size) / min(size))
        resized = (scale_width, long) if width <= height else (long, scale_width)
    elif crop_mode in ("center", "border"):  # timm's ResizeKeepRatio: rounds
        ratios = (height / scale_height, width / scale_width)
        ratio = max(ratios) if crop_mode == "border" else min(ratios)
        resized = (max(1, round(width / ratio)), max(1, round(height / ratio)))
    else:
        raise ValueError(f"crop_mode must be center, squash or border, got {crop_mode!r}.")
    left, top = _centred(resized[0], out_width), _centred(resized[1], out_height)
    return Placement((width, height), resized, (left, top, left + out_width, top + out_height))


def _centred(have: int, want: int) -> int:
    """Where a centred window of `want` pixels starts, rounded as torchvision does."""
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def reduced(image: Image.Image) -> Image.Image:
    """A copy in RGB, of at most 1487 pixels along the longer side.

    A larger picture has n x n pixels replaced by their mean; a smaller one keeps its size.
    """
    return image.convert("RGB").reduce(max(1, max(image.size) // SHOWN_SIDE))


def fit(
    image: Image.Image,
    placement: Placement,
    *,
    interpolation: str = "bicubic",
    fill: tuple[int, int, int] = (0, 0, 0),
) -> Image.Image:
    """The model's input picture: what `placement` keeps of `image`, padded with `fill`.

    A picture of 3 x 2000 pixels would become very large when resized; then only the part that is
    kept is computed.

    Raises
    ------
    ValueError
        When the placement is that of a picture of another size, or the interpolation unknown.
    """
    if image.size != placement.size:
        raise ValueError(f"The placement is for {placement.size} pixels, got {image.size}.")
    if interpolation not in ("bicubic", "bilinear", "lanczos", "nearest"):
        raise ValueError(f"Unknown interpolation {interpolation!r}.")
    how = Image.Resampling[interpolation.upper()]
    (width, height), (left, top, right, bottom) = placement.resized, placement.box
    seen = (max(left, 0), max(top, 0), min(right, width), min(bottom, height))
    if width * height < _GIANT:
        part = image.resize((width, height), how).crop(seen)
    else:
        x, y = image.width / width, image.height / height
        end = (min(seen[2] * x, image.width), min(seen[3] * y, image.height))
        size = (seen[2] - seen[0], seen[3] - seen[1])
        part = image.resize(size, how, box=(seen[0] * x, seen[1] * y, *end))
    if seen == placement.box:
        return part
    canvas = Image.new("RGB", (right - left, bottom - top), fill)
    canvas.paste(part, (seen[0] - left, seen[1] - top))
    return canvas


def patch_mask(patches: np.ndarray, *, size: tuple[int, int], crop: Box) -> Image.Image:
    """A choice of patches in the pixels of the picture.

    Parameters
    ----------
    patches : ndarray of bool, shape (rows, columns)
    size : (width, height) of the upright picture in pixels
    crop : (left, top, right, bottom) of the grid in these pixels, as of a capture

    Returns
    -------
    PIL.Image in mode "L"
        255 where the middle of the pixel lies in a chosen patch, else 0, as beyond the grid.
    """
    (rows, cols), (width, height), (left, top, right, bottom) = patches.shape, size, crop
    down = np.floor((np.arange(height) + 0.5 - top) / (bottom - top) * rows).astype(int)
    over = np.floor((np.arange(width) + 0.5 - left) / (right - left) * cols).astype(int)
    within = ((down >= 0) & (down < rows))[:, None] & ((over >= 0) & (over < cols))
    chosen = patches[np.ix_(down.clip(0, rows - 1), over.clip(0, cols - 1))]
    return Image.fromarray(np.where(within & chosen, np.uint8(255), np.uint8(0)))
