"""FIFO queues: forward passes, model loads and image decoding run one at a time.

Pages are drawn a few at a time, too, as each holds the captures and messages of its visitor.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.shared import limits
from vitviz.app.shared.limits import Allowance
from vitviz.common.language import tr
from vitviz.common.malloc import return_freed_memory

TICK = 0.5  # seconds between two calls while waiting
MAX_WAITING = 100
DRAWN_AT_ONCE = 3  # pages; two cores draw no more, and each holds some 20 MB meanwhile
PATIENCE = 10.0  # seconds after which a page is drawn beside all others
BETWEEN_RETURNS = 1.0  # seconds; the next page takes new memory, which costs it some ms


class BusyError(RuntimeError):
    """Too many visitors are waiting, or this one has used up what a visitor may use."""


class Turn:
    """A position in the queue; a `patient` one lets all others go first.

    Its seconds are counted against a visitor, where there is a limit.
    """

    def __init__(self, queue: "Queue", patient: bool = False, visitor: str | None = None) -> None:
        self._queue = queue
        self.patient = patient
        self.visitor = visitor
        self.begun: float | None = None  # None while it waits

    def give_way(self, waiting: Callable[[int], object]) -> None:
        """Go to the end of the queue and wait for the next turn.

        Parameters
        ----------
        waiting : as in `Queue.turn`

        Raises
        ------
        BusyError
            When the visitor's seconds are used up.
        """
        self._queue._charge(self)
        self._queue._check(self)
        self._queue._to_the_end(self)
        self._queue._wait(self, waiting)


class Queue:
    """A first-in, first-out queue in which one runs and at most `most` others wait.

    Experiments of many passes are patient: who waits for a map waits for one pass of theirs at
    most, however many experiments there are.

    Parameters
    ----------
    seconds : Allowance, optional
        Counts the seconds that each visitor's turns last.
    """

    def __init__(self, most: int = MAX_WAITING, seconds: Allowance | None = None) -> None:
        self.most = most
        self.seconds = seconds
        self._line: list[Turn] = []  # the first has its turn
        self._moved = threading.Condition()

    @property
    def length(self) -> int:
        """Number of turns that run or wait."""
        return len(self._line)

    @contextmanager
    def turn(
        self,
        waiting: Callable[[int], object],
        *,
        patient: bool = False,
        visitor: str | None = None,
    ) -> Iterator[Turn]:
        """Wait for a turn, which lasts until the end of the `with` block.

        Parameters
        ----------
        waiting : callable
            Called twice a second with the number of those ahead; an exception that it raises leaves
            the queue.
        patient : bool
            Whether all that are not go first, those that come later too.
        visitor : str, optional
            Whose turn it is; by default that of the visitor whose page runs in this thread.

        Raises
        ------
        BusyError
            When too many are waiting, or the visitor's seconds are used up.
        """
        if self.seconds is not None:
            visitor = visitor or limits.visitor()
        mine = Turn(self, patient, visitor)
        self._check(mine)
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
            self._charge(mine)
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

    def _check(self, turn: Turn) -> None:
        """Refuse a visitor whose seconds are used up."""
        if self.seconds is None or turn.visitor is None:
            return
        if minutes := self.seconds.minutes_to_wait(turn.visitor):
            raise BusyError(
                tr(
                    "You have used the {most} seconds of computing that each visitor of this "
                    "server has in an hour. What was computed before still opens. For more, come "
                    "back in {minutes} min.",
                    most=self.seconds.most,
                    minutes=minutes,
                )
            )

    def _charge(self, turn: Turn) -> None:
        begun, turn.begun = turn.begun, None
        if self.seconds is not None and turn.visitor is not None and begun is not None:
            self.seconds.spend(turn.visitor, time.monotonic() - begun)

    def _to_the_end(self, turn: Turn) -> None:
        with self._moved:
            self._line.remove(turn)
            self._line.append(turn)
            self._moved.notify_all()

    def _wait(self, turn: Turn, waiting: Callable[[int], object]) -> None:
        while True:
            with self._moved:
                if self._moved.wait_for(lambda: self._line[0] is turn, TICK):
                    turn.begun = time.monotonic()
                    return
                ahead = self._line.index(turn)
            waiting(ahead)  # outside the lock, as it may be slow


@st.cache_resource
def pass_queue() -> Queue:
    """Return the queue of forward passes and of what is computed from captures.

    Each has all cores for itself, and the memory that it finds free when it begins.
    """
    return Queue(seconds=limits.seconds())


_places = threading.Semaphore(DRAWN_AT_ONCE)
_returned = 0.0  # when freed memory was returned last


class _Held(threading.local):
    """What this thread holds: the turn of forward passes, and one of the places to draw."""

    turn: Turn | None = None
    place: bool = False


_held = _Held()


def current_turn() -> Turn | None:
    """Return the turn of forward passes that this thread holds; None without one."""
    return _held.turn


@contextmanager
def drawing() -> Iterator[None]:
    """Draw a page beside two others at most; then return freed memory to the system.

    Ten pages at once take 150 MB more than three. A page gives up its place before it waits for an
    experiment or a model, so the others need not wait for these. No page waits longer than
    `PATIENCE`.
    """
    global _returned
    _held.place = _places.acquire(timeout=PATIENCE)
    try:
        yield
    finally:
        _give_up_place()
        if time.monotonic() - _returned > BETWEEN_RETURNS:
            _returned = time.monotonic()
            return_freed_memory()


def _give_up_place() -> None:
    if _held.place:
        _held.place = False
        _places.release()


@contextmanager
def turn(
    place: DeltaGenerator | None = None, queue: Queue | None = None, *, patient: bool = False
) -> Iterator[Turn]:
    """Wait for a turn, in the queue of forward passes by default, showing how many are ahead.

    A thread that has its turn of a pass already goes on. One that waits for an experiment or a load
    lets another page be drawn meanwhile. Streamlit stops a stale run, or one whose session has
    ended, when it next draws: such a run leaves the queue here.

    Raises
    ------
    BusyError
        When too many are waiting.
    """
    if queue is None and _held.turn is not None:
        yield _held.turn
        return
    if patient or queue is not None:
        _give_up_place()
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
