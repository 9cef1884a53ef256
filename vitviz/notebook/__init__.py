"""Components in notebooks: a page of HTML in the output, which stays live when it is saved."""

from html import escape
from typing import TYPE_CHECKING, Any, Literal

from ..language import told
from ..report.components import anatomy, attention
from ..report.file import file
from ..text import page_text

if TYPE_CHECKING:
    from PIL import Image

    from ..activations import Activations
    from ..model import Model

View = Literal["attention", "anatomy"]
_HEIGHTS = {"attention": 620, "anatomy": 820}  # pixels of the page of HTML


class Shown:
    """A component in the output of a cell; `Activations.show` and `vitviz.show` make it."""

    def __init__(self, view: View, component: dict[str, Any], acts: "Activations") -> None:
        body = f'<div id="{view}"></div><p class=line>{escape(told(acts.provenance))}</p>'
        self._title = page_text(view).title
        self._page = file(self._title, body, {view: {view: component}})
        self._view, self._about = view, repr(acts)

    def __repr__(self) -> str:
        return f"Shown({self._about})"

    def _repr_html_(self) -> str:
        """A frame of its own, so that neither style nor scripts meet those of the notebook."""
        return (
            f'<iframe srcdoc="{escape(self._page)}" title="{escape(self._title)}" '
            f'style="width: 100%; height: {_HEIGHTS[self._view]}px; border: 0"></iframe>'
        )


def shown(
    view: View,
    acts: "Activations",
    *,
    layer: int | None,
    head: int | None,
    query: int | tuple[int, int] | None,
    of: "tuple[Model, Image.Image] | None" = None,
) -> Shown:
    """A view of a capture, and of the model and the picture that it is of where it needs them."""
    chosen = checked(acts, acts.depth - 1 if layer is None else layer, head, query, view=view)
    if view == "attention":
        return Shown(view, attention(acts, "attention", **chosen), acts)
    assert of is not None  # `vitviz.show` gives them
    model, image = of
    return Shown(view, anatomy(model, image, acts, "anatomy", **chosen), acts)


def checked(
    acts: "Activations",
    layer: int,
    head: int | None,
    query: int | tuple[int, int] | None,
    *,
    view: View = "attention",
) -> dict[str, int | None]:
    """The choice as numbers; a ValueError where there is no such view, layer, head or token."""
    if view not in _HEIGHTS:
        raise ValueError(f"Expected the view {' or '.join(_HEIGHTS)}, got {view}.")
    if not 0 <= layer < acts.depth:
        raise ValueError(f"Expected a layer in 0..{acts.depth - 1}, got {layer}.")
    described = acts.layers[layer]
    rows, cols = described.query_grid
    if head is not None and not 0 <= head < max(1, described.num_heads):
        raise ValueError(f"Expected a head in 0..{described.num_heads - 1}, got {head}.")
    if isinstance(query, tuple):
        if not (0 <= query[0] < rows and 0 <= query[1] < cols):
            raise ValueError(f"Expected a patch of a grid of {rows} x {cols}, got {query}.")
        query = len(described.prefix) + query[0] * cols + query[1]
    tokens = len(described.prefix) + rows * cols
    if query is not None and not 0 <= query < tokens:
        raise ValueError(f"Expected a query in 0..{tokens - 1}, got {query}.")
    return {"layer": layer, "head": head, "query": query}
