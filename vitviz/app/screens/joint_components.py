"""Principal components of the patches of all samples together: colours mean the same in each."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from vitviz.app.shared import results
from vitviz.app.shared.view import View, model_key

if TYPE_CHECKING:
    from vitviz.profiling import Moments


@dataclass(frozen=True, eq=False)
class Basis:
    """Components that several pictures share.

    Attributes
    ----------
    axes : ndarray of shape (n_components, D), unit vectors
    mean : ndarray of shape (D,)
    explained : ndarray of shape (n_components,), shares of the variance of all patches
    reach : ndarray of shape (n_components,)
        Two standard deviations of all patches: where the colours end.
    """

    axes: np.ndarray
    mean: np.ndarray
    explained: np.ndarray
    reach: np.ndarray

    @property
    def nbytes(self) -> int:
        return self.axes.nbytes + self.mean.nbytes

    def points(self, tokens: np.ndarray) -> np.ndarray:
        """Tokens (n, D) on the components: (n, n_components)."""
        return ((tokens - self.mean) @ self.axes.T).astype(np.float32)


def of_samples(view: View, layers: Sequence[int], n_components: int) -> dict[int, Basis]:
    """The components of the patches of all samples after each of the layers, cached.

    Of the tokens after the final LayerNorm, as everywhere on the page.
    """

    def make() -> dict[int, Basis]:
        from vitviz.profiling import Moments

        found: dict[int, Moments] = {}
        for _, acts in results.of_samples(view.model):
            for layer in layers:
                patches = acts.tokens(layer + 1, normalised=True)[len(view.prefix) :]
                more = Moments.of_vectors(patches)
                found[layer] = found[layer].merged(more) if layer in found else more
        return {layer: _basis(moments, n_components) for layer, moments in found.items()}

    key: tuple[Hashable, ...] = (*model_key(view.model), "joint components", *layers, n_components)
    return results.captures().get(key, make, lambda made: sum(one.nbytes for one in made.values()))


def _basis(moments: "Moments", n_components: int) -> Basis:
    axes, variances = moments.components(n_components)
    explained = variances / max(float(np.trace(moments.m2)), np.finfo(float).tiny)
    return Basis(axes, moments.mean, explained, 2 * np.sqrt(variances / moments.count))
