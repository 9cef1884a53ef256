"""Who looks where: one row or column of A, for every head of the layer."""

import numpy as np
import streamlit as st

from vitviz import inspection
from vitviz.app import state
from vitviz.app.data import Data, Table, patch_columns
from vitviz.app.state import View
from vitviz.app.token_map import MAX_BYTES, Frame, encode, token_map


def page(view: View) -> Data | None:
    layers = view.acts.layers
    if refusal := layers[view.layer].refusal:
        st.warning(refusal)
        return None
    depth = view.acts.depth
    token_map(
        view,
        _frames(view),
        name="attention",
        kind="share",
        strip="heads",
        titles={"row": "Where it looks", "column": "Who looks at it", "strip": "All heads of"},
        frame_setting=("layer", range(1, depth + 1)),
        frame_names=[f"layer {number}" for number in range(1, depth + 1)],
        distance=None if any(layer.refusal for layer in layers) else _distance(view),
    )
    return Data(lambda: [_table(view)])


def _table(view: View) -> Table:
    """One row or column of A for every head, in per cent."""
    attention, row = view.acts.attention(view.layer), view.looks.direction == "row"
    looking = 100 * (attention if row else attention.swapaxes(1, 2))
    prefix = len(view.prefix)
    shares = looking[:, prefix:].mean(axis=1) if view.query is None else looking[:, view.query]
    columns = {"mean of heads, %": shares.mean(axis=0)}
    columns |= {f"head {number + 1}, %": share for number, share in enumerate(shares)}
    what = "from {} to each token" if row else "from each token to {}"
    return Table(
        f"Layer {view.layer + 1}: attention {what.format(view.query_name)}.",
        {**patch_columns(view, prefix=True), **columns},
    )


def _frames(view: View) -> list[Frame]:
    """All layers where they are small enough, else the one on screen."""
    acts, heads = view.acts, view.acts.layers[view.layer].num_heads
    tokens = acts.num_prefix_tokens + acts.grid[0] * acts.grid[1]
    all_fit = acts.depth * heads * tokens**2 <= MAX_BYTES
    all_fit = all_fit and not any(layer.refusal for layer in acts.layers)
    wanted = range(acts.depth) if all_fit else [view.layer]

    def make() -> list[Frame]:
        prefix = acts.num_prefix_tokens
        return [encode(layer, acts.attention(layer), prefix, "share") for layer in wanted]

    return state.captures().get(
        (*view.key, "token map", tuple(wanted)),
        make,
        lambda frames: sum(frame.nbytes for frame in frames),
    )


def _distance(view: View) -> dict[str, object]:
    acts = view.acts
    rows = state.measurements(view).distance.round(2).tolist()
    return {
        "values": [[None if np.isnan(pixels) else pixels for pixels in row] for row in rows],
        "equal": inspection.uniform_distance(acts.grid, acts.patch_size),
        "side": max(view.model.preprocess.input_size),
    }
