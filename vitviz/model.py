"""Model: a module with its layers, preprocessing and labels, and its hooks installed once.

The hooks do nothing until a recorder is set for the running context, so that any number of
threads can share one Model: each sees its own recorder, or none.
"""

import math
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from .families import Layer, ModelError, Site, family_of, read_tokens, token_weights
from .images import Placement, fit, place
from .memory import capture_bytes

__all__ = ["RECORDER", "Model", "ModelError", "Preprocessing", "Recorder"]


class Recorder(Protocol):
    """What watches one forward pass; each method may return a tensor to put in place of its own."""

    def embedded(self, patches: Tensor) -> Tensor | None: ...

    def entering(self, layer: int, tokens: Tensor) -> Tensor | None: ...

    def attended(self, layer: int, tokens: Tensor) -> None: ...

    def leaving(self, layer: int, tokens: Tensor) -> None: ...


#: The recorder of the forward pass under way in this context.
RECORDER: ContextVar[Recorder | None] = ContextVar("vitviz_recorder", default=None)


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
        return place(
            image.size,
            input_size=self._fitted,
            crop_pct=self.crop_pct,
            crop_mode=self.crop_mode,
        )

    def __call__(self, image: Image.Image) -> Tensor:
        red, green, blue = (round(255 * value) for value in self.mean)
        picture = fit(
            image.convert("RGB"),
            self.place(image),
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


class Model:
    """A Vision Transformer that can be watched.

    Parameters
    ----------
    module : nn.Module
        Of a family in `vitviz.families`; put in evaluation mode, its weights frozen.
    name : str
    preprocessing : Preprocessing
    trained : bool
        False for random weights.
    weights : str
        Where the weights come from, for the provenance line.
    labels : tuple of str, optional
        Names of the classes, where they are known.
    embeds : bool
        True where the head gives an embedding of the picture and no classes, as CLIP's does.
    temperature : float, optional
        What the logits must be divided by for probabilities that can be believed, where it was
        fitted on pictures that were held out of training.

    Raises
    ------
    ModelError
        When no family recognises the module.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        name: str,
        preprocessing: Preprocessing,
        trained: bool,
        weights: str,
        labels: tuple[str, ...] | None = None,
        embeds: bool = False,
        temperature: float | None = None,
    ) -> None:
        family = family_of(module)
        sites = family.sites(module, preprocessing.input_size)
        self.module = module.eval().requires_grad_(False)
        self.name = name
        self.family = family.name
        self.preprocess = preprocessing
        self.trained = trained
        self.weights = weights
        self._labels = labels
        self.embeds = embeds
        self.temperature = temperature
        self.tied = family.tied(module)
        self._embedding = family.embedding
        self.sites = sites
        self.capture_bytes = capture_bytes(sites)  # asked for before each capture
        self.layers: tuple[Layer, ...] = tuple(site.layer for site in sites)
        self._read_tokens: dict[object, tuple[str, ...]] = {}  # by the pooling
        embed = module.get_submodule(family.embedding)
        if _embedded in embed._forward_hooks.values():
            return  # a module that is watched already, or the copy of one
        embed.register_forward_hook(_embedded)
        for index, site in enumerate(sites):
            _watch(site, index)

    @property
    def num_classes(self) -> int:
        """How many classes the head answers with; 0 without a head, or where it gives none."""
        return 0 if self.embeds else int(getattr(self.module, "num_classes", 0))

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes; None where they are not known, as those of an exchanged head."""
        known = self._labels is not None and len(self._labels) == self.num_classes
        return self._labels if known else None

    @property
    def parameter_count(self) -> int:
        return sum(parameter.numel() for parameter in self.module.parameters())

    @property
    def read_tokens(self) -> tuple[str, ...]:
        """Names of the tokens from which the head reads the answer; "patches" are all of them.

        Those on which the output depends: a CLS token that is there need not be read.
        Empty where the layers differ in their tokens.
        """
        if any(
            site.layout != "tokens" or site.layer.stage or site.layer.kind != "global"
            for site in self.sites
        ):
            return ()
        pooling = getattr(self.module, "global_pool", None)  # timm's can be changed later
        if pooling not in self._read_tokens:
            self._read_tokens[pooling] = read_tokens(self.module, self.layers[0].prefix)
        return self._read_tokens[pooling]

    @property
    def final_norm(self) -> nn.Module | None:
        """The LayerNorm after the last block; models that pool patches may have it after that."""
        norm: nn.Module | None = getattr(self.module, "norm", None)
        if isinstance(norm, nn.Identity) and hasattr(self.module, "fc_norm"):
            return self.module.get_submodule("fc_norm")
        return norm

    @property
    def patch_kernel(self) -> np.ndarray | None:
        """The filters E of eq. 1: ndarray of shape (D, C, P, P); None behind a hybrid's CNN."""
        embed = self.module.get_submodule(self._embedding)
        kernel = getattr(embed, "proj", None)
        if hasattr(embed, "backbone") or not isinstance(kernel, nn.Conv2d):
            return None
        return _read_only(kernel.weight)

    def token_mixing(self, layer: int) -> np.ndarray:
        """The weights by which an MLP-Mixer mixes its tokens: ndarray of shape (units, rows, cols).

        Each map is what one unit takes from each patch. It is no attention: it is the same for
        every picture, may be negative, and does not sum to 1.

        Raises
        ------
        ModelError
            When the layer attends instead.

        References
        ----------
        Tolstikhin et al., "MLP-Mixer: An all-MLP Architecture for Vision" (NeurIPS 2021), Fig. 5.
        """
        if not 0 <= layer < len(self.sites):
            raise ValueError(f"Expected a layer in 0..{len(self.sites) - 1}, got {layer}.")
        site = self.sites[layer]
        weights = token_weights(site)
        if weights is None:
            raise ModelError(
                f"{site.layer.name} attends to tokens, and has no weights that mix them."
            )
        return _read_only(weights.reshape(-1, *site.layer.query_grid))

    @property
    def position_embedding(self) -> np.ndarray | None:
        """E_pos of eq. 1: ndarray of shape (N or prefix + N, D); None where there is none."""
        table = getattr(self.module, "pos_embed", None)
        return _read_only(table[0]) if isinstance(table, Tensor) else None

    @property
    def position_grid(self) -> tuple[int, int]:
        """Rows and columns of the position embedding."""
        table = self.position_embedding
        grid = self.layers[0].query_grid
        if table is None or len(table) in (
            math.prod(grid),
            math.prod(grid) + len(self.layers[0].prefix),
        ):
            return grid
        raise ModelError(
            f"{self.name} keeps {len(table)} position embeddings for a grid of "
            f"{grid[0]} x {grid[1]} patches, so their places are not known."
        )


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy().copy()
    array.flags.writeable = False
    return array


def _embedded(module: nn.Module, inputs: Any, output: Tensor) -> Tensor | None:
    recorder = RECORDER.get()
    return recorder.embedded(output) if recorder else None


def _watch(site: Site, index: int) -> None:
    """Install the hooks of one block; they speak to the recorder of the running context."""

    def entering(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        recorder = RECORDER.get()
        replaced = recorder.entering(index, inputs[0]) if recorder else None
        return None if replaced is None else (replaced, *inputs[1:])

    def attended(module: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        if recorder := RECORDER.get():
            recorder.attended(index, inputs[0])

    def leaving(module: nn.Module, inputs: Any, output: Tensor) -> None:
        if recorder := RECORDER.get():
            recorder.leaving(index, output)

    site.block.register_forward_pre_hook(entering)
    if site.middle:
        site.block.get_submodule(site.middle).register_forward_pre_hook(attended)
    site.block.register_forward_hook(leaving)
