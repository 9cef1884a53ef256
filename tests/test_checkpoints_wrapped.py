"""What trainers put around a state dict is taken off and told; a model saved as a whole is not."""

import argparse
import json
import re
import warnings
from collections import defaultdict
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
import torch
from examples import Net, assert_clear_error, assert_same_answer, timm_module
from safetensors.torch import save_file
from test_checkpoints import Runs
from torch import nn

from vitviz import ModelError, load_model
from vitviz.zoo.checkpoints import reading

NAME = "test_vit"
State = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def module() -> Any:
    return timm_module(NAME, num_classes=3)


def changed(state: State) -> State:
    return {key: tensor + 1 for key, tensor in state.items()}


def prefixed(state: State, prefix: str) -> State:
    return {f"{prefix}{key}": tensor for key, tensor in state.items()}


def lightning(state: State) -> dict[str, Any]:
    """As Lightning's ModelCheckpoint writes it, with the state of its parts."""
    return {
        "epoch": 3,
        "global_step": 120,
        "pytorch-lightning_version": "2.4.0",
        "state_dict": prefixed(state, "model."),
        "loops": {"fit_loop": {"state_dict": {}}},
        "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_path": "a.ckpt"}},
        "optimizer_states": [{"state": {0: {"step": torch.tensor(3.0)}}, "param_groups": []}],
        "lr_schedulers": [],
        "hparams_name": "kwargs",
        "hyper_parameters": {"lr": 1e-3},
    }


def in_block(state: State, wrapper: str) -> State:
    """As torch wraps one block alone."""
    return {name.replace("blocks.0.", f"blocks.0.{wrapper}"): t for name, t in state.items()}


#: By name: what is saved of a model and of another one, and what its provenance says.
FILES: dict[str, tuple[Any, str]] = {
    "lightning.ckpt": (lambda state, other: lightning(state), ", its names without model."),
    "compiled.ckpt": (
        lambda state, other: {"state_dict": prefixed(state, "net._orig_mod.")},
        ", its names without net._orig_mod.",
    ),
    "average_of_torch.pth": (  # with a count
        lambda state, other: {**prefixed(state, "module."), "n_averaged": torch.tensor(3)},
        ", its names without module.",
    ),
    "attribute.pth": (
        lambda state, other: prefixed(state, "backbone."),
        ", its names without backbone.",
    ),
    "compiled_block.pth": (lambda state, other: {"model": in_block(state, "_orig_mod.")}, ""),
    "checkpointed_block.pth": (
        lambda state, other: {"model": in_block(state, "_checkpoint_wrapped_module.")},
        "",
    ),
    "net.pth": (lambda state, other: {"net": state, "acc": 0.9, "epoch": 3}, ", its net"),
    "both.pth": (
        lambda state, other: {"net": prefixed(state, "module."), "epoch": 3},
        ", its net, its names without module.",
    ),
    "no_dictionaries.pth": (
        lambda state, other: {"model": NAME, "net": None, "state_dict": state},
        "",
    ),
    "settings_between.pth": (
        lambda state, other: {**state, "epoch": 3, "best": np.float64(0.5), "arch": NAME},
        "",
    ),
    "timm.pth.tar": (
        lambda state, other: {"arch": NAME, "state_dict": other, "state_dict_ema": state},
        ", its state_dict_ema",
    ),
    "deit.pth": (
        lambda state, other: {"model": other, "model_ema": state, "epoch": 3},
        ", its model_ema",
    ),
    "decay_and_module.pth": (
        lambda state, other: {"model": other, "ema": {"decay": 0.99, "module": state}},
        ", its ema.module",
    ),
    "twice.pth": (lambda state, other: {"model": {"model": state}}, ", its model.model"),
    "state_dict_of_an_average.pth": (
        lambda state, other: {
            "net": other,
            "model_ema": {"state_dict": prefixed(state, "module.")},
        },
        ", its model_ema.state_dict, its names without module.",
    ),
    "average_beside_its_model.pth": (
        lambda state, other: {
            "state_dict": {**prefixed(other, "model."), **prefixed(state, "ema_model.module.")}
        },
        ", its names without ema_model.module., without model.cls_token and 79 more",
    ),
    "optimizer.pth": (
        lambda state, other: {
            "model": state,
            "optimizer": {"state": {0: other}, "ema": other},
            "optim_state": {"model": other},
        },
        "",
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_what_trainers_put_around_the_weights_is_taken_off_and_told(
    file: str, module: Any, tmp_path: Path
) -> None:
    make, words = FILES[file]
    state = module.state_dict()
    torch.save(make(state, changed(state)), tmp_path / file)
    model = load_model(NAME, checkpoint=tmp_path / file)
    assert re.sub(r"^local file \S+, sha256 \w{12}", "", model.weights) == words
    for key, tensor in state.items():
        assert torch.equal(model.module.state_dict()[key], tensor), key


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_was_saved_as_a_whole_is_refused_with_advice(
    whole: bool, module: Any, tmp_path: Path
) -> None:
    torch.save(module if whole else {"model": module, "epoch": 3}, tmp_path / "whole.pth")
    with pytest.raises(ModelError) as caught:
        load_model(NAME, checkpoint=tmp_path / "whole.pth")
    assert "Save the state_dict() instead of the whole model." in str(caught.value)
    assert_clear_error(caught.value)


SETTINGS: dict[str, Any] = {
    "namespace": argparse.Namespace(lr=0.1, out=Path("/x"), inner=argparse.Namespace(a=1)),
    "path": {"root": Path("/x"), "pure": PurePosixPath("y")},
    "numpy scalar": np.float64(0.9),
    "numpy scalars": [np.float32(0.5), np.int64(3), np.bool_(True)],
    "numpy array": np.arange(4.0),
    "defaultdict": defaultdict(list, a=[1.0]),
    "date": datetime(2026, 1, 1),
    "kinds": (list, frozenset((1, 2)), slice(1, 2)),
}


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("what", SETTINGS)
def test_settings_beside_the_weights_are_passed_over(
    what: str, zipped: bool, module: Any, tmp_path: Path
) -> None:
    content = {"args": SETTINGS[what], "model": module.state_dict(), "best": SETTINGS[what]}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    before = {*torch.serialization.get_safe_globals()}
    model = load_model(NAME, checkpoint=tmp_path / "a.pth")
    assert {*torch.serialization.get_safe_globals()} == before  # of all other programs
    for key, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("inside", [False, True])
def test_code_among_harmless_settings_is_not_run(
    inside: bool, zipped: bool, module: Any, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    settings = argparse.Namespace(evil=Runs(trace)) if inside else argparse.Namespace(a=1)
    content = {"model": module.state_dict(), "args": settings, "extra": Runs(trace)}
    torch.save(content, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"it also holds objects of posix\.mkdir") as caught:
        load_model(NAME, checkpoint=tmp_path / "a.pth")
    assert_clear_error(caught.value)
    assert not trace.exists()


class Disguised:
    """Calls what a class of settings is called, with the arguments of a command."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return argparse.Namespace, ("touch trace",)


def test_a_class_of_settings_is_not_called(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.save({"model": module.state_dict(), "args": Disguised()}, tmp_path / "a.pth")
    called: list[Any] = []
    monkeypatch.setattr(argparse.Namespace, "__init__", lambda *given, **_: called.append(given))
    assert load_model(NAME, checkpoint=tmp_path / "a.pth").trained
    assert not called


def test_a_program_of_torchscript_is_refused_as_such(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces its end
        torch.jit.script(nn.Linear(2, 2)).save(str(tmp_path / "a.pt"))
        with pytest.raises(ModelError, match="is a TorchScript program"):
            load_model(NAME, checkpoint=tmp_path / "a.pt")


# --- several models in a file -------------------------------------------------------------------

SEVERAL: dict[str, tuple[Any, tuple[str, str]]] = {
    "dino": (
        lambda one, two: {
            "student": {
                **prefixed(one, "module.backbone."),
                "module.head.mlp.0.weight": torch.ones(9, 64),
            },
            "teacher": {**prefixed(two, "backbone."), "head.last_layer.weight_g": torch.ones(9, 1)},
            "epoch": 3,
            "args": argparse.Namespace(arch="vit_small"),
            "dino_loss": {"center": torch.ones(1, 9)},
        },
        ("student", "teacher"),
    ),
    "ibot": (
        lambda one, two: {
            "student": {
                **prefixed(one, "module.backbone."),
                "module.backbone.masked_embed": torch.ones(1, 64),
                "module.head.mlp2.weight": torch.ones(9, 64),
            },
            "teacher": {
                **prefixed(two, "backbone."),
                "head.last_layer.weight_v": torch.ones(9, 9),
                "head.last_layer2.weight_v": torch.ones(9, 9),
            },
            "ibot_loss": {"center": torch.ones(1, 9), "center2": torch.ones(1, 1, 9)},
        },
        ("student", "teacher"),
    ),
    "lightning": (
        lambda one, two: {
            "state_dict": {
                **prefixed(one, "student_backbone."),
                **prefixed(two, "teacher_backbone."),
                "criterion.center": torch.ones(1, 9),
            }
        },
        ("student_backbone", "teacher_backbone"),
    ),
    "moco": (
        lambda one, two: {
            "state_dict": {
                **prefixed(one, "module.base_encoder."),
                **prefixed(two, "module.momentum_encoder."),
                "module.predictor.0.weight": torch.ones(9, 9),
            }
        },
        ("base_encoder", "momentum_encoder"),
    ),
    "safetensors": (
        lambda one, two: {**prefixed(one, "student."), **prefixed(two, "teacher.")},
        ("student", "teacher"),
    ),
}


@pytest.mark.parametrize("what", SEVERAL)
def test_which_of_several_models_is_meant_must_be_said(
    what: str, module: Any, tmp_path: Path
) -> None:
    make, choices = SEVERAL[what]
    states = changed(module.state_dict()), module.state_dict()
    path = tmp_path / ("a.safetensors" if what == "safetensors" else "a.pth")
    (save_file if what == "safetensors" else torch.save)(make(*states), path)
    with pytest.raises(ModelError) as caught:
        load_model(NAME, checkpoint=path)
    first, second = choices
    assert str(caught.value) == (
        f"{NAME}: {path.name}: it holds 2 models. Choose one of {first}, {second}: "
        f'load_model(..., part="{first}"), or NAME=FILE#{first} on the command line.'
    )
    for part, state in zip(choices, states, strict=True):
        model = load_model(NAME, checkpoint=path, part=part)
        assert part in model.weights
        for key, tensor in state.items():
            assert torch.equal(model.module.state_dict()[key], tensor), key
    with pytest.raises(ModelError, match=f"it has no part mine. It has: {first}, {second}"):
        load_model(NAME, checkpoint=path, part="mine")


def test_a_part_belongs_to_a_file(module: Any, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="part= chooses a model in a file"):
        load_model(NAME, pretrained=False, part="teacher")


# --- parts beside the model ---------------------------------------------------------------------


BESIDE: dict[str, Any] = {
    "criterion.weight": torch.ones(3),
    "train_acc.tp": torch.zeros(3, dtype=torch.long),
    "val_metrics.confusion_matrix": torch.zeros(3, 3),
    "loss_fn.center": torch.ones(2, 2),
    "test_confmat.confmat": torch.zeros(3, 3),
    "ce_loss.weight": torch.ones(3, 1),
    "class_weights": torch.ones(3),
    "projection_head.0.weight": torch.ones(4, 4),
}


@pytest.mark.parametrize("suffix", [".ckpt", ".safetensors"])
@pytest.mark.parametrize("prefix", ["model.", ""])
@pytest.mark.parametrize("name", BESIDE)
def test_losses_and_metrics_beside_the_model_are_left_out_and_told(
    name: str, prefix: str, suffix: str, module: Any, tmp_path: Path
) -> None:
    if not prefix and name in ("class_weights", "projection_head.0.weight"):
        pytest.skip("without a prefix it may be a part of the model")
    state = {**prefixed(module.state_dict(), prefix), name: BESIDE[name]}
    path = tmp_path / f"mine{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save({"state_dict": state}, path)
    model = load_model(NAME, checkpoint=path)
    assert model.weights.endswith(f", without {name}")
    assert_same_answer(model, module)


@pytest.mark.parametrize("prefix", ["", "model."])
def test_a_head_of_several_layers_is_refused_and_the_rest_loads_without_it(
    prefix: str, tmp_path: Path
) -> None:
    net = timm_module(NAME, num_classes=0)
    net.head = nn.Sequential(nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 3))
    torch.save(prefixed(net.state_dict(), prefix), tmp_path / "mine.pth")
    said = r"head has several layers \(head\.0\.weight, head\.2\.weight\)"
    with pytest.raises(ModelError, match=said) as caught:
        load_model(NAME, checkpoint=tmp_path / "mine.pth")
    assert_clear_error(caught.value)
    assert "Delete the head from the file to load the rest" in str(caught.value)
    rest = {key: part for key, part in net.state_dict().items() if not key.startswith("head.")}
    torch.save(prefixed(rest, prefix), tmp_path / "rest.pth")
    assert not load_model(NAME, checkpoint=tmp_path / "rest.pth").has_head


def test_an_adapter_is_refused_as_such(module: Any, tmp_path: Path) -> None:
    name = "base_model.model.vit.encoder.layer.0.attention.attention.query.lora_A.weight"
    save_file({name: torch.ones(4, 64)}, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="holds an adapter") as caught:
        load_model(NAME, checkpoint=tmp_path / "adapter_model.safetensors")
    assert_clear_error(caught.value)


# --- shards -------------------------------------------------------------------------------------


def sharded(state: State, folder: Path, suffix: str) -> Path:
    """As transformers shards a model; before its version 4.35, in torch's files (.bin)."""
    stem = "model" if suffix == ".safetensors" else "pytorch_model"
    names = [f"{stem}-0000{n}-of-00002{suffix}" for n in (1, 2)]
    place = {key: names[n % 2] for n, key in enumerate(state)}
    for name in names:
        part = {key: state[key] for key in state if place[key] == name}
        if suffix == ".safetensors":
            save_file(part, folder / name, metadata={"format": "pt"})
        else:
            torch.save(part, folder / name)
    index = folder / f"{stem}{suffix}.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": place}))
    return index


@pytest.mark.parametrize("suffix", [".safetensors", ".bin"])
def test_an_index_is_read_with_its_shards(suffix: str, module: Any, tmp_path: Path) -> None:
    index = sharded(prefixed(module.state_dict(), "model."), tmp_path, suffix)
    model = load_model(NAME, checkpoint=index)
    for key, tensor in module.state_dict().items():
        assert torch.equal(model.module.state_dict()[key], tensor), key
    digest = re.search("sha256 ([0-9a-f]{12})", model.weights)
    (shard,) = tmp_path.glob("*-00002-of-*")
    shard.unlink()
    with pytest.raises(ModelError, match=f"the shard {shard.name}, which is missing"):
        load_model(NAME, checkpoint=index)
    sharded(prefixed(changed(module.state_dict()), "model."), tmp_path, suffix)
    assert digest is not None
    assert digest[1] not in load_model(NAME, checkpoint=index).weights


@pytest.mark.parametrize(
    "text",
    [
        '{"weight_map": {"a": "../secret.safetensors"}}',
        '{"weight_map": {"a": "/etc/passwd"}}',
        '{"weight_map": {}}',
        '{"weight_map": [1]}',
        "{}",
        "[]",
        "no",
        "[" * 99_999,
    ],
)
def test_an_index_that_lists_no_shards_beside_it_is_refused(text: str, tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "secret.safetensors")
    (tmp_path / "in").mkdir()
    index = tmp_path / "in" / "model.safetensors.index.json"
    index.write_text(text)
    with pytest.raises(ModelError, match="does not list the shards of a model") as caught:
        load_model(NAME, checkpoint=index)
    assert_clear_error(caught.value)


def test_an_index_over_the_limit_is_refused(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = sharded(module.state_dict(), tmp_path, ".safetensors")
    monkeypatch.setattr(reading, "_MAX_INDEX", index.stat().st_size)
    load_model(NAME, checkpoint=index)
    index.write_text(index.read_text() + " ")
    with pytest.raises(ModelError, match="does not list the shards of a model"):
        load_model(NAME, checkpoint=index)


# --- depth and width ----------------------------------------------------------------------------


def test_a_file_of_another_width_does_not_tell_its_heads(tmp_path: Path) -> None:
    torch.save(timm_module(NAME, embed_dim=32, num_heads=4).state_dict(), tmp_path / "thin.pth")
    with pytest.raises(ModelError, match="has width 32, and test_vit has 64") as caught:
        load_model(NAME, checkpoint=tmp_path / "thin.pth")
    assert_clear_error(caught.value)


def test_a_wrapper_of_ones_own_with_a_head_beside_it_is_no_model_of_timm(tmp_path: Path) -> None:
    net = Net(backbone=timm_module(NAME, num_classes=0), fc=nn.Linear(64, 3))
    torch.save(net.state_dict(), tmp_path / "net.pth")
    with pytest.raises(ModelError, match=r"it has fc\.weight beside backbone\.\*") as caught:
        load_model(NAME, checkpoint=tmp_path / "net.pth")
    assert_clear_error(caught.value)
