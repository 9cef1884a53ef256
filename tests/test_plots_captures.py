"""Figures of a capture alone: the numbers are the capture's."""

import dataclasses
import functools
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
from examples import example, own_model, picture
from numpy.testing import assert_allclose

import vitviz
from vitviz import Activations, capture, inspection, plots
from vitviz.common.language import use_language

LARGE = (2250, 1800)  # pixels: its small copy has fewer


@functools.cache
def acts() -> Activations:
    return capture(example("plain"), picture())


def heat(figure: go.Figure) -> go.Heatmap:
    (found,) = [trace for trace in figure.data if isinstance(trace, go.Heatmap)]
    return found


def edges(figure: go.Figure) -> tuple[float, float, float, float]:
    """Left, top, right and bottom of a heat map."""
    trace = heat(figure)
    rows, cols = np.shape(trace.z)
    left, top = trace.x0 - trace.dx / 2, trace.y0 - trace.dy / 2
    return left, top, left + cols * trace.dx, top + rows * trace.dy


@pytest.mark.parametrize("head", [None, 0, 3])
@pytest.mark.parametrize("query", [None, 0, 9, (2, 5)])
@pytest.mark.parametrize("direction", ["row", "column"])
def test_an_attention_map_is_that_of_the_capture(
    head: int | None, query: Any, direction: Any
) -> None:
    figure = plots.attention_map(acts(), 1, head, query=query, direction=direction)
    found = acts().attention_map(1, query, direction=direction)
    wanted = found.mean(axis=0) if head is None else found[head]
    assert_allclose(heat(figure).z, 100 * wanted, rtol=1e-6)
    assert_allclose(edges(figure), acts().crop)
    words = figure.layout.meta["alt"]
    assert ("mean of heads" if head is None else f"head {head + 1}") in words
    asked = {None: "CLS", 0: "CLS", 9: "row 2, column 3", (2, 5): "row 3, column 6"}
    assert asked[query] in words
    assert len(figure.layout.shapes) == (1 if query in (None, 0) else 2)  # the outline, the patch


def test_the_patch_that_asks_has_a_box() -> None:
    box = plots.attention_map(acts(), 0, 0, query=(2, 5)).layout.shapes[-1]
    left, top, right, bottom = acts().crop
    width, height = (right - left) / 6, (bottom - top) / 4
    assert_allclose((box.x0, box.x1), (left + 5 * width, left + 6 * width))
    assert_allclose((box.y0, box.y1), (top + 2 * height, top + 3 * height))
    assert box.line.color == plots.QUERY
    of_key = plots.attention_map(acts(), 0, 0, query=(2, 5), direction="column")
    assert of_key.layout.shapes[-1].line.color == plots.KEY


def test_a_map_of_a_large_picture_lies_on_its_small_copy() -> None:
    large = capture(example("plain"), picture(50, 40).resize(LARGE))
    scale = large.photo.width / LARGE[0]
    assert scale < 1
    assert_allclose(edges(plots.attention_map(large, 0, 0)), np.multiply(large.crop, scale))


def test_what_is_not_there_is_refused() -> None:
    with pytest.raises(ValueError, match=r"head in 0\.\.3, got 4"):
        plots.attention_map(acts(), 0, 4)
    with pytest.raises(ValueError, match="layer"):
        plots.attention_map(acts(), 3, 0)
    with pytest.raises(ValueError, match="no class probabilities"):
        plots.class_probabilities(capture(own_model(num_classes=0), picture()))


def test_the_patches_of_a_film_have_the_shape_that_they_have_in_the_picture() -> None:
    model = example("plain")  # whose patches are square in its input
    assert plots.token_film(capture(model, picture())).layout.yaxis.scaleratio == pytest.approx(1)
    squashed = dataclasses.replace(model.preprocess, crop_mode="squash", crop_pct=1.0)
    model = vitviz.watch(model.module, preprocessing=squashed)
    film = plots.token_film(capture(model, picture(60, 50)))
    assert film.layout.yaxis.scaleratio == pytest.approx((50 / 4) / (60 / 6))


def distance_of_arrays(acts: Activations) -> go.Figure:
    measured = acts.measure()
    return plots.attention_distance(
        measured.distance,
        measured.prefix_mass,
        equal_sharing=inspection.uniform_distance((4, 6), 4),
        side=24.0,
        selected=None,
        prefix_name="CLS",
    )


def rollout_of_arrays(acts: Activations) -> go.Figure:
    rollout = inspection.attention_rollout(acts, fusion="max")[1:].reshape(4, 6)
    return plots.attention_rollout(rollout, acts.photo, crop=acts.crop, equal_share=1 / 24)


def norms_of_arrays(acts: Activations) -> go.Figure:
    norms = np.linalg.norm(acts.tokens(2)[1:], axis=1).reshape(4, 6)
    return plots.token_norms(
        norms,
        inspection.norm_outliers(norms),
        acts.photo,
        crop=acts.crop,
        query=(1, 1),
        long=inspection.token_norms(acts, depth=2)[1],
    )


def scatter_of_arrays(acts: Activations) -> go.Figure:
    points, explained = inspection.token_scatter(acts)
    where = dict(crop=acts.crop, grid=(4, 6), prefix=["CLS"], numbers=(1, 2))
    return plots.token_scatter(points, explained, acts.photo, **where)  # type: ignore[call-overload]


#: Of a capture, and the same of the numbers that inspection gives.
BOTH: dict[str, tuple[Callable[[Activations], go.Figure], Callable[[Activations], go.Figure]]] = {
    "attention_distance": (plots.attention_distance, distance_of_arrays),
    "attention_rollout": (lambda a: plots.attention_rollout(a, fusion="max"), rollout_of_arrays),
    "class_probabilities": (
        lambda a: plots.class_probabilities(a, k=3),
        lambda a: plots.class_probabilities(a.probabilities, a.output_names, k=3),  # type: ignore[arg-type]
    ),
    "distance_histogram": (
        lambda a: plots.distance_histogram(a, 1, 2),
        lambda a: plots.distance_histogram(
            inspection.distance_histogram(a, layer=1, bin_width=4)[2],
            inspection.uniform_histogram((4, 6), 4, bin_width=4),
            bin_width=4.0,
            mean=float(a.measure().distance[1, 2]),
            name="layer 2, head 3",
        ),
    ),
    "offset_attention": (
        lambda a: plots.offset_attention(a, 1, 2),
        lambda a: plots.offset_attention(
            inspection.offset_attention(a, layer=1)[2], equal_share=1 / 24, name="layer 2, head 3"
        ),
    ),
    "picture": (
        lambda a: plots.picture(a, query=(1, 2)),
        lambda a: plots.picture(a.photo, crop=a.crop, grid=(4, 6), query=(1, 2)),
    ),
    "token_components": (
        lambda a: plots.token_components(a, 2),
        lambda a: plots.token_components(
            inspection.token_components(a, depth=2)[0], a.photo, crop=a.crop, query=None
        ),
    ),
    "token_film": (
        plots.token_film,
        lambda a: plots.token_film(
            np.stack([inspection.token_components(a, depth=n)[0] for n in (1, 2, 3)]),
            names=["layer 1", "layer 2", "layer 3"],
            selected=None,
        ),
    ),
    "token_norms": (lambda a: plots.token_norms(a, 2, query=(1, 1)), norms_of_arrays),
    "token_scatter": (plots.token_scatter, scatter_of_arrays),
}


@pytest.mark.parametrize("name", BOTH)
def test_a_figure_of_a_capture_is_that_of_its_numbers(name: str) -> None:
    of_capture, of_arrays = BOTH[name]
    figure = of_capture(acts())
    assert figure.layout.meta["provenance"] == acts().provenance
    figure.layout.meta = {"alt": figure.layout.meta["alt"]}
    assert figure.to_json() == of_arrays(acts()).to_json()
    assert f"For a capture: `{name}(acts" in str(getattr(plots, name).__doc__)


def words_of(value: Any, name: str = "") -> list[str]:
    """What a figure writes, below its keys of text."""
    if isinstance(value, dict):
        return [word for key, one in value.items() for word in words_of(one, key)]
    if isinstance(value, (list, tuple)):
        return [word for one in value for word in words_of(one, name)]
    shown = ("alt", "text", "name", "hovertemplate", "ticktext")
    return [value] if isinstance(value, str) and name in shown else []


@pytest.mark.parametrize(
    "draw",
    [
        *(of_capture for of_capture, _ in BOTH.values()),
        lambda a: plots.attention_map(a, 1, 0, query=(1, 2)),
        lambda a: plots.attention_map(a, 1, query=(1, 2), direction="column"),
        lambda a: plots.head_grid(a, 1),
        lambda a: plots.attention_distance(  # as of models with windows, where no prefix is named
            a.measure().distance, a.measure().prefix_mass, equal_sharing=1, side=1, selected=None
        ),
    ],
)
def test_a_figure_of_a_capture_speaks_the_language_in_use(
    draw: Callable[[Activations], go.Figure],
) -> None:
    for name in ("distilled", "no class token"):
        one = capture(example(name), picture())
        with use_language("ko"):
            figure = draw(one).to_plotly_json()
        figure["layout"]["meta"] = {"alt": figure["layout"]["meta"]["alt"]}
        del figure["layout"]["template"]
        for word in words_of(figure):
            bare = re.sub(r"%\{[^}]*\}|</?\w+>|CLS|DIST|px|class \d+|클래스", "", word)
            assert not re.search("[A-Za-z]{3}", bare), word
