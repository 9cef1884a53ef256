"""Small CIFAR and Tiny-ImageNet files on disk, and what a run on them wrote."""

import io
import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from PIL import Image
from pyarrow import parquet
from safetensors import safe_open
from torch import Tensor

from vitviz.training import Split


def coloured(count: int, *, seed: int, num_classes: int = 10) -> Split:
    """Noisy pictures whose colour is their class."""
    colours = np.random.default_rng(0).integers(0, 256, (num_classes, 1, 1, 3))
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % num_classes)
    pictures = colours[labels] + rng.integers(-20, 21, (count, 32, 32, 3))
    return Split(
        pictures.clip(0, 255).astype(np.uint8),
        labels,
        tuple(f"class {number}" for number in range(num_classes)),
    )


def noise_pictures(count: int) -> Tensor:
    generator = torch.Generator().manual_seed(4)
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=generator)


def part(split: Split, first: int, last: int) -> Split:
    return Split(split.pictures[first:last], split.labels[first:last], split.classes)


def python2_pickle(value: Any) -> bytes:
    """`value` as Python 2 wrote it in 2009: text is bytes, numpy's modules have their old names."""
    match value:
        case dict():
            items = (python2_pickle(key) + python2_pickle(item) for key, item in value.items())
            return b"}(" + b"".join(items) + b"u"
        case list():
            return b"](" + b"".join(map(python2_pickle, value)) + b"e"
        case tuple():
            return b"(" + b"".join(map(python2_pickle, value)) + b"t"
        case bytes():
            return b"T" + struct.pack("<i", len(value)) + value
        case int():
            return b"J" + struct.pack("<i", value)
        case np.ndarray():
            dtype = b"cnumpy\ndtype\n" + python2_pickle((b"u1", 0, 1)) + b"R"
            dtype += b"(K\x03" + python2_pickle(b"|") + b"NNN" + 2 * python2_pickle(-1) + b"K\0tb"
            empty = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
            empty += python2_pickle((0,)) + python2_pickle(b"b") + b"tR"
            state = b"(K\x01" + python2_pickle(value.shape) + dtype + b"\x89"  # not Fortran order
            return empty + state + python2_pickle(value.tobytes()) + b"tb"
    raise TypeError(f"{type(value)} is not in CIFAR's files.")


def write_python2(path: Path, value: Any) -> None:
    path.write_bytes(b"\x80\x02" + python2_pickle(value) + b".")


def write_batch(path: Path, split: Split, label_key: bytes = b"labels") -> None:
    flat = np.ascontiguousarray(split.pictures.transpose(0, 3, 1, 2)).reshape(-1, 3072)
    labels = [int(label) for label in split.labels]
    names = [b"%d.png" % number for number in range(len(labels))]
    content = {b"batch_label": b"a batch", b"data": flat, label_key: labels, b"filenames": names}
    if label_key == b"fine_labels":
        content[b"coarse_labels"] = [label // 5 for label in labels]
    write_python2(path, content)


def write_cifar10(folder: Path, train_split: Split, test_split: Split) -> None:
    """Two of the five training batches, of different lengths."""
    folder.mkdir(parents=True, exist_ok=True)
    cut = len(train_split.labels) // 3
    write_batch(folder / "data_batch_1", part(train_split, 0, cut))
    write_batch(folder / "data_batch_2", part(train_split, cut, len(train_split.labels)))
    write_batch(folder / "test_batch", test_split)
    names = [name.encode() for name in train_split.classes]
    write_python2(folder / "batches.meta", {b"label_names": names, b"num_vis": 3072})


def write_cifar100(folder: Path, train_split: Split, test_split: Split) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, split in (("train", train_split), ("test", test_split)):
        write_batch(folder / name, split, b"fine_labels")
    names = [name.encode() for name in train_split.classes]
    coarse = [b"coarse %d" % number for number in range(20)]
    write_python2(folder / "meta", {b"coarse_label_names": coarse, b"fine_label_names": names})


def write_sheets(
    path: Path, split: Split, *, rows: int = 2, cols: int = 5, kind: str = "PNG"
) -> None:
    """Sheets of `rows` x `cols` pictures, row by row, by default as lossless PNG."""
    per_sheet = rows * cols
    sheets, labels = [], []
    for first in range(0, len(split.labels), per_sheet):
        tiles = split.pictures[first : first + per_sheet].reshape(rows, cols, 32, 32, 3)
        sheet = pa.BufferOutputStream()
        Image.fromarray(tiles.swapaxes(1, 2).reshape(rows * 32, cols * 32, 3)).save(sheet, kind)
        sheets.append(sheet.getvalue().to_pybytes())
        labels.append(split.labels[first : first + per_sheet].astype(np.uint8).tobytes())
    table = pa.table({"sheet": sheets, "label": labels})
    parquet.write_table(table.replace_schema_metadata({"classes": json.dumps(split.classes)}), path)


def write_things(path: Path, pictures: np.ndarray, labels: list[int], classes: list[str]) -> None:
    """One PNG a row, as Tiny-ImageNet's JPEG files are kept."""
    rows = []
    for picture in pictures:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        rows.append(file.getvalue())
    table = pa.table({"image": rows, "label": pa.array(labels, pa.uint8())})
    parquet.write_table(table.replace_schema_metadata({"names": json.dumps(classes)}), path)


def silent(line: str) -> None:
    pass


def metadata(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        about: dict[str, Any] = json.loads(file.metadata()["vitviz"])
    return about


def history(path: Path) -> list[tuple[int, float]]:
    rows = json.loads(path.with_suffix(".json").read_text())["epochs"]
    return [(row["image_size"], row["epoch"]) for row in rows]
