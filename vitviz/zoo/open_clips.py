"""Load folders that open_clip saved: open_clip_config.json, and one file with both towers.

No code in a folder is run, and nothing is downloaded.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from ..common.language import Message, reason_of
from ..model import Model, Preprocessing
from ..model.families import ModelError
from ..model.memory import require_memory
from ..model.text import TextTower
from .architectures import on_meta_device
from .checkpoints import check_kinds, digest_of
from .files import WEIGHTS, find_file, no_weights, read_json, wrong_size
from .processors import preprocessing_in
from .resampling import InputSize, resampling_note
from .texts import open_clip_of, tokenizer_error
from .watching import find_readable_part, watch

OPEN_CLIP_CONFIG = "open_clip_config.json"
#: In open_clip's own order.
OPEN_CLIP_WEIGHTS = tuple(
    f"open_clip_{name}"
    for name in ("model.safetensors", "pytorch_model.safetensors", "pytorch_model.bin")
)
#: Settings of a tokenizer that name no file and run no code.
_TOKENIZER_SETTINGS = {"clean", "strip_sep_token", "language", "reduction_mask"}


def open_clip_weights(folder: Path) -> Path | None:
    """Return open_clip's file of both towers in a folder; None if there is none."""
    if not (folder / OPEN_CLIP_CONFIG).is_file():
        return None
    return find_file(folder, OPEN_CLIP_WEIGHTS)


def names_tokenizer(folder: Path, name: str) -> bool:
    """Whether a configuration asks for a tokenizer of transformers instead of open_clip's own."""
    return bool(_configuration(folder, name)["text_cfg"].get("hf_tokenizer_name"))


def explain_image_tower_alone(folder: Path, name: str) -> ModelError | None:
    """Return why a folder of timm is read without the text tower in open_clip's file beside it.

    None if open_clip can read both. Then its image tower is read too: of OpenAI's CLIP, timm's has
    another GELU and another crop.
    """
    weights = open_clip_weights(folder)
    has_timm = find_file(folder, WEIGHTS) is not None
    try:
        check_open_clip(folder, name)
    except ModelError as error:
        if weights and not has_timm:
            raise
        return error
    if weights or not has_timm:
        return None
    if name.startswith("hf-hub:"):
        return ModelError(
            "{file} is not on disk. Run `vitviz fetch {name}`.",
            file=OPEN_CLIP_WEIGHTS[0],
            name=name,
        )
    return no_weights(folder, OPEN_CLIP_WEIGHTS)


def check_open_clip(folder: Path, name: str) -> None:
    """Refuse a folder by its configuration, if its model cannot be read."""
    with on_meta_device():
        module = _build(folder, name, device="meta")
    try:
        find_readable_part(module.visual)
    except ModelError as error:
        raise ModelError("{name}: {error}", name=name, error=error) from error
    require_memory(sum(each.nbytes for each in module.parameters()), name)


def load_open_clip(
    folder: Path, *, name: str, source: str, pretrained: bool, size: InputSize | None
) -> Model:
    """Load both towers in a folder; see `load_folder`."""
    config = _configuration(folder, name)
    check_open_clip(folder, name)
    module = _create(folder, name, pretrained, size)
    model = watch(module, preprocessing=_preprocessing(module.visual, name), name=name)
    model.trained, model.weights = pretrained, Message("random weights")
    file = open_clip_weights(folder)
    if pretrained and file is not None:
        model.weights = Message(
            "{source}, sha256 {digest}",
            source=f"{source}, {file.name}",
            digest=digest_of([file]),
        )
        model.weights += _describe_resampling(config["vision_cfg"].get("image_size"), model)
    model.text_loader = partial(_text_tower, module, folder, name)
    return model


def _preprocessing(visual: Any, name: str) -> Preprocessing:
    """Return open_clip's preprocessing, for the input size of its image tower.

    It is read for a square: for other shapes open_clip takes a transform of its own, that resizes
    as timm's does.
    """
    transform = open_clip_of(name).transform
    settings = transform.PreprocessCfg(**visual.preprocess_cfg)
    height, width = (settings.size,) * 2 if isinstance(settings.size, int) else settings.size
    square = replace(settings, size=max(height, width))
    preprocessing = preprocessing_in(transform.image_transform_v2(square, is_train=False))
    return replace(preprocessing, input_size=(int(height), int(width)))


def _text_tower(module: Any, folder: Path, name: str) -> TextTower:
    safe: dict[str, Any] = {}
    if names_tokenizer(folder, name):
        safe = dict(trust_remote_code=False, local_files_only=True)
    try:
        tokenizer = open_clip_of(name).get_tokenizer(f"local-dir:{folder}", **safe)
    except Exception as error:  # readers of broken files raise many kinds of errors
        raise tokenizer_error(name, error) from error
    return TextTower(module, tokenizer, name)


def _create(folder: Path, name: str, pretrained: bool, size: InputSize | None) -> Any:
    file = open_clip_weights(folder)
    if pretrained:
        if file is None:
            raise no_weights(folder, OPEN_CLIP_WEIGHTS)
        check_kinds([file])
        require_memory(2 * file.stat().st_size, name)  # the module and what the file holds
    module = _build(folder, name, load_weights=pretrained, force_image_size=size)
    trunk = getattr(module.visual, "trunk", None)
    if trunk is not None and size is not None:  # open_clip leaves timm's towers at their own size
        if not hasattr(trunk, "set_input_size"):
            raise wrong_size(name, size)
        trunk.set_input_size(img_size=size)
    return module.eval().requires_grad_(False)


def _build(folder: Path, name: str, *, load_weights: bool = False, **options: Any) -> Any:
    _configuration(folder, name)
    create = open_clip_of(name).create_model
    log = logging.getLogger()
    log.addFilter(_is_no_warning_of_random_weights)
    try:
        return create(
            f"local-dir:{folder}", load_weights=load_weights, pretrained_text=False, **options
        )
    except Exception as error:  # readers of broken files raise many kinds of errors
        raise ModelError(
            "{name} cannot be loaded by open_clip ({reason}).", name=name, reason=reason_of(error)
        ) from error
    finally:
        log.removeFilter(_is_no_warning_of_random_weights)


def _is_no_warning_of_random_weights(record: logging.LogRecord) -> bool:
    """Whether to log a record: open_clip warns where no weights are asked for, too."""
    return not record.getMessage().startswith(("No pretrained weights", "Local config loaded, but"))


def _configuration(folder: Path, name: str) -> Mapping[str, Any]:
    """Return the model's configuration; refuse one that would download or run something."""
    config: Any = read_json(folder / OPEN_CLIP_CONFIG).get("model_cfg")
    whole = isinstance(config, dict)
    towers: list[Any] = [config.get(key) for key in ("vision_cfg", "text_cfg")] if whole else []
    if not towers or not all(isinstance(tower, dict) for tower in towers):
        raise ModelError(
            "The {config} of {name} cannot be read by open_clip.",
            config=OPEN_CLIP_CONFIG,
            name=name,
        )
    vision, text = towers
    for key, value in (
        ("hf_model_name", text.get("hf_model_name")),
        ("tokenizer_kwargs", {*text.get("tokenizer_kwargs", ())} - _TOKENIZER_SETTINGS),
        ("timm_model_name", {*":/"} & {*str(vision.get("timm_model_name", ""))}),
        ("layers", any(_is_huge(tower) for tower in towers)),
    ):
        if value:
            raise ModelError(
                "{name}: unsupported value for {key} in {config}. Build the model in Python, and "
                "give it to vitviz.watch.",
                name=name,
                key=key,
                config=OPEN_CLIP_CONFIG,
            )
    result: dict[str, Any] = config
    return result


def _is_huge(tower: Mapping[str, Any]) -> bool:
    """Whether a tower has numbers that no model has, and that would fill the memory."""
    layers = tower.get("layers", 1)
    layers = sum(layers) if isinstance(layers, list) else layers  # ResNets have stages
    numbers = [n for n in tower.values() if isinstance(n, int | float)]
    return layers > 1000 or any(abs(n) > 2_000_000 for n in numbers)


def _describe_resampling(own: Any, model: Model) -> Message | str:
    first = model.layers[0]
    sides = own if isinstance(own, list | tuple) else (own, own)
    if not all(isinstance(side, int) for side in sides):
        return ""
    grid = sides[0] // first.patch_side[0], sides[1] // first.patch_side[1]
    return "" if grid == first.query_grid else resampling_note((grid, first.query_grid))
