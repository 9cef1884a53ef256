"""Checkpoints of other libraries, and malicious files."""

import json
import os
import struct
import time
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from examples import assert_clear_error, assert_same_answer, timm_module
from safetensors.torch import load_file, save_file
from timm.models.vision_transformer import _load_weights
from torch import Tensor

from vitviz.model.families import ModelError
from vitviz.zoo import load_model
from vitviz.zoo.checkpoints import Checkpoint, CheckpointError, pickles

State = dict[str, Tensor]


def of_transformers(kind: str = "ViTForImageClassification", **options: Any) -> State:
    """A small model as `save_pretrained` writes it, in the names of transformers 4."""
    transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")
    sizes: dict[str, Any] = dict(hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    sizes |= dict(intermediate_size=64, image_size=8, patch_size=4, num_labels=3)
    made = getattr(transformers, kind)
    with TemporaryDirectory() as folder:
        made(made.config_class(**{**sizes, **options})).save_pretrained(folder)
        return load_file(f"{folder}/model.safetensors")


# --- the JAX ViT --------------------------------------------------------------------------------


def as_jax(
    dim: int, depth: int, heads: int, classes: int, patches: int, side: int = 16
) -> dict[str, Any]:
    """Random arrays by the names and in the shapes of google-research/vision_transformer."""
    rng = np.random.default_rng(0)

    def noise(*shape: int) -> np.ndarray:
        return rng.normal(0, 0.05, shape).astype(np.float32)

    arrays = {
        "cls": noise(1, 1, dim),
        "embedding/kernel": noise(side, side, 3, dim),
        "embedding/bias": noise(dim),
        "Transformer/posembed_input/pos_embedding": noise(1, 1 + patches, dim),
        "Transformer/encoder_norm/scale": noise(dim),
        "Transformer/encoder_norm/bias": noise(dim),
        "head/kernel": noise(dim, classes),
        "head/bias": noise(classes),
    }
    for number in range(depth):
        block = f"Transformer/encoderblock_{number}"
        attention = f"{block}/MultiHeadDotProductAttention_1"
        for part in ("query", "key", "value"):
            arrays[f"{attention}/{part}/kernel"] = noise(dim, heads, dim // heads)
            arrays[f"{attention}/{part}/bias"] = noise(heads, dim // heads)
        arrays[f"{attention}/out/kernel"] = noise(heads, dim // heads, dim)
        arrays[f"{attention}/out/bias"] = noise(dim)
        for norm in ("LayerNorm_0", "LayerNorm_2"):
            arrays[f"{block}/{norm}/scale"] = noise(dim)
            arrays[f"{block}/{norm}/bias"] = noise(dim)
        for layer, (a, b) in enumerate(((dim, 4 * dim), (4 * dim, dim))):
            arrays[f"{block}/MlpBlock_3/Dense_{layer}/kernel"] = noise(a, b)
            arrays[f"{block}/MlpBlock_3/Dense_{layer}/bias"] = noise(b)
    return arrays


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_the_original_jax_file_is_read_as_timm_reads_it(
    save: Callable[..., None], tmp_path: Path
) -> None:
    path = tmp_path / "jax.npz"
    save(path, **as_jax(192, 2, 3, 5, 196))
    expected = timm_module("vit_tiny_patch16_224", depth=2, num_classes=5)
    _load_weights(expected, str(path))
    assert_same_answer(load_model("vit_tiny_patch16_224", checkpoint=path), expected)


def test_a_jax_file_with_a_hidden_layer_before_its_head_is_refused(tmp_path: Path) -> None:
    arrays = as_jax(192, 1, 3, 5, 196)
    arrays["pre_logits/bias"] = np.ones(192, np.float32)
    np.savez(tmp_path / "jax.npz", **arrays)
    with pytest.raises(ModelError, match="the model lacks, pre_logits/bias"):
        load_model("vit_tiny_patch16_224", checkpoint=tmp_path / "jax.npz")


# --- files that were made to hurt ---------------------------------------------------------------


def lying_safetensors(path: Path) -> None:
    """1.6 KB that claim 4 TB."""
    count = 10**12
    entry = {"dtype": "F32", "shape": [count], "data_offsets": [0, 4 * count]}
    header = json.dumps({"norm.weight": entry}).encode().ljust(1600)
    path.write_bytes(struct.pack("<Q", len(header)) + header)


def lying_npz(path: Path) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }\n"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(
            "cls.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + bytes(64)
        )


def packed_zeros(path: Path) -> None:
    """An eighth of a gigabyte of zeros in half a megabyte."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (31250000,), }\n"
        with archive.open("cls.npy", "w") as file:
            file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
            for _ in range(25):
                file.write(bytes(5_000_000))


def pickled_npz(path: Path) -> None:
    np.savez(path, cls=np.array([print], dtype=object))


def packed_torch(path: Path) -> None:
    whole = path.with_suffix(".whole")
    torch.save({"norm.weight": torch.zeros(1_000_000)}, whole)
    with (
        zipfile.ZipFile(whole) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive,
    ):
        for entry in source.infolist():
            archive.writestr(entry.filename, source.read(entry))


def many_entries(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("cls.npy", b"")
        archive.filelist *= 20_001


def large_and_foreign(path: Path) -> None:
    """Honest, but ten times what the model takes."""
    save_file({f"part.{n}": torch.zeros(1_000_000, dtype=torch.half) for n in range(6)}, path)


HOSTILE: dict[str, Callable[[Path], None]] = {
    "claims.safetensors": lying_safetensors,
    "claims.npz": lying_npz,
    "zeros.npz": packed_zeros,
    "pickled.npz": pickled_npz,
    "packed.pth": packed_torch,
    "many.npz": many_entries,
    "large.safetensors": large_and_foreign,
    "pipe.pth": lambda path: os.mkfifo(path),
    "pipe.safetensors": lambda path: os.mkfifo(path),
    "pipe.npz": lambda path: os.mkfifo(path),
    "device.pth": lambda path: path.symlink_to("/dev/zero"),
}


@pytest.fixture(scope="module")
def imported() -> None:
    """What is imported once is not measured."""
    load_model("test_vit", pretrained=False)


@pytest.mark.usefixtures("imported")
@pytest.mark.parametrize("name", HOSTILE)
def test_it_is_refused_quickly_and_cheaply(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    HOSTILE[name](path)
    tracemalloc.start()
    begun = time.process_time()
    with pytest.raises(ModelError) as caught:
        load_model("test_vit", checkpoint=path)
    seconds = time.process_time() - begun
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert_clear_error(caught.value)
    assert path.name in str(caught.value)
    assert str(tmp_path) not in str(caught.value)
    assert seconds < 2
    assert peak < 100e6


@pytest.mark.parametrize("limit", ["MAX_PICKLE", "MAX_ENTRIES"])
def test_a_torch_archive_over_a_limit_is_refused(
    limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "mine.pth"
    torch.save(timm_module("test_vit").state_dict(), path)
    with zipfile.ZipFile(path) as archive:
        entries = archive.infolist()
    pickled = max(entry.file_size for entry in entries if entry.filename.endswith(".pkl"))
    most = {"MAX_PICKLE": pickled, "MAX_ENTRIES": len(entries)}[limit]
    monkeypatch.setattr(pickles, limit, most)
    load_model("test_vit", checkpoint=path)
    monkeypatch.setattr(pickles, limit, most - 1)
    with pytest.raises(ModelError, match="holds too much besides weights"):
        load_model("test_vit", checkpoint=path)


def test_a_compressed_archive_is_refused_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "mine.pth"
    torch.save(timm_module("test_vit").state_dict(), tmp_path / "plain.pth")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(tmp_path / "plain.pth", "plain.pth")
    with pytest.raises(ModelError, match=r"is a compressed archive, .* Unpack it"):
        load_model("test_vit", checkpoint=path)


def test_an_npz_of_too_many_entries_is_refused_by_their_number(tmp_path: Path) -> None:
    many_entries(tmp_path / "many.npz")
    with pytest.raises(ModelError, match="has 20001 entries, too many for a model"):
        load_model("test_vit", checkpoint=tmp_path / "many.npz")


def test_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "allowed"
    folder.mkdir()
    module = timm_module("test_vit")
    save_file(module.state_dict(), tmp_path / "secret.safetensors")
    save_file(module.state_dict(), folder / "mine.safetensors")
    (folder / "out.safetensors").symlink_to(tmp_path / "secret.safetensors")
    (folder / "in.safetensors").symlink_to("mine.safetensors")
    with pytest.raises(CheckpointError, match=r"out.safetensors is a link out of its folder"):
        Checkpoint(folder / "out.safetensors")
    inside, mine = (Checkpoint(folder / f"{name}.safetensors") for name in ("in", "mine"))
    assert inside.shapes == mine.shapes


@pytest.mark.parametrize("number", [torch.nan, torch.inf])
@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".npz"])
def test_shapes_are_told_without_the_numbers(suffix: str, number: float, tmp_path: Path) -> None:
    path = tmp_path / f"mine{suffix}"
    state = {"a": torch.ones(2, 3), "b": torch.full((5,), number)}
    if suffix == ".safetensors":
        save_file(state, path)
    elif suffix == ".pth":
        torch.save(state, path)
    else:
        arrays: Any = {name: tensor.numpy() for name, tensor in state.items()}
        np.savez(path, **arrays)
    assert Checkpoint(path).shapes == {"a": (2, 3), "b": (5,)}
    with pytest.raises(CheckpointError, match=r"b in mine.* NaN or infinite"):
        Checkpoint(path).read()
