"""What each family of Vision Transformers is: one row each in `FAMILIES`.

A row tells how a module is recognised, which tokens stand before the patches, how the patches lie
in a grid, and where the blocks are. A module that no row recognises is refused.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

from .vit import VisionTransformer


class ModelError(ValueError):
    """A model, or a question to one, that vitviz cannot answer; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer as the measurements need to know it.

    Attributes
    ----------
    name : str
        Path of the block in the module, such as "blocks.0".
    kind : str
        "global": every token attends to every token.
    stage : int
        0 for models with one resolution.
    num_heads : int
    query_grid, key_grid : (rows, columns) of patches
    prefix : tuple of str
        Names of the tokens before the patches: "cls", "dist", "reg1", ...
    patch_size : int or (int, int)
        Step of the query grid in pixels of the model's input; a pair (height, width) where the two
        differ.
    refusal : str or None
        One sentence that says why this layer is not shown.
    """

    name: str
    kind: str
    stage: int
    num_heads: int
    query_grid: tuple[int, int]
    key_grid: tuple[int, int]
    prefix: tuple[str, ...]
    patch_size: int | tuple[int, int]
    refusal: str | None = None


@dataclass(frozen=True, kw_only=True)
class Family:
    """One row of the table."""

    name: str
    recognises: Callable[[nn.Module], bool]
    prefix: Callable[[Any], tuple[str, ...]]  # of a module that the row recognises
    grid: Callable[[Any, tuple[int, int]], tuple[int, int]]
    step: Callable[[Any], tuple[int, int]]  # height and width of a patch in pixels of the input

    def blocks(self, module: Any) -> Iterable[tuple[str, Any]]:
        """Name and module of each block, in the order of the forward pass."""
        return ((f"blocks.{index}", block) for index, block in enumerate(module.blocks))

    def layers(self, module: Any, input_size: tuple[int, int]) -> tuple[Layer, ...]:
        """Describe each layer for a picture of `input_size` = (height, width) pixels."""
        grid, step = self.grid(module, input_size), self.step(module)
        if min(grid) < 1:
            raise ModelError(
                f"A picture of {input_size[0]} x {input_size[1]} pixels is smaller than one patch."
            )
        return tuple(
            Layer(
                name=name,
                kind="global",
                stage=0,
                num_heads=block.attn.num_heads,
                query_grid=grid,
                key_grid=grid,
                prefix=self.prefix(module),
                patch_size=step[0] if step[0] == step[1] else step,
            )
            for name, block in self.blocks(module)
        )


def family_of(module: nn.Module) -> Family:
    """The row that recognises `module`.

    Raises
    ------
    ModelError
        When there is none.
    """
    for family in FAMILIES:
        if family.recognises(module):
            return family
    raise ModelError(
        f"{type(module).__name__} is no family that vitviz can read: "
        f"it reads {', '.join(sorted({family.name for family in FAMILIES}))}."
    )


def _is_timm(module: Any, place: str, name: str) -> bool:
    """Whether `module` is exactly this class of timm, its blocks the usual ones."""
    here = type(module)
    if (here.__module__, here.__name__) != (f"timm.models.{place}", name):
        return False
    kinds = {(type(block).__name__, type(block.attn).__name__) for block in module.blocks}
    return kinds == {("Block", "Attention")}


def _own_prefix(module: VisionTransformer) -> tuple[str, ...]:
    names = [
        name
        for name, token in (("cls", module.cls_token), ("dist", module.dist_token))
        if token is not None
    ]
    return (*names, *_registers(module))


def _timm_prefix(module: Any) -> tuple[str, ...]:
    return (("cls",) if module.cls_token is not None else ()) + _registers(module)


def _registers(module: Any) -> tuple[str, ...]:
    count = 0 if module.reg_token is None else module.reg_token.shape[1]
    return tuple(f"reg{number + 1}" for number in range(count))


def _timm_grid(module: Any, input_size: tuple[int, int]) -> tuple[int, int]:
    # Never a square root, and never `grid_size`, which is stale when the picture size is dynamic.
    rows, cols = module.patch_embed.dynamic_feat_size(input_size)
    return rows, cols


def _timm_step(module: Any) -> tuple[int, int]:
    height, width = module.patch_embed.feat_ratio(as_scalar=False)
    return height, width


FAMILIES = (
    Family(
        name="ViT",
        recognises=lambda module: type(module) is VisionTransformer,
        prefix=_own_prefix,
        grid=lambda module, input_size: module.patch_embed.grid_size,
        step=lambda module: module.patch_embed.patch_size,
    ),
    Family(
        name="ViT",
        recognises=lambda module: _is_timm(module, "vision_transformer", "VisionTransformer"),
        prefix=_timm_prefix,
        grid=_timm_grid,
        step=_timm_step,
    ),
    Family(
        name="DeiT distilled",
        recognises=lambda module: _is_timm(module, "deit", "VisionTransformerDistilled"),
        prefix=lambda module: ("cls", "dist"),
        grid=_timm_grid,
        step=_timm_step,
    ),
)
