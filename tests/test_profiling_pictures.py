"""Lists of pictures: files, folders, globs, parquet and tar shards; labels; what cannot be read."""

import hashlib
import io
import json
import os
import pickle
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from cifar import coloured, write_sheets
from examples import assert_clear_error, picture
from pyarrow import parquet

from vitviz.common.images import ImageError
from vitviz.profiling import Entry, ProfileError, list_pictures
from vitviz.profiling.entries import with_absolute_paths
from vitviz.profiling.pictures import source_names


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
    entries = list_pictures(folder)
    assert [Path(entry.name).name for entry in entries] == ["a.PNG", "b.png", "c.png"]
    for entry, seed in zip(entries, (1, 0, 2), strict=True):
        assert_read(entry, seed)


def test_globs_and_files_are_listed_in_the_order_in_which_they_are_given(folder: Path) -> None:
    entries = list_pictures([folder / "deep" / "c.png", f"{folder}/*.png"])
    assert [Path(entry.name).name for entry in entries] == ["c.png", "b.png"]
    deep = list_pictures(f"{folder}/**/*.png")
    assert [Path(entry.name).name for entry in deep] == ["b.png", "c.png"]


def test_where_pictures_come_from_is_said_in_words(folder: Path, tmp_path: Path) -> None:
    write_sheets(tmp_path / "packed.parquet", coloured(10, seed=1))
    assert (
        source_names(list_pictures([folder, tmp_path / "packed.parquet"]))
        == "pictures, deep, packed.parquet"
    )
    assert source_names(list_pictures([picture(20, 16)])) == "pictures in memory"
    entries = [Entry(f"{n}/a.png", f"class{n}/a.png") for n in range(5)]
    assert source_names(entries) == "class0, class1, class2 and 2 more"


def test_pictures_themselves_are_numbered() -> None:
    image = picture(20, 16, seed=3)
    entries = list_pictures([image, png(4)])
    assert [entry.name for entry in entries] == ["picture 1", "picture 2"]
    assert entries[0].read() == (image, hashlib.sha256(image.tobytes()).hexdigest())
    assert_read(entries[1], 4)


def test_entries_can_be_read_from_another_folder(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    found = with_absolute_paths(list_pictures(["a.PNG", png(4)]))
    monkeypatch.chdir(tmp_path)
    assert [entry.name for entry in found] == ["a.PNG", "picture 2"]
    for entry, seed in zip(found, (1, 4), strict=True):
        assert_read(entry, seed)


def test_rows_of_a_parquet_file_are_pictures(tmp_path: Path) -> None:
    cells = [png(seed) for seed in range(5)]
    path = tmp_path / "rows.parquet"
    parquet.write_table(
        pa.table({"image": cells, "label": [4, 3, 2, 1, 0]}), path, row_group_size=2
    )
    entries = list_pictures(path)
    assert [entry.label for entry in entries] == [4, 3, 2, 1, 0]
    assert len({entry.name for entry in entries}) == 5
    for seed in (3, 0, 4, 2, 1):
        assert_read(entries[seed], seed)


def test_a_parquet_file_that_is_written_again_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    for seeds in ([0, 1], [2, 3], [3, 2]):
        cells = [png(seed) for seed in seeds]
        parquet.write_table(pa.table({"image": cells, "label": seeds}), path, compression="none")
        entries = list_pictures(path)
        assert [entry.label for entry in entries] == seeds
        for entry, seed in zip(entries, seeds, strict=True):
            assert_read(entry, seed)


def test_tiles_of_packed_sheets_are_pictures(tmp_path: Path) -> None:
    split = coloured(30, seed=1)
    write_sheets(tmp_path / "packed.parquet", split)
    entries = list_pictures(tmp_path / "packed.parquet")
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
    entries = list_pictures(tmp_path / "shard.tar")
    assert [entry.label for entry in entries] == [7, "fox", 5, None]
    for seed, entry in enumerate(entries, 1):
        assert_read(entry, seed)


# --- labels ------------------------------------------------------------------------------------


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
        list_pictures(folder, labels=labels)
    assert_clear_error(caught.value)


def test_a_seed_chooses_so_many_in_their_order(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number:02}.png").write_bytes(b"")
    everything = [entry.name for entry in list_pictures(tmp_path)]
    chosen = [list_pictures(tmp_path, labels=range(30), limit=9, seed=seed) for seed in (0, 0, 1)]
    assert chosen[0] == chosen[1] != chosen[2]
    for entries in chosen:
        names = [entry.name for entry in entries]
        assert names == [name for name in everything if name in names]
        assert len(names) == 9
        assert [entry.label for entry in entries] == [everything.index(name) for name in names]
    assert [entry.name for entry in list_pictures(tmp_path, limit=99)] == everything


# --- what cannot be read -----------------------------------------------------------------------


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    for source, words in (
        (tmp_path / "missing.png", "There is no file"),
        (f"{tmp_path}/*.jpg", "There is no file"),
        (tmp_path, "found none"),
        ([], "found none"),
    ):
        with pytest.raises(ProfileError, match=words) as caught:
            list_pictures(source)
        assert_clear_error(caught.value)


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
            list_pictures(tmp_path / name)


def test_a_picture_that_cannot_be_read_is_an_image_error(folder: Path, tmp_path: Path) -> None:
    (folder / "b.png").write_bytes(b"no picture")
    gone = list_pictures(folder / "a.PNG")[0]
    (folder / "a.PNG").unlink()
    empty = tmp_path / "empty.parquet"
    parquet.write_table(pa.table({"image": pa.array([None], pa.binary())}), empty)
    for entry in (gone, list_pictures(folder / "b.png")[0], list_pictures(empty)[0]):
        with pytest.raises(ImageError):
            entry.read()


def test_entries_can_be_sent_to_another_process(tmp_path: Path) -> None:
    write_tar(tmp_path / "shard.tar", {"a.png": png(1)})
    for entry in [*list_pictures(tmp_path), *list_pictures([picture(20, 16, seed=1)])]:
        again = pickle.loads(pickle.dumps(entry))
        assert np.array_equal(np.asarray(again.read()[0]), np.asarray(picture(20, 16, seed=1)))


# --- each picture once ---------------------------------------------------------------------------


def names(root: Path, entries: list[Entry]) -> list[str]:
    return [Path(entry.name).relative_to(root).as_posix() for entry in entries]


def test_a_picture_is_listed_once_whatever_leads_to_it(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (folder / "again.png").symlink_to(folder / "b.png")
    (folder / "0_deep").symlink_to(folder / "deep")
    (tmp_path / "link").symlink_to(folder)
    sources: tuple[list[str | Path], ...] = (
        [folder, folder],
        [folder, "pictures", "./pictures/../pictures"],
        [folder, f"{folder}/*.png", "pictures/**/*.*g"],
        [folder, tmp_path / "link", tmp_path / "link" / "a.PNG"],
    )
    for given in sources:
        notes: list[str] = []
        assert names(folder, list_pictures(given, notes=notes)) == ["a.PNG", "b.png", "deep/c.png"]
        assert len(notes) == 1
        assert "Counted once, though given again: " in notes[0]
    write_tar(tmp_path / "s.tar", {"a.png": png(1), "b.png": png(2)})
    assert len(list_pictures([tmp_path / "s.tar", f"{tmp_path}/*.tar"])) == 2


@pytest.mark.parametrize("part", ["part-00000-c000.snappy.parquet", "0_000000.parquet"])
def test_a_folder_called_parquet_is_read_as_one(tmp_path: Path, part: str) -> None:
    data = tmp_path / "data" / "all.parquet"
    data.mkdir(parents=True)
    for number, name in enumerate((part, f"x{part}")):
        parquet.write_table(pa.table({"image": [png(number)], "label": [number]}), data / name)
    (data / "_SUCCESS").write_bytes(b"")
    (data / f".{part}.crc").write_bytes(b"crc")
    for given in (data, tmp_path, f"{tmp_path}/*/*.parquet"):
        entries = list_pictures(given)
        assert [entry.label for entry in entries] == [0, 1]
        assert source_names(entries) == "all.parquet"


def test_hidden_files_and_folders_are_left_out(folder: Path, tmp_path: Path) -> None:
    for name in (".ipynb_checkpoints/b.png", "._b.png", "__MACOSX/._b.png", "deep/.thumbs/c.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(png(9))
    assert names(folder, list_pictures(folder)) == ["a.PNG", "b.png", "deep/c.png"]
    members = {"a.png": png(1), "._a.png": b"x", "__MACOSX/a.png": png(1), "x/.y/a.png": png(1)}
    write_tar(tmp_path / "s.tar", members)
    assert len(list_pictures(tmp_path / "s.tar")) == 1
    hidden = folder / "deep" / ".thumbs"
    assert len(list_pictures(hidden)) == 1  # which was asked for


def test_loops_and_dead_links_are_said(folder: Path) -> None:
    (folder / "deep" / "loop").symlink_to(folder)
    (folder / "up").symlink_to(folder.parent)
    (folder / "dead.png").symlink_to(folder / "gone.png")
    notes: list[str] = []
    entries = list_pictures(folder, notes=notes)
    assert names(folder, entries) == ["a.PNG", "b.png", "dead.png", "deep/c.png"]
    links = sorted(note.split(" leads back")[0] for note in notes)
    assert links == [f"The link {folder}/{name}" for name in ("deep/loop", "up")]
    with pytest.raises(ImageError, match=r"leads to .*gone\.png, which does not exist"):
        entries[2].read()


def test_pictures_of_other_endings_are_listed(folder: Path) -> None:
    data = io.BytesIO()
    picture(20, 16).save(data, "JPEG")
    for name in ("d.jfif", "e.jpe", "f.pjpeg", "g", "h.jpg_large"):
        (folder / name).write_bytes(data.getvalue())
    heic = b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + bytes(100)
    for name in ("i.HEIC", "j.hif", "k.photo"):
        (folder / name).write_bytes(heic)
    for name in ("README", "z.bin", "BMI.dat", "paper.pdf", "film.mp4"):
        content = {"BMI.dat": b"BM of 20 people", "paper.pdf": b"%PDF-1.7"}.get(name, b"text")
        (folder / name).write_bytes(content)
    found = names(folder, list_pictures(folder))
    assert found == [
        *("a.PNG", "b.png", "d.jfif", "deep/c.png", "e.jpe", "f.pjpeg", "g", "h.jpg_large"),
        *("i.HEIC", "j.hif", "k.photo"),
    ]
    for entry in list_pictures(folder)[-3:]:
        with pytest.raises(ImageError, match="HEIC is not supported"):
            entry.read()


def test_dots_in_the_names_of_members_are_part_of_them(tmp_path: Path) -> None:
    members = {
        "my.cat.1.jpg": png(1),
        "my.cat.1.cls": b"4",
        "my.cat.2.jpg": png(2),
        "my.cat.2.json": b'{"label": 0}',
    }
    write_tar(tmp_path / "a.tar", members)
    assert [entry.label for entry in list_pictures(tmp_path / "a.tar")] == [4, 0]
    write_tar(tmp_path / "b.tar", {"v1.jpg": png(1), "v1.0.jpg": png(2), "v1.png": png(3)})
    assert len(list_pictures(tmp_path / "b.tar")) == 3


def test_masks_of_a_sample_are_left_out_and_said(tmp_path: Path) -> None:
    members: dict[str, bytes] = {}
    for number in range(5):
        members |= {f"{number}.seg.png": png(9), f"{number}.jpg": png(number)}
        members |= {f"{number}.depth.png": png(8), f"{number}.cls": f"{number}".encode()}
    write_tar(tmp_path / "a.tar", members)
    notes: list[str] = []
    entries = list_pictures(tmp_path / "a.tar", notes=notes)
    assert [entry.label for entry in entries] == [0, 1, 2, 3, 4]
    for number, entry in enumerate(entries):
        assert_read(entry, number)
    assert notes[0].startswith("10 pictures left out, as the sample has another one: ")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.cls", b"7" * 1_000_001, "1,000,001 bytes"),
        ("a.json", b"[" * 100_000, "recursion"),
        ("a.json", b"not json", "Expecting value"),
        ("a.json", b'{"label": [1]}', "got [1]"),
    ],
)
def test_a_label_that_is_none_is_said(
    tmp_path: Path, name: str, content: bytes, words: str
) -> None:
    write_tar(tmp_path / "a.tar", {"a.png": png(1), name: content})
    notes: list[str] = []
    assert [entry.label for entry in list_pictures(tmp_path / "a.tar", notes=notes)] == [None]
    assert f"a.tar:{name} is left out" in notes[0]
    assert words in notes[0]


def test_brackets_that_exist_are_no_glob(tmp_path: Path) -> None:
    (tmp_path / "a[1]").mkdir()
    (tmp_path / "a1").mkdir()
    for name in ("a[1]/x.png", "a[1]/[y].png", "a1/z.png"):
        (tmp_path / name).write_bytes(png(1))
    assert names(tmp_path, list_pictures(tmp_path / "a[1]" / "[y].png")) == ["a[1]/[y].png"]
    assert names(tmp_path, list_pictures(f"{tmp_path}/a[1]/*.png")) == [
        "a[1]/[y].png",
        "a[1]/x.png",
    ]
    assert names(tmp_path, list_pictures(f"{tmp_path}/a[12]/*.png")) == ["a1/z.png"]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "pipe.jpg")
    os.mkfifo(folder / "pipe")
    entries = list_pictures(folder)
    assert names(folder, entries) == ["a.PNG", "b.png", "deep/c.png", "pipe.jpg"]
    with pytest.raises(ImageError, match="got a pipe"):
        entries[3].read()


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_names_that_are_not_utf_8_are_written_as_bytes(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path / "x") + b"\xff"
    os.mkdir(folder)
    with open(folder + b"/\xe9.png", "wb") as file:
        file.write(png(1))
    table = pa.table({"image": [png(2)]})
    with open(folder + b"/\xe9.parquet", "wb") as file:
        parquet.write_table(table, file)
    entries = list_pictures(os.fsdecode(folder))
    assert [Path(entry.name).name for entry in entries] == ["\\xe9.parquet:0", "\\xe9.png"]
    assert source_names(entries) == "\\xe9.parquet, x\\xff"
    assert_read(entries[0], 2)
    assert_read(entries[1], 1)
    for entry in entries:
        entry.name.encode()


# --- parquet files that hold something else -----------------------------------------------------


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (pa.array(["0.jpg"]), "image of .* holds string. Expected the bytes"),
        (pa.array([{"path": "a.jpg", "data": b"x"}]), "holds struct<"),
        (pa.array([{"bytes": "text"}]), "holds struct<"),
        (pa.array([7]), "holds int64"),
    ],
)
def test_a_column_that_holds_no_pictures_is_one_clear_error(
    folder: Path, tmp_path: Path, column: Any, words: str
) -> None:
    path = folder / "table.parquet"
    parquet.write_table(pa.table({"image": column}), path)
    with pytest.raises(ProfileError, match=words) as caught:
        list_pictures(path)
    assert len(str(caught.value)) < 400
    notes: list[str] = []
    assert len(list_pictures(folder, notes=notes)) == 3  # the pictures beside it
    assert notes == [str(caught.value)]


def test_pictures_are_found_under_any_name_where_the_type_says_so(tmp_path: Path) -> None:
    cells = pa.array([{"bytes": png(1), "path": "a.png"}, {"bytes": None, "path": "b.png"}])
    parquet.write_table(pa.table({"text": ["a", "b"], "photo": cells}), tmp_path / "a.parquet")
    first, second = list_pictures(tmp_path)
    assert_read(first, 1)
    with pytest.raises(ImageError, match=r"only the path b\.png"):
        second.read()


def test_a_damaged_row_group_is_an_image_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    parquet.write_table(pa.table({"image": [png(seed) for seed in range(9)]}), path)
    data = bytearray(path.read_bytes())
    data[20:400] = bytes(380)
    path.write_bytes(data)
    for entry in list_pictures(path):
        with pytest.raises(ImageError):
            entry.read()


def test_what_else_a_folder_holds_is_said(folder: Path) -> None:
    for name in ("more.tar.gz", "more.tgz", "more.zip"):
        (folder / name).write_bytes(b"x")
    notes: list[str] = []
    assert len(list_pictures(folder, notes=notes)) == 3
    assert len(notes) == 3
    assert all("is not read. Unpack it" in note for note in notes)
