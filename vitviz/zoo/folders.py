"""Load folders that timm and transformers saved: config.json, and the weights beside it.

No code in a folder is run: its architecture must be one of timm or transformers.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..common.language import Message, message
from ..model import Model, Preprocessing
from ..model.families import ModelError, family_of
from ..model.memory import model_bytes, require_memory
from ..model.text import TextTower
from .architectures import (
    ShapesAlone,
    build_outline,
    embedding_widths,
    find_architecture,
    labels_of,
    on_meta_device,
    preprocessing_at_trained_size,
    preprocessing_of,
)
from .checkpoints import Checkpoint, check_kinds, digest_of, files_of, left_out_note
from .files import CONFIG, check_adapter, read_json, weights_in, wrong_size
from .open_clips import OPEN_CLIP_CONFIG, explain_image_tower_alone, load_open_clip
from .planning import Plan, plan
from .processors import check_preprocessing, labels_from, preprocessing_in_folder
from .resampling import InputSize, resampling_note
from .texts import tokenizer_in
from .watching import watch

#: Classes with an image tower that has no class of its own with the projection; see `WHOLES`.
_KIN = {
    "altclip": "AltCLIPModel",
    "chinese_clip": "ChineseCLIPModel",
    "clipseg": "CLIPSegModel",
    "tipsv2": "Tipsv2Model",
}
#: Class without a head, by the model_type in config.json. Of CLIP and SigLIP, only the image tower
#: is loaded.
_CLASSES = {
    **_KIN,
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
#: Classes of both towers; of them, the text tower is loaded when it is asked for.
WHOLES = {"clip": "CLIPModel", "metaclip_2": "MetaClip2Model", "siglip": "SiglipModel", **_KIN}
_HEADS = ("ForImageClassification", "ClassificationWithTeacher", "VisionModelWithProjection")
#: Entries that would make transformers look for other files, or for code.
_FOREIGN = ("auto_map", "quantization_config", "attn_implementation", "_attn_implementation")
#: A classifier in a file of weights; the class that config.json names may have none.
_CLASSIFIER = re.compile(r"(?:\w+_)?classifier\.|(?:head|fc)\.")
_MAX_LAYERS = 1000
# timm's defaults, for a folder without a preprocessor_config.json.
_USUAL: dict[str, Any] = dict(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), crop_pct=0.875)


def load_transformers(
    folder: Path,
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    pretrained: bool,
    size: InputSize | None,
) -> Model:
    """Load a folder that `save_pretrained` wrote; see `load_folder`."""
    kind = _class_of(config, name)
    configuration = _configuration(kind, config, name)
    if str(config["model_type"]) not in _CLASSES:
        _check_family(kind, configuration, name)
    preprocessing, note = _preprocessing(folder, configuration, str(config["model_type"]))
    if size is not None:
        preprocessing = replace(preprocessing, input_size=size)
    positions = _check_input(kind, configuration, preprocessing, name)
    if pretrained:
        file = weights_in(folder)
        check_kinds(files_of(file))  # transformers would read integers as if they were weights
        module, left_out = _load_module(kind, configuration, folder, file, name)
        weights = Message(
            "{source}, sha256 {digest}",
            source=f"{source}, {file.name}",
            digest=digest_of(files_of(file)),
        )
        if left_out:
            weights += left_out_note(left_out)
        weights += positions
        weights += note
    else:
        module, weights = kind(configuration), Message("random weights")
    if hasattr(module, "text_model"):  # it is loaded when it is asked for
        del module.text_model
    model = watch(module.requires_grad_(False), preprocessing=preprocessing, name=name)
    model.trained, model.weights = pretrained, weights
    if not pretrained:
        model.labels = None
    if str(config["model_type"]) in WHOLES:
        model.text_loader = partial(_load_text_tower, folder, name, pretrained)
    return model


def _load_text_tower(folder: Path, name: str, pretrained: bool) -> TextTower:
    """Load the text tower from the files that hold both towers."""
    config = read_json(folder / CONFIG)
    kind: Any = getattr(import_module("transformers"), WHOLES[str(config["model_type"])])
    configuration = _configuration(kind, config, name)
    tokenizer = tokenizer_in(folder, name)
    with on_meta_device():
        size = sum(each.nbytes for each in kind(configuration).parameters())
    require_memory(size, name)
    module: Any
    if pretrained:
        module, _ = _load_module(kind, configuration, folder, weights_in(folder), name)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            module = kind(configuration)
    del module.vision_model  # the model has its image tower already
    return TextTower(module.eval().requires_grad_(False), tokenizer, name)


def _class_of(config: Mapping[str, Any], name: str) -> Any:
    """Return the class of transformers that a configuration names."""
    try:
        transformers: Any = import_module("transformers")
    except ImportError as error:
        raise ModelError(
            "{name} needs transformers, which is not installed. Run `pip install transformers`.",
            name=name,
        ) from error
    if config.get("quantization_config"):
        raise ModelError(
            "The weights of {name} are quantized, and vitviz reads floating-point numbers. "
            "Load the model with transformers, call dequantize(), and save it.",
            name=name,
        )
    kind = str(config["model_type"])
    names = config.get("architectures") or [""]
    own: Any = getattr(transformers, str(names[0]), None) if isinstance(names, list) else None
    usual = getattr(transformers, _CLASSES.get(kind, ""), None)
    if usual is None:
        return _other_class(transformers, kind, own, name)
    is_same = isinstance(own, type) and own.__module__ == usual.__module__
    return own if is_same and own.__name__.endswith(_HEADS) else usual


def _other_class(transformers: Any, kind: str, own: Any, name: str) -> Any:
    """Return a class that is not in `_CLASSES`; `_check_family` then explains the refusal."""
    auto = import_module("transformers.models.auto.modeling_auto")
    usual = auto.MODEL_MAPPING_NAMES.get(kind, "")
    usual = getattr(transformers, usual[0] if isinstance(usual, tuple) else usual, None)
    classes = [each for each in (own, usual) if isinstance(each, type)]
    config_of = {each: getattr(each, "config_class", None) for each in classes}
    own = next((c for c in classes if getattr(config_of[c], "model_type", None) == kind), None)
    if own is None:
        raise ModelError(
            "{name} has the type {kind}, which transformers {version} does not know. Update "
            "transformers.",
            name=name,
            kind=kind,
            version=transformers.__version__,
        )
    if hasattr(own, "get_image_features") and hasattr(own, "get_text_features"):
        return own  # `load_transformers` refuses it if its family is read
    if own.main_input_name != "pixel_values":
        raise ModelError(
            "{name} is a {kind}, whose input is {given} instead of a picture.",
            name=name,
            kind=own.__name__,
            given=own.main_input_name,
        )
    return own


def _check_family(kind: Any, configuration: Any, name: str) -> None:
    """Refuse a class that no family recognises, by the family's reason."""
    try:
        with on_meta_device():
            family_of(kind(configuration))
    except ModelError as error:
        raise ModelError("{name}: {error}", name=name, error=error) from error
    except Exception as error:  # most often, the class needs another library
        raise ModelError(
            "{name} is a {kind}, which transformers cannot create from its config.json.",
            name=name,
            kind=kind.__name__,
        ) from error


def _configuration(kind: Any, config: Mapping[str, Any], name: str) -> Any:
    own = kind.config_class
    if config.get("model_type") != own.model_type:  # of CLIP or SigLIP, with two towers
        common = {name: config[name] for name in ("projection_dim",) if name in config}
        config = {**(config.get("vision_config") or {}), **common}
    settings = {key: value for key, value in config.items() if key not in _FOREIGN}
    try:
        configuration = own.from_dict(settings)
        _check_layers(configuration.to_dict())
    except Exception as error:  # transformers' checks raise many kinds of errors
        raise ModelError(
            "The {config} of {name} cannot be read by transformers.", config=CONFIG, name=name
        ) from error
    configuration._attn_implementation = _attention(kind)
    return configuration


def _check_layers(settings: Mapping[str, Any]) -> None:
    """Raise a ValueError for a configuration with more layers than any model has."""
    for key, value in settings.items():
        if isinstance(value, Mapping):
            _check_layers(value)
        elif re.search("layers|depth|blocks", str(key)):
            counts = value if isinstance(value, list | tuple) else [value]
            numbers = [count for count in counts if isinstance(count, int)]
            if len(counts) > _MAX_LAYERS or sum(numbers) > _MAX_LAYERS:
                raise ValueError
    if settings.get("num_hidden_layers", 1) < 1:
        raise ValueError


def _attention(kind: Any) -> str:
    return "sdpa" if kind._supports_sdpa else "eager"


def _preprocessing(folder: Path, configuration: Any, model_type: str) -> tuple[Preprocessing, str]:
    """Return the folder's preprocessing, or timm's default with a note on it."""
    preprocessing = preprocessing_in_folder(folder, model_type)
    if preprocessing is not None:
        return preprocessing, ""
    usual = Preprocessing(input_size=_input_size(configuration, (224, 224)), **_USUAL)
    return usual, Message(", with timm's default preprocessing, as the folder has none")


def _input_size(configuration: Any, usual: InputSize) -> InputSize:
    """Return height and width of the pictures that a configuration is for."""
    side = getattr(getattr(configuration, "vision_config", configuration), "image_size", usual)
    return (side, side) if isinstance(side, int) else (int(side[0]), int(side[1]))


def _check_input(kind: Any, configuration: Any, preprocessing: Preprocessing, name: str) -> str:
    """Refuse a model that needs too much memory or cannot take such pictures.

    Returns
    -------
    The provenance's note on resampled positions.
    """
    size = preprocessing.input_size
    try:
        with on_meta_device():
            model = watch(kind(configuration), preprocessing=preprocessing)
        require_memory(
            model_bytes(model.module, model.sites),
            Message(
                "{what} at {height} x {width} pixels", what=name, height=size[0], width=size[1]
            ),
        )
        with torch.no_grad(), ShapesAlone():
            channels = len(model.preprocess.mean)
            model.run(torch.empty(1, channels, *size, device="meta"))
    except ModelError:
        raise
    except Exception as error:
        raise wrong_size(name, size) from error
    table, first = model.positions, model.layers[0]
    own = _input_size(configuration, size)
    grid = own[0] // first.patch_side[0], own[1] // first.patch_side[1]
    if grid == first.query_grid:
        return ""
    if table is not None and table.shape[-2] >= math.prod(grid):
        return resampling_note((grid, first.query_grid))
    relative = any("relative_position_bias" in key for key in model.module.state_dict())
    return Message(", relative positions resampled") if relative and first.kind == "global" else ""


def _load_module(
    kind: Any, configuration: Any, folder: Path, file: Path, name: str
) -> tuple[nn.Module, list[str]]:
    """Load a class of transformers; return it, and the names of a classifier that it leaves out."""
    log: Any = import_module("transformers.utils.logging")
    verbosity = log.get_verbosity()
    log.set_verbosity_error()  # its table lists each weight of the other tower as unexpected
    try:
        module, report = kind.from_pretrained(
            folder,
            config=configuration,
            local_files_only=True,
            use_safetensors=".safetensors" in file.name,
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
    finally:
        log.set_verbosity(verbosity)
    missing = sorted(key for key in report["missing_keys"] if not key.startswith("pooler."))
    if missing:
        head = missing[0].rpartition(".")[0]
        layers = [
            key for key in report["unexpected_keys"] if re.match(rf"{head}\.\S*\d\.\S*weight", key)
        ]
        if layers:
            raise ModelError(
                "{name}: the classifier in {file} has several layers ({layers}), and config.json "
                "describes one. Build the model in Python, and give it to vitviz.watch.",
                name=name,
                file=file.name,
                layers=", ".join(sorted(layers)[:3]),
            )
        raise ModelError("{name}: {file} lacks {part}.", name=name, file=file.name, part=missing[0])
    if report["missing_keys"]:  # as of DINO; a random pooler would compute the output
        module.pooler = None
    for key, tensor in module.named_parameters():
        if not bool(torch.isfinite(tensor).all()):
            raise ModelError(
                "{name}: {key} in {file} holds NaN or infinite values.",
                name=name,
                key=key,
                file=file.name,
            )
    return module, sorted(filter(_CLASSIFIER.match, report["unexpected_keys"]))


_LARGEST = 10_000  # number in a configuration of timm
#: Arguments of timm that name files, or do not belong to the architecture.
_TIMM_FOREIGN = ("checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg", "scriptable")


def load_folder(
    folder: Path, *, name: str, source: str, pretrained: bool, size: InputSize | None
) -> Model:
    """Load the model in a folder.

    Parameters
    ----------
    name : name of the model
    source : where the folder comes from, for the provenance line
    size : input size in pixels, if it is not the folder's own

    Raises
    ------
    ModelError, CheckpointError
        When the folder cannot be read.
    """
    check_adapter(folder)
    has_both = (folder / OPEN_CLIP_CONFIG).is_file()
    config = {} if has_both and not (folder / CONFIG).is_file() else read_json(folder / CONFIG)
    refusal = None
    if has_both and "model_type" not in config:
        refusal = explain_image_tower_alone(folder, name) if config else None
        if refusal is None:
            model = load_open_clip(
                folder, name=name, source=source, pretrained=pretrained, size=size
            )
            model.folder = folder
            return model
    if "architecture" not in config and "model_type" not in config:
        raise ModelError(
            "The {config} in the folder {folder} names no architecture. Save the model by timm or "
            "transformers.",
            config=CONFIG,
            folder=folder.name,
        )
    if "architecture" not in config:
        model = load_transformers(
            folder, config, name=name, source=source, pretrained=pretrained, size=size
        )
    else:
        file = Checkpoint(weights_in(folder)) if pretrained else None
        model = _load_timm(config, file, name=name, source=source, size=size)
        if refusal is not None:
            model.text_refusal = message(refusal)
            note = Message(", image tower alone ({reason})", reason=refusal)
            model.weights = Message(model.weights) + note
    model.folder = folder
    return model


def _load_timm(
    config: Mapping[str, Any],
    file: Checkpoint | None,
    *,
    name: str,
    source: str,
    size: InputSize | None,
) -> Model:
    """Load a model in the format of timm's `save_for_hf`."""
    architecture = find_architecture(str(config["architecture"]))
    settings = config.get("pretrained_cfg", config)  # older ones are flat
    if not isinstance(settings, Mapping):
        raise ModelError("The pretrained_cfg of {name} is not a JSON object.", name=name)
    options, note = _arguments(config.get("model_args") or {}, name), ""
    stated = options.pop("img_size", None) or settings.get("input_size")
    own, is_complete = _timm_preprocessing(settings, stated, architecture, name)
    if file is None and isinstance(config.get("num_classes"), int):
        options["num_classes"] = config["num_classes"]
    own_plan = plan(architecture, file, size, options=options, stated=own.input_size)
    if file is not None:
        _check_pooling(config.get("global_pool"), own_plan, name)
    if own_plan.trained is not None:
        own = replace(own, input_size=own_plan.trained)
    if file is not None and settings.get("crop_pct") is None:
        own, note = preprocessing_at_trained_size(own, architecture)
    own = replace(own, input_size=size or own.input_size)
    module = own_plan.build()
    weights, labels = Message("random weights"), None
    if file is not None:
        weights = own_plan.load(module, f"{source}, {file.path.name}")
        labels = _labels(config, settings, module.num_classes)
        if labels is None and source.startswith("hf-hub:timm/"):
            labels = labels_of(module)  # ImageNet's
        weights += note
        if not is_complete:
            weights += Message(", with the preprocessing of timm's architecture")
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=own,
        trained=file is not None,
        weights=weights,
        labels=labels,
        embedding_widths=embedding_widths(architecture),
    )


def _check_pooling(stated: Any, own_plan: Plan, name: str) -> None:
    """Refuse weights of a classifier that read another pooling than the model would have.

    timm writes the pooling for information; older versions keep no model_args beside it.
    """
    outline: Any = build_outline(own_plan.architecture, own_plan.options)
    built = getattr(outline, "global_pool", None)
    is_known = isinstance(stated, str) and isinstance(built, str)
    if is_known and stated != built and outline.num_classes:
        raise ModelError(
            "{name} was saved with the pooling {stated}, and would be built with {built}. Build "
            "the model in Python, and give it to vitviz.watch.",
            name=name,
            stated=stated,
            built=built,
        )


def _arguments(arguments: Any, name: str) -> dict[str, Any]:
    """Return the keyword arguments of the module: numbers, names, and lists of them."""
    if not isinstance(arguments, Mapping):
        raise ModelError("The model_args of {name} are not a JSON object.", name=name)
    options = {str(key): tuple(v) if isinstance(v, list) else v for key, v in arguments.items()}
    for key, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            number = isinstance(one, int | float) and abs(one) <= _LARGEST
            if key in _TIMM_FOREIGN or not (one is None or isinstance(one, str) or number):
                raise ModelError(
                    "{name}: unsupported value for model_args[{key!r}]. Build the model in Python, "
                    "and give it to vitviz.watch.",
                    name=name,
                    key=key,
                )
    options.pop("num_classes", None)
    return options


def _timm_preprocessing(
    settings: Mapping[str, Any], stated: Any, architecture: str, name: str
) -> tuple[Preprocessing, bool]:
    """Return the preprocessing, and whether the configuration describes all of it.

    What it leaves out is taken from the architecture.

    Parameters
    ----------
    stated : the input size as one number, (height, width) or (channels, height, width)
    """
    usual = preprocessing_of(build_outline(architecture, {}), None)
    names = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    values = {key: settings[key] for key in names if settings.get(key) is not None}
    sides = [stated] * 2 if isinstance(stated, int) else list(stated or usual.input_size)[-2:]
    try:
        for key in ("mean", "std"):
            if key in values:
                values[key] = tuple(map(float, values[key]))
        height, width = (int(side) for side in sides)
        preprocessing = check_preprocessing(replace(usual, input_size=(height, width), **values))
    except (TypeError, ValueError) as error:
        raise ModelError(
            "The preprocessing in the {config} of {name} is invalid. Correct the file.",
            config=CONFIG,
            name=name,
        ) from error
    return preprocessing, set(names[:4]) <= values.keys()


def _labels(
    config: Mapping[str, Any], settings: Mapping[str, Any], outputs: int
) -> tuple[str, ...] | None:
    """Return the class names, with their descriptions if there are any; None without names."""
    both = {**settings, **config}
    names = both.get("label_names") or both.get("labels")
    texts = both.get("label_descriptions")
    if isinstance(names, Mapping):
        names = [names.get(str(number)) for number in range(outputs)]
    if not isinstance(names, list) or len(names) != outputs or not all(names):
        return None
    descriptions = texts if isinstance(texts, Mapping) else {}
    words = (str(descriptions.get(str(name), name)) for name in names)
    return labels_from(dict(enumerate(words)))
