"""The gallery has every figure, and what describes the project agrees with it."""

import importlib.util
import inspect
import re
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import vitviz
from vitviz import plots

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def gallery() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gallery", ROOT / "docs" / "gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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
