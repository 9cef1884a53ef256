"""The page Attention: one row or column of A for every head of a layer."""

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz import inspection, plots
from vitviz.app.shared import results
from vitviz.app.shared.classroom import PredictionQuestion
from vitviz.app.shared.view import View
from vitviz.app.widgets import prediction
from vitviz.app.widgets.counts import COUNTS, choose_counts, titles_of
from vitviz.app.widgets.data_table import Columns, Data, Table, patch_columns
from vitviz.app.widgets.figure import show_figure
from vitviz.app.widgets.places import draw_finding, places
from vitviz.app.widgets.token_map import MAX_MAP_BYTES, token_map
from vitviz.common.language import Message, tr, tr_md
from vitviz.text import findings
from vitviz.text import guesses as text
from vitviz.web.token_map import (
    Frame,
    MapShape,
    capture_frames,
    count_map_bytes,
    encode_frame,
    frame_shape,
    layer_names,
)

if TYPE_CHECKING:
    from vitviz.activations.activations import Of

SHOWN_UNITS = 28
MOST_MEASURED = 50_000_000  # numbers of A that are searched for patterns


def page(view: View) -> Data | None:
    acts = view.acts
    if acts.layers[view.layer].kind == "mixing":
        return _mixing(view)
    if refusal := acts.layers[view.layer].refusal:
        st.warning(tr_md(refusal))
        return None
    shapes = [frame_shape(acts, layer) for layer in range(acts.depth)]
    guess = None
    if prediction.is_on():
        guess = _guess(view, shapes[view.layer])
        if guess is None:
            return Data(lambda: [], hidden=True)
    counts = choose_counts(view)
    frames = _frames(view, counts)  # refuses a large input before anything else is computed
    if acts.all_to_all:
        draw_finding(_pattern(view) if counts != "output" else _sinks(view))
    with places().stage:
        token_map(
            view,
            frames,
            name="attention",
            kind="share",
            strip="heads",
            titles=titles_of(counts),
            version=counts,
            frame_setting=("layer", range(1, acts.depth + 1)),
            frame_names=layer_names(acts),
            shapes=shapes,
            distance=None if acts.refusal else _distance(view),
            guess=_encode_guess(guess),
            matrix=acts.all_to_all and counts == "weights",
        )
    if guess is not None:
        *_, grid, crop = guess.question.rest
        with st.columns(2)[0]:
            draw = partial(prediction.counts_figure, view, grid, crop)
            prediction.draw_class_guesses(guess.question, draw)
    return Data(
        lambda: [_table(view, shapes[view.layer], counts)],
        counted=None if counts == "weights" else tr(COUNTS[counts]),
    )


def _sinks(view: View) -> str:
    """Name the keys that get attention and add little, and those that add much to nearly all."""
    sinks = results.find_sinks(view, view.layer)
    return findings.sinks(view.layer + 1, sinks, view.grid[1], view.prefix)


def _guess(view: View, shape: MapShape) -> prediction.Guess | None:
    """Return the guess and say how near it is; None while it is asked for."""
    row = view.style.direction == "row" or shape.prefix_only
    grid, crop = (shape.key_grid, view.acts.crop_of(view.layer, keys=True))
    if not row:
        grid, crop = shape.grid, view.acts.crop_of(view.layer)
    depends_on = (view.layer, view.head, view.query, row, grid, crop)
    question = PredictionQuestion("attention", view.key, depends_on)
    guess = prediction.current_guess(question, stays=True)
    if guess is None:
        words = text.ask_where_it_looks(view.query_name, view.place, row)
        draw = partial(prediction.counts_figure, view, grid, crop)
        prediction.ask_patch(view, question, words, grid=grid, crop=crop, draw=draw)
        return None
    layer, head, query, row, grid, crop = guess.question.rest  # the map may show others by now
    asked_of = replace(
        view,
        layer=layer,
        head=head,
        query=query,
        style=replace(view.style, direction="row" if row else "column"),
    )

    def words_of(patch: int) -> str:
        shares = asked_of.of_head(results.query_shares(asked_of)[:, -grid[0] * grid[1] :])
        return text.describe_patch(
            shares.reshape(grid), patch, asked_of.query_name, asked_of.place, row
        )

    prediction.draw_verdict(guess, words_of)
    return guess


def _encode_guess(guess: prediction.Guess | None) -> dict[str, int] | None:
    """Return the guess in the token map's message format."""
    if guess is None or guess.answer is None:
        return None
    *_, (rows, cols), _crop = guess.question.rest
    return {"patch": guess.answer, "rows": rows, "cols": cols}


def _pattern(view: View) -> str:
    """Name the clearest pattern of all layers.

    Of a large model, and of one with a layer that is not shown, look at the layer on screen alone.
    """
    acts, (rows, cols) = view.acts, view.grid
    prefix = len(view.prefix)
    heads = sum(layer.num_heads for layer in acts.layers)
    all_fit = heads * (prefix + rows * cols) ** 2 <= MOST_MEASURED and not acts.refusal
    layers = range(acts.depth) if all_fit else [view.layer]

    def make() -> list[inspection.Patterns]:
        return [
            inspection.attention_patterns(
                acts.attention(layer), grid=view.grid, num_prefix_tokens=prefix
            )
            for layer in layers
        ]

    patterns = results.compute((*view.key, "patterns", tuple(layers)), make)
    return findings.attention(
        [layer + 1 for layer in layers],
        patterns,
        cols,
        view.prefix,
    )


def _mixing(view: View) -> Data:
    """Draw an MLP-Mixer's weights: what the first units of the layer take from each patch."""
    maps = view.model.token_mixing(view.layer)
    norms = np.linalg.norm(maps.reshape(len(maps), -1), axis=1)
    top = np.argsort(-norms, kind="stable")[:SHOWN_UNITS]
    st.info(
        tr_md(
            "{name} has no attention. Shown are weights, which are the same for every "
            "picture: those with which units of layer {layer} read each patch, for the "
            "{shown} of {maps} units with the largest norm.",
            name=view.model.name,
            layer=view.layer + 1,
            shown=len(top),
            maps=len(maps),
        )
    )
    show_figure(
        plots.token_mixing(maps[top], names=[tr("unit {unit}", unit=unit + 1) for unit in top])
    )
    columns: Columns = {Message("unit {unit}", unit=unit + 1): maps[unit].ravel() for unit in top}
    about = tr(
        "Weights with which layer {layer} mixes the patches; they are not attention.",
        layer=view.layer + 1,
    )
    grid = view.acts.layers[view.layer].query_grid
    return Data(
        lambda: [Table(about, {**patch_columns(view, grid=grid), **columns})],
        pictures=tr("no picture"),
    )


def _table(view: View, shape: MapShape, counts: "Of") -> Table:
    """Return one row or column of what the maps count for every head, in per cent."""
    row = view.style.direction == "row" or shape.prefix_only
    shares = 100 * results.query_shares(view, counts)
    columns: Columns = {Message("mean of heads, %"): shares.mean(axis=0)}
    columns |= {
        Message("head {number}, %", number=number + 1): share for number, share in enumerate(shares)
    }
    where = {"layer": view.layer + 1, "query": view.query_name}
    grid = shape.key_grid if row else shape.grid
    about = tr("Layer {layer}: attention from {query} to each token.", **where)
    if not row:
        about = tr("Layer {layer}: attention from each token to {query}.", **where)
    if counts != "weights":
        about += " " + tr("Counted is {what}, as a share of its row.", what=tr(COUNTS[counts]))
    return Table(
        about,
        {**patch_columns(view, prefix=True, grid=grid), **columns},
    )


def _frames(view: View, counts: "Of") -> list[Frame]:
    """Return the frames of all layers where these are small enough, else of the one on screen."""
    acts = view.acts
    all_fit = count_map_bytes(acts) <= MAX_MAP_BYTES and not acts.refusal
    wanted = range(acts.depth) if all_fit else [view.layer]
    results.check_message(count_map_bytes(acts, wanted))

    def make() -> list[Frame]:
        if counts == "weights":
            return capture_frames(acts, wanted)
        prefix = len(view.prefix)
        return [
            encode_frame(n, results.row_shares(view, counts, n), prefix, "share") for n in wanted
        ]

    return results.compute(
        (*view.key, "token map", counts, tuple(wanted)),
        make,
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
