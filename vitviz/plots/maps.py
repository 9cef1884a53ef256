"""Maps over the patches, in pixels of the picture."""

import base64
import io
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import as_percent, mark, patch_name, tr
from .template import (
    GREY,
    KEY,
    QUERY,
    SHARES,
    SIGNED,
    Box,
    cells,
    centre,
    colorbar,
    finish,
    lay_below,
    picture_axes,
    query_box,
)

_SHOWN_SIDE = 640  # pixels of the photo's longer side as it is sent to the browser
_COLORBAR = 66  # pixels that a horizontal colour bar takes below a map
_COLUMN = 360  # pixels of a usual column on screen


def picture(
    image: Image.Image,
    *,
    crop: Box,
    grid: tuple[int, int],
    query: tuple[int, int] | None,
    width: int = _COLUMN,
) -> go.Figure:
    """The picture with its patch grid; the query patch (row, column) has a solid cyan box.

    `width` is that of its column on screen, in pixels.
    """
    figure = go.Figure()
    photo(figure, image)
    left, top, right, bottom = crop
    rows, cols = grid
    path = "".join(
        [f"M{x:.1f},{top:.1f}V{bottom:.1f}" for x in np.linspace(left, right, cols + 1)]
        + [f"M{left:.1f},{y:.1f}H{right:.1f}" for y in np.linspace(top, bottom, rows + 1)]
    )
    figure.add_shape(type="path", path=path, line=dict(color="rgba(255,255,255,0.35)", width=1))
    if query is not None:
        query_box(figure, crop, grid, query)
    # A shape alone gives no axes in some browsers; two invisible points span the picture.
    figure.add_scatter(
        x=[0, image.width], y=[0, image.height], mode="markers", marker_opacity=0, hoverinfo="skip"
    )
    _picture_axes(figure, image)
    asked = (
        "" if query is None else tr("; the query is the patch at {patch}", patch=patch_name(*query))
    )
    return finish(
        figure,
        tr(
            "The picture, cut into {rows} rows and {cols} columns of patches{asked}.",
            rows=rows,
            cols=cols,
            asked=asked,
        ),
        height=_picture_height(image, width),
    )


def attention_rollout(
    rollout: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    equal_share: float,
    name: str = mark("Attention rollout"),
) -> go.Figure:
    """The rollout map (rows, columns), shares of 1, in the picture's coordinates.

    `name` says in the alt text what it is, where it is another kind of rollout.
    """
    return share_map(rollout, image, crop=crop, equal_share=equal_share, name=name)


def share_map(
    shares: np.ndarray,
    image: Image.Image,
    *,
    crop: Box,
    name: str,
    equal_share: float | None = None,
) -> go.Figure:
    """Shares of 1 of each patch (rows, columns), in per cent, in the picture's coordinates."""
    percent = 100 * shares
    highest = float(percent.max())
    ticks = {0.0: "0 %", highest: tr("{highest} max", highest=as_percent(highest / 100))}
    if equal_share is not None and 100 * equal_share <= highest:
        ticks[100 * equal_share] = tr("<br>▲ equal sharing")  # a line of its own: nothing overlaps
    heat = heat_map(percent, crop, tr("share, %"), ticks, zmax=highest if highest > 0 else 1)
    return on_picture(go.Figure(heat), image, f"{name}: {_strongest(shares)}.")


def relevance(values: np.ndarray, image: Image.Image, *, crop: Box, name: str) -> go.Figure:
    """How relevant each patch is for one class (rows, columns), in the picture's coordinates.

    Not negative and without unit, so the scale is not that of shares; the bar prints the maximum.
    `name` is the class.
    """
    highest = float(values.max())
    heat = heat_map(
        values,
        crop,
        tr("relevance for {name}", name=name),
        {0.0: "0", highest: tr("{highest:.2g} max", highest=highest)},
        zmax=highest if highest > 0 else 1,
        colorscale="Cividis",
        hovertemplate="%{customdata}: %{z:.2g}<extra></extra>",
    )
    largest = patch_name(*divmod(int(values.argmax()), values.shape[1]))
    words = tr(
        "Relevance of each patch for {name}: largest at {largest}, {highest:.2g}.",
        name=name,
        largest=largest,
        highest=highest,
    )
    return on_picture(go.Figure(heat), image, words)


def patch_answers(
    probabilities: np.ndarray, image: Image.Image, *, crop: Box, labels: Sequence[str], index: int
) -> go.Figure:
    """The probability of one class as each patch alone would answer, over the picture.

    Parameters
    ----------
    probabilities : ndarray of shape (rows, columns, K), shares of 1
    labels : K names; hovering shows each patch's most probable class
    index : of the class whose probability is drawn
    """
    values, best = probabilities[..., index], probabilities.argmax(axis=-1)
    named = [
        [
            tr(
                "{patch}: {label} {probability}",
                patch=patch_name(r, c),
                label=labels[top],
                probability=as_percent(probabilities[r, c, top]),
            )
            for c, top in enumerate(row)
        ]
        for r, row in enumerate(best)
    ]
    percent, highest = 100 * values, max(float(values.max()), 1e-12)
    ticks = {0.0: "0 %", 100 * highest: tr("{highest} max", highest=as_percent(highest))}
    heat = heat_map(
        percent,
        crop,
        tr("probability of {label}", label=labels[index]),
        ticks,
        zmax=float(percent.max()) or 1,
        customdata=named,
        hovertemplate=f"%{{customdata}}<br>{labels[index]} %{{z:.2f}} %<extra></extra>",
    )
    words = tr(
        "Probability of {label} as each patch alone would answer: {strongest}; {share:.0f} % "
        "of the patches answer {label}.",
        label=labels[index],
        strongest=_strongest(values),
        share=100 * (best == index).mean(),
    )
    return on_picture(go.Figure(heat), image, words)


def receptive_fields(
    image: Image.Image, *, crop: Box, grid: tuple[int, int], patch: tuple[int, int], pixel: float
) -> go.Figure:
    """What a patch of a ViT sees, and a pixel of a CNN of 3 x 3 kernels, drawn on the picture.

    Parameters
    ----------
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    patch : row and column of the patch
    pixel : side of a pixel of the model's input, in pixels of the picture
    """
    figure = picture(image, crop=crop, grid=grid, query=patch)
    x, y = centre(crop, grid, *patch)
    whole = dict(zip(("x0", "y0", "x1", "y1"), crop, strict=True))
    figure.add_shape(type="rect", line=dict(color=QUERY, width=4), **whole)
    for layer in (3, 2, 1):
        half = (2 * layer + 1) / 2 * pixel
        figure.add_shape(
            type="rect",
            x0=x - half,
            x1=x + half,
            y0=y - half,
            y1=y + half,
            line=dict(color=KEY, width=2, dash=("solid", "dash", "dot")[layer - 1]),
        )
    words = tr(
        "The patch at {patch} sees its own pixels in the embedding and the whole picture "
        "from layer 1 on; a pixel in its middle sees 3, 5 and 7 pixels across after "
        "layers 1, 2 and 3 of a CNN.",
        patch=patch_name(*patch),
    )
    return figure.update_layout(meta={"alt": words})


def filter_response(response: np.ndarray, image: Image.Image, *, crop: Box, name: str) -> go.Figure:
    """Inner product of each patch with one filter (rows, columns), in picture coordinates.

    The scale runs as far below 0 as above; the colour bar prints the smallest and the largest.
    """
    low, high = float(response.min()), float(response.max())
    reach = max(-low, high) or 1.0
    heat = heat_map(
        response,
        crop,
        tr("inner product x E"),
        _extremes(low, high, reach),
        zmin=-reach,
        zmax=reach,
        colorscale=SIGNED,
        hovertemplate="%{customdata}: %{z:+.2f}<extra></extra>",
    )
    cols = response.shape[1]
    least, most = (
        patch_name(*divmod(int(at), cols)) for at in (response.argmin(), response.argmax())
    )
    words = tr(
        "Response of each patch to {name}: from {low:+.2f} at {least} to {high:+.2f} at {most}.",
        name=name,
        low=low,
        least=least,
        high=high,
        most=most,
    )
    figure = on_picture(go.Figure(heat), image, words)
    # White is 0 on this scale, so what the model does not see must not be white.
    around = dict(x0=0, y0=0, x1=image.width, y1=image.height, line_width=0, layer="below")
    return figure.add_shape(type="rect", fillcolor="rgba(138,143,152,0.45)", **around)


def _extremes(low: float, high: float, reach: float) -> dict[float, str]:
    """Ticks of a signed colour bar: its smallest and largest value, and 0 where it has room."""
    ticks = {low: tr("{low:+.2f} min", low=low), high: tr("{high:+.2f} max", high=high)}
    room = 0.4 * reach  # a fifth of the bar, on which a label just fits
    if high - low < room:
        ticks = {low: ticks[low]} if -low > high else {high: ticks[high]}
    if all(abs(value) >= room for value in ticks):
        ticks[0.0] = "0"
    return ticks


def heat_map(
    values: np.ndarray,
    crop: Box,
    title: str,
    ticks: Mapping[float, str] | None = None,
    **style: Any,
) -> go.Heatmap:
    """A value for each patch, flat over its pixels; by default shares in per cent from 0."""
    rows, cols = values.shape
    bar = colorbar(title)
    if ticks is not None:
        bar |= dict(tickvals=list(ticks), ticktext=list(ticks.values()))
    usual = dict(
        zmin=0,
        colorscale=SHARES,
        customdata=[[patch_name(row, col) for col in range(cols)] for row in range(rows)],
        hovertemplate="%{customdata}: %{z:.2f} %<extra></extra>",
    )
    return go.Heatmap(z=values, colorbar=bar, **cells(crop, values.shape), **{**usual, **style})


def on_picture(
    figure: go.Figure, image: Image.Image, words: str, *, below: int = _COLORBAR
) -> go.Figure:
    """Give a map the axes of the picture, and `words` as its alt text.

    `below` is the room under the picture, in pixels.
    """
    _picture_axes(figure, image)
    return finish(figure, words, height=_picture_height(image) + below)


def photo(figure: go.Figure, image: Image.Image) -> None:
    lay_below(figure, photo_source(image), (0, 0), image.size)


def photo_source(image: Image.Image) -> str:
    """The picture as a data address, no larger than the screen needs."""
    return _source(image.mode, image.size, image.tobytes())


@lru_cache(8)  # a page shows the same few pictures again with each change: 0.5 ms, not 8
def _source(mode: str, size: tuple[int, int], pixels: bytes) -> str:
    small = Image.frombytes(mode, size, pixels)
    small.thumbnail((_SHOWN_SIDE, _SHOWN_SIDE))
    data = io.BytesIO()
    small.save(data, "JPEG", quality=88)
    return "data:image/jpeg;base64," + base64.b64encode(data.getvalue()).decode()


def _picture_axes(figure: go.Figure, image: Image.Image) -> None:
    picture_axes(figure, (0, 0, image.width, image.height))
    outline = dict(x0=0, x1=image.width, y0=0, y1=image.height)
    figure.add_shape(type="rect", line=dict(color=GREY, width=1), **outline)


def _picture_height(image: Image.Image, width: int = _COLUMN) -> int:
    """Pixels on screen of a figure that shows the whole picture in a column of this width."""
    return round(min(380, max(0.45 * width, width * image.height / image.width))) + 16


def _strongest(values: np.ndarray) -> str:
    row, col = np.unravel_index(int(np.argmax(values)), values.shape)
    return tr(
        "strongest at {patch}, {share}",
        patch=patch_name(int(row), int(col)),
        share=as_percent(float(values.max())),
    )
