"""The live components as a file holds them: numbers compressed, then in base64."""

import base64
import gzip
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import anatomy_map, token_map
from ..families import ModelError
from ..language import strings, told, tr
from ..plots.template import KEY, QUERY, colour_table
from ..text import anatomy as text

if TYPE_CHECKING:
    from PIL import Image

    from ..activations import Activations
    from ..model import Model

MAX_BYTES = 12_000_000  # of the maps in a file, before they are compressed
LAYER_BYTES = 1_000_000  # of the opened layer in a file; where it takes more, of one token in part
MODULES = {"attention": token_map, "anatomy": anatomy_map}
_TYPES = {
    "uint8": "Uint8Array",
    "uint16": "Uint16Array",
    "float32": "Float32Array",
    "int32": "Int32Array",
}


def attention(acts: "Activations", name: str, **chosen: int | None) -> dict[str, Any]:
    """The token map of all layers: its `stacks` of numbers, and its `view`, what to show of them.

    Parameters
    ----------
    name : of the component, another one for each in a file
    chosen : layer, head and query to begin with, as in `token_map.view_message`

    Raises
    ------
    ModelError
        When a layer has no attention to show, or the maps are too large for a file.
    """
    if acts.refusal:
        raise ModelError(acts.refusal)
    if (size := token_map.bytes_of(acts)) > MAX_BYTES:
        raise ModelError(
            "The maps of all layers take {needed:,.0f} MB, more than the {most:.0f} MB "
            "that a file may hold of them: the app shows them by layer.",
            needed=size / 1e6,
            most=MAX_BYTES / 1e6,
        )
    layers = range(acts.depth)
    stack = token_map.packed(
        name,
        token_map.frames_of(acts, layers),
        [token_map.shape_of(acts, layer) for layer in layers],
        "share",
        token_map.photo(acts.photo),
    )
    state: dict[str, Any] = {"layer": acts.depth - 1, "head": 0, "query": None, **chosen}
    view = token_map.view_message(acts, stack_id=name, look=look(False), **state)
    view["strings"] = strings("browser")
    return {"stacks": [compressed(stack)], "view": view}


def anatomy(
    model: "Model", image: "Image.Image", acts: "Activations", name: str, **chosen: int | None
) -> dict[str, Any]:
    """The same of the picture's way through the model, with one layer opened.

    Parameters
    ----------
    chosen : layer, head and query to begin with

    Raises
    ------
    ModelError
        As `vitviz.anatomy.steps`.
    """
    state: dict[str, Any] = {"layer": acts.depth - 1, "head": 0, "query": None, **chosen}
    of = opened(model, image, acts, state["layer"], state["query"])
    steps, layer = steps_of(of, name, LAYER_BYTES), layer_of(of, name, LAYER_BYTES)
    return {
        "stacks": [compressed(steps), compressed(layer)],
        "view": anatomy_view(of, name, state["head"], layer, **alone(of)),
    }


def opened(
    model: "Model", image: "Image.Image", acts: "Activations", layer: int, query: int | None
) -> anatomy_map.Anatomy:
    """The picture's way with this layer opened; without a query that of `default_query`."""
    asked = token_map.default_query(acts, acts.layers[layer]) if query is None else query
    return anatomy_map.anatomy_of(model, image, acts, layer, asked)


def steps_of(of: anatomy_map.Anatomy, name: str, max_bytes: int) -> dict[str, Any]:
    photo = token_map.photo(of.acts.photo)
    return anatomy_map.sent_steps(of, f"{name}-steps", photo, max_bytes)


def layer_of(of: anatomy_map.Anatomy, name: str, max_bytes: int) -> dict[str, Any]:
    return anatomy_map.sent_layer(of, f"{name}-layer-{of.layer}", max_bytes)


def anatomy_view(
    of: anatomy_map.Anatomy, name: str, head: int | None, layer: dict[str, Any], **host: Any
) -> dict[str, Any]:
    """What to show of the numbers, in a host with other components beside."""
    view = anatomy_map.view_message(
        of,
        look=look(True),
        stepsId=f"{name}-steps",
        layerId=layer["stack"]["id"],
        alone=False,
        strings=strings("browser"),
        provenance=told(of.acts.provenance),
        **host,
    )
    view["state"]["head"] = -1 if head is None else head
    return view


def alone(of: anatomy_map.Anatomy) -> dict[str, Any]:
    """What is said where no other layer and no other token can be asked for."""
    followed = anatomy_map.token_name(of.described, of.followed)
    return {"layers": [of.layer], "partial": tr(text.PARTIAL_FILE, token=followed)}


def look(signed: bool) -> dict[str, str]:
    return {"lut": colour_table(signed), "queryColour": QUERY, "keyColour": KEY}


def compressed(stack: dict[str, Any]) -> dict[str, Any]:
    """A stack as JSON can hold it."""
    columns = {name: gzipped(values) for name, values in stack.items() if name != "stack"}
    return {"stack": stack["stack"], "columns": columns}


def gzipped(values: np.ndarray) -> list[str]:
    """Numbers as text. The first bytes of all come first, then the second: they are more alike."""
    size = values.dtype.itemsize
    apart = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, size).T
    packed_bytes = gzip.compress(apart.tobytes(), compresslevel=9, mtime=0)
    return [_TYPES[values.dtype.name], base64.b64encode(packed_bytes).decode()]
