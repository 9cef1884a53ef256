"""Records that describe a model (`Family`, `Layer`, `Site`, `Windows`, `Parts`), and helpers."""

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ...common.language import Message, MessageError, mark
from ...common.query import Grid
from ...vit import Attention


def read_tokens(
    answer: Callable[[Tensor], Tensor], tokens: Tensor, prefix: tuple[str, ...]
) -> tuple[str, ...]:
    """Name the tokens on which the output depends; "patches" stands for all patches.

    The model's own computation after its last block runs on random tokens, and again with one of
    them exchanged: neither timm's settings nor a CLS token tell what the head reads, and a
    quantised part has no gradient. The output of a head of zeros depends on nothing: it is taken to
    read CLS, or the patches if there is no CLS.

    Parameters
    ----------
    answer : callable(tokens) -> Tensor
        Computes the output from tokens (1, T, D) after the last block.
    tokens : Tensor of shape (1, T, D)
        An example of their shape, precision and device.
    prefix : tuple of str
        Names of the tokens before the patches.
    """
    random = torch.Generator().manual_seed(0)
    plain, others = (
        torch.randn(tokens.shape, generator=random, device="cpu").to(tokens) for _ in range(2)
    )

    def output_with(place: slice) -> Tensor:
        z = plain.clone()
        z[:, place] = others[:, place]
        return answer(z)

    places = {name: slice(at, at + 1) for at, name in enumerate(prefix)}
    places["patches"] = slice(len(prefix), None)
    with torch.inference_mode():
        reference = output_with(slice(0)).nan_to_num()
        names = tuple(
            name
            for name, place in places.items()
            if not torch.equal(output_with(place).nan_to_num(), reference)
        )
    return names or (("cls",) if "cls" in prefix else ("patches",))


class ModelError(MessageError):
    """A model that vitviz cannot read, or a question that it cannot answer for this model."""


@dataclass(frozen=True, kw_only=True)
class Layer:
    """One attention layer, as the measurements need it.

    Attributes
    ----------
    name : str
        Path of the block in the module, such as "blocks.0".
    kind : str
        "global": every token attends to every token. "class": only the class token attends.
        "window": tokens attend within windows of neighbours. "grid": within windows of tokens at
        equal distances. "pooled": there are fewer keys and values than queries. "mixing": no
        attention, but token-mixing weights that are the same for every picture.
    stage : int
        0 for models with one resolution.
    num_heads : int
    query_grid, key_grid : (rows, columns) of patches
    prefix : tuple of str
        Names of the tokens before the patches: "cls", "dist", "reg1", ...
    patch_size : int or (int, int)
        Step of the query grid in pixels of the model's input; (height, width) if the two differ.
    refusal : Message or None
        Why this layer is not shown.
    follows : bool
        False if a convolution stands between it and the layer before, in the same stage.
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
    follows: bool = True

    @property
    def num_tokens(self) -> int:
        """Number of prefix tokens and of patches in the query grid."""
        return len(self.prefix) + self.query_grid[0] * self.query_grid[1]

    @property
    def patch_side(self) -> tuple[int, int]:
        """`patch_size` as (height, width)."""
        size = self.patch_size
        return size if isinstance(size, tuple) else (size, size)


@dataclass(frozen=True, kw_only=True, eq=False)
class Windows:
    """Patches that attend to each other in each window, in the order of their tokens.

    Attributes
    ----------
    queries : ndarray of shape (windows, queries a window)
        Indices of patches in the query grid, in row-major order; -1 for padding.
    keys : ndarray of shape (windows, keys a window)
        Indices in the key grid.
    key_step : (float, float)
        Height and width of a key in patches of the query grid.
    """

    queries: np.ndarray
    keys: np.ndarray
    key_step: tuple[float, float] = (1.0, 1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class Site:
    """Location of one layer in a module, and how its attention is read.

    Attributes
    ----------
    layer : Layer
    block : nn.Module
        Module whose input and output are the residual stream.
    middle : str
        Path in the block of the module whose input is the residual stream between attention and
        MLP; "" if they run in parallel.
    layout : "tokens", "rows" or "channels"
        Shape of the residual stream: (B, T, D), (B, R, S, D) or (B, D, R, S).
    windows : Windows, optional
        None if every token attends to every token.
    biased : bool
        Whether a bias for each query and key is added to the scores.
    mixing : nn.Linear, optional
        Layer that mixes the heads between the softmax and the product with the values; in a mixing
        layer, the layer that mixes the tokens.
    steps : tuple of nn.Module
        Convolutions and poolings that turn the picture into this layer's grid, in their order;
        empty if each cell is a patch cut from the picture or from an earlier grid.
    """

    layer: Layer
    block: nn.Module
    middle: str = "norm2"
    layout: Literal["tokens", "rows", "channels"] = "tokens"
    windows: Windows | None = None
    biased: bool = False
    mixing: nn.Linear | None = None
    steps: tuple[nn.Module, ...] = ()

    @cached_property
    def attn(self) -> Any:
        """The module that attends: a part of the block, or the block itself."""
        names = ("attn", "attention", "self_attn", "self_attention")
        return unwrap(_first(self.block, *names)) or self.block

    @property
    def known_middle(self) -> str:
        """`middle`, or "" if a subclass overrides the block's `forward`, which may then give that
        module something else."""
        return "" if _overrides_forward(self.block) else self.middle

    @property
    def overrides_forward(self) -> bool:
        """Whether a subclass overrides the `forward` of the module that attends. It may do more to
        the heads than to concatenate them."""
        return _overrides_forward(self.attn)

    @property
    def is_fused(self) -> bool:
        """Whether it calls `scaled_dot_product_attention`.

        Else it computes a softmax and a product, and a capture keeps the attention weights.
        """
        if hasattr(self.attn, "fused_attn"):
            return bool(self.attn.fused_attn)
        implementation = getattr(getattr(self.attn, "config", None), "_attn_implementation", None)
        return isinstance(self.attn, Attention) or self.is_multihead or implementation == "sdpa"

    @property
    def is_multihead(self) -> bool:
        """Whether it is an `nn.MultiheadAttention`: hooks see only its input and output."""
        return isinstance(self.attn, nn.MultiheadAttention)

    @property
    def projection(self) -> Any:
        """The module that mixes the concatenated heads, or None."""
        part = _first(self.attn, "proj", "attn_out_proj", "out_proj", "o_proj")
        return part or getattr(getattr(self.attn, "output", None), "dense", None)


def _first(module: nn.Module, *names: str) -> Any:
    """Return the first attribute with one of these names that is not None, or None."""
    parts = (getattr(module, name, None) for name in names)
    return next((part for part in parts if part is not None), None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Modules and tables beside the layers, as they are now: a head may have been exchanged.

    Attributes
    ----------
    embedding : nn.Module
        Module that turns the picture into tokens.
    kernel : nn.Module or None
        Layer that turns a patch into a token; None behind a CNN.
    norm, pooled_norm : nn.Module or None
        The LayerNorm after the last block, or after the pooling.
    positions : str
        Path of the position embedding that is added to the tokens; "" if there is none.
    prefix : tuple of Tensor
        Learned tokens before the patches, each of shape (..., D).
    heads : tuple of str
        Paths of the heads after the pooling: one, or two in a distilled model.
    width : int
        D of the last layer.
    has_head : bool
        Whether a head has weights; else the output is features that a head would read.
    embeds : bool
        Whether the output is an embedding of the picture.
    """

    embedding: nn.Module
    kernel: nn.Module | None
    norm: nn.Module | None
    pooled_norm: nn.Module | None
    positions: str
    prefix: tuple[Tensor, ...]
    heads: tuple[str, ...]
    width: int
    has_head: bool
    embeds: bool = False


def timm_parts(module: Any) -> Parts:
    """Return the parts by timm's names, which vitviz's own models share."""
    embedding = _first(module, "patch_embed", "stem")
    heads = tuple(name for name in ("head", "head_dist") if _first(module, name) is not None)
    has_head = any(has_weights(getattr(module, name)) for name in heads)
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
        heads=heads,
        width=int(getattr(module, "embed_dim", 0)),
        has_head=has_head,
        # As SigLIP's and TIPS's, which timm gives no head.
        embeds=not has_head and (_first(module, "attn_pool") is not None or is_tips(module)),
    )


def is_tips(module: Any) -> bool:
    """Whether timm names a module TIPSv2: its CLS token was trained to be near texts."""
    configuration: Any = getattr(module, "pretrained_cfg", None) or {}
    return str(configuration.get("architecture")).endswith("_tipsv2") and (
        module.global_pool == "token"
    )


def has_weights(head: Any) -> bool:
    """Whether a head has a linear layer or a convolution, which may be quantised.

    timm puts that layer, `fc`, into a head that pools and normalises first.
    """
    last: nn.Module = getattr(head, "fc", head)
    return any(
        hasattr(part, "out_features")
        or hasattr(part, "out_channels")
        or any(weight.ndim > 1 for weight in part.parameters(recurse=False))
        for part in last.modules()
    )


def image_side(module: Any) -> Callable[..., Any] | None:
    """Return the method that embeds pictures in a module with a text tower; None in any other.

    The names are those of transformers, and of OpenAI's CLIP and open_clip.
    """
    methods = (getattr(module, name, None) for name in ("get_image_features", "encode_image"))
    return next((method for method in methods if callable(method)), None)


def call(module: nn.Module, x: Tensor, options: Mapping[str, Any]) -> Any:
    """Call the module, or its method for pictures, with the options that it accepts."""
    side = image_side(module)
    if options:
        parameters = inspect.signature(side or module.forward).parameters
        if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
            options = {name: value for name, value in options.items() if name in parameters}
    return module(x, **options) if side is None else side(x, **options)


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family of models: how its modules are recognised and read.

    Attributes
    ----------
    name : str
    recognises : callable(module) -> bool
    sites : callable(module, (height, width) of the input in pixels) -> tuple of Site
    parts : callable(module) -> Parts
    options : callable(module, (height, width) of the input) -> keywords of its forward
    run : callable(module, inputs, options) -> output for inputs (B, C, H, W)
        The module's own forward pass, or the part of it that needs nothing but a picture. A module
        around it is called by its own forward.
    features : callable(module, tokens) -> Tensor
        Pools tokens to (B, D) if the module returns all of its tokens.
    positional_attention : callable(module) -> bool
        Whether attention itself depends on the position of every patch (rotary embedding, relative
        bias, windows), so that none can be dropped.
    any_size : bool
        Whether a module takes pictures of any size, whatever size it was made for.
    fixed_windows : bool
        Whether windows, and so tables of relative positions, stay as large for any input.
    is_resampled : bool
        Whether the library resamples position embeddings when it loads weights.
    """

    name: str
    recognises: Callable[[nn.Module], bool]
    sites: Callable[[Any, Grid], tuple[Site, ...]]
    parts: Callable[[Any], Parts] = timm_parts
    options: Callable[[Any, Grid], Mapping[str, Any]] = lambda module, input_size: {}
    run: Callable[[Any, Tensor, Mapping[str, Any]], Any] = call
    features: Callable[[Any, Tensor], Tensor] = lambda module, tokens: tokens
    positional_attention: Callable[[Any], bool] = lambda module: False
    any_size: bool = False
    fixed_windows: bool = False
    is_resampled: bool = True

    def layers(self, module: Any, input_size: Grid) -> tuple[Layer, ...]:
        """Describe each layer for a picture of `input_size` = (height, width) pixels."""
        return tuple(site.layer for site in self.sites(module, input_size))


#: Names of the first norm of a block in timm, torchvision and transformers.
NORM1 = ("norm1", "ln_1", "layernorm_before", "layer_norm1")

#: Libraries whose classes are known by name.
_LIBRARIES = ("timm", "transformers", "torchvision", "open_clip", "vitviz")


def known_class(module: object) -> type:
    """Return the class by which a module is recognised: its own, or the nearest library base class.

    A subclass has the same blocks, and the proof on each picture refuses what it changed in them.
    """
    kind = type(module)
    classes = (each for each in kind.__mro__ if each.__module__.partition(".")[0] in _LIBRARIES)
    return next(classes, kind)


def unwrap(part: Any) -> Any:
    """Return the module inside PyTorch's wrapper for checkpointing or offloading activations."""
    return getattr(part, "_checkpoint_wrapped_module", part)


def without_adapter(part: Any) -> Any:
    """Return the layer inside an adapter of peft (LoRA), which has the same geometry."""
    while (base := getattr(part, "base_layer", None)) is not None:
        part = base
    return part


def filters(kernel: Any) -> Tensor | None:
    """Return the filters of a convolution with its adapter; None for other layers."""
    base = without_adapter(kernel)
    if not isinstance(base, nn.Conv2d):
        return None
    if base is kernel:
        return base.weight
    # Adapters compute in many ways, so the layer is run on each pixel of a patch alone, placed in
    # the first window that does not reach into the padding.
    stride, pad = base.stride, [0, 0] if isinstance(base.padding, str) else base.padding
    at = [-(-pad[axis] // stride[axis]) for axis in (0, 1)]
    top, left = (at[axis] * stride[axis] - pad[axis] for axis in (0, 1))
    patches = torch.eye(base.weight[0].numel()).reshape(-1, *base.weight.shape[1:]).to(base.weight)
    patches = nn.functional.pad(patches, (left, 0, top, 0))
    with torch.inference_mode():
        columns = (kernel(patches) - kernel(torch.zeros_like(patches[:1])))[:, :, at[0], at[1]]
    return columns.T.reshape(base.weight.shape)


def _overrides_forward(part: nn.Module) -> bool:
    part = unwrap(part)
    return type(part).forward is not known_class(part).forward  # type: ignore[attr-defined]


def input_channels(module: Any) -> int:
    """Return the number of input channels: by the configuration, or by the first convolution.

    A module without convolutions embeds its patches by a linear layer; it is taken to read RGB.
    """
    own = (part.in_channels for part in module.modules() if isinstance(part, nn.Conv2d))
    channels = getattr(getattr(module, "config", None), "num_channels", None)
    return int(channels or next(own, 3))


def class_name(part: object) -> str:
    """Return the class name by which a block or a part of it, maybe wrapped, is recognised."""
    return known_class(unwrap(part)).__name__


def is_class(module: object, place: str, name: str) -> bool:
    """Whether a module is recognised as this class of a library's file `place`."""
    kind = known_class(module)
    return (kind.__module__, kind.__name__) == (place, name)


def is_timm(module: nn.Module, place: str, name: str) -> bool:
    """Whether a module is recognised as this class of timm."""
    return is_class(module, f"timm.models.{place}", name)


def is_features_only(module: nn.Module) -> bool:
    """Whether timm's `features_only` took the model apart, so that it returns maps."""
    return is_timm(module, "_features", "FeatureListNet") or (
        is_timm(module, "_features", "FeatureDictNet")
    )


def kinds_of(blocks: Any) -> set[tuple[str, str]]:
    """Return class names of blocks and their attention, except blocks replaced by an Identity."""
    return {
        (class_name(block), class_name(getattr(block, "attn", None)))
        for _, block in present(blocks)
    }


def present(blocks: Iterable[nn.Module]) -> list[tuple[int, Any]]:
    """Return the blocks with their indices, except those replaced by an Identity."""
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
    follows: bool = True,
) -> Layer:
    """Build a layer whose patches are `step` pixels apart; `keys` is its key grid, if different.

    Raises
    ------
    ModelError
        When a picture of this size is smaller than a patch.
    """
    if min(*grid, *(keys or grid)) < 1:
        raise ModelError(
            "A picture of {height} x {width} pixels is smaller than one patch. Choose a larger "
            "input.",
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
        follows=follows,
    )


# What follows some blocks is computed by the module's own forward pass, in a shallow copy whose
# blocks return given outputs. A copy is not enough if a method was replaced on the instance, as
# mixed precision and offloading of accelerate replace `forward`: that function is bound to the
# original's blocks.


class _ConstantOutput(nn.Module):
    """Return a given output for any input."""

    def __init__(self, output: Any) -> None:
        super().__init__()
        self.output = output

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.output


def copy_with(module: nn.Module, path: str, part: nn.Module | Tensor) -> Any:
    """Copy the module with another part or tensor at `path`; everything else is shared."""
    first, _, rest = path.partition(".")
    other: Any = copy.copy(module)
    for kind in ("_modules", "_parameters", "_buffers"):
        own = dict(getattr(module, kind))
        if first in own:
            own[first] = copy_with(module.get_submodule(first), rest, part) if rest else part
            object.__setattr__(other, kind, own)
    return other


def copy_returning(module: nn.Module, outputs: Mapping[str, Any]) -> Any:
    """Copy the module so that the parts at these paths return given outputs."""
    for path, output in outputs.items():
        module = copy_with(module, path, _ConstantOutput(output))
    return module


def replaces_method(module: nn.Module, name: str) -> bool:
    """Whether an attribute of the instance replaces a method of its class, such as `forward`."""
    return callable(vars(module).get(name)) and hasattr(type(module), name)


def _is_own(part: nn.Module) -> bool:
    """Whether a part is quantised, not of a library, or has a method replaced."""
    origin = type(part).__module__
    return (
        origin.partition(".")[0] not in (*_LIBRARIES, "torch")
        or "quantized" in origin
        or any(replaces_method(part, name) for name in vars(part))
    )


def is_changed(module: nn.Module) -> bool:
    """Whether a part is not as its library made it, or attends by a function of somebody else's."""
    kernel = getattr(getattr(module, "config", None), "_attn_implementation", None)
    return kernel not in (None, "eager", "sdpa") or any(
        _is_own(part) or part._forward_hooks or part._forward_pre_hooks for part in module.modules()
    )


def gives_logits(module: nn.Module, heads: Iterable[str]) -> bool:
    """Whether a module surely returns logits: it is a library's, without Softmax or Sigmoid."""
    parts = [module, *(part for path in heads for part in module.get_submodule(path).modules())]
    return not any(
        _is_own(part) or part._forward_hooks or isinstance(part, nn.Softmax | nn.Sigmoid)
        for part in parts
    )


def is_known_to_copy(module: nn.Module, path: str) -> bool:
    """Whether a shallow copy of the module surely computes what the module computes.

    True if all parts between it and the part at `path` are a library's. Others may keep references
    to their parts that a copy does not change, as the backbones of transformers do, which collect
    outputs by hooks on their blocks.
    """
    if type(module).__name__.endswith("Backbone"):
        return False
    for name in ("", *path.split(".")[:-1]):
        module = module.get_submodule(name) if name else module
        if _is_own(module):
            return False
    return True


_FEATURE_NETS = ("FeatureGetterNet", "FeatureListNet", "FeatureDictNet")  # of `features_only`


def one_tensor(returned: Any, module: nn.Module) -> Tensor:
    """Return the logits or the embedding among the outputs of a module.

    For a backbone, return the mean over the positions of its last feature map.

    Raises
    ------
    ModelError
        When there are several outputs, and none is named as the answer.
    """
    maps = getattr(returned, "feature_maps", None)
    if type(module).__name__ in _FEATURE_NETS:
        maps = [*returned.values()] if isinstance(returned, dict) else returned
    if maps:
        last: Tensor = maps[-1]
        nets = (each for each in module.modules() if type(each).__name__ in _FEATURE_NETS)
        if last.ndim == 4 and any(net.output_fmt == "NHWC" for net in nets):
            last = last.flatten(1, 2)
        return last.flatten(2).mean(dim=2) if last.ndim == 4 else last.mean(dim=1)
    names = ("logits", "image_embeds", "pooler_output", "last_hidden_state")
    if isinstance(returned, dict):
        candidates = [returned.get(name) for name in names]
    else:
        candidates = [getattr(returned, name, None) for name in names]
    answer = next((each for each in candidates if isinstance(each, Tensor)), returned)
    if isinstance(answer, dict | list | tuple) and len(answer) == 1:
        (answer,) = answer.values() if isinstance(answer, dict) else answer
    if isinstance(answer, Tensor):
        return answer
    raise ModelError(
        "{name} returns {kind} instead of one tensor. Give watch the part of it that returns its "
        "answer as a tensor.",
        name=type(module).__name__,
        kind=_describe_output(returned),
    )


def _describe_output(returned: Any) -> str:
    count = f" of {len(returned)}" if isinstance(returned, list | tuple | dict) else ""
    return f"{type(returned).__name__}{count}"


def has_overlapping_kernel(module: nn.Module) -> bool:
    """Whether a convolution in the module reads more than its own patch."""
    return any(
        isinstance(part, nn.Conv2d)
        and any(size > step for size, step in zip(part.kernel_size, part.stride, strict=True))
        for part in module.modules()
    )


#: Names of the position embeddings of transformers, torchvision and open_clip.
_EMBEDDINGS = (
    "position_embeddings",
    "position_embedding.weight",
    "pos_embedding",
    "positional_embedding",
)
_RELATIVE_BIAS = (  # in the names of modules
    "rel_pos",
    "relative_position",
    "continuous_position_bias",
    "cpb_mlp",
    "meta_mlp",
)


def position_encodings(module: nn.Module, layers: tuple[Layer, ...]) -> tuple[str, ...]:
    """Return the ways in which a module of a known family encodes positions.

    Returns
    -------
    tuple of str
        Of these, in this order: "embedding" (a vector for each position, added to the patch),
        "relative bias" (added to the scores, by the offset from query to key), "rotary" (RoPE),
        "convolutions" (which see more than their own patch), "mixing" (an MLP over the positions).
        Empty if there is none: then the output does not change when patches are permuted.
    """
    parts: list[tuple[str, Any]] = [*module.named_modules(), *module.named_parameters()]
    encodings = {
        "embedding": isinstance(getattr(module, "pos_embed", None), Tensor)
        or any(isinstance(p, Tensor) and name.endswith(_EMBEDDINGS) for name, p in parts),
        mark("relative bias"): any(part in name for name, _ in parts for part in _RELATIVE_BIAS),
        mark("rotary"): getattr(module, "rope", None) is not None
        or any(name.endswith("rope_embeddings") for name, _ in parts),
        mark("convolutions"): has_overlapping_kernel(module),
        mark("mixing"): any(layer.kind == "mixing" for layer in layers),
    }
    return tuple(encoding for encoding, is_used in encodings.items() if is_used)
