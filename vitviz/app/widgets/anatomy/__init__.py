"""The component of the page Anatomy on a page: what it is told to show, and what is committed."""

import math
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pyarrow as pa
import streamlit as st

from vitviz.anatomy_map import script, style
from vitviz.app import settings
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import results
from vitviz.app.shared.view import token_text
from vitviz.app.widgets.anatomy.numbers import (
    answers,
    layer_of,
    residual_of,
    scores_of,
    sent_layer,
    sent_steps,
    steps_of,
)
from vitviz.app.widgets.anatomy.words import boxes_of, cards_of
from vitviz.plots.template import KEY, QUERY, colour_table
from vitviz.text import anatomy as text
from vitviz.token_map import default_query

if TYPE_CHECKING:
    from vitviz.anatomy import Box
    from vitviz.app.shared.view import View

__all__ = ["anatomy", "layer_of", "pair", "scores_of", "steps_of", "token_name"]

SIDES = (14, 16, 32)  # patches that others are compared with
_NAME = "anatomy"
_component = st.components.v2.component("vitviz_anatomy", css=style(), js=script())


def anatomy(view: "View") -> None:
    """Draw the component and take what is committed in it."""
    steps, layer = steps_of(view), layer_of(view)
    cards, boxes = cards_of(view, steps), boxes_of(view, layer)
    inside = [box["id"] for box in boxes]
    setting("step", [*(card["id"] for card in cards), *inside], cards[0]["id"])
    seen = "seen" if view.style.seen else "photo"
    steps_id = "-".join((*map(str, view.key[:2]), view.picture.digest[:16], seen))
    layer_id = f"{steps_id}-{view.layer}"
    sent = sent_layer(view, layer, layer_id)
    steps_sent = sent_steps(steps, steps_id, results.encoded_photo(view))
    for place, numbers in (("steps", steps_sent), ("layer", sent)):
        _component(
            key=f"token_map_{_NAME}_{place}_stack",  # takes no room, as the style says of this name
            height=1,
            data={
                name: value if name == "stack" else pa.table({"values": value})
                for name, value in numbers.items()
            },
        )
    _component(
        key=_NAME,
        on_commit_change=lambda: _take(view),
        data={
            "stepsId": steps_id,
            "layerId": sent["stack"]["id"],
            "session": st.session_state.setdefault("map_session", uuid4().hex),
            "version": st.session_state.setdefault("map_version", 0),
            "state": _state(view),
            "frame": view.layer,
            "depth": view.acts.depth,
            "cards": cards,
            "boxes": boxes,
            "equations": text.EQUATIONS,
            "shape": _shape(view),
            "facts": _facts(view, steps),
            "costs": _costs(view),
            "residual": residual_of(view),
            "picture": {
                "width": view.picture.size[0],
                "height": view.picture.size[1],
                "crop": list(view.acts.crop),
            },
            "lut": colour_table(True),
            "queryColour": QUERY,
            "keyColour": KEY,
            **answers(view),
        },
    )


def pair(view: "View") -> tuple[int, int]:
    """The query and the key that are worked out, as the component chooses them where none is."""
    prefix, (rows, cols) = len(view.prefix), view.grid
    middle = prefix + rows // 2 * cols + cols // 2
    query = middle if view.query is None else view.query
    if (key := _state(view)["key"]) < 0:
        key = prefix + int(view.acts.attention(view.layer)[view.head or 0, query, prefix:].argmax())
    return query, key


def token_name(view: "View", token: int) -> str:
    patch = token - len(view.prefix)
    if patch < 0:
        return view.prefix[token].upper()
    row, col = divmod(patch, view.grid[1])
    return f"row {row + 1} column {col + 1}"


def _take(view: "View") -> None:
    """Write what was committed into the shared settings; what does not fit falls back there."""
    committed = st.session_state[_NAME]["commit"]
    st.session_state.map_version = committed["version"]
    layer, key = view.acts.layers[view.layer], int(committed["key"])
    settings.change(
        layer=int(committed["frame"]) + 1,
        head="mean" if committed["head"] < 0 else committed["head"] + 1,
        query=token_text(layer, int(committed["query"])),
        step=committed["step"],
        key=token_text(layer, key) if key >= 0 else "",
    )


def _state(view: "View") -> dict[str, Any]:
    described = view.acts.layers[view.layer]
    count = len(described.prefix) + math.prod(described.query_grid)
    names = [token_text(described, token) for token in range(count)]
    chosen = text_setting("key", lambda said: said in ("", *names))
    return {
        "frame": view.layer,
        "head": -1 if view.head is None else view.head,
        "query": -1 if view.query is None else view.query,
        "step": st.session_state["step"],
        "key": names.index(chosen) if chosen else -1,
    }


def _shape(view: "View") -> dict[str, Any]:
    described = view.acts.layers[view.layer]
    home = default_query(view.acts, described)
    return {
        "rows": described.query_grid[0],
        "cols": described.query_grid[1],
        "crop": list(view.acts.crop_of(view.layer)),
        "prefix": [name.upper() for name in described.prefix],
        "heads": described.num_heads,
        "home": -1 if home is None else home,
    }


def _facts(view: "View", steps: "tuple[Box, ...]") -> dict[str, Any]:
    preprocess = view.model.preprocess
    picture = steps[0].shape
    dim = _head_dim(view)
    try:
        scale, _ = view.acts.score_terms(view.layer)
    except ValueError:
        scale = 1.0
    plain = dim and math.isclose(scale, dim**-0.5, rel_tol=1e-6)
    return {
        "grid": list(view.acts.layers[0].query_grid),
        "channels": picture[2],
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "stem": any(box.name == "stem" for box in steps),
        "scale": scale,
        "divide": f"÷ √{dim}" if plain else f"× {scale:.3g}",
        "opened": dim > 0,
    }


def _head_dim(view: "View") -> int:
    return next((box.shape[-1] for box in layer_of(view) if box.name == "queries"), 0)


def _costs(view: "View") -> dict[str, Any]:
    """Tokens and pairs of tokens with patches of other sides."""
    height, width = view.model.preprocess.input_size
    own = view.acts.layers[0].patch_size
    side = own if isinstance(own, int) else own[0]
    here = math.prod(view.acts.layers[0].query_grid)
    sides = sorted({side, *(other for other in SIDES if other <= min(height, width))})
    counts = [here if s == side else (height // s) * (width // s) for s in sides]
    return {
        "here": sides.index(side),
        "rows": [
            [str(s), f"{n:,}", f"{n * n:,}", _times(n * n, here * here)]
            for s, n in zip(sides, counts, strict=True)
        ],
        "shares": [(n / max(counts)) ** 2 for n in counts],
    }


def _times(count: int, here: int) -> str:
    """How many times as many as here."""
    times = max(count / here, here / count)
    text = f"{times:,.0f}" if times >= 10 else f"{times:.3g}"
    return f"1/{text}" if count < here else f"{text} times"
