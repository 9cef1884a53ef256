"""Draw training: accuracy and loss by epoch, heads by layer, and results of experiments."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..common.language import tr
from .template import GREY, LINES, QUERY, finish, head_positions, line_style


def training_curves(
    runs: Mapping[str, Sequence[Mapping[str, Any]]],
    *,
    test_accuracy: Mapping[str, float],
    reference: float | None = None,
    chosen: float | None = None,
) -> go.Figure:
    """Draw accuracy on held-out pictures by epoch, and the loss that training minimised.

    Parameters
    ----------
    runs : rows by the run's name, with image_size, epoch, loss and held_out_accuracy
        Epochs count from the beginning of each input size. A single run's name may be empty.
    test_accuracy : by the run's name, share of 1 over all test pictures at the end
    reference : share of 1, drawn as a line for comparison
    chosen : epoch to mark, counted from the beginning of the run
    """
    figure, words, losses = go.Figure(), [], [0.0]
    for (name, rows), style in zip(runs.items(), LINES, strict=False):
        epochs, prefix = running_epochs(rows), tr("{name}, ", name=name) if name else ""
        accuracy = [100 * row["held_out_accuracy"] for row in rows]
        figure.add_scatter(
            x=epochs,
            y=accuracy,
            name=tr("{called}held out", called=prefix),
            **line_style(style),
            hovertemplate=tr("epoch %{x:.1f}: %{y:.1f} %") + "<extra>" + name + "</extra>",
        )
        figure.add_scatter(
            x=[epochs[-1]],
            y=[100 * test_accuracy[name]],
            name=tr(
                "{called}test {test_accuracy:.1f} %",
                called=prefix,
                test_accuracy=100 * test_accuracy[name],
            ),
            mode="markers",
            marker=dict(
                symbol="star", size=15, color=style[0], line=dict(width=1, color="#333333")
            ),
            hovertemplate=tr("all test pictures: %{y:.2f} %") + "<extra>" + name + "</extra>",
        )
        words.append(
            tr(
                "{called}from {first:.1f} % after epoch {epoch:g} to {last:.1f} % "
                "of the held-out pictures, {test:.1f} % of the test pictures",
                called=prefix,
                first=accuracy[0],
                epoch=epochs[0],
                last=accuracy[-1],
                test=100 * test_accuracy[name],
            )
        )
        loss = [row["loss"] for row in rows]
        losses += loss
        figure.add_scatter(
            x=epochs,
            y=loss,
            name=prefix + tr("training loss"),
            mode="lines",
            line=dict(color=GREY, dash="dot", width=2),
            yaxis="y2",
            hovertemplate=tr("epoch %{x:.1f}: loss %{y:.2f}<extra></extra>"),
        )
    _mark_growth(figure, next(iter(runs.values())))
    if reference is not None:
        figure.add_hline(
            y=100 * reference,
            line=dict(dash="dash", color=GREY),
            name=tr("a ViT written for a course, {reference:.2f} %", reference=100 * reference),
            showlegend=True,
        )
        words.append(
            tr("a ViT written for a course reached {reference:.2f} %", reference=100 * reference)
        )
    if chosen is not None:
        figure.add_vline(x=chosen, line=dict(color=QUERY, width=3))
    across = dict(title=tr("epoch"), rangemode="tozero")
    down = dict(title=tr("accuracy, %"), range=[0, 100])
    figure.update_layout(
        yaxis2=dict(
            title=tr("training loss"),
            overlaying="y",
            side="right",
            range=[0, math.ceil(max(losses))],
            dtick=1,
            showgrid=False,
        )
    )
    return finish(
        figure, "; ".join(words) + ".", height=300, axes=(across, down), top=56, legend=True
    )


def running_epochs(rows: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return epochs counted from the beginning of the run, not of each input size."""
    epochs, before, last = [], 0.0, 0.0
    for previous, row in zip([None, *rows], rows, strict=False):
        if previous is not None and previous["image_size"] != row["image_size"]:
            before += last
        last = row["epoch"]
        epochs.append(before + last)
    return epochs


def distance_by_layer(
    distance: np.ndarray, untrained: np.ndarray, *, equal_sharing: float
) -> go.Figure:
    """Draw the attention distance of every head, now and before training.

    Parameters
    ----------
    distance, untrained : ndarray of shape (layers, heads), share of the picture's side
    equal_sharing : share of the picture's side
    """
    words = tr(
        "Attention distance of {count} heads: {mean:.0f} % of the side on average, "
        "{before:.0f} % before training; equal sharing is {equal:.0f} %.",
        count=distance.size,
        mean=100 * distance.mean(),
        before=100 * untrained.mean(),
        equal=100 * equal_sharing,
    )
    return _by_layer(
        distance, untrained, equal_sharing, axis=tr("distance, % of the side"), words=words
    )


def entropy_by_layer(entropy: np.ndarray, untrained: np.ndarray) -> go.Figure:
    """Draw the attention entropy of every head, now and before training.

    Parameters
    ----------
    entropy, untrained : ndarray of shape (layers, heads), share of the entropy of equal sharing
    """
    words = tr(
        "Entropy of {count} heads: {mean:.0f} % of that of equal sharing on average, "
        "{before:.0f} % before training.",
        count=entropy.size,
        mean=100 * entropy.mean(),
        before=100 * untrained.mean(),
    )
    return _by_layer(entropy, untrained, 1.0, axis=tr("entropy, % of equal sharing"), words=words)


def _by_layer(
    now: np.ndarray, untrained: np.ndarray, equal_sharing: float, *, axis: str, words: str
) -> go.Figure:
    layers, heads = now.shape
    x = head_positions([heads] * layers).ravel()
    figure = go.Figure()
    for name, values, symbol, colour in (
        (tr("untrained"), untrained, "circle-open", GREY),
        (tr("now"), now, "diamond", "#4a86c5"),
    ):
        figure.add_scatter(
            x=x,
            y=100 * values.ravel(),
            name=name,
            mode="markers",
            marker=dict(symbol=symbol, size=9, color=colour),
            hovertemplate=tr("layer %{{x:.0f}}: %{{y:.0f}} %<extra>{name}</extra>", name=name),
        )
    figure.add_hline(y=100 * equal_sharing, line=dict(dash="dash", color=GREY))
    top = 115 * max(float(now.max()), float(untrained.max()), equal_sharing)
    across = dict(title=tr("layer"), dtick=1, range=[0.5, layers + 0.5])
    down = dict(title=axis, range=[0, top])
    return finish(figure, words, height=330, axes=(across, down), top=56, legend=True)


def data_hunger(results: Mapping[str, Sequence[tuple[float, float, float]]]) -> go.Figure:
    """Draw accuracy by the number of training pictures, one line per network.

    Parameters
    ----------
    results : by the network's name, (pictures, accuracy, half width of its 95 % interval)
        Accuracy and half width are shares of 1.
    """
    figure, words = go.Figure(), []
    for (name, points), style in zip(results.items(), LINES, strict=False):
        pictures, accuracy, half = (list(column) for column in zip(*points, strict=True))
        figure.add_scatter(
            x=pictures,
            y=[100 * value for value in accuracy],
            error_y=dict(array=[100 * value for value in half], thickness=2, width=6),
            name=name,
            **line_style(style, 9),
            hovertemplate=tr("%{x:,} pictures: %{y:.1f} %") + "<extra>" + name + "</extra>",
        )
        words.append(
            tr(
                "{name} {first:.1f} % with {few:,} pictures and {last:.1f} % with {many:,}",
                name=name,
                first=100 * accuracy[0],
                few=pictures[0],
                last=100 * accuracy[-1],
                many=pictures[-1],
            )
        )
    ticks = [count for count, _, _ in next(iter(results.values()))]
    if len(ticks) > 5:
        ticks = ticks[::-2]  # more do not fit on a telephone
    across = dict(
        title=tr("training pictures"),
        type="log",
        tickvals=ticks,
        ticktext=[f"{count:,}" for count in ticks],
        tickangle=0,
    )
    down = dict(title=tr("test accuracy, %"), rangemode="tozero")
    return finish(
        figure, "; ".join(words) + ".", height=300, axes=(across, down), top=56, legend=True
    )


def conditions(
    values: Mapping[str, Sequence[float] | np.ndarray],
    *,
    axis: str,
    half: Mapping[str, float] | None = None,
    reference: float | None = None,
) -> go.Figure:
    """Draw one quantity of trainings under several conditions, each in its own row.

    Parameters
    ----------
    values : by the condition's name, shares of 1
        One for each of its runs, or for each head of its runs.
    axis : name of the quantity
    half : by the condition's name, half width of the mean's 95 % interval
    reference : share of 1, drawn as a line for comparison
    """
    figure, words = go.Figure(), []
    for name, shares in values.items():
        percent = 100 * np.asarray(shares)
        mean = float(percent.mean())
        figure.add_scatter(
            x=percent,
            y=[name] * len(percent),
            mode="markers",
            marker=dict(symbol="circle-open", size=8, color=GREY),
            hovertemplate="%{x:.1f} %<extra>%{y}</extra>",
        )
        figure.add_scatter(
            x=[mean],
            y=[name],
            error_x=dict(array=[100 * half[name]], thickness=2, width=8) if half else None,
            mode="markers",
            marker=dict(symbol="diamond", size=10, color="#4a86c5"),
            hovertemplate=tr("mean %{x:.1f} %<extra>%{y}</extra>"),
        )
        words.append(
            tr(
                "{name} {least:.1f} to {most:.1f} %, {mean:.1f} % on average",
                name=name,
                least=percent.min(),
                most=percent.max(),
                mean=mean,
            )
        )
    if reference is not None:
        figure.add_vline(x=100 * reference, line=dict(dash="dash", color=GREY))
    across = dict(title=axis.replace(", % of", ",<br>% of"), automargin=True)
    down = dict(autorange="reversed")
    return finish(
        figure, f"{axis}: {'; '.join(words)}.", height=90 + 45 * len(values), axes=(across, down)
    )


def _mark_growth(figure: go.Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    """Draw a line where the input becomes larger."""
    epochs = running_epochs(rows)
    for index in range(1, len(rows)):
        size = rows[index]["image_size"]
        if size != rows[index - 1]["image_size"]:
            figure.add_vline(
                x=epochs[index - 1],
                line=dict(color=GREY, width=1),
                annotation_text=tr("input {size} px", size=size),
                annotation_font_size=14,
                annotation_position="top left",
            )
