"""The package works from any folder once it is installed, in an interpreter of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vitviz

SCRIPT = """
import vitviz
from vitviz.common.files import assets

model = vitviz.load_model("vitviz_tiny_cifar10")
photo = assets() / "samples" / "dog.jpg"
vitviz.inspection, vitviz.attribution, vitviz.intervention, vitviz.plots, vitviz.vit
acts = vitviz.capture(model, vitviz.open_image(photo.read_bytes()))
print(model.trained, acts.grid, acts.attention(0).shape, round(float(acts.probabilities.sum()), 4))
import vitviz.app.main
from vitviz.app.shared.pictures import samples
from vitviz.app.pages import PAGES
from vitviz.text import page_text
from vitviz.web.token_map import script, style
print(len(samples()) >= 8, all(page_text(page).equation for page in PAGES))
print("export default" in script(), ".token-map" in style())
"""


def test_the_shipped_model_samples_texts_and_the_app_are_found_anywhere(tmp_path: Path) -> None:
    """Where no source tree shadows vitviz; modules of the interface need no import of their own."""
    (tmp_path / "script.py").write_text(SCRIPT)
    clean = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "script.py"],
        cwd=tmp_path,
        env=clean | {"HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    looked, *there = done.stdout.splitlines()
    assert looked == "True (16, 16) (6, 258, 258) 1.0"  # CLS and DIST before the patches
    assert " ".join(there).split() == ["True"] * 4


def test_the_command_is_installed(tmp_path: Path) -> None:
    command = Path(sys.executable).with_name("vitviz")
    if not command.exists():
        pytest.skip("vitviz is not installed in this environment: pip install .")
    done = subprocess.run(
        [command, "app", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "usage: vitviz" in done.stdout


def test_a_widget_without_anywidget_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "anywidget", None)
    monkeypatch.delitem(sys.modules, "vitviz.web.notebook.widgets", raising=False)
    with pytest.raises(ImportError, match=r'pip install "vitviz\[notebook\]"'):
        vitviz.widget(vitviz.load_model("vitviz_tiny_cifar10"))
