"""`load_model`: a `Model` from a shipped file, from timm, or from a local file of weights."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import joblib
import torch

from ..checkpoints import (
    Checkpoint,
    CheckpointError,
    classes_named_in,
    initialisations,
    load_shipped,
    load_state,
    shipped_names,
)
from ..devices import CPU, device_named, use_threads
from ..families import ModelError
from ..initialisation import Mimetic, initialised
from ..language import Message, message
from ..memory import check, footprint
from ..model import Model, Preprocessing
from ..vit import VisionTransformer
from .architectures import (
    architecture_named,
    create,
    embeds,
    labels_of,
    on_meta_device,
    outline_of,
    preprocessing_of,
    undrawn,
)
from .building import check_memory, check_tables, checked_options, load_file, options_of
from .catalogue import fetch_weights
from .files import CONFIG, read_labels
from .folders import load_folder
from .positions import MAX_SIDE, trained_size
from .repositories import fetch_configuration, repository
from .resampling import check_mixing, resampled_by_timm, resampling_words, timm_leaves_positions

DEFAULT_SEED = 0


def leave_cores_free() -> None:
    """Limit torch and BLAS to half of the cores, for a machine that runs other programs too.

    Threads synchronise in every layer: on two cores with other work, a pass of the shipped model
    took 16 times as long with two threads as with one. The cores are those that this process may
    use, by its affinity and by the quota of its container.
    """
    use_threads(max(1, joblib.cpu_count() // 2))


def load_model(
    name: str | Path,
    *,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    image_size: int | tuple[int, int] | None = None,
    crop: bool = True,
    labels: str | Path | Sequence[str] | None = None,
    seed: int | None = None,
    initialisation: Literal["plain", "mimetic"] = "plain",
    device: str | torch.device = CPU,
) -> Model:
    """Load a model that can be watched.

    Parameters
    ----------
    name : str or path
        A shipped model, such as "vitviz_things200"; the name of a timm architecture; a
        repository of the hub, "hf-hub:owner/name"; or a folder as timm or transformers saves it.
    pretrained : bool
        False gives random weights; they depend on `seed` alone.
    checkpoint : path, optional
        A local file of weights: safetensors, a torch file without code, or the JAX ViT's .npz; in
        timm's names, or in those of Hugging Face or JAX for a ViT, DeiT or DINOv2; or a folder with
        a config.json, which says what the model is, and `name` what it is called.
    image_size : int or (rows, columns), optional
        Of the input in pixels; positions are interpolated to it. Default: the one that a file's
        positions were trained at, else the model's own.
    crop : bool
        False gives the model the whole picture, resized to the input's shape, instead of the crop
        that it was trained with; `vitviz.zoo.whole_picture` finds a shape near the picture's own.
    labels : path or sequence of str, optional
        Names of the classes, where the weights come without: a file with one a line, or JSON.
    seed : int, optional
        Of random weights; 0 where left out.
    initialisation : "plain" or "mimetic"
        Of random weights: the usual one of the architecture, or, for a shipped model whose training
        began with mimetic initialisation, that one, in which heads are local or global by design.
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
    if initialisation not in ("plain", "mimetic"):
        raise ModelError(
            'Expected the initialisation "plain" or "mimetic", got {initialisation!r}.',
            initialisation=initialisation,
        )
    if initialisation == "mimetic":
        if checkpoint is not None or pretrained:
            raise ModelError("An initialisation belongs to random weights: add pretrained=False.")
        if initialisation not in initialisations(str(name)):
            raise ModelError(
                "The training of {name} did not begin with mimetic initialisation.", name=name
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DEFAULT_SEED if seed is None else seed)
        folder = _folder(name, checkpoint, pretrained)
        called = str(name)
        if folder is not None and checkpoint is None and not repository(called):
            called = folder.resolve().name
        try:
            if folder is not None:
                model = in_folder(called, folder, pretrained, size)
            else:
                model = _named(called, pretrained, checkpoint, size, initialisation)
        except CheckpointError as error:
            raise ModelError("{called}: {error}", called=called, error=error) from error
    if place.type != "cpu":
        check(footprint(model.module, model.sites).total, called, place)
        model.module.to(place)
    if not crop:
        model.preprocess = replace(model.preprocess, crop_mode="squash", crop_pct=1.0)
    if labels is not None and model.trained and model.labels is None:
        if isinstance(labels, str | Path):
            model.labels = read_labels(Path(labels))
            model.weights = Message(model.weights) + Message(
                ", class names from {file}", file=Path(labels).name
            )
        else:
            model.labels = tuple(labels)
    return model


def _folder(name: str | Path, checkpoint: str | Path | None, pretrained: bool) -> Path | None:
    """The folder that is asked for, by its path or by a name on the hub; None where none is."""
    if checkpoint is not None:
        return Path(checkpoint) if Path(checkpoint).is_dir() else None
    if repository(str(name)):
        return fetch_weights(str(name)).parent if pretrained else fetch_configuration(str(name))
    if str(name) in shipped_names() or not str(name):
        return None
    path = Path(name)
    named = isinstance(name, Path) or len(path.parts) > 1 or (path / CONFIG).is_file()
    return path if named and path.is_dir() else None


def in_folder(name: str, folder: Path, pretrained: bool, size: tuple[int, int] | None) -> Model:
    """The model of a folder or of a repository of the hub, which lies in the folder."""
    source = f"folder {folder.resolve().name}"
    if repository(name):
        source = f"{name}, revision {folder.name[:7]}"
    return load_folder(folder, name=name, source=source, pretrained=pretrained, size=size)


def _named(
    name: str,
    pretrained: bool,
    checkpoint: str | Path | None,
    size: tuple[int, int] | None,
    initialisation: str,
) -> Model:
    file = None if checkpoint is None else Checkpoint(Path(checkpoint))
    if file is not None and size is None:
        size = _size_in(name, file)
    elif file is not None and size is not None and name not in shipped_names():
        _check_size(architecture_named(name), file, size)
    if name in shipped_names():
        return _shipped(name, pretrained, file, size, initialisation)
    return _timm(name, pretrained, file, size)


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
        raise ModelError("{name}: {error}", name=name, error=error) from error


def _size_in(name: str, file: Checkpoint) -> tuple[int, int] | None:
    if name in shipped_names():
        with on_meta_device():
            own = VisionTransformer(**load_shipped(name).configuration)
        return trained_size(file.shapes, own, own.patch_embed.image_size)
    architecture = architecture_named(name)
    outline = outline_of(architecture, options_of(architecture, file))
    return trained_size(file.shapes, outline, preprocessing_of(outline, None).input_size)


def _check_size(architecture: str, file: Checkpoint, size: tuple[int, int]) -> None:
    options = options_of(architecture, file)
    outline = outline_of(architecture, options)
    try:
        trained = trained_size(file.shapes, outline, preprocessing_of(outline, None).input_size)
    except CheckpointError:
        return  # no square, so that no other shape is taken for it
    if trained is not None and trained != size:
        check_tables(architecture, options, file, trained, size)


def _height_and_width(image_size: int | tuple[int, int]) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
        height, width = size
        if min(size) > 0 and max(size) <= MAX_SIDE:
            return height, width
    raise ModelError(
        "Expected an image size of one number or (rows, columns) from 1 to {most}, "
        "got {image_size!r}.",
        most=MAX_SIDE,
        image_size=image_size,
    )


def _shipped(
    name: str,
    pretrained: bool,
    file: Checkpoint | None,
    size: tuple[int, int] | None,
    initialisation: str,
) -> Model:
    shipped = load_shipped(name)
    configuration: dict[str, Any] = dict(shipped.configuration)
    configuration["image_size"] = size or configuration["image_size"]
    try:
        with on_meta_device():
            outline = VisionTransformer(**configuration)
    except ValueError as error:
        raise ModelError(message(error)) from error
    check_memory(name, outline, outline.patch_embed.image_size)
    given = file is not None or pretrained
    with undrawn() if given else nullcontext():
        module = VisionTransformer(**configuration)
    weights, labels = Message("random weights"), None
    if file is not None:
        weights, labels = load_file(module, file), classes_named_in(file.path)
    elif pretrained:
        labels = shipped.classes
        grids = load_state(module, shipped.state, prefix=module.num_prefix_tokens)
        weights = Message(
            "shipped weights, {share:.1f} % on its test pictures",
            share=100 * shipped.test_accuracy,
        )
        weights += resampling_words(grids)
    elif initialisation == "mimetic" and shipped.initialisation is not None:
        words = _begin(module, configuration, shipped.initialisation)
        weights += Message(", mimetic initialisation")
        weights += words
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=Preprocessing(
            input_size=module.patch_embed.image_size,
            mean=shipped.mean,
            std=shipped.std,
            detail=shipped.detail,
        ),
        trained=given,
        weights=weights,
        labels=labels,
        temperature=shipped.temperature if pretrained and file is None else None,
    )


def _begin(
    module: VisionTransformer, configuration: Mapping[str, Any], start: Mapping[str, Any]
) -> str:
    """Set the weights with which the training began; returns what was done to positions, in words.

    Those of its first stage: positions are interpolated to the module's grid, as they were for its
    last stage.
    """
    start = dict(start)
    side, seed = start.pop("image_size"), start.pop("seed")
    start["strengths"] = tuple(start["strengths"])
    small = initialised(configuration, side, Mimetic(**start), seed=seed)
    return resampling_words(load_state(module, small.state_dict(), prefix=module.num_prefix_tokens))


def _timm(
    name: str, pretrained: bool, file: Checkpoint | None, size: tuple[int, int] | None
) -> Model:
    architecture = architecture_named(name)
    options: dict[str, Any] = {} if size is None else {"img_size": size}
    size_note: Message | str = ""
    if file is not None:
        options |= options_of(architecture, file)
        if size is None:
            size_note = Message(", input size of the architecture, as the file tells none")
    options = checked_options(architecture, options)
    labels = None
    if file is None and pretrained:
        module, weights = _create_trained(architecture, options)
        labels = labels_of(module)
    elif file is None:
        module, weights = create(architecture, options), Message("random weights")
    else:
        with undrawn():
            module = create(architecture, options)
        weights, labels = load_file(module, file) + size_note, classes_named_in(file.path)
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=preprocessing_of(module, size),
        trained=file is not None or pretrained,
        weights=weights,
        labels=labels,
        embeds=embeds(architecture, module.num_classes),
    )


def _create_trained(architecture: str, options: dict[str, Any]) -> tuple[Any, str]:
    """The module with timm's own weights, and their provenance in words."""
    import timm

    own = outline_of(architecture, {})
    grown = outline_of(architecture, options)
    if "img_size" in options:
        check_mixing(architecture, own, options["img_size"], preprocessing_of(own, None).input_size)
    path = fetch_weights(architecture)
    # The file is always safetensors, whatever the place is that timm would have read from.
    where = dict(file=str(path), custom_load=False)
    here = timm_leaves_positions(own, grown)
    try:
        with undrawn():
            module: Any = timm.create_model(
                architecture,
                pretrained=True,
                pretrained_cfg_overlay=where,
                **({} if here else options),
            )
    except Exception as error:  # readers of broken files raise many kinds of errors
        asked: Message | str = ""
        if "img_size" in options:
            asked = Message(" for pictures of {size} pixels", size=options["img_size"])
        raise ModelError(
            "The trained weights of {architecture} in the hub's cache cannot be "
            "read{asked}: run `vitviz fetch {architecture}` to have them checked and "
            "fetched anew.",
            architecture=architecture,
            asked=asked,
        ) from error
    tag = module.pretrained_cfg.get("tag") or "default"
    if here:
        state = module.state_dict()
        with undrawn():
            module = create(architecture, options)
        load_state(module, state, prefix=getattr(module, "num_prefix_tokens", 0))
    words = Message(
        "trained weights of timm, {tag}, revision {revision}",
        tag=tag,
        revision=path.parent.name[:7],
    )
    return module, words + resampled_by_timm(own, grown)
