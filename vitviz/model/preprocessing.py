"""`Preprocessing`: turn a picture into the input of a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from ..common.images import Placement, fit, place, require_eight_bits
from .families import ModelError

_MODES = {1: "L", 3: "RGB"}  # Pillow's, by the number of channels
#: How a module can resize its input, by name: options of torch's `interpolate`.
RESIZINGS: Mapping[str, Mapping[str, Any]] = {
    "bilinear": dict(mode="bilinear"),
    "bicubic": dict(mode="bicubic"),
    "nearest": dict(mode="nearest"),
    "nearest-exact": dict(mode="nearest-exact"),
    "area": dict(mode="area"),
    "bilinear, antialiased": dict(mode="bilinear", antialias=True),
    "bicubic, antialiased": dict(mode="bicubic", antialias=True),
    "bilinear, corners aligned": dict(mode="bilinear", align_corners=True),
    "bicubic, corners aligned": dict(mode="bicubic", align_corners=True),
}


def per_channel(values: Sequence[float]) -> Tensor:
    """Return a number for each channel, to compute with inputs (channels, H, W) on the CPU."""
    # Whatever torch.set_default_dtype and set_default_device say.
    return torch.tensor(values, dtype=torch.float32, device="cpu")[:, None, None]


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes the model's input.

    Attributes
    ----------
    input_size : (height, width) in pixels
    mean, std : of each channel of the input, for values in 0..1
        One number each for a model of grey pictures. They describe any linear scale: values in
        0..255 have mean 0 and std 1 / 255.
    interpolation : "bicubic", "bilinear", "lanczos", "nearest", "box" or "hamming"
    crop_pct : float or (float, float)
        Share of the resized picture that a centre crop keeps, for both sides or (rows, columns).
    crop_mode : "center", "squash", "border", "shortest" or "cut"
        See `vitviz.common.images.place`.
    crop_start : "round", "trunc" or "floor"
        How the start of a centre crop is rounded: as by torchvision and timm ("round"), or as by
        transformers.
    channel_order : "RGB" or "BGR"
    detail : float
        Resolution of the picture as a share of the input's: 0.5 if a model was trained on pictures
        enlarged twofold. A picture is fitted to the smaller size, then enlarged as in training, so
        that a picture of the training's size is not resampled before.
    resizing : str, optional
        How the module resizes its input before it embeds patches, by a name in `RESIZINGS`;
        `watch` finds out. A picture is fitted to the module's own input, `detail` times as large,
        and then resized as the module does.
    """

    input_size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    interpolation: str = "bicubic"
    crop_pct: float | tuple[float, float] = 1.0
    crop_mode: str = "center"
    crop_start: str = "round"
    channel_order: str = "RGB"
    detail: float = 1.0
    resizing: str | None = None

    def place(self, image: Image.Image) -> Placement:
        """Return where the input lies in the picture; `box` is in pixels before enlarging."""
        if not isinstance(image, Image.Image):
            raise TypeError(
                f"Expected a PIL image, got {type(image).__name__}. Open a file's path or bytes by "
                "open_image."
            )
        require_eight_bits(image)
        return place(
            image.size,
            input_size=self.fitted_size,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
            crop_start=self.crop_start,
        )

    def __call__(self, image: Image.Image) -> Tensor:
        """Return the model's input for a picture, float32 of shape (channels, height, width).

        A model of grey pictures gets the luma of the picture.

        Raises
        ------
        ModelError
            When the model takes neither grey nor colour pictures.
        ImageError
            When the values of a grey picture are deeper than 8 bits.
        TypeError
            When `image` is not a PIL image.
        """
        where = self.place(image)
        mode = _MODES.get(len(self.mean))
        if mode is None:
            raise ModelError(
                "The model takes {channels} channels, and a picture has 1 or 3. Give a prepared "
                "input instead: a tensor of shape ({channels}, {height}, {width}).",
                channels=len(self.mean),
                height=self.input_size[0],
                width=self.input_size[1],
            )
        mean, std = map(per_channel, (self.mean, self.std))
        border = self.crop_mode == "border"  # which timm pads with the mean; else black
        fill = [round(255 * min(max(m, 0.0), 1.0)) if border else 0 for m in self.mean]
        picture = fit(
            image.convert(mode),
            where,
            interpolation=self.interpolation,
            fill=tuple(fill[::-1] if self.channel_order == "BGR" else fill),
        )
        levels = np.array(picture).reshape(picture.height, picture.width, len(self.mean))
        # in memory by channel, in which all that follows takes a third of the time
        x = torch.from_numpy(levels).permute(2, 0, 1).contiguous().float().div_(255)
        if self.resizing is None and self.fitted_size != self.input_size:
            x = F.interpolate(x[None], size=self.input_size, mode="bicubic", antialias=True)[0]
            x = x.clamp(0, 1)
        x = x.flip(0) if self.channel_order == "BGR" else x
        return self.resize(x.sub_(mean).div_(std))

    def resize(self, x: Tensor) -> Tensor:
        """Resize an input (channels, H, W) as the module does; one that it leaves stays."""
        if self.resizing is None or tuple(x.shape[1:]) != self.fitted_size:
            return x
        return F.interpolate(x[None], size=self.input_size, **RESIZINGS[self.resizing])[0]

    def picture_of(self, x: Tensor) -> Image.Image | None:
        """Undo mean and std of an input (channels, H, W); None unless it has 1 or 3 channels."""
        if len(self.mean) not in _MODES:
            return None
        mean, std = map(per_channel, (self.mean, self.std))
        levels = (255 * (x.detach().float().cpu() * std + mean)).round().clamp(0, 255).byte()
        levels = levels.flip(0) if self.channel_order == "BGR" else levels
        pixels = levels.expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
        return Image.fromarray(pixels)

    def red_first(self, channels: np.ndarray, axis: int) -> np.ndarray:
        """Return inputs or filters with their channels as red, green, blue, along an axis."""
        return np.flip(channels, axis) if self.channel_order == "BGR" else channels

    def with_channels(self, count: int) -> "Preprocessing":
        """Adapt mean and std to another number of channels, by averaging as timm does."""
        if count == len(self.mean):
            return self
        mean, std = (
            (sum(values) / len(values),) * count if values else values
            for values in (self.mean, self.std)
        )
        return replace(self, mean=mean, std=std, channel_order="RGB")

    @property
    def fitted_size(self) -> tuple[int, int]:
        """Height and width to which a picture is fitted before it is enlarged (see `detail`)."""
        height, width = self.input_size
        return max(1, round(self.detail * height)), max(1, round(self.detail * width))
