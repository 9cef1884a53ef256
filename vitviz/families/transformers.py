"""Models of transformers in which every token attends to every token: ViT, DeiT, DINO, BEiT, CLIP.

Nothing here imports transformers: a module that comes from there is known by its class's name.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from .description import Family, Grid, Parts, Site, layer_at
from .rest import given_tokens

_HEADS = ("classifier", "cls_classifier", "distillation_classifier", "visual_projection")


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """One encoder of transformers, and the classes that put a head on it.

    Attributes
    ----------
    place, name : its folder in transformers.models, and its class
    wholes : the path of the encoder in each class that has one with a head
    """

    place: str
    name: str
    wholes: Mapping[str, str]

    def path(self, module: nn.Module) -> str | None:
        """The path of the encoder in a module of one of its classes; None in any other."""
        kind = type(module)
        if kind.__module__ != f"transformers.models.{self.place}.modeling_{self.place}":
            return None
        path = "" if kind.__name__ == self.name else self.wholes.get(kind.__name__)
        there = path is not None and type(module.get_submodule(path)).__name__ == self.name
        return path if there else None

    def path_of(self, module: nn.Module, part: str) -> str:
        """The path in the module of a part of the encoder."""
        return ".".join(filter(None, (self.path(module), part)))

    def of(self, module: nn.Module) -> Any:
        """The encoder of a module."""
        return module.get_submodule(self.path(module) or "")


@dataclass(frozen=True, kw_only=True)
class _Plain(Encoder):
    """An encoder in which every token attends to every token.

    Attributes
    ----------
    blocks, block, middle : the path of its blocks in the encoder, their class, and `Site.middle`
    patches, kernel : paths of what makes the tokens, and of the convolution in it
    norm, pooled_norm, positions : paths in the encoder; "" where there is none
    unnormed : the classes whose pooled tokens do not go through `pooled_norm`
    prefix : callable(encoder) -> names of the prefix tokens
    resizes : whether it interpolates its positions only where it is told to
    pooled : callable(encoder) -> whether what it pools is an embedding of the picture
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
        return {type(block).__name__ for block in blocks} == {self.block}

    def sites(self, module: Any, input_size: Grid) -> tuple[Site, ...]:
        encoder, path = self.of(module), self.path_of(module, self.blocks)
        conv = encoder.get_submodule(self.kernel)
        height, width = conv.kernel_size
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
            for index, block in enumerate(encoder.get_submodule(self.blocks))
        )

    def parts(self, module: Any) -> Parts:
        encoder = self.of(module)
        outputs, heads, name = outputs_of(module), heads_of(module), type(module).__name__
        if not heads and self.pooled(encoder):
            outputs = encoder.config.hidden_size
        return Parts(
            embedding=encoder.get_submodule(self.patches),
            kernel=encoder.get_submodule(self.kernel),
            norm=_at(encoder, self.norm),
            pooled_norm=None if name in self.unnormed else _at(encoder, self.pooled_norm),
            positions=table_at(self, module, self.positions),
            prefix=_prefix_tokens(encoder.embeddings),
            heads=heads,
            width=encoder.config.hidden_size,
            outputs=outputs,
            embeds=outputs > 0 and heads in ((), ("visual_projection",)),
        )

    def run(self, module: Any, x: Tensor) -> Tensor:
        encoder = self.of(module)
        answer = run(module, x, image_size(encoder.config) if self.resizes else None)
        if answer.ndim == 2:
            return answer
        # An encoder that pools nothing returns its tokens.
        return answer[:, 0] if self.prefix(encoder) else answer.mean(dim=1)

    def answer(self, module: Any, tokens: Tensor) -> Tensor:
        picture = torch.zeros(1, 3, *image_size(self.of(module).config)).to(tokens)
        return self.run(given_tokens(module, self.path_of(module, self.blocks), tokens), picture)


def heads_of(module: nn.Module) -> tuple[str, ...]:
    """The names of the linear layers that a model of transformers ends with."""
    return tuple(name for name in _HEADS if hasattr(module, name))


def outputs_of(module: Any) -> int:
    """How many numbers they give; 0 where there are none."""
    heads = (_at(module, name) for name in heads_of(module))
    return max((getattr(head, "out_features", 0) for head in heads), default=0)


def table_at(row: Encoder, module: Any, path: str) -> str:
    """The path in the module of a table of the encoder; "" where there is none."""
    there = _at(row.of(module), path)
    return "" if there is None else row.path_of(module, path)


def _prefix_tokens(embeddings: Any) -> tuple[Tensor, ...]:
    names = ("cls_token", "class_embedding", "distillation_token", "register_tokens")
    return tuple(getattr(embeddings, name) for name in names if hasattr(embeddings, name))


def run(module: Any, x: Tensor, own: Grid | None) -> Tensor:
    """Logits, or the embedding of the picture, that a model of transformers returns.

    Where pictures are of another size than `own`, its positions are interpolated; None where it
    does so without being told.
    """
    options = {} if own in (None, tuple(x.shape[2:])) else {"interpolate_pos_encoding": True}
    returned = module(x, return_dict=True, **options)
    named = (getattr(returned, name, None) for name in ("logits", "image_embeds", "pooler_output"))
    answer: Tensor = next((found for found in named if found is not None), returned[0])
    return answer


def image_size(config: Any) -> Grid:
    """Height and width of the pictures that a configuration of transformers is for."""
    size = config.image_size
    return (size, size) if isinstance(size, int) else (int(size[0]), int(size[1]))


def _at(module: Any, path: str) -> Any:
    """The part or parameter at this path; None where there is none."""
    for name in filter(None, path.split(".")):
        module = getattr(module, name, None)
    return module if path else None


def _registers(encoder: Any) -> tuple[str, ...]:
    return ("cls", *(f"reg{n + 1}" for n in range(encoder.config.num_register_tokens)))


def _knows_places(encoder: Any) -> bool:
    """Whether a BEiT adds a bias of relative positions to its scores."""
    own = encoder.config
    return bool(own.use_relative_position_bias or own.use_shared_relative_position_bias)


def _family(
    name: str, row: _Plain, positional: Callable[[Any], bool] = lambda encoder: False
) -> Family:
    return Family(
        name=name,
        recognises=row.recognises,
        sites=row.sites,
        parts=row.parts,
        run=row.run,
        answer=row.answer,
        positional_attention=lambda module: positional(row.of(module)),
    )


def _named(place: str, word: str, **options: Any) -> _Plain:
    """The row of an encoder whose classes are named by one word, as ViTModel and ViTLayer are."""
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
    _named("vit", "ViT", resizes=True),
    _named("vit_msn", "ViTMSN", wholes={"ViTMSNForImageClassification": "vit"}, resizes=True),
    _named("ijepa", "IJepa", prefix=lambda encoder: (), resizes=True),
    _named("dinov2", "Dinov2", **_DINO),
    _named("dinov2_with_registers", "Dinov2WithRegisters", prefix=_registers, **_DINO),
)
_DEIT = _named(
    "deit",
    "DeiT",
    wholes={
        "DeiTForImageClassification": "deit",
        "DeiTForImageClassificationWithTeacher": "deit",
    },
    prefix=lambda encoder: ("cls", "dist"),
    resizes=True,
)
_DINOV3 = _named(
    "dinov3_vit",
    "DINOv3ViT",
    wholes={},
    blocks="model.layer",
    middle="norm2",
    kernel="embeddings.patch_embeddings",
    norm="norm",
    positions="",
    prefix=_registers,
)
_BEIT = _named("beit", "Beit", pooled_norm="pooler.layernorm", biased=True)
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
        "MetaClip2VisionModelWithProjection": "vision_model",
        "MetaClip2ForImageClassification": "vision_model",
    },
    block="MetaClip2EncoderLayer",
    unnormed=("MetaClip2ForImageClassification",),
)
_SIGLIP = _Plain(
    place="siglip",
    name="SiglipVisionModel",
    wholes={"SiglipForImageClassification": "vision_model"},
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
    _family("BEiT", _BEIT, positional=_knows_places),
    *(_family("CLIP", row) for row in (_CLIP, _METACLIP)),
    _family("SigLIP", _SIGLIP),
)
