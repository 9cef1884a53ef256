"""Figures of a profile, a model over a set of pictures; and all of them on one page."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .document import document
from .template import (
    GREY,
    LINES,
    SHARES,
    as_percent,
    beside_each_other,
    colorbar,
    finish,
    legend_above,
)

_COLUMNS = 4  # maps beside each other


def head_means(
    mean: np.ndarray,
    spread: np.ndarray,
    *,
    num_heads: Sequence[int],
    what: str,
    unit: str,
    reference: float | None = None,
) -> go.Figure:
    """A measure of every head: mean over pictures, and standard deviation between them as bars.

    Parameters
    ----------
    mean, spread : ndarray of shape (layers, heads), in `unit`; NaN is a gap
    num_heads : of each layer
    what : what is measured, which the words of the figure say
    unit : "px", "bit" or "share", which is drawn in per cent
    reference : what equal sharing has, drawn as a line
    """
    factor, shown = (100, "%") if unit == "share" else (1, {"bit": "bits"}.get(unit, unit))
    where = beside_each_other(num_heads)
    y, bars = factor * mean, factor * spread
    names = [f"layer {layer + 1}, head {head + 1}" for layer, head in np.ndindex(*where.shape)]
    figure = go.Figure(
        go.Scatter(
            x=where.ravel(),
            y=y.ravel(),
            error_y=dict(array=np.nan_to_num(bars).ravel(), color=GREY, thickness=1, width=0),
            mode="markers",
            marker=dict(size=7, color=LINES[0][0]),
            text=names,
            hovertemplate="%{text}: %{y:.3g} " + shown + "<extra></extra>",
        )
    )
    if reference is not None:
        figure.add_hline(y=factor * reference, line=dict(color=GREY, dash="dash"))
    top = float(np.nanmax(y + np.nan_to_num(bars), initial=0))
    figure.update_xaxes(title="layer", dtick=_step(len(num_heads)))
    lowest = {"px": 1, "bit": 0.1, "share": 1}[unit]  # what is 0 everywhere has a scale, too
    title = {"px": "pixels", "bit": "bits", "share": "share, %"}[unit]
    figure.update_yaxes(title=title, range=[0, 1.05 * max(top, lowest)])
    seen = y[np.isfinite(y)]
    words = f"{what} of every head".capitalize()
    said = f", from {seen.min():.3g} to {seen.max():.3g} {shown}" if seen.size else ", of none"
    return finish(figure, f"{words}{said}.", height=340)


def _step(layers: int) -> int:
    """So many layers apart are the ticks of an axis."""
    return max(1, layers // 12)


def layer_similarity(cka: np.ndarray) -> go.Figure:
    """Linear CKA between the tokens after all layers: ndarray (depth + 1, depth + 1)."""
    depth = len(cka) - 1
    figure = go.Figure(
        go.Heatmap(
            z=cka,
            zmin=0,
            zmax=1,
            colorscale=SHARES,
            colorbar=colorbar("CKA, 0 to 1", below=False),
            hovertemplate="after layers %{x} and %{y}: %{z:.3f}<extra></extra>",
        )
    )
    axis = dict(title="after layer", dtick=_step(depth), constrain="domain", showgrid=False)
    figure.update_xaxes(**axis)
    figure.update_yaxes(**axis, scaleanchor="x")
    ends = "unknown" if np.isnan(cka[0, -1]) else f"{cka[0, -1]:.2f}"
    return finish(
        figure,
        f"CKA between {depth + 1} depths; of the embedding and the last: {ends}.",
        height=420,
    )


def mean_offsets(maps: Sequence[np.ndarray], names: Sequence[str]) -> go.Figure:
    """Mean attention by offset from query to key, one map a layer.

    Each map has a scale from 0 to its own maximum, which stands above it.

    Parameters
    ----------
    maps : ndarrays of shape (2 rows - 1, 2 cols - 1), shares of 1; NaN is a gap
    names : of the layers
    """
    rows, cols = -(-len(maps) // _COLUMNS), min(_COLUMNS, len(maps))
    largest = [float(np.nanmax(values, initial=0)) for values in maps]
    figure = make_subplots(
        rows,
        cols,
        subplot_titles=[
            f"{name}<br>{as_percent(most)} max" for name, most in zip(names, largest, strict=True)
        ],
        x_title="offset, columns of patches",
        y_title="offset, rows of patches",
        vertical_spacing=0.25 / rows,
    )
    figure.update_annotations(font_size=12)
    for number, values in enumerate(maps):
        tall, wide = values.shape
        place = dict(row=number // _COLUMNS + 1, col=number % _COLUMNS + 1)
        heat = go.Heatmap(
            z=100 * values,
            x0=-(wide // 2),
            dx=1,
            y0=-(tall // 2),
            dy=1,
            zmin=0,
            zmax=100 * largest[number] or 1,
            colorscale=SHARES,
            showscale=False,
            hovertemplate="%{x:+d} columns, %{y:+d} rows: %{z:.2f} %<extra></extra>",
        )
        figure.add_trace(heat, **place)
    figure.update_xaxes(showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(showgrid=False, zeroline=False, autorange="reversed")
    words = f"Mean attention by offset in {len(maps)} layers; the largest cell has "
    finish(figure, f"{words}{as_percent(max(largest))}.", height=100 + 230 * rows, top=44)
    return figure.update_layout(margin=dict(l=60, b=56))


def norm_histogram(counts: np.ndarray, edges: np.ndarray) -> go.Figure:
    """How long the tokens are after each layer.

    Parameters
    ----------
    counts : ndarray of shape (depth + 1, bins)
    edges : ndarray of shape (bins + 1,), lengths, evenly spaced in their logarithm
    """
    total = counts.sum(axis=1, keepdims=True)
    shares = np.divide(counts, total, out=np.zeros(counts.shape), where=total > 0)
    there = np.flatnonzero(counts.any(axis=0))
    some = slice(int(there[0]), int(there[-1]) + 1) if there.size else slice(0, 1)
    centres = np.log10(edges[:-1] * edges[1:]) / 2
    figure = go.Figure(
        go.Heatmap(
            z=100 * shares[:, some].T,
            y=centres[some],
            colorscale=SHARES,
            colorbar=colorbar("share of<br>tokens, %", below=False),
            customdata=np.repeat(10 ** centres[some, None], len(counts), axis=1),
            hovertemplate="after layer %{x}, length %{customdata:.3g}: %{z:.2f} %<extra></extra>",
        )
    )
    decades = range(math.floor(centres[some][0]), math.ceil(centres[some][-1]) + 1)
    lengths = [digit * 10.0**decade for decade in decades for digit in (1, 2, 5)]
    figure.update_xaxes(title="after layer", dtick=_step(len(counts) - 1), showgrid=False)
    figure.update_yaxes(
        title="length of a token, no unit",
        tickvals=np.log10(lengths),
        ticktext=[f"{length:g}" for length in lengths],
        range=[centres[some][0] - 0.05, centres[some][-1] + 0.05],
        showgrid=False,
    )
    low, high = edges[some.start], edges[some.stop]
    words = f"Lengths of tokens after {len(counts) - 1} layers, between {low:.3g} and {high:.3g}."
    return finish(figure, words, height=360)


def by_layer(
    lines: dict[str, np.ndarray], *, what: str, unit: str = "", first: int = 1, axis: str = "layer"
) -> go.Figure:
    """Lines over layers, the first of which has the number `first`; NaN is a gap."""
    figure = go.Figure()
    for (name, values), (colour, symbol, dash) in zip(lines.items(), LINES, strict=False):
        figure.add_scatter(
            x=first + np.arange(len(values)),
            y=values,
            name=name,
            mode="lines+markers",
            line=dict(color=colour, dash=dash),
            marker_symbol=symbol,
            hovertemplate=f"{name}: %{{y:.3g}} {unit}<extra></extra>",
        )
    figure.update_xaxes(title=axis)
    figure.update_yaxes(title=f"{what}, {unit}" if unit else what, rangemode="tozero")
    finish(figure, f"{what.capitalize()} by {axis}: {', '.join(lines)}.", height=340)
    return legend_above(figure, top=34) if len(lines) > 1 else figure


def reliability(
    confidence: np.ndarray, right: np.ndarray, count: np.ndarray, *, error: float
) -> go.Figure:
    """Accuracy against confidence, over equal bins of confidence.

    Parameters
    ----------
    confidence, right : sums over the pictures of each bin
    count : pictures of each bin
    error : expected calibration error
    """
    there = count > 0
    figure = go.Figure(
        go.Scatter(
            x=100 * confidence[there] / count[there],
            y=100 * right[there] / count[there],
            mode="lines+markers",
            customdata=count[there],
            hovertemplate="%{x:.1f} % sure, %{y:.1f} % right of %{customdata}<extra></extra>",
        )
    )
    figure.add_scatter(
        x=[0, 100], y=[0, 100], mode="lines", line=dict(color=GREY, dash="dash"), hoverinfo="skip"
    )
    figure.update_xaxes(title="confidence, %", range=[0, 101])
    figure.update_yaxes(title="accuracy, %", range=[0, 101])
    words = f"Accuracy against confidence; expected calibration error {as_percent(error)}."
    return finish(figure, words, height=360)


def page(profile: Any) -> str:
    """A profile as one HTML file, which loads nothing: figures, and how they came to be.

    Parameters
    ----------
    profile : `vitviz.profiling.Profile`
    """
    about = profile.about
    title = f"Profile of {about['model']} over {about['pictures']:,} pictures"
    return document(title, _facts(profile), _figures(profile))


def _facts(profile: Any) -> dict[str, str]:
    about = profile.about
    measured = about["pictures"] - about["skipped"]
    found = {
        "model": about["provenance"],
        "weights": "" if about["trained"] else "random weights",
        "sha256 of the weights": about["weights_sha256"],
        "pictures": f"{measured:,} measured, {about['skipped']:,} skipped",
        "input": " x ".join(map(str, about["preprocessing"]["input_size"])) + " pixels",
        "check of the attention": (
            "computed again from the attention that was read, the output of each layer differs "
            f"from the model's own by at most {about['proof_error']:.1e} of its largest number"
        ),
        "versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
    }
    if profile.accuracy is not None:
        first, five = profile.accuracy
        found["accuracy"] = (
            f"for {100 * first:.2f} % of {profile.labelled:,} labelled pictures the label is the "
            f"most probable class, for {100 * five:.2f} % one of the five most probable; expected "
            f"calibration error {100 * profile.calibration_error:.2f} %"
        )
    found["merged"] = about.get("note", "")
    found |= {f"not measured: {name}": why for name, why in about["refused_layers"].items()}
    return {name: text for name, text in found.items() if text}


#: Measures of heads: name, title, unit and words.
HEADS = (
    (
        "distance",
        "Attention distance",
        "px",
        "Mean distance from a patch to the patches that it attends to, in pixels of the model's "
        "input; attention to the prefix tokens does not count.",
    ),
    (
        "distance_paper",
        "Attention distance, prefix columns cut off",
        "px",
        "The same without sharing the attention to the prefix tokens among the patches: the more "
        "goes to the prefix tokens, the smaller it is.",
    ),
    (
        "entropy",
        "Attention entropy",
        "bit",
        "How evenly a token spreads its attention: 0 bits is all on one token, and each further "
        "bit doubles the number of tokens that share it evenly.",
    ),
    (
        "prefix_mass",
        "Share of the patches' attention on the prefix tokens",
        "share",
        "Prefix tokens are those that are no patches, such as CLS and registers.",
    ),
    (
        "self_mass",
        "Share of a patch's attention on itself",
        "share",
        "How much of its attention a patch gives to itself.",
    ),
    (
        "outlier_mass",
        "Share of the patches' attention on outliers",
        "share",
        "Outliers are patches whose token is at least five times as long as the median.",
    ),
    (
        "mutual_information",
        "Normalised mutual information of queries and keys",
        "share",
        "How much the query decides which keys are attended to: 0 % where all queries attend "
        "alike.",
    ),
)


def _figures(profile: Any) -> Iterator[tuple[str, str, go.Figure]]:
    """Title, words and figure of each measure that the profile has."""
    about = profile.about
    layers = about["layers"]
    heads = [layer["num_heads"] for layer in layers]
    bars = "Each dot is the mean of one head over the pictures; bars are one standard deviation."
    for name, title, unit, words in HEADS:
        mean = profile.mean(name)
        if np.isfinite(mean).any():
            figure = head_means(
                mean, profile.std(name), num_heads=heads, what=title.lower(), unit=unit
            )
            yield title, f"{words} {bars}", figure
    for kind in about["importance"]:
        changed, _ = profile.importance(kind)
        to = {"zero": "nothing", "mean": "its mean over pictures"}[kind]
        figure = head_means(
            changed.means, changed.sem, num_heads=heads, what="answers changed", unit="share"
        )
        words = (
            f"Share of the pictures whose answer changes when the head gives {to}. Bars are one "
            "standard error."
        )
        yield f"Importance of heads, muted to {kind}", words, figure
    sums = profile.state.sums
    known = [number for number in range(len(layers)) if f"offset/{number}" in sums]
    if known:
        maps = [np.nanmean(profile.offset_attention(number), axis=0) for number in known]
        names = [f"layer {number + 1}" for number in known]
        words = (
            "How much a query attends to a patch so many columns and rows away from it, as the "
            "mean over heads, queries and pictures. The query is in the middle of each map."
        )
        yield "Attention by offset", words, mean_offsets(maps, names)
    if "hsic" in sums:
        words = (
            "Linear CKA of all tokens, from 0 (unrelated) to 1 (alike), by the unbiased estimate "
            "over minibatches of 256 pictures. In two models that were tried it was within 0.01 of "
            "that of all pictures at once."
        )
        yield "Similarity of layers", words, layer_similarity(profile.cka())
    counts, edges = profile.norms
    words = "Length of the patches' tokens before the final LayerNorm; each column sums to 100 %."
    yield "Lengths of tokens", words, norm_histogram(counts[1], edges)
    words = (
        "Share of the patches whose token is at least five times as long as the median of the "
        "patches of its picture."
    )
    share = {"outliers": 100 * profile.outlier_share.means}
    yield (
        "Outliers",
        words,
        by_layer(share, what="share of patches", unit="%", first=0, axis="after layer"),
    )
    ratios = {}
    for branch, label in (("attention", "attention"), ("mlp", "MLP")):
        means = profile.skip_ratio(branch).means
        for part, name in enumerate(("prefix", "patches")):
            if np.isfinite(means[:, part]).any():
                ratios[f"{label}, {name}"] = means[:, part]
    if ratios:
        words = (
            "Mean length of a token before attention or MLP, divided by the length of what that "
            "branch adds to it: above 1 the skip connection outweighs the branch."
        )
        yield "Skip connections", words, by_layer(ratios, what="ratio of lengths", unit="no unit")
    shares = profile.token_components(min(10, len(profile.state.moments["tokens"].mean)))[2]
    words = (
        "How much of the variance of the patches' last tokens, over all pictures, lies along each "
        "principal component."
    )
    lines = {"components": 100 * shares}
    figure = by_layer(lines, what="explained variance", unit="%", axis="component")
    yield "Principal components of tokens", words, figure
    bins = profile.calibration
    if bins is not None:
        words = (
            "The labelled pictures in 15 equal bins of confidence, the probability of the answer. "
            "On the dashed line the model is right as often as it is sure."
        )
        yield "Calibration", words, reliability(**bins, error=profile.calibration_error)
