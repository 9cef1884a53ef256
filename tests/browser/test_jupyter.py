"""The widget in JupyterLab: Python reads what was chosen in it, and chooses."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import URLError
from urllib.request import urlopen

import numpy as np
import pytest
import timm
from app_server import free_port
from examples import example, picture
from examples import watched as of_pixels

import vitviz
from vitviz import capture, load_model
from vitviz.common.files import assets
from vitviz.web.token_map import script

from .walk import middle_of, until, written

if TYPE_CHECKING:
    from playwright.sync_api import Browser, FrameLocator, Page

PHOTO = assets() / "samples" / "dog.jpg"
CELLS = (  # two views of one picture; each is shown, asked for what is chosen in it, and set
    "import vitviz\n"
    "from vitviz.common.files import assets\n"
    "model = vitviz.load_model('vitviz_tiny_cifar100')\n"
    "photo = assets() / 'samples' / 'dog.jpg'\n"
    "acts = vitviz.capture(model, photo)\n"
    "w = acts.widget(layer=3)\n"
    "w",
    "print('chosen:', w.layer, w.head, w.query)",
    "w.layer, w.head = 0, None",
    "a = vitviz.widget(model, photo, view='anatomy', layer=3)\na",
    "print('chosen:', a.layer, a.head, a.query, a.step)",
    "a.layer, a.step = 0, 'scores'",
)
VIEW = "application/vnd.jupyter.widget-view+json"
EMPTY: Any = dict(metadata={}, outputs=[], execution_count=None)


@pytest.fixture(autouse=True)
def _installed() -> None:
    """Asked for when a test runs: the import takes longer than to collect all other tests."""
    pytest.importorskip("anywidget", reason="the widget needs anywidget, which is not installed")


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


@pytest.mark.parametrize("view", ["attention", "anatomy"])
def test_in_a_layer_of_another_grid_the_query_keeps_its_place_and_a_head_that_is_not_there_goes(
    view: Any,
) -> None:
    sizes: Any = dict(img_size=64, window_size=4, embed_dim=16)
    stages: Any = dict(depths=(2, 2, 2, 2), num_heads=(1, 2, 4, 8))
    module = timm.create_model("swin_tiny_patch4_window7_224", **sizes, **stages).eval()
    model = of_pixels(module, (64, 64))
    widget: Any = vitviz.widget(model, picture(), view=view, layer=0, query=(12, 10))  # 16 x 16
    widget.set_state({"layer": 2})  # by the browser; 8 x 8
    assert (widget.layer, widget.query) == (2, 6 * 8 + 5)
    widget.head = 1
    widget.layer = 0
    assert (widget.layer, widget.head, widget.query) == (0, None, 13 * 16 + 11)
    widget.set_state({"layer": 4, "query": 3 * 4 + 1, "head": 3})  # a choice of all three
    assert (widget.layer, widget.head, widget.query) == (4, 3, 3 * 4 + 1)
    widget.query = None
    widget.layer = 1
    assert widget.query is None
    if view == "anatomy":
        assert widget._view["shape"]["rows"] == 16
        assert widget._view["frame"] == 1


@contextmanager
def opened(folder: Path, browser: "Browser") -> "Iterator[Notebook]":
    """The notebook in a JupyterLab of its own, which serves this folder."""
    pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
    cells: list[dict[str, Any]] = [
        dict(cell_type="code", id=f"c{n}", source=one, **EMPTY) for n, one in enumerate(CELLS)
    ]
    kernel = dict(kernelspec=dict(name="python3", display_name="Python 3"))
    path = folder / "widgets.ipynb"
    notebook = dict(cells=cells, metadata=kernel, nbformat=4, nbformat_minor=5)
    path.write_text(json.dumps(notebook), encoding="utf-8")
    port = free_port()
    words = [
        *("--no-browser", "--allow-root"),
        *(f"--ServerApp.port={port}", "--ServerApp.port_retries=0"),
        *("--IdentityProvider.token=", f"--ServerApp.root_dir={folder}"),
        "--LabApp.news_url=None",
    ]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *words], cwd=folder, stdout=log, stderr=log
        )
    # So tall that all cells are in sight, as JupyterLab draws no others.
    context = browser.new_context(viewport={"width": 1500, "height": 2400})
    try:
        deadline = time.monotonic() + 90
        while True:
            try:
                urlopen(f"http://127.0.0.1:{port}/api", timeout=5).close()
                break
            except (URLError, OSError):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.2)
        page = context.new_page()
        page.set_default_timeout(40_000)
        page.goto(f"http://127.0.0.1:{port}/lab/tree/{path.name}")
        page.locator(".jp-CodeCell").nth(len(CELLS) - 1).wait_for()
        page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
        yield Notebook(page, path)
    finally:
        context.close()
        process.terminate()
        process.wait(30)


@dataclass(frozen=True)
class Notebook:
    """A notebook in JupyterLab, and its file."""

    page: "Page"
    path: Path

    def run(self, cell: int) -> None:
        self.page.locator(".jp-CodeCell").nth(cell).locator(".cm-content").click()
        self.page.keyboard.press("Control+Enter")

    def says(self, cell: int, chosen: str) -> bool:
        """Whether Python knows this; it is told a moment after a click."""
        self.run(cell)
        self.page.wait_for_timeout(200)
        output = self.page.locator(".jp-CodeCell").nth(cell).locator(".jp-OutputArea-output")
        return f"chosen: {chosen}" in " ".join(output.all_inner_texts())

    def saved(self) -> str:
        """The HTML that stands in its file for a viewer without a kernel."""
        self.page.keyboard.press("Escape")
        self.page.keyboard.press("Control+s")
        texts: list[str] = []

        def whole() -> bool:  # the file may be read while it is written
            texts.append(self.path.read_text(encoding="utf-8"))
            return "text/html" in texts[-1] and texts[-1].rstrip().endswith("\n}")

        until(self.page, whole)
        cells = json.loads(texts[-1])["cells"]
        for cell in (0, 3):
            widget, still = (output["data"] for output in cells[cell]["outputs"])
            assert VIEW in widget
            assert "text/html" in still
        return texts[-1]


@contextmanager
def viewed(notebook: str, browser: "Browser", folder: Path) -> "Iterator[list[FrameLocator]]":
    """The outputs of a saved notebook, in a page that nbconvert made of it, the network cut."""
    nbformat = pytest.importorskip("nbformat", reason="nbconvert is not installed")
    exporters = pytest.importorskip("nbconvert", reason="nbconvert is not installed")
    read = nbformat.reads(notebook, as_version=4)
    outputs = [output.get("data", {}) for cell in read.cells for output in cell.outputs]
    ids = [data[VIEW]["model_id"] for data in outputs if VIEW in data]
    # As `nbconvert --execute` keeps it; a widget whose state is known takes the place of all else.
    state = dict(state={one: {} for one in ids}, version_major=2, version_minor=0)
    read.metadata.widgets = {"application/vnd.jupyter.widget-state+json": state}
    html, _ = exporters.HTMLExporter().from_notebook_node(read)
    path = folder / "saved.html"
    path.write_text(html, encoding="utf-8")
    context = browser.new_context(offline=True, viewport={"width": 1500, "height": 1000})
    try:
        page = context.new_page()
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        frames = [page.frame_locator("iframe >> nth=0"), page.frame_locator("iframe >> nth=1")]
        for frame in frames:
            frame.locator("body[data-ready]").wait_for(state="attached")
        yield frames
    finally:
        context.close()


def test_python_and_the_pointer_choose_in_the_same_map_and_in_the_same_anatomy(
    browser: "Browser", tmp_path: Path
) -> None:
    acts = capture(load_model("vitviz_tiny_cifar100"), PHOTO)

    def said(layer: int, query: int) -> str:
        share = float(acts.attention(layer)[0, query, 1:].max())
        return f"softmax over 257 keys = {written(share)}"

    with opened(tmp_path, browser) as notebook:
        page = notebook.page
        notebook.run(0)
        title = page.locator(".token-map .sections h4").nth(1)
        title.get_by_text("layer 4, head 1").wait_for()
        page.locator(".vitviz-still").wait_for(state="hidden")
        page.locator(".token-map .strip button", has_text="head 3").click()
        title.get_by_text("layer 4, head 3").wait_for()
        until(page, lambda: notebook.says(1, "3 2 0"))
        notebook.run(2)
        title.get_by_text("layer 1, mean").wait_for()
        notebook.run(3)
        found = page.locator(".anatomy")
        found.locator(".card", has_text="Encoder").click()
        found.get_by_text(said(3, 0)).wait_for()
        until(page, lambda: notebook.says(4, "3 0 0 scores"))
        found.locator("select[aria-label=Layer]").select_option("1")  # which Python sends
        found.get_by_text(said(1, 0)).wait_for()
        until(page, lambda: notebook.says(4, "1 0 0 scores"))
        notebook.run(5)
        found.get_by_text(said(0, 0)).wait_for()
        file = notebook.saved()
    with viewed(file, browser, tmp_path) as (of_map, of_anatomy):
        photo = of_map.locator("canvas[data-part=photo]")
        words = of_map.locator("[data-part=reading]")
        words.get_by_text("Strongest key").wait_for()
        photo.hover(position=middle_of(photo, acts, 4, 2))
        shares = acts.attention_map(3, (4, 2))[0]
        row, col = np.unravel_index(shares.argmax(), shares.shape)
        words.get_by_text(f"Strongest key: row {row + 1} column {col + 1}, ").wait_for()
        found = of_anatomy.locator(".anatomy")
        found.locator(".card", has_text="Encoder").click()
        found.get_by_text(said(3, 0)).wait_for()
        photo = found.locator("canvas[data-part=photo]")
        photo.click(position=middle_of(photo, acts, 4, 2))
        photo.hover(position={"x": 2, "y": 2})  # outside of what the model saw
        found.get_by_text(said(3, 1 + 4 * 16 + 2)).wait_for()
