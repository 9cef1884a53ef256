"""Draw principal components and norms of the tokens, over the picture and in all layers."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.images import data_url
from ..common.language import as_percent, patch_name, tr, tr_n
from ..common.query import Query, token_number
from .maps import heat_map, on_picture, photo
from .template import (
    BARE,
    INVISIBLE,
    QUERY,
    Crop,
    add_picture_below,
    cells,
    centre,
    finish,
    largest_patch,
    query_box,
)

FilmFrame = tuple[float, float, float, float]  # (left, bottom, right, top) of axes
_STAR = "#ffb703"
_ASPECTS = (1.0, 1.6)  # the least and the most of the scatter's axes, width by height
_SPRITE = 800  # pixels from top to bottom of the sprite of thumbnails: twice its size on screen
_BEYOND = 1.0  # prefix tokens farther out than this share of the patches' extent are clipped


def token_scatter(
    points: np.ndarray,
    explained_variance: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    grid: tuple[int, int],
    prefix: Sequence[str],
    numbers: tuple[int, int],
    kept: np.ndarray | None = None,
    query: Query | None = None,
    thumbnails: tuple[str, int] | None = None,
) -> go.Figure:
    """Draw every patch as a thumbnail on two components, and prefix tokens as stars.

    The first customdata of a point is its token's number, which a click gives.

    Parameters
    ----------
    points : ndarray of shape (tokens, 2), prefix first, in the tokens' unit
    explained_variance : ndarray of shape (2,), shares of 1
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    grid : (rows, columns)
    prefix : names of the prefix tokens
    numbers : of the two components, from 1
    kept : ndarray of bool, shape (rows, columns), or None
        The patches to show, by default all.
    query : the token to mark, or None
    thumbnails : result of `patch_thumbnails` for the same arguments, or None to compute it here
    """
    chosen = np.ones(math.prod(grid), bool) if kept is None else kept.ravel()
    patches = points[len(prefix) :]
    frame = _frame(patches[chosen], points[: len(prefix)])
    source, side = thumbnails or patch_thumbnails(points, image, crop=crop, grid=grid, kept=kept)
    figure = go.Figure()
    left, bottom, right, top = frame
    add_picture_below(figure, source, (left, top), (right - left, top - bottom))
    cols = grid[1]
    figure.add_scatter(
        x=patches[chosen, 0],
        y=patches[chosen, 1],
        mode="markers",
        marker=dict(symbol="square", size=side // 2),
        **INVISIBLE,
        customdata=len(prefix) + np.flatnonzero(chosen)[:, None],
        text=[patch_name(*divmod(int(index), cols)) for index in np.flatnonzero(chosen)],
        hovertemplate="%{text}<br>(%{x:.1f}, %{y:.1f})<extra></extra>",
    )
    _stars(figure, points[: len(prefix)], prefix, frame)
    if query is not None:
        query = token_number(query, prefix=prefix, grid=grid)
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
    return finish(
        figure,
        _scatter_words(patches[chosen], first, second, prefix),
        height=460,
        axes=(across, down),
    )


def patch_thumbnails(
    points: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    grid: tuple[int, int],
    kept: np.ndarray | None = None,
) -> tuple[str, int]:
    """Make the thumbnails of `token_scatter`, which take half of its time, to use them again.

    Returns the data address of one picture with all of them, and a thumbnail's side in its pixels.
    """
    chosen = np.ones(math.prod(grid), bool) if kept is None else kept.ravel()
    prefix, patches = points[: -len(chosen)], points[-len(chosen) :]
    frame = _frame(patches[chosen], prefix)
    sprite, side = _sprite(patches, chosen, image, crop, grid, frame)
    return data_url(sprite, "WEBP", quality=85, method=0), side


def _frame(patches: np.ndarray, prefix: np.ndarray) -> FilmFrame:
    """Return (left, bottom, right, top) of axes with one scale that hold all patches."""
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
    crop: Crop,
    grid: tuple[int, int],
    frame: FilmFrame,
) -> tuple[Image.Image, int]:
    """Paste all thumbnails into one picture; return it and a thumbnail's side in its pixels."""
    rows, cols = grid
    side = int(np.clip(_SPRITE / (1.4 * math.sqrt(chosen.sum())), 16, 80))
    inner = side - 2
    box = np.clip(crop, 0, [image.width, image.height] * 2)
    small = image.resize((cols * inner, rows * inner), Image.Resampling.BICUBIC, box=tuple(box))
    left, bottom, right, top = frame
    sprite = Image.new("RGBA", (round(_SPRITE * (right - left) / (top - bottom)), _SPRITE))
    for index in np.flatnonzero(chosen):
        row, col = divmod(int(index), cols)
        x = (patches[index, 0] - left) / (right - left) * sprite.width
        y = (top - patches[index, 1]) / (top - bottom) * sprite.height
        corner = round(float(x) - side / 2), round(float(y) - side / 2)
        sprite.paste((128, 128, 128, 255), (*corner, corner[0] + side, corner[1] + side))
        at = (col * inner, row * inner, (col + 1) * inner, (row + 1) * inner)
        sprite.paste(small.crop(at), (corner[0] + 1, corner[1] + 1))
    return sprite, side


def _stars(figure: go.Figure, points: np.ndarray, names: Sequence[str], frame: FilmFrame) -> None:
    """Draw prefix tokens as stars; clip one outside to the axes, and say so in its label."""
    if not len(points):
        return
    left, bottom, right, top = frame
    clipped = np.clip(points, (left, bottom), (right, top))
    away = (clipped != points).any(axis=1)
    labels = [
        tr("{name}, outside", name=name) if far else name
        for name, far in zip(names, away, strict=True)
    ]
    figure.add_scatter(
        x=clipped[:, 0],
        y=clipped[:, 1],
        mode="markers",
        marker=dict(symbol="star", size=22, color=_STAR, line=dict(color="black", width=1.5)),
        text=labels,
        selected_marker_opacity=1,
        unselected_marker_opacity=1,
        customdata=[[number, *point] for number, point in enumerate(points.tolist())],
        hovertemplate="%{text}<br>(%{customdata[1]:.1f}, %{customdata[2]:.1f})<extra></extra>",
        cliponaxis=False,
    )
    for (x, y), label in zip(clipped.tolist(), labels, strict=True):
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


def token_components(
    components: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    query: tuple[int, int] | None,
    numbers: tuple[int, int, int] = (1, 2, 3),
    reach: np.ndarray | None = None,
) -> go.Figure:
    """Draw three principal components (rows, columns, 3) as red, green and blue.

    Each channel spans its 2nd to 98th percentile, or -reach to `reach` (3,), which makes colours
    comparable between pictures. Where components are NaN, the picture is shown in grey. `numbers`
    are those of the components, from 1.
    """
    colours = component_colours(components, reach)
    rows, cols = components.shape[:2]
    where = cells(crop, (rows, cols))
    figure = go.Figure(go.Image(z=colours, colormodel="rgba", hoverinfo="skip", **where))
    valid = np.isfinite(components[..., 0])
    if not valid.all():
        photo(figure, image.convert("L"))
    if query is not None:
        query_box(figure, crop, (rows, cols), query)
    names = zip(
        (tr("red"), tr("green"), tr("blue")), numbers, np.moveaxis(components, 2, 0), strict=True
    )
    words = "; ".join(
        tr(
            "component {number} as {colour}, largest at {patch}",
            number=number,
            colour=colour,
            patch=largest_patch(values),
        )
        for colour, number, values in names
    )
    some = (
        "" if valid.all() else tr("{count} of {size} patches, ", count=valid.sum(), size=valid.size)
    )
    words = tr("Principal components: {some}{words}.", some=some, words=words)
    return on_picture(figure, image, words, below=0)


def component_colours(components: np.ndarray, reach: np.ndarray | None = None) -> np.ndarray:
    """Map three components (rows, columns, 3) to RGBA bytes; NaN becomes transparent."""
    if reach is None:
        low, high = np.nanpercentile(components, (2, 98), axis=(0, 1))
    else:
        low, high = -reach, reach
    scaled = np.clip((components - low) / np.maximum(high - low, 1e-12), 0, 1)
    finite = np.isfinite(components).all(axis=2, keepdims=True)
    colours = np.concatenate([np.where(finite, scaled, 0), finite], axis=2)
    return np.asarray((255 * colours).round(), np.uint8)


def token_norms(
    norms: np.ndarray,
    outliers: np.ndarray,
    image: Image.Image,
    *,
    crop: Crop,
    query: tuple[int, int] | None,
    long: np.ndarray | None = None,
) -> go.Figure:
    """Draw the norm of each patch token; outliers get a cross, other large norms a ring.

    Parameters
    ----------
    norms : ndarray of shape (rows, columns), in the tokens' unit
    outliers, long : ndarray of bool, shape (rows, columns)
    """
    low, high = float(norms.min()), float(norms.max())
    heat = heat_map(
        norms,
        crop,
        tr("norm, no unit"),
        {low: f"{low:.2f}", high: tr("{high:.2f} max", high=high)},
        zmin=low,
        zmax=high,
        colorscale="Cividis",
        hovertemplate="%{customdata}: %{z:.2f}<extra></extra>",
    )
    figure = go.Figure(heat)
    if query is not None:
        query_box(figure, crop, norms.shape, query)
    marked = {"outliers": (outliers, "x-thin", 13, 3)}
    if long is not None:
        marked["large"] = (long & ~outliers, "circle-open", 11, 2)
    largest = largest_patch(norms)
    words = [
        tr("Norm of each patch; the largest is {high:.2f} at {largest}", high=high, largest=largest)
    ]
    for name, (mask, symbol, size, width) in marked.items():
        rows, cols = np.nonzero(mask)
        x, y = centre(crop, norms.shape, rows, cols)
        figure.add_scatter(
            x=x,
            y=y,
            mode="markers",
            marker=dict(
                symbol=symbol, size=size, color="black", line=dict(color="black", width=width)
            ),
            hoverinfo="skip",
        )
        where = [patch_name(int(row), int(col)) for row, col in zip(rows, cols, strict=True)]
        if not where:
            words.append(tr("no outlier") if name == "outliers" else tr("no large one"))
            continue
        places = "; ".join(where[:5]) + ("; …" if len(where) > 5 else "")
        count = tr_n("{count} large one", "{count} large ones", len(where))
        if name == "outliers":
            count = tr_n("{count} outlier", "{count} outliers", len(where))
        words.append(f"{count}: {places}")
    return on_picture(figure, image, f"{'; '.join(words)}.")


def token_film(
    components: np.ndarray,
    *,
    names: Sequence[str],
    selected: int | None,
    aspect: float = 1.0,
    reach: np.ndarray | None = None,
) -> go.Figure:
    """Draw three components of every layer's patches as red, green and blue, in tiles.

    Parameters
    ----------
    components : ndarray of shape (n, rows, columns, 3)
    names : of the layers
    selected : the layer to frame, or None
    aspect : height of a patch divided by its width
    reach : ndarray of shape (n, 3), optional
        Of each layer, as in `token_components`.
    """
    count, rows, cols, _ = components.shape
    across = _columns(count)
    gap = math.ceil(max(rows, cols) / 5)  # room for a line of text
    down = math.ceil(count / across)
    canvas = np.zeros((down * (rows + gap), across * (cols + gap) - gap, 4), np.uint8)
    figure, titles = go.Figure(), []
    for index, name in enumerate(names):
        row, col = divmod(index, across)
        y, x = row * (rows + gap) + gap, col * (cols + gap)
        canvas[y : y + rows, x : x + cols] = component_colours(
            components[index], None if reach is None else reach[index]
        )
        title = dict(
            x=x - 0.5,
            y=y - 0.5,
            text=f"<b>{name}</b>" if index == selected else name,
            showarrow=False,
            xanchor="left",
            yanchor="bottom",
            borderpad=0,
            font_size=14,
        )
        titles.append(title)
        if index == selected:
            frame = dict(x0=x - 0.5, x1=x + cols - 0.5, y0=y - 0.5, y1=y + rows - 0.5)
            figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **frame)
    figure.layout.annotations = titles  # at once, as adding one copies all others
    figure.add_trace(go.Image(z=canvas, colormodel="rgba", hoverinfo="skip"))
    bare = dict(**BARE, constrain="domain")
    anchored = dict(bare, scaleanchor="x", scaleratio=aspect)
    words = tr("Three components as red, green and blue, in a tile for each of: ") + "; ".join(
        names
    )
    return finish(figure, f"{words}.", height=380, axes=(bare, anchored))


def _columns(count: int) -> int:
    return count if count < 3 else 2 if count == 4 else 3 if count <= 6 else 4
