"""Tiny-ImageNet from its file, and what is done to the pictures of a batch."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from cifar import noise_pictures, write_things
from torch import Tensor
from torch.testing import assert_close

from vitviz.training import (
    Split,
    colour_jitter,
    cutmix,
    flip_and_shift,
    load,
    random_resized_crop,
)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_things_are_read_from_parquet(tmp_path: Path) -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (6, 64, 64, 3), dtype=np.uint8)
    labels, classes = [2, 0, 199, 1, 1, 0], [f"thing {number}" for number in range(200)]
    write_things(tmp_path / "tiny_imagenet_train.parquet", pictures[:4], labels[:4], classes)
    write_things(tmp_path / "tiny_imagenet_val.parquet", pictures[4:], labels[4:], classes)
    for name, places in (("train", slice(0, 4)), ("test", slice(4, 6))):
        split = load(tmp_path, "tiny_imagenet", name)
        np.testing.assert_array_equal(split.pictures, pictures[places])
        assert split.pictures.dtype == np.uint8
        assert split.labels.tolist() == labels[places]
        assert split.labels.dtype == np.int64
        assert split.classes == tuple(classes)
        assert split.mean != Split.mean  # its own, not CIFAR's


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100", "tiny_imagenet"])
def test_missing_pictures_are_told(dataset: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"No train pictures of {dataset} in"):
        load(tmp_path, dataset, "train")


@pytest.mark.parametrize(
    "change",
    [
        lambda pictures, chance: flip_and_shift(pictures, 4, chance),
        lambda pictures, chance: random_resized_crop(pictures, 32, 0.3, chance),
        lambda pictures, chance: colour_jitter(pictures, 0.2, chance),
    ],
    ids=["shift", "crop", "colour"],
)
def test_a_change_depends_on_its_generator_alone(
    change: Callable[[Tensor, torch.Generator], Tensor],
) -> None:
    pictures = noise_pictures(8)
    first, again, other = (change(pictures, seeded(seed)) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


# --- windows ------------------------------------------------------------------------------------


def ramps(count: int, side: int) -> Tensor:
    """Red grows from left to right, green from top to bottom."""
    steps = torch.arange(side) * (255 / (side - 1))
    pictures = torch.zeros(count, side, side, 3)
    pictures[..., 0] = steps
    pictures[..., 1] = steps[:, None]
    return pictures.round().byte()


def test_windows_have_the_area_and_the_shape_asked_for() -> None:
    side = 64
    cut = random_resized_crop(ramps(500, side), 32, 0.25, seeded()).float() / 255
    across = cut[:, 16, -1, 0] - cut[:, 16, 0, 0]  # 31 of 32 steps of the window's width
    down = cut[:, -1, 16, 1] - cut[:, 0, 16, 1]
    width, height = (span * 32 / 31 * (side - 1) / side for span in (across.abs(), down))
    area, shape = width * height, width / height
    assert (down > 0).all()  # never upside down
    assert 0.4 < (across < 0).float().mean() < 0.6  # half are mirrored
    assert area.min() > 0.24
    assert area.max() < 1.03
    assert area.min() < 0.3
    assert 0.27 < shape.log().abs().max() < 0.3  # the logarithm of 4 / 3 is 0.288


# --- colours ------------------------------------------------------------------------------------


def test_colours_change_within_their_bounds() -> None:
    grey = torch.full((200, 4, 4, 3), 100, dtype=torch.uint8)
    changed = colour_jitter(grey, 0.2, seeded())
    assert changed.dtype == torch.uint8
    assert changed.min() >= 80
    assert changed.max() <= 120
    assert changed.float().std() > 5
    assert (changed == changed[..., :1]).all()  # what is grey stays grey


def test_no_share_changes_no_colour() -> None:
    pictures = noise_pictures(4)
    assert (colour_jitter(pictures, 0.0, seeded()).int() - pictures.int()).abs().max() <= 1


# --- CutMix -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_cutmix_labels_are_the_shares_of_the_area(seed: int) -> None:
    count, side = 8, 16
    pictures = torch.arange(count, dtype=torch.uint8)[:, None, None, None].expand(-1, side, side, 3)
    mixed, labels = cutmix(pictures, torch.eye(count), seeded(seed))
    assert mixed.shape == pictures.shape
    assert_close(labels.sum(dim=1), torch.ones(count))
    for number in range(count):
        shares = torch.bincount(mixed[number, ..., 0].flatten().int(), minlength=count) / side**2
        assert_close(labels[number], shares)
    assert torch.equal(pictures[:, 0, 0, 0], torch.arange(count, dtype=torch.uint8))  # untouched


def test_cutmix_windows_are_of_every_size() -> None:
    pictures = torch.zeros(2, 32, 32, 3, dtype=torch.uint8)
    shares = []
    for seed in range(200):
        _, labels = cutmix(pictures, torch.eye(2), seeded(seed))
        shares.append(float(labels[0].min()))
    assert min(shares) == 0
    assert max(shares) > 0.45
