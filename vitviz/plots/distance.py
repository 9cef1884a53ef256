"""Attention as a histogram of distances, and as a map of offsets from query to key."""

import numpy as np
import plotly.graph_objects as go

from ..language import as_percent, tr, tr_n
from .template import GREY, QUERY, SHARES, colorbar, finish

_BAR = "#4a86c5"


def distance_histogram(
    weights: np.ndarray, uniform: np.ndarray, *, bin_width: float, mean: float, name: str
) -> go.Figure:
    """Histogram of attention by distance as bars; that of uniform attention as a line of squares.

    Parameters
    ----------
    weights : ndarray of shape (bins,), shares of 1; NaN where the head has none
    uniform : ndarray of shape (bins,), shares of 1
        The same of equal sharing.
    bin_width : pixels of the input; bin k is centred at k times as many
    mean : mean distance, pixels; NaN where the head has none
    name : whose attention it is
    """
    pixels = bin_width * np.arange(len(uniform))
    hover = "%{x:.0f} px: %{y:.1f} %<extra>" + name + "</extra>"
    figure = go.Figure(
        go.Bar(
            x=pixels,
            y=100 * weights,
            width=0.86 * bin_width,
            name=name.rpartition(", ")[2],  # the legend has room for no more
            marker_color=_BAR,
            hovertemplate=hover,
        )
    )
    figure.add_scatter(
        x=pixels,
        y=100 * uniform,
        mode="lines+markers",
        name=tr("equal sharing"),
        line=dict(color=GREY, dash="dash", width=2),
        marker=dict(symbol="square", size=7),
        hovertemplate=tr("%{x:.0f} px: %{y:.1f} %<extra>equal sharing</extra>"),
    )
    if np.isfinite(mean):
        figure.add_vline(
            x=mean,
            line=dict(color=QUERY, width=3),
            annotation_text=tr("mean {mean:.1f} px", mean=mean),
            annotation_font_size=14,
            annotation_position="top right" if mean < 0.6 * pixels[-1] else "top left",
        )
    top = 1.25 * 100 * max(float(np.nanmax(weights, initial=0)), float(uniform.max()))
    across = dict(
        title=tr("distance from query to key, px"),
        range=[-0.6 * bin_width, pixels[-1] + 0.6 * bin_width],
    )
    down = dict(title=tr("share, %"), range=[0, top], rangemode="tozero")
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    figure.update_layout(bargap=0)
    finish(figure, _histogram_words(weights, uniform, pixels, name), height=370)
    return figure.update_layout(
        showlegend=True,
        legend=dict(orientation="h", x=1, xanchor="right", y=1, yanchor="bottom", font_size=14),
        margin_t=30,
    )


def offset_attention(offsets: np.ndarray, *, equal_share: float, name: str) -> go.Figure:
    """Mean attention by the offset from query to key; offset 0 is the boxed middle.

    Parameters
    ----------
    offsets : ndarray of shape (2 rows - 1, 2 columns - 1), shares of 1; NaN is a gap
    equal_share : share of 1 of each patch if all got the same
    name : whose attention it is
    """
    tall, wide = offsets.shape
    percent, highest = 100 * offsets, 100 * float(np.nanmax(offsets, initial=0))
    figure = go.Figure(
        go.Heatmap(
            z=percent,
            x0=-(wide // 2),
            dx=1,
            y0=-(tall // 2),
            dy=1,
            zmin=0,
            zmax=highest or 1.0,
            colorscale=SHARES,
            colorbar={
                **colorbar(tr("mean share, %")),
                **_share_ticks(highest, 100 * equal_share),
            },
            hoverongaps=False,
            hovertemplate=tr("%{x:+d} columns, %{y:+d} rows: %{z:.2f} %<extra></extra>"),
        )
    )
    box = dict(x0=-0.5, x1=0.5, y0=-0.5, y1=0.5)
    figure.add_shape(type="rect", line=dict(color=QUERY, width=2), **box)
    both = dict(constrain="domain", showgrid=False, zeroline=False)
    across = dict(title=tr("columns to the right"), side="top", **both)
    down = dict(title=tr("rows down"), autorange="reversed", scaleanchor="x", **both)
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    return finish(figure, _offset_words(offsets, equal_share, name), height=370)


def _share_ticks(highest: float, equal: float) -> dict[str, list[float] | list[str]]:
    """Ticks of a colour bar in per cent: its ends, and equal sharing on a line of its own."""
    ticks = {0.0: "0", highest: tr("{highest} max", highest=as_percent(highest / 100))}
    if equal < highest:
        ticks[equal] = tr("<br>▲ equal {equal}", equal=as_percent(equal / 100))
    return {"tickvals": list(ticks), "ticktext": list(ticks.values())}


def _histogram_words(
    weights: np.ndarray, uniform: np.ndarray, pixels: np.ndarray, name: str
) -> str:
    if not np.isfinite(weights).all():
        return tr("Attention of {name} by distance: none of it goes to any patch.", name=name)
    most = int(weights.argmax())
    likewise = int(uniform.argmax())
    return tr(
        "Attention of {name} by distance: most, {most}, at about {pixels:.0f} pixels; "
        "equal sharing has most, {equal}, at about {equal_pixels:.0f} pixels.",
        name=name,
        most=as_percent(weights[most]),
        pixels=pixels[most],
        equal=as_percent(uniform[likewise]),
        equal_pixels=pixels[likewise],
    )


def _offset_words(offsets: np.ndarray, equal_share: float, name: str) -> str:
    if not np.isfinite(offsets).any():
        return tr("Mean attention of {name} by offset: none of it goes to any patch.", name=name)
    row, col = np.unravel_index(int(np.nanargmax(offsets)), offsets.shape)
    down, right = int(row) - offsets.shape[0] // 2, int(col) - offsets.shape[1] // 2
    steps = [
        _steps(down, tr("down"), tr("up"), columns=False),
        _steps(right, tr("right"), tr("left")),
    ]
    where = tr(" and ").join(filter(None, steps)) or tr("on the query itself")
    most = as_percent(float(np.nanmax(offsets)))
    return tr(
        "Mean attention of {name} by offset from the query: most, {most}, {where}; equal "
        "sharing is {equal}.",
        name=name,
        most=most,
        where=where,
        equal=as_percent(equal_share),
    )


def _steps(count: int, ahead: str, back: str, *, columns: bool = True) -> str:
    if not count:
        return ""
    where = ahead if count > 0 else back
    if columns:
        return tr_n("{count} column {where}", "{count} columns {where}", abs(count), where=where)
    return tr_n("{count} row {where}", "{count} rows {where}", abs(count), where=where)
