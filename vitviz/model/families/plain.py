"""Families with one grid of patches: ViT, DeiT, EVA, BEiT, CaiT, and MLP-Mixer."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from ...common.language import Message
from ...common.query import Grid
from ...vit import VisionTransformer
from .description import (
    Family,
    Layer,
    Site,
    class_name,
    has_overlapping_kernel,
    is_timm,
    kinds_of,
    layer_at,
    present,
)

#: How the blocks of MLP-Mixer, ResMLP and gMLP mix tokens without attention.
_KINDS = {"MixerBlock": "mlp", "ResBlock": "linear", "SpatialGatingBlock": "gated"}
_WEIGHTS = {  # path of the linear layer that mixes tokens, by the class of the block
    "MixerBlock": "mlp_tokens.fc1",
    "ResBlock": "linear_tokens",
    "SpatialGatingBlock": "mlp_channels.gate.proj",
}


def _mixer_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    return tuple(
        Site(
            layer=layer_at(
                f"blocks.{index}",
                module.stem.dynamic_feat_size(input_size),
                module.stem.feat_ratio(as_scalar=False),
                input_size,
                heads=0,
                kind="mixing",
                refusal=Message(
                    "{layer} has no attention: it mixes tokens by weights that are the same for "
                    "every picture.",
                    layer=f"blocks.{index}",
                ),
            ),
            block=block,
            middle="" if class_name(block) == "SpatialGatingBlock" else "norm2",
            mixing=block.get_submodule(_WEIGHTS[class_name(block)]),
            steps=embedding_steps(module.stem),
        )
        for index, block in enumerate(module.blocks)
    )


def token_weights(site: Site) -> Tensor | None:
    """Return the token-mixing weights of a layer, (units, patches); None if it attends."""
    if site.layer.kind != "mixing" or site.mixing is None:
        return None
    return site.mixing.weight


def mixing_kinds(module: Any) -> frozenset[str]:
    """Return how an MLP-Mixer, ResMLP or gMLP mixes patches; empty for other models."""
    if not _is_mixer(module):
        return frozenset()
    return frozenset(_KINDS[class_name(block)] for block in module.blocks)


def _is_mixer(module: Any) -> bool:
    return is_timm(module, "mlp_mixer", "MlpMixer") and all(
        class_name(block) in _WEIGHTS for block in module.blocks
    )


MIXER = (
    Family(
        name="MLP-Mixer",
        recognises=_is_mixer,
        sites=_mixer_sites,
        positional_attention=lambda module: True,
    ),
)

_USUAL = {("Block", "Attention")}
_VIT = (_USUAL, {("ResPostBlock", "Attention")}, {("ParallelScalingBlock", "NoneType")})
_EVA = (
    {("EvaBlock", "EvaAttention")},
    {("EvaBlock", "AttentionRope")},
    {("EvaBlockPostNorm", "EvaAttention")},
)
_RELPOS = ({("RelPosBlock", "RelPosAttention")}, {("ResPostRelPosBlock", "RelPosAttention")})


def _middle(block: nn.Module) -> str:
    """Return the path of the module between attention and MLP: `Site.middle`."""
    kind = class_name(block)
    if kind.startswith("Parallel"):
        return ""
    return "mlp" if kind.startswith("ResPost") or kind.endswith("PostNorm") else "norm2"


def embedding_steps(embedding: Any) -> tuple[nn.Module, ...]:
    """Return `Site.steps` of a patch embedding: a hybrid's CNN, or a stem of convolutions.

    Users put such a stem in the place of timm's `proj`, as in "Early Convolutions Help Transformers
    See Better" (Xiao et al., NeurIPS 2021).
    """
    step: Any = getattr(embedding, "backbone", None) or getattr(embedding, "proj", None)
    return (step,) if step is not None and has_overlapping_kernel(step) else ()


def _global_sites(
    prefix: Callable[[Any], tuple[str, ...]],
    grid: Callable[[Any, Grid], Grid],
    step: Callable[[Any], Grid],
    *,
    biased: bool = False,
) -> Callable[[Any, Grid], tuple[Site, ...]]:
    """Return a function that describes a module with global attention in every layer."""

    def sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
        steps = embedding_steps(module.patch_embed)
        return tuple(
            Site(
                layer=layer_at(
                    f"blocks.{index}",
                    grid(module, input_size),
                    step(module),
                    input_size,
                    heads=getattr(block, "attn", block).num_heads,
                    kind="global",
                    prefix=prefix(module),
                ),
                block=block,
                middle=_middle(block),
                biased=biased,
                steps=steps,
            )
            for index, block in present(module.blocks)
        )

    return sites


def _timm(place: str, name: str, *kinds: set[tuple[str, str]]) -> Callable[[nn.Module], bool]:
    return lambda module: is_timm(module, place, name) and kinds_of(module.blocks) in kinds


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
    token = getattr(module, "reg_token", None)
    count = 0 if token is None else token.shape[1]
    return tuple(f"reg{number + 1}" for number in range(count))


def timm_grid(module: Any, input_size: Grid) -> Grid:
    """Return rows and columns of patches. timm's `grid_size` is stale if the size is dynamic."""
    rows, cols = module.patch_embed.dynamic_feat_size(input_size)
    return rows, cols


def timm_step(module: Any) -> Grid:
    height, width = module.patch_embed.feat_ratio(as_scalar=False)
    return height, width


_timm_sites = _global_sites(_timm_prefix, timm_grid, timm_step)
_biased_sites = _global_sites(_timm_prefix, timm_grid, timm_step, biased=True)

PLAIN = (
    Family(
        name="ViT",
        recognises=lambda module: isinstance(module, VisionTransformer),
        sites=_global_sites(
            _own_prefix,
            lambda module, input_size: module.patch_embed.grid_size,
            lambda module: module.patch_embed.patch_size,
        ),
    ),
    Family(
        name="ViT",
        recognises=_timm("vision_transformer", "VisionTransformer", *_VIT),
        sites=_timm_sites,
    ),
    Family(
        name="DeiT distilled",
        recognises=_timm("deit", "VisionTransformerDistilled", _USUAL),
        sites=_global_sites(lambda module: ("cls", "dist"), timm_grid, timm_step),
    ),
    Family(
        name="EVA",  # and DINOv3, and the ViTs with a rotary position embedding
        recognises=_timm("eva", "Eva", *_EVA),
        sites=_timm_sites,
        positional_attention=lambda module: module.rope is not None,
    ),
    Family(
        name="BEiT",
        recognises=_timm("beit", "Beit", _USUAL),
        sites=_biased_sites,
        positional_attention=lambda module: (
            module.rel_pos_bias is not None
            or any(b.attn.relative_position_bias_table is not None for b in module.blocks)
        ),
    ),
    Family(
        name="ViT with relative positions",
        recognises=_timm("vision_transformer_relpos", "VisionTransformerRelPos", *_RELPOS),
        sites=_biased_sites,
        positional_attention=lambda module: True,
    ),
)


def _cait_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe self-attention with talking heads (mixed around the softmax), then class attention.

    Patches attend to each other first; then only the class token attends.

    References
    ----------
    Touvron et al., "Going deeper with Image Transformers" (ICCV 2021), sections 3 and 4.
    """
    grid, step = timm_grid(module, input_size), timm_step(module)
    steps = embedding_steps(module.patch_embed)

    def layer(name: str, kind: str, block: Any, prefix: tuple[str, ...]) -> Layer:
        heads = block.attn.num_heads
        return layer_at(name, grid, step, input_size, heads=heads, kind=kind, prefix=prefix)

    patches = tuple(
        Site(
            layer=layer(f"blocks.{index}", "global", block, ()),
            block=block,
            mixing=block.attn.proj_w,
            steps=steps,
        )
        for index, block in present(module.blocks)
    )
    return patches + tuple(
        Site(
            layer=layer(f"blocks_token_only.{index}", "class", block, ("cls",)),
            block=block,
            steps=steps,
        )
        for index, block in present(module.blocks_token_only)
    )


def _is_cait(module: Any) -> bool:
    return (
        is_timm(module, "cait", "Cait")
        and kinds_of(module.blocks) == {("LayerScaleBlock", "TalkingHeadAttn")}
        and module.blocks_token_only is not None
        and kinds_of(module.blocks_token_only) == {("LayerScaleBlockClassAttn", "ClassAttn")}
    )


CAIT = (Family(name="CaiT", recognises=_is_cait, sites=_cait_sites, is_resampled=False),)
