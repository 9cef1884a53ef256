"""Two pictures in one model: patches that match, and colours that mean the same in both."""

from dataclasses import replace

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens.compare_maps import Compared
from vitviz.app.settings import setting
from vitviz.app.shared import pictures, results
from vitviz.app.shared.view import View
from vitviz.app.widgets.caption import literal
from vitviz.app.widgets.data_table import Table, patch_columns
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.app.widgets.linked_map import linked_map
from vitviz.app.widgets.token_map import middle, patch_number
from vitviz.language import Message, as_percent, tr
from vitviz.text import findings
from vitviz.token_map import encode, shape_of

MOST_MATCHES = 10
MATCHES = 5
CHANNELS = 3


def other_view(view: View, menu: DeltaGenerator, swap: DeltaGenerator) -> View | None:
    """The other picture in the same model; None where it cannot be had, and the reader is told."""
    from vitviz import ModelError

    shown = settings.kept("picture") or pictures.DEFAULT
    names = list(pictures.samples())
    uploaded: pictures.Picture | None = st.session_state.get("uploaded")
    titles = {name: pictures.title(name) for name in names}
    if uploaded is not None:
        names.insert(0, pictures.UPLOAD)
        titles[pictures.UPLOAD] = uploaded.name
    others = [name for name in names if name != shown]
    chosen = setting("other_picture", names, others[0])
    menu.selectbox(tr("with"), names, key="other_picture", format_func=titles.__getitem__)
    swap.button(
        tr("Swap the pictures"),
        on_click=settings.change,
        kwargs={"picture": chosen, "other_picture": shown},
        icon=":material/swap_horiz:",
    )
    picture = pictures.picture(chosen)
    try:
        return replace(view, picture=picture, acts=results.capture(view.model, picture))
    except ModelError as error:
        st.error(tr(error))
        return None


def draw(view: View, other: View, menu: DeltaGenerator) -> Compared:
    """Draw the maps of both, the mutual pairs and the joint components."""
    measured = tr("{first} and {second}", first=view.picture.name, second=other.picture.name)
    if not view.acts.all_to_all:
        st.info(
            tr(
                "Patches are matched where every token attends to every token, the same ones "
                "in each layer, which is not so in {name}.",
                name=view.model.name,
            )
        )
        return Compared(measured, lambda: [])
    count = view.grid[0] * view.grid[1]
    options = range(1, min(MOST_MATCHES, count) + 1)
    k = setting("matches", options, min(MATCHES, count))
    if len(options) > 1:
        menu.slider(tr("Most similar patches"), 1, options[-1], key="matches")
    first, second = (_patches(one) for one in (view, other))
    similarity = _similarity(view, other)
    nearest = inspection.nearest_patches(similarity, k=k)
    pairs = inspection.mutual_matches(similarity)
    mutual = np.isin(np.arange(count), pairs[:, 0])
    cosines = similarity[tuple(pairs.T)]
    found = findings.matches(pairs, cosines, count)
    finding(found, of=tr("After layer {layer}", layer=view.layer + 1))
    back = inspection.nearest_patches(similarity.T, k=k)
    _maps(view, other, similarity, (nearest, mutual, back))
    matched, coloured = st.columns(2)
    images, crops = (results.photo(view), results.photo(other)), (view.acts.crop, other.acts.crop)
    with matched:
        st.subheader(tr("Mutual pairs"), anchor=False)
        figures = [plots.mutual_matches(pairs, cosines, images, crops=crops, grid=view.grid)]
        show(figures[0])
    components: tuple[np.ndarray, np.ndarray] | None = None
    with coloured:
        if min(2 * count, first.shape[1]) >= CHANNELS:
            one, two, explained = inspection.joint_components(first, second)
            components = one, two
            st.subheader(tr("Principal components of both together"), anchor=False)
            shapes = tuple(points.reshape(*view.grid, CHANNELS) for points in components)
            figures.append(plots.joint_components((shapes[0], shapes[1]), images, crops=crops))
            show(figures[1])
            shares = [as_percent(share) for share in explained]
            st.markdown(
                tr(
                    "Equal colours mean equal components in both pictures: red explains "
                    "{red} of the variance of all patches, green {green}, blue "
                    "{blue}.",
                    red=shares[0],
                    green=shares[1],
                    blue=shares[2],
                )
            )

    def tables() -> list[Table]:
        rows, cols = np.divmod(nearest, view.grid[1])
        columns = {**patch_columns(view)}
        for place in range(k):
            number = place + 1
            columns[Message("row of match {number}", number=number)] = (rows[:, place] + 1).tolist()
            columns[Message("column of match {number}", number=number)] = (
                cols[:, place] + 1
            ).tolist()
            columns[Message("cosine of match {number}", number=number)] = similarity[
                np.arange(count), nearest[:, place]
            ].tolist()
        columns[Message("mutual")] = mutual.tolist()
        for channel in range(CHANNELS if components else 0):
            assert components is not None
            here, there = (each[:, channel].tolist() for each in components[:2])
            number = channel + 1
            columns[Message("component {number}", number=number)] = here
            columns[Message("component {number} of the other picture here", number=number)] = there
        about = tr(
            "Each patch of the first picture after layer {layer}: its most similar "
            "patches in the second, whether the first of them is mutual, and the joint "
            "components of the patch here and of that at the same place in the other "
            "picture.",
            layer=view.layer + 1,
        )
        return [Table(about, columns)]

    return Compared(
        measured,
        tables,
        tr("After layer {layer}: {found}", layer=view.layer + 1, found=found),
        tuple(figures),
    )


def _patches(view: View) -> np.ndarray:
    """The patch tokens after the layer and the final LayerNorm: (N, D)."""
    return view.acts.tokens(view.layer + 1, normalised=True)[len(view.prefix) :]


def _similarity(view: View, other: View) -> np.ndarray:
    return results.captures().get(
        (*view.key, "cross similarity", other.picture.digest, view.layer),
        lambda: inspection.cross_similarity(_patches(view), _patches(other)),
        lambda made: made.nbytes,
    )


def _maps(
    view: View,
    other: View,
    similarity: np.ndarray,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    own = inspection.token_similarity(_patches(view))
    version = (view.layer, view.picture.digest)
    layer = tr("layer {layer}", layer=view.layer + 1)
    shapes = [shape_of(one.acts, one.layer) for one in (view, other)]
    home = patch_number(view.grid, middle(view.grid))
    shape = replace(shapes[0], prefix=(), home=home, heads=1, equal_share=None)
    left, right = st.container(key="compared").columns(2)
    with left:
        st.markdown(
            tr("**{name}**: point at a patch, or click it", name=literal(view.picture.name))
        )
        linked_map(
            view,
            encode(0, own[None], 0, "cosine"),
            shape,
            name="left",
            kind="cosine",
            title=tr("Similarity to the query"),
            map_name=layer,
            version=version,
        )
    with right:
        st.markdown(tr("**{name}**: point at a patch here too", name=literal(other.picture.name)))
        linked_map(
            other,
            encode(0, similarity[None], 0, "cosine"),
            replace(shape, key_grid=shapes[1].grid, key_crop=shapes[1].crop),
            name="right",
            kind="cosine",
            title=tr("Similarity to the query"),
            map_name=layer,
            version=version,
            asked=view,
            matches=matches,
        )
