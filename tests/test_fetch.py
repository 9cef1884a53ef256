"""Trained weights of timm: from the cache, from a server of the tests, or refused with advice."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from examples import assert_clear_error, timm_module
from hub_server import COMMIT, HubServer, contents
from safetensors.torch import save

from vitviz import ModelError, cli, load_model, zoo
from vitviz.common.hub import Weights

NAME = "test_vit"
REPO = "timm/test_vit.r160_in1k"


@pytest.fixture(autouse=True)
def state(server: HubServer) -> dict[str, torch.Tensor]:
    """The weights of timm's smallest ViT, which the server has."""
    module = timm_module(NAME)
    server.files[f"{REPO}/model.safetensors"] = save(module.state_dict())
    found: dict[str, torch.Tensor] = module.state_dict()
    return found


def test_a_model_is_downloaded_once_and_then_loaded_from_disk(
    server: HubServer, state: dict[str, torch.Tensor]
) -> None:
    assert not zoo.on_disk(NAME)
    model = load_model(NAME)
    assert model.trained
    assert model.weights == f"trained weights of timm, r160_in1k, revision {COMMIT[:7]}"
    for key, tensor in model.module.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    assert zoo.on_disk(NAME)
    server.close()
    asked = len(server.asked)
    again = load_model(NAME, image_size=96)
    assert again.layers[0].query_grid == (6, 6)
    assert torch.equal(again.module.state_dict()["head.weight"], state["head.weight"])
    assert len(server.asked) == asked


def test_weights_that_cannot_be_had_are_one_sentence_of_advice(server: HubServer) -> None:
    server.mode = "503"
    with pytest.raises(ModelError) as caught:
        load_model(NAME)
    assert str(caught.value) == (
        "The trained weights of test_vit could not be downloaded, because the hub answers with "
        "error 503. Choose the shipped model or random weights, or run `vitviz fetch test_vit` "
        "where there is internet."
    )
    assert_clear_error(caught.value)


def test_a_full_disk_is_told_to_be_emptied(server: HubServer) -> None:
    server.claimed = 10**18
    with pytest.raises(ModelError, match="make room, or name another folder in HF_HUB_CACHE"):
        load_model(NAME)


@pytest.mark.parametrize("image_size", [None, 64])
def test_what_cannot_be_shown_is_not_downloaded(image_size: int | None, server: HubServer) -> None:
    with pytest.raises(ModelError, match="ResNet has no attention") as caught:
        load_model("resnet18", image_size=image_size)
    assert "download" not in str(caught.value)
    assert server.asked == []


def test_a_cached_file_that_cannot_be_read_is_fetched_anew_on_the_command_line() -> None:
    zoo.fetch_weights(NAME).resolve().write_bytes(b"no weights")
    with pytest.raises(ModelError, match="Run `vitviz fetch test_vit`") as caught:
        load_model(NAME)
    assert_clear_error(caught.value)
    assert cli.main(["fetch", NAME]) == 0
    assert load_model(NAME).trained


@pytest.mark.parametrize(
    ("place", "file", "expected"),
    [
        ("a/b@c0ffee", None, Weights("a/b", "model.safetensors", "c0ffee")),
        ("a/b", "open_clip_pytorch_model.bin", Weights("a/b", "open_clip_model.safetensors")),
        ("a/b", "weights.bin", Weights("a/b", "weights.safetensors")),
    ],
)
def test_a_revision_of_timm_is_kept_and_pickles_are_passed_by(
    place: str, file: str | None, expected: Weights, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = type("Found", (), {"hf_hub_id": place, "hf_hub_filename": file})
    monkeypatch.setattr("timm.models.get_pretrained_cfg", lambda name: found)
    assert zoo.weights_of(NAME) == expected


def test_the_weights_of_timm_are_named_as_their_tag_is() -> None:
    name = "vit_tiny_patch16_224.augreg_in21k"
    assert zoo.weights_of(name) == Weights(f"timm/{name}", "model.safetensors", "main")


def test_an_architecture_without_weights_on_the_hub_is_refused() -> None:
    with pytest.raises(ModelError, match="timm has no trained weights of") as caught:
        zoo.weights_of("vit_base_patch16_xp_224")
    assert_clear_error(caught.value)


# --- the command --------------------------------------------------------------------------------


def test_fetch_fills_the_cache_and_says_so(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fetch", "vitviz_tiny_cifar10", NAME]) == 0
    size = len(server.files[f"{REPO}/model.safetensors"]) / 1e6
    assert capsys.readouterr().out.splitlines() == [
        "vitviz_tiny_cifar10: comes with vitviz.",
        f"test_vit: {size:.1f} MB, on disk.",
    ]
    assert zoo.on_disk(NAME)


def test_fetch_goes_on_after_a_failure_and_its_code_tells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["fetch", "no_such_model", "test_vit2", NAME]) == 1
    out, err = capsys.readouterr()
    first, second = err.splitlines()
    assert "There is no model named no_such_model" in first
    assert "test_vit2 could not be downloaded, because the hub does not have them" in second
    assert out.endswith("on disk.\n")
    assert out.count("\n") == 1


def test_fetch_draws_its_progress_on_a_terminal(
    server: HubServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert cli.main(["fetch", NAME]) == 0
    lines = capsys.readouterr().out.split("\r\x1b[K")
    size = f"{len(server.files[f'{REPO}/model.safetensors']) / 1e6:.1f} MB"
    assert f"test_vit: {size.replace(' MB', '')} of {size}" in lines
    assert lines[-1] == f"test_vit: {size}, on disk.\n"


def test_fetch_that_is_stopped_leaves_nothing(
    server: HubServer, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real: Callable[..., Path] = zoo.fetch_weights
    server.mode = "silent"

    def stopped(name: str, *, progress: Any, **options: Any) -> Path:
        def stop(done: int, total: int | None) -> None:
            progress(done, total)
            if server.asked:
                raise KeyboardInterrupt

        return real(name, progress=stop, **options)

    monkeypatch.setattr(zoo, "fetch_weights", stopped)
    assert cli.main(["fetch", NAME]) == 130
    assert not contents(cache)
