"""Runs of a profile: its files, going on where it was stopped, and the command."""

import io
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from cifar import coloured, write_sheets
from examples import assert_clear_error, damaged, example, own_model, picture
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from pyarrow import parquet

import vitviz
from vitviz import cli
from vitviz.common.files import lock_folder
from vitviz.profiling import (
    BY_PICTURE,
    MEASURES,
    Piece,
    Profile,
    ProfileError,
    faithfulness,
    list_pictures,
    profile,
    running,
)

FILES = {"heads.csv", "profile.html", "profile.npz", "profile.parquet", "run.json"}
OF_LABELS = FILES | {"confusion.csv"}


@pytest.fixture(autouse=True, scope="module")
def small_pieces() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PIECE", 8)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 pictures of noise, of which the fifth cannot be read, and their labels."""
    folder = tmp_path_factory.mktemp("pictures")
    for seed in range(20):
        picture(24, 16, seed=seed).save(folder / f"{seed:02}.png")
    (folder / "04.png").write_bytes(b"no picture")
    (folder / "labels.csv").write_text("".join(f"{n:02}.png,{n % 5}\n" for n in range(20)))
    return folder


def profiled(folder: Path, out: Path | None, **options: Any) -> Profile:
    return profile(
        example("distilled"),
        folder,
        labels=folder / "labels.csv",
        batch_size=3,
        **{"out": out, **options},
    )


@pytest.fixture(scope="module")
def in_memory(folder: Path) -> Profile:
    return profiled(folder, None)


@pytest.fixture(scope="module")
def written(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Profile]:
    """A folder that nobody changes, and what was measured for it."""
    out = tmp_path_factory.mktemp("written") / "out"
    return out, profiled(folder, out)


def assert_same(found: Profile, expected: Profile) -> None:
    arrays, others = found.state.to_arrays(), expected.state.to_arrays()
    assert arrays.keys() == others.keys()
    for name, values in arrays.items():
        assert_array_equal(values, others[name], err_msg=name)
    for name in BY_PICTURE:
        assert_array_equal(found.values(name), expected.values(name))
    assert found.pictures == expected.pictures


# --- files -------------------------------------------------------------------------------------


def test_what_is_written_is_what_was_measured(
    written: tuple[Path, Profile], in_memory: Profile
) -> None:
    out, found = written
    assert {path.name for path in out.iterdir()} == OF_LABELS
    assert_same(found, in_memory)
    assert_same(vitviz.load_profile(out), found)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone tells of the threads")
def test_no_thread_of_pyarrow_holds_the_rows_as_python_ends(written: tuple[Path, Profile]) -> None:
    """It would abort the process, in one of three runs of `vitviz profile`."""
    path = written[0] / "profile.parquet"
    shape = written[1].values(BY_PICTURE[0]).shape[1:]
    code = f"""
import os, pathlib, pyarrow.parquet
from vitviz.profiling.results import read_rows
before = len(os.listdir("/proc/self/task"))
rows = sum(len(table["picture"]) for table, _ in read_rows(pathlib.Path({str(path)!r}), {shape}))
print(rows, len(os.listdir("/proc/self/task")) - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["20", "0"]


def test_profile_npz_alone_is_the_profile_without_its_rows(
    written: tuple[Path, Profile], tmp_path: Path
) -> None:
    out, found = written
    alone = vitviz.load_profile(shutil.copy(out / "profile.npz", tmp_path / "mine.npz"))
    assert alone.about == found.about
    for name, values in found.state.to_arrays().items():
        assert_array_equal(alone.state.to_arrays()[name], values, err_msg=name)
    with pytest.raises(ProfileError, match="has no rows by picture") as caught:
        alone.values("distance")
    assert_clear_error(caught.value)


def test_what_is_no_profile_is_refused_in_a_sentence(
    written: tuple[Path, Profile], tmp_path: Path
) -> None:
    shutil.copytree(written[0], tmp_path / "whole")
    data = (tmp_path / "whole" / "profile.npz").read_bytes()
    bad = tmp_path / "bad.npz"
    np.savez(tmp_path / "other.npz", weights=np.zeros(3))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "whole" / "profile.parquet").unlink()
    for content in (b"", b"no archive", data[: len(data) // 2], data.replace(b"about", b"xbout")):
        bad.write_bytes(content)
        with pytest.raises(ProfileError, match=r"bad\.npz holds no profile"):
            vitviz.load_profile(bad)
    for name in ("nothing", "whole", "other.npz", "array.npy"):
        with pytest.raises(ProfileError, match=f"{name} holds no profile that can be read"):
            vitviz.load_profile(tmp_path / name)


def test_the_table_of_pictures_says_what_was_skipped(
    folder: Path, written: tuple[Path, Profile]
) -> None:
    table = parquet.read_table(written[0] / "profile.parquet")
    assert table["picture"].to_pylist() == [str(folder / f"{n:02}.png") for n in range(20)]
    assert table["label"].to_pylist() == [n % 5 for n in range(20)]
    skipped = table["skipped"].to_pylist()
    assert [n for n, why in enumerate(skipped) if why] == [4]
    assert_clear_error(skipped[4])
    digests = [len(digest or "") for digest in table["sha256"].to_pylist()]
    assert digests == [*[64] * 4, 0, *[64] * 15]
    rows = np.array(table["distance"].to_pylist())
    assert rows.shape == (20, 3, 4)
    assert np.isnan(rows[4]).all()
    assert np.isfinite(np.delete(rows, 4, axis=0)).all()


def test_heads_csv_and_the_frame_have_a_row_for_each_head_and_measure(
    written: tuple[Path, Profile],
) -> None:
    out, found = written
    table = pandas.read_csv(out / "heads.csv")
    frame = found.to_frame()
    columns = ["layer", "head", "measure", "unit", "value", "std", "sem", "low", "high", "pictures"]
    assert list(frame.columns) == list(table.columns) == columns
    pandas.testing.assert_frame_equal(table, frame, check_dtype=False, rtol=1e-6)
    assert len(frame) == 3 * 4 * len(MEASURES)
    assert frame["layer"].unique().tolist() == [1, 2, 3]  # as on screen
    for name in MEASURES:
        some = frame[frame["measure"] == name]
        assert list(zip(some["layer"], some["head"], strict=True)) == [
            (layer + 1, head + 1) for layer, head in np.ndindex(3, 4)
        ]
        assert_allclose(some["value"], found.mean(name).ravel())
        assert_allclose(some["std"], found.std(name).ravel())
        assert_allclose(some["high"], found.interval(name)[1].ravel())
        assert set(some["pictures"]) == {19}  # one was skipped
    assert dict(zip(frame["measure"], frame["unit"], strict=True)) == MEASURES


def test_a_frame_by_picture_has_the_values_of_each(written: tuple[Path, Profile]) -> None:
    _, found = written
    frame = found.to_frame(by_picture=True)
    assert list(frame.columns) == [
        *("picture", "sha256", "label", "layer", "head", "measure", "unit", "value")
    ]
    assert frame["picture"].nunique() == 19
    values = np.delete(found.values("entropy"), 4, axis=0)
    some = frame[frame["measure"] == "entropy"]["value"]
    assert_allclose(some.to_numpy().reshape(19, 3, 4), values)
    mean = frame.groupby(["measure", "layer", "head"])["value"].mean()
    assert_allclose(mean["distance"].to_numpy(), found.mean("distance").ravel(), rtol=1e-6)


def test_each_file_of_a_profile_says_how_it_came_to_be(
    folder: Path, written: tuple[Path, Profile]
) -> None:
    out, _ = written
    about = json.loads((out / "run.json").read_text())  # which lies beside heads.csv
    assert set(about["versions"]) == {
        *("python", "vitviz", "torch", "timm", "transformers", "numpy", "pillow")
    }
    assert re.fullmatch(r"20\d\d-\d\d-\d\dT[\d:]{8}\+00:00", about["date"])
    assert len(about["weights_sha256"]) == len(about["list_sha256"]) == 64
    assert about["preprocessing"]["mean"] == [0.5, 0.4, 0.3]
    assert (about["pictures"], about["skipped"], about["batch_size"]) == (20, 1, 3)
    assert about["source"] == folder.name
    assert (about["seed"], about["limit"]) == (0, None)
    assert about["refused_layers"] == {}
    assert 0 < about["proof_error"] < 1e-4
    rows = parquet.read_schema(out / "profile.parquet").metadata[b"vitviz"]
    with np.load(out / "profile.npz", allow_pickle=False) as file:
        sums = str(file["about"])
    page = (out / "profile.html").read_text()
    (drawn,) = re.findall(r'<script type="application/json" id="made-with">(.*?)</script>', page)
    assert [json.loads(each) for each in (rows, sums, drawn)] == [about] * 3
    assert f"<td>{about['date']}</td>" in page
    assert_whole_page(page, len(MEASURES) + 8)
    assert "random weights" in page


class Tags(HTMLParser):
    """The tags of a page with what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def assert_whole_page(text: str, figures: int) -> None:
    """A page has all figures, each with words, and refers to no other file."""
    page = Tags()
    page.feed(text)
    named = [attributes for tag, attributes in page.found if tag == "figure"]
    assert len(named) == figures
    assert all(attributes["aria-label"] for attributes in named)
    for _, attributes in page.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "data:").startswith("data:")
    assert text.count("Plotly.newPlot(") >= figures


# --- stopping and going on ---------------------------------------------------------------------


def stopped_after(folder: Path, out: Path, done: int) -> None:
    def progress(pictures: int, total: int) -> None:
        if pictures > done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        profiled(folder, out, progress=progress)


@pytest.fixture(scope="module")
def stopped(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with one piece of three, which nobody changes."""
    out = tmp_path_factory.mktemp("stopped")
    stopped_after(folder, out, 9)
    return out


def test_a_run_goes_on_where_it_was_stopped(
    folder: Path, in_memory: Profile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_after(folder, tmp_path, 12)  # within the second piece
    assert not (tmp_path / "run.json").exists()
    measure_piece, done = running.measure_piece, []

    def watching(model: Any, entries: Any, **options: Any) -> Piece:
        done.append(len(entries))
        return measure_piece(model, entries, **options)

    monkeypatch.setattr(running, "measure_piece", watching)
    told: list[int] = []
    found = profiled(folder, tmp_path, resume=True, progress=lambda n, of: told.append(n))
    assert done == [8, 4]
    assert told[0] == 8
    assert told[-1] == 20
    assert_same(found, in_memory)
    done.clear()
    assert_same(profiled(folder, tmp_path, resume=True), found)  # there is nothing left to do
    assert done == []


def test_a_folder_is_not_written_over(
    folder: Path, stopped: Path, written: tuple[Path, Profile]
) -> None:
    for out in (stopped, written[0]):
        with pytest.raises(ProfileError, match="holds a profile already") as caught:
            profiled(folder, out)
        assert_clear_error(caught.value)


@pytest.mark.parametrize("finished", [False, True])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (dict(limit=7), "another list"),
        (dict(batch_size=4), "another batch size"),
        (dict(labels=None), "another list"),
    ],
)
def test_another_run_does_not_go_on(
    folder: Path,
    stopped: Path,
    written: tuple[Path, Profile],
    change: dict[str, Any],
    words: str,
    finished: bool,
) -> None:
    out = written[0] if finished else stopped
    options: dict[str, Any] = dict(labels=folder / "labels.csv", batch_size=3) | change
    with pytest.raises(ProfileError, match=words) as caught:
        profile(example("distilled"), folder, out=out, resume=True, **options)
    assert_clear_error(caught.value)


def test_a_run_does_not_go_on_with_another_kind_of_answers(folder: Path, tmp_path: Path) -> None:
    """Else a part of the pictures would have answers, and the others none."""
    model = own_model()
    profile(model, folder / "00.png", out=tmp_path / "out")
    model.answers = "labels"
    with pytest.raises(ProfileError, match="has another kind of answers") as caught:
        profile(model, folder / "00.png", out=tmp_path / "out", resume=True)
    assert_clear_error(caught.value)


@pytest.mark.parametrize("measure", [profile, faithfulness])
def test_no_picture_that_can_be_read_is_an_error(tmp_path: Path, measure: Any) -> None:
    """Nothing of it stays: once the picture can be read, the same command measures it."""
    few = dict(methods=["attention"], steps=1, orders=1) if measure is faithfulness else {}
    file = tmp_path / "a.png"
    file.write_bytes(b"no picture")
    for out in (None, tmp_path / "out"):
        with pytest.raises(ProfileError, match="None of 1 picture could be measured"):
            measure(own_model(), file, out=out, **few)
    picture(64, 48).save(file)
    assert measure(own_model(), file, out=tmp_path / "out", **few).about["skipped"] == 0


# --- labels ------------------------------------------------------------------------------------


def test_labels_that_are_no_class_of_the_model_are_refused_where_they_were_asked_for(
    folder: Path,
) -> None:
    with pytest.raises(ProfileError, match=r"The label 5 .* is none of the 5 classes"):
        profile(own_model(), folder / "00.png", labels=[5])


def test_labels_of_other_classes_that_come_with_the_pictures_are_left_out(tmp_path: Path) -> None:
    write_sheets(tmp_path / "packed.parquet", coloured(10, seed=1))
    found = profile(example("plain"), tmp_path)
    assert found.pictures["label"] == [None] * 10


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("packed") / "packed.parquet"
    write_sheets(path, coloured(20, seed=1))
    return path


def command(*words: object) -> int:
    return cli.main(["profile", "vitviz_tiny_cifar10", *map(str, words)])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing.png"], "There is no file nothing.png."),
        (["nothing.png", "--device", "no"], "Expected a device"),
        (["nothing.png", "--checkpoint", "none.safetensors"], "none.safetensors"),
    ],
)
def test_what_cannot_begin_is_exit_code_2(
    words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(*words, "--out", tmp_path / "out") == 2
    error = capsys.readouterr().err.strip()
    assert said in error
    assert_clear_error(error)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_profile_and_ctrl_c_keeps_what_is_done(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measure_piece, calls = running.measure_piece, []

    def stopping(model: Any, entries: Any, **options: Any) -> Piece:
        calls.append(len(entries))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measure_piece(model, entries, **options)

    monkeypatch.setattr(running, "PIECE", 2)
    monkeypatch.setattr(running, "measure_piece", stopping)
    where = (packed, "--out", tmp_path / "out", "--called", "pictures of noise")
    words = (*where, "--limit", 3, "--seed", 3, "--batch", 1)
    assert command(*words) == 130
    assert "--resume to continue" in capsys.readouterr().err
    assert command(*words, "--resume") == 0
    assert "3 pictures measured, 0 skipped" in capsys.readouterr().out
    assert calls == [2, 1, 1]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES
    assert vitviz.load_profile(tmp_path / "out").about["source"] == "pictures of noise"


@pytest.fixture(scope="module")
def pictures(packed: Path) -> list[Any]:
    return [entry.read()[0] for entry in list_pictures(packed)]


@pytest.fixture(scope="module")
def parts(pictures: list[Image.Image], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Folders of profiles over eight, eight and four pictures."""
    folder = tmp_path_factory.mktemp("parts")
    some = dict(a=pictures[:8], b=pictures[8:16], c=pictures[16:])
    for name, part in some.items():
        profile(example("distilled"), part, out=folder / name)
    return [str(folder / name) for name in some]


def test_profiles_of_parts_become_that_of_the_whole(
    pictures: list[Image.Image],
    parts: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = example("distilled")
    assert cli.main(["merge", *parts, "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr()
    assert "20 pictures of 3 profiles" in said.out
    assert said.err == ""
    assert {path.name for path in (tmp_path / "whole").iterdir()} == FILES
    found, expected = vitviz.load_profile(tmp_path / "whole"), profile(model, pictures)
    for name, values in found.state.to_arrays().items():
        expected_values = expected.state.to_arrays()[name]
        scale = np.abs(expected_values).max()
        assert_allclose(values, expected_values, rtol=0, atol=1e-12 * scale, err_msg=name)
    assert_array_equal(found.values("distance"), expected.values("distance"))
    assert found.pictures["sha256"] == expected.pictures["sha256"]

    assert cli.main(["merge", *parts, "--out", str(tmp_path / "whole")]) == 2
    assert "holds a profile already" in capsys.readouterr().err
    assert cli.main(["merge", parts[0], parts[0], "--out", str(tmp_path / "twice")]) == 2
    assert_clear_error(capsys.readouterr().err.strip())
    with pytest.raises(ProfileError, match="another list"):
        profile(model, pictures[:8], out=tmp_path / "whole", resume=True)


def test_a_cut_that_cka_sees_is_said(
    parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["merge", parts[2], parts[0], "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().err.strip()
    assert "CKA has other minibatches" in said
    assert_clear_error(said)
    assert said in (tmp_path / "whole" / "profile.html").read_text()


# --- damaged runs, and two at once ---------------------------------------------------------------


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_run_of_which_the_settings_are_damaged_is_said(
    folder: Path, stopped: Path, tmp_path: Path, content: bytes
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    (out / "pieces" / "run.json").write_bytes(content)
    with pytest.raises(ProfileError, match=r"pieces/run\.json cannot be read: .* Delete") as caught:
        profiled(folder, out, resume=True)
    assert f"Delete the folder {out / 'pieces'}, and start again." in str(caught.value)


def other_piece(data: bytes, kind: str) -> bytes:
    """A piece that is damaged, or of another kind."""
    if kind == "cut":
        return data[: len(data) // 2]
    file = io.BytesIO()
    with np.load(io.BytesIO(data)) as archive:
        arrays = dict(archive)
    about = json.loads(str(arrays["about"]))
    if kind == "of other pictures":
        about["table"]["picture"][0] = "other.png"
    if kind == "of another shape":
        arrays |= {name: values[:, :2] for name, values in arrays.items() if "row/" in name}
    if kind == "without a sum":
        arrays.pop("mean/head/distance")
    if kind == "of objects":
        np.savez(file, about=np.array([object()]))
    else:
        np.savez(file, **{**arrays, "about": np.array(json.dumps(about))})
    return file.getvalue()


@pytest.mark.parametrize(
    "kind", ["cut", "of other pictures", "of another shape", "without a sum", "of objects"]
)
def test_a_piece_that_is_damaged_is_named_and_done_again_without_it(
    folder: Path, stopped: Path, tmp_path: Path, kind: str, in_memory: Profile
) -> None:
    out = shutil.copytree(stopped, tmp_path / "out")
    piece = out / "pieces" / "000000.npz"
    piece.write_bytes(other_piece(piece.read_bytes(), kind))
    with pytest.raises(ProfileError, match=r"pieces/000000\.npz cannot be read") as caught:
        profiled(folder, out, resume=True)
    assert "Delete this file" in str(caught.value)
    assert [path.name for path in (out / "pieces").glob("*.npz")] == ["000000.npz"]
    if kind == "cut":
        piece.unlink()
        assert_same(profiled(folder, out, resume=True), in_memory)


@pytest.mark.parametrize("resume", [False, True])
def test_the_second_of_two_runs_into_a_folder_is_refused(
    folder: Path, tmp_path: Path, in_memory: Profile, resume: bool
) -> None:
    refused: list[str] = []

    def second(done: int, total: int) -> None:
        if not refused:
            with pytest.raises(ProfileError) as caught:
                profiled(folder, tmp_path / "out", resume=resume)
            refused.append(str(caught.value))

    assert_same(profiled(folder, tmp_path / "out", progress=second), in_memory)
    assert refused[0].startswith(f"Another process is writing into {tmp_path / 'out'}.")
    assert {path.name for path in (tmp_path / "out").iterdir()} == OF_LABELS


def test_a_merge_into_a_folder_that_is_written_is_refused(
    written: tuple[Path, Profile], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    with lock_folder(out):
        assert cli.main(["merge", str(written[0]), "--out", str(out)]) == 2
        assert f"Another process is writing into {out}." in capsys.readouterr().err
        assert {path.name for path in out.iterdir()} == {".lock"}
    assert cli.main(["merge", str(written[0]), "--out", str(out)]) == 0
    assert {path.name for path in out.iterdir()} == OF_LABELS


# --- fuzzing -------------------------------------------------------------------------------------


def test_a_damaged_profile_is_one_profile_error(
    written: tuple[Path, Profile], tmp_path: Path
) -> None:
    out = shutil.copytree(written[0], tmp_path / "out")
    whole = {name: (out / name).read_bytes() for name in ("profile.npz", "profile.parquet")}
    refused = 0
    for seed in range(150):
        name = "profile.npz" if seed % 3 else "profile.parquet"
        for other, data in whole.items():
            (out / other).write_bytes(damaged(data, seed) if other == name else data)
        try:
            found = vitviz.load_profile(out)
            repr(found), found.mean("entropy"), found.pictures, found.values("distance")
            found.cka(), found.accuracy, found.norms, found.token_components()
        except ProfileError:
            refused += 1
    assert refused > 100
