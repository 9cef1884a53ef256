"""Read preprocessing and labels of transformers and torchvision."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from PIL import Image

from ..common.images import INTERPOLATIONS
from ..common.language import Message, reason_of
from ..model import Preprocessing
from ..model.families import ModelError
from .files import PROCESSOR, WHOLE_PROCESSOR, read_json
from .resampling import MAX_INPUT_SIDE

#: Settings that `_describe` obeys for every class of processor.
_OBEYED = frozenset({
    "do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale",
    "rescale_factor", "do_normalize", "image_mean", "image_std", "do_pad", "pad_size",
})  # fmt: skip
#: Settings of one class and its subclasses, by the beginning of its name.
_OBEYED_BY: Mapping[str, frozenset[str]] = {
    "ConvNext": frozenset(["crop_pct"]),
    "PoolFormer": frozenset(["crop_pct"]),
    "EfficientNet": frozenset(["rescale_offset", "include_top"]),
    "MobileViT": frozenset(["do_flip_channel_order"]),
    "DPT": frozenset(["keep_aspect_ratio", "ensure_multiple_of", "size_divisor"]),
    "Levit": frozenset(),
    "Segformer": frozenset(),
    "Perceiver": frozenset(),
    "DINOv3ViT": frozenset(),
}
#: Settings that do not change the pixels of an upright RGB picture.
_NEUTRAL = frozenset({
    "do_convert_rgb", "do_reduce_labels", "reduce_labels", "default_to_square", "data_format",
    "input_data_format", "device", "return_tensors", "disable_grouping", "use_fast", "backend",
    "image_processor_type", "feature_extractor_type", "processor_class", "_processor_class",
    "auto_map", "_auto_class", "transformers_version", "model_input_names", "image_seq_length",
    "_valid_processor_keys",
})  # fmt: skip
#: Steps of torchvision and timm that only convert a picture's type.
_CONVERSIONS = frozenset({
    "ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage", "ToPureTensor",
    "ConvertImageDtype", "ToDtype", "RGB", "MaybeConvertMode", "Identity",
})  # fmt: skip
_TO_TENSOR = ("ToTensor", "MaybeToTensor", "PILToTensor", "MaybePILToTensor", "ToImage")
_TOLERANCE = 1.0, 8.0  # mean and largest difference between two libraries, in levels of 255
_WAVE = 24  # pixels of the resized picture; short enough that a shift by one pixel shows
_REMEDY = Message("Give watch a preprocessing=vitviz.Preprocessing(...) instead.")


class ImageProcessor(Protocol):
    """An image processor of transformers, or a processor that contains one."""

    def to_dict(self) -> dict[str, Any]: ...


class Transforms(Protocol):
    """Transforms of torchvision: those of trained weights, or a `Compose`, as timm builds, too."""

    def __call__(self, image: Any, /) -> Any: ...


def preprocessing_in(source: Preprocessing | ImageProcessor | Transforms) -> Preprocessing:
    """Return the preprocessing of an image processor, or of torchvision's transforms.

    Raises
    ------
    ModelError
        When `source` is neither, or does something unknown to a picture.
    """
    if isinstance(source, Preprocessing):
        return source
    if hasattr(source, "to_dict") and hasattr(source, "save_pretrained") and callable(source):
        return _of_processor(getattr(source, "image_processor", source))
    if callable(source) and (settings := _settings_of(source)) is not None:
        run: Any = source
        preprocessing = _describe_checked(settings, "")
        return _prove(run, type(source).__name__, preprocessing, starts=("round",))
    raise ModelError(
        "Expected a vitviz.Preprocessing, an image processor of transformers or the transforms of "
        "torchvision's weights, got {kind}.",
        kind=type(source).__name__,
    )


def _settings_of(source: Any) -> dict[str, Any] | None:
    """Return torchvision's transforms as settings of an image processor; None for other objects."""
    if all(hasattr(source, name) for name in ("crop_size", "resize_size", "mean", "std")):
        (crop,), (short_side,) = source.crop_size, source.resize_size
        return {
            "size": {"shortest_edge": short_side},
            "crop_size": crop,
            "do_center_crop": True,
            "resample": _resampling(source),
            "image_mean": [*source.mean],
            "image_std": [*source.std],
        }
    steps = getattr(source, "transforms", None)
    if not isinstance(steps, list | tuple):
        return None
    settings: dict[str, Any] = {"do_resize": False, "do_normalize": False}
    is_tensor = False
    for step in steps:
        kind = type(step).__name__
        is_tensor = is_tensor or kind in _TO_TENSOR
        if kind == "Resize" and "size" not in settings and "crop_size" not in settings:
            sides = [step.size] if isinstance(step.size, int) else [*step.size]
            names = ("shortest_edge",) if len(sides) == 1 else ("height", "width")
            settings |= {"do_resize": True, "size": dict(zip(names, sides, strict=True))}
            settings["resample"] = _resampling(step)
            # Smooth pictures do not show it: pictures of Pillow are always antialiased, and of two
            # equally near pixels torch takes the other one.
            if is_tensor and (not step.antialias or settings["resample"] == "nearest"):
                raise _unknown_transform(repr(step))
        elif kind == "CenterCrop" and "crop_size" not in settings:
            sides = [step.size] * 2 if isinstance(step.size, int) else [*step.size]
            settings |= {"do_center_crop": True}
            settings["crop_size"] = {"height": sides[0], "width": sides[1]}
        elif kind == "Normalize" and not settings["do_normalize"]:
            mean, std = (
                torch.as_tensor(each, dtype=torch.float64).tolist()
                for each in (step.mean, step.std)
            )
            settings |= {"do_normalize": True, "image_mean": mean, "image_std": std}
        elif kind not in _CONVERSIONS:
            raise _unknown_transform(kind)
    return settings


def _unknown_transform(kind: str) -> ModelError:
    return ModelError(
        "vitviz does not know what the transform {kind} does to a picture. {remedy}",
        kind=kind,
        remedy=_REMEDY,
    )


def _resampling(step: Any) -> str:
    return str(getattr(step.interpolation, "value", step.interpolation)).removesuffix("-exact")


def preprocessing_from(settings: Mapping[str, Any], kind: str | None = None) -> Preprocessing:
    """Return the preprocessing that the settings of an image processor describe.

    Parameters
    ----------
    settings : mapping
        Content of `preprocessor_config.json` or `processor_config.json`.
    kind : str, optional
        The model_type beside it, whose image processor gives the defaults.

    Raises
    ------
    ModelError
        When they do more than resize, crop and normalise, or a number is missing or invalid.
    """
    inner = settings.get("image_processor")
    settings = inner if isinstance(inner, Mapping) else settings
    processor = _processor_of(settings, kind)
    if processor is not None:
        return _of_processor(processor)
    if settings.get("do_pad"):  # the padding depends on the class
        raise _unknown_setting("do_pad", True)
    return _describe_checked(settings, "ConvNext" if settings.get("crop_pct") else "")


def _processor_of(settings: Mapping[str, Any], kind: str | None) -> Any:
    """Create the image processor that a file describes; None if it names none.

    Only classes of transformers itself are created: no code beside a file is run.
    """
    title = settings.get("image_processor_type") or settings.get("feature_extractor_type")
    if not title and kind is None:
        return None
    try:
        transformers: Any = import_module("transformers")
        if not title:
            from transformers.models.auto import image_processing_auto

            kinds = image_processing_auto.IMAGE_PROCESSOR_MAPPING_NAMES.get(str(kind))
            title = next(filter(None, kinds.values() if isinstance(kinds, dict) else kinds or ()))
    except (ImportError, StopIteration, AttributeError):
        return None
    name = re.sub(r"(FeatureExtractor|ImageProcessor)(Fast|Pil)?$", "ImageProcessor", str(title))
    own = getattr(transformers, name, None) if name.endswith("ImageProcessor") else None
    if own is None:
        raise ModelError(
            "transformers has no image processor {kind}. {remedy}",
            kind=title,
            remedy=_REMEDY,
        )
    try:
        return own.from_dict({k: v for k, v in settings.items() if k != "auto_map"})
    except Exception as error:  # transformers' checks raise many kinds of errors
        raise _invalid_settings() from error


def _of_processor(processor: Any) -> Preprocessing:
    """Describe an image processor, and prove the description on pictures."""
    name = type(processor).__name__

    def run(image: Image.Image) -> Any:
        return processor(image, return_tensors="pt")["pixel_values"][0]

    if name.startswith("TimmWrapper"):
        config = processor.data_config
        draft = Preprocessing(
            input_size=tuple(config["input_size"][-2:]),
            mean=tuple(config["mean"]),
            std=tuple(config["std"]),
            **{key: config[key] for key in ("interpolation", "crop_pct", "crop_mode")},
        )
        return _prove(run, name, check_preprocessing(draft))
    names = [each.__name__ for each in type(processor).__mro__]
    kind = next((k for k in _OBEYED_BY if any(each.startswith(k) for each in names)), "")
    settings = {key: _plain(value) for key, value in processor.to_dict().items()}
    unread = _unknown_keys(settings, kind)
    keys = getattr(processor, "_valid_kwargs_names", None)  # settings that the class reads, or None
    for key in unread:
        if key.startswith("do_") or keys is None or key in keys:
            raise _unknown_setting(key, settings[key])
    draft = _describe_checked({k: v for k, v in settings.items() if k not in unread}, kind)
    if draft.interpolation == "nearest" and getattr(processor, "backend", "") == "torchvision":
        # torchvision takes the other pixel where two are equally near.
        raise _unknown_setting("resample", settings["resample"])
    return _prove(run, name, draft, unread)


def _unknown_keys(settings: Mapping[str, Any], kind: str) -> list[str]:
    """Return the settings that are on, and neither obeyed nor neutral."""
    known_keys = _OBEYED | _NEUTRAL | _OBEYED_BY.get(kind, frozenset())
    return [key for key, value in settings.items() if key not in known_keys and _is_on(value)]


def _is_on(value: Any) -> bool:
    return value is not None and value is not False and value != {} and value != []


def _unknown_setting(name: str, value: Any) -> ModelError:
    return ModelError(
        "The image processor's {name} is {value!r}, and vitviz does not know what it does to a "
        "picture. {remedy}",
        name=name,
        value=value,
        remedy=_REMEDY,
    )


def _invalid_settings() -> ModelError:
    return ModelError(
        "The image processor's settings are invalid. Expected positive sizes and standard "
        "deviations, and numbers instead of text."
    )


def _describe_checked(settings: Mapping[str, Any], kind: str) -> Preprocessing:
    try:
        if others := _unknown_keys(settings, kind):
            raise _unknown_setting(others[0], settings[others[0]])
        return check_preprocessing(_describe(settings, kind))
    except ModelError:
        raise
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise _invalid_settings() from error


def check_preprocessing(draft: Preprocessing) -> Preprocessing:
    """Return the preprocessing, or raise a ValueError or TypeError if it fits no picture."""
    if not all(0 < side <= MAX_INPUT_SIDE for side in draft.input_size):
        raise ValueError
    if not all(0 < std < math.inf for std in draft.std) or not all(map(math.isfinite, draft.mean)):
        raise ValueError
    if draft.interpolation not in INTERPOLATIONS or len(draft.mean) != len(draft.std):
        raise ValueError
    draft.place(Image.new("RGB", (8, 8)))
    return draft


def _prove(
    run: Callable[[Image.Image], Any],
    kind: str,
    draft: Preprocessing,
    unread: Sequence[str] = (),
    starts: Sequence[str] = ("trunc", "floor", "round"),
) -> Preprocessing:
    """Compare the described preprocessing with a processor's own on three pictures.

    Backends and versions of transformers round the start of a centred crop in three ways, which no
    setting tells. The one that fits is chosen.

    Raises
    ------
    ModelError
        When the pixels differ: a class may do more than its settings tell.
    """
    shares = draft.crop_pct if isinstance(draft.crop_pct, tuple) else (draft.crop_pct,) * 2
    height, width = (
        max(1, math.floor(x / share)) for x, share in zip(draft.input_size, shares, strict=True)
    )
    # Three more than a multiple of four: there the three ways to round differ.
    long = draft.input_size[0] + 4 * math.ceil((1.1 * width - draft.input_size[0]) / 4) + 3
    sizes = (
        (width, max(1, long)),
        (int(1.6 * width) + 3, height - height // 5),
        (width // 3 + 1, height // 2 + 1),
    )
    waves, mode = (height / _WAVE, width / _WAVE), "L" if len(draft.mean) == 1 else "RGB"
    probes = [_probe(*size, waves).convert(mode) for size in sizes]
    try:
        with torch.device("cpu"):  # even within `on_meta_device`
            expected = [np.asarray(run(probe)) for probe in probes]
    except Exception as error:  # other arguments are required, or settings are invalid
        raise ModelError(
            "{kind} cannot process a picture ({reason}). {remedy}",
            kind=kind,
            reason=reason_of(error),
            remedy=_REMEDY,
        ) from error
    for start in starts:
        candidate = replace(draft, crop_start=start)
        with torch.device("cpu"):
            own = [candidate(probe).numpy() for probe in probes]
        if all(_is_same(*pair, draft) for pair in zip(own, expected, strict=True)):
            return candidate
    raise ModelError(
        "{kind} computes other pixels than its settings describe{names}. {remedy}",
        kind=kind,
        names=f" ({', '.join(unread)})" if unread else "",
        remedy=_REMEDY,
    )


def _probe(width: int, height: int, waves: tuple[float, float]) -> Image.Image:
    """Draw smooth waves, which all libraries resize alike, and in which a shift shows."""
    y, x = np.mgrid[:height, :width] + 0.5
    y, x = 2 * np.pi * waves[0] * y / height, 2 * np.pi * waves[1] * x / width
    colours = (np.sin(x + 0.4 * y), np.sin(0.9 * y - 0.5 * x + 1), np.cos(0.6 * x + 0.7 * y + 2))
    return Image.fromarray((127.5 + 110 * np.stack(colours, axis=-1)).astype(np.uint8))


def _is_same(own: np.ndarray, expected: np.ndarray, draft: Preprocessing) -> bool:
    if own.shape != expected.shape:
        return False
    off = np.abs(own - expected) * np.array(draft.std)[:, None, None] * 255
    return bool(off.mean() <= _TOLERANCE[0] and off.max() <= _TOLERANCE[1])


def _describe(settings: Mapping[str, Any], kind: str) -> Preprocessing:
    if not settings.get("do_resize", True):
        raise ModelError(
            "The image processor does not resize pictures (do_resize is False), so the size of the "
            "input is unknown. {remedy}",
            remedy=_REMEDY,
        )
    if settings.get("keep_aspect_ratio"):
        raise ModelError(
            "The image processor keeps the shape of each picture (keep_aspect_ratio is True), so "
            "the size of the input is unknown. {remedy}",
            remedy=_REMEDY,
        )
    resample: Any = settings.get("resample")
    how = dict(enumerate(INTERPOLATIONS)).get(resample, resample)
    if how not in INTERPOLATIONS:
        raise ModelError(
            "The image processor's resample is {resample!r}, expected one of 0 to 5.",
            resample=resample,
        )
    if kind == "DINOv3ViT" and settings.get("do_rescale", True) and how in ("bicubic", "lanczos"):
        # It resizes floats instead of 8-bit levels, so that values leave 0..1 at edges.
        raise _unknown_setting("resample", resample)
    draft = replace(_describe_geometry(settings, kind), interpolation=how)
    pad = settings.get("pad_size")
    is_padded = pad is not None and (pad["height"], pad["width"]) != draft.input_size
    if settings.get("do_pad") and (kind == "DPT" or is_padded):
        raise _unknown_setting("do_pad", True)
    mean, std = _scale(settings, kind)
    order = "BGR" if settings.get("do_flip_channel_order") else "RGB"
    return replace(draft, mean=mean, std=std, channel_order=order)


def _scale(settings: Mapping[str, Any], kind: str) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std for values in 0..1; they describe any linear scale."""
    factor, shift = 255 * settings.get("rescale_factor", 1 / 255), 0.0
    if not settings.get("do_rescale", True):
        factor = 255.0
    elif settings.get("rescale_offset"):
        shift = -1.0
    mean: tuple[float, ...] = (0.0,) * 3
    std: tuple[float, ...] = (1.0,) * 3
    if settings.get("do_normalize", True) and kind != "MobileViT":  # MobileViT ignores the mean
        mean = _colours(settings, "image_mean")
        std = _colours(settings, "image_std", len(mean))
    if settings.get("include_top"):  # EfficientNet divides by the std a second time
        std = tuple(
            a * b for a, b in zip(std, _colours(settings, "image_std", len(std)), strict=True)
        )
    return tuple((m - shift) / factor for m in mean), tuple(s / factor for s in std)


def _describe_geometry(settings: Mapping[str, Any], kind: str) -> Preprocessing:
    """Return how pictures are resized and cropped, without mean and std."""
    size, crop = _sides(settings, "size"), None
    if settings.get("do_center_crop") and kind != "Segformer":  # Segformer ignores the crop
        crop = _sides(settings, "crop_size")
    short = size.get("shortest_edge")
    if kind == "Perceiver" and crop is not None:  # it crops before it resizes
        return _geometry(
            (size["height"], size["width"]),
            (size["height"] / crop["height"], size["width"] / crop["width"]),
            "cut",
        )
    if kind == "ConvNext":
        if short is None or crop is not None:
            raise _unknown_setting(
                "size" if short is None else "do_center_crop", size if crop else True
            )
        crop = {"height": short, "width": short}
        size = {"shortest_edge": int(short / settings["crop_pct"])} if short < 384 else crop
    elif kind == "PoolFormer" and settings.get("crop_pct"):
        share = settings["crop_pct"]
        if short is None and size["height"] == size["width"]:
            short = size["height"]
        size = (
            {key: int(side / share) for key, side in size.items()}
            if short is None
            else {"shortest_edge": int(short / share)}
        )
    elif kind == "Levit" and short:
        size = {"shortest_edge": int((256 / 224) * short)}
    elif kind == "DPT" and (step := settings.get("ensure_multiple_of")):
        if any(
            side % step * 2 == step for side in size.values()
        ):  # rounding depends on the picture
            raise _unknown_setting("ensure_multiple_of", step)
        size = {key: round(side / step) * step for key, side in size.items()}
    if "shortest_edge" in size and crop is None:
        raise ModelError(
            "The image processor keeps the shape of each picture and crops none (size is {size}), "
            "so the size of the input is unknown. {remedy}",
            size=size,
            remedy=_REMEDY,
        )
    output = crop or size
    input_size = output["height"], output["width"]
    if "shortest_edge" in size:
        share = _share(min(input_size), size["shortest_edge"])
        square = input_size[0] == input_size[1]
        return _geometry(input_size, share, "center" if square else "shortest")
    rows, cols = (_share(output[name], size[name]) for name in ("height", "width"))
    return _geometry(input_size, rows if rows == cols else (rows, cols), "squash")


def _geometry(
    input_size: tuple[int, int], crop_pct: float | tuple[float, float], crop_mode: str
) -> Preprocessing:
    return Preprocessing(
        input_size=input_size, mean=(), std=(), crop_pct=crop_pct, crop_mode=crop_mode
    )


def preprocessing_beside(config: Any) -> Preprocessing | None:
    """Return the preprocessing in the folder from which a configuration was loaded, or None."""
    folder = getattr(config, "_name_or_path", None)
    return (
        preprocessing_in_folder(Path(folder), getattr(config, "model_type", None))
        if folder
        else None
    )


def preprocessing_in_folder(folder: Path, kind: str | None) -> Preprocessing | None:
    """Return the preprocessing of the image processor in a model's folder, or None.

    As in transformers, processor_config.json comes first.
    """
    for name in (WHOLE_PROCESSOR, PROCESSOR):
        if (folder / name).is_file():
            settings = read_json(folder / name)
            if name == PROCESSOR or isinstance(settings.get("image_processor"), Mapping):
                return preprocessing_from(settings, kind)
    return None


def _plain(value: Any) -> Any:
    """Return a setting as in a file: in Python, enumerations and sizes are classes."""
    value = getattr(value, "value", value)
    return dict(value) if isinstance(value, Mapping) else value


def labels_from(id2label: Mapping[Any, str] | None) -> tuple[str, ...] | None:
    """Return the class names in a configuration of transformers; None if it only numbers them."""
    if not id2label:
        return None
    names = {int(number): str(label) for number, label in id2label.items()}
    if sorted(names) != [*range(len(names))]:
        return None
    labels = tuple(names[number] for number in range(len(names)))
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels


def _colours(settings: Mapping[str, Any], name: str, count: int = 0) -> tuple[float, ...]:
    """Return a number for each channel: 3, or 1 for grey pictures."""
    values = settings.get(name)
    if isinstance(values, int | float):
        return (float(values),) * (count or 3)
    if not isinstance(values, list | tuple) or len(values) not in ((count,) if count else (1, 3)):
        raise ModelError(
            "The image processor's {name} is {values!r}, expected three numbers.",
            name=name,
            values=values,
        )
    return tuple(map(float, values))


def _sides(settings: Mapping[str, Any], name: str) -> dict[str, int]:
    """Return {"shortest_edge": ...} or {"height": ..., "width": ...}, in pixels."""
    sides = settings.get(name)
    if isinstance(sides, int):  # before transformers 4.26; ambiguous for `size` with a crop
        if name == "crop_size" or not settings.get("do_center_crop"):
            return {"height": sides, "width": sides}
    elif isinstance(sides, Mapping):
        lengths = {key: value for key, value in sides.items() if value is not None}
        if all(isinstance(value, int) for value in lengths.values()) and set(lengths) in (
            {"shortest_edge"},
            {"height", "width"},
        ):
            return lengths
    raise ModelError(
        "The image processor's {name} is {sides!r}, expected a height and a width, "
        "or a shortest_edge.",
        name=name,
        sides=sides,
    )


def _share(part: int, whole: int) -> float:
    """Return the crop_pct by which `part` pixels are cut out of `whole`, exact after rounding."""
    share = part / whole
    return share if math.floor(part / share) == whole else math.nextafter(share, 0)
