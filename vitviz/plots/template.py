"""What all figures share: colours, scales and layout."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.colors import get_colorscale, sample_colorscale
from plotly.io import templates

Box = tuple[float, float, float, float]

# Sequential, 0 to the maximum. Streamlit's theme takes Inferno's own black, #000004, for one of
# its placeholders and paints it pink, so black is written as rgb() here.
SHARES = [[0.0, "rgb(0,0,4)"], *get_colorscale("Inferno")[1:]]
SIGNED = "RdBu_r"  # diverging, centred at 0
QUERY = "#00b4d8"  # cyan: the query, a row of A
KEY = "#ff33cc"  # magenta: the key, a column of A; seen on Inferno, black and white
GREY = "#8a8f98"
# Colour, marker and dash of lines that are compared; they differ without their colour too.
LINES = (
    ("#4a86c5", "circle", "solid"),
    ("#c0701a", "square", "dash"),
    (GREY, "diamond", "dot"),
    ("#8a4fbf", "cross", "dashdot"),
)
BARE = dict(showticklabels=False, showgrid=False, zeroline=False, ticks="")


@cache
def colour_table(signed: bool) -> str:
    """A colour table of 256 entries, from the smallest value to the largest, each RRGGBB."""
    scale = get_colorscale(SIGNED) if signed else SHARES
    colours = sample_colorscale(scale, np.linspace(0, 1, 256).tolist(), colortype="tuple")
    return "".join(f"{round(255 * part):02x}" for colour in colours for part in colour)


def finish(figure: go.Figure, alt: str, *, height: int, top: int = 8, right: int = 8) -> go.Figure:
    """Set the alt text, the height and margins in pixels, and the size of all text."""
    size = dict(size=14)
    margin = dict(l=8, r=right, t=top, b=8)
    whole = dict(meta={"alt": alt}, height=height, margin=margin, font=size)
    # Plotly takes several times as long to merge properties as to replace them.
    figure.update_layout(whole, showlegend=False, dragmode=False, overwrite=True)
    for name in [name for name in figure.layout if name.startswith(("xaxis", "yaxis"))]:
        own = figure.layout[name].to_plotly_json()
        title, ticks = own.get("title", {}), own.get("tickfont", {})
        title, ticks = title | {"font": title.get("font", {}) | size}, ticks | size
        texts = dict(title=title, tickfont=ticks, automargin=True)
        figure.layout[name] = own | texts
    return figure


def on_white(figure: go.Figure) -> dict[str, Any]:
    """The figure as JSON for a page of its own, without Plotly's tinted ground.

    Not as another figure: to make one takes ten times as long as to write it into the page.
    """
    parts: dict[str, Any] = figure.to_plotly_json()
    parts["layout"]["template"] = templates["plotly_white"].to_plotly_json()
    return parts


def picture_axes(figure: go.Figure, box: Box) -> None:
    """Axes without marks that span a box (left, top, right, bottom), in its own proportions."""
    left, top, right, bottom = box
    across = dict(range=[left, right], constrain="domain", **BARE)
    down = dict(range=[bottom, top], scaleanchor="x", constrain="domain", **BARE)
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)


def lay_below(
    figure: go.Figure, source: str, corner: tuple[float, float], size: tuple[float, float]
) -> None:
    """A picture below all traces: its top left corner, width and height in units of the axes."""
    (x, y), (width, height) = corner, size
    place = dict(x=x, y=y, sizex=width, sizey=height, xref="x", yref="y")
    figure.add_layout_image(source=source, sizing="stretch", layer="below", **place)


def legend_above(figure: go.Figure, *, top: int | None = None) -> go.Figure:
    """Name the lines above the axes; `top` is the margin that the names get, in pixels."""
    legend = dict(orientation="h", x=0, y=1.02, yanchor="bottom", font_size=14)
    figure.update_layout(showlegend=True, legend=legend, overwrite=True)
    if top is not None:
        figure.layout.margin.t = top
    return figure


def beside_each_other(num_heads: Sequence[int]) -> np.ndarray:
    """Positions of the heads' dots along an axis of layers, which count from 1.

    An ndarray of shape (layers, most heads of a layer), NaN where a layer has fewer.
    """
    where = np.full((len(num_heads), max(num_heads)), np.nan)
    for layer, heads in enumerate(num_heads):
        where[layer, :heads] = layer + 1 + (np.linspace(-0.3, 0.3, heads) if heads > 1 else 0)
    return where


def enlarged(figure: go.Figure, factor: float) -> go.Figure:
    """The same figure with larger text, and as much more height for it."""

    def larger(value: Any, name: str = "") -> Any:
        """The font sizes in `value`, multiplied, in the same nesting."""
        if isinstance(value, dict):
            found = {key: larger(one, f"{name} {key}") for key, one in value.items()}
            return {key: one for key, one in found.items() if one}
        if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
            return [larger(one, name) for one in value]  # annotations
        is_text = name.endswith("font size") and isinstance(value, (int, float))
        return factor * value if is_text else None

    made, parts = go.Figure(figure), figure.to_plotly_json()
    made.update_layout(larger(parts["layout"]))
    for trace, part in zip(made.data, parts["data"], strict=True):
        trace.update(larger(part))
    margin = {side: factor * size for side, size in parts["layout"].get("margin", {}).items()}
    return made.update_layout(margin=margin, height=factor * made.layout.height)


def colorbar(title: str, *, below: bool = True) -> dict[str, Any]:
    return dict(
        title=dict(text=title, side="top", font_size=14),
        tickfont_size=14,
        ticklabeloverflow="allow",
        tickangle=0,
        thickness=12,
        **(dict(orientation="h", len=0.8, y=-0.02, yanchor="top", ypad=4) if below else {}),
    )


def query_box(
    figure: go.Figure,
    crop: Box,
    grid: tuple[int, ...],
    query: tuple[int, int],
    colour: str = QUERY,
) -> None:
    cell = cells(crop, grid)
    x, y = crop[0] + query[1] * cell["dx"], crop[1] + query[0] * cell["dy"]
    box = dict(x0=x, y0=y, x1=x + cell["dx"], y1=y + cell["dy"])
    figure.add_shape(type="rect", line=dict(color=colour, width=4), **box)


def cells(crop: Box, grid: tuple[int, ...]) -> dict[str, float]:
    """Where a map with a value for each patch lies: the first centre, and the steps."""
    left, top, right, bottom = crop
    dx, dy = (right - left) / grid[1], (bottom - top) / grid[0]
    return dict(x0=left + dx / 2, dx=dx, y0=top + dy / 2, dy=dy)


def centre(crop: Box, grid: tuple[int, ...], row: Any, col: Any) -> tuple[Any, Any]:
    """The centre (x, y) of a patch in the picture; of arrays of rows and columns, arrays."""
    cell = cells(crop, grid)
    return cell["x0"] + col * cell["dx"], cell["y0"] + row * cell["dy"]
