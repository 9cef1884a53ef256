"""Labels of pictures: tables as Excel, R and pandas write them, class folders, names or numbers."""

import json
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unicodedata import normalize

import numpy as np
import pyarrow as pa
import pytest
import torch
from examples import picture
from pyarrow import parquet
from test_profiling_pictures import png, write_tar

from vitviz.profiling import Entry, ProfileError, list_pictures
from vitviz.profiling.labels import number_labels

ANIMALS = ("cat", "owl", "tench, Tinca tinca", "ship")


def model(*labels: str, num_classes: int = 0) -> Any:
    count = num_classes or len(labels)
    return SimpleNamespace(name="m", labels=labels or None, num_classes=count, has_one_answer=True)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Three pictures, two of which have the same name, and a working directory without any."""
    for seed, name in enumerate(("cat/1.png", "owl/1.png", "owl/2.png")):
        path = tmp_path / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(png(seed))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "data"


def numbers(entries: list[Entry], *classes: str, num_classes: int = 0) -> list[int | None]:
    found, reason = number_labels(entries, model(*classes, num_classes=num_classes), strict=True)
    assert reason is None
    labels = [entry.label for entry in found]
    assert not any(isinstance(label, (str, tuple)) for label in labels)
    return labels  # type: ignore[return-value]


def refused(pictures: Any, labels: Any, *classes: str, num_classes: int = 0) -> str:
    with pytest.raises(ProfileError) as caught:
        numbers(list_pictures(pictures, labels=labels), *classes, num_classes=num_classes)
    return str(caught.value)


# --- tables ------------------------------------------------------------------------------------

TABLES = {
    "plain": "a.png,cat\nb.png,owl\nc.png,ship\n",
    "quoted": '"a.png","cat"\n"b.png","owl"\n"c.png","ship"\n',
    "semicolons": "a.png;cat\r\nb.png;owl\r\nc.png;ship\r\n",
    "tabs": "a.png\tcat\nb.png\towl\nc.png\tship\n",
    "of Excel": "sep=;\r\nfile;class\r\na.png;cat\r\nb.png;owl\r\nc.png;ship\r\n",
    "a header": "image,label\na.png,cat\nb.png,owl\nc.png,ship\n",
    "label first": "label,image\ncat,a.png\nowl,b.png\nship,c.png\n",
    "no header, label first": "cat,a.png\nowl,b.png\nship,c.png\n",
    "an index of pandas": ",file,label\n0,a.png,cat\n1,b.png,owl\n2,c.png,ship\n",
    "row names of R": '"","file","y"\n"1","a.png","cat"\n"2","b.png","owl"\n"3","c.png","ship"\n',
    "an index without a header": "0,a.png,cat\n1,b.png,owl\n2,c.png,ship\n",
    "a third column": "a.png,cat,test\nb.png,owl,test\nc.png,ship,train\n",
    "a split before the label": "file,split,label\na.png,test,cat\nb.png,test,owl\nc.png,x,ship\n",
    "names and numbers": "a.png,cat,0\nb.png,owl,1\nc.png,ship,3\n",
    "more pictures than there are": "x/a.png,owl\na.png,cat\nb.png,owl\nc.png,ship\nd.png,dog\n",
    "backslashes": ".\\a.png,cat\n.\\b.png,owl\nphotos\\c.png,ship\n",
    "dots": "./a.png,cat\n../photos/b.png,owl\nx/../c.png,ship\n",
    "without endings": "id,breed\nc,ship\nb,owl\na,cat\n",
    "spaces, an empty line, another order": "c.png, ship\n\na.png, cat\nb.png, owl",
    "labels alone": "cat\nowl\nship\n",
    "labels alone, a header": "label\ncat\nowl\nship\n",
    "labels alone of R": '"x"\n"cat"\n"owl"\n"ship"\n',
    "labels and an index": ",0\n0,cat\n1,owl\n2,ship\n",
    "said twice": "a.png,cat\nb.png,owl\na.png,cat\nc.png,ship\n",
    "numbers": "a.png,0\nb.png,1\nc.png,3\n",
    "numbers of a column with gaps": "a.png,0.0\nb.png,1.0\nc.png,3.0\n",
    "numbers and names": "a.png,0\nb.png,owl\nc.png,3\n",
}


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos").mkdir()
    for seed, name in enumerate("abc"):
        (tmp_path / "photos" / f"{name}.png").write_bytes(png(seed))
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        *((name, "utf-8") for name in TABLES),
        *((name, code) for name in ("quoted", "of Excel") for code in ("utf-8-sig", "utf-16")),
    ],
)
def test_a_table_gives_every_picture_its_class(photos: Path, name: str, encoding: str) -> None:
    (photos / "labels.csv").write_text(TABLES[name], encoding=encoding, newline="")
    assert numbers(list_pictures(photos, labels=photos / "labels.csv"), *ANIMALS) == [0, 1, 3]


@pytest.mark.parametrize(
    "text",
    [
        "a.png,tench, Tinca tinca\nb.png,owl\nc.png,cat\n",
        'a.png,"tench, Tinca tinca"\nb.png,owl\nc.png,cat\n',
        "a.png;tench, Tinca tinca\nb.png;owl\nc.png;cat\n",
        "tench, Tinca tinca\nowl\ncat\n",
    ],
)
def test_a_comma_in_a_name_is_part_of_it(photos: Path, text: str) -> None:
    (photos / "labels.csv").write_text(text)
    assert numbers(list_pictures(photos, labels=photos / "labels.csv"), *ANIMALS) == [2, 1, 0]


def test_a_comma_in_a_file_name_is_part_of_it(tmp_path: Path) -> None:
    for name in ("a, b.png", "c, d.png"):
        (tmp_path / name).write_bytes(png(1))
    (tmp_path / "labels.csv").write_text("a, b.png,cat\nc, d.png,ship\n")
    assert numbers(list_pictures(tmp_path, labels=tmp_path / "labels.csv"), *ANIMALS) == [0, 3]


@pytest.mark.parametrize(("of_file", "of_table"), [("NFD", "NFC"), ("NFC", "NFD")])
@pytest.mark.parametrize(
    "text", ["고양이/é.png,고양이\n강아지/é.png,강아지\n나.png,강아지\n", "é,고양이\n나,강아지\n"]
)
def test_letters_may_be_composed_or_not(
    tmp_path: Path, of_file: Any, of_table: Any, text: str
) -> None:
    """macOS writes é and 고 in parts, and a spreadsheet writes them whole."""
    names = ("강아지/나.png", "고양이/é.png", "강아지/é.png")[: len(text.splitlines())]
    for seed, name in enumerate(names):
        path = tmp_path / normalize(of_file, name)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(png(seed))
    classes = [normalize(of_table, name) for name in ("강아지", "고양이")]
    expected = [0, 0, 1] if len(names) == 3 else [0, 1]
    assert numbers(list_pictures(tmp_path, labels=tmp_path), *classes) == expected
    (tmp_path / "labels.csv").write_text(normalize(of_table, text), encoding="utf-8")
    assert numbers(list_pictures(tmp_path, labels=tmp_path / "labels.csv"), *classes) == expected


def test_an_empty_cell_is_a_picture_without_a_label(photos: Path) -> None:
    (photos / "labels.csv").write_text("file,label\na.png,1.0\nb.png,\nc.png,3.0\n")
    assert numbers(list_pictures(photos, labels=photos / "labels.csv"), *ANIMALS) == [1, None, 3]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a.png,cat\nb.png,owl\n", "lack one for"),
        ("a.png,cat\nb.png,owl\nc.png,ship\na.png,owl\n", "two labels: cat in line 1 .* owl in"),
        ("a.png,0,1\nb.png,1,1\nc.png,3,1\n", r"of .*a\.png may be 0 or 1: more than one column"),
        ("a.png,cat,1\nb.png,owl,1\nc.png,ship,1\n", "may be cat or 1: more than one column"),
        ("a.png,cat\nb.png,owl\nc.png,dog\n", r"The label dog of .*c\.png is none of the 4"),
        ("a.png,0\nb.png,1\nc.png,4\n", "The label 4 of .* is none of the 4 classes of m"),
        ("cat\nowl\n", "Expected 3 labels, got 2"),
        ("a.png\nb.png\nc.png\n", "lack one for"),
        ("", "are empty"),
    ],
)
def test_a_table_with_two_meanings_or_none_is_refused(photos: Path, text: str, words: str) -> None:
    (photos / "labels.csv").write_text(text)
    with pytest.raises(ProfileError, match=words):
        numbers(list_pictures(photos, labels=photos / "labels.csv"), *ANIMALS)


def test_an_encoding_that_would_be_guessed_is_refused(photos: Path) -> None:
    (photos / "labels.csv").write_bytes("a.png,Käfer\n".encode("cp1252"))
    assert "CSV UTF-8" in refused(photos, photos / "labels.csv", *ANIMALS)


def test_numbers_of_lines_and_of_files_that_differ_are_refused(tmp_path: Path) -> None:
    for number in (1, 2, 10):
        (tmp_path / f"{number}.png").write_bytes(png(number))
    (tmp_path / "labels.csv").write_text("1,cat\n2,owl\n3,ship\n")
    said = refused(tmp_path, tmp_path / "labels.csv", *ANIMALS)
    assert "10.png, by the order" in said
    assert "2.png, by its number" in said


# --- paths -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        ("cat/1.png", "owl/1.png", "owl/2.png"),
        ("cat\\1.png", "owl\\1.png", "owl\\2.png"),
        ("./cat/1.png", "./owl/1.png", "2.png"),
        ("data/cat/1.png", "data/owl/1.png", "data/owl/2.png"),
        ("../data/cat/1.png", "../data/owl/1.png", "../data/owl/2.png"),
        ("{}/cat/1.png", "{}/owl/1.png", "{}/owl/2.png"),
    ],
)
def test_paths_say_which_of_two_files_of_a_name_is_meant(folder: Path, names: Any) -> None:
    lines = [
        f"{name.format(folder)},{label}\n" for name, label in zip(names, (3, 1, 0), strict=True)
    ]
    (folder / "labels.csv").write_text("".join(lines))
    for given in (folder, [folder / "cat", folder / "owl"], f"{folder}/*/*.png"):
        assert numbers(list_pictures(given, labels=folder / "labels.csv"), *ANIMALS) == [3, 1, 0]


def test_a_path_from_the_folder_is_meant_before_an_ending(folder: Path) -> None:
    (folder / "1.png").write_bytes(png(5))
    (folder / "labels.csv").write_text("cat/1.png,0\nowl/1.png,1\n2.png,1\n1.png,3\n")
    found = list_pictures(folder, labels=folder / "labels.csv")
    names = [Path(entry.name).relative_to(folder).as_posix() for entry in found]
    assert names == ["1.png", "cat/1.png", "owl/1.png", "owl/2.png"]
    assert [entry.label for entry in found] == ["3", "0", "1", "1"]


@pytest.mark.parametrize("labels", ["1.png,cat\n2.png,owl\n", {"1.png": "cat", "2.png": "owl"}])
def test_a_name_of_two_files_is_refused_with_both(folder: Path, labels: Any) -> None:
    if isinstance(labels, str):
        (folder / "labels.csv").write_text(labels)
        labels = folder / "labels.csv"
    said = refused(folder, labels, *ANIMALS)
    assert f"{folder}/cat/1.png or {folder}/owl/1.png" in said


def test_a_path_of_another_folder_is_no_picture_of_this_one(folder: Path) -> None:
    (folder / "labels.csv").write_text("dog/2.png,cat\n/x/cat/1.png,cat\nowl/1.png,cat\n")
    assert "lack one for" in refused(folder, folder / "labels.csv", *ANIMALS)


def test_members_of_a_shard_are_named_in_a_table(tmp_path: Path) -> None:
    write_tar(tmp_path / "s.tar", {"a/1.png": png(1), "b/1.png": png(2)})
    (tmp_path / "labels.csv").write_text("a/1.png,cat\ns.tar:b/1.png,owl\n")
    assert numbers(list_pictures(tmp_path, labels=tmp_path / "labels.csv"), *ANIMALS) == [0, 1]


# --- class folders -----------------------------------------------------------------------------


def test_class_folders_are_labels(folder: Path) -> None:
    (folder / "owl" / "deep").mkdir()
    (folder / "owl" / "deep" / "3.png").write_bytes(png(7))
    assert numbers(list_pictures(folder, labels=folder), *ANIMALS) == [0, 1, 1, 1]
    assert numbers(list_pictures(folder / "owl", labels=str(folder)), *ANIMALS) == [1, 1, 1]


def test_a_picture_outside_of_class_folders_is_refused(folder: Path) -> None:
    (folder / "9.png").write_bytes(png(7))
    assert "9.png has no label: it is in no class folder" in refused(folder, folder, *ANIMALS)


def test_numbered_folders_are_read_where_both_counts_agree(tmp_path: Path) -> None:
    for number in (0, 1, 2):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "a.png").write_bytes(png(number))
    assert numbers(list_pictures(tmp_path, labels=tmp_path), num_classes=5) == [0, 1, 2]
    (tmp_path / "10").mkdir()
    (tmp_path / "10" / "a.png").write_bytes(png(3))
    said = refused(tmp_path, tmp_path, num_classes=20)
    assert "class 10, by its name" in said
    assert "class 2, by its place" in said


# --- names or numbers --------------------------------------------------------------------------


def entries(*labels: Any) -> list[Entry]:
    return list_pictures([picture(8, 8, seed=n) for n in range(len(labels))], labels=labels)


@pytest.mark.parametrize(
    ("labels", "classes", "expected"),
    [
        (["3", "1"], ("0", "1", "2", "3"), [3, 1]),  # the name and the number agree
        ([0, 3], ("3", "2", "1", "0"), [0, 3]),  # of Python: a number is a number
        (["3", "owl"], ("3", "owl"), [0, 1]),  # all are names
        (["7", "9"], ("7", "8", "9"), [0, 2]),  # no class has the number 7
        (["2", "0"], ("cat", "owl", "2nd"), [2, 0]),
        ([2.0, np.float32(0), np.int8(1), None, float("nan")], ANIMALS, [2, 0, 1, None, None]),
        ([b"cat", "owl"], ANIMALS, [0, 1]),
        ([torch.tensor(2), np.array("owl")], ANIMALS, [2, 1]),
    ],
)
def test_labels_are_names_or_numbers(
    labels: list[Any], classes: tuple[str, ...], expected: list[int | None]
) -> None:
    assert numbers(entries(*labels), *classes) == expected


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        (["3", "1"], ("3", "2", "1", "0"), "label 3 of .* class 0, named 3, or class 3, named 0,"),
        (["1", "owl", "2"], ("2", "owl", "cat"), "label 2 of .* class 0, .* or class 2"),
        (["crane"], ("crane", "owl", "crane"), "class 0, named crane, or class 2, named crane"),
        ([True], ("a", "b"), "got True"),
        ([[1, 2]], ("a", "b"), r"got \[1, 2\]"),
        ([1.5], ("a", "b"), r"got 1\.5"),
        ([-1], ("a", "b"), "label -1 of picture 1 is none of the 2"),
    ],
)
def test_a_label_of_two_classes_is_refused_with_both(
    labels: list[Any], classes: tuple[str, ...], words: str
) -> None:
    with pytest.raises(ProfileError, match=words):
        numbers(entries(*labels), *classes)


# --- labels in parquet files -------------------------------------------------------------------


def write_rows(path: Path, labels: Any, metadata: dict[bytes, bytes] | None = None) -> Path:
    values = labels if isinstance(labels, (pa.Array, pa.DictionaryArray)) else pa.array(labels)
    table = pa.table({"image": [png(n) for n in range(len(values))], "label": values})
    parquet.write_table(table.replace_schema_metadata(metadata or {}), path)
    return path


def class_label(*names: str) -> dict[bytes, bytes]:
    """The schema's metadata as the library datasets of Hugging Face writes them."""
    features = {"image": {"_type": "Image"}, "label": {"names": names, "_type": "ClassLabel"}}
    return {b"huggingface": json.dumps({"info": {"features": features}}).encode()}


def test_names_of_classes_in_a_parquet_file_are_those_of_the_model(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "a.parquet", [1, 0, 1, -1], class_label("ship", "cat"))
    assert numbers(list_pictures(path), *ANIMALS) == [0, 3, 0, None]
    for known in (b'["ship", "cat"]', b'{"1": "cat", "0": "ship"}'):
        path = write_rows(tmp_path / "b.parquet", [1, 0], {b"names": known})
        assert numbers(list_pictures(path), *ANIMALS) == [0, 3]


def test_a_dictionary_of_pandas_holds_names(tmp_path: Path) -> None:
    column = pa.array(["ship", "cat", None, "ship"]).dictionary_encode()
    found = list_pictures(write_rows(tmp_path / "a.parquet", column))
    assert numbers(found, *ANIMALS) == [3, 0, None, 3]


def test_a_number_means_the_file_s_class_also_where_a_name_comes_twice(tmp_path: Path) -> None:
    names = ("crane", "owl", "crane")
    found = list_pictures(write_rows(tmp_path / "a.parquet", [2, 0, 1], class_label(*names)))
    assert numbers(pickle.loads(pickle.dumps(found)), *names) == [2, 0, 1]
    _, reason = number_labels(found, model("owl", *names), strict=False)
    assert reason is not None
    assert "class 1, named crane, or class 3" in reason


def test_other_names_than_the_model_s_are_left_out_and_said(tmp_path: Path) -> None:
    found = list_pictures(write_rows(tmp_path / "a.parquet", [1, 0], class_label("dog", "cat")))
    numbered, reason = number_labels(found, model(*ANIMALS), strict=False)
    assert [entry.label for entry in numbered] == [None, None]
    assert reason is not None
    assert "The label dog of" in reason


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        (pa.array([1.0, float("nan"), 3.0]), [1, None, 3]),
        (pa.array([1.0, None, 3.0]), [1, None, 3]),
        (pa.array([b"cat", b"owl", b"ship"]), [0, 1, 3]),
        (pa.array(["0", "1", "3"]), [0, 1, 3]),
    ],
)
def test_columns_of_labels_are_read(tmp_path: Path, labels: Any, expected: list[Any]) -> None:
    notes: list[str] = []
    found = list_pictures(write_rows(tmp_path / "a.parquet", labels), notes=notes)
    assert numbers(found, *ANIMALS) == expected
    assert notes == []


@pytest.mark.parametrize(
    ("labels", "metadata", "words"),
    [
        (pa.array([[1, 2], [3]]), {}, "got [1, 2]"),
        (pa.array([0, 2]), class_label("a", "b"), "label 2 is not among the 2 classes"),
        (pa.array([0, 1]), {b"names": b"cat,dog"}, "class names in the file's metadata cannot be"),
        (pa.array([0, 1]), {b"names": b'"cat"'}, "are no list of texts"),
        (pa.array([0, 1]), {b"names": b'{"0": "cat"}'}, "label 1 is not among the 1"),
        (pa.array([0, 1]), {b"huggingface": b"[" * 9999}, "cannot be read"),
    ],
)
def test_a_column_that_holds_no_labels_is_left_out_and_said(
    tmp_path: Path, labels: Any, metadata: dict[bytes, bytes], words: str
) -> None:
    notes: list[str] = []
    found = list_pictures(write_rows(tmp_path / "a.parquet", labels, metadata), notes=notes)
    assert [entry.label for entry in found] == [None, None]
    assert len(notes) == 1
    assert "a.parquet are left out: " in notes[0]
    assert words in notes[0]


def test_two_columns_that_may_be_the_labels_are_said(tmp_path: Path) -> None:
    table = pa.table({"image": [png(0)], "fine_label": [1], "category": [2]})
    parquet.write_table(table, tmp_path / "a.parquet")
    notes: list[str] = []
    assert list_pictures(tmp_path, notes=notes)[0].label is None
    assert "fine_label and category may be the column of labels" in notes[0]


def test_the_folder_of_a_partition_is_a_label(tmp_path: Path) -> None:
    for value in ("cat", "tench%2C Tinca tinca"):
        folder = tmp_path / "all.parquet" / f"label={value}"
        folder.mkdir(parents=True)
        parquet.write_table(pa.table({"image": [png(0)]}), folder / "part-0.parquet")
    assert numbers(list_pictures(tmp_path / "all.parquet"), *ANIMALS) == [0, 2]
