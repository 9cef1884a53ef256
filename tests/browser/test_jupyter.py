"""The widget in JupyterLab: Python reads what was chosen in it, and chooses."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from app_server import free_port
from examples import example, picture

from vitviz import capture
from vitviz.token_map import script

from .walk import until

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytest.importorskip("anywidget", reason="the widget needs anywidget, which is not installed")

CELLS = (
    "import vitviz\n"
    "from vitviz.checkpoints import assets\n"
    "model = vitviz.load_model('vitviz_tiny_cifar10')\n"
    "acts = vitviz.capture(model, assets() / 'samples' / 'dog.jpg')\n"
    "w = acts.widget(layer=3)\n"
    "w",
    "print('chosen:', w.layer, w.head, w.query)",
    "w.layer, w.head = 0, None",
)


def test_the_widget_holds_the_same_module_and_checks_what_it_is_set_to() -> None:
    widget = capture(example("plain"), picture()).widget(query=(2, 5))
    assert widget._source == script()
    assert (widget.layer, widget.head, widget.query) == (2, 0, 1 + 2 * 6 + 5)
    for name, value in (("layer", 3), ("head", 4), ("query", 25)):
        before = getattr(widget, name)
        with pytest.raises(ValueError, match=rf"{name} in 0\.\."):
            setattr(widget, name, value)
        assert getattr(widget, name) == before
    widget.head = None
    assert widget.head is None


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[str]:
    """The address of JupyterLab, which has the notebook open."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    cells: list[dict[str, Any]] = [
        dict(
            cell_type="code", id=f"c{n}", metadata={}, outputs=[], execution_count=None, source=one
        )
        for n, one in enumerate(CELLS)
    ]
    kernel = dict(kernelspec=dict(name="python3", display_name="Python 3"))
    notebook = dict(cells=cells, metadata=kernel, nbformat=4, nbformat_minor=5)
    (tmp_path / "a.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    port = free_port()
    words = [
        *("--no-browser", "--allow-root"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *("--IdentityProvider.token=", f"--ServerApp.root_dir={tmp_path}"),
        "--LabApp.news_url=None",
    ]
    with (tmp_path / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words], cwd=tmp_path, stdout=log, stderr=log
        )
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/api", timeout=5).close()
                break
            except (URLError, OSError):
                assert process.poll() is None, (tmp_path / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/lab/tree/a.ipynb"
    finally:
        process.terminate()
        process.wait(30)


def test_python_and_the_pointer_choose_in_the_same_map(lab: str, browser: "Browser") -> None:
    context = browser.new_context(viewport={"width": 1500, "height": 1000})
    page = context.new_page()
    page.set_default_timeout(40_000)
    try:
        page.goto(lab)
        cells = page.locator(".jp-CodeCell")
        cells.nth(2).wait_for()
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()

        def run(cell: int) -> None:
            cells.nth(cell).locator(".cm-content").click()
            page.keyboard.press("Control+Enter")

        run(0)
        title = page.locator(".token-map .sections h4").nth(1)
        title.get_by_text("layer 4, head 1").wait_for()
        page.locator(".token-map .strip button", has_text="head 3").click()
        title.get_by_text("layer 4, head 3").wait_for()

        def chosen() -> bool:  # told a moment after the click
            run(1)
            page.wait_for_timeout(200)
            said = cells.nth(1).locator(".jp-OutputArea-output").all_inner_texts()
            return "chosen: 3 2 0" in " ".join(said)

        until(page, chosen)
        run(2)
        title.get_by_text("layer 1, mean").wait_for()
    finally:
        context.close()
