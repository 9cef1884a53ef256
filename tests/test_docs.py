"""The gallery has every figure, the teacher's guide says what is true, the code of every page runs,
its links and commands hold, and what describes the project agrees with it."""

import ast
import contextlib
import importlib
import importlib.util
import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from babel import UnknownLocaleError
from babel.messages.pofile import read_po
from examples import remembered_experiments, timm_module
from safetensors import safe_open

import vitviz
from vitviz import cli, intervention, plots, zoo
from vitviz.app.pages import PAGES
from vitviz.app.settings import NAMES
from vitviz.app.shared.pictures import DEFAULT
from vitviz.cli.lesson import lesson_models
from vitviz.common import DEFAULT_MODEL as SHIPPED
from vitviz.common.files import assets
from vitviz.text.lessons import LESSONS

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    """A module of docs/, which lie beside each other and in no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def teaching() -> ModuleType:
    return script("teaching")


def test_a_script_that_is_asked_for_help_writes_no_files(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "docs" / "gallery.py"), "--help"]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
    assert done.stdout.startswith("usage: gallery.py"), done.stderr
    assert not [*tmp_path.iterdir()]


def test_the_gallery_has_every_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = partial(intervention.random_curve, orders=2)  # of 20, which take longer than all figures
    monkeypatch.setattr(intervention, "random_curve", few)
    script("gallery").write(tmp_path)
    page = (tmp_path / "gallery.html").read_text(encoding="utf-8")
    functions = {name for name in plots.__all__ if inspect.isfunction(getattr(plots, name))}
    assert set(re.findall(r'<section id="(\w+)">', page)) == functions - {"save"}
    assert vitviz.load_model(SHIPPED).provenance in page


# --- the teacher's guide and the worksheet ------------------------------------------------------


def test_the_guide_says_what_is_computed(teaching: ModuleType) -> None:
    again = "run python docs/teaching.py, and read what has changed in docs/*.md"
    with remembered_experiments():  # the guide and the sentences of the app ask for the same
        texts = teaching.texts()
    for file, text in texts.items():
        assert not teaching.differences(file.read_text(encoding="utf-8"), text), again


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("layer 1, 2.4 px", "layer 1, 2.5 px", True),  # as another machine may round
        ("9.9 px and 52 %", "10.0 px and 51 %", True),
        ("layer 1, 2.4 px", "layer 1, 2.6 px", False),
        ("layer 1, 2.4 px", "layer 2, 2.4 px", False),
        ("2.4 px", "2.40 px", False),
        ("52 patches", "53 patches", False),
        ("8 times, by 6e-08", "9 times, by 1e-07", True),
        ("by 6e-08", "by 2e-05", False),
        ("the dog, 0.39", "the cat, 0.39", False),
        ("a\nb", "a", False),
    ],
)
def test_only_the_last_digit_of_what_is_measured_may_differ(
    one: str, other: str, same: bool, teaching: ModuleType
) -> None:
    assert (not teaching.differences(one, other)) == same
    assert (not teaching.differences(other, one)) == same


def test_every_link_of_the_guide_leads_to_a_page_with_settings_that_it_has(
    teaching: ModuleType,
) -> None:
    guide = teaching.GUIDE.read_text(encoding="utf-8")
    links = [urlsplit(link) for link in re.findall(r"\((http[^)]*)\)", guide)]
    assert len(links) > 30
    models = {entry.name for entry in zoo.catalogue()}
    for link in links:
        assert f"{link.scheme}://{link.netloc}" == teaching.SERVER
        assert link.path.removeprefix("/") in PAGES
        settings = dict(parse_qsl(link.query, strict_parsing=bool(link.query)))
        assert settings.keys() <= {*NAMES, "lesson"}
        assert settings.get("model", SHIPPED) in models
        picture = settings.get("picture", DEFAULT)
        assert (assets() / "samples" / f"{picture}.jpg").exists()


def test_the_files_for_a_class_without_a_server_have_the_models_of_their_steps(
    teaching: ModuleType,
) -> None:
    guide = teaching.GUIDE.read_text(encoding="utf-8")
    reports = [
        cli._parser().parse_args(shlex.split(words))
        for words in re.findall(r"^    vitviz (report .*)$", guide, re.MULTILINE)
    ]
    written = {(photo.stem, report.model) for report in reports for photo in report.photos}
    told, _, _ = guide.rpartition("vitviz report ")[2].partition("## The plan")
    steps = re.findall(r"\b(\d)\.(\d)\b", told)
    assert len(steps) == 5
    for number, step in steps:
        lesson = LESSONS[int(number) - 1]
        settings = lesson.steps[int(step) - 1].settings
        assert (lesson.picture, settings.get("model", SHIPPED)) in written


def test_the_worksheet_asks_once_at_each_step_and_the_guide_answers(teaching: ModuleType) -> None:
    sheet = teaching.SHEET.read_text(encoding="utf-8")
    asked = re.findall(r"^\*\*(\d[a-d])\.\*\*", sheet, re.MULTILINE)
    steps = [
        f"{number}{'abcd'[step]}"
        for number, lesson in enumerate(LESSONS, 1)
        for step in range(len(lesson.steps))
    ]
    assert asked == steps
    guide = teaching.GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*Students do \((\d[a-d])\):", guide, re.MULTILINE) == steps
    titles = re.findall(r"^## Lesson \d: (.*)$", sheet, re.MULTILINE)
    assert titles == [lesson.title for lesson in LESSONS]


def test_the_worksheet_asks_for_moments_that_the_page_has() -> None:
    sheet = (ROOT / "docs" / "worksheet.md").read_text(encoding="utf-8")
    (asked,) = re.findall(r"\| before training \| epoch (\S+) \| epoch (\S+) \| the end \|", sheet)
    with np.load(assets() / "curves" / f"{SHIPPED}.npz") as record:
        assert set(asked) < {f"{epoch:.1f}" for epoch in record["epoch"]}


# --- the pages in Markdown ----------------------------------------------------------------------

THINGS = dict(
    classes=200, heads=6, layers=6, queries=257, keys=257, tokens=257, rows=16, columns=16
)
#: The sizes that pages with Python name in shapes.
SIZES: dict[str, dict[str, int]] = {
    "README": THINGS,
    "docs/python": THINGS,
    "docs/own_network": dict(heads=3, layers=12, rows=14, columns=14),
    "docs/many_pictures": dict(layers=6, heads=6, pictures=4),
    "docs/weights": dict(rows=14, columns=14, phrases=2),
}
NEEDS = {
    "docs/own_network": ("transformers", "torchvision"),
    "docs/notebooks": ("anywidget",),
    "docs/weights": ("open_clip",),
}
WRITTEN = [
    *(ROOT / f"{name}.md" for name in ("README", "CONTRIBUTING", "OPERATING", "CHANGELOG")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def blocks(page: Path, kind: str) -> list[str]:
    """Return the fenced blocks of one kind in a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    return [content for each, content in found if each == kind]


@pytest.fixture
def readers_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Enter a folder with the files that the pages name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    for name in ("cat", "bison", "duck", "horse"):
        shutil.copy(assets() / "samples" / f"{name}.jpg", tmp_path / "photos")
    shutil.copy(assets() / "samples" / "dog.jpg", tmp_path / "photo.jpg")
    vectors = np.eye(2, 192)
    names = ["a photo of a cat", "a photo of a dog"]
    np.savez(tmp_path / "animals.npz", names=names, vectors=vectors, logit_scale=100.0)
    return tmp_path


def save_network(folder: Path) -> None:
    """Save a small ViT of transformers with its image processor."""
    import transformers

    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    transformers.ViTForImageClassification(config).save_pretrained(folder)
    transformers.ViTImageProcessor().save_pretrained(folder)


def save_clip(folder: Path) -> None:
    """Save a small CLIP with both towers, as open_clip does."""
    from safetensors.torch import save_file

    open_clip: Any = pytest.importorskip("open_clip")
    config: dict[str, Any] = dict(
        embed_dim=16,
        vision_cfg=dict(layers=1, width=32, head_width=16, patch_size=8, image_size=112),
        text_cfg=dict(width=32, heads=2, layers=1),
    )
    folder.mkdir()
    (folder / "open_clip_config.json").write_text(json.dumps(dict(model_cfg=config)))
    save_file(open_clip.CLIP(**config).state_dict(), folder / "open_clip_model.safetensors")


WITH_PYTHON = [
    str(page.relative_to(ROOT).with_suffix("")) for page in WRITTEN if blocks(page, "python")
]


@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_python_of_a_page_runs_and_gives_the_shapes_it_says(
    page: str, readers_folder: Path
) -> None:
    """A comment beside an expression says its shape in its last brackets."""
    for library in NEEDS.get(page, ()):
        pytest.importorskip(library)
    known: dict[str, Any] = {}
    if page == "docs/own_network":
        save_network(readers_folder / "my_vit")
    if page == "docs/weights":
        save_clip(readers_folder / "my_clip")
        known["clip"] = timm_module("vit_tiny_patch16_224", num_classes=192)
    for block in blocks(ROOT / f"{page}.md", "python"):
        lines = block.splitlines()
        for node in ast.parse(block).body:
            words = ast.unparse(node)
            if not isinstance(node, ast.Expr):
                exec(words, known)
                continue
            result = eval(words, known)
            assert node.end_lineno
            _, _, comment = lines[node.end_lineno - 1].partition("  # ")
            if shapes := re.findall(r"\([^)]*\)", comment):
                assert result.shape == eval(shapes[-1], dict(SIZES.get(page, {}))), words
    if page == "docs/python":
        np.testing.assert_allclose(known["acts"].attention(5).sum(axis=-1), 1, rtol=1e-5)
        np.testing.assert_array_equal(known["again"].attention(5), known["acts"].attention(5))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_the_commands_of_a_page_are_understood(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments are read, and nothing is run."""
    for line in "".join(blocks(page, "")).splitlines():
        words = [word for word in shlex.split(line) if not re.match("[A-Z_]+=", word)]
        match words:
            case ["vitviz", *arguments]:
                cli._parser().parse_args(arguments)
            case ["streamlit", "run", script, *rest]:
                assert (ROOT / script).exists()
                own = rest[rest.index("--") + 1 :] if "--" in rest else []
                cli._parser().parse_args(["app", *own])
            case ["python", "-m", *_]:
                pass
            case ["python" | "pytest", script, *_] if not script.startswith("-"):
                assert (ROOT / script).exists()


def test_the_class_is_offered_the_models_of_its_lessons() -> None:
    lines = "".join(blocks(ROOT / "docs" / "class.md", "")).splitlines()
    offers = re.findall(r"--models (\S+)", "\n".join(lines))
    assert len(offers) == 2
    for names in offers:
        assert set(lesson_models()) <= set(names.split(","))


@pytest.mark.parametrize("page", WRITTEN, ids=lambda page: page.stem)
def test_the_links_of_a_page_lead_to_files(page: Path) -> None:
    text = page.read_text("utf-8")
    links = re.findall(r"\]\((?!\w+:|#)([^)\s]+)\)", text)
    named = re.findall(r"`((?:tests|benchmarks|docs|assets)/[\w./]*\w)", text)
    for file in [*(page.parent / link for link in links), *(ROOT / name for name in named)]:
        assert file.exists(), file


def test_each_claim_names_a_test_that_exists() -> None:
    claims = re.findall(
        r"`(tests/\w+\.py)::(\w+)`", (ROOT / "docs" / "accuracy.md").read_text("utf-8")
    )
    assert len(claims) > 20
    for file, name in claims:
        assert f"\ndef {name}(" in (ROOT / file).read_text("utf-8"), name


def test_every_option_of_the_app_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        cli.main(["app", "--help"])
    options = set(re.findall(r"^  (--[a-z-]+)", capsys.readouterr().out, re.MULTILINE))
    table = set(re.findall(r"`(--[a-z-]+)", (ROOT / "OPERATING.md").read_text("utf-8")))
    assert options - {"--port", "--address"} <= table


@pytest.mark.parametrize("name", ["app", "class"])
def test_the_pages_that_ask_for_a_guess_are_named(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text("utf-8")
    (where,) = re.findall(r"\*Predict first\*,[^,]* (?:of|on) (.*?)(?:, you|,? hides)", text)
    asking = [page.name.capitalize() for page in PAGES.values() if "predict" in page.settings]
    assert re.split(", | and ", where) == asking


def test_a_new_language_begins_with_every_page_and_every_string(tmp_path: Path) -> None:
    begin = script("new_language").begin
    folder = begin("fr", tmp_path)
    known = ROOT / "vitviz" / "text"
    for page in (known / "en").glob("*.md"):
        assert (folder / page.name).read_bytes() == page.read_bytes()
    for file in (known / "ko").glob("*.po"):
        with file.open("rb") as old, (folder / file.name).open("rb") as new:
            complete, empty = read_po(old), read_po(new)
        assert [each.id for each in empty] == [each.id for each in complete]
        assert not any(any(each.string or ()) for each in empty if each.id)
        assert empty.num_plurals > 1  # 2 or 3, by the version of babel; Korean has 1
    with pytest.raises(FileExistsError):
        begin("fr", tmp_path)
    with pytest.raises(UnknownLocaleError):
        begin("xx", tmp_path)


def test_the_site_has_every_page_and_its_links_lead_to_pages(tmp_path: Path) -> None:
    for library in ("pdoc", "markdown2"):
        pytest.importorskip(library, reason="comes with vitviz[docs]")
    build = script("build")
    for module in build.MODULES:
        assert importlib.util.find_spec(module), module
    assert set(build.write_pages(tmp_path)) >= set(WRITTEN)
    for name in ("vitviz", "gallery"):  # which other parts of the script write
        (tmp_path / f"{name}.html").touch()
    assert build.broken_links(tmp_path) == []
    for name in ("teaching", "worksheet"):
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        assert "@media print" in page
        assert "**" not in page  # all of the Markdown was understood
        assert "<table>" in page
    _, _, sections = (tmp_path / "sections.js").read_text("utf-8").partition(" = ")
    for section in json.loads(sections.rstrip(";\n")):
        file, _, anchor = section["place"].partition("#")
        assert f'id="{anchor}"' in (tmp_path / file).read_text(encoding="utf-8")
    (tmp_path / "worksheet.html").unlink()
    assert "teaching.html -> worksheet.html" in build.broken_links(tmp_path)


def test_the_version_is_said_alike_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [vitviz.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)", changes, re.MULTILINE)[0] == vitviz.__version__


@pytest.mark.parametrize(
    "name", ["vitviz_things200", "vitviz_tiny_cifar10", "vitviz_tiny_cifar100"]
)
def test_the_head_of_a_card_says_what_was_measured(name: str) -> None:
    weights = assets() / "weights" / f"{name}.safetensors"
    with safe_open(weights, framework="np") as file:
        measured = json.loads(file.metadata()["vitviz"])["test_accuracy"]
    _, head, text = weights.with_suffix(".md").read_text(encoding="utf-8").split("---\n", 2)
    assert f"{{type: accuracy, value: {measured:.4f}}}" in head
    assert f"  - name: {name}\n" in head
    assert "- Intended use: " in text
    assert "- Licence: " in text
