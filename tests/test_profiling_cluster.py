"""A profile is the same when actors of Ray measured it, also where one of them was killed."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from subprocess import PIPE, Popen
from threading import Thread
from threading import enumerate as enumerate_threads

import psutil
import pytest
from examples import assert_one_sentence, own_model
from test_profiling_workers import alone, assert_same, folder, profiled, small_pieces

from vitviz.families import ModelError
from vitviz.profiling import Profile, profile
from vitviz.profiling.cluster import _cluster

__all__ = ["alone", "folder", "small_pieces"]  # fixtures
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray.data.context")


#: A process of its own has Ray, which leaves its children to the garbage collector.
CLUSTER = """
import sys, ray
from contextlib import suppress
from functools import partialmethod
from inspect import signature
with suppress(ImportError):  # two processes less: nobody reads logs, and no machine is added
    from ray._private.parameter import RayParams
    without = dict(no_monitor=True, include_log_monitor=False)
    if without.keys() <= signature(RayParams.__init__).parameters.keys():
        RayParams.__init__ = partialmethod(RayParams.__init__, **without)
for attempt in range(2):
    try:
        made = ray.init("local", num_cpus=4, include_dashboard=False, log_to_driver=False)
    except Exception as error:
        print(error, file=sys.stderr)
        ray.shutdown()
    else:
        print(made.address_info["gcs_address"], flush=True)
        sys.stdin.read()
        break
"""


@pytest.fixture(scope="module", autouse=True)
def ray_processes() -> Iterator[psutil.Process]:
    """The process whose children are those of Ray."""
    settings = {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token_hex(),  # or Ray writes one into the home folder
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # or they starve beside other tests
        "RAY_prestart_worker_first_driver": "0",  # these would measure nothing
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setenv(name, value)
        pytest.importorskip("ray.data", reason="vitviz[cluster] is not installed")
        with Popen([sys.executable, "-c", CLUSTER], stdin=PIPE, stdout=PIPE) as process:
            assert process.stdout is not None
            address = process.stdout.readline().decode().strip()
            if not address:  # none of our own code ran until here
                pytest.skip("Ray itself does not start in 15 s: this machine is too busy")
            patch.setenv("RAY_ADDRESS", address)
            # Once: a process that connects again can crash (ray-project/ray, issue 31145).
            with _cluster(cpus=1):
                yield psutil.Process(process.pid)


def actors(ray_processes: psutil.Process) -> list[psutil.Process]:
    """The processes that measure."""
    return [
        process
        for process in ray_processes.children(recursive=True)
        if process.is_running() and "MapWorker" in "".join(process.cmdline())
    ]


def has_opened(process: psutil.Process, path: Path) -> bool:
    """Whether the process has the file open, as far as Linux tells."""
    opened = Path(f"/proc/{process.pid}/fd")
    return opened.exists() and any(str(path) == os.readlink(one) for one in opened.iterdir())


def test_actors_agree_and_the_pieces_of_those_that_are_killed_are_done_again(
    folder: Path, alone: Profile, tmp_path: Path, ray_processes: psutil.Process
) -> None:
    """An actor waits for its picture, a pipe; when it is dead, a picture is in the pipe's place.

    The other one goes on. Where nothing tells which of them waits, both are killed.
    """
    real = folder / "20.png"
    kept = real.rename(tmp_path / "20.png")
    os.mkfifo(real)
    killed, told = list[int](), list[int]()

    def kill() -> None:
        with real.open("wb"):  # when an actor reads it
            measuring = actors(ray_processes)
            waiting = [process for process in measuring if has_opened(process, real)] or measuring
            kept.replace(real)
            for process in waiting:
                process.kill()
                process.wait()
                killed.append(process.pid)

    killer = Thread(target=kill, daemon=True)
    killer.start()
    found = profiled(folder, engine="ray", workers=2, progress=lambda n, of: told.append(n))
    killer.join()
    assert killed
    assert_same(found, alone)
    assert told == sorted(told)
    assert (told[0], told[-1], len(told)) == (0, 30, 5)
    assert (found.about["workers"], found.about["engine"]) == (2, "ray")


def test_what_an_actor_cannot_measure_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And nothing of Ray Data is at work when Ray is shut down, which would end this process."""
    import ray

    model, working, connected = own_model(), list[str](), ray.is_initialized

    def watched() -> None:
        working.extend(thread.name for thread in enumerate_threads())

    # As if there were no connection yet, so that one is made and given up.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda **_: monkeypatch.setattr(ray, "is_initialized", connected)
    )
    monkeypatch.setattr(ray, "shutdown", watched)
    model.module.train()
    with pytest.raises(ModelError, match="training mode") as caught:
        profile(model, folder, engine="ray", workers=1)
    assert_one_sentence(caught.value)
    assert working
    assert not [name for name in working if name.startswith(("StreamingExecutor", "iter_threaded"))]
