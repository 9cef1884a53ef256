"""The token map in notebooks: a page of HTML in the output, which stays live when it is saved."""

from html import escape
from typing import TYPE_CHECKING

from .report import map_html

if TYPE_CHECKING:
    from .activations import Activations

_HEIGHT = 620  # pixels of the page of HTML


class Shown:
    """A token map of all layers and heads; `Activations.show` says what it is made of."""

    def __init__(
        self,
        acts: "Activations",
        *,
        layer: int | None,
        head: int | None,
        query: int | tuple[int, int] | None,
    ) -> None:
        layer = acts.depth - 1 if layer is None else layer
        self._page = map_html(acts, **checked(acts, layer, head, query))
        self._about = repr(acts)

    def __repr__(self) -> str:
        return f"Shown({self._about})"

    def _repr_html_(self) -> str:
        """A frame of its own, so that neither style nor scripts meet those of the notebook."""
        return (
            f'<iframe srcdoc="{escape(self._page)}" title="Attention" '
            f'style="width: 100%; height: {_HEIGHT}px; border: 0"></iframe>'
        )


def checked(
    acts: "Activations", layer: int, head: int | None, query: int | tuple[int, int] | None
) -> dict[str, int | None]:
    """The choice as numbers; a ValueError where there is no such layer, head or token."""
    if not 0 <= layer < acts.depth:
        raise ValueError(f"Expected a layer in 0..{acts.depth - 1}, got {layer}.")
    described = acts.layers[layer]
    rows, cols = described.query_grid
    if head is not None and not 0 <= head < described.num_heads:
        raise ValueError(f"Expected a head in 0..{described.num_heads - 1}, got {head}.")
    if isinstance(query, tuple):
        if not (0 <= query[0] < rows and 0 <= query[1] < cols):
            raise ValueError(f"Expected a patch of a grid of {rows} x {cols}, got {query}.")
        query = len(described.prefix) + query[0] * cols + query[1]
    tokens = len(described.prefix) + rows * cols
    if query is not None and not 0 <= query < tokens:
        raise ValueError(f"Expected a query in 0..{tokens - 1}, got {query}.")
    return {"layer": layer, "head": head, "query": query}
