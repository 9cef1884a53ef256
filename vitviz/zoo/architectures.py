"""timm's architectures: create them, with or without memory, and read their configurations."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..common.language import Message
from ..model import Preprocessing
from ..model.families import ModelError
from .checkpoints import shipped_names

WIDEST_EMBEDDING = 2048  # the widest in timm has 1,280 numbers
#: Functions that fill weights with random numbers; `erfinv_` has no other use in a model.
_RANDOM_FILLS = frozenset(
    {
        Tensor.uniform_,
        Tensor.normal_,
        Tensor.erfinv_,
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.kaiming_uniform_,
    }
)
#: Functions that change numbers in place, of which there are none on the meta device.
_IN_PLACE = frozenset(
    {Tensor.add_, Tensor.clamp_, Tensor.fill_, Tensor.mul_, Tensor.zero_, Tensor.__setitem__}
)


class _SkipRandomNumbers(TorchFunctionMode):
    """Fill weights with 0 instead of random numbers; on the meta device, do nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func in _RANDOM_FILLS:
            weight: Tensor = args[0] if args else options["tensor"]
            return weight if weight.is_meta else weight.detach().zero_()
        if func in _IN_PLACE and args[0].is_meta:
            return args[0]
        return func(*args, **options)


@contextmanager
def skip_random_weights() -> Iterator[None]:
    """Create modules with all their buffers and with weights of 0, to be loaded from a file.

    Drawing random weights takes most of the time of creating a module.
    """
    with _SkipRandomNumbers():
        yield


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Create modules that have shapes and no weights."""
    with torch.device("meta"), skip_random_weights():
        yield


class ShapesAlone(TorchFunctionMode):
    """Speed up a pass on the meta device: skip functions that do not change the shape.

    For these functions, and for the biases of linear layers, torch computes shapes in Python: most
    of the time of the pass. Attention keeps the shape if queries, keys and values have the same
    one. Everything else is left to torch, which raises an error if shapes do not fit.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        options = kwargs or {}
        if func is F.gelu and args:
            return args[0]
        if func is F.layer_norm and len(args) > 1 and args[0].shape[-len(args[1]) :] == args[1]:
            return args[0]
        plain = func is F.scaled_dot_product_attention and options.get("attn_mask") is None
        if plain and len(args) == 3 and args[0].shape == args[1].shape == args[2].shape:
            return args[0]
        if func is F.linear:
            args, options = args[:2], {key: options[key] for key in options if key != "bias"}
        return func(*args, **options)


def build_outline(architecture: str, options: dict[str, Any]) -> nn.Module:
    """Return the model on the meta device, which takes no memory and no random numbers.

    Outlines are cached by their options, so callers must not change them.
    """
    try:
        return _build_outline(architecture, **options)
    except TypeError:  # a list, as in JSON, cannot be a key of the cache
        return _build_outline.__wrapped__(architecture, **options)


@lru_cache(maxsize=16, typed=True)
def _build_outline(architecture: str, /, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]), on_meta_device():
        outline: nn.Module = create(architecture, options)
        return outline


def import_timm() -> Any:
    """Import timm, and with it torchvision, which must be built for this torch.

    Raises
    ------
    ModelError
        When the two cannot be imported: torchvision tells a wrong build by a missing operator.
    """
    try:
        import timm
    except (ImportError, RuntimeError) as error:
        raise ModelError(
            "timm cannot be imported: {error}. Install torch and torchvision anew, both from the "
            "same index; here torch is {torch}.",
            error=str(error).rstrip("."),
            torch=torch.__version__,
        ) from error
    return timm


def create(architecture: str, options: dict[str, Any]) -> Any:
    """Create a model of timm with random weights.

    Raises
    ------
    ModelError
        When timm cannot create it with these options.
    """
    timm = import_timm()
    try:
        return timm.create_model(architecture, pretrained=False, **options)
    except Exception as error:
        note = Message(" with {options}", options=options) if options else ""
        raise ModelError(
            "timm cannot create {architecture}{given}.", architecture=architecture, given=note
        ) from error


def preprocessing_of(module: nn.Module, size: tuple[int, int] | None) -> Preprocessing:
    """Return timm's own preprocessing for this model, for an input of `size` if it is given."""
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


def preprocessing_at_trained_size(
    own: Preprocessing, architecture: str
) -> tuple[Preprocessing, str]:
    """Return the preprocessing of weights without a configuration, and a note on it.

    An architecture's crop belongs to its own input size. timm trains and tests weights for larger
    inputs with the whole shorter side.
    """
    usual = preprocessing_of(build_outline(architecture, {}), None)
    if own.input_size == usual.input_size or own.crop_pct == 1:
        return own, ""
    return replace(own, crop_pct=1.0), Message(
        ", without the crop of the architecture, as it was trained at another size"
    )


def embedding_widths(architecture: str | None) -> frozenset[int]:
    """Return the numbers of outputs with which a head gives an embedding, as CLIP's does.

    timm's configurations give the width of an embedding as the number of classes. No data set that
    timm knows has fewer classes than ImageNet's 1,000.
    """
    if architecture is None:
        return frozenset()
    from timm.data import infer_imagenet_subset
    from timm.models import get_arch_pretrained_cfgs

    widths = {each.num_classes for each in get_arch_pretrained_cfgs(architecture).values()}
    return frozenset(
        width
        for width in widths
        if 0 < width <= WIDEST_EMBEDDING and not infer_imagenet_subset({"num_classes": width})
    )


def labels_of(module: nn.Module) -> tuple[str, ...] | None:
    """Return the class names of timm's own trained weights."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if not subset:
        return None
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def find_architecture(name: str) -> str:
    """Return timm's name of an architecture, with its tag if it has one."""
    timm = import_timm()
    architecture = name.removeprefix("timm/")
    if timm.is_model(architecture):
        return architecture
    names = [*shipped_names(), *timm.list_models()]
    near = difflib.get_close_matches(architecture, names, n=1)
    if near:
        raise ModelError(
            "There is no model named {name}. Did you mean {near}?", name=name, near=near[0]
        )
    raise ModelError("There is no model named {name}.", name=name)
