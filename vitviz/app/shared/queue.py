"""FIFO queues: forward passes, model loads and image decoding run one at a time.

Pages are drawn a few at a time, too, as each holds the captures and messages of its visitor.
"""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.shared import limits
from vitviz.app.shared.limits import Allowance
from vitviz.common.language import tr
from vitviz.common.malloc import return_freed_memory

TICK = 0.5  # seconds between two calls while waiting
MAX_WAITING_PASSES = 100
OVERTAKING = 3  # turns that go before one that is patient
DRAWN_AT_ONCE = 3  # pages; two cores draw no more, and each holds some 20 MB meanwhile
PATIENCE = 10.0  # seconds after which a page is drawn beside all others
BETWEEN_RETURNS = 1.0  # seconds; the next page takes new memory, which costs it some ms


class BusyError(RuntimeError):
    """Too many visitors are waiting, or this one has used up what a visitor may use."""


class Turn:
    """A position in the queue; a `patient` one lets others go first.

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
        self._queue._leave(self, again=True)
        self._queue._wait(self, waiting)


class Queue:
    """A first-in, first-out queue in which a few run and at most `most` others wait.

    Experiments of many passes are patient: other turns go first. After `OVERTAKING` of those, one
    patient turn is next, so experiments end on a busy server, too. Whoever waits for a map waits
    for one pass of an experiment, and for one more with every third map before it.

    Parameters
    ----------
    seconds : Allowance, optional
        Counts the seconds that each visitor's turns last.
    at_once : int
        How many run at the same time.
    """

    def __init__(
        self, most: float = MAX_WAITING_PASSES, seconds: Allowance | None = None, at_once: int = 1
    ) -> None:
        self.most = most
        self.seconds = seconds
        self.at_once = at_once
        self._line: list[Turn] = []  # the first ones have their turn
        self._overtaking = 0  # turns since one that is patient
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
            if len(self._line) - self.at_once >= self.most:
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
            self._leave(mine)

    def _place(self, turn: Turn) -> int:
        """Return where in the line a turn begins to wait: never before the one that runs."""
        end = len(self._line)
        if turn.patient:
            return end
        return next((at for at in range(self.at_once, end) if self._line[at].patient), end)

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

    def _leave(self, turn: Turn, again: bool = False) -> None:
        """Leave the line, or go to its end; let a patient turn be next if it was overtaken."""
        with self._moved:
            last = self.at_once - 1
            had_turn = self._line.index(turn) <= last
            self._line.remove(turn)
            patient = next((one for one in self._line[last:] if one.patient), None)
            if turn.patient or patient is None:
                self._overtaking = 0
            elif had_turn:
                self._overtaking += 1
                if self._overtaking >= OVERTAKING:
                    self._line.remove(patient)
                    self._line.insert(last, patient)
            if again:
                self._line.append(turn)
            self._moved.notify_all()

    def _wait(self, turn: Turn, waiting: Callable[[int], object]) -> None:
        while True:
            with self._moved:
                if self._moved.wait_for(lambda: turn in self._line[: self.at_once], TICK):
                    turn.begun = time.monotonic()
                    return
                ahead = self._line.index(turn) - self.at_once + 1
            waiting(ahead)  # outside the lock, as it may be slow


@st.cache_resource
def pass_queue() -> Queue:
    """Return the queue of forward passes and of what is computed from captures.

    Each has all cores for itself, and the memory that it finds free when it begins.
    """
    return Queue(seconds=limits.seconds())


_pages = Queue(most=math.inf, at_once=DRAWN_AT_ONCE)
_returned = 0.0  # when freed memory was returned last


class _Held(threading.local):
    """What this thread holds: the turn of forward passes, and that of drawing a page."""

    turn: Turn | None = None
    page = ExitStack()


_held = _Held()


def current_turn() -> Turn | None:
    """Return the turn of forward passes that this thread holds; None without one."""
    return _held.turn


@contextmanager
def drawing(place: DeltaGenerator) -> Iterator[None]:
    """Draw a page beside two others at most; then return freed memory to the system.

    Ten pages at once take 150 MB more than three. A page gives up its turn before it waits for an
    experiment or a model, so the others need not wait for these. No page waits longer than
    `PATIENCE`; one that waits says in `place` how many are ahead.
    """
    global _returned
    start = time.monotonic()

    def waiting(ahead: int) -> None:
        if time.monotonic() - start > PATIENCE:
            raise TimeoutError
        _show_ahead(place, ahead)

    try:
        with ExitStack() as _held.page:
            with suppress(TimeoutError):
                _held.page.enter_context(_pages.turn(waiting))
            if time.monotonic() - start > TICK:
                place.empty()
            yield
    finally:
        if time.monotonic() - _returned > BETWEEN_RETURNS:
            _returned = time.monotonic()
            return_freed_memory()


def let_pages_be_drawn() -> None:
    """Give up this thread's turn of drawing a page, as it waits for an experiment or a model."""
    _held.page.close()


def _show_ahead(place: DeltaGenerator, ahead: int) -> None:
    place.progress(0.0, tr("{ahead} ahead of you", ahead=ahead))


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
        let_pages_be_drawn()
    place = place or st.empty()
    line = pass_queue() if queue is None else queue
    with line.turn(partial(_show_ahead, place), patient=patient) as mine:
        place.empty()
        if queue is None:
            _held.turn = mine
        try:
            yield mine
        finally:
            if queue is None:
                _held.turn = None
