"""Interventions: removed patches, muted heads, occlusion, deletion curves, the logit lens."""

import base64
import io
from collections.abc import Mapping, Sequence

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import mark, tr
from .template import (
    GREY,
    LINES,
    SIGNED,
    Box,
    cells,
    colorbar,
    finish,
    legend_above,
    patch_name,
    picture_axes,
)

BEFORE, AFTER = GREY, "#3a6ea5"
_HEIGHT = 350  # of the two figures that are clicked, pixels on screen
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
            marker=dict(size=max(6, round(0.8 * _HEIGHT / max(rows, cols))), symbol="square"),
            marker_opacity=0,
            selected_marker_opacity=0,
            unselected_marker_opacity=0,
            customdata=cells,
            hovertemplate="%{customdata}<extra></extra>",
        )
    )
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    figure.add_layout_image(
        source="data:image/png;base64," + base64.b64encode(data.getvalue()).decode(),
        x=left,
        y=top,
        sizex=right - left,
        sizey=bottom - top,
        xref="x",
        yref="y",
        sizing="stretch",
        layer="below",
    )
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
        height=_HEIGHT,
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
                    text=tr("change of the logit of {name}, muted alone", name=name),
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
    figure.update_xaxes(
        title=tr("layer"), dtick=x_step, tick0=1, range=[0.4, layers + 0.6], **steps
    )
    figure.update_yaxes(title=tr("head"), dtick=y_step, tick0=1, range=[heads + 0.6, 0.4], **steps)
    figure = finish(figure, f"{words}.", height=_HEIGHT)
    return _clickable(figure)


def answer_change(
    before: np.ndarray,
    after: np.ndarray,
    labels: Sequence[str],
    *,
    k: int = 5,
    height: int = _HEIGHT,
    called: tuple[str, str] = (mark("before"), mark("after")),
) -> go.Figure:
    """The k most probable classes before and after an experiment, in pairs of bars.

    Classes that are among the k in either are shown, in the order of before; the names carry the
    places before and after.

    Parameters
    ----------
    before, after : ndarray of shape (K,), shares of 1
    labels : K names
    height : of the figure on screen at least, pixels
    called : names of the two answers
    """
    ranks = [np.argsort(np.argsort(-values, kind="stable")) for values in (before, after)]
    shown = [int(at) for at in np.argsort(ranks[0]) if min(ranks[0][at], ranks[1][at]) < k]
    names = [f"{labels[at]} ({ranks[0][at] + 1} → {ranks[1][at] + 1})" for at in shown]
    figure = go.Figure()
    for name, values, colour, pattern in (
        (called[0], before, BEFORE, "/"),
        (called[1], after, AFTER, ""),
    ):
        figure.add_bar(
            x=100 * values[shown],
            y=names,
            name=tr(name),
            orientation="h",
            marker=dict(color=colour, pattern_shape=pattern),
            text=[f"{100 * value:.1f} %" for value in values[shown]],
            textposition="outside",
            textfont_size=14,
            constraintext="none",  # else thin bars get small print
            cliponaxis=False,
            hoverinfo="skip",
        )
    figure.update_xaxes(range=[0, 118], title=tr("probability, %"), tickvals=[0, 25, 50, 75, 100])
    figure.update_yaxes(autorange="reversed")
    words = ", ".join(
        tr(
            "{label} {before:.1f} % and then {after:.1f} %",
            label=labels[at],
            before=100 * before[at],
            after=100 * after[at],
        )
        for at in shown
    )
    finish(
        figure,
        tr("Most probable classes: {words}.", words=words),
        height=max(height, 90 + 46 * len(shown)),
        top=30,
    )
    return legend_above(figure).update_layout(barmode="group", bargap=0.25)


def logit_lens(probabilities: np.ndarray, labels: Sequence[str], *, k: int = 3) -> go.Figure:
    """The model's probabilities after each depth, for the k classes most probable at the last.

    Parameters
    ----------
    probabilities : ndarray of shape (depth + 1, K), shares of 1
        Row 0 after the embedding, row l after layer l.
    labels : K names
    """
    order = np.argsort(-probabilities[-1], kind="stable")[: min(k, len(LINES))]
    figure, words = go.Figure(), []
    depth = len(probabilities) - 1
    for index, (colour, symbol, dash) in zip(order, LINES, strict=False):
        values = 100 * probabilities[:, index]
        figure.add_scatter(
            x=np.arange(depth + 1),
            y=values,
            name=labels[index],
            mode="lines+markers",
            line=dict(color=colour, dash=dash, width=2),
            marker=dict(symbol=symbol, size=8),
            hovertemplate=tr(
                "{label} after layer %{{x}}: %{{y:.1f}} %<extra></extra>", label=labels[index]
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
    figure.update_xaxes(title=tr("after layer (0: the embedding)"), dtick=step, zeroline=False)
    figure.update_yaxes(title=tr("probability, %"), range=[0, 102], tickvals=[0, 25, 50, 75, 100])
    return legend_above(
        finish(
            figure,
            tr("Read by the head after each layer: {words}.", words=", ".join(words)),
            height=340,
            top=30,
        )
    )


def removal_curves(
    curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, name: str, putting_back: bool
) -> go.Figure:
    """The probability of a class while patches are removed (deletion) or put back (insertion).

    Parameters
    ----------
    curves : dict of a map's name to (shares of the patches, probabilities), both shares of 1
    name : of the class
    putting_back : insertion instead of deletion
    """
    figure, words = go.Figure(), []
    for (called, (shares, values)), (colour, symbol, dash) in zip(
        curves.items(), LINES, strict=False
    ):
        figure.add_scatter(
            x=100 * shares,
            y=100 * values,
            name=called,
            mode="lines+markers",
            line=dict(color=colour, dash=dash, width=2),
            marker=dict(symbol=symbol, size=7),
            hovertemplate=tr(
                "{called}: %{{y:.1f}} % at %{{x:.0f}} %<extra></extra>", called=called
            ),
        )
        half = float(np.interp(0.5, shares, values))
        words.append(
            tr("by {called} {half:.1f} % at half of the patches", called=called, half=100 * half)
        )
    done = tr("put back") if putting_back else tr("removed")
    figure.update_xaxes(title=tr("patches {done}, %", done=done), range=[-2, 102], zeroline=False)
    figure.update_yaxes(
        title=tr("probability of {name}, %", name=name),
        range=[0, 102],
        tickvals=[0, 25, 50, 75, 100],
    )
    most = tr(
        "Probability of {name} while patches are {done}, the most important first",
        name=name,
        done=done,
    )
    return legend_above(finish(figure, f"{most}: {', '.join(words)}.", height=340, top=30))


def occlusion(effect: np.ndarray, image: Image.Image, *, crop: Box, name: str) -> go.Figure:
    """How far the probability of a class falls when each block is hidden, over the picture.

    Parameters
    ----------
    effect : ndarray of shape (rows, columns), shares of 1, signed
        Probability with nothing hidden minus probability with the patch's block hidden.
    crop : (left, top, right, bottom) of the map in pixels of the picture
    name : of the class
    """
    rows, cols = effect.shape
    points = 100 * effect
    low, high = float(points.min()), float(points.max())
    reach = max(-low, high) or 1.0
    bar = colorbar(
        tr(
            "fall of the probability of {name}: {low:+.1f} to {high:+.1f} percentage points",
            name=name,
            low=low,
            high=high,
        )
    )
    figure = go.Figure(
        go.Heatmap(
            z=points,
            **cells(crop, effect.shape),
            zmin=-reach,
            zmax=reach,
            colorscale=SIGNED,
            colorbar={
                **bar,
                "tickvals": [-reach, 0, reach],
                "ticktext": [f"{-reach:+.1f}", "0", f"{reach:+.1f}"],
            },
            customdata=[[patch_name(row, col) for col in range(cols)] for row in range(rows)],
            hovertemplate=tr("%{customdata}: %{z:+.1f} points<extra></extra>"),
        )
    )
    picture_axes(figure, (0, 0, image.width, image.height))
    # White is 0 on this scale, so what the model does not see must not be white.
    figure.add_shape(
        type="rect",
        x0=0,
        y0=0,
        x1=image.width,
        y1=image.height,
        fillcolor="rgba(138,143,152,0.45)",
        line=dict(color=GREY, width=1),
        layer="below",
    )
    least, most = (patch_name(*divmod(int(at), cols)) for at in (points.argmin(), points.argmax()))
    return finish(
        figure,
        tr(
            "Fall of the probability of {name} when a block is hidden: from {low:+.1f} "
            "percentage points at {least} to {high:+.1f} at {most}.",
            name=name,
            low=low,
            least=least,
            high=high,
            most=most,
        ),
        height=420,
    )


def _clickable(figure: go.Figure) -> go.Figure:
    """A click chooses a point; nothing is dragged or zoomed."""
    figure.update_xaxes(fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    return figure.update_layout(clickmode="event+select", dragmode="pan")
