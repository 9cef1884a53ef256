"""Save figures, lay them out for print, and draw all heads of a layer over a photo."""

import io
import json
import math
import os
import re
from collections.abc import Mapping
from html import escape
from pathlib import Path
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from PIL import Image, PdfParser
from PIL.PngImagePlugin import PngInfo
from plotly.io import templates
from plotly.subplots import make_subplots

from ..common.files import creation_record
from ..common.language import as_percent, tr
from ..common.query import Query
from .captures import add_provenance, place_attention
from .maps import photo_source
from .template import BARE, KEY, QUERY, cells, finish, query_box, veil


def save(
    figure: go.Figure,
    path: str | os.PathLike[str],
    *,
    record: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Write a figure into a file, with the record of how it was made.

    The record is JSON with the figure's alt text and provenance: in the `layout.meta` of HTML, in
    the text "made_with" of PNG, in the `metadata` of SVG, and in the subject of PDF.

    Parameters
    ----------
    figure : a figure of vitviz.plots
    path : a file ending in .html, .png, .svg or .pdf; pictures need kaleido and Chrome or Chromium
    record : mapping, optional
        How the figure was made, such as `acts.record` or `profile.about`. By default the record
        that figures of a capture hold; for figures of arrays the versions and the date.
    options : of `figure.write_html` or `figure.to_image`, such as scale=2

    Raises
    ------
    ValueError
        When the path has another ending.
    """
    place, meta = Path(path), dict(figure.layout.meta or {})
    meta["made_with"] = dict(record or meta.get("made_with") or creation_record())
    text, ending = json.dumps(meta, default=str), place.suffix.lower()
    if ending == ".html":
        parts = figure.to_plotly_json()
        parts["layout"]["meta"] = json.loads(text)
        content = go.Figure(parts).to_html(**options).encode()
    elif ending in _WRITERS:
        content = _WRITERS[ending](figure.to_image(format=ending[1:], **options), text)
    else:
        raise ValueError(f"Expected a file .html, .png, .svg or .pdf, got {place.name}.")
    place.write_bytes(content)


def _add_to_png(data: bytes, text: str) -> bytes:
    info, file = PngInfo(), io.BytesIO()
    info.add_itxt("made_with", text)
    with Image.open(io.BytesIO(data)) as image:
        image.save(file, "PNG", pnginfo=info)
    return file.getvalue()


def _add_to_svg(data: bytes, text: str) -> bytes:
    start, end, rest = data.partition(b">")
    return start + end + f"<metadata>{escape(text)}</metadata>".encode() + rest


def _add_to_pdf(data: bytes, text: str) -> bytes:
    file = io.BytesIO(data)
    parser: Any = PdfParser.PdfParser(f=file, mode="r+b")
    parser.info["Subject"] = text
    parser.start_writing()
    parser.write_xref_and_trailer()
    parser.close()
    return file.getvalue()


_WRITERS = {".png": _add_to_png, ".svg": _add_to_svg, ".pdf": _add_to_pdf}

_PIXELS = 96 / 25.4  # per millimetre in Plotly and kaleido: 1 px is 0.75 pt
WIDTHS = {"column": 89, "page": 183}  # mm, of most journals
_TEXT = 10.0  # pixels: 7.5 pt
_SCREEN = 14.0  # pixels of text on screen
_LETTER = 0.56  # mean width of a letter, as a share of the text's size
_DARK = 0.75  # how far the patch with the least attention is darkened


def for_paper(figure: go.Figure, width: Literal["column", "page"] = "column") -> go.Figure:
    """Lay a figure out for print: white ground, text of 7.5 pt, in the width of a column or a page.

    This needs no browser. `figure.write_image("figure.pdf")` needs one, and embeds the fonts.

    Parameters
    ----------
    figure : a figure of vitviz.plots, which is not changed
    width : "column" (89 mm) or "page" (183 mm)

    Returns
    -------
    plotly.graph_objects.Figure
        Long texts are broken into lines, so that nothing is cut off at its edges.

    Raises
    ------
    ValueError
        When the width is another.
    """
    if width not in WIDTHS:
        raise ValueError(f"Expected the width {' or '.join(map(repr, WIDTHS))}, got {width!r}.")
    wide, scale = round(WIDTHS[width] * _PIXELS), _TEXT / _SCREEN
    # Part by part, as the JSON of a whole figure holds arrays, also of sizes, as base64.
    traces = [trace.to_plotly_json() for trace in figure.data]
    parts = {"data": traces, "layout": figure.layout.to_plotly_json()}
    result = go.Figure(_resize(parts, scale))
    margin = {side: scale * (figure.layout.margin[side] or 8) + 4 for side in "lrtb"}
    room = wide - margin["l"] - margin["r"]
    added = _break_annotations(result, room)
    for trace in result.data:
        _break_colorbar(trace, room)
    margin["t"] += added
    result.update_layout(
        template=templates["plotly_white"],
        paper_bgcolor="white",
        plot_bgcolor="white",
        font=dict(size=_TEXT, family="Arial, Helvetica, Liberation Sans, sans-serif"),
        width=wide,
        height=round(_height(figure, room, margin, scale) + added),
        margin=margin,
        autosize=False,
    )
    return result


def _resize(value: Any, scale: float, name: str = "") -> Any:
    """Set all text to one size, and scale markers, lines and shifts in pixels."""
    if isinstance(value, dict):
        return {key: _resize(one, scale, f"{name} {key}") for key, one in value.items()}
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        return [_resize(one, scale, name) for one in value]
    if re.search(r"font size$", name):
        return _TEXT
    in_pixels = r"(marker size|line width|error_[xy] width|[xy]shift|thickness)$"
    if re.search(in_pixels, name) and not name.startswith(" layout template"):
        try:
            return scale * np.asarray(value, float) if np.ndim(value) else scale * float(value)
        except (TypeError, ValueError):
            return value
    return value


def _wrap(text: str, room: float) -> str:
    """Break a text into lines that fit, keeping its own line breaks."""
    letters = max(8, int(room / (_LETTER * _TEXT)))
    lines = []
    for line in text.split("<br>"):
        current = ""
        for word in line.split(" "):
            longer = f"{current} {word}" if current else word
            if current and len(re.sub(r"<[^>]*>", "", longer)) > letters:
                lines.append(current)
                current = word
            else:
                current = longer
        lines.append(current)
    return "<br>".join(lines)


def _break_annotations(figure: go.Figure, room: float) -> float:
    """Break the texts above the axes into lines; return the additional height in pixels."""
    added = 0.0
    for note in figure.layout.annotations:
        if note.xref != "paper" or note.showarrow or not note.text:
            continue
        begins_left = note.x == 0 and (note.xshift or 0) < 0
        if begins_left:
            note.update(xshift=0, xanchor="left")
        whole = room if note.x in (0, 0.5, 1) else room / 2
        before = note.text.count("<br>")
        note.text = _wrap(note.text, 0.85 * whole if begins_left else whole)
        if note.yref == "paper" and (note.y or 0) >= 1:
            added = max(added, 1.3 * _TEXT * (note.text.count("<br>") - before))
    return added


def _break_colorbar(trace: Any, room: float) -> None:
    bar = getattr(trace, "colorbar", None)
    if bar is not None and bar.title.text:
        bar.title.text = _wrap(bar.title.text, 0.75 * room)


def _height(figure: go.Figure, room: float, margin: dict[str, float], scale: float) -> float:
    """Return the height: of a map by its picture's proportions, of a chart scaled with its text."""
    layout = figure.layout
    usual = scale * (layout.height or 450)
    if layout.yaxis.scaleanchor is None or layout.xaxis.range is None:
        return usual
    rows = len({layout[name].domain for name in layout if name.startswith("yaxis")})
    cols = len({layout[name].domain for name in layout if name.startswith("xaxis")})
    (left, right), (bottom, top) = layout.xaxis.range, layout.yaxis.range
    shape = abs((top - bottom) / (right - left))
    on_bar = any(getattr(trace, "colorbar", None) and trace.colorbar.len for trace in figure.data)
    below = 62 * scale if on_bar else 0
    titles = 1.6 * _TEXT * rows if rows * cols > 1 else 0
    return shape * room / cols * rows + margin["t"] + margin["b"] + below + titles


def head_grid(
    acts: Any,
    layer: int,
    *,
    query: Query | None = None,
    direction: Literal["row", "column"] = "row",
    columns: int = 4,
) -> go.Figure:
    """Draw all heads of a layer over the photo: the more attention, the brighter.

    Each head has its own scale, from 0 to its maximum, which stands above it. A patch without
    attention is darkened to a quarter of its brightness.

    Parameters
    ----------
    acts : a capture, as `vitviz.capture` or `vitviz.load_activations` returns it
    layer : int
    query, direction
        As in `Activations.attention_map`.
    columns : int
        Heads in a row.

    Raises
    ------
    ModelError
        When the layer has no attention to show.
    ValueError
        When there is no such layer or token, or `columns` is less than 1.
    """
    if columns < 1:
        raise ValueError(f"Expected at least 1 column, got {columns}.")
    placed = place_attention(acts, layer, query, direction)
    heads = len(placed.shares)
    columns = min(columns, heads)
    rows = math.ceil(heads / columns)
    titles = [
        tr("head {head}: max {most}", head=number + 1, most=as_percent(float(each.max())))
        for number, each in enumerate(placed.shares)
    ]
    figure = make_subplots(
        rows, columns, subplot_titles=titles, horizontal_spacing=0.02, vertical_spacing=0.14 / rows
    )
    photo = acts.photo
    left, top, right, bottom = placed.crop  # what the model saw; the rest has no attention
    small = photo.copy()
    small.thumbnail((400, 400))
    source, where = photo_source(small), cells(placed.crop, placed.shares.shape[1:])
    for number, each in enumerate(placed.shares):
        row, col = divmod(number, columns)
        name = "" if number == 0 else str(number + 1)
        most = float(each.max())
        dark = veil(_DARK * (1 - (each / most if most > 0 else 0 * each)), where)
        figure.add_trace(dark, row=row + 1, col=col + 1)
        place = dict(x=0, y=0, sizex=photo.width, sizey=photo.height, xref=f"x{name}")
        figure.add_layout_image(
            source=source, sizing="stretch", layer="below", yref=f"y{name}", **place
        )
        across = dict(range=[left, right], constrain="domain", **BARE)
        down = dict(range=[bottom, top], scaleanchor=f"x{name}", constrain="domain", **BARE)
        figure.update_xaxes(across, row=row + 1, col=col + 1)
        figure.update_yaxes(down, row=row + 1, col=col + 1)
        if placed.patch is not None:
            colour = KEY if direction == "column" else QUERY
            query_box(figure, placed.token_crop, placed.token_grid, placed.patch, colour)
            figure.layout.shapes[-1].update(xref=f"x{name}", yref=f"y{name}", line_width=2)
    for note in figure.layout.annotations:
        note.font.size = 14
    wide = 720 / columns
    height = round(rows * (wide * (bottom - top) / (right - left) + 28)) + 16
    words = tr(
        "{title}: every head on its own scale, the brighter the more attention. {heads}.",
        title=placed.title,
        heads="; ".join(titles),
    )
    finish(figure, words, height=height, top=30)
    return add_provenance(figure, acts)
