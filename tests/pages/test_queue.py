"""The line of forward passes: in order, one at a time, left by whoever goes, and bounded."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import streamlit as st
from examples import assert_clear_error
from streamlit.runtime.scriptrunner_utils.exceptions import StopException

from pages.driver import (
    assert_works,
    complaints,
    drawn,
    forget,
    opened,
    provenance,
    token_map,
    until,
)
from vitviz import Model
from vitviz.app.shared import models, queue, results
from vitviz.app.shared.queue import BusyError, Queue


def nothing(ahead: int) -> None:
    """Waits in silence."""


def started(line: Queue, *work: Callable[[], None]) -> list[threading.Thread]:
    """Threads that have joined the line in this order."""
    threads = [threading.Thread(target=one) for one in work]
    for thread in threads:
        before = line.length
        thread.start()
        until(lambda before=before: line.length > before)  # type: ignore[misc]
    return threads


@contextmanager
def others(line: Queue, count: int) -> Iterator[Callable[[], None]]:
    """Threads that take a turn each; called, they go."""
    go = threading.Event()

    def wait() -> None:
        with line.turn(nothing):
            go.wait(10)

    threads = started(line, *[wait] * count)
    try:
        yield go.set
    finally:
        go.set()
        for thread in threads:
            thread.join()


def test_turns_are_taken_one_at_a_time_in_order() -> None:
    line, order, inside = Queue(), [], []

    def take(name: int) -> None:
        with line.turn(nothing):
            inside.append(name)
            assert inside == [name]
            order.append(name)
            inside.remove(name)

    with others(line, 1) as go:
        threads = started(line, *(partial(take, name) for name in range(20)))
        go()
        for thread in threads:
            thread.join()
    assert order == list(range(20))
    assert not line.length


@pytest.mark.parametrize("error", [ValueError, StopException])  # Streamlit stops with such
def test_who_is_stopped_leaves_the_line(
    error: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue, "TICK", 0.01)
    line = Queue()

    def stop(ahead: int) -> None:
        raise error

    with others(line, 2):
        with pytest.raises(error), line.turn(stop):
            raise AssertionError("it was not its turn")
        assert line.length == 2
    with pytest.raises(error), line.turn(nothing):
        raise error  # in the middle of a pass
    assert not line.length


def test_beyond_the_bound_one_sentence_asks_to_try_again() -> None:
    line = Queue(most=2)
    with others(line, 3):  # one at work, and two who wait
        with pytest.raises(BusyError) as caught, line.turn(nothing):
            raise AssertionError("it was not its turn")
        assert str(caught.value).startswith("2 others are already waiting")
        assert_clear_error(caught.value)
        assert line.length == 3
    with line.turn(nothing):
        assert line.length == 1


def test_who_gives_way_goes_after_all_others_and_is_not_turned_away() -> None:
    line, order = Queue(most=2), []

    def take(name: str) -> None:
        with line.turn(nothing):
            order.append(name)

    with line.turn(nothing) as mine:
        mine.give_way(nothing)  # nobody waits
        order.append("first")
        threads = started(line, *(partial(take, name) for name in "ab"))
        mine.give_way(nothing)
        order.append("last")
    for thread in threads:
        thread.join()
    assert order == ["first", "a", "b", "last"]


def test_experiments_let_three_who_come_later_go_first() -> None:
    line, order = Queue(), []

    def take(name: str, patient: bool = False) -> None:
        with line.turn(nothing, patient=patient):
            order.append(name)

    with line.turn(nothing, patient=True) as mine:
        threads = started(line, partial(take, "experiment", True))
        threads += started(line, *(partial(take, name) for name in "abcdefg"))
        mine.give_way(nothing)
        order.append("first experiment")
    for thread in threads:
        thread.join()
    assert order == [*"abc", "experiment", *"def", "first experiment", "g"]


def test_who_leaves_without_a_turn_moves_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "TICK", 0.01)
    line, order = Queue(), []

    def take(name: str, patient: bool = False) -> None:
        with line.turn(nothing, patient=patient):
            order.append(name)

    def stop(ahead: int) -> None:
        raise StopException

    with line.turn(nothing):
        threads = started(line, partial(take, "experiment", True), partial(take, "a"))
        for _ in range(queue.OVERTAKING):
            with pytest.raises(StopException), line.turn(stop):
                raise AssertionError("it was not its turn")
    for thread in threads:
        thread.join()
    assert order == ["a", "experiment"]


def test_who_has_a_turn_need_not_wait_for_another() -> None:
    line = queue.pass_queue()
    with queue.turn() as mine:
        with queue.turn() as again:
            assert again is mine
        assert queue.current_turn() is mine
        assert line.length == 1
    assert queue.current_turn() is None
    assert not line.length


def test_two_who_wait_for_each_other_go_on() -> None:
    """One has the turn and wants a value that the other is to compute, in a turn of its own."""
    key = ("two who wait", time.monotonic())
    found: list[int] = []

    def compute() -> None:
        found.append(results.compute(key, lambda: 7))

    with queue.turn():
        thread = threading.Thread(target=compute)
        thread.start()
        until(lambda: queue.pass_queue().length == 2)
        assert results.compute(key, lambda: 8) == 7
    thread.join()
    assert found == [7]


# --- on the page --------------------------------------------------------------------------------


@contextmanager
def pages(count: int, draw: Callable[[], object]) -> Iterator[None]:
    """Threads that draw a page each, in which they call `draw`."""

    def page() -> None:
        with queue.drawing(st.empty()):
            draw()

    threads = [threading.Thread(target=page) for _ in range(count)]
    for thread in threads:
        thread.start()
    yield
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()


def test_pages_are_drawn_a_few_at_a_time() -> None:
    drawn_now: list[int] = []
    most, go = [], threading.Event()

    def draw() -> None:
        drawn_now.append(1)
        most.append(len(drawn_now))
        go.wait(10)
        drawn_now.pop()

    with pages(6, draw):
        until(lambda: len(drawn_now) == queue.DRAWN_AT_ONCE)
        time.sleep(0.1)
        go.set()
    assert len(most) == 6
    assert max(most) == queue.DRAWN_AT_ONCE


def test_an_experiment_lets_other_pages_be_drawn() -> None:
    line, go, begun = Queue(), threading.Event(), []

    def experiment() -> None:
        with queue.turn(queue=line, patient=True):
            begun.append(1)
            go.wait(10)

    with pages(queue.DRAWN_AT_ONCE + 1, experiment):
        until(lambda: line.length == queue.DRAWN_AT_ONCE + 1)
        before = time.monotonic()
        with queue.drawing(st.empty()):
            assert time.monotonic() - before < 1
        go.set()
    assert len(begun) == queue.DRAWN_AT_ONCE + 1


@pytest.mark.parametrize("what", ["experiment", "model"])
def test_those_who_wait_for_what_another_visitor_asked_for_let_pages_be_drawn(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    go, begun = threading.Event(), []

    def make(*_: object) -> int:
        begun.append(1)
        go.wait(20)
        return 7

    name = f"many who wait, {time.monotonic()}"
    view: Any = SimpleNamespace(key=(name,))
    monkeypatch.setattr(models, "_load", make)
    monkeypatch.setattr(models, "_bytes_of", lambda *_: 8)

    def draw() -> None:
        if what == "model":
            models.load_by_name(name)
        else:
            results.experiment(view, (what,), make)

    with pages(queue.DRAWN_AT_ONCE + 1, draw):
        until(lambda: bool(begun))
        time.sleep(0.2)  # the others have come
        before = time.monotonic()
        with queue.drawing(st.empty()):
            pass
        waited = time.monotonic() - before
        go.set()
    assert begun == [1]
    assert waited < queue.PATIENCE / 2


def test_a_page_is_drawn_in_the_end_beside_others_that_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(queue, "PATIENCE", 0.2)
    go = threading.Event()
    with pages(queue.DRAWN_AT_ONCE, lambda: go.wait(10)):
        time.sleep(0.1)
        before = time.monotonic()
        for _ in range(2):
            with queue.drawing(st.empty()):  # gives back no place that it did not have
                pass
        assert time.monotonic() - before < 5
        go.set()
    with pages(queue.DRAWN_AT_ONCE, lambda: None):
        pass


def test_a_page_that_waits_for_others_says_how_many_are_ahead(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    said, inside, go = [], [], threading.Event()

    def hold() -> None:
        inside.append(1)
        go.wait(10)

    def draw(place: object, value: float, text: str = "") -> object:
        said.append(text)
        go.set()
        return place

    with pages(queue.DRAWN_AT_ONCE, hold), monkeypatch.context() as patch:
        until(lambda: len(inside) == queue.DRAWN_AT_ONCE)
        patch.setattr("streamlit.delta_generator.DeltaGenerator.progress", draw)
        at = opened()
    assert said[0] == "1 ahead of you"
    assert_works(at)


def test_the_page_says_how_many_are_ahead(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    forget()
    said = []
    with others(queue.pass_queue(), 2) as go:

        def draw(place: object, value: float, text: str = "") -> object:
            said.append(text)
            go()
            return place

        monkeypatch.setattr("streamlit.delta_generator.DeltaGenerator.progress", draw)
        at = opened()
    assert said[0] == "2 ahead of you"
    assert_works(at)


def test_a_stale_run_leaves_the_line_and_the_next_is_right(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    forget()
    line = queue.pass_queue()

    def stopped(*_: object, **__: object) -> object:
        raise StopException  # as drawing does once a newer run is asked for

    with others(line, 1), monkeypatch.context() as patch:
        patch.setattr("streamlit.delta_generator.DeltaGenerator.progress", stopped)
        at = opened()
        assert not token_map(at)
        assert line.length == 1
    assert_works(at.run())


def test_too_many_leave_a_sentence_and_every_setting(
    serve: Callable[[str], Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    serve("plain")
    at = opened(layer="2", head="3")
    before = drawn(at)
    line = provenance(at)
    forget()
    monkeypatch.setattr(queue.pass_queue(), "most", 0)
    with others(queue.pass_queue(), 1):
        at.run()
        (said,) = complaints(at)
        assert_clear_error(said)
        assert "Try again in a minute" in said
        assert not at.exception
    at.run()
    assert_works(at)
    assert provenance(at) == line
    assert drawn(at) == before
