"""Read a file of weights safely: no code in it is run, and no claim in it is trusted.

The sizes that a file claims are compared with its own size before memory is allocated: a file of
1.6 KB can claim 4 TB.
"""

import hashlib
import json
import math
import pickle
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from ...common.language import Message
from .contents import Contents, contents_of, is_measure, wrapper_of
from .errors import CheckpointError
from .naming import to_timm
from .pickles import MAX_ENTRIES, load_torch, refused_names

_HEADS = ("head.weight", "head.fc.weight")  # of classifiers in timm
#: Buffers that a model computes itself: counts, Swin's and BEiT's indices and masks, CLIP's and
#: rotary positions, and the mask of DINOv3's biases, which may be NaN.
_COMPUTED = (
    "num_batches_tracked",
    "n_averaged",
    "relative_position_index",
    "relative_coords_table",
    "attn_mask",
    "position_ids",
    "rope_embed.periods",
    "rope.periods",
    "rope.freqs_cos",
    "rope.freqs_sin",
    "bias_mask",
)
#: Types of weights; 8 bits and fewer need scales, which each tool stores in its own way.
_KINDS = ("float16", "bfloat16", "float32", "float64")
_NAMES = {"I": "int", "U": "uint", "F": "float", "C": "complex"}  # of safetensors' letters
INDEX = ".index.json"  # suffix of the file that lists the shards of a model
_MAX_INDEX = 20_000_000  # bytes


class Checkpoint:
    """A file of weights: safetensors, a torch file without code, or the `.npz` of the JAX ViT.

    Names become timm's (`naming`). Buffers that a model computes itself, such as the number of
    batches in a BatchNorm, are left out. An index is read with all of its shards.

    Parameters
    ----------
    path : Path
    part : str, optional
        Which model to take from a file that holds several, such as "teacher".

    Attributes
    ----------
    path : Path
    files : tuple of Path
        All files that were read: the path itself, or the shards that it lists.
    part : str
        Entry of the file with the weights, if it is unusual: a moving average, "net".
    wrapper : str
        Prefix that was removed from every name, such as DataParallel's "module."; or "".
    left_out : tuple of str
        Names that do not belong to the model, such as those of a loss or a metric.
    shapes : mapping of str to tuple of int
        Shapes of the tensors by their names in timm; the tensors themselves are not read.

    Raises
    ------
    CheckpointError
        When the file does not exist, is not a regular file of its own folder, cannot be read
        safely, holds other tensors than ordinary floating-point ones, claims larger tensors than it
        has room for, or has parts that do not fit together.
    """

    def __init__(self, path: Path, part: str | None = None) -> None:
        self.path = path
        _check_place(path)
        self.files = files_of(path)
        for file in self.files:
            _check_place(file)
        self.part, self.wrapper, self.left_out, self._stored = _open_all(path, self.files, part)
        outlines = self._read_tensors(lambda part: torch.empty(part[0], device="meta"))
        self.shapes = {name: tuple(tensor.shape) for name, tensor in outlines.items()}

    @property
    def digest(self) -> str:
        """First digits of the sha256 of the files' bytes."""
        return digest_of(self.files)

    @property
    def num_classes(self) -> int:
        """Number of classes in the head of the file's model; 0 without a head."""
        shape = next((self.shapes[name] for name in _HEADS if self.shapes.get(name)), (0,))
        return shape[0]

    @property
    def depth(self) -> int:
        """Number of blocks, by timm's names."""
        return len({name.split(".")[1] for name in self.shapes if name.startswith("blocks.")})

    def read(self, *, most: int | None = None) -> dict[str, Tensor]:
        """Return the state dict by timm's names, in float32.

        Parameters
        ----------
        most : int, optional
            Count of the model's numbers; a file with more than twice as many is refused unread.

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
        return self._read_tensors(lambda part: part[1]().float())

    def _read_tensors(self, make: Callable[["_Stored"], Tensor]) -> dict[str, Tensor]:
        """Apply `make` to every tensor in the file; return the results by timm's names."""
        try:
            tensors = {name: make(part) for name, part in self._stored.items()}
        except Exception as error:
            raise _unsafe(self.path, error) from error
        for name, tensor in tensors.items():
            if not tensor.is_meta and not bool(torch.isfinite(tensor).all()):
                raise CheckpointError(
                    "{name} in {file} holds NaN or infinite values.",
                    name=name,
                    file=self.path.name,
                )
        try:
            return to_timm(tensors)
        except ValueError as error:
            raise CheckpointError(
                "{file} cannot be read: {error}.", file=self.path.name, error=error
            ) from error


_Stored = tuple[tuple[int, ...], Any]  # a shape, and a function that reads the tensor


def _unsafe(path: Path, error: Exception) -> CheckpointError:
    # Readers raise many kinds of errors, and torch's own messages advise unsafe loading.
    advice: Message | str = ""
    if isinstance(error, pickle.UnpicklingError):
        names = refused_names(path)
        if any(name.startswith("torch.nn.modules.") for name in names):
            advice = Message(". Save the state_dict() instead of the whole model")
        elif names:
            advice = Message(
                ", as it also holds objects of {names}. Save the state_dict() alone",
                names=", ".join(names[:3]),
            )
    return CheckpointError(
        "{file} holds no weights that can be read safely{advice}.", file=path.name, advice=advice
    )


_Opened = tuple[str, str, tuple[str, ...], dict[str, _Stored]]  # part, prefix, left out, tensors


def _open_all(path: Path, files: Sequence[Path], part: str | None) -> _Opened:
    """Open all files; leave out buffers that a model computes itself."""
    stored: dict[str, _Stored] = {}
    contents = Contents({}, "", "")
    for file in files:
        content = _open(file, part if len(files) == 1 else None)
        if isinstance(content, Contents):
            contents, content = (
                content,
                _stored_tensors(file, content.tensors),
            )
        stored |= content
    stored = {name: tensor for name, tensor in stored.items() if not name.endswith(_COMPUTED)}
    if len(files) > 1 or not contents.tensors:  # no model chosen yet
        whole = {name: torch.empty(shape, device="meta") for name, (shape, _) in stored.items()}
        contents = _choose_model(path, whole, part) or Contents({}, "", wrapper_of(stored))
        others = {*contents.left_out}
        stored = {
            n.removeprefix(contents.prefix): t
            for n, t in stored.items()
            if n.startswith(contents.prefix) and n not in others
        }
    _check_adapter(path, [contents.prefix + name for name in stored])
    left_out = tuple(name for name in contents.left_out if not name.endswith(_COMPUTED))
    return contents.part, contents.prefix, left_out, stored


def _choose_model(path: Path, content: Any, part: str | None) -> Contents | None:
    try:
        return contents_of(content, part)
    except ValueError as error:
        raise CheckpointError("{file}: {error}.", file=path.name, error=error) from error


def _check_adapter(path: Path, names: Any) -> None:
    """Refuse an adapter of peft, which lacks its base model."""
    if any(re.search(r"(?:^|\.)(?:lora_[A-Z]|ia3)", name) for name in names):
        raise CheckpointError(
            "{file} holds an adapter and not a whole model. Load its base with peft, call "
            "merge_and_unload(), and give the module to vitviz.watch.",
            file=path.name,
        )


def _open(path: Path, part: str | None) -> Contents | dict[str, _Stored]:
    """Return the file's tensors; for a torch file, those of the wanted model."""
    try:
        if path.suffix == ".safetensors":
            return _open_safetensors(path)
        if path.suffix == ".npz":
            return _open_npz(path)
        content = load_torch(path)
    except CheckpointError:
        raise
    except Exception as error:
        raise _unsafe(path, error) from error
    found = _choose_model(path, content, part)
    if found is None:
        raise CheckpointError(
            "{file} is not a dictionary of tensors. Save the model's state_dict().", file=path.name
        )
    return found


def digest_of(files: Sequence[Path]) -> str:
    """Return the first digits of the sha256 of the bytes of all files."""
    digest = hashlib.sha256()
    for file in files:
        with file.open("rb") as data:
            while chunk := data.read(2**20):
                digest.update(chunk)
    return digest.hexdigest()[:12]


def files_of(path: Path) -> tuple[Path, ...]:
    """Return the shards that an index lists, or the file itself if it is not an index.

    Raises
    ------
    CheckpointError
        When the index cannot be read, or a shard is missing.
    """
    if not path.name.endswith(INDEX):
        return (path,)
    shards = tuple(path.parent / name for name in shard_names(path))
    for shard in shards:
        if not shard.is_file():
            raise CheckpointError(
                "{file} lists the shard {shard}, which is missing. Copy it into the same folder.",
                shard=shard.name,
                file=path.name,
            )
    return shards


def shard_names(path: Path) -> list[str]:
    """Return the names of the shards in an index; they must be in its own folder."""
    try:
        if path.stat().st_size > _MAX_INDEX:
            raise ValueError
        names = {str(name) for name in json.loads(path.read_text("utf-8"))["weight_map"].values()}
        if not names or any(Path(name).name != name for name in names):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise CheckpointError("{file} does not list the shards of a model.", file=path.name) from (
            error
        )
    return sorted(names)


def _check_place(path: Path) -> None:
    if not path.is_file():  # also a pipe or a device, on which reading would block
        raise CheckpointError("{file} is not a file.", file=path.name)
    folder = path.parent.resolve()
    blobs = folder.parent.parent / "blobs"  # where the hub's cache keeps its files
    if path.is_symlink() and path.resolve().parent not in (folder, blobs):
        raise CheckpointError(
            "{file} is a link out of its folder. Give the path of the file itself.",
            file=path.name,
        )


def check_kinds(files: Sequence[Path]) -> None:
    """Raise a CheckpointError for tensors that are quantised, packed or not floating-point."""
    for file in files:
        found = _open(file, None)
        if isinstance(found, Contents):
            _stored_tensors(file, found.tensors)


def _other_kind(path: Path, name: str, kind: str) -> CheckpointError:
    return CheckpointError(
        "{name} in {file} is stored as {kind}, and vitviz reads weights in {kinds}. Save the model "
        "in one of these; dequantise it first if it was quantised.",
        name=name,
        file=path.name,
        kind=kind,
        kinds=", ".join(_KINDS),
    )


def _wrong_size(path: Path, name: str) -> CheckpointError:
    return CheckpointError(
        "{name} in {file} claims more or fewer numbers than the file holds. Save the model again.",
        name=name,
        file=path.name,
    )


def _open_safetensors(path: Path) -> dict[str, _Stored]:
    with safe_open(path, framework="pt") as file:  # compares the header with the file's size
        names = list(file.keys())
        slices = {name: file.get_slice(name) for name in names}
        shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
        kinds = {name: part.get_dtype() for name, part in slices.items()}
    for name, kind in kinds.items():
        # By torch's names: I8 is int8, F8_E4M3 is float8_e4m3.
        named = re.sub(r"[IUFC](?=\d)", lambda m: _NAMES[m[0]], kind).lower()
        is_weight = not name.endswith(_COMPUTED) and not is_measure(name)
        if named not in _KINDS and is_weight:
            raise _other_kind(path, name, named)
    whole: dict[str, Tensor] = {}

    def read(name: str) -> Tensor:
        if name not in whole:  # loads the file once, again if a tensor is read twice
            whole.update(load_file(path))
        return whole.pop(name)

    return {name: (shape, lambda name=name: read(name)) for name, shape in shapes.items()}


def _open_npz(path: Path) -> dict[str, _Stored]:
    arrays: dict[str, _Stored] = {}
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
                name = entry.filename.removesuffix(".npy")
                if dtype.name not in _KINDS:
                    raise _other_kind(path, name, dtype.name)
                if file.tell() + claimed != entry.file_size:
                    raise _wrong_size(path, name)
            arrays[name] = (shape, lambda entry=entry: _read_npy(path, entry))
    return arrays


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


def _stored_tensors(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, _Stored]:
    size = path.stat().st_size
    for key, tensor in tensors.items():
        is_dense = tensor.layout == torch.strided
        kind = str(tensor.dtype if is_dense else tensor.layout).removeprefix("torch.")
        if kind not in _KINDS and not (is_dense and key.endswith(_COMPUTED)):
            raise _other_kind(path, key, kind)
        if tensor.is_meta or tensor.nbytes > size:
            raise _wrong_size(path, key)
    return {
        key: (tuple(tensor.shape), lambda tensor=tensor: tensor) for key, tensor in tensors.items()
    }
