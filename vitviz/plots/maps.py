"""The figures."""

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image
from plotly.colors import get_colorscale
from plotly.subplots import make_subplots

Box = tuple[float, float, float, float]

# Sequential, 0 to the maximum. Streamlit's theme takes Inferno's own black, #000004, for one of
# its placeholders and paints it pink, so black is written in another way here.
SHARES = [[0.0, "rgb(0,0,4)"], *get_colorscale("Inferno")[1:]]
SIGNED = "RdBu_r"  # diverging, centred at 0
QUERY = "#00b4d8"  # cyan: the query, a row of A
KEY = "#d6007f"  # magenta: the key, a column of A
GREY = "#8a8f98"
MAX_SUBPLOTS = 16
_BARE = dict(showticklabels=False, showgrid=False, zeroline=False, ticks="")
_SHOWN_SIDE = 640  # pixels of the photo's longer side as it is sent to the browser
_COLORBAR = 80  # pixels that a horizontal colour bar takes below a map


def picture(
    image: Image.Image,
    *,
    crop: Box,
    grid: tuple[int, int],
    query: tuple[int, int] | None,
    query_name: str | None = None,
) -> go.Figure:
    """The picture with its patch grid; the query patch (row, column) has a solid cyan box.

    `query_name` says in the alt text what the query is.
    """
    figure = go.Figure()
    _photo(figure, image)
    left, top, right, bottom = crop
    rows, cols = grid
    path = "".join(
        [f"M{x:.1f},{top:.1f}V{bottom:.1f}" for x in np.linspace(left, right, cols + 1)]
        + [f"M{left:.1f},{y:.1f}H{right:.1f}" for y in np.linspace(top, bottom, rows + 1)]
    )
    figure.add_shape(type="path", path=path, line=dict(color="rgba(255,255,255,0.35)", width=1))
    if query is not None:
        _query_box(figure, crop, grid, query)
    # A shape alone gives no axes in some browsers; two invisible points span the picture.
    figure.add_scatter(
        x=[0, image.width], y=[0, image.height], mode="markers", marker_opacity=0, hoverinfo="skip"
    )
    _picture_axes(figure, image)
    asked = f"; the query is {query_name}" if query_name else ""
    return _finish(
        figure,
        f"The picture, cut into {rows} rows and {cols} columns of patches{asked}.",
        height=_picture_height(image),
    )


def query_attention(
    attention: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    query: tuple[int, int] | None,
    equal_share: float,
    name: str,
) -> go.Figure:
    """One map of shares of attention over the patches, in the picture's coordinates.

    Parameters
    ----------
    attention : ndarray of shape (rows, columns), shares of 1
    crop : (left, top, right, bottom) of the map in pixels of the picture
    query : (row, column) of the patch to box, or None
    equal_share : share of 1 of each token if all got the same
    name : what the map is of, for the alt text
    """
    figure = go.Figure(_heat(attention, crop, equal_share))
    if query is not None:
        _query_box(figure, crop, attention.shape, query)
    _picture_axes(figure, image)
    return _finish(
        figure, f"{name}: {_strongest(attention)}.", height=_picture_height(image) + _COLORBAR
    )


def heads(attention: np.ndarray, *, selected: int | None, names: Sequence[str]) -> go.Figure:
    """Small maps side by side, each on its own scale, its maximum printed above it.

    Parameters
    ----------
    attention : ndarray of shape (maps, rows, columns), shares of 1; the first 16 are drawn
    selected : the map that gets a frame, or None
    names : one short name a map
    """
    shown = attention[:MAX_SUBPLOTS]
    cols = max(1, math.ceil(len(shown) / max(1, math.ceil(len(shown) / 4))))
    rows = math.ceil(len(shown) / cols)
    titles = [
        f"{name} · max {_percent(one.max())}" for name, one in zip(names, shown, strict=False)
    ]
    figure = make_subplots(
        rows=rows,
        cols=cols,
        subplot_titles=titles,
        horizontal_spacing=0.03,
        vertical_spacing=min(0.2, 0.36 / rows),
    )
    for index, one in enumerate(shown):
        row, col = divmod(index, cols)
        figure.add_trace(
            go.Heatmap(
                z=100 * one,
                colorscale=SHARES,
                showscale=False,
                zmin=0,
                zmax=float(100 * one.max()) or 1.0,
                x0=1,
                y0=1,
                hovertemplate="row %{y}, column %{x}: %{z:.2f} %<extra></extra>",
            ),
            row=row + 1,
            col=col + 1,
        )
        tall, wide = one.shape
        anchor = "x" if index == 0 else f"x{index + 1}"
        where = dict(row=row + 1, col=col + 1)
        figure.update_xaxes(**_BARE, range=[0.5, wide + 0.5], constrain="domain", **where)
        figure.update_yaxes(**_BARE, range=[tall + 0.5, 0.5], scaleanchor=anchor, **where)
        if index == selected:
            frame = dict(x0=0.5, x1=wide + 0.5, y0=0.5, y1=tall + 0.5)
            figure.add_shape(type="rect", line=dict(color=QUERY, width=5), **frame, **where)
    figure.update_annotations(font_size=14)
    return _finish(
        figure,
        "Maps, each on its own scale: " + "; ".join(titles) + ".",
        height=min(420, 40 + 170 * rows),
        top=28,
    )


def prefix_shares(shares: np.ndarray, *, names: Sequence[str]) -> go.Figure:
    """The share of the row on each prefix token and on all patches together, as bars."""
    labels = [*names, "all patches"]
    values = 100 * np.append(shares, 1 - shares.sum())
    figure = go.Figure(
        go.Bar(
            x=values,
            y=labels,
            orientation="h",
            marker_color=GREY,
            text=[f"{value:.1f} %" for value in values],
            textposition="auto",
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(range=[0, 100], title="share of the row, %")
    figure.update_yaxes(autorange="reversed")
    words = ", ".join(f"{v:.1f} % on {k}" for k, v in zip(labels, values, strict=True))
    return _finish(figure, f"Where the row goes: {words}.", height=90 + 34 * len(labels))


def attention_distance(
    distance: np.ndarray,
    prefix_mass: np.ndarray,
    *,
    equal_sharing: float,
    side: float,
    selected: tuple[int, int | None],
) -> go.Figure:
    """Mean attention distance, one dot a head, dots larger the more attention the prefix takes.

    Parameters
    ----------
    distance : ndarray of shape (layers, heads), pixels; NaN is a gap
    prefix_mass : ndarray of shape (layers, heads), shares of 1
    equal_sharing : distance of uniform attention, pixels
    side : longer side of the model's input, pixels
    selected : layer and head (or None) to mark
    """
    layers, heads = distance.shape
    spread = np.linspace(-0.3, 0.3, heads) if heads > 1 else np.zeros(1)
    x = (np.arange(layers)[:, None] + 1 + spread).ravel()
    names = [f"layer {k + 1}, head {h + 1}" for k in range(layers) for h in range(heads)]
    here = [k == selected[0] and selected[1] in (None, h) for k, h in np.ndindex(layers, heads)]
    figure = go.Figure(
        go.Scatter(
            x=x,
            y=distance.ravel(),
            mode="markers",
            marker=dict(
                size=9 + 17 * prefix_mass.ravel(),
                color=[QUERY if chosen else GREY for chosen in here],
                symbol=["diamond" if chosen else "circle" for chosen in here],
                line=dict(width=1, color="#333333"),
                opacity=0.9,
            ),
            customdata=np.stack([names, 100 * prefix_mass.ravel()], axis=1),
            hovertemplate="%{customdata[0]}: %{y:.1f} px, "
            "%{customdata[1]:.1f} % on the prefix<extra></extra>",
        )
    )
    figure.add_hline(
        y=equal_sharing,
        line_dash="dash",
        line_color=GREY,
        annotation_text=f"equal sharing {equal_sharing:.1f} px",
        annotation_font_size=14,
        annotation_position="top left",
    )
    top = 1.15 * max(equal_sharing, float(np.nanmax(distance, initial=0))) or 1.0
    figure.update_xaxes(title="layer", dtick=1, range=[0.5, layers + 0.5])
    figure.update_yaxes(title="attention distance, pixels of the input", range=[0, top])
    figure.add_scatter(x=[None], y=[None], yaxis="y2", hoverinfo="skip")
    figure.update_layout(
        yaxis2=dict(
            title="share of the picture's side, %",
            overlaying="y",
            side="right",
            range=[0, 100 * top / side],
            showgrid=False,
        )
    )
    return _finish(figure, _distance_words(distance, equal_sharing), height=430, right=70)


def attention_rollout(
    rollout: np.ndarray, image: Image.Image, *, crop: Box, equal_share: float
) -> go.Figure:
    """The rollout map (rows, columns), shares of 1, in the picture's coordinates."""
    figure = go.Figure(_heat(rollout, crop, equal_share))
    _picture_axes(figure, image)
    return _finish(
        figure,
        f"Attention rollout: {_strongest(rollout)}.",
        height=_picture_height(image) + _COLORBAR,
    )


def filter_components(
    components: np.ndarray, explained_variance: np.ndarray, *, columns: int = 7
) -> go.Figure:
    """Principal components of the filters as tiles in reading order.

    Parameters
    ----------
    components : ndarray of shape (n, 3, P, P)
    explained_variance : ndarray of shape (n,), shares of 1
    """
    figure = _tiles(components, columns, [_percent(share) for share in explained_variance])
    words = f"{len(components)} principal components of the filters as colour tiles"
    total = _percent(explained_variance.sum())
    return _finish(
        figure, f"{words}; they explain {total} of the variance.", height=_tall(components, columns)
    )


def filters(kernel: np.ndarray, *, columns: int = 16) -> go.Figure:
    """Raw filters (n, 3, P, P) as tiles in the order given."""
    figure = _tiles(kernel, columns, None)
    return _finish(
        figure, f"{len(kernel)} raw filters as colour tiles.", height=_tall(kernel, columns)
    )


def position_tile(similarity: np.ndarray, *, position: tuple[int, int]) -> go.Figure:
    """Cosine of one position's embedding with all others, as a tile of the grid's shape."""
    tile = similarity[position]
    rows, cols = tile.shape
    figure = go.Figure(
        go.Heatmap(
            z=tile,
            zmin=-1,
            zmax=1,
            colorscale=SIGNED,
            colorbar=_colorbar("cosine", below=False),
            x0=1,
            y0=1,
            hovertemplate="row %{y}, column %{x}: %{z:.2f}<extra></extra>",
        )
    )
    _query_box(figure, (0.5, 0.5, cols + 0.5, rows + 0.5), (rows, cols), position)
    figure.update_xaxes(title="column", constrain="domain", showgrid=False)
    figure.update_yaxes(title="row", autorange="reversed", scaleanchor="x", showgrid=False)
    others = tile.ravel()[np.arange(tile.size) != position[0] * cols + position[1]]
    nearest = float(others.max()) if others.size else 1.0
    words = f"Cosine of the position embedding of {_place(*position)} with every other"
    return _finish(figure, f"{words}; the largest is {nearest:.2f}.", height=400)


def position_similarity(similarity: np.ndarray) -> go.Figure:
    """A grid of tiles, one a position, every second one where the grid is larger than 10."""
    rows, cols = similarity.shape[:2]
    step = 2 if max(rows, cols) > 10 else 1
    chosen = similarity[::step, ::step]
    tall, wide = chosen.shape[:2]
    canvas = np.full((tall * (rows + 2) - 2, wide * (cols + 2) - 2), np.nan, np.float32)
    for row, col in np.ndindex(tall, wide):
        y, x = row * (rows + 2), col * (cols + 2)
        canvas[y : y + rows, x : x + cols] = chosen[row, col]
    figure = go.Figure(
        go.Heatmap(
            z=canvas,
            zmin=-1,
            zmax=1,
            colorscale=SIGNED,
            colorbar=_colorbar("cosine", below=False),
            hovertemplate="cosine %{z:.2f}<extra></extra>",
        )
    )
    figure.update_xaxes(
        title="column of the position",
        tickvals=[col * (cols + 2) + (cols - 1) / 2 for col in range(wide)],
        ticktext=[str(1 + col * step) for col in range(wide)],
        constrain="domain",
        showgrid=False,
    )
    figure.update_yaxes(
        title="row of the position",
        tickvals=[row * (rows + 2) + (rows - 1) / 2 for row in range(tall)],
        ticktext=[str(1 + row * step) for row in range(tall)],
        autorange="reversed",
        scaleanchor="x",
        showgrid=False,
    )
    every = "every position" if step == 1 else "every second position"
    return _finish(
        figure, f"One tile for {every}: its cosine with each position of the grid.", height=520
    )


def token_components(
    components: np.ndarray, image: Image.Image, *, crop: Box, query: tuple[int, int] | None
) -> go.Figure:
    """The first three principal components (rows, columns, 3) as red, green and blue.

    Each channel is clipped at its 2nd and 98th percentile.
    """
    low, high = np.percentile(components, (2, 98), axis=(0, 1))
    colours = np.clip((components - low) / np.maximum(high - low, 1e-12), 0, 1)
    rows, cols = components.shape[:2]
    left, top, right, bottom = crop
    dx, dy = (right - left) / cols, (bottom - top) / rows
    figure = go.Figure(
        go.Image(
            z=(255 * colours).round().astype(np.uint8),
            x0=left + dx / 2,
            dx=dx,
            y0=top + dy / 2,
            dy=dy,
            hoverinfo="skip",
        )
    )
    if query is not None:
        _query_box(figure, crop, (rows, cols), query)
    _picture_axes(figure, image)
    alt = "First three principal components of the patch tokens as red, green and blue."
    return _finish(figure, alt, height=_picture_height(image))


def token_map(
    values: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    query: tuple[int, int] | None,
    name: str,
    signed: bool,
) -> go.Figure:
    """A number for each patch (rows, columns): cosine (signed) or norm, in picture coordinates."""
    heat = _heat(values, crop, None)
    scale = dict(colorscale=SIGNED, zmin=-1, zmax=1) if signed else dict(colorscale="Cividis")
    heat.update(
        z=values,
        zmin=float(values.min()),
        zmax=float(values.max()),
        hovertemplate="%{customdata}: %{z:.2f}<extra></extra>",
    )
    heat.colorbar = _colorbar(name)
    heat.update(**scale)
    figure = go.Figure(heat)
    if query is not None:
        _query_box(figure, crop, values.shape, query)
    _picture_axes(figure, image)
    row, col = np.unravel_index(int(np.argmax(values)), values.shape)
    largest = f"{values.max():.2f} at {_place(int(row), int(col))}"
    return _finish(
        figure,
        f"{name} of each patch; the largest is {largest}.",
        height=_picture_height(image) + _COLORBAR,
    )


def class_probabilities(
    probabilities: np.ndarray, labels: Sequence[str], *, k: int = 5
) -> go.Figure:
    """The k most probable classes as bars.

    Parameters
    ----------
    probabilities : ndarray of shape (K,), shares of 1
    labels : K names
    """
    order = np.argsort(-probabilities, kind="stable")[:k]
    values = 100 * probabilities[order]
    names = [labels[index] for index in order]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=[f"{place + 1}. {name}" for place, name in enumerate(names)],
            orientation="h",
            marker_color="#3a6ea5",
            text=[f"{value:.1f} %" for value in values],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
        )
    )
    figure.update_xaxes(range=[0, 112], title="probability, %", tickvals=[0, 25, 50, 75, 100])
    figure.update_yaxes(autorange="reversed")
    words = ", ".join(f"{n} {v:.1f} %" for n, v in zip(names, values, strict=True))
    return _finish(figure, f"Most probable classes: {words}.", height=90 + 52 * len(names))


def _heat(values: np.ndarray, crop: Box, equal_share: float | None) -> go.Heatmap:
    rows, cols = values.shape
    left, top, right, bottom = crop
    dx, dy = (right - left) / cols, (bottom - top) / rows
    percent = 100 * values
    highest = float(np.nanmax(percent))
    ticks = {0.0: "0 %", highest: f"{_percent(highest / 100)} max"}
    if equal_share is not None and 100 * equal_share <= highest:
        ticks[100 * equal_share] = "<br>▲ equal sharing"  # a line of its own: nothing overlaps
    return go.Heatmap(
        z=percent,
        x0=left + dx / 2,
        dx=dx,
        y0=top + dy / 2,
        dy=dy,
        zmin=0,
        zmax=highest if highest > 0 else 1,
        colorscale=SHARES,
        colorbar={
            **_colorbar("share, %"),
            "tickvals": list(ticks),
            "ticktext": list(ticks.values()),
        },
        customdata=[[f"row {r + 1}, column {c + 1}" for c in range(cols)] for r in range(rows)],
        hovertemplate="%{customdata}: %{z:.2f} %<extra></extra>",
    )


def _colorbar(title: str, *, below: bool = True) -> dict[str, Any]:
    return dict(
        title=dict(text=title, side="top", font_size=14),
        tickfont_size=14,
        ticklabeloverflow="allow",
        tickangle=0,
        thickness=12,
        **(dict(orientation="h", len=0.8, y=-0.02, yanchor="top", ypad=4) if below else {}),
    )


def _query_box(figure: go.Figure, crop: Box, grid: tuple[int, ...], query: tuple[int, int]) -> None:
    left, top, right, bottom = crop
    dx, dy = (right - left) / grid[1], (bottom - top) / grid[0]
    x, y = left + query[1] * dx, top + query[0] * dy
    figure.add_shape(type="rect", x0=x, y0=y, x1=x + dx, y1=y + dy, line=dict(color=QUERY, width=4))


def _photo(figure: go.Figure, image: Image.Image) -> None:
    small = image.copy()
    small.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=88)
    figure.add_layout_image(
        source="data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode(),
        x=0,
        y=0,
        sizex=image.width,
        sizey=image.height,
        xref="x",
        yref="y",
        sizing="stretch",
        layer="below",
    )


def _picture_axes(figure: go.Figure, image: Image.Image) -> None:
    figure.update_xaxes(range=[0, image.width], constrain="domain", **_BARE)
    figure.update_yaxes(range=[image.height, 0], scaleanchor="x", constrain="domain", **_BARE)
    outline = dict(x0=0, x1=image.width, y0=0, y1=image.height)
    figure.add_shape(type="rect", line=dict(color=GREY, width=1), **outline)
    figure.update_layout(showlegend=False)


def _tiles(tiles: np.ndarray, columns: int, names: Sequence[str] | None) -> go.Figure:
    """RGB tiles (n, 3, P, P), each scaled to its own largest absolute value around mid grey."""
    count, _, side, _ = tiles.shape
    rows = math.ceil(count / columns)
    gap = math.ceil(side / (3 if names else 8))
    step = side + gap
    canvas = np.zeros((rows * step - gap, min(columns, count) * step - gap, 4), np.uint8)
    for index, tile in enumerate(tiles):
        row, col = divmod(index, columns)
        scaled = 0.5 + tile / (2 * max(float(np.abs(tile).max()), 1e-12))
        spot = canvas[row * step : row * step + side, col * step : col * step + side]
        spot[..., :3] = (255 * scaled.transpose(1, 2, 0)).round().astype(np.uint8)
        spot[..., 3] = 255
    figure = go.Figure(go.Image(z=canvas, colormodel="rgba", hoverinfo="skip"))
    for index, name in enumerate(names or ()):
        row, col = divmod(index, columns)
        figure.add_annotation(
            x=col * step + (side - 1) / 2,
            y=row * step + side - 0.5,
            text=name,
            showarrow=False,
            yanchor="top",
            font_size=14,
        )
    figure.update_xaxes(**_BARE, constrain="domain")
    figure.update_yaxes(**_BARE, scaleanchor="x")
    return figure


def _picture_height(image: Image.Image) -> int:
    """Pixels on screen, in a column of about 360, of a figure that shows the whole picture."""
    return round(min(380, max(160, 360 * image.height / image.width))) + 16


def _tall(tiles: np.ndarray, columns: int) -> int:
    return min(460, 30 + 90 * math.ceil(len(tiles) / columns))


def _distance_words(distance: np.ndarray, equal_sharing: float) -> str:
    finite = np.isfinite(distance)
    if not finite.any():
        return "No head attends to any patch, so there is no distance to show."
    low, high = np.nanmin(distance), np.nanmax(distance)
    words = f"Attention distance of {finite.sum()} heads, from {low:.1f} to {high:.1f} pixels"
    below = int((distance[finite] < equal_sharing).sum())
    return f"{words}; {below} lie below equal sharing at {equal_sharing:.1f} pixels."


def _strongest(values: np.ndarray) -> str:
    row, col = np.unravel_index(int(np.argmax(values)), values.shape)
    return f"strongest at {_place(int(row), int(col))}, {_percent(float(values.max()))}"


def _place(row: int, col: int) -> str:
    return f"row {row + 1}, column {col + 1}"


def _percent(share: float) -> str:
    """Two significant digits, so that shares of very different size can be read."""
    percent = 100 * float(share)
    if percent >= 9.95 or percent <= 0:
        return f"{percent:.0f} %"
    digits = 1 - math.floor(math.log10(percent))
    return f"{percent:.{digits}f} %"


def _finish(figure: go.Figure, alt: str, *, height: int, top: int = 8, right: int = 8) -> go.Figure:
    figure.update_layout(
        meta={"alt": alt},
        height=height,
        margin=dict(l=8, r=right, t=top, b=8),
        font_size=14,
        showlegend=False,
        dragmode=False,
    )
    figure.update_xaxes(title_font_size=14, tickfont_size=14, automargin=True)
    figure.update_yaxes(title_font_size=14, tickfont_size=14, automargin=True)
    return figure
