"""The page Compare: two models on one picture, or two pictures in one model."""

from dataclasses import replace

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz import inspection, plots
from vitviz.app import settings
from vitviz.app.screens import compare_maps, compare_patching
from vitviz.app.settings import setting
from vitviz.app.shared import models, pictures, results
from vitviz.app.shared.models import RANDOM, TRAINED
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.control import choose, control
from vitviz.app.widgets.data_table import Beside, Data, Table, columns_of, patch_columns
from vitviz.app.widgets.experiment import run_pending
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import middle, patch_number
from vitviz.common.language import Message, as_percent, literal, mark, tr, tr_md, translate
from vitviz.text import findings
from vitviz.text.class_names import other_names, table_names
from vitviz.web.token_map import Frame, encode_frame, frame_shape

MODES = {
    "weights": mark("trained and random weights"),
    "models": mark("two models"),
    "pictures": mark("two pictures"),
}
MOST_MATCHES = 10
MATCHES = 5
COLOURS = 3


def page(view: View) -> Data | None:
    name = weights_menu.menu_name(view)
    bar = places().bar
    absent = models.needs_download(name)
    mode = choose(
        "compare",
        tr("Compare"),
        MODES,
        "models" if absent else "pictures",
        "bar",
        "selectbox",
        width=230,
    )
    if mode == "pictures":
        other: View | None = _other_picture(view)
    else:
        other = _other_model(view, name, mode, bar)
    if other is None:
        heading = _name_column(view, name)
        _answer(view, tr("Answer of {called}", called=literal(translate(heading))), "left")
        return Data(lambda: _answers([view], [heading]))
    beside = settings.stored_text("other_model") if mode == "models" else name
    names = [_name_column(view, name), _name_column(other, beside or other.model.name)]
    if mode == "pictures":
        names = [view.picture.name, other.picture.name]
        compared = _draw_pictures(view, other)
    else:
        compared = compare_maps.draw_model_pair(view, other, names, bar)
    sides = zip(st.columns(2), (view, other), names, ("left", "right"), strict=True)
    for place, one, heading, side in sides:
        with place:
            title = tr("Answer of {called}", called=literal(translate(heading)))
            if mode == "pictures":
                title = tr("Answer for {called}", called=literal(translate(heading)))
            _answer(one, title, side)
    exchanged: list[Table] = []
    if mode == "pictures":
        exchanged, pending = compare_patching.draw_patching(view, other) or ([], None)
        run_pending(pending)
    tables = compared.make
    return replace(compared, make=lambda: [*_answers([view, other], names), *tables(), *exchanged])


def _name_column(view: View, name: str) -> str:
    """Return what a model with this name in the menu is called above its column."""
    if view.model.trained:
        return Message("{name}, {weights}", name=name, weights=weights_menu.saved_label(name))
    if view.model.weights == "random weights":
        return Message("{name}, random weights", name=view.model.name)
    return f"{view.model.name}, {view.model.weights}"


def _other_model(view: View, name: str, mode: str, bar: DeltaGenerator) -> View | None:
    """Return the same picture in the other model; None, with a message, if it cannot load."""
    from vitviz import ModelError

    weights = RANDOM if view.model.trained else TRAINED
    if mode == "models":
        names = models.model_names()
        others = [one for one in names if one != name]
        name = choose(
            "other_model",
            tr("with"),
            names,
            (others or names)[0],
            "bar",
            "selectbox",
            models.menu_text(),
            width=230,
        )
        weights = weights_menu.choose_weights(places().settings, "other_weights", name)
    if weights == TRAINED and models.needs_download(name):
        st.info(
            tr_md(
                "The trained weights of {name} are not on this server, so only its random "
                "weights can be compared here.",
                name=name,
            )
        )
        return None
    try:
        if mode == "weights":
            model = weights_menu.load_beside(name, weights, view.picture)
        else:
            model = models.load_by_name(name, weights)
        return compare_maps.matching_view(view, model, results.capture_picture(model, view.picture))
    except ModelError as error:
        st.error(tr_md(error))
        return None


def _answer(view: View, title: str, side: str) -> None:
    st.subheader(title, anchor=False)
    acts = view.acts
    if acts.probabilities is None:
        st.markdown(literal(class_menu.answer_words(acts, trained=view.model.trained)))
    else:
        show_figure(class_menu.answer_figure(acts), key=f"answer_{side}")  # the two may be the same


def _answers(views: list[View], names: list[str]) -> list[Table]:
    """Return the table of what the models answer, or none where they give embeddings alone."""
    rows: list[tuple[object, ...]] = []
    for view, name in zip(views, names, strict=True):
        acts = view.acts
        if acts.scores is None:
            continue
        classes, others = table_names(acts.output_names), other_names(acts.output_names)
        if acts.probabilities is None:
            values = enumerate(acts.scores.tolist())
            rows += [(name, classes[at], others[at], np.nan, value) for at, value in values]
        else:
            order, shares = (-acts.scores).argsort(kind="stable"), 100 * acts.scores.astype(float)
            rows += [(name, classes[at], others[at], float(shares[at]), np.nan) for at in order]
    if not rows:
        return []
    other, value = Message("also called"), Message("value")
    heading = class_menu.names_heading(
        *(view.acts for view in views if view.acts.scores is not None)
    )
    headings = (Message("side"), heading, other, Message("probability, %"), value)
    columns = columns_of(headings, rows)
    if not any(columns[other]):
        del columns[other]
    if not any(view.acts.answers == "values" for view in views):
        del columns[value]
        about = tr("The answers, the most probable class first.")
        if heading != "class":
            about = tr("The answers, the most probable first.")
        return [Table(about, columns)]
    about = tr("The answers. Values have no known unit, and are no probabilities.")
    return [Table(about, columns)]


def _other_picture(view: View) -> View | None:
    """Return the other picture in the same model; None, with a message, where it cannot be read."""
    from vitviz import ModelError

    current = settings.stored_text("picture") or pictures.DEFAULT
    titles = pictures.menu()
    others = [name for name in titles if name != current]
    kind = current.split("_")[0]
    others.sort(key=lambda name: name.split("_")[0] != kind)  # samples of one kind begin alike
    settings.follow_default("other_picture", others[0])
    chosen = choose(
        "other_picture",
        tr("with"),
        list(titles),
        others[0],
        "bar",
        "selectbox",
        titles.__getitem__,
        width=150,
    )
    places().settings.button(
        tr("Swap the pictures"),
        on_click=settings.change,
        kwargs={"picture": chosen, "other_picture": current},
        icon=":material/swap_horiz:",
    )
    picture = pictures.chosen_picture(chosen)
    try:
        return replace(
            view,
            **models.view_fields(view.model, picture, results.capture_picture(view.model, picture)),
        )
    except ModelError as error:
        st.error(tr_md(error))
        return None


def _draw_pictures(view: View, other: View) -> Data:
    """Draw the maps of both, the mutual pairs and the joint components."""
    subject = tr("{first} and {second}", first=view.picture.name, second=other.picture.name)
    if not view.acts.all_to_all:
        st.info(
            tr_md(
                "Patches are matched where every token attends to every token, the same ones "
                "in each layer, which is not so in {name}.",
                name=view.model.name,
            )
        )
        return Data(lambda: [], subject, beside=Beside(other, "", ()))
    count = view.grid[0] * view.grid[1]
    options = range(1, min(MOST_MATCHES, count) + 1)
    k = setting("matches", options, min(MATCHES, count))
    if len(options) > 1:
        control("matches", tr("Most similar patches"), options, "settings", "slider")
    first, second = (_patch_tokens(one) for one in (view, other))
    similarity = _patch_similarity(view, other)
    nearest = inspection.nearest_patches(similarity, k=k)
    pairs = inspection.mutual_matches(similarity)
    mutual = np.isin(np.arange(count), pairs[:, 0])
    cosines = similarity[tuple(pairs.T)]
    sentence = findings.matches(pairs, cosines, count)
    draw_finding(sentence, of=tr("After layer {layer}", layer=view.layer + 1))
    back = inspection.nearest_patches(similarity.T, k=k)
    _draw_linked_maps(view, other, similarity, (nearest, mutual, back))
    matched, coloured = places().stage.columns(2)
    (image, crop), (image_of_other, crop_of_other) = map(results.seen_part, (view, other))
    images, crops = (image, image_of_other), (crop, crop_of_other)
    with matched:
        st.subheader(tr("Mutual pairs"), anchor=False)
        figures = [plots.mutual_matches(pairs, cosines, images, crops=crops, grid=view.grid)]
        show_figure(figures[0])
    components = np.empty((2, 0, count))  # of both pictures
    with coloured:
        if min(2 * count, first.shape[1]) >= COLOURS:
            one, two, explained = inspection.joint_components(first, second)
            components = np.stack([one.T, two.T])
            st.subheader(tr("Principal components of both together"), anchor=False)
            shape = (*view.grid, COLOURS)
            pair = one.reshape(shape), two.reshape(shape)
            figures.append(plots.joint_components(pair, images, crops=crops))
            show_figure(figures[1])
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
            match = {"number": place + 1}
            columns |= {
                Message("row of match {number}", **match): rows[:, place] + 1,
                Message("column of match {number}", **match): cols[:, place] + 1,
                Message("cosine of match {number}", **match): np.take_along_axis(
                    similarity, nearest[:, [place]], axis=1
                ).ravel(),
            }
        columns[Message("mutual")] = mutual
        for number, (here, there) in enumerate(zip(*components, strict=True), start=1):
            columns |= {
                Message("component {number}", number=number): here,
                Message("component {number} of the other picture here", number=number): there,
            }
        about = tr(
            "Each patch of the first picture after layer {layer}: its most similar "
            "patches in the second, whether the first of them is mutual, and the joint "
            "components of the patch here and of that at the same place in the other "
            "picture.",
            layer=view.layer + 1,
        )
        return [Table(about, columns)]

    after = tr("After layer {layer}: {found}", layer=view.layer + 1, found=sentence)
    return Data(tables, subject, beside=Beside(other, after, figures))


def _patch_tokens(view: View) -> np.ndarray:
    """Return the patch tokens after the layer and the final LayerNorm: (N, D)."""
    return results.final_tokens(view, view.layer)[len(view.prefix) :]


def _patch_similarity(view: View, other: View) -> np.ndarray:
    return results.compute(
        (*view.key, "cross similarity", other.picture.digest, view.layer),
        lambda: inspection.cross_similarity(_patch_tokens(view), _patch_tokens(other)),
    )


def _draw_linked_maps(
    view: View,
    other: View,
    similarity: np.ndarray,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray],
) -> None:
    results.check_message(similarity.size)

    def encoded() -> tuple[Frame, Frame]:
        own = inspection.token_similarity(_patch_tokens(view))
        return encode_frame(0, own[None], 0, "cosine"), encode_frame(
            0, similarity[None], 0, "cosine"
        )

    frames = results.compute(
        (*view.key, "compared", other.picture.digest, view.layer),
        encoded,
    )
    version = (view.layer, view.picture.digest)
    layer = tr("layer {layer}", layer=view.layer + 1)
    shapes = [frame_shape(one.acts, one.layer) for one in (view, other)]
    home = patch_number(view.grid, middle(view.grid))
    shape = replace(shapes[0], prefix=(), home=home, heads=1, equal_share=None)
    left, right = places().stage.container(key="compared").columns(2)
    with left:
        compare_maps.linked_map(
            view,
            frames[0],
            shape,
            name="left",
            kind="cosine",
            title=tr("Similarity to the query"),
            map_name=layer,
            caption=(view.picture.name, tr("point at a patch")),
            area=view.acts.crop,
            version=version,
        )
    with right:
        compare_maps.linked_map(
            other,
            frames[1],
            replace(shape, key_grid=shapes[1].grid, key_crop=shapes[1].crop),
            name="right",
            kind="cosine",
            title=tr("Similarity to the query"),
            map_name=layer,
            caption=(other.picture.name, tr("point here too")),
            area=other.acts.crop,
            version=version,
            asked=view,
            matches=matches,
        )
