"""FIFO queues: forward passes, model loads and image decoding run one at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.language import tr

TICK = 0.5  # seconds between two calls while waiting
MOST = 100


class BusyError(RuntimeError):
    """Too many are waiting; the message is one sentence."""


class Turn:
    """A position in the queue."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    def give_way(self, waiting: Callable[[int], object]) -> None:
        """Go to the end of the queue and wait for the next turn.

        Parameters
        ----------
        waiting : as of `Queue.turn`
        """
        self._queue._to_the_end(self)
        self._queue._wait(self, waiting)


class Queue:
    """A first-in, first-out queue in which one runs and at most `most` others wait."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._line: list[Turn] = []  # the first has its turn
        self._moved = threading.Condition()

    @property
    def length(self) -> int:
        """How many run or wait."""
        return len(self._line)

    @contextmanager
    def turn(self, waiting: Callable[[int], object]) -> Iterator[Turn]:
        """Wait for a turn, which lasts until the end of the `with` block.

        Parameters
        ----------
        waiting : callable
            Called twice a second with the number of those ahead; an exception that it raises leaves
            the queue.

        Raises
        ------
        BusyError
            When too many are waiting.
        """
        mine = Turn(self)
        with self._moved:
            if len(self._line) > self.most:
                raise BusyError(
                    tr(
                        "{most} others are waiting for their turn already: try again in a minute.",
                        most=self.most,
                    )
                )
            self._line.append(mine)
        try:
            self._wait(mine, waiting)
            yield mine
        finally:
            with self._moved:
                self._line.remove(mine)
                self._moved.notify_all()

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
def passes() -> Queue:
    """The queue of forward passes: each has all cores for itself, whatever its model."""
    return Queue()


@contextmanager
def turn(place: DeltaGenerator | None = None, queue: Queue | None = None) -> Iterator[Turn]:
    """Wait for a turn, in the queue of forward passes by default, showing how many are ahead.

    Streamlit stops a stale run, or one whose session has ended, when it next draws: such a run
    leaves the queue here.

    Raises
    ------
    BusyError
        When too many are waiting.
    """
    place = place or st.empty()
    queue = passes() if queue is None else queue
    with queue.turn(
        lambda ahead: place.progress(0.0, tr("{ahead} ahead of you", ahead=ahead))
    ) as mine:
        place.empty()
        yield mine
