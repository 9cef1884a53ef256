"""Where tokens look: through one layer, near or far, and through all layers."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from .. import attribution, inspection
from ..activations import Activations
from ..families import ModelError
from ..language import as_percent, tr
from ..model import Model
from ..text import findings as text
from ..text.lessons import Step
from .words import correlation, halved, label, patch_at, place, reader


def who(acts: Activations, steps: Sequence[Step]) -> Iterable[str]:
    prefix, count = acts.num_prefix_tokens, acts.grid[0] * acts.grid[1]
    layer, _, _ = place(acts, steps[0])
    reads = inspection.measurements(acts).query_attention.mean(axis=1).reshape(acts.depth, -1)
    asks = reader(acts)
    best = int(reads[layer].argmax())
    yield tr(
        "In layer {layer}, {query} looks most at {patch}: **{share}**, {times:.0f} times the equal "
        "share of a token. Half of what it gives to patches goes to {half} of {count} of them; in "
        "layer 1 that takes {first}.",
        layer=layer + 1,
        query=asks,
        patch=patch_at(acts, best),
        share=as_percent(reads[layer, best]),
        times=reads[layer, best] * (prefix + count),
        half=halved(reads[layer]),
        count=count,
        first=halved(reads[0]),
    )
    layer, _, _ = place(acts, steps[1])
    agreed = same_rows(acts.attention(layer)[:, prefix:, prefix:])
    yield tr(
        "In layer {layer}, **head {same}** looks much the same wherever the query is: {more} of a "
        "row agrees with the mean of all rows. **Head {follows}** follows the query: {less}.",
        layer=layer + 1,
        same=int(agreed.argmax()) + 1,
        more=as_percent(agreed.max()),
        follows=int(agreed.argmin()) + 1,
        less=as_percent(agreed.min()),
    )
    layer, _, token = place(acts, steps[2])
    patch, mean = token - prefix, acts.attention(layer).mean(axis=0)
    looks, looked = (
        np.delete(map_, patch) for map_ in (mean[token, prefix:], mean[prefix:, token])
    )
    numbers = np.delete(np.arange(count), patch)  # of the other patches
    alike = correlation(looks, looked)
    if not np.isfinite(alike):
        yield without_correlation()
        return
    yield tr(
        "In layer {layer} the patches that look most at {patch}, beside itself, are those at {by}, "
        "with {share} and less; it looks most at {at} ({own}). The two maps have a correlation of "
        "**{alike:.2f}**.",
        layer=layer + 1,
        patch=patch_at(acts, patch),
        by="; ".join(patch_at(acts, int(one)) for one in numbers[np.argsort(-looked)[:3]]),
        share=as_percent(looked.max()),
        at=patch_at(acts, int(numbers[looks.argmax()])),
        own=as_percent(looks.max()),
        alike=alike,
    )


def same_rows(attention: np.ndarray) -> np.ndarray:
    """How much of a row agrees with the mean of all rows, the mean over rows.

    Parameters
    ----------
    attention : ndarray of shape (heads, patches, patches)
        Rows are renormalised; those without attention are left out.

    Returns
    -------
    ndarray of shape (heads,)
        1 minus the total variation distance: 1 where all queries look alike.
    """
    mass = attention.sum(axis=2, keepdims=True)
    shares = np.divide(attention, mass, out=np.zeros_like(attention), where=mass > 0)
    rows = np.maximum((mass[..., 0] > 0).sum(axis=1), 1)
    mean = shares.sum(axis=1, keepdims=True) / rows[:, None, None]
    agreed: np.ndarray = np.minimum(shares, mean).sum(axis=(1, 2)) / rows
    return agreed


def near(acts: Activations, steps: Sequence[Step], others: Iterable[Activations]) -> Iterable[str]:
    pixels = inspection.measurements(acts).distance
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    layers = np.ma.masked_invalid(pixels).mean(axis=1).filled(np.nan)  # no patch, no distance
    near, far = int(np.nanargmin(layers)), int(np.nanargmax(layers))
    yield tr(
        "The most local is **layer {near}**, whose heads have a mean attention distance of "
        "{least:.1f} px; the most global is layer {far}, with {most:.1f} px.",
        near=near + 1,
        least=layers[near],
        far=far + 1,
        most=layers[far],
    )
    yield text.distance(pixels, equal)
    layer, head, _ = place(acts, steps[1])
    even = np.unravel_index(int(np.nanargmin(np.abs(pixels - equal))), pixels.shape)
    if np.isfinite(pixels[layer, head or 0]):  # a head may attend to no patch at all
        yield tr(
            "The distance of layer {layer}, head {head} is {share:.0f} % of that of equal sharing, "
            "that of layer {far}, head {other} is {most:.0f} %.",
            layer=layer + 1,
            head=(head or 0) + 1,
            share=100 * pixels[layer, head or 0] / equal,
            far=even[0] + 1,
            other=even[1] + 1,
            most=100 * pixels[even] / equal,
        )
    every = [inspection.measurements(other).distance for other in others]
    if every:
        here = np.array([one[layer, head or 0] for one in every])
        nearest = sum(int(np.nanargmin(one)) == int(np.nanargmin(pixels)) for one in every)
        yield tr(
            "Over {count} pictures, the distance of that head lies between {least:.1f} and "
            "{most:.1f} px. The most local head of all is the same as here on **{same} of "
            "{count}**.",
            count=len(every),
            least=np.nanmin(here),
            most=np.nanmax(here),
            same=nearest,
        )


def reaches(model: Model, image: Image.Image, acts: Activations) -> Iterable[str]:
    prefix, count = acts.num_prefix_tokens, acts.grid[0] * acts.grid[1]
    asks = reader(acts)
    attention = list(acts.attention_layers())
    reads = "cls" in acts.read_tokens

    def rollout(layers: int, fusion: Any = "mean") -> np.ndarray:
        return inspection.attention_rollout(
            attention[:layers], num_prefix_tokens=prefix, fusion=fusion, cls=reads
        )

    first, last = rollout(1), rollout(acts.depth)
    yield tr(
        "Up to layer 1, {from_first} of what reaches {query} comes from patches, half of it from "
        "{half_first} of {count}; up to layer {depth}, **{from_last}**, half of it from "
        "**{half_last}**.",
        query=asks,
        from_first=as_percent(first[prefix:].sum()),
        half_first=halved(first[prefix:]),
        count=count,
        depth=acts.depth,
        from_last=as_percent(last[prefix:].sum()),
        half_last=halved(last[prefix:]),
    )
    by_max, by_min = (
        correlation(last[prefix:], rollout(acts.depth, how)[prefix:]) for how in ("max", "min")
    )
    if np.isfinite([by_max, by_min]).all():
        yield tr(
            "With the map by the mean of heads, the map by their maximum has a correlation of "
            "{by_max:.2f}, and that by their minimum one of {by_min:.2f}.",
            by_max=by_max,
            by_min=by_min,
        )
    else:
        yield without_correlation()
    if acts.probabilities is None:
        yield tr("{name} has no head that names classes, so no map is of one.", name=model.name)
        return
    one, other = (int(index) for index in np.argsort(-acts.probabilities, kind="stable")[:2])
    try:
        maps = [attribution.relevance(model, image, index) for index in (one, other)]
    except ModelError as error:
        yield tr(error)
        return
    alike, with_rollout = correlation(*maps), correlation(maps[0], last[prefix:])
    if not np.isfinite([alike, with_rollout]).all():
        yield without_correlation()
        return
    yield tr(
        "Rollout is the same for **{one}** and for **{other}**. Their class-specific maps have a "
        "correlation of {alike:.2f} with each other; that of {one} has {with_rollout:.2f} with "
        "rollout.",
        one=label(acts, one),
        other=label(acts, other),
        alike=alike,
        with_rollout=with_rollout,
    )


def without_correlation() -> str:
    return tr(
        "One of the maps has the same value in every patch here, so it has no correlation with "
        "another."
    )
