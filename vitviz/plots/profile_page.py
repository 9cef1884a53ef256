"""Build the page of a profile: how it was measured, and all its figures with explanations."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from ..common.language import format_count
from .profiles import (
    by_layer,
    confusion,
    head_means,
    layer_similarity,
    mean_offsets,
    norm_histogram,
    reliability,
)
from .template import document


def page(profile: Any) -> str:
    """Return the page of a `vitviz.profiling.Profile` as one HTML file that loads nothing."""
    about = profile.about
    title = f"Profile of {about['model']} over {format_count(about['pictures'], 'picture')}"
    return document(title, _facts(profile), _figures(profile), about)


#: Meaning of the outputs, by `Model.answers`.
_ANSWERS = {
    "classes": "{count:,} classes, one of which is the answer",
    "labels": "{count:,} labels, each with a probability of its own (sigmoid)",
    "values": "{count:,} values without a known unit; they are no probabilities",
    "embedding": "an embedding of the picture; there are no classes",
}


def _facts(profile: Any) -> dict[str, str]:
    about = profile.about
    total = about["pictures"] - about["skipped"]
    facts = {
        "model": about["provenance"],
        "weights": "" if about["trained"] else "random weights",
        "sha256 of the weights": about["weights_sha256"],
        "pictures": f"{total:,} measured, {about['skipped']:,} skipped",
        "input": " x ".join(map(str, about["preprocessing"]["input_size"])) + " pixels",
        "check of the attention": (
            "each layer's output was computed again from the captured attention; it differs from "
            f"the model's own by at most {about['proof_error']:.1e} of its largest number"
        ),
        "versions": ", ".join(f"{name} {number}" for name, number in about["versions"].items()),
        "date": about.get("date", ""),  # older profiles have no date
    }
    if "answers" in about:  # older profiles have none
        facts["answers"] = _ANSWERS[about["answers"]].format(count=about["num_classes"])
    if profile.accuracy is not None:
        first, five = profile.accuracy
        facts["accuracy"] = (
            f"for {100 * first:.2f} % of {format_count(profile.labelled, 'labelled picture')} the "
            f"label is the most probable class, for {100 * five:.2f} % one of the five most "
            f"probable; expected calibration error {100 * profile.calibration_error:.2f} %"
        )
        confusions = profile.top_confusions()
        facts["most frequent confusions"] = "; ".join(
            f"{label} answered with {answer}: {format_count(count, 'picture')}, "
            f"{100 * share:.1f} % of the label"
            for label, answer, count, share in confusions
        )
    facts["merged"] = about.get("note", "")
    facts |= {f"not measured: {name}": why for name, why in about["refused_layers"].items()}
    return {name: text for name, text in facts.items() if text}


MOST_CONFUSED = 50  # classes in the figure of confusions
#: Measures of heads: name, title, unit and explanation.
HEADS = (
    (
        "distance",
        "Attention distance",
        "px",
        "Mean distance from a patch to the patches that it attends to, in pixels of the model's "
        "input. Attention to the prefix tokens does not count.",
    ),
    (
        "distance_paper",
        "Attention distance, prefix columns cut off",
        "px",
        "As above, but attention to the prefix tokens counts as distance 0. The more attention "
        "they get, the smaller the value.",
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
        "Prefix tokens are tokens that are no patches, such as CLS and registers.",
    ),
    (
        "self_mass",
        "Share of a patch's attention on itself",
        "share",
        "How much of its attention a patch pays to itself.",
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
        "How much the query decides which keys get attention: 0 % if all queries attend alike.",
    ),
)


def _figures(profile: Any) -> Iterator[tuple[str, str, go.Figure]]:
    """Yield title, explanation and figure of each measure that the profile has."""
    about = profile.about
    layers = about["layers"]
    heads = [layer["num_heads"] for layer in layers]
    bars = (
        "Each dot is the mean of one head over the pictures; bars are one standard deviation "
        "(n - 1)."
    )
    for name, title, unit, words in HEADS:
        mean = profile.mean(name)
        if np.isfinite(mean).any():
            figure = head_means(
                mean, profile.std(name), num_heads=heads, what=title.lower(), unit=unit
            )
            yield title, f"{words} {bars}", figure
    for kind in about["importance"]:
        changed, _ = profile.importance(kind)
        to = {"zero": "zero", "mean": "its mean over pictures"}[kind]
        figure = head_means(
            changed.means, changed.sem, num_heads=heads, what="answers changed", unit="share"
        )
        words = (
            f"Share of the pictures whose answer changes when the head's output is {to}. Bars are "
            "one standard error."
        )
        yield f"Importance of heads, muted to {kind}", words, figure
    sums = profile.state.sums
    numbers = [number for number in range(len(layers)) if f"offset/{number}" in sums]
    if numbers:
        maps = [np.nanmean(profile.offset_attention(number), axis=0) for number in numbers]
        names = [f"layer {number + 1}" for number in numbers]
        words = (
            "Mean attention over heads, queries and pictures to the patch at each distance in "
            "columns and rows. The query is in the middle of each map."
        )
        yield "Attention by offset", words, mean_offsets(maps, names)
    if "hsic" in sums:
        words = (
            "Linear CKA of all tokens, from 0 (unrelated) to 1 (alike), estimated without bias "
            "over minibatches of 256 pictures. In two models that we tried, the estimate was "
            "within 0.01 of CKA over all pictures at once."
        )
        yield "Similarity of layers", words, layer_similarity(profile.cka())
    counts, edges = profile.norms
    words = (
        "Length of the patches' tokens before the final normalisation; each column sums to 100 %."
    )
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
    sinks = profile.sinks
    if sinks is not None and sinks["pictures"].any():
        words = (
            "Share of the pictures in which a layer has a no-op sink: a key that gets more than "
            "five times an equal share of attention and adds less than an equal share. And of "
            "those in which it has a broadcast: a key that adds more than five times an equal "
            "share to at least nine in ten queries."
        )
        looked = np.where(sinks["pictures"] > 0, sinks["pictures"], np.nan)
        lines = {
            "no-op sink": 100 * sinks["no_ops"] / looked,
            "broadcast": 100 * sinks["broadcasts"] / looked,
        }
        figure = by_layer(lines, what="share of pictures", unit="%")
        yield "No-op sinks and broadcasts", words, figure
    ratios = {}
    for branch, label in (("attention", "attention"), ("mlp", "MLP")):
        means = profile.skip_ratio(branch).means
        for part, name in enumerate(("prefix", "patches")):
            if np.isfinite(means[:, part]).any():
                ratios[f"{label}, {name}"] = means[:, part]
    if ratios:
        words = (
            "Norm of a token before attention or MLP, divided by the norm of that branch's output, "
            "averaged over tokens. Above 1, the skip connection outweighs the branch."
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
            "Labelled pictures in 15 equal bins of confidence, the probability of the answer. On "
            "the dashed line, accuracy equals confidence."
        )
        yield "Calibration", words, reliability(**bins, error=profile.calibration_error)
        if about["num_classes"] <= MOST_CONFUSED:
            words = (
                "For the pictures of each label, in a row, the share of each answer. The whole "
                "table, also of more classes, is in confusion.csv."
            )
            names = about["labels"] or [f"class {n}" for n in range(about["num_classes"])]
            yield "Confusion", words, confusion(profile.confusion(), names)
