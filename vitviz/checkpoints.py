"""Files -> state dicts: the shipped weights, and checkpoints that the operator names."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from .vit import resize_position_embedding


class CheckpointError(ValueError):
    """A file of weights that cannot be used; the message is one sentence."""


@dataclass(frozen=True)
class Shipped:
    """One file of assets/weights: its state dict and what its metadata says of it."""

    state: dict[str, Tensor]
    configuration: Mapping[str, Any]  # keywords of VisionTransformer
    classes: tuple[str, ...]
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    test_accuracy: float  # of 1


def assets() -> Path:
    """The folder assets/: inside the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parent
    inside = package / "assets"
    return inside if inside.is_dir() else package.parent / "assets"


def shipped_names() -> tuple[str, ...]:
    """Names of the models whose weights are in assets/."""
    return tuple(sorted(path.stem for path in (assets() / "weights").glob("*.safetensors")))


def load_shipped(name: str) -> Shipped:
    """Read one of the shipped models."""
    return load_trained(assets() / "weights" / f"{name}.safetensors")


def load_trained(path: Path) -> Shipped:
    """Read a file that `vitviz train` wrote.

    Raises
    ------
    CheckpointError
        When it is no such file.
    """
    try:
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["vitviz"])
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} is no file that `vitviz train` wrote.") from error
    return Shipped(
        state={key: tensor.float() for key, tensor in load_file(path).items()},
        configuration=about["configuration"],
        classes=tuple(about["classes"]),
        mean=tuple(about["mean"]),
        std=tuple(about["std"]),
        test_accuracy=about["test_accuracy"],
    )


def read_state(path: Path) -> dict[str, Tensor]:
    """Read a state dict in timm's names from safetensors, or from a torch file without code.

    Raises
    ------
    CheckpointError
        When the file is not there, cannot be read, or holds anything but finite numbers.
    """
    if not path.is_file():
        raise CheckpointError(f"{path.name} is not a file.")
    state: Any
    try:
        if path.suffix == ".safetensors":
            state = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # Whatever the reader meets in a broken or hostile file; its own words advise unsafe ways.
        raise CheckpointError(f"{path.name} holds no weights that can be read safely.") from error
    if isinstance(state, dict) and isinstance(state.get("model"), dict):
        state = state["model"]
    if not isinstance(state, dict) or not all(
        isinstance(key, str) and isinstance(tensor, Tensor) for key, tensor in state.items()
    ):
        raise CheckpointError(f"{path.name} is not a dictionary of tensors.")
    for key, tensor in state.items():
        if not _is_finite(tensor):
            raise CheckpointError(f"{key} of {path.name} is not made of finite numbers.")
    return {key: tensor.float() for key, tensor in state.items()}


def _is_finite(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor of finite numbers, all of which the file holds."""
    ordinary = tensor.is_floating_point() and tensor.layout == torch.strided and not tensor.is_meta
    if not ordinary or tensor.nbytes > tensor.untyped_storage().nbytes():
        return False
    return bool(torch.isfinite(tensor).all())


def load_state(module: Any, state: Mapping[str, Tensor], *, prefix: int) -> None:
    """Copy `state` into `module`, positions resized to its grid; nothing missing, nothing over.

    Parameters
    ----------
    prefix : int
        Tokens before the patches in the module's sequence.

    Raises
    ------
    CheckpointError
        When names or shapes differ; the first difference is named.
    """
    state = _resized(module, dict(state), prefix)
    own = module.state_dict()
    for key in sorted(own.keys() ^ state.keys()):
        there = "lacks" if key in own else "has, and the model lacks,"
        raise CheckpointError(f"The file {there} {key}.")
    for key, tensor in own.items():
        if state[key].shape != tensor.shape:
            raise CheckpointError(
                f"{key} has shape {tuple(state[key].shape)} in the file, "
                f"expected {tuple(tensor.shape)}."
            )
    module.load_state_dict(state)


def _resized(module: Any, state: dict[str, Tensor], prefix: int) -> dict[str, Tensor]:
    own, table = module.state_dict().get("pos_embed"), state.get("pos_embed")
    if own is None or table is None or own.shape == table.shape or table.ndim != 3:
        return state
    grid = module.patch_embed.grid_size
    kept = prefix if own.shape[1] == prefix + math.prod(grid) else 0
    if own.shape[::2] != table.shape[::2] or table.shape[1] <= kept:
        return state  # no table of this model at any size
    try:
        table = resize_position_embedding(table, grid=grid, num_prefix_tokens=kept)
    except ValueError as error:
        raise CheckpointError(str(error)) from error
    return {**state, "pos_embed": table}
