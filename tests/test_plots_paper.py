"""Figures for a paper: their size, their text and their ground; and all heads over the photo."""

import io
import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import plotly.graph_objects as go
import pytest
from examples import example, picture
from PIL import Image, PdfParser

from vitviz import __version__, capture, plots
from vitviz.activations import Activations
from vitviz.plots import QUERY, for_paper, head_grid
from vitviz.plots.template import GREY


@cache
def acts() -> Activations:
    return capture(example("plain"), picture())


FIGURES: dict[str, Callable[[], go.Figure]] = {
    "distance": lambda: plots.attention_distance(acts()),
    "map": lambda: plots.attention_map(acts(), 1, query=(1, 2)),
    "classes": lambda: plots.class_probabilities(acts()),
    "components": lambda: plots.token_components(acts()),
    "scatter": lambda: plots.token_scatter(acts()),
    "heads": lambda: head_grid(acts(), 1, query=(1, 2), columns=3),
}


def font_sizes(value: Any, name: str = "") -> list[float]:
    if isinstance(value, dict):
        return [size for key, one in value.items() for size in font_sizes(one, f"{name} {key}")]
    if isinstance(value, (list, tuple)):
        return [size for one in value for size in font_sizes(one, name)]
    return [value] if name.endswith("font size") else []


@pytest.mark.parametrize("name", FIGURES)
@pytest.mark.parametrize(("width", "millimetres"), [("column", 89), ("page", 183)])
def test_a_figure_for_paper_has_the_width_the_ground_and_the_text(
    name: str, width: Any, millimetres: int
) -> None:
    figure = FIGURES[name]()
    before = figure.to_json()
    made = for_paper(figure, width)
    assert figure.to_json() == before
    assert made.layout.width == pytest.approx(millimetres / 25.4 * 96, abs=0.5)
    assert 100 < made.layout.height < 1.3 * made.layout.width
    assert made.layout.paper_bgcolor == made.layout.plot_bgcolor == "white"
    parts = made.to_plotly_json()
    del parts["layout"]["template"]
    sizes = [0.75 * pixels for pixels in font_sizes(parts)]  # pt
    assert sizes
    assert all(7 <= size <= 8 for size in sizes), sizes
    assert made.layout.meta["alt"] == figure.layout.meta["alt"]
    room = made.layout.width - made.layout.margin.l - made.layout.margin.r
    for note in made.layout.annotations:
        if note.xref == "paper" and note.x == 0:
            assert (note.xshift or 0) >= 0  # begins within the figure
            longest = max(len(line) for line in note.text.split("<br>"))
            assert longest * 0.5 * 10 < room


def test_dots_and_bars_shrink_with_the_text() -> None:
    """Also where each dot has a size of its own, or a bar lies across."""
    distance = FIGURES["distance"]()
    bars = plots.conditions({"one": [0.1, 0.2]}, axis="accuracy, %", half={"one": 0.1})
    for figure in (distance, bars):
        made, scale = for_paper(figure), 10 / 14
        for large, small in zip(figure.data, made.data, strict=True):
            if large.marker.size is not None:
                np.testing.assert_allclose(small.marker.size, scale * np.array(large.marker.size))
            if large.error_x.width is not None:
                assert small.error_x.width == pytest.approx(scale * large.error_x.width)
    assert np.ndim(distance.data[0].marker.size) == 1
    assert bars.data[1].error_x.width


def test_another_width_is_refused() -> None:
    with pytest.raises(ValueError, match="'column' or 'page', got 'poster'"):
        for_paper(FIGURES["map"](), "poster")  # type: ignore[arg-type]


@pytest.mark.parametrize(("query", "boxes"), [(None, 0), ("cls", 0), ((1, 2), 4), (1 + 8, 4)])
def test_every_head_stands_over_the_photo_on_its_own_scale(query: Any, boxes: int) -> None:
    figure = head_grid(acts(), 1, query=query, columns=3)
    shares = acts().attention_map(1, query)
    assert len(figure.data) == len(figure.layout.images) == len(shares) == 4
    for image, each in zip(figure.data, shares, strict=True):
        veil = np.asarray(image.z)[..., 3] / 255
        np.testing.assert_allclose(veil, 0.75 * (1 - each / each.max()), atol=1 / 255)
        assert veil.min() == 0  # the most attention has the full brightness
        assert image.zmax == (255,) * 4
    photos = figure.layout.images  # each below the head of the same axes
    assert [(one.xref, one.yref) for one in photos] == [(z.xaxis, z.yaxis) for z in figure.data]
    drawn = [shape for shape in figure.layout.shapes if shape.line.color == QUERY]
    assert len(drawn) == boxes
    titles = [note.text for note in figure.layout.annotations]
    assert [title.split(":")[0] for title in titles] == [f"head {n}" for n in range(1, 5)]
    assert "layer 2" in figure.layout.meta["alt"]
    assert figure.layout.meta["provenance"]
    with pytest.raises(ValueError, match="1 column, got 0"):
        head_grid(acts(), 1, columns=0)


def test_no_layer_is_marked_unless_asked_for() -> None:
    colours = plots.attention_distance(acts()).data[0].marker.color
    assert set(colours) == {GREY}
    marked = plots.attention_distance(acts(), selected=(0, None)).data[0].marker.color
    assert marked[:4] == (QUERY,) * 4


@pytest.mark.browser
def test_a_pdf_has_its_fonts_and_the_width_of_a_column(tmp_path: Path) -> None:
    pytest.importorskip("kaleido", reason="kaleido is not installed")
    plots.save(for_paper(FIGURES["distance"]()), tmp_path / "figure.pdf")
    assert record_in(tmp_path / "figure.pdf")["made_with"] == acts().record
    data = (tmp_path / "figure.pdf").read_bytes()
    assert b"FontFile" in data
    _, _, width, _ = data.split(b"/MediaBox")[1].split(b"[")[1].split(b"]")[0].split()
    assert float(width) == pytest.approx(89 / 25.4 * 72, abs=1)


# --- files of figures ---------------------------------------------------------------------------


def of_array() -> go.Figure:
    return plots.token_mixing(np.eye(6).reshape(6, 2, 3), names=[*"abcdef"])


def record_in(path: Path) -> dict[str, Any]:
    """Read what `save` wrote beside the drawing."""
    if path.suffix == ".png":
        with Image.open(path) as image:
            text = image.info["made_with"]
    elif path.suffix == ".svg":
        (written,) = (
            part for part in ElementTree.parse(path).iter() if part.tag.endswith("metadata")
        )
        text = written.text or ""
    elif path.suffix == ".pdf":
        with PdfParser.PdfParser(str(path)) as parser:
            text = parser.info.Subject
    else:
        text = path.read_text().partition('"meta":')[2]
    found: dict[str, Any] = json.JSONDecoder().raw_decode(text)[0]
    return found


def small_picture(self: go.Figure, format: str, **options: Any) -> bytes:
    """What kaleido draws, but for its drawing: a browser takes seconds."""
    if format == "svg":
        return b'<svg xmlns="http://www.w3.org/2000/svg" width="9"><rect width="1"/></svg>'
    file = io.BytesIO()
    Image.new("RGB", (9, 9), "red").save(file, format.upper())
    return file.getvalue()


@pytest.mark.parametrize("ending", ["html", "png", "svg", "pdf"])
def test_a_file_of_a_figure_says_how_it_was_made(
    ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(go.Figure, "to_image", small_picture)
    path = tmp_path / f"figure.{ending}"
    plots.save(of_array(), path)
    made = record_in(path)["made_with"]
    assert made["versions"]["vitviz"] == __version__
    plots.save(of_array(), path, record={"model": "<ours> & 사진", "versions": {}, "date": "d"})
    assert record_in(path)["made_with"]["model"] == "<ours> & 사진"
    if ending == "png":
        with Image.open(path) as image:
            assert image.convert("RGB").getpixel((4, 4)) == (255, 0, 0)


def test_a_figure_is_saved_under_known_endings_alone(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"Expected a file \.html, \.png, \.svg or \.pdf"):
        plots.save(of_array(), tmp_path / "figure.bmp")
    assert not [*tmp_path.iterdir()]
