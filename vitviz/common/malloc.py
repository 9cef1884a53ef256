"""Settings of glibc's malloc for a server, training and captures."""

import ctypes
import os
from contextlib import suppress

# From glibc's malloc.h.
_M_ARENA_MAX, _M_MMAP_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -4, -3, -1
_LARGE = 4 * 2**20  # bytes; the tensors of a forward pass are smaller
_LARGEST = 32 * 2**20  # bytes, the largest threshold of mmap that malloc takes
_MAX_KEPT = 2**30  # freed bytes that are kept for the next capture
_kept_bytes = 0


def tune_malloc() -> None:
    """Keep a server of many short threads small, if the allocator is glibc's malloc.

    All threads share two arenas: by default there are up to eight for each core, and memory freed
    in one cannot be reused in another. Blocks larger than `_LARGE`, such as a picture's pixels, are
    allocated by mmap and returned to the system when they are freed: by default glibc raises that
    threshold to 32 MB, and the heap fragments.
    """
    global _kept_bytes
    _set_malloc((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, _LARGE))
    _kept_bytes = _MAX_KEPT  # captures keep these settings


def return_freed_memory() -> None:
    """Return to the system what imports or a page have freed, if glibc allocates."""
    with suppress(AttributeError, OSError, TypeError):  # another C library or system
        ctypes.CDLL(None).malloc_trim(0)


def keep_freed_memory() -> None:
    """Keep freed memory for the next allocation, if the allocator is glibc's malloc.

    For training and evaluation: every step allocates the same tensors again. By default large
    blocks go back to the system, which clears their pages for the next use; with 257 tokens that
    took a quarter of a training step on a CPU, and a third of an evaluation.
    """
    global _kept_bytes
    _set_malloc((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1))
    _kept_bytes = _MAX_KEPT


def reuse_freed_memory(size: int) -> None:
    """Keep `size` freed bytes for the next capture, unless the user has set up glibc's malloc.

    A capture holds memory that a forward pass would reuse. Without this it goes back to the system
    when the capture is deleted, and each page of the next one costs a fault: a tenth of a pass of
    ViT-Ti. What is kept grows with the largest capture, up to `_MAX_KEPT`.
    """
    global _kept_bytes
    size = min(size, _MAX_KEPT)
    if size > _kept_bytes and not any(
        name.startswith(("MALLOC_", "GLIBC_")) for name in os.environ
    ):
        _set_malloc((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, size))
        _kept_bytes = size


def _set_malloc(*settings: tuple[int, int]) -> None:
    with suppress(AttributeError, OSError, TypeError):  # another C library or system
        libc = ctypes.CDLL(None)
        for setting in settings:
            libc.mallopt(*setting)
