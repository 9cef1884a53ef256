"""Folders as timm's own function saves them: what config.json says is believed, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, assert_same_answer, randomise, timm_module
from safetensors.torch import load_file, save_file
from timm.models import save_for_hf

from vitviz import ModelError, load_model
from vitviz.zoo import files, random_kernel, read_labels

NAME = "test_vit"
LABELS = ["cat", "dog", "fox"]


def module_of(**options: Any) -> Any:
    return timm_module(NAME, num_classes=3, **options)


def saved(module: Any, folder: Path, **config: Any) -> Path:
    """The folder that timm's own function writes."""
    save_for_hf(module, str(folder), model_config=config, safe_serialization=True)
    return folder


@pytest.mark.parametrize(
    "options",
    [
        {},
        dict(img_size=96),
        dict(img_size=(64, 112)),
        dict(img_size=(64, 144)),  # 4 x 9 patches, as many as 6 x 6
        dict(depth=2, embed_dim=48, num_heads=3),
        dict(patch_size=8, img_size=32, global_pool="avg", class_token=False),
    ],
)
def test_a_folder_says_all_that_its_model_is(options: dict[str, Any], tmp_path: Path) -> None:
    module = module_of(**options)
    folder = saved(module, tmp_path / "mine", label_names=LABELS)
    model = load_model(folder)
    assert model.name == "mine"
    assert model.weights.startswith("folder mine, model.safetensors, sha256 ")
    assert "resampled" not in model.weights
    assert "preprocessing" not in model.weights
    assert (model.trained, model.labels) == (True, tuple(LABELS))
    assert len(model.layers) == len(module.blocks)
    assert model.layers[0].query_grid == module.patch_embed.grid_size
    assert model.layers[0].num_heads == module.blocks[0].attn.num_heads
    assert model.preprocess.input_size == module.patch_embed.img_size
    loaded = model.module.state_dict()
    for key, tensor in module.state_dict().items():
        assert torch.equal(loaded[key], tensor), key
    assert_same_answer(model, module)


@pytest.mark.parametrize("form", [str, Path, lambda path: f"{path}/"])
def test_a_folder_is_named_by_its_path(form: Callable[[Path], Any], tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    assert load_model(form(folder)).name == "mine"
    assert load_model("my model", checkpoint=form(folder)).name == "my model"


def test_a_folder_without_a_path_needs_a_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(module_of(), tmp_path / "mine")
    (tmp_path / "vit_tiny_patch16_224").mkdir()
    monkeypatch.chdir(tmp_path)
    assert load_model("mine").trained
    assert load_model("vit_tiny_patch16_224", pretrained=False).weights == "random weights"


def test_its_preprocessing_is_that_of_its_configuration(tmp_path: Path) -> None:
    module = module_of()
    own = dict(mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6), crop_pct=0.8, interpolation="bilinear")
    module.pretrained_cfg = {**module.pretrained_cfg, **own}
    found = load_model(saved(module, tmp_path / "mine")).preprocess
    assert {name: getattr(found, name) for name in own} == own


def test_positions_are_resampled_from_the_folders_own_grid(tmp_path: Path) -> None:
    folder = saved(module_of(img_size=(64, 144)), tmp_path / "mine")
    model = load_model(folder, image_size=(96, 96))
    assert model.weights.endswith(", positions resampled from 4x9 to 6x6")


def test_what_a_configuration_leaves_out_is_said(tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    config["pretrained_cfg"] = {}
    (folder / "config.json").write_text(json.dumps(config))
    model = load_model(folder)
    assert model.weights.endswith(", with the preprocessing of timm's architecture")
    assert model.labels is None


def test_names_of_classes_are_told_in_full_where_they_are_described(tmp_path: Path) -> None:
    described = dict(zip(LABELS, ("a house cat", "a dog", "a red fox"), strict=True))
    folder = saved(module_of(), tmp_path / "mine", label_names=LABELS, label_descriptions=described)
    assert load_model(folder).labels == ("a house cat", "a dog", "a red fox")


def test_numbers_of_classes_are_no_names(tmp_path: Path) -> None:
    """transformers writes them where it knows no names."""
    numbered = [f"LABEL_{number}" for number in range(3)]
    assert load_model(saved(module_of(), tmp_path / "mine", label_names=numbered)).labels is None


def test_random_weights_are_those_of_the_folders_architecture(tmp_path: Path) -> None:
    folder = saved(module_of(depth=2), tmp_path / "mine", label_names=LABELS)
    model = load_model(folder, pretrained=False)
    assert (model.weights, model.labels, len(model.layers)) == ("random weights", None, 2)
    assert model.patch_kernel is not None
    np.testing.assert_array_equal(random_kernel(load_model(folder)), model.patch_kernel)


def test_a_torch_file_is_read_where_there_is_no_safer_one(tmp_path: Path) -> None:
    module = module_of()
    folder = saved(module, tmp_path / "mine")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    assert "model.safetensors" in load_model(folder).weights
    (folder / "model.safetensors").unlink()
    model = load_model(folder)
    assert model.weights.startswith("folder mine, pytorch_model.bin, sha256 ")
    assert_same_answer(model, module)


# --- what is refused ----------------------------------------------------------------------------


def rewritten(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))

    return make


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no configuration": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no weights": (
        lambda f: (f / "model.safetensors").unlink(),
        "neither model.safetensors nor pytorch_model.bin",
    ),
    "no JSON": (lambda f: (f / "config.json").write_text("<html>"), "is not valid JSON"),
    "a list": (lambda f: (f / "config.json").write_text("[1]"), "is not a JSON object"),
    "deep": (lambda f: (f / "config.json").write_text("[" * 100_000), "is not valid JSON"),
    "no architecture": (rewritten(lambda c: c.pop("architecture")), "names no architecture"),
    "another": (rewritten(lambda c: c.update(architecture="vit_no")), "no model named vit_no"),
    "no family": (rewritten(lambda c: c.update(architecture="resnet18")), r"resnet18|not of"),
    "a path": (
        rewritten(lambda c: c.update(model_args={"checkpoint_path": "/etc/passwd"})),
        r"model_args\['checkpoint_path'\]",
    ),
    "an object": (
        rewritten(lambda c: c.update(model_args={"norm_layer": {"a": 1}})),
        r"model_args\['norm_layer'\]",
    ),
    "giant": (
        rewritten(lambda c: c.update(model_args={"depth": 10**9})),
        r"model_args\['depth'\]",
    ),
    "unknown": (rewritten(lambda c: c.update(model_args={"colour": 3})), "timm cannot create"),
    "mean": (
        rewritten(lambda c: c["pretrained_cfg"].update(mean=[1, "a", 2])),
        "The preprocessing in the config.json of mine is invalid",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_folder_that_cannot_be_read_is_refused_in_a_sentence(what: str, tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    break_it, said = WRONG[what]
    break_it(folder)
    with pytest.raises(ModelError, match=said) as caught:
        load_model(folder)
    assert_clear_error(caught.value)
    assert str(tmp_path) not in str(caught.value)


# --- names of classes ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "cat\ndog\nfox\n",
        "cat\ndog\nfox",
        '["cat", "dog", "fox"]',
        '{"1": "dog", "0": "cat", "2": "fox"}',
        "\ufeffcat\r\ndog\r\nfox\r\n",
        '"cat"\n"dog"\n"fox"\n',
        "class\ncat\ndog\nfox\n",
        '"x"\n"cat"\n"dog"\n"fox"\n',
        '"","x"\n"1","cat"\n"2","dog"\n"3","fox"\n',
        ",name\n0,cat\n1,dog\n2,fox\n",
        "id;name\r\n2;fox\r\n0;cat\r\n1;dog\r\n",
        "cat\t0\nfox\t2\ndog\t1\n",
    ],
)
def test_names_come_from_a_file_where_the_weights_have_none(text: str, tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    file = tmp_path / "names.txt"
    file.write_text(text)
    model = load_model(folder, labels=file)
    assert model.labels == tuple(LABELS)
    assert model.weights.endswith(", class names from names.txt")


def test_names_may_be_given_and_those_of_the_folder_come_first(tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    file = tmp_path / "names.txt"
    file.write_text("cat\ndog\nfox")
    assert load_model(folder, labels=LABELS).labels == tuple(LABELS)
    assert load_model(folder, pretrained=False, labels=file).labels is None
    own = load_model(saved(module_of(), tmp_path / "own", label_names=["a", "b", "c"]), labels=file)
    assert own.labels == ("a", "b", "c")
    checkpoint = load_model(NAME, checkpoint=folder / "model.safetensors", labels=file)
    assert checkpoint.labels == tuple(LABELS)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("cat\ndog", "each of 3 outputs, got 2"),
        (
            '{"a": "cat"}',
            "names.txt: The labels are {'a': 'cat'}. A dictionary of labels needs a name",
        ),
        ("[1, 2", "does not name classes"),
        (None, "There is no file of class names names.txt"),
    ],
)
def test_names_that_do_not_fit_are_refused(text: str | None, said: str, tmp_path: Path) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    if text is not None:
        (tmp_path / "names.txt").write_text(text)
    with pytest.raises(ModelError, match=said):
        load_model(folder, labels=tmp_path / "names.txt")


def test_a_comma_is_part_of_a_name(tmp_path: Path) -> None:
    for text in ("tench, Tinca\nfox, red\n\n", '"tench, Tinca"\n"fox, red"\n'):
        (tmp_path / "names.txt").write_text(text)
        assert read_labels(tmp_path / "names.txt") == ("tench, Tinca", "fox, red")


@pytest.mark.parametrize(
    ("pooling", "has_own_norm", "built"),
    [("avg", False, "token"), ("max", True, "avg"), ("avg", True, None), ("token", False, None)],
)
def test_another_pooling_than_the_configurations_is_refused(
    tmp_path: Path, pooling: str, has_own_norm: bool, built: str | None
) -> None:
    """Older versions of timm save no model_args, with which the pooling would be built."""
    options: Any = dict(global_pool=pooling) if has_own_norm else {}
    module = module_of(**options)
    module.reset_classifier(3, pooling)
    randomise(module)
    saved(module, tmp_path)
    config = json.loads((tmp_path / "config.json").read_bytes())
    assert config.pop("model_args")["global_pool"] == config["global_pool"] == pooling
    (tmp_path / "config.json").write_text(json.dumps(config))
    if built is None:
        assert_same_answer(load_model(tmp_path), module)
        return
    with pytest.raises(ModelError, match=f"pooling {pooling}, and would be built with {built}"):
        load_model(tmp_path)


def test_the_crop_of_an_architecture_belongs_to_its_own_size(tmp_path: Path) -> None:
    """Weights of another size keep it only where their own configuration says so."""
    options: Any = dict(img_size=64, patch_size=16, num_classes=3)
    module = timm_module("vit_tiny_patch16_224", **options)
    torch.save(module.state_dict(), tmp_path / "tuned.pth")
    tuned = load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "tuned.pth")
    assert (tuned.preprocess.input_size, tuned.preprocess.crop_pct) == ((64, 64), 1.0)
    assert "without the crop of the architecture" in tuned.weights
    same = load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "tuned.pth", image_size=64)
    assert (same.preprocess, same.weights) == (tuned.preprocess, tuned.weights)
    asked = load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "tuned.pth", image_size=96)
    assert asked.preprocess.crop_pct == 0.9  # of the size that it is asked for nothing is known
    folder = tmp_path / "folder"
    folder.mkdir()
    save_file(module.state_dict(), folder / "model.safetensors")
    for said, expected in (({}, 1.0), ({"crop_pct": 0.9}, 0.9)):
        settings = dict(input_size=[3, 64, 64], mean=[0.5] * 3, std=[0.5] * 3, **said)
        config = dict(
            architecture="vit_tiny_patch16_224",
            num_classes=3,
            model_args=options,
            pretrained_cfg=settings,
        )
        (folder / "config.json").write_text(json.dumps(config))
        assert load_model(str(folder)).preprocess.crop_pct == expected


def test_a_config_over_the_limit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(module_of(), tmp_path / "mine")
    size = (folder / "config.json").stat().st_size
    monkeypatch.setattr(files, "_MAX_TEXT_BYTES", size)
    load_model(str(folder))
    monkeypatch.setattr(files, "_MAX_TEXT_BYTES", size - 1)
    with pytest.raises(ModelError, match=f"has {size:,} bytes; at most {size - 1:,} are read"):
        load_model(str(folder))
