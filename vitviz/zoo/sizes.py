"""Sizes of ViTs: the papers' tables, and layers, widths, heads and parameters of a module."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import nn

from ..model.families import Site, family_of
from .architectures import build_outline, preprocessing_of


@dataclass(frozen=True)
class PaperSize:
    """One row of a paper's table; parameters in millions."""

    name: str
    architecture: str
    layers: int
    embed_dim: int
    mlp_dim: int
    heads: int
    parameters: float
    source: str


_VIT, _SCALING = "Dosovitskiy et al. 2021, Table 1", "Zhai et al. 2022, Table 2"
PAPER_SIZES = (
    PaperSize("Base", "vit_base_patch16_224", 12, 768, 3072, 12, 86, _VIT),
    PaperSize("Large", "vit_large_patch16_224", 24, 1024, 4096, 16, 307, _VIT),
    PaperSize("Huge", "vit_huge_patch14_224", 32, 1280, 5120, 16, 632, _VIT),
    PaperSize("G", "vit_gigantic_patch14_224", 48, 1664, 8192, 16, 1843, _SCALING),
)


@dataclass(frozen=True, kw_only=True)
class Size:
    """Layers, widths, heads and parameters, counted in a module.

    Attributes
    ----------
    layers : int
        Attention layers, or layers that mix tokens without attention.
    embed_dims, mlp_dims, heads : tuple of int
        Distinct values over all layers: several if stages differ, none if no layer has one.
    parameters, head_parameters : int
        All parameters, and those in the classification head.
    """

    layers: int
    embed_dims: tuple[int, ...]
    mlp_dims: tuple[int, ...]
    heads: tuple[int, ...]
    parameters: int
    head_parameters: int


def size_of(module: nn.Module, sites: Sequence[Site]) -> Size:
    """Count layers, widths, heads and parameters of a module, which may be on the meta device."""
    shapes = [_mlp_shape(site.block) for site in sites]
    heads = family_of(module).parts(module).heads
    return Size(
        layers=len(sites),
        embed_dims=_distinct(shape[1] for shape in shapes if shape),
        mlp_dims=_distinct(shape[0] for shape in shapes if shape),
        heads=_distinct(site.layer.num_heads for site in sites if site.layer.num_heads),
        parameters=sum(weight.numel() for weight in module.parameters()),
        head_parameters=sum(
            weight.numel()
            for name, weight in module.named_parameters()
            if name.split(".")[0] in heads
        ),
    )


def count_architecture(architecture: str) -> Size:
    """Count a ViT of timm with a head of 1000 classes, on the meta device."""
    outline = build_outline(architecture, {"num_classes": 1000, "weight_init": "skip"})
    input_size = preprocessing_of(outline, None).input_size
    return size_of(outline, family_of(outline).sites(outline, input_size))


#: Paths of the last layer of an MLP in timm and transformers. The first may be twice as wide, or be
#: two layers, where one half is the gate of the other (SwiGLU).
_LAST = ("mlp.fc2.weight", "mlp.down_proj.weight", "mlp.weights_out.weight")
#: Paths of the first layer of other MLPs in timm, transformers and torchvision.
_FIRST = (
    *("mlp_channels.fc1.weight", "mlp.dense1.weight", "intermediate.dense.weight"),
    "mlp.0.weight",
)


def _mlp_shape(block: nn.Module) -> tuple[int, int] | None:
    """Return (MLP, D): the hidden width of a block's MLP, and the width of a token."""
    shapes = {path: weight.shape for path, weight in block.named_parameters()}
    for path in _LAST:
        if path in shapes:
            return shapes[path][1], shapes[path][0]
    for path in _FIRST:
        if path in shapes:
            return shapes[path][0], shapes[path][1]
    return None


def _distinct(values: Iterable[int]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(values))
