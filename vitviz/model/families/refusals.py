"""Reasons why a module is refused: of no known family, compiled, or in training mode."""

import inspect
import re
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from ...common.language import Message, mark
from .description import class_name, known_class

_LISTS = mark("takes pictures as lists of patches, and vitviz does not track their positions yet")
_PADDED = mark("attends in padded windows, and vitviz cannot map them back to the picture yet")

#: Why a module cannot be read, by a pattern of the whole class name of one of its parts; the first
#: counts. Classes of transformers copy one another, so some patterns stand for many.
_REASONS: Mapping[str, str] = {
    "Siglip2VisionEmbeddings|NaFlexVit": _LISTS,
    "AttentionDownsample|LevitAttention": mark(
        "shrinks the grid inside its attention, and vitviz cannot map it back to the picture yet"
    ),
    "BottleneckAttn|MobileAttention|MobileNetV5|MobileNetV5Encoder": mark(
        "attends in single blocks of a CNN, and vitviz does not track their positions yet"
    ),
    "CascadedGroupAttention": mark("feeds each head with the output of the head before it"),
    "ChannelAttention|ChannelAttentionV2": mark(
        "attends between channels in every second block, where tokens have no map"
    ),
    "ConvAttention": mark("attends over a map that convolutions have folded and unfolded"),
    "ConVit": mark("blends content and position attention with a gate, so it has two maps a head"),
    "CrossVit": mark("attends across two grids of patches of different size"),
    "CSATv2": mark("attends to frequencies and not to patches"),
    "DiffAttention|DiffParallelScalingBlock": mark(
        "subtracts one attention from another, so its rows do not sum to 1"
    ),
    "CrossCovarianceAttn|SelectiveKernelAttn|SplitAttn|XCA": mark(
        "attends between channels and not between tokens"
    ),
    "DeepseekVitClassifier|Gemma4VitClassifier|Qwen3VitClassifier": mark(
        "wraps its encoder in a module that vitviz does not unwrap yet"
    ),
    "DeepseekVitEncoder|Gemma4VitEncoder|Qwen3VitEncoder": mark(
        "is the encoder of a language model, and vitviz does not read its blocks yet"
    ),
    "EfficientAdditiveAttention|SwiftFormerEfficientAdditiveAttention": mark(
        "weighs tokens by one global query, so no token has a map"
    ),
    "EfficientFormer": mark(
        "attends in its last blocks only, after a CNN that vitviz does not track yet"
    ),
    "EfficientFormerV2": mark("mixes its heads by convolution, before and after the softmax"),
    "EfficientVit|EfficientVitLarge": mark(
        "uses linear attention, which never forms a matrix of tokens"
    ),
    "FactorAttnConvRelPosEnc": mark("factorises its attention, so no matrix of tokens exists"),
    "FeatureListNet|FeatureDictNet": mark(
        "was taken apart by features_only, which renames its stages"
    ),
    "FastVit": mark(
        "attends in its last blocks at most, after a CNN that vitviz does not track yet"
    ),
    "HaloAttn": mark(
        "attends to overlapping blocks inside a CNN, and vitviz cannot map them back to the "
        "picture yet"
    ),
    "Hiera|HieraMaskUnitAttention": mark(
        "reorders its tokens by mask unit, and vitviz cannot map them back to the picture yet"
    ),
    "HieraDet|Sam2MultiScaleAttention": mark(
        "pools its queries within windows, and vitviz cannot map them back to the picture yet"
    ),
    "IFormer": mark(
        "attends with one head in single blocks of a CNN, which vitviz does not track yet"
    ),
    "LambdaLayer": mark("turns its context into linear functions, so no matrix of tokens exists"),
    "LinearSelfAttention|MobileViTV2LinearSelfAttention": mark(
        "weighs tokens by one context score, so no token has a map"
    ),
    "LowFormer": mark(
        "attends in a map that convolutions have shrunk, and vitviz cannot map it back to the "
        "picture yet"
    ),
    "MetaFormer": mark("attends in its last stages at most, and vitviz does not read them yet"),
    "MobileVitBlock|MobileViTSelfAttention": mark(
        "folds pixel positions into the batch, and vitviz cannot map them back to the picture yet"
    ),
    "MultiScaleAttention": mark(
        "pools queries and keys by a convolution with a residual, and vitviz cannot map them back"
        " yet"
    ),
    "Nest": mark("nests its tokens in blocks, and vitviz cannot map them back to the picture yet"),
    "OutlookAttention": mark(
        "computes its weights from single tokens and never compares two tokens"
    ),
    "ParallelPartitionAttention": mark(
        "attends in windows and in a grid at once, so it has two maps"
    ),
    "ParallelThingsBlock": mark("runs two attentions side by side in a block, so it has two maps"),
    "PoolingVisionTransformer": mark(
        "pools its tokens between stages, which vitviz does not track yet"
    ),
    "Sequencer2d": mark("has no attention: it runs a recurrent network along rows and columns"),
    "SHViT": mark(
        "attends with one head on a part of its channels, which vitviz does not read yet"
    ),
    "TNT": mark("attends inside each patch and between patches, so it has two maps a block"),
    "TinyVit": mark(
        "attends in padded windows beside convolutions, and vitviz cannot map them back to the "
        "picture yet"
    ),
    "VisionTransformerSAM|.*Sam(HQ)?Vision(Sdpa)?Attention|"
    "(GotOcr2|SLANeXt|PPFormulaNet)VisionAttention|VitDetAttention|Sam3ViTLayer": _PADDED,
    "Visformer": mark(
        "attends in its last stages only, after a CNN that vitviz does not track yet"
    ),
    "WindowAttentionGlobal": mark(
        "uses one set of queries for every window, which vitviz does not read yet"
    ),
    "(VideoMAE|Timesformer|Vivit|VJEPA2)Embeddings|XCLIPVisionEncoder|VideoPrism.*Embeddings|"
    "TvpModel|VideomtForUniversalSegmentation": mark(
        "takes videos, whose tokens have a time beside their position"
    ),
    "ViTMAEEmbeddings": mark(
        "shuffles its patches at random before its first block, so its tokens have no fixed "
        "positions"
    ),
    "YolosEmbeddings": mark(
        "has tokens for objects after its patches, which vitviz does not track yet"
    ),
    "Eomt(Dinov3)?ForUniversalSegmentation": mark(
        "adds queries for objects to the tokens of its last blocks, which vitviz does not track yet"
    ),
    "SegformerAttention|(GLPN|Pvt)EfficientSelfAttention": mark(
        "attends to keys that a convolution has pooled, which vitviz does not track yet"
    ),
    "CvtSelfAttention": mark(
        "makes its keys by convolutions that shrink their grid, which vitviz does not track yet"
    ),
    "GroupViTAssignAttention": mark(
        "assigns its patches to groups, and attends between groups from there on"
    ),
    "NeighborhoodAttention": mark("attends to neighbours of each patch, by kernels of its own"),
    "PerceiverAttention": mark(
        "attends from learned vectors to the pixels, so its tokens have no position in the picture"
    ),
    "ImageGPTAttention": mark("reads a picture as a row of coloured points and not as patches"),
    "SegGptAttention": mark("reads two pictures in one, an example and a question"),
    "PixtralVisionModel": mark(
        "joins the patches of all its pictures into one row, which vitviz cannot split yet"
    ),
    "ViltEmbeddings|LayoutLMv3PatchEmbeddings|FlavaMultimodalModel|GitEmbeddings|FuyuModel|"
    "VisualBertEmbeddings|UdopStack": mark(
        "reads picture and text in one row of tokens, which vitviz cannot separate yet"
    ),
    "(EfficientLoFTR|SuperGlue|LightGlue)Attention": mark(
        "takes two pictures, and attends from one to the other"
    ),
    ".*DeformableAttention": mark(
        "attends to a few points between the patches, which have no map of patches"
    ),
    "(.*D[Ee][Tt][Rr]|TableTransformer)(En|De)coderLayer": mark(
        "looks for objects by queries of its own in feature maps, which vitviz does not track yet"
    ),
}
#: Arguments of the forward of transformers' classes that read text or sound.
_OF_TEXT = frozenset({
    "input_ids", "input_text_embeds", "text_hidden_states", "query_embeds", "input_features",
    "audio_mel", "code", "codes",
})  # fmt: skip
#: Arguments of the forward of towers that read lists of patches.
_GIVEN_LISTS = frozenset({"grid_thw", "pixel_position_ids", "spatial_shapes", "flattened_patches"})

_FEATURE_NETS = {"FeatureListNet", "FeatureDictNet"}  # of timm's features_only

#: Patterns in the names of classes that attend, and in the paths of parts that read the picture.
_ATTENTION = re.compile("[Aa]ttention|Attn|MHSA")
_PICTURE = re.compile("vis|image|pixel|backbone", re.IGNORECASE)

#: Attention kernels of transformers whose weights no hook can read.
_OPAQUE_KERNELS = re.compile("flex|flash|/")  # "/": names of repositories of kernels

#: Parts that compute the same in training and evaluation mode, such as a new head.
_WITHOUT_MODE = {nn.Linear, nn.LayerNorm, nn.Identity, nn.Sequential, nn.ModuleList}


def explain_unknown(module: nn.Module, families: Sequence[str]) -> Message:
    """Return why `module`, which no family recognises, cannot be read.

    Parameters
    ----------
    families : sequence of str
        Names of the known families.
    """
    name = type(module).__name__
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        return Message(
            "{name} is a traced module, which ignores hooks. Load it from its original code.",
            name=name,
        )
    if is_compiled(module):
        return _explain_compiled(module)
    parts, attention = {class_name(part) for part in module.modules()}, _attention_in(module)
    if not any(class_name(p) in _FEATURE_NETS and _attention_in(p) for p in module.modules()):
        parts -= _FEATURE_NETS  # the CNN of a detector, say, which has no attention
    reasons = [
        reason
        for pattern, reason in _REASONS.items()
        if any(re.fullmatch(pattern, part) for part in parts)
    ]
    if not any(getattr(part, "window_size", 0) for part in module.modules()):
        reasons = [reason for reason in reasons if reason != _PADDED]
    if not reasons and any(_takes_lists(part) for part in module.modules()):
        reasons = [_LISTS]
    if not reasons and attention == "MultiheadAttention":
        reasons = [
            mark("computes its attention inside nn.MultiheadAttention, where no hook reaches it")
        ]
    if reasons:
        return Message("{name} cannot be read: it {reason}.", name=name, reason=Message(reasons[0]))
    arguments = _text_arguments(module)
    encoder = getattr(module, "vision_model", None)
    if arguments and encoder is not None and _attention_in(encoder) is None:
        return Message("The image encoder of {name} has no attention to draw a map of.", name=name)
    if arguments and any("pixel" in one for one in arguments):
        return Message(
            "{name} reads a text beside the picture ({given}), and vitviz gives it a picture "
            "only. Give watch its image encoder.",
            name=name,
            given=next(one for one in arguments if one in _OF_TEXT),
        )
    if arguments:
        return Message("{name} takes {given} instead of a picture.", name=name, given=arguments[0])
    if attention and re.search("(En|De)coder$", name) and not _convolves(module):
        return Message(
            "{name} takes tokens instead of a picture. Give watch the model that it is a part of.",
            name=name,
        )
    if attention:
        return Message(
            "{name} cannot be read: vitviz does not read blocks with {attention} yet.",
            name=name,
            attention=attention,
        )
    if known_class(module).__module__.startswith(("timm.", "transformers.", "torchvision.")):
        return Message("{name} has no attention to draw a map of.", name=name)
    names = ", ".join(sorted(set(families)))
    return Message(
        "{name} is of no family that vitviz can read. It reads {known}.", name=name, known=names
    )


def _text_arguments(module: nn.Module) -> list[str]:
    """Return the inputs of a class of transformers that reads text or sound; [] for any other."""
    if not known_class(module).__module__.startswith("transformers."):
        return []
    names = [*inspect.signature(module.forward).parameters]
    return names if _OF_TEXT.intersection(names) else []


def _convolves(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Conv2d) for part in module.modules())


def _takes_lists(part: nn.Module) -> bool:
    return not _GIVEN_LISTS.isdisjoint(inspect.signature(part.forward).parameters)


def _attention_in(module: nn.Module) -> str | None:
    """Return the first class with attention in its name, preferably in a part for pictures."""
    classes = [
        (_PICTURE.search(path) is None, class_name(part))
        for path, part in module.named_modules()
        if path and _ATTENTION.search(class_name(part))
    ]
    return min(classes, key=lambda each: each[0])[1] if classes else None


def is_compiled(module: nn.Module) -> bool:
    """Whether `torch.compile` or `Module.compile` compiled the module or a part of it."""
    return any(map(_is_compiled, module.modules()))


def _is_compiled(part: nn.Module) -> bool:
    own = vars(part)
    return (
        part._compiled_call_impl is not None
        or "_orig_mod" in part._modules
        or ("forward" in own and hasattr(own["forward"], "_torchdynamo_orig_callable"))
    )


def explain_unready(module: nn.Module) -> Message | None:
    """Return why a forward pass of this module cannot be watched now, or None if it can.

    Called before each pass, so it must be quick: `Module.modules` would take four times as long.
    """
    waiting: list[nn.Module | None] = [module]
    devices = set()
    for part in waiting:
        if part is None:
            continue
        own = vars(part)
        for weight in part._parameters.values():
            if weight is not None:
                devices.add(weight.device)
        if part.training and _has_mode(type(part)):
            name = next(name for name, other in module.named_modules() if other is part)
            return Message(
                "{name} is in training mode, where a pass may be random and change the module. "
                "Call eval() on the module first.",
                name=name or type(module).__name__,
            )
        if _is_compiled(part):
            return _explain_compiled(module)
        hook = own.get("_hf_hook")  # of accelerate
        if hook is not None and any(
            getattr(each, "offload", False) for each in getattr(hook, "hooks", [hook])
        ):
            return Message(
                "The weights of {name} are offloaded, and loaded only while a part runs. Load "
                "the model without offloading, or call remove_hook_from_module(..., "
                "recurse=True) of accelerate on it.",
                name=type(module).__name__,
            )
        config = own.get("config")
        kernel = None if config is None else getattr(config, "_attn_implementation", None)
        if isinstance(kernel, str) and _OPAQUE_KERNELS.search(kernel):
            return Message(
                "{name} computes its attention by {kernel}, whose weights no hook can read. "
                'Call set_attn_implementation("sdpa") on it first.',
                name=type(part).__name__,
                kernel=kernel,
            )
        waiting += part._modules.values()
    if len(devices) > 1:
        names = " and ".join(sorted(map(str, devices)))
        return Message(
            "The weights of {name} are on several devices ({devices}). Move the module to one "
            "of them.",
            name=type(module).__name__,
            devices=names,
        )
    return None


def _has_mode(kind: type[nn.Module]) -> bool:
    return kind not in _WITHOUT_MODE and not kind.__module__.startswith("torch.ao.nn.quantized")


def _explain_compiled(module: nn.Module) -> Message:
    return Message(
        "{name} was compiled, and a compiled module ignores hooks. Load it without compiling it.",
        name=type(module).__name__,
    )
