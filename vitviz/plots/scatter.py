"""Tokens on two principal components: patches as thumbnails, prefix tokens as stars."""

import base64
import io
import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import as_percent, patch_name, tr
from .template import QUERY, Box, finish, lay_below

_STAR = "#ffb703"
_ASPECTS = (1.0, 1.6)  # the least and the most of the scatter's axes, width by height
_SPRITE = 800  # pixels from top to bottom of the sprite of thumbnails: twice its size on screen
_BEYOND = 1.0  # prefix tokens further out than this share of the patches' extent are clipped


def token_scatter(
    points: np.ndarray,
    explained_variance: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    grid: tuple[int, int],
    prefix: Sequence[str],
    numbers: tuple[int, int],
    kept: np.ndarray | None = None,
    query: int | None = None,
    thumbnails: tuple[str, int] | None = None,
) -> go.Figure:
    """Every patch as a thumbnail at its place on two components; prefix tokens are stars.

    The first number that a point carries is its token's: a click tells which token was meant.

    Parameters
    ----------
    points : ndarray of shape (tokens, 2), prefix first, in the tokens' unit
    explained_variance : ndarray of shape (2,), shares of 1
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    grid : (rows, columns)
    prefix : names of the prefix tokens
    numbers : of the two components, from 1
    kept : ndarray of bool, shape (rows, columns), or None
        The patches to show; all where left out.
    query : the token to mark, or None
    thumbnails : what `patch_thumbnails` makes of the same, or None to make it here
    """
    chosen = np.ones(math.prod(grid), bool) if kept is None else kept.ravel()
    patches = points[len(prefix) :]
    frame = _frame(patches[chosen], points[: len(prefix)])
    source, side = thumbnails or patch_thumbnails(points, image, crop=crop, grid=grid, kept=kept)
    figure = go.Figure()
    left, bottom, right, top = frame
    lay_below(figure, source, (left, top), (right - left, top - bottom))
    cols = grid[1]
    figure.add_scatter(
        x=patches[chosen, 0],
        y=patches[chosen, 1],
        mode="markers",
        marker=dict(symbol="square", size=side // 2, opacity=0),
        selected_marker_opacity=0,
        unselected_marker_opacity=0,
        customdata=len(prefix) + np.flatnonzero(chosen)[:, None],
        text=[patch_name(*divmod(int(index), cols)) for index in np.flatnonzero(chosen)],
        hovertemplate="%{text}<br>(%{x:.1f}, %{y:.1f})<extra></extra>",
    )
    _stars(figure, points[: len(prefix)], prefix, frame)
    if query is not None and (query < len(prefix) or chosen[query - len(prefix)]):
        figure.add_scatter(
            x=[float(np.clip(points[query, 0], left, right))],
            y=[float(np.clip(points[query, 1], bottom, top))],
            mode="markers",
            marker=dict(symbol="square-open", size=side // 2 + 8, color=QUERY, line=dict(width=4)),
            hoverinfo="skip",
        )
    first, second = (
        tr("component {number} ({share} of the variance)", number=number, share=as_percent(share))
        for number, share in zip(numbers, explained_variance, strict=True)
    )
    across = dict(title=first, range=[left, right], constrain="domain", showgrid=False)
    down = dict(
        title=second, range=[bottom, top], scaleanchor="x", constrain="domain", showgrid=False
    )
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    return finish(figure, _scatter_words(patches[chosen], first, second, prefix), height=460)


def patch_thumbnails(
    points: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    grid: tuple[int, int],
    kept: np.ndarray | None = None,
) -> tuple[str, int]:
    """The thumbnails of `token_scatter`, which take half of its time, for figures that differ in
    the rest: one picture of all, as a data address, and the side of each in its pixels."""
    chosen = np.ones(math.prod(grid), bool) if kept is None else kept.ravel()
    prefix, patches = points[: -len(chosen)], points[-len(chosen) :]
    frame = _frame(patches[chosen], prefix)
    sprite, side = _sprite(patches, chosen, image, crop, grid, frame)
    return _webp(sprite), side


def _frame(patches: np.ndarray, prefix: np.ndarray) -> Box:
    """(left, bottom, right, top) of axes with one scale that hold all patches."""
    low, high = patches.min(axis=0).astype(float), patches.max(axis=0).astype(float)
    extent = float((high - low).max()) or 1.0
    for point in prefix:
        near = ((point > low - _BEYOND * extent) & (point < high + _BEYOND * extent)).all()
        if near:
            low, high = np.minimum(low, point), np.maximum(high, point)
    middle, half = (low + high) / 2, (high - low) / 2 + 0.06 * extent
    aspect = float(np.clip(half[0] / half[1], *_ASPECTS))
    wide = max(half[0], aspect * half[1])
    reach = np.array([wide, wide / aspect])
    left, bottom, right, top = map(float, np.concatenate([middle - reach, middle + reach]))
    return left, bottom, right, top


def _sprite(
    patches: np.ndarray,
    chosen: np.ndarray,
    image: Image.Image,
    crop: Box,
    grid: tuple[int, int],
    frame: Box,
) -> tuple[Image.Image, int]:
    """All thumbnails at their places in one picture, and the side of a thumbnail in its pixels."""
    rows, cols = grid
    side = int(np.clip(_SPRITE / (1.4 * math.sqrt(chosen.sum())), 16, 80))
    inner = side - 2
    box = np.clip(crop, 0, [image.width, image.height] * 2)
    seen = image.resize((cols * inner, rows * inner), Image.Resampling.BICUBIC, box=tuple(box))
    left, bottom, right, top = frame
    sprite = Image.new("RGBA", (round(_SPRITE * (right - left) / (top - bottom)), _SPRITE))
    for index in np.flatnonzero(chosen):
        row, col = divmod(int(index), cols)
        x = (patches[index, 0] - left) / (right - left) * sprite.width
        y = (top - patches[index, 1]) / (top - bottom) * sprite.height
        corner = round(float(x) - side / 2), round(float(y) - side / 2)
        sprite.paste((128, 128, 128, 255), (*corner, corner[0] + side, corner[1] + side))
        at = (col * inner, row * inner, (col + 1) * inner, (row + 1) * inner)
        sprite.paste(seen.crop(at), (corner[0] + 1, corner[1] + 1))
    return sprite, side


def _webp(sprite: Image.Image) -> str:
    file = io.BytesIO()
    sprite.save(file, "WEBP", quality=85, method=0)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()


def _stars(figure: go.Figure, points: np.ndarray, names: Sequence[str], frame: Box) -> None:
    """Prefix tokens as stars; one outside is clipped to the axes, and its label says so."""
    if not len(points):
        return
    left, bottom, right, top = frame
    shown = np.clip(points, (left, bottom), (right, top))
    away = (shown != points).any(axis=1)
    labels = [
        tr("{name}, outside", name=name) if far else name
        for name, far in zip(names, away, strict=True)
    ]
    figure.add_scatter(
        x=shown[:, 0],
        y=shown[:, 1],
        mode="markers",
        marker=dict(symbol="star", size=22, color=_STAR, line=dict(color="black", width=1.5)),
        text=labels,
        selected_marker_opacity=1,
        unselected_marker_opacity=1,
        customdata=[[number, *point] for number, point in enumerate(points.tolist())],
        hovertemplate="%{text}<br>(%{customdata[1]:.1f}, %{customdata[2]:.1f})<extra></extra>",
        cliponaxis=False,
    )
    for (x, y), label in zip(shown.tolist(), labels, strict=True):
        beyond = x > (left + right) / 2
        figure.add_annotation(
            x=x,
            y=y,
            text=f"<b>{label}</b>",
            showarrow=False,
            xanchor="right" if beyond else "left",
            xshift=-14 if beyond else 14,
            bgcolor=_STAR,
            borderpad=1,
            font=dict(size=14, color="black"),
        )


def _scatter_words(patches: np.ndarray, first: str, second: str, prefix: Sequence[str]) -> str:
    low, high = patches.min(axis=0), patches.max(axis=0)
    words = tr(
        "{count} patches on {first}, from {left:.1f} to {right:.1f}, and {second}, from "
        "{bottom:.1f} to {top:.1f}",
        count=len(patches),
        first=first,
        left=low[0],
        right=high[0],
        second=second,
        bottom=low[1],
        top=high[1],
    )
    return words + (tr("; {names} as a star.", names=", ".join(prefix)) if prefix else ".")
