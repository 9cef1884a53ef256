"""Lists of pictures: files, folders, globs, parquet and tar shards; labels; what cannot be read."""

import hashlib
import io
import json
import pickle
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cifar import coloured, write_sheets
from examples import assert_one_sentence, picture
from pyarrow import parquet

from vitviz.images import ImageError
from vitviz.profiling import Entry, ProfileError, listed
from vitviz.profiling.pictures import absolute, named


def png(seed: int) -> bytes:
    file = io.BytesIO()
    picture(20, 16, seed=seed).save(file, "PNG")
    return file.getvalue()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for seed, name in enumerate(("b.png", "a.PNG", "deep/c.png")):
        path = tmp_path / "pictures" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    (tmp_path / "pictures" / "notes.txt").write_text("no picture")
    return tmp_path / "pictures"


def write_tar(path: Path, members: dict[str, bytes]) -> None:
    with tarfile.open(path, "w") as shard:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            shard.addfile(info, io.BytesIO(data))


def assert_read(entry: Entry, seed: int) -> None:
    image, digest = entry.read()
    assert np.array_equal(np.asarray(image), np.asarray(picture(20, 16, seed=seed)))
    assert digest == hashlib.sha256(png(seed)).hexdigest()


def test_a_folder_stands_for_all_pictures_in_it_by_name(folder: Path) -> None:
    entries = listed(folder)
    assert [Path(entry.name).name for entry in entries] == ["a.PNG", "b.png", "c.png"]
    for entry, seed in zip(entries, (1, 0, 2), strict=True):
        assert_read(entry, seed)


def test_globs_and_files_are_listed_in_the_order_in_which_they_are_given(folder: Path) -> None:
    entries = listed([folder / "deep" / "c.png", f"{folder}/*.png"])
    assert [Path(entry.name).name for entry in entries] == ["c.png", "b.png"]
    deep = listed(f"{folder}/**/*.png")
    assert [Path(entry.name).name for entry in deep] == ["b.png", "c.png"]


def test_where_pictures_come_from_is_said_in_words(folder: Path, tmp_path: Path) -> None:
    write_sheets(tmp_path / "packed.parquet", coloured(10, seed=1))
    assert named(listed([folder, tmp_path / "packed.parquet"])) == "pictures, deep, packed.parquet"
    assert named(listed([picture(20, 16)])) == "pictures in memory"
    entries = [Entry(f"{n}/a.png", f"class{n}/a.png") for n in range(5)]
    assert named(entries) == "class0, class1, class2 and 2 more"


def test_pictures_themselves_are_numbered() -> None:
    image = picture(20, 16, seed=3)
    entries = listed([image, png(4)])
    assert [entry.name for entry in entries] == ["picture 1", "picture 2"]
    assert entries[0].read() == (image, hashlib.sha256(image.tobytes()).hexdigest())
    assert_read(entries[1], 4)


def test_entries_can_be_read_from_another_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = absolute(listed(["a.PNG", png(4)]))
    monkeypatch.chdir(tmp_path)
    assert [entry.name for entry in found] == ["a.PNG", "picture 2"]
    for entry, seed in zip(found, (1, 4), strict=True):
        assert_read(entry, seed)


@pytest.mark.parametrize("wrapped", [False, True], ids=["bytes", "as Hugging Face writes it"])
def test_rows_of_a_parquet_file_are_pictures(tmp_path: Path, wrapped: bool) -> None:
    cells: list[Any] = [png(seed) for seed in range(5)]
    if wrapped:
        cells = [{"bytes": cell, "path": None} for cell in cells]
    path = tmp_path / "rows.parquet"
    parquet.write_table(
        pa.table({"image": cells, "label": [4, 3, 2, 1, 0]}), path, row_group_size=2
    )
    entries = listed(path)
    assert [entry.label for entry in entries] == [4, 3, 2, 1, 0]
    assert len({entry.name for entry in entries}) == 5
    for seed in (3, 0, 4, 2, 1):
        assert_read(entries[seed], seed)


def test_tiles_of_packed_sheets_are_pictures(tmp_path: Path) -> None:
    split = coloured(30, seed=1)
    write_sheets(tmp_path / "packed.parquet", split)
    entries = listed(tmp_path / "packed.parquet")
    assert [entry.label for entry in entries] == [split.classes[label] for label in split.labels]
    for entry, pixels in zip(entries, split.pictures, strict=True):
        image, digest = entry.read()
        assert np.array_equal(np.asarray(image), pixels)
        assert digest == hashlib.sha256(pixels.tobytes()).hexdigest()


def test_members_of_a_tar_shard_are_pictures(tmp_path: Path) -> None:
    members = {
        "0001.png": png(1),
        "0001.cls": b"7\n",
        "0002.cls": b"fox",
        "0002.png": png(2),
        "deep/0003.seg.png": png(3),
        "deep/0003.json": json.dumps({"label": 5}).encode(),
        "0004.png": png(4),
        "0004.txt": b"a caption",
    }
    write_tar(tmp_path / "shard.tar", members)
    entries = listed(tmp_path / "shard.tar")
    assert [entry.label for entry in entries] == [7, "fox", 5, None]
    for seed, entry in enumerate(entries, 1):
        assert_read(entry, seed)


def test_a_folder_of_shards_is_all_of_their_pictures(tmp_path: Path) -> None:
    for number in (2, 1):
        write_tar(tmp_path / f"{number}.tar", {"a.png": png(number)})
    first, second = listed(tmp_path)
    assert_read(first, 1)
    assert_read(second, 2)


# --- labels ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lines", "labels"),
    [
        ("a.PNG,3\nb.png,4\nc.png,owl\n", [3, 4, "owl"]),
        ("c.png, 1\n\na.PNG, 2\nb.png, 0", [2, 0, 1]),
        ("5\n6\n7\n", [5, 6, 7]),
    ],
)
def test_labels_of_a_file(folder: Path, lines: str, labels: list[int | str]) -> None:
    (folder / "labels.csv").write_text(lines)
    assert [entry.label for entry in listed(folder, labels=folder / "labels.csv")] == labels


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ({"a.PNG": 1}, "lack one for"),
        ([1, 2], "Expected 3 labels, got 2"),
        ("nothing.csv", "cannot be read"),
    ],
)
def test_labels_that_do_not_fit_are_refused(folder: Path, labels: Any, words: str) -> None:
    with pytest.raises(ProfileError, match=words) as caught:
        listed(folder, labels=labels)
    assert_one_sentence(caught.value)


def test_labels_belong_to_the_pictures_that_are_chosen(folder: Path) -> None:
    for entry in listed(folder, labels=[10, 11, 12], limit=2, seed=3):
        assert entry.label == {"a.PNG": 10, "b.png": 11, "c.png": 12}[Path(entry.name).name]


def test_a_seed_chooses_so_many_in_their_order(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_bytes(b"")
    everything = [entry.name for entry in listed(tmp_path)]
    chosen = [[entry.name for entry in listed(tmp_path, limit=9, seed=seed)] for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    for names in chosen:
        assert names == [name for name in everything if name in names]
        assert len(names) == 9
    assert [entry.name for entry in listed(tmp_path, limit=99)] == everything


# --- what cannot be read -----------------------------------------------------------------------


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for source, words in (
        (tmp_path / "missing.png", "There is no file"),
        (f"{tmp_path}/*.jpg", "There is no file"),
        (tmp_path, "found none"),
        ([], "found none"),
    ):
        with pytest.raises(ProfileError, match=words) as caught:
            listed(source)
        assert_one_sentence(caught.value)


def test_shards_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(b"no parquet")
    (tmp_path / "a.tar").write_bytes(b"no tar" * 200)
    (tmp_path / "a.tar.gz").write_bytes(b"")
    parquet.write_table(pa.table({"text": ["none"]}), tmp_path / "b.parquet")
    for name, words in (
        ("a.parquet", "cannot be read as parquet"),
        ("a.tar", "cannot be read as a tar file"),
        ("a.tar.gz", "is compressed"),
        ("b.parquet", "no column of pictures"),
    ):
        with pytest.raises(ProfileError, match=words):
            listed(tmp_path / name)


def test_a_picture_that_cannot_be_read_is_an_image_error(folder: Path, tmp_path: Path) -> None:
    (folder / "b.png").write_bytes(b"no picture")
    gone = listed(folder / "a.PNG")[0]
    (folder / "a.PNG").unlink()
    empty = tmp_path / "empty.parquet"
    parquet.write_table(pa.table({"image": pa.array([None], pa.binary())}), empty)
    for entry in (gone, listed(folder / "b.png")[0], listed(empty)[0]):
        with pytest.raises(ImageError):
            entry.read()


def test_entries_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write_tar(tmp_path / "shard.tar", {"a.png": png(1)})
    for entry in [*listed(tmp_path), *listed([picture(20, 16, seed=1)])]:
        again = pickle.loads(pickle.dumps(entry))
        assert np.array_equal(np.asarray(again.read()[0]), np.asarray(picture(20, 16, seed=1)))
