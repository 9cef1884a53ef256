"""Attention within windows or to pooled keys: which pairs are masked, and the mean distance."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .inputs import Array, as_floats
from .sources import Captured, windows_of

#: Far above e^-100 = 4e-44, which Swin's mask of -100 leaves of a share, and far below the share of
#: a key that is not masked.
_FLOOR = 1e-20


def allowed_pairs(attention: ArrayLike) -> NDArray[np.bool_]:
    """Which pairs of query and key are not masked, as the attention itself shows.

    Parameters
    ----------
    attention : array-like of shape (heads, ...)
        The attention of a layer, or a row or a map of it.

    Returns
    -------
    ndarray of bool of shape (...)
        True where any head gave more than a mask leaves.
    """
    return np.asarray((as_floats(attention) > _FLOOR).any(axis=0))


def windowed_distance(
    windows: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]] | Captured,
    *,
    layer: int | None = None,
) -> Array:
    """How far each head of one layer looks on average, in pixels.

    Parameters
    ----------
    windows : iterable of (attention, queries, keys), or a capture
        As `Activations.windows` yields them: attention of shape (heads, n, m), and the places of
        its queries (n, 2) and keys (m, 2) in pixels of the model's input; NaN for tokens that
        stand for no patch.
    layer : int
        Of the capture.

    Returns
    -------
    ndarray of shape (heads,)
        Pixels; NaN where no patch looks at a patch.

    Raises
    ------
    ValueError
        When the places do not fit the attention, or there is no window.

    Notes
    -----
    Each row is divided by its sum over patches first, as in `attention_distance`, which this
    equals where one window holds every token. Within a window no head can look far: compare heads
    with the distance of equal sharing in the same windows, not across layers. Pooled keys have
    the place of the middle of what was pooled, so that even a look at oneself has a distance.

    References
    ----------
    The ViT paper, Fig. 7 right.
    """
    total: Array | None = None
    count: Array | None = None
    for attention, queries, keys in windows_of(windows, layer):
        weights, q, k = as_floats(attention), np.asarray(queries), np.asarray(keys)
        if weights.ndim != 3 or weights.shape[1:] != (len(q), len(k)):
            raise ValueError(
                f"Expected attention of shape (heads, {len(q)}, {len(k)}), got {weights.shape}."
            )
        there, seen = np.isfinite(q).all(axis=1), np.isfinite(k).all(axis=1)
        patches = weights[:, there][:, :, seen]
        pixels = np.linalg.norm(q[there][:, None] - k[seen], axis=2)  # (n, m)
        mass = patches.sum(axis=2, dtype=np.float64)
        far = np.vecdot(patches, pixels)
        kept = mass != 0
        rows = np.divide(far, mass, out=np.zeros_like(mass), where=kept)
        total = rows.sum(axis=1) + (0 if total is None else total)
        count = kept.sum(axis=1) + (0 if count is None else count)
    if total is None or count is None:
        raise ValueError("Expected at least one window, got none.")
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)
