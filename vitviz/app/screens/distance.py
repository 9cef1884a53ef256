"""The page Distance: mean attention distance of every head, and one head in detail."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import records, settings
from vitviz.app.shared import pictures, results
from vitviz.app.shared.classroom import PredictionQuestion
from vitviz.app.shared.view import View, model_key
from vitviz.app.widgets import lesson, prediction, profiles
from vitviz.app.widgets.control import choose, draw_head_menu
from vitviz.app.widgets.counts import COUNTS, choose_counts
from vitviz.app.widgets.data_table import Columns, Data, Table, columns_of, head_columns
from vitviz.app.widgets.experiment import Pending, find_result, run_button, run_pending
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import middle, patch_number
from vitviz.common.language import Message, capitalize, mark, patch_name, tr, tr_md
from vitviz.inspection.attention import Variant
from vitviz.inspection.inputs import stack_layers
from vitviz.plots.maps import query_map
from vitviz.text import findings
from vitviz.text import guesses as text
from vitviz.web.token_map import MAP_KINDS

if TYPE_CHECKING:
    from vitviz import Activations, Profile
    from vitviz.activations.activations import Of
    from vitviz.intervention import Progress

#: By layer, from 0, what was found there; a layer in which it cannot be told has its reason.
SinksByLayer = dict[int, "inspection.Sinks | Message"]
#: What is marked above a layer, by its name in `inspection.Sinks`.
_SINKS = {"no_ops": mark("no-op sink"), "broadcasts": mark("broadcast")}
_ROWS: dict[Variant, str] = {
    "renormalised": mark("patches only, renormalised"),
    "paper": mark("as commonly implemented"),  # no text of the paper says how CLS was treated
}
VARIANTS = tuple(_ROWS)


@dataclass(frozen=True, eq=False)
class Behind:
    """Every head over the pictures of a profile.

    Attributes
    ----------
    profile : Profile
    pixels, deviation : ndarray of shape (layers, heads), pixels; NaN where there is none
        Mean and sample standard deviation (n - 1) of the distance over the pictures.
    """

    profile: "Profile"
    pixels: np.ndarray
    deviation: np.ndarray

    @property
    def series(self) -> tuple[str, np.ndarray, np.ndarray]:
        return profiles.describe_profile_size(self.profile), self.pixels, self.deviation

    @property
    def columns(self) -> dict[str, np.ndarray]:
        """Columns of the table, by their headings."""
        over = profiles.count_pictures(self.profile)
        return {
            Message("mean over {count:,} pictures, px", count=over): self.pixels,
            Message(
                "standard deviation (n - 1) over {count:,} pictures, px", count=over
            ): self.deviation,
        }


@dataclass(frozen=True, eq=False)
class Survey:
    """The measurements of all heads, on one picture or several.

    Attributes
    ----------
    distance, prefix_mass, entropy : ndarray of shape (pictures, layers, heads)
        Pixels, shares of 1 and bits. NaN for heads that a layer lacks.
    histogram : ndarray of shape (layers, heads, bins)
        Shares of 1, the mean over pictures.
    offsets : ndarray of shape (layers, heads, 2 rows - 1, 2 columns - 1)
        Shares of 1, the mean over pictures.
    """

    distance: np.ndarray
    prefix_mass: np.ndarray
    entropy: np.ndarray
    histogram: np.ndarray
    offsets: np.ndarray


Surveys = dict[Variant, Survey]


@lesson.part("profile")
def choose_reference(view: View, variant: Variant) -> Behind | None:
    """Return what stands behind the dots, by a menu where the model has a profile."""
    profile = profiles.choose_profile(view, "settings", tr("Behind the dots"))
    if profile is None:
        return None
    measure = "distance" if variant == "renormalised" else "distance_paper"
    return Behind(profile, profile.mean(measure), profile.std(measure))


@lesson.part("profile")
def compare_with_reference(
    view: View, behind: Behind | None, distance: np.ndarray, subject: str
) -> None:
    """Say what the bars are, and how far from them the heads lie on what was measured."""
    if behind is None:
        if reason := profiles.explain_none(view.model):
            st.text(reason)  # plain: the names in it are not ours
        return
    words = tr_md(
        "Blue bars: mean ± standard deviation (n − 1) of each head over {profile}.",
        profile=profiles.describe(behind.profile),
    )
    away = np.abs(distance - behind.pixels)
    if np.isfinite(away).any():
        layer, head = np.unravel_index(np.nanargmax(away), away.shape)
        words += tr_md(
            " {measured} the heads are {mean:.1f} px from that mean on average, and "
            "{most:.1f} px at most (layer {layer}, head {head}).",
            measured=subject,
            mean=np.nanmean(away),
            most=away[layer, head],
            layer=layer + 1,
            head=head + 1,
        )
    st.markdown(words)


def reference_source(behind: Behind) -> str:
    over = profiles.describe_profile_size(behind.profile)
    return tr(
        "What is over {over} comes from {profile}.",
        over=over,
        profile=profiles.profile_provenance(behind.profile),
    )


def page(view: View) -> Data | None:
    refusal = view.acts.refusal
    if not refusal and not view.acts.all_to_all:
        if prediction.is_on():
            st.info(tr(text.NOT_COMPARED))
        return _by_layer(view)
    over, variant, behind = _controls(view)
    if refusal:
        st.warning(tr_md(refusal))
        return None
    from vitviz import ModelError

    guess = None
    if prediction.is_on():
        question = PredictionQuestion("distance", view.key, over)
        guess = prediction.current_guess(question)
        draw = partial(plots.guesses_by_layer, num_layers=view.acts.depth)
        if guess is None:
            prediction.ask_layer(question, tr(text.WHICH_IS_LOCAL), view.acts.depth, draw=draw)
            return Data(lambda: [], hidden=True)
    try:
        surveys = survey_samples(view) if over == "samples" else of_picture(view.acts, view.key)
    except ModelError as error:  # on a sample; the layers of this picture are all valid
        st.warning(tr_md(error))
        return None
    survey = surveys[variant]
    equal = inspection.uniform_distance(view.acts.grid, view.acts.patch_size)
    if guess is not None:
        by_layer = mean(mean(survey.distance).T)
        prediction.draw_verdict(guess, partial(text.describe_layer, by_layer))
    subject = (
        tr("On this picture")
        if over == "image"
        else tr("On {count} pictures", count=len(survey.distance))
    )
    renormalised = variant == "renormalised" or not view.prefix
    finding = findings.distance(mean(survey.distance), equal, renormalised=renormalised)
    draw_finding(finding, of=subject)
    dots, one = places().stage.columns([7, 5])
    counts = choose_counts(view)
    sinks: SinksByLayer | None = find_result(view, "sinks of layers") if over == "image" else None
    with dots:
        _dots(view, survey, behind, sinks, guess.answer if guess else None)
        if guess is not None:
            prediction.draw_class_guesses(guess.question, draw)
    with one:
        _map(view, counts)
    _one_head(view, survey, behind)
    compare_with_reference(view, behind, mean(survey.distance), subject)
    _extremes(survey)
    if over == "image":
        run_pending(_draw_sinks(view, sinks, behind))
    measured_on = (
        tr("all {samples} sample pictures", samples=len(pictures.samples()))
        if over == "samples"
        else None
    )
    return Data(
        lambda: [
            _table(survey, variant, behind),
            *_sinks_tables(view, sinks or {}),
        ],
        pictures=measured_on,
    )


def _by_layer(view: View) -> Data:
    """Draw the page for models whose layers have different tokens or windows: the dots alone."""
    by_layer, equal = results.distances(view)
    num_heads = [len(heads) for heads in by_layer]
    distance = stack_layers(by_layer)
    behind = choose_reference(view, VARIANTS[0])
    figure = plots.attention_distance(
        distance,
        np.zeros_like(distance),
        equal_sharing=equal,
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        num_heads=num_heads,
        behind=behind.series if behind else None,
    )
    with places().stage:
        show_figure(figure, key="distance_dots", on_click=partial(_go, distance.shape[1]))
    compare_with_reference(view, behind, distance, tr("On this picture"))
    kinds = sorted({layer.kind for layer in view.acts.layers})
    st.markdown(
        tr(
            "Click a dot to choose its head. Compare a head with equal sharing in its own layer, "
            "the dashed line, and not with other layers. In this model {kinds}. Rows of A are "
            "renormalised over the patches.",
            kinds=tr(" and ").join(tr(MAP_KINDS[kind]) for kind in kinds),
        )
    )
    layers, heads = np.nonzero(np.arange(distance.shape[1]) < np.array(num_heads)[:, None])
    columns: Columns = {
        Message("layer"): layers + 1,
        Message("head"): heads + 1,
        Message("kind"): [Message(MAP_KINDS[view.acts.layers[layer].kind]) for layer in layers],
        Message("distance, px"): distance[layers, heads],
        Message("equal sharing, px"): equal[layers],
    }
    about = tr("Mean attention distance of each head between patches, in pixels of the input.")
    if behind:
        columns |= {name: values[layers, heads] for name, values in behind.columns.items()}
        about += f" {reference_source(behind)}"
    return Data(lambda: [Table(about, columns)])


def _controls(view: View) -> tuple[str, Variant, Behind | None]:
    draw_head_menu(view.acts.layers[view.layer].num_heads)
    sources = {
        "image": tr("this picture"),
        "samples": tr("{samples} samples", samples=len(pictures.samples())),
    }
    over = choose(
        "over",
        tr("Measured on"),
        sources,
        "image",
        "settings",
    )
    variant = choose("variant", tr("Rows of A"), _ROWS, VARIANTS[0], "settings")
    return over, variant, choose_reference(view, variant)


def _choose_comparisons() -> list[str]:
    """Return what is drawn beside the model on screen: the recorded model, a CNN, both or none."""
    names = {
        "none": tr("nothing"),
        "recorded": tr("a recorded ViT-S/14"),
        "cnn": tr("a CNN"),
        "both": tr("both"),
    }
    chosen = choose("beside", tr("Show beside it"), names, "none", "settings")
    return ["recorded", "cnn"] if chosen == "both" else [chosen]


def _dots(
    view: View, survey: Survey, behind: Behind | None, sinks: SinksByLayer | None, guess: int | None
) -> None:
    acts, record, beside = view.acts, records.read("distance_vit_s14"), _choose_comparisons()
    marks = {
        tr(name): [layer for layer, one in (sinks or {}).items() if getattr(one, kind, ())]
        for kind, name in _SINKS.items()
    }
    figure = plots.attention_distance(
        mean(survey.distance),
        np.nan_to_num(survey.prefix_mass.mean(axis=0)),
        equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        num_heads=[layer.num_heads for layer in acts.layers],
        spread=spread(survey.distance) if len(survey.distance) > 1 else None,
        behind=behind.series if behind else None,
        prefix_name=_prefix_name(view),
        recorded=(record["model"], np.array(record["distance"])) if "recorded" in beside else None,
        with_cnn="cnn" in beside,
        sinks=marks,
    )
    if guess is not None:
        figure = plots.with_guessed_layer(figure, guess)
    heads = survey.distance.shape[-1]
    show_figure(figure, key="distance_dots", on_click=partial(_go, heads))
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


def _go(heads: int, points: Points) -> None:
    """Select the head whose dot was clicked."""
    for point in points:
        if point.get("curve_number", 0):
            continue  # a mark, or a dot of another model
        layer, head = divmod(point["point_index"], heads)
        settings.change(layer=layer + 1, head=head + 1)


@lesson.part("sinks")
def _draw_sinks(view: View, sinks: SinksByLayer | None, behind: Behind | None) -> Pending | None:
    """Name no-op sinks and broadcasts, or draw the button that looks for them."""
    from vitviz import ModelError

    if behind is not None and behind.profile.sinks is not None:
        st.markdown(" ".join(findings.sinks_over_pictures(behind.profile.sinks)))
    if sinks is not None:
        by_layer = {layer + 1: one for layer, one in sinks.items() if not isinstance(one, Message)}
        refusals = {tr_md(one) for one in sinks.values() if isinstance(one, Message)}
        if by_layer:
            sentences = findings.sinks_by_layer(by_layer, view.grid[1], view.prefix)
            lines = zip("▽☆", sentences, strict=True)
            st.markdown("\n".join(f"- {sign} {sentence}" for sign, sentence in lines))
        for words in sorted(refusals):
            st.info(words)
        return None

    def make(progress: "Progress") -> SinksByLayer:
        by_layer: SinksByLayer = {}
        for layer in range(view.acts.depth):
            progress(layer, view.acts.depth)
            try:
                by_layer[layer] = results.find_sinks(view, layer)
            except ModelError as error:
                by_layer[layer] = error.message
        return by_layer

    return run_button(view, tr("Find no-op sinks and broadcasts"), ("sinks of layers",), make)


@lesson.part("extremes")
def _extremes(survey: Survey) -> None:
    distance = mean(survey.distance)
    if not np.isfinite(distance).any():
        return
    names = []
    for index in (np.nanargmin(distance), np.nanargmax(distance)):
        layer, head = np.unravel_index(index, distance.shape)
        names.append(
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
        tr("Mean ± standard deviation (n − 1) over {pictures} pictures. ", pictures=pictures)
        if pictures > 1
        else ""
    )
    st.markdown(
        tr(
            "{words}Click a dot to choose its head. Most local: {local}; most global: "
            "{far}. Mean of the heads from layer 1 to {depth}: {layers} px.",
            words=words,
            local=names[0],
            far=names[1],
            depth=len(distance),
            layers=layers,
        )
    )


def _map(view: View, counts: "Of") -> None:
    """Draw the map of the chosen head on the picture: of the query, or of the patch in the middle.

    A click on a patch makes it the query.
    """
    cols = view.grid[1]
    query = view.query_patch or middle(view.grid)
    token = len(view.prefix) + patch_number(view.grid, query)
    shares = results.row_shares(view, counts, view.layer)[:, token, len(view.prefix) :]
    shares = view.of_head(shares.reshape(-1, *view.grid))
    image, crop = results.reduced_photo(view), view.acts.crop
    left, top, right, bottom = crop
    if image.width > image.height:  # of a wide picture what the model saw alone
        image = image.crop((round(left), round(top), round(right), round(bottom)))
        crop = (0.0, 0.0, right - left, bottom - top)
    head, patch = capitalize(view.place), patch_name(*query)
    name = tr("{head}: attention from the patch at {patch}", head=head, patch=patch)
    if counts != "weights":
        what = tr(COUNTS[counts])
        name = tr("{head}: {what}, of the patch at {patch}", head=head, what=what, patch=patch)

    def choose_patch(points: Points) -> None:
        row, col = divmod(points[0]["point_index"], cols)
        settings.change(query=f"{row + 1}.{col + 1}")

    words = tr("**{head}**, from {patch}; click another patch", head=head, patch=patch)
    if counts != "weights":
        words += f" · {tr(COUNTS[counts])}"
    st.markdown(words)
    show_figure(
        query_map(shares, image, crop=crop, query=query, name=name),
        key="distance_map",
        on_click=choose_patch,
    )


def _one_head(view: View, survey: Survey, behind: Behind | None) -> None:
    """Draw the chosen head or the mean of heads: numbers, histogram, map of offsets."""
    acts, here = view.acts, (view.layer, slice(None) if view.head is None else [view.head])
    name = view.place
    distance = mean(survey.distance[:, *here].T)  # one number a picture
    st.markdown(f"**{capitalize(name)}**: {_facts(view, survey, distance, behind)}")
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
    for column, figure in zip(st.columns(2), (histogram, offsets), strict=True):
        with column:
            show_figure(figure)


def _facts(view: View, survey: Survey, distance: np.ndarray, behind: Behind | None) -> str:
    """Describe distance, attention on the prefix tokens and entropy of the chosen head."""
    heads = range(view.acts.layers[view.layer].num_heads) if view.head is None else [view.head]
    here = (slice(None), view.layer, heads)
    words = tr("it attends to no patch")
    if np.isfinite(distance).any():
        share = 100 * float(mean(distance)) / max(view.model.preprocess.input_size)
        deviation = f" ± {spread(distance):.1f}" if np.isfinite(distance).sum() > 1 else ""
        words = tr(
            "{distance:.1f}{deviation} px, {share:.0f} % of the side",
            distance=mean(distance),
            deviation=deviation,
            share=share,
        )
    if behind:
        words += tr(
            " (over {pictures} {usual} px)",
            pictures=profiles.describe_profile_size(behind.profile),
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
    """Say the distance of the chosen head, or of the layer's mean of heads, over the profile."""
    if view.head is None:  # by how much it varies is not known of the mean of heads
        return f"{mean(behind.pixels[view.layer]):.1f}"
    here = view.layer, view.head
    return f"{behind.pixels[here]:.1f} ± {behind.deviation[here]:.1f}"


def _table(survey: Survey, variant: Variant, behind: Behind | None) -> Table:
    distance, deviation = mean(survey.distance), spread(survey.distance)
    columns: Columns = {
        **head_columns(distance.shape),
        Message("distance, px"): distance.ravel(),
        Message("standard deviation (n - 1), px"): deviation.ravel(),
        Message("on prefix tokens, %"): 100 * survey.prefix_mass.mean(axis=0).ravel(),
        Message("entropy, bits"): survey.entropy.mean(axis=0).ravel(),
    }
    if len(survey.distance) == 1:
        del columns["standard deviation (n - 1), px"]
    about = tr(
        "Mean attention distance of each head, in pixels of the input; rows of A: {rows}.",
        rows=tr(_ROWS[variant]),
    )
    if behind:
        columns |= {name: values.ravel() for name, values in behind.columns.items()}
        about += f" {reference_source(behind)}"
    exists = np.isfinite(survey.entropy[0]).ravel()
    return Table(about, {name: np.asarray(values)[exists] for name, values in columns.items()})


def _sinks_tables(view: View, sinks: SinksByLayer) -> list[Table]:
    """Return the table of the keys that were found, or none."""
    rows: list[tuple[object, ...]] = []
    for layer, one in sinks.items():
        for kind, name in _SINKS.items():
            for token in getattr(one, kind, ()):
                patch = token - len(view.prefix)
                row, col = divmod(patch, view.grid[1])
                place = (row + 1, col + 1) if patch >= 0 else (None, None)
                label = Message("patch") if patch >= 0 else view.prefix[token].upper()
                rows.append((layer + 1, Message(name), label, *place))
    names = (
        Message("layer"),
        Message("kind"),
        Message("token"),
        Message("row"),
        Message("column"),
    )
    if not rows:
        return []
    return [Table(tr("Keys that are no-op sinks or broadcasts."), columns_of(names, rows))]


def _prefix_name(view: View) -> str:
    return ", ".join(name.upper() for name in view.prefix) or tr("prefix tokens")


def of_picture(acts: "Activations", key: Sequence[Hashable]) -> Surveys:
    """Measure both variants of the distance on one picture, cached."""
    return results.compute((*key, "distances"), lambda: _measure(acts))


def survey_samples(view: View) -> Surveys:
    """Measure both variants of the distance on all sample pictures, cached."""

    def make() -> Surveys:
        key = model_key(view.model)
        surveys = [
            of_picture(acts, (*key, picture.digest))
            for picture, acts in results.of_samples(view.model)
        ]
        return {variant: _stack([one[variant] for one in surveys]) for variant in VARIANTS}

    key = (*view.key[:2], "distances", "samples")
    return results.capture_cache().get(key, make)


def _measure(acts: "Activations") -> Surveys:
    """Measure layer by layer, holding one attention matrix at a time."""
    layers = [_measure_layer(acts, attention) for attention in acts.attention_layers()]
    surveys: Surveys = {}
    for variant in VARIANTS:
        by_measure = zip(*(layer[variant] for layer in layers), strict=True)
        distance, mass, entropy, histogram, offsets = map(stack_layers, by_measure)
        surveys[variant] = Survey(distance[None], mass[None], entropy[None], histogram, offsets)
    return surveys


def _measure_layer(
    acts: "Activations", attention: np.ndarray
) -> dict[Variant, tuple[np.ndarray, ...]]:
    """Measure one layer on one picture: the arrays of a `Survey`, without an axis of layers."""
    grid, patch, prefix = acts.grid, acts.patch_size, acts.num_prefix_tokens
    mass = inspection.prefix_mass([attention], num_prefix_tokens=prefix)
    entropy = inspection.attention_entropy([attention])
    width = float(np.min(patch))
    least = math.ceil(math.prod(grid) / 16)  # the mean of a few queries in a corner says little
    by_variant: dict[Variant, tuple[np.ndarray, ...]] = {}
    for variant in VARIANTS:
        geometry: dict[str, Any] = dict(grid=grid, num_prefix_tokens=prefix, variant=variant)
        distance = inspection.attention_distance([attention], patch_size=patch, **geometry)
        histogram = inspection.distance_histogram(
            attention, patch_size=patch, bin_width=width, **geometry
        )
        offsets = inspection.offset_attention(attention, min_queries=least, **geometry)
        offsets = offsets.astype(np.float32)
        by_variant[variant] = distance[0], mass[0], entropy[0], histogram, offsets
    return by_variant


def _stack(surveys: Sequence[Survey]) -> Survey:
    return Survey(
        distance=np.concatenate([one.distance for one in surveys]),
        prefix_mass=np.concatenate([one.prefix_mass for one in surveys]),
        entropy=np.concatenate([one.entropy for one in surveys]),
        histogram=mean(np.stack([one.histogram for one in surveys])),
        offsets=mean(np.stack([one.offsets for one in surveys])),
    )


def mean(values: np.ndarray) -> np.ndarray:
    """Return the mean over the first axis, ignoring NaN; NaN where all are."""
    return np.ma.filled(np.ma.masked_invalid(values).mean(axis=0), np.nan)


def spread(values: np.ndarray) -> np.ndarray:
    """Return the sample standard deviation (n - 1) over the first axis, as in a profile.

    NaN counts as no value, and is returned where there are fewer than two.
    """
    from vitviz.profiling import Moments

    return Moments.of(values).std
