"""Attention within windows or to pooled keys: masked pairs, the mean distance, and its cost."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .inputs import MASKED, Array, as_floats, attends
from .sources import Captured, read_windows


def allowed_pairs(attention: ArrayLike) -> NDArray[np.bool_]:
    """Find the pairs of query and key that are not masked, from the attention itself.

    Parameters
    ----------
    attention : array-like of shape (heads, ...)
        The attention of a layer, or a row or a map of it.

    Returns
    -------
    ndarray of bool of shape (...)
        True where any head has a larger share than a mask leaves.
    """
    return np.asarray((as_floats(attention) > MASKED).any(axis=0))


def windowed_distance(
    windows: Iterable[tuple[ArrayLike, ArrayLike, ArrayLike]] | Captured,
    *,
    layer: int | None = None,
) -> Array:
    """Measure how far each head of one layer looks on average, in pixels.

    Parameters
    ----------
    windows : iterable of (attention, queries, keys), or a capture
        As `Activations.windows` yields them: attention of shape (heads, n, m), and the places of
        its queries (n, 2) and keys (m, 2) in pixels of the model's input; NaN for tokens that are
        not patches.
    layer : int
        Of the capture.

    Returns
    -------
    ndarray of shape (heads,)
        Pixels; NaN if no patch looks at a patch.

    Raises
    ------
    ValueError
        When the places do not fit the attention, or there is no window.

    Notes
    -----
    Each row is first divided by its sum over patches, as in `attention_distance`, which this
    equals if one window holds every token. Within a window no head can look far: compare heads with
    the distance of uniform attention in the same windows, not across layers. A pooled key lies at
    the middle of the patches that were pooled, so even a look at itself has a distance.

    References
    ----------
    The ViT paper, Fig. 7 right.
    """
    total: Array | None = None
    count: Array | None = None
    for attention, queries, keys in read_windows(windows, layer):
        weights, q, k = as_floats(attention), np.asarray(queries), np.asarray(keys)
        if weights.ndim != 3 or weights.shape[1:] != (len(q), len(k)):
            raise ValueError(
                f"Expected attention of shape (heads, {len(q)}, {len(k)}), got {weights.shape}."
            )
        placed_q, placed_k = np.isfinite(q).all(axis=1), np.isfinite(k).all(axis=1)
        patches = weights[:, placed_q][:, :, placed_k]
        pixels = np.linalg.norm(q[placed_q][:, None] - k[placed_k], axis=2)  # (n, m)
        mass = patches.sum(axis=2, dtype=np.float64)
        weighted = np.vecdot(patches, pixels)
        attending = attends(mass)
        rows = np.divide(weighted, mass, out=np.zeros_like(mass), where=attending)
        total = rows.sum(axis=1) + (0 if total is None else total)
        count = attending.sum(axis=1) + (0 if count is None else count)
    if total is None or count is None:
        raise ValueError("Expected at least one window, got none.")
    return np.divide(total, count, out=np.full(len(total), np.nan), where=count > 0)


def multiply_adds(
    queries: int, keys: int | None = None, *, embed_dim: int, mlp_dim: int
) -> tuple[int, int]:
    """Count the multiply-adds of one encoder layer: of the attention matrices, and of the rest.

    Parameters
    ----------
    queries : int
        Tokens N.
    keys : int, optional
        Tokens M at which each query may look; default all N. The pooling that makes fewer keys and
        values is not counted.
    embed_dim, mlp_dim : int
        D, and the width of the MLP's hidden layer.

    Returns
    -------
    (matrices, rest) : int
        2 N M D for q k^T and for A v; 4 N D^2 for the projections to q, k, v and out, and
        2 N D MLP for the MLP's two layers. Softmax, norms, biases and activations are left out.

    References
    ----------
    Liu et al., "Swin Transformer" (ICCV 2021), equations 1 and 2, which leave the MLP out.
    """
    matrices = 2 * queries * (queries if keys is None else keys) * embed_dim
    rest = 4 * queries * embed_dim**2 + 2 * queries * embed_dim * mlp_dim
    return matrices, rest
