"""Folders of a model, as timm and transformers save it: config.json, and the weights beside it.

No code of a folder is run: its architecture must be one that timm or transformers has.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..checkpoints import Checkpoint
from ..families import ModelError
from ..language import Message
from ..model import Model, Preprocessing
from .architectures import (
    architecture_named,
    create,
    embeds,
    labels_of,
    outline_of,
    preprocessing_of,
    undrawn,
)
from .building import check_tables, checked_options, load_file, options_of
from .files import CONFIG, read_json, weights_in
from .positions import Size, trained_size
from .processors import checked

_LARGEST = 10_000  # of the numbers in a configuration of timm
#: Arguments of timm that name files, or are none of the architecture's.
_FOREIGN = ("checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg", "scriptable")
_TABLES = ("pos_embed", "relative_position_bias_table", "mlp_tokens.fc1.weight")


def load_folder(
    folder: Path, *, name: str, source: str, pretrained: bool, size: Size | None
) -> Model:
    """The model in a folder.

    Parameters
    ----------
    name : of the model
    source : where the folder comes from, for the provenance
    size : of the input in pixels, where it is not the folder's own

    Raises
    ------
    ModelError, CheckpointError
        When it cannot be read.
    """
    config = read_json(folder / CONFIG)
    if "architecture" not in config and "model_type" not in config:
        raise ModelError(
            "The {config} in the folder {folder} names no architecture, as those of timm "
            "and transformers do.",
            config=CONFIG,
            folder=folder.name,
        )
    if "architecture" not in config:
        from .transformers_folders import load_transformers

        made = load_transformers(
            folder, config, name=name, source=source, pretrained=pretrained, size=size
        )
    else:
        file = Checkpoint(weights_in(folder)) if pretrained else None
        made = _timm(config, file, name=name, source=source, size=size)
    made.folder = folder
    return made


def _timm(
    config: Mapping[str, Any], file: Checkpoint | None, *, name: str, source: str, size: Size | None
) -> Model:
    """A model in the format of timm's `save_for_hf`."""
    architecture = architecture_named(str(config["architecture"]))
    settings = config.get("pretrained_cfg", config)  # older ones are flat
    if not isinstance(settings, Mapping):
        raise ModelError("The pretrained_cfg of {name} is no JSON object.", name=name)
    options = _arguments(config.get("model_args") or {}, name)
    said = options.pop("img_size", None) or settings.get("input_size")
    own, known = _preprocessing(settings, said, architecture, name)
    if file is not None:
        options = options_of(architecture, file, options)
        trained = _trained(architecture, options, file, own.input_size)
        if size is not None and trained not in (None, size):
            check_tables(architecture, options, file, trained, size)
        own = replace(own, input_size=trained or own.input_size)
    elif isinstance(config.get("num_classes"), int):
        options["num_classes"] = config["num_classes"]
    grid = _grid(architecture, options, own.input_size)
    own = replace(own, input_size=size or own.input_size)
    options = checked_options(architecture, {**options, "img_size": own.input_size})
    with nullcontext() if file is None else undrawn():
        module = create(architecture, options)
    weights, labels = Message("random weights"), None
    if file is not None:
        weights = load_file(module, file, source=f"{source}, {file.path.name}", grid=grid)
        labels = _labels(config, settings, module.num_classes)
        if labels is None and source.startswith("hf-hub:timm/"):
            labels = labels_of(module)  # of ImageNet, as timm's own weights are
        if not known:
            weights += Message(", with the preprocessing of timm's architecture")
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=own,
        trained=file is not None,
        weights=weights,
        labels=labels,
        embeds=embeds(architecture, module.num_classes),
    )


def _arguments(found: Any, name: str) -> dict[str, Any]:
    """The arguments with which the module was made: numbers, names, and lists of them."""
    if not isinstance(found, Mapping):
        raise ModelError("The model_args of {name} are no JSON object.", name=name)
    options = {str(key): tuple(v) if isinstance(v, list) else v for key, v in found.items()}
    for key, value in options.items():
        for one in value if isinstance(value, tuple) else (value,):
            number = isinstance(one, int | float) and abs(one) <= _LARGEST
            if key in _FOREIGN or not (one is None or isinstance(one, str) or number):
                raise ModelError(
                    "{key} in the model_args of {name} is nothing that can be used.",
                    key=key,
                    name=name,
                )
    options.pop("num_classes", None)
    return options


def _preprocessing(
    settings: Mapping[str, Any], said: Any, architecture: str, name: str
) -> tuple[Preprocessing, bool]:
    """What the configuration says of it, and whether it says all; the rest is the architecture's.

    Parameters
    ----------
    said : the size of the input, as one number, (height, width) or (channels, height, width)
    """
    usual = preprocessing_of(outline_of(architecture, {}), None)
    names = ("mean", "std", "interpolation", "crop_pct", "crop_mode")
    found = {key: settings[key] for key in names if settings.get(key) is not None}
    sides = [said, said] if isinstance(said, int) else list(said or usual.input_size)[-2:]
    try:
        for key in ("mean", "std"):
            if key in found:
                red, green, blue = map(float, found[key])
                found[key] = (red, green, blue)
        height, width = (int(side) for side in sides)
        made = checked(replace(usual, input_size=(height, width), **found))
    except (TypeError, ValueError) as error:
        raise ModelError(
            "The preprocessing in the {config} of {name} cannot be read.", config=CONFIG, name=name
        ) from error
    return made, set(names[:4]) <= found.keys()


def _trained(
    architecture: str, options: Mapping[str, Any], file: Checkpoint, said: Size
) -> Size | None:
    """The size of the input that a file was trained at: what is said of it, where its tables fit.

    Without that a table of 6 x 24 positions would be taken for one of 12 x 12.
    """
    try:
        shapes = outline_of(architecture, {**options, "img_size": said}).state_dict()
    except ModelError:  # an architecture that takes any size
        return said
    tables = [name for name in shapes if name.endswith(_TABLES)]
    if all(file.shapes.get(name) == tuple(shapes[name].shape) for name in tables):
        return said
    outline = outline_of(architecture, dict(options))
    return trained_size(file.shapes, outline, preprocessing_of(outline, None).input_size)


def _grid(architecture: str, options: Mapping[str, Any], size: Size) -> Size | None:
    """Rows and columns of the patches of an input; None where no positions are added to them."""
    try:
        outline = outline_of(architecture, {**options, "img_size": size})
    except ModelError:
        return None
    found = getattr(getattr(outline, "patch_embed", None), "grid_size", None)
    return None if found is None else (found[0], found[1])


def _labels(
    config: Mapping[str, Any], settings: Mapping[str, Any], outputs: int
) -> tuple[str, ...] | None:
    """The names of the classes, in full where they are described; None where there are none."""
    both = {**settings, **config}
    names = both.get("label_names") or both.get("labels")
    described = both.get("label_descriptions")
    if isinstance(names, Mapping):
        names = [names.get(str(number)) for number in range(outputs)]
    if not isinstance(names, list) or len(names) != outputs or not all(names):
        return None
    known = described if isinstance(described, Mapping) else {}
    return tuple(str(known.get(str(name), name)) for name in names)
