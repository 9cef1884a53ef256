"""Components as widgets of a notebook: Python knows what is chosen in them, and chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from .. import token_map
from ..report.components import (
    MODULES,
    anatomy_message,
    anatomy_stacks,
    attention,
    compressed,
    opened,
)
from ..text import anatomy as text
from . import checked

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

    _esm = Path(__file__).with_suffix(".js")
    _source = traitlets.Unicode().tag(sync=True)
    _style = traitlets.Unicode().tag(sync=True)
    _stacks: Any = traitlets.List().tag(sync=True)  # of numbers, sent once
    _layer: Any = traitlets.List().tag(sync=True)  # of those of the layer
    _view = traitlets.Dict().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int(allow_none=True).tag(sync=True)
    query = traitlets.Int(allow_none=True).tag(sync=True)

    def __init__(self, kind: str, acts: "Activations", **traits: Any) -> None:
        self._acts = acts
        module = MODULES[kind]
        super().__init__(_source=module.script(), _style=module.style(), **traits)

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
        self._of = model, image
        self._photo = token_map.photo(acts.photo)
        sent = self._sent(acts, **chosen)
        super().__init__("anatomy", acts, **sent, **chosen)
        self.observe(self._send, ("layer", "query"))

    def _sent(self, acts: "Activations", layer: int, head: int | None, query: int | None) -> Any:
        of = opened(*self._of, acts, layer, query)
        steps, inside = anatomy_stacks(of, self._photo, f"widget-{id(self)}", MAX_BYTES)
        view = anatomy_message(
            of, steps, inside, head, layers=[*range(acts.depth)], partial=text.PARTIAL_APP
        )
        return {"_stacks": [compressed(steps)], "_layer": [compressed(inside)], "_view": view}

    def _send(self, change: Any) -> None:
        """The numbers of another layer; or of another token, where not all are in the browser."""
        (inside,) = self._layer
        partly = any(
            one["exact"] is False and one["only"] is not None for one in inside["stack"]["tensors"]
        )
        if change["name"] == "query" and not partly:
            return
        sent = self._sent(self._acts, self.layer, self.head, self.query)
        with self.hold_sync():
            self._layer, self._view = sent["_layer"], sent["_view"]

    @traitlets.validate("step")
    def _is_step(self, proposal: Any) -> Any:
        value, view = proposal["value"], self._view
        steps = [one["id"] for one in (*view["cards"], *view["boxes"])]
        if value not in steps:
            raise ValueError(f"Expected a step of {', '.join(steps)}, got {value}.")
        return value
