"""Files that are written whole or not at all."""

import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from examples import picture

from vitviz import capture, cli, load_activations, load_model
from vitviz.common.files import open_replacement, printable, replace_file

FULL = Path("/dev/full")  # takes no byte


def test_a_file_is_replaced_whole_or_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"before")
    path.chmod(0o640)
    with suppress(RuntimeError), open_replacement(path) as file:
        file.write(b"half")
        assert path.read_bytes() == b"before"
        raise RuntimeError
    assert path.read_bytes() == b"before"
    replace_file(path, b"after")
    assert path.read_bytes() == b"after"
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert [each.name for each in tmp_path.iterdir()] == ["a.txt"]


def test_a_link_keeps_its_target_s_place(tmp_path: Path) -> None:
    (tmp_path / "target").write_bytes(b"before")
    (tmp_path / "link").symlink_to("target")
    replace_file(tmp_path / "link", b"after")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target").read_bytes() == b"after"


def test_an_error_names_the_file_that_was_asked_for(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        replace_file(tmp_path / "none" / "a.txt", b"")
    assert caught.value.filename == str(tmp_path / "none" / "a.txt")


def test_a_long_name_is_written(tmp_path: Path) -> None:
    for name in ("a" * 255, "가" * 85):
        replace_file(tmp_path / name, b"x")
        assert (tmp_path / name).read_bytes() == b"x"


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_full_disk_is_said_and_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    picture(64, 48).save(tmp_path / "a.png")
    words = ["report", str(tmp_path / "a.png"), "--model", "vitviz_tiny_cifar10", "-o"]
    assert cli.main([*words, str(FULL)]) == 2
    assert capsys.readouterr().err == "/dev/full: No space left on device.\n"
    (tmp_path / "r.html").write_text("<!doctype html>before")
    opened = open

    def full(path: str, mode: str = "r", *rest: object, **more: object) -> object:
        is_new = "w" in mode and ".part" in str(path)
        return opened(FULL, "wb") if is_new else opened(path, mode, *rest, **more)  # type: ignore[call-overload]

    monkeypatch.setattr("builtins.open", full)
    assert cli.main([*words, str(tmp_path / "r.html")]) == 2
    monkeypatch.undo()
    assert capsys.readouterr().err == f"{tmp_path}/r.html: No space left on device.\n"
    assert (tmp_path / "r.html").read_text() == "<!doctype html>before"


def test_a_report_replaces_only_a_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate(("a.png", "b.png", "notes.csv")):
        picture(64, 48, seed=seed).save(tmp_path / name, "PNG")
    (tmp_path / "link.png").symlink_to("a.png")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    words = ["report", str(tmp_path / "a.png"), "--model", "vitviz_tiny_cifar10", "-o"]
    for name, said in (
        ("a.png", "is one of the photos"),
        ("link.png", "is one of the photos"),
        ("b.png", "exists and is not a report"),
        ("notes.csv", "exists and is not a report"),
    ):
        assert cli.main([*words, str(tmp_path / name)]) == 2
        assert said in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    (tmp_path / "r.html").touch()
    for _ in range(2):
        assert cli.main([*words, str(tmp_path / "r.html")]) == 0


def test_the_damaged_photo_among_several_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, name in enumerate("abc"):
        picture(64, 48, seed=seed).save(tmp_path / f"{name}.jpg")
    (tmp_path / "b.jpg").write_bytes((tmp_path / "b.jpg").read_bytes()[:300])
    words = [str(tmp_path / f"{name}.jpg") for name in "abc"]
    out = tmp_path / "r.html"
    assert cli.main(["report", *words, "--model", "vitviz_tiny_cifar10", "-o", str(out)]) == 2
    assert capsys.readouterr().err.startswith(f"{tmp_path}/b.jpg: The JPEG is cut off")
    assert not out.exists()


@pytest.mark.skipif(not FULL.exists(), reason="this system has no full device")
def test_a_capture_is_not_lost_on_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = capture(load_model("vitviz_tiny_cifar10"), picture(64, 48))
    found.save(tmp_path / "a.npz")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        found.save(tmp_path / "a.npz")
    again = load_activations(tmp_path / "a.npz")
    assert again.logits is not None
    assert again.logits.tobytes() == found.logits.tobytes()  # type: ignore[union-attr]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npz"]


@pytest.mark.skipif(sys.platform == "win32", reason="names are Unicode there")
def test_bytes_of_a_name_that_are_not_utf_8_can_be_printed() -> None:
    assert printable(os.fsdecode(b"\xffa")) == "\\xffa"
    assert printable(Path("사진")) == "사진"
