"""Runs of a profile: its files, going on where it was stopped, and the command."""

import csv
import json
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cifar import coloured, write_sheets
from examples import assert_one_sentence, example, own_model, picture
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image
from pyarrow import parquet

import vitviz
from vitviz import cli
from vitviz.profiling import KEPT, MEASURES, Piece, Profile, ProfileError, listed, profile, running

FILES = {"heads.csv", "profile.html", "profile.npz", "profile.parquet", "run.json"}


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
    arrays, others = found.state.arrays(), expected.state.arrays()
    assert arrays.keys() == others.keys()
    for name, values in arrays.items():
        assert_array_equal(values, others[name], err_msg=name)
    for name in KEPT:
        assert_array_equal(found.values(name), expected.values(name))
    assert found.pictures == expected.pictures


# --- files -------------------------------------------------------------------------------------


def test_what_is_written_is_what_was_measured(
    written: tuple[Path, Profile], in_memory: Profile
) -> None:
    out, found = written
    assert {path.name for path in out.iterdir()} == FILES
    assert_same(found, in_memory)
    assert_same(vitviz.load_profile(out), found)


def test_a_profile_of_memory_can_be_saved(in_memory: Profile, tmp_path: Path) -> None:
    in_memory.save(tmp_path / "out")
    assert_same(vitviz.load_profile(tmp_path / "out"), in_memory)


def test_profile_npz_alone_is_the_profile_without_its_rows(
    written: tuple[Path, Profile], tmp_path: Path
) -> None:
    out, found = written
    alone = vitviz.load_profile(shutil.copy(out / "profile.npz", tmp_path / "mine.npz"))
    assert alone.about == found.about
    for name, values in found.state.arrays().items():
        assert_array_equal(alone.state.arrays()[name], values, err_msg=name)
    with pytest.raises(ProfileError, match="has no rows by picture") as caught:
        alone.values("distance")
    assert_one_sentence(caught.value)


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
    assert_one_sentence(skipped[4])
    assert [len(digest or "") for digest in table["sha256"].to_pylist()] == [64] * 4 + [0] + [
        64
    ] * 15
    rows = np.stack(table["distance"].to_pylist()).reshape(20, 3, 4)
    assert np.isnan(rows[4]).all()
    assert np.isfinite(np.delete(rows, 4, axis=0)).all()


def test_heads_csv_has_a_line_for_each_head(written: tuple[Path, Profile]) -> None:
    out, found = written
    with (out / "heads.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [(int(each["layer"]), int(each["head"])) for each in lines] == [
        (layer + 1, head + 1) for layer, head in np.ndindex(3, 4)
    ]
    for name in MEASURES:
        for kind, values in (("mean", found.mean(name)), ("high", found.interval(name)[1])):
            column = [float(each[f"{name}_{kind}"]) for each in lines]
            assert_allclose(column, values.ravel(), rtol=1e-6)


def test_run_json_says_how_it_came_to_be(folder: Path, written: tuple[Path, Profile]) -> None:
    about = json.loads((written[0] / "run.json").read_text())
    assert set(about["versions"]) == {"python", "vitviz", "torch", "timm", "numpy", "pillow"}
    assert len(about["weights_sha256"]) == len(about["list_sha256"]) == 64
    assert about["preprocessing"]["mean"] == [0.5, 0.4, 0.3]
    assert (about["pictures"], about["skipped"], about["batch_size"]) == (20, 1, 3)
    assert about["source"] == folder.name
    assert about["refused_layers"] == {}
    assert 0 < about["proof_error"] < 1e-4


def test_the_pictures_are_called_as_they_are_to_be(folder: Path) -> None:
    found = profiled(folder, None, called="pictures of noise", limit=4)
    assert found.about["source"] == "pictures of noise"


def test_the_digest_of_weights_is_of_their_numbers() -> None:
    one, same, other = own_model(), own_model(), own_model(registers=4)
    assert running.weights_digest(one) == running.weights_digest(same)
    assert running.weights_digest(one) != running.weights_digest(other)
    next(same.module.parameters()).data.flatten()[0] += 1e-3
    assert running.weights_digest(one) != running.weights_digest(same)


class Tags(HTMLParser):
    """The tags of a page with what they refer to."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attributes)))


def test_the_page_has_all_figures_and_refers_to_no_other_file(
    written: tuple[Path, Profile],
) -> None:
    text = (written[0] / "profile.html").read_text()
    page = Tags()
    page.feed(text)
    named = [attributes for tag, attributes in page.found if tag == "figure"]
    assert len(named) == len(MEASURES) + 7
    assert all(attributes["aria-label"] for attributes in named)
    for _, attributes in page.found:
        assert "src" not in attributes
        assert (attributes.get("href") or "data:").startswith("data:")
    assert "random weights" in text
    assert text.count("Plotly.newPlot(") >= len(named)


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
    measured, done = running.measured, []

    def watching(model: Any, entries: Any, **options: Any) -> Piece:
        done.append(len(entries))
        return measured(model, entries, **options)

    monkeypatch.setattr(running, "measured", watching)
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
        assert_one_sentence(caught.value)


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
    options: dict[str, Any] = dict(labels=folder / "labels.csv", batch_size=3, **{}) | change
    with pytest.raises(ProfileError, match=words) as caught:
        profile(example("distilled"), folder, out=out, resume=True, **options)
    assert_one_sentence(caught.value)


def test_no_picture_that_can_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"no picture")
    with pytest.raises(ProfileError, match="None of the 1 pictures could be measured"):
        profile(example("plain"), tmp_path)


# --- labels ------------------------------------------------------------------------------------


def test_labels_that_are_no_class_of_the_model_are_refused_where_they_were_asked_for(
    folder: Path,
) -> None:
    for label in (5, "owl"):
        with pytest.raises(ProfileError, match=r"none of the 5 classes of example\.") as caught:
            profile(example("plain"), folder / "00.png", labels=[label])
        assert_one_sentence(caught.value)


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


def test_a_skipped_picture_is_said_and_is_exit_code_1(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command(folder / "03.png", folder / "04.png", "--out", tmp_path / "out") == 1
    said = capsys.readouterr()
    assert "1 pictures measured, 1 skipped" in said.out
    assert "04.png: " in said.err


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
    assert_one_sentence(error)
    assert not (tmp_path / "out").exists()


def test_the_command_writes_a_profile_and_ctrl_c_keeps_what_is_done(
    packed: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    measured, calls = running.measured, []

    def stopping(model: Any, entries: Any, **options: Any) -> Piece:
        calls.append(len(entries))
        if len(calls) == 2:
            raise KeyboardInterrupt
        return measured(model, entries, **options)

    monkeypatch.setattr(running, "PIECE", 2)
    monkeypatch.setattr(running, "measured", stopping)
    words = (packed, "--limit", 3, "--seed", 3, "--batch", 1, "--out", tmp_path / "out")
    assert command(*words) == 130
    assert "with --resume goes on" in capsys.readouterr().err
    assert command(*words, "--resume") == 0
    assert "3 pictures measured, 0 skipped" in capsys.readouterr().out
    assert calls == [2, 1, 1]
    assert {path.name for path in (tmp_path / "out").iterdir()} == FILES


@pytest.fixture(scope="module")
def pictures(packed: Path) -> list[Image.Image]:
    return [entry.read()[0] for entry in listed(packed)]


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
    for name, values in found.state.arrays().items():
        expected_values = expected.state.arrays()[name]
        scale = np.abs(expected_values).max()
        assert_allclose(values, expected_values, rtol=0, atol=1e-12 * scale, err_msg=name)
    assert_array_equal(found.values("distance"), expected.values("distance"))
    assert found.pictures["sha256"] == expected.pictures["sha256"]

    assert cli.main(["merge", *parts, "--out", str(tmp_path / "whole")]) == 2
    assert "holds a profile already" in capsys.readouterr().err
    assert cli.main(["merge", parts[0], parts[0], "--out", str(tmp_path / "twice")]) == 2
    assert_one_sentence(capsys.readouterr().err.strip())
    with pytest.raises(ProfileError, match="another list"):
        profile(model, pictures[:8], out=tmp_path / "whole", resume=True)


def test_a_cut_that_cka_sees_is_said(
    parts: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["merge", parts[2], parts[0], "--out", str(tmp_path / "whole")]) == 0
    said = capsys.readouterr().err.strip()
    assert "CKA has other minibatches" in said
    assert_one_sentence(said)
    assert said in (tmp_path / "whole" / "profile.html").read_text()
