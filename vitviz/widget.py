"""The token map as a widget of a notebook: Python knows what is chosen in it, and chooses."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import anywidget
import traitlets

from .notebook import checked
from .report import map_data
from .token_map import script, style

if TYPE_CHECKING:
    from .activations import Activations

_CHOSEN = ("layer", "head", "query")


class TokenMap(anywidget.AnyWidget):
    """The token map of all layers and heads.

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
    _data = traitlets.Dict().tag(sync=True)
    layer = traitlets.Int().tag(sync=True)
    head = traitlets.Int(allow_none=True).tag(sync=True)
    query = traitlets.Int(allow_none=True).tag(sync=True)

    def __init__(self, acts: "Activations", chosen: dict[str, int | None]) -> None:
        self._acts = acts
        data = map_data(acts, f"widget-{id(self)}", **chosen)
        super().__init__(_source=script(), _style=style(), _data=data, **chosen)

    @traitlets.validate(*_CHOSEN)
    def _there(self, proposal: Any) -> Any:
        value, name = proposal["value"], proposal["trait"].name
        checked(self._acts, **{**{one: getattr(self, one) for one in _CHOSEN}, name: value})
        return value
