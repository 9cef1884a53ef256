"""Draw figures in which patches, heads and guesses are clicked."""

from collections.abc import Mapping
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.images import data_url
from ..common.language import patch_name, tr
from .maps import heat_map, on_picture, photo
from .template import (
    GREY,
    INVISIBLE,
    SIGNED,
    Crop,
    add_picture_below,
    block_centres,
    cells,
    colorbar,
    escape_text,
    finish,
    grid_lines,
    head_names,
    largest_patch,
    picture_axes,
    signed_scale,
    smallest_patch,
)

_GUESS = "#ffffff"


def guesses(counts: np.ndarray, image: Image.Image, *, crop: Crop) -> go.Figure:
    """Draw how often each patch or block (rows, columns) was guessed, over the picture."""
    highest = int(counts.max())
    heat = heat_map(
        np.where(counts > 0, counts, np.nan),
        crop,
        tr("guesses"),
        {0.0: "0", float(highest): tr("{highest} max", highest=highest)},
        zmax=max(highest, 1),
        colorscale="Cividis",
        opacity=0.75,
        hoverongaps=False,
        hovertemplate="%{customdata}: %{z}<extra></extra>",
    )
    figure = go.Figure(heat)
    photo(figure, image)
    sentence = tr("none yet")
    if highest:
        sentence = tr(
            "most at {place}, {count} of {all}",
            place=largest_patch(counts),
            count=highest,
            all=int(counts.sum()),
        )
    return on_picture(figure, image, tr("Guesses of the class: {said}.", said=sentence))


def guesses_by_layer(counts: Mapping[int, int], num_layers: int) -> go.Figure:
    """Draw how often each layer, counted from 0, was guessed."""
    layers = np.arange(num_layers)
    values = [counts.get(int(layer), 0) for layer in layers]
    figure = go.Figure(
        go.Bar(
            x=layers + 1,
            y=values,
            marker_color="#4a86c5",
            hovertemplate=tr("layer %{x}: %{y}<extra></extra>"),
        )
    )
    figure.update_xaxes(title=tr("layer"), dtick=1 if num_layers <= 16 else None)
    figure.update_yaxes(
        title=tr("guesses"), rangemode="tozero", dtick=1 if max(values) <= 8 else None
    )
    most = int(np.argmax(values))
    sentence = tr("none yet")
    if any(values):
        sentence = tr(
            "most for layer {layer}, {count} of {all}",
            layer=most + 1,
            count=values[most],
            all=sum(values),
        )
    return finish(figure, tr("Guesses of the class: {said}.", said=sentence), height=300)


def guesses_of_percent(counts: Mapping[int, int]) -> go.Figure:
    """Draw how often each whole number of per cent was guessed."""
    total = sum(counts.values())
    figure = go.Figure(
        go.Bar(
            x=list(counts),
            y=list(counts.values()),
            marker_color="#4a86c5",
            hovertemplate="%{x} %: %{y}<extra></extra>",
        )
    )
    figure.update_xaxes(title="%", range=[-1, 101])
    figure.update_yaxes(title=tr("guesses"), rangemode="tozero")
    sentence = tr("none yet")
    if total:
        middle = int(np.median(np.repeat(list(counts), list(counts.values()))))
        sentence = tr("the middle one of {count} is {middle} %", count=total, middle=middle)
    return finish(figure, tr("Guesses of the class: {said}.", said=sentence), height=300)


def with_guess(figure: go.Figure, box: Crop) -> go.Figure:
    """Outline a guessed box (left, top, right, bottom) in a figure in pixels of a picture."""
    edges = dict(zip(("x0", "y0", "x1", "y1"), box, strict=True))
    for colour, width in (("#000000", 5), (_GUESS, 3)):
        figure.add_shape(type="rect", line=dict(color=colour, width=width), **edges)
    return _append_alt(figure, tr("A white box is around the guess."))


def with_guessed_layer(figure: go.Figure, layer: int) -> go.Figure:
    """Outline a guessed layer, counted from 0, in a figure with an axis of layers."""
    figure.add_vrect(
        x0=layer + 0.55,
        x1=layer + 1.45,
        line=dict(color="#4a86c5", width=3),
        annotation_text=tr("guess"),
        annotation_position="top left",
        annotation_font_size=14,
    )
    return _append_alt(figure, tr("Layer {layer} was guessed.", layer=layer + 1))


def _append_alt(figure: go.Figure, words: str) -> go.Figure:
    return figure.update_layout(meta={"alt": f"{figure.layout.meta['alt']} {words}"})


AFTER = "#3a6ea5"
HEIGHT = 350  # pixels on screen, also of the figures beside these
_MARK = "#e8590c"  # of removed patches and muted heads, which also differ in shape


#: Of blocks: those that have room for a decimal, and for a number at all.
FEW_BLOCKS, MOST_NUMBERS = 16, 64


def removed_patches(
    pixels: np.ndarray,
    *,
    crop: Crop,
    mask: np.ndarray,
    removal: str,
    drag: bool = False,
    effect: np.ndarray | None = None,
    block: int = 1,
) -> go.Figure:
    """Draw the model's input, with a mark on each removed patch.

    The first trace has one invisible point per patch, row by row, so a click or a dragged box gives
    the patches' numbers.

    Parameters
    ----------
    pixels : ndarray of shape (height, width, 4), bytes
        The model's input, as large as the grid.
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    mask : bool ndarray of shape (rows, columns), true where a patch is removed
    removal : the way of removing, for the alt text
    drag : whether boxes are dragged instead of patches clicked, as the browser cannot do both
    effect : ndarray of shape (rows, columns), shares of 1, signed; optional
        By how much a probability falls without the block of each patch: laid over the picture, and
        written in each block in percentage points.
    block : patches along the side of a block
    """
    rows, cols = mask.shape
    left, top, right, bottom = crop
    x = left + (np.arange(cols) + 0.5) * (right - left) / cols
    y = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
    figure = go.Figure(
        go.Scatter(
            x=np.tile(x, rows),
            y=np.repeat(y, cols),
            mode="markers",
            marker=dict(size=max(6, round(0.8 * HEIGHT / max(rows, cols))), symbol="square"),
            **INVISIBLE,
            customdata=[patch_name(row, col) for row, col in np.ndindex(rows, cols)],
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    source = data_url(Image.fromarray(pixels), "PNG")
    add_picture_below(figure, source, (left, top), (right - left, bottom - top))
    grid_lines(figure, crop, mask.shape)
    if mask.any():
        path = "".join(
            f"M{x[col] - dx:.1f},{y[row] - dy:.1f}L{x[col] + dx:.1f},{y[row] + dy:.1f}"
            for row, col in np.argwhere(mask)
            for dx, dy in [(0.25 * (right - left) / cols, 0.25 * (bottom - top) / rows)]
        )
        figure.add_shape(type="path", path=path, line=dict(color=_MARK, width=2))
    words = ""
    if effect is not None:
        words = _lay_effect_over(figure, 100 * effect, crop, block)
    picture_axes(figure, crop)
    text = tr("{count} of {size} patches removed", count=mask.sum(), size=mask.size)
    how = f" ({removal})" if mask.any() else ""
    figure = finish(
        figure,
        tr("The picture as the model gets it, {taken}{how}.", taken=text, how=how) + words,
        height=HEIGHT,
    )
    return figure.update_layout(dragmode="select") if drag else _clickable(figure)


def _lay_effect_over(figure: go.Figure, points: np.ndarray, crop: Crop, block: int) -> str:
    """Lay translucent blocks over the picture, with their points; returns what to say of them."""
    reach = float(np.abs(points).max()) or 1.0
    style = dict(zmin=-reach, zmax=reach, colorscale=SIGNED, showscale=False, opacity=0.5)
    figure.add_heatmap(z=points, **cells(crop, points.shape), hoverinfo="skip", **style)
    centres = block_centres(crop, points.shape, block)
    digits = 1 if len(centres) <= FEW_BLOCKS else 0
    figure.update_layout(
        annotations=[
            dict(
                x=x,
                y=y,
                text=f"<b>{points[corner]:+.{digits}f}</b>",
                showarrow=False,
                font=dict(color="#111", shadow="0 0 3px #fff, 0 0 3px #fff"),
            )
            for corner, x, y in (centres if len(centres) <= MOST_NUMBERS else ())
        ]
    )
    return tr(
        " Hiding a block costs from {low:+.1f} percentage points at {least} to {high:+.1f} at "
        "{most}.",
        low=float(points.min()),
        least=smallest_patch(points),
        high=float(points.max()),
        most=largest_patch(points),
    )


def muted_heads(
    muted: np.ndarray, *, effects: np.ndarray | None = None, name: str = ""
) -> go.Figure:
    """Draw a grid of heads: a filled square for each, or an orange cross if it is muted.

    The first trace has one point per head, layer by layer, so a click gives the head's number.

    Parameters
    ----------
    muted : bool ndarray of shape (layers, heads)
    effects : ndarray of shape (layers, heads), logits, or None
        Change of the class's logit if only that head is muted; colours the squares. NaN for heads
        that a layer lacks, which are not drawn.
    name : the class of the effects
    """
    layers, heads = muted.shape
    values = effects if effects is not None else np.zeros_like(muted, float)
    size = int(min(26, 0.62 * (330 if effects is None else 250) / layers, 0.62 * 260 / heads))
    names = head_names(layers, heads)
    marker = dict(
        size=max(size, 8),
        symbol=["x" if one else "square" for one in muted.ravel()],
        color=[_MARK if one else AFTER for one in muted.ravel()],
        line=dict(width=1, color=GREY),
    )
    hover = "%{customdata[0]}<extra></extra>"
    words = tr("No head is muted")
    if muted.any():
        labels = [names[at] for at in np.flatnonzero(muted)]
        more = tr(" and {listed} more", listed=len(labels) - 8) if len(labels) > 8 else ""
        words = tr(
            "{count} of {size} heads are muted: {listed}{more}",
            count=muted.sum(),
            size=np.isfinite(values).sum(),
            listed="; ".join(labels[:8]),
            more=more,
        )
    if effects is not None:
        reach = float(np.nanmax(np.abs(effects))) or 1.0
        low, high = int(np.nanargmin(effects)), int(np.nanargmax(effects))
        title = tr("change of the logit of {name}, muted alone", name=name)
        broken = "<br>".join(map(escape_text, wrap(title, 34)))
        scale = signed_scale(reach, "+.2g", colorbar(broken, below=False, side="right"))
        marker |= dict(
            color=effects.ravel(),
            colorscale=scale["colorscale"],
            cmin=-reach,
            cmax=reach,
            line=dict(
                width=[2 if one else 1 for one in muted.ravel()],
                color=[_MARK if one else GREY for one in muted.ravel()],
            ),
            colorbar=scale["colorbar"],
        )
        hover = "%{customdata[0]}: %{customdata[1]:+.2f}<extra></extra>"
        words += tr(
            "; muted alone, {low_head} changes the logit of {name} by {low:+.2f} and "
            "{high_head} by {high:+.2f}",
            low_head=names[low],
            name=name,
            low=effects.flat[low],
            high_head=names[high],
            high=effects.flat[high],
        )
    x = np.repeat(np.arange(1.0, layers + 1), heads)
    figure = go.Figure(
        go.Scatter(
            x=np.where(np.isnan(values.ravel()), np.nan, x),
            y=np.tile(np.arange(1, heads + 1), layers),
            mode="markers",
            marker=marker,
            selected_marker_opacity=1,  # the shape shows what is muted, not opacity
            unselected_marker_opacity=1,
            customdata=[[one, float(value)] for one, value in zip(names, values.flat, strict=True)],
            hovertemplate=hover,
        )
    )
    steps = dict(showgrid=False, zeroline=False)
    x_step, y_step = (1 if count <= 12 else 2 if count <= 24 else 4 for count in (layers, heads))
    across = dict(title=tr("layer"), dtick=x_step, tick0=1, range=[0.4, layers + 0.6], **steps)
    down = dict(title=tr("head"), dtick=y_step, tick0=1, range=[heads + 0.6, 0.4], **steps)
    figure = finish(figure, f"{words}.", height=HEIGHT, axes=(across, down))
    return _clickable(figure)


def _clickable(figure: go.Figure) -> go.Figure:
    """Let a click choose a point, without dragging or zooming."""
    figure.layout.xaxis.fixedrange = figure.layout.yaxis.fixedrange = True
    return figure.update_layout(clickmode="event+select", dragmode="pan")
