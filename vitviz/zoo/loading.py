"""`load_model`: a `Model` from a shipped file, from timm, or from a local file of weights."""

import hashlib
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import nn
from torch.overrides import TorchFunctionMode

from ..checkpoints import (
    Checkpoint,
    CheckpointError,
    classes_named_in,
    load_shipped,
    load_state,
    shipped_names,
)
from ..devices import CPU, device_named
from ..families import ModelError, family_of
from ..memory import check, footprint
from ..model import Model, Preprocessing
from ..vit import VisionTransformer
from .architectures import create, embeds, labels_of, on_meta_device, outline_of, preprocessing_of
from .catalogue import architecture_named, fetch_weights
from .positions import MAX_SIDE, trained_size

DEFAULT_SEED = 0


def leave_cores_free() -> None:
    """Limit torch and BLAS to half of the cores, for a machine that runs other programs too.

    Threads synchronise in every layer: on two cores with other work, a pass of the shipped model
    took 16 times as long with two threads as with one. The cores are those that this process may
    use, by its affinity and by the quota of its container.
    """
    count = max(1, joblib.cpu_count() // 2)
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")  # numpy's matrix products


def load_model(
    name: str,
    *,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    seed: int | None = None,
    device: str | torch.device = CPU,
) -> Model:
    """Load a model that can be watched.

    Parameters
    ----------
    name : str
        A shipped model, such as "vitviz_tiny_cifar10", or the name of a timm architecture.
    pretrained : bool
        False gives random weights; they depend on `seed` alone.
    checkpoint : path, optional
        A local file of weights: safetensors, a torch file without code, or the JAX ViT's .npz; in
        timm's names, or in those of Hugging Face or JAX for a ViT, DeiT or DINOv2.
    image_size : int or (rows, columns), optional
        Of the input in pixels; positions are interpolated to it. Default: the one that a file's
        positions were trained at, else the model's own.
    seed : int, optional
        Of random weights; 0 where left out.
    device : "cpu", "cuda", "cuda:1", "mps", ... or torch.device
        Where the model computes; its weights are made on the CPU and moved there.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        When there is no such model or device, it cannot be read, its weights cannot be had, or the
        memory does not suffice.
    """
    place = device_named(device)
    size = None if image_size is None else _height_and_width(image_size)
    if checkpoint is None and pretrained and seed is not None:
        raise ModelError("A seed belongs to random weights: add pretrained=False.")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DEFAULT_SEED if seed is None else seed)
        build = _shipped if name in shipped_names() else _timm
        try:
            file = None if checkpoint is None else Checkpoint(Path(checkpoint))
            if file is not None and size is None:
                size = _size_in(name, file)
            model = build(name, pretrained, file, size)
        except CheckpointError as error:
            raise ModelError(f"{name}: {error}") from error
    if place.type != "cpu":
        check(footprint(model.module, model.sites).total, name, place)
        model.module.to(place)
    return model


def size_in(name: str, checkpoint: Path) -> tuple[int, int] | None:
    """The height and width of a checkpoint's input in training; None where it does not show them.

    Raises
    ------
    ModelError
        As `load_model` does.
    """
    try:
        return _size_in(name, Checkpoint(checkpoint))
    except CheckpointError as error:
        raise ModelError(f"{name}: {error}") from error


def _size_in(name: str, file: Checkpoint) -> tuple[int, int] | None:
    if name in shipped_names():
        with on_meta_device():
            own = VisionTransformer(**load_shipped(name).configuration)
        return trained_size(file.shapes, own, own.patch_embed.image_size)
    outline = outline_of(architecture_named(name), {"num_classes": file.num_classes})
    return trained_size(file.shapes, outline, preprocessing_of(outline, None).input_size)


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
    name: str, pretrained: bool, file: Checkpoint | None, size: tuple[int, int] | None
) -> Model:
    shipped = load_shipped(name)
    configuration: dict[str, Any] = dict(shipped.configuration)
    own_size = configuration["image_size"]
    try:
        module = VisionTransformer(**{**configuration, "image_size": size or own_size})
    except ValueError as error:
        raise ModelError(str(error)) from error
    weights, labels = "random weights", None
    if file is not None:
        weights, labels = _load_file(module, file), classes_named_in(file.path)
    elif pretrained:
        labels = shipped.classes
        grids = load_state(module, shipped.state, prefix=module.num_prefix_tokens)
        weights = f"shipped weights, {shipped.test_accuracy:.1%} on its test pictures"
        weights += _resampling(grids)
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=Preprocessing(
            input_size=module.patch_embed.image_size,
            mean=shipped.mean,
            std=shipped.std,
            detail=shipped.detail,
        ),
        trained=file is not None or pretrained,
        weights=weights,
        labels=labels,
        temperature=shipped.temperature if pretrained and file is None else None,
    )


def _timm(
    name: str, pretrained: bool, file: Checkpoint | None, size: tuple[int, int] | None
) -> Model:
    architecture = architecture_named(name)
    options: dict[str, Any] = {} if size is None else {"img_size": size}
    size_note = ""
    if file is not None:
        options["num_classes"] = file.num_classes
        if size is None:
            size_note = ", input size of the architecture, as the file tells none"
    options = _checked_options(architecture, options)
    labels = None
    if file is None and pretrained:
        module, weights = _create_trained(architecture, options)
        labels = labels_of(module)
    else:
        module, weights = create(architecture, options), "random weights"
    if file is not None:
        weights, labels = _load_file(module, file) + size_note, classes_named_in(file.path)
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=preprocessing_of(module, size),
        trained=file is not None or pretrained,
        weights=weights,
        labels=labels,
        embeds=embeds(architecture, module.num_classes),
    )


def _load_file(module: nn.Module, file: Checkpoint) -> str:
    """Copy a file's weights into the module; returns the provenance in words."""
    numbers = sum(tensor.numel() for tensor in module.state_dict().values())
    prefix = getattr(module, "num_prefix_tokens", 0)
    grids = load_state(module, file.read(most=numbers), prefix=prefix)
    with file.path.open("rb") as data:
        digest = hashlib.file_digest(data, "sha256").hexdigest()
    words = f"local file {file.path.name}, sha256 {digest[:12]}"
    if file.wrapper:
        words += f", its names without {file.wrapper}"
    return words + _resampling(grids)


def _resampling(grids: tuple[tuple[int, int], tuple[int, int]] | None) -> str:
    """The words of the provenance on resampled positions; "" where none were."""
    if grids is None:
        return ""
    before, after = (f"{rows}x{cols}" for rows, cols in grids)
    return f", positions resampled from {before} to {after}"


def _checked_options(architecture: str, options: dict[str, Any]) -> dict[str, Any]:
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
    family = family_of(outline)
    height, width = preprocessing_of(outline, size).input_size
    try:
        sites = family.sites(outline, (height, width))
        if size is not None:
            with torch.no_grad():
                outline.eval()(torch.empty(1, 3, height, width, device="meta"))
    except ModelError:
        raise
    except Exception as error:  # patches or windows that the size does not fill, above all
        raise ModelError(
            f"{architecture} of timm cannot take pictures of {height} x {width} pixels."
        ) from error
    check(footprint(outline, sites).total, f"{architecture} at {height} x {width} pixels")
    return options


class _InitialisationCounter(TorchFunctionMode):
    """Counts how often tensors of one shape are filled with random numbers."""

    def __init__(self, shape: torch.Size) -> None:
        super().__init__()
        self.shape, self.count = shape, 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("kaiming_uniform_", "kaiming_normal_", "uniform_", "normal_"):
            tensor = args[0] if args else kwargs["tensor"]
            self.count += tensor.shape == self.shape
        return func(*args, **kwargs)


def random_kernel(model: Model) -> np.ndarray:
    """The filters of `load_model(model.name, pretrained=False)`, if possible without the rest.

    A patch embedding with torch's default initialisation takes the first random numbers, so it can
    be made alone. Where an architecture initialises it again, the whole model is made.

    Returns
    -------
    ndarray of shape (D, C, P, P)

    Raises
    ------
    ModelError
        When there is no such architecture, or the whole model needs more memory than is free.
    """
    assert model.patch_kernel is not None
    filters, channels, *size = model.patch_kernel.shape
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DEFAULT_SEED)
        alone = nn.Conv2d(channels, filters, tuple(size))
    if model.name not in shipped_names():
        counter = _InitialisationCounter(alone.weight.shape)
        with torch.random.fork_rng(devices=[]), torch.device("meta"), counter:
            create(architecture_named(model.name), {})
        if counter.count > 1:
            whole = load_model(model.name, pretrained=False).patch_kernel
            assert whole is not None
            return whole
    return alone.weight.detach().numpy()


def _create_trained(architecture: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The module with timm's own weights, and their provenance in words."""
    import timm

    path = fetch_weights(architecture)
    # The file is always safetensors, whatever the place is that timm would have read from.
    where = dict(file=str(path), custom_load=False)
    try:
        module: Any = timm.create_model(
            architecture, pretrained=True, pretrained_cfg_overlay=where, **options
        )
    except Exception as error:  # readers of broken files raise many kinds of errors
        asked = f" for pictures of {options['img_size']} pixels" if "img_size" in options else ""
        raise ModelError(
            f"The trained weights of {architecture} in the hub's cache cannot be read{asked}: "
            f"run `vitviz fetch {architecture}` to have them checked and fetched anew."
        ) from error
    tag = module.pretrained_cfg.get("tag") or "default"
    words = f"trained weights of timm, {tag}, revision {path.parent.name[:7]}"
    if "img_size" in options:
        words += _resampling_by_timm(outline_of(architecture, {}), module)
    return module, words


def _resampling_by_timm(before: nn.Module, after: nn.Module) -> str:
    """The words of the provenance where timm resampled positions to another input size."""
    shapes = {name: tensor.shape for name, tensor in before.state_dict().items()}
    if all(shapes[name] == tensor.shape for name, tensor in after.state_dict().items()):
        return ""
    embeds: list[Any] = [getattr(one, "patch_embed", None) for one in (before, after)]
    if all(hasattr(embed, "grid_size") for embed in embeds):
        return _resampling((embeds[0].grid_size, embeds[1].grid_size))
    return ", relative positions resampled"
