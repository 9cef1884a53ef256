"""Compute principal components of filters and tokens, and responses to a filter."""

import numpy as np
from numpy.typing import ArrayLike

from ..common.query import Grid
from .inputs import Array, as_floats
from .sources import Tokens, patch_tokens


def filter_components(kernel: ArrayLike, *, n_components: int = 28) -> tuple[Array, Array]:
    """Compute the principal components of the patch embedding's filters.

    Parameters
    ----------
    kernel : array of shape (D, C, P, P)
        The filters E of eq. 1, one per embedding dimension.
    n_components : int
        The paper shows 28. There are at most min(D, C * P * P): 48 where P = 4 and C = 3.

    Returns
    -------
    components : ndarray of shape (n_components, C, P, P)
        Unit vectors in falling order of variance, without a unit.
    explained_variance : ndarray of shape (n_components,)
        The share of the filters' variance along each component, from 0 to 1.

    Raises
    ------
    ValueError
        When the kernel does not have four axes, or fewer components than asked for.

    Notes
    -----
    A component's sign is arbitrary: here its entry of largest magnitude is positive. Its tile is a
    direction of variation around the mean filter, not a filter of the model. A component along
    which nothing varies beyond rounding is all zeros, since any direction would do: the last one if
    D <= C * P * P, as D filters vary around their mean in D - 1 directions.

    References
    ----------
    The ViT paper, Fig. 7 left.
    """
    filters = as_floats(kernel)
    if filters.ndim != 4 or not filters.size:
        raise ValueError(f"Expected a kernel of shape (D, C, P, P), got {filters.shape}.")
    components, explained = principal_components(
        filters.reshape(len(filters), -1), n_components=n_components
    )
    return components.reshape(-1, *filters.shape[1:]).astype(filters.dtype), explained


def filter_response(image: ArrayLike, kernel: ArrayLike) -> Array:
    """Compute the response of each patch of a picture to one filter: their inner product.

    Parameters
    ----------
    image : array of shape (C, H, W)
        The model's input, in units of its preprocessing.
    kernel : array of shape (C, P, Q)
        One filter, or one principal component of the filters; P x Q pixels are a patch.

    Returns
    -------
    ndarray of shape (H // P, W // Q)
        x_p E of eq. 1 without the bias, in the image's unit times the filter's.

    Raises
    ------
    ValueError
        When the image has other channels than the filter, or is smaller than a patch.

    Notes
    -----
    Pixels beyond the last whole patch are left out, as in a convolution of stride P. A large
    response can come from a bright patch as well as from one that looks like the filter.

    References
    ----------
    The ViT paper, eq. 1.
    """
    pixels, one = as_floats(image), as_floats(kernel)
    fits = pixels.ndim == one.ndim == 3 and len(pixels) == len(one) and one.size
    if not fits or pixels.shape[1] < one.shape[1] or pixels.shape[2] < one.shape[2]:
        raise ValueError(
            "Expected an image (C, H, W) and a filter (C, P, Q) that is no larger, "
            f"got {pixels.shape} and {one.shape}."
        )
    channels, high, wide = one.shape
    rows, cols = pixels.shape[1] // high, pixels.shape[2] // wide
    whole = pixels[:, : rows * high, : cols * wide]
    patches = whole.reshape(channels, rows, high, cols, wide).astype(np.float64)
    response = np.einsum("crpsq,cpq->rs", patches, one)
    return response.astype(pixels.dtype)


def token_components(
    tokens: Tokens,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    n_components: int = 3,
    depth: int | None = None,
) -> tuple[Array, Array]:
    """Compute the principal components of the patch tokens, as a picture.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        For a capture, the tokens after the final LayerNorm.
    grid : (rows, cols)
    num_prefix_tokens : int
        They are excluded: the components are fitted on the patches. Default 1; a capture knows this
        and the grid.
    n_components : int
        At most min(rows * cols, D).
    depth : int
        Layers of the capture after which tokens are read; default all.

    Returns
    -------
    components : ndarray of shape (rows, cols, n_components)
        Each patch's coordinates, in the tokens' unit; their mean over the patches is 0.
    explained_variance : ndarray of shape (n_components,)
        The share of the patches' variance along each component, from 0 to 1.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols or have fewer components than asked for, or
        when an argument contradicts the capture.

    Notes
    -----
    Each picture has axes of its own: equal colours in two pictures, or in two layers, have no
    common meaning. A sign is arbitrary: here the entry of largest magnitude of each axis is
    positive. Read the explained variance first, since three components can be a small part. A
    component along which nothing varies beyond rounding is all zeros.

    References
    ----------
    Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision" (TMLR 2024), Fig. 1.
    """
    table, prefix, grid = patch_tokens(
        tokens, depth, normalised=True, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    patches = table[prefix:]  # (N, D)
    axes, explained = principal_components(patches, n_components=n_components)
    centred = patches - patches.mean(axis=0, dtype=np.float64)
    components = (centred @ axes.T).astype(table.dtype)  # (N, n)
    return components.reshape(*grid, n_components), explained


def principal_components(rows: Array, *, n_components: int) -> tuple[Array, Array]:
    """Return unit vectors (n, features) along which `rows` vary most, and their variance shares."""
    limit = min(rows.shape)
    if not 1 <= n_components <= limit:
        raise ValueError(f"Expected 1 to {limit} components, got {n_components}.")
    if (rows == rows[0]).all():  # no variance to share out
        return np.zeros((n_components, rows.shape[1])), np.zeros(n_components)

    from sklearn.decomposition import PCA  # here, as it takes longer to import than all else

    pca = PCA(n_components, svd_solver="full").fit(rows.astype(np.float64))
    axes, explained = pca.components_, pca.explained_variance_ratio_
    largest = np.abs(axes).argmax(axis=1)
    axes *= np.sign(axes[np.arange(n_components), largest])[:, None]
    rounding = explained <= (max(rows.shape) * np.finfo(rows.dtype).eps) ** 2
    axes[rounding], explained[rounding] = 0.0, 0.0
    return axes, explained
