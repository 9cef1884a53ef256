"""Pieces of a list measured by several processes of this machine, each of which has the model.

A process that is killed costs the piece that it was at, which another one does again.
"""

import signal
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle

from ..devices import use_threads
from ..model import Model
from .measuring import Piece, measured
from .pictures import Entry, ProfileError, absolute

#: By their numbers, the entries of pieces.
Pieces = Mapping[int, Sequence[Entry]]
#: Called as told(number of a piece, pictures of it that are done).
Told = Callable[[int, int], object]

ATTEMPTS = 3  # at a piece, for which memory may be too small


def in_processes(
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    told: Told,
    *,
    workers: int,
    threads: int,
) -> Iterator[tuple[int, Piece]]:
    """Measure pieces in so many processes; they come as they are done, with their numbers.

    `settings` are those of `measured`.

    Raises
    ------
    ProfileError
        When a process ends of itself, or the processes at one piece are killed three times.
    """
    packed = cloudpickle.dumps((model, settings))  # also of classes in a notebook
    waiting, killed = deque(pieces), Counter[int]()
    busy: dict[Connection, tuple[BaseProcess, int]] = {}
    try:
        while waiting or busy:
            while waiting and len(busy) < workers:
                connection, process = _started(threads)
                busy[connection] = process, waiting.popleft()
            for connection in {*busy}.intersection(wait([*busy])):
                process, number = busy[connection]
                try:
                    found = connection.recv()
                except (EOFError, OSError):  # it is dead
                    del busy[connection]
                    _end(connection, process)
                    killed[number] += 1
                    _check_killed(process.exitcode or 0, killed[number])
                    waiting.appendleft(number)
                    told(number, 0)
                    continue
                if found is None:  # it has begun
                    _give(connection, pieces[number], packed)
                elif isinstance(found, int):
                    told(number, found)
                elif isinstance(found, Exception):
                    raise found
                else:
                    yield number, found
                    if waiting:
                        busy[connection] = process, waiting.popleft()
                        _give(connection, pieces[busy[connection][1]])
                    else:
                        del busy[connection]
                        _end(connection, process)
    finally:
        for connection, (process, _) in busy.items():
            process.kill()
            _end(connection, process)


def _started(threads: int) -> tuple[Connection, BaseProcess]:
    context = _context()
    ours, theirs = context.Pipe()
    process = context.Process(target=_work, args=(theirs, threads), daemon=True)
    with _without_interrupts():
        process.start()
    theirs.close()  # so that ours ends where the process does
    return ours, process


def _context() -> Any:
    """How processes start. A fork of this one would copy locks that threads of torch hold, so on
    Linux they are forks of another, which has no threads and has imported torch once for all.
    """
    if sys.platform != "linux":
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])
    return context


@contextmanager
def _without_interrupts() -> Iterator[None]:
    """What starts in this context is not reached by the terminal's Ctrl-C, which is for us."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: `_work` ignores it
        yield
        return
    resource_tracker.ensure_running()  # which unblocks the signal when the first process starts
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _give(connection: Connection, entries: Sequence[Entry], packed: bytes | None = None) -> None:
    """Send a piece to a process that waits for it, and before its first one the model."""
    with suppress(OSError):  # it is dead, which the next `recv` finds
        if packed is not None:
            connection.send_bytes(packed)
        connection.send(absolute(entries))


def _end(connection: Connection, process: BaseProcess) -> None:
    connection.close()
    process.join()


def _check_killed(status: int, times: int) -> None:
    if status >= 0:
        raise ProfileError(
            f"A worker ended with status {status}, and what it said stands above: a script that "
            'starts workers does so below `if __name__ == "__main__":`, as every worker imports it.'
        )
    if times == ATTEMPTS:
        raise ProfileError(
            f"Workers at the same pictures were killed {times} times, the last one by signal "
            f"{-status}: each needs memory for the model and a batch of its own."
        )


def _work(connection: Connection, threads: int) -> None:
    """What a process does: measure what it is sent, until nothing more is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with suppress(EOFError, ConnectionError):  # whoever started it has ended
        try:
            use_threads(threads)
            connection.send(None)  # from now on it reads what it is sent
            model, settings = cloudpickle.loads(connection.recv_bytes())
            while True:
                some = connection.recv()
                connection.send(measured(model, some, progress=connection.send, **settings))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            connection.send(error)
