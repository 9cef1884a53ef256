"""Draw the results of experiments: changed answers, logit lens, removal curves, occlusion."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..common.language import mark, tr
from .clicked import AFTER, HEIGHT
from .maps import heat_map, on_grey
from .template import (
    GREY,
    LINES,
    SIGNED,
    Crop,
    block_centres,
    colorbar,
    escape_text,
    finish,
    hover_names,
    largest_patch,
    line_style,
    signed_scale,
    smallest_patch,
)

BEFORE = GREY


def _block_numbers(points: np.ndarray, crop: Crop, block: int) -> go.Scatter:
    """Write the value of each block in its middle."""
    centres = block_centres(crop, points.shape, block)
    return go.Scatter(
        x=[x for _, x, _ in centres],
        y=[y for _, _, y in centres],
        text=[f"{points[corner]:+.0f}" for corner, _, _ in centres],
        mode="text",
        textfont=dict(size=14, color="#111", shadow="0 0 3px #fff, 0 0 3px #fff"),
        hoverinfo="skip",
        showlegend=False,
    )


def answer_change(
    before: np.ndarray,
    after: np.ndarray,
    labels: Sequence[str],
    *,
    k: int = 5,
    height: int = HEIGHT,
    called: tuple[str, str] = (mark("before"), mark("after")),
    full_names: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the k most probable classes before and after an experiment, in pairs of bars.

    Classes among the first k of either answer are shown, in the order of the first. Their names
    show the ranks before and after.

    Parameters
    ----------
    before, after : ndarray of shape (K,), shares of 1
    labels : K names
    height : smallest height of the figure on screen, pixels
    called : names of the two answers
    full_names : K texts to show on hover, such as other names of the class
    """
    ranks = [np.argsort(np.argsort(-values, kind="stable")) for values in (before, after)]
    top = [int(at) for at in np.argsort(ranks[0]) if min(ranks[0][at], ranks[1][at]) < k]
    names = [f"{escape_text(labels[at])} ({ranks[0][at] + 1} → {ranks[1][at] + 1})" for at in top]
    figure = go.Figure()
    for name, values, colour, pattern in (
        (called[0], before, BEFORE, "/"),
        (called[1], after, AFTER, ""),
    ):
        figure.add_bar(
            x=100 * values[top],
            y=names,
            name=tr(name),
            orientation="h",
            marker=dict(color=colour, pattern_shape=pattern),
            text=[f"{100 * value:.1f} %" for value in values[top]],
            textposition="outside",
            textfont_size=14,
            constraintext="none",  # else thin bars get small print
            cliponaxis=False,
            **hover_names(full_names, top),
        )
    figure.layout.hovermode = "y"  # anywhere in a row: a bar may be short
    across = dict(range=[0, 118], title=tr("probability, %"), tickvals=[0, 25, 50, 75, 100])
    down = dict(autorange="reversed")
    words = ", ".join(
        tr(
            "{label} {before:.1f} % and then {after:.1f} %",
            label=labels[at],
            before=100 * before[at],
            after=100 * after[at],
        )
        for at in top
    )
    finish(
        figure,
        tr("Most probable classes: {words}.", words=words),
        height=max(height, 90 + 46 * len(top)),
        top=30,
        axes=(across, down),
        legend=True,
    )
    return figure.update_layout(barmode="group", bargap=0.25)


def logit_lens(
    probabilities: np.ndarray,
    labels: Sequence[str],
    *,
    k: int = 3,
    full_names: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the probabilities read at each depth, for the k classes most probable at the end.

    Parameters
    ----------
    probabilities : ndarray of shape (depth + 1, K), shares of 1
        Row 0 after the embedding, row l after layer l.
    labels : K names
    full_names : K texts to show on hover, such as other names of the class
    """
    order = np.argsort(-probabilities[-1], kind="stable")[: min(k, len(LINES))]
    figure, words = go.Figure(), []
    depth = len(probabilities) - 1
    for index, style in zip(order, LINES, strict=False):
        values = 100 * probabilities[:, index]
        figure.add_scatter(
            x=np.arange(depth + 1),
            y=values,
            name=escape_text(labels[index]),
            **line_style(style),
            hovertemplate=tr(
                "{label} after layer %{{x}}: %{{y:.1f}} %<extra></extra>",
                label=escape_text((full_names or labels)[index]),
            ),
        )
        words.append(
            tr(
                "{label} from {first:.1f} % to {last:.1f} %",
                label=labels[index],
                first=values[0],
                last=values[-1],
            )
        )
    step = 1 if depth <= 12 else 2
    across = dict(title=tr("after layer (0: the embedding)"), dtick=step, zeroline=False)
    down = dict(title=tr("probability, %"), range=[0, 102], tickvals=[0, 25, 50, 75, 100])
    return finish(
        figure,
        tr("Read by the head after each layer: {words}.", words=", ".join(words)),
        height=340,
        top=30,
        axes=(across, down),
        legend=True,
    )


def removal_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]],
    *,
    name: str,
    putting_back: bool,
    ranges: Mapping[str, tuple[np.ndarray, np.ndarray]] | None = None,
) -> go.Figure:
    """Draw the probability of a class while patches are removed or put back (insertion).

    Parameters
    ----------
    curves : dict of a map's name to (shares of the patches, probabilities), both shares of 1
    name : of the class
    putting_back : whether patches are put back instead of removed
    ranges : dict of a map's name to the lower and the upper end of a band around its curve, which
        is grey
    """
    figure, words = go.Figure(), []
    for low, high in (ranges or {}).values():
        shares = next(iter(curves.values()))[0]
        figure.add_scatter(
            x=100 * np.append(shares, shares[::-1]),
            y=100 * np.append(low, high[::-1]),
            fill="toself",
            fillcolor=GREY,
            opacity=0.3,
            line=dict(width=0),
            hoverinfo="skip",
            showlegend=False,
        )
    of_chance = next(line for line in LINES if line[0] == GREY)
    others = iter(line for line in LINES if line[0] != GREY)
    for label, (shares, values) in curves.items():
        style = of_chance if label in (ranges or {}) else next(others)
        figure.add_scatter(
            x=100 * shares,
            y=100 * values,
            name=escape_text(label),
            **line_style(style, 7),
            hovertemplate=tr(
                "{called}: %{{y:.1f}} % at %{{x:.0f}} %<extra></extra>", called=escape_text(label)
            ),
        )
        half = float(np.interp(0.5, shares, values))
        words.append(
            tr("by {called} {half:.1f} % at half of the patches", called=label, half=100 * half)
        )
    action = tr("put back") if putting_back else tr("removed")
    across = dict(title=tr("patches {done}, %", done=action), range=[-2, 102], zeroline=False)
    down = dict(
        title=tr("probability of {name}, %", name=escape_text(name)),
        range=[0, 102],
        tickvals=[0, 25, 50, 75, 100],
    )
    most = tr(
        "Probability of {name} while patches are {done}, the most important first",
        name=name,
        done=action,
    )
    return finish(
        figure, f"{most}: {', '.join(words)}.", height=340, top=30, axes=(across, down), legend=True
    )


def occlusion(
    effect: np.ndarray, image: Image.Image, *, crop: Crop, name: str, block: int | None = None
) -> go.Figure:
    """Draw how far the probability of a class falls when each block is hidden, over the picture.

    The picture is grey, so that its colours do not mix with those of the scale.

    Parameters
    ----------
    effect : ndarray of shape (rows, columns), shares of 1, signed
        Probability with nothing hidden minus probability with the patch's block hidden.
    crop : (left, top, right, bottom) of the map in pixels of the picture
    name : of the class
    block : patches along the side of a block, to write a number into each; None for no numbers
    """
    points = 100 * effect
    low, high = float(points.min()), float(points.max())
    reach = max(-low, high) or 1.0
    heat = heat_map(
        points,
        crop,
        tr(
            "fall of the probability of {name}: {low:+.1f} to {high:+.1f} percentage points",
            name=escape_text(name),
            low=low,
            high=high,
        ),
        {-reach: f"{-reach:+.1f}", 0.0: "0", reach: f"{reach:+.1f}"},
        zmin=-reach,
        zmax=reach,
        colorscale=SIGNED,
        opacity=0.65,
        hovertemplate=tr("%{customdata}: %{z:+.1f} points<extra></extra>"),
    )
    figure = go.Figure(heat)
    if block is not None:
        figure.add_trace(_block_numbers(points, crop, block))
    words = tr(
        "Fall of the probability of {name} when a block is hidden: from {low:+.1f} "
        "percentage points at {least} to {high:+.1f} at {most}.",
        name=name,
        low=low,
        least=smallest_patch(points),
        high=high,
        most=largest_patch(points),
    )
    return on_grey(figure, image, words).update_layout(height=420)


def parts_by_head(parts: np.ndarray, *, name: str, mlps: np.ndarray | None = None) -> go.Figure:
    """Draw what each head writes for a logit or a difference of two, (layers, heads); NaN is none.

    `name` is that of the class, or of both. `mlps` is what the MLP of each layer writes, (layers,),
    which gets a column of its own.
    """
    layers, heads = parts.shape
    values = parts if mlps is None else np.column_stack([parts, mlps])
    reach = float(np.nanmax(np.abs(values))) or 1.0
    most = np.unravel_index(int(np.nanargmax(np.abs(parts))), parts.shape)
    figure = go.Figure(
        go.Heatmap(
            z=values,
            x=np.arange(1, values.shape[1] + 1),
            y=np.arange(1, layers + 1),
            **signed_scale(reach, "+.2f", colorbar("", below=False)),
            xgap=1,
            ygap=1,
            customdata=[[*map(str, range(1, heads + 1)), "MLP"][: values.shape[1]]] * layers,
            hovertemplate=tr("layer %{y}, head %{x}: %{z:+.3f}<extra></extra>")
            if mlps is None
            else tr("layer %{y}, head or MLP %{customdata}: %{z:+.3f}<extra></extra>"),
        )
    )
    figure.update_xaxes(title=tr("head"), dtick=1 if heads <= 16 else 4)
    if mlps is not None:
        ticks = list(range(1, heads + 1, 1 if heads <= 16 else 4))
        figure.update_xaxes(tickvals=[*ticks, heads + 1], ticktext=[*map(str, ticks), "MLP"])
    figure.update_yaxes(title=tr("layer"), dtick=1 if layers <= 12 else 4, autorange="reversed")
    words = tr(
        "What each head writes for the logit of {name}: most by layer {layer}, head {head}, "
        "{part:+.2f}.",
        name=name,
        layer=most[0] + 1,
        head=most[1] + 1,
        part=float(parts[most]),
    )
    if mlps is not None:
        first = int(np.abs(mlps).argmax())
        words += tr(
            " Most by an MLP: layer {layer}, {part:+.2f}.", layer=first + 1, part=float(mlps[first])
        )
    return finish(figure, words, height=80 + 18 * layers)


def judged_maps(
    means: Mapping[str, tuple[float, float, float]],
    *,
    measure: str,
    unit: str,
    better: Collection[str],
    chance: str | None = None,
    logarithmic: bool = False,
) -> go.Figure:
    """Draw one measure of several maps: a dot for each map's mean, a line for its interval.

    Parameters
    ----------
    means : dict of a map's name to its mean and the ends of its interval, from top to bottom
    measure : its name, for the alt text
    unit : for the axis
    better : names of the maps that do better than chance, whose dots are filled
    chance : name of the random orders, whose mean is a dashed line
    logarithmic : whether the scale is, where no interval reaches 0
    """
    names, values = list(means), np.array(list(means.values()))
    middle, low, high = values.T
    filled = [name in better for name in names]
    colours = [LINES[0][0] if each else GREY for each in filled]
    figure = go.Figure()
    for at, (colour, name) in enumerate(zip(colours, names, strict=True)):
        figure.add_scatter(  # an error bar has one colour for all dots of a trace
            x=[middle[at]],
            y=[escape_text(name)],
            mode="markers",
            marker=dict(
                color=colour,
                size=10,
                line=dict(width=2, color=colour),
                symbol="diamond" if name == chance else f"circle{'' if filled[at] else '-open'}",
            ),
            error_x=dict(
                array=[high[at] - middle[at]], arrayminus=[middle[at] - low[at]], color=colour
            ),
            customdata=[[f"{low[at]:.3g}", f"{high[at]:.3g}"]],
            hovertemplate=tr("%{y}: %{x:.3g}, %{customdata[0]} to %{customdata[1]}<extra></extra>"),
        )
    if chance is not None and chance in means:
        figure.add_vline(x=means[chance][0], line=dict(color=GREY, width=1, dash="dash"))
    across: dict[str, Any] = dict(title=unit, zeroline=False)
    if logarithmic and low.min() > 0:
        across |= dict(type="log", dtick=1)
    down = dict(autorange="reversed")
    sentence = "; ".join(
        f"{name} {each:.3g} ({start:.3g} – {end:.3g})" for name, (each, start, end) in means.items()
    )
    return finish(
        figure, f"{measure}, {unit}: {sentence}.", height=60 + 26 * len(names), axes=(across, down)
    )


def patch_effects(
    mean: np.ndarray,
    parts: Sequence[str],
    *,
    axis: str,
    interval: tuple[np.ndarray, np.ndarray] | None = None,
) -> go.Figure:
    """Draw how far each part of a second picture moves the answer for a first one to its own.

    Parameters
    ----------
    mean : ndarray of shape (layers, parts)
        From 0, where the answer stays, to 1, where it becomes the second picture's; NaN is none.
    parts : their names
    axis : what they are
    interval : lower and upper ends, as `mean`; a dot marks those that leave out 0
    """
    shares = 100 * mean
    reach = float(np.nanmax(np.abs(shares))) or 1.0
    places = [
        [tr("layer {layer}, {part}", layer=layer + 1, part=part) for part in parts]
        for layer in range(len(mean))
    ]
    if interval is not None:
        low, high = (100 * end for end in interval)
        places = [
            [
                tr("{place}, {low:+.0f} to {high:+.0f} %", place=place, low=one, high=other)
                for place, one, other in zip(*row, strict=True)
            ]
            for row in zip(places, low, high, strict=True)
        ]
    figure = go.Figure(
        go.Heatmap(
            z=shares,
            x=np.arange(len(parts)),
            y=np.arange(1, len(mean) + 1),
            **signed_scale(reach, "+.0f", colorbar("%", below=False)),
            xgap=1,
            ygap=1,
            customdata=places,
            hovertemplate="%{customdata}: %{z:+.1f} %<extra></extra>",
        )
    )
    if interval is not None:
        layers, columns = np.nonzero((low > 0) | (high < 0))
        figure.add_scatter(
            x=columns,
            y=layers + 1,
            mode="markers",
            marker=dict(size=5, color="#111111", line=dict(width=1, color="#ffffff")),
            hoverinfo="skip",
        )
    across = dict(
        title=axis,
        tickvals=list(range(len(parts))),
        ticktext=[escape_text(part) for part in parts],
        showgrid=False,
        zeroline=False,
    )
    down = dict(title=tr("layer"), dtick=1 if len(mean) <= 12 else 4, autorange="reversed")
    layer, part = np.unravel_index(int(np.nanargmax(np.abs(mean))), mean.shape)
    words = tr(
        "How far each part moves the answer to that of the second picture: most in layer {layer}, "
        "{part}, {share:+.0f} %.",
        layer=layer + 1,
        part=parts[int(part)],
        share=float(shares[layer, part]),
    )
    return finish(figure, words, height=120 + 24 * len(mean), axes=(across, down))
