"""timm's architectures: made with or without memory, and what timm's configurations say of them."""

import difflib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..checkpoints import SUCCEEDED, SUCCESSORS, shipped_names
from ..families import ModelError
from ..language import Message
from ..model import Preprocessing

WIDEST_EMBEDDING = 2048  # the widest of timm has 1,280 numbers


#: What draws random weights; nothing else in a model takes the inverse of the error function.
_DRAWING = frozenset(
    {
        Tensor.uniform_,
        Tensor.normal_,
        Tensor.erfinv_,
        nn.init.uniform_,
        nn.init.normal_,
        nn.init.kaiming_uniform_,
    }
)
#: What changes numbers in their place, where on the meta device there are none.
_CHANGING = frozenset(
    {Tensor.add_, Tensor.clamp_, Tensor.fill_, Tensor.mul_, Tensor.zero_, Tensor.__setitem__}
)


class _SkipRandomNumbers(TorchFunctionMode):
    """Makes weights 0 instead of random; on the meta device, where they are none, does nothing."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func in _DRAWING:
            weight: Tensor = args[0] if args else named["tensor"]
            return weight if weight.is_meta else weight.detach().zero_()
        if func in _CHANGING and args[0].is_meta:
            return args[0]
        return func(*args, **named)


@contextmanager
def undrawn() -> Iterator[None]:
    """Modules that are made in this context have all their buffers, and weights of 0, as drawing
    them takes most of the time: for modules that get the weights of a file."""
    with _SkipRandomNumbers():
        yield


@contextmanager
def on_meta_device() -> Iterator[None]:
    """Modules that are made in this context have shapes and no weights."""
    with torch.device("meta"), undrawn():
        yield


class ShapesAlone(TorchFunctionMode):
    """For a pass on the meta device, where torch works out in Python what these functions, which
    change no shape, and the biases of linear layers give: most of the time of the pass.

    Attention changes none where queries, keys and values have one shape; a mask must fit them. What
    does not fit is left to torch, which raises.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        named = kwargs or {}
        if func is F.gelu and args:
            return args[0]
        if func is F.layer_norm and len(args) > 1 and args[0].shape[-len(args[1]) :] == args[1]:
            return args[0]
        plain = func is F.scaled_dot_product_attention and named.get("attn_mask") is None
        if plain and len(args) == 3 and args[0].shape == args[1].shape == args[2].shape:
            return args[0]
        if func is F.linear:
            args, named = args[:2], {key: named[key] for key in named if key != "bias"}
        return func(*args, **named)


def outline_of(architecture: str, options: dict[str, Any]) -> nn.Module:
    """The model on the meta device: it takes no memory and no random numbers.

    It may be one that was made before for the same options, so callers must not change it.
    """
    try:
        return _outlined(architecture, **options)
    except TypeError:  # a list, as of a JSON file, is no key of a cache
        return _outlined.__wrapped__(architecture, **options)


@lru_cache(maxsize=16, typed=True)  # loading one model asks for its outline up to five times
def _outlined(architecture: str, /, **options: Any) -> nn.Module:
    with torch.random.fork_rng(devices=[]), on_meta_device():
        outline: nn.Module = create(architecture, options)
        return outline


def create(architecture: str, options: dict[str, Any]) -> Any:
    """The model with random weights; a ModelError where timm cannot make it with these options."""
    import timm

    try:
        return timm.create_model(architecture, pretrained=False, **options)
    except Exception as error:
        wanted = Message(" with {options}", options=options) if options else ""
        raise ModelError(
            "timm cannot make {architecture}{wanted}.", architecture=architecture, wanted=wanted
        ) from error


def preprocessing_of(module: nn.Module, size: tuple[int, int] | None) -> Preprocessing:
    """timm's own preprocessing for this model, to an input of `size` where that is given."""
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


def embeds(architecture: str, outputs: int) -> bool:
    """Whether a head with this many outputs gives an embedding, as CLIP's does, and no classes.

    timm's configurations do not say so: they have the width of the embedding in the place of the
    number of classes. No data set that timm knows has fewer classes than ImageNet's 1,000.
    """
    from timm.data import infer_imagenet_subset
    from timm.models import get_arch_pretrained_cfgs

    if not 0 < outputs <= WIDEST_EMBEDDING or infer_imagenet_subset({"num_classes": outputs}):
        return False
    known = get_arch_pretrained_cfgs(architecture).values()
    return any(each.num_classes == outputs for each in known)


def labels_of(module: nn.Module) -> tuple[str, ...] | None:
    """Names of the classes of timm's own trained weights."""
    from timm.data import ImageNetInfo, infer_imagenet_subset

    subset = infer_imagenet_subset(module)
    if not subset:
        return None
    info = ImageNetInfo(subset)
    return tuple(info.index_to_description(index) for index in range(info.num_classes()))


def architecture_named(name: str) -> str:
    """timm's name of an architecture, with its tag where it has one."""
    import timm

    architecture = name.removeprefix("timm/")
    if timm.is_model(architecture):
        return architecture
    if successor := SUCCESSORS.get(name):
        raise ModelError(SUCCEEDED, name=name, successor=successor)
    known = [*shipped_names(), *timm.list_models()]
    near = difflib.get_close_matches(architecture, known, n=1)
    if near:
        raise ModelError(
            "There is no model named {name}: did you mean {near}?", name=name, near=near[0]
        )
    raise ModelError("There is no model named {name}.", name=name)
