"""Read the datasets CIFAR-10, CIFAR-100 and Tiny-ImageNet from files, and normalise them."""

import io
import json
import pickle
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

CIFAR_SIDE = 32  # of CIFAR's pictures, in pixels
# Mean and standard deviation of CIFAR-10's training pictures, per channel, of values in 0..1.
MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)
# Those of Tiny-ImageNet's.
THINGS_MEAN, THINGS_STD = (0.4802, 0.4481, 0.3975), (0.2764, 0.2689, 0.2816)

Triple = tuple[float, float, float]


@dataclass(frozen=True)
class Split:
    """Pictures, uint8 of shape (n, side, side, 3), their labels of shape (n,) and class names.

    `mean` and `std` normalise the channels of a model's input. `lossy_format` is that of the copies
    that were read, if it changes pixels.
    """

    pictures: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    mean: Triple = MEAN
    std: Triple = STD
    lossy_format: str = ""

    def __getitem__(self, places: slice | np.ndarray) -> "Split":
        """Return the split of the pictures at these places."""
        return replace(self, pictures=self.pictures[places], labels=self.labels[places])


def load(folder: Path, dataset: str, split: str, *, last: int | None = None) -> Split:
    """Read the training or test split of "cifar10", "cifar100" or "tiny_imagenet".

    `last` reads only that many pictures from its end: those that training held out.

    Raises
    ------
    ValueError
        When the folder does not hold it.
    """
    if dataset == "tiny_imagenet":
        return load_tiny_imagenet(folder, split, last=last)
    whole = load_cifar(folder, dataset, split)
    return whole if last is None else whole[len(whole.labels) - last :]


def load_tiny_imagenet(folder: Path, split: str, *, last: int | None = None) -> Split:
    """Read Tiny-ImageNet-200 from `tiny_imagenet_train.parquet` or `tiny_imagenet_val.parquet`.

    A row holds `image`, the bytes of a picture file, and `label`; the schema's metadata hold
    `names`, the classes as JSON. The pictures of `val` are the test split, as those of the
    dataset's own test split have no labels.

    Raises
    ------
    ValueError
        When the folder does not hold it.
    """
    from pyarrow import parquet

    path = folder / f"tiny_imagenet_{'train' if split == 'train' else 'val'}.parquet"
    if not path.exists():
        raise ValueError(f"No {split} pictures of tiny_imagenet in {folder}.")
    table = parquet.read_table(path, columns=["image", "label"])
    if last is not None:
        table = table.slice(len(table) - last)
    rows = (file.as_buffer() for file in table["image"])
    pictures = np.stack([np.asarray(Image.open(io.BytesIO(row)).convert("RGB")) for row in rows])
    classes = tuple(json.loads(table.schema.metadata[b"names"]))
    labels = np.asarray(table["label"]).astype(np.int64)
    return Split(pictures, labels, classes, THINGS_MEAN, THINGS_STD)


def load_cifar(folder: Path, dataset: str, split: str) -> Split:
    """Read CIFAR from parquet files of picture sheets, or from the original python pickles.

    Parameters
    ----------
    folder : Path
        Holds one `cifar10_train*.parquet` and one `cifar10_test*.parquet`, or
        `cifar-10-batches-py/` (or that folder's files themselves); for CIFAR-100 likewise.
    dataset : "cifar10" or "cifar100"
    split : "train" or "test"

    Raises
    ------
    ValueError
        When the folder has neither, or several parquet files of the split.
    """
    sheets = sorted(folder.glob(f"{dataset}_{split}*.parquet"))
    if len(sheets) > 1:  # parts of the split, or copies of it in several formats
        found = ", ".join(path.name for path in sheets)
        raise ValueError(
            f"{folder} holds several files of the {split} pictures of {dataset}: {found}. Keep one "
            "that has all of them."
        )
    if sheets:
        return _from_sheets(sheets[0])
    folders = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}
    if dataset not in folders:
        raise ValueError(f"Expected cifar10 or cifar100, got {dataset}.")
    batches = folder / folders[dataset]
    batches = batches if batches.is_dir() else folder
    names = {"train": "data_batch_*", "test": "test_batch"} if dataset == "cifar10" else {}
    files = sorted(batches.glob(names.get(split, split)))
    if not files:
        raise ValueError(f"No {split} pictures of {dataset} in {folder}.")
    return _from_pickles(files, batches)


def _from_sheets(path: Path) -> Split:
    from pyarrow import parquet

    table = parquet.read_table(path)
    pictures, lossy = [], set[str]()
    for sheet in table["sheet"].to_pylist():
        image = Image.open(io.BytesIO(sheet))
        if image.format in ("AVIF", "JPEG"):
            lossy.add(image.format)
        tiles = np.asarray(image.convert("RGB"))
        rows, cols = tiles.shape[0] // CIFAR_SIDE, tiles.shape[1] // CIFAR_SIDE
        tiles = tiles.reshape(rows, CIFAR_SIDE, cols, CIFAR_SIDE, 3).swapaxes(1, 2)
        pictures.append(tiles.reshape(-1, CIFAR_SIDE, CIFAR_SIDE, 3))
    labels = np.frombuffer(b"".join(table["label"].to_pylist()), np.uint8)
    classes = json.loads(table.schema.metadata[b"classes"])
    whole = Split(np.concatenate(pictures), labels.astype(np.int64), tuple(classes))
    return replace(whole, lossy_format=", ".join(sorted(lossy)))


class _ArraysOnly(pickle.Unpickler):
    """Unpickle only the dicts, bytes and arrays of CIFAR, as anything else might run code."""

    allowed = frozenset(
        {
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),  # its name since numpy 2
            ("numpy", "ndarray"),
            ("numpy", "dtype"),
            ("_codecs", "encode"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.allowed:
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a CIFAR file.")


def _from_pickles(files: list[Path], folder: Path) -> Split:
    def read(path: Path) -> dict[bytes, Any]:
        with path.open("rb") as file:
            content: dict[bytes, Any] = _ArraysOnly(file, encoding="bytes").load()
        return content

    batches = [read(path) for path in files]
    label_key, name_key = (
        (b"labels", b"label_names")
        if b"labels" in batches[0]
        else (b"fine_labels", b"fine_label_names")
    )
    meta = read(folder / ("batches.meta" if label_key == b"labels" else "meta"))
    pictures = np.concatenate([batch[b"data"] for batch in batches]).reshape(
        -1, 3, CIFAR_SIDE, CIFAR_SIDE
    )
    labels = np.concatenate([np.asarray(batch[label_key], np.int64) for batch in batches])
    classes = tuple(name.decode() for name in meta[name_key])
    return Split(np.ascontiguousarray(pictures.transpose(0, 2, 3, 1)), labels, classes)


def normalise(pictures: Tensor, image_size: int, mean: Triple = MEAN, std: Triple = STD) -> Tensor:
    """Turn uint8 (n, side, side, 3) into the model's input (n, 3, image_size, image_size)."""
    x = pictures.permute(0, 3, 1, 2).float() / 255
    if image_size != x.shape[-1]:
        x = F.interpolate(x, size=image_size, mode="bicubic", antialias=True).clamp(0, 1)
    centre, spread = (
        torch.tensor(values, device=x.device)[:, None, None] for values in (mean, std)
    )
    return (x - centre) / spread
