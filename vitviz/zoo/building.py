"""Modules of timm, made with or without a file of weights: its options, its memory, its loading."""

import hashlib
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from ..checkpoints import Checkpoint, CheckpointError, load_state
from ..families import ModelError, family_of
from ..language import Message
from ..memory import check, footprint
from .architectures import ShapesAlone, outline_of, preprocessing_of
from .positions import Size
from .resampling import check_mixing, relative_tables, resampling_words

_KERNEL = "patch_embed.proj.weight"


def options_of(
    architecture: str, file: Checkpoint, given: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """What a file says of its model: the number of classes, and of layers where it has others.

    Parameters
    ----------
    given : options beside them, which are kept

    Raises
    ------
    CheckpointError
        When its width is another: the number of heads is in no file of weights.
    """
    options: dict[str, Any] = {**(given or {}), "num_classes": file.num_classes}
    outline = outline_of(architecture, options)
    own, found = outline.state_dict().get(_KERNEL), file.shapes.get(_KERNEL, ())
    if own is not None and len(found) == own.ndim and found[0] != own.shape[0]:
        raise CheckpointError(
            "{file} is of a model of width {width}, and {architecture} has {own}: the "
            "number of heads, which no file of weights tells, is in the config.json that "
            "timm and transformers save beside it.",
            file=file.path.name,
            width=found[0],
            architecture=architecture,
            own=own.shape[0],
        )
    blocks: Any = getattr(outline, "blocks", None)
    counted = isinstance(blocks, nn.Sequential | nn.ModuleList)
    if counted and file.depth not in (0, len(blocks)):
        options["depth"] = file.depth
    return options


def check_tables(
    architecture: str, options: Mapping[str, Any], file: Checkpoint, trained: Size, size: Size
) -> None:
    """Refuse a file whose tables are for another input, where they are not resampled.

    Parameters
    ----------
    trained, size : (height, width) of the input that the file was trained at, and that is wanted
    """
    outline = outline_of(architecture, dict(options))
    check_mixing(architecture, outline, size, trained)
    if not relative_tables(outline):
        return
    before, after = (outline_of(architecture, {**options, "img_size": s}) for s in (trained, size))
    if relative_tables(before) != relative_tables(after):
        raise CheckpointError(
            "The relative positions in {file} are for an input of {height} x {width} "
            "pixels, and are not resampled.",
            file=file.path.name,
            height=trained[0],
            width=trained[1],
        )


def load_file(
    module: nn.Module, file: Checkpoint, *, source: str | None = None, grid: Size | None = None
) -> Message:
    """Copy a file's weights into the module; returns the provenance in words.

    Parameters
    ----------
    source : where the file comes from; "local file" and its name where left out
    grid : rows and columns of its positions, where they are known; else they are a square
    """
    numbers = sum(tensor.numel() for tensor in module.state_dict().values())
    prefix = getattr(module, "num_prefix_tokens", 0)
    grids = load_state(module, file.read(most=numbers), prefix=prefix, grid=grid)
    with file.path.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    words = Message(
        "{source}, sha256 {digest}",
        source=source or Message("local file {file}", file=file.path.name),
        digest=digest[:12],
    )
    if file.part:
        words += Message(", its {part}", part=file.part)
    if file.wrapper:
        words += Message(", its names without {wrapper}", wrapper=file.wrapper)
    return words + resampling_words(grids)


def checked_options(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options that the architecture takes, checked on the meta device.

    Raises
    ------
    ModelError
        When there is no such model, it cannot be read, or it needs more memory than is free.
    """
    size = options.get("img_size")
    try:
        outline = outline_of(architecture, options)
    except ModelError:
        if size is None:
            raise
        options = {key: value for key, value in options.items() if key != "img_size"}
        outline = outline_of(architecture, options)
        if not family_of(outline).any_size:
            raise
    height, width = preprocessing_of(outline, size).input_size
    try:
        check_memory(f"{architecture} of timm", outline, (height, width))
        if size is not None:
            with torch.no_grad(), ShapesAlone():
                outline.eval()(torch.empty(1, 3, height, width, device="meta"))
    except ModelError:
        raise
    except Exception as error:  # patches or windows that the size does not fill, above all
        raise ModelError(
            "{architecture} of timm cannot take pictures of {height} x {width} pixels.",
            architecture=architecture,
            height=height,
            width=width,
        ) from error
    return options


def check_memory(what: str, outline: nn.Module, size: tuple[int, int]) -> None:
    """Refuse a model that, with one capture of it, needs more memory than is free."""
    sites = family_of(outline).sites(outline, size)
    check(
        footprint(outline, sites).total,
        Message("{what} at {height} x {width} pixels", what=what, height=size[0], width=size[1]),
    )
