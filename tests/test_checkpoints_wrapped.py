"""What trainers put around a state dict is taken off and told; a model saved as a whole is not."""

from pathlib import Path
from typing import Any

import pytest
import torch
from examples import assert_one_sentence, assert_same_answer, timm_module
from torch import nn
from torch.optim.swa_utils import AveragedModel

from vitviz import ModelError, load_model

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


FILES: dict[str, tuple[Any, str]] = {
    "lightning.ckpt": (lightning, ", its names without model."),
    "compiled.ckpt": (
        lambda state: {"state_dict": prefixed(state, "net._orig_mod.")},
        ", its names without net._orig_mod.",
    ),
    "parallel.pth": (lambda state: prefixed(state, "module."), ", its names without module."),
    "attribute.pth": (lambda state: prefixed(state, "backbone."), ", its names without backbone."),
    "net.pth": (lambda state: {"net": state, "acc": 0.9, "epoch": 3}, ", its net"),
    "both.pth": (
        lambda state: {"net": prefixed(state, "module."), "epoch": 3},
        ", its net, its names without module.",
    ),
    "timm.pth.tar": (
        lambda state: {"arch": NAME, "state_dict": changed(state), "state_dict_ema": state},
        ", its state_dict_ema",
    ),
    "deit.pth": (
        lambda state: {"model": changed(state), "model_ema": state, "epoch": 3},
        ", its model_ema",
    ),
}


@pytest.mark.parametrize("file", FILES)
def test_what_trainers_put_around_the_weights_is_taken_off_and_told(
    file: str, module: Any, tmp_path: Path
) -> None:
    make, words = FILES[file]
    torch.save(make(module.state_dict()), tmp_path / file)
    model = load_model(NAME, checkpoint=tmp_path / file)
    assert model.weights.endswith(words)
    assert "resampled" not in model.weights
    loaded = model.module.state_dict()
    for key, tensor in module.state_dict().items():
        assert torch.equal(loaded[key], tensor), key
    assert_same_answer(model, module)


def test_torchs_moving_average_is_read(module: Any, tmp_path: Path) -> None:
    torch.save(AveragedModel(module).state_dict(), tmp_path / "mean.pth")  # with a count
    model = load_model(NAME, checkpoint=tmp_path / "mean.pth")
    assert model.weights.endswith(", its names without module.")


def test_an_entry_that_is_no_dictionary_is_passed_over(module: Any, tmp_path: Path) -> None:
    content = {"model": NAME, "net": None, "state_dict": module.state_dict()}
    torch.save(content, tmp_path / "mine.pth")
    assert load_model(NAME, checkpoint=tmp_path / "mine.pth").trained


@pytest.mark.parametrize("whole", [True, False])
def test_a_model_that_was_saved_as_a_whole_is_refused_with_advice(
    whole: bool, module: Any, tmp_path: Path
) -> None:
    torch.save(module if whole else {"model": module, "epoch": 3}, tmp_path / "whole.pth")
    with pytest.raises(ModelError) as caught:
        load_model(NAME, checkpoint=tmp_path / "whole.pth")
    assert str(caught.value) == (
        f"{NAME}: whole.pth holds no weights that can be read safely: a model that was saved as a "
        "whole must be saved as its state_dict()."
    )
    assert_one_sentence(caught.value)


def test_parts_beside_the_model_are_refused_in_a_sentence_that_says_what_is_there(
    module: Any, tmp_path: Path
) -> None:
    state = {**prefixed(module.state_dict(), "model."), "criterion.weight": torch.ones(3)}
    torch.save({"state_dict": state}, tmp_path / "mine.ckpt")
    with pytest.raises(
        ModelError, match=r"has model\.blocks\.0\.attn\.proj\.bias beside"
    ) as caught:
        load_model(NAME, checkpoint=tmp_path / "mine.ckpt")
    assert_one_sentence(caught.value)


# --- depth and width ----------------------------------------------------------------------------


def test_a_file_tells_its_depth(tmp_path: Path) -> None:
    module = timm_module(NAME, depth=2, num_classes=3, img_size=64)
    torch.save(module.state_dict(), tmp_path / "short.pth")
    model = load_model(NAME, checkpoint=tmp_path / "short.pth")
    assert (len(model.layers), model.num_classes) == (2, 3)
    assert model.layers[0].query_grid == (4, 4)
    assert_same_answer(model, module)


def test_a_file_of_another_width_does_not_tell_its_heads(tmp_path: Path) -> None:
    torch.save(timm_module(NAME, embed_dim=32, num_heads=4).state_dict(), tmp_path / "thin.pth")
    with pytest.raises(ModelError, match="of a model of width 32, and test_vit has 64") as caught:
        load_model(NAME, checkpoint=tmp_path / "thin.pth")
    assert_one_sentence(caught.value)


def test_a_wrapper_of_ones_own_with_a_head_beside_it_is_no_model_of_timm(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.backbone = timm_module(NAME, num_classes=0)
            self.fc = nn.Linear(64, 3)

    torch.save(Net().state_dict(), tmp_path / "net.pth")
    with pytest.raises(ModelError) as caught:
        load_model(NAME, checkpoint=tmp_path / "net.pth")
    assert_one_sentence(caught.value)
