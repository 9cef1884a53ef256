"""The page Filters: the filters of the patch embedding, and their responses to the picture."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import models, results
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.language import Message, mark, spoken, tr
from vitviz.text import findings

if TYPE_CHECKING:
    import plotly.graph_objects as go
    from streamlit.delta_generator import DeltaGenerator


COMPONENTS, RAW, CHANGED = mark("components"), mark("raw filters"), mark("what training changed")
NORM, OWN = ORDERS = (mark("by norm"), mark("as in the model"))
GAINS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHOWN_COMPONENTS = 28  # as in the paper
SHOWN_FILTERS = 256
PHOTO_WIDTH = 190  # pixels


@dataclass(frozen=True, eq=False)
class Tiles:
    """Filters of one model in the order in which they are shown.

    Attributes
    ----------
    kernel : ndarray of shape (n, 3, P, P)
    explained : ndarray of shape (n,), or None
        Of principal components: the share of the variance.
    titles, facts : list of str
        What each is called, and a number that belongs to it.
    words : str
        What there is to say of all.
    """

    kernel: np.ndarray
    explained: np.ndarray | None
    titles: list[Message]
    facts: list[str]
    words: str

    def figure(self, gain: float, selected: int | None = None) -> "go.Figure":
        if self.explained is not None:
            return plots.filter_components(
                self.kernel, self.explained, gain=gain, selected=selected
            )
        names = [
            f"{title}, {fact}" for title, fact in zip(map(tr, self.titles), self.facts, strict=True)
        ]
        return plots.filters(self.kernel, names=names, gain=gain, selected=selected)


def page(view: View) -> Data | None:
    kernel = view.model.patch_kernel
    if kernel is None or kernel.shape[1] != 3:
        st.info(
            tr(
                "{name} cuts its patches from the feature map of a CNN, so its filters are "
                "not pictures: choose a plain ViT, such as {shipped}.",
                name=view.model.name,
                shipped=models.shipped_name(),
            )
        )
        return None
    first, second, third, fourth = st.columns([4, 2, 3, 3], vertical_alignment="bottom")
    initial = models.initial_kernel(view.model)
    options = (COMPONENTS, RAW) if initial is None else (COMPONENTS, RAW, CHANGED)
    what = _switch(first, tr("Show"), "filters", options)
    order = _switch(fourth, tr("Order"), "order", ORDERS) if what == RAW else NORM
    whole = kernel
    if what == CHANGED:
        assert initial is not None
        kernel = kernel - initial
    tiles = _tiles(kernel, view.key[:2], what, order)
    count = len(tiles.kernel)
    chosen = setting("filter", range(1, count + 1), 1) - 1
    second.number_input(tr("Tile, 1 to {count}", count=count), 1, count, key="filter")
    gain = setting("gain", GAINS, 1.0)
    third.select_slider(tr("Tile contrast"), GAINS, key="gain")

    if what == COMPONENTS and tiles.explained is not None:
        start = (
            None
            if initial is None
            else _tiles(initial, (view.model.name, "initialisation"), what, order).explained
        )
        total = min(len(kernel), kernel[0].size)
        finding(findings.filters(tiles.explained, start, total), of=tr("In this model"))
    here, beside, one, answer = st.columns([3, 3, 2, 4])
    with here:
        trained = tr("Trained") if view.model.trained else tr("Random weights")
        _mosaic(tr("Trained minus initial") if what == CHANGED else trained, tiles, gain, chosen)
        if initial is not None:
            st.markdown(_likeness(whole, initial))
    with beside:
        _random_beside(view, initial, what, order, gain)
    with one:
        st.subheader(tr(tiles.titles[chosen]), anchor=False)
        name = f"{tr(tiles.titles[chosen])}, {tiles.facts[chosen]}"
        show(plots.filter_tile(tiles.kernel[chosen], name=name, gain=gain))
        st.markdown(tiles.facts[chosen].capitalize())
        image, crop = results.photo(view), view.acts.crop
        grid = view.model.layers[0].query_grid
        show(plots.picture(image, crop=crop, grid=grid, query=None, width=PHOTO_WIDTH))
    side = view.model.layers[0].patch_side
    overlap = kernel.shape[2:] != side
    with answer:
        if overlap:
            st.info(
                tr(
                    "Each filter covers {height} x {width} pixels, and the next patch begins "
                    "{side} pixels further on: patches overlap in this model, so no response "
                    "belongs to one patch alone.",
                    height=kernel.shape[2],
                    width=kernel.shape[3],
                    side=side[0],
                )
            )
        else:
            _response(view, tiles.kernel[chosen], tr(tiles.titles[chosen]))
    return Data(lambda: _tables(view, tiles, None if overlap else chosen))


def _tables(view: View, tiles: Tiles, chosen: int | None) -> list[Table]:
    """Tables of the filters, and of the response of one where that is defined."""
    kernel = tiles.kernel
    explained: Columns = (
        {} if tiles.explained is None else {Message("variance, %"): 100 * tiles.explained}
    )
    columns: Columns = {
        Message("tile"): tiles.titles,
        **explained,
        Message("norm"): np.linalg.norm(kernel.reshape(len(kernel), -1), axis=1),
        Message("smallest weight"): kernel.min(axis=(1, 2, 3)),
        Message("largest weight"): kernel.max(axis=(1, 2, 3)),
    }
    about = Table(tiles.words, columns)
    if chosen is None:
        return [about]
    response = inspection.filter_response(_input(view), kernel[chosen])
    patches = patch_columns(view, grid=view.model.layers[0].query_grid)
    return [
        about,
        Table(
            tr(
                "Response of each patch to {tile}, before the bias is added.",
                tile=tr(tiles.titles[chosen]).lower(),
            ),
            {**patches, Message("inner product x E"): response.ravel()},
        ),
    ]


def _switch(place: "DeltaGenerator", label: str, name: str, options: tuple[str, ...]) -> str:
    """A switch between sets of tiles, which selects the first tile of the new set."""
    chosen = setting(name, options, options[0])
    place.segmented_control(
        label,
        options,
        key=name,
        format_func=tr,
        on_change=_choose,
        args=(0,),
        width="stretch",
        required=True,
    )
    return chosen


def _mosaic(title: str, tiles: Tiles, gain: float, chosen: int) -> None:
    """Draw all tiles of the model; a click selects one."""
    st.subheader(title, anchor=False)

    def clicked() -> None:
        points = st.session_state.mosaic.selection.points
        if points:
            _choose(points[0]["point_index"])

    show(tiles.figure(gain, chosen), key="mosaic", on_click=clicked)
    st.markdown(tiles.words + tr(" Click a tile to choose it."))


def _random_beside(
    view: View, initial: np.ndarray | None, what: str, order: str, gain: float
) -> None:
    """Draw the same tiles before training, or of the same architecture with random weights."""
    if not view.model.trained:
        st.subheader(tr("Trained"), anchor=False)
        st.markdown(tr("Choose the *trained* weights above to see them beside the random ones."))
        return
    from vitviz import ModelError

    if initial is not None:
        st.subheader(tr("Before training: random weights"), anchor=False)
        kernel, called = initial, "initialisation"
    else:
        st.subheader(tr("With random weights"), anchor=False)
        try:
            kernel, called = models.random_kernel(view.model), "random weights"
        except (ModelError, BusyError) as error:
            st.info(tr(error))
            return
    if not kernel.any():
        st.markdown(tr("E was initialised to zeros, so there is nothing to draw."))
        return
    tiles = _tiles(kernel, (view.model.name, called), what, order)
    show(tiles.figure(gain))
    st.markdown(tiles.words)


def _likeness(kernel: np.ndarray, initial: np.ndarray) -> str:
    """How far training moved the filters from their initialisation."""
    lengths = np.linalg.norm(kernel) * np.linalg.norm(initial)
    cosine = (kernel * initial).sum() / lengths if lengths else 0.0
    words = tr(
        "Cosine of the trained filters with their own initialisation: **{cosine:.2f}**.",
        cosine=cosine,
    )
    if cosine > 0.5:
        words += tr(" Much of what they show is the random noise with which they began.")
    return words


def _response(view: View, kernel: np.ndarray, title: str) -> None:
    st.subheader(tr("Response of each patch to {tile}", tile=title.lower()), anchor=False)
    response = inspection.filter_response(_input(view), kernel)
    image, crop = results.photo(view), view.acts.crop
    show(plots.filter_response(response, image, crop=crop, name=title.lower()))
    low, high = response.min(), response.max()
    st.markdown(
        tr(
            "From {low:+.2f} to {high:+.2f}, before the bias is added; white is 0.",
            low=low,
            high=high,
        )
    )


def _tiles(kernel: np.ndarray, called: tuple[Hashable, ...], what: str, order: str) -> Tiles:
    """The tiles, cached.

    Parameters
    ----------
    called : what the kernel (n, 3, P, P) depends on
    """
    return results.captures().get(
        ("filters", *called, what, order, spoken()),
        lambda: _raw_filters(kernel, order) if what == RAW else _components(kernel),
        lambda made: made.kernel.nbytes,
    )


def _components(kernel: np.ndarray) -> Tiles:
    limit = min(len(kernel), kernel[0].size)
    count = min(SHOWN_COMPONENTS, limit)
    components, explained = inspection.filter_components(kernel, n_components=count)
    return Tiles(
        kernel=components,
        explained=explained,
        titles=[Message("Component {number}", number=number + 1) for number in range(count)],
        facts=[tr("{share:.1f} % of the variance", share=100 * share) for share in explained],
        words=(
            tr(
                "{count} of the {limit} principal components explain {share:.0f} % of the "
                "variance of {filters} filters.",
                count=count,
                limit=limit,
                share=100 * explained.sum(),
                filters=len(kernel),
            )
        ),
    )


def _raw_filters(kernel: np.ndarray, order: str) -> Tiles:
    norms = np.linalg.norm(kernel.reshape(len(kernel), -1), axis=1)
    places = np.argsort(-norms, kind="stable") if order == NORM else np.arange(len(kernel))
    shown = places[:SHOWN_FILTERS]
    limits = {"high": norms[shown].max(), "low": norms[shown].min(), "count": len(kernel)}
    return Tiles(
        kernel=kernel[shown],
        explained=None,
        titles=[Message("Filter {number}", number=number + 1) for number in shown],
        facts=[tr("norm {norm:.2f}", norm=norms[number]) for number in shown],
        words=(
            tr(
                "{shown} of {count} filters, norms from {high:.2f} to {low:.2f}.",
                shown=len(shown),
                **limits,
            )
            if len(shown) < len(kernel)
            else tr("{count} filters, norms from {high:.2f} to {low:.2f}.", **limits)
        ),
    )


def _input(view: View) -> np.ndarray:
    """The model's input for the picture on screen: (3, H, W)."""
    return results.captures().get(
        (*view.key, "input"),
        lambda: view.model.preprocess(view.picture.image).numpy(),
        lambda made: made.nbytes,
    )


def _choose(tile: int) -> None:
    settings.change(filter=tile + 1)
