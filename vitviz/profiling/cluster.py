"""Pieces of a list measured by the actors of a Ray cluster, to which Ray Data hands them out.

An actor that is lost costs the piece that it was at: Ray starts it again, and the piece, too.
"""

import copy
import logging
import os
import pickle
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..devices import use_threads
from ..model import Model
from .measuring import Piece, measured
from .pictures import ProfileError, absolute
from .workers import Pieces, Told

ENDING = 10  # seconds that a thread gets to end


def on_ray(
    model: Model,
    settings: Mapping[str, Any],
    pieces: Pieces,
    told: Told,
    *,
    workers: int,
    threads: int,
) -> Iterator[tuple[int, Piece]]:
    """Measure pieces with so many actors; they come as they are done, with their numbers.

    The cluster is the one that the caller has connected to, or that RAY_ADDRESS names; else Ray is
    started on this machine. Each actor has `threads` CPUs, and a CUDA device of its own where the
    model is on one. `settings` are those of `measured`.

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
    with _cluster(workers * threads):
        packed = ray.put((_on_cpu(model), dict(settings)))
        rows = [
            {"number": number, "entries": pickle.dumps(absolute(some))}
            for number, some in pieces.items()
        ]
        found = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Actor,
            fn_constructor_args=(packed, threads, device),
            compute=ray.data.ActorPoolStrategy(size=workers, max_tasks_in_flight_per_actor=1),
            batch_size=1,
            num_cpus=threads,
            num_gpus=int(device == "cuda"),
        )
        try:
            with _ended(found.iter_rows()) as results:
                for row in results:
                    number, piece = int(row["number"]), pickle.loads(row["found"])
                    if isinstance(piece, Exception):
                        raise piece
                    told(number, len(pieces[number]))
                    yield number, piece
        except ray.exceptions.RayError as error:
            raise ProfileError(
                f"Ray could not measure all pictures: {_first_line(error)}"
            ) from error


class _Actor:
    """Has the model, and measures one piece after another."""

    def __init__(self, packed: Any, threads: int, device: str) -> None:
        import ray

        use_threads(threads)
        self.model, self.settings = ray.get(packed)
        self.model.module.to(device)

    def __call__(self, batch: Mapping[str, np.ndarray]) -> dict[str, list[Any]]:
        found: Piece | Exception
        try:
            found = measured(self.model, pickle.loads(batch["entries"][0]), **self.settings)
        except Exception as error:
            found = error
        return {"number": [batch["number"][0]], "found": [pickle.dumps(found)]}


@contextmanager
def _cluster(cpus: int) -> Iterator[None]:
    """The cluster that there is, or Ray on this machine with so many CPUs."""
    import ray.data

    if ray.is_initialized():
        yield
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # which would go to Ray's makers
    here: dict[str, Any] = dict(address="local", num_cpus=cpus, include_dashboard=False)
    known = {"address": "auto"} if "RAY_ADDRESS" in os.environ else here
    try:
        ray.init(**known, log_to_driver=False, logging_level=logging.ERROR)
    except Exception as error:  # Ray's own are of many kinds, and some of none
        raise ProfileError(f"Ray cannot be started, or reached: {_first_line(error)}") from error
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    ray.data.DataContext.get_current().enable_progress_bars = False  # the caller has its own
    try:
        yield
    finally:
        ray.shutdown()


@contextmanager
def _ended(rows: Iterable[Any]) -> Iterator[Iterator[Any]]:
    """Iterate over rows; after that, wait for the threads by which Ray Data made them.

    One that asks Ray for anything after its shutdown ends this whole process.
    """
    before = {*threading.enumerate()}
    results: Any = iter(rows)
    try:
        yield results
    finally:
        results.close()
        for thread in {*threading.enumerate()} - before:
            if thread.name != "Prefetcher":  # which Ray Data leaves asleep, never to wake
                thread.join(ENDING)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _on_cpu(model: Model) -> Model:
    """The model, or a copy of it where it is on a device, which an actor may not have."""
    if model.device.type == "cpu":
        return model
    other = copy.deepcopy(model)
    other.module.cpu()
    return other
