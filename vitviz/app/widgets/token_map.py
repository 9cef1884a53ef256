"""Mount the token map on a page, send its view, and take what a visitor commits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal
from uuid import uuid4

import pyarrow as pa
import streamlit as st

from vitviz.app import settings
from vitviz.app.shared import results
from vitviz.app.shared.view import MEAN, placed_grid, token_text
from vitviz.app.widgets import lesson
from vitviz.common.language import tr
from vitviz.web.token_map import (
    Frame,
    MapKind,
    MapShape,
    default_query,
    frame_shape,
    map_colours,
    map_message,
    pack_stack,
    script,
    style,
)

if TYPE_CHECKING:
    from vitviz.app.shared.view import View

MAX_MAP_BYTES = 16_000_000  # of all frames' maps; where they take more, send one frame at a time
TOOLS = ("read", "view", "scale", "leave_out", "smooth")  # the component's own controls
_component = st.components.v2.component("vitviz_token_map", css=style(), js=script())


def token_map(
    view: "View",
    frames: Sequence[Frame],
    *,
    name: str,
    kind: MapKind,
    strip: Literal["heads", "frames"],
    titles: dict[str, str],
    frame_setting: tuple[str, Sequence[object]],
    frame_names: Sequence[str],
    shapes: Sequence[MapShape] | None = None,
    distance: dict[str, Any] | None = None,
    guess: dict[str, int] | None = None,
    version: str = "",
    low: float | None = None,
    patches_only: bool = False,
    matrix: bool = False,
    beside: Sequence[dict[str, Any]] = (),
) -> None:
    """Draw the component and take what is committed in it.

    Parameters
    ----------
    frames : sequence of Frame
        Those that the browser may move between without asking.
    name : str
        Of the page's component; one a page.
    strip : "heads" or "frames"
        What the small maps are.
    titles : dict
        Headings: "row", "column" and "strip"; "slider" where the frames have a slider.
    frame_setting : (name, values)
        The shared setting that a frame is, and its value for each frame.
    frame_names : sequence of str
    shapes : sequence of Shape, optional
        Where the tokens of each frame lie; left out where all are as in the first layer.
    distance : dict, optional
        `values` by layer and head, `equal` of each layer and `side`, in pixels, for the dots that
        lead to a head.
    guess : dict, optional
        `patch` that was guessed, which is outlined on maps of `rows` and `cols`.
    version : str
        What the numbers depend on beside model, picture and frames.
    low : float, optional
        The cosine at which the scale begins; -1 where left out.
    patches_only : bool
        The maps have no prefix tokens; while one of them is the query, the middle stands for it.
    matrix : bool
        Draw the whole matrix A beside the map, where every token attends to every token.
    beside : sequence of dict
        Other maps in a row with photo and map, as `Beside` in message.d.ts; the first stands
        between them.
    """
    picture = view.picture
    key, values = f"token_map_{name}", list(frame_setting[1])
    if shapes is None:
        one = frame_shape(view.acts, 0)
        if patches_only:
            one = replace(one, prefix=(), home=patch_number(one.grid, middle(one.grid)))
        heads = frames[0].codes.shape[0]
        shapes = [
            replace(one, heads=heads, equal_share=one.equal_share if kind == "share" else None)
        ]
        shapes *= len(values)
    stack_id = "-".join(
        (
            name,
            picture.digest[:16],
            *map(str, view.key[:2]),
            version,
            str(frames[0].index),
            str(view.style.seen),
        )
    )

    def commit() -> None:
        committed = take_commit(key)
        layer = int(committed["frame"]) if frame_setting[0] == "layer" else view.layer
        changes = committed_query(view, layer, committed, patches_only=patches_only)
        if changes:
            st.session_state.query_asked = True  # also where it is the default of this layer
        changes |= {
            frame_setting[0]: values[int(committed["frame"])],
            "head": committed_head(committed),
            "view": committed["view"],
            "scale": committed["scale"],
            "leave_out": "on" if committed["leaveOut"] else "off",
            "smooth": "on" if committed["smooth"] else "off",
        }
        if kind == "share":  # a cosine has no direction: the maps of attention keep theirs
            changes["read"] = committed["direction"]
        settings.change(**changes)  # what does not fit falls back there

    mount(
        key,
        pack_stack(stack_id, frames, shapes, kind, results.encoded_photo(view)),
        {
            "state": {
                "frame": values.index(st.session_state[frame_setting[0]]),
                "head": -1 if view.head is None else view.head,
                "query": sent_query(view, shapes[0], patches_only=patches_only),
                "pinned": view.query_patch is not None,
                "direction": view.style.direction if kind == "share" else "row",
                "view": view.style.view,
                "scale": view.style.scale,
                "leaveOut": view.style.leave_out,
                "smooth": view.style.smooth,
            },
            "strip": strip,
            "frames": [
                shape.to_message(name) for shape, name in zip(shapes, frame_names, strict=True)
            ],
            "titles": titles,
            "picture": sent_picture(view),
            "distance": distance,
            "guess": guess,
            "matrix": matrix,
            "beside": list(beside),
            "tools": [*filter(lesson.shows, TOOLS)],
            "provenance": f"{tr(view.model.provenance)} · {picture.name}",
            **({} if low is None else {"low": low, **map_colours(signed=False)}),
        },
        commit,
    )


def mount(
    key: str, stack: dict[str, Any], message: dict[str, Any], commit: Callable[[], None]
) -> None:
    """Mount the component twice: once with the numbers, once with what to show of them.

    Parameters
    ----------
    stack : as `pack_stack` returns it
    message : parts of the view message, see `view_message`
    commit : called when something is chosen, `st.session_state[key]["commit"]`
    """
    mount_numbers(_component, f"{key}_stack", stack)
    _component(
        key=key,
        on_commit_change=commit,
        data=map_message(
            stack["stack"]["id"],
            stack["stack"]["kind"],
            **map_session(),
            **message,
        ),
    )


def mount_numbers(component: Callable[..., object], key: str, stack: dict[str, Any]) -> None:
    """Mount a component with the numbers alone; it takes no room, as the style says of its key."""
    data = {
        name: value if name == "stack" else pa.table({"values": value})
        for name, value in stack.items()
    }
    component(key=key, height=1, data=data)


def map_session() -> dict[str, Any]:
    """Return the session, and the number of the last commit in it, as components tell them back."""
    return {
        "session": st.session_state.setdefault("map_session", uuid4().hex),
        "version": st.session_state.setdefault("map_version", 0),
    }


def take_commit(key: str) -> dict[str, Any]:
    """Return what was committed in the component under a key."""
    committed: dict[str, Any] = st.session_state[key]["commit"]
    st.session_state.map_version = committed["version"]
    return committed


def committed_head(committed: dict[str, Any]) -> object:
    """Return the setting of the head that was committed."""
    return MEAN if committed["head"] < 0 else committed["head"] + 1


def committed_query(
    view: "View", layer: int, committed: dict[str, Any], *, patches_only: bool
) -> dict[str, object]:
    """Return the setting of the query that was committed in maps of a layer; nothing if it stays.

    With `patches_only` the maps have no prefix tokens, and a patch that is let go gives way to the
    token of the head.
    """
    acts = view.acts  # which no callback must hold, as the session keeps it
    described, query = acts.layers[layer], int(committed["query"])
    st.session_state.query_grid = placed_grid(view.picture, acts, layer)
    if not patches_only:
        return {"query": token_text(described, query)}
    if committed["pinned"]:
        return {"query": token_text(described, len(described.prefix) + query)}
    if view.query_patch is not None:
        return {"query": token_text(described, default_query(acts, described))}
    return {}


def sent_query(view: "View", shape: MapShape, *, patches_only: bool) -> int:
    """Return the query as the component counts it, -1 for the mean of the patches."""
    if patches_only:
        return patch_number(shape.grid, view.query_patch) if view.query_patch else shape.home
    return -1 if view.query is None else view.query


def frames_to_send(count: int, selected: int, numbers: int) -> Sequence[int]:
    """Return the frames that the browser may move between: all if they are small, or the selected.

    Parameters
    ----------
    numbers : of the maps of one frame, a byte each

    Raises
    ------
    ModelError
        When one frame alone is too large for a message.
    """
    results.check_message(numbers)
    return range(count) if count * numbers <= MAX_MAP_BYTES else [selected]


def sent_picture(view: "View") -> dict[str, Any]:
    """Return the size of the picture on screen, and what of it the model saw."""
    width, height = view.picture.size
    return {"width": width, "height": height, "crop": list(view.acts.crop)}


def middle(grid: tuple[int, int]) -> tuple[int, int]:
    """Return row and column of the patch in the middle."""
    return grid[0] // 2, grid[1] // 2


def patch_number(grid: tuple[int, int], patch: tuple[int, int]) -> int:
    return patch[0] * grid[1] + patch[1]
