"""Repositories of the hub by their name, against a server of the tests."""

from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from examples import assert_clear_error, assert_same_answer, randomise, vit_of_transformers
from hub_server import COMMIT, HubServer, contents, put_in_cache
from test_checkpoints_wrapped import sharded
from timm.models import save_for_hf

from vitviz import ModelError, cli, load_model, zoo
from vitviz.common.hub import Weights

NAME = "hf-hub:somebody/my_vit"
CONFIGURATIONS = {"config.json", "open_clip_config.json"}


@pytest.fixture
def module() -> Any:
    module = timm.create_model("test_vit", num_classes=3, depth=2).eval()
    randomise(module)
    return module


@pytest.fixture
def repo(server: HubServer, module: Any, tmp_path: Path) -> HubServer:
    config: dict[str, Any] = {"label_names": ["cat", "dog", "fox"]}
    save_for_hf(module, str(tmp_path / "saved"), model_config=config, safe_serialization="both")
    server.serve(tmp_path / "saved", "somebody/my_vit")
    server.files["somebody/my_vit/modeling.py"] = b"raise SystemExit"
    return server


def asked(server: HubServer) -> set[str]:
    return {path.rpartition("/")[2] for _, path, _ in server.asked}


def test_a_repository_of_timm_is_downloaded_once(repo: HubServer, cache: Path, module: Any) -> None:
    assert load_model(NAME, pretrained=False).weights == "random weights"
    assert asked(repo) == CONFIGURATIONS
    assert not zoo.on_disk(NAME)
    model = load_model(NAME)
    assert model.name == NAME
    assert model.weights.startswith(f"{NAME}, revision {COMMIT[:7]}, model.safetensors, sha256 ")
    assert model.labels == ("cat", "dog", "fox")
    assert len(model.layers) == 2
    assert_same_answer(model, module)
    assert asked(repo) == CONFIGURATIONS | {"model.safetensors"}  # no code, and no pickle
    assert zoo.on_disk(NAME)
    repo.close()
    before = len(repo.asked)
    assert load_model(NAME, image_size=96).layers[0].query_grid == (6, 6)
    assert load_model(NAME, pretrained=False).weights == "random weights"
    assert len(repo.asked) == before


def test_a_repository_with_a_torch_file_alone_is_read(repo: HubServer, cache: Path) -> None:
    del repo.files["somebody/my_vit/model.safetensors"]
    assert "pytorch_model.bin, sha256" in load_model(NAME).weights


def test_a_repository_of_transformers_is_read(
    server: HubServer, cache: Path, tmp_path: Path
) -> None:
    module = vit_of_transformers(image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"})
    module.save_pretrained(tmp_path / "saved")
    (tmp_path / "saved" / "preprocessor_config.json").write_text(
        '{"size": {"height": 32, "width": 32}, "resample": 3, '
        '"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    server.serve(tmp_path / "saved", "somebody/my_vit")
    model = load_model(NAME)
    assert model.labels == ("cat", "dog")
    assert "preprocessing" not in model.weights
    assert asked(server) == {
        *("config.json", "preprocessor_config.json", "processor_config.json"),
        "model.safetensors",
    }


@pytest.fixture
def weights_alone(server: HubServer, cache: Path, tmp_path: Path) -> HubServer:
    """A repository of transformers, of which another program has downloaded the model alone."""
    module = vit_of_transformers(image_size=32, patch_size=8, id2label={0: "cat", 1: "dog"})
    module.save_pretrained(tmp_path / "saved")
    server.serve(tmp_path / "saved", "somebody/my_vit")
    for file in ("config.json", "model.safetensors"):
        data = (tmp_path / "saved" / file).read_bytes()
        put_in_cache(cache, Weights("somebody/my_vit", file), data)
    return server


def test_an_image_processor_that_another_program_did_not_download_is_downloaded(
    weights_alone: HubServer,
) -> None:
    server = weights_alone
    server.files["somebody/my_vit/preprocessor_config.json"] = (
        b'{"size": {"height": 32, "width": 32}, "resample": 3, '
        b'"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}'
    )
    assert not zoo.on_disk(NAME)
    model = load_model(NAME)
    assert model.preprocess.mean == (0.5, 0.5, 0.5)  # timm's default is another
    assert "preprocessing" not in model.weights
    # Of the commit whose weights are on disk: the branch may have moved since.
    assert {path.split("/")[3] for _, path, _ in server.asked} == {COMMIT}
    assert asked(server) == {"preprocessor_config.json", "processor_config.json"}
    server.close()
    assert zoo.on_disk(NAME)
    assert load_model(NAME).preprocess == model.preprocess


def test_fetch_checks_weights_whose_image_processor_it_downloads(
    weights_alone: HubServer, cache: Path
) -> None:
    data = weights_alone.files["somebody/my_vit/model.safetensors"]
    blob = cache / "blobs" / sha256(data).hexdigest()
    file = next(cache.rglob("model.safetensors"))
    blob.parent.mkdir()
    blob.write_bytes(bytes(file.stat().st_size))
    file.unlink()
    file.symlink_to(blob)
    assert cli.main(["fetch", NAME]) == 0
    assert file.read_bytes() == data


def test_a_repository_without_an_image_processor_is_asked_once(weights_alone: HubServer) -> None:
    model = load_model(NAME)
    assert model.weights.endswith("timm's default preprocessing, as the folder has none")
    weights_alone.close()
    assert zoo.on_disk(NAME)
    assert load_model(NAME).weights == model.weights


def test_without_the_network_no_image_processor_is_made_up(weights_alone: HubServer) -> None:
    weights_alone.close()
    with pytest.raises(ModelError, match=r"^preprocessor_config\.json of .* could not") as caught:
        load_model(NAME)
    assert_clear_error(caught.value)


def test_a_repository_may_be_sharded(
    server: HubServer,
    cache: Path,
    module: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    save_for_hf(module, str(tmp_path), model_config={}, safe_serialization=True)
    (tmp_path / "model.safetensors").unlink()
    sharded(module.state_dict(), tmp_path, ".safetensors")
    server.serve(tmp_path, "somebody/my_vit")
    shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    lost = server.files.pop(f"somebody/my_vit/{shards[1]}")
    with pytest.raises(ModelError, match=f"{shards[1]} of {NAME} could not be downloaded"):
        load_model(NAME)
    assert not zoo.on_disk(NAME)
    server.files[f"somebody/my_vit/{shards[1]}"] = lost
    model = load_model(NAME)
    for key, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key
    assert asked(server) >= {"model.safetensors.index.json", *shards}
    server.close()
    assert zoo.on_disk(NAME)
    assert load_model(NAME).weights == model.weights
    size = sum((tmp_path / shard).stat().st_size for shard in shards)
    assert cli.main(["fetch", NAME]) == 0
    assert capsys.readouterr().out == f"{NAME}: {size / 1e6:.1f} MB, on disk.\n"


def test_an_index_of_a_repository_names_no_file_outside_it(
    server: HubServer, cache: Path, module: Any, tmp_path: Path
) -> None:
    save_for_hf(module, str(tmp_path), model_config={}, safe_serialization=True)
    (tmp_path / "model.safetensors").unlink()
    evil = '{"weight_map": {"a": "../../secret.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(evil)
    server.serve(tmp_path, "somebody/my_vit")
    with pytest.raises(ModelError, match="does not list the shards of a model"):
        load_model(NAME)
    assert not any("secret" in path for _, path, _ in server.asked)


def test_an_adapters_repository_is_refused_with_its_base(server: HubServer, cache: Path) -> None:
    config = b'{"peft_type": "LORA", "base_model_name_or_path": "google/vit"}'
    server.files["somebody/my_vit/adapter_config.json"] = config
    with pytest.raises(ModelError, match=r"holds an adapter \(LORA\) of google/vit"):
        load_model(NAME)


def test_a_download_that_fails_is_one_sentence_and_leaves_no_weights(
    repo: HubServer, cache: Path
) -> None:
    repo.mode = "corrupt"
    with pytest.raises(ModelError, match=r"could not be downloaded, because .*\. Choose") as caught:
        load_model(NAME)
    assert_clear_error(caught.value)
    assert "http" not in str(caught.value)
    assert not {name for name in contents(cache) if "safetensors" in name}


def test_a_repository_that_is_not_there_is_one_sentence(repo: HubServer, cache: Path) -> None:
    name = "hf-hub:nobody/nothing@v2"
    with pytest.raises(ModelError, match="the hub does not have them, or not for ev") as caught:
        load_model(name)
    assert str(caught.value).startswith(f"config.json of {name} could not be downloaded")
    assert_clear_error(caught.value)
    assert repo.asked[0][1] == "nobody/nothing/resolve/v2/config.json"


def test_what_cannot_be_shown_is_not_downloaded(repo: HubServer, cache: Path) -> None:
    repo.files["somebody/my_vit/config.json"] = b'{"architecture": "resnet18", "num_classes": 3}'
    with pytest.raises(ModelError, match="ResNet has no attention") as caught:
        load_model(NAME)
    assert_clear_error(caught.value)
    assert asked(repo) == CONFIGURATIONS


@pytest.mark.parametrize(
    "name",
    [
        "hf-hub:",
        "hf-hub:a",
        "hf-hub:a/b/c",
        "hf-hub:../b",
        "hf-hub:a/..",
        "hf-hub:a/b@",
        "hf-hub:a/b c",
    ],
)
def test_no_other_name_is_a_repositorys(name: str, server: HubServer, cache: Path) -> None:
    assert zoo.repository(name) is None
    with pytest.raises(ModelError, match="There is no model named") as caught:
        load_model(name)
    assert_clear_error(caught.value)
    assert not server.asked


def test_fetch_and_prepare_take_repositories(
    repo: HubServer, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["fetch", NAME]) == 0
    assert capsys.readouterr().out.endswith("on disk.\n")
    damaged = zoo.fetch_weights(NAME).resolve()
    damaged.write_bytes(damaged.read_bytes()[:-4] + b"evil")
    assert cli.main(["prepare", NAME]) == 0
    assert "2 of 2 layers proved" in capsys.readouterr().out
    assert cli.main(["fetch", "hf-hub:nobody/nothing"]) == 1
    assert_clear_error(capsys.readouterr().err.strip())
