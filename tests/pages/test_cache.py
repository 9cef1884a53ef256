"""The cache of captures: bounded, made once, failures not kept."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock

import numpy as np
import pytest
from PIL import Image

from vitviz.app.shared.cache import LRUCache, count_bytes


class Maker:
    """Makes a value, and counts how often."""

    def __init__(self, value: object = "value", *, wait: float = 0) -> None:
        self.value, self.wait, self.made = value, wait, 0

    def __call__(self) -> object:
        self.made += 1
        time.sleep(self.wait)
        return self.value


def kept(cache: LRUCache, key: str, size: int = 10) -> bool:
    """Whether the cache still has the value; asking makes it the most recently used."""
    make = Maker(key)
    assert cache.get(key, make, lambda value: size) == key
    return not make.made


def test_the_arrays_of_a_value_are_counted() -> None:
    @dataclass(slots=True)
    class Pair:
        values: np.ndarray
        name: str

    array = np.zeros((3, 5), np.float32)
    assert count_bytes(array) == 60
    assert count_bytes(Image.new("RGB", (3, 5))) == 60
    assert count_bytes({"one": [array, array], "other": Pair(array, "four")}) == 184
    assert count_bytes((0.5, None)) == 16


def test_the_least_recently_used_is_dropped_first() -> None:
    cache = LRUCache(30)
    for key in "abc":
        assert not kept(cache, key)
    assert kept(cache, "a")  # now b is the oldest
    assert not kept(cache, "d")
    assert cache.nbytes == 30
    assert [key for key in "acd" if kept(cache, key)] == ["a", "c", "d"]
    assert not kept(cache, "b")


def test_bytes_are_the_bound() -> None:
    cache, random = LRUCache(1000), np.random.default_rng(0)
    for step in range(200):
        kept(cache, str(step), size=int(random.integers(0, 400)))
        assert cache.nbytes <= 1000
    assert kept(cache, "199")


def test_one_value_larger_than_the_bound_is_kept_alone() -> None:
    cache = LRUCache(30)
    kept(cache, "small")
    kept(cache, "large", size=50)
    assert kept(cache, "large", size=50)
    assert cache.nbytes == 50
    assert not kept(cache, "small")
    assert cache.nbytes == 10


def test_what_was_dropped_and_is_in_use_is_not_made_again() -> None:
    cache, used = LRUCache(30), Maker(np.zeros(3))
    value = cache.get("used", used, lambda value: 20)
    kept(cache, "other", size=20)
    assert cache.find("used") is None
    assert cache.get("used", used, lambda value: 20) is value
    assert used.made == 1
    assert cache.nbytes == 20
    kept(cache, "other", size=20)
    del value
    used.value = "another"  # so that nobody has the first any more
    assert cache.get("used", used, lambda value: 20) == "another"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])  # Streamlit stops with such
def test_a_failure_is_not_kept(error: type[BaseException]) -> None:
    cache = LRUCache(100)

    def fail() -> str:
        raise error

    for _ in range(2):
        with pytest.raises(error):
            cache.get("key", fail, len)
    assert cache.nbytes == 0
    assert cache.get("key", lambda: "value", len) == "value"


def test_threads_that_ask_for_one_key_make_it_once() -> None:
    cache, make, count = LRUCache(100), Maker(wait=0.05), 8
    together = threading.Barrier(count)

    def ask(_: int) -> object:
        together.wait()
        return cache.get("key", make, lambda value: 10)

    with ThreadPoolExecutor(count) as pool:
        assert list(pool.map(ask, range(count))) == ["value"] * count
    assert make.made == 1


def test_who_waits_for_another_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitviz.app.shared.cache.WAITING_TICK", 0.01)
    cache, make = LRUCache(100), Maker(wait=0.3)

    def stop() -> None:
        raise KeyboardInterrupt

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(cache.get, "key", make, lambda value: 10)
        time.sleep(0.1)
        with pytest.raises(KeyboardInterrupt):
            cache.get("key", make, lambda value: 10, stop)
        assert not first.done()
        assert first.result() == "value"
    assert make.made == 1
    assert cache.find("key") == "value"


def test_threads_that_ask_for_different_keys_do_not_wait_for_each_other() -> None:
    cache, both = LRUCache(100), threading.Barrier(2)

    def ask(key: str) -> str:
        return cache.get(key, lambda: f"{key}{both.wait(timeout=10) < 2}", len)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(ask, "ab")) == ["aTrue", "bTrue"]


def test_a_value_is_made_once_also_after_the_first_who_made_it_failed() -> None:
    """One run is stopped while a second waits; a third comes while the second is at work."""
    cache, made = LRUCache(100), Lock()
    first_runs, first_may_fail, second_runs, second_may_end = (threading.Event() for _ in range(4))
    count = 0

    def first() -> str:
        first_runs.set()
        assert first_may_fail.wait(10)
        raise OSError

    def later() -> str:
        nonlocal count
        with made:
            count += 1
        second_runs.set()
        assert second_may_end.wait(10)
        return "value"

    with ThreadPoolExecutor(3) as pool:
        stopped = pool.submit(cache.get, "key", first, len)
        assert first_runs.wait(10)
        waiting = pool.submit(cache.get, "key", later, len)
        time.sleep(0.1)  # until it waits for the first
        first_may_fail.set()
        assert isinstance(stopped.exception(10), OSError)
        assert second_runs.wait(10)
        late = pool.submit(cache.get, "key", later, len)
        time.sleep(0.1)  # until it waits for the second, or makes its own
        second_may_end.set()
        assert waiting.result(10) == late.result(10) == "value"
    assert count == 1
