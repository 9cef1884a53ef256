"""The command on poor terminals, with odd paths, and when it is stopped."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from app_server import PATIENCE
from examples import picture

from vitviz import cli, load_profile
from vitviz.app.options import LocalFile, OptionError, parse

MODEL = "vitviz_tiny_cifar10"
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")


def command(*words: object, **options: Any) -> Any:
    env = {**os.environ, **options.pop("env", {})}
    flags = options.pop("flags", ())
    return subprocess.run(
        [sys.executable, *flags, "-m", "vitviz", *map(os.fspath, words)],  # type: ignore[arg-type]
        env=env,
        capture_output=True,
        timeout=4 * PATIENCE,
        check=False,
        **options,
    )


@LINUX
def test_names_that_a_terminal_lacks_do_not_stop_a_profile(tmp_path: Path) -> None:
    folder = os.fsdecode(os.fsencode(tmp_path / "사진 🐶") + b"\xff")
    os.mkdir(folder)
    picture(24, 16).save(f"{folder}/a.png")
    with open(os.fsencode(folder) + b"/\xe9.png", "wb") as file:
        file.write(b"no picture")
    out = os.fsdecode(os.fsencode(tmp_path / "결과") + b"\xff")
    env = dict(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    for more in ((), ("--resume",)):
        done = command("profile", MODEL, folder, "--out", out, *more, env=env)
        assert done.returncode == 1, done.stderr.decode()
        assert b"Traceback" not in done.stderr
        assert b"\\xe9.png: " in done.stderr
        assert b"1 picture measured, 1 skipped: " in done.stdout
    assert load_profile(out).pictures["picture"] == [
        f"{tmp_path}/사진 🐶\\xff/{name}" for name in ("a.png", "\\xe9.png")
    ]


def test_a_file_in_the_current_folder_is_not_executed_by_workers(tmp_path: Path) -> None:
    for seed in range(2):
        picture(24, 16, seed=seed).save(tmp_path / f"{seed}.png")
    for name in ("random", "socket", "torch", "signal"):
        (tmp_path / f"{name}.py").write_text("open('executed', 'w')\nraise SystemExit('mine')\n")
    words = ("profile", MODEL, ".", "--out", "out", "--workers", "1")
    done = command(*words, cwd=tmp_path, flags=["-P"])
    assert done.returncode == 0, done.stderr.decode()
    assert not (tmp_path / "executed").exists()


@LINUX
def test_a_report_of_a_pipe_or_a_device_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    for path in (tmp_path / "pipe.jpg", Path("/dev/zero")):
        assert cli.main(["report", str(path), "-o", str(tmp_path / "out.html")]) == 2
        assert capsys.readouterr().err.startswith(f"{path}: The file is empty")


# --- stopping ----------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal for one process")
def test_ctrl_c_while_libraries_are_imported_is_no_traceback(tmp_path: Path) -> None:
    picture(24, 16).save(tmp_path / "a.png")
    process = subprocess.Popen(
        [sys.executable, "-m", "vitviz", "profile", MODEL, "a.png", "--out", "out"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    time.sleep(1.5)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=PATIENCE)
    assert b"Traceback" not in said, said.decode()
    assert process.returncode in (0, 130, -signal.SIGINT)  # the last: as Python itself ended


def test_ctrl_c_is_exit_code_130_in_every_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.load_model", stopped)
    assert cli.main(["report", "a.jpg"]) == 130
    assert capsys.readouterr().err == "\nStopped.\n"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def children(pid: int) -> set[int]:
    """The processes of a session that still run."""
    found = set()
    for place in Path("/proc").iterdir():
        if place.name.isdecimal() and int(place.name) != pid:
            try:
                fields = (place / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                found.add(int(place.name))
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_no_worker_outlives_its_parent(tmp_path: Path) -> None:
    (tmp_path / "pictures").mkdir()
    for seed in range(600):
        picture(24, 16, seed=seed % 7).save(tmp_path / "pictures" / f"{seed}.png")
    # The first process at work, which would take minutes for a piece.
    words = ["profile", MODEL, "pictures", "--out", "out", "--workers", "2", "--importance", "zero"]
    process = subprocess.Popen(
        [sys.executable, "-m", "vitviz", *words],
        cwd=tmp_path,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        until = time.monotonic() + PATIENCE
        while len(children(process.pid)) < 4 and time.monotonic() < until:  # tracker, server, two
            time.sleep(0.2)
        assert len(children(process.pid)) >= 4
        time.sleep(2)
        process.kill()
        process.wait(PATIENCE)
        until = time.monotonic() + 20
        while children(process.pid) and time.monotonic() < until:
            time.sleep(0.2)
        assert children(process.pid) == set()
    finally:
        for pid in (process.pid, *children(process.pid)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()


# --- paths and options -------------------------------------------------------------------------


def test_paths_with_signs_are_paths(tmp_path: Path) -> None:
    folder = tmp_path / "lr=0.1" / "a@224"
    folder.mkdir(parents=True)
    file = folder / "model=best@96"
    file.touch()
    options = parse(["--checkpoint", f"{folder}", "--checkpoint", f"vit={file}"])
    assert [*options.checkpoints.values()] == [
        LocalFile("a@224", folder),
        LocalFile("vit", file),
    ]
    sized = parse(["--checkpoint", f"{tmp_path}/lr=0.1@64", "--checkpoint", f"vit={file}@64"])
    assert [*sized.checkpoints.values()] == [
        LocalFile("lr=0.1", tmp_path / "lr=0.1", (64, 64)),
        LocalFile("vit", file, (64, 64)),
    ]
    with pytest.raises(OptionError, match="Expected --checkpoint"):
        parse(["--checkpoint", f"{tmp_path}/none"])


@pytest.mark.parametrize("port", ["99999", "0", "-1", "http"])
def test_a_port_that_there_is_not_is_said(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["app", f"--port={port}"])
    assert caught.value.code == 2
    assert f"expected a number from 1 to 65535, got {port}" in capsys.readouterr().err
