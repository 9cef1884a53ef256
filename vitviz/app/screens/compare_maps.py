"""On the page Compare: the maps of two models side by side, and token maps that are linked."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.shared import models, results
from vitviz.app.shared.view import View, head_name, placed_grid
from vitviz.app.widgets.control import draw_head_menu
from vitviz.app.widgets.counts import COUNTS, choose_counts, titles_of
from vitviz.app.widgets.data_table import (
    SCALES,
    Beside,
    Data,
    Table,
    columns_of,
    head_columns,
    patch_columns,
)
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import (
    committed_head,
    committed_query,
    mount,
    sent_picture,
    sent_query,
    take_commit,
)
from vitviz.common.images import Crop
from vitviz.common.language import Message, tr, tr_md, translate
from vitviz.common.query import Grid
from vitviz.inspection.inputs import stack_layers
from vitviz.text import findings
from vitviz.web.token_map import (
    Frame,
    MapKind,
    MapShape,
    capture_frames,
    count_map_bytes,
    default_query,
    encode_frame,
    frame_shape,
    matching_patch,
    pack_stack,
)

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from vitviz import Activations, Model
    from vitviz.activations.activations import Of


@dataclass(frozen=True, eq=False)
class _Distances:
    """Distances of one model, in pixels of its input.

    Attributes
    ----------
    heads : list of ndarray
        For each layer, the mean attention distance of each head.
    equal : ndarray
        The distance under uniform attention.
    side : int
        Side of the input.
    """

    heads: list[np.ndarray]
    equal: np.ndarray
    side: int


def matching_view(view: View, model: "Model", acts: "Activations") -> View:
    """Return the same place of the same picture in another model, at the nearest relative depth."""
    layer = inspection.nearest_depth(view.layer, view.acts.depth, acts.depth)
    described = acts.layers[layer]
    other = replace(view, **models.view_fields(model, view.picture, acts), layer=layer)
    if view.query_patch is not None:
        at = placed_grid(view.picture, view.acts, view.layer)
        row, col = matching_patch(view.query_patch, at, placed_grid(view.picture, acts, layer))
        query: int | None = len(described.prefix) + row * described.query_grid[1] + col
    elif view.query is not None and view.prefix[view.query] in described.prefix:
        query = described.prefix.index(view.prefix[view.query])
    else:
        query = None if view.prefix else default_query(acts, described)
    return replace(other, query=0 if described.kind == "class" else query)


def draw_model_pair(view: View, other: View, names: Sequence[str], menu: DeltaGenerator) -> Data:
    """Draw both maps, what they have in common, and the difference of distances."""
    refusals = [words for words in map(_why_no_map, (view, other)) if words]
    heads = [one.acts.layers[one.layer].num_heads for one in (view, other)]
    mean = heads[0] != heads[1]
    if mean:
        if not refusals:
            menu.markdown(
                tr(
                    "Mean of heads: {left} on the left, {right} on the right",
                    left=heads[0],
                    right=heads[1],
                )
            )
        view, other = (replace(one, head=None) for one in (view, other))
    elif heads[0] > 1:
        draw_head_menu(heads[0])
    both = (view, other)
    for words in dict.fromkeys(refusals):
        st.info(words)
    sentence = ""
    counts: Of = "weights" if refusals else choose_counts(*both)
    if not refusals:
        correlation, common = _correlation(view, other, counts)
        grids = [_map(one, counts)[0].shape for one in both]
        sentence = findings.maps(correlation, grids, common)
        draw_finding(sentence)
        if view.query_patch is None and view.query_name != other.query_name:
            st.markdown(
                tr(
                    "The query is {left} on the left and {right} on the right.",
                    left=view.query_name,
                    right=other.query_name,
                )
            )
        columns = places().stage.container(key="compared").columns(2)
        crops = np.array([one.acts.crop for one in both])
        area = (*crops[:, :2].min(axis=0).tolist(), *crops[:, 2:].max(axis=0).tolist())
        for place, one, name, side in zip(columns, both, names, ("left", "right"), strict=True):
            with place:
                caption = translate(name), one.layer_name
                _draw_linked_map(one, side, mean, counts, caption, area)
    distances = (
        [_distances(one) for one in both] if not any(_attentionless(one) for one in both) else []
    )
    figures = (_distance_figure(names, distances),) if distances else ()

    def tables() -> list[Table]:
        result = [] if refusals else [_map_table(view, other, names, counts)]
        return result + ([_distance_table(names, distances)] if distances else [])

    line = (
        *([] if refusals else [head_name(view.head)]),
        tr("beside {provenance}", provenance=tr(other.model.provenance)),
        other.layer_name,
        *([] if refusals else [tr(SCALES[scale_of(view)])]),
        *([] if counts == "weights" else [tr(COUNTS[counts])]),
        view.picture.name,
    )
    return Data(tables, " · ".join(line), beside=Beside(other, sentence, figures))


def _attentionless(view: View) -> bool:
    return any(layer.kind == "mixing" or layer.refusal for layer in view.acts.layers)


def _why_no_map(view: View) -> str | None:
    """Explain in one sentence why this layer has no map to compare."""
    layer = view.acts.layers[view.layer]
    if layer.kind == "mixing":
        return tr_md(
            "{name} has no attention, so there are no maps to compare.", name=view.model.name
        )
    return tr_md(layer.refusal) if layer.refusal else None


def _draw_linked_map(
    view: View, side: str, mean: bool, counts: "Of", caption: tuple[str, str], area: Crop
) -> None:
    def make() -> Frame:
        if counts != "weights":
            matrix = results.row_shares(view, counts, view.layer)
            matrix = matrix.mean(axis=0, keepdims=True) if mean else matrix
            return encode_frame(0, matrix, len(view.prefix), "share")
        (frame,) = capture_frames(view.acts, [view.layer], mean=mean)
        return replace(frame, index=0)

    results.check_message(count_map_bytes(view.acts, [view.layer]))
    frame = results.compute((*view.key, "compared", view.layer, mean, counts), make)
    shape = frame_shape(view.acts, view.layer)
    alone = frame.codes.shape[0] == 1
    linked_map(
        view,
        frame,
        replace(shape, heads=1) if mean else shape,
        name=side,
        kind="share",
        title=titles_of(counts)[view.style.direction],
        map_name=tr("layer {layer}", layer=view.layer + 1)
        + (tr(", mean of heads") if alone and mean else ""),
        version=(view.layer, mean, counts),
        caption=caption,
        area=area,
    )


def _map(view: View, counts: "Of") -> tuple[np.ndarray, Crop]:
    """Return the shares of each patch (rows, cols), of the head or the mean, and where they lie."""
    acts, described = view.acts, view.acts.layers[view.layer]
    row = view.style.direction == "row" or described.kind == "class"
    grid = described.key_grid if row else described.query_grid
    shares = view.of_head(results.query_shares(view, counts))
    return shares[-grid[0] * grid[1] :].reshape(grid), acts.crop_of(view.layer, keys=row)


def _correlation(view: View, other: View, counts: "Of") -> tuple[float, Grid]:
    (first, crop), (second, other_crop) = _map(view, counts), _map(other, counts)
    return inspection.map_correlation(first, second, crop=crop, other_crop=other_crop)


def _map_table(view: View, other: View, names: Sequence[str], counts: "Of") -> Table:
    (values, crop), (others, other_crop) = _map(view, counts), _map(other, counts)
    first, second = inspection.common_maps(values, others, crop=crop, other_crop=other_crop)
    heading = tr(
        "The maps of {query} in the grid in which they are compared: the mean share of a patch "
        "there.",
        query=view.query_name,
    )
    correlation, _ = _correlation(view, other, counts)
    if np.isfinite(correlation):  # of a constant map there is none
        heading += tr(" Their correlation is {correlation:.4f}.", correlation=correlation)
    return Table(
        heading,
        {
            **patch_columns(view, grid=first.shape),
            Message("{name}, {unit}", name=names[0], unit="%"): 100 * first.ravel(),
            Message("{name} (other), {unit}", name=names[1], unit="%"): 100 * second.ravel(),
        },
    )


def _distances(view: View) -> _Distances:
    return _Distances(*results.distances(view), max(view.model.preprocess.input_size))


def _alike(distances: Sequence[_Distances]) -> bool:
    """Return whether each layer of one has as many heads as the same layer of the other."""
    first, second = ([len(heads) for heads in one.heads] for one in distances)
    return first == second


def _in_one_unit(distances: Sequence[_Distances]) -> tuple[str, np.ndarray, np.ndarray]:
    """Return the unit in which both are compared, and the distances (layers, heads) in it."""
    first, second = (stack_layers(one.heads) for one in distances)
    if distances[0].side == distances[1].side:
        return "px", first, second
    return (
        Message("% of the side"),
        100 * first / distances[0].side,
        100 * second / distances[1].side,
    )


def _distance_figure(names: Sequence[str], distances: Sequence[_Distances]) -> "go.Figure":
    if _alike(distances):
        unit, first, second = _in_one_unit(distances)
        st.subheader(
            tr("How much farther each head attends on the right than on the left"), anchor=False
        )
        figure = plots.distance_difference(
            second - first, unit=tr(unit), names=(translate(names[0]), translate(names[1]))
        )
        show_figure(figure)
        return figure
    st.subheader(tr("Mean attention distance from the first layer to the last"), anchor=False)
    st.markdown(
        tr("The models have different layers or heads, so the means of their layers are compared.")
    )
    figure = plots.distance_by_depth(
        [np.array([_mean(heads) for heads in one.heads]) / one.side for one in distances],
        names=[*map(translate, names)],
        equal_sharing=[one.equal / one.side for one in distances],
    )
    show_figure(figure)
    return figure


def _mean(heads: np.ndarray) -> float:
    finite = heads[np.isfinite(heads)]
    return float(finite.mean()) if len(finite) else float("nan")


def _distance_table(names: Sequence[str], distances: Sequence[_Distances]) -> Table:
    if not _alike(distances):
        rows = [
            (name, layer, _mean(heads), 100 * _mean(heads) / one.side)
            for name, one in zip(names, distances, strict=True)
            for layer, heads in enumerate(one.heads, start=1)
        ]
        titles = (
            Message("model"),
            Message("layer"),
            Message("mean distance, px of its input"),
            Message("mean distance, % of the side"),
        )
        return Table(tr("Mean attention distance of each layer's heads."), columns_of(titles, rows))
    unit, first, second = _in_one_unit(distances)
    return Table(
        tr("Mean attention distance of each head, and the second's minus the first's."),
        {
            **head_columns(first.shape),
            Message("{name}, {unit}", name=names[0], unit=unit): first.ravel(),
            Message("{name} (other), {unit}", name=names[1], unit=unit): second.ravel(),
            Message("difference, {unit}", unit=unit): (second - first).ravel(),
        },
    )


def scale_of(view: "View") -> Literal["shared", "log"]:
    """Return the scale that both maps share: logarithmic where Attention's is."""
    return "log" if view.style.scale == "log" else "shared"


def _sent_matches(nearest: np.ndarray, mutual: np.ndarray, back: np.ndarray) -> dict[str, Any]:
    return {"nearest": nearest.tolist(), "mutual": mutual.tolist(), "back": back.tolist()}


def linked_map(
    view: "View",
    frame: Frame,
    shape: MapShape,
    *,
    name: str,
    kind: MapKind,
    title: str,
    map_name: str,
    caption: tuple[str, str],
    area: Crop,
    version: Sequence[object] = (),
    asked: "View | None" = None,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> None:
    """Draw the photo and the map of one side; the page's other one follows it.

    Parameters
    ----------
    view : whose picture is drawn
    frame : number 0
    shape : where its tokens lie
    name : of the side
    title : of the map
    map_name : its layer, and what else is to be said of it
    caption : below the photo, what it is and a hint
    area : of the picture, what is drawn
    version : what the numbers depend on beside the view's model and picture
    asked : View, optional
        Of the queries, where these are patches of another picture.
    matches : optional
        Of each query the numbers of its nearest patches in this picture (queries, k), and whether
        it is the nearest of the first one (queries,); and of each patch of this picture the numbers
        of the nearest queries (patches, k).
    """
    key, asked = f"token_map_compare_{name}", asked or view
    patches_only = kind == "cosine"
    pictures = dict.fromkeys((asked.picture.name, view.picture.name))

    def commit() -> None:
        committed = take_commit(key)
        changes = committed_query(asked, asked.layer, committed, patches_only=patches_only)
        if shape.heads > 1:
            changes["head"] = committed_head(committed)
        settings.change(**changes)

    stack_id = "-".join(map(str, (name, kind, *view.key, *version, view.style.seen)))
    mount(
        key,
        pack_stack(stack_id, [frame], [shape], kind, results.encoded_photo(view)),
        {
            "state": {
                "frame": 0,
                "head": -1 if view.head is None else view.head,
                "query": sent_query(asked, shape, patches_only=patches_only),
                "pinned": asked.query_patch is not None,
                "direction": "row" if patches_only else view.style.direction,
                "view": "heat",
                "scale": scale_of(view),
                "leaveOut": False,
                "smooth": False,
            },
            "strip": "heads" if shape.heads > 1 else "frames",
            "frames": [shape.to_message(map_name)],
            "titles": {
                "row": title,
                "column": title,
                "strip": "",
                "photo": tr("Most similar patches"),
                "caption": caption[0],
                "hint": caption[1],
            },
            "picture": {**sent_picture(view), "area": list(area)},
            "provenance": f"{tr(view.model.provenance)} · " + tr(" and ").join(pictures),
            "link": "compare",
            "matches": None if matches is None else _sent_matches(*matches),
        },
        commit,
    )
