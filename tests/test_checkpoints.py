"""Files of weights: what fits is copied, all else is refused in one sentence and runs nothing."""

import hashlib
import os
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from examples import (
    LITTLE,
    assert_clear_error,
    own_module,
    picture,
    timm_module,
    write_shipped,
)
from numpy.testing import assert_allclose
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import Tensor
from torch.testing import assert_close

from vitviz.activations import capture
from vitviz.model.families import ModelError
from vitviz.zoo import checkpoints, load_model
from vitviz.zoo.checkpoints import (
    Checkpoint,
    CheckpointError,
    load_state,
    shipped_names,
)

State = dict[str, Any]
WRITERS: dict[str, Callable[[State, Path], Any]] = {
    ".safetensors": save_file,
    ".pth": torch.save,
    ".pt": lambda state, path: torch.save({"model": state, "epoch": 3}, path),
}


def write(state: State, path: Path) -> Path:
    WRITERS[path.suffix](state, path)
    return path


def own_state() -> State:
    return own_module().state_dict()


# --- shipped weights ----------------------------------------------------------------------------


def test_shipped_names_are_those_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    assert shipped_names() == ()
    write_shipped(tmp_path, "second")
    write_shipped(tmp_path, "first").with_suffix(".md").write_text("a model card")
    assert shipped_names() == ("first", "second")


# --- files that fit -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "options", "suffix"),
    [
        *(("test_vit", dict(num_classes=1000), suffix) for suffix in WRITERS),
        ("test_vit2", dict(num_classes=7), ".safetensors"),
        ("test_vit", dict(num_classes=0), ".pth"),
        ("deit_tiny_distilled_patch16_224", dict(num_classes=3, depth=3), ".pth"),
    ],
)
def test_a_checkpoint_of_timm_comes_back_as_it_was(
    name: str, options: dict[str, Any], suffix: str, tmp_path: Path
) -> None:
    module = timm_module(name, **options)
    path = write(module.state_dict(), tmp_path / f"mine{suffix}")
    model = load_model(name, checkpoint=path)
    assert model.trained is True
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    assert model.weights.startswith(f"local file mine{suffix}, sha256 {digest}")
    other_depth = "depth" in options
    assert model.weights.endswith(", 3 layers as in the file, not 12") is other_depth
    assert model.name == name
    loaded = model.module.state_dict()
    for key, value in module.state_dict().items():
        assert torch.equal(loaded[key], value), key
    with torch.inference_mode():
        expected = module(model.preprocess(picture())[None])[0]
    acts = capture(model, picture())
    assert acts.output is not None
    assert_allclose(acts.output, expected, rtol=0, atol=1e-5)
    assert (acts.logits is None) == (options["num_classes"] == 0)
    assert model.labels is None  # the file names none


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_other_precisions_become_float32(dtype: torch.dtype, suffix: str, tmp_path: Path) -> None:
    state = {key: value.to(dtype) for key, value in own_state().items()}
    read = Checkpoint(write(state, tmp_path / f"mine{suffix}")).read()
    assert {tensor.dtype for tensor in read.values()} == {torch.float32}
    for key, value in state.items():
        assert torch.equal(read[key], value.float())


def test_a_file_can_be_read_twice(tmp_path: Path) -> None:
    """Also where it holds a count of batches, which is not read."""
    state = {"weight": torch.ones(2), "num_batches_tracked": torch.tensor(3)}
    checkpoint = Checkpoint(write(state, tmp_path / "mine.safetensors"))
    for _ in range(2):
        assert {name: read.tolist() for name, read in checkpoint.read().items()} == {
            "weight": [1, 1]
        }


def test_a_shipped_architecture_takes_weights_from_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    own = write_shipped(tmp_path)
    state = {key: value + 1 for key, value in own_module(**LITTLE).state_dict().items()}
    model = load_model("little", checkpoint=write(state, tmp_path / "other.pth"))
    assert model.weights.startswith("local file other.pth")
    assert model.labels is None
    for key, value in model.module.state_dict().items():
        assert torch.equal(value, state[key])
    again = load_model("little", checkpoint=own)  # a file of our own training names its classes
    assert again.weights.startswith("local file little.safetensors")
    assert again.labels == ("cat", "dog", "fox", "owl", "bat")


@pytest.mark.parametrize(
    ("name", "image_size"),
    [
        *(("test_vit", size) for size in (96, (64, 112), (80, 320))),  # or as many
        *((name, (64, 112)) for name in ("test_vit2", "test_vit3")),
        ("deit_tiny_distilled_patch16_224", (96, 64)),
    ],
)
def test_positions_are_resized_as_timm_resizes_them(
    name: str, image_size: Any, tmp_path: Path
) -> None:
    module = timm_module(name)
    path = write(module.state_dict(), tmp_path / "mine.safetensors")
    model = load_model(name, checkpoint=path, image_size=image_size)
    rows, cols = model.layers[0].query_grid
    table: Tensor = module.state_dict()["pos_embed"]
    prefix = table.shape[1] - module.patch_embed.num_patches  # which the table may leave out
    expected = resample_abs_pos_embed(table, [rows, cols], num_prefix_tokens=prefix)
    assert_close(model.module.state_dict()["pos_embed"], expected, rtol=0, atol=1e-6)
    assert model.module.state_dict()["pos_embed"].shape[1] == prefix + rows * cols
    old = "x".join(map(str, module.patch_embed.grid_size))
    assert model.weights.endswith(f", positions resampled from {old} to {rows}x{cols}")
    acts = capture(model, picture())
    assert acts.grid == (rows, cols)
    assert [layer.refusal for layer in acts.layers] == [None] * acts.depth


def test_positions_of_patches_alone_are_resized() -> None:
    options: dict[str, Any] = dict(reg_tokens=4, no_embed_class=True)
    state = timm_module("test_vit", **options).state_dict()
    larger = timm_module("test_vit", img_size=(64, 112), **options)
    load_state(larger, state, prefix=5)
    table: Tensor = state["pos_embed"]
    assert table.shape[1] == 100
    expected = resample_abs_pos_embed(table, [4, 7], num_prefix_tokens=0)
    assert_close(larger.state_dict()["pos_embed"], expected, rtol=0, atol=1e-6)


def test_shipped_positions_are_resized_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints.shipped, "assets", lambda: tmp_path)
    write_shipped(tmp_path)
    model = load_model("little", image_size=(40, 56))
    table = own_module(**LITTLE).state_dict()["pos_embed"].half().float()
    expected = resample_abs_pos_embed(table, [10, 14], num_prefix_tokens=1)
    assert_close(model.module.state_dict()["pos_embed"], expected, rtol=0, atol=1e-6)


# --- files that do not fit ----------------------------------------------------------------------


def without(key: str) -> Callable[[State], State]:
    return lambda state: {name: value for name, value in state.items() if name != key}


def changed(**changes: Any) -> Callable[[State], State]:
    by_name = {key.replace("__", "."): value for key, value in changes.items()}
    return lambda state: {**state, **by_name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("norm.weight"), "lacks norm.weight"),
        (without("pos_embed"), "lacks pos_embed"),
        (changed(surprise=torch.zeros(2)), "has, and the model lacks, surprise"),
        (changed(norm__weight=torch.zeros(33)), r"norm.weight has shape \(33,\) .* \(32,\)"),
        (changed(head__weight=torch.zeros(6, 32)), r"head.weight has shape \(6, 32\)"),
        # Positions: 17 patches fill no square, and the others are no table of this model.
        (changed(pos_embed=torch.zeros(1, 18, 32)), "17 patch positions fill neither .* 4 x 6"),
        (changed(pos_embed=torch.zeros(1, 1, 32)), r"pos_embed has shape \(1, 1, 32\)"),
        (changed(pos_embed=torch.zeros(2, 17, 32)), r"pos_embed has shape \(2, 17, 32\)"),
        (changed(pos_embed=torch.zeros(25, 32)), r"pos_embed has shape \(25, 32\)"),
    ],
)
def test_a_state_of_another_model_is_refused(
    change: Callable[[State], State], message: str
) -> None:
    module = own_module()
    before = own_state()
    with pytest.raises(CheckpointError, match=message) as caught:
        load_state(module, change(own_state()), prefix=1)
    assert_clear_error(caught.value)
    for key, value in module.state_dict().items():
        assert torch.equal(value, before[key])


def test_a_checkpoint_of_a_family_that_is_not_read_is_refused_as_such(tmp_path: Path) -> None:
    path = write({"head.weight": torch.zeros(1000, 128)}, tmp_path / "xcit.pth")
    with pytest.raises(ModelError, match="channel") as caught:
        load_model("xcit_nano_12_p16_224", checkpoint=path)
    assert_clear_error(caught.value)


#: Quantised, packed, masks and counts; numbers of 8 bits mean little without a tool's scales.
OTHER_KINDS = (
    *("int8", "uint8", "int16", "uint16", "int32", "int64", "bool", "complex64"),
    *("float8_e4m3fn", "float8_e5m2", "float8_e8m0fnu"),
)


@pytest.mark.parametrize("kind", OTHER_KINDS)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_a_kind_of_numbers_that_no_weight_has_is_named(
    kind: str, suffix: str, tmp_path: Path
) -> None:
    values = torch.zeros(8).to(getattr(torch, kind))
    path = tmp_path / f"mine{suffix}"
    if suffix != ".npz":
        write({"fine": torch.ones(2), "norm.bias": values}, path)
    elif kind.startswith("float8"):
        pytest.skip("numpy has no such numbers")
    else:
        arrays: dict[str, Any] = {"fine": np.ones(2), "norm.bias": values.numpy()}
        np.savez(path, **arrays)
    said = rf"^norm\.bias in mine\S+ is stored as {kind[:11]}\S*, and .* float16, .* dequantise it"
    with pytest.raises(CheckpointError, match=said):
        Checkpoint(path)


def test_a_quantised_tensor_of_torch_is_named(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch will drop them one day
        values = torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8)
        path = write({"fine": torch.ones(2), "norm.bias": values}, tmp_path / "mine.pth")
        with pytest.raises(CheckpointError, match=r"norm\.bias in mine\.pth is stored as qint8, "):
            Checkpoint(path)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(3).to_sparse(),
        lambda: torch.empty(3, device="meta"),
        lambda: torch.zeros(1).expand(10**12),  # claims 4 TB, holds 4 bytes
    ],
    ids=["sparse", "meta", "more than the file holds"],
)
def test_tensors_that_are_none_are_refused(make: Callable[[], Tensor], tmp_path: Path) -> None:
    path = write({"norm.bias": make()}, tmp_path / "mine.pth")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sparse tensors are announced
        with pytest.raises(CheckpointError) as caught:
            Checkpoint(path).read()
    assert_clear_error(caught.value)


class Runs:
    """Unpickled without care, it creates a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[str, int]]:
        return os.mkdir, (str(self.path), 0o755)


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".bin", ".safetensors", ""])
@pytest.mark.parametrize("how", ["torch", "pickle"])
def test_a_file_that_would_run_code_does_not(how: str, suffix: str, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    path = tmp_path / f"hostile{suffix}"
    content = {"norm.weight": torch.ones(2), "extra": Runs(trace)}
    if how == "torch":
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    with pytest.raises(ModelError, match="holds no weights that can be read safely") as caught:
        load_model("test_vit", checkpoint=path)
    assert not trace.exists()
    assert_clear_error(caught.value)
    pickle.loads(pickle.dumps(Runs(trace)))
    assert trace.exists()  # it would have


def truncated(path: Path) -> None:
    content = write(own_state(), path).read_bytes()
    path.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_bytes(np.random.default_rng(0).bytes(5000)),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_text("<!DOCTYPE html><title>404</title>"),
        lambda path: path.write_bytes(b"\xff" * 8 + b"{}"),
        truncated,
    ],
    ids=["random bytes", "empty", "a web page", "a huge header", "cut off"],
)
@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_a_file_that_cannot_be_read_is_refused_in_our_own_words(
    make: Callable[[Path], Any], suffix: str, tmp_path: Path
) -> None:
    path = tmp_path / f"broken{suffix}"
    make(path)
    with pytest.raises(ModelError) as caught:
        load_model("test_vit", checkpoint=path)
    message = str(caught.value)
    assert message == f"test_vit: broken{suffix} holds no weights that can be read safely."
    cause = caught.value.__cause__
    while cause is not None and isinstance(cause, CheckpointError):
        cause = cause.__cause__
    assert cause is not None  # the library's own words are kept for whoever debugs


NO_STATES: dict[str, Any] = {
    "list": [torch.ones(2)],
    "tensor": torch.ones(2),
    "number": {"epoch": 3},
    "list inside": {"norm.weight": [1.0, 2.0]},
    "numbered": {1: torch.ones(2)},
    "nothing inside": {"model": {"norm.weight": None}},
    "twice wrapped": {"model": {"model": {"norm.weight": torch.ones(2)}}},
    "none": None,
}


@pytest.mark.parametrize("content", NO_STATES.values(), ids=NO_STATES)
def test_anything_but_named_tensors_is_refused(content: Any, tmp_path: Path) -> None:
    torch.save(content, tmp_path / "mine.pth")
    with pytest.raises(CheckpointError, match="is not a dictionary of tensors") as caught:
        Checkpoint(tmp_path / "mine.pth").read()
    assert_clear_error(caught.value)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("missing.safetensors", "is not a file"),
        ("folder", "has no config.json"),
    ],
)
def test_what_is_no_file_is_refused(name: str, why: str, tmp_path: Path) -> None:
    if name == "folder":
        (tmp_path / name).mkdir()
    with pytest.raises(ModelError, match=why) as caught:
        load_model("test_vit", checkpoint=tmp_path / name)
    assert_clear_error(caught.value)
    assert str(tmp_path) not in str(caught.value)
