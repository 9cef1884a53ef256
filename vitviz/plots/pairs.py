"""Draw which queries may attend to which keys, and how many multiply-adds that takes."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image, ImageDraw
from plotly.subplots import make_subplots

from ..common.language import patch_name, tr
from .maps import picture
from .template import BARE, INVISIBLE, KEY, LINES, QUERY, Crop, cells, finish, line_style, veil

_ALLOWED = [[0.0, "rgba(138,143,152,0.2)"], [1.0, "#4a86c5"]]
_FINE = 20  # from this many rows or columns on, cells have no gaps and boxes are thin
_MOST_POINTS = 28  # clickable points along a side of the picture
_DIMMED = 0.45  # opacity of the black over patches that the query may not attend to


def allowed_pairs(
    masks: Sequence[np.ndarray],
    *,
    titles: Sequence[str],
    chosen: Sequence[tuple[int, int] | None],
    prefixes: Sequence[Sequence[str]],
    axes: tuple[str, str] = ("query i", "key j"),
) -> go.Figure:
    """Draw matrices side by side, coloured where the query in row i may attend to the key j.

    Parameters
    ----------
    masks : ndarrays of bool of shape (queries, keys)
    titles : of the matrices
    chosen : (row, column) to box in each, cyan and magenta; or None
    prefixes : names of the first rows and columns of each
    axes : names of rows and columns
    """
    figure = make_subplots(
        cols=len(masks), subplot_titles=titles, horizontal_spacing=0.2 / len(masks)
    )
    counts = []
    for number, (mask, pair, names) in enumerate(zip(masks, chosen, prefixes, strict=True)):
        where = dict(row=1, col=number + 1)
        figure.add_trace(
            go.Heatmap(
                z=mask.astype(np.uint8),
                zmin=0,
                zmax=1,
                colorscale=_ALLOWED,
                showscale=False,
                x0=1,
                y0=1,
                xgap=int(max(mask.shape) < _FINE),
                ygap=int(max(mask.shape) < _FINE),
                hovertemplate=f"{axes[0]} %{{y}}, {axes[1]} %{{x}}: %{{z}}<extra></extra>",
            ),
            **where,
        )
        queries, keys = mask.shape
        ticks = dict(tickvals=list(range(1, len(names) + 1)), ticktext=list(names))
        axis = {**BARE, "showticklabels": bool(names), "constrain": "domain", **ticks, **where}
        figure.update_xaxes(title=axes[1], range=[0.4, keys + 0.6], tickangle=-90, **axis)
        figure.update_yaxes(
            title=axes[0],
            range=[queries + 0.6, 0.4],
            scaleanchor=f"x{number + 1 if number else ''}",
            constraintoward="top",
            **axis,
        )
        if pair is not None:
            i, j = pair[0] + 1, pair[1] + 1
            row = dict(x0=0.5, x1=keys + 0.5, y0=i - 0.5, y1=i + 0.5)
            column = dict(x0=j - 0.5, x1=j + 0.5, y0=0.5, y1=queries + 0.5)
            width = 3 if max(mask.shape) < _FINE else 1.5
            for box, line in (
                (column, dict(color=KEY, width=width, dash="5px,3px")),
                (row, dict(color=QUERY, width=width)),
            ):
                figure.add_shape(type="rect", line=line, **box, **where)
        words = titles[number].replace("<br>", ", ")
        counts.append(
            tr("{words}: {count} of {size} pairs", words=words, count=mask.sum(), size=mask.size)
        )
    figure.update_annotations(font_size=14)
    lines = max(title.count("<br>") for title in titles) + 1
    return finish(
        figure,
        tr("Allowed pairs: {counts}.", counts="; ".join(counts)),
        height=330,
        top=8 + 20 * lines,
    )


def allowed_keys(
    allowed: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    grid: tuple[int, int],
    query: tuple[int, int] | None,
    query_name: str,
) -> go.Figure:
    """Draw the picture with one query, solid cyan, and dim the keys that it may not attend to.

    A dashed magenta line surrounds the allowed keys, or every key if keys are larger than patches.
    Invisible points can be clicked; their customdata are per cent of the way down and across.

    Parameters
    ----------
    allowed : ndarray of bool of shape (rows, columns) of the key grid
    crop : (left, top, right, bottom) of both grids in pixels of the picture
    grid : (rows, columns) of the queries
    query : (row, column) of the patch to box, or None
    query_name : name of the query, for the alt text
    """
    figure = picture(image, crop=crop, grid=grid, query=query)
    figure.layout.shapes[0].opacity = min(1.0, 20 / max(grid))  # a fine grid is drawn faintly
    where = cells(crop, allowed.shape)
    (left, top), dx, dy = crop[:2], where["dx"], where["dy"]
    figure.add_trace(veil(np.where(allowed, 0, _DIMMED), where))
    pooled = allowed.shape != grid
    path = "".join(
        f"M{left + x0 * dx:.1f},{top + y0 * dy:.1f}L{left + x1 * dx:.1f},{top + y1 * dy:.1f}"
        for x0, y0, x1, y1 in _edges(allowed, every=pooled)
    )
    line = dict(color=KEY, width=1.5 if pooled else 3, dash="5px,3px")
    figure.add_shape(type="path", path=path, line=line)
    figure.layout.shapes = _query_last(figure.layout.shapes)
    _clickable(figure, crop, grid)
    count = int(allowed.sum())
    figure.layout.meta["alt"] = tr(
        "The picture: {query} may attend to {count} of {size} keys; the others are dimmed.",
        query=query_name,
        count=count,
        size=allowed.size,
    )
    return figure


def allowed_keys_tile(
    photo: Image.Image, allowed: np.ndarray, grid: tuple[int, int], query: tuple[int, int]
) -> Image.Image:
    """Draw on a small photo what `allowed_keys` draws on a large one.

    Parameters
    ----------
    photo : square
    allowed : ndarray of bool of shape (rows, columns) of the key grid
    grid : (rows, columns) of the queries
    query : (row, column) of its patch
    """
    side = photo.width
    tile = np.asarray(photo.convert("RGB"), dtype=float)
    at = [np.arange(side) * count // side for count in allowed.shape]
    tile = tile * np.where(allowed[np.ix_(*at)], 1, 1 - _DIMMED)[..., None]
    image = Image.fromarray(tile.round().astype(np.uint8))
    pen = ImageDraw.Draw(image)
    dx, dy = (side / count for count in allowed.shape[::-1])
    for x0, y0, x1, y1 in _edges(allowed, every=allowed.shape != grid):
        ends = [min(end, side - 2) for end in (x0 * dx, y0 * dy, x1 * dx, y1 * dy)]
        start, end = np.array(ends[:2]), np.array(ends[2:])
        length = float(abs(end - start).max())
        for begin in np.arange(0, length, 8):
            dash = [start + (end - start) * min(at, length) / length for at in (begin, begin + 5)]
            pen.line([tuple(point) for point in dash], KEY, 2)
    (row, col), (height, width) = query, (side / count for count in grid)
    box = [col * width - 2, row * height - 2, (col + 1) * width + 1, (row + 1) * height + 1]
    pen.rectangle(box, outline=QUERY, width=3)
    return image


def _query_last(shapes: Sequence[go.layout.Shape]) -> list[go.layout.Shape]:
    """Return the shapes with the query's box on top."""
    return sorted(shapes, key=lambda shape: shape.line.color == QUERY)


def _edges(mask: np.ndarray, *, every: bool) -> list[tuple[int, int, int, int]]:
    """Return borders (x0, y0, x1, y1) between true and false cells, or around `every` cell.

    Neighbouring edges are joined into one line, so that its dashes continue.
    """
    lines = []
    for turned in (False, True):
        cells = np.pad(mask.T if turned else mask, 1)
        above, below = cells[:-1, 1:-1], cells[1:, 1:-1]
        edges = (above | below) if every else (above ^ below)  # (rows + 1, columns)
        steps = np.diff(np.pad(edges, ((0, 0), (1, 1))).astype(np.int8), axis=1)
        for (y, start), (_, end) in zip(
            np.argwhere(steps == 1).tolist(), np.argwhere(steps == -1).tolist(), strict=True
        ):
            lines.append((y, start, y, end) if turned else (start, y, end, y))
    return lines


def _clickable(figure: go.Figure, crop: Crop, grid: tuple[int, int]) -> None:
    """Add clickable points in the middle of patches, thinned out if there are too many."""
    left, top, right, bottom = crop
    shares = [(np.arange(0, count, -(-count // _MOST_POINTS)) + 0.5) / count for count in grid]
    down, across = (values.ravel() for values in np.meshgrid(*shares, indexing="ij"))
    rows, cols = (down * grid[0]).astype(int), (across * grid[1]).astype(int)
    figure.add_scatter(
        x=left + across * (right - left),
        y=top + down * (bottom - top),
        mode="markers",
        marker_size=14,
        **INVISIBLE,
        customdata=(100 * np.stack([down, across], axis=1)).astype(int).tolist(),
        text=[patch_name(*at) for at in zip(rows.tolist(), cols.tolist(), strict=True)],
        hovertemplate="%{text}<extra></extra>",
    )


def attention_cost(
    sides: Sequence[int], tokens: Sequence[int], costs: Mapping[str, Sequence[float]]
) -> go.Figure:
    """Draw multiply-adds by the number of tokens, on logarithmic scales.

    Parameters
    ----------
    sides : of the picture, pixels
    tokens : number of tokens for each side
    costs : multiply-adds for each side, by the line's name
    """
    figure, words = go.Figure(), []
    for (name, values), style in zip(costs.items(), LINES, strict=False):
        figure.add_scatter(
            x=list(tokens),
            y=list(values),
            name=name,
            **line_style(style, 9),
            customdata=list(sides),
            hovertemplate="%{customdata} px, N = %{x}: %{y:.2s}<extra>" + name + "</extra>",
        )
        words.append(
            tr(
                "{name} from {first:.3g} M to {last:.3g} M",
                name=name,
                first=values[0] / 1e6,
                last=values[-1] / 1e6,
            )
        )
    ticks = [f"{count}<br>{side} px" for count, side in zip(tokens, sides, strict=True)]
    across = dict(
        title=tr("tokens N and side of the picture"),
        type="log",
        tickvals=list(tokens),
        ticktext=ticks,
    )
    down = dict(title=tr("multiply-adds of one layer"), type="log", exponentformat="SI", dtick=1)
    return finish(
        figure,
        tr("Multiply-adds of one layer: {words}.", words="; ".join(words)),
        height=360,
        axes=(across, down),
        top=56,
        legend=True,
    )
