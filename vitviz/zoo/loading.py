"""`load_model`: load a model from a shipped file, from timm, the hub, or local files."""

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Literal

import joblib
import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..common.language import Message, message
from ..model import Model, Preprocessing
from ..model.answers import Answers, Labels
from ..model.devices import CPU, find_device, use_threads
from ..model.families import ModelError
from ..model.initialisation import Mimetic, build_random_model
from ..model.memory import model_bytes, require_memory
from ..vit import VisionTransformer
from .architectures import (
    build_outline,
    create,
    embedding_widths,
    find_architecture,
    labels_of,
    on_meta_device,
    preprocessing_at_trained_size,
    preprocessing_of,
    skip_random_weights,
)
from .catalogue import fetch_weights
from .checkpoints import (
    Checkpoint,
    CheckpointError,
    classes_named_in,
    initialisations,
    load_shipped,
    load_state,
    shipped_names,
)
from .files import CONFIG, find_file, read_labels
from .folders import load_folder
from .open_clips import OPEN_CLIP_CONFIG
from .planning import Plan, check_model_memory, load_file, plan
from .processors import ImageProcessor, Transforms, check_preprocessing, preprocessing_in
from .repositories import fetch_configuration, repository
from .resampling import (
    MAX_INPUT_SIDE,
    check_mixing,
    resampling_note,
    timm_leaves_positions,
    timm_resampling_note,
    trained_size,
)

DEFAULT_SEED = 0


def leave_cores_free() -> None:
    """Limit torch and BLAS to half of the cores, for a machine that runs other programs too.

    Threads synchronise in every layer: on two cores with other work, a pass of the shipped model
    took 16 times as long with two threads as with one. Cores are counted within the affinity of
    this process and the quota of its container.
    """
    use_threads(max(1, joblib.cpu_count() // 2))


def load_model(
    name: str | Path,
    *,
    pretrained: bool = True,
    checkpoint: str | Path | None = None,
    part: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    crop: bool = True,
    labels: str | Path | Labels | None = None,
    preprocessing: Preprocessing | ImageProcessor | Transforms | Mapping[str, Any] | None = None,
    answers: Answers | None = None,
    seed: int | None = None,
    initialisation: Literal["plain", "mimetic"] = "plain",
    device: str | torch.device = CPU,
) -> Model:
    """Load a model that can be watched.

    Parameters
    ----------
    name : str or path
        A shipped model, such as "vitviz_things200"; the name of a timm architecture; a
        repository of the hub, "hf-hub:owner/name"; or a folder saved by timm, transformers or
        open_clip.
    pretrained : bool
        False gives random weights, which depend only on `seed`.
    checkpoint : path, optional
        A local file of weights: safetensors, a torch file, the JAX ViT's .npz, or an index of
        shards. Its names are those of timm, transformers, torchvision, open_clip, or of the authors
        of DINO, MAE, EVA-02 and Swin. Or a folder with a config.json that describes the model;
        `name` is then only what the model is called. No code in a file is run.
    part : str, optional
        Which model to take from a file that holds several, such as "teacher".
    image_size : int or (rows, columns), optional
        Size of the input in pixels, to which positions are interpolated. Default: the size that a
        file's positions were trained at, else the model's own.
    crop : bool
        False resizes the whole picture to the input's shape instead of cropping it as in training;
        `vitviz.zoo.whole_picture` finds a shape near the picture's own.
    labels : path, sequence of str or dictionary, optional
        Names of the classes if the weights have none: a file with one name a line, a table of
        numbers and names, or JSON; or as `watch` takes them.
    preprocessing : as `watch` takes it, or a dictionary, optional
        Preprocessing, if the weights were trained with another than the model's own. A dictionary
        names only what differs, such as dict(mean=..., std=..., crop_pct=0.9). The input size is
        the model's, unless `image_size` is given.
    answers : "classes", "labels", "values" or "embedding", optional
        What the outputs mean, see `Model.answers`. Default: detected.
    seed : int, optional
        Seed of random weights. Default: 0, or for a mimetic initialisation the seed with which the
        training began.
    initialisation : "plain" or "mimetic"
        Initialisation of random weights: the usual one of the architecture, or mimetic
        initialisation for a shipped model whose training began with it. There, heads are local or
        global by design.
    device : "cpu", "cuda", "cuda:1", "mps", ... or torch.device
        Device on which the model computes; weights are created on the CPU and moved there.

    Returns
    -------
    Model

    Raises
    ------
    ModelError
        When there is no such model or device, the model cannot be read, its weights cannot be
        loaded, or the memory does not suffice.
    """
    place = find_device(device)
    changes = _preprocessing_changes(preprocessing)
    given_size = changes.pop("input_size", None)
    size = given_size if image_size is None else _height_and_width(image_size)
    is_random = not pretrained and (checkpoint is None or Path(checkpoint).is_dir())
    if seed is not None and not is_random:
        raise ModelError("A seed belongs to random weights. Add pretrained=False.")
    if part is not None and (checkpoint is None or Path(checkpoint).is_dir()):
        raise ModelError("part= chooses a model in a file of weights. Add checkpoint=.")
    if initialisation not in ("plain", "mimetic"):
        raise ModelError(
            'Expected the initialisation "plain" or "mimetic", got {initialisation!r}.',
            initialisation=initialisation,
        )
    if initialisation == "mimetic":
        if not is_random:
            raise ModelError("An initialisation belongs to random weights. Add pretrained=False.")
        if initialisation not in initialisations(str(name)):
            raise ModelError(
                "The training of {name} did not begin with mimetic initialisation.", name=name
            )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(DEFAULT_SEED if seed is None else seed)
        folder = _folder(name, checkpoint, pretrained)
        title = str(name)
        if folder is not None and checkpoint is None and not repository(title):
            title = folder.resolve().name
        try:
            if folder is not None:
                model = load_from_folder(title, folder, pretrained, size)
            else:
                file = None if checkpoint is None else Checkpoint(Path(checkpoint), part)
                if title in shipped_names():
                    model = _load_shipped(title, pretrained, file, size, initialisation, seed)
                else:
                    model = _load_timm(title, pretrained, file, size)
        except CheckpointError as error:
            raise ModelError("{name}: {error}", name=title, error=error) from error
    if place.type != "cpu":
        require_memory(model_bytes(model.module, model.sites), title, place)
        model.module.to(place)
    if changes:
        model.preprocess = _change_preprocessing(model.preprocess, changes)
        model.weights = Message(model.weights) + Message(", preprocessing as given")
    if not crop:
        model.preprocess = replace(model.preprocess, crop_mode="squash", crop_pct=1.0)
    if answers is not None:
        model.answers = answers
    if labels is not None and model.trained and model.labels is None:
        if isinstance(labels, str | Path):
            model.labels = read_labels(Path(labels), model.num_classes)
            model.weights = Message(model.weights) + Message(
                ", class names from {file}", file=Path(labels).name
            )
        else:
            model.labels = labels
    return model


def _preprocessing_changes(
    source: Preprocessing | ImageProcessor | Transforms | Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the given fields of the preprocessing."""
    if source is None:
        return {}
    if not isinstance(source, Mapping):
        whole = preprocessing_in(source)
        return {each.name: getattr(whole, each.name) for each in fields(whole)}
    names = [each.name for each in fields(Preprocessing)]
    for name in source:
        if name not in names:
            raise ModelError(
                "Unknown field {name} of the preprocessing. Known are {known}.",
                known=", ".join(names),
                name=name,
            )
    changes = dict(source)
    if "input_size" in changes:
        changes["input_size"] = _height_and_width(changes["input_size"])
    return changes


def _change_preprocessing(own: Preprocessing, changes: Mapping[str, Any]) -> Preprocessing:
    try:
        return check_preprocessing(replace(own, **changes))
    except (TypeError, ValueError) as error:
        raise ModelError(
            "Invalid preprocessing: {given}. Give finite means, positive standard deviations, "
            "and a crop_pct above 0.",
            given=", ".join(f"{name} {value!r}" for name, value in changes.items()),
        ) from error


def _folder(name: str | Path, checkpoint: str | Path | None, pretrained: bool) -> Path | None:
    """Return the folder of a path or of a repository on the hub; None for any other name."""
    if checkpoint is not None:
        return Path(checkpoint) if Path(checkpoint).is_dir() else None
    if repository(str(name)):
        return fetch_weights(str(name)).parent if pretrained else fetch_configuration(str(name))
    if str(name) in shipped_names() or not str(name):
        return None
    path = Path(name)
    has_config = find_file(path, (CONFIG, OPEN_CLIP_CONFIG)) is not None
    is_path = isinstance(name, Path) or len(path.parts) > 1 or has_config
    return path if is_path and path.is_dir() else None


def load_from_folder(
    name: str, folder: Path, pretrained: bool, size: tuple[int, int] | None
) -> Model:
    """Load the model in a folder, which may be the cached folder of a repository on the hub."""
    source = f"folder {folder.resolve().name}"
    if repository(name):
        source = f"{name}, revision {folder.name[:7]}"
    return load_folder(folder, name=name, source=source, pretrained=pretrained, size=size)


def size_in(name: str, checkpoint: Path, part: str | None = None) -> tuple[int, int] | None:
    """Return height and width of a checkpoint's input in training; None if its shapes do not tell.

    Raises
    ------
    ModelError
        As `load_model` does.
    """
    try:
        file = Checkpoint(checkpoint, part)
        if name in shipped_names():
            return _trained_shipped(name, file)
        return plan(find_architecture(name), file, None).trained
    except CheckpointError as error:
        raise ModelError("{name}: {error}", name=name, error=error) from error


def _trained_shipped(name: str, file: Checkpoint) -> tuple[int, int] | None:
    with on_meta_device():
        own = VisionTransformer(**load_shipped(name).configuration)
    return trained_size(file.shapes, own, own.patch_embed.image_size)


def _height_and_width(image_size: int | tuple[int, int]) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else image_size
    if isinstance(size, tuple) and len(size) == 2 and all(isinstance(n, int) for n in size):
        height, width = size
        if min(size) > 0 and max(size) <= MAX_INPUT_SIDE:
            return height, width
    raise ModelError(
        "Expected an image size of one number or (rows, columns) from 1 to {most}, "
        "got {image_size!r}.",
        most=MAX_INPUT_SIDE,
        image_size=image_size,
    )


def _load_shipped(
    name: str,
    pretrained: bool,
    file: Checkpoint | None,
    size: tuple[int, int] | None,
    initialisation: str,
    seed: int | None,
) -> Model:
    shipped = load_shipped(name)
    configuration: dict[str, Any] = dict(shipped.configuration)
    trained = configuration["image_size"]  # side of a square
    if file is not None and size is None:
        size = _trained_shipped(name, file)
    configuration["image_size"] = size or trained
    as_trained = configuration["image_size"] in (trained, (trained, trained))
    try:
        with on_meta_device():
            outline = VisionTransformer(**configuration)
    except ValueError as error:
        raise ModelError(message(error)) from error
    check_model_memory(name, outline, outline.patch_embed.image_size)
    is_trained = file is not None or pretrained
    with skip_random_weights() if is_trained else nullcontext():
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
        if not as_trained:
            weights = Message(
                "shipped weights, {share:.1f} % on its test pictures at {side} x {side} px",
                share=100 * shipped.test_accuracy,
                side=trained,
            )
        weights += resampling_note(grids)
    elif initialisation == "mimetic" and shipped.initialisation is not None:
        note = _initialise(module, configuration, shipped.initialisation, seed)
        weights += Message(", mimetic initialisation")
        weights += note
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=Preprocessing(
            input_size=module.patch_embed.image_size,
            mean=shipped.mean,
            std=shipped.std,
            detail=shipped.detail,
        ),
        trained=is_trained,
        weights=weights,
        labels=labels,
        temperature=shipped.temperature if pretrained and file is None else None,
        grades=shipped.grades if pretrained and file is None and as_trained else None,
    )


def _initialise(
    module: VisionTransformer,
    configuration: Mapping[str, Any],
    start: Mapping[str, Any],
    seed: int | None,
) -> str:
    """Initialise the module as its training began; return a note on resampled positions.

    The training began on small pictures: positions are interpolated to the module's grid, as they
    were in the training. Without a seed, these are exactly the weights at its start.
    """
    start = dict(start)
    side, own = start.pop("image_size"), start.pop("seed")
    seed = own if seed is None else seed
    start["strengths"] = tuple(start["strengths"])
    small = build_random_model(configuration, side, Mimetic(**start), seed=seed)
    return resampling_note(load_state(module, small.state_dict(), prefix=module.num_prefix_tokens))


def _load_timm(
    name: str, pretrained: bool, file: Checkpoint | None, size: tuple[int, int] | None
) -> Model:
    own_plan = plan(find_architecture(name), file, size)
    labels = None
    if file is not None:
        module = own_plan.build()
        weights, labels = own_plan.load(module), classes_named_in(file.path)
    elif pretrained:
        module, weights = _create_trained(own_plan)
        labels = labels_of(module)
    else:
        module, weights = own_plan.build(), Message("random weights")
    own = preprocessing_of(module, own_plan.size)
    note: Message | str = ""
    if own_plan.size is None and file is not None:
        note = Message(", input size of the architecture, as the file does not tell it")
    elif size in (None, own_plan.trained) and file is not None:
        own, note = preprocessing_at_trained_size(own, own_plan.architecture)
    return Model(
        module.eval().requires_grad_(False),
        name=name,
        preprocessing=own,
        trained=file is not None or pretrained,
        weights=Message(weights) + note,
        labels=labels,
        embedding_widths=embedding_widths(own_plan.architecture),
    )


def _create_trained(own_plan: Plan) -> tuple[Any, Message]:
    """Create the module with timm's own weights; return it with a description of the weights."""
    import timm

    architecture, options = own_plan.architecture, own_plan.options
    own = build_outline(architecture, {})
    resized = build_outline(architecture, options)
    if "img_size" in options:
        check_mixing(architecture, own, options["img_size"], preprocessing_of(own, None).input_size)
    path = fetch_weights(architecture)
    # custom_load=False: the file is safetensors, even if timm would load another format.
    source = dict(file=str(path), custom_load=False)
    resample_here = timm_leaves_positions(own, resized)
    try:
        with skip_random_weights():
            module: Any = timm.create_model(
                architecture,
                pretrained=True,
                pretrained_cfg_overlay=source,
                **({} if resample_here else options),
            )
    except Exception as error:  # readers of broken files raise many kinds of errors
        purpose: Message | str = ""
        if "img_size" in options:
            purpose = Message(" for pictures of {size} pixels", size=options["img_size"])
        raise ModelError(
            "The trained weights of {architecture} in the hub's cache cannot be read{purpose}. Run "
            "`vitviz fetch {architecture}` to check them and to download them again.",
            architecture=architecture,
            purpose=purpose,
        ) from error
    tag = module.pretrained_cfg.get("tag") or "default"
    if resample_here:
        state = module.state_dict()
        with skip_random_weights():
            module = own_plan.build()
        load_state(module, state, prefix=getattr(module, "num_prefix_tokens", 0))
    description = Message(
        "trained weights of timm, {tag}, revision {revision}",
        tag=tag,
        revision=path.parent.name[:7],
    )
    return module, description + timm_resampling_note(own, resized)


class _InitialisationCounter(TorchFunctionMode):
    """Count how often tensors of one shape are filled with random numbers."""

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
    """Return the filters of `load_model(model.name, pretrained=False)`, faster if possible.

    A patch embedding with torch's default initialisation takes the first random numbers, so it can
    be created alone. If an architecture initialises it again, the whole model is created.

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
    if model.folder is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(DEFAULT_SEED)
            whole = load_from_folder(model.name, model.folder, False, None).patch_kernel
        assert whole is not None
        return whole
    if model.name not in shipped_names():
        counter = _InitialisationCounter(alone.weight.shape)
        with torch.random.fork_rng(devices=[]), on_meta_device(), counter:
            create(find_architecture(model.name), {})
        if counter.count > 1:
            whole = load_model(model.name, pretrained=False).patch_kernel
            assert whole is not None
            return whole
    return alone.weight.detach().numpy()
