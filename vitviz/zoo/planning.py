"""Plan a model of timm, then build it: options, input size and memory are known before."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..common.language import Message
from ..common.query import Grid
from ..model.families import ModelError, family_of, input_channels
from ..model.memory import model_bytes, require_memory
from .architectures import (
    ShapesAlone,
    build_outline,
    create,
    preprocessing_of,
    skip_random_weights,
)
from .checkpoints import Checkpoint, CheckpointError, left_out_note, load_state
from .resampling import InputSize, check_mixing, relative_tables, resampling_note, trained_size

_KERNEL = "patch_embed.proj.weight"
#: Names of the tables whose shape depends on the input size.
_TABLES = ("pos_embed", "relative_position_bias_table", "mlp_tokens.fc1.weight")


@dataclass(frozen=True)
class Plan:
    """What timm will build, and the file of weights that will fill it.

    Attributes
    ----------
    architecture : str
    options : dict
        Of `timm.create_model`; timm has built a model with them on the meta device.
    file : Checkpoint or None
        None leaves the weights random.
    trained : (height, width) or None
        Size of the input in training; None if neither the file nor its folder tells it.
    size : (height, width) or None
        Size of the input; None for that of the architecture.
    usual_depth : int or None
        Number of layers of the architecture, if the file has another.
    """

    architecture: str
    options: dict[str, Any]
    file: Checkpoint | None
    trained: InputSize | None
    size: InputSize | None
    usual_depth: int | None

    def build(self) -> Any:
        """Create the module; if a file follows, without random weights."""
        with nullcontext() if self.file is None else skip_random_weights():
            return create(self.architecture, self.options)

    def load(self, module: nn.Module, source: str | None = None) -> Message:
        """Copy the file's weights into the module; return a description of the weights."""
        assert self.file is not None
        weights = load_file(module, self.file, source=source, grid=self._trained_grid)
        if self.usual_depth is None:
            return weights
        return weights + Message(
            ", {count} layers as in the file, not {usual}",
            count=self.options["depth"],
            usual=self.usual_depth,
        )

    @property
    def _trained_grid(self) -> Grid | None:
        """Rows and columns of the file's positions; None if the model has no such grid."""
        if self.trained is None:
            return None
        try:
            outline = build_outline(self.architecture, {**self.options, "img_size": self.trained})
        except ModelError:
            return None
        grid = getattr(getattr(outline, "patch_embed", None), "grid_size", None)
        return None if grid is None else (grid[0], grid[1])


def plan(
    architecture: str,
    file: Checkpoint | None,
    size: InputSize | None,
    *,
    options: Mapping[str, Any] | None = None,
    stated: InputSize | None = None,
) -> Plan:
    """Plan a model of timm, which may be filled from a file.

    Parameters
    ----------
    size : (height, width) of the input that is wanted; None for that of the training
    options : of timm, as a configuration states them
    stated : size of the input in training, as a configuration states it

    Raises
    ------
    ModelError, CheckpointError
        When timm builds no such model, the file does not fit it, or the memory does not suffice.
    """
    settings, trained, usual_depth = dict(options or {}), stated, None
    if file is not None:
        settings, usual_depth = _options_of(architecture, file, settings)
        trained = _trained_size(architecture, settings, file, stated, size) or stated
        if size is not None and trained not in (None, size):
            _check_tables(architecture, settings, file, trained, size)
    target = size or trained
    if target is not None:
        settings["img_size"] = target
    return Plan(
        architecture,
        _check_options(architecture, settings),
        file,
        trained,
        target,
        usual_depth,
    )


def _trained_size(
    architecture: str,
    options: Mapping[str, Any],
    file: Checkpoint,
    stated: InputSize | None,
    size: InputSize | None,
) -> InputSize | None:
    """Return the input size that a file was trained at: the stated one, if its tables fit.

    Else a table of 6 x 24 positions would be taken for 12 x 12. Where another size is wanted,
    tables that fill no square leave it unknown.
    """
    if stated is not None:
        try:
            shapes = build_outline(architecture, {**options, "img_size": stated}).state_dict()
        except ModelError:  # an architecture that takes any size
            return stated
        tables = [name for name in shapes if name.endswith(_TABLES)]
        if all(file.shapes.get(name) == tuple(shapes[name].shape) for name in tables):
            return stated
    outline = build_outline(architecture, dict(options))
    try:
        return trained_size(file.shapes, outline, preprocessing_of(outline, None).input_size)
    except CheckpointError:
        if size is None:
            raise
        return None


def _options_of(
    architecture: str, file: Checkpoint, further: Mapping[str, Any]
) -> tuple[dict[str, Any], int | None]:
    """Return the options of timm that fit a file, and the usual depth if the file has another.

    The options are the number of classes, the number of layers and the pooling.

    Parameters
    ----------
    further : options that are kept

    Raises
    ------
    CheckpointError
        When the file has another width: no file of weights tells the number of heads.
    """
    options: dict[str, Any] = {**further, "num_classes": file.num_classes}
    outline = build_outline(architecture, options)
    own, shape = outline.state_dict().get(_KERNEL), file.shapes.get(_KERNEL, ())
    if own is not None and len(shape) == own.ndim and shape[0] != own.shape[0]:
        raise CheckpointError(
            "{file} has width {width}, and {architecture} has {own}. Load the folder with the "
            "config.json that timm or transformers saved beside it, which tells the number of "
            "heads.",
            file=file.path.name,
            width=shape[0],
            architecture=architecture,
            own=own.shape[0],
        )
    _check_prefix(outline.state_dict(), file)
    names = outline.state_dict().keys()
    if ("fc_norm.weight" in file.shapes) > ("norm.weight" in file.shapes) and (
        "fc_norm.weight" not in names
    ):
        # As in MAE's fine-tuning: the norm follows the mean of the patches.
        options["global_pool"] = "avg"
    elif ("norm.weight" in file.shapes) > ("norm.weight" in names) and "cls_token" in names:
        # As in the pre-training of BEiT and EVA: the norm applies to every token.
        options["global_pool"] = "token"
    blocks: Any = getattr(outline, "blocks", None)
    countable = isinstance(blocks, nn.Sequential | nn.ModuleList)
    if countable and file.depth not in (0, len(blocks)):
        options["depth"] = file.depth
        return options, len(blocks)
    return options, None


def _check_prefix(own: Mapping[str, Any], file: Checkpoint) -> None:
    """Refuse a file with other prefix tokens, whose positions would else seem to be patches."""
    for name in ("cls_token", "dist_token", "reg_token"):
        if "patch_embed.proj.weight" in file.shapes and (name in own) != (name in file.shapes):
            message = (
                Message("The file lacks {key}.", key=name)
                if name in own
                else Message("The file has, and the model lacks, {key}.", key=name)
            )
            raise CheckpointError(message)


def _check_tables(
    architecture: str,
    options: Mapping[str, Any],
    file: Checkpoint,
    trained: InputSize,
    size: InputSize,
) -> None:
    """Refuse a file with tables for another input that cannot be resampled.

    Parameters
    ----------
    trained, size : (height, width) of the input in training, and of the input that is wanted
    """
    outline = build_outline(architecture, dict(options))
    check_mixing(architecture, outline, size, trained)
    if not relative_tables(outline):
        return
    before, after = (
        build_outline(architecture, {**options, "img_size": s}) for s in (trained, size)
    )
    if relative_tables(before) != relative_tables(after):
        raise CheckpointError(
            "The relative positions in {file} are for an input of {height} x {width} pixels, and "
            "cannot be resampled. Leave image_size out.",
            file=file.path.name,
            height=trained[0],
            width=trained[1],
        )


def load_file(
    module: nn.Module, file: Checkpoint, *, source: str | None = None, grid: Grid | None = None
) -> Message:
    """Copy a file's weights into the module; return a description of the weights.

    Parameters
    ----------
    source : where the file comes from; by default "local file" and its name
    grid : rows and columns of its positions, if they are known; else a square
    """
    numbers = sum(tensor.numel() for tensor in module.state_dict().values())
    prefix = getattr(module, "num_prefix_tokens", 0)
    grids = load_state(module, file.read(most=numbers), prefix=prefix, grid=grid)
    description = Message(
        "{source}, sha256 {digest}",
        source=source or Message("local file {file}", file=file.path.name),
        digest=file.digest,
    )
    if file.part:
        description += Message(", its {part}", part=file.part)
    if file.wrapper:
        description += Message(", its names without {wrapper}", wrapper=file.wrapper)
    if file.left_out:
        description += left_out_note(file.left_out)
    return description + resampling_note(grids)


def _check_options(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options that the architecture accepts, checked on the meta device.

    Raises
    ------
    ModelError
        When timm cannot build such a model, it cannot be read, or needs more memory than is free.
    """
    size = options.get("img_size")
    try:
        outline = build_outline(architecture, options)
    except ModelError:
        if size is None:
            raise
        options = {key: value for key, value in options.items() if key != "img_size"}
        outline = build_outline(architecture, options)
        if not family_of(outline).any_size:
            raise
    height, width = preprocessing_of(outline, size).input_size
    try:
        check_model_memory(f"{architecture} of timm", outline, (height, width))
        if size is not None:
            channels = input_channels(outline)
            with torch.no_grad(), ShapesAlone():
                outline.eval()(torch.empty(1, channels, height, width, device="meta"))
    except ModelError:
        raise
    except Exception as error:  # most often, patches or windows do not fill this size
        raise ModelError(
            "{architecture} of timm does not take pictures of {height} x {width} pixels. Choose "
            "another image_size.",
            architecture=architecture,
            height=height,
            width=width,
        ) from error
    return options


def check_model_memory(what: str, outline: nn.Module, size: tuple[int, int]) -> None:
    """Refuse a model that needs more memory than is free, including one capture."""
    sites = family_of(outline).sites(outline, size)
    require_memory(
        model_bytes(outline, sites),
        Message("{what} at {height} x {width} pixels", what=what, height=size[0], width=size[1]),
    )
