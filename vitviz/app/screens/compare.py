"""The page Compare: two models on one picture, or two pictures in one model."""

from typing import TYPE_CHECKING

import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz import plots
from vitviz.app import settings
from vitviz.app.screens import compare_maps, compare_pictures
from vitviz.app.settings import setting
from vitviz.app.shared import models, results
from vitviz.app.shared.models import RANDOM, TRAINED
from vitviz.app.shared.view import View
from vitviz.app.widgets import class_menu, input_size
from vitviz.app.widgets import weights as weights_menu
from vitviz.app.widgets.caption import literal
from vitviz.app.widgets.data_table import Beside, Columns, Data, Table
from vitviz.app.widgets.figure import show
from vitviz.language import Message, mark, told, tr

if TYPE_CHECKING:
    from vitviz import Model

MODES = {
    "weights": mark("trained and random weights"),
    "models": mark("two models"),
    "pictures": mark("two pictures"),
}


def page(view: View) -> Data | None:
    name = _menu_name(view)
    menus = st.columns([2, 2.6, 1.7, 1.7], vertical_alignment="bottom")
    absent = models.needs_download(name)
    mode = setting("compare", list(MODES), "models" if absent else "weights")
    menus[0].selectbox(
        tr("Compare"), list(MODES), key="compare", format_func=lambda one: tr(MODES[one])
    )
    if mode == "pictures":
        other: View | None = compare_pictures.other_view(view, menus[1], menus[3])
    else:
        other = _other_model(view, name, mode, menus[1], menus[2])
    if other is None:
        called = _called(view, name)
        _answer(view, tr("Answer of {called}", called=literal(told(called))), "left")
        return Data(lambda: [_answers([view], [called])])
    beside = settings.kept("other_model") if mode == "models" else name
    names = [_called(view, name), _called(other, beside or other.model.name)]
    if mode == "pictures":
        names = [view.picture.name, other.picture.name]
        compared = compare_pictures.draw(view, other, menus[2])
    else:
        compared = compare_maps.draw(view, other, names, menus[1 if mode == "weights" else 3])
    sides = zip(st.columns(2), (view, other), names, ("left", "right"), strict=True)
    for place, one, called, side in sides:
        with place:
            title = tr("Answer of {called}", called=literal(told(called)))
            if mode == "pictures":
                title = tr("Answer for {called}", called=literal(told(called)))
            _answer(one, title, side)
    return Data(
        lambda: [_answers([view, other], names), *compared.tables()],
        pictures=compared.measured,
        beside=Beside(other, compared.found, compared.figures),
    )


def _called(view: View, name: str) -> str:
    """What a model with this name in the menu is called above its column."""
    if view.model.trained:
        return Message("{name}, trained", name=name)
    if view.model.weights == "random weights":
        return Message("{name}, random weights", name=view.model.name)
    return f"{view.model.name}, {view.model.weights}"


def _menu_name(view: View) -> str:
    """What the menu calls the model on screen."""
    loaded: Model | None = st.session_state.get("loaded")
    name: str = st.session_state.loaded_by[0] if loaded is view.model else view.model.name
    return name


def _other_model(
    view: View, name: str, mode: str, menu: DeltaGenerator, switch: DeltaGenerator
) -> View | None:
    """The same picture in the other model; None where it cannot be had, and the reader is told."""
    from vitviz import ModelError

    weights = RANDOM if view.model.trained else TRAINED
    if mode == "models":
        names = models.model_names()
        others = [one for one in names if one != name]
        name = setting("other_model", names, (others or names)[0])
        menu.selectbox(tr("with"), names, key="other_model", format_func=models.menu_text())
        weights = weights_menu.control(switch, "other_weights", name)
    if weights == TRAINED and models.needs_download(name):
        st.info(
            tr(
                "The trained weights of {name} are not on this server, so only its random "
                "weights can be compared here.",
                name=name,
            )
        )
        return None
    try:
        if mode == "weights":
            model = input_size.load_beside(name, weights, view.picture)
        else:
            model = models.load(name, weights)
        return compare_maps.beside(view, model, results.capture(model, view.picture))
    except ModelError as error:
        st.error(tr(error))
        return None


def _answer(view: View, title: str, side: str) -> None:
    st.subheader(title, anchor=False)
    acts = view.acts
    if acts.probabilities is None:
        st.markdown(class_menu.answer_words(acts, trained=view.model.trained))
    else:
        figure = plots.class_probabilities(acts.probabilities, class_menu.names(acts))
        show(figure, key=f"answer_{side}")  # the two may be the same


def _answers(views: list[View], names: list[str]) -> Table:
    sides: list[object] = []
    classes: list[object] = []
    shares: list[object] = []
    for view, called in zip(views, names, strict=True):
        if view.acts.probabilities is None:
            continue
        outputs = view.acts.output_names
        for index in (-view.acts.probabilities).argsort(kind="stable"):
            sides.append(called)
            classes.append(outputs[index])
            shares.append(100 * float(view.acts.probabilities[index]))
    columns: Columns = {
        Message("side"): sides,
        Message("class"): classes,
        Message("probability, %"): shares,
    }
    return Table(tr("The answers, the most probable class first."), columns)
