"""How glibc's malloc gives memory out and takes it back: for a server, and for training."""

import ctypes
from contextlib import suppress

# Of glibc's malloc.h.
_M_ARENA_MAX, _M_MMAP_MAX, _M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD = -8, -4, -3, -1
_LARGE = 4 * 2**20  # bytes; the tensors of a forward pass are smaller


def tune_malloc() -> None:
    """Keep a server of many short threads small, where the allocator is glibc's malloc.

    All threads share two arenas: by default there are up to eight for each core, and memory that is
    freed in one cannot be reused in another. Blocks larger than `_LARGE`, such as the pixels of a
    picture, are allocated by mmap and returned to the system when they are freed: by default glibc
    raises that threshold to 32 MB, and the heap fragments. Elsewhere nothing changes.
    """
    _set_malloc((_M_ARENA_MAX, 2), (_M_MMAP_THRESHOLD, _LARGE))


def keep_freed_memory() -> None:
    """Keep what is freed for the next allocation, where the allocator is glibc's malloc.

    For a process that trains or evaluates: every step allocates the tensors of the step before. By
    default large blocks go back to the system, which clears each of their pages when they are
    wanted again; with 257 tokens that was a quarter of a training step on a CPU, and a third of an
    evaluation. Elsewhere nothing changes.
    """
    _set_malloc((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1))


def _set_malloc(*settings: tuple[int, int]) -> None:
    with suppress(AttributeError, OSError, TypeError):  # another C library, or another system
        libc = ctypes.CDLL(None)
        for setting in settings:
            libc.mallopt(*setting)
