"""Measure pieces of a list in parallel: in processes of this machine, or in actors of Ray.

A process or an actor that dies loses only the piece that it works on. The piece is measured again.
"""

import copy
import logging
import os
import pickle
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context, parent_process, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from threading import Thread
from typing import Any

import cloudpickle
import numpy as np

from ..common.language import reason_of
from ..model import Model
from ..model.devices import use_threads
from .entries import Entry, ProfileError, with_absolute_paths

#: What is called as measure(model, entries, progress=..., **settings) for each piece.
Measure = Callable[..., Any]
#: The entries of each piece, by the piece's number.
Pieces = Mapping[int, Sequence[Entry]]
#: Called as progress(piece number, pictures of the piece that are done).
PieceProgress = Callable[[int, int], object]

ATTEMPTS = 3  # at one piece: a worker is usually killed because memory is too small


def measure_in_processes(
    measure: Measure,
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    progress: PieceProgress,
    *,
    workers: int,
    threads: int,
) -> Iterator[tuple[int, Any]]:
    """Measure pieces in `workers` processes; yield each with its number as soon as it is done.

    `settings` are keyword arguments of `measure`.

    Raises
    ------
    ProfileError
        When a process exits by itself, or three processes at the same piece are killed.
    """
    payload = cloudpickle.dumps((measure, model, settings))  # also of classes in a notebook
    queue, deaths = deque(pieces), Counter[int]()
    busy: dict[Connection, tuple[BaseProcess, int]] = {}
    try:
        while queue or busy:
            while queue and len(busy) < workers:
                connection, process = _start_worker(threads)
                busy[connection] = process, queue.popleft()
            for connection in {*busy}.intersection(wait([*busy])):
                process, number = busy[connection]
                try:
                    message = connection.recv()
                except (EOFError, OSError):  # the process is dead
                    del busy[connection]
                    _end(connection, process)
                    deaths[number] += 1
                    _check_killed(process.exitcode or 0, deaths[number])
                    queue.appendleft(number)
                    progress(number, 0)
                    continue
                if message is None:  # the process has started
                    _send(connection, pieces[number], payload)
                elif isinstance(message, int):
                    progress(number, message)
                elif isinstance(message, Exception):
                    raise message
                else:
                    yield number, message
                    if queue:
                        busy[connection] = process, queue.popleft()
                        _send(connection, pieces[busy[connection][1]])
                    else:
                        del busy[connection]
                        _end(connection, process)
    finally:
        for connection, (process, _) in busy.items():
            process.kill()
            _end(connection, process)


def _start_worker(threads: int) -> tuple[Connection, BaseProcess]:
    context: Any = get_context("forkserver" if sys.platform == "linux" else "spawn")
    if sys.platform == "linux":
        # A fork of this process would copy locks that threads of torch hold. The fork server has no
        # such threads, and imports torch once for all workers.
        context.set_forkserver_preload([__name__])
    ours, theirs = context.Pipe()
    process = context.Process(target=_run_worker, args=(theirs, threads), daemon=True)
    with _safe_path(), _blocked_interrupts():
        process.start()
    theirs.close()  # else `ours` would stay open after the process has ended
    return ours, process


@contextmanager
def _blocked_interrupts() -> Iterator[None]:
    """Start child processes with SIGINT blocked, so that Ctrl-C reaches only this process."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows: `_run_worker` ignores the signal
        yield
        return
    resource_tracker.ensure_running()  # else it unblocks SIGINT as it starts with the first process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _safe_path() -> Iterator[None]:
    """Start child processes without the current folder on Python's path.

    multiprocessing starts its helpers by `python -c`, which would import a random.py from there.
    """
    before = os.environ.get("PYTHONSAFEPATH")
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONSAFEPATH"]
        else:
            os.environ["PYTHONSAFEPATH"] = before


def _send(connection: Connection, entries: Sequence[Entry], payload: bytes | None = None) -> None:
    """Send a piece to a waiting process, after the model if the process is new."""
    with suppress(OSError):  # the process is dead; the next `recv` notices
        if payload is not None:
            connection.send_bytes(payload)
        connection.send(with_absolute_paths(entries))


def _end(connection: Connection, process: BaseProcess) -> None:
    connection.close()
    process.join()


def _check_killed(status: int, times: int) -> None:
    if status >= 0:
        raise ProfileError(
            f"A worker process ended with status {status}; its output stands above. If a script "
            'starts the workers, call it below `if __name__ == "__main__":`, because every worker '
            "imports the script."
        )
    if times == ATTEMPTS:
        raise ProfileError(
            f"Workers were killed {times} times at the same pictures, the last one by signal "
            f"{-status}. Every worker needs memory for its own model and batch: use fewer workers "
            "or a smaller batch."
        )


def _end_with_parent() -> None:
    """End this process once its parent is gone, even in the middle of a forward pass."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _run_worker(connection: Connection, threads: int) -> None:
    """Measure the pieces that arrive on a connection until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, ConnectionError):  # the parent has ended
        try:
            use_threads(threads)
            connection.send(None)  # ready: the parent may send the model now
            measure, model, settings = cloudpickle.loads(connection.recv_bytes())
            while True:
                some = connection.recv()
                connection.send(measure(model, some, progress=connection.send, **settings))
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            connection.send(error)


THREAD_TIMEOUT = 10  # seconds to wait for a thread of Ray Data to end


def measure_on_ray(
    measure: Measure,
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    progress: PieceProgress,
    *,
    workers: int,
    threads: int,
) -> Iterator[tuple[int, Any]]:
    """Measure pieces in `workers` actors; yield each with its number as soon as it is done.

    The cluster is the one that the caller is connected to, or that RAY_ADDRESS names. Without
    either, Ray is started on this machine. Each actor has `threads` CPUs, and a CUDA device of its
    own if the model is on one. `settings` are keyword arguments of `measure`.

    Raises
    ------
    ProfileError
        When Ray is not installed, cannot be started, or gives up.
    """
    try:
        import ray.data
    except ImportError as error:
        raise ProfileError(
            'The engine "ray" needs Ray Data: pip install "vitviz[cluster]".'
        ) from error
    device = model.device.type
    with _connect(workers * threads):
        payload = ray.put((cloudpickle.dumps(measure), _on_cpu(model), dict(settings)))
        rows = [
            {"number": number, "entries": pickle.dumps(with_absolute_paths(some))}
            for number, some in pieces.items()
        ]
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=(payload, threads, device),
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            batch_size=1,
            num_cpus=threads,
            num_gpus=int(device == "cuda"),
        )
        try:
            with _waiting_for_threads(dataset.iter_rows()) as results:
                for row in results:
                    number, piece = int(row["number"]), pickle.loads(row["piece"])
                    if isinstance(piece, Exception):
                        raise piece
                    progress(number, len(pieces[number]))
                    yield number, piece
        except ray.exceptions.RayError as error:
            raise ProfileError(
                f"Ray could not measure all pictures: {reason_of(error)}."
            ) from error


class _Actor:
    """An actor of Ray: holds the model and measures one piece after another."""

    def __init__(self, payload: Any, threads: int, device: str) -> None:
        import ray

        use_threads(threads)
        measure, self.model, self.settings = ray.get(payload)
        self.measure = cloudpickle.loads(measure)
        self.model.module.to(device)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
        piece: Any
        try:
            piece = self.measure(self.model, pickle.loads(batch["entries"][0]), **self.settings)
        except Exception as error:
            piece = error
        return {"number": [batch["number"][0]], "piece": [pickle.dumps(piece)]}


@contextmanager
def _connect(cpus: int) -> Iterator[None]:
    """Connect to the caller's cluster, or start Ray on this machine with `cpus` CPUs."""
    import ray.data

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # else Ray reports usage to its makers
    here: dict[str, Any] = dict(address="local", num_cpus=cpus, include_dashboard=False)
    cluster = {"address": "auto"} if "RAY_ADDRESS" in os.environ else here
    try:
        ray.init(**cluster, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's errors share no base class
        raise ProfileError(f"Ray cannot be started or reached: {reason_of(error)}.") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the caller shows progress
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _waiting_for_threads(rows: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Iterate over rows of Ray Data; at the end, wait for the threads that Ray Data started.

    A thread that calls Ray after its shutdown would end this whole process.
    """
    before = {*threading.enumerate()}
    results: Any = iter(rows)
    try:
        yield results
    finally:
        results.close()
        for thread in {*threading.enumerate()} - before:
            if thread.name != "Prefetcher":  # Ray Data never wakes this one again
                thread.join(THREAD_TIMEOUT)


def _on_cpu(model: Model) -> Model:
    """Return the model, or a copy on the CPU: an actor's machine may lack the model's device."""
    if model.device.type == "cpu":
        return model
    other = copy.deepcopy(model)
    other.module.cpu()
    return other
