"""`vitviz prepare`: what a lesson will have without a network, tried before the lesson."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
import torch
from examples import assert_clear_error, timm_module
from hub_server import HubServer, put_in_cache
from safetensors.torch import save, save_file

from vitviz import Activations, ModelError, cli, zoo
from vitviz.cli import lesson as lesson_command
from vitviz.common import DEFAULT_MODEL, SMALL_MODEL
from vitviz.common.files import assets
from vitviz.zoo.checkpoints import shipped_names

SHIPPED = "vitviz_tiny_cifar10"
NAME = "test_vit"
OFFERED = "deit_tiny_patch16_224"


def prepared(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, str]]:
    """The exit code, and what the table says of each model."""
    code = cli.main(["prepare", *words])
    heading, *lines = capsys.readouterr().out.splitlines()
    column = heading.index("works offline")
    return code, {line[:column].strip(): line[column:] for line in lines}


def test_without_names_the_shipped_models_are_tried(
    server: HubServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, said = prepared(capsys)
    assert code == 0
    assert tuple(said) == shipped_names()
    for line in said.values():
        assert line.startswith("yes  shipped weights")
        assert "6 of 6 layers proved" in line
    assert server.asked == []


def test_weights_are_fetched_and_checked(
    server: HubServer, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = save(timm_module(NAME).state_dict())
    server.files["timm/test_vit.r160_in1k/model.safetensors"] = data
    code, said = prepared(capsys, NAME)
    assert code == 0
    assert said[NAME].startswith("yes  trained weights of timm, r160_in1k")
    assert said[NAME].endswith("only in Python: it is not in the menu")
    assert zoo.on_disk(NAME)
    zoo.fetch_weights(NAME).resolve().write_bytes(data[:-4] + b"evil")  # a file of the right size
    asked = len(server.asked)
    code, again = prepared(capsys, NAME)
    assert code == 0
    assert again[NAME].startswith("yes  trained weights")
    assert len(server.asked) > asked
    assert zoo.fetch_weights(NAME).read_bytes() == data


def test_a_lesson_is_tried_at_its_own_input_size(
    server: HubServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.safetensors"
    save_file(timm_module(NAME).state_dict(), path)
    words = (f"--checkpoint={NAME}={path}@64x96", "--image-size=48")
    code, said = prepared(capsys, SHIPPED, *words)
    assert code == 0
    assert "positions resampled from 16x16 to 12x12" in said[SHIPPED]
    own = said[f"{NAME} · mine.safetensors @ 64x96"]
    assert own.startswith("yes  local file mine.safetensors, sha256")
    assert "resampled from 10x10 to 4x6" in own


def test_what_will_not_work_is_said_in_a_sentence_each_and_the_rest_is_prepared(
    server: HubServer, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = dict(timm_module(OFFERED).state_dict())
    weights["norm.bias"] = torch.full_like(weights["norm.bias"], torch.nan)
    put_in_cache(cache, zoo.weights_of(OFFERED), save(weights))
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    server.mode = "503"
    code, said = prepared(
        capsys,
        "no_such_model",
        "resnet18",
        NAME,
        f"--models={OFFERED},{SHIPPED}",
        f"--checkpoint={NAME}={tmp_path / 'bad.pth'}",
    )
    assert code == 1
    assert said.pop(SHIPPED).startswith("yes")
    expected = {
        "no_such_model": "no model named",
        "resnet18": "ResNet has no attention",
        NAME: "could not be downloaded",
        OFFERED: "NaN or infinite",
        f"{NAME} · bad.pth": "that can be read safely",
    }
    assert set(said) == set(expected)
    for name, words in expected.items():
        assert said[name].startswith("no   ")
        assert words in said[name]
        assert_clear_error(said[name].removeprefix("no   "))
    assert not [path for _, path, _ in server.asked if "resnet" in path]


def test_a_layer_that_does_not_prove_itself_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unproved(acts: Activations, layer: int) -> None:
        raise ModelError("The attention does not reproduce the block's own output.")

    monkeypatch.setattr(Activations, "attention", unproved)
    code, said = prepared(capsys, SHIPPED)
    assert code == 1
    assert said[SHIPPED].startswith("no   The attention does not reproduce")


def test_ctrl_c_ends_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("vitviz.capture", stopped)
    assert cli.main(["prepare", SHIPPED]) == 130
    assert "cancelled" in capsys.readouterr().err


# --- all that the seven lessons need ------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder assets/ as links to its files, each of which a test may replace.

    Of the sample pictures, the list has the koala alone.
    """
    folder = tmp_path / "assets"
    for path in assets().rglob("*.*"):
        link = folder / path.relative_to(assets())
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(path)
    damage(folder / "samples" / "LICENCES.csv", koala_alone)
    for place in ("vitviz.cli.lesson", "vitviz.zoo.checkpoints.shipped"):
        monkeypatch.setattr(f"{place}.assets", lambda: folder)
    monkeypatch.setattr(lesson_command, "MORE_MODELS", ())
    return folder


def koala_alone(path: Path) -> bytes:
    heading, *lines = path.read_bytes().splitlines(keepends=True)
    return b"".join([heading, *(line for line in lines if line.startswith(b"koala.jpg"))])


def damage(path: Path, damaged: Callable[[Path], bytes] | None) -> None:
    """Replace a link by a file of other bytes, or by nothing."""
    data = None if damaged is None else damaged(path)
    path.unlink()
    if data is not None:
        path.write_bytes(data)


def lesson(capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, str], str]:
    """The exit code, what the table says of each thing, and the last line."""
    code = cli.main(["prepare", "--lesson"])
    heading, *lines, words, last = capsys.readouterr().out.splitlines()
    assert words == lesson_command.WITHOUT_WORDS
    column = heading.index("works offline")
    return code, {line[:column].strip(): line[column:] for line in lines}, last


def test_what_the_lessons_need_ships_and_no_network_is_asked(
    server: HubServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lesson_command, "MORE_MODELS", ())
    code, said, last = lesson(capsys)
    assert (code, last) == (0, lesson_command.READY)
    samples = len(list(assets().glob("samples/*.jpg")))
    begins = {
        DEFAULT_MODEL: "yes  shipped weights, ",
        SMALL_MODEL: "yes  shipped weights, ",  # of lesson 1
        "sample pictures": f"yes  {samples} pictures opened and captured",
        "training records": "yes  42 epochs and 12 moments of ",
        "profile": "yes  10,000 pictures of ",
    }
    assert list(said) == list(begins)
    for what, words in begins.items():
        assert said[what].startswith(words)
    assert server.asked == []


def cut(path: Path) -> bytes:
    return path.read_bytes()[: path.stat().st_size // 2]


def other_numbers(path: Path) -> bytes:
    """The file with zeros among its last numbers, which nothing but a checksum can tell."""
    data = path.read_bytes()
    return data[:-5_000] + bytes(5_000)


@cache
def whole(check: str) -> str:
    """What a check finds where nothing is damaged, in a folder as the fixture `files` makes it."""
    return lesson_command.CHECKS[check]()


def other_model(path: Path) -> bytes:
    return (path.parent / "vitviz_tiny_cifar100.npz").read_bytes()


@pytest.mark.parametrize(
    ("check", "file", "damaged"),
    [
        ("sample pictures", "samples/LICENCES.csv", None),
        ("sample pictures", "samples/LICENCES.csv", lambda path: b""),
        ("sample pictures", "samples/koala.jpg", None),
        ("sample pictures", "samples/koala.jpg", lambda path: path.read_bytes()[:200]),
        ("training records", "curves/data_hunger.json", cut),
        ("training records", f"curves/{DEFAULT_MODEL}.json", lambda path: b"[1, 2]"),
        ("training records", f"curves/{DEFAULT_MODEL}.npz", None),
        ("training records", f"curves/{DEFAULT_MODEL}.npz", other_numbers),
        ("training records", f"curves/{DEFAULT_MODEL}.npz", other_model),
        ("profile", f"profiles/{DEFAULT_MODEL}.npz", cut),
        ("profile", f"profiles/{DEFAULT_MODEL}.npz", other_model),
        ("profile", f"weights/{DEFAULT_MODEL}.safetensors", other_numbers),
    ],
)
def test_what_is_missing_or_damaged_is_said(
    check: str, file: str, damaged: Callable[[Path], bytes] | None, files: Path
) -> None:
    assert whole(check)
    damage(files / file, damaged)
    with pytest.raises(ModelError) as error:
        lesson_command.CHECKS[check]()
    assert_clear_error(str(error.value))
    assert Path(file).name in str(error.value) or "do not belong together" in str(error.value)


@pytest.mark.parametrize(
    ("model", "damaged"), [(DEFAULT_MODEL, None), (DEFAULT_MODEL, cut), (SMALL_MODEL, None)]
)
def test_without_its_model_or_a_sample_no_lesson_is_promised(
    model: str,
    damaged: Callable[[Path], bytes] | None,
    files: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    damage(files / "weights" / f"{model}.safetensors", damaged)
    damage(files / "samples" / "LICENCES.csv", None)
    code, said, last = lesson(capsys)
    assert (code, last) == (1, lesson_command.MISSING)
    for what in (model, "sample pictures"):
        assert said[what].startswith("no   ")
        assert_clear_error(said[what].removeprefix("no   "))


def test_a_further_model_is_downloaded_where_the_hub_answers(
    server: HubServer,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(lesson_command, "MORE_MODELS", (NAME,))
    server.mode = "503"
    code, said, last = lesson(capsys)
    assert (code, last) == (0, lesson_command.READY)
    assert said[NAME].startswith("no   ")
    assert "could not be downloaded" in said[NAME]
    assert said[NAME].endswith(". The lessons work without it.")
    server.mode = "ok"
    server.files["timm/test_vit.r160_in1k/model.safetensors"] = save(timm_module(NAME).state_dict())
    code, said, last = lesson(capsys)
    assert (code, last) == (0, lesson_command.READY)
    assert said[NAME].startswith("yes  trained weights of timm, r160_in1k")


def test_the_models_of_the_lessons_are_in_the_menu() -> None:
    menu = [entry.name for entry in zoo.catalogue()]
    assert {DEFAULT_MODEL, *lesson_command.MORE_MODELS} <= set(menu)
    assert menu[0] == DEFAULT_MODEL
