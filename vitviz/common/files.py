"""Write files whole or not at all, lock folders, and record versions and dates."""

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from os import PathLike
from pathlib import Path
from threading import get_ident
from typing import Any, BinaryIO

#: Packages whose versions every file of vitviz records.
PACKAGES = ("vitviz", "torch", "timm", "transformers", "numpy", "pillow")


def creation_record() -> dict[str, Any]:
    """Return the `versions` of Python and of `PACKAGES`, and the `date` in UTC."""
    versions = {"python": platform.python_version()} | {name: _version(name) for name in PACKAGES}
    return {"versions": versions, "date": now()}


@cache
def assets() -> Path:
    """Return the folder assets/: in the installed package, or beside it in a source tree."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "assets"
    return inside if inside.is_dir() else package.parent / "assets"


def now() -> str:
    """Return date and time in UTC, in ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


@cache  # reading them takes milliseconds
def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


@contextmanager
def open_replacement(path: str | PathLike[str]) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the `with` block ends without an error.

    It is written beside the old file, which does not change until then. If `path` is a link, its
    target is replaced; pipes and devices are written directly.

    Raises
    ------
    OSError
        When the file cannot be written; the error names `path`.
    """
    place = os.path.realpath(path)
    folder, name = os.path.split(place)
    is_new = not os.path.exists(place)
    is_special = not is_new and not os.path.isfile(place) and not os.path.isdir(place)
    own = f".{name[:40]}.{os.getpid()}-{get_ident()}.part"
    beside = place if is_special else os.path.join(folder, own)
    try:
        with open(beside, "wb") as file:
            yield file
        if not is_special:
            if not is_new:
                shutil.copymode(place, beside)
            os.replace(beside, place)
    except BaseException as error:
        if not is_special:
            with suppress(OSError):
                os.unlink(beside)
        if isinstance(error, OSError):
            error.filename, error.filename2 = os.fspath(path), None
        raise


class LockedError(OSError):
    """Another process is writing into the folder."""


@contextmanager
def lock_folder(folder: str | PathLike[str]) -> Iterator[None]:
    """Lock a folder, which is created if necessary, against other processes that lock it.

    The system releases the lock when this process ends, in whatever way.

    Raises
    ------
    LockedError
        When another process has the lock.
    OSError
        When the folder cannot be created or written.
    """
    is_new = not os.path.isdir(folder)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, ".lock")
    with open(path, "ab") as file:
        _lock(file, folder)
        try:
            yield
        finally:
            with suppress(OSError):
                os.unlink(path)  # while locked, so that nobody else uses it
                if is_new:
                    os.rmdir(folder)  # fails unless empty


def _lock(file: BinaryIO, folder: str | PathLike[str]) -> None:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.exists(file.name) and os.path.samestat(
                os.fstat(file.fileno()), os.stat(file.name)
            )
            if not same:  # its owner has just removed it
                raise BlockingIOError
    except (BlockingIOError, PermissionError) as error:
        raise LockedError(
            f"Another process is writing into {printable(folder)}. Wait for it, or name another "
            "folder."
        ) from error
    except OSError:
        pass  # a file system without locks


def printable(path: str | PathLike[str]) -> str:
    """Return a path as text that can be printed: bytes that are not UTF-8 become "\\xff"."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def replace_file(path: str | PathLike[str], data: bytes) -> None:
    """Write a file whole or not at all; see `open_replacement`."""
    with open_replacement(path) as file:
        file.write(data)
