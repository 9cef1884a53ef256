"""Devices on which a model computes: the CPU, or one that torch finds (CUDA, MPS, XPU)."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch
from threadpoolctl import threadpool_limits

from .families import ModelError

CPU = torch.device("cpu")

#: How far numbers that are computed a second time may lie from the model's own, as a share of the
#: largest of them: in the proof of attention, in Anatomy's boxes, and in what follows the blocks.
TOLERANCE = 1e-3
#: The same for a model in half precision, whose own rounding is larger than that.
HALF_TOLERANCE = 2e-2


@contextmanager
def own_precision() -> Iterator[None]:
    """Compute in the precision of the tensors, even within the caller's `torch.autocast`.

    The forward pass of a capture stays in the caller's autocast, as the model itself would. What is
    computed from it, and everything with gradients, would lose most of its digits there.
    """
    kinds = [kind for kind in ("cpu", "cuda", "mps", "xpu") if torch.is_autocast_enabled(kind)]
    if not kinds:
        yield
        return
    with ExitStack() as stack:
        for kind in kinds:
            stack.enter_context(torch.autocast(kind, enabled=False))
        yield


def find_device(name: str | torch.device) -> torch.device:
    """Return the device of this name, such as "cpu", "cuda", "cuda:1" or "mps".

    Raises
    ------
    ModelError
        When torch has no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(
            "Expected a device such as cpu, cuda or mps, got {name!r}.", name=name
        ) from error
    if device.type == "cpu":
        return CPU
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    kind = "" if accelerator is None else accelerator.type
    if kind != device.type or (device.index or 0) >= count:
        names = [f"{kind}:{number}" for number in range(count)] if kind else []
        raise ModelError(
            "torch has no device {device} here. Choose one of these: {known}.",
            device=device,
            known=", ".join(["cpu", *names]),
        )
    return device


def use_threads(count: int) -> None:
    """Use this number of CPU threads in torch, and in numpy's matrix products."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def free_on(device: torch.device) -> int:
    """Return the bytes that can still be allocated on a device other than the CPU.

    Raises
    ------
    ModelError
        When torch has no such device here, as for "meta".
    """
    device = find_device(device)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    free, _ = torch.accelerator.get_memory_info(device)
    reusable = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(
        device
    )
    return int(free + reusable)  # torch reuses what it holds and does not use


def total_on(device: torch.device) -> int:
    """Return the bytes of memory of a device other than the CPU."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(torch.accelerator.get_memory_info(device)[1])
