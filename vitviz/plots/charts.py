"""Attention distance by head, class probabilities, and cosines along lines of positions."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..common.language import as_percent, mark, offset_name, patch_name, tr
from .template import (
    GREY,
    LINES,
    QUERY,
    SHARES,
    colorbar,
    escape_text,
    finish,
    head_names,
    head_positions,
    hover_names,
    line_style,
)

_BAR = "#4a86c5"


def distance_histogram(
    weights: np.ndarray, uniform: np.ndarray, *, bin_width: float, mean: float, name: str
) -> go.Figure:
    """Draw a histogram of attention by distance, and that of uniform attention as a line.

    Parameters
    ----------
    weights : ndarray of shape (bins,), shares of 1; NaN if the head attends to no patch
    uniform : ndarray of shape (bins,), shares of 1
        The histogram of uniform attention.
    bin_width : pixels of the input; bin k is centred at k times this width
    mean : mean distance in pixels; NaN if the head attends to no patch
    name : layer and head
    """
    pixels = bin_width * np.arange(len(uniform))
    hover = "%{x:.0f} px: %{y:.1f} %<extra>" + name + "</extra>"
    figure = go.Figure(
        go.Bar(
            x=pixels,
            y=100 * weights,
            width=0.86 * bin_width,
            name=name.rpartition(", ")[2],  # the legend has no room for more
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
    figure.update_layout(bargap=0)
    finish(
        figure, _histogram_words(weights, uniform, pixels, name), height=370, axes=(across, down)
    )
    return figure.update_layout(
        showlegend=True,
        legend=dict(orientation="h", x=1, xanchor="right", y=1, yanchor="bottom", font_size=14),
        margin_t=30,
    )


def offset_attention(offsets: np.ndarray, *, equal_share: float, name: str) -> go.Figure:
    """Draw mean attention by the offset from query to key; a box marks offset 0 in the middle.

    Parameters
    ----------
    offsets : ndarray of shape (2 rows - 1, 2 columns - 1), shares of 1; NaN is a gap
    equal_share : share of each patch under uniform attention
    name : layer and head
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
    return finish(
        figure, _offset_words(offsets, equal_share, name), height=370, axes=(across, down)
    )


def _share_ticks(highest: float, equal: float) -> dict[str, list[float] | list[str]]:
    """Return the ticks of a colour bar in per cent: its ends, and equal sharing below them."""
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
    where = offset_name(down, right) or tr("on the query itself")
    most = as_percent(float(np.nanmax(offsets)))
    return tr(
        "Mean attention of {name} by offset from the query: most, {most}, {where}; equal "
        "sharing is {equal}.",
        name=name,
        most=most,
        where=where,
        equal=as_percent(equal_share),
    )


_BEHIND = "rgba(74,134,197,.45)"  # of bars below dots


def attention_distance(
    distance: np.ndarray,
    prefix_mass: np.ndarray,
    *,
    equal_sharing: float | np.ndarray,
    side: float,
    selected: tuple[int, int | None] | None,
    num_heads: Sequence[int] | None = None,
    spread: np.ndarray | None = None,
    behind: tuple[str, np.ndarray, np.ndarray] | None = None,
    prefix_name: str = mark("the prefix"),
    recorded: tuple[str, np.ndarray] | None = None,
    with_cnn: bool = False,
    sinks: Mapping[str, Sequence[int]] | None = None,
) -> go.Figure:
    """Draw one dot per head at its mean attention distance, larger with more prefix attention.

    The first trace holds the dots, layer by layer, so a click gives the head's number.

    Parameters
    ----------
    distance : ndarray of shape (layers, heads), pixels; NaN is a gap
    prefix_mass : ndarray of shape (layers, heads), shares of 1
    equal_sharing : float or ndarray of shape (layers,)
        Distance of uniform attention in pixels; NaN draws no line.
    side : longer side of the model's input, pixels
    selected : (layer, head or None), or None
        The heads to mark.
    num_heads : heads of each layer, if they differ
    spread : ndarray of shape (layers, heads), pixels, or None
        Sample standard deviation (n - 1) over pictures, drawn as error bars; NaN for fewer than two
        values.
    behind : (name, mean, standard deviation), or None
        Of a set of pictures, drawn as a bar behind each dot: ndarrays of shape (layers, heads) in
        pixels; NaN is a gap.
    prefix_name : name of the prefix tokens
    recorded : (name, distances), or None
        Of another model; distances (layers, heads) are shares of the side.
    with_cnn : whether to draw the reach along a row of a CNN of 3 x 3 kernels with stride 1
    sinks : dict of at most two names to the layers, from 0, that get a mark of that name at the top
    """
    layers, heads = distance.shape
    prefix_name = tr(prefix_name)
    x = head_positions(num_heads or [heads] * layers)
    equal = np.broadcast_to(equal_sharing, layers)
    names = head_names(layers, heads)
    marked, head = (None, None) if selected is None else selected
    is_marked = [k == marked and head in (None, h) for k, h in np.ndindex(layers, heads)]
    deviation = None if spread is None else [_plus_minus(pixels) for pixels in spread.ravel()]
    figure = go.Figure(
        go.Scatter(
            x=x.ravel(),
            y=distance.ravel(),
            mode="markers",
            marker=dict(
                size=9 + 17 * prefix_mass.ravel(),
                color=[QUERY if one else GREY for one in is_marked],
                symbol=["diamond" if one else "circle" for one in is_marked],
                line=dict(width=[2 if one else 1 for one in is_marked], color="#333333"),
                opacity=0.9,
            ),
            selected_marker_opacity=0.9,  # the marks show the choice, not opacity
            unselected_marker_opacity=0.9,
            error_y=None
            if spread is None
            else dict(array=spread.ravel(), color=GREY, thickness=1, width=3),
            text=deviation,
            customdata=np.stack([names, 100 * prefix_mass.ravel()], axis=1),
            hovertemplate=f"%{{customdata[0]}}: %{{y:.1f}}{'%{text}' if deviation else ''} px, "
            + tr("%{{customdata[1]:.1f}} % on {prefix}", prefix=prefix_name)
            + "<extra></extra>",
        )
    )
    figure.layout.shapes = [  # at once, as adding one copies all others
        dict(
            type="line",
            x0=layer + 0.5,
            x1=layer + 1.5,
            y0=pixels,
            y1=pixels,
            line=dict(dash="dash", color=GREY),
        )
        for layer, pixels in enumerate(equal)
        if not np.isnan(pixels)  # plotly draws NaN at an arbitrary height
    ]
    one = f" {equal[0]:.1f} px" if np.ptp(equal) == 0 else ""
    sizes = tr("; larger dots: more on {prefix}", prefix=prefix_name) if prefix_mass.any() else ""
    bars = ""
    if behind is not None:
        bars = tr("blue bars: mean ± SD (n − 1) over {behind}<br>", behind=behind[0])
        _bars_behind(figure, x, *behind)
    figure.add_annotation(  # above the axes, where there are no dots
        text=f"{bars}╌╌ {tr('equal sharing')}{one}{sizes}",
        align="left",
        x=0,
        xshift=-60,  # from the figure's left edge, as telephones are narrow
        xref="paper",
        y=1,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font_size=14,
    )
    bars_of = [(distance, 0 if spread is None else spread)]
    bars_of += [] if behind is None else [behind[1:]]
    bars_of = [(middle, np.nan_to_num(half)) for middle, half in bars_of]
    reach = [float(np.nanmax(middle + half, initial=0)) for middle, half in bars_of]
    highest = max(float(np.nanmax(equal)), *reach)
    lowest = min(float(np.nanmin(middle - half, initial=highest)) for middle, half in bars_of)
    deepest = layers
    if recorded is not None:
        name, shares = recorded
        deepest = max(layers, len(shares))
        highest = max(highest, side * float(shares.max()))
        lowest = min(lowest, side * float(shares.min()))
        figure.add_scatter(
            x=head_positions([shares.shape[1]] * len(shares)).ravel(),
            y=side * shares.ravel(),
            mode="markers",
            marker=dict(symbol="square-open", size=8, color=LINES[1][0]),
            hovertemplate=tr(
                "{name}, layer %{{x:.0f}}: %{{y:.1f}} px<extra></extra>", name=escape_text(name)
            ),
        )
    if with_cnn:
        lowest = 0.0
        depths = np.arange(1, deepest + 1)
        figure.add_scatter(
            x=depths,
            y=depths,
            mode="lines",
            line=dict(color=LINES[3][0], dash="dot", width=2),
            hovertemplate=tr("CNN, layer %{x}: %{y} px along a row<extra></extra>"),
        )
    top = 1.15 * highest or 1.0
    # If all heads attend far, an axis from 0 would press their dots together.
    bottom = 0.9 * lowest if lowest > 0.5 * top else 0.0
    if bottom:
        figure.add_annotation(
            text=tr("≈ the axis begins at {bottom:.0f} px, not at 0", bottom=bottom),
            x=0.01,
            xref="paper",
            y=0,
            yref="paper",
            yanchor="bottom",
            showarrow=False,
            font_size=14,
        )
    marked_layers = _mark_layers(figure, sinks or {}, 0.97 * top)
    if selected is not None:
        _name_dot(figure, x, distance, selected, (bottom + top) / 2)
    across = dict(title=tr("layer"), dtick=1, range=[0.5, deepest + 0.5])
    down = dict(title=tr("attention distance, pixels of the input"), range=[bottom, top])
    figure.add_scatter(x=[None], y=[None], yaxis="y2", hoverinfo="skip")
    figure.update_layout(
        yaxis2=dict(
            title=tr("share of the picture's side, %"),
            overlaying="y",
            side="right",
            range=[100 * bottom / side, 100 * top / side],
            tickmode="linear",
            dtick=10,
            showgrid=False,
        )
    )
    words = _distance_words(distance, equal, spread) + marked_layers
    if behind is not None and np.isfinite(behind[1]).any():
        low, high = np.nanmin(behind[1]), np.nanmax(behind[1])
        words += tr(
            " Behind them the means over {behind}, from {low:.1f} to {high:.1f} pixels.",
            behind=behind[0],
            low=low,
            high=high,
        )
    if recorded is not None:
        words += tr(
            " Squares: {name}, from {low:.0f} to {high:.0f} % of the side.",
            name=recorded[0],
            low=100 * recorded[1].min(),
            high=100 * recorded[1].max(),
        )
    return finish(
        figure, words, height=400, top=28 if behind is None else 48, right=70, axes=(across, down)
    )


def _plus_minus(deviation: float) -> str:
    return f" ± {deviation:.1f}" if np.isfinite(deviation) else ""


def _bars_behind(
    figure: go.Figure, x: np.ndarray, name: str, mean: np.ndarray, spread: np.ndarray
) -> None:
    """Draw mean and standard deviation of each head over many pictures, below all other traces."""
    wide = int(np.clip(450 // x.size, 2, 9))  # pixels: many heads stand close together
    figure.add_scatter(
        x=x.ravel(),
        y=mean.ravel(),
        error_y=dict(array=spread.ravel(), color=_BEHIND, thickness=wide, width=0),
        mode="markers",
        marker=dict(symbol="line-ew", size=wide - 1, line=dict(width=3, color=LINES[0][0])),
        selected_marker_opacity=1,
        unselected_marker_opacity=1,
        text=[_plus_minus(pixels) for pixels in spread.ravel()],
        hovertemplate=f"{name}: %{{y:.1f}}%{{text}} px<extra></extra>",
        zorder=-1,
    )


def _mark_layers(figure: go.Figure, marks: Mapping[str, Sequence[int]], height: float) -> str:
    """Draw a mark above each layer in `marks`; return what they are, in words."""
    words = ""
    symbols = zip(("triangle-down-open", "star-open"), (-0.12, 0.12), strict=True)
    for (name, layers), (symbol, shift) in zip(marks.items(), symbols, strict=False):
        if not layers:
            continue
        figure.add_scatter(
            x=[layer + 1 + shift for layer in layers],
            y=[height] * len(layers),
            mode="markers",
            marker=dict(symbol=symbol, size=13, color=LINES[1][0], line_width=2),
            customdata=[layer + 1 for layer in layers],
            hovertemplate=tr("layer %{{customdata}}: {name}<extra></extra>", name=name),
        )
        numbers = ", ".join(str(layer + 1) for layer in layers)
        words += tr(" Marked above layers {layers}: {name}.", layers=numbers, name=name)
    return words


def _name_dot(
    figure: go.Figure,
    x: np.ndarray,
    distance: np.ndarray,
    selected: tuple[int, int | None],
    middle: float,
) -> None:
    """Draw the selected head above its neighbours, with its number.

    The number stands below a head in the upper half of the axis, and above one in the lower half.
    """
    layer, head = selected
    if head is None or not np.isfinite(distance[layer, head]):
        return
    place = dict(x=x[layer, head], y=distance[layer, head])
    figure.add_scatter(
        **{axis: [value] for axis, value in place.items()},
        mode="markers",
        marker=dict(symbol="diamond", size=12, color=QUERY, line=dict(width=2, color="#333333")),
        hoverinfo="skip",
    )
    below = distance[layer, head] > middle
    figure.add_annotation(
        **place,
        text=f"<b>{tr('head {head}', head=head + 1)}</b>",
        showarrow=True,
        arrowwidth=1,
        arrowhead=0,
        standoff=8,
        ax=0,
        ay=40 if below else -40,
        font_size=14,
    )


def class_probabilities(
    probabilities: np.ndarray,
    labels: Sequence[str],
    *,
    k: int = 5,
    full_names: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the k most probable classes as bars.

    Parameters
    ----------
    probabilities : ndarray of shape (K,), shares of 1
    labels : K names
    full_names : K texts to show on hover, such as other names of the class
    """
    order = np.argsort(-probabilities, kind="stable")[:k]
    values = 100 * probabilities[order]
    names = [labels[index] for index in order]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=[f"{place + 1}. {escape_text(name)}" for place, name in enumerate(names)],
            orientation="h",
            marker_color="#3a6ea5",
            text=[f"{value:.1f} %" for value in values],
            textposition="outside",
            cliponaxis=False,
            **hover_names(full_names, order.tolist()),
        )
    )
    across = dict(range=[0, 130], title=tr("probability, %"), tickvals=[0, 25, 50, 75, 100])
    figure.layout.hovermode = "y"  # anywhere in a row: a bar may be short
    words = ", ".join(f"{n} {v:.1f} %" for n, v in zip(names, values, strict=True))
    return finish(
        figure,
        tr("Most probable classes: {words}.", words=words),
        height=90 + 52 * len(names),
        axes=(across, dict(autorange="reversed")),
    )


def position_profile(
    profile: Mapping[str, tuple[np.ndarray, np.ndarray]], *, position: tuple[int, int]
) -> go.Figure:
    """Draw the cosine of one position with others along each line through it.

    Parameters
    ----------
    profile : dict of a line's name to (offset, cosine); offsets in patches
    position : (row, column), from 0
    """
    figure, lowest = go.Figure(), []
    names = {"row": tr("row"), "column": tr("column"), "diagonal": tr("diagonal")}
    for (line, (offset, cosine)), style in zip(profile.items(), LINES, strict=False):
        figure.add_scatter(
            x=offset,
            y=cosine,
            name=names.get(line, line),
            **line_style(style),
            hovertemplate=f"{names.get(line, line)} %{{x:+d}}: %{{y:.2f}}<extra></extra>",
        )
        least = int(cosine.argmin())
        lowest.append(
            tr(
                "{cosine:.2f} along its {line}, at offset {offset:+d}",
                cosine=cosine[least],
                line=names.get(line, line),
                offset=offset[least],
            )
        )
    across = dict(title=tr("offset to the right or down, patches"), zeroline=False)
    down = dict(title=tr("cosine"), range=[-1.05, 1.05], dtick=0.5)
    words = tr(
        "Cosine against offset from {patch}; the lowest are {lowest}.",
        patch=patch_name(*position),
        lowest=", ".join(lowest),
    )
    return finish(figure, words, height=420, axes=(across, down), legend=True)


def _distance_words(distance: np.ndarray, equal: np.ndarray, spread: np.ndarray | None) -> str:
    finite = np.isfinite(distance)
    if not finite.any():
        return tr("No head attends to any patch, so there is no distance to show.")
    low, high = np.nanmin(distance), np.nanmax(distance)
    words = tr(
        "Attention distance of {count} heads, from {low:.1f} to {high:.1f} pixels",
        count=finite.sum(),
        low=low,
        high=high,
    )
    below = int((distance < equal[:, None])[finite].sum())
    at = (
        tr(" at {equal:.1f} pixels", equal=equal[0])
        if np.ptp(equal) == 0
        else tr(" in their layer")
    )
    words += tr("; {below} lie below equal sharing{at}", below=below, at=at)
    if spread is not None and np.isfinite(spread).any():
        words += tr(
            "; the standard deviation (n − 1) over pictures is at most {spread:.1f} pixels",
            spread=np.nanmax(spread),
        )
    return f"{words}."
