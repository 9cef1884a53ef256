"""Components as widgets of a notebook, whose choice Python can read and set."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets
from IPython.display import publish_display_data

from ...common.language import tr
from ...text import anatomy as text
from .. import token_map
from ..anatomy_map import MAX_LAYER_BYTES
from ..report.components import (
    MODULES,
    anatomy_view,
    attention,
    compress_stack,
    layer_stack,
    only_layer,
    open_layer,
    steps_stack,
)
from .page import Shown, ViewName, check_option

if TYPE_CHECKING:
    from ...activations import Activations
    from ...model import Model
    from ...model.inputs import Picture

_CHOICE = ("layer", "head", "query")
#: The page is hidden for a moment, and stays hidden behind a widget that is live.
_STILL = (
    "@keyframes vitviz-still { from, to { max-height: 0; overflow: hidden; } } "
    ".vitviz-still { animation: vitviz-still 1s; } "
    ":has(.vitviz-live) + * .vitviz-still { display: none; }"
)


class Widget(anywidget.AnyWidget):
    """Base of both widgets.

    Attributes
    ----------
    layer : int
    head : int or None
        None is the mean of the heads.
    query : int or None
        A token's number, prefix first; None for the default: CLS, or the mean of the patches. It
        can also be set to a (row, column) or the name of a prefix token.

    Setting one to a value that does not exist raises a ValueError. In another layer the query keeps
    its place in the picture.
    """

    _esm = Path(__file__).with_suffix(".built.js").read_text(encoding="utf-8")
    _source = traitlets.Unicode().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)
    _stacks: Any = traitlets.List().tag(sync=True)  # numbers that are sent once
    _layer: Any = traitlets.List().tag(sync=True)  # numbers of the opened layer
    _view = traitlets.Dict().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int(allow_none=True).tag(sync=True)
    query: Any = traitlets.Any(allow_none=True).tag(sync=True)

    def __init__(self, kind: ViewName, acts: "Activations", **traits: Any) -> None:
        self._kind, self._acts = kind, acts
        self._counted_in: int = traits["layer"]  # the layer whose tokens the query counts
        module = MODULES[kind]
        super().__init__(_source=module.script(), _style=module.style(), **traits)

    def _ipython_display_(self) -> None:
        """Display the widget, and after it a page of HTML that is seen where no widget is live.

        They are two outputs, because nbconvert takes one form of each output: the widget, even if
        nothing draws it.
        """
        widget: Any = super()._repr_mimebundle_()
        page = Shown(self._kind, self._still(), self._acts)._repr_html_()
        still = f"<style>{_STILL}</style><div class=vitviz-still>{page}</div>"
        for data, metadata in (widget, ({"text/html": still, "text/plain": ""}, {})):
            publish_display_data(data, metadata)  # type: ignore[no-untyped-call]

    def _still(self, **host: Any) -> dict[str, Any]:
        """Return the component for a file, with the current choice."""
        view: dict[str, Any] = self._view
        shape = view.get("shape") or view["frames"][self.layer]
        query = shape["home"] if self.query is None else self.query
        now = {
            "frame": self.layer,
            "head": -1 if self.head is None else self.head,
            "query": query,
            "pinned": query >= len(shape["prefix"]),
        }
        state = {**view["state"], **now}
        return {
            "stacks": [*self._stacks, *self._layer],
            "view": {**view, "state": state, **host},
        }

    @traitlets.validate(*_CHOICE)
    def _check_choice(self, proposal: Any) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        choice = {**{one: getattr(self, one) for one in _CHOICE}, name: value}
        if name == "layer":  # head and query follow it
            choice |= {"head": None, "query": None}
        checked = check_option(self._acts, **choice)[name]
        if name == "query":
            self._counted_in = self.layer
        return checked

    @traitlets.observe("layer")
    def _follow_layer(self, _: Any) -> None:
        """Keep the query's place in the picture, as `fitted` in maps.js, and a head that exists."""
        old, new = self._counted_in, self.layer
        if old == new:
            return
        self._counted_in = new
        before, after = self._acts.layers[old], self._acts.layers[new]
        if self.head is not None and self.head >= max(1, after.num_heads):
            self.head = None
        if self.query is None:
            return
        patch = self.query - len(before.prefix)
        if patch >= 0:
            at = before.query_grid, self._acts.crop_of(old)
            to = after.query_grid, self._acts.crop_of(new)
            self.query = token_map.matching_patch(divmod(patch, before.query_grid[1]), at, to)
        else:
            name = before.prefix[self.query]
            self.query = after.prefix.index(name) if name in after.prefix else None


class TokenMap(Widget):
    """The token map of all layers and heads."""

    def __init__(self, acts: "Activations", chosen: dict[str, Any]) -> None:
        data = attention(acts, f"widget-{id(self)}", **chosen)
        super().__init__("attention", acts, _stacks=data["stacks"], _view=data["view"], **chosen)


class AnatomyWidget(Widget):
    """A picture's way through a model, with one layer opened.

    Attributes
    ----------
    step : str
        What is on screen: a step of the way or a box of the layer, by its name in
        `vitviz.text.anatomy`.
    """

    step = traitlets.Unicode("picture").tag(sync=True)

    def __init__(
        self, model: "Model", image: "Picture", acts: "Activations", chosen: dict[str, Any]
    ) -> None:
        self._of = open_layer(model, image, acts, chosen["layer"], chosen["query"])
        self._name = f"widget-{id(self)}"
        steps = compress_stack(steps_stack(self._of, self._name, MAX_LAYER_BYTES))
        state = self._layer_state(chosen["head"])
        super().__init__("anatomy", acts, _stacks=[steps], **state, **chosen)
        self.observe(self._send_numbers, ("layer", "query"))

    def _layer_state(self, head: int | None) -> dict[str, Any]:
        layer = layer_stack(self._of, self._name, MAX_LAYER_BYTES)
        options = {"layers": [*range(self._of.acts.depth)], "partial": tr(text.PARTIAL_APP)}
        view = anatomy_view(self._of, self._name, head, layer, **options)
        return {"_layer": [compress_stack(layer)], "_view": view}

    def _send_numbers(self, change: Any) -> None:
        """Send another layer; or another token, unless the browser has the numbers of all."""
        (sent,) = self._layer
        has_all = all(tensor["only"] is None for tensor in sent["stack"]["tensors"])
        if change["name"] == "query" and has_all:
            return
        home = token_map.default_query(self._acts, self._acts.layers[self.layer])
        self._of = self._of.at(self.layer, home if self.query is None else self.query)
        with self.hold_sync():
            for name, value in self._layer_state(self.head).items():
                setattr(self, name, value)

    def _still(self, **host: Any) -> dict[str, Any]:
        component = super()._still(**only_layer(self._of), **host)
        component["view"]["state"]["step"] = self.step
        return component

    @traitlets.validate("step")
    def _check_step(self, proposal: Any) -> Any:
        value, view = proposal["value"], self._view
        steps = [one["id"] for one in (*view["cards"], *view["boxes"])]
        if value not in steps:
            raise ValueError(f"Expected a step of {', '.join(steps)}, got {value}.")
        return value
