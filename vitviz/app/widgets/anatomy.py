"""Mount the component of Anatomy on a page, send its view, and take what a visitor commits."""

import math
from typing import TYPE_CHECKING, Any

import streamlit as st

from vitviz.app import settings
from vitviz.app.settings import setting, text_setting
from vitviz.app.shared import results
from vitviz.app.shared.view import placed_grid, token_text
from vitviz.app.widgets import lesson
from vitviz.app.widgets.token_map import committed_head, map_session, mount_numbers, take_commit
from vitviz.common.language import tr
from vitviz.text import anatomy as text
from vitviz.web.anatomy_map import (
    MAX_LAYER_BYTES,
    Anatomy,
    anatomy_message,
    layer_message,
    script,
    steps_message,
    style,
)

if TYPE_CHECKING:
    from vitviz.app.shared.view import View
    from vitviz.web.anatomy import Box, Residual

_NAME = "anatomy"
_component = st.components.v2.component("vitviz_anatomy", css=style(), js=script())


def draw_anatomy(view: "View") -> None:
    """Draw the component and take what is committed in it."""
    of = Anatomy(
        model=view.model,
        acts=view.acts,
        layer=view.layer,
        query=view.query,
        steps=steps_of(view),
        boxes=layer_of(view),
        residual=_residual_of(view),
    )
    background = "seen" if view.style.seen else "photo"
    steps_id = "-".join((*map(str, view.key[:2]), view.picture.digest[:16], background))
    steps = steps_message(of, steps_id, results.encoded_photo(view), MAX_LAYER_BYTES)
    layer = layer_message(of, f"{steps_id}-{view.layer}", MAX_LAYER_BYTES)
    for place, numbers in (("steps", steps), ("layer", layer)):
        mount_numbers(_component, f"token_map_{_NAME}_{place}_stack", numbers)
    message = anatomy_message(
        of,
        stepsId=steps_id,
        layerId=layer["stack"]["id"],
        **map_session(),
        layers=[*range(view.acts.depth)],
        alone=True,
        guided=lesson.current_step() is not None,
        partial=tr(text.PARTIAL_APP),
        provenance=f"{tr(view.model.provenance)} · {view.picture.name}",
    )
    ids = [one["id"] for one in (*message["cards"], *message["boxes"])]
    setting("step", ids, ids[0])
    _component(
        key=_NAME,
        on_commit_change=lambda: _take(view),
        data={**message, "state": _state(view)},
    )


def steps_of(view: "View") -> "tuple[Box, ...]":
    """Return the picture at each step, cached."""
    from vitviz.web import anatomy

    return results.compute(  # in a turn, as it may make a pass
        (*view.key, "steps"),
        lambda: anatomy.steps(view.model, view.picture.image, view.acts),
    )


def layer_of(view: "View") -> "tuple[Box, ...]":
    """Return the layer on screen, box by box, cached."""
    from vitviz.web import anatomy

    return results.compute(
        (*view.key, "boxes", view.layer),
        lambda: anatomy.layer_boxes(view.model, view.acts, view.layer),
    )


def _residual_of(view: "View") -> "Residual":
    from vitviz.web import anatomy

    return results.compute(
        (*view.key, "residual stream"), lambda: anatomy.residual_stream(view.acts)
    )


def pair(view: "View") -> tuple[int, int]:
    """Return the query and key that are worked out; the component's choice where none is."""
    prefix, (rows, cols) = len(view.prefix), view.grid
    middle = prefix + rows // 2 * cols + cols // 2
    query = middle if view.query is None else view.query
    if (key := _state(view)["key"]) < 0:
        key = prefix + int(view.acts.attention(view.layer)[view.head or 0, query, prefix:].argmax())
    return query, key


def _take(view: "View") -> None:
    """Write what was committed into the shared settings; what does not fit falls back there."""
    committed, acts = take_commit(_NAME), view.acts
    # The browser may not have heard of the layer, or the model, that was drawn last.
    tokens_of = min(int(committed["tokensOf"]), acts.depth - 1)
    layer, key = acts.layers[tokens_of], int(committed["key"])
    st.session_state.query_grid = placed_grid(view.picture, acts, tokens_of)
    settings.change(
        layer=int(committed["frame"]) + 1,
        head=committed_head(committed),
        query=token_text(layer, int(committed["query"])),
        step=committed["step"],
        key=token_text(layer, key) if key >= 0 else "",
    )


def _state(view: "View") -> dict[str, Any]:
    described = view.acts.layers[view.layer]
    count = len(described.prefix) + math.prod(described.query_grid)
    names = [token_text(described, token) for token in range(count)]
    chosen = text_setting("key", lambda name: name in ("", *names))
    return {
        "frame": view.layer,
        "head": -1 if view.head is None else view.head,
        "query": -1 if view.query is None else view.query,
        "step": st.session_state["step"],
        "key": names.index(chosen) if chosen else -1,
        "tokensOf": view.layer,
    }
