"""The page Distance: mean attention distance of every head, and one head in detail."""

import json
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import MEAN, View, model_key
from vitviz.app.widgets.data_table import Data, Table
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.checkpoints import assets
from vitviz.text import findings
from vitviz.token_map import KINDS

if TYPE_CHECKING:
    from vitviz import Activations

Variant = Literal["renormalised", "paper"]
VARIANTS: tuple[Variant, ...] = ("renormalised", "paper")
BESIDE = ("none", "recorded", "cnn", "both")
_ROWS = {"renormalised": "patches only, renormalised", "paper": "as in the paper"}
_DOTS = "distance_dots"


@dataclass(frozen=True, eq=False)
class Survey:
    """The measurements of all heads, on one picture or several.

    Attributes
    ----------
    distance, prefix_mass, entropy : ndarray of shape (pictures, layers, heads)
        Pixels, shares of 1 and bits.
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

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


Surveys = dict[Variant, Survey]


def page(view: View) -> Data | None:
    refusal = view.acts.refusal
    if not refusal and not view.acts.all_to_all:
        return _by_layer(view)
    over, variant = _controls(view)
    if refusal:
        st.warning(refusal)
        return None
    from vitviz import ModelError

    try:
        surveys = _of_samples(view) if over == "samples" else _of_picture(view, view.acts, view.key)
    except ModelError as error:  # on a sample; the layers of this picture are all valid
        st.warning(str(error))
        return None
    survey = surveys[variant]
    equal = inspection.uniform_distance(view.acts.grid, view.acts.patch_size)
    measured = "On this picture" if over == "image" else f"On {len(survey.distance)} pictures"
    finding(findings.distance(_mean(survey.distance), equal), of=measured)
    dots, one = st.columns(2)
    with dots:
        _dots(view, survey)
    with one:
        _one_head(view, survey)
    _extremes(survey)
    measured_on = f"all {len(pictures.samples())} sample pictures" if over == "samples" else None
    return Data(lambda: [_table(survey, variant)], pictures=measured_on)


def _by_layer(view: View) -> Data:
    """The page for models whose layers have different tokens or windows: the dots alone."""
    found, equal = results.distances(view)
    num_heads = [len(heads) for heads in found]
    distance = np.full((len(found), max(num_heads)), np.nan)
    for layer, heads in enumerate(found):
        distance[layer, : len(heads)] = heads
    figure = plots.attention_distance(
        distance,
        np.zeros_like(distance),
        equal_sharing=equal,
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        num_heads=num_heads,
    )
    show(figure, key=_DOTS, on_click=lambda: _go(distance.shape[1]))
    kinds = sorted({layer.kind for layer in view.acts.layers})
    st.markdown(
        "Click a dot to choose its head. Compare a head with equal sharing in its own layer, the "
        "dashed line, and not with other layers. In this model "
        f"{' and '.join(KINDS[kind] for kind in kinds)}. Rows of A are renormalised over the "
        "patches."
    )
    layers, heads = np.nonzero(np.arange(distance.shape[1]) < np.array(num_heads)[:, None])
    columns: dict[str, np.ndarray | list[str]] = {
        "layer": layers + 1,
        "head": heads + 1,
        "kind": [view.acts.layers[layer].kind for layer in layers],
        "distance, px": distance[layers, heads],
        "equal sharing, px": equal[layers],
    }
    about = "Mean attention distance of each head between patches, in pixels of the input."
    return Data(lambda: [Table(about, columns)])


def _controls(view: View) -> tuple[str, Variant]:
    first, second, third = st.columns([2, 3, 4])
    heads = view.acts.layers[view.layer].num_heads
    first.selectbox(  # `head` is a shared setting, read in main.py
        "Head",
        [MEAN, *range(1, heads + 1)],
        key="head",
        format_func=lambda head: "mean of heads" if head == MEAN else f"head {head}",
    )
    over = setting("over", ("image", "samples"), "image")
    measured_on = {"image": "this picture", "samples": f"{len(pictures.samples())} samples"}
    second.segmented_control(
        "Measured on",
        list(measured_on),
        key="over",
        format_func=lambda name: measured_on[name],
        width="stretch",
        required=True,
    )
    variant = setting("variant", VARIANTS, VARIANTS[0])
    third.segmented_control(
        "Rows of A",
        VARIANTS,
        key="variant",
        format_func=lambda name: _ROWS[name],
        width="stretch",
        required=True,
    )
    return over, variant


@st.cache_data
def _record() -> dict[str, Any]:
    """Distances that were measured with a model which is not shipped."""
    file = assets() / "curves" / "distance_vit_s14.json"
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return record


def _beside() -> list[str]:
    """What is drawn beside the model on screen: the recorded model, a CNN, both or none."""
    chosen = setting("beside", BESIDE, BESIDE[0])
    names = {"none": "nothing", "recorded": "a recorded ViT-S/14", "cnn": "a CNN", "both": "both"}
    st.segmented_control(
        "Show beside it",
        BESIDE,
        key="beside",
        format_func=lambda name: names[name],
        width="stretch",
        required=True,
    )
    return ["recorded", "cnn"] if chosen == "both" else [chosen]


def _dots(view: View, survey: Survey) -> None:
    acts, record, beside = view.acts, _record(), _beside()
    figure = plots.attention_distance(
        _mean(survey.distance),
        survey.prefix_mass.mean(axis=0),
        equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
        side=max(view.model.preprocess.input_size),
        selected=(view.layer, view.head),
        spread=_spread(survey.distance) if len(survey.distance) > 1 else None,
        prefix_name=_prefix_name(view),
        recorded=(record["model"], np.array(record["distance"])) if "recorded" in beside else None,
        with_cnn="cnn" in beside,
    )
    show(figure, key=_DOTS, on_click=lambda: _go(acts.num_heads))
    if "recorded" in beside:
        st.markdown(f"Squares: {record['about']}")
    if "cnn" in beside:
        st.markdown(
            "Dotted line: how far a pixel sees along its row or column in a CNN of 3 x 3 kernels "
            "with stride 1, one pixel farther in each layer. A ViT head can attend to the whole "
            "picture in the first layer."
        )


def _go(heads: int) -> None:
    """Select the head whose dot was clicked."""
    for point in st.session_state[_DOTS].selection.points:
        layer, head = divmod(point["point_index"], heads)
        settings.change(layer=layer + 1, head=head + 1)


def _extremes(survey: Survey) -> None:
    distance = _mean(survey.distance)
    if not np.isfinite(distance).any():
        return
    named = []
    for index in (np.nanargmin(distance), np.nanargmax(distance)):
        layer, head = np.unravel_index(index, distance.shape)
        named.append(f"layer {layer + 1}, head {head + 1} ({distance[layer, head]:.1f} px)")
    layers = ", ".join(f"{pixels:.1f}" for pixels in _mean(distance.T))
    pictures = len(survey.distance)
    words = f"Mean ± standard deviation over {pictures} pictures. " if pictures > 1 else ""
    st.markdown(
        f"{words}Click a dot to choose its head. Most local: {named[0]}; most global: {named[1]}. "
        f"Mean of the heads from layer 1 to {len(distance)}: {layers} px."
    )


def _one_head(view: View, survey: Survey) -> None:
    """The chosen head, or the mean of heads: numbers, histogram of distances, map of offsets."""
    acts, here = view.acts, (view.layer, slice(None) if view.head is None else [view.head])
    name = f"layer {view.layer + 1}, " + (
        "mean of heads" if view.head is None else f"head {view.head + 1}"
    )
    distance = _mean(survey.distance[:, *here].T)  # one number a picture
    st.markdown(f"**{name[0].upper()}{name[1:]}**: {_facts(view, survey, distance)}")
    by_distance, by_offset = st.columns(2)
    width = float(np.min(acts.patch_size))
    histogram = plots.distance_histogram(
        _mean(survey.histogram[here]),
        inspection.uniform_histogram(acts.grid, acts.patch_size, bin_width=width),
        bin_width=width,
        mean=float(_mean(distance)),
        name=name,
    )
    offsets = plots.offset_attention(
        _mean(survey.offsets[here]), equal_share=1 / math.prod(acts.grid), name=name
    )
    with by_distance:
        show(histogram)
    with by_offset:
        show(offsets)


def _facts(view: View, survey: Survey, distance: np.ndarray) -> str:
    """Distance, attention on the prefix tokens and entropy of the chosen head, in words."""
    here = (slice(None), view.layer, slice(None) if view.head is None else view.head)
    words = "it attends to no patch"
    if np.isfinite(distance).any():
        share = 100 * float(_mean(distance)) / max(view.model.preprocess.input_size)
        spread = f" ± {_spread(distance):.1f}" if len(distance) > 1 else ""
        words = f"{_mean(distance):.1f}{spread} px, {share:.0f} % of the side"
    if view.prefix:
        mass = f"{100 * survey.prefix_mass[here].mean():.1f} %"
        words += f"; {mass} on {_prefix_name(view)}"
    tokens = len(view.prefix) + view.acts.grid[0] * view.acts.grid[1]
    entropy = survey.entropy[here].mean()
    return f"{words}, entropy {entropy:.1f} of {np.log2(tokens):.1f} bits."


def _table(survey: Survey, variant: Variant) -> Table:
    distance, spread = _mean(survey.distance), _spread(survey.distance)
    layers, heads = np.indices(distance.shape).reshape(2, -1) + 1
    columns = {
        "layer": layers,
        "head": heads,
        "distance, px": distance.ravel(),
        "standard deviation, px": spread.ravel(),
        "on prefix tokens, %": 100 * survey.prefix_mass.mean(axis=0).ravel(),
        "entropy, bits": survey.entropy.mean(axis=0).ravel(),
    }
    if len(survey.distance) == 1:
        del columns["standard deviation, px"]
    about = "Mean attention distance of each head, in pixels of the input; rows of A: "
    return Table(f"{about}{_ROWS[variant]}.", columns)


def _prefix_name(view: View) -> str:
    return ", ".join(name.upper() for name in view.prefix) or "prefix tokens"


def _of_picture(view: View, acts: "Activations", key: Sequence[Hashable]) -> Surveys:
    """Both variants on one picture, cached."""
    return results.captures().get((*key, "distances"), lambda: _measured(acts), _nbytes)


def _of_samples(view: View) -> Surveys:
    """Both variants on all sample pictures, cached."""

    def make() -> Surveys:
        model = view.model
        names, found = list(pictures.samples()), []
        place = st.empty()
        for done, name in enumerate(names):
            place.progress(done / len(names), f"Picture {done + 1} of {len(names)}: {name}")
            picture = pictures.sample(name)
            acts = results.capture(model, picture)
            found.append(_of_picture(view, acts, (*model_key(model), picture.digest)))
        place.empty()
        return {variant: _together([one[variant] for one in found]) for variant in VARIANTS}

    key = (*view.key[:2], "distances", "samples")
    return results.captures().get(key, make, _nbytes)


def _measured(acts: "Activations") -> Surveys:
    """Measure layer by layer, holding one attention matrix at a time."""
    layers = [_of_layer(acts, attention) for attention in acts.attention_layers()]
    return {
        variant: Survey(
            distance=np.stack([layer[variant].distance for layer in layers], axis=1),
            prefix_mass=np.stack([layer[variant].prefix_mass for layer in layers], axis=1),
            entropy=np.stack([layer[variant].entropy for layer in layers], axis=1),
            histogram=np.stack([layer[variant].histogram for layer in layers]),
            offsets=np.stack([layer[variant].offsets for layer in layers]),
        )
        for variant in VARIANTS
    }


def _of_layer(acts: "Activations", attention: np.ndarray) -> Surveys:
    """Measure one layer on one picture; arrays without the axis of layers."""
    grid, patch, prefix = acts.grid, acts.patch_size, acts.num_prefix_tokens
    mass = inspection.prefix_mass([attention], num_prefix_tokens=prefix)
    entropy = inspection.attention_entropy([attention])
    width = float(np.min(patch))
    return {
        variant: Survey(
            distance=inspection.attention_distance(
                [attention],
                grid=grid,
                patch_size=patch,
                num_prefix_tokens=prefix,
                variant=variant,
            ),
            prefix_mass=mass,
            entropy=entropy,
            histogram=inspection.distance_histogram(
                attention,
                grid=grid,
                patch_size=patch,
                bin_width=width,
                num_prefix_tokens=prefix,
                variant=variant,
            ),
            offsets=inspection.offset_attention(
                attention,
                grid=grid,
                num_prefix_tokens=prefix,
                variant=variant,
                min_queries=_min_queries(acts),
            ).astype(np.float32),
        )
        for variant in VARIANTS
    }


def _min_queries(acts: "Activations") -> int:
    """A sixteenth of the patches: the mean of a few queries in a corner says little."""
    return math.ceil(math.prod(acts.grid) / 16)


def _together(found: Sequence[Survey]) -> Survey:
    return Survey(
        distance=np.concatenate([one.distance for one in found]),
        prefix_mass=np.concatenate([one.prefix_mass for one in found]),
        entropy=np.concatenate([one.entropy for one in found]),
        histogram=_mean(np.stack([one.histogram for one in found])),
        offsets=_mean(np.stack([one.offsets for one in found])),
    )


def _nbytes(surveys: Surveys) -> int:
    return sum(survey.nbytes for survey in surveys.values())


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis, ignoring NaN; NaN where all are."""
    return np.ma.filled(np.ma.masked_invalid(values).mean(axis=0), np.nan)


def _spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation over the first axis, ignoring NaN."""
    return np.ma.filled(np.ma.masked_invalid(values).std(axis=0), np.nan)
