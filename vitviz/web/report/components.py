"""Put the live components into one HTML file that needs no server, network or other file.

Their numbers are compressed, then written as base64. The modules are the same as the app's. A
content security policy in the file allows its own scripts by their hashes and nothing from outside.
"""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from plotly.offline import get_plotlyjs

from ...common.files import creation_record
from ...common.language import current_language, tr, translate
from ...model.families import ModelError
from ...text import anatomy as text
from ...text import report as report_text
from .. import anatomy_map, token_map

if TYPE_CHECKING:
    from ...activations import Activations
    from ...model import Model
    from ...model.inputs import Picture

FILE_MAP_BYTES = 12_000_000  # limit of the maps in a file, uncompressed
FILE_LAYER_BYTES = 1_000_000  # above this, some tensors are in the file for one token only
MODULES = {"attention": token_map, "anatomy": anatomy_map}
_TYPES = {
    "uint8": "Uint8Array",
    "uint16": "Uint16Array",
    "float32": "Float32Array",
    "int32": "Int32Array",
}


def attention(acts: "Activations", name: str, **chosen: int | None) -> dict[str, Any]:
    """Return the token map of all layers: its `stacks` of numbers, and its `view` message.

    Parameters
    ----------
    name : str
        Of the component, unique in its file.
    chosen : layer, head and query at the beginning

    Raises
    ------
    ModelError
        When a layer has no attention to show, patches were dropped from the capture, or the maps
        are too large for a file.
    """
    if acts.refusal:
        raise ModelError(acts.refusal)
    if len(acts.patches) != math.prod(acts.layers[0].query_grid):
        raise ModelError("Patches of this capture were dropped. Capture it without DropPatches.")
    if (size := token_map.count_map_bytes(acts)) > FILE_MAP_BYTES:
        raise ModelError(
            "The maps of all layers take {needed:,.0f} MB, more than the {most:.0f} MB "
            "that a file may hold of them: the app shows them by layer.",
            needed=size / 1e6,
            most=FILE_MAP_BYTES / 1e6,
        )
    layers = range(acts.depth)
    stack = token_map.pack_stack(
        name,
        token_map.capture_frames(acts, layers),
        [token_map.frame_shape(acts, layer) for layer in layers],
        "share",
        token_map.photo_url(acts.photo),
    )
    state: dict[str, Any] = {"layer": acts.depth - 1, "head": 0, "query": None, **chosen}
    return {"stacks": [compress_stack(stack)], "view": token_map.capture_view(acts, name, **state)}


def anatomy(
    model: "Model", image: "Picture", acts: "Activations", name: str, **chosen: int | None
) -> dict[str, Any]:
    """Return Anatomy, the picture's way through the model with one layer opened, as `attention`.

    Parameters
    ----------
    chosen : layer, head and query at the beginning

    Raises
    ------
    ModelError
        As `vitviz.anatomy.steps`.
    """
    state: dict[str, Any] = {"layer": acts.depth - 1, "head": 0, "query": None, **chosen}
    of = open_layer(model, image, acts, state["layer"], state["query"])
    steps, layer = (make(of, name, FILE_LAYER_BYTES) for make in (steps_stack, layer_stack))
    return {
        "stacks": [compress_stack(steps), compress_stack(layer)],
        "view": anatomy_view(of, name, state["head"], layer, **only_layer(of)),
    }


def open_layer(
    model: "Model", image: "Picture", acts: "Activations", layer: int, query: int | None
) -> anatomy_map.Anatomy:
    """Compute Anatomy with this layer opened; without a query with the default one."""
    token = token_map.default_query(acts, acts.layers[layer]) if query is None else query
    return anatomy_map.compute_anatomy(model, image, acts, layer, token)


def steps_stack(of: anatomy_map.Anatomy, name: str, max_bytes: int) -> dict[str, Any]:
    photo = token_map.photo_url(of.acts.photo)
    return anatomy_map.steps_message(of, f"{name}-steps", photo, max_bytes)


def layer_stack(of: anatomy_map.Anatomy, name: str, max_bytes: int) -> dict[str, Any]:
    return anatomy_map.layer_message(of, f"{name}-layer-{of.layer}", max_bytes)


def anatomy_view(
    of: anatomy_map.Anatomy, name: str, head: int | None, layer: dict[str, Any], **host: Any
) -> dict[str, Any]:
    """Return the view message of Anatomy, for a host that may hold other components."""
    view = anatomy_map.anatomy_message(
        of,
        stepsId=f"{name}-steps",
        layerId=layer["stack"]["id"],
        alone=False,
        provenance=translate(of.acts.provenance),
        **host,
    )
    view["state"]["head"] = -1 if head is None else head
    return view


def only_layer(of: anatomy_map.Anatomy) -> dict[str, Any]:
    """Return the parts of the view for a host that has no other layer and no other token."""
    token = anatomy_map.token_name(of.layer_info, of.token)
    return {"layers": [of.layer], "partial": tr(text.PARTIAL_FILE, token=token)}


def compress_stack(stack: dict[str, Any]) -> dict[str, Any]:
    """Return the stack as JSON: its columns compressed, then in base64."""
    columns = {name: _gzip_numbers(values) for name, values in stack.items() if name != "stack"}
    return {"stack": stack["stack"], "columns": columns}


def _gzip_numbers(values: np.ndarray) -> list[str]:
    """Return the JavaScript type of an array and its compressed numbers in base64.

    The first bytes of all numbers come first, then the second, as like bytes compress better.
    """
    size = values.dtype.itemsize
    planes = np.frombuffer(values.tobytes(), np.uint8).reshape(-1, size).T
    compressed = gzip.compress(planes.tobytes(), compresslevel=9, mtime=0)
    return [_TYPES[values.dtype.name], base64.b64encode(compressed).decode()]


def build_file(
    title: str,
    body: str,
    components: Mapping[str, Mapping[str, Any]],
    figures: Mapping[str, Any] | None = None,
    record: Mapping[str, Any] | None = None,
) -> str:
    """Return a page of HTML with live components and figures.

    Parameters
    ----------
    title, body : HTML
    components : mapping
        The components of "attention" and of "anatomy", by the id of the element in the body in
        which they are drawn.
    figures : mapping, optional
        Plotly figures by such ids.
    record : mapping, optional
        How the file was made; written as JSON into the element "data-made-with".
    """
    data: dict[str, Any] = {}
    photos: list[str] = []  # without duplicates
    modules, allowed = [], []
    for kind, each in components.items():
        if each:
            messages = {name: _extract_photos(one, photos) for name, one in each.items()}
            data[kind] = {"components": messages, "style": MODULES[kind].style()}
            source = f"{MODULES[kind].script()}{_asset('page.built.js')}"
            modules.append(f'{source}await page.showAll("{kind}", component.default);\n')
    if figures:
        plotly = get_plotlyjs()
        allowed.append(plotly)  # the page unpacks it into a script
        data["figures"] = {"figures": figures, "plotly": _packed_plotly()}
        modules.append(f'{_asset("page.built.js")}await page.showFigures("figures");\n')
    return _asset("page.html").format(
        lang=current_language(),
        policy=_policy(*allowed, *modules),
        title=title,
        style=_asset("page.css"),
        waiting=" ".join(data),
        undrawn=tr(report_text.UNDRAWN),
        body=body,
        data="\n".join(
            _json(*component)
            for component in [
                *data.items(),
                ("photos", photos),
                ("made-with", record or creation_record()),
            ]
        ),
        modules="\n".join(f'<script type="module">{source}</script>' for source in modules),
    )


@cache  # compressing it is slow, and the same for every report
def _packed_plotly() -> list[str]:
    return _gzip_numbers(np.frombuffer(get_plotlyjs().encode(), np.uint8))


def _extract_photos(component: Mapping[str, Any], photos: list[str]) -> dict[str, Any]:
    """Replace the photos of a component by their numbers in `photos`; append new ones to it."""

    def numbered(stack: dict[str, Any]) -> dict[str, Any]:
        picture = stack["stack"].get("picture")
        if picture is None:
            return stack
        if picture not in photos:
            photos.append(picture)
        return {**stack, "stack": {**stack["stack"], "picture": photos.index(picture)}}

    return {**component, "stacks": [numbered(stack) for stack in component["stacks"]]}


def _json(name: str, value: Any) -> str:
    text = json.dumps(value).replace("<", "\\u003c")
    return f'<script type="application/json" id="data-{name}">{text}</script>'


def _policy(*scripts: str) -> str:
    hashes = " ".join(
        f"'sha256-{base64.b64encode(hashlib.sha256(one.encode()).digest()).decode()}'"
        for one in scripts
    )
    return (
        f"default-src 'none'; script-src {hashes}; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _asset(name: str) -> str:
    return (Path(__file__).with_name(name)).read_text(encoding="utf-8")
