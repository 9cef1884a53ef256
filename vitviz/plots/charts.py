"""Attention distance by head, class probabilities, and cosines along lines of positions."""

from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go

from ..language import mark, patch_name, tr
from .template import GREY, LINES, QUERY, beside_each_other, finish, legend_above

_BEHIND = "rgba(74,134,197,.45)"  # of bars below dots


def attention_distance(
    distance: np.ndarray,
    prefix_mass: np.ndarray,
    *,
    equal_sharing: float | np.ndarray,
    side: float,
    selected: tuple[int, int | None],
    num_heads: Sequence[int] | None = None,
    spread: np.ndarray | None = None,
    behind: tuple[str, np.ndarray, np.ndarray] | None = None,
    prefix_name: str = mark("the prefix"),
    recorded: tuple[str, np.ndarray] | None = None,
    with_cnn: bool = False,
) -> go.Figure:
    """Mean attention distance, one dot a head, dots larger the more attention the prefix takes.

    The dots are the first trace, layer by layer: a dot that is clicked is known by its number.

    Parameters
    ----------
    distance : ndarray of shape (layers, heads), pixels; NaN is a gap
    prefix_mass : ndarray of shape (layers, heads), shares of 1
    equal_sharing : distance of uniform attention, pixels; one, or an ndarray of shape (layers,)
        NaN where no patch looks at a patch, which draws no line.
    side : longer side of the model's input, pixels
    selected : layer and head (or None) to mark
    num_heads : of each layer, where not all have as many; what is beyond is a gap
    spread : ndarray of shape (layers, heads), pixels, or None
        Standard deviation over pictures, drawn as error bars.
    behind : name of a set of pictures, and each head's mean and standard deviation over it
        Drawn as a bar behind the dot: ndarrays of shape (layers, heads), pixels; NaN is a gap.
    prefix_name : what the tokens outside the picture are called
    recorded : name of another model and its distances (layers, heads), shares of the side
    with_cnn : draw how far along a row a pixel sees in a CNN of 3 x 3 kernels with stride 1
    """
    layers, heads = distance.shape
    x = beside_each_other(num_heads or [heads] * layers)
    equal = np.broadcast_to(equal_sharing, layers)
    names = [
        tr("layer {layer}, head {head}", layer=k + 1, head=h + 1)
        for k in range(layers)
        for h in range(heads)
    ]
    here = [k == selected[0] and selected[1] in (None, h) for k, h in np.ndindex(layers, heads)]
    deviation = None if spread is None else [f" ± {pixels:.1f}" for pixels in spread.ravel()]
    figure = go.Figure(
        go.Scatter(
            x=x.ravel(),
            y=distance.ravel(),
            mode="markers",
            marker=dict(
                size=9 + 17 * prefix_mass.ravel(),
                color=[QUERY if chosen else GREY for chosen in here],
                symbol=["diamond" if chosen else "circle" for chosen in here],
                line=dict(width=[2 if chosen else 1 for chosen in here], color="#333333"),
                opacity=0.9,
            ),
            selected_marker_opacity=0.9,  # the marks say what is chosen, not what is faded
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
    figure.layout.shapes = [  # at once: each that is added to others copies them all
        dict(
            type="line",
            x0=layer + 0.5,
            x1=layer + 1.5,
            y0=pixels,
            y1=pixels,
            line=dict(dash="dash", color=GREY),
        )
        for layer, pixels in enumerate(equal)
        if not np.isnan(pixels)  # no patch attends to patches here; plotly draws NaN somewhere
    ]
    one = f" {equal[0]:.1f} px" if np.ptp(equal) == 0 else ""
    sizes = tr("; larger dots: more on {prefix}", prefix=prefix_name) if prefix_mass.any() else ""
    bars = ""
    if behind is not None:
        bars = tr("blue bars: mean ± standard deviation over {behind}<br>", behind=behind[0])
        _bars_behind(figure, x, *behind)
    figure.add_annotation(  # above the axes, where no dot can lie
        text=f"{bars}╌╌ {tr('equal sharing')}{one}{sizes}",
        align="left",
        x=0,
        xshift=-60,  # from the left edge of the figure on, as telephones are narrow
        xref="paper",
        y=1,
        yref="paper",
        yanchor="bottom",
        showarrow=False,
        font_size=14,
    )
    drawn = [(distance, 0 if spread is None else spread)]
    drawn += [] if behind is None else [behind[1:]]
    reach = [float(np.nanmax(middle + half, initial=0)) for middle, half in drawn]
    highest = max(float(np.nanmax(equal)), *reach)
    lowest = min(float(np.nanmin(middle - half, initial=highest)) for middle, half in drawn)
    deepest = layers
    if recorded is not None:
        name, shares = recorded
        deepest = max(layers, len(shares))
        highest = max(highest, side * float(shares.max()))
        lowest = min(lowest, side * float(shares.min()))
        figure.add_scatter(
            x=beside_each_other([shares.shape[1]] * len(shares)).ravel(),
            y=side * shares.ravel(),
            mode="markers",
            marker=dict(symbol="square-open", size=8, color=LINES[1][0]),
            hovertemplate=tr("{name}, layer %{{x:.0f}}: %{{y:.1f}} px<extra></extra>", name=name),
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
    # Where all heads look far, an axis from 0 would press their dots together.
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
    _name_dot(figure, x, distance, selected, (bottom + top) / 2)
    across = dict(title=tr("layer"), dtick=1, range=[0.5, deepest + 0.5])
    down = dict(title=tr("attention distance, pixels of the input"), range=[bottom, top])
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
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
    words = _distance_words(distance, equal, spread)
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
    return finish(figure, words, height=400, top=28 if behind is None else 48, right=70)


def _bars_behind(
    figure: go.Figure, x: np.ndarray, name: str, mean: np.ndarray, spread: np.ndarray
) -> None:
    """Draw mean and standard deviation of each head over many pictures, below all else."""
    wide = int(np.clip(450 // x.size, 2, 9))  # pixels: where there are many heads, they lie close
    figure.add_scatter(
        x=x.ravel(),
        y=mean.ravel(),
        error_y=dict(array=spread.ravel(), color=_BEHIND, thickness=wide, width=0),
        mode="markers",
        marker=dict(symbol="line-ew", size=wide - 1, line=dict(width=3, color=LINES[0][0])),
        selected_marker_opacity=1,
        unselected_marker_opacity=1,
        text=[f"{pixels:.1f}" for pixels in spread.ravel()],
        hovertemplate=f"{name}: %{{y:.1f}} ± %{{text}} px<extra></extra>",
        zorder=-1,
    )


def _name_dot(
    figure: go.Figure,
    x: np.ndarray,
    distance: np.ndarray,
    selected: tuple[int, int | None],
    middle: float,
) -> None:
    """Draw the chosen head above its neighbours, with its number beside it.

    The number stands below it where it lies above the `middle` of the axis, else above it.
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
    probabilities: np.ndarray, labels: Sequence[str], *, k: int = 5
) -> go.Figure:
    """The k most probable classes as bars.

    Parameters
    ----------
    probabilities : ndarray of shape (K,), shares of 1
    labels : K names
    """
    order = np.argsort(-probabilities, kind="stable")[:k]
    values = 100 * probabilities[order]
    names = [labels[index] for index in order]
    figure = go.Figure(
        go.Bar(
            x=values,
            y=[f"{place + 1}. {name}" for place, name in enumerate(names)],
            orientation="h",
            marker_color="#3a6ea5",
            text=[f"{value:.1f} %" for value in values],
            textposition="outside",
            cliponaxis=False,
            hoverinfo="skip",
        )
    )
    across = dict(range=[0, 112], title=tr("probability, %"), tickvals=[0, 25, 50, 75, 100])
    figure.update_layout(xaxis=across, yaxis=dict(autorange="reversed"), overwrite=True)
    words = ", ".join(f"{n} {v:.1f} %" for n, v in zip(names, values, strict=True))
    return finish(
        figure, tr("Most probable classes: {words}.", words=words), height=90 + 52 * len(names)
    )


def position_profile(
    profile: Mapping[str, tuple[np.ndarray, np.ndarray]], *, position: tuple[int, int]
) -> go.Figure:
    """Cosine of one position with others, against how far they are along each line through it.

    Parameters
    ----------
    profile : dict of a line's name to (offset, cosine); offsets in patches
    position : (row, column), from 0
    """
    figure, lowest = go.Figure(), []
    names = {"row": tr("row"), "column": tr("column"), "diagonal": tr("diagonal")}
    for (line, (offset, cosine)), style in zip(profile.items(), LINES, strict=False):
        colour, symbol, dash = style
        figure.add_scatter(
            x=offset,
            y=cosine,
            name=names.get(line, line),
            mode="lines+markers",
            line=dict(color=colour, dash=dash, width=2),
            marker=dict(symbol=symbol, size=8),
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
    figure.update_layout(xaxis=across, yaxis=down, overwrite=True)
    words = tr(
        "Cosine against offset from {patch}; the lowest are {lowest}.",
        patch=patch_name(*position),
        lowest=", ".join(lowest),
    )
    return legend_above(finish(figure, words, height=420))


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
    if spread is not None:
        words += tr(
            "; the standard deviation over pictures is at most {spread:.1f} pixels",
            spread=np.nanmax(spread),
        )
    return f"{words}."
