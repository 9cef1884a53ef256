"""The gallery has every figure, the teacher's guide says what is true, and what describes the
project agrees with it."""

import importlib
import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import pytest
from examples import remembered_experiments

import vitviz
from vitviz import plots, zoo
from vitviz.app.settings import NAMES
from vitviz.checkpoints import assets
from vitviz.cli.lesson_files import MODEL as SHIPPED
from vitviz.text import PAGES
from vitviz.text.lessons import LESSONS

ROOT = Path(__file__).parents[1]


def script(name: str) -> ModuleType:
    """A module of docs/, which lie beside each other and in no package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    return script("gallery")


@pytest.fixture(scope="module")
def teaching() -> ModuleType:
    return script("teaching")


def test_the_gallery_has_every_figure(gallery: ModuleType, tmp_path: Path) -> None:
    gallery.write(tmp_path / "site")
    page = (tmp_path / "site" / "gallery.html").read_text(encoding="utf-8")
    functions = {name for name in plots.__all__ if inspect.isfunction(getattr(plots, name))}
    assert set(re.findall(r'<section id="(\w+)">', page)) == functions
    assert page.count("Plotly.newPlot(") == len(functions)
    assert page.count('aria-label="') == len(functions)
    assert vitviz.load_model(gallery.MODEL).provenance in page
    linked = re.findall(r'(?:src|href)="([^"#]*)', page)
    assert set(linked) == {"plotly.min.js", "vitviz/plots.html"}
    assert (tmp_path / "site" / "plotly.min.js").stat().st_size > 1_000_000


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
        ("layer 1, 2.4 px", "layer 1, 2.4 px", True),
        ("layer 1, 2.4 px", "layer 1, 2.5 px", True),  # as another machine may round
        ("9.9 px and 52 %", "10.0 px and 51 %", True),
        ("layer 1, 2.4 px", "layer 1, 2.6 px", False),
        ("layer 1, 2.4 px", "layer 2, 2.4 px", False),
        ("2.4 px", "2.40 px", False),
        ("52 %", "54 %", False),
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


def test_what_is_nearly_equal_is_not_ranked() -> None:
    answers = script("answers")
    assert answers.largest(np.array([0.1, 0.3, 0.2])) == 1
    with pytest.raises(ValueError, match="too near"):
        answers.largest(np.array([0.3, 0.3001, 0.2]))


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
        picture = settings.get("picture", "dog")
        assert (assets() / "samples" / f"{picture}.jpg").exists()


def test_the_worksheet_asks_once_at_each_step_and_the_guide_answers(teaching: ModuleType) -> None:
    sheet = teaching.SHEET.read_text(encoding="utf-8")
    asked = re.findall(r"^\*\*(\d[a-c])\.\*\*", sheet, re.MULTILINE)
    steps = [
        f"{number}{'abc'[step]}"
        for number, lesson in enumerate(LESSONS, 1)
        for step in range(len(lesson.steps))
    ]
    assert asked == steps
    guide = teaching.GUIDE.read_text(encoding="utf-8")
    assert re.findall(r"^\*\*Students do \((\d[a-c])\):", guide, re.MULTILINE) == steps
    titles = re.findall(r"^## Lesson \d: (.*)$", sheet, re.MULTILINE)
    assert titles == [lesson.title for lesson in LESSONS]


def test_guide_and_worksheet_are_pages_of_the_site(tmp_path: Path) -> None:
    for library in ("pdoc", "markdown2"):
        pytest.importorskip(library, reason="comes with vitviz[docs]")
    build = script("build")
    build.write_pages(tmp_path)
    for name in build.PAGES:
        page = (tmp_path / f"{name}.html").read_text(encoding="utf-8")
        local = {link for link in re.findall(r'href="([^"]*)"', page) if "://" not in link}
        assert local == {"vitviz.html", "teaching.html", "worksheet.html"}
        assert "@media print" in page
        assert "**" not in page  # all of the Markdown was understood
        assert "<table>" in page


def test_the_version_is_said_alike_everywhere() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.*)$", citation, re.MULTILINE) == [vitviz.__version__]
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## ([\d.]+)", changes, re.MULTILINE)[0] == vitviz.__version__


def test_the_package_says_what_it_is() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (python,) = re.findall(r">=(.*)", project["requires-python"])
    assert f"Programming Language :: Python :: {python}" in project["classifiers"]
    assert not [one for one in project["classifiers"] if one.startswith("License ::")]
    assert (ROOT / "vitviz" / "py.typed").exists() == ("Typing :: Typed" in project["classifiers"])
    assert "urls" not in project  # vitviz has no public address
