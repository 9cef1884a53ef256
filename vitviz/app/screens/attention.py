"""The page Attention: one row or column of A for every head of a layer."""

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Data, Table, patch_columns
from vitviz.app.widgets.figure import show
from vitviz.app.widgets.finding import finding
from vitviz.app.widgets.token_map import MAX_BYTES, token_map
from vitviz.text import findings
from vitviz.token_map import TITLES, Frame, Shape, bytes_of, frames_of, layer_names, shape_of

SHOWN_UNITS = 28
MOST_MEASURED = 50_000_000  # numbers of A that are searched for patterns


def page(view: View) -> Data | None:
    acts = view.acts
    if acts.layers[view.layer].kind == "mixing":
        return _mixing(view)
    if refusal := acts.layers[view.layer].refusal:
        st.warning(refusal)
        return None
    if acts.all_to_all:
        finding(_pattern(view))
    shapes = [shape_of(acts, layer) for layer in range(acts.depth)]
    token_map(
        view,
        _frames(view),
        name="attention",
        kind="share",
        strip="heads",
        titles=TITLES,
        frame_setting=("layer", range(1, acts.depth + 1)),
        frame_names=layer_names(acts),
        shapes=shapes,
        distance=None if acts.refusal else _distance(view),
    )
    return Data(lambda: [_table(view, shapes[view.layer])])


def _pattern(view: View) -> str:
    """The clearest pattern of all layers, or of the one on screen where the model is large."""
    acts, (rows, cols) = view.acts, view.grid
    prefix = len(view.prefix)
    numbers = acts.depth * acts.num_heads * (prefix + rows * cols) ** 2
    layers = range(acts.depth) if numbers <= MOST_MEASURED else [view.layer]

    def make() -> list[inspection.Patterns]:
        return [
            inspection.attention_patterns(
                acts.attention(layer), grid=view.grid, num_prefix_tokens=prefix
            )
            for layer in layers
        ]

    found = results.captures().get(
        (*view.key, "patterns", tuple(layers)), make, lambda made: 100 * len(made) * acts.num_heads
    )
    return findings.attention(
        [layer + 1 for layer in layers],
        [each.shares for each in found],
        found[0].uniform,
        [each.patch for each in found],
        [each.moved for each in found],
        cols,
    )


def _mixing(view: View) -> Data:
    """An MLP-Mixer's weights: what the first units of the layer take from each patch."""
    maps = view.model.token_mixing(view.layer)
    norms = np.linalg.norm(maps.reshape(len(maps), -1), axis=1)
    shown = np.argsort(-norms, kind="stable")[:SHOWN_UNITS]
    st.info(
        f"{view.model.name} has no attention. Shown are weights, which are the same for every "
        f"picture: those with which units of layer {view.layer + 1} read each patch, for the "
        f"{len(shown)} of {len(maps)} units with the largest norm."
    )
    show(plots.token_mixing(maps[shown], names=[f"unit {unit + 1}" for unit in shown]))
    columns = {f"unit {unit + 1}": maps[unit].ravel() for unit in shown}
    about = f"Weights with which layer {view.layer + 1} mixes the patches; they are not attention."
    grid = view.acts.layers[view.layer].query_grid
    return Data(
        lambda: [Table(about, {**patch_columns(view, grid=grid), **columns})], pictures="no picture"
    )


def _table(view: View, shape: Shape) -> Table:
    """One row or column of A for every head, in per cent."""
    row = view.style.direction == "row" or shape.prefix_only
    shares = results.query_shares(view)
    shares = 100 * shares
    columns = {"mean of heads, %": shares.mean(axis=0)}
    columns |= {f"head {number + 1}, %": share for number, share in enumerate(shares)}
    what = "from {} to each token" if row else "from each token to {}"
    grid = shape.key_grid if row else shape.grid
    return Table(
        f"Layer {view.layer + 1}: attention {what.format(view.query_name)}.",
        {**patch_columns(view, prefix=True, grid=grid), **columns},
    )


def _frames(view: View) -> list[Frame]:
    """The frames of all layers where these are small enough, else of the one on screen."""
    acts = view.acts
    all_fit = bytes_of(acts) <= MAX_BYTES and not acts.refusal
    wanted = range(acts.depth) if all_fit else [view.layer]

    return results.captures().get(
        (*view.key, "token map", tuple(wanted)),
        lambda: frames_of(acts, wanted),
        lambda frames: sum(frame.nbytes for frame in frames),
    )


def _distance(view: View) -> dict[str, object]:
    distance, equal = results.distances(view)
    return {
        "values": [
            [None if np.isnan(pixels) else round(float(pixels), 2) for pixels in heads]
            for heads in distance
        ],
        "equal": [None if np.isnan(pixels) else float(pixels) for pixels in equal],
        "side": max(view.model.preprocess.input_size),
    }
