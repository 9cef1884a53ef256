"""Open one encoder layer, equations (2) and (3), and measure the residual stream by depth.

Letters in shapes: H W picture height and width, C channels, P patch side, N patches,
T tokens, D width, h heads, d head_dim, M width of the MLP, K classes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ...model import Model
from ...model.devices import TOLERANCE, own_precision
from ...model.families import NORM1, Layer, ModelError, Site, class_name, position_encodings

if TYPE_CHECKING:
    from ...activations import Activations


@dataclass(frozen=True, kw_only=True, eq=False)
class Box:
    """The picture at one place of a model.

    Attributes
    ----------
    name : str
        A key of `vitviz.text.anatomy`.
    shape : tuple of int
    values : read-only ndarray of float32, or None if it is too large to keep
    parts : mapping of str to ndarray
        What computed it: weights, or statistics of each token.
    layers : range
        The layers that the box stands for, if it stands for whole layers.
    """

    name: str
    shape: tuple[int, ...]
    values: np.ndarray | None = None
    parts: Mapping[str, np.ndarray] = field(default_factory=dict)
    layers: range = range(0)


def is_norm(part: Any) -> TypeGuard[nn.Module]:
    """Return whether this is a module that changes its input."""
    return isinstance(part, nn.Module) and not isinstance(part, nn.Identity)


def norm_box(name: str, norm: nn.Module, before: Tensor, after: Tensor) -> Box:
    return box(name, after, statistics(norm, before))


def statistics(norm: nn.Module | None, z: Tensor) -> dict[str, Tensor]:
    """Return each token's mean and deviation, and gamma and beta, of a LayerNorm; else nothing."""
    if not isinstance(norm, nn.LayerNorm):
        return {}
    deviation = (z.var(dim=-1, correction=0) + norm.eps).sqrt()
    parts = {"mean": z.mean(dim=-1), "deviation": deviation}
    affine = {"gamma": norm.weight, "beta": norm.bias}
    return parts | {part: value for part, value in affine.items() if value is not None}


def box(
    name: str,
    values: Tensor | np.ndarray,
    parts: Mapping[str, Tensor | np.ndarray] | None = None,
    layers: range = range(0),
) -> Box:
    array = numbers(values)
    arrays = {part: numbers(value) for part, value in (parts or {}).items()}
    return Box(name=name, shape=array.shape, values=array, parts=arrays, layers=layers)


def numbers(values: Tensor | np.ndarray) -> np.ndarray:
    array = (
        values.detach().float().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    )
    array = np.ascontiguousarray(array, np.float32).view()
    array.flags.writeable = False
    return array


def agree(values: np.ndarray | None, captured: np.ndarray) -> bool:
    """Whether computed values are those of the capture, up to rounding."""
    if values is None or values.shape != captured.shape:
        return False
    largest = max(float(np.abs(captured).max()), 1e-12)
    return float(np.abs(values - captured).max()) <= TOLERANCE * largest


def tensor(values: np.ndarray | None, like: Tensor) -> Tensor:
    """Return numbers of a box or a capture as a tensor of the dtype and device of `like`."""
    assert values is not None
    return torch.tensor(values, dtype=like.dtype, device=like.device)


_PRE_NORM = (
    *("Block", "EvaBlock", "RelPosBlock"),  # vitviz's own is a Block, too
    *("ViTLayer", "ViTMSNLayer", "IJepaLayer", "DeiTLayer", "BeitLayer", "DINOv3ViTLayer"),
    *("Dinov2Layer", "Dinov2WithRegistersLayer"),
    *("CLIPEncoderLayer", "MetaClip2EncoderLayer", "SiglipEncoderLayer"),
    "EncoderBlock",  # of torchvision
    *("ResidualAttentionBlock", "CustomResidualAttentionBlock"),  # of open_clip
)
#: The names of a block's parts in timm, transformers and torchvision.
_NORM2 = ("norm2", "layernorm_after", "layer_norm2", "ln_2")
_UP, _DOWN = ("fc1", "up_proj", "c_fc", "0"), ("fc2", "down_proj", "c_proj", "3")
_ACTIVATION = ("act", "activation_fn", "act_fn", "gelu", "1")
_SCALES = ("ls{}.gamma", "ls_{}.gamma", "gamma_{}", "layer_scale{}.lambda1", "lambda_{}")


@own_precision()
def layer_boxes(model: Model, acts: "Activations", layer: int) -> tuple[Box, ...]:
    """Return one encoder layer, box by box, from z_{l-1} to z_l.

    Returns
    -------
    tuple of Box
        "before" (T, D); of equation (2) "norm1" (T, D), "queries", "keys" and "values" (h, T, d),
        "scores" and "attention" (h, T, T), "heads" (h, T, d), "concatenated" (T, h d), "projected"
        (T, D) and "after_attention" (T, D); of (3) "norm2" (T, D), "hidden" and "activated"
        (T, M), "mlp" (T, D); and "after" (T, D). A LayerScale is a box of its own. If a layer is
        built in another way, only the residual stream before, between and after its branches. If
        queries and keys are rotated by their positions, "unrotated_queries" and "unrotated_keys"
        (h, T, d) come before "queries" and "keys".
    """
    before, after = _layer_input(acts, layer), acts.tokens(layer + 1)
    ends = [] if before is None else [box("before", before)]
    try:
        middle = box("after_attention", acts.tokens_after_attention(layer))
    except ModelError:
        return (*ends, box("after", after))
    opened = _branch_boxes(model, acts, layer) if before is not None else None
    if opened is None:
        return (*ends, middle, box("after", after))
    return (*ends, *opened[0], middle, *opened[1], box("after", after))


def _branch_boxes(
    model: Model, acts: "Activations", layer: int
) -> tuple[list[Box], list[Box]] | None:
    """Return the boxes of equations (2) and (3); None if the layer is built in another way."""
    site = model.sites[layer]
    block: Any = site.block
    if class_name(block) not in _PRE_NORM or site.windows or site.layer.kind != "global":
        return None
    try:
        q, k, v = acts.queries(layer), acts.keys(layer), acts.values(layer)
        attention = acts.attention(layer)
    except ModelError:
        return None
    weight = next(block.parameters())
    before, middle, after = (
        tensor(z, weight)
        for z in (acts.tokens(layer), acts.tokens_after_attention(layer), acts.tokens(layer + 1))
    )
    with torch.inference_mode():
        heads = torch.from_numpy(attention @ v)  # (h, T, d)
        pairs = (len(q), q.shape[1], k.shape[1])
        norm1, norm2 = _first_part(block, *NORM1), _first_part(block, *_NORM2)
        first = norm1(before)
        rotated = "rotary" in position_encodings(model.part, model.layers)
        attending = [
            norm_box("norm1", norm1, before, first),
            *(_unrotated_boxes(site, first, q, k) if rotated else ()),
            *(box(name, values) for name, values in zip(("queries", "keys"), (q, k), strict=True)),
            box("values", v),
            Box(name="scores", shape=pairs),
            Box(name="attention", shape=pairs),
            box("heads", heads),
            *_projection_boxes(site, heads.transpose(0, 1).flatten(1).to(weight)),
        ]
        second = norm2(middle)
        mixing = [norm_box("norm2", norm2, middle, second), *_mlp_boxes(block, second)]
    for start, boxes, end in ((before, attending, middle), (middle, mixing, after)):
        if not agree(numbers(start) + boxes[-1].values, numbers(end)):
            return None
    return attending, mixing


def _first_part(module: Any, *paths: str) -> Any:
    """Return the first part or parameter that exists at one of these paths, or None."""
    for path in paths:
        part = module
        for name in path.split("."):
            part = getattr(part, name, None)
        if part is not None:
            return part
    return None


def _unrotated_boxes(site: Site, z: Tensor, q: np.ndarray, k: np.ndarray) -> Iterator[Box]:
    """Yield queries and keys (h, T, d) before their rotation, if they pass a proof.

    A rotation keeps every norm, and the prefix tokens are not rotated.
    """
    attn: Any = site.attn
    projected = []
    if isinstance(getattr(attn, "qkv", None), nn.Linear):
        both = F.linear(z, attn.qkv.weight, attn.qkv.bias)
        if getattr(attn, "q_bias", None) is not None:  # EVA, whose linear layer has no bias
            both = both + torch.cat((attn.q_bias, attn.k_bias, attn.v_bias))
        projected = [*both.chunk(3, dim=-1)[:2]]
    elif getattr(attn, "q_proj", None) is not None:
        projected = [attn.q_proj(z), attn.k_proj(z)]
    norms = (_first_part(attn, "q_norm"), _first_part(attn, "k_norm"))
    prefix = len(site.layer.prefix)
    for name, values, norm, rotated in zip(
        ("queries", "keys"), projected, norms, (q, k), strict=False
    ):
        heads = values.unflatten(-1, (len(rotated), -1)).transpose(0, 1)
        before = numbers(heads if norm is None else norm(heads))
        lengths = [np.linalg.norm(one, axis=-1) for one in (before, rotated)]
        if not agree(*lengths) or not agree(before[:, :prefix], rotated[:, :prefix]):
            return
        yield box(f"unrotated_{name}", before)


def _projection_boxes(site: Site, concatenated: Tensor) -> Iterator[Box]:
    """Yield the concatenated heads (T, h d), their output projection, and LayerScale if any."""
    yield box("concatenated", concatenated)
    norm = getattr(site.attn, "norm", None)
    if is_norm(norm):
        before, concatenated = concatenated, norm(concatenated)
        yield norm_box("heads_norm", norm, before, concatenated)
    yield from _with_layer_scale(site.block, "1", box("projected", site.projection(concatenated)))


def activation_of(block: Any) -> nn.Module | None:
    """Return the non-linear function of a block's MLP; None if it calls GELU itself, as our own."""
    return _first_part(getattr(block, "mlp", None), *_ACTIVATION)


def _mlp_boxes(block: Any, z: Tensor) -> Iterator[Box]:
    """Yield the hidden units of the MLP before and after their activation, and its output."""
    mlp: Any = block.mlp
    act = activation_of(block) or F.gelu
    if class_name(mlp) == "SwiGLU":
        hidden = torch.cat([mlp.fc1_g(z), mlp.fc1_x(z)], dim=-1)
        gate, value = hidden.chunk(2, dim=-1)
        activated = act(gate) * value
    else:
        hidden = _first_part(mlp, *_UP)(z)
        activated = hidden
        if class_name(mlp) == "GluMlp":
            first, second = hidden.chunk(2, dim=-1)
            activated = first * act(second) if mlp.gate_last else act(first) * second
        else:
            activated = act(hidden)
    yield box("hidden", hidden)
    activated = getattr(mlp, "norm", nn.Identity())(activated)
    yield box("activated", activated)
    yield from _with_layer_scale(block, "2", box("mlp", _first_part(mlp, *_DOWN)(activated)))


def _with_layer_scale(block: Any, number: str, branch: Box) -> Iterator[Box]:
    """Yield a branch's output, and its product with LayerScale if the block has one."""
    yield branch
    gamma = _first_part(block, *(path.format(number) for path in _SCALES))
    if isinstance(gamma, Tensor):
        factor = numbers(gamma)
        yield box(f"layer_scale{number}", branch.values * factor, {"gamma": factor})


def head_scores(acts: "Activations", layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Return q k^T of one head, and the input of its softmax: two ndarrays (queries, keys).

    The second is q k^T / sqrt(D_h) in a plain ViT, plus the bias of each pair of places if the
    attention has one.

    Raises
    ------
    ModelError
        When the capture does not hold the layer's queries and keys.
    """
    products = acts.queries(layer)[head] @ acts.keys(layer)[head].T
    scale, bias = acts.score_terms(layer)
    return products, products * np.float32(scale) + (0 if bias is None else bias[head])


@dataclass(frozen=True, eq=False)
class Residual:
    """Norms of the residual stream by depth; NaN where there is no such value.

    Attributes
    ----------
    cls, patches : ndarray of shape (depth + 1,)
        Norm of CLS, and mean norm of the patches.
    attention, mlp : ndarray of shape (depth,)
        Mean norm of the branch's output, as a share of the mean norm of its input tokens.
    """

    cls: np.ndarray
    patches: np.ndarray
    attention: np.ndarray
    mlp: np.ndarray


def residual_stream(acts: "Activations") -> Residual:
    """Measure the norms of the residual stream, and the shares that attention and MLP add."""
    cls, patches = np.full((2, acts.depth + 1), np.nan)
    attention, mlp = np.full((2, acts.depth), np.nan)
    for depth in range(acts.depth + 1):
        prefix = acts.layers[max(depth - 1, 0)].prefix
        norms = np.linalg.norm(acts.tokens(depth), axis=1)
        if "cls" in prefix and (depth or len(norms) > 1):
            cls[depth] = norms[0]
        if len(norms) > len(prefix):
            patches[depth] = norms[len(prefix) :].mean()
    for layer in range(acts.depth):
        before, after = _layer_input(acts, layer), acts.tokens(layer + 1)
        try:
            middle = acts.tokens_after_attention(layer)
        except ModelError:
            continue
        if before is not None and before.shape == middle.shape:
            attention[layer] = _added_share(before, middle)
        if middle.shape == after.shape:
            mlp[layer] = _added_share(middle, after)
    return Residual(cls, patches, attention, mlp)


def _added_share(before: np.ndarray, after: np.ndarray) -> float:
    norm = float(np.linalg.norm(before, axis=1).mean())
    return float(np.linalg.norm(after - before, axis=1).mean()) / max(norm, 1e-30)


def _layer_input(acts: "Activations", layer: int) -> np.ndarray | None:
    """Return z_{l-1}; None if a convolution or a new stage stands between the layers."""
    here, before = acts.layers[layer], acts.layers[layer - 1]
    if layer and not (here.follows and _follows(here.name, before.name)):
        return None
    tokens = acts.tokens(layer)
    return tokens if tokens.shape == acts.tokens(layer + 1).shape else None


def _follows(name: str, before: str) -> bool:
    """Whether one block directly follows another, by their paths in the module."""
    (path, _, last), (other, _, first) = name.rpartition("."), before.rpartition(".")
    if path != other:
        return False
    return not last.isdecimal() or int(last) == int(first) + 1


def stage_and_kind(layer: Layer) -> tuple[int, bool]:
    return layer.stage, layer.kind == "class"
