"""Figures of a capture, which knows the picture, its grid and its prefix tokens."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, overload

import numpy as np
import plotly.graph_objects as go

from ..language import patch_name, told
from . import charts, distance, maps, scatter, tokens
from .template import KEY, QUERY, Box

if TYPE_CHECKING:
    from ..activations import Activations

Patch = tuple[int, int]
P = ParamSpec("P")
Q = ParamSpec("Q")


class Either(Protocol, Generic[P, Q]):
    """A figure of arrays, or of a capture."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> go.Figure: ...

    @overload
    def __call__(self, acts: "Activations", *args: Q.args, **kwargs: Q.kwargs) -> go.Figure: ...


def either(
    of_arrays: Callable[P, go.Figure], of_capture: Callable[Concatenate[Any, Q], go.Figure]
) -> Either[P, Q]:
    """One function that draws arrays as the first does, and captures as the second."""

    @functools.wraps(of_arrays)
    def draw(*args: Any, **kwargs: Any) -> go.Figure:
        if args and hasattr(args[0], "attention_layers"):
            figure = of_capture(*args, **kwargs)
            figure.layout.meta = {**figure.layout.meta, "provenance": told(args[0].provenance)}
            return figure
        return of_arrays(*args, **kwargs)

    asked = inspect.signature(of_capture).parameters.values()
    names = [str(one.replace(annotation=one.empty)) for one in asked]
    call, words = f"{of_arrays.__name__}({', '.join(names)})", inspect.getdoc(of_arrays)
    draw.__doc__ = f"{words}\n\nOf a capture: `{call}`. {of_capture.__doc__}"
    return draw


def attention_map(
    acts: "Activations",
    layer: int,
    head: int | None = None,
    *,
    query: int | Patch | None = None,
    direction: Literal["row", "column"] = "row",
) -> go.Figure:
    """Where one token of a capture looks, or who looks at it, over the picture; shares in per cent.

    Parameters
    ----------
    acts : a capture, as `vitviz.capture` or `vitviz.load_activations` returns it
    layer : int
    head : int, optional
        Left out: the mean of the heads.
    query, direction
        As in `Activations.attention_map`.

    Raises
    ------
    ModelError
        When the layer has no attention to show.
    ValueError
        When there is no such layer, head or token.
    """
    attention = acts.attention_map(layer, query, direction=direction)
    if head is not None and not 0 <= head < len(attention):
        raise ValueError(f"Expected a head in 0..{len(attention) - 1}, got {head}.")
    shares = attention.mean(axis=0) if head is None else attention[head]
    described = acts.layers[layer]
    crop, asked_at = (_scaled(acts, acts.crop_of(layer, keys=keys)) for keys in (True, False))
    grids = described.key_grid, described.query_grid
    if direction == "column":
        crop, asked_at, grids = asked_at, crop, grids[::-1]
    name, patch = _token(query, described.prefix, grids[1])
    whose = "mean of heads" if head is None else f"head {head + 1}"
    verb = "to" if direction == "column" else "of"
    figure = maps.share_map(
        shares, acts.photo, crop=crop, name=f"Attention {verb} {name}, layer {layer + 1}, {whose}"
    )
    if patch is not None:
        colour = KEY if direction == "column" else QUERY
        maps.query_box(figure, asked_at, grids[1], patch, colour)
    figure.layout.meta = {**figure.layout.meta, "provenance": told(acts.provenance)}
    return figure


def _attention_rollout(acts: "Activations", /, **options: Any) -> go.Figure:
    """`options` are those of `inspection.attention_rollout`."""
    from .. import inspection

    rollout = inspection.attention_rollout(acts, **options)[acts.num_prefix_tokens :]
    return maps.attention_rollout(
        rollout.reshape(acts.grid), acts.photo, crop=_crop(acts), equal_share=1 / len(rollout)
    )


def _attention_distance(
    acts: "Activations", *, selected: tuple[int, int | None] = (0, None)
) -> go.Figure:
    """Of all heads of all layers; `selected` is a layer and a head to mark."""
    from .. import inspection

    measured = acts.measure()
    sides = np.broadcast_to(acts.patch_size, 2) * acts.grid
    return charts.attention_distance(
        measured.distance,
        measured.prefix_mass,
        equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
        side=float(max(sides)),
        selected=selected,
        prefix_name=" and ".join(name.upper() for name in acts.layers[0].prefix) or "the prefix",
    )


def _distance_histogram(acts: "Activations", layer: int, head: int) -> go.Figure:
    """Of one head, in bins of a patch's width."""
    from .. import inspection

    width = float(np.min(acts.patch_size))
    return distance.distance_histogram(
        inspection.distance_histogram(acts, layer=layer, bin_width=width)[head],
        inspection.uniform_histogram(acts.grid, acts.patch_size, bin_width=width),
        bin_width=width,
        mean=float(acts.measure().distance[layer, head]),
        name=f"layer {layer + 1}, head {head + 1}",
    )


def _offset_attention(acts: "Activations", layer: int, head: int) -> go.Figure:
    """Of one head."""
    from .. import inspection

    offsets = inspection.offset_attention(acts, layer=layer)[head]
    name = f"layer {layer + 1}, head {head + 1}"
    return distance.offset_attention(offsets, equal_share=1 / math.prod(acts.grid), name=name)


def _class_probabilities(acts: "Activations", *, k: int = 5) -> go.Figure:
    """Its answer; a ValueError where the model gives none."""
    if acts.probabilities is None:
        raise ValueError("This model gives no probabilities of classes.")
    return charts.class_probabilities(acts.probabilities, [*map(told, acts.output_names)], k=k)


def _picture(acts: "Activations", *, query: Patch | None = None) -> go.Figure:
    """With the grid of its first layer."""
    return maps.picture(acts.photo, crop=_crop(acts), grid=acts.layers[0].query_grid, query=query)


def _token_components(
    acts: "Activations", depth: int | None = None, *, query: Patch | None = None
) -> go.Figure:
    """After so many layers, the last where left out, and after the final LayerNorm."""
    from .. import inspection

    components, _ = inspection.token_components(acts, depth=depth)
    return tokens.token_components(components, acts.photo, crop=_crop(acts), query=query)


def _token_norms(
    acts: "Activations", depth: int | None = None, *, query: Patch | None = None
) -> go.Figure:
    """After so many layers, the last where left out, before the final LayerNorm."""
    from .. import inspection

    norms, long, _ = inspection.token_norms(acts, depth=depth)
    outliers = inspection.norm_outliers(norms)
    return tokens.token_norms(norms, outliers, acts.photo, crop=_crop(acts), query=query, long=long)


def _token_scatter(acts: "Activations", depth: int | None = None) -> go.Figure:
    """On the first two components, after so many layers, the last where left out."""
    from .. import inspection

    points, explained = inspection.token_scatter(acts, depth=depth)
    return scatter.token_scatter(
        points,
        explained,
        acts.photo,
        crop=_crop(acts),
        grid=acts.grid,
        prefix=[name.upper() for name in acts.layers[0].prefix],
        numbers=(1, 2),
    )


def _token_film(acts: "Activations") -> go.Figure:
    """Of every layer, after the final LayerNorm."""
    from .. import inspection

    found = [inspection.token_components(acts, depth=n + 1)[0] for n in range(acts.depth)]
    names = [f"layer {number + 1}" for number in range(acts.depth)]
    return tokens.token_film(np.stack(found), names=names, selected=None)


def _crop(acts: "Activations") -> Box:
    return _scaled(acts, acts.crop)


def _scaled(acts: "Activations", box: Box) -> Box:
    """A box in pixels of the picture in those of its small copy."""
    x, y = (small / whole for small, whole in zip(acts.photo.size, acts.picture_size, strict=True))
    left, top, right, bottom = box
    return left * x, top * y, right * x, bottom * y


def _token(
    query: int | Patch | None, prefix: Sequence[str], grid: Patch
) -> tuple[str, Patch | None]:
    """What a token is called, and the patch that it is, if it is one."""
    if query is None:
        return ("CLS", None) if "cls" in prefix else ("the mean of the patches", None)
    if not isinstance(query, tuple):
        if query < len(prefix):
            return prefix[query].upper(), None
        query = divmod(query - len(prefix), grid[1])
    return f"the patch at {patch_name(*query)}", query


attention_distance = either(charts.attention_distance, _attention_distance)
attention_rollout = either(maps.attention_rollout, _attention_rollout)
class_probabilities = either(charts.class_probabilities, _class_probabilities)
distance_histogram = either(distance.distance_histogram, _distance_histogram)
offset_attention = either(distance.offset_attention, _offset_attention)
picture = either(maps.picture, _picture)
token_components = either(tokens.token_components, _token_components)
token_film = either(tokens.token_film, _token_film)
token_norms = either(tokens.token_norms, _token_norms)
token_scatter = either(scatter.token_scatter, _token_scatter)
