"""FIFO queues: forward passes, model loads and image decoding run one at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.common.language import tr

TICK = 0.5  # seconds between two calls while waiting
MAX_WAITING = 100


class BusyError(RuntimeError):
    """Too many visitors are waiting."""


class Turn:
    """A position in the queue; a `patient` one lets all others go first."""

    def __init__(self, queue: "Queue", patient: bool = False) -> None:
        self._queue = queue
        self.patient = patient

    def give_way(self, waiting: Callable[[int], object]) -> None:
        """Go to the end of the queue and wait for the next turn.

        Parameters
        ----------
        waiting : as of `Queue.turn`
        """
        self._queue._to_the_end(self)
        self._queue._wait(self, waiting)


class Queue:
    """A first-in, first-out queue in which one runs and at most `most` others wait.

    Experiments of many passes are patient: who waits for a map waits for one pass of theirs at
    most, however many experiments there are.
    """

    def __init__(self, most: int = MAX_WAITING) -> None:
        self.most = most
        self._line: list[Turn] = []  # the first has its turn
        self._moved = threading.Condition()

    @property
    def length(self) -> int:
        """Number of turns that run or wait."""
        return len(self._line)

    @contextmanager
    def turn(self, waiting: Callable[[int], object], *, patient: bool = False) -> Iterator[Turn]:
        """Wait for a turn, which lasts until the end of the `with` block.

        Parameters
        ----------
        waiting : callable
            Called twice a second with the number of those ahead; an exception that it raises leaves
            the queue.
        patient : bool
            Whether all that are not go first, those that come later too.

        Raises
        ------
        BusyError
            When too many are waiting.
        """
        mine = Turn(self, patient)
        with self._moved:
            if len(self._line) > self.most:
                raise BusyError(
                    tr(
                        "{most} others are already waiting. Try again in a minute.",
                        most=self.most,
                    )
                )
            self._line.insert(self._place(mine), mine)
        try:
            self._wait(mine, waiting)
            yield mine
        finally:
            with self._moved:
                self._line.remove(mine)
                self._moved.notify_all()

    def _place(self, turn: Turn) -> int:
        """Return where in the line a turn begins to wait: never before the one that runs."""
        end = len(self._line)
        if turn.patient:
            return end
        later = (at for at, other in enumerate(self._line) if at > 0 and other.patient)
        return next(later, end)

    def _to_the_end(self, turn: Turn) -> None:
        with self._moved:
            self._line.remove(turn)
            self._line.append(turn)
            self._moved.notify_all()

    def _wait(self, turn: Turn, waiting: Callable[[int], object]) -> None:
        while True:
            with self._moved:
                if self._moved.wait_for(lambda: self._line[0] is turn, TICK):
                    return
                ahead = self._line.index(turn)
            waiting(ahead)  # outside the lock, as it may be slow


@st.cache_resource
def pass_queue() -> Queue:
    """Return the queue of forward passes and of what is computed from captures.

    Each has all cores for itself, and the memory that it finds free when it begins.
    """
    return Queue()


class _Held(threading.local):
    """The turn of forward passes that this thread holds."""

    turn: Turn | None = None


_held = _Held()


def current_turn() -> Turn | None:
    """Return the turn of forward passes that this thread holds; None without one."""
    return _held.turn


@contextmanager
def turn(
    place: DeltaGenerator | None = None, queue: Queue | None = None, *, patient: bool = False
) -> Iterator[Turn]:
    """Wait for a turn, in the queue of forward passes by default, showing how many are ahead.

    A thread that has its turn of a pass already goes on. Streamlit stops a stale run, or one whose
    session has ended, when it next draws: such a run leaves the queue here.

    Raises
    ------
    BusyError
        When too many are waiting.
    """
    if queue is None and _held.turn is not None:
        yield _held.turn
        return
    place = place or st.empty()
    line = pass_queue() if queue is None else queue
    with line.turn(
        lambda ahead: place.progress(0.0, tr("{ahead} ahead of you", ahead=ahead)), patient=patient
    ) as mine:
        place.empty()
        if queue is None:
            _held.turn = mine
        try:
            yield mine
        finally:
            if queue is None:
                _held.turn = None
