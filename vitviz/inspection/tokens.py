"""Measurements of tokens: cosine similarity, principal components, foreground and norms."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .embeddings import principal_components
from .inputs import Array, Grid, as_floats, check_share, unit_rows
from .sources import Tokens, patches_of, table_of

LONG = 5.0  # from so many median absolute deviations above the median
OUTLIER = 5.0  # from so many times the median


def token_similarity(tokens: Tokens, *, depth: int | None = None) -> Array:
    """Cosine similarity of every token with every other.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        Of a capture, the tokens after the final LayerNorm.
    depth : int
        Of the capture: after so many layers; the last where left out.

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
    unit = unit_rows(table_of(tokens, depth, normalised=True))
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
    """All tokens on the principal components of the patches.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        Of a capture, the tokens after the final LayerNorm.
    grid : (rows, cols)
    num_prefix_tokens : int
        They are projected: the components are fitted on the patches alone. 1 where left out; a
        capture knows this and the grid.
    n_components : int
        At most min(patches, D).
    kept : array of bool, shape (rows, cols), optional
        The patches to fit on; all where left out.
    depth : int
        Of the capture: after so many layers; the last where left out.

    Returns
    -------
    points : ndarray of shape (tokens, n_components)
        In the tokens' unit; those of the fitted patches have mean 0. The patches' rows are what
        `token_components` gives, where all are kept.
    explained_variance : ndarray of shape (n_components,)
        The share of the fitted patches' variance along each component, from 0 to 1.

    Raises
    ------
    ValueError
        When the tokens are not prefix + rows * cols, an argument contradicts the capture, or too
        few patches are kept.

    Notes
    -----
    As for `token_components`: axes belong to one picture and one layer, and signs are set so that
    each axis' entry of largest magnitude is positive. Two tokens far apart here are far apart; two
    that are close may differ along the components that are not shown.

    References
    ----------
    Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision" (TMLR 2024), Fig. 1:
    there too, components are fitted again on the foreground.
    """
    table, prefix, grid = patches_of(
        tokens, depth, normalised=True, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    fitted = table[prefix:]
    if kept is not None:
        chosen = np.asarray(kept, bool)
        if chosen.shape != tuple(grid):
            raise ValueError(f"Expected kept patches of shape {grid}, got {chosen.shape}.")
        fitted = fitted[chosen.ravel()]
    if not len(fitted):
        raise ValueError("Expected at least one kept patch, got none.")
    axes, explained = principal_components(fitted, n_components=n_components)
    points = (table - fitted.mean(axis=0, dtype=np.float64)) @ axes.T
    return points.astype(table.dtype), explained


def foreground(component: ArrayLike, *, threshold: float, flip: bool = False) -> Array:
    """The patches at the upper end of a principal component.

    Parameters
    ----------
    component : array of shape (rows, cols)
        Each patch's coordinate along it, in any unit.
    threshold : float
        From 0, which keeps all patches, to 1, which keeps the last one: the place between the
        smallest coordinate and the largest from which patches are kept.
    flip : bool
        Measure from the other end: a component's sign is arbitrary.

    Returns
    -------
    ndarray of bool, shape (rows, cols)
        At least one patch is kept; all are where they do not differ.

    Raises
    ------
    ValueError
        When the threshold is outside 0 to 1.

    Notes
    -----
    That the first component divides a thing from its background is a habit of some models, and no
    law: look at what is kept.

    References
    ----------
    Oquab et al., "DINOv2: Learning Robust Visual Features without Supervision" (TMLR 2024), Fig. 1.
    """
    check_share("threshold", threshold)
    place = as_floats(component)
    place = place.max() - place if flip else place - place.min()
    kept: Array = place >= threshold * place.max()
    return kept


def token_norms(
    tokens: Tokens,
    *,
    grid: Grid | None = None,
    num_prefix_tokens: int | None = None,
    deviations: float = LONG,
    depth: int | None = None,
) -> tuple[Array, Array, float]:
    """The norm of every patch token, and which norms stand out from the others.

    Parameters
    ----------
    tokens : array of shape (tokens, D), or a capture
        Of the residual stream: a LayerNorm hides what is asked here.
    grid : (rows, cols)
    num_prefix_tokens : int
        1 where left out. A capture knows this and the grid.
    deviations : float
        A long token is longer than the median by more than so many times the median absolute
        deviation from the median.
    depth : int
        Of the capture: after so many layers; the last where left out.

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
    Of normally distributed lengths, one in about 2,700 lies above 5 deviations. The rule finds what
    stands out in one picture and layer, however little: on a real ViT-S/14 up to a tenth of the
    tokens, at 1.3 to 1.8 times the median. Those are no outliers as the literature on registers has
    them, which are found by `norm_outliers`.
    """
    table, prefix, grid = patches_of(
        tokens, depth, normalised=False, grid=grid, num_prefix_tokens=num_prefix_tokens
    )
    norms = np.linalg.norm(table[prefix:], axis=1)
    median = np.median(norms)
    spread = np.median(np.abs(norms - median))
    rounding = 4 * np.finfo(norms.dtype).eps * median  # equal tokens differ by that
    limit = float(median + deviations * max(spread, rounding))
    return norms.reshape(grid), (norms > limit).reshape(grid), limit


def norm_outliers(norms: ArrayLike, *, times: float = OUTLIER) -> NDArray[np.bool_]:
    """Which patch tokens are outliers, such as those that registers were introduced against.

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
    own threshold is a length, chosen between the two modes of one model's histogram, and fits no
    other model: five times the median lies between such modes in any.

    References
    ----------
    Darcet et al., "Vision Transformers Need Registers" (ICLR 2024), section 2.
    """
    lengths = as_floats(norms)
    median = np.median(lengths)
    return np.asarray((lengths >= times * median) & (lengths > 0))
