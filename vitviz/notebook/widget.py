"""Components as widgets of a notebook: Python knows what is chosen in them, and chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from .. import token_map
from ..language import tr
from ..report.components import (
    MODULES,
    alone,
    anatomy_view,
    attention,
    compressed,
    layer_of,
    opened,
    steps_of,
)
from ..report.file import unpacking
from ..text import anatomy as text
from . import Shown, View, checked

if TYPE_CHECKING:
    from PIL import Image

    from ..activations import Activations
    from ..model import Model

MAX_BYTES = 24_000_000  # of a layer of Anatomy; where it takes more, of one token in part
_CHOSEN = ("layer", "head", "query")


class Widget(anywidget.AnyWidget):
    """What both widgets have.

    Attributes
    ----------
    layer : int
    head : int or None
        None is the mean of the heads.
    query : int or None
        A token's number, prefix first; None where none is chosen: CLS, or the mean of the patches.

    Setting one to what is not there is a ValueError.
    """

    _esm = unpacking() + Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    _source = traitlets.Unicode().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)
    _stacks: Any = traitlets.List().tag(sync=True)  # of numbers, sent once
    _layer: Any = traitlets.List().tag(sync=True)  # of those of the layer
    _view = traitlets.Dict().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int(allow_none=True).tag(sync=True)
    query = traitlets.Int(allow_none=True).tag(sync=True)

    def __init__(self, kind: View, acts: "Activations", **traits: Any) -> None:
        self._kind, self._acts = kind, acts
        module = MODULES[kind]
        super().__init__(_source=module.script(), _style=module.style(), **traits)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """With a page of HTML, live where a saved notebook has no kernel, and so no widget."""
        bundle: Any = super()._repr_mimebundle_(**kwargs)
        data, metadata = bundle
        shown = Shown(self._kind, self._still(), self._acts)
        return {**data, "text/html": shown._repr_html_()}, metadata

    def _still(self, **host: Any) -> dict[str, Any]:
        """The component as a file has it, with what is chosen now."""
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

    @traitlets.validate(*_CHOSEN)
    def _there(self, proposal: Any) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        checked(self._acts, **{**{one: getattr(self, one) for one in _CHOSEN}, name: value})
        return value


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
        What is on screen: a step of the way, or a box of the layer, by the name it has in
        `vitviz.text.anatomy`.
    """

    step = traitlets.Unicode("picture").tag(sync=True)

    def __init__(
        self, model: "Model", image: "Image.Image", acts: "Activations", chosen: dict[str, Any]
    ) -> None:
        self._of = opened(model, image, acts, chosen["layer"], chosen["query"])
        self._name = f"widget-{id(self)}"
        steps = compressed(steps_of(self._of, self._name, MAX_BYTES))
        sent = self._sent(chosen["head"])
        super().__init__("anatomy", acts, _stacks=[steps], **sent, **chosen)
        self.observe(self._send_numbers, ("layer", "query"))

    def _sent(self, head: int | None) -> dict[str, Any]:
        layer = layer_of(self._of, self._name, MAX_BYTES)
        asked = {"layers": [*range(self._of.acts.depth)], "partial": tr(text.PARTIAL_APP)}
        view = anatomy_view(self._of, self._name, head, layer, **asked)
        return {"_layer": [compressed(layer)], "_view": view}

    def _send_numbers(self, change: Any) -> None:
        """The numbers of another layer; or of another token, where not all are in the browser."""
        (sent,) = self._layer
        whole = all(tensor["only"] is None for tensor in sent["stack"]["tensors"])
        if change["name"] == "query" and whole:
            return
        home = token_map.default_query(self._acts, self._acts.layers[self.layer])
        self._of = self._of.at(self.layer, home if self.query is None else self.query)
        with self.hold_sync():
            for name, value in self._sent(self.head).items():
                setattr(self, name, value)

    def _still(self, **host: Any) -> dict[str, Any]:
        made = super()._still(**alone(self._of), **host)
        made["view"]["state"]["step"] = self.step
        return made

    @traitlets.validate("step")
    def _is_step(self, proposal: Any) -> Any:
        value, view = proposal["value"], self._view
        steps = [one["id"] for one in (*view["cards"], *view["boxes"])]
        if value not in steps:
            raise ValueError(f"Expected a step of {', '.join(steps)}, got {value}.")
        return value
