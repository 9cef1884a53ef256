"""Preprocessing and labels as transformers and torchvision write them down."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from PIL import Image

from ..families import ModelError
from ..model import Preprocessing
from .files import PROCESSOR, read_json
from .positions import MAX_SIDE

_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}  # PIL's numbers


class ImageProcessor(Protocol):
    """An image processor of transformers."""

    def to_dict(self) -> dict[str, Any]: ...


class Preset(Protocol):
    """The transforms that belong to trained weights of torchvision."""

    crop_size: list[int]
    resize_size: list[int]
    mean: list[float]
    std: list[float]
    interpolation: Any


def preprocessing_in(source: Preprocessing | ImageProcessor | Preset) -> Preprocessing:
    """What an image processor of transformers or a preset of torchvision does to a picture.

    Raises
    ------
    ModelError
        When it is neither, or does what is not known.
    """
    if isinstance(source, Preprocessing):
        return source
    if hasattr(source, "to_dict"):
        return preprocessing_from(source.to_dict())
    if not all(hasattr(source, name) for name in Preset.__annotations__):
        raise ModelError(
            "Expected as preprocessing a vitviz.model.Preprocessing, an image processor "
            "of transformers or the transforms of torchvision's weights, got {kind}.",
            kind=type(source).__name__,
        )
    (crop,), (resized,) = source.crop_size, source.resize_size
    return Preprocessing(
        input_size=(crop, crop),
        mean=_colours(vars(source), "mean"),
        std=_colours(vars(source), "std"),
        interpolation=source.interpolation.value,
        crop_pct=_share(crop, resized),
    )


def preprocessing_from(settings: Mapping[str, Any]) -> Preprocessing:
    """The preprocessing that the settings of an image processor of transformers describe.

    Parameters
    ----------
    settings : mapping
        What `preprocessor_config.json` holds, or what an image processor's `to_dict` returns.

    Raises
    ------
    ModelError
        When they ask for something else than to resize, crop and normalise, leave a number out, or
        hold one that cannot be.
    """
    try:
        return checked(_described(settings))
    except ModelError:
        raise
    except (TypeError, ValueError, KeyError, ZeroDivisionError) as error:
        raise ModelError(
            "The image processor's settings cannot be used: expected positive sizes and "
            "standard deviations, and numbers where numbers belong."
        ) from error


def checked(made: Preprocessing) -> Preprocessing:
    """The preprocessing itself; a ValueError or TypeError where no picture can go through it."""
    if not all(0 < side <= MAX_SIDE for side in made.input_size):
        raise ValueError
    if not all(0 < std < math.inf for std in made.std) or not all(map(math.isfinite, made.mean)):
        raise ValueError
    if made.interpolation not in _RESAMPLE.values():
        raise ValueError
    made.place(Image.new("RGB", (8, 8)))
    return made


def _described(settings: Mapping[str, Any]) -> Preprocessing:
    if not settings.get("do_resize", True):
        raise ModelError("The image processor does not resize its pictures, so no size is known.")
    if settings.get("do_pad") or not math.isclose(settings.get("rescale_factor", 1 / 255), 1 / 255):
        raise ModelError("The image processor pads or scales pictures in a way that is not known.")
    mean, std = (0.0,) * 3, (1.0,) * 3
    if settings.get("do_normalize", True):
        mean, std = (_colours(settings, name) for name in ("image_mean", "image_std"))
    resample = settings.get("resample")
    if resample not in _RESAMPLE:
        raise ModelError(
            "The image processor's resample is {resample!r}, expected 0, 1, 2 or 3.",
            resample=resample,
        )
    size, crop = _sides(settings, "size"), None
    if settings.get("do_center_crop"):
        crop = _sides(settings, "crop_size")
    elif "shortest_edge" in size and settings.get("crop_pct"):  # ConvNeXt's
        short = size["shortest_edge"]
        crop = {"height": short, "width": short}
        size = {"shortest_edge": int(short / settings["crop_pct"])} if short < 384 else crop
    if "shortest_edge" in size and crop is None:
        raise ModelError(
            "The image processor keeps the shape of each picture and crops none, so "
            "their size is not known: give watch a "
            "preprocessing=vitviz.model.Preprocessing(...)."
        )
    wanted = crop or size
    input_size = wanted["height"], wanted["width"]
    resized = [size[name if name in size else "shortest_edge"] for name in ("height", "width")]
    shares = {_share(kept, of) for kept, of in zip(input_size, resized, strict=True)}
    if len(shares) > 1:
        raise ModelError(
            "The image processor resizes pictures to {height} x {width} pixels and cuts "
            "{rows} x {cols} out of them: the two shapes differ, and vitviz crops to the "
            "same shape only.",
            height=resized[0],
            width=resized[1],
            rows=input_size[0],
            cols=input_size[1],
        )
    return Preprocessing(
        input_size=input_size,
        mean=mean,
        std=std,
        interpolation=_RESAMPLE[resample],
        crop_pct=shares.pop(),
        crop_mode="center" if "shortest_edge" in size else "squash",
    )


def preprocessing_beside(config: Any) -> Preprocessing | None:
    """That of the image processor in the folder from which a configuration was loaded, or None."""
    folder = getattr(config, "_name_or_path", None)
    if not folder or not (path := Path(folder, PROCESSOR)).is_file():
        return None
    return preprocessing_from(read_json(path))


def labels_from(id2label: Mapping[Any, str] | None) -> tuple[str, ...] | None:
    """Names of the classes in a configuration of transformers; None where it only numbers them."""
    if not id2label:
        return None
    named = {int(number): str(label) for number, label in id2label.items()}
    if sorted(named) != [*range(len(named))]:
        return None
    labels = tuple(named[number] for number in range(len(named)))
    return None if all(re.fullmatch(r"LABEL_\d+", label) for label in labels) else labels


def _colours(settings: Mapping[str, Any], name: str) -> tuple[float, float, float]:
    values = settings.get(name)
    if not isinstance(values, list | tuple) or len(values) != 3:
        raise ModelError(
            "The image processor's {name} is {values!r}, expected three numbers.",
            name=name,
            values=values,
        )
    red, green, blue = map(float, values)
    return red, green, blue


def _sides(settings: Mapping[str, Any], name: str) -> dict[str, int]:
    """{"shortest_edge": ...} or {"height": ..., "width": ...}, in pixels."""
    sides = settings.get(name)
    if isinstance(sides, int):  # as transformers before 4.26 wrote it; of `size` it says too little
        if name == "crop_size" or not settings.get("do_center_crop"):
            return {"height": sides, "width": sides}
    elif isinstance(sides, Mapping):
        found = {key: value for key, value in sides.items() if isinstance(value, int)}
        if set(found) in ({"shortest_edge"}, {"height", "width"}):
            return found
    raise ModelError(
        "The image processor's {name} is {sides!r}, expected a height and a width, "
        "or a shortest_edge.",
        name=name,
        sides=sides,
    )


def _share(kept: int, of: int) -> float:
    """The crop_pct with which `kept` pixels are cut out of `of`, also after rounding."""
    share = kept / of
    return share if math.floor(kept / share) == of else math.nextafter(share, 0)
