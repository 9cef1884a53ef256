"""Measure tokens: cosine similarity, principal components, foreground and norms."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..common.query import Grid
from .embeddings import principal_components
from .inputs import Array, as_floats, check_share, unit_rows
from .sources import Tokens, patch_tokens, token_table

LONG = 5.0  # median absolute deviations above the median from which a token is long
OUTLIER = 5.0  # times the median from which a token is an outlier


def token_similarity(tokens: Tokens, *, depth: int | None = None) -> Array:
    """Compute the cosine of every token with every other.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        For a capture, the tokens after the final LayerNorm.
    depth : int
        Layers of the capture after which tokens are read; default all.

    Returns
    -------
    ndarray of shape (tokens, tokens)
        From -1 to 1.

    Raises
    ------
    ValueError
        When the tokens have another shape.

    Notes
    -----
    A token of zeros has no direction: its similarity to all, itself included, is 0. A direction
    that all tokens share makes all of them alike: compare patches with each other, not with 1.
    """
    unit = unit_rows(token_table(tokens, depth, normalised=True))
    return np.clip(unit @ unit.T, -1, 1)


def token_scatter(
    tokens: Tokens,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    n_components: int = 2,
    kept: ArrayLike | None = None,
    depth: int | None = None,
) -> tuple[Array, Array]:
    """Project all tokens on the principal components of the patches.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        For a capture, the tokens after the final LayerNorm.
    grid : (rows, cols)
    num_prefix_tokens : int
        They are projected, but the components are fitted on the patches alone. Default 1; a capture
        knows this and the grid.
    n_components : int
        At most min(patches, D).
    kept : array of bool, shape (rows, cols), optional
        The patches to fit on; default all.
    depth : int
        Layers of the capture after which tokens are read; default all.

    Returns
    -------
    points : ndarray of shape (tokens, n_components)
        In the tokens' unit; those of the fitted patches have mean 0. If all patches are kept, their
        rows are those of `token_components`.
    explained_variance : ndarray of shape (n_components,)
        The share of the fitted patches' variance along each component, from 0 to 1.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, an argument contradicts the capture, or too
        few patches are kept.

    Notes
    -----
    As in `token_components`, axes belong to one picture and one layer, and signs are set so that
    each axis' entry of largest magnitude is positive. Two tokens far apart here are far apart; two
    that are close may differ along the components that are not shown.

    References
    ----------
    Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision" (TMLR 2024), Fig. 1:
    there too, components are fitted again on the foreground.
    """
    table, prefix, grid = patch_tokens(
        tokens, depth, normalised=True, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    fitted = table[prefix:]
    if kept is not None:
        mask = np.asarray(kept, bool)
        if mask.shape != tuple(grid):
            raise ValueError(f"Expected kept patches of shape {grid}, got {mask.shape}.")
        fitted = fitted[mask.ravel()]
    if not len(fitted):
        raise ValueError("Expected at least one kept patch, got none.")
    axes, explained = principal_components(fitted, n_components=n_components)
    points = (table - fitted.mean(axis=0, dtype=np.float64)) @ axes.T
    return points.astype(table.dtype), explained


def foreground(component: ArrayLike, *, threshold: float, flip: bool = False) -> Array:
    """Select the patches at the upper end of a principal component.

    Parameters
    ----------
    component : array of shape (rows, cols)
        Each patch's coordinate along it, in any unit.
    threshold : float
        From 0, which keeps all patches, to 1, which keeps the last one: patches are kept from this
        place between the smallest coordinate and the largest.
    flip : bool
        Measure from the other end: a component's sign is arbitrary.

    Returns
    -------
    ndarray of bool, shape (rows, cols)
        At least one patch is kept; all are if they do not differ.

    Raises
    ------
    ValueError
        When the threshold is outside 0 to 1.

    Notes
    -----
    In some models, but not in all, the first component divides an object from its background: look
    at the patches that are kept.

    References
    ----------
    Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision" (TMLR 2024), Fig. 1.
    """
    check_share("threshold", threshold)
    place = as_floats(component)
    place = place.max() - place if flip else place - place.min()
    selection: Array = place >= threshold * place.max()
    return selection


def token_norms(
    tokens: Tokens,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    deviations: float = LONG,
    depth: int | None = None,
) -> tuple[Array, Array, float]:
    """Compute the norm of every patch token, and find the norms that stand out.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        Of the residual stream, as a LayerNorm hides the differences.
    grid : (rows, cols)
    num_prefix_tokens : int
        Default 1. A capture knows this and the grid.
    deviations : float
        A long token exceeds the median by more than so many median absolute deviations.
    depth : int
        Layers of the capture after which tokens are read; default all.

    Returns
    -------
    norms : ndarray of shape (rows, cols)
        In the tokens' unit.
    long : ndarray of bool, shape (rows, cols)
    limit : float
        The length above which a token is long.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, or an argument contradicts the capture.

    Notes
    -----
    Of normally distributed lengths, one in about 2,700 lies above 5 deviations. The rule finds
    tokens that stand out in one picture and layer, however little: on a real ViT-S/14 up to a tenth
    of the tokens, at 1.3 to 1.8 times the median. Those are not the outliers of the literature on
    registers, which `norm_outliers` finds.
    """
    table, prefix, grid = patch_tokens(
        tokens, depth, normalised=False, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    norms = np.linalg.norm(table[prefix:], axis=1)
    median = np.median(norms)
    spread = np.median(np.abs(norms - median))
    rounding = 4 * np.finfo(norms.dtype).eps * median  # equal tokens differ by that
    limit = float(median + deviations * max(spread, rounding))
    return norms.reshape(grid), (norms > limit).reshape(grid), limit


def norm_outliers(norms: ArrayLike, *, times: float = OUTLIER) -> NDArray[np.bool_]:
    """Find patch tokens that are outliers, such as those that registers were introduced against.

    Parameters
    ----------
    norms : array of shape (rows, cols)
        Lengths of the patch tokens before the final LayerNorm.
    times : float
        An outlier is at least so many times as long as the median.

    Returns
    -------
    ndarray of bool, shape (rows, cols)

    Notes
    -----
    The paper found about 2 % of the tokens of large models at about ten times the usual length. Its
    threshold is a length between the two modes of one model's histogram, and fits no other model:
    five times the median lies between such modes in any.

    References
    ----------
    Darcet et al., "Vision Transformers Need Registers" (ICLR 2024), section 2.
    """
    lengths = as_floats(norms)
    median = np.median(lengths)
    return np.asarray((lengths >= times * median) & (lengths > 0))
