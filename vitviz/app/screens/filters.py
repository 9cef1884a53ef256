"""The page Filters: the filters of the patch embedding, and their responses to the picture."""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.settings import setting
from vitviz.app.shared import models, results
from vitviz.app.shared.queue import BusyError
from vitviz.app.shared.view import View, placed_grid
from vitviz.app.widgets import weights
from vitviz.app.widgets.control import choose
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import Points, show_figure
from vitviz.app.widgets.places import draw_finding, label_in_bar, places
from vitviz.common.language import Message, capitalize, current_language, mark, tr, tr_md
from vitviz.text import findings

if TYPE_CHECKING:
    import plotly.graph_objects as go


COMPONENTS, RAW, CHANGED = mark("components"), mark("raw filters"), mark("what training changed")
NORM, OWN = ORDERS = (mark("by norm"), mark("as in the model"))
GAINS = (0.5, 1.0, 2.0, 4.0, 8.0)
SHOWN_COMPONENTS = 28  # as in the paper
SHOWN_FILTERS = 256


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
        context: dict[str, Any] = dict(name=view.model.name, shipped=models.shipped_name())
        if kernel is None:
            reason = tr_md(
                "{name} cuts its patches from the feature map of a CNN, so its filters are not "
                "pictures. Choose a plain ViT, such as {shipped}.",
                **context,
            )
        else:
            reason = tr_md(
                "This page draws filters of three channels, red, green and blue, and those of "
                "{name} have {count}. Choose another model, such as {shipped}.",
                count=kernel.shape[1],
                **context,
            )
        st.info(reason)
        return None
    initial = models.initial_kernel(view.model)
    kernel = view.model.preprocess.red_first(kernel, 1)
    initial = None if initial is None else view.model.preprocess.red_first(initial, 1)
    options = (COMPONENTS, RAW) if initial is None else (COMPONENTS, RAW, CHANGED)
    what = _switch("bar", tr("Show"), "filters", options)
    order = _switch("settings", tr("Order"), "order", ORDERS) if what == RAW else NORM
    whole = kernel
    if what == CHANGED:
        assert initial is not None
        kernel = kernel - initial
    tiles = _tiles(kernel, view.key[:2], what, order)
    count = len(tiles.kernel)
    chosen = setting("filter", range(1, count + 1), 1) - 1
    label = tr("Tile, 1 to {count}", count=count)
    label_in_bar(label).number_input(
        label, 1, count, key="filter", label_visibility="collapsed", width=130
    )
    gain = choose("gain", tr("Tile contrast"), GAINS, 1.0, "settings", "select_slider")

    if what == COMPONENTS and tiles.explained is not None:
        start = (
            None
            if initial is None
            else _tiles(initial, (view.model.name, "initialisation"), what, order).explained
        )
        total = min(len(kernel), kernel[0].size)
        draw_finding(findings.filters(tiles.explained, start, total), of=tr("In this model"))
    response = None
    if kernel.shape[2:] == view.model.layers[0].patch_side:
        response = inspection.filter_response(_input(view), tiles.kernel[chosen])
    here, answer, product = places().stage.columns(3)
    with here:
        shown = _saved_title(view) if view.model.trained else tr("Random weights")
        _mosaic(tr("Trained minus initial") if what == CHANGED else shown, tiles, gain, chosen)
    title = tr(tiles.titles[chosen])
    if response is None:
        with answer:
            st.subheader(title, anchor=False)
            name = f"{title}, {tiles.facts[chosen]}"
            show_figure(plots.filter_tile(tiles.kernel[chosen], name=name, gain=gain))
        with product:
            _explain_overlap(kernel, view.model.layers[0].patch_side[0])
    else:
        patch = _patch(view, response)
        with answer:
            _response(view, response, patch, title)
        with product:
            _product(view, tiles.kernel[chosen], patch, title)
    beside, words = places().stage.columns([4, 8])
    with beside:
        _random_beside(view, initial, what, order, gain)
    if initial is not None:
        words.markdown(_likeness(whole, initial))
    return Data(lambda: _tables(view, tiles, chosen, response))


def _explain_overlap(kernel: np.ndarray, side: int) -> None:
    st.info(
        tr(
            "Each filter covers {height} x {width} pixels, and the next patch begins "
            "{side} pixels further on: patches overlap in this model, so no response "
            "belongs to one patch alone.",
            height=kernel.shape[2],
            width=kernel.shape[3],
            side=side,
        )
    )


def _tables(view: View, tiles: Tiles, chosen: int, response: np.ndarray | None) -> list[Table]:
    """Return tables of the filters, and of one filter's response where it is defined."""
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
    if response is None:
        return [about]
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


def _switch(at: str, label: str, name: str, options: tuple[str, ...]) -> str:
    """Draw a switch between sets of tiles, which selects the first tile of the new set."""
    look: dict[str, Any] = dict(label_visibility="collapsed", width="content")
    call: dict[str, Any] = dict(on_change=_choose, args=(0,))
    return choose(name, label, options, options[0], at, words=tr, **look, **call)


def _mosaic(title: str, tiles: Tiles, gain: float, chosen: int) -> None:
    """Draw all tiles of the model; a click selects one."""
    st.subheader(title, anchor=False)
    show_figure(
        tiles.figure(gain, chosen),
        key="mosaic",
        on_click=lambda points: _choose(points[0]["point_index"]),
    )
    st.markdown(tiles.words + tr(" Click a tile to choose it."))


def _saved_title(view: View) -> str:
    return capitalize(tr(weights.saved_label(weights.menu_name(view))))


def _random_beside(
    view: View, initial: np.ndarray | None, what: str, order: str, gain: float
) -> None:
    """Draw the same tiles before training, or of the same architecture with random weights."""
    if not view.model.trained:
        st.subheader(_saved_title(view), anchor=False)
        st.markdown(
            tr(
                "Choose *{weights}* as weights to see them beside the random ones.",
                weights=weights.saved_label(weights.menu_name(view)),
            )
        )
        return
    from vitviz import ModelError

    if initial is not None:
        st.subheader(tr("Before training: random weights"), anchor=False)
        kernel, label = initial, "initialisation"
    else:
        st.subheader(tr("With random weights"), anchor=False)
        try:
            kernel, label = models.cached_random_kernel(view.model), "random weights"
        except (ModelError, BusyError) as error:
            st.info(tr_md(error))
            return
    if not kernel.any():
        st.markdown(tr("E was initialised to zeros, so there is nothing to draw."))
        return
    tiles = _tiles(kernel, (view.model.name, label), what, order)
    show_figure(tiles.figure(gain), key="initial_tiles")
    st.markdown(tiles.words)


def _likeness(kernel: np.ndarray, initial: np.ndarray) -> str:
    """Say how far training moved the filters from their initialisation."""
    lengths = np.linalg.norm(kernel) * np.linalg.norm(initial)
    cosine = (kernel * initial).sum() / lengths if lengths else 0.0
    words = tr(
        "Cosine of the trained filters with their own initialisation: **{cosine:.2f}**.",
        cosine=cosine,
    )
    if cosine > 0.5:
        words += tr(" Much of what they show is the random noise with which they began.")
    return words


def _patch(view: View, response: np.ndarray) -> tuple[int, int]:
    """Return the patch that is worked out: the query, or else the one with the largest response."""
    if view.query_patch is not None and view.grid == response.shape:
        return view.query_patch
    row, col = divmod(int(np.abs(response).argmax()), response.shape[1])
    return row, col


def _response(view: View, response: np.ndarray, patch: tuple[int, int], title: str) -> None:
    """Draw the response over what the model sees of the picture; a click selects a patch."""

    def clicked(points: Points) -> None:
        row, col = divmod(points[0]["point_index"], response.shape[1])
        layer = {} if view.grid == response.shape else {"layer": 1}
        if layer:  # whose grid the patch is of
            st.session_state.query_grid = placed_grid(view.picture, view.acts, 0)
        settings.change(query=f"{row + 1}.{col + 1}", **layer)

    st.subheader(tr("Response of each patch to {tile}", tile=title.lower()), anchor=False)
    image, crop = results.seen_part(view)
    figure = plots.filter_response(response, image, crop=crop, name=title.lower(), query=patch)
    show_figure(figure, key="response", on_click=clicked)
    st.markdown(
        tr(
            "From {low:+.2f} to {high:+.2f}, before the bias is added. Click a patch to work out "
            "its number.",
            low=response.min(),
            high=response.max(),
        )
    )


def _input(view: View) -> np.ndarray:
    """Return the model's input (3, H, W) with red first, as the tiles are drawn."""
    return view.model.preprocess.red_first(results.model_input(view).numpy(), 0)


def _product(view: View, kernel: np.ndarray, patch: tuple[int, int], title: str) -> None:
    """Draw the patch, the filter, and their product, whose sum is the response."""
    st.subheader(
        tr("Row {row}, column {column}", row=patch[0] + 1, column=patch[1] + 1), anchor=False
    )
    _, high, wide = kernel.shape
    row, col = patch[0] * high, patch[1] * wide
    pixels = _input(view)[:, row : row + high, col : col + wide]
    show_figure(
        plots.filter_product(pixels, kernel, names=(tr("patch"), title.lower())), key="product"
    )
    parts = pixels.astype(np.float64) * kernel
    st.markdown(
        tr(
            "The {count} products of {pixels} pixels in 3 colours: the positive ones add up to "
            "{positive:+.2f}, the negative ones to {negative:+.2f}. Together they are "
            "**{total:+.2f}**, the response of this patch.",
            count=parts.size,
            pixels=parts[0].size,
            positive=parts[parts > 0].sum(),
            negative=parts[parts < 0].sum(),
            total=parts.sum(),
        )
    )


def _tiles(kernel: np.ndarray, key: tuple[Hashable, ...], what: str, order: str) -> Tiles:
    """Return the tiles, cached.

    Parameters
    ----------
    key : what the kernel (n, 3, P, P) depends on
    """
    return results.capture_cache().get(
        ("filters", *key, what, order, current_language()),
        lambda: _raw_filters(kernel, order) if what == RAW else _components(kernel),
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
    first = places[:SHOWN_FILTERS]
    limits = {"high": norms[first].max(), "low": norms[first].min(), "count": len(kernel)}
    return Tiles(
        kernel=kernel[first],
        explained=None,
        titles=[Message("Filter {number}", number=number + 1) for number in first],
        facts=[tr("norm {norm:.2f}", norm=norms[number]) for number in first],
        words=(
            tr(
                "{shown} of {count} filters, norms from {high:.2f} to {low:.2f}.",
                shown=len(first),
                **limits,
            )
            if len(first) < len(kernel)
            else tr("{count} filters, norms from {high:.2f} to {low:.2f}.", **limits)
        ),
    )


def _choose(tile: int) -> None:
    settings.change(filter=tile + 1)
