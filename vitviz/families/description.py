"""`Family`, `Layer`, `Site` and `Windows`: the records that describe a family and its layers."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from torch import Tensor, nn

from ..language import Message, MessageError
from ..vit import Attention

Grid = tuple[int, int]


class ModelError(MessageError):
    """A model, or a question to one, that vitviz cannot answer; the message is one sentence."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer as the measurements need to know it.

    Attributes
    ----------
    name : str
        Path of the block in the module, such as "blocks.0".
    kind : str
        "global": every token attends to every token. "class": only the class token attends.
        "window": tokens attend within windows of neighbours. "grid": within windows of tokens
        that lie equally far apart. "pooled": keys and values are fewer than the queries.
        "mixing": no attention, but weights that are the same for every picture.
    stage : int
        0 for models with one resolution.
    num_heads : int
    query_grid, key_grid : (rows, columns) of patches
    prefix : tuple of str
        Names of the tokens before the patches: "cls", "dist", "reg1", ...
    patch_size : int or (int, int)
        Step of the query grid in pixels of the model's input; a pair (height, width) where the two
        differ.
    refusal : Message or None
        One sentence that says why this layer is not shown.
    """

    name: str
    kind: str
    stage: int
    num_heads: int
    query_grid: Grid
    key_grid: Grid
    prefix: tuple[str, ...]
    patch_size: int | tuple[int, int]
    refusal: Message | None = None

    @property
    def patch_side(self) -> tuple[int, int]:
        """`patch_size` as (height, width)."""
        size = self.patch_size
        return size if isinstance(size, tuple) else (size, size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Which patches attend to which in each call of attention, in the order of their tokens.

    Attributes
    ----------
    queries : ndarray of shape (windows, queries a window)
        Numbers of patches in row-major order of the query grid; -1 for padding.
    keys : ndarray of shape (windows, keys a window)
        The same in the key grid.
    key_step : (float, float)
        Height and width of a key in patches of the query grid.
    """

    queries: np.ndarray
    keys: np.ndarray
    key_step: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Where one layer is in a module, and how its attention is read.

    Attributes
    ----------
    layer : Layer
    block : nn.Module
        Its input and its output are the residual stream.
    middle : str
        Path in the block of the module whose input is the stream between attention and MLP;
        "" where they run side by side.
    layout : "tokens", "rows" or "channels"
        Of the residual stream: (B, T, D), (B, R, S, D) or (B, D, R, S).
    windows : Windows, optional
        Left out where every token meets every token.
    biased : bool
        Whether a bias of every query and key is added to the scores.
    mixing : nn.Linear, optional
        What mixes the heads between the softmax and the product with the values; in a mixing
        layer, what mixes the tokens.
    steps : tuple of nn.Module
        The convolutions and poolings that make its grid of cells out of the picture, in their
        order, where cells are more than patches cut from the picture or from an earlier grid.
    """

    layer: Layer
    block: nn.Module
    middle: str = "norm2"
    layout: Literal["tokens", "rows", "channels"] = "tokens"
    windows: Windows | None = None
    biased: bool = False
    mixing: nn.Linear | None = None
    steps: tuple[nn.Module, ...] = ()

    @property
    def attn(self) -> Any:
        """The module that attends: a part of the block, or where there is none, the block."""
        names = ("attn", "attention", "self_attn", "self_attention")
        return _first(self.block, *names) or self.block

    @property
    def fused(self) -> bool:
        """Whether it calls `scaled_dot_product_attention`; it can be told not to.

        Else it computes a softmax and a product, and a capture keeps the attention weights.
        """
        if hasattr(self.attn, "fused_attn"):
            return bool(self.attn.fused_attn)
        chosen = getattr(getattr(self.attn, "config", None), "_attn_implementation", None)
        return isinstance(self.attn, Attention) or self.sealed or chosen == "sdpa"

    @property
    def sealed(self) -> bool:
        """Whether it attends in an `nn.MultiheadAttention`, of which only the two ends are seen."""
        return isinstance(self.attn, nn.MultiheadAttention)

    @property
    def projection(self) -> Any:
        """The module that mixes the concatenated heads, or None."""
        named = _first(self.attn, "proj", "attn_out_proj", "out_proj", "o_proj")
        return named or getattr(getattr(self.attn, "output", None), "dense", None)


def _first(module: nn.Module, *names: str) -> Any:
    """The first part of the module that has one of these names, or None."""
    named = (getattr(module, name, None) for name in names)
    return next((part for part in named if part is not None), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """What a module has beside its layers, as it is now: a head may have been exchanged.

    Attributes
    ----------
    embedding : nn.Module
        What makes the first tokens of the picture.
    kernel : nn.Module or None
        What makes a token of a patch; None behind a CNN.
    norm, pooled_norm : nn.Module or None
        The LayerNorm after the last block, or after the pooling in models that have it there.
    positions : str
        The path of the table of vectors that is added to the tokens; "" where there is none.
    prefix : tuple of Tensor
        The learned tokens before the patches, each of shape (..., D).
    heads : tuple of str
        The paths of what answers, after the pooling: one, or two of a distilled model.
    width : int
        D of the last layer.
    outputs : int
        What the head gives; 0 where there is none.
    embeds : bool
        Whether that is an embedding of the picture, and no classes.
    """

    embedding: nn.Module
    kernel: nn.Module | None
    norm: nn.Module | None
    pooled_norm: nn.Module | None
    positions: str
    prefix: tuple[Tensor, ...]
    heads: tuple[str, ...]
    width: int
    outputs: int
    embeds: bool = False


def timm_parts(module: Any) -> Parts:
    """The parts by timm's names, which are vitviz's own too."""
    embedding = _first(module, "patch_embed", "stem")
    outputs, width = (int(getattr(module, name, 0)) for name in ("num_classes", "embed_dim"))
    pools = not outputs and _first(module, "attn_pool") is not None  # SigLIP's embedding
    return Parts(
        embedding=embedding,
        kernel=None if _first(embedding, "backbone") else _first(embedding, "proj"),
        norm=_first(module, "norm"),
        pooled_norm=_first(module, "fc_norm"),
        positions="pos_embed" if isinstance(_first(module, "pos_embed"), Tensor) else "",
        prefix=tuple(
            token
            for name in ("cls", "dist", "reg")
            if isinstance(token := _first(module, f"{name}_token"), Tensor)
        ),
        heads=tuple(name for name in ("head", "head_dist") if _first(module, name) is not None),
        width=width,
        outputs=width if pools else outputs,
        embeds=pools,
    )


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: how its modules are recognised and read.

    Attributes
    ----------
    name : str
    recognises : callable(module) -> bool
    sites : callable(module, (height, width) of the input in pixels) -> tuple of Site
    parts : callable(module) -> Parts
    run : callable(module, inputs) -> Tensor
        What the head gives for inputs (B, 3, H, W), of shape (B, outputs).
    answer : callable(module, tokens) -> Tensor
        The same for tokens (B, T, D) as the last block returns them: what the module computes after
        its blocks.
    positional_attention : callable(module) -> bool
        Whether attention itself depends on the position of every patch (rotary embedding, relative
        bias, windows), so that none can be dropped.
    any_size : bool
        Whether a module takes pictures of any size, whatever size it was made for.
    """

    name: str
    recognises: Callable[[nn.Module], bool]
    sites: Callable[[Any, Grid], tuple[Site, ...]]
    parts: Callable[[Any], Parts] = timm_parts
    run: Callable[[Any, Tensor], Tensor] = lambda module, x: module(x)
    answer: Callable[[Any, Tensor], Tensor] = lambda module, tokens: module.forward_head(
        module.norm(tokens)
    )
    positional_attention: Callable[[Any], bool] = lambda module: False
    any_size: bool = False

    def layers(self, module: Any, input_size: Grid) -> tuple[Layer, ...]:
        """Describe each layer for a picture of `input_size` = (height, width) pixels."""
        return tuple(site.layer for site in self.sites(module, input_size))


def is_timm(module: nn.Module, place: str, name: str) -> bool:
    """Whether `module` is exactly this class of timm."""
    return (type(module).__module__, type(module).__name__) == (f"timm.models.{place}", name)


def kinds_of(blocks: Any) -> set[tuple[str, str]]:
    """The classes of blocks and of their attention; blocks replaced by an Identity do not count."""
    return {
        (type(block).__name__, type(getattr(block, "attn", None)).__name__)
        for _, block in present(blocks)
    }


def present(blocks: Iterable[nn.Module]) -> list[tuple[int, Any]]:
    """The blocks with their numbers, without those replaced by an Identity."""
    return [pair for pair in enumerate(blocks) if not isinstance(pair[1], nn.Identity)]


def layer_at(
    name: str,
    grid: Grid,
    step: Grid,
    input_size: Grid,
    *,
    heads: int,
    kind: str = "window",
    stage: int = 0,
    keys: Grid | None = None,
    prefix: tuple[str, ...] = (),
    refusal: Message | None = None,
) -> Layer:
    """A layer whose patches are `step` pixels apart; `keys` is their grid, where it is another.

    Raises
    ------
    ModelError
        When a picture of this size has no patches.
    """
    if min(*grid, *(keys or grid)) < 1:
        raise ModelError(
            "A picture of {height} x {width} pixels is smaller than one patch.",
            height=input_size[0],
            width=input_size[1],
        )
    return Layer(
        name=name,
        kind=kind,
        stage=stage,
        num_heads=heads,
        query_grid=grid,
        key_grid=keys or grid,
        prefix=prefix,
        patch_size=step[0] if step[0] == step[1] else step,
        refusal=refusal,
    )
