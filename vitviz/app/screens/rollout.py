"""The page Rollout: attention through all layers, and class-specific maps."""

import itertools
from collections.abc import Iterator
from typing import Literal

import numpy as np
import streamlit as st

from vitviz import inspection
from vitviz.app.screens import class_map
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, results
from vitviz.app.shared.view import View, read_at
from vitviz.app.widgets.data_table import Data, Table, patch_columns
from vitviz.app.widgets.token_map import MAX_BYTES, token_map
from vitviz.language import Message, mark, tr
from vitviz.token_map import Frame, encode

Fusion = Literal["mean", "max", "min"]
FUSIONS: tuple[Fusion, ...] = ("mean", "max", "min")
TWENTIETHS = [step / 20 for step in range(21)]
_FUSED = {"mean": mark("mean"), "max": mark("max"), "min": mark("min")}
COLLAPSED = 0.03  # share of the patches that hold half of a collapsed map


def page(view: View) -> Data | None:
    if refusal := view.acts.refusal:
        st.warning(tr(refusal))
        return None
    settings = _controls(view)
    of_class: dict[str, np.ndarray] = {}
    if lessons.shows("rollout"):
        _draw(view, *settings)
    if lessons.shows("fusion"):
        st.markdown(_said(view, *settings))
    if lessons.shows("of_class"):
        of_class = class_map.draw(view)
    return Data(lambda: [_table(view, *settings, of_class)])


def _controls(view: View) -> tuple[Fusion, float, float, int]:
    """How heads are fused, the residual's weight, the share discarded, and the first layer."""
    starts = range(1, view.layer + 2)
    fusion = setting("fusion", FUSIONS, "mean")
    residual = setting("residual", TWENTIETHS, 0.5)
    discard = setting("discard", TWENTIETHS[:-1], 0.0)
    start = setting("start_layer", starts, 1) - 1
    if not any(map(lessons.shows, ("fusion", "residual", "discard", "start_layer"))):
        return fusion, residual, discard, start
    first, second, third, fourth = st.columns(4)
    if lessons.shows("fusion"):
        first.selectbox(
            tr("Fuse heads by"), FUSIONS, key="fusion", format_func=lambda one: tr(_FUSED[one])
        )
    if lessons.shows("residual"):
        second.select_slider(tr("Weight of the residual r"), TWENTIETHS, key="residual")
    if lessons.shows("discard"):
        third.select_slider(tr("Discard the smallest"), TWENTIETHS[:-1], key="discard")
    if lessons.shows("start_layer") and len(starts) > 1:
        fourth.select_slider(tr("From layer"), starts, key="start_layer")
    return fusion, residual, discard, start


def _draw(view: View, fusion: Fusion, residual: float, discard: float, start: int) -> None:
    """The token map of all steps."""
    depth = view.acts.depth
    token_map(
        view,
        _frames(view, fusion, residual, discard, start),
        name="rollout",
        kind="share",
        strip="frames",
        titles={
            "row": tr("What reaches it"),
            "column": tr("Which tokens it reaches"),
            "strip": tr("From layer {start} up to", start=start + 1),
            "slider": tr("Up to layer"),
        },
        frame_setting=("layer", range(1, depth + 1)),
        frame_names=[tr("layer {layer}", layer=number) for number in range(1, depth + 1)],
        version=f"{fusion}-{residual}-{discard}-{start}",
    )


def of_one_class(view: View) -> Data | None:
    """The class-specific maps alone, of a model in which rollout is not defined."""
    from vitviz.attribution import why_not_multiplied

    if view.acts.probabilities is None or why_not_multiplied(view.model):
        return None
    of_class = class_map.draw(view)
    grid = view.model.layers[0].query_grid

    def tables() -> list[Table]:
        columns = {name: values.ravel() for name, values in of_class.items()}
        about = tr("Class-specific map, in the grid of the first layer.")
        return [Table(about, {**patch_columns(view, grid=grid), **columns})]

    line = tr(
        "{provenance} · all layers · {name}",
        provenance=tr(view.model.provenance),
        name=view.picture.name,
    )
    return Data(tables, record=line) if of_class else None


def _said(view: View, fusion: Fusion, residual: float, discard: float, start: int) -> str:
    """Where the answer is read, how concentrated the map is, and how the fusions differ."""
    tokens = len(view.prefix) + view.grid[0] * view.grid[1]
    # Each fusion reads all attention once more, so large models compare the chosen one alone.
    compared = (
        FUSIONS
        if view.acts.depth * tokens**2 <= MAX_BYTES
        else tuple(dict.fromkeys((FUSIONS[0], fusion)))
    )

    def make() -> dict[Fusion, np.ndarray]:
        layers = view.acts.attention_layers()
        return {
            one: inspection.attention_rollout(
                itertools.islice(layers, view.layer + 1),
                num_prefix_tokens=len(view.prefix),
                query=view.query,
                fusion=one,
                residual=residual,
                discard=discard,
                start_layer=start,
                cls=False,
            )[len(view.prefix) :]
            for one in compared
        }

    maps = results.captures().get(
        (*view.key, "fusions", *compared, residual, discard, start, view.layer, view.query),
        make,
        lambda made: sum(one.nbytes for one in made.values()),
    )
    what = tr(
        "what reaches {query} up to layer {layer}",
        query=view.query_name,
        layer=view.layer + 1,
    )
    words = tr("The model's answer is read {where}. ", where=read_at(view.acts))
    words += _concentration(maps[fusion], what)
    flat = [one for one in maps if not np.ptp(maps[one])]
    if len(maps) == 1 or flat:
        return words
    like = dict(zip(maps, np.corrcoef(list(maps.values())), strict=True))
    pairs = [
        tr(
            "*{one}* with *{other}* **{correlation:.2f}**",
            one=tr(_FUSED[one]),
            other=tr(_FUSED[other]),
            correlation=like[one][number],
        )
        for one, other in itertools.combinations(maps, 2)
        for number in [list(maps).index(other)]
    ]
    words += tr(" Correlation of the maps by fusion: {pairs}.", pairs=", ".join(pairs))
    if len(maps) == len(FUSIONS):
        odd = min(maps, key=lambda one: like[one].sum())
        words += tr(
            " The map that differs most from the other two here is *{odd}*.", odd=tr(_FUSED[odd])
        )
    return words


def _concentration(values: np.ndarray, what: str) -> str:
    """How few patches hold half of the map, and whether that is a collapse."""
    ordered = np.sort(values)[::-1].cumsum()
    half = int(np.searchsorted(ordered, ordered[-1] / 2)) + 1
    words = tr(
        "Half of {what} comes from **{half} of {count}** patches.",
        what=what,
        half=half,
        count=len(values),
    )
    if half <= len(values) * COLLAPSED:
        words += tr(
            " The map has collapsed onto few patches, which may be outliers with large "
            "attention rather than the object: compare single layers on the page "
            "Attention."
        )
    return words


def _table(
    view: View,
    fusion: Fusion,
    residual: float,
    discard: float,
    start: int,
    of_class: dict[str, np.ndarray],
) -> Table:
    """The rollout of the query up to the layer on screen, beside the map of the class."""
    steps = _steps(view, fusion, residual, discard, start)
    matrix = next(itertools.islice(steps, view.layer - start, None))
    shares = 100 * (matrix if view.style.direction == "row" else matrix.T)
    prefix = len(view.prefix)
    shown = shares[prefix:].mean(axis=0) if view.query is None else shares[view.query]
    what = tr("What goes from {query} to each token", query=view.query_name)
    if view.style.direction == "row":
        what = tr("What goes from each token to {query}", query=view.query_name)
    about = tr(
        "{what} through layers {start} to {end}: heads fused by {fusion}, residual {residual}, the "
        "smallest {discard} discarded.",
        what=what,
        start=start + 1,
        end=view.layer + 1,
        fusion=tr(_FUSED[fusion]),
        residual=residual,
        discard=discard,
    )
    outside = np.full(prefix, np.nan)  # the map of a class is of patches alone
    beside = {name: np.append(outside, values) for name, values in of_class.items()}
    columns = {**patch_columns(view, prefix=True), Message("rollout, %"): shown, **beside}
    return Table(about, columns)


def _steps(
    view: View, fusion: Fusion, residual: float, discard: float, start: int
) -> Iterator[np.ndarray]:
    return inspection.rollout_steps(
        view.acts,
        fusion=fusion,
        residual=residual,
        discard=discard,
        start_layer=start,
    )


def _frames(view: View, fusion: Fusion, residual: float, discard: float, start: int) -> list[Frame]:
    """The frames of all steps where these are small enough, else of the one on screen."""
    acts, prefix = view.acts, view.acts.num_prefix_tokens

    def make() -> list[Frame]:
        steps = _steps(view, fusion, residual, discard, start)
        frames = []
        for layer, matrix in enumerate(steps, start=start):
            if all_fit or layer == view.layer:
                frames.append(encode(layer, matrix[None], prefix, "share"))
            if layer == last:
                break
        return frames

    tokens = prefix + acts.grid[0] * acts.grid[1]
    all_fit = acts.depth * tokens**2 <= MAX_BYTES
    last = acts.depth - 1 if all_fit else view.layer
    return results.captures().get(
        (*view.key, "rollout", fusion, residual, discard, start, None if all_fit else last),
        make,
        lambda frames: sum(frame.nbytes for frame in frames),
    )
