"""Names of the hub and folders in the menu: where the operator allows them, and nowhere else."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import timm
from examples import assert_clear_error, randomise
from hub_server import HubServer
from timm.models import save_for_hf

from pages.driver import (
    SHIPPED,
    address,
    assert_works,
    complaints,
    listen,
    opened,
    provenance,
    settled,
    stack,
    told,
    typed,
)
from vitviz.app.options import OptionError, check, parse

NAME = "hf-hub:somebody/my_vit"


pytestmark = pytest.mark.usefixtures("read_anew")


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    return lambda *words: monkeypatch.setattr(sys, "argv", ["app.py", *words])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small model in the format of timm, with names of its classes."""
    module = timm.create_model("test_vit", num_classes=3, depth=2).eval()
    randomise(module)
    config: Any = {"label_names": ["cat", "dog", "fox"]}
    save_for_hf(module, str(tmp_path / "mine"), model_config=config, safe_serialization=True)
    return tmp_path / "mine"


@pytest.fixture
def repo(server: HubServer, folder: Path) -> HubServer:
    for path in folder.iterdir():
        server.files[f"somebody/my_vit/{path.name}"] = path.read_bytes()
    return server


def test_a_name_of_the_hub_can_be_typed(repo: HubServer, say: Callable[..., None]) -> None:
    say("--hub")
    at = opened("attention")
    assert "hf-hub:owner/name" in at.selectbox(key="model").help
    settled(typed(at, "model", NAME))
    assert_works(at)
    assert provenance(at).startswith(f"{NAME} (ViT, ")
    assert "model.safetensors, sha256 " in provenance(at)
    assert address(at)["model"] == NAME
    assert NAME in at.selectbox(key="model").options
    at.selectbox(key="model").set_value("vitviz_tiny_cifar10").run()
    at.selectbox(key="model").set_value(NAME).run()  # which stays in the menu
    assert provenance(at).startswith(NAME)
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    assert "random weights" in provenance(at)
    for page in ("filters", "classify"):
        assert_works(opened(page, model=NAME))


def test_a_link_to_a_name_of_the_hub_is_followed(repo: HubServer, say: Callable[..., None]) -> None:
    say("--hub")
    at = settled(opened("attention", model=NAME))
    assert_works(at)
    assert provenance(at).startswith(NAME)


@pytest.mark.parametrize("how", ["not said", "on the LAN"])
def test_no_name_of_the_hub_is_taken_where_that_is_not_allowed(
    how: str, repo: HubServer, say: Callable[..., None]
) -> None:
    say(*([] if how == "not said" else ["--hub"]))
    if how == "on the LAN":
        listen("0.0.0.0")
    at = opened("attention", model=NAME)
    assert_works(at)
    (message,) = told(at)
    assert message.startswith(f"{NAME} is a name of the hub, and this server takes none")
    assert provenance(at).startswith(SHIPPED)
    assert not repo.asked


def test_what_is_no_name_gets_a_sentence_and_the_model_stays(
    repo: HubServer, say: Callable[..., None]
) -> None:
    say("--hub")
    at = opened("attention", model="vitviz_tiny_cifar100")
    messages: set[str] = set()
    for text in ("vit_base", "hf-hub:../../etc", "/etc/passwd", "https://a.b/c"):
        typed(at, "model", text)
        assert_works(at)
        (message,) = told(at)
        messages.add(message)
        assert "neither in the menu nor a name of the hub" in message
        assert_clear_error(message.replace("?", "-"))
        assert provenance(at).startswith("vitviz_tiny_cifar100")
        assert not repo.asked
    assert len(messages) == 4


def test_a_repository_that_cannot_be_had_leaves_the_model_on_screen(
    repo: HubServer, say: Callable[..., None]
) -> None:
    say("--hub")
    at = opened("attention")
    settled(typed(at, "model", "hf-hub:nobody/nothing"))
    (error,) = complaints(at)
    assert error.startswith("config.json of hf-hub:nobody/nothing could not be downloaded")
    assert error.endswith(f" {SHIPPED} is shown.")
    assert provenance(at).startswith(SHIPPED)


# --- folders, and names of classes --------------------------------------------------------------


def test_a_folder_is_in_the_menu_and_is_shown(folder: Path, say: Callable[..., None]) -> None:
    say(f"--checkpoint={folder}", f"--checkpoint=my model={folder}")
    for title, name in (("mine", "mine"), ("my model · mine", "my model")):
        at = opened("attention", model=title)
        assert_works(at)
        assert provenance(at).startswith(f"{name} (ViT, ")
        assert "folder mine, model.safetensors, sha256 " in provenance(at)
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    assert_works(opened("filters", model=title))
    at = opened("attention", model=title, size="64x112")
    assert "positions resampled from 10x10 to 4x7, input 64 × 112 px" in provenance(at)


def test_random_weights_of_folders_of_one_name_are_told_apart(
    folder: Path, tmp_path: Path, say: Callable[..., None]
) -> None:
    other = tmp_path / "theirs" / "mine"
    module = timm.create_model("test_vit", depth=3)
    save_for_hf(module, str(other), model_config={"model_args": {"depth": 3}})
    say(f"--checkpoint={folder}", f"--checkpoint={other}")
    names = (f"{folder.parent.name}/mine", 2), ("theirs/mine", 3)
    for title, depth in names:
        at = opened("attention", model=title, weights="random")
        assert_works(at)
        assert len(stack(at)["peaks"]) == depth * 2 * 101, title  # heads, queries


def test_options_name_folders_and_files_that_are_there(folder: Path, tmp_path: Path) -> None:
    (one,) = parse(["--checkpoint", f"{folder}@64x96"]).checkpoints.values()
    assert (one.name, one.path, one.image_size) == ("mine", folder, (64, 96))
    check(parse(["--checkpoint", str(folder)]), [])
    (tmp_path / "empty").mkdir()
    for words in (
        ["--checkpoint", str(tmp_path / "empty")],
        ["--checkpoint", f"a={tmp_path / 'nothing'}"],
        ["--labels", str(tmp_path / "nothing.txt")],
    ):
        with pytest.raises(OptionError) as caught:
            check(parse(words), [])
        assert_clear_error(caught.value)
