"""The page Distance: mean attention distance of every head, and one head in detail."""

import json
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens import distance_behind
from vitviz.app.screens.distance_behind import Behind
from vitviz.app.screens.distance_survey import (
    VARIANTS,
    Survey,
    Variant,
    mean,
    of_picture,
    of_samples,
    spread,
)
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, pictures, profiles, results
from vitviz.app.shared.classroom import Question
from vitviz.app.shared.view import MEAN, View
from vitviz.app.widgets import prediction
from vitviz.app.widgets.data_table import Columns, Data, Table
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.checkpoints import assets
from vitviz.language import Message, mark, tr
from vitviz.text import findings
from vitviz.text import guesses as text
from vitviz.token_map import KINDS

if TYPE_CHECKING:
    from streamlit.delta_generator import DeltaGenerator

BESIDE = ("none", "recorded", "cnn", "both")
_ROWS = {"renormalised": mark("patches only, renormalised"), "paper": mark("as in the paper")}
_DOTS = "distance_dots"


def page(view: View) -> Data | None:
    refusal = view.acts.refusal
    if not refusal and not view.acts.all_to_all:
        if prediction.wanted():
            st.info(tr(text.NOT_COMPARED))
        return _by_layer(view)
    over, variant, behind = _controls(view)
    if refusal:
        st.warning(tr(refusal))
        return None
    from vitviz import ModelError

    guess = None
    if prediction.wanted():
        question = Question("distance", view.key, over)
        guess = prediction.guess_at(question)
        draw = partial(plots.guesses_by_layer, num_layers=view.acts.depth)
        if guess is None:
            prediction.ask_layer(question, tr(text.WHICH_IS_LOCAL), view.acts.depth, draw=draw)
            return Data(lambda: [], hidden=True)
    try:
        surveys = of_samples(view) if over == "samples" else of_picture(view.acts, view.key)
    except ModelError as error:  # on a sample; the layers of this picture are all valid
        st.warning(tr(error))
        return None
    survey = surveys[variant]
    equal = inspection.uniform_distance(view.acts.grid, view.acts.patch_size)
    if guess is not None:
        by_layer = mean(mean(survey.distance).T)
        prediction.tell(guess, partial(text.layer, by_layer))
    measured = (
        tr("On this picture")
        if over == "image"
        else tr("On {count} pictures", count=len(survey.distance))
    )
    finding(findings.distance(mean(survey.distance), equal), of=measured)
    dots, one = st.columns(2)
    with dots:
        _dots(view, survey, behind, guess.answer if guess else None)
        if guess is not None:
            prediction.of_class(guess.question, draw)
    with one:
        _one_head(view, survey, behind)
    if lessons.step() is None:
        distance_behind.tell(view, behind, mean(survey.distance), measured)
        _extremes(survey)
    measured_on = (
        tr("all {samples} sample pictures", samples=len(pictures.samples()))
        if over == "samples"
        else None
    )
    return Data(lambda: [_table(survey, variant, behind)], pictures=measured_on)


def _by_layer(view: View) -> Data:
    """The page for models whose layers have different tokens or windows: the dots alone."""
    found, equal = results.distances(view)
    num_heads = [len(heads) for heads in found]
    distance = np.full((len(found), max(num_heads)), np.nan)
    for layer, heads in enumerate(found):
        distance[layer, : len(heads)] = heads
    behind = distance_behind.choose(view, st.container(), VARIANTS[0])
    figure = plots.attention_distance(
        distance,
        np.zeros_like(distance),
        equal_sharing=equal,
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        num_heads=num_heads,
        behind=behind.drawn if behind else None,
    )
    show(figure, key=_DOTS, on_click=lambda: _go(distance.shape[1]))
    distance_behind.tell(view, behind, distance, tr("On this picture"))
    kinds = sorted({layer.kind for layer in view.acts.layers})
    st.markdown(
        tr(
            "Click a dot to choose its head. Compare a head with equal sharing in its own layer, "
            "the dashed line, and not with other layers. In this model {kinds}. Rows of A are "
            "renormalised over the patches.",
            kinds=tr(" and ").join(tr(KINDS[kind]) for kind in kinds),
        )
    )
    layers, heads = np.nonzero(np.arange(distance.shape[1]) < np.array(num_heads)[:, None])
    columns: Columns = {
        Message("layer"): layers + 1,
        Message("head"): heads + 1,
        Message("kind"): [view.acts.layers[layer].kind for layer in layers],
        Message("distance, px"): distance[layers, heads],
        Message("equal sharing, px"): equal[layers],
    }
    about = tr("Mean attention distance of each head between patches, in pixels of the input.")
    if behind:
        columns |= {name: values[layers, heads] for name, values in behind.columns.items()}
        about += f" {distance_behind.source(behind)}"
    return Data(lambda: [Table(about, columns)])


def _controls(view: View) -> tuple[str, Variant, Behind | None]:
    over = setting("over", ("image", "samples"), "image")
    variant = setting("variant", VARIANTS, VARIANTS[0])
    if lessons.step() is not None:
        if lessons.shows("over"):
            _measured_on(st.columns([3, 8])[0])
        return over, variant, None
    wide = [2, 3, 4, 2] if profiles.of_model(view.model) else [2, 3, 4]
    first, second, third, *fourth = st.columns(wide)
    heads = view.acts.layers[view.layer].num_heads
    first.selectbox(  # `head` is a shared setting, read in main.py
        tr("Head"),
        [MEAN, *range(1, heads + 1)],
        key="head",
        format_func=lambda head: (
            tr("mean of heads") if head == MEAN else tr("head {head}", head=head)
        ),
    )
    _measured_on(second)
    third.segmented_control(
        tr("Rows of A"),
        VARIANTS,
        key="variant",
        format_func=lambda name: tr(_ROWS[name]),
        width="stretch",
        required=True,
    )
    return over, variant, distance_behind.choose(view, fourth[0], variant) if fourth else None


def _measured_on(place: "DeltaGenerator") -> None:
    measured_on = {
        "image": tr("this picture"),
        "samples": tr("{samples} samples", samples=len(pictures.samples())),
    }
    place.segmented_control(
        tr("Measured on"),
        list(measured_on),
        key="over",
        format_func=lambda name: measured_on[name],
        width="stretch",
        required=True,
    )


@st.cache_data
def _record() -> dict[str, Any]:
    """Distances that were measured with a model which is not shipped."""
    file = assets() / "curves" / "distance_vit_s14.json"
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def _beside() -> list[str]:
    """What is drawn beside the model on screen: the recorded model, a CNN, both or none."""
    chosen = setting("beside", BESIDE, BESIDE[0])
    names = {
        "none": tr("nothing"),
        "recorded": tr("a recorded ViT-S/14"),
        "cnn": tr("a CNN"),
        "both": tr("both"),
    }
    if lessons.shows("beside"):
        st.segmented_control(
            tr("Show beside it"),
            BESIDE,
            key="beside",
            format_func=lambda name: names[name],
            width="stretch",
            required=True,
        )
    return ["recorded", "cnn"] if chosen == "both" else [chosen]


def _dots(view: View, survey: Survey, behind: Behind | None, guess: int | None) -> None:
    acts, record, beside = view.acts, _record(), _beside()
    figure = plots.attention_distance(
        mean(survey.distance),
        survey.prefix_mass.mean(axis=0),
        equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        spread=spread(survey.distance) if len(survey.distance) > 1 else None,
        behind=behind.drawn if behind else None,
        prefix_name=_prefix_name(view),
        recorded=(record["model"], np.array(record["distance"])) if "recorded" in beside else None,
        with_cnn="cnn" in beside,
    )
    if guess is not None:
        figure = plots.with_guessed_layer(figure, guess)
    show(figure, key=_DOTS, on_click=lambda: _go(acts.num_heads))
    if "recorded" in beside:
        st.markdown(tr("Squares: {record}", record=tr(record["about"])))
    if "cnn" in beside:
        st.markdown(
            tr(
                "Dotted line: how far a pixel sees along its row or column in a CNN of 3 x 3 "
                "kernels with stride 1, one pixel farther in each layer. A ViT head can "
                "attend to the whole picture in the first layer."
            )
        )


def _go(heads: int) -> None:
    """Select the head whose dot was clicked."""
    for point in st.session_state[_DOTS].selection.points:
        layer, head = divmod(point["point_index"], heads)
        settings.change(layer=layer + 1, head=head + 1)


def _extremes(survey: Survey) -> None:
    distance = mean(survey.distance)
    if not np.isfinite(distance).any():
        return
    named = []
    for index in (np.nanargmin(distance), np.nanargmax(distance)):
        layer, head = np.unravel_index(index, distance.shape)
        named.append(
            tr(
                "layer {layer}, head {head} ({distance:.1f} px)",
                layer=layer + 1,
                head=head + 1,
                distance=distance[layer, head],
            )
        )
    layers = ", ".join(f"{pixels:.1f}" for pixels in mean(distance.T))
    pictures = len(survey.distance)
    words = (
        tr("Mean ± standard deviation over {pictures} pictures. ", pictures=pictures)
        if pictures > 1
        else ""
    )
    st.markdown(
        tr(
            "{words}Click a dot to choose its head. Most local: {local}; most global: "
            "{far}. Mean of the heads from layer 1 to {depth}: {layers} px.",
            words=words,
            local=named[0],
            far=named[1],
            depth=len(distance),
            layers=layers,
        )
    )


def _one_head(view: View, survey: Survey, behind: Behind | None) -> None:
    """The chosen head, or the mean of heads: numbers, histogram of distances, map of offsets."""
    acts, here = view.acts, (view.layer, slice(None) if view.head is None else [view.head])
    name = tr("layer {layer}, ", layer=view.layer + 1) + (
        tr("mean of heads") if view.head is None else tr("head {head}", head=view.head + 1)
    )
    distance = mean(survey.distance[:, *here].T)  # one number a picture
    st.markdown(f"**{name[0].upper()}{name[1:]}**: {_facts(view, survey, distance, behind)}")
    by_distance, by_offset = st.columns(2)
    width = float(np.min(acts.patch_size))
    histogram = plots.distance_histogram(
        mean(survey.histogram[here]),
        inspection.uniform_histogram(acts.grid, acts.patch_size, bin_width=width),
        bin_width=width,
        mean=float(mean(distance)),
        name=name,
    )
    offsets = plots.offset_attention(
        mean(survey.offsets[here]), equal_share=1 / math.prod(acts.grid), name=name
    )
    with by_distance:
        show(histogram)
    with by_offset:
        show(offsets)


def _facts(view: View, survey: Survey, distance: np.ndarray, behind: Behind | None) -> str:
    """Distance, attention on the prefix tokens and entropy of the chosen head, in words."""
    here = (slice(None), view.layer, slice(None) if view.head is None else view.head)
    words = tr("it attends to no patch")
    if np.isfinite(distance).any():
        share = 100 * float(mean(distance)) / max(view.model.preprocess.input_size)
        deviation = f" ± {spread(distance):.1f}" if len(distance) > 1 else ""
        words = tr(
            "{distance:.1f}{deviation} px, {share:.0f} % of the side",
            distance=mean(distance),
            deviation=deviation,
            share=share,
        )
    if behind:
        words += tr(
            " (over {pictures} {usual} px)",
            pictures=profiles.count(behind.profile),
            usual=_usual(view, behind),
        )
    if view.prefix:
        mass = f"{100 * survey.prefix_mass[here].mean():.1f} %"
        words += tr("; {mass} on {tokens}", mass=mass, tokens=_prefix_name(view))
    tokens = len(view.prefix) + view.acts.grid[0] * view.acts.grid[1]
    entropy = survey.entropy[here].mean()
    return tr(
        "{words}, entropy {entropy:.1f} of {tokens:.1f} bits.",
        words=words,
        entropy=entropy,
        tokens=np.log2(tokens),
    )


def _usual(view: View, behind: Behind) -> str:
    """The distance of the chosen head, or of the layer's mean of heads, over the profile."""
    if view.head is None:  # by how much it varies is not known of the mean of heads
        return f"{mean(behind.pixels[view.layer]):.1f}"
    here = view.layer, view.head
    return f"{behind.pixels[here]:.1f} ± {behind.deviation[here]:.1f}"


def _table(survey: Survey, variant: Variant, behind: Behind | None) -> Table:
    distance, deviation = mean(survey.distance), spread(survey.distance)
    layers, heads = np.indices(distance.shape).reshape(2, -1) + 1
    columns: Columns = {
        Message("layer"): layers,
        Message("head"): heads,
        Message("distance, px"): distance.ravel(),
        Message("standard deviation, px"): deviation.ravel(),
        Message("on prefix tokens, %"): 100 * survey.prefix_mass.mean(axis=0).ravel(),
        Message("entropy, bits"): survey.entropy.mean(axis=0).ravel(),
    }
    if len(survey.distance) == 1:
        del columns["standard deviation, px"]
    about = tr(
        "Mean attention distance of each head, in pixels of the input; rows of A: {rows}.",
        rows=tr(_ROWS[variant]),
    )
    if behind:
        columns |= {name: values.ravel() for name, values in behind.columns.items()}
        about += f" {distance_behind.source(behind)}"
    return Table(about, columns)


def _prefix_name(view: View) -> str:
    return ", ".join(name.upper() for name in view.prefix) or tr("prefix tokens")
