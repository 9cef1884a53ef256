"""Rename state dicts of transformers, open_clip, torchvision and of authors to timm's names.

Sources of the names: transformers' classes before and since version 5, the repositories dinov2,
dinov3, dino, mae, Swin-Transformer, unilm, CLIP and EVA, and google-research/vision_transformer.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...common.language import MessageError

StateDict = dict[str, Tensor]
#: Prefixes that torch adds for compilation, activation checkpointing and FSDP.
_WRAPPED = re.compile(r"\b(?:_orig_mod|_checkpoint_wrapped_module|_fsdp_wrapped_module)\.")
#: Prefixes of the backbone in models of transformers with a head.
HF_BACKBONES = "vit|deit|dinov2|dinov2_with_registers|dinov3_vit|beit|swin|swinv2|vision_model"
_HF_BLOCK = re.compile(r"(?:model\.|encoder\.)?layers?\.(\d+)\.(?:blocks\.(\d+)\.)?(.+)")
_HF_QUERY = re.compile(
    r"(attention\.(?:attention|self)\.query|(?:attention|self_attn)\.q_proj)\.(weight|bias)"
)
_HF_KEY_OR_VALUE = re.compile(
    r"(?:attention\.(?:attention|self)\.(?:key|value)|(?:attention|self_attn)\.[kv]_proj)"
    r"\.(?:weight|bias)"
)
_HF_PARTS = {
    "embeddings.cls_token": "cls_token",
    "embeddings.class_embedding": "cls_token",
    "embeddings.distillation_token": "dist_token",
    "embeddings.register_tokens": "reg_token",
    "embeddings.position_embeddings": "pos_embed",
    "embeddings.position_embedding.weight": "pos_embed",
    "embeddings.patch_embeddings.projection": "patch_embed.proj",
    "embeddings.patch_embeddings": "patch_embed.proj",
    "embeddings.patch_embedding": "patch_embed.proj",
    "embeddings.norm": "patch_embed.norm",
    "pre_layrnorm": "norm_pre",
    "layernorm": "norm",
    "post_layernorm": "norm",
    "norm": "norm",
    "pooler.layernorm": "fc_norm",
    "head.probe": "attn_pool.latent",
    "head.attention.out_proj": "attn_pool.proj",
    "head.layernorm": "attn_pool.norm",
    "head.mlp": "attn_pool.mlp",
    "visual_projection": "head",
    "classifier": "head",
    "cls_classifier": "head",
    "distillation_classifier": "head_dist",
}
_HF_BLOCK_PARTS = {
    "attention.output.dense": "attn.proj",
    "attention.o_proj": "attn.proj",
    "self_attn.out_proj": "attn.proj",
    "attention.attention.relative_position_bias": "attn",
    "attention.relative_position_bias": "attn",
    "attention.self": "attn",
    "attention.self.continuous_position_bias_mlp": "attn.cpb_mlp",
    "relative_position_bias": "attn",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
    "norm1": "norm1",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "mlp.weights_in": "mlp.fc1",
    "mlp.weights_out": "mlp.fc2",
    "mlp.gate_proj": "mlp.fc1_g",
    "mlp.up_proj": "mlp.fc1",
    "mlp.down_proj": "mlp.fc2",
    "layer_scale1.lambda1": "ls1.gamma",
    "layer_scale2.lambda1": "ls2.gamma",
    "lambda_1": "gamma_1",
    "lambda_2": "gamma_2",
}
#: Parts for pre-training or another task, on which the model's output does not depend.
_HF_UNUSED = re.compile(
    r"embeddings\.mask_token|pooler\.dense|decoder|text_|logit_(scale|bias)|lm_head"
)
_UNUSED = re.compile(r"mask(?:_token|ed_embed)|decoder|local_cls_norm|lm_head")
_JAX_BLOCK = {
    "LayerNorm_0": "norm1",
    "LayerNorm_2": "norm2",
    "MlpBlock_3/Dense_0": "mlp.fc1",
    "MlpBlock_3/Dense_1": "mlp.fc2",
}
_JAX_PARTS = {"Transformer/encoder_norm": "norm", "head": "head"}
_QKV = ("query", "key", "value")


def to_timm(state: StateDict) -> StateDict:
    """Return the state dict with timm's names; names of timm stay as they are.

    Raises
    ------
    ValueError
        When parts that timm joins do not fit together, or two would get the same name.
    """
    if "Transformer/posembed_input/pos_embedding" in state:
        return _from_jax(state)
    state = {re.sub(_WRAPPED, "", name): tensor for name, tensor in state.items()}
    if "conv_proj.weight" in state or {"conv1.weight", "class_embedding"} <= state.keys():
        return _substitute(state, _MULTIHEAD)
    if "features.1.0.attn.qkv.weight" in state:
        return _substitute(state, _TORCHVISION_SWIN)
    bare = {re.sub(rf"^({HF_BACKBONES})\.", "", n): tensor for n, tensor in state.items()}
    if len(bare) < len(state):
        raise MessageError("it has a part twice")
    if any(name.startswith("embeddings.patch_embedding") for name in bare):
        renamed = _from_hugging_face(bare)
        if any(name.startswith("layers.") for name in renamed):  # a Swin, as Microsoft names it
            return _from_trainers(renamed)
        return _move_cls_position(renamed) if "reg_token" in renamed else renamed
    renamed = _from_trainers(state)
    return _move_cls_position(renamed) if "register_tokens" in state else renamed


def _from_hugging_face(state: StateDict) -> StateDict:
    if "embeddings.patch_embedding.weight" in state and "classifier.weight" in state:
        raise MessageError(  # CLIP's and SigLIP's; timm has no such model
            "its classifier reads the mean of the patches before the last norm. Load the folder "
            "with its config.json instead"
        )
    classifier, norm = (state.get(name) for name in ("classifier.weight", "layernorm.weight"))
    if classifier is not None and norm is not None and classifier.shape[1:] == (2 * norm.numel(),):
        raise MessageError(  # DINOv2's
            "its classifier reads CLS and the mean of the patches. Load the folder with its "
            "config.json instead"
        )
    # DINOv3 is timm's Eva, whose layer scales have other names than in its ViT.
    is_eva = "embeddings.patch_embeddings.weight" in state
    is_gated = any(".mlp.gate_proj." in name for name in state)
    renamed: StateDict = {}
    for name, tensor in state.items():
        block = _HF_BLOCK.fullmatch(name)
        if _HF_UNUSED.match(name):
            continue
        if not block:
            renamed[_rename(name, _HF_PARTS)] = tensor
            continue
        stage, number, part = block.groups()
        place = f"blocks.{stage}" if number is None else f"layers.{stage}.blocks.{number}"
        query = _HF_QUERY.fullmatch(part)
        if part.startswith("downsample."):
            renamed[f"layers.{stage}.{part}"] = tensor
        elif query:
            renamed |= _join_qkv(state, name, query[2], f"{place}.attn")
        elif not _HF_KEY_OR_VALUE.fullmatch(part):
            new = _rename(part, _HF_BLOCK_PARTS)
            new = re.sub(r"^ls(\d)\.gamma", r"gamma_\1", new) if is_eva else new
            new = new.replace("mlp.fc1.", "mlp.fc1_x.") if is_gated else new
            renamed[f"{place}.{new}"] = tensor
    return _reshape_clip(renamed)


def _join_qkv(state: StateDict, query: str, kind: str, attention: str) -> StateDict:
    """Join query, key and value as in timm; biases stay separate if the key has none."""
    names = {part: _sibling(query, part) for part in _QKV}
    if kind == "bias" and names["key"] not in state and names["value"] in state:
        return {
            f"{attention}.q_bias": state[query],
            f"{attention}.v_bias": state[names["value"]],
        }
    return {f"{attention}.qkv.{kind}": torch.cat(_query_key_value(state, query))}


def _sibling(query: str, part: str) -> str:
    """Return the name of the key or value that belongs to a query."""
    if ".q_proj." in query:
        return query.replace(".q_proj.", f".{part[0]}_proj.")
    return query.replace("query", part)


def _reshape_clip(state: StateDict) -> StateDict:
    """Give parts of CLIP and SigLIP the shapes of timm."""
    if state.get("cls_token") is not None and state["cls_token"].ndim == 1:
        state["cls_token"] = state["cls_token"][None, None]
    if state.get("pos_embed") is not None and state["pos_embed"].ndim == 2:
        state["pos_embed"] = state["pos_embed"][None]
    for kind in ("weight", "bias"):
        both = state.pop(f"head.attention.in_proj_{kind}", None)
        if both is not None and both.ndim:
            third = len(both) // 3
            state[f"attn_pool.q.{kind}"] = both[:third]
            state[f"attn_pool.kv.{kind}"] = both[third:]
    if "norm_pre.weight" in state and "head.weight" in state:  # a projection without bias
        state.setdefault("head.bias", state["head.weight"].new_zeros(len(state["head.weight"])))
    if "reg_token" in state and state["reg_token"].numel() == 0:
        del state["reg_token"]
    return state


#: Names in towers with nn.MultiheadAttention: OpenAI's CLIP, open_clip and torchvision.
_MULTIHEAD = (
    (r"^(?:transformer\.resblocks\.|encoder\.layers\.encoder_layer_)(\d+)\.", r"blocks.\1."),
    (r"\.(?:self_attention|attn)\.in_proj_", ".attn.qkv."),
    (r"\.(?:self_attention|attn)\.out_proj\.", ".attn.proj."),
    (r"\.ln_([12])\.", r".norm\1."),
    (r"\.ls_([12])\.", r".ls\1."),
    (r"\.mlp\.(?:c_fc|linear_1|0)\.", ".mlp.fc1."),
    (r"\.mlp\.(?:c_proj|linear_2|3)\.", ".mlp.fc2."),
    (r"^(?:class_embedding|class_token)$", "cls_token"),
    (r"^(?:positional_embedding|encoder\.pos_embedding)$", "pos_embed"),
    (r"^(?:conv1|conv_proj)\.", "patch_embed.proj."),
    (r"^ln_pre\.", "norm_pre."),
    (r"^(?:ln_post|encoder\.ln)\.", "norm."),
    (r"^heads\.head\.", "head."),
)
#: Names in torchvision's Swin, where stages and downsampling alternate.
_TORCHVISION_SWIN: tuple[tuple[str, Any], ...] = (
    (r"^features\.0\.0\.", "patch_embed.proj."),
    (r"^features\.0\.2\.", "patch_embed.norm."),
    (r"^features\.([1357])\.", lambda found: f"layers.{int(found[1]) // 2}.blocks."),
    (r"^features\.([246])\.", lambda found: f"layers.{int(found[1]) // 2}.downsample."),
    (r"\.mlp\.0\.", ".mlp.fc1."),
    (r"\.mlp\.3\.", ".mlp.fc2."),
    (r"^head\.", "head.fc."),
)


def _substitute(state: StateDict, table: tuple[tuple[str, Any], ...]) -> StateDict:
    renamed: StateDict = {}
    for name, tensor in state.items():
        if name == "proj" and tensor.ndim == 2:  # CLIP's projection
            name, tensor = "head.weight", tensor.T
        for old, new in table:
            name = re.sub(old, new, name)
        renamed[name] = tensor
    return _reshape_clip(renamed)


#: Parts of gated MLPs in dinov2, dinov3 and EVA; the norm is EVA's only.
_GATED = {"w12": "fc1", "w1": "fc1_g", "w2": "fc1_x", "w3": "fc2", "ffn_ln": "norm"}


def _from_trainers(state: StateDict) -> StateDict:
    """Rename parts of the authors' code: DINOv2, DINOv3, EVA, MAE, Swin."""
    is_dinov3 = "storage_tokens" in state
    has_q_proj = any(name.endswith("attn.q_proj.weight") for name in state)  # as in EVA-02
    is_swin = any(re.match(r"layers\.\d+\.blocks\.", name) for name in state)
    # In Microsoft's code and timm before 0.9, downsampling belongs to the stage before it.
    is_old_swin = is_swin and any(name.startswith("layers.0.downsample.") for name in state)
    renamed: StateDict = {}
    for name, tensor in state.items():
        if _UNUSED.match(name):
            continue
        new = re.sub(r"^blocks\.\d+\.(\d+)\.", r"blocks.\1.", name)  # DINOv2 trains in chunks
        new = {"register_tokens": "reg_token", "storage_tokens": "reg_token"}.get(new, new)
        new = re.sub(r"\.mlp\.(w\d+|ffn_ln)\.", lambda m: f".mlp.{_GATED.get(m[1], m[1])}.", new)
        new = new.replace(".attn.inner_attn_ln.", ".attn.norm.")
        new = re.sub(r"\.([qv])_bias$", r".\1_proj.bias", new) if has_q_proj else new
        if is_swin:
            new = re.sub(r"^head\.(weight|bias)$", r"head.fc.\1", new)
        if is_old_swin:
            new = re.sub(
                r"^layers\.(\d+)\.downsample", lambda m: f"layers.{int(m[1]) + 1}.downsample", new
            )
        if is_dinov3:
            new = re.sub(r"\.ls(\d)\.gamma$", r".gamma_\1", new)
            if new.endswith("attn.qkv.bias") and tensor.ndim == 1 and len(tensor) % 3 == 0:
                queries, _, values = tensor.chunk(3)  # DINOv3 masks the bias of the keys
                renamed[new.replace("qkv.bias", "q_bias")] = queries
                renamed[new.replace("qkv.bias", "v_bias")] = values
                continue
        if new in renamed:
            raise MessageError("it has a part twice")
        renamed[new] = tensor
    return renamed


def _move_cls_position(state: StateDict) -> StateDict:
    """Add the position of CLS to CLS, as timm adds none to the prefix of models with registers."""
    positions = state.get("pos_embed")
    if positions is not None and positions.ndim == 3:
        if "cls_token" not in state or positions[:, :1].shape != state["cls_token"].shape:
            raise MessageError("the position of CLS does not fit CLS")
        state["cls_token"] = state["cls_token"] + positions[:, :1]
        state["pos_embed"] = positions[:, 1:]
    return state


def _query_key_value(state: Mapping[str, Tensor], query: str) -> list[Tensor]:
    """Return the parts of query, key and value that exist, all of one shape."""
    names = [_sibling(query, part) for part in _QKV]
    parts = [state[name] for name in names if name in state]
    if len({part.shape for part in parts}) > 1 or not parts[0].ndim:
        raise MessageError("{query} does not fit its key and value", query=query)
    return parts


def _rename(name: str, parts: Mapping[str, str]) -> str:
    """Replace the longest known beginning of a name; unknown names stay, and are refused later."""
    for old in sorted(parts, key=len, reverse=True):
        if name == old or name.startswith(f"{old}."):
            return parts[old] + name[len(old) :]
    return name


def _from_jax(state: StateDict) -> StateDict:
    """Rename the JAX ViT's parts: kernels (in, out) become weights (out, in), heads are joined."""
    renamed: StateDict = {}
    for name, tensor in state.items():
        block = re.fullmatch(r"Transformer/encoderblock_(\d+)/(.+)", name)
        if name == "cls":
            renamed["cls_token"] = tensor
        elif name == "Transformer/posembed_input/pos_embedding":
            renamed["pos_embed"] = tensor
        elif name == "embedding/kernel" and tensor.ndim == 4:
            renamed["patch_embed.proj.weight"] = tensor.permute(3, 2, 0, 1)  # (P, P, 3, D)
        elif name == "embedding/bias":
            renamed["patch_embed.proj.bias"] = tensor
        elif not block:
            renamed.update(_from_flax(name, tensor, _JAX_PARTS, ""))
        elif block[2].startswith("MultiHeadDotProductAttention_1/"):
            renamed.update(_from_jax_attention(state, name, f"blocks.{block[1]}.attn"))
        else:
            renamed.update(_from_flax(block[2], tensor, _JAX_BLOCK, f"blocks.{block[1]}."))
    return {name: tensor.contiguous() for name, tensor in renamed.items()}


def _from_flax(name: str, tensor: Tensor, parts: Mapping[str, str], prefix: str) -> StateDict:
    layer, _, kind = name.rpartition("/")
    kinds = {"kernel": "weight", "scale": "weight", "bias": "bias"}
    if layer not in parts or kind not in kinds:
        return {name: tensor}  # unknown, refused later
    weight = tensor.T if kind == "kernel" and tensor.ndim == 2 else tensor
    return {f"{prefix}{parts[layer]}.{kinds[kind]}": weight}


def _from_jax_attention(state: StateDict, name: str, attention: str) -> StateDict:
    tensor = state[name]
    layer, kind = name.rsplit("/", 2)[1:]
    if kind not in ("kernel", "bias"):
        return {name: tensor}  # unknown, refused later
    if layer == "out" and kind == "bias":
        return {f"{attention}.proj.bias": tensor}
    if layer == "out" and tensor.ndim == 3:
        return {f"{attention}.proj.weight": tensor.flatten(0, 1).T}  # (heads, D_h, D)
    if layer != "query":
        return {} if layer in _QKV else {name: tensor}
    parts = _query_key_value(state, name)
    if kind == "kernel" and tensor.ndim > 1:  # each (D, heads, D_h)
        parts = [part.flatten(1).T for part in parts]
    qkv = torch.cat([part.flatten() if kind == "bias" else part for part in parts])
    return {f"{attention}.qkv.{'weight' if kind == 'kernel' else 'bias'}": qkv}
