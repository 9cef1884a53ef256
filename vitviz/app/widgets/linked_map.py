"""Two token maps side by side: one place in both, on one scale."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st

from vitviz.app import settings
from vitviz.app.shared import results
from vitviz.app.shared.view import placed_grid, token_text
from vitviz.app.widgets.token_map import mount, patch_number, sent_picture
from vitviz.language import tr
from vitviz.token_map import Frame, Kind, Shape, default_query, packed

if TYPE_CHECKING:
    from vitviz.app.shared.view import View


def scale_of(view: "View") -> Literal["shared", "log"]:
    """The scale of both maps, which is one for both: logarithmic where Attention's is."""
    return "log" if view.style.scale == "log" else "shared"


def _sent_matches(nearest: np.ndarray, mutual: np.ndarray, back: np.ndarray) -> dict[str, Any]:
    return {"nearest": nearest.tolist(), "mutual": mutual.tolist(), "back": back.tolist()}


def linked_map(
    view: "View",
    frame: Frame,
    shape: Shape,
    *,
    name: str,
    kind: Kind,
    title: str,
    map_name: str,
    version: Sequence[object] = (),
    asked: "View | None" = None,
    matches: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None,
) -> None:
    """Draw the photo and the map of one side; the page's other one follows it.

    Parameters
    ----------
    view : whose picture is drawn
    frame : number 0
    shape : where its tokens lie
    name : of the side
    title : of the map
    map_name : its layer, and what else is to be said of it
    version : what the numbers depend on beside the view's model and picture
    asked : View, optional
        Of the queries, where these are patches of another picture.
    matches : optional
        Of each query the numbers of its nearest patches in this picture (queries, k), and whether
        it is the nearest of the first one (queries,); and of each patch of this picture the numbers
        of the nearest queries (patches, k).
    """
    key, asked = f"token_map_compare_{name}", asked or view
    patches_only = kind == "cosine"
    query = -1 if asked.query is None else asked.query
    if patches_only:
        patch = asked.query_patch
        query = shape.home if patch is None else patch_number(shape.grid, patch)

    pictures = dict.fromkeys((asked.picture.name, view.picture.name))

    def commit() -> None:
        committed = st.session_state[key]["commit"]
        st.session_state.map_version = committed["version"]
        number = int(committed["query"])
        layer = asked.acts.layers[asked.layer]
        st.session_state.query_grid = placed_grid(asked.picture, asked.acts, asked.layer)
        if not patches_only:
            head = "mean" if committed["head"] < 0 else committed["head"] + 1
            if shape.heads > 1:
                settings.change(head=head)
            settings.change(query=token_text(layer, number))
        elif committed["pinned"]:
            settings.change(query=token_text(layer, len(layer.prefix) + number))
        elif asked.query_patch is not None:  # let go: back to the token that is no patch
            settings.change(query=token_text(layer, default_query(asked.acts, layer)))

    stack_id = "-".join(map(str, (name, kind, *view.key, *version, view.style.seen)))
    mount(
        key,
        packed(stack_id, [frame], [shape], kind, results.encoded_photo(view)),
        {
            "state": {
                "frame": 0,
                "head": -1 if view.head is None else view.head,
                "query": query,
                "pinned": asked.query_patch is not None,
                "direction": "row" if patches_only else view.style.direction,
                "view": "heat",
                "scale": scale_of(view),
                "leaveOut": False,
                "smooth": False,
            },
            "strip": "heads" if shape.heads > 1 else "frames",
            "frames": [shape.sent(map_name)],
            "titles": {
                "row": title,
                "column": title,
                "strip": "",
                "photo": tr("Most similar patches"),
            },
            "picture": sent_picture(view),
            "distance": None,
            "guess": None,
            "tools": None,
            "provenance": f"{tr(view.model.provenance)} · " + tr(" and ").join(pictures),
            "link": "compare",
            "matches": None if matches is None else _sent_matches(*matches),
        },
        commit,
    )
