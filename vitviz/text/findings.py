"""One sentence a page on what its numbers say, computed from them; numbers in, sentence out."""

from collections.abc import Mapping, Sequence

import numpy as np

CLEAR = 0.1  # of all attention among patches: what a pattern gets beyond uniform attention
ALMOST_UNIFORM = 0.1  # of all attention: what would have to move
NEAR_UNIFORM, LOCAL = 0.1, 0.5  # of the distance of uniform attention
MUCH, ALMOST = 0.3, 0.8  # correlations
ALIKE = 0.1  # a smaller difference of cosines is not told
_PLACES = {
    "row": "along the row of the query",
    "column": "along the column of the query",
    "neighbours": "to the neighbours of the query",
    "itself": "to the query itself",
}


def attention(
    layers: Sequence[int],
    shares: Sequence[Mapping[str, np.ndarray]],
    uniform: Mapping[str, float],
    patches: Sequence[np.ndarray],
    moved: Sequence[np.ndarray],
    columns: int,
) -> str:
    """The head with the clearest simple pattern, and the layer of almost uniform heads.

    Parameters
    ----------
    layers : the number of each layer that was measured, from 1
    shares, patches, moved : of each layer, by head: see `inspection.Patterns`
    uniform : the share of each pattern under uniform attention
    columns : of the grid
    """
    excess = {
        (name, at, head): float(share) - uniform[name]
        for at, by_name in enumerate(shares)
        for name, by_head in by_name.items()
        for head, share in enumerate(by_head)
        if share >= 2 * uniform[name]
    }
    best = max(excess, key=lambda key: excess[key], default=None)
    said = "No head attends clearly to a row or a column, to neighbours, to itself or to one patch."
    if best is not None and excess[best] >= CLEAR:
        name, at, head = best
        where = _PLACES.get(name)
        if where is None:
            row, col = divmod(int(patches[at][head]), columns)
            where = f"from everywhere to row {row + 1}, column {col + 1}"
        said = (
            f"**Layer {layers[at]}, head {head + 1}** attends {where}: "
            f"{_percent(shares[at][name][head])} of its attention among patches (uniform: "
            f"{_percent(uniform[name])})."
        )
    counts = [int((each < ALMOST_UNIFORM).sum()) for each in moved]
    at = int(np.argmax([count / len(each) for count, each in zip(counts, moved, strict=True)]))
    if counts[at]:
        heads, where = len(moved[at]), f"**layer {layers[at]}**"
        if len(layers) > 1 and sum(counts) == sum(map(len, moved)):
            where = "**every layer**"
        who = "All heads" if counts[at] == heads else f"{counts[at]} of {heads} heads"
        said += f" {who} of {where} attend almost uniformly."
    return said


def distance(pixels: np.ndarray, uniform: float) -> str:
    """Whether the heads attend near or far.

    Parameters
    ----------
    pixels : ndarray of shape (layers, heads)
        Mean attention distances; NaN where a head attends to no patch.
    uniform : the distance of uniform attention, in the same unit
    """
    known = pixels[np.isfinite(pixels)]
    if not len(known) or uniform <= 0:
        return ""
    near = int((known < LOCAL * uniform).sum())
    even = int((np.abs(known - uniform) <= NEAR_UNIFORM * uniform).sum())
    verdict = "The heads are **mixed**."
    if 2 * near > len(known):
        verdict = "Most heads attend **near**."
    elif 2 * even > len(known):
        verdict = "Most heads attend **as far as uniform attention** would."
    layer, head = np.unravel_index(np.nanargmin(pixels), pixels.shape)
    return (
        f"{verdict} {even} of {len(known)} are within {_percent(NEAR_UNIFORM)} of the distance of "
        f"uniform attention ({uniform:.1f} px), {near} below half of it. The nearest is layer "
        f"{layer + 1}, head {head + 1} ({pixels[layer, head]:.1f} px)."
    )


def tokens(cosines: Sequence[float], shown: int) -> str:
    """How alike the patch tokens are after the layer on screen, and after the first.

    Parameters
    ----------
    cosines : the mean cosine of two different patches after each layer
    shown : the layer on screen, from 1
    """
    here, first = cosines[shown - 1], cosines[0]
    said = f"After layer {shown} two patches have a cosine of **{here:.2f}** on average"
    if shown == 1:
        return f"{said}."
    change = "about as alike as" if abs(here - first) < ALIKE else "less alike than"
    if here - first >= ALIKE:
        change = "more alike than"
    return f"{said}, {change} after layer 1 ({first:.2f})."


def maps(correlation: float, grids: Sequence[tuple[int, int]], common: tuple[int, int]) -> str:
    """How alike two maps of one picture are.

    Parameters
    ----------
    correlation : NaN where there is none
    grids : of the two maps, (rows, columns)
    common : in which they were compared
    """
    if np.isnan(correlation):
        said = "One of the two maps is the same everywhere, so they have no correlation."
    else:
        verdict = "hardly alike"
        if correlation >= MUCH:
            verdict = "much alike" if correlation >= ALMOST else "partly alike"
        elif correlation <= -MUCH:
            verdict = "opposed to each other"
        said = f"The two maps are {verdict}: their correlation is **{correlation:.2f}**."
    if len({*grids, common}) > 1:
        first, second, third = (f"{rows} x {cols}" for rows, cols in (*grids, common))
        said += (
            f" They lie in grids of {first} and of {second} patches and are compared on the "
            f"picture, resampled by area to {third}."
        )
    return said


def matches(pairs: np.ndarray, cosines: np.ndarray, count: int) -> str:
    """How many patches have a mutual match in another picture, and whether at the same place.

    Parameters
    ----------
    pairs : ndarray of shape (pairs, 2)
        Numbers of patches in the two pictures, in grids of one shape.
    cosines : ndarray of shape (pairs,)
    count : of all patches of a picture
    """
    if not len(pairs):
        return f"None of the {count} patches has a mutual match in the other picture."
    same = int((pairs[:, 0] == pairs[:, 1]).sum())
    return (
        f"**{len(pairs)} of {count}** patches have a mutual match in the other picture, with a "
        f"median cosine of {np.median(cosines):.2f}; {same} of them at the same place."
    )


def positions(similarity: np.ndarray) -> str:
    """Whether neighbours have similar position embeddings, and rows or columns more so.

    Parameters
    ----------
    similarity : ndarray of shape (rows, cols, rows, cols)
        Cosines of the embeddings.
    """
    rows, cols = similarity.shape[:2]
    row, col = np.divmod(np.arange(rows * cols), cols)
    cosines = similarity.reshape(rows * cols, -1)
    down, across = (np.abs(place[:, None] - place) for place in (row, col))
    pairs = {
        "next": down + across == 1,
        "all": down + across > 0,
        "row": (down == 0) & (across > 0),
        "column": (across == 0) & (down > 0),
    }
    if not all(mask.any() for mask in pairs.values()):
        return ""
    mean = {name: float(cosines[mask].mean()) for name, mask in pairs.items()}
    numbers = f"a cosine of **{mean['next']:.2f}** on average; any two, {mean['all']:.2f}"
    if mean["next"] - mean["all"] < ALIKE:
        return f"Neighbouring positions are hardly more alike than any others: {numbers}."
    said = f"Neighbouring positions are alike: {numbers}."
    if abs(mean["row"] - mean["column"]) >= ALIKE:
        more, less = sorted(("row", "column"), key=lambda name: -mean[name])
        said += (
            f" Positions of one {more} are more alike ({mean[more]:.2f}) than those of one {less} "
            f"({mean[less]:.2f})."
        )
    return said


def filters(explained: np.ndarray, before: np.ndarray | None, count: int) -> str:
    """How many components hold half of the variance of the filters, and did before training.

    Parameters
    ----------
    explained, before : shares of the variance, largest first; None where the start is not known
    count : of all components
    """
    half = _reaching_half(explained)
    if half is None:
        return (
            f"The first {len(explained)} of {count} components hold less than half of the variance."
        )
    said = f"Half of the variance of the filters lies in **{half} of {count}** components"
    start = None if before is None else _reaching_half(before)
    if start is None:
        return f"{said}."
    change = "as many as" if start == half else "fewer than" if half < start else "more than"
    return f"{said}, {change} before training" + (f" ({start})." if start != half else ".")


def _reaching_half(explained: np.ndarray) -> int | None:
    reached = np.flatnonzero(np.cumsum(explained) >= 0.5)
    return int(reached[0]) + 1 if len(reached) else None


def _percent(share: float) -> str:
    percent = 100 * float(share)
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.1f} %"
