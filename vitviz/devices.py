"""Where a model computes: on the CPU, or on a device that torch finds (CUDA, MPS, XPU)."""

import torch
from threadpoolctl import threadpool_limits

from .families import ModelError

CPU = torch.device("cpu")


def device_named(name: str | torch.device) -> torch.device:
    """The device of this name, such as "cpu", "cuda", "cuda:1" or "mps".

    Raises
    ------
    ModelError
        When there is no such device here.
    """
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ModelError(
            "Expected a device such as cpu, cuda or mps, got {name!r}.", name=name
        ) from error
    if device.type == "cpu":
        return CPU
    there = torch.accelerator.current_accelerator(check_available=True)
    count = torch.accelerator.device_count()
    if there is None or there.type != device.type or (device.index or 0) >= count:
        names = [] if there is None else [f"{there.type}:{number}" for number in range(count)]
        found = ", ".join(["cpu", *names])
        raise ModelError(
            "There is no device {device} that torch can use here: it has {found}.",
            device=device,
            found=found,
        )
    return device


def use_threads(count: int) -> None:
    """Compute with so many threads on the CPU, also in numpy's matrix products."""
    torch.set_num_threads(count)
    threadpool_limits(count, user_api="blas")


def free_on(device: torch.device) -> int:
    """Bytes that can still be allocated on a device that is not the CPU.

    Raises
    ------
    ModelError
        When there is no such device here, as for a module without weights (on "meta").
    """
    device = device_named(device)
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory())
    free, _ = torch.accelerator.get_memory_info(device)
    held = torch.accelerator.memory_reserved(device) - torch.accelerator.memory_allocated(device)
    return int(free + held)  # what torch holds and does not use can be had again


def total_on(device: torch.device) -> int:
    """Bytes of memory that a device that is not the CPU has."""
    if device.type == "mps":
        return int(torch.mps.recommended_max_memory())
    return int(torch.accelerator.get_memory_info(device)[1])
