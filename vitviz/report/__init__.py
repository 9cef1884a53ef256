"""`html`: captures as one HTML file that needs nothing else: no server, no network, no other file.

Its token map is the same module as the app's. A content security policy in the file allows its own
scripts by their hashes and nothing from elsewhere.
"""

import base64
import gzip
import hashlib
import json
import platform
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from html import escape
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import inspection, plots
from ..families import ModelError
from ..plots.template import KEY, QUERY, colour_table
from ..text import lesson
from ..token_map import bytes_of, frames_of, packed, photo, script, shape_of, style, view_message

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from ..activations import Activations
    from ..model import Model

LOOK = {"lut": colour_table(False), "queryColour": QUERY, "keyColour": KEY}
MAX_BYTES = 12_000_000  # of the maps in a file, before they are compressed
_TYPES = {"uint8": "Uint8Array", "float32": "Float32Array", "int32": "Int32Array"}
_PACKAGES = ("torch", "timm", "numpy", "plotly")
#: Figures of a capture, each with the page of the lesson that explains it.
_FIGURES: tuple[tuple[str, "Callable[[Activations], go.Figure]"], ...] = (
    ("classify", lambda acts: plots.class_probabilities(acts)),
    ("distance", lambda acts: plots.attention_distance(acts, selected=(acts.depth - 1, None))),
    ("rollout", lambda acts: plots.attention_rollout(acts)),
    ("tokens", lambda acts: plots.token_components(acts)),
    ("tokens", lambda acts: plots.token_norms(acts)),
    ("tokens", lambda acts: plots.token_film(acts)),
)


def html(
    model: "Model",
    captures: "Mapping[str, Activations]",
    *,
    checksums: Mapping[str, str] | None = None,
) -> str:
    """The report of some captures of one model.

    Parameters
    ----------
    model : Model
    captures : mapping of a picture's name to its capture
    checksums : mapping of a picture's name to the SHA-256 of its file, optional

    Returns
    -------
    str
        The file. For each picture it has the token map of all layers and heads, live, and the
        figures of the capture; then those of the weights. All have captions, equations and the
        line that says what was measured. It prints on A4. What cannot be shown of this model says
        so in a sentence.
    """
    from plotly.offline import get_plotlyjs

    plotly = get_plotlyjs()
    data: dict[str, Any] = {"maps": {}, "figures": {}, "mapStyle": style()}
    data["plotly"] = _compressed(np.frombuffer(plotly.encode(), np.uint8))
    sections = []
    for number, (name, acts) in enumerate(captures.items()):
        checksum = (checksums or {}).get(name)
        digest = f"SHA-256 {checksum}" if checksum else ""
        sections.append(_picture_section(number, name, digest, acts, data))
    sections.append(_weights_section(model, data))
    packages = ", ".join(f"{package} {version(package)}" for package in _PACKAGES)
    about = (
        f"{model.provenance}. Made with vitviz {version('vitviz')} on Python "
        f"{platform.python_version()} with {packages}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC."
    )
    title = escape(f"{model.name}: {', '.join(captures)}")
    warning = "" if model.trained else "<p class=warning>These are random weights.</p>"
    head = f"<h1>{title}</h1><p class=line>{escape(about)}</p>{warning}"
    return _file(title, head + "".join(sections), data, plotly)


def map_html(acts: "Activations", **chosen: int | None) -> str:
    """The token map of a capture alone, as a file like that of `html`.

    Parameters
    ----------
    chosen : layer, head and query to begin with, as in `token_map.view_message`

    Raises
    ------
    ModelError
        When a layer has no attention to show.
    """
    data = {"maps": {"map-0": map_data(acts, "map-0", **chosen)}, "figures": {}}
    body = f'<div id="map-0"></div><p class=line>{escape(acts.provenance)}</p>'
    return _file("Attention", body, {**data, "mapStyle": style(), "plotly": None})


def _file(title: str, body: str, data: dict[str, Any], *scripts: str) -> str:
    """An HTML file that runs the component, and these scripts where its data holds them."""
    module = script() + _asset("page.js")
    return _asset("page.html").format(
        policy=_policy(*scripts, module),
        title=title,
        style=_asset("page.css"),
        body=body,
        data=json.dumps(data).replace("<", "\\u003c"),
        module=module,
    )


def map_data(acts: "Activations", stack_id: str, **chosen: int | None) -> dict[str, Any]:
    """The token map of all layers as JSON can hold it: arrays compressed, then in base64.

    Raises
    ------
    ModelError
        When a layer has no attention to show, or the maps are too large for a file.
    """
    if acts.refusal:
        raise ModelError(acts.refusal)
    if (size := bytes_of(acts)) > MAX_BYTES:
        raise ModelError(
            f"The maps of all layers take {size / 1e6:,.0f} MB, more than the "
            f"{MAX_BYTES / 1e6:.0f} MB that a file may hold of them: the app shows them by layer."
        )
    layers = range(acts.depth)
    stack = packed(
        stack_id,
        frames_of(acts, layers),
        [shape_of(acts, layer) for layer in layers],
        "share",
        photo(acts.photo),
    )
    state: dict[str, Any] = {"layer": acts.depth - 1, "head": 0, "query": None, **chosen}
    return {
        "stack": stack.pop("stack"),
        "columns": {name: _compressed(values) for name, values in stack.items()},
        "view": view_message(acts, stack_id=stack_id, look=LOOK, **state),
    }


def _compressed(values: np.ndarray) -> list[str]:
    packed_bytes = gzip.compress(values.tobytes(), compresslevel=9, mtime=0)
    return [_TYPES[values.dtype.name], base64.b64encode(packed_bytes).decode()]


def _picture_section(
    number: int, name: str, digest: str, acts: "Activations", data: dict[str, Any]
) -> str:
    width, height = acts.picture_size
    line = f"{acts.provenance} · {name}"
    parts = [f"<h2>{escape(name)}</h2><p class=line>{width} × {height} pixels. {digest}</p>"]
    try:
        data["maps"][f"map-{number}"] = map_data(acts, f"map-{number}")
        parts.append(
            f'<figure class=map><div id="map-{number}"></div>{_caption("attention", "", line)}'
            "</figure>"
        )
    except ModelError as error:
        parts.append(f"<p>{escape(str(error))}</p>")
    for page, draw in _FIGURES:
        try:
            figure = draw(acts)
        except ValueError as error:  # what this model does not have, in one sentence
            parts.append(f"<p>{escape(str(error))}</p>")
            continue
        parts.append(_figure(figure, page, line, data))
    return f"<section>{''.join(parts)}</section>"


def _weights_section(model: "Model", data: dict[str, Any]) -> str:
    """Figures of the weights, which are the same for every picture."""
    parts, line = [], model.provenance
    kernel, table = model.patch_kernel, model.position_embedding
    if kernel is not None:
        count = min(28, len(kernel), kernel[0].size)
        found = inspection.filter_components(kernel, n_components=count)
        parts.append(_figure(plots.filter_components(*found), "filters", line, data))
    grid = model.layers[0].query_grid
    if table is not None and len(table) >= grid[0] * grid[1]:
        similarity = inspection.position_similarity(table, grid=grid)
        parts.append(_figure(plots.position_similarity(similarity), "positions", line, data))
    return f"<section><h2>The weights</h2>{''.join(parts)}</section>" if parts else ""


def _figure(figure: "go.Figure", page: str, line: str, data: dict[str, Any]) -> str:
    name = f"figure-{len(data['figures'])}"
    alt = figure.layout.meta["alt"]
    data["figures"][name] = json.loads(figure.to_json())
    return (
        f'<figure><div id="{name}" role="img" aria-label="{escape(alt)}"></div>'
        f"{_caption(page, alt, line)}</figure>"
    )


def _caption(page: str, alt: str, line: str) -> str:
    words = lesson(page)
    return (
        f"<figcaption><b>{escape(words.title)}: {escape(words.question)}</b> {escape(alt)} "
        f"<code>{escape(words.equation)}</code> <span class=line>{escape(line)}</span></figcaption>"
    )


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
