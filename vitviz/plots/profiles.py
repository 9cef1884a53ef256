"""Draw figures of a profile: the measures of a model over a set of pictures."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..common.language import as_percent, shorten, tr
from .template import (
    GREY,
    LINES,
    SHARES,
    colorbar,
    escape_text,
    finish,
    head_positions,
    line_style,
)

_COLUMNS = 4  # maps beside each other


def head_means(
    mean: np.ndarray,
    spread: np.ndarray,
    *,
    num_heads: Sequence[int],
    what: str,
    unit: str,
) -> go.Figure:
    """Draw a measure of every head: its mean over pictures, with deviations as error bars.

    Parameters
    ----------
    mean, spread : ndarray of shape (layers, heads), in `unit`; NaN is a gap
    num_heads : of each layer
    what : name of the measure, for the alt text
    unit : "px", "bit", or "share" (drawn in per cent)
    """
    factor, unit_text = (100, "%") if unit == "share" else (1, {"bit": "bits"}.get(unit, unit))
    y, bars = factor * mean, factor * np.nan_to_num(spread)
    figure = head_dots(y, num_heads, error=dict(array=bars.ravel()), value="%{y:.3g} " + unit_text)
    top = float(np.nanmax(y + bars, initial=0))
    figure.update_xaxes(title=tr("layer"), dtick=_step(len(num_heads)))
    lowest = {"px": 1, "bit": 0.1, "share": 1}[unit]  # gives a measure that is 0 everywhere a scale
    title = {"px": "pixels", "bit": "bits", "share": "share, %"}[unit]
    figure.update_yaxes(title=title, range=[0, 1.05 * max(top, lowest)])
    valid = y[np.isfinite(y)]
    words = f"{what} of every head".capitalize()
    span = (
        f", from {valid.min():.3g} to {valid.max():.3g} {unit_text}" if valid.size else ", of none"
    )
    return finish(figure, f"{words}{span}.", height=340)


def head_dots(
    y: np.ndarray, num_heads: Sequence[int], *, error: dict[str, Any], value: str
) -> go.Figure:
    """Draw a dot for every head (layers, heads), with error bars; `value` is shown on hover."""
    return go.Figure(
        go.Scatter(
            x=head_positions(num_heads).ravel(),
            y=y.ravel(),
            error_y=dict(**error, color=GREY, thickness=1, width=0),
            mode="markers",
            marker=dict(size=7, color=LINES[0][0]),
            text=[f"layer {layer + 1}, head {head + 1}" for layer, head in np.ndindex(*y.shape)],
            hovertemplate="%{text}: " + value + "<extra></extra>",
        )
    )


def _step(layers: int) -> int:
    """Return the distance between the ticks of an axis of layers."""
    return max(1, layers // 12)


def layer_similarity(cka: np.ndarray) -> go.Figure:
    """Draw linear CKA between the tokens at all depths: ndarray (depth + 1, depth + 1)."""
    depth = len(cka) - 1
    figure = go.Figure(
        go.Heatmap(
            z=cka,
            zmin=0,
            zmax=1,
            colorscale=SHARES,
            colorbar=colorbar(tr("CKA, 0 to 1"), below=False),
            hovertemplate=tr("after layers %{x} and %{y}: %{z:.3f}<extra></extra>"),
        )
    )
    axis = dict(title=tr("after layer"), dtick=_step(depth), constrain="domain", showgrid=False)
    ends = tr("unknown") if np.isnan(cka[0, -1]) else f"{cka[0, -1]:.2f}"
    return finish(
        figure,
        tr(
            "CKA between {depth} depths; of the embedding and the last: {ends}.",
            depth=depth + 1,
            ends=ends,
        ),
        height=420,
        axes=(axis, dict(axis, scaleanchor="x")),
    )


def mean_offsets(maps: Sequence[np.ndarray], names: Sequence[str]) -> go.Figure:
    """Draw mean attention by offset from query to key, one map per layer.

    Each map has a scale from 0 to its own maximum, which stands above it.

    Parameters
    ----------
    maps : ndarrays of shape (2 rows - 1, 2 cols - 1), shares of 1; NaN is a gap
    names : of the layers
    """
    largest = [float(np.nanmax(values, initial=0)) for values in maps]
    words = f"Mean attention by offset in {len(maps)} layers; the largest cell has "
    return layer_maps(
        maps,
        [f"{name}<br>{as_percent(most)} max" for name, most in zip(names, largest, strict=True)],
        f"{words}{as_percent(max(largest))}.",
        ranges=[(0, most or 0.01) for most in largest],
        colours=SHARES,
        value="%{z:.2f} %",
    )


def layer_maps(
    maps: Sequence[np.ndarray],
    titles: Sequence[str],
    alt: str,
    *,
    ranges: Sequence[tuple[float, float]],
    colours: Any,
    value: str,
    offsets: bool = True,
) -> go.Figure:
    """Draw one map per layer, each on its own scale.

    Parameters
    ----------
    maps : ndarrays of shape (rows, cols), shares of 1; NaN is a gap
    titles : what stands above each
    ranges : ends of the scale of each, shares of 1
    colours : colour scale
    value : what is shown of a cell on hover
    offsets : whether rows and columns are offsets from the query in the middle, or patches
    """
    rows, cols = -(-len(maps) // _COLUMNS), min(_COLUMNS, len(maps))
    place = "offset, " if offsets else ""
    figure = make_subplots(
        rows,
        cols,
        subplot_titles=titles,
        x_title=f"{place}columns of patches",
        y_title=f"{place}rows of patches",
        vertical_spacing=0.25 / rows,
    )
    figure.update_annotations(font_size=12)
    at = "%{x:+d} columns, %{y:+d} rows" if offsets else "row %{y}, column %{x}"
    for number, (values, (low, high)) in enumerate(zip(maps, ranges, strict=True)):
        tall, wide = values.shape
        heat = go.Heatmap(
            z=100 * values,
            x0=-(wide // 2) if offsets else 1,
            dx=1,
            y0=-(tall // 2) if offsets else 1,
            dy=1,
            zmin=100 * low,
            zmax=100 * high,
            colorscale=colours,
            showscale=False,
            hovertemplate=f"{at}: {value}<extra></extra>",
        )
        figure.add_trace(heat, row=number // _COLUMNS + 1, col=number % _COLUMNS + 1)
    figure.update_xaxes(showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed")
    finish(figure, alt, height=100 + 230 * rows, top=44)
    return figure.update_layout(margin=dict(l=60, b=56))


def norm_histogram(counts: np.ndarray, edges: np.ndarray) -> go.Figure:
    """Draw a histogram of the tokens' norms after each layer.

    Parameters
    ----------
    counts : ndarray of shape (depth + 1, bins)
    edges : ndarray of shape (bins + 1,), lengths, evenly spaced in their logarithm
    """
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    filled = np.flatnonzero(counts.any(axis=0))
    some = slice(int(filled[0]), int(filled[-1]) + 1) if filled.size else slice(0, 1)
    centres = np.log10(edges[:-1] * edges[1:]) / 2
    figure = go.Figure(
        go.Heatmap(
            z=100 * shares[:, some].T,
            y=centres[some],
            colorscale=SHARES,
            colorbar=colorbar(tr("share of<br>tokens, %"), below=False),
            customdata=np.repeat(10 ** centres[some, None], len(counts), axis=1),
            hovertemplate=tr(
                "after layer %{x}, length %{customdata:.3g}: %{z:.2f} %<extra></extra>"
            ),
        )
    )
    decades = range(math.floor(centres[some][0]), math.ceil(centres[some][-1]) + 1)
    lengths = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    across = dict(title=tr("after layer"), dtick=_step(len(counts) - 1), showgrid=False)
    down = dict(
        title=tr("length of a token, no unit"),
        tickvals=np.log10(lengths),
        ticktext=[f"{length:g}" for length in lengths],
        range=[centres[some][0] - 0.05, centres[some][-1] + 0.05],
        showgrid=False,
    )
    low, high = edges[some.start], edges[some.stop]
    words = tr(
        "Lengths of tokens after {counts} layers, between {low:.3g} and {high:.3g}.",
        counts=len(counts) - 1,
        low=low,
        high=high,
    )
    return finish(figure, words, height=360, axes=(across, down))


def by_layer(
    lines: dict[str, np.ndarray], *, what: str, unit: str = "", first: int = 1, axis: str = "layer"
) -> go.Figure:
    """Draw lines over layers, which count from `first`; NaN is a gap."""
    figure = go.Figure()
    for (name, values), style in zip(lines.items(), LINES, strict=False):
        figure.add_scatter(
            x=first + np.arange(len(values)),
            y=values,
            name=name,
            **line_style(style, 6),
            hovertemplate=f"{name}: %{{y:.3g}} {unit}<extra></extra>",
        )
    across = dict(title=axis)
    down = dict(title=f"{what}, {unit}" if unit else what, rangemode="tozero")
    return finish(
        figure,
        f"{what.capitalize()} by {axis}: {', '.join(lines)}.",
        height=340,
        top=34 if len(lines) > 1 else 8,
        axes=(across, down),
        legend=len(lines) > 1,
    )


def reliability(
    confidence: np.ndarray, right: np.ndarray, count: np.ndarray, *, error: float
) -> go.Figure:
    """Draw accuracy against confidence, in equal bins of confidence.

    Parameters
    ----------
    confidence, right : sums over the pictures of each bin
    count : number of pictures in each bin
    error : expected calibration error
    """
    filled = count > 0
    figure = go.Figure(
        go.Scatter(
            x=100 * confidence[filled] / count[filled],
            y=100 * right[filled] / count[filled],
            mode="lines+markers",
            customdata=count[filled],
            hovertemplate="%{x:.1f} % sure, %{y:.1f} % right of %{customdata}<extra></extra>",
        )
    )
    figure.add_scatter(
        x=[0, 100], y=[0, 100], mode="lines", line=dict(color=GREY, dash="dash"), hoverinfo="skip"
    )
    across = dict(title="confidence, %", range=[0, 101])
    down = dict(title="accuracy, %", range=[0, 101])
    words = f"Accuracy against confidence; expected calibration error {as_percent(error)}."
    return finish(figure, words, height=360, axes=(across, down))


def confusion(found: Mapping[str, Sequence[Any]], names: Sequence[str]) -> go.Figure:
    """Draw the share of each answer, in per cent, among the pictures of each label.

    `found` is what `vitviz.profiling.Profile.confusion` returns; `names` are those of all classes.
    """
    shares = np.full((len(names), len(names)), np.nan)
    for label, answer, share in zip(found["label"], found["answer"], found["share"], strict=True):
        row = shares[label]
        row[np.isnan(row)] = 0  # this label has pictures
        row[answer] = 100 * share
    labels = [escape_text(shorten(name, 22)) for name in names]
    numbers = list(range(len(names)))
    axis = dict(tickvals=numbers, ticktext=labels, tickangle=0)
    figure = go.Figure(
        go.Heatmap(
            z=shares,
            zmin=0,
            zmax=100,
            colorscale=SHARES,
            colorbar=colorbar("share, %", below=False),
            customdata=[[f"{one}, answered with {other}" for other in labels] for one in labels],
            hovertemplate="%{customdata}: %{z:.1f} %<extra></extra>",
        )
    )
    figure.update_xaxes(**{**axis, "tickangle": 90}, title="answer")
    figure.update_yaxes(**axis, title="label", autorange="reversed")
    right = np.nanmean(np.diag(shares))
    words = f"Answers to each label; on average {right:.1f} % of a label's pictures are right."
    return finish(figure, words, height=min(260 + 16 * len(names), 900))
