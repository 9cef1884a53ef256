"""Models of transformers: ViT, DeiT, DINO, BEiT, CLIP, SigLIP, and Swin and PVT with stages.

Nothing here imports transformers: its modules are recognised by their class names.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from ...common.query import Grid
from .description import (
    Family,
    ModelError,
    Parts,
    Site,
    class_name,
    has_weights,
    known_class,
    layer_at,
    without_adapter,
)
from .staged import halve_grid, pvt_sites, shifted_windows

_HEADS = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One encoder of transformers, and the classes that put a head on it.

    Attributes
    ----------
    place, name : its folder in transformers.models, and its class
    wholes : path of the encoder in each class that contains it: a model with a head, or a backbone,
        whose answer is the mean of its last feature map; "" if the backbone itself has its parts
    """

    place: str
    name: str
    wholes: Mapping[str, str]

    def path(self, module: nn.Module) -> str | None:
        """Return the path of the encoder in a module; None if the module does not contain it."""
        kind = known_class(module)
        if kind.__module__ != f"transformers.models.{self.place}.modeling_{self.place}":
            return None
        path = "" if kind.__name__ == self.name else self.wholes.get(kind.__name__)
        if path and known_class(module.get_submodule(path)).__name__ != self.name:
            return None
        return path

    def path_of(self, module: nn.Module, part: str) -> str:
        """Return the path in the module of a part of the encoder."""
        return ".".join(filter(None, (self.path(module), part)))

    def of(self, module: nn.Module) -> Any:
        """Return the encoder of a module."""
        return module.get_submodule(self.path(module) or "")


@dataclass(frozen=True, kw_only=True)
class _Plain(Encoder):
    """An encoder in which every token attends to every token.

    Attributes
    ----------
    blocks, block, middle : path of the blocks in the encoder, their class, and `Site.middle`
    patches, kernel : paths of the patch embedding, and of the convolution in it
    norm, pooled_norm, positions : paths in the encoder; "" if there is none
    unnormed : classes whose pooled tokens do not go through `pooled_norm`
    prefix : callable(encoder) -> names of the prefix tokens
    resizes : whether it interpolates its positions only with `interpolate_pos_encoding`
    pooled : callable(encoder) -> whether its pooled output is an embedding of the picture
    """

    blocks: str
    block: str
    middle: str
    patches: str = "embeddings.patch_embeddings"
    kernel: str = "embeddings.patch_embeddings.projection"
    norm: str = "layernorm"
    pooled_norm: str = ""
    positions: str = "embeddings.position_embeddings"
    unnormed: tuple[str, ...] = ()
    prefix: Callable[[Any], tuple[str, ...]] = lambda encoder: ("cls",)
    biased: bool = False
    resizes: bool = False
    pooled: Callable[[Any], bool] = lambda encoder: False

    def recognises(self, module: nn.Module) -> bool:
        if self.path(module) is None:
            return False
        blocks: Any = self.of(module).get_submodule(self.blocks)
        return {class_name(block) for block in blocks} == {self.block}

    def sites(self, module: Any, input_size: Grid) -> tuple[Site, ...]:
        encoder, path = self.of(module), self.path_of(module, self.blocks)
        height, width = without_adapter(encoder.get_submodule(self.kernel)).kernel_size
        return tuple(
            Site(
                layer=layer_at(
                    f"{path}.{index}",
                    (input_size[0] // height, input_size[1] // width),
                    (height, width),
                    input_size,
                    heads=encoder.config.num_attention_heads,
                    kind="global",
                    prefix=self.prefix(encoder),
                ),
                block=block,
                middle=self.middle,
                biased=self.biased,
            )
            for index, block in enumerate(
                stages_before_answer(module, encoder.get_submodule(self.blocks))
            )
        )

    def parts(self, module: Any) -> Parts:
        encoder = self.of(module)
        heads, name = heads_of(module), class_name(module)
        return Parts(
            embedding=encoder.get_submodule(self.patches),
            kernel=encoder.get_submodule(self.kernel),
            norm=_get_path(encoder, self.norm) if _is_normed(module) else None,
            pooled_norm=None if name in self.unnormed else _get_path(encoder, self.pooled_norm),
            positions=table_at(self, module, self.positions),
            prefix=_prefix_tokens(encoder.embeddings),
            heads=heads,
            width=encoder.config.hidden_size,
            has_head=has_head(module),
            embeds=heads == ("visual_projection",) or (not heads and self.pooled(encoder)),
        )

    def options(self, module: Any, input_size: Grid) -> Mapping[str, Any]:
        return forward_options(input_size, self.of(module) if self.resizes else None)

    def features(self, module: Any, tokens: Tensor) -> Tensor:
        """Return CLS, or the mean of the patches if there is no CLS."""
        return tokens[:, 0] if self.prefix(self.of(module)) else tokens.mean(dim=1)


def stages_before_answer(module: Any, stages: Any) -> Any:
    """Return the stages or blocks that the answer depends on: a backbone may skip the last."""
    if not class_name(module).endswith("Backbone"):
        return stages
    names = module.stage_names
    last = max(each % len(names) for each in module.out_indices) + (names[0] != "stem")
    if not last:
        raise ModelError(
            "{name} returns only the map of its patch embedding, before any layer. Give it later "
            "out_indices.",
            name=type(module).__name__,
        )
    return stages[:last]


def _is_normed(module: Any) -> bool:
    """Whether the encoder's last norm is applied before the answer; some backbones skip it."""
    name = class_name(module)
    if not name.endswith("Backbone"):
        return True
    if name == "DINOv3ViTBackbone" and module.stage_names[-1] in module.out_features:
        return True
    return bool(getattr(module.config, "apply_layernorm", False))


def heads_of(module: nn.Module) -> tuple[str, ...]:
    """Return the names of the heads of a model of transformers."""
    return tuple(name for name in _HEADS if hasattr(module, name))


def has_head(module: Any) -> bool:
    """Whether a head has weights: without labels it is an Identity."""
    return any(has_weights(getattr(module, name)) for name in heads_of(module))


def table_at(row: Encoder, module: Any, path: str) -> str:
    """Return the path in the module of a table of the encoder; "" if there is none."""
    return "" if _get_path(row.of(module), path) is None else row.path_of(module, path)


def _prefix_tokens(embeddings: Any) -> tuple[Tensor, ...]:
    names = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
    return tuple(getattr(embeddings, name) for name in names if hasattr(embeddings, name))


def forward_options(input_size: Grid, encoder: Any = None) -> Mapping[str, Any]:
    """Return keyword arguments of a forward of transformers.

    Give the encoder if it interpolates its positions only with `interpolate_pos_encoding`.
    """
    options = {"return_dict": True}
    if encoder is None or image_size(encoder.config) == input_size:
        return options
    return {**options, "interpolate_pos_encoding": True}


def image_size(config: Any) -> Grid:
    """Return height and width of the pictures in a configuration of transformers."""
    size = config.image_size
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _get_path(module: Any, path: str) -> Any:
    """Return the part or parameter at this path; None if there is none."""
    for name in filter(None, path.split(".")):
        module = getattr(module, name, None)
    return module if path else None


def _registers(encoder: Any) -> tuple[str, ...]:
    return ("cls", *(f"reg{n + 1}" for n in range(encoder.config.num_register_tokens)))


def _is_positional(encoder: Any) -> bool:
    """Whether a BEiT adds a bias of relative positions to its scores."""
    config = encoder.config
    return bool(config.use_relative_position_bias or config.use_shared_relative_position_bias)


def _family(
    name: str, row: _Plain, positional: Callable[[Any], bool] = lambda encoder: False
) -> Family:
    return Family(
        name=name,
        recognises=row.recognises,
        sites=row.sites,
        parts=row.parts,
        options=row.options,
        features=row.features,
        positional_attention=lambda module: positional(row.of(module)),
    )


def _name_row(place: str, word: str, **options: Any) -> _Plain:
    """Build the row of an encoder whose class names share a word, as ViTModel and ViTLayer do."""
    usual = dict(
        name=f"{word}Model",
        wholes={f"{word}ForImageClassification": place},
        blocks="layers",
        block=f"{word}Layer",
        middle="layernorm_after",
    )
    return _Plain(place=place, **{**usual, **options})


_DINO = dict(blocks="encoder.layer", middle="norm2")
_VITS = (
    _name_row("vit", "ViT", resizes=True),
    _name_row("vit_msn", "ViTMSN", wholes={"ViTMSNForImageClassification": "vit"}, resizes=True),
    _name_row("ijepa", "IJepa", prefix=lambda encoder: (), resizes=True),
    _name_row(
        "dinov2",
        "Dinov2",
        wholes={"Dinov2ForImageClassification": "dinov2", "Dinov2Backbone": ""},
        **_DINO,
    ),
    _name_row(
        "dinov2_with_registers",
        "Dinov2WithRegisters",
        wholes={
            "Dinov2WithRegistersForImageClassification": "dinov2_with_registers",
            "Dinov2WithRegistersBackbone": "",
        },
        prefix=_registers,
        **_DINO,
    ),
)
_DEIT = _name_row(
    "deit",
    "DeiT",
    wholes={
        "DeiTForImageClassification": "deit",
        "DeiTForImageClassificationWithTeacher": "deit",
    },
    prefix=lambda encoder: ("cls", "dist"),
    resizes=True,
)
_DINOV3 = _name_row(
    "dinov3_vit",
    "DINOv3ViT",
    wholes={"DINOv3ViTBackbone": ""},
    blocks="model.layer",
    middle="norm2",
    kernel="embeddings.patch_embeddings",
    norm="norm",
    positions="",
    prefix=_registers,
)
_BEIT = _name_row(
    "beit",
    "Beit",
    wholes={"BeitForImageClassification": "beit", "BeitBackbone": "beit"},
    pooled_norm="pooler.layernorm",
    biased=True,
)
_TOWER: dict[str, Any] = dict(
    blocks="encoder.layers",
    middle="layer_norm2",
    patches="embeddings.patch_embedding",
    kernel="embeddings.patch_embedding",
    positions="embeddings.position_embedding.weight",
    resizes=True,
)
_CLIP = _Plain(
    place="clip",
    name="CLIPVisionModel",
    wholes={
        "CLIPModel": "vision_model",
        "CLIPVisionModelWithProjection": "vision_model",
        "CLIPForImageClassification": "vision_model",
    },
    block="CLIPEncoderLayer",
    norm="",
    pooled_norm="post_layernorm",
    unnormed=("CLIPForImageClassification",),
    **_TOWER,
)
_METACLIP = replace(
    _CLIP,
    place="metaclip_2",
    name="MetaClip2VisionModel",
    wholes={
        "MetaClip2Model": "vision_model",
        "MetaClip2VisionModelWithProjection": "vision_model",
        "MetaClip2ForImageClassification": "vision_model",
    },
    block="MetaClip2EncoderLayer",
    unnormed=("MetaClip2ForImageClassification",),
)
_KIN_OF_CLIP = tuple(
    replace(
        _CLIP,
        place=place,
        name=f"{word}VisionModel",
        wholes={f"{word}Model": "vision_model"},
        block=f"{word}{block}",
        unnormed=(),
    )
    for place, word, block in (
        ("altclip", "AltCLIP", "EncoderLayer"),
        ("chinese_clip", "ChineseCLIP", "VisionLayer"),
        ("clipseg", "CLIPSeg", "EncoderLayer"),
    )
)
_TIPS = _name_row(
    "tipsv2",
    "Tipsv2Vision",
    wholes={"Tipsv2Model": "vision_model"},
    prefix=_registers,
    pooled=lambda encoder: True,
    **_DINO,
)
_SIGLIP = _Plain(
    place="siglip",
    name="SiglipVisionModel",
    wholes={"SiglipModel": "vision_model", "SiglipForImageClassification": "vision_model"},
    block="SiglipEncoderLayer",
    norm="post_layernorm",
    prefix=lambda encoder: (),
    pooled=lambda encoder: encoder.use_head,
    **_TOWER,
)

TRANSFORMERS = (
    *(_family("ViT", row) for row in _VITS),
    _family("DeiT distilled", _DEIT),
    _family("DINOv3", _DINOV3, positional=lambda encoder: True),
    _family("BEiT", _BEIT, positional=_is_positional),
    *(_family("CLIP", row) for row in (_CLIP, _METACLIP, *_KIN_OF_CLIP)),
    _family("TIPS", _TIPS),
    _family("SigLIP", _SIGLIP),
)

#: The rows of Swin and Swin V2, by the class of their blocks.
_SWIN = {
    "SwinLayer": Encoder(
        place="swin",
        name="SwinModel",
        wholes={"SwinForImageClassification": "swin", "SwinBackbone": "swin"},
    ),
    "Swinv2Layer": Encoder(
        place="swinv2",
        name="Swinv2Model",
        wholes={"Swinv2ForImageClassification": "swinv2", "Swinv2Backbone": ""},
    ),
}
_PVT = Encoder(
    place="pvt_v2",
    name="PvtV2Model",
    wholes={"PvtV2ForImageClassification": "pvt_v2", "PvtV2Backbone": ""},
)


def _swin_of(module: nn.Module) -> Encoder | None:
    """Return the row of a Swin if all of its blocks are known."""
    for block, encoder in _SWIN.items():
        if encoder.path(module) is not None:
            stages = encoder.of(module).encoder.layers
            is_known = all(class_name(b) == block for stage in stages for b in stage.blocks)
            return encoder if is_known else None
    return None


def _swin(module: nn.Module) -> tuple[Encoder, Any]:
    """Return row and encoder of a recognised module, some of whose blocks may be exchanged."""
    row = next(encoder for encoder in _SWIN.values() if encoder.path(module) is not None)
    return row, row.of(module)


def _swin_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    """Describe Swin: the picture is padded to whole patches, the grid to even sides."""
    row, encoder = _swin(module)
    step: Grid = without_adapter(encoder.embeddings.patch_embeddings.projection).kernel_size
    grid: Grid = (-(-input_size[0] // step[0]), -(-input_size[1] // step[1]))
    sites = []
    for number, stage in enumerate(stages_before_answer(module, encoder.encoder.layers)):
        if number:
            grid, step = halve_grid(grid), (2 * step[0], 2 * step[1])
        for index, block in enumerate(stage.blocks):
            name = row.path_of(module, f"encoder.layers.{number}.blocks.{index}")
            heads = encoder.config.num_heads[number]
            layer = layer_at(name, grid, step, input_size, heads=heads, stage=number)
            window, shift = int(block.window_size), int(block.shift_size)
            always = class_name(module) == "SwinBackbone"  # shifts even if one window is the grid
            if class_name(block) == "SwinLayer" and min(grid) <= window and not always:
                if min(grid) < window:  # its relative positions are for whole windows
                    raise ModelError(
                        "This Swin of transformers attends in windows of {window} x {window} "
                        "patches, and a picture of {height} x {width} pixels has {rows} x "
                        "{cols} in stage {stage}. Choose a larger input.",
                        window=window,
                        height=input_size[0],
                        width=input_size[1],
                        rows=grid[0],
                        cols=grid[1],
                        stage=number + 1,
                    )
                shift = 0
            windows = shifted_windows(grid, (window,) * 2, (shift,) * 2, padded_first=True)
            middle = "layernorm_after" if class_name(block) == "SwinLayer" else "intermediate"
            sites.append(Site(layer=layer, block=block, middle=middle, windows=windows))
    return tuple(sites)


def _swin_parts(module: Any) -> Parts:
    row, encoder = _swin(module)
    norm = getattr(encoder, "layernorm", None)
    if class_name(module) == "SwinBackbone":  # which has a norm for each of its maps
        norm = module.hidden_states_norms[module.out_features[-1]]
    return Parts(
        embedding=encoder.embeddings.patch_embeddings,
        kernel=encoder.embeddings.patch_embeddings.projection,
        norm=norm,
        pooled_norm=None,
        positions=table_at(row, module, "embeddings.position_embeddings"),
        prefix=(),
        heads=heads_of(module),
        width=_last_width(encoder.num_features),
        has_head=has_head(module),
    )


def _last_width(widths: int | list[int]) -> int:
    return widths if isinstance(widths, int) else widths[-1]


def _is_pvt(module: nn.Module) -> bool:
    return _PVT.path(module) is not None and all(
        class_name(block) == "PvtV2BlockLayer"
        for stage in _PVT.of(module).encoder.layers
        for block in stage.blocks
    )


def _pvt_sites(module: Any, input_size: Grid) -> tuple[Site, ...]:
    stages = enumerate(stages_before_answer(module, _PVT.of(module).encoder.layers))
    return pvt_sites(
        [
            (
                _PVT.path_of(module, f"encoder.layers.{number}.blocks"),
                stage.patch_embedding.proj,
                stage.blocks,
            )
            for number, stage in stages
        ],
        input_size,
        _pvt_attention,
        middle="layer_norm_2",
    )


def _pvt_attention(block: Any) -> tuple[int, Any, Any]:
    """Return heads and pooling for `pvt_sites`; a module that is not used does not exist."""
    attn = block.attention
    pool, strided = (getattr(attn, name, None) for name in ("pool", "spatial_reduction"))
    return attn.num_attention_heads, pool, strided


def _pvt_parts(module: Any) -> Parts:
    stages = _PVT.of(module).encoder.layers
    norm = stages_before_answer(module, stages)[-1].layer_norm
    return Parts(
        embedding=stages[0].patch_embedding,
        kernel=stages[0].patch_embedding.proj,
        norm=norm,
        pooled_norm=None,
        positions="",
        prefix=(),
        heads=heads_of(module),
        width=int(norm.normalized_shape[0]),
        has_head=has_head(module),
    )


def _average_tokens(module: Any, tokens: Tensor) -> Tensor:
    """Return the mean of the tokens, or of the map."""
    return tokens.mean(dim=1) if tokens.ndim == 3 else tokens.mean(dim=(2, 3))


TRANSFORMERS_STAGED = (
    Family(
        name="Swin",
        recognises=lambda module: _swin_of(module) is not None,
        sites=_swin_sites,
        parts=_swin_parts,
        options=lambda module, input_size: forward_options(input_size, _swin(module)[1]),
        features=_average_tokens,
        positional_attention=lambda module: True,
    ),
    Family(
        name="PVT v2",
        recognises=_is_pvt,
        sites=_pvt_sites,
        parts=_pvt_parts,
        options=lambda module, input_size: forward_options(input_size),
        features=_average_tokens,
        positional_attention=lambda module: True,
        any_size=True,
    ),
)
