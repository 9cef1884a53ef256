"""Small tiles side by side: the filters of the embedding, and cosines of positions."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from .template import BARE, SIGNED, as_percent, colorbar, finish, place, query_box


def filter_components(
    components: np.ndarray, explained_variance: np.ndarray, *, columns: int = 7
) -> go.Figure:
    """Principal components of the filters as tiles in reading order.

    Parameters
    ----------
    components : ndarray of shape (n, 3, P, P)
    explained_variance : ndarray of shape (n,), shares of 1
    """
    figure = _tiles(components, columns, [as_percent(share) for share in explained_variance])
    words = f"{len(components)} principal components of the filters as colour tiles"
    total = as_percent(explained_variance.sum())
    return finish(
        figure, f"{words}; they explain {total} of the variance.", height=_tall(components, columns)
    )


def filters(kernel: np.ndarray, *, columns: int = 16) -> go.Figure:
    """Raw filters (n, 3, P, P) as tiles in the order given."""
    figure = _tiles(kernel, columns, None)
    return finish(
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
            colorbar=colorbar("cosine", below=False),
            x0=1,
            y0=1,
            hovertemplate="row %{y}, column %{x}: %{z:.2f}<extra></extra>",
        )
    )
    query_box(figure, (0.5, 0.5, cols + 0.5, rows + 0.5), (rows, cols), position)
    figure.update_xaxes(title="column", constrain="domain", showgrid=False)
    figure.update_yaxes(title="row", autorange="reversed", scaleanchor="x", showgrid=False)
    others = tile.ravel()[np.arange(tile.size) != position[0] * cols + position[1]]
    nearest = float(others.max()) if others.size else 1.0
    words = f"Cosine of the position embedding of {place(*position)} with every other"
    return finish(figure, f"{words}; the largest is {nearest:.2f}.", height=400)


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
            colorbar=colorbar("cosine", below=False),
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
    return finish(
        figure, f"One tile for {every}: its cosine with each position of the grid.", height=520
    )


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
    figure.update_xaxes(**BARE, constrain="domain")
    figure.update_yaxes(**BARE, scaleanchor="x")
    return figure


def _tall(tiles: np.ndarray, columns: int) -> int:
    return min(460, 30 + 90 * math.ceil(len(tiles) / columns))
