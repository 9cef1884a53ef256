"""Show a component as a page of HTML in the output of a notebook cell."""

import operator
from html import escape
from typing import Any, Literal

from ...activations import Activations
from ...common.language import translate
from ...common.query import Query, token_number
from ...text import page_text
from ..report.components import build_file

ViewName = Literal["attention", "anatomy"]
_HEIGHTS = {"attention": 620, "anatomy": 820}  # pixels of the page of HTML


class Shown:
    """A component in the output of a cell; `Activations.show` and `vitviz.show` make it."""

    def __init__(self, view: ViewName, component: dict[str, Any], acts: Activations) -> None:
        body = f'<div id="{view}"></div><p class=line>{escape(translate(acts.provenance))}</p>'
        self._title = page_text(view).title
        self._page = build_file(self._title, body, {view: {view: component}})
        self._view, self._about = view, repr(acts)

    def __repr__(self) -> str:
        return f"Shown({self._about})"

    def _repr_html_(self) -> str:
        """Return the page in a frame, so that its style and scripts do not touch the notebook's."""
        return (
            f'<iframe srcdoc="{escape(self._page)}" title="{escape(self._title)}" '
            f'style="width: 100%; height: {_HEIGHTS[self._view]}px; border: 0"></iframe>'
        )


def check_option(
    acts: Activations,
    layer: int,
    head: int | None,
    query: Query | None,
    *,
    view: ViewName = "attention",
) -> dict[str, int | None]:
    """Return the choice as numbers; raise a ValueError if there is no such layer, head or token."""
    if view not in _HEIGHTS:
        raise ValueError(f"Expected the view {' or '.join(_HEIGHTS)}, got {view}.")
    if not 0 <= layer < acts.depth:
        raise ValueError(f"Expected a layer in 0..{acts.depth - 1}, got {layer}.")
    info = acts.layers[layer]
    if head is not None and not 0 <= head < max(1, info.num_heads):
        raise ValueError(f"Expected a head in 0..{info.num_heads - 1}, got {head}.")
    if query is not None:
        query = token_number(query, prefix=info.prefix, grid=info.query_grid)
    # numpy's integers, as of an argmax, cannot be written as JSON
    return {
        "layer": operator.index(layer),
        "head": None if head is None else operator.index(head),
        "query": query,
    }
