"""The `vitviz` command: what it refuses before it begins, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import timm
import torch
from app_server import HERE, PATIENCE, ROOT, free_port, serving, wait_for
from examples import assert_clear_error, picture, seeded
from safetensors.torch import save_file

import vitviz
from vitviz import cli
from vitviz.app import options

APP = [sys.executable, "-m", "vitviz", "app"]


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
        (["--checkpoint", f"vit_tinny_patch16_224={__file__}"], "Did you mean vit_tiny_patch16"),
        (["--models", "vitviz_tiny_cifar10, vit_tiny_patch16"], "Did you mean vit_tiny_patch16_2"),
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
    assert_clear_error(err.strip())


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--recipe", "nope", "--data", "{}", "--out", "{}/run"],
        ["train", "--data", "{}", "--out", "{}/run"],
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
def test_ctrl_c_ends_the_app_without_a_word_of_its_insides(tmp_path: Path) -> None:
    port, log = free_port(), tmp_path / "log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [*APP, "--port", str(port)],
            env={**os.environ, "STREAMLIT_SERVER_HEADLESS": "true"},
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(f"http://{HERE}:{port}", process, log)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it
        process.wait(PATIENCE)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert "Traceback" not in log.read_text()
    assert process.returncode in (0, 130), log.read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux listens to 127.0.0.2")
@pytest.mark.parametrize("by", ["option", "environment"])
def test_the_address_is_that_of_the_option_or_of_streamlits_variable(
    by: str, tmp_path: Path
) -> None:
    """Whatever a config.toml in the current folder says."""
    (tmp_path / ".streamlit").mkdir()
    (tmp_path / ".streamlit" / "config.toml").write_text('[server]\naddress = "127.0.0.1"\n')
    words = ["--address", "0.0.0.0"] if by == "option" else []
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    if by == "environment":
        env["STREAMLIT_SERVER_ADDRESS"] = "0.0.0.0"
    log = tmp_path / "log"
    with serving(log, *words, command=APP, env=env, cwd=tmp_path) as server:
        urlopen(server.url.replace(HERE, "127.0.0.2")).close()


@pytest.mark.parametrize("module", ["vitviz", "vitviz.cli"])
def test_the_command_is_a_module_too(module: str) -> None:
    said = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, check=True
    )
    assert said.stdout == f"vitviz {vitviz.__version__}\n"


def test_a_photo_that_is_not_there_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["report", "nothing.jpg"]) == 2
    assert capsys.readouterr().err == "nothing.jpg: No such file or directory.\n"


# --- weights of one's own: what their outputs mean, and an adapter without its base --------------


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights of three outputs, two pictures, and an adapter that peft saved."""
    folder = tmp_path_factory.mktemp("weights")
    with seeded():
        module = timm.create_model("test_vit", num_classes=3)
    save_file(module.state_dict(), folder / "mine.safetensors")
    (folder / "pictures").mkdir()
    for seed in range(2):
        picture(40, 30, seed=seed).save(folder / "pictures" / f"{seed}.png")
    adapter = folder / "adapter"
    adapter.mkdir()
    config = {"peft_type": "LORA", "base_model_name_or_path": "google/vit-base-patch16-224"}
    (adapter / "adapter_config.json").write_text(json.dumps(config))
    save_file({"a": torch.ones(1)}, adapter / "adapter_model.safetensors")
    return folder


def measuring(command: str, weights: Path, named: str, out: Path) -> list[str]:
    """The words that profile, or compare with itself, a model with these weights."""
    pictures, file = str(weights / "pictures"), str(weights / named)
    if command == "profile":
        return ["profile", "test_vit", pictures, f"--checkpoint={file}", f"--out={out}"]
    return ["compare", *[f"test_vit={file}"] * 2, pictures, f"--out={out}"]


@pytest.mark.parametrize(
    ("words", "reason"),
    [([], "A template needs phrases. Add --words"), (["--words=a.npz"], "a.npz holds vectors")],
)
def test_a_template_without_phrases_is_refused(
    weights: Path, tmp_path: Path, capsys: Any, words: list[str], reason: str
) -> None:
    command = measuring("profile", weights, "mine.safetensors", tmp_path / "out")
    assert cli.main([*command, "--template", "a photo of a {}.", *words]) == 2
    assert capsys.readouterr().err.startswith(reason)


@pytest.mark.parametrize("answers", [None, "labels", "values", "embedding"])
@pytest.mark.parametrize("command", ["profile", "compare"])
def test_answers_say_what_the_outputs_of_weights_mean(
    command: str, answers: str | None, weights: Path, tmp_path: Path
) -> None:
    words = measuring(command, weights, "mine.safetensors", tmp_path / "out")
    words += [f"--answers={answers}"] if answers else []
    assert cli.main(words) == 0
    about = json.loads((tmp_path / "out" / "run.json").read_text())
    for each in [about] if command == "profile" else [about["first"], about["second"]]:
        assert each["answers"] == (answers or "classes")
        assert each["one_answer"] == (answers is None)


def test_answers_reach_the_models_of_the_menu(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamlit.App.run", lambda *_, **__: None)
    monkeypatch.setattr(sys, "argv", [])
    file = weights / "mine.safetensors"
    words = ["app", f"--checkpoint=test_vit={file}", "--answers=labels"]
    assert cli.main(words) == 0
    assert sys.argv == ["vitviz", *words[1:]]
    found = options.parse(sys.argv[1:])
    assert found.answers == "labels"


@pytest.mark.usefixtures("unserved")
@pytest.mark.parametrize("command", ["app", "app, named", "profile", "compare"])
def test_an_adapter_is_refused_with_its_base(
    command: str, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = measuring(command, weights, "adapter", tmp_path / "out")
    if command.startswith("app"):
        name = "test_vit=" if "named" in command else ""
        words = ["app", f"--checkpoint={name}{weights / 'adapter'}"]
    assert cli.main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(
        "The folder adapter holds an adapter (LORA) of google/vit-base-patch16-224, and not a whole"
    )
    assert not (tmp_path / "out").exists()
