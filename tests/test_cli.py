"""The `vitviz` command: what it refuses before it begins, and how it ends."""

import io
import os
import pydoc
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from app_server import HERE, PATIENCE, ROOT, free_port
from examples import assert_one_sentence

import vitviz
from vitviz import cli


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """No server is started, whatever is said."""

    def run(*_: object, **__: object) -> None:
        raise AssertionError("A server was started.")

    monkeypatch.setattr("streamlit.App.run", run)
    monkeypatch.setattr("subprocess.call", run)


@pytest.mark.usefixtures("unserved")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpoint", "missing"], "Expected --checkpoint NAME=FILE or a folder, got missing."),
        (["--checkpoint", "vit_tiny_patch16_224=missing.pth"], "There is no file missing.pth in "),
        (["--checkpoint", f"vit_tinny_patch16_224={__file__}"], "did you mean vit_tiny_patch16"),
        (["--models", "nope"], "The menu has no model named nope."),
        (["--models", "vitviz_tiny_cifar10, vit_tiny_patch16"], "did you mean vit_tiny_patch16_2"),
        (["--models", " , "], "Expected --models NAME,NAME, got ' , '."),
    ],
)
def test_the_app_does_not_start_with_what_it_cannot_offer(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["app", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert_one_sentence(err.replace(".pth", "").replace(".py", "").strip())


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--recipe", "nope", "--data", "{}", "--out", "{}/run"],
        ["train", "--data", "{}", "--out", "{}/run"],
        ["evaluate", "nope", "--data", "{}"],
        ["prepare", "--checkpoint", "nope"],
    ],
)
def test_errors_go_where_errors_go(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([word.format(tmp_path) for word in words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(".\n")
    assert not (tmp_path / "run").exists()


def test_the_app_has_the_settings_of_the_source_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []
    monkeypatch.setattr("streamlit.App.run", lambda _, *, config: started.append(config))
    monkeypatch.setattr(sys, "argv", [])
    assert cli.main(["app", "--port", "1234"]) == 0
    expected = dict(settings_of(tomllib.loads((ROOT / ".streamlit/config.toml").read_text())))
    assert started == [expected | {"server.port": 1234}]


def settings_of(table: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict):
            yield from settings_of(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signal for one process")
def test_ctrl_c_ends_the_app_without_a_word_of_its_insides() -> None:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "vitviz.cli", "app", "--port", str(port)],
        env={**os.environ, "STREAMLIT_SERVER_HEADLESS": "true"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        wait_for(f"http://{HERE}:{port}/_stcore/health")
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        said, _ = process.communicate(timeout=PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in said
    assert process.returncode in (0, 130), said


def wait_for(url: str) -> None:
    begun = time.monotonic()
    while time.monotonic() < begun + PATIENCE:
        try:
            with urlopen(url, timeout=5):
                return
        except URLError:
            time.sleep(0.05)
    raise AssertionError("The app did not start.")


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"vitviz {vitviz.__version__}\n"
    assert vitviz.__version__[0].isdigit()


def test_help_and_dir_show_the_interface() -> None:
    modules = {"attribution", "inspection", "intervention", "plots", "vit"}
    assert set(dir(vitviz)) >= {*vitviz.__all__, *modules, "__version__"}
    said = io.StringIO()
    pydoc.Helper(output=said).help(vitviz)
    for name in ("load_model(name: str", "class Model", "capture(", "vitviz.attribution"):
        assert name in pydoc.plain(said.getvalue())


def test_a_photo_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nothing.jpg"]) == 2
    assert capsys.readouterr().err == "nothing.jpg: No such file or directory.\n"
