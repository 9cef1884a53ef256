"""Draw figures of a capture, which holds the picture, its grid and its prefix tokens."""

import functools
import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, Protocol, overload

import numpy as np
import plotly.graph_objects as go

from ..common.language import MessageError, tr, translate
from ..common.query import Query, token_number
from . import charts, maps, tokens
from .template import KEY, QUERY, Crop

if TYPE_CHECKING:
    from ..activations import Activations

Patch = tuple[int, int]
P = ParamSpec("P")
Q = ParamSpec("Q")


class ArraysOrCapture(Protocol, Generic[P, Q]):
    """A function that draws arrays or a capture."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> go.Figure: ...

    @overload
    def __call__(self, acts: "Activations", *args: Q.args, **kwargs: Q.kwargs) -> go.Figure: ...


def _accept_both(
    of_arrays: Callable[P, go.Figure], of_capture: Callable[Concatenate[Any, Q], go.Figure]
) -> ArraysOrCapture[P, Q]:
    """Join two functions into one that draws arrays by the first and captures by the second."""

    @functools.wraps(of_arrays)
    def draw(*args: Any, **kwargs: Any) -> go.Figure:
        if args and hasattr(args[0], "attention_layers"):
            figure = of_capture(*args, **kwargs)
            return add_provenance(figure, args[0])
        return of_arrays(*args, **kwargs)

    parameters = inspect.signature(of_capture).parameters.values()
    names = [str(one.replace(annotation=one.empty)) for one in parameters]
    call, words = f"{of_arrays.__name__}({', '.join(names)})", inspect.getdoc(of_arrays)
    draw.__doc__ = f"{words}\n\nFor a capture: `{call}`. {of_capture.__doc__}"
    return draw


def add_provenance(figure: go.Figure, acts: "Activations") -> go.Figure:
    """Add the provenance line and `Activations.record` to the figure's metadata."""
    meta = {"provenance": translate(acts.provenance), "made_with": acts.record}
    figure.layout.meta = {**figure.layout.meta, **meta}
    return figure


def attention_map(
    acts: "Activations",
    layer: int,
    head: int | None = None,
    *,
    query: Query | None = None,
    direction: Literal["row", "column"] = "row",
) -> go.Figure:
    """Draw what one token of a capture attends to, or what attends to it, over the picture.

    Parameters
    ----------
    acts : a capture, as `vitviz.capture` or `vitviz.load_activations` returns it
    layer : int
    head : int, optional
        By default the mean of the heads.
    query, direction
        As in `Activations.attention_map`.

    Raises
    ------
    ModelError
        When the layer has no attention to show.
    ValueError
        When there is no such layer, head or token.
    """
    placed = place_attention(acts, layer, query, direction)
    attention = placed.shares
    if head is not None and not 0 <= head < len(attention):
        raise ValueError(f"Expected a head in 0..{len(attention) - 1}, got {head}.")
    shares = attention.mean(axis=0) if head is None else attention[head]
    whose = tr("mean of heads") if head is None else tr("head {head}", head=head + 1)
    figure = maps.share_map(shares, acts.photo, crop=placed.crop, name=f"{placed.title}, {whose}")
    if placed.patch is not None:
        colour = KEY if direction == "column" else QUERY
        maps.query_box(figure, placed.token_crop, placed.token_grid, placed.patch, colour)
    return add_provenance(figure, acts)


@dataclass(frozen=True, eq=False)
class PlacedAttention:
    """One token's attention, with its place in the picture.

    Attributes
    ----------
    shares : ndarray of shape (heads, rows, columns)
    crop, token_crop : of the map's grid, and of the token's grid
    token_grid : (rows, columns) of the token's grid
    patch : the token's row and column; None if it is no patch
    title : layer and token, in words
    """

    shares: np.ndarray
    crop: Crop
    token_crop: Crop
    token_grid: Patch
    patch: Patch | None
    title: str


def place_attention(
    acts: "Activations", layer: int, query: Query | None, direction: Literal["row", "column"]
) -> PlacedAttention:
    """Return the attention of all heads of a layer for one token."""
    shares = acts.attention_map(layer, query, direction=direction)
    info = acts.layers[layer]
    crop, token_crop = (_scale_box(acts, acts.crop_of(layer, keys=keys)) for keys in (True, False))
    grids = info.key_grid, info.query_grid
    if direction == "column":
        crop, token_crop, grids = token_crop, crop, grids[::-1]
    name, patch = _token(query, info.prefix, grids[1])
    title = (
        tr("Attention to {name}, layer {layer}", name=name, layer=layer + 1)
        if direction == "column"
        else tr("Attention of {name}, layer {layer}", name=name, layer=layer + 1)
    )
    return PlacedAttention(shares, crop, token_crop, grids[1], patch, title)


def _attention_rollout(acts: "Activations", /, **options: Any) -> go.Figure:
    """Draw the rollout; `options` are those of `inspection.attention_rollout`."""
    from .. import inspection
    from ..inspection.inputs import check_tokens

    rollout = inspection.attention_rollout(acts, **options)
    check_tokens(len(rollout), acts.num_prefix_tokens, acts.grid)
    rollout = rollout[acts.num_prefix_tokens :]
    return maps.attention_rollout(
        rollout.reshape(acts.grid), acts.photo, crop=_crop(acts), equal_share=1 / len(rollout)
    )


def _attention_distance(
    acts: "Activations", *, selected: tuple[int, int | None] | None = None
) -> go.Figure:
    """Draw all heads of all layers; `selected` is a layer and a head (or None) to mark."""
    from .. import inspection

    acts.attention_layers()  # refuses windows, where equal sharing has other distances
    measures = acts.measure()
    sides = np.broadcast_to(acts.patch_size, 2) * acts.grid
    return charts.attention_distance(
        measures.distance,
        measures.prefix_mass,
        equal_sharing=inspection.uniform_distance(acts.grid, acts.patch_size),
        side=float(max(sides)),
        selected=selected,
        prefix_name=tr(" and ").join(name.upper() for name in acts.layers[0].prefix)
        or tr("the prefix"),
    )


def _distance_histogram(acts: "Activations", layer: int, head: int) -> go.Figure:
    """Draw one head, in bins of a patch's width."""
    from .. import inspection

    acts.attention_layers()  # as above
    width = float(np.min(acts.patch_size))
    return charts.distance_histogram(
        inspection.distance_histogram(acts, layer=layer, bin_width=width)[head],
        inspection.uniform_histogram(acts.grid, acts.patch_size, bin_width=width),
        bin_width=width,
        mean=float(acts.measure().distance[layer, head]),
        name=tr("layer {layer}, head {head}", layer=layer + 1, head=head + 1),
    )


def _offset_attention(acts: "Activations", layer: int, head: int) -> go.Figure:
    """Draw one head."""
    from .. import inspection

    offsets = inspection.offset_attention(acts, layer=layer)[head]
    name = tr("layer {layer}, head {head}", layer=layer + 1, head=head + 1)
    return charts.offset_attention(offsets, equal_share=1 / math.prod(acts.grid), name=name)


def _class_probabilities(
    acts: "Activations",
    *,
    k: int = 5,
    labels: Sequence[str] | None = None,
    full_names: Sequence[str] | None = None,
) -> go.Figure:
    """Draw the `k` most probable classes, by the model's names unless `labels` are given."""
    if acts.probabilities is None:
        raise MessageError("This model gives no class probabilities.")
    names = labels or [*map(translate, acts.output_names)]
    return charts.class_probabilities(acts.probabilities, names, k=k, full_names=full_names)


def _picture(acts: "Activations", *, query: Query | None = None) -> go.Figure:
    """Draw the picture with the grid of the first layer."""
    grid = acts.layers[0].query_grid
    return maps.picture(acts.photo, crop=_crop(acts), grid=grid, query=_patch(acts, query))


def _token_components(
    acts: "Activations", depth: int | None = None, *, query: Query | None = None
) -> go.Figure:
    """Draw tokens after `depth` layers, by default all, and after the final LayerNorm."""
    from .. import inspection

    components, _ = inspection.token_components(acts, depth=depth)
    return tokens.token_components(
        components, acts.photo, crop=_crop(acts), query=_patch(acts, query)
    )


def _token_norms(
    acts: "Activations", depth: int | None = None, *, query: Query | None = None
) -> go.Figure:
    """Draw the norms of tokens after `depth` layers, by default all, before the final LayerNorm."""
    from .. import inspection

    norms, long, _ = inspection.token_norms(acts, depth=depth)
    outliers = inspection.norm_outliers(norms)
    return tokens.token_norms(
        norms, outliers, acts.photo, crop=_crop(acts), query=_patch(acts, query), long=long
    )


def _token_scatter(
    acts: "Activations", depth: int | None = None, *, query: Query | None = None
) -> go.Figure:
    """Draw tokens after `depth` layers, by default all, on the first two components."""
    from .. import inspection

    points, explained = inspection.token_scatter(acts, depth=depth)
    return tokens.token_scatter(
        points,
        explained,
        acts.photo,
        crop=_crop(acts),
        grid=acts.grid,
        prefix=[name.upper() for name in acts.layers[0].prefix],
        numbers=(1, 2),
        query=query,
    )


def _token_film(acts: "Activations") -> go.Figure:
    """Draw the tokens of every layer, after the final LayerNorm."""
    from .. import inspection

    components = [inspection.token_components(acts, depth=n + 1)[0] for n in range(acts.depth)]
    names = [tr("layer {layer}", layer=number + 1) for number in range(acts.depth)]
    (rows, cols), (left, top, right, bottom) = acts.grid, acts.crop
    aspect = (bottom - top) / rows / ((right - left) / cols)
    return tokens.token_film(np.stack(components), names=names, selected=None, aspect=aspect)


def _crop(acts: "Activations") -> Crop:
    return _scale_box(acts, acts.crop)


def _scale_box(acts: "Activations", box: Crop) -> Crop:
    """Convert a box from pixels of the picture to pixels of its small copy."""
    x, y = (small / whole for small, whole in zip(acts.photo.size, acts.picture_size, strict=True))
    left, top, right, bottom = box
    return left * x, top * y, right * x, bottom * y


def _token(query: Query | None, prefix: Sequence[str], grid: Patch) -> tuple[str, Patch | None]:
    """Return the name of a token, and its row and column if it is a patch."""
    if query is None:
        return ("CLS", None) if "cls" in prefix else (tr("the mean of the patches"), None)
    number = token_number(query, prefix=prefix, grid=grid)
    if number < len(prefix):
        return prefix[number].upper(), None
    row, col = divmod(number - len(prefix), grid[1])
    return tr("the patch at row {row}, column {column}", row=row + 1, column=col + 1), (row, col)


def _patch(acts: "Activations", query: Query | None) -> Patch | None:
    """Return the patch of the first layer that a query names, or None."""
    layer = acts.layers[0]
    return None if query is None else _token(query, layer.prefix, layer.query_grid)[1]


attention_distance = _accept_both(charts.attention_distance, _attention_distance)
attention_rollout = _accept_both(maps.attention_rollout, _attention_rollout)
class_probabilities = _accept_both(charts.class_probabilities, _class_probabilities)
distance_histogram = _accept_both(charts.distance_histogram, _distance_histogram)
offset_attention = _accept_both(charts.offset_attention, _offset_attention)
picture = _accept_both(maps.picture, _picture)
token_components = _accept_both(tokens.token_components, _token_components)
token_film = _accept_both(tokens.token_film, _token_film)
token_norms = _accept_both(tokens.token_norms, _token_norms)
token_scatter = _accept_both(tokens.token_scatter, _token_scatter)
