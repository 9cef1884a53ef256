"""What the operator says: local files in the menu, a list of allowed models, and mistakes."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from examples import assert_one_sentence, timm_module
from safetensors.torch import save_file

from pages.driver import assert_works, opened, provenance
from vitviz import cli
from vitviz.app import models
from vitviz.options import OptionError, parse


@pytest.fixture(autouse=True)
def _read_anew() -> Iterator[None]:
    models.options.clear()
    yield
    models.options.clear()


def say(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", *words])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "mine.safetensors"
    save_file(timm_module("vit_tiny_patch16_224", num_classes=3).state_dict(), path)
    return path


def test_a_local_file_is_in_the_menu_and_is_shown(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, "--checkpoint", f"vit_tiny_patch16_224={weights}")
    name = "vit_tiny_patch16_224 · mine.safetensors"
    at = opened(model=name)
    assert_works(at)
    assert name in at.selectbox(key="model").options
    assert provenance(at).startswith("vit_tiny_patch16_224 (ViT, ")
    assert "local file mine.safetensors, sha256 " in provenance(at)
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    assert "random weights" in provenance(at)


def test_a_file_that_does_not_fit_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    say(monkeypatch, f"--checkpoint=vit_tiny_patch16_224={tmp_path / 'bad.pth'}")
    at = opened(model="vit_tiny_patch16_224 · bad.pth")
    (error,) = at.error
    assert "bad.pth holds no weights that can be read safely" in error.value
    assert str(tmp_path) not in error.value
    assert provenance(at).startswith("vitviz_tiny_cifar10")


def test_only_the_allowed_models_are_offered(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(
        monkeypatch,
        "--models=vitviz_tiny_cifar100,no_such_model",
        f"--checkpoint=vit_tiny_patch16_224={weights}",
    )
    at = opened(model="deit_tiny_patch16_224")
    offered = at.selectbox(key="model").options
    assert offered == ["vitviz_tiny_cifar100", "vit_tiny_patch16_224 · mine.safetensors"]
    assert provenance(at).startswith("vitviz_tiny_cifar100")


def test_a_mistake_on_the_command_line_is_told_on_the_page(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    say(monkeypatch, "--checkpiont", "x")
    at = opened()
    (error,) = at.error
    assert "cannot be read" in error.value
    assert not at.exception


@pytest.mark.parametrize(
    "words", [["--checkpoint", "name"], ["--checkpoint", "=file"], ["--checkpoint", "name="], ["x"]]
)
def test_what_cannot_be_read_is_refused_in_a_sentence(words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(words)
    assert_one_sentence(caught.value)


def test_several_files_are_told_apart_by_their_names() -> None:
    found = parse(["--checkpoint", "a=/x/one.pth", "--checkpoint", "a=two.pth"]).checkpoints
    assert found["a · one.pth"] == ("a", Path("/x/one.pth"))
    assert found["a · two.pth"] == ("a", Path.cwd() / "two.pth")


def test_the_command_passes_the_options_on(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[list[str]] = []

    def call(command: list[str]) -> int:
        called.append(command)
        return 0

    monkeypatch.setattr("subprocess.call", call)
    assert cli.main(["app", "--checkpoint", "a=b.pth", "--models", "a,c"]) == 0
    (command,) = called
    said = command[command.index("--") + 1 :]
    assert said == ["--checkpoint=a=b.pth", "--models=a,c"]
    assert parse(said).models == ("a", "c")
