"""The filters with which a model begins, without the rest of it where that is possible."""

from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from ..checkpoints import shipped_names
from ..model import Model
from .architectures import architecture_named, create, on_meta_device
from .loading import DEFAULT_SEED, in_folder, load_model


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
    if model.folder is not None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(DEFAULT_SEED)
            whole = in_folder(model.name, model.folder, False, None).patch_kernel
        assert whole is not None
        return whole
    if model.name not in shipped_names():
        counter = _InitialisationCounter(alone.weight.shape)
        with torch.random.fork_rng(devices=[]), on_meta_device(), counter:
            create(architecture_named(model.name), {})
        if counter.count > 1:
            whole = load_model(model.name, pretrained=False).patch_kernel
            assert whole is not None
            return whole
    return alone.weight.detach().numpy()
