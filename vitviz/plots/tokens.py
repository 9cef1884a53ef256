"""Principal components and norms of the tokens, over the picture and in all layers."""

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import patch_name, tr, tr_n
from .maps import heat_map, on_picture, photo
from .template import (
    BARE,
    QUERY,
    Box,
    cells,
    centre,
    finish,
    query_box,
)


def token_components(
    components: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    query: tuple[int, int] | None,
    numbers: tuple[int, int, int] = (1, 2, 3),
    reach: np.ndarray | None = None,
) -> go.Figure:
    """Three principal components (rows, columns, 3) as red, green and blue.

    Each channel goes from its 2nd to its 98th percentile, or from -reach to `reach` (3,), which
    makes colours comparable between pictures. Patches that are NaN were left out: the
    picture stands there in grey. `numbers` are those of the components, from 1.
    """
    colours = component_colours(components, reach)
    rows, cols = components.shape[:2]
    where = cells(crop, (rows, cols))
    figure = go.Figure(go.Image(z=colours, colormodel="rgba", hoverinfo="skip", **where))
    shown = np.isfinite(components[..., 0])
    if not shown.all():
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
            patch=patch_name(*divmod(int(np.nanargmax(values)), cols)),
        )
        for colour, number, values in names
    )
    some = (
        "" if shown.all() else tr("{count} of {size} patches, ", count=shown.sum(), size=shown.size)
    )
    words = tr("Principal components: {some}{words}.", some=some, words=words)
    return on_picture(figure, image, words, below=0)


def component_colours(components: np.ndarray, reach: np.ndarray | None = None) -> np.ndarray:
    """Three components (rows, columns, 3) as bytes (rows, columns, 4); what is NaN is clear."""
    if reach is None:
        low, high = np.nanpercentile(components, (2, 98), axis=(0, 1))
    else:
        low, high = -reach, reach
    scaled = np.clip((components - low) / np.maximum(high - low, 1e-12), 0, 1)
    shown = np.isfinite(components).all(axis=2, keepdims=True)
    colours = np.concatenate([np.where(shown, scaled, 0), shown], axis=2)
    return np.asarray((255 * colours).round(), np.uint8)


def token_norms(
    norms: np.ndarray,
    outliers: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    query: tuple[int, int] | None,
    long: np.ndarray | None = None,
) -> go.Figure:
    """Norm of each patch token; outliers have a cross, others that are large a ring.

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
    largest = patch_name(*divmod(int(norms.argmax()), norms.shape[1]))
    words = [
        tr("Norm of each patch; the largest is {high:.2f} at {largest}", high=high, largest=largest)
    ]
    for called, (mask, symbol, size, width) in marked.items():
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
            words.append(tr("no outlier") if called == "outliers" else tr("no large one"))
            continue
        named = "; ".join(where[:5]) + ("; …" if len(where) > 5 else "")
        count = tr_n("{count} large one", "{count} large ones", len(where))
        if called == "outliers":
            count = tr_n("{count} outlier", "{count} outliers", len(where))
        words.append(f"{count}: {named}")
    return on_picture(figure, image, f"{'; '.join(words)}.")


def token_film(
    components: np.ndarray,
    *,
    names: Sequence[str],
    selected: int | None,
    aspect: float = 1.0,
    reach: np.ndarray | None = None,
) -> go.Figure:
    """Three components of every layer's patches as red, green and blue, all in one picture.

    Parameters
    ----------
    components : ndarray of shape (n, rows, columns, 3)
    names : one a layer
    selected : the layer that gets a frame, or None
    aspect : height of a patch by its width
    reach : ndarray of shape (n, 3), optional
        As in `token_components`, of each layer.
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
    figure.layout.annotations = titles  # at once: each that is added to others copies them all
    figure.add_trace(go.Image(z=canvas, colormodel="rgba", hoverinfo="skip"))
    bare = dict(**BARE, constrain="domain")
    anchored = dict(bare, scaleanchor="x", scaleratio=aspect)
    figure.update_layout(xaxis=bare, yaxis=anchored, overwrite=True)
    words = tr("Three components as red, green and blue, in a tile for each of: ") + "; ".join(
        names
    )
    return finish(figure, f"{words}.", height=380)


def _columns(count: int) -> int:
    return count if count < 3 else 2 if count == 4 else 3 if count <= 6 else 4
