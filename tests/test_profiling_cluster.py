"""A profile is the same when actors of Ray measured it, also where one of them is killed."""

import sys
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from subprocess import PIPE, Popen
from threading import enumerate as enumerate_threads

import psutil
import pytest
from test_profiling_workers import alone, assert_same, folder, only_here, profiled, small_pieces

from vitviz.model.families import ModelError
from vitviz.profiling import Profile, profile
from vitviz.profiling.cluster import _connect

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
            with _connect(cpus=1):
                yield psutil.Process(process.pid)


def actors(ray_processes: psutil.Process) -> list[psutil.Process]:
    """The processes that measure."""
    return [
        process
        for process in ray_processes.children(recursive=True)
        if process.is_running() and "MapWorker" in "".join(process.cmdline())
    ]


def test_actors_agree_and_the_pieces_of_one_that_is_killed_are_done_again(
    folder: Path, alone: Profile, ray_processes: psutil.Process
) -> None:
    killed, told = list[int](), list[int]()

    def progress(done: int, total: int) -> None:
        told.append(done)
        if done and not killed:  # while the others measure what is left
            process = actors(ray_processes)[0]
            process.kill()
            process.wait()
            killed.append(process.pid)

    found = profiled(folder, engine="ray", workers=2, progress=progress)
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

    working, connected = list[str](), ray.is_initialized

    def watched() -> None:
        working.extend(thread.name for thread in enumerate_threads())

    # As if there were no connection yet, so that one is made and given up.
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(
        ray, "init", lambda **_: monkeypatch.setattr(ray, "is_initialized", connected)
    )
    monkeypatch.setattr(ray, "shutdown", watched)
    with pytest.raises(ModelError, match="another one"):
        profile(only_here(), folder, engine="ray", workers=1)
    assert working
    assert not [name for name in working if name.startswith(("StreamingExecutor", "iter_threaded"))]
