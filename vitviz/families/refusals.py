"""Why a module that is of no family is not read: one sentence each."""

from collections.abc import Mapping, Sequence

import torch
from torch import nn

#: By the class of the module, or of one of its parts: what stands in the way.
_REASONS: Mapping[str, str] = {
    "CascadedGroupAttention": "feeds each head with the output of the one before",
    "ChannelAttention": "attends between channels in every second block, where tokens have no map",
    "ChannelAttentionV2": (
        "attends between channels in every second block, where tokens have no map"
    ),
    "ConvAttention": "attends over a map that convolutions have folded and unfolded",
    "ConVit": "blends content and position attention with a gate, so it has two maps a head",
    "CrossVit": "attends across two grids of patches of different size",
    "DiffAttention": "subtracts one attention from another, so its rows are no shares",
    "DiffParallelScalingBlock": "subtracts one attention from another, so its rows are no shares",
    "CrossCovarianceAttn": "attends between channels and not between tokens",
    "EfficientAdditiveAttention": "weighs tokens by one global query, so no token has a map",
    "FactorAttnConvRelPosEnc": "factorises its attention, so no matrix of tokens exists",
    "HaloAttn": "attends to overlapping blocks inside a CNN, whose places are not undone yet",
    "Hiera": "reorders its tokens by mask unit, and their places are not undone yet",
    "HieraDet": "pools its queries within windows, and their places are not undone yet",
    "LinearSelfAttention": "weighs tokens by one context score, so no token has a map",
    "MobileVitBlock": "folds the places of its pixels into the batch, and they are not undone yet",
    "MultiheadAttention": "hides its attention inside nn.MultiheadAttention, out of sight",
    "MultiScaleAttention": "pools queries and keys by convolution with a residual, not undone yet",
    "NaFlexVit": "takes pictures as lists of patches, whose places are not followed yet",
    "OutlookAttention": "makes its weights from one token each and compares no two tokens",
    "ParallelPartitionAttention": "attends in windows and in a grid at once, so it has two maps",
    "ParallelThingsBlock": "runs two attentions side by side in a block, so it has two maps",
    "VisionTransformerSAM": "attends in padded windows, whose places are not undone yet",
    "XCA": "attends between channels and not between tokens",
}


def why_unknown(module: nn.Module, families: Sequence[str]) -> str:
    """One sentence: what is missing to read `module`.

    Parameters
    ----------
    module : nn.Module
        Of no known family.
    families : sequence of str
        The names of those that are known.
    """
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        return f"{name} is a traced module, in which no hook is heard: load it as it was written."
    if is_compiled(module):
        return f"{name} was compiled, and a compiled module ignores hooks: load it uncompiled."
    parts = {type(part).__name__ for part in module.modules()}
    for kind, reason in _REASONS.items():
        if kind in parts:
            return f"{name} cannot be read, as it {reason}."
    known = ", ".join(sorted(set(families)))
    return f"{name} is no family that vitviz can read: it reads {known}."


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` or `Module.compile` has been at work on it or a part of it."""
    return any(
        type(part).__name__ == "OptimizedModule" or part._compiled_call_impl is not None
        for part in module.modules()
    )
