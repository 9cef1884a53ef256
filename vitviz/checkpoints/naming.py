"""Renames state dicts of Hugging Face's and JAX's Vision Transformers to timm's names.

Sources of the names: Hugging Face's `ViTModel`, `DeiTModel` and `Dinov2Model` (transformers), and
the checkpoints of google-research/vision_transformer.
"""

import re
from collections.abc import Collection, Mapping
from itertools import takewhile

import torch
from torch import Tensor

from ..language import MessageError

State = dict[str, Tensor]
#: What a Hugging Face model with a head puts before the names of its backbone.
_HF_BACKBONE = r"^(vit|deit|dinov2|dinov2_with_registers)\."
_HF_PARTS = {
    "embeddings.cls_token": "cls_token",
    "embeddings.distillation_token": "dist_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "layernorm": "norm",
    "classifier": "head",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
}
_HF_BLOCK = {
    "attention.output.dense": "attn.proj",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
}
# Parts for pre-training or another task, which the logits do not depend on.
_HF_UNUSED = ("embeddings.mask_token", "pooler.")
_JAX_BLOCK = {
    "LayerNorm_0": "norm1",
    "LayerNorm_2": "norm2",
    "MlpBlock_3/Dense_0": "mlp.fc1",
    "MlpBlock_3/Dense_1": "mlp.fc2",
}
_JAX_PARTS = {"Transformer/encoder_norm": "norm", "head": "head"}
_QKV = ("query", "key", "value")


def wrapper_of(names: Collection[str]) -> str:
    """The prefix that wrappers of the model put before every name, such as "module."; else "".

    No model has all its parts in one, so that a prefix of all names is a wrapper's: that of
    DataParallel, of torch.compile ("_orig_mod."), or the attribute of a trainer or a class of
    one's own ("model.", "net.", "backbone.").
    """
    if not names:
        return ""
    # What the first and the last of them in the alphabet share, all have.
    first, last = (name.split(".")[:-1] for name in (min(names), max(names)))
    shared = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(f"{one}." for one, _ in shared)


def to_timm(state: State) -> State:
    """The same state dict by timm's names; one that has them already is returned as it is.

    Raises
    ------
    ValueError
        When parts that timm keeps as one do not fit together, or two would have the same name.
    """
    if "Transformer/posembed_input/pos_embedding" in state:
        return _from_jax(state)
    bare = {re.sub(_HF_BACKBONE, "", name): tensor for name, tensor in state.items()}
    if len(bare) < len(state):
        raise MessageError("a part stands in it twice")
    return _from_hugging_face(bare) if "embeddings.cls_token" in bare else bare


def _from_hugging_face(state: State) -> State:
    found: State = {}
    for name, tensor in state.items():
        if name.startswith(_HF_UNUSED):
            continue
        block = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)", name)
        if not block:
            found[_renamed(name, _HF_PARTS)] = tensor
            continue
        number, part = block.groups()
        attention = re.fullmatch(r"attention\.attention\.(query|key|value)\.(weight|bias)", part)
        if not attention:
            found[f"blocks.{number}.{_renamed(part, _HF_BLOCK)}"] = tensor
        elif attention[1] == "query":
            key = f"blocks.{number}.attn.qkv.{attention[2]}"
            found[key] = torch.cat(_query_key_value(state, name))
    positions = found.get("pos_embed")
    if "reg_token" in found and positions is not None and positions.ndim == 3:
        # timm adds positions to the patches alone here
        if positions[:, :1].shape != found["cls_token"].shape:
            raise MessageError("the position of CLS does not fit it")
        found["cls_token"] = found["cls_token"] + positions[:, :1]
        found["pos_embed"] = positions[:, 1:]
    return found


def _query_key_value(state: Mapping[str, Tensor], query: str) -> list[Tensor]:
    """The parts of query, key and value that are there, all of one shape."""
    names = [query.replace("query", part) for part in _QKV]
    parts = [state[name] for name in names if name in state]
    if len({part.shape for part in parts}) > 1 or not parts[0].ndim:
        raise MessageError("{query} does not go with key and value", query=query)
    return parts


def _renamed(name: str, parts: Mapping[str, str]) -> str:
    """The name with its longest known beginning replaced; an unknown one stays, to be refused."""
    for old in sorted(parts, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return parts[old] + name[len(old) :]
    return name


def _from_jax(state: State) -> State:
    """Flax's kernels (in, out) become weights (out, in); its attention has an axis of heads."""
    found: State = {}
    for name, tensor in state.items():
        block = re.fullmatch(r"Transformer/encoderblock_(\d+)/(.+)", name)
        if name == "cls":
            found["cls_token"] = tensor
        elif name == "Transformer/posembed_input/pos_embedding":
            found["pos_embed"] = tensor
        elif name == "embedding/kernel" and tensor.ndim == 4:
            found["patch_embed.proj.weight"] = tensor.permute(3, 2, 0, 1)  # (P, P, 3, D)
        elif name == "embedding/bias":
            found["patch_embed.proj.bias"] = tensor
        elif not block:
            found.update(_from_flax(name, tensor, _JAX_PARTS, ""))
        elif block[2].startswith("MultiHeadDotProductAttention_1/"):
            found.update(_from_jax_attention(state, name, f"blocks.{block[1]}.attn"))
        else:
            found.update(_from_flax(block[2], tensor, _JAX_BLOCK, f"blocks.{block[1]}."))
    return {name: tensor.contiguous() for name, tensor in found.items()}


def _from_flax(name: str, tensor: Tensor, parts: Mapping[str, str], prefix: str) -> State:
    layer, _, kind = name.rpartition("/")
    kinds = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    if layer not in parts or kind not in kinds:
        return {name: tensor}  # unknown: to be refused
    turned = tensor.T if kind == "kernel" and tensor.ndim == 2 else tensor
    return {f"{prefix}{parts[layer]}.{kinds[kind]}": turned}


def _from_jax_attention(state: State, name: str, attention: str) -> State:
    tensor = state[name]
    layer, kind = name.rsplit("/", 2)[1:]
    if layer == "out" and kind == "bias":
        return {f"{attention}.proj.bias": tensor}
    if layer == "out" and tensor.ndim == 3:
        return {f"{attention}.proj.weight": tensor.flatten(0, 1).T}  # (heads, D_h, D)
    if layer != "query":
        return {} if layer in _QKV else {name: tensor}
    parts = _query_key_value(state, name)
    if kind == "kernel" and tensor.ndim > 1:  # each (D, heads, D_h)
        parts = [part.flatten(1).T for part in parts]
    joined = torch.cat([part.flatten() if kind == "bias" else part for part in parts])
    return {f"{attention}.qkv.{'weight' if kind == 'kernel' else 'bias'}": joined}
