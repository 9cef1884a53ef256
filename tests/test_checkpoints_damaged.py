"""Tensors of a small checkpoint lost, renamed, of another shape or of another kind."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from examples import assert_clear_error, randomise, skip_random_weights, timm_module
from safetensors.torch import save_file
from test_checkpoints_foreign import as_jax, of_transformers
from torch import Tensor

from vitviz.model.families import ModelError
from vitviz.zoo import load_model
from vitviz.zoo.checkpoints import Checkpoint, CheckpointError, load_state

State = dict[str, Tensor]
SMALL: dict[str, Any] = dict(depth=1, embed_dim=16, num_heads=2, num_classes=3)
SMALL |= dict(img_size=8, patch_size=4)
NAME = "vit_tiny_patch16_224"


def in_timms_names() -> tuple[Any, State]:
    module = timm_module(NAME, **SMALL)
    return module, module.state_dict()


def in_hugging_faces_names() -> tuple[Any, State]:
    return timm_module(NAME, **SMALL), of_transformers()


def with_registers() -> tuple[Any, State]:
    options: dict[str, Any] = dict(SMALL, num_classes=0, reg_tokens=2, no_embed_class=True)
    module = timm_module(NAME, init_values=1.0, **options)
    state = of_transformers("Dinov2WithRegistersModel", num_register_tokens=2)
    return module, {name: tensor for name, tensor in state.items() if "mask_token" not in name}


def in_jaxs_names() -> tuple[Any, State]:
    arrays = as_jax(16, 1, 2, 3, 4, side=4)
    return timm_module(NAME, **SMALL), {key: torch.from_numpy(a) for key, a in arrays.items()}


SCHEMES = (in_timms_names, in_hugging_faces_names, with_registers, in_jaxs_names)


#: Parts of names of what is read as the first norm, the first layer of the MLP, and the keys are.
_ALIKE = ("norm2", "layernorm_after", "LayerNorm_2", "fc2", "Dense_1", "layer_scale2", "value")
#: What stands beside the registers as in Hugging Face's other names, where it is damaged too.
_BESIDE = ("attention.", "layernorm.", "classifier.", "projection.")


def damaged(state: State, names: list[str]) -> Iterator[State]:
    """The state with a part too many, or one of these tensors lost, renamed, or replaced."""
    yield {**state, f"{names[0]}.more": torch.ones(2)}
    yield {**state, f"{names[-1]}.more": torch.ones(2)}
    for name in names:
        tensor = state[name]
        rest = {other: value for other, value in state.items() if other != name}
        yield rest
        for new in (f"{name}.more", name.rpartition(".")[0], name.rpartition("/")[0], "{x}/query"):
            yield {**rest, new: tensor}
        shapes = [(), (0,), (1,), (7,), (1, 1), (2, 0, 3), (*tensor.shape, 1), (1, *tensor.shape)]
        shapes += [tensor.shape[1:], tensor.shape[:-1], (*tensor.shape[:-1], tensor.shape[-1] + 1)]
        for shape in {tuple(shape) for shape in shapes}:
            yield {**rest, name: torch.zeros(shape)}
        yield {**rest, name: tensor.to(torch.float8_e4m3fn)}


@pytest.mark.filterwarnings("ignore:Casting complex values:UserWarning")
@pytest.mark.parametrize("make", SCHEMES)
def test_a_damaged_file_is_refused_in_a_sentence(
    make: Callable[[], tuple[Any, State]], tmp_path: Path
) -> None:
    module, state = make()
    path = tmp_path / "mine.safetensors"
    save_file(state, path)
    load_state(module, Checkpoint(path).read(), prefix=module.num_prefix_tokens)
    before = {key: value.clone() for key, value in module.named_parameters()}
    taken = 0
    left_out = (*_ALIKE, *_BESIDE) if make is with_registers else _ALIKE
    names = [name for name in state if not any(part in name for part in left_out)]
    tensor = state[names[0]]  # kinds and values are looked at before any name is
    kinds = [tensor.to(dtype) for dtype in (torch.int64, torch.bool, torch.complex64)]
    for other in (*kinds, torch.full_like(tensor, torch.nan)):
        save_file({**state, names[0]: other}, path)
        with pytest.raises(CheckpointError, match=r"NaN or infinite|is stored as"):
            Checkpoint(path).read()
    for wrong in damaged(state, names):
        save_file(wrong, path)
        try:
            load_state(module, Checkpoint(path).read(), prefix=module.num_prefix_tokens)
        except CheckpointError as error:
            assert_clear_error(error)
        else:
            assert len(wrong) == len(state)  # no part too few or too many
            assert not any(name.endswith(".more") for name in wrong)
            taken += 1
            load_state(module, before, prefix=module.num_prefix_tokens)
            continue
        for key, value in module.named_parameters():
            assert torch.equal(value, before[key])
    # what is taken: positions of another square, and numbers in another precision or order
    assert taken < 3 * len(names)


@pytest.mark.parametrize("scheme", ["hugging face", "jax"])
@pytest.mark.parametrize("shape", [(), (7,), (1, 1, 1), (2, 0, 3), (3, 5)])
def test_load_model_refuses_it_in_a_sentence(
    scheme: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    if scheme == "jax":
        state = {key: torch.from_numpy(a) for key, a in as_jax(64, 1, 2, 5, 100).items()}
    else:
        sizes: dict[str, Any] = dict(
            hidden_size=64, intermediate_size=192, image_size=160, patch_size=16
        )
        state = of_transformers(**sizes, num_labels=5)
    for part in ("query", "head", "classifier", "pos", "embedding"):
        names = [name for name in state if part in name]
        for name in names[:1]:
            path = tmp_path / "mine.npz"
            arrays: Any = {**state, name: torch.zeros(shape)}
            np.savez(path, **{key: value.numpy() for key, value in arrays.items()})
            with pytest.raises(ModelError) as caught:
                load_model("test_vit", checkpoint=path)
            assert_clear_error(caught.value)


def test_a_part_that_stands_in_the_file_twice_is_refused(tmp_path: Path) -> None:
    _, state = in_hugging_faces_names()
    state["embeddings.cls_token"] = torch.ones(1, 1, 16)
    save_file(state, tmp_path / "mine.safetensors")
    with pytest.raises(CheckpointError, match="it has a part twice"):
        Checkpoint(tmp_path / "mine.safetensors")


# --- good files with something about them -------------------------------------------------------


def test_hugging_faces_names_may_be_wrapped_too(tmp_path: Path) -> None:
    module, state = in_hugging_faces_names()
    save_file({f"module.{key}": value for key, value in state.items()}, tmp_path / "a.safetensors")
    file = Checkpoint(tmp_path / "a.safetensors")
    assert (file.wrapper, file.num_classes) == ("module.", 3)
    assert file.shapes == {key: tuple(value.shape) for key, value in module.state_dict().items()}


def test_a_prefix_of_some_names_alone_is_none(tmp_path: Path) -> None:
    state = timm_module("test_vit").state_dict()
    state["module.norm.bias"] = state.pop("norm.bias")
    save_file(state, tmp_path / "a.safetensors")
    with pytest.raises(ModelError, match=r"has, and the model lacks, module.norm.bias"):
        load_model("test_vit", checkpoint=tmp_path / "a.safetensors")


@pytest.mark.parametrize(
    "name", ["swin_tiny_patch4_window7_224", "coatnet_pico_rw_224", "pvt_v2_b0"]
)
def test_files_of_the_staged_families_come_back_as_they_were(name: str, tmp_path: Path) -> None:
    with skip_random_weights():
        module = timm.create_model(name, pretrained=False, num_classes=3)
    randomise(module)
    state = module.state_dict()  # with a count of batches, where there is a BatchNorm
    if name.startswith("swin"):
        state["layers.0.blocks.0.attn.relative_position_index"] = torch.zeros(49, 49).long()
    torch.save(state, tmp_path / "mine.pth")
    model = load_model(name, checkpoint=tmp_path / "mine.pth")
    assert model.num_classes == 3
    loaded = model.module.state_dict()
    for key, value in module.state_dict().items():
        assert torch.equal(loaded[key], value), key
