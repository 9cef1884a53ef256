"""A line in which work waits for its turn: first come, first served."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

TICK = 0.5  # seconds between two calls while waiting
MOST = 100


class BusyError(RuntimeError):
    """Too many are waiting; the message is one sentence."""


class Turn:
    """A place in the line, and in the end the turn itself."""

    def __init__(self, queue: "Queue") -> None:
        self._queue = queue

    def give_way(self, waiting: Callable[[int], object]) -> None:
        """Let all others of the line go first, and wait for the next turn.

        Parameters
        ----------
        waiting : as of `Queue.turn`
        """
        self._queue._to_the_end(self)
        self._queue._wait(self, waiting)


class Queue:
    """One at a time, and at most so many who wait."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._line: list[Turn] = []  # who has the turn is the first
        self._moved = threading.Condition()

    @property
    def length(self) -> int:
        """How many have the turn or wait for it."""
        return len(self._line)

    @contextmanager
    def turn(self, waiting: Callable[[int], object]) -> Iterator[Turn]:
        """Wait for the turn; at the end of the block it is the next one's.

        Parameters
        ----------
        waiting : callable
            Called twice a second with the number of those who are ahead; what it raises leaves the
            line.

        Raises
        ------
        BusyError
            When too many are waiting.
        """
        mine = Turn(self)
        with self._moved:
            if len(self._line) > self.most:
                raise BusyError(
                    f"{self.most} others are waiting for their turn already: try again in a minute."
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
            waiting(ahead)  # outside of the lock, as it takes its time


@st.cache_resource
def passes() -> Queue:
    """One forward pass runs at a time, whatever its model: it has the cores for itself."""
    return Queue()


@contextmanager
def turn(place: DeltaGenerator | None = None, queue: Queue | None = None) -> Iterator[Turn]:
    """A turn for a forward pass, or of another queue; the place says how many are ahead.

    Drawing is also where Streamlit stops a run that a newer one has made stale, or whose reader is
    gone: such a run leaves the queue.

    Raises
    ------
    BusyError
        When too many are waiting for theirs.
    """
    place = place or st.empty()
    queue = passes() if queue is None else queue
    with queue.turn(lambda ahead: place.progress(0.0, f"{ahead} ahead of you")) as mine:
        place.empty()
        yield mine
