"""`Preprocessing`: how a picture becomes the input of a model."""

from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from .images import Placement, fit, place


@dataclass(frozen=True, kw_only=True)
class Preprocessing:
    """How a picture becomes the model's input.

    Attributes
    ----------
    input_size : (height, width) in pixels
    mean, std : of each colour channel, for values in 0..1
    interpolation : "bicubic", "bilinear", "lanczos" or "nearest"
    crop_pct : share of the shorter side that a centre crop keeps
    crop_mode : "center", "squash" or "border"
    detail : float
        Share of the input's resolution that a picture keeps: 0.5 where a model was trained on
        pictures enlarged twofold. A picture is fitted to that size, and then enlarged as it was in
        training, so that one of the training's size is not resampled before.
    """

    input_size: tuple[int, int]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    interpolation: str = "bicubic"
    crop_pct: float = 1.0
    crop_mode: str = "center"
    detail: float = 1.0

    def place(self, image: Image.Image) -> Placement:
        """Where the model's input lies in the picture; `box` is in pixels before enlarging."""
        if not isinstance(image, Image.Image):
            raise TypeError(
                f"Expected a picture of PIL, got {type(image).__name__}: open_image makes one of "
                "a file's path or bytes."
            )
        return place(
            image.size,
            input_size=self._fitted,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
        )

    def __call__(self, image: Image.Image) -> Tensor:
        red, green, blue = (round(255 * value) for value in self.mean)
        where = self.place(image)
        picture = fit(
            image.convert("RGB"),
            where,
            interpolation=self.interpolation,
            fill=(red, green, blue),
        )
        x = torch.from_numpy(np.array(picture)).permute(2, 0, 1).float() / 255  # (3, H, W)
        if self._fitted != self.input_size:
            x = F.interpolate(x[None], size=self.input_size, mode="bicubic", antialias=True)[0]
            x = x.clamp(0, 1)
        mean, std = (torch.tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (x - mean) / std

    @property
    def _fitted(self) -> tuple[int, int]:
        """Height and width to which a picture is fitted before it is enlarged."""
        height, width = self.input_size
        return max(1, round(self.detail * height)), max(1, round(self.detail * width))
