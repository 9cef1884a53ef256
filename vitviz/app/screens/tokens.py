"""The page Tokens: cosine similarity, principal components and norms of the tokens."""

import numpy as np
import streamlit as st

from vitviz import inspection
from vitviz.app.screens import token_components, token_layers, token_norms
from vitviz.app.screens.token_components import Components, final_tokens
from vitviz.app.shared import results
from vitviz.app.shared.view import View
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.finding import finding
from vitviz.app.widgets.token_map import MAX_BYTES, token_map
from vitviz.language import Message, tr
from vitviz.text import findings
from vitviz.token_map import Frame, encode


def page(view: View) -> Data | None:
    depth = view.acts.depth
    finding(findings.tokens(_cosines(view), view.layer + 1))
    token_map(
        view,
        _frames(view),
        name="tokens",
        kind="cosine",
        strip="frames",
        titles={
            "row": tr("Similarity to the query"),
            "strip": tr("After each layer"),
            "slider": tr("After layer"),
        },
        frame_setting=("layer", range(1, depth + 1)),
        frame_names=[tr("layer {layer}", layer=number) for number in range(1, depth + 1)],
    )
    grid = view.acts.grid
    most = min(token_components.MOST, grid[0] * grid[1], final_tokens(view, view.layer).shape[1])
    if most < token_components.CHANNELS:
        st.info(
            tr(
                "A picture of {rows} x {columns} patches has fewer than {count} components.",
                rows=grid[0],
                columns=grid[1],
                count=token_components.CHANNELS,
            )
        )
        token_norms.draw(view)
        return None
    st.subheader(
        tr("Principal components of the patches after layer {layer}", layer=view.layer + 1),
        anchor=False,
    )
    found = token_components.choose(view, most)
    token_components.draw(view, found)
    scatter, norms = st.columns([3, 2])
    with scatter:
        token_components.draw_scatter(view, found)
    with norms:
        token_norms.draw(view)
    profile = token_layers.draw(view)
    return Data(
        lambda: [
            _table(view, found),
            *(token_layers.tables(view, profile) if profile else ()),
        ]
    )


def _table(view: View, found: Components) -> Table:
    prefix, tokens = len(view.prefix), view.acts.tokens(view.layer + 1)
    cosines = inspection.token_similarity(final_tokens(view, view.layer))[:, prefix:]
    asked = cosines[prefix:].mean(axis=0) if view.query is None else cosines[view.query]
    columns: Columns = {**patch_columns(view)}
    columns |= {Message("cosine with the query"): asked, Message("kept"): found.kept.ravel()}
    for number, values in enumerate(found.points[prefix:].T):
        columns[Message("component {number}", number=number + 1)] = values
    columns[Message("norm")] = np.linalg.norm(tokens[prefix:], axis=1)
    fitted = token_components.all_samples() if found.basis else tr("the patches that are kept")
    return Table(
        tr(
            "Each patch after layer {layer}: its cosine with {query}, its place on the "
            "principal components of {fitted}, and its norm before the final LayerNorm.",
            layer=view.layer + 1,
            query=view.query_name,
            fitted=fitted,
        ),
        columns,
    )


def _frames(view: View) -> list[Frame]:
    """The frames of all layers where these are small enough, else of the one on screen."""
    acts, prefix = view.acts, len(view.prefix)
    tokens = prefix + acts.grid[0] * acts.grid[1]
    layers = range(acts.depth) if acts.depth * tokens**2 <= MAX_BYTES else [view.layer]

    def make() -> list[Frame]:
        return [
            encode(
                layer,
                inspection.token_similarity(final_tokens(view, layer))[None],
                prefix,
                "cosine",
            )
            for layer in layers
        ]

    return results.captures().get(
        (*view.key, "similarity", tuple(layers)),
        make,
        lambda frames: sum(frame.nbytes for frame in frames),
    )


def _cosines(view: View) -> list[float]:
    """The mean cosine of two different patches after each layer."""

    def make() -> list[float]:
        means = []
        for layer in range(view.acts.depth):
            patches = final_tokens(view, layer)[len(view.prefix) :]
            lengths = np.linalg.norm(patches, axis=1, keepdims=True)
            count, total = len(patches), (patches / np.maximum(lengths, 1e-12)).sum(axis=0)
            means.append(float((total @ total - count) / max(count**2 - count, 1)))
        return means

    return results.captures().get((*view.key, "mean cosines"), make, lambda made: 8 * len(made))
