"""One encoder layer opened, equations (2) and (3); and the residual stream by depth.

Letters in the shape comments: H W picture height and width, C channels, P patch side, N patches,
T tokens, D width, h heads, d head_dim, M width of the MLP, K classes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..families import Layer, ModelError, Site
from ..model import Model
from .boxes import Box, agree, box, normed, numbers, tensor

if TYPE_CHECKING:
    from ..activations import Activations

_PRE_NORM = (
    *("Block", "EvaBlock", "RelPosBlock"),  # vitviz's own is a Block, too
    *("ViTLayer", "ViTMSNLayer", "IJepaLayer", "DeiTLayer", "BeitLayer", "DINOv3ViTLayer"),
    *("Dinov2Layer", "Dinov2WithRegistersLayer"),
    *("CLIPEncoderLayer", "MetaClip2EncoderLayer", "SiglipEncoderLayer"),
    "EncoderBlock",  # of torchvision
)
#: The names of a block's parts in timm, transformers and torchvision.
_NORM1 = ("norm1", "layernorm_before", "layer_norm1", "ln_1")
_NORM2 = ("norm2", "layernorm_after", "layer_norm2", "ln_2")
_UP, _DOWN = ("fc1", "up_proj", "0"), ("fc2", "down_proj", "3")
_ACTIVATION = ("act", "activation_fn", "act_fn", "1")
_SCALES = ("ls{}.gamma", "gamma_{}", "layer_scale{}.lambda1", "lambda_{}")


def layer_boxes(model: Model, acts: "Activations", layer: int) -> tuple[Box, ...]:
    """One encoder layer, box by box, from z_{l-1} to z_l.

    Returns
    -------
    tuple of Box
        "before" (T, D); of equation (2) "norm1" (T, D), "queries", "keys" and "values" (h, T, d),
        "scores" and "attention" (h, T, T), "heads" (h, T, d), "concatenated" (T, h d), "projected"
        (T, D) and "after_attention" (T, D); of (3) "norm2" (T, D), "hidden" and "activated"
        (T, M), "mlp" (T, D); and "after" (T, D). A LayerScale is a box of its own. Where a layer
        is built in another way, only what the residual stream is before, between and after.
    """
    before, after = _stream(acts, layer), acts.tokens(layer + 1)
    ends = [] if before is None else [box("before", before)]
    try:
        middle = box("after_attention", acts.tokens_after_attention(layer))
    except ModelError:
        return (*ends, box("after", after))
    opened = _opened(model, acts, layer) if before is not None else None
    if opened is None:
        return (*ends, middle, box("after", after))
    return (*ends, *opened[0], middle, *opened[1], box("after", after))


def _opened(model: Model, acts: "Activations", layer: int) -> tuple[list[Box], list[Box]] | None:
    """The boxes of equations (2) and (3); None where the layer is built in another way."""
    site = model.sites[layer]
    block: Any = site.block
    if type(block).__name__ not in _PRE_NORM or site.windows or site.layer.kind != "global":
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
        norm1, norm2 = _named(block, *_NORM1), _named(block, *_NORM2)
        attending = [
            normed("norm1", norm1, before, norm1(before)),
            *(box(name, values) for name, values in zip(("queries", "keys"), (q, k), strict=True)),
            box("values", v),
            Box(name="scores", shape=pairs),
            Box(name="attention", shape=pairs),
            box("heads", heads),
            *_projected(site, heads.transpose(0, 1).flatten(1).to(weight)),
        ]
        second = norm2(middle)
        mixing = [normed("norm2", norm2, middle, second), *_perceptron(block, second)]
    for start, boxes, end in ((before, attending, middle), (middle, mixing, after)):
        if not agree(numbers(start) + boxes[-1].values, numbers(end)):
            return None
    return attending, mixing


def _named(module: Any, *paths: str) -> Any:
    """The first part or parameter that there is at one of these paths, or None."""
    for path in paths:
        found = module
        for name in path.split("."):
            found = getattr(found, name, None)
        if found is not None:
            return found
    return None


def _projected(site: Site, concatenated: Tensor) -> Iterator[Box]:
    """Heads side by side (T, h d), U_msa, and LayerScale where there is one."""
    yield box("concatenated", concatenated)
    norm = getattr(site.attn, "norm", None)
    if isinstance(norm, nn.Module) and not isinstance(norm, nn.Identity):
        before, concatenated = concatenated, norm(concatenated)
        yield normed("heads_norm", norm, before, concatenated)
    yield from _scaled(site.block, "1", box("projected", site.projection(concatenated)))


def _perceptron(block: Any, z: Tensor) -> Iterator[Box]:
    """The MLP: hidden units before and after their activation, and what it gives."""
    mlp: Any = block.mlp
    act = _named(mlp, *_ACTIVATION) or F.gelu  # vitviz's own calls GELU itself
    if type(mlp).__name__ == "SwiGLU":
        hidden = torch.cat([mlp.fc1_g(z), mlp.fc1_x(z)], dim=-1)
        gate, value = hidden.chunk(2, dim=-1)
        activated = act(gate) * value
    else:
        hidden = _named(mlp, *_UP)(z)
        activated = hidden
        if type(mlp).__name__ == "GluMlp":
            first, second = hidden.chunk(2, dim=-1)
            activated = first * act(second) if mlp.gate_last else act(first) * second
        else:
            activated = act(hidden)
    yield box("hidden", hidden)
    activated = getattr(mlp, "norm", nn.Identity())(activated)
    yield box("activated", activated)
    yield from _scaled(block, "2", box("mlp", _named(mlp, *_DOWN)(activated)))


def _scaled(block: Any, number: str, branch: Box) -> Iterator[Box]:
    """What a branch gives, and the same times LayerScale where the block has one."""
    yield branch
    gamma = _named(block, *(path.format(number) for path in _SCALES))
    if isinstance(gamma, Tensor):
        factor = numbers(gamma)
        yield box(f"layer_scale{number}", branch.values * factor, {"gamma": factor})


def scores(acts: "Activations", layer: int, head: int) -> tuple[np.ndarray, np.ndarray]:
    """q k^T of one head, and what softmax is applied to: two ndarrays of shape (queries, keys).

    The second is q k^T / sqrt(D_h) in a plain ViT; where attention has a bias for each pair of
    places, it is added.

    Raises
    ------
    ModelError
        When the layer's queries and keys are not kept.
    """
    products = acts.queries(layer)[head] @ acts.keys(layer)[head].T
    scale, bias = acts.score_terms(layer)
    return products, products * np.float32(scale) + (0 if bias is None else bias[head])


@dataclass(frozen=True, eq=False)
class Residual:
    """The residual stream by depth; NaN where there is no such number.

    Attributes
    ----------
    cls, patches : ndarray of shape (depth + 1,)
        Euclidean norm of CLS, and the mean of the patches' norms.
    attention, mlp : ndarray of shape (depth,)
        Norm of what each adds to a token, as a share of the token's own norm before; both are
        means over tokens.
    """

    cls: np.ndarray
    patches: np.ndarray
    attention: np.ndarray
    mlp: np.ndarray


def residual_stream(acts: "Activations") -> Residual:
    """Norms of the residual stream, and the share that attention and MLP add."""
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
        before, after = _stream(acts, layer), acts.tokens(layer + 1)
        try:
            middle = acts.tokens_after_attention(layer)
        except ModelError:
            continue
        if before is not None and before.shape == middle.shape:
            attention[layer] = _added(before, middle)
        if middle.shape == after.shape:
            mlp[layer] = _added(middle, after)
    return Residual(cls, patches, attention, mlp)


def _added(before: np.ndarray, after: np.ndarray) -> float:
    norm = float(np.linalg.norm(before, axis=1).mean())
    return float(np.linalg.norm(after - before, axis=1).mean()) / max(norm, 1e-30)


def _stream(acts: "Activations", layer: int) -> np.ndarray | None:
    """z_{l-1}; None where a convolution or a new stage stands between the layers."""
    if layer and not _follows(acts.layers[layer].name, acts.layers[layer - 1].name):
        return None
    tokens = acts.tokens(layer)
    return tokens if tokens.shape == acts.tokens(layer + 1).shape else None


def _follows(name: str, before: str) -> bool:
    """Whether one block, by its path, comes straight after another."""
    (path, _, last), (other, _, first) = name.rpartition("."), before.rpartition(".")
    if path != other:
        return False
    return not last.isdecimal() or int(last) == int(first) + 1


def kind_of(layer: Layer) -> tuple[int, bool]:
    return layer.stage, layer.kind == "class"
