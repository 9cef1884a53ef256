"""The catalogue of models, and `load_model`; the only module that imports timm."""

import difflib
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from threadpoolctl import threadpool_limits
from torch import nn

from .checkpoints import (
    CheckpointError,
    classes_in,
    load_shipped,
    load_state,
    read_state,
    shapes_in,
    shipped_names,
)
from .families import ModelError, family_of
from .hub import PATIENCE, HubError, Weights, cached, download, remove, undamaged
from .memory import check, footprint
from .model import Model, Preprocessing
from .vit import VisionTransformer, resize_position_embedding

DEFAULT_SEED = 0
CIFAR_SIDE = 32  # pixels of the pictures that the shipped models were trained on
SAFE_FILE = "model.safetensors"  # what timm calls weights on the hub
MAX_SIDE = 4096  # pixels of the input; attention over more patches is out of reach


@dataclass(frozen=True)
class Entry:
    """One line of the menu of models.

    Attributes
    ----------
    weights : Weights or None
        Where its trained weights are on the hub; None for a shipped model.
    size : float
        Of the trained weights, in megabytes.
    """

    name: str
    title: str
    shipped: bool
    weights: Weights | None = None
    size: float = 0.0

    @property
    def on_disk(self) -> bool:
        """Whether its trained weights need no download; the network is not asked."""
        return self.weights is None or cached(self.weights) is not None


# timm's own answers, written down so that the menu is there before timm is: the tag of the weights
# and their megabytes.
_OFFERED = {
    "vit_tiny_patch16_224": ("augreg_in21k_ft_in1k", 22.9),
    "vit_small_patch16_224": ("augreg_in21k_ft_in1k", 88.2),
    "vit_base_patch16_224": ("augreg2_in21k_ft_in1k", 346.3),
    "deit_tiny_patch16_224": ("fb_in1k", 22.9),
    "deit_tiny_distilled_patch16_224": ("fb_in1k", 23.6),
    "deit_small_patch16_224": ("fb_in1k", 88.2),
}


def catalogue() -> tuple[Entry, ...]:
    """The models that the app offers: the shipped ones first, then plain ViTs of timm."""
    own = tuple(Entry(name, f"{name} (shipped)", True) for name in shipped_names())
    return own + tuple(
        Entry(name, f"{name} (timm)", False, Weights(f"timm/{name}.{tag}", SAFE_FILE), size)
        for name, (tag, size) in _OFFERED.items()
    )


def leave_cores_free() -> None:
    """Let a forward pass use half of the cores, for programs that are not alone on theirs.

    Threads wait for each other in every layer: on two cores with other work, a pass of the shipped
    model took 16 times as long with two threads as with one.
    """
    count = max(1, (os.cpu_count() or 1) // 2)
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")  # numpy's matrix products


def load_model(
    name: str,
    *,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int | None = None,
) -> Model:
    """Load a model that can be watched.

    Parameters
    ----------
    name : str
        A shipped model, such as "vitviz_tiny_cifar10", or the name of a timm architecture.
    pretrained : bool
        False gives random weights; they depend on `seed` alone.
    checkpoint : path, optional
        A local file with weights in timm's names: safetensors, or a torch file without code.
    image_size : int or (rows, columns), optional
        Of the input in pixels; positions are interpolated to it. Default: the model's own.
    seed : int, optional
        Of random weights; 0 where left out.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        When there is no such model, it cannot be read, or its weights cannot be had.
    """
    size = None if image_size is None else _height_and_width(image_size)
    if checkpoint is None and pretrained and seed is not None:
        raise ModelError("A seed belongs to random weights: add pretrained=False.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DEFAULT_SEED if seed is None else seed)
        build = _shipped if name in shipped_names() else _timm
        try:
            return build(name, pretrained, None if checkpoint is None else Path(checkpoint), size)
        except CheckpointError as error:
            raise ModelError(f"{name}: {error}") from error


def weights_of(name: str) -> Weights:
    """Where the trained weights of an architecture of timm are on the hub.

    Raises
    ------
    ModelError
        When timm has no such architecture, or no weights of it on the hub.
    """
    for entry in catalogue():
        if entry.name == name and entry.weights is not None:
            return entry.weights  # known without timm, whose import takes seconds

    from timm.models import get_pretrained_cfg

    architecture = _architecture(name)
    found = get_pretrained_cfg(architecture)
    if found is None or not found.hf_hub_id:
        raise ModelError(f"timm has no trained weights of {architecture} on the hub.")
    repo, _, revision = found.hf_hub_id.partition("@")
    # Beside weights that are pickled the hub has safe ones, which timm prefers too.
    file = (found.hf_hub_filename or SAFE_FILE).replace("open_clip_pytorch_", "open_clip_")
    return Weights(repo, re.sub(r"\.(bin|pth?)$", ".safetensors", file), revision or "main")


def on_disk(name: str) -> bool:
    """Whether trained weights of an architecture of timm need no download.

    Raises
    ------
    ModelError
        As `weights_of` does.
    """
    return cached(weights_of(name)) is not None


def fetch_weights(
    name: str,
    *,
    progress: Callable[[int, int | None], None] | None = None,
    patience: float = PATIENCE,
    verify: bool = False,
) -> Path:
    """Trained weights of an architecture of timm: the file in the cache, downloaded if need be.

    Parameters
    ----------
    progress : callable, optional
        Called several times a second during a download, with the bytes that are here and how many
        there are (None until that is known); what it raises ends the download.
    patience : float
        Seconds without a new byte after which a download is given up.
    verify : bool
        True compares a file that is in the cache already with its sha256, and fetches a damaged
        one anew.

    Raises
    ------
    ModelError
        When they cannot be had.
    """
    weights = weights_of(name)
    there = cached(weights)
    if there is not None and verify and not undamaged(there):
        remove(there)
        there = None
    try:
        return there or download(weights, progress=progress, patience=patience)
    except HubError as error:
        architecture = name.removeprefix("timm/")
        remedy = (
            "make room, or name another folder in HF_HUB_CACHE"
            if error.local
            else f"run `vitviz fetch {architecture}` where there is internet"
        )
        raise ModelError(
            f"The trained weights of {architecture} could not be downloaded, because {error}: "
            f"choose the shipped model or random weights, or {remedy}."
        ) from error


def _height_and_width(image_size: int | tuple[int, int]) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
        height, width = size
        if min(size) > 0 and max(size) <= MAX_SIDE:
            return height, width
    raise ModelError(
        f"Expected an image size of one number or (rows, columns) from 1 to {MAX_SIDE}, "
        f"got {image_size!r}."
    )


def _shipped(
    name: str, pretrained: bool, checkpoint: Path | None, size: tuple[int, int] | None
) -> Model:
    shipped = load_shipped(name)
    configuration: dict[str, Any] = dict(shipped.configuration)
    own_size = configuration["image_size"]
    try:
        module = VisionTransformer(**{**configuration, "image_size": size or own_size})
    except ValueError as error:
        raise ModelError(str(error)) from error
    weights = "random weights"
    if checkpoint is not None:
        _fill(module, checkpoint, prefix=module.num_prefix_tokens)
        weights = _file_words(checkpoint)
    elif pretrained:
        state = dict(shipped.state)
        state["pos_embed"] = resize_position_embedding(
            state["pos_embed"],
            grid=module.patch_embed.grid_size,
            num_prefix_tokens=module.num_prefix_tokens,
        )
        module.load_state_dict(state)
        weights = f"shipped weights, {shipped.test_accuracy:.1%} on its test pictures"
    return Model(
        module,
        name=name,
        preprocessing=Preprocessing(
            input_size=module.patch_embed.image_size,
            mean=shipped.mean,
            std=shipped.std,
            detail=min(1.0, CIFAR_SIDE / own_size),
        ),
        trained=checkpoint is not None or pretrained,
        weights=weights,
        labels=shipped.classes,
        temperature=shipped.temperature if pretrained and checkpoint is None else None,
    )


def _timm(
    name: str, pretrained: bool, checkpoint: Path | None, size: tuple[int, int] | None
) -> Model:
    architecture = _architecture(name)
    options: dict[str, Any] = {} if size is None else {"img_size": size}
    if checkpoint is not None:
        options["num_classes"] = classes_in(shapes_in(checkpoint))
    options = _fitting(architecture, options)
    if checkpoint is None and pretrained:
        module, weights = _create_trained(architecture, options)
    else:
        module, weights = _create(architecture, options), "random weights"
    if checkpoint is not None:
        _fill(module, checkpoint, prefix=getattr(module, "num_prefix_tokens", 0))
        weights = _file_words(checkpoint)
    return Model(
        module,
        name=name,
        preprocessing=_preprocessing(module, size),
        trained=checkpoint is not None or pretrained,
        weights=weights,
        labels=_labels(module),
    )


def _fill(module: nn.Module, checkpoint: Path, *, prefix: int) -> None:
    numbers = sum(tensor.numel() for tensor in module.state_dict().values())
    load_state(module, read_state(checkpoint, most=numbers), prefix=prefix)


def _fitting(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
    """The options as the architecture takes them, seen on a model without numbers.

    Raises
    ------
    ModelError
        When the model cannot be, cannot be read, or needs more memory than is free.
    """
    size = options.get("img_size")
    try:
        outline = _outline(architecture, options)
    except ModelError:
        if size is None:
            raise
        options = {key: value for key, value in options.items() if key != "img_size"}
        outline = _outline(architecture, options)
        if not family_of(outline).any_size:
            raise
    family = family_of(outline)
    input_size = _preprocessing(outline, size).input_size
    needed = footprint(outline, family.sites(outline, input_size))
    check(needed.total, f"{architecture} at {input_size[0]} x {input_size[1]} pixels")
    return options


def _outline(architecture: str, options: dict[str, Any]) -> nn.Module:
    """The model without numbers: it costs no memory and draws nothing from a generator."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        outline: nn.Module = _create(architecture, options)
        return outline


def _architecture(name: str) -> str:
    """timm's name of an architecture, with its tag where it has one."""
    import timm

    architecture = name.removeprefix("timm/")
    if timm.is_model(architecture):
        return architecture
    known = [*shipped_names(), *timm.list_models()]
    near = difflib.get_close_matches(architecture, known, n=1)
    hint = f": did you mean {near[0]}?" if near else "."
    raise ModelError(f"There is no model named {name}{hint}")


def _create(architecture: str, options: dict[str, Any]) -> Any:
    import timm

    try:
        return timm.create_model(architecture, pretrained=False, **options)
    except Exception as error:
        wanted = " with ".join(["It", str(options)]) if options else "It"
        raise ModelError(f"{wanted} is nothing that {architecture} of timm can be.") from error


def _create_trained(architecture: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The module with timm's own weights, and the words that name them."""
    import timm

    path = fetch_weights(architecture)
    # The file is always safetensors, whatever the place is that timm would have read from.
    where = dict(file=str(path), custom_load=False)
    try:
        module: Any = timm.create_model(
            architecture, pretrained=True, pretrained_cfg_overlay=where, **options
        )
    except Exception as error:  # readers of broken files raise many kinds; none reaches a user
        raise ModelError(
            f"The trained weights of {architecture} in the hub's cache cannot be read: "
            f"run `vitviz fetch {architecture}` to have them checked and fetched anew."
        ) from error
    tag = module.pretrained_cfg.get("tag") or "default"
    return module, f"trained weights of timm, {tag}, revision {path.parent.name[:7]}"


def _preprocessing(module: nn.Module, size: tuple[int, int] | None) -> Preprocessing:
    from timm.data import resolve_model_data_config

    config = resolve_model_data_config(module)
    height, width = size or config["input_size"][-2:]
    return Preprocessing(
        input_size=(height, width),
        mean=tuple(config["mean"]),
        std=tuple(config["std"]),
        interpolation=config["interpolation"],
        crop_pct=config["crop_pct"],
        crop_mode=config["crop_mode"],
    )


def _labels(module: nn.Module) -> tuple[str, ...] | None:
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if not subset:
        return None
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def _file_words(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"local file {path.name}, sha256 {digest[:12]}"
