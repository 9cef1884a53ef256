"""Draw the differences of two models over the same pictures, B minus A, and build their page."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..common.language import as_percent, format_count, tr
from .profile_page import HEADS
from .profiles import head_dots, layer_maps
from .template import GREY, SHARES, SIGNED, document, finish

_TITLES = {"px": "B minus A, pixels", "bit": "B minus A, bits", "share": "B minus A, % points"}


def head_differences(
    mean: np.ndarray,
    low: np.ndarray,
    high: np.ndarray,
    *,
    num_heads: Sequence[int],
    what: str,
    unit: str,
) -> go.Figure:
    """Draw the difference of a measure of every head, with its interval as error bars.

    Parameters
    ----------
    mean, low, high : ndarray of shape (layers, heads), in `unit`; NaN is a gap, or no interval
    num_heads : of each layer
    what : name of the measure, for the alt text
    unit : "px", "bit", or "share" (drawn in per cent)
    """
    factor = 100 if unit == "share" else 1
    y, down, up = factor * mean, factor * (mean - low), factor * (high - mean)
    down, up = np.nan_to_num(down), np.nan_to_num(up)
    error = dict(symmetric=False, array=up.ravel(), arrayminus=down.ravel())
    figure = head_dots(y, num_heads, error=error, value="%{y:+.3g}")
    figure.add_hline(y=0, line=dict(color=GREY, dash="dash"))
    ends = np.abs([y, y - down, y + up])
    reach = float(np.nanmax(ends, initial=0)) or 1.0
    figure.update_xaxes(title=tr("layer"), dtick=max(1, len(num_heads) // 12))
    figure.update_yaxes(title=_TITLES[unit], range=[-1.05 * reach, 1.05 * reach])
    heads = int(np.isfinite(mean).sum())
    intervals = interval_words(low, high)
    words = f"Difference in {what} of {heads} heads, B minus A{intervals and f': {intervals}'}."
    return finish(figure, words, height=340)


def interval_words(low: np.ndarray, high: np.ndarray) -> str:
    """Count the heads whose interval lies above 0 and below 0; empty without intervals."""
    heads = int((np.isfinite(low) & np.isfinite(high)).sum())
    above, below = int((low > 0).sum()), int((high < 0).sum())
    if not heads:
        return ""
    return f"the interval lies above 0 in {above} and below 0 in {below} of {heads} heads"


def model_similarity(cka: np.ndarray) -> go.Figure:
    """Draw linear CKA of the tokens of two models: ndarray (depth of A + 1, depth of B + 1)."""
    figure = go.Figure(
        go.Heatmap(
            z=cka,
            zmin=0,
            zmax=1,
            colorscale=SHARES,
            colorbar=dict(title="CKA, 0 to 1", thickness=12),
            hovertemplate="A after layer %{y}, B after layer %{x}: %{z:.3f}<extra></extra>",
        )
    )
    figure.update_xaxes(title="B, after layer", constrain="domain", showgrid=False)
    figure.update_yaxes(title="A, after layer", scaleanchor="x", constrain="domain", showgrid=False)
    ends = "unknown" if np.isnan(cka[-1, -1]) else f"{cka[-1, -1]:.2f}"
    words = f"CKA between {len(cka)} depths of A and {cka.shape[1]} of B; of the last two: {ends}."
    return finish(figure, words, height=420)


def signed_maps(
    maps: Sequence[np.ndarray], names: Sequence[str], *, offsets: bool, what: str
) -> go.Figure:
    """Draw differences of maps, one map per layer: red where B has more, blue where A has more.

    Each map has its own scale, symmetric around 0; its largest magnitude stands above it.

    Parameters
    ----------
    maps : ndarrays of shape (rows, cols), shares of 1; NaN is a gap
    names : of the layers
    offsets : whether rows and columns are offsets from the query in the middle, or patches
    what : name of the maps, for the alt text
    """
    largest = [float(np.nanmax(np.abs(values), initial=0)) for values in maps]
    return layer_maps(
        maps,
        [f"{name}<br>±{as_percent(most)}" for name, most in zip(names, largest, strict=True)],
        f"Difference in {what} in {len(maps)} layers, at most {as_percent(max(largest))}.",
        ranges=[(-(most or 0.01), most or 0.01) for most in largest],
        colours=SIGNED,
        value="%{z:+.2f} % points",
        offsets=offsets,
    )


def page(comparison: Any) -> str:
    """Return the page of a `vitviz.profiling.Comparison` as one HTML file that loads nothing."""
    names = [one.about["model"] for one in (comparison.first, comparison.second)]
    title = f"{names[0]} (A) and {names[1]} (B) over {format_count(comparison.pictures, 'picture')}"
    return document(title, _facts(comparison), _figures(comparison), comparison.about)


def _facts(comparison: Any) -> dict[str, str]:
    facts = {}
    for name, one in (("A", comparison.first), ("B", comparison.second)):
        random = "" if one.about["trained"] else ", random weights"
        facts[name] = f"{one.about['provenance']}{random}"
        facts[f"sha256 of the weights of {name}"] = one.about["weights_sha256"]
    facts["pictures"] = f"{comparison.pictures:,} compared, {len(comparison.left_out):,} left out"
    for name, why in [*comparison.left_out.items()][:10]:
        facts[f"left out: {name}"] = why
    if len(comparison.left_out) > 10:
        facts["left out, too"] = f"{len(comparison.left_out) - 10:,} more; run.json lists them"
    facts |= _answer_facts(comparison.answers)
    kinds = {"heads": "heads", "maps": "maps", "cls": "CLS", "cka": "CKA", "answers": "answers"}
    for key, why in comparison.not_compared.items():
        facts[f"not compared: {kinds[key]}"] = why
    for name, one in (("A", comparison.first), ("B", comparison.second)):
        for layer, why in one.about["refused_layers"].items():
            facts[f"not measured in {name}: {layer}"] = why
    error = max(one.about["proof_error"] for one in (comparison.first, comparison.second))
    facts["check of the attention"] = (
        "each layer's output was computed again from the captured attention; it differs from the "
        f"models' own by at most {error:.1e} of its largest number"
    )
    versions = comparison.about["versions"]
    facts["versions"] = ", ".join(f"{name} {number}" for name, number in versions.items())
    facts["date"] = comparison.about["date"]
    return facts


def _answer_facts(answers: Any) -> dict[str, str]:
    if answers is None:
        return {}
    facts = {}
    if answers.agreement is not None:
        facts["answers"] = (
            f"the same for {100 * answers.agreement:.2f} % of "
            f"{format_count(answers.pictures, 'picture')}"
        )
    if answers.accuracy is not None:
        first, second = (100 * share for share in answers.accuracy)
        interval = ""
        if answers.interval is not None:
            low, high = (100 * end for end in answers.interval)
            interval = f" (95 % interval {low:+.2f} to {high:+.2f})"
        facts["accuracy"] = (
            f"A {first:.2f} %, B {second:.2f} % of "
            f"{format_count(answers.labelled, 'labelled picture')}; B minus "
            f"A {100 * answers.difference:+.2f} points{interval}; A alone is right "
            f"{format_count(answers.only_first, 'time')}, B alone "
            f"{format_count(answers.only_second, 'time')} (McNemar's exact test: "
            f"p = {answers.p_value:.2g})"
        )
    return facts


def _figures(comparison: Any) -> Iterator[tuple[str, str, go.Figure]]:
    """Yield title, explanation and figure of everything that can be compared."""
    layers = comparison.first.about["layers"]
    if "heads" not in comparison.not_compared:
        yield from _head_figures(comparison, [layer["num_heads"] for layer in layers])
    if "cka" not in comparison.not_compared:
        words = (
            "Linear CKA between all tokens after each layer of A and of B, from 0 (unrelated) to 1 "
            "(alike), estimated without bias over minibatches of 256 pictures."
        )
        yield "Similarity of layers", words, model_similarity(comparison.cka())
    if "maps" in comparison.not_compared:
        return
    sums = [one.state.sums for one in (comparison.first, comparison.second)]
    kinds = (
        (
            "offset",
            "Attention by offset",
            "attention by offset",
            comparison.offset_difference,
            "How much more B attends to the patch at each distance from the query, which is in the "
            "middle of each map",
        ),
        (
            "cls",
            "Attention from CLS",
            "attention from CLS",
            comparison.cls_difference,
            "How much more CLS attends to the patch at this place in B",
        ),
    )
    for key, title, what, difference, words in kinds:
        numbers = [n for n in range(len(layers)) if all(f"{key}/{n}" in each for each in sums)]
        if numbers and key not in comparison.not_compared:
            maps = [difference(number).mean(axis=0) for number in numbers]
            names = [f"layer {number + 1}" for number in numbers]
            text = (
                f"{words}, as the mean over heads and pictures. Red: B has more; blue: A has more. "
                "Each map has its own scale, which stands above it."
            )
            yield title, text, signed_maps(maps, names, offsets=key == "offset", what=what)


def _head_figures(
    comparison: Any, num_heads: Sequence[int]
) -> Iterator[tuple[str, str, go.Figure]]:
    bars = (
        "Each dot is one head's mean of B minus A over the pictures. Bars are 95 % intervals of "
        "the paired difference. If nothing differs, 5 of 100 intervals miss 0 by chance."
    )
    for name, title, unit, words in HEADS:
        if name in ("distance", "entropy", "prefix_mass", "self_mass", "outlier_mass"):
            difference = comparison.difference(name)
            if np.isfinite(difference.means).any():
                low, high = difference.interval()
                figure = head_differences(
                    difference.means, low, high, num_heads=num_heads, what=title.lower(), unit=unit
                )
                here = interval_words(low, high)
                yield title, f"{words} {bars}{here and f' Here {here}.'}", figure
