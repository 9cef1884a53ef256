"""Sums over pictures, which merge: moments, named sums, and linear CKA from Gram matrices.

Sums are float64, and their size does not depend on the number of pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_COLUMNS = 1 << 14  # multiplied at a time: large features may lie on disk
_MOMENTS = ("count", "mean", "m2")


def hsic(grams: np.ndarray) -> np.ndarray:
    """Estimate HSIC between all pairs of layers, without bias.

    Parameters
    ----------
    grams : ndarray of shape (layers, n, n), n at least 4
        X X^T of each layer's features X (n, features) of the same n pictures.

    Returns
    -------
    ndarray of shape (layers, layers)

    References
    ----------
    Song et al., "Feature Selection via Dependence Maximization" (JMLR 2012), eq. 5; Nguyen,
    Raghu and Kornblith, "Do Wide and Deep Networks Learn the Same Things?" (ICLR 2021), eq. 3.
    """
    n = grams.shape[1]
    without = grams * (1 - np.eye(n))
    rows = without.sum(axis=2)  # (layers, n)
    total = rows.sum(axis=1)
    flat = without.reshape(len(grams), -1)
    traces = flat @ flat.T
    both = traces + np.outer(total, total) / ((n - 1) * (n - 2)) - 2 / (n - 2) * (rows @ rows.T)
    return both / (n * (n - 3))


def gram(features: np.ndarray) -> np.ndarray:
    """Return X X^T (n, n) of features (n, ...) with their mean removed, which HSIC ignores."""
    flat = features.reshape(len(features), -1)
    product = np.zeros((len(flat), len(flat)))
    for start in range(0, flat.shape[1], _COLUMNS):
        part = flat[:, start : start + _COLUMNS]
        centred = part - part.mean(axis=0)  # a large mean would cost digits
        product += centred @ centred.T
    # Equal pictures may differ by rounding, as a batch may sum each of them in its own order.
    least = 8 * np.finfo(np.result_type(features.dtype, np.float32)).eps
    size = sum(float(np.square(row, dtype=np.float64).sum()) for row in flat)
    return np.zeros_like(product) if np.trace(product) <= least**2 * size else product


def cka(sums: np.ndarray) -> np.ndarray:
    """Return linear CKA of all pairs of layers from the sum (layers, layers) of HSIC estimates.

    CKA lies between 0 and 1, but an unbiased estimate can fall below 0 by chance. NaN where a
    layer's features are the same for all pictures.
    """
    own = np.diag(sums)
    scale = np.sqrt(np.maximum(np.outer(own, own), 0))
    return np.divide(sums, scale, out=np.full_like(sums, np.nan), where=scale > 0)


@dataclass(frozen=True, eq=False)
class Moments:
    """Count, mean and sum of squared deviations of values; NaN is a missing value.

    Attributes
    ----------
    count : ndarray of the values' shape; of shape () for vectors
    mean : ndarray of the values' shape
    m2 : ndarray of the values' shape; for vectors (D,) the summed products of deviations (D, D)

    References
    ----------
    Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for Computing Sample
    Variances" (COMPSTAT 1982).
    """

    count: np.ndarray
    mean: np.ndarray
    m2: np.ndarray

    @classmethod
    def of(cls, values: ArrayLike) -> "Moments":
        """Compute the moments of values along the first axis."""
        rows = np.asarray(values, np.float64)
        finite = np.isfinite(rows)
        count = finite.sum(axis=0).astype(np.float64)
        total = np.where(finite, rows, 0).sum(axis=0)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        return cls(count, mean, (np.where(finite, rows - mean, 0) ** 2).sum(axis=0))

    @classmethod
    def of_vectors(cls, rows: np.ndarray) -> "Moments":
        """Compute the moments of the rows (n, D), with all products of their deviations."""
        table = np.asarray(rows, np.float64)
        mean = table.mean(axis=0) if len(table) else np.zeros(table.shape[1])
        deviations = table - mean
        return cls(np.array(float(len(table))), mean, deviations.T @ deviations)

    def merge(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        share = np.divide(other.count, count, out=np.zeros_like(count), where=count > 0)
        apart = other.mean - self.mean
        product = np.outer(apart, apart) if self.m2.ndim > self.mean.ndim else apart**2
        return Moments(
            count, self.mean + apart * share, self.m2 + other.m2 + product * self.count * share
        )

    def components(self, n_components: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the principal axes of vectors, and the summed squared deviations along each.

        ndarrays of shape (n_components, D) and (n_components,). Each axis is a unit vector whose
        entry of largest magnitude is positive.
        """
        along, vectors = np.linalg.eigh(self.m2)
        axes = vectors[:, ::-1][:, :n_components].T
        axes = axes * np.sign(axes[np.arange(n_components), np.abs(axes).argmax(axis=1)])[:, None]
        return axes, np.maximum(along[::-1][:n_components], 0)

    @property
    def std(self) -> np.ndarray:
        """Sample standard deviation (n - 1); NaN for fewer than two values."""
        return np.sqrt(
            np.divide(
                self.m2, self.count - 1, out=np.full_like(self.m2, np.nan), where=self.count > 1
            )
        )

    @property
    def sem(self) -> np.ndarray:
        """Standard error of the mean."""
        return self.std / np.sqrt(np.maximum(self.count, 1))

    @property
    def means(self) -> np.ndarray:
        """Mean; NaN where no value is finite."""
        return np.where(self.count > 0, self.mean, np.nan)

    def interval(self, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of the mean's confidence interval, by Student's t."""
        from scipy.special import stdtrit  # late: slow to import

        reach = stdtrit(np.maximum(self.count - 1, 1), (1 + share) / 2) * self.sem
        return self.means - reach, self.means + reach


@dataclass(frozen=True, eq=False)
class State:
    """Moments and sums over some pictures, by name."""

    moments: Mapping[str, Moments] = field(default_factory=dict)
    sums: Mapping[str, np.ndarray] = field(default_factory=dict)

    def merge(self, other: "State") -> "State":
        """Return the state of both parts, this part's pictures first."""
        moments, sums = dict(self.moments), dict(self.sums)
        for name, added in other.moments.items():
            moments[name] = moments[name].merge(added) if name in moments else added
        for name, more in other.sums.items():
            sums[name] = sums[name] + more if name in sums else more
        return State(moments, sums)

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state as named arrays, which `from_arrays` reads."""
        arrays = {f"sum/{name}": values for name, values in self.sums.items()}
        for name, moments in self.moments.items():
            arrays |= {f"{part}/{name}": getattr(moments, part) for part in _MOMENTS}
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Any]) -> "State":
        parts: dict[str, dict[str, np.ndarray]] = {}
        for key, values in arrays.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = values
        names = dict.fromkeys(name for part in _MOMENTS for name in parts.get(part, {}))
        return cls(
            {name: Moments(*(parts[part][name] for part in _MOMENTS)) for name in names},
            parts.get("sum", {}),
        )
