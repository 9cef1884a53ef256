"""Reads a file of weights safely: no code in it is run, and no claim in it is trusted.

The sizes that a file claims are compared with its own before memory is allocated: a file of 1.6 KB
can claim 4 TB.
"""

import math
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..language import Message, MessageError
from .naming import to_timm, wrapper_of

MAX_ENTRIES = 20_000  # files in an archive; the largest models have some thousand tensors
_HEADS = ("head.weight", "head.fc.weight")  # where timm's models have their classes
#: Buffers of whole numbers: a BatchNorm's, Swin's, and that of torch's moving average of weights.
_COMPUTED = ("num_batches_tracked", "relative_position_index", "n_averaged")
#: Where trainers keep the state dict in a torch file: a moving average (EMA) before the rest, as it
#: is what they evaluate.
_AVERAGES = ("state_dict_ema", "model_ema", "ema_state_dict", "ema")
_PARTS = ("model", "state_dict", "model_state_dict", "net", "network", "module")
MAX_PICKLE = 50_000_000  # bytes of the names and shapes in a torch file


class CheckpointError(MessageError):
    """A file of weights that cannot be used; the message is one sentence."""


class Checkpoint:
    """A file of weights: safetensors, a torch file without code, or the `.npz` of the JAX ViT.

    Names of Hugging Face's ViT, DeiT and DINOv2 and of the JAX ViT become timm's. Buffers that a
    model computes itself, such as the number of batches of a BatchNorm, are left out.

    Attributes
    ----------
    path : Path
    part : str
        The entry of the file with the weights, where that must be said: a moving average, "net".
    wrapper : str
        The prefix of every name that was removed, such as "module." of DataParallel; else "".
    shapes : mapping of str to tuple of int
        Of the tensors by their names in timm; the tensors themselves are not read.

    Raises
    ------
    CheckpointError
        When the file is not there, is no regular file of its own folder, cannot be read safely,
        holds anything but ordinary tensors of floating-point numbers that it is large enough for,
        or has parts that do not fit together.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.part, tensors = _open(path)
        found = {name: part for name, part in tensors.items() if not name.endswith(_COMPUTED)}
        self.wrapper = wrapper_of(found)
        self._found = {name.removeprefix(self.wrapper): part for name, part in found.items()}
        outlines = self._named(lambda part: torch.empty(part[0], device="meta"))
        self.shapes = {name: tuple(tensor.shape) for name, tensor in outlines.items()}

    @property
    def num_classes(self) -> int:
        """How many classes the head of the file's model knows; 0 where it has none."""
        shape = next((self.shapes[name] for name in _HEADS if self.shapes.get(name)), (0,))
        return shape[0]

    @property
    def depth(self) -> int:
        """How many blocks the file has, by timm's names."""
        return len({name.split(".")[1] for name in self.shapes if name.startswith("blocks.")})

    def read(self, *, most: int | None = None) -> dict[str, Tensor]:
        """The state dict by timm's names, in float32.

        Parameters
        ----------
        most : int, optional
            Numbers that the model can take; a file with twice as many is refused before it is read.

        Raises
        ------
        CheckpointError
            When there are too many numbers, or one is not finite.
        """
        numbers = sum(math.prod(shape) for shape in self.shapes.values())
        if most is not None and numbers > 2 * most:
            raise CheckpointError(
                "{file} holds {numbers:.1f} million numbers, and the model has {most:.1f} million.",
                file=self.path.name,
                numbers=numbers / 1e6,
                most=most / 1e6,
            )
        return self._named(lambda part: part[1]().float())

    def _named(self, make: Callable[["_Stored"], Tensor]) -> dict[str, Tensor]:
        """`make` applied to every tensor in the file, by timm's names."""
        try:
            made = {name: make(part) for name, part in self._found.items()}
        except Exception as error:
            raise _unsafe(self.path, error) from error
        for name, tensor in made.items():
            if not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    "{name} of {file} is not made of finite numbers.",
                    name=name,
                    file=self.path.name,
                )
        try:
            return to_timm(made)
        except ValueError as error:
            raise CheckpointError(
                "{file} is damaged: {error}.", file=self.path.name, error=error
            ) from error


_Stored = tuple[tuple[int, ...], Any]  # a shape, and a function that reads the tensor


def _unsafe(path: Path, error: Exception) -> CheckpointError:
    # Readers raise many kinds of errors, and the words of torch's own advise unsafe loading.
    advice: Message | str = ""
    if isinstance(error, pickle.UnpicklingError) and zipfile.is_zipfile(path):  # of torch
        advice = Message(": a model that was saved as a whole must be saved as its state_dict()")
    return CheckpointError(
        "{file} holds no weights that can be read safely{advice}.", file=path.name, advice=advice
    )


def _open(path: Path) -> tuple[str, dict[str, _Stored]]:
    """The entry of the file that holds the weights, "" where nothing must be said, and they."""
    _check_place(path)
    try:
        if path.suffix == ".safetensors":
            return "", _open_safetensors(path)
        if path.suffix == ".npz":
            return "", _open_npz(path)
        content = _load_torch(path)
    except CheckpointError:
        raise
    except Exception as error:
        raise _unsafe(path, error) from error
    part = _part_of(content)
    return part if part not in _PARTS[:2] else "", _stored_tensors(path, content, part)


def _check_place(path: Path) -> None:
    if not path.is_file():  # also a pipe or a device, on which reading would block
        raise CheckpointError("{file} is not a file.", file=path.name)
    folder = path.parent.resolve()
    blobs = folder.parent.parent / "blobs"  # where the hub's cache has the bytes of its files
    if path.is_symlink() and path.resolve().parent not in (folder, blobs):
        raise CheckpointError(
            "{file} is a link out of its folder: name the file itself.", file=path.name
        )


def _open_safetensors(path: Path) -> dict[str, _Stored]:
    with safe_open(path, framework="pt") as file:  # compares the header with the file's size
        names = list(file.keys())
        slices = {name: file.get_slice(name) for name in names}
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        kinds = {name: part.get_dtype() for name, part in slices.items()}
    for name, kind in kinds.items():
        if not kind.startswith(("F", "BF")) and not name.endswith(_COMPUTED):
            raise CheckpointError(
                "{name} of {file} is not made of finite numbers.", name=name, file=path.name
            )
    whole: dict[str, Tensor] = {}

    def read(name: str) -> Tensor:
        if name not in whole:  # computed buffers, which nobody reads, may be all that is left
            whole.update(load_file(path))
        return whole.pop(name)

    return {name: (shape, lambda name=name: read(name)) for name, shape in shapes.items()}


def _open_npz(path: Path) -> dict[str, _Stored]:
    found: dict[str, _Stored] = {}
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_ENTRIES:
            raise CheckpointError(
                "{file} has {count} entries, too many for a model.",
                file=path.name,
                count=len(entries),
            )
        for entry in entries:
            with archive.open(entry) as file:
                shape, dtype = _npy_header(file)
                claimed = math.prod(shape) * dtype.itemsize
                if dtype.kind != "f" or file.tell() + claimed != entry.file_size:
                    name = entry.filename
                    raise CheckpointError(
                        "{name} of {file} is not made of finite numbers.", name=name, file=path.name
                    )
            name = entry.filename.removesuffix(".npy")
            found[name] = (shape, lambda entry=entry: _read_npy(path, entry))
    return found


def _npy_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    version = np.lib.format.read_magic(file)
    read = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[version]
    shape, _, dtype = read(file)
    return shape, dtype


def _read_npy(path: Path, entry: zipfile.ZipInfo) -> Tensor:
    with zipfile.ZipFile(path) as archive, archive.open(entry) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    return torch.from_numpy(np.ascontiguousarray(array))


def _load_torch(path: Path) -> Any:
    zipped = zipfile.is_zipfile(path)
    if zipped:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        packed = any(entry.compress_type != zipfile.ZIP_STORED for entry in entries)
        pickled = max((e.file_size for e in entries if e.filename.endswith(".pkl")), default=0)
        if packed or pickled > MAX_PICKLE or len(entries) > MAX_ENTRIES:
            raise CheckpointError("{file} is an archive as torch writes none.", file=path.name)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)


def _part_of(content: Any) -> str:
    """The name of the dictionary of weights in a trainer's file; "" where it is one itself."""
    if not isinstance(content, dict):
        return ""
    parts = (name for name in (*_AVERAGES, *_PARTS) if isinstance(content.get(name), dict))
    return next(parts, "")


def _stored_tensors(path: Path, content: Any, part: str) -> dict[str, _Stored]:
    content = content[part] if part else content
    if not isinstance(content, dict) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in content.items()
    ):
        raise CheckpointError("{file} is not a dictionary of tensors.", file=path.name)
    size = path.stat().st_size
    for key, tensor in content.items():
        number = tensor.is_floating_point() or key.endswith(_COMPUTED)
        ordinary = number and tensor.layout == torch.strided
        if not ordinary or tensor.is_meta or tensor.nbytes > size:
            raise CheckpointError(
                "{key} of {file} is not made of finite numbers.", key=key, file=path.name
            )
    return {
        key: (tuple(tensor.shape), lambda tensor=tensor: tensor) for key, tensor in content.items()
    }
