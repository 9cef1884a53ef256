"""What the operator says: local files in the menu, a list of allowed models, and mistakes."""

import sys
from pathlib import Path

import pytest
from examples import assert_clear_error, randomise, timm_module
from safetensors.torch import save_file

from pages.driver import SHIPPED, assert_works, opened, provenance, stacks, token_maps
from vitviz import cli
from vitviz.app.options import MAX_TOKENS, OptionError, parse
from vitviz.app.shared import models, started
from vitviz.common.files import assets

pytestmark = pytest.mark.usefixtures("narrow", "read_anew")


def say(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/app.py", *words])


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "mine.safetensors"
    save_file(timm_module("vit_tiny_patch16_224", num_classes=3).state_dict(), path)
    return path


def test_a_local_file_is_in_the_menu_and_is_shown(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, "--checkpoint", f"vit_tiny_patch16_224={weights}")
    name = "vit_tiny_patch16_224 · mine.safetensors"
    at = opened(model=name)
    assert_works(at)
    assert name in at.selectbox(key="model").options
    assert provenance(at).startswith("vit_tiny_patch16_224 (ViT, ")
    assert "local file mine.safetensors, sha256 " in provenance(at)
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    assert "random weights" in provenance(at)


def test_labels_answers_and_preprocessing_of_a_file_are_those_that_are_given(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels = weights.with_name("labels.txt")
    labels.write_text("ant\nbee\ncat\n")
    given = [f"--labels={labels}", "--answers=labels", "--mean=0.1,0.2,0.3", "--std=0.5"]
    say(monkeypatch, "--checkpoint", f"vit_tiny_patch16_224={weights}", *given)
    model = models.load_by_name("vit_tiny_patch16_224 · mine.safetensors")
    assert model.labels == ("ant", "bee", "cat")
    assert model.answers == "labels"
    assert (model.preprocess.mean, model.preprocess.std) == ((0.1, 0.2, 0.3), (0.5,) * 3)
    other = models.load_by_name("vit_tiny_patch16_224", "random")  # not one of the files
    assert (other.labels, other.answers) != (model.labels, model.answers)
    assert other.preprocess.mean == (0.5,) * 3


def test_two_local_files_are_compared_by_their_names(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "later.safetensors"
    module = timm_module("vit_tiny_patch16_224", num_classes=3)
    randomise(module, seed=1)
    save_file(module.state_dict(), other)
    files = [f"--checkpoint=vit_tiny_patch16_224={path}" for path in (weights, other)]
    say(monkeypatch, *files)
    names = [f"vit_tiny_patch16_224 · {path.name}" for path in (weights, other)]
    at = opened("compare", model=names[0], compare="models", other_model=names[1])
    assert_works(at)
    titles = [sent["titles"] for sent in token_maps(at)]
    assert [title["caption"] for title in titles] == [f"{name}, as saved" for name in names]
    assert [title["hint"] for title in titles] == ["layer 12 of 12"] * 2
    own, beside = provenance(at).split("beside")
    assert "local file mine.safetensors" in own
    assert "local file later.safetensors" in beside
    first, second = (sent["codes"] for sent in stacks(at))
    assert (first != second).any()


def test_random_weights_stand_beside_those_of_a_file_in_the_same_grid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "small.safetensors"
    save_file(timm_module("vit_tiny_patch16_224", num_classes=3, img_size=96).state_dict(), path)
    say(monkeypatch, "--checkpoint", f"vit_tiny_patch16_224={path}")
    at = opened(model="vit_tiny_patch16_224 · small.safetensors")
    assert_works(at)
    trained = models.load_by_name("vit_tiny_patch16_224 · small.safetensors")
    assert trained.layers[0].query_grid == (6, 6)
    at.segmented_control(key="weights").set_value("random").run()
    assert_works(at)
    random = models.load_by_name("vit_tiny_patch16_224 · small.safetensors", "random")
    assert (random.trained, random.layers[0].query_grid) == (False, (6, 6))


def test_a_file_that_does_not_fit_gets_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bad.pth").write_bytes(b"no weights")
    say(monkeypatch, f"--checkpoint=vit_tiny_patch16_224={tmp_path / 'bad.pth'}")
    at = opened(model="vit_tiny_patch16_224 · bad.pth")
    (error,) = at.error
    assert "bad.pth holds no weights that can be read safely" in error.value
    assert str(tmp_path) not in error.value
    assert provenance(at).startswith(SHIPPED)


def test_only_the_allowed_models_are_offered(
    weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(
        monkeypatch,
        "--models=vitviz_tiny_cifar100, deit_small_patch16_224",
        f"--checkpoint=vit_tiny_patch16_224={weights}",
    )
    at = opened(model="deit_tiny_patch16_224")
    shipped, file, other = at.selectbox(key="model").options
    assert (shipped, file) == ("vitviz_tiny_cifar100", "vit_tiny_patch16_224 · mine.safetensors")
    assert other.startswith("DeiT: deit_small_patch16_224")
    assert provenance(at).startswith("vitviz_tiny_cifar100")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--checkpiont", "x"], "cannot be read"),
        (["--models", "vitviz_tiny_cifar10,nope"], "The menu has no model named nope."),
        (["--checkpoint", "vit_tiny_patch16_224=nope.pth"], "There is no file nope.pth in"),
    ],
)
def test_a_mistake_on_the_command_line_is_told_on_the_page(
    words: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    say(monkeypatch, *words)
    at = opened()
    (error,) = at.error
    assert said in error.value
    assert not at.exception


@pytest.mark.parametrize(
    "words", [["--checkpoint", "name"], ["--checkpoint", "=file"], ["--checkpoint", "name="], ["x"]]
)
def test_what_cannot_be_read_is_refused_in_a_sentence(words: list[str]) -> None:
    with pytest.raises(OptionError) as caught:
        parse(words)
    assert_clear_error(caught.value)


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    files = ["run1/model.safetensors", "run2/model.safetensors", "/a/x/y.pth", "/b/x/y.pth"]
    files.append(files[0])  # which is offered once
    words = [word for file in files for word in ("--checkpoint", f"a={file}")]
    found = parse([*words, "--checkpoint", "b=run1/model.safetensors", "--checkpoint", "a=c.pth"])
    here = Path.cwd()
    files_by_title = {title: file[:2] for title, file in found.checkpoints.items()}
    assert files_by_title == {
        "a · run1/model.safetensors": ("a", here / "run1" / "model.safetensors"),
        "a · run2/model.safetensors": ("a", here / "run2" / "model.safetensors"),
        "a · a/x/y.pth": ("a", Path("/a/x/y.pth")),
        "a · b/x/y.pth": ("a", Path("/b/x/y.pth")),
        "b · model.safetensors": ("b", here / "run1" / "model.safetensors"),
        "a · c.pth": ("a", here / "c.pth"),
    }


@pytest.mark.parametrize(
    ("text", "title", "size"),
    [
        ("a=b.pth@96", "a · b.pth @ 96x96", (96, 96)),
        ("a=b.pth@320x480", "a · b.pth @ 320x480", (320, 480)),
        ("a=me@home/b.pth@32×48", "a · b.pth @ 32x48", (32, 48)),
        ("a=me@home.pth", "a · me@home.pth", None),
        ("a=b.pth@0x32", "a · b.pth@0x32", None),  # the name of no file, as is said of it
    ],
)
def test_a_file_may_have_a_size(text: str, title: str, size: tuple[int, int] | None) -> None:
    ((found, file),) = parse(["--checkpoint", text]).checkpoints.items()
    assert (found, file.image_size) == (title, size)


def test_the_preprocessing_of_files_can_be_given() -> None:
    words = ["--mean", "0.1,0.2,0.3", "--std=0.5", "--crop", "0.9"]
    expected = {"mean": (0.1, 0.2, 0.3), "std": (0.5, 0.5, 0.5), "crop_pct": 0.9}
    assert parse(words).preprocessing == expected
    assert parse([]).preprocessing == {}


@pytest.mark.parametrize(
    "text",
    [
        *("--mean=1,2", "--mean=a", "--mean=nan"),
        *("--std=0", "--std=1,1,-1", "--std="),
        *("--crop=0", "--crop=1.5", "--crop=0.5,0.5", "--crop=x"),
    ],
)
def test_a_preprocessing_that_cannot_be_is_refused(text: str) -> None:
    name, _, said = text.partition("=")
    with pytest.raises(OptionError, match=f"Expected {name} as .* got '{said}'") as caught:
        parse([text])
    assert_clear_error(caught.value)


def test_a_file_may_have_a_part(tmp_path: Path) -> None:
    words = [
        w for text in ("a=b.pth#student", "a=b.pth#teacher@96") for w in ("--checkpoint", text)
    ]
    found = parse(words).checkpoints
    assert {title: (file.part, file.image_size) for title, file in found.items()} == {
        "a · b.pth#student": ("student", None),
        "a · b.pth#teacher @ 96x96": ("teacher", (96, 96)),
    }
    (tmp_path / "c#3.pth").touch()
    (file,) = parse(["--checkpoint", f"a={tmp_path}/c#3.pth"]).checkpoints.values()
    assert (file.path.name, file.part) == ("c#3.pth", None)


@pytest.mark.parametrize(
    ("text", "size"), [("224", (224, 224)), ("320x480", (320, 480)), ("320 x 480", (320, 480))]
)
def test_an_input_size_is_one_number_or_two(text: str, size: tuple[int, int]) -> None:
    assert parse(["--image-size", text]).image_size == size
    assert parse([]).image_size is None


@pytest.mark.parametrize("text", ["", "0", "x32", "32x", "32x0", "-32", "1e3", "32,48", "123456"])
def test_what_is_no_input_size_is_refused_in_a_sentence(text: str) -> None:
    with pytest.raises(OptionError, match="Expected --image-size") as caught:
        parse([f"--image-size={text}"])
    assert_clear_error(caught.value)


@pytest.mark.parametrize("text", ["a,b", "a, b", " a ,b,", "a,,b"])
def test_blanks_around_the_names_of_models_are_no_part_of_them(text: str) -> None:
    assert parse(["--models", text]).models == ("a", "b")


def test_the_command_passes_the_options_on(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []
    profiles = tuple(sorted((assets() / "profiles").glob("*.npz"))[:2])
    say(monkeypatch)
    monkeypatch.setattr("streamlit.App.run", lambda *_, **__: ran.append(sys.argv))
    said = [
        f"--checkpoint=vit_tiny_patch16_224={weights}",
        "--models=vitviz_tiny_cifar10",
        "--image-size=96",
        "--max-tokens=2000",
        *(f"--profile={path}" for path in profiles),
    ]
    assert cli.main(["app", *said]) == 0
    assert ran == [["vitviz", *said]]
    started.options.clear()
    assert started.options().models == ("vitviz_tiny_cifar10",)
    assert started.options().image_size == (96, 96)
    assert started.options().max_tokens == 2000
    assert started.options().profiles == profiles


def test_an_installed_app_can_serve_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its option, or by the environment variables of Streamlit, as a container has them."""
    given: list[dict[str, object]] = []
    monkeypatch.setattr("streamlit.App.run", lambda _, config: given.append(config))
    monkeypatch.setattr(sys, "argv", ["vitviz"])
    assert cli.main(["app"]) == 0
    assert cli.main(["app", "--address=0.0.0.0", "--port=9000"]) == 0
    monkeypatch.setenv("STREAMLIT_SERVER_ADDRESS", "0.0.0.0")
    monkeypatch.setenv("STREAMLIT_SERVER_MAX_UPLOAD_SIZE", "5")
    assert cli.main(["app"]) == 0
    assert cli.main(["app", "--address=10.0.0.1"]) == 0
    said = [(one.get("server.address"), one.get("server.port")) for one in given]
    assert said == [("127.0.0.1", 8501), ("0.0.0.0", 9000), ("0.0.0.0", 8501), ("10.0.0.1", 8501)]
    assert [one["server.maxUploadSize"] for one in given] == [25, 25, 5, 5]


def test_at_least_one_token_may_be_chosen() -> None:
    assert parse([]).max_tokens == MAX_TOKENS
    with pytest.raises(OptionError, match="at least 1, got 0"):
        parse(["--max-tokens=0"])
