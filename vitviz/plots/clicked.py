"""Figures in which patches and heads are clicked: removed patches, muted heads."""

import base64
import io
from textwrap import wrap

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import patch_name, tr
from .template import (
    GREY,
    SIGNED,
    Box,
    colorbar,
    finish,
    lay_below,
    picture_axes,
)

AFTER = "#3a6ea5"
HEIGHT = 350  # pixels on screen, of these and of what stands beside them
_MARK = "#e8590c"  # for what was removed, which also differs by its shape


def removed_patches(
    pixels: np.ndarray,
    *,
    crop: Box,
    mask: np.ndarray,
    removal: str,
    drag: bool = False,
) -> go.Figure:
    """The picture as the model gets it, with a mark on each patch that was removed.

    The first trace has one invisible point a patch, row by row: a patch that is clicked or dragged
    over is known by its number.

    Parameters
    ----------
    pixels : ndarray of shape (height, width, 4), bytes: what the model gets, of the grid's extent
    crop : (left, top, right, bottom) of the grid in pixels of the picture
    mask : bool ndarray of shape (rows, columns), true where a patch was removed
    removal : how, for the alt text
    drag : boxes are dragged over patches, instead of clicks on them; the browser gives no both
    """
    rows, cols = mask.shape
    left, top, right, bottom = crop
    x = left + (np.arange(cols) + 0.5) * (right - left) / cols
    y = top + (np.arange(rows) + 0.5) * (bottom - top) / rows
    cells = [patch_name(row, col) for row, col in np.ndindex(rows, cols)]
    figure = go.Figure(
        go.Scatter(
            x=np.tile(x, rows),
            y=np.repeat(y, cols),
            mode="markers",
            marker=dict(size=max(6, round(0.8 * HEIGHT / max(rows, cols))), symbol="square"),
            marker_opacity=0,
            selected_marker_opacity=0,
            unselected_marker_opacity=0,
            customdata=cells,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    source = "data:image/png;base64," + base64.b64encode(data.getvalue()).decode()
    lay_below(figure, source, (left, top), (right - left, bottom - top))
    lines = [f"M{v:.1f},{top:.1f}V{bottom:.1f}" for v in np.linspace(left, right, cols + 1)]
    lines += [f"M{left:.1f},{v:.1f}H{right:.1f}" for v in np.linspace(top, bottom, rows + 1)]
    faint = dict(color="rgba(255,255,255,0.35)", width=1)
    figure.add_shape(type="path", path="".join(lines), line=faint)
    if mask.any():
        path = "".join(
            f"M{x[col] - dx:.1f},{y[row] - dy:.1f}L{x[col] + dx:.1f},{y[row] + dy:.1f}"
            for row, col in np.argwhere(mask)
            for dx, dy in [(0.25 * (right - left) / cols, 0.25 * (bottom - top) / rows)]
        )
        figure.add_shape(type="path", path=path, line=dict(color=_MARK, width=2))
    picture_axes(figure, crop)
    taken = tr("{count} of {size} patches removed", count=mask.sum(), size=mask.size)
    how = f" ({removal})" if mask.any() else ""
    figure = finish(
        figure,
        tr("The picture as the model gets it, {taken}{how}.", taken=taken, how=how),
        height=HEIGHT,
    )
    return figure.update_layout(dragmode="select") if drag else _clickable(figure)


def muted_heads(
    muted: np.ndarray, *, effects: np.ndarray | None = None, name: str = ""
) -> go.Figure:
    """A grid with one mark a head: a filled square, or an orange cross where it is muted.

    The first trace has one point a head, layer by layer: one that is clicked is known by its
    number.

    Parameters
    ----------
    muted : bool ndarray of shape (layers, heads)
    effects : ndarray of shape (layers, heads), logits, or None
        Change of the class's logit when that head alone is muted; colours the squares.
    name : the class that the effects are of
    """
    layers, heads = muted.shape
    size = int(min(26, 0.62 * (330 if effects is None else 250) / layers, 0.62 * 260 / heads))
    names = [
        tr("layer {layer}, head {head}", layer=k + 1, head=h + 1)
        for k, h in np.ndindex(layers, heads)
    ]
    marker = dict(
        size=max(size, 8),
        symbol=["x" if one else "square" for one in muted.ravel()],
        color=[_MARK if one else AFTER for one in muted.ravel()],
        line=dict(width=1, color=GREY),
    )
    hover = "%{customdata[0]}<extra></extra>"
    words = tr("No head is muted")
    if muted.any():
        listed = [names[at] for at in np.flatnonzero(muted)]
        more = tr(" and {listed} more", listed=len(listed) - 8) if len(listed) > 8 else ""
        words = tr(
            "{count} of {size} heads are muted: {listed}{more}",
            count=muted.sum(),
            size=muted.size,
            listed="; ".join(listed[:8]),
            more=more,
        )
    if effects is not None:
        reach = float(np.abs(effects).max()) or 1.0
        low, high = int(effects.argmin()), int(effects.argmax())
        ticks = [-reach, 0, reach]
        marker |= dict(
            color=effects.ravel(),
            colorscale=SIGNED,
            cmin=-reach,
            cmax=reach,
            line=dict(
                width=[2 if one else 1 for one in muted.ravel()],
                color=[_MARK if one else GREY for one in muted.ravel()],
            ),
            colorbar={
                **colorbar("", below=False),
                "title": dict(
                    text="<br>".join(
                        wrap(tr("change of the logit of {name}, muted alone", name=name), 34)
                    ),
                    side="right",
                    font_size=14,
                ),
                "tickvals": ticks,
                "ticktext": [f"{tick:+.2g}" if tick else "0" for tick in ticks],
            },
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
    shown = effects if effects is not None else np.zeros_like(muted, float)
    figure = go.Figure(
        go.Scatter(
            x=np.repeat(np.arange(1, layers + 1), heads),
            y=np.tile(np.arange(1, heads + 1), layers),
            mode="markers",
            marker=marker,
            selected_marker_opacity=1,  # the shape says what is muted, not what is faded
            unselected_marker_opacity=1,
            customdata=[[one, float(value)] for one, value in zip(names, shown.flat, strict=True)],
            hovertemplate=hover,
        )
    )
    steps = dict(showgrid=False, zeroline=False)
    x_step, y_step = (1 if count <= 12 else 2 if count <= 24 else 4 for count in (layers, heads))
    across = dict(title=tr("layer"), dtick=x_step, tick0=1, range=[0.4, layers + 0.6], **steps)
    down = dict(title=tr("head"), dtick=y_step, tick0=1, range=[heads + 0.6, 0.4], **steps)
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    figure = finish(figure, f"{words}.", height=HEIGHT)
    return _clickable(figure)


def _clickable(figure: go.Figure) -> go.Figure:
    """A click chooses a point; nothing is dragged or zoomed."""
    figure.layout.xaxis.fixedrange = figure.layout.yaxis.fixedrange = True
    return figure.update_layout(clickmode="event+select", dragmode="pan")
