"""A profile is the same whoever measured its pieces: processes, also those that were killed."""

import os
import runpy
import signal
from collections.abc import Callable, Iterator
from multiprocessing import active_children
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import assert_clear_error, example, own_model, picture
from numpy.testing import assert_allclose, assert_array_equal

from vitviz import cli
from vitviz.common.files import assets
from vitviz.model import Model
from vitviz.model.families import ModelError
from vitviz.profiling import BY_PICTURE, Profile, ProfileError, profile, running
from vitviz.profiling import cluster as workers


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(running, "PIECE", 8)
    yield
    assert active_children() == []


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """30 pictures of noise, of which the fifth cannot be read."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(30):
        picture(24, 16, seed=seed).save(folder / f"{seed:02}.png")
    (folder / "04.png").write_bytes(b"no picture")
    return folder


@pytest.fixture(scope="module")
def alone(folder: Path) -> Profile:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PIECE", 8)
        return profiled(folder)


def profiled(folder: Path, **options: Any) -> Profile:
    labels = [number % 5 for number in range(30)]
    return profile(example("distilled"), folder, labels=labels, batch_size=4, **options)


def assert_same(found: Profile, expected: Profile) -> None:
    arrays, others = found.state.to_arrays(), expected.state.to_arrays()
    assert arrays.keys() == others.keys()
    for name, values in arrays.items():
        scale = abs(others[name]).max()
        assert_allclose(values, others[name], rtol=0, atol=1e-12 * scale, err_msg=name)
    for name in BY_PICTURE:
        assert_array_equal(found.values(name), expected.values(name))
    assert found.pictures == expected.pictures
    assert [bool(why) for why in found.pictures["skipped"]].index(True) == 4
    for key in ("list_sha256", "skipped", "proof_error", "refused_layers"):
        assert found.about[key] == expected.about[key]


def test_a_worker_agrees_and_is_not_reached_by_ctrl_c(
    folder: Path, alone: Profile, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    started: Any = workers._start_worker
    seen: list[Any] = []

    def interrupted(*options: Any) -> Any:
        connection, process = started(*options)
        os.kill(process.pid, signal.SIGINT)  # which the terminal sends to all processes
        seen.append(process)
        return connection, process

    monkeypatch.setattr(workers, "_start_worker", interrupted)
    found = profiled(folder, workers=1, progress=lambda done, total: told.append(done))
    assert_same(found, alone)
    assert told[0] == 0
    assert told[-1] == 30
    assert told == sorted(told)
    assert len(told) == 9  # one before, and one a batch
    assert [process.exitcode for process in seen] == [0]
    assert (found.about["workers"], found.about["engine"]) == (1, "local")


def killing(times: int, killed: list[int]) -> Callable[[int, int], None]:
    """Kill a process within its piece, so many times."""

    def progress(done: int, total: int) -> None:
        if done % 8 and len(killed) < times:
            child = active_children()[0]
            child.kill()
            child.join()
            killed.append(child.pid or 0)

    return progress


def test_the_piece_of_a_worker_that_is_killed_is_done_again(folder: Path, alone: Profile) -> None:
    """By another one, while a second one goes on."""
    killed: list[int] = []
    found = profiled(folder, workers=2, progress=killing(1, killed))
    assert_same(found, alone)
    assert len(killed) == 1
    assert found.about["workers"] == 2


def test_workers_that_are_killed_again_and_again_are_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "ATTEMPTS", 2)
    killed: list[int] = []
    with pytest.raises(ProfileError, match=r"killed 2 times .*signal 9") as caught:
        profiled(folder, workers=1, progress=killing(2, killed))
    assert_clear_error(caught.value)
    assert len(set(killed)) == 2


def test_what_was_done_when_a_run_stopped_is_not_done_again(
    folder: Path, alone: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []

    def progress(done: int, total: int) -> None:
        told.append(done)
        if done > 16:  # so that one of two workers has begun a second piece
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiled(folder, out=tmp_path, workers=2, progress=progress)
    assert active_children() == []
    assert told == sorted(told)
    kept = len([*(tmp_path / "pieces").glob("*.npz")])
    assert kept >= 1
    measure_piece, done = running.measure_piece, []

    def watching(model: Any, entries: Any, **options: Any) -> Any:
        done.append(len(entries))
        return measure_piece(model, entries, **options)

    monkeypatch.setattr(running, "measure_piece", watching)
    assert_same(profiled(folder, out=tmp_path, resume=True), alone)
    assert len(done) == 4 - kept


def only_here() -> Model:
    """A model that fails in every process but this one."""
    model, here = own_model(), os.getpid()

    def check(*_: object) -> None:
        if os.getpid() != here:
            raise ModelError("This process is another one.")

    model.module.register_forward_pre_hook(check)
    return model


def test_what_a_worker_cannot_measure_is_said(folder: Path) -> None:
    with pytest.raises(ModelError, match="another one"):
        profile(only_here(), folder, workers=1)


def test_a_script_that_every_worker_would_run_again_is_said(tmp_path: Path) -> None:
    script, photo = tmp_path / "script.py", assets() / "samples" / "dog.jpg"
    order = f"vitviz.profile(vitviz.load_model('vitviz_tiny_cifar10'), {str(photo)!r}, workers=1)"
    script.write_text(f"import vitviz\n{order}\n")
    with pytest.raises(ProfileError) as caught:
        runpy.run_path(str(script), run_name="__main__")  # the worker comes as far and starts none
    error = str(caught.value)
    assert "ended with status 1" in error
    assert '`if __name__ == "__main__":`' in error


@pytest.mark.parametrize(
    ("device", "options", "words"),
    [
        ("cpu", dict(workers=-1), "at least 0 workers, got -1"),
        ("cpu", dict(engine="ray"), "at least one worker"),
        ("cpu", dict(engine="dask", workers=1), "got 'dask'"),
        ("cuda:0", dict(workers=2), "cannot share the device cuda:0"),
        ("mps", dict(workers=2, engine="ray"), "cannot share the device mps"),
    ],
)
def test_workers_that_cannot_be_are_refused(
    folder: Path, device: str, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "device", torch.device(device))
    with pytest.raises(ProfileError, match=words) as caught:
        profiled(folder, **options)
    assert_clear_error(caught.value)


def test_the_command_has_workers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    def here(
        measure: Any, model: Any, settings: Any, pieces: Any, told: Any, **options: int
    ) -> Iterator[Any]:
        asked.update(options)
        for number, entries in pieces.items():
            yield number, measure(model, entries, **settings)

    monkeypatch.setattr(running, "measure_on_ray", here)
    monkeypatch.chdir(folder)
    words = ["profile", "vitviz_tiny_cifar10", "00.png", "01.png", "--out", str(tmp_path)]
    assert cli.main([*words, "--workers", "3", "--engine", "ray"]) == 0
    assert asked == dict(workers=1, threads=max(1, torch.get_num_threads() // 3))
