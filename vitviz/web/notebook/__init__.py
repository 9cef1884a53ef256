"""Show components in notebooks, as a page of HTML that stays live when saved, or as a widget."""

from typing import TYPE_CHECKING

from ...activations import Activations, capture
from ...common.query import Query
from ...model import Model
from ...model.inputs import prepare
from ..report.components import anatomy, attention
from .page import Shown, ViewName, check_option

if TYPE_CHECKING:
    from ...model.inputs import Picture
    from .widgets import Widget


def show(
    of: Model | Activations,
    image: "Picture | None" = None,
    *,
    picture: "Picture | None" = None,
    view: ViewName = "attention",
    layer: int | None = None,
    head: int | None = 0,
    query: Query | None = None,
) -> Shown:
    """Show a capture, or a model on a picture, live in the output of a notebook.

    The output is an HTML page in its own frame. It needs neither a kernel nor a network, so it
    stays live in a saved notebook.

    Parameters
    ----------
    of : Model or Activations
    image, picture
        As in `capture`; only with a model.
    view : "attention" or "anatomy"
        The token map of all layers and heads; or, with a model, the picture's way through it, step
        by step, with one layer opened.
    layer : int, optional
        The layer shown first, by default the last one.
    head : int or None
        None for the mean of the heads.
    query : int, (row, column) or str, optional
        As in `attention_map`.

    Raises
    ------
    ModelError
        When a layer has no attention to show, and as `capture`.
    ValueError
        When there is no such view, layer, head or token.
    ImageError, TypeError
        As `capture`.
    """
    acts, source = _capture_and_source(of, image, picture, view)
    chosen = check_option(acts, acts.depth - 1 if layer is None else layer, head, query, view=view)
    if source is None:
        return Shown(view, attention(acts, "attention", **chosen), acts)
    model, prepared = source
    return Shown(view, anatomy(model, prepared, acts, "anatomy", **chosen), acts)


def widget(
    of: Model | Activations,
    image: "Picture | None" = None,
    *,
    picture: "Picture | None" = None,
    view: ViewName = "attention",
    layer: int | None = None,
    head: int | None = 0,
    query: Query | None = None,
) -> "Widget":
    """Show the same as a widget, whose `layer`, `head` and `query` can be read and set.

    Anatomy has its `step` too, and opens every layer. A widget needs a kernel and anywidget:
    `pip install "vitviz[notebook]"`.

    Raises
    ------
    ImportError
        Without anywidget.
    ModelError, ImageError, TypeError, ValueError
        As `show`.
    """
    try:
        from .widgets import AnatomyWidget, TokenMap
    except ModuleNotFoundError as error:
        raise ImportError('A widget needs anywidget: pip install "vitviz[notebook]".') from error
    acts, source = _capture_and_source(of, image, picture, view)
    chosen = check_option(acts, acts.depth - 1 if layer is None else layer, head, query, view=view)
    if source is None:
        return TokenMap(acts, chosen)
    return AnatomyWidget(*source, acts, chosen)


def _capture_and_source(
    of: Model | Activations, image: "Picture | None", picture: "Picture | None", view: ViewName
) -> "tuple[Activations, tuple[Model, Picture] | None]":
    """Return the capture and, for Anatomy, the model and picture that it is of."""
    if isinstance(of, Activations):
        if image is not None or picture is not None:
            raise TypeError(
                "A capture has its picture already. Leave out image and picture, or give the model "
                "instead of the capture."
            )
        if view == "anatomy":
            raise ValueError(
                'A capture does not hold the weights that view="anatomy" draws. '
                'Call vitviz.show(model, image, view="anatomy").'
            )
        return of, None
    if image is None:
        raise TypeError("Expected a picture to run the model on. Call vitviz.show(model, image).")
    prepared = prepare(of, image, picture)
    return capture(of, prepared), (of, prepared) if view == "anatomy" else None
