"""Grids of tiles: filters of the patch embedding, similarity of positions, token mixing."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import as_percent, patch_name, tr
from .template import (
    BARE,
    QUERY,
    SIGNED,
    colorbar,
    colour_table,
    finish,
    query_box,
)

MOST_TILES = 13  # of positions along a side of the sprite
SPRITE_GAP = 2  # cells between two tiles
TILES_WIDTH = 300  # pixels of the column in which filters are shown
# An invisible point stays invisible when it, or another one, was clicked.
UNMOVED = dict(selected_marker_opacity=0, unselected_marker_opacity=0)


def filter_components(
    components: np.ndarray,
    explained_variance: np.ndarray,
    *,
    columns: int = 6,
    gain: float = 1.0,
    selected: int | None = None,
) -> go.Figure:
    """Principal components of the filters as tiles in reading order, each with its share.

    Parameters
    ----------
    components : ndarray of shape (n, 3, P, P)
    explained_variance : ndarray of shape (n,), shares of 1
    gain : contrast; above 1 the strongest weights are clipped
    selected : the tile that gets a frame, or None
    """
    shares = [as_percent(share) for share in explained_variance]
    names = [
        tr("component {number}: {share} of the variance", number=k + 1, share=share)
        for k, share in enumerate(shares)
    ]
    total = as_percent(explained_variance.sum())
    words = tr(
        "{components} principal components of the filters as colour tiles",
        components=len(components),
    )
    figure = _tiles(components, columns, gain, names, shares, selected)
    return _finished(
        figure, tr("{words}; they explain {total} of the variance.", words=words, total=total)
    )


def filters(
    kernel: np.ndarray,
    *,
    names: Sequence[str] | None = None,
    columns: int | None = None,
    gain: float = 1.0,
    selected: int | None = None,
) -> go.Figure:
    """Raw filters (n, 3, P, P) as tiles in the order given; by default as high as wide."""
    columns = columns or math.ceil(math.sqrt(len(kernel)))
    names = names or [tr("filter {number}", number=number + 1) for number in range(len(kernel))]
    figure = _tiles(kernel, columns, gain, names, None, selected)
    return _finished(figure, tr("{kernel} raw filters as colour tiles.", kernel=len(kernel)))


def filter_tile(kernel: np.ndarray, *, name: str, gain: float = 1.0) -> go.Figure:
    """One filter (3, P, P), large; `name` says in the alt text which."""
    side = kernel.shape[1]
    weights = [
        [
            f"{patch_name(row, col)}: "
            + ", ".join(_named(*w) for w in enumerate(kernel[:, row, col]))
            for col in range(side)
        ]
        for row in range(side)
    ]
    figure = go.Figure(
        go.Image(z=_colours(kernel, gain), text=weights, hovertemplate="%{text}<extra></extra>")
    )
    across, down = dict(BARE, constrain="domain"), dict(BARE, scaleanchor="x")
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    ends = []
    for at in (int(kernel.argmax()), int(kernel.argmin())):
        channel, row, col = np.unravel_index(at, kernel.shape)
        ends.append(f"{_named(int(channel), kernel.flat[at])} at {patch_name(int(row), int(col))}")
    return finish(
        figure,
        tr("{name}: weights from {low} to {high}.", name=name, low=ends[1], high=ends[0]),
        height=190,
    )


def token_mixing(maps: np.ndarray, *, names: Sequence[str], columns: int = 7) -> go.Figure:
    """Weights of a mixing layer as named tiles on one scale centred at 0.

    Parameters
    ----------
    maps : ndarray of shape (units, rows, cols)
    """
    units, rows, cols = maps.shape
    tall, wide = rows + math.ceil(0.25 * rows), cols + 1
    places = [(unit // columns * tall, unit % columns * wide) for unit in range(units)]
    canvas = np.full((places[-1][0] + tall, min(units, columns) * wide - 1), np.nan)
    for (top, left), tile in zip(places, maps, strict=True):
        canvas[top : top + rows, left : left + cols] = tile
    reach = float(np.abs(maps).max()) or 1.0
    figure = go.Figure(
        go.Heatmap(
            z=canvas,
            zmin=-reach,
            zmax=reach,
            colorscale=SIGNED,
            colorbar=colorbar(tr("weight"), below=False),
            hovertemplate="%{z:+.3f}<extra></extra>",
            hoverongaps=False,
        )
    )
    figure.add_scatter(
        x=[left + (cols - 1) / 2 for _, left in places],
        y=[top + rows - 0.5 for top, _ in places],
        mode="text",
        text=names,
        textposition="bottom center",
        textfont_size=14,
        hoverinfo="skip",
    )
    figure.update_xaxes(**BARE, constrain="domain")
    figure.update_yaxes(**BARE, scaleanchor="x", range=[len(canvas) - 0.5, -0.5])
    low, high = float(maps.min()), float(maps.max())
    words = tr(
        "Weights of {units} units for each of {rows} x {cols} patches",
        units=units,
        rows=rows,
        cols=cols,
    )
    return finish(
        figure,
        tr("{words}, from {low:+.3f} to {high:+.3f}.", words=words, low=low, high=high),
        height=480,
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
            colorbar=colorbar(tr("cosine"), below=False),
            x0=1,
            y0=1,
            hovertemplate=tr("row %{y}, column %{x}: %{z:.2f}<extra></extra>"),
        )
    )
    query_box(figure, (0.5, 0.5, cols + 0.5, rows + 0.5), (rows, cols), position)
    both = dict(constrain="domain", showgrid=False)
    across = dict(title=tr("column"), range=[0.5, cols + 0.5], **both)
    down = dict(title=tr("row"), range=[rows + 0.5, 0.5], scaleanchor="x", **both)
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    words = tr(
        "Cosine of the position embedding of {patch} with every other", patch=patch_name(*position)
    )
    return finish(
        figure,
        tr("{words}; the largest is {largest:.2f}.", words=words, largest=_nearest(tile, position)),
        height=400,
    )


def position_similarity(
    similarity: np.ndarray, *, position: tuple[int, int] | None = None, height: int = 480
) -> go.Figure:
    """A grid of tiles, one a position: every second one from 14 on, then every third, and so on.

    `position` gets a frame where its tile is among them. All tiles are one picture; an invisible
    point on each, whose customdata are its row and column, can be pointed at.
    """
    rows, cols = similarity.shape[:2]
    step = math.ceil(max(rows, cols) / MOST_TILES)
    sprite, centres = _sprite(similarity, step)
    tall, wide = rows + SPRITE_GAP, cols + SPRITE_GAP
    figure = go.Figure(go.Image(source=sprite, hoverinfo="skip"))
    figure.add_scatter(
        x=[(col // step) * wide + (cols - 1) / 2 for _, col in centres],
        y=[(row // step) * tall + (rows - 1) / 2 for row, _ in centres],
        mode="markers",
        marker=dict(
            size=24,
            opacity=0,
            color=[_nearest(similarity[at], at) for at in centres],
            colorscale=SIGNED,
            cmin=-1,
            cmax=1,
            colorbar=colorbar(tr("cosine"), below=False),
        ),
        customdata=centres,
        text=[patch_name(*at) for at in centres],
        hovertemplate=tr("%{text}: %{marker.color:.2f} with the most similar other<extra></extra>"),
        **UNMOVED,
    )
    numbers = [np.arange(0, count, step) for count in (rows, cols)]
    across, down = (
        dict(
            title=what,
            tickvals=shown // step * pitch + (count - 1) / 2,
            ticktext=[str(number + 1) for number in shown],
            showgrid=False,
            zeroline=False,
            **also,
        )
        for what, count, pitch, shown, also in (
            (tr("column of the position"), cols, wide, numbers[1], dict(constrain="domain")),
            (tr("row of the position"), rows, tall, numbers[0], dict(scaleanchor="x")),
        )
    )
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    if position in centres:
        y, x = position[0] // step * tall, position[1] // step * wide
        frame = dict(x0=x - 1.5, x1=x + cols + 0.5, y0=y - 1.5, y1=y + rows + 0.5)
        figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **frame)
    words = tr("One tile for every position: its cosine with each")
    if step == 2:
        words = tr("One tile for every second position: its cosine with each")
    elif step == 3:
        words = tr("One tile for every third position: its cosine with each")
    elif step > 3:
        words = tr("One tile for every {step}th position: its cosine with each", step=step)
    near = [_nearest(similarity[at], at) for at in centres]
    return finish(
        figure,
        tr(
            "{words} position of the grid; the most similar other has {low:.2f} to {high:.2f}.",
            words=words,
            low=min(near),
            high=max(near),
        ),
        height=height,
    )


def _sprite(similarity: np.ndarray, step: int) -> tuple[str, list[tuple[int, int]]]:
    """A sprite of the tiles of every `step`-th position, as the data URL of a PNG; and which."""
    rows, cols = similarity.shape[:2]
    table = np.frombuffer(bytes.fromhex(colour_table(signed=True)), np.uint8).reshape(256, 3)
    chosen = similarity[::step, ::step]
    tall, wide = rows + SPRITE_GAP, cols + SPRITE_GAP
    canvas = np.zeros((len(chosen) * tall, chosen.shape[1] * wide, 4), np.uint8)
    centres = []
    for row, col in np.ndindex(chosen.shape[:2]):
        spot = canvas[row * tall : row * tall + rows, col * wide : col * wide + cols]
        spot[..., :3] = table[np.rint(127.5 * (chosen[row, col] + 1)).astype(int).clip(0, 255)]
        spot[..., 3] = 255
        centres.append((row * step, col * step))
    file = io.BytesIO()
    Image.fromarray(canvas[:-SPRITE_GAP, :-SPRITE_GAP]).save(file, "PNG")
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", centres


def _nearest(tile: np.ndarray, at: tuple[int, int]) -> float:
    """The largest cosine with another position; 1 where there is no other."""
    others = np.delete(tile.ravel(), at[0] * tile.shape[1] + at[1])
    return float(others.max(initial=-1.0)) if others.size else 1.0


def _tiles(
    tiles: np.ndarray,
    columns: int,
    gain: float,
    names: Sequence[str],
    labels: Sequence[str] | None,
    selected: int | None,
) -> go.Figure:
    """RGB tiles (n, 3, P, P) in one picture, and on each an invisible point that says its name."""
    count, _, side, _ = tiles.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    across = side + math.ceil(side / 8)
    down = side + math.ceil(0.45 * side) if labels else across
    high = (rows - 1) * down + (down if labels else side)
    wide = (columns - 1) * across + side
    canvas = np.zeros((high, wide, 4), np.uint8)
    middles = []
    for index, tile in enumerate(tiles):
        row, col = divmod(index, columns)
        spot = canvas[row * down : row * down + side, col * across : col * across + side]
        spot[..., :3] = _colours(tile, gain)
        spot[..., 3] = 255
        middles.append((col * across + (side - 1) / 2, row * down + (side - 1) / 2))
    figure = go.Figure(go.Image(z=canvas, colormodel="rgba", hoverinfo="skip"))
    figure.add_scatter(
        x=[x for x, _ in middles],
        y=[y for _, y in middles],
        mode="markers",
        marker=dict(size=16, opacity=0),
        text=names,
        hovertemplate="%{text}<extra></extra>",
        **UNMOVED,
    )
    if labels:  # one trace: an annotation each takes ten times as long to draw
        figure.add_scatter(
            x=[x for x, _ in middles],
            y=[y + side / 2 for _, y in middles],
            mode="text",
            text=labels,
            textposition="bottom center",
            textfont_size=14,
            hoverinfo="skip",
        )
    if selected is not None and selected < count:
        x, y = middles[selected]
        frame = dict(x0=x - side / 2, x1=x + side / 2, y0=y - side / 2, y1=y + side / 2)
        figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **frame)
    across = dict(BARE, constrain="domain", range=[-0.5, wide - 0.5])
    down = dict(BARE, scaleanchor="x", range=[high - 0.5, -0.5])
    return figure.update_layout(xaxis=across, yaxis=down, overwrite=True)


def _finished(figure: go.Figure, alt: str) -> go.Figure:
    high, wide = figure.data[0].z.shape[:2]
    return finish(figure, alt, height=round(min(460, 16 + TILES_WIDTH * high / wide)))


def _colours(tile: np.ndarray, gain: float) -> np.ndarray:
    """A filter (3, P, P) as colours around mid grey, scaled by its largest absolute value."""
    scaled = gain * tile / (2 * max(float(np.abs(tile).max()), 1e-12))
    return (255 * np.clip(0.5 + scaled, 0, 1)).round().astype(np.uint8).transpose(1, 2, 0)


def _named(channel: int, weight: float) -> str:
    return f"{(tr('red'), tr('green'), tr('blue'))[channel]} {weight:+.3f}"
