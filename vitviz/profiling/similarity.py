"""Linear CKA between layers, from Gram matrices of minibatches."""

import numpy as np

_COLUMNS = 1 << 14  # that are multiplied at a time: large features may lie on disk


def hsic(grams: np.ndarray) -> np.ndarray:
    """The unbiased estimate of HSIC between all pairs of layers.

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
    """X X^T of features (n, ...) less their mean, which HSIC does not depend on: (n, n)."""
    flat = features.reshape(len(features), -1)
    product = np.zeros((len(flat), len(flat)))
    for start in range(0, flat.shape[1], _COLUMNS):
        part = flat[:, start : start + _COLUMNS]
        centred = part - part.mean(axis=0)  # or a large mean costs digits
        product += centred @ centred.T
    return product


def cka(summed: np.ndarray) -> np.ndarray:
    """Linear CKA of all pairs of layers, from the sum (layers, layers) of HSIC over minibatches.

    From 0 to 1 but for chance: an unbiased estimate can fall below 0. NaN where a layer's features
    do not differ between pictures.
    """
    own = np.diag(summed)
    scale = np.sqrt(np.maximum(np.outer(own, own), 0))
    return np.divide(summed, scale, out=np.full_like(summed, np.nan), where=scale > 0)
