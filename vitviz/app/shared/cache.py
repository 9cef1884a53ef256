"""An LRU cache bounded by bytes, with single flight."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from PIL import Image

T = TypeVar("T")
WAITING_TICK = 0.5  # seconds between calls of `waiting`


def count_bytes(value: object) -> int:
    """Return about how many bytes a value takes: those of the arrays and texts that it holds."""
    if hasattr(value, "nbytes"):  # an array, a tensor, or what knows its own size
        return int(value.nbytes)
    if isinstance(value, Image.Image):
        return 4 * value.width * value.height  # Pillow keeps four bytes of a pixel in RGB
    if isinstance(value, (str, bytes)):
        return len(value)
    if is_dataclass(value):
        value = [getattr(value, field.name) for field in fields(value)]  # some have no __dict__
    if isinstance(value, Mapping):
        return sum(map(count_bytes, value.values()))
    if isinstance(value, (list, tuple)):
        return sum(map(count_bytes, value))
    return 8  # a number; objects of other kinds are few, or shared


class LRUCache:
    """A least-recently-used (LRU) cache whose size is counted in bytes.

    Single flight: threads that ask for the same key at once wait for one computation; a failure is
    not kept. A value that was evicted but is still referenced elsewhere is not computed again.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._evicted: WeakValueDictionary[Hashable, Any] = WeakValueDictionary()
        # Weak references: a lock lives while a thread computes its value or waits for it.
        self._making: WeakValueDictionary[Hashable, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        with self._lock:
            return sum(size for _, size in self._values.values())

    def get(
        self,
        key: Hashable,
        make: Callable[[], T],
        size: Callable[[T], int] = count_bytes,
        waiting: Callable[[], object] = lambda: None,
    ) -> T:
        """Return the value under `key`; compute it by `make` if there is none.

        Parameters
        ----------
        size : callable
            Bytes of a value, where others than `count_bytes` finds.
        waiting : callable
            Called twice a second while another thread computes the value; an exception
            that it raises ends the wait.
        """
        with self._lock:
            making = self._making.setdefault(key, threading.Lock())
        while not making.acquire(timeout=WAITING_TICK):
            waiting()
        try:
            with self._lock:
                if key in self._values:
                    self._values.move_to_end(key)
                    value: T = self._values[key][0]
                    return value
                value = self._evicted.pop(key, None)
            if value is None:
                value = make()
            self._store(key, value, size(value))
            return value
        finally:
            making.release()

    def find(self, key: Hashable) -> Any | None:
        """Return the value under `key`; None if there is none."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def key_of(self, value: object) -> Hashable | None:
        """Return the key of a value in the cache; None for any other."""
        with self._lock:
            keys = (key for key, (held, _) in self._values.items() if held is value)
            return next(keys, None)

    def _store(self, key: Hashable, value: object, size: int) -> None:
        with self._lock:
            self._values[key] = (value, size)
            total = sum(nbytes for _, nbytes in self._values.values())
            while total > self.max_bytes and len(self._values) > 1:
                old, (evicted, freed) = self._values.popitem(last=False)
                total -= freed
                with suppress(TypeError):  # tuples and lists cannot be referenced weakly
                    self._evicted[old] = evicted
