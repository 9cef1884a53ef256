"""Class-specific maps, shown beside the rollout, which is the same for all classes."""

from typing import Literal

import numpy as np
import streamlit as st

from vitviz import plots
from vitviz.app.settings import setting
from vitviz.app.shared import lessons, models, queue, results
from vitviz.app.shared.view import View, read_at
from vitviz.app.widgets import class_menu
from vitviz.app.widgets.figure import show
from vitviz.language import Message, as_percent, mark, tr

Method = Literal["relevance", "gradient"]
METHODS: dict[Method, str] = {"relevance": mark("relevance"), "gradient": mark("gradient rollout")}

PHOTO_WIDTH = 375  # pixels: as large as the map beside it


def draw(view: View) -> dict[str, np.ndarray]:
    """Draw the picture and the map of the chosen class.

    Returns the map's values (rows, columns) by a heading for them; nothing where there is no map.
    """
    from vitviz import ModelError

    st.subheader(tr("For one class: attention times its gradient"), anchor=False)
    if view.acts.probabilities is None:
        st.markdown(models.why_no_classes(view.model))
        return {}
    words, photo, map_ = st.columns([3, 4, 4])
    with words:
        index, method = _controls(view)
        name = class_menu.names(view.acts)[index]
        probability = float(view.acts.probabilities[index])
        try:
            values = of_class(view, method, index)
        except ModelError as error:
            st.warning(tr(error))
            return {}
        st.markdown(_said(view, values, f"**{name}** ({as_percent(probability)})", method))
    image, crop = results.photo(view), view.acts.crop
    with photo:
        grid = values.shape
        show(plots.picture(image, crop=crop, grid=grid, query=None, width=PHOTO_WIDTH))
    with map_:
        if method == "relevance":
            show(plots.relevance(values, image, crop=crop, name=name))
            return {Message("relevance for {name}", name=name): values}
        equal, called = (
            1 / (len(view.prefix) + values.size),
            tr("Gradient rollout for {name}", name=name),
        )
        show(plots.attention_rollout(values, image, crop=crop, equal_share=equal, name=called))
        return {Message("gradient rollout for {name}, %", name=name): 100 * values}


def _controls(view: View) -> tuple[int, Method]:
    index = class_menu.chosen(view.acts)
    class_menu.menu(view.acts)
    method = setting("class_map", list(METHODS), "relevance")
    if lessons.shows("class_map"):
        st.segmented_control(
            tr("Map"),
            list(METHODS),
            key="class_map",
            format_func=lambda one: tr(METHODS[one]),
            width="stretch",
            required=True,
        )
    return index, method


def of_class(view: View, method: Method, index: int) -> np.ndarray:
    """The map (rows, columns), cached."""
    from vitviz import attribution

    function = attribution.relevance if method == "relevance" else attribution.gradient_rollout

    def make() -> np.ndarray:
        with st.spinner(tr("One pass forward and one back …")), queue.turn():
            return function(view.model, view.picture.image, index)

    return results.captures().get(
        (*view.key, "class map", method, index), make, lambda made: made.nbytes
    )


def _said(view: View, values: np.ndarray, name: str, method: Method) -> str:
    """What the map shows, its maximum, and its correlation with the rollout."""
    row, col = np.unravel_index(int(values.argmax()), values.shape)
    largest = f"{values.max():.2g}" if method == "relevance" else as_percent(values.max())
    what = (
        tr(
            "Attention weighted by the gradient of the class's logit, with negative values "
            "set to 0, combined over all layers"
        )
        if method == "relevance"
        else tr("The same weights with normalised rows, combined as in rollout: shares of 100 %")
    )
    words = tr(
        "{what}, read {where}. This is not attention itself: a patch that is attended to "
        "but does not raise the logit of {name} counts as 0.\n\nLargest: row {row}, column "
        "{col}, {largest}.",
        what=what,
        where=read_at(view.acts),
        name=name,
        row=row + 1,
        col=col + 1,
        largest=largest,
    )
    if not view.acts.all_to_all:  # then there is no rollout beside it
        return words
    rollout = results.measurements(view).rollout[len(view.prefix) :]
    if np.ptp(rollout) > 0 and np.ptp(values) > 0:
        like = np.corrcoef(rollout, values.ravel())[0, 1]
        words += tr(" Correlation with rollout (mean of heads, r = 0.5): {like:.2f}.", like=like)
    return words
