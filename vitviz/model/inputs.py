"""`prepare`: turn a picture, or a tensor of the user's own DataLoader, into the model's input."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from ..common.files import printable
from ..common.images import Placement, open_image, read_file
from ..common.language import Message
from .families import ModelError
from .origin import PictureSource, picture_digest
from .preprocessing import per_channel

if TYPE_CHECKING:
    from .model import Model

_PATH = (str, os.PathLike)
_FILE = (bytes, bytearray, memoryview, *_PATH)


@dataclass(frozen=True, eq=False)
class PreparedInput:
    """An input of a model, and the picture that is shown for it.

    Attributes
    ----------
    x : Tensor of shape (channels, height, width)
    picture : PIL.Image
    placement : Placement
        Where the input lies in the picture.
    source : PictureSource
    note : str
        Note for the provenance line if the input was prepared by the user.
    """

    x: Tensor
    picture: Image.Image
    placement: Placement
    source: PictureSource
    note: str = ""


#: What every function accepts as a picture: an upright PIL image, the bytes or the path of a file,
#: or a prepared input: a normalised float tensor (channels, height, width).
Picture = (
    Image.Image | bytes | bytearray | memoryview | str | os.PathLike[str] | Tensor | PreparedInput
)


def prepare(model: "Model", image: Picture, picture: Picture | None = None) -> PreparedInput:
    """Return the model's input for a picture; a prepared input is checked and not changed.

    Parameters
    ----------
    picture : optional
        Picture to show for a prepared input. If the model's own preprocessing turns it into that
        input, its crop is known; else it is taken to show what the input shows, edge to edge.

    Raises
    ------
    ModelError
        When the model does not take such pictures, or the tensor is not a valid input.
    ImageError
        When the bytes or the file cannot be read as a picture, or a grey PIL image is deeper than
        8 bits.
    TypeError
        When `image` is none of these.
    """
    if isinstance(image, PreparedInput):
        return image
    if isinstance(image, Tensor):
        return _of_tensor(model, image, picture)
    if picture is not None:
        raise TypeError("A picture to show belongs to a prepared input, which is a tensor.")
    name = _name(image)
    source = PictureSource("pixels", name)
    if isinstance(image, _FILE):
        data = read_file(image)
        image, source = open_image(data), PictureSource("file", name, picture_digest(data))
    placement = model.preprocess.place(image)  # raises the TypeError
    return PreparedInput(model.preprocess(image), image, placement, source)


def _name(picture: Picture | None) -> str | None:
    """Return the name of a picture's file without its folder, or None if it is unknown."""
    path = getattr(picture, "filename", None) if isinstance(picture, Image.Image) else picture
    return printable(os.path.basename(path)) if isinstance(path, _PATH) and path else None


def _of_tensor(model: "Model", x: Tensor, picture: Picture | None) -> PreparedInput:
    x = _check_input(model, x)
    (height, width), size = x.shape[1:], (x.shape[2], x.shape[1])
    whole = (0, 0, width, height)
    source = PictureSource("prepared input", _name(picture), picture_digest(x))
    if picture is None:
        note = Message(", prepared input, shown by its first channel from min to max")
        if len(x) in (1, 3):
            note = Message(", prepared input, shown with its mean and std undone")
        return PreparedInput(x, shown_input(model, x), Placement(size, size, whole), source, note)
    picture = open_image(picture) if isinstance(picture, _FILE) else picture
    if not isinstance(picture, Image.Image):
        raise TypeError(
            f"Expected picture as a PIL image, bytes or a path, got {type(picture).__name__}."
        )
    placement = Placement(picture.size, size, whole)
    if _is_made_of(model, x, picture):
        placement = model.preprocess.place(picture)
    note = Message(", prepared input, with a picture given for it")
    return PreparedInput(x, picture, placement, source, note)


def shown_input(model: "Model", x: Tensor) -> Image.Image:
    """Draw an input (channels, H, W): mean and std undone, or its first channel."""
    return model.preprocess.picture_of(x) or _first_channel(x)


def _is_made_of(model: "Model", x: Tensor, picture: Image.Image) -> bool:
    """Whether the model's own preprocessing turns this picture into this input, up to rounding."""
    try:
        own = model.preprocess(picture)
    except ModelError:  # the model has neither 1 nor 3 channels
        return False
    std = per_channel(model.preprocess.std)
    error = ((own - x.float()) * std).abs()  # of values in 0..1
    return bool(error.mean() < 0.01)


def _first_channel(x: Tensor) -> Image.Image:
    values = x[0].float()
    low, high = values.min(), values.max()
    levels = 255 * (values - low) / (high - low).clamp(min=torch.finfo(torch.float32).tiny)
    return Image.fromarray(levels.round().byte().numpy()).convert("RGB")


def _check_input(model: "Model", x: Tensor) -> Tensor:
    """Check a prepared input; return it on the CPU, without its graph and its subclass."""
    shape = (len(model.preprocess.mean), *model.preprocess.input_size)
    if not x.is_floating_point():
        raise ModelError(
            "A prepared input of {model} holds floating-point numbers, got {dtype}. Scale and "
            "normalise it as in training.",
            model=model.name,
            dtype=str(x.dtype).removeprefix("torch."),
        )
    x = model.preprocess.resize(x)
    if x.ndim == 4 and len(x) == 1 and tuple(x.shape[1:]) == shape:
        raise ModelError(
            "A prepared input has no batch dimension: expected {wanted}, got {shape}. Give its "
            "first entry, x[0].",
            wanted=shape,
            shape=tuple(x.shape),
        )
    if tuple(x.shape) != shape:
        raise ModelError(
            "{model} takes prepared inputs of shape {wanted}, got {shape}. The order is channels, "
            "height, width.",
            model=model.name,
            wanted=shape,
            shape=tuple(x.shape),
        )
    x = x.detach().as_subclass(Tensor).cpu()
    if not bool(torch.isfinite(x).all()):
        raise ModelError(
            "The prepared input holds NaN or infinite values. Check its preprocessing."
        )
    return x
