"""Shared by all figures: colours, scales, layout, and a page that holds several figures."""

import html
import json
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import get_colorscale, sample_colorscale
from plotly.io import templates, to_html

from ..common.images import Crop
from ..common.language import patch_name, tr
from ..common.query import token_number

# Sequential, from 0 to the maximum. Black is written as rgb(), because Streamlit's theme takes
# Inferno's own #000004 for one of its placeholders and paints it pink.
SHARES = [[0.0, "rgb(0,0,4)"], *get_colorscale("Inferno")[1:]]
RELEVANCE = "Cividis"  # sequential, for relevance, which is not a share
SIGNED = "RdBu_r"  # diverging, centred at 0
QUERY = "#00b4d8"  # cyan: the query, a row of A
KEY = "#ff33cc"  # magenta: the key, a column of A; seen on Inferno, black and white
GREY = "#8a8f98"
# Colour, marker and dash of compared lines, which can be told apart without colour.
LINES = (
    ("#4a86c5", "circle", "solid"),
    ("#c0701a", "square", "dash"),
    (GREY, "diamond", "dot"),
    ("#8a4fbf", "cross", "dashdot"),
    ("#1f8a70", "triangle-up", "longdash"),
    ("#c44e8b", "x", "longdashdot"),
    ("#7a6a2e", "star", "solid"),
    ("#3f51b5", "triangle-down", "dash"),
    ("#a63d2f", "pentagon", "dot"),
    ("#2b8fa3", "hexagon", "dashdot"),
)
BARE = dict(showticklabels=False, showgrid=False, zeroline=False, ticks="")
# An invisible point stays invisible when it or another one is clicked.
INVISIBLE = dict(marker_opacity=0, selected_marker_opacity=0, unselected_marker_opacity=0)


def line_style(line: tuple[str, str, str], size: int = 8) -> dict[str, Any]:
    """Return the options of a trace that is drawn as one of `LINES`, with markers of this size."""
    colour, symbol, dash = line
    return dict(
        mode="lines+markers",
        line=dict(color=colour, dash=dash, width=2),
        marker=dict(symbol=symbol, size=size),
    )


def signed_scale(reach: float, digits: str, bar: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a heat map centred at 0, whose colour bar has ticks at both ends."""
    ticks = [f"{-reach:{digits}}", "0", f"{reach:{digits}}"]
    bar = {**bar, "tickvals": [-reach, 0, reach], "ticktext": ticks}
    return dict(zmin=-reach, zmax=reach, colorscale=SIGNED, colorbar=bar)


def largest_patch(values: np.ndarray) -> str:
    """Return the name of the patch with the largest value (rows, columns)."""
    return patch_name(*divmod(int(np.nanargmax(values)), values.shape[1]))


def smallest_patch(values: np.ndarray) -> str:
    return patch_name(*divmod(int(np.nanargmin(values)), values.shape[1]))


def patch_names(grid: tuple[int, ...]) -> list[list[str]]:
    """Return the name of each patch of a grid, row by row."""
    return [[patch_name(row, col) for col in range(grid[1])] for row in range(grid[0])]


def block_centres(
    crop: Crop, grid: tuple[int, ...], block: int
) -> list[tuple[tuple[int, int], float, float]]:
    """Return the first patch (row, column) of each block of a grid, and its centre (x, y)."""
    (rows, cols), (left, top, right, bottom) = grid, crop
    across, down = (right - left) / cols, (bottom - top) / rows
    return [
        (
            (row, col),
            left + across * (col + min(col + block, cols)) / 2,
            top + down * (row + min(row + block, rows)) / 2,
        )
        for row in range(0, rows, block)
        for col in range(0, cols, block)
    ]


def veil(opacity: np.ndarray, where: dict[str, float]) -> go.Image:
    """Return black over patches, as opaque as `opacity` (rows, columns) says, from 0 to 1."""
    pixels = np.zeros((*opacity.shape, 4), np.uint8)
    pixels[..., 3] = np.rint(255 * opacity)
    return go.Image(z=pixels, colormodel="rgba", zmax=4 * [255], hoverinfo="skip", **where)


def head_names(layers: int, heads: int) -> list[str]:
    """Return the name of each head, layer by layer."""
    return [
        tr("layer {layer}, head {head}", layer=layer + 1, head=head + 1)
        for layer, head in np.ndindex(layers, heads)
    ]


def escape_text(name: str) -> str:
    """Escape a name for Plotly, which would read HTML, templates and LaTeX in it."""
    return name.translate(_PLOTLY_READS)


def hover_names(full_names: Sequence[str] | None, shown: Sequence[int]) -> dict[str, Any]:
    """Return the options of a trace that shows the full names of these classes on hover."""
    if full_names is None:
        return dict(hoverinfo="skip")
    return dict(hoverinfo="text", hovertext=[escape_text(full_names[index]) for index in shown])


_PLOTLY_READS = {ord(sign): f"&#{ord(sign)};" for sign in "&<>%$"}


@cache
def colour_table(signed: bool = False) -> str:
    """Return 256 colours from the smallest to the largest value, each as RRGGBB."""
    scale = get_colorscale(SIGNED) if signed else SHARES
    colours = sample_colorscale(scale, np.linspace(0, 1, 256).tolist(), colortype="tuple")
    return "".join(f"{round(255 * part):02x}" for colour in colours for part in colour)


def finish(
    figure: go.Figure,
    alt: str,
    *,
    height: int,
    top: int = 8,
    right: int = 8,
    axes: tuple[dict[str, Any], dict[str, Any]] | None = None,
    legend: bool = False,
) -> go.Figure:
    """Set the alt text, the height and margins in pixels, and the size of all text.

    Parameters
    ----------
    axes : options of the x axis and of the y axis, in place of those that they had
    legend : whether to show it above the axes, in the margin
    """
    size = dict(size=14)
    margin = dict(l=8, r=right, t=top, b=8)
    layout: dict[str, Any] = dict(meta={"alt": alt}, height=height, margin=margin, font=size)
    if axes is not None:
        layout |= dict(xaxis=axes[0], yaxis=axes[1])
    if legend:
        layout["legend"] = dict(orientation="h", x=0, y=1.02, yanchor="bottom", font=size)
    # Plotly is several times faster at replacing properties than at merging them.
    figure.update_layout(layout, showlegend=legend, dragmode=False, overwrite=True)
    for name in [name for name in figure.layout if name.startswith(("xaxis", "yaxis"))]:
        own = figure.layout[name].to_plotly_json()
        title, ticks = own.get("title", {}), own.get("tickfont", {})
        title, ticks = title | {"font": title.get("font", {}) | size}, ticks | size
        texts = dict(title=title, tickfont=ticks, automargin=True)
        figure.layout[name] = own | texts
    return figure


def as_white_json(figure: go.Figure) -> dict[str, Any]:
    """Return the figure as JSON for a page, with a white background.

    It is no second figure, as building one takes ten times as long as writing it into the page.
    """
    parts: dict[str, Any] = figure.to_plotly_json()
    parts["layout"]["template"] = templates["plotly_white"].to_plotly_json()
    return parts


def picture_axes(figure: go.Figure, box: Crop) -> None:
    """Set axes without marks that span a box (left, top, right, bottom) in its proportions."""
    left, top, right, bottom = box
    across = dict(range=[left, right], constrain="domain", **BARE)
    down = dict(range=[bottom, top], scaleanchor="x", constrain="domain", **BARE)
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)


def add_picture_below(
    figure: go.Figure, source: str, corner: tuple[float, float], size: tuple[float, float]
) -> None:
    """Add a picture below all traces; its top left corner and size are in units of the axes."""
    (x, y), (width, height) = corner, size
    place = dict(x=x, y=y, sizex=width, sizey=height, xref="x", yref="y")
    figure.add_layout_image(source=source, sizing="stretch", layer="below", **place)


def head_positions(num_heads: Sequence[int]) -> np.ndarray:
    """Return where heads stand on an axis of layers, which count from 1.

    An ndarray of shape (layers, most heads of a layer), NaN where a layer has fewer.
    """
    positions = np.full((len(num_heads), max(num_heads)), np.nan)
    for layer, heads in enumerate(num_heads):
        positions[layer, :heads] = layer + 1 + (np.linspace(-0.3, 0.3, heads) if heads > 1 else 0)
    return positions


def enlarged(figure: go.Figure, factor: float) -> go.Figure:
    """Return the figure with text larger by this factor, and as much more height."""

    def larger(value: Any, name: str = "") -> Any:
        """Return the font sizes in `value`, multiplied, in the same nesting."""
        if isinstance(value, dict):
            sizes = {key: larger(one, f"{name} {key}") for key, one in value.items()}
            return {key: one for key, one in sizes.items() if one}
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            return [larger(one, name) for one in value]  # annotations
        is_text = name.endswith("font size") and isinstance(value, (int, float))
        return factor * value if is_text else None

    result, parts = go.Figure(figure), figure.to_plotly_json()
    result.update_layout(larger(parts["layout"]))
    for trace, part in zip(result.data, parts["data"], strict=True):
        trace.update(larger(part))
    margin = {side: factor * size for side, size in parts["layout"].get("margin", {}).items()}
    return result.update_layout(margin=margin, height=factor * result.layout.height)


def colorbar(title: str, *, below: bool = True, side: str = "top") -> dict[str, Any]:
    """Return a colour bar, beside the axes or below them; its title is at this side of it."""
    return dict(
        title=dict(text=title, side=side, font_size=14),
        tickfont_size=14,
        ticklabeloverflow="allow",
        tickangle=0,
        thickness=12,
        **(dict(orientation="h", len=0.8, y=-0.02, yanchor="top", ypad=4) if below else {}),
    )


def grid_lines(figure: go.Figure, crop: Crop, grid: tuple[int, ...]) -> None:
    """Draw faint lines between the patches."""
    left, top, right, bottom = crop
    lines = [f"M{x:.1f},{top:.1f}V{bottom:.1f}" for x in np.linspace(left, right, grid[1] + 1)]
    lines += [f"M{left:.1f},{y:.1f}H{right:.1f}" for y in np.linspace(top, bottom, grid[0] + 1)]
    faint = dict(color="rgba(255,255,255,0.35)", width=1)
    figure.add_shape(type="path", path="".join(lines), line=faint)


def query_box(
    figure: go.Figure,
    crop: Crop,
    grid: tuple[int, ...],
    query: tuple[int, int],
    colour: str = QUERY,
) -> None:
    figure.add_shape(**box_shape(crop, grid, query, colour))


def box_shape(
    crop: Crop, grid: tuple[int, ...], query: tuple[int, int], colour: str = QUERY
) -> dict[str, Any]:
    """Return the shape of a box around a patch."""
    cell = cells(crop, grid)
    row, col = divmod(token_number(query, prefix=(), grid=(grid[0], grid[1])), grid[1])
    x, y = crop[0] + col * cell["dx"], crop[1] + row * cell["dy"]
    box = dict(x0=x, y0=y, x1=x + cell["dx"], y1=y + cell["dy"])
    return dict(type="rect", line=dict(color=colour, width=4), **box)


def cells(crop: Crop, grid: tuple[int, ...]) -> dict[str, float]:
    """Return the centre of the first patch and the steps to the next ones, for a Plotly trace."""
    left, top, right, bottom = crop
    dx, dy = (right - left) / grid[1], (bottom - top) / grid[0]
    return dict(x0=left + dx / 2, dx=dx, y0=top + dy / 2, dy=dy)


def centre(crop: Crop, grid: tuple[int, ...], row: Any, col: Any) -> tuple[Any, Any]:
    """Return the centre (x, y) of a patch in the picture; arrays for arrays of rows and columns."""
    cell = cells(crop, grid)
    return cell["x0"] + col * cell["dx"], cell["y0"] + row * cell["dy"]


_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;"
    "color:#222;background:#fff}table{border-collapse:collapse}td,th{padding:.2rem .8rem .2rem 0;"
    "text-align:left;vertical-align:top;overflow-wrap:anywhere}"
    "figure{margin:0 0 2rem;overflow-x:auto}figure>div{min-width:36rem}"
)


def document(
    title: str,
    facts: dict[str, str],
    figures: Iterable[tuple[str, str, go.Figure]],
    record: dict[str, Any],
) -> str:
    """Return one HTML file that loads nothing: a table of facts, and figures with title and words.

    The file also holds `record`, how it was made, as JSON.
    """
    data = json.dumps(record).replace("<", "\\u003c")
    parts = [f'<script type="application/json" id="made-with">{data}</script>', _table(facts)]
    plotly: Any = True  # write the library once, before the first figure
    for heading, words, figure in figures:
        content = to_html(
            as_white_json(figure),
            full_html=False,
            include_plotlyjs=plotly,
            config={"displaylogo": False},
            validate=False,
        )
        plotly = False
        alt = html.escape(figure.layout.meta["alt"])
        parts.append(
            f"<h2>{html.escape(heading)}</h2><p>{html.escape(words)}</p>"
            f'<figure role="img" aria-label="{alt}">{content}</figure>'
        )
    title = html.escape(title)
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{title}</title>'
        f'<link rel="icon" href="data:,"><style>{_STYLE}</style></head>'
        f"<body><h1>{title}</h1>{''.join(parts)}</body></html>\n"
    )


def _table(facts: dict[str, str]) -> str:
    rows = (
        f"<tr><th>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"
