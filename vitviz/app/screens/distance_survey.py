"""What the page Distance measures: all heads, on one picture or on all samples."""

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

import numpy as np

from vitviz import inspection
from vitviz.app.shared import results
from vitviz.app.shared.view import View, model_key

if TYPE_CHECKING:
    from vitviz import Activations

Variant = Literal["renormalised", "paper"]
VARIANTS: tuple[Variant, ...] = ("renormalised", "paper")


@dataclass(frozen=True, eq=False)
class Survey:
    """The measurements of all heads, on one picture or several.

    Attributes
    ----------
    distance, prefix_mass, entropy : ndarray of shape (pictures, layers, heads)
        Pixels, shares of 1 and bits.
    histogram : ndarray of shape (layers, heads, bins)
        Shares of 1, the mean over pictures.
    offsets : ndarray of shape (layers, heads, 2 rows - 1, 2 columns - 1)
        Shares of 1, the mean over pictures.
    """

    distance: np.ndarray
    prefix_mass: np.ndarray
    entropy: np.ndarray
    histogram: np.ndarray
    offsets: np.ndarray

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, field.name).nbytes for field in fields(self))


Surveys = dict[Variant, Survey]


def of_picture(acts: "Activations", key: Sequence[Hashable]) -> Surveys:
    """Both variants on one picture, cached."""
    return results.captures().get((*key, "distances"), lambda: _measured(acts), _nbytes)


def of_samples(view: View) -> Surveys:
    """Both variants on all sample pictures, cached."""

    def make() -> Surveys:
        key = model_key(view.model)
        found = [
            of_picture(acts, (*key, picture.digest))
            for picture, acts in results.of_samples(view.model)
        ]
        return {variant: _together([one[variant] for one in found]) for variant in VARIANTS}

    key = (*view.key[:2], "distances", "samples")
    return results.captures().get(key, make, _nbytes)


def _measured(acts: "Activations") -> Surveys:
    """Measure layer by layer, holding one attention matrix at a time."""
    layers = [_of_layer(acts, attention) for attention in acts.attention_layers()]
    return {
        variant: Survey(
            distance=np.stack([layer[variant].distance for layer in layers], axis=1),
            prefix_mass=np.stack([layer[variant].prefix_mass for layer in layers], axis=1),
            entropy=np.stack([layer[variant].entropy for layer in layers], axis=1),
            histogram=np.stack([layer[variant].histogram for layer in layers]),
            offsets=np.stack([layer[variant].offsets for layer in layers]),
        )
        for variant in VARIANTS
    }


def _of_layer(acts: "Activations", attention: np.ndarray) -> Surveys:
    """Measure one layer on one picture; arrays without the axis of layers."""
    grid, patch, prefix = acts.grid, acts.patch_size, acts.num_prefix_tokens
    mass = inspection.prefix_mass([attention], num_prefix_tokens=prefix)
    entropy = inspection.attention_entropy([attention])
    width = float(np.min(patch))
    return {
        variant: Survey(
            distance=inspection.attention_distance(
                [attention],
                grid=grid,
                patch_size=patch,
                num_prefix_tokens=prefix,
                variant=variant,
            ),
            prefix_mass=mass,
            entropy=entropy,
            histogram=inspection.distance_histogram(
                attention,
                grid=grid,
                patch_size=patch,
                bin_width=width,
                num_prefix_tokens=prefix,
                variant=variant,
            ),
            offsets=inspection.offset_attention(
                attention,
                grid=grid,
                num_prefix_tokens=prefix,
                variant=variant,
                min_queries=_min_queries(acts),
            ).astype(np.float32),
        )
        for variant in VARIANTS
    }


def _min_queries(acts: "Activations") -> int:
    """A sixteenth of the patches: the mean of a few queries in a corner says little."""
    return math.ceil(math.prod(acts.grid) / 16)


def _together(found: Sequence[Survey]) -> Survey:
    return Survey(
        distance=np.concatenate([one.distance for one in found]),
        prefix_mass=np.concatenate([one.prefix_mass for one in found]),
        entropy=np.concatenate([one.entropy for one in found]),
        histogram=mean(np.stack([one.histogram for one in found])),
        offsets=mean(np.stack([one.offsets for one in found])),
    )


def _nbytes(surveys: Surveys) -> int:
    return sum(survey.nbytes for survey in surveys.values())


def mean(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis, ignoring NaN; NaN where all are."""
    return np.ma.filled(np.ma.masked_invalid(values).mean(axis=0), np.nan)


def spread(values: np.ndarray) -> np.ndarray:
    """Standard deviation over the first axis, ignoring NaN."""
    return np.ma.filled(np.ma.masked_invalid(values).std(axis=0), np.nan)
