"""Keys that a patch may read in the first layer that exchanges information, at 224 px.

Which pairs are allowed does not depend on weights, so no model is built to know them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np


@dataclass(frozen=True)
class FirstLayer:
    """The geometry of a layer.

    Attributes
    ----------
    kind : str
        As of `vitviz.model.families.Layer`.
    queries, keys : int
        Patches along a side of the input.
    window : int
        Keys along a side of what one patch may attend to.
    """

    kind: Literal["global", "window", "pooled", "mixing"]
    queries: int
    keys: int
    window: int

    def allowed_keys(self, patch: tuple[int, int]) -> np.ndarray:
        """Return the keys that the patch (row, column) may attend to: bool (keys, keys)."""
        at = (place * self.keys // self.queries for place in patch)
        row, col = (place - place % self.window for place in at)
        mask = np.zeros((self.keys, self.keys), bool)
        mask[row : row + self.window, col : col + self.window] = True
        return mask


_VIT = FirstLayer("global", 14, 14, 14)
_WINDOWS = FirstLayer("window", 56, 56, 7)
FIRST_LAYERS: Mapping[str, FirstLayer] = {
    "ViT": _VIT,
    "DeiT": _VIT,
    "Hybrid": FirstLayer("global", 7, 7, 7),
    "Swin": _WINDOWS,
    "PVT": FirstLayer("pooled", 56, 7, 7),
    "CoAtNet": _VIT,
    "MaxViT": _WINDOWS,
    "CaiT": _VIT,
    "MLP-Mixer": FirstLayer("mixing", 14, 14, 14),
}
