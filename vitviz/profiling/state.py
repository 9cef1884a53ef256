"""`State`: what has been summed over some pictures; states of parts merge into that of the whole.

Sums are of float64, and their size does not depend on the number of pictures.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

_MOMENTS = ("count", "mean", "m2")


@dataclass(frozen=True, eq=False)
class Moments:
    """Number, mean and summed squared deviations of values; NaN counts as no value.

    Attributes
    ----------
    count : ndarray of the values' shape, or of shape () of vectors
    mean : ndarray of the values' shape
    m2 : ndarray of the values' shape, or of shape (D, D) where the values are vectors (D,) whose
        products of deviations are summed

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
        """Of values along the first axis."""
        rows = np.asarray(values, np.float64)
        there = np.isfinite(rows)
        count = there.sum(axis=0).astype(np.float64)
        total = np.where(there, rows, 0).sum(axis=0)
        mean = np.divide(total, count, out=np.zeros_like(total), where=count > 0)
        return cls(count, mean, (np.where(there, rows - mean, 0) ** 2).sum(axis=0))

    @classmethod
    def of_vectors(cls, rows: np.ndarray) -> "Moments":
        """Of the rows of a table (n, D), with the products of all their numbers."""
        table = np.asarray(rows, np.float64)
        mean = table.mean(axis=0)
        deviations = table - mean
        return cls(np.array(float(len(table))), mean, deviations.T @ deviations)

    def merged(self, other: "Moments") -> "Moments":
        count = self.count + other.count
        share = np.divide(other.count, count, out=np.zeros_like(count), where=count > 0)
        apart = other.mean - self.mean
        product = np.outer(apart, apart) if self.m2.ndim > self.mean.ndim else apart**2
        return Moments(
            count, self.mean + apart * share, self.m2 + other.m2 + product * self.count * share
        )

    def components(self, n_components: int) -> tuple[np.ndarray, np.ndarray]:
        """Principal axes of vectors, and the summed squared deviations along each.

        ndarrays of shape (n_components, D) and (n_components,). Each axis is a unit vector whose
        entry of largest magnitude is positive.
        """
        along, vectors = np.linalg.eigh(self.m2)
        axes = vectors[:, ::-1][:, :n_components].T
        axes = axes * np.sign(axes[np.arange(n_components), np.abs(axes).argmax(axis=1)])[:, None]
        return axes, np.maximum(along[::-1][:n_components], 0)

    @property
    def std(self) -> np.ndarray:
        """Standard deviation (of n - 1), NaN where there are fewer than two values."""
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
        """The mean, NaN where there is no value."""
        return np.where(self.count > 0, self.mean, np.nan)

    def interval(self, share: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
        """The interval that holds the mean with that confidence, by Student's t."""
        from scipy.special import stdtrit  # here: it takes longer to import than all else

        reach = stdtrit(np.maximum(self.count - 1, 1), (1 + share) / 2) * self.sem
        return self.means - reach, self.means + reach


@dataclass(frozen=True, eq=False)
class State:
    """Moments and sums by name."""

    moments: Mapping[str, Moments] = field(default_factory=dict)
    sums: Mapping[str, np.ndarray] = field(default_factory=dict)

    def merged(self, other: "State") -> "State":
        """The state of both parts: those of this one come first."""
        moments, sums = dict(self.moments), dict(self.sums)
        for name, added in other.moments.items():
            moments[name] = moments[name].merged(added) if name in moments else added
        for name, more in other.sums.items():
            sums[name] = sums[name] + more if name in sums else more
        return State(moments, sums)

    def arrays(self) -> dict[str, np.ndarray]:
        """The state as named arrays, from which `of_arrays` makes it again."""
        found = {f"sum/{name}": values for name, values in self.sums.items()}
        for name, moments in self.moments.items():
            found |= {f"{part}/{name}": getattr(moments, part) for part in _MOMENTS}
        return found

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, Any]) -> "State":
        parts: dict[str, dict[str, np.ndarray]] = {}
        for key, values in arrays.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = values
        names = parts.get("mean", {})
        return cls(
            {name: Moments(*(parts[part][name] for part in _MOMENTS)) for name in names},
            parts.get("sum", {}),
        )
