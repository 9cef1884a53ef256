"""A second device for the tests, with real numbers: torch's meta device, given memory on the CPU.

Tensors on the meta device have shapes and no values. Inside of `second_device` they have values,
which stay apart from those of the CPU: an operation on tensors of both devices is an error, as it
is on CUDA, and so is asking for an array before the tensor is brought to the CPU. Tensors of double
precision are an error, too, as on MPS, which has none.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only

SECOND = torch.device("meta")
_ACROSS = {torch.ops.aten._to_copy, torch.ops.aten.to, torch.ops.aten.copy_}


class _Elsewhere(Tensor):
    """A tensor on the second device; `here` holds its values."""

    here: Tensor

    @staticmethod
    def __new__(cls, here: Tensor) -> "_Elsewhere":
        with torch.inference_mode(False):
            made: _Elsewhere = Tensor._make_wrapper_subclass(
                cls, here.size(), strides=here.stride(), dtype=here.dtype, device=SECOND
            )
        made.here = here
        return made

    def data_ptr(self) -> int:
        return self.here.data_ptr()

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.here.untyped_storage()

    def tolist(self) -> Any:
        return self.here.tolist()

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        with _SecondDevice():  # type: ignore[no-untyped-call]
            return func(*args, **(kwargs or {}))


class _SecondDevice(TorchDispatchMode):
    """Computes on the CPU what is asked of the second device."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = (args, kwargs or {})
        parts = tree_leaves(given)
        tensors = [each for each in parts if isinstance(each, Tensor)]
        asked = [each for each in parts if isinstance(each, torch.device)]
        places = {each.device for each in tensors if each.ndim}  # a single number may be anywhere
        if len(places) > 1 and func.overloadpacket not in _ACROSS:
            raise RuntimeError(f"{func} of tensors on several devices")
        there = any(isinstance(each, _Elsewhere) for each in tensors)
        if asked:
            there = asked == [SECOND]
        elif func.overloadpacket is torch.ops.aten.copy_:
            there = isinstance(args[0], _Elsewhere)
        inner, named = tree_map(_on_the_cpu, given)
        made = func(*inner, **named)
        if asked and made is inner[0]:
            made = made.clone()  # what is moved has memory of its own
        if there and any(
            isinstance(each, Tensor) and each.dtype == torch.float64 and each.ndim
            for each in tree_leaves(made)
        ):
            raise TypeError(f"{func} of float64, which MPS does not have")
        known = {id(each.here): each for each in tensors if isinstance(each, _Elsewhere)}
        return tree_map_only(Tensor, partial(_elsewhere, known), made) if there else made


def _on_the_cpu(given: Any) -> Any:
    if isinstance(given, torch.device):
        return torch.device("cpu")
    return given.here if isinstance(given, _Elsewhere) else given


def _elsewhere(known: dict[int, _Elsewhere], made: Tensor) -> _Elsewhere:
    return known[id(made)] if id(made) in known else _Elsewhere(made)


@contextmanager
def second_device() -> Iterator[torch.device]:
    """The meta device computes, inside of this context; modules are moved to it by their `to`."""
    before = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        with _SecondDevice():  # type: ignore[no-untyped-call]
            yield SECOND
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(before)
