"""Draw two pictures in one model, and two models on one picture."""

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.language import as_percent, patch_name, tr, tr_n
from .maps import photo_source
from .template import (
    GREY,
    KEY,
    LINES,
    QUERY,
    Crop,
    add_picture_below,
    cells,
    centre,
    colorbar,
    escape_text,
    finish,
    largest_patch,
    line_style,
    picture_axes,
    signed_scale,
)
from .tokens import component_colours

_GAP = 0.06  # between two pictures, in widths of both together
_HEIGHT = 340  # pixels of a figure of two pictures, at most
_COLUMN = 620  # pixels of its usual column on screen


def mutual_matches(
    pairs: np.ndarray,
    cosines: np.ndarray,
    images: tuple[Image.Image, Image.Image],
    *,
    crops: tuple[Crop, Crop],
    grid: tuple[int, int],
    most: int = 24,
) -> go.Figure:
    """Draw two pictures side by side, with a line from each patch to its match in the other.

    Parameters
    ----------
    pairs : ndarray of int, shape (pairs, 2)
        Numbers of the matched patches, row-major, in the first picture and in the second.
    cosines : ndarray of shape (pairs,)
    crops : (left, top, right, bottom) of each picture's grid, in its pixels
    grid : (rows, columns) of both
    most : largest number of lines; the pairs with the largest cosines are drawn
    """
    figure = go.Figure()
    strongest = np.argsort(-cosines, kind="stable")[:most]
    ends, starts, sizes = [], _starts(images), [1 / image.height for image in images]
    for side, (image, crop) in enumerate(zip(images, crops, strict=True)):
        _add_picture(figure, image, starts[side])
        rows, cols = np.divmod(pairs[strongest, side], grid[1])
        x, y = centre(crop, grid, rows, cols)
        ends.append((starts[side] + x * sizes[side], y * sizes[side]))
    for colour, width in (("#000000", 4), ("#ffffff", 1.5)):  # visible on every picture
        figure.add_scatter(
            x=[x for pair in zip(ends[0][0], ends[1][0], strict=True) for x in (*pair, None)],
            y=[y for pair in zip(ends[0][1], ends[1][1], strict=True) for y in (*pair, None)],
            mode="lines",
            line=dict(color=colour, width=width),
            hoverinfo="skip",
        )
    texts = [
        tr(
            "{first} and {second}: cosine {cosine:.2f}",
            first=patch_name(*divmod(int(i), grid[1])),
            second=patch_name(*divmod(int(j), grid[1])),
            cosine=cosine,
        )
        for (i, j), cosine in zip(pairs[strongest], cosines[strongest], strict=True)
    ]
    for (x, y), colour, symbol in zip(ends, (QUERY, KEY), ("circle", "square"), strict=True):
        figure.add_scatter(
            x=x,
            y=y,
            text=texts,
            mode="markers",
            marker=dict(color=colour, symbol=symbol, size=9, line=dict(color="#000000", width=2)),
            hovertemplate="%{text}<extra></extra>",
        )
    words = tr_n(
        "The patches of {count} pair are each other's most similar in the two pictures",
        "{count} pairs of patches are each other's most similar in the two pictures",
        len(pairs),
    )
    if len(strongest) < len(pairs):
        words += tr("; the {count} with the largest cosines are joined", count=len(strongest))
    best = tr("; the best: {pair}", pair=texts[0]) if texts else ""
    return _two_pictures(figure, images, f"{words}{best}.")


def joint_components(
    components: tuple[np.ndarray, np.ndarray],
    images: tuple[Image.Image, Image.Image],
    *,
    crops: tuple[Crop, Crop],
) -> go.Figure:
    """Draw three components of two pictures' patches as red, green and blue, on one scale.

    Each channel is clipped at its 2nd and 98th percentile over both pictures.

    Parameters
    ----------
    components : two ndarrays of shape (rows, columns, 3), on the same axes
    crops : (left, top, right, bottom) of each picture's grid, in its pixels
    """
    flat = [one.reshape(-1, 3) for one in components]
    colours = component_colours(np.concatenate(flat)[None])[0]
    figure, starts, first, largest = go.Figure(), _starts(images), 0, []
    for start, image, crop, values in zip(starts, images, crops, components, strict=True):
        rows, cols = values.shape[:2]
        left, top, right, bottom = (edge / image.height for edge in crop)
        where = cells((start + left, top, start + right, bottom), (rows, cols))
        own = colours[first : first + rows * cols].reshape(rows, cols, 4)
        figure.add_trace(go.Image(z=own, colormodel="rgba", hoverinfo="skip", **where))
        _outline(figure, image, start)
        largest.append(largest_patch(values[..., 0]))
        first += rows * cols
    words = tr(
        "Principal components of both pictures' patches together, as red, green and blue: "
        "component 1 is largest at {first} in the first picture and at {second} in "
        "the second.",
        first=largest[0],
        second=largest[1],
    )
    return _two_pictures(figure, images, words)


def distance_difference(difference: np.ndarray, *, unit: str, names: tuple[str, str]) -> go.Figure:
    """Draw how much farther each head attends in the second model than in the first.

    Parameters
    ----------
    difference : ndarray of shape (layers, heads)
        Of mean attention distances, second minus first; NaN is a gap.
    unit : of the difference
    names : of the first and the second model
    """
    layers, heads = difference.shape
    reach = float(np.nanmax(np.abs(difference), initial=0)) or 1.0
    what = tr("difference of distance, {unit}", unit=unit)
    figure = go.Figure(
        go.Heatmap(
            z=difference,
            x0=1,
            y0=1,
            **signed_scale(reach, "+.1f", colorbar(what, below=False, side="right")),
            xgap=1,
            ygap=1,
            hoverongaps=False,
            hovertemplate=tr(
                "layer %{{y}}, head %{{x}}: %{{z:+.1f}} {unit}<extra></extra>", unit=unit
            ),
        )
    )
    across = dict(title=tr("head"), dtick=max(1, heads // 8), showgrid=False)
    down = dict(title=tr("layer"), dtick=max(1, layers // 8), autorange="reversed", showgrid=False)
    words = tr(
        "Attention distance of {second} minus that of {first}: no head has one.",
        second=names[1],
        first=names[0],
    )
    if np.isfinite(difference).any():
        low, high = int(np.nanargmin(difference)), int(np.nanargmax(difference))
        ends = [
            tr(
                "{difference:+.1f} {unit} in layer {layer}, head {head}",
                difference=difference.flat[at],
                unit=unit,
                layer=at // heads + 1,
                head=at % heads + 1,
            )
            for at in (low, high)
        ]
        words = tr(
            "Attention distance of {second} minus that of {first}, of each head: from "
            "{low} to {high}.",
            second=names[1],
            first=names[0],
            low=ends[0],
            high=ends[1],
        )
    return finish(figure, words, height=320, axes=(across, down))


def distance_by_depth(
    distances: Sequence[np.ndarray], *, names: Sequence[str], equal_sharing: Sequence[np.ndarray]
) -> go.Figure:
    """Draw the mean attention distance of each layer's heads, for models of different shapes.

    Parameters
    ----------
    distances : of each model, ndarray of shape (layers,), share of the input's side
    names : of the models
    equal_sharing : as `distances`
    """
    figure, words = go.Figure(), []
    for name, values, equal, style in zip(names, distances, equal_sharing, LINES, strict=False):
        depth = 100 * np.arange(1, len(values) + 1) / len(values)
        figure.add_scatter(
            x=depth,
            y=100 * values,
            name=escape_text(name),
            **line_style(style, 9),
            customdata=np.arange(1, len(values) + 1),
            hovertemplate=tr("layer %{customdata}: %{y:.1f} % of the side")
            + "<extra>"
            + escape_text(name)
            + "</extra>",
        )
        figure.add_scatter(
            x=depth,
            y=100 * equal,
            name=tr("equal sharing"),
            mode="lines",
            line=dict(color=GREY, width=1, dash="dot"),
            showlegend=name == names[-1],
            hoverinfo="skip",
        )
        finite = values[np.isfinite(values)]
        span = (
            tr("in no layer")
            if not len(finite)
            else tr("from {share}", share=as_percent(finite[0]))
        )
        if len(finite) > 1:
            span += tr(" to {share} of the side", share=as_percent(finite[-1]))
        words.append(f"{name} {span}")
    highest = [np.nanmax(one, initial=0) for one in (*distances, *equal_sharing)]
    across = dict(title=tr("depth, % of the layers"), range=[0, 105])
    down = dict(title=tr("distance, % of the side"), range=[0, 115 * max(highest)])
    alt = tr(
        "Mean attention distance from the first layer to the last: {words}.", words="; ".join(words)
    )
    return finish(figure, alt, height=340, axes=(across, down), top=56, legend=True)


def _starts(images: Sequence[Image.Image]) -> tuple[float, float]:
    """Return the left edges of both pictures, scaled to a height of 1."""
    widths = [image.width / image.height for image in images]
    return 0.0, widths[0] + _GAP * sum(widths)


def _add_picture(figure: go.Figure, image: Image.Image, start: float) -> None:
    add_picture_below(figure, photo_source(image), (start, 0), (image.width / image.height, 1))
    _outline(figure, image, start)


def _outline(figure: go.Figure, image: Image.Image, start: float) -> None:
    box = dict(x0=start, x1=start + image.width / image.height, y0=0, y1=1)
    figure.add_shape(type="rect", line=dict(color=GREY, width=1), **box)


def _two_pictures(figure: go.Figure, images: Sequence[Image.Image], words: str) -> go.Figure:
    wide = _starts(images)[1] + images[1].width / images[1].height
    picture_axes(figure, (0, 0, wide, 1))
    return finish(figure, words, height=round(min(_HEIGHT, _COLUMN / wide)) + 16)
