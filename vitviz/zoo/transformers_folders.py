"""Folders that transformers saved, read by its own classes; no code in a folder is run."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..families import ModelError, family_of
from ..language import Message
from ..memory import check, footprint
from ..model import Model, Preprocessing
from .architectures import ShapesAlone, on_meta_device
from .files import CONFIG, PROCESSOR, read_json, weights_in
from .positions import Size
from .processors import preprocessing_from
from .resampling import resampling_words
from .watching import watch

#: By the model_type in config.json, the class for a folder that names none of a head. CLIP's and
#: SigLIP's have their image tower read alone.
_CLASSES = {
    "vit": "ViTModel",
    "vit_msn": "ViTMSNModel",
    "ijepa": "IJepaModel",
    "deit": "DeiTModel",
    "dinov2": "Dinov2Model",
    "dinov2_with_registers": "Dinov2WithRegistersModel",
    "dinov3_vit": "DINOv3ViTModel",
    "beit": "BeitModel",
    "swin": "SwinModel",
    "swinv2": "Swinv2Model",
    "pvt_v2": "PvtV2Model",
    "clip": "CLIPVisionModelWithProjection",
    "clip_vision_model": "CLIPVisionModel",
    "metaclip_2": "MetaClip2VisionModelWithProjection",
    "metaclip_2_vision_model": "MetaClip2VisionModel",
    "siglip": "SiglipVisionModel",
    "siglip_vision_model": "SiglipVisionModel",
}
_HEADS = ("ForImageClassification", "ClassificationWithTeacher", "VisionModelWithProjection")
#: Entries that would make transformers look for other files, or for code.
_FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
_MOST_LAYERS = 1000
# timm's defaults, for a folder without a preprocessor_config.json.
_USUAL: dict[str, Any] = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop_pct=0.875)


def load_transformers(
    folder: Path,
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    pretrained: bool,
    size: Size | None,
) -> Model:
    """The model in a folder that `save_pretrained` wrote; see `load_folder`."""
    kind = _class_of(config, name)
    configuration = _configuration(kind, config, name)
    preprocessing, told = _preprocessing(folder, configuration)
    if size is not None:
        preprocessing = replace(preprocessing, input_size=size)
    positions = _checked(kind, configuration, preprocessing, name)
    if pretrained:
        file = weights_in(folder)
        module = _loaded(kind, configuration, folder, file, name)
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        weights = Message(
            "{source}, sha256 {digest}", source=f"{source}, {file.name}", digest=digest[:12]
        )
        weights += positions
        weights += told
    else:
        module, weights = kind(configuration), Message("random weights")
    model = watch(module.requires_grad_(False), preprocessing=preprocessing, name=name)
    model.trained, model.weights = pretrained, weights
    if not pretrained:
        model.labels = None
    return model


def _class_of(config: Mapping[str, Any], name: str) -> Any:
    """The class of transformers that a configuration names."""
    kind = str(config["model_type"])
    if kind not in _CLASSES:
        raise ModelError(
            "{name} is a model of transformers of the type {kind}, which vitviz does not "
            "read: expected one of {known}.",
            name=name,
            kind=kind,
            known=", ".join(_CLASSES),
        )
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise ModelError(
            "{name} is of transformers, which is not installed: run `pip install transformers`.",
            name=name,
        ) from error
    named = config.get("architectures") or [""]
    found: Any = getattr(transformers, str(named[0]), None) if isinstance(named, list) else None
    usual = getattr(transformers, _CLASSES[kind])
    same = isinstance(found, type) and found.__module__ == usual.__module__
    return found if same and found.__name__.endswith(_HEADS) else usual


def _configuration(kind: Any, config: Mapping[str, Any], name: str) -> Any:
    own = kind.config_class
    if config.get("model_type") != own.model_type:  # that of CLIP or SigLIP, with two towers
        shared = {name: config[name] for name in ("projection_dim",) if name in config}
        config = {**(config.get("vision_config") or {}), **shared}
    known = {key: value for key, value in config.items() if key not in _FOREIGN}
    try:
        configuration = own.from_dict(known)
        layers = getattr(configuration, "depths", None) or [configuration.num_hidden_layers]
        if not 0 < sum(layers) <= _MOST_LAYERS:
            raise ValueError
    except Exception as error:  # transformers' checks raise many kinds of errors
        raise ModelError(
            "The {config} of {name} cannot be read by transformers.", config=CONFIG, name=name
        ) from error
    configuration._attn_implementation = _attention(kind)
    return configuration


def _attention(kind: Any) -> str:
    return "sdpa" if kind._supports_sdpa else "eager"


def _preprocessing(folder: Path, configuration: Any) -> tuple[Preprocessing, str]:
    """What the folder says of it; else timm's defaults, and the words for that."""
    if (folder / PROCESSOR).is_file():
        return preprocessing_from(read_json(folder / PROCESSOR)), ""
    side = getattr(configuration, "image_size", 224)
    height, width = (side, side) if isinstance(side, int) else side
    usual = Preprocessing(input_size=(int(height), int(width)), **_USUAL)
    return usual, Message(", with timm's default preprocessing, as the folder tells none")


def _checked(kind: Any, configuration: Any, preprocessing: Preprocessing, name: str) -> str:
    """Refuse what needs too much memory or cannot take such pictures, before memory is spent.

    Returns
    -------
    The words of the provenance on resampled positions.
    """
    size = preprocessing.input_size
    try:
        with on_meta_device():
            model = watch(kind(configuration), preprocessing=preprocessing)
        outline, family = model.module, family_of(model.module)
        check(
            footprint(outline, model.sites).total,
            Message(
                "{what} at {height} x {width} pixels", what=name, height=size[0], width=size[1]
            ),
        )
        with torch.no_grad(), ShapesAlone():
            family.run(outline, torch.empty(1, 3, *size, device="meta"))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            "{name} cannot take pictures of {height} x {width} pixels.",
            name=name,
            height=size[0],
            width=size[1],
        ) from error
    table, first = model.positions, model.layers[0]
    side = getattr(configuration, "image_size", size)
    own = (side, side) if isinstance(side, int) else (side[0], side[1])
    grid = own[0] // first.patch_side[0], own[1] // first.patch_side[1]
    if grid == first.query_grid:
        return ""
    if table is not None and table.shape[-2] >= math.prod(grid):
        return resampling_words((grid, first.query_grid))
    relative = any("relative_position_bias" in key for key in outline.state_dict())
    return Message(", relative positions resampled") if relative and first.kind == "global" else ""


def _loaded(kind: Any, configuration: Any, folder: Path, file: Path, name: str) -> nn.Module:
    try:
        module, report = kind.from_pretrained(
            folder,
            config=configuration,
            local_files_only=True,
            use_safetensors=file.suffix == ".safetensors",
            weights_only=True,
            dtype=torch.float32,
            attn_implementation=_attention(kind),
            output_loading_info=True,
        )
    except Exception as error:  # readers of broken files raise many kinds of errors
        raise ModelError(
            "{name}: transformers cannot read {file} as a {kind}.",
            name=name,
            file=file.name,
            kind=kind.__name__,
        ) from error
    missing = sorted(key for key in report["missing_keys"] if "pooler." not in key)
    if missing:
        raise ModelError("{name}: {file} lacks {part}.", name=name, file=file.name, part=missing[0])
    for key, tensor in module.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                "{name}: {key} of {file} is not made of finite numbers.",
                name=name,
                key=key,
                file=file.name,
            )
    found: nn.Module = module
    return found
