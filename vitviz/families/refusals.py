"""Why a module is refused: of no known family, compiled, or in training mode; one sentence each."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ..language import Message, mark

#: By the class of the module, or of one of its parts: why it cannot be read.
_REASONS: Mapping[str, str] = {
    "Siglip2VisionEmbeddings": mark(
        "takes pictures as lists of patches, whose places are not followed yet"
    ),
    "AttentionDownsample": mark("shrinks the grid inside its attention, which is not undone yet"),
    "BottleneckAttn": mark("attends in single blocks of a CNN, whose places are not followed yet"),
    "CascadedGroupAttention": mark("feeds each head with the output of the one before"),
    "ChannelAttention": mark(
        "attends between channels in every second block, where tokens have no map"
    ),
    "ChannelAttentionV2": mark(
        "attends between channels in every second block, where tokens have no map"
    ),
    "ConvAttention": mark("attends over a map that convolutions have folded and unfolded"),
    "ConVit": mark("blends content and position attention with a gate, so it has two maps a head"),
    "CrossVit": mark("attends across two grids of patches of different size"),
    "CSATv2": mark("attends to frequencies and not to patches"),
    "DiffAttention": mark("subtracts one attention from another, so its rows are no shares"),
    "DiffParallelScalingBlock": mark(
        "subtracts one attention from another, so its rows are no shares"
    ),
    "CrossCovarianceAttn": mark("attends between channels and not between tokens"),
    "DeepseekVitClassifier": mark("wraps its encoder in a module that is not unwrapped yet"),
    "DeepseekVitEncoder": mark("is the encoder of a language model, whose blocks are not read yet"),
    "EfficientAdditiveAttention": mark("weighs tokens by one global query, so no token has a map"),
    "EfficientFormer": mark(
        "attends in its last blocks only, after a CNN that is not followed yet"
    ),
    "EfficientFormerV2": mark("mixes its heads by convolution, before and after the softmax"),
    "EfficientVit": mark("uses linear attention, which never forms a matrix of tokens"),
    "EfficientVitLarge": mark("uses linear attention, which never forms a matrix of tokens"),
    "FactorAttnConvRelPosEnc": mark("factorises its attention, so no matrix of tokens exists"),
    "FastVit": mark(
        "attends in its last blocks only, if at all, after a CNN that is not followed yet"
    ),
    "Gemma4VitClassifier": mark("wraps its encoder in a module that is not unwrapped yet"),
    "Gemma4VitEncoder": mark("is the encoder of a language model, whose blocks are not read yet"),
    "HaloAttn": mark("attends to overlapping blocks inside a CNN, whose places are not undone yet"),
    "Hiera": mark("reorders its tokens by mask unit, and their places are not undone yet"),
    "HieraDet": mark("pools its queries within windows, and their places are not undone yet"),
    "IFormer": mark("attends with one head in single blocks of a CNN, which is not followed yet"),
    "LambdaLayer": mark("turns its context into linear functions, so no matrix of tokens exists"),
    "LinearSelfAttention": mark("weighs tokens by one context score, so no token has a map"),
    "LowFormer": mark("attends in a map that convolutions have shrunk, which is not undone yet"),
    "MetaFormer": mark("attends in its last stages only, if at all, and they are not read yet"),
    "MobileNetV5": mark("attends in single blocks of a CNN, whose places are not followed yet"),
    "MobileNetV5Encoder": mark(
        "attends in single blocks of a CNN, whose places are not followed yet"
    ),
    "MobileVitBlock": mark(
        "folds the places of its pixels into the batch, and they are not undone yet"
    ),
    "MultiheadAttention": mark("hides its attention inside nn.MultiheadAttention, out of sight"),
    "MultiScaleAttention": mark(
        "pools queries and keys by convolution with a residual, not undone yet"
    ),
    "NaFlexVit": mark("takes pictures as lists of patches, whose places are not followed yet"),
    "Nest": mark("nests its tokens in blocks, whose places are not undone yet"),
    "OutlookAttention": mark("makes its weights from one token each and compares no two tokens"),
    "ParallelPartitionAttention": mark(
        "attends in windows and in a grid at once, so it has two maps"
    ),
    "ParallelThingsBlock": mark("runs two attentions side by side in a block, so it has two maps"),
    "PoolingVisionTransformer": mark("pools its tokens between stages, which is not followed yet"),
    "Qwen3VitClassifier": mark("wraps its encoder in a module that is not unwrapped yet"),
    "Qwen3VitEncoder": mark("is the encoder of a language model, whose blocks are not read yet"),
    "Sequencer2d": mark("has no attention: it runs a recurrent network along rows and columns"),
    "SHViT": mark("attends with one head on a part of its channels, which is not read yet"),
    "TNT": mark("attends inside each patch and between patches, so it has two maps a block"),
    "TinyVit": mark(
        "attends in padded windows beside convolutions, whose places are not undone yet"
    ),
    "Twins": mark(
        "attends in windows and to pooled keys by turns, whose places are not undone yet"
    ),
    "VisionTransformerSAM": mark("attends in padded windows, whose places are not undone yet"),
    "Visformer": mark("attends in its last stages only, after a CNN that is not followed yet"),
    "WindowAttentionGlobal": mark(
        "lets one set of queries serve every window, which is not undone yet"
    ),
    "XCA": mark("attends between channels and not between tokens"),
}

#: Parts that compute the same in training mode as in evaluation mode, such as a new head.
_WITHOUT_MODE = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Sequential, nn.ModuleList}


def why_unknown(module: nn.Module, families: Sequence[str]) -> Message:
    """One sentence: why `module` cannot be read.

    Parameters
    ----------
    module : nn.Module
        Of no known family.
    families : sequence of str
        The names of those that are known.
    """
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        return Message(
            "{name} is a traced module, in which no hook is heard: load it as it was written.",
            name=name,
        )
    if is_compiled(module):
        return _compiled(module)
    parts = {type(part).__name__ for part in module.modules()}
    for kind, reason in _REASONS.items():
        if kind in parts:
            return Message(
                "{name} cannot be read, as it {reason}.", name=name, reason=Message(reason)
            )
    known = ", ".join(sorted(set(families)))
    return Message(
        "{name} is not of a family that vitviz can read, which are {known}.", name=name, known=known
    )


def is_compiled(module: nn.Module) -> bool:
    """Whether the module, or a part of it, was compiled by `torch.compile` or `Module.compile`."""
    return any(
        part._compiled_call_impl is not None or "_orig_mod" in part._modules
        for part in module.modules()
    )


def why_unready(module: nn.Module) -> Message | None:
    """Why a forward pass of this module cannot be watched now, or None where it can.

    Asked before each pass, so it must be quick: `Module.modules` would take four times as long.
    """
    waiting: list[nn.Module | None] = [module]
    devices = set()
    for part in waiting:
        if part is None:
            continue
        devices |= {weight.device for weight in part._parameters.values() if weight is not None}
        if part.training and _has_mode(type(part)):
            name = next(name for name, other in module.named_modules() if other is part)
            return Message(
                "{name} is in training mode, in which a pass may be random and change the module: "
                "call eval() on the module first.",
                name=name or type(module).__name__,
            )
        if part._compiled_call_impl is not None or "_orig_mod" in part._modules:
            return _compiled(module)
        waiting += part._modules.values()
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        return Message(
            "The weights of {name} lie on several devices ({devices}), and a pass is followed on "
            "one: move the module to one of them.",
            name=type(module).__name__,
            devices=names,
        )
    return None


def _has_mode(kind: type[nn.Module]) -> bool:
    return kind not in _WITHOUT_MODE and not kind.__module__.startswith("torch.ao.nn.quantized")


def _compiled(module: nn.Module) -> Message:
    return Message(
        "{name} was compiled, and a compiled module ignores hooks: load it uncompiled.",
        name=type(module).__name__,
    )
