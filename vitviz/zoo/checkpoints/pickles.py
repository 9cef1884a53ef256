"""Read torch files with torch's restricted unpickler, which runs no code of the file.

Trainers keep settings beside the weights: an argparse.Namespace, paths, numpy scalars. The
unpickler refuses their classes. Here it creates empty stand-ins instead, so that nothing of these
classes is imported or called; everything else is still refused.
"""

import pickle
import pickletools
import re
import zipfile
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import torch

from .errors import CheckpointError

MAX_PICKLE = 50_000_000  # bytes of the names and shapes in a torch file
MAX_ENTRIES = 20_000  # files in an archive; the largest models have some thousand tensors
#: Classes of settings and numbers, by their full names.
_SETTINGS = re.compile(
    r"argparse\.Namespace|pathlib\.[\w.]*Path|datetime\.\w+|uuid\.UUID|typing\.Any"
    r"|builtins\.(?:list|dict|tuple|frozenset|int|float|str|bytes|bool|range|slice)"
    r"|numpy(?:\.\w+)*\.(?:scalar|_reconstruct|ndarray|dtype)|numpy\.dtypes\.\w+"
    r"|numpy\.(?:bool_?|u?int\d+|float\d+|str_)|omegaconf\.[\w.]+"
)
#: Dictionaries of settings.
_MAPPINGS = re.compile(
    r"collections\.defaultdict|easydict\.EasyDict|addict[\w.]*\.Dict|[\w.]+\.ConfigDict"
    r"|(?:yacs|fvcore)[\w.]*\.CfgNode|(?:pytorch_lightning|lightning\w*)[\w.]*\.AttributeDict"
)


class _Settings:
    """Stand-in for an object of settings; keeps nothing."""

    def __new__(cls, *_: Any, **__: Any) -> "_Settings":
        return object.__new__(cls)

    def __init__(self, *_: Any, **__: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Mapping:
    """Stand-in for a class of dictionaries: an OrderedDict, as the unpickler fills no other."""

    def __new__(cls, *_: Any, **__: Any) -> Any:
        return OrderedDict()


def load_torch(path: Path) -> Any:
    """Return the content of a torch file, with empty stand-ins for settings.

    Raises
    ------
    pickle.UnpicklingError
        When it holds objects of other classes, see `refused_names`.
    """
    is_zip = zipfile.is_zipfile(path)
    if is_zip:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
        if any(entry.filename.endswith("/constants.pkl") for entry in entries):
            raise CheckpointError(
                "{file} is a TorchScript program. Save the model's state_dict() instead.",
                file=path.name,
            )
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in entries):
            raise CheckpointError(
                "{file} is a compressed archive, and torch.save writes none. Unpack it, or save "
                "the model's state_dict() with torch.save.",
                file=path.name,
            )
        pickle_size = max((e.file_size for e in entries if e.filename.endswith(".pkl")), default=0)
        if pickle_size > MAX_PICKLE or len(entries) > MAX_ENTRIES:
            raise CheckpointError(
                "{file} holds too much besides weights to be read safely. Save the model's "
                "state_dict() alone.",
                file=path.name,
            )
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)
    except pickle.UnpicklingError:
        stand_ins: list[Any] = [
            (_Mapping if _MAPPINGS.fullmatch(name) else _Settings, name)
            for name in _names(path)
            if _MAPPINGS.fullmatch(name) or _SETTINGS.fullmatch(name)
        ]
        if not stand_ins:
            raise
        with torch.serialization.safe_globals(stand_ins):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip)


def refused_names(path: Path) -> list[str]:
    """Return the classes and functions in a torch file that are refused, in order."""
    prefixes = ("collections.OrderedDict", "collections.Counter", "_codecs.encode", "torch.")
    return [
        name
        for name in _names(path)
        if not (_MAPPINGS.fullmatch(name) or _SETTINGS.fullmatch(name))
        and (not name.startswith(prefixes) or name.startswith("torch.nn.modules."))
    ]


def _names(path: Path) -> list[str]:
    """Return the full names of the classes and functions in a torch file."""
    names: dict[str, None] = {}
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                for entry in archive.namelist():
                    if entry.endswith(".pkl"):
                        with archive.open(entry) as file:
                            names |= dict.fromkeys(_globals(file))
        elif path.stat().st_size <= MAX_PICKLE:
            with path.open("rb") as file:  # before torch 1.6: several pickles, then the numbers
                for _ in range(5):
                    names |= dict.fromkeys(_globals(file))
    except (ValueError, OSError, zipfile.BadZipFile):
        pass  # not a pickle from here on
    return [*names]


def _globals(file: IO[bytes]) -> Iterator[str]:
    words: list[str] = []
    for operation, argument, _ in pickletools.genops(file):
        if operation.name == "GLOBAL":
            yield str(argument).replace(" ", ".").replace("__builtin__.", "builtins.")
        elif operation.name == "STACK_GLOBAL":  # protocol 4: the two strings before it
            yield ".".join(words[-2:])
        elif isinstance(argument, str):
            words.append(argument)
