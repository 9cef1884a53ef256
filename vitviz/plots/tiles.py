"""Draw grids of tiles: filters of the patch embedding, similar positions, token mixing."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.images import data_url
from ..common.language import as_percent, patch_name, tr
from .template import (
    BARE,
    INVISIBLE,
    QUERY,
    SHARES,
    SIGNED,
    cells,
    centre,
    colorbar,
    colour_table,
    finish,
    query_box,
)

MOST_TILES = 13  # along a side of the sprite of positions
SPRITE_GAP = 2  # cells between two tiles
TILES_WIDTH = 300  # pixels of the column in which filters are shown


def filter_components(
    components: np.ndarray,
    explained_variance: np.ndarray,
    *,
    columns: int = 6,
    gain: float = 1.0,
    selected: int | None = None,
) -> go.Figure:
    """Draw principal components of the filters as tiles, each with its share of the variance.

    Parameters
    ----------
    components : ndarray of shape (n, C, P, Q)
        If C is not 3, the mean over channels is drawn in grey.
    explained_variance : ndarray of shape (n,), shares of 1
    gain : contrast; above 1 the strongest weights are clipped
    selected : the tile to frame, or None
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
    if components.shape[1] != 3:
        words = tr(
            "{components} principal components of the filters, each the mean of its {channels} "
            "channels",
            components=len(components),
            channels=components.shape[1],
        )
    # There is no room for more digits below a small tile; hovering shows them.
    below = [
        "< 1 %" if share < 0.01 else exact
        for share, exact in zip(explained_variance, shares, strict=True)
    ]
    figure = _tiles(components, columns, gain, names, below, selected)
    return _finish_tiles(
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
    """Draw raw filters (n, C, P, Q) as tiles in the given order, by default in a square grid."""
    columns = columns or math.ceil(math.sqrt(len(kernel)))
    names = names or [tr("filter {number}", number=number + 1) for number in range(len(kernel))]
    figure = _tiles(kernel, columns, gain, names, None, selected)
    if kernel.shape[1] != 3:
        words = tr(
            "{kernel} raw filters, each the mean of its {channels} channels.",
            kernel=len(kernel),
            channels=kernel.shape[1],
        )
        return _finish_tiles(figure, words)
    return _finish_tiles(figure, tr("{kernel} raw filters as colour tiles.", kernel=len(kernel)))


def filter_tile(kernel: np.ndarray, *, name: str, gain: float = 1.0) -> go.Figure:
    """Draw one filter (C, P, Q) large; the alt text calls it `name`."""
    weights = _pixel_names(kernel)
    figure = go.Figure(
        go.Image(z=_colours(kernel, gain), text=weights, hovertemplate="%{text}<extra></extra>")
    )
    across, down = dict(BARE, constrain="domain"), dict(BARE, scaleanchor="x")
    ends = []
    for at in (int(kernel.argmax()), int(kernel.argmin())):
        channel, row, col = np.unravel_index(at, kernel.shape)
        weight = _weight_text(int(channel), kernel.flat[at], len(kernel))
        ends.append(tr("{weight} at {patch}", weight=weight, patch=patch_name(int(row), int(col))))
    return finish(
        figure,
        tr("{name}: weights from {low} to {high}.", name=name, low=ends[1], high=ends[0]),
        height=190,
        axes=(across, down),
    )


def filter_product(patch: np.ndarray, kernel: np.ndarray, *, names: Sequence[str]) -> go.Figure:
    """Draw a patch of the model's input, a filter, and their product pixel by pixel.

    The products of a pixel's channels are added up; all together are the patch's response to the
    filter. Where the patch has at most 5 x 5 pixels, each holds its number.

    Parameters
    ----------
    patch, kernel : ndarray of shape (C, P, Q)
    names : what patch and filter are called
    """
    parts = patch.astype(np.float64) * kernel
    product = parts.sum(axis=0)
    high, wide = product.shape
    tall, large = high / wide, 1.6  # of a small tile and of the product, whose sides are larger
    figure = go.Figure()
    for left, tile in ((0.0, patch), (1.3, kernel)):
        figure.add_image(
            z=_colours(tile, 1.0),
            text=_pixel_names(tile),
            hovertemplate="%{text}<extra></extra>",
            **cells((left, 0, left + 1, tall), product.shape),
        )
    reach = float(np.abs(product).max()) or 1.0
    top, total = tall + 0.35, float(product.sum())
    box = (1.15 - large / 2, top, 1.15 + large / 2, top + large * tall)
    figure.add_heatmap(
        z=product,
        zmin=-reach,
        zmax=reach,
        colorscale=SIGNED,
        showscale=False,
        text=_pixel_names(parts),
        hovertemplate="%{text}<br>= %{z:+.3f}<extra></extra>",
        **cells(box, product.shape),
    )
    labels = [
        *((0.5, -0.15, names[0]), (1.15, tall / 2, "×"), (1.8, -0.15, names[1])),
        (1.15, top - 0.15, tr("= product, which adds up to {total:+.2f}", total=total)),
    ]
    figure.add_scatter(**_text_trace(labels))
    if max(high, wide) <= 5:
        at = [centre(box, product.shape, row, col) for row, col in np.ndindex(high, wide)]
        numbers = [(x, y, f"{one:+.2f}") for (x, y), one in zip(at, product.flat, strict=True)]
        dark = np.abs(product.ravel()) > 0.6 * reach
        font = dict(
            color=np.where(dark, "#fff", "#111"),
            shadow=np.where(dark, "0 0 2px #000", "0 0 2px #fff"),
        )
        figure.add_scatter(**_text_trace(numbers), textfont=font)
    across = dict(BARE, constrain="domain", range=[0, 2.3])
    down = dict(BARE, scaleanchor="x", range=[box[3], -0.3], constraintoward="top")
    words = tr(
        "Pixel by pixel, {patch} times {filter}: the products add up to {total:+.2f}.",
        patch=names[0],
        filter=names[1],
        total=total,
    )
    return finish(figure, words, height=370, axes=(across, down))


def _text_trace(texts: Sequence[tuple[float, float, str]]) -> dict[str, Any]:
    """Return a trace of texts, each at its place."""
    x, y, text = zip(*texts, strict=True)
    return dict(x=x, y=y, text=text, mode="text", hoverinfo="skip")


def _pixel_names(tile: np.ndarray) -> list[list[str]]:
    """Return for each pixel of a tile (C, P, Q) its place and its numbers, in words."""
    channels, high, wide = tile.shape
    return [
        [
            f"{patch_name(row, col)}: "
            + ", ".join(_weight_text(*each, channels) for each in enumerate(tile[:, row, col]))
            for col in range(wide)
        ]
        for row in range(high)
    ]


def token_mixing(maps: np.ndarray, *, names: Sequence[str], columns: int = 7) -> go.Figure:
    """Draw weights of a mixing layer as named tiles, on one scale centred at 0.

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


def position_tile(
    similarity: np.ndarray, *, position: tuple[int, int], low: float = -1
) -> go.Figure:
    """Draw the cosine of one position's embedding with all others, as a tile.

    The scale begins at `low`. Above -1 it has no middle, and other colours.
    """
    tile = similarity[position]
    rows, cols = tile.shape
    figure = go.Figure(
        go.Heatmap(
            z=tile,
            zmin=low,
            zmax=1,
            colorscale=_cosine_scale(low),
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
    words = tr(
        "Cosine of the position embedding of {patch} with every other", patch=patch_name(*position)
    )
    return finish(
        figure,
        tr(
            "{words}; the largest is {largest:.2f}.",
            words=words,
            largest=_largest_other(tile, position),
        ),
        height=400,
        axes=(across, down),
    )


def position_similarity(
    similarity: np.ndarray,
    *,
    position: tuple[int, int] | None = None,
    height: int = 480,
    low: float = -1,
) -> go.Figure:
    """Draw one tile per position; grids above 13 patches show every second position, or fewer.

    `position` gets a frame if its tile is shown. The tiles are one picture, with an invisible point
    on each, whose customdata are its row and column. The scale begins at `low`.
    """
    rows, cols = similarity.shape[:2]
    step = math.ceil(max(rows, cols) / MOST_TILES)
    sprite, centres = _sprite(similarity, step, low)
    tall, wide = rows + SPRITE_GAP, cols + SPRITE_GAP
    figure = go.Figure(go.Image(source=sprite, hoverinfo="skip"))
    figure.add_scatter(
        x=[(col // step) * wide + (cols - 1) / 2 for _, col in centres],
        y=[(row // step) * tall + (rows - 1) / 2 for row, _ in centres],
        mode="markers",
        marker=dict(
            size=24,
            color=[_largest_other(similarity[at], at) for at in centres],
            colorscale=_cosine_scale(low),
            cmin=low,
            cmax=1,
            colorbar=colorbar(tr("cosine")) | dict(y=1.02, yanchor="bottom"),
        ),
        customdata=centres,
        text=[patch_name(*at) for at in centres],
        hovertemplate=tr("%{text}: %{marker.color:.2f} with the most similar other<extra></extra>"),
        **INVISIBLE,
    )
    numbers = [np.arange(0, count, step) for count in (rows, cols)]
    below_bar = dict(scaleanchor="x", constrain="domain", constraintoward="top")
    across, down = (
        dict(
            title=what,
            tickvals=tile // step * pitch + (count - 1) / 2,
            ticktext=[str(number + 1) for number in tile],
            showgrid=False,
            zeroline=False,
            **also,
        )
        for what, count, pitch, tile, also in (
            (tr("column of the position"), cols, wide, numbers[1], dict(constrain="domain")),
            (tr("row of the position"), rows, tall, numbers[0], below_bar),
        )
    )
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
    near = [_largest_other(similarity[at], at) for at in centres]
    return finish(
        figure,
        tr(
            "{words} position of the grid; the most similar other has {low:.2f} to {high:.2f}.",
            words=words,
            low=min(near),
            high=max(near),
        ),
        height=height,
        axes=(across, down),
    )


def _cosine_scale(low: float) -> object:
    """Return a diverging scale for cosines from -1, and a sequential one for any other start."""
    return SIGNED if low == -1 else SHARES


def _sprite(similarity: np.ndarray, step: int, low: float) -> tuple[str, list[tuple[int, int]]]:
    """Return the tiles of every `step`-th position as a PNG data address, and the positions."""
    rows, cols = similarity.shape[:2]
    table = np.frombuffer(bytes.fromhex(colour_table(signed=low == -1)), np.uint8).reshape(256, 3)
    chosen = similarity[::step, ::step]
    tall, wide = rows + SPRITE_GAP, cols + SPRITE_GAP
    canvas = np.zeros((len(chosen) * tall, chosen.shape[1] * wide, 4), np.uint8)
    centres = []
    for row, col in np.ndindex(chosen.shape[:2]):
        spot = canvas[row * tall : row * tall + rows, col * wide : col * wide + cols]
        part = (chosen[row, col] - low) / max(1 - low, 1e-9)
        spot[..., :3] = table[np.rint(255 * part).astype(int).clip(0, 255)]
        spot[..., 3] = 255
        centres.append((row * step, col * step))
    return data_url(Image.fromarray(canvas[:-SPRITE_GAP, :-SPRITE_GAP]), "PNG"), centres


def _largest_other(tile: np.ndarray, at: tuple[int, int]) -> float:
    """Return the largest cosine with another position; 1 if there is no other."""
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
    """Draw tiles (n, C, P, Q) as one picture, with an invisible point on each for its name."""
    count, _, tall, broad = tiles.shape
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    across = broad + math.ceil(broad / 8)
    down = tall + (math.ceil(0.45 * broad) if labels else math.ceil(tall / 8))
    high = (rows - 1) * down + (down if labels else tall)
    wide = (columns - 1) * across + broad
    canvas = np.zeros((high, wide, 4), np.uint8)
    middles = []
    for index, tile in enumerate(tiles):
        row, col = divmod(index, columns)
        spot = canvas[row * down : row * down + tall, col * across : col * across + broad]
        spot[..., :3] = _colours(tile, gain)
        spot[..., 3] = 255
        middles.append((col * across + (broad - 1) / 2, row * down + (tall - 1) / 2))
    figure = go.Figure(go.Image(z=canvas, colormodel="rgba", hoverinfo="skip"))
    figure.add_scatter(
        x=[x for x, _ in middles],
        y=[y for _, y in middles],
        mode="markers",
        marker_size=16,
        text=names,
        hovertemplate="%{text}<extra></extra>",
        **INVISIBLE,
    )
    if labels:  # as one trace, which draws ten times faster than annotations
        figure.add_scatter(
            x=[x for x, _ in middles],
            y=[y + tall / 2 for _, y in middles],
            mode="text",
            text=labels,
            textposition="bottom center",
            textfont_size=14,
            hoverinfo="skip",
        )
    if selected is not None and selected < count:
        x, y = middles[selected]
        frame = dict(x0=x - broad / 2, x1=x + broad / 2, y0=y - tall / 2, y1=y + tall / 2)
        figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **frame)
    across = dict(BARE, constrain="domain", range=[-0.5, wide - 0.5])
    down = dict(BARE, scaleanchor="x", range=[high - 0.5, -0.5])
    return figure.update_layout(xaxis=across, yaxis=down, overwrite=True)


def _finish_tiles(figure: go.Figure, alt: str) -> go.Figure:
    high, wide = figure.data[0].z.shape[:2]
    return finish(figure, alt, height=round(min(460, 16 + TILES_WIDTH * high / wide)))


def _colours(tile: np.ndarray, gain: float) -> np.ndarray:
    """Map a filter to colours around mid grey, scaled by its largest absolute value.

    If it does not have 3 channels, their mean is drawn in grey.
    """
    tile = tile if len(tile) == 3 else tile.mean(axis=0, keepdims=True).repeat(3, axis=0)
    values = gain * tile / (2 * max(float(np.abs(tile).max()), 1e-12))
    return (255 * np.clip(0.5 + values, 0, 1)).round().astype(np.uint8).transpose(1, 2, 0)


def _weight_text(channel: int, weight: float, channels: int) -> str:
    names = (tr("red"), tr("green"), tr("blue"))
    name = names[channel] if channels == 3 else tr("channel {number}", number=channel + 1)
    return f"{name} {weight:+.3f}"
