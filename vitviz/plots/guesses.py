"""What was guessed before a figure was shown: one guess on the figure, those of a class counted."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
from PIL import Image

from ..language import patch_name, tr
from .maps import heat_map, on_picture, photo
from .template import Box, finish

_GUESS = "#ffffff"


def guesses(counts: np.ndarray, image: Image.Image, *, crop: Box) -> go.Figure:
    """How often each patch or block (rows, columns) was guessed, over the picture."""
    highest = int(counts.max())
    heat = heat_map(
        np.where(counts > 0, counts, np.nan),
        crop,
        tr("guesses"),
        {0.0: "0", float(highest): tr("{highest} max", highest=highest)},
        zmax=max(highest, 1),
        colorscale="Cividis",
        opacity=0.75,
        hoverongaps=False,
        hovertemplate="%{customdata}: %{z}<extra></extra>",
    )
    figure = go.Figure(heat)
    photo(figure, image)
    most = patch_name(*divmod(int(counts.argmax()), counts.shape[1]))
    said = tr("none yet")
    if highest:
        said = tr(
            "most at {place}, {count} of {all}", place=most, count=highest, all=int(counts.sum())
        )
    return on_picture(figure, image, tr("Guesses of the class: {said}.", said=said))


def guesses_by_layer(counts: Mapping[int, int], num_layers: int) -> go.Figure:
    """How often each layer, counted from 0, was guessed."""
    layers = np.arange(num_layers)
    values = [counts.get(int(layer), 0) for layer in layers]
    figure = go.Figure(
        go.Bar(
            x=layers + 1,
            y=values,
            marker_color="#4a86c5",
            hovertemplate=tr("layer %{x}: %{y}<extra></extra>"),
        )
    )
    figure.update_xaxes(title=tr("layer"), dtick=1 if num_layers <= 16 else None)
    figure.update_yaxes(
        title=tr("guesses"), rangemode="tozero", dtick=1 if max(values) <= 8 else None
    )
    most = int(np.argmax(values))
    said = tr("none yet")
    if any(values):
        said = tr(
            "most for layer {layer}, {count} of {all}",
            layer=most + 1,
            count=values[most],
            all=sum(values),
        )
    return finish(figure, tr("Guesses of the class: {said}.", said=said), height=300)


def with_guess(figure: go.Figure, box: Box) -> go.Figure:
    """A figure in pixels of a picture, with a guessed box (left, top, right, bottom) outlined."""
    edges = dict(zip(("x0", "y0", "x1", "y1"), box, strict=True))
    for colour, width in (("#000000", 5), (_GUESS, 3)):
        figure.add_shape(type="rect", line=dict(color=colour, width=width), **edges)
    return _said(figure, tr("A white box is around the guess."))


def with_guessed_layer(figure: go.Figure, layer: int) -> go.Figure:
    """A figure with an axis of layers, with the guessed one, counted from 0, outlined."""
    figure.add_vrect(
        x0=layer + 0.55,
        x1=layer + 1.45,
        line=dict(color="#4a86c5", width=3),
        annotation_text=tr("guess"),
        annotation_position="top left",
        annotation_font_size=14,
    )
    return _said(figure, tr("Layer {layer} was guessed.", layer=layer + 1))


def _said(figure: go.Figure, words: str) -> go.Figure:
    return figure.update_layout(meta={"alt": f"{figure.layout.meta['alt']} {words}"})
