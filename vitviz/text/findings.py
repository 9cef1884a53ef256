"""One sentence a page on what its numbers say, computed from them; numbers in, sentence out."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ..language import as_percent, mark, tr

CLEAR = 0.1  # of all attention among patches: what a pattern gets beyond uniform attention
ALMOST_UNIFORM = 0.1  # of all attention: what would have to move
NEAR_UNIFORM, LOCAL = 0.1, 0.5  # of the distance of uniform attention
MUCH, ALMOST = 0.3, 0.8  # correlations
ALIKE = 0.1  # a smaller difference of cosines is not told
_PLACES = {
    "row": mark("along the row of the query"),
    "column": mark("along the column of the query"),
    "neighbours": mark("to the neighbours of the query"),
    "itself": mark("to the query itself"),
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
    said = tr(
        "No head attends clearly to a row or a column, to neighbours, to itself or to one patch."
    )
    if best is not None and excess[best] >= CLEAR:
        name, at, head = best
        row, col = divmod(int(patches[at][head]), columns)
        where = tr("from everywhere to row {row}, column {column}", row=row + 1, column=col + 1)
        said = tr(
            "**Layer {layer}, head {head}** attends {where}: {share} of its attention among "
            "patches (uniform: {uniform}).",
            layer=layers[at],
            head=head + 1,
            where=tr(_PLACES[name]) if name in _PLACES else where,
            share=as_percent(shares[at][name][head]),
            uniform=as_percent(uniform[name]),
        )
    counts = [int((each < ALMOST_UNIFORM).sum()) for each in moved]
    at = int(np.argmax([count / len(each) for count, each in zip(counts, moved, strict=True)]))
    if counts[at]:
        heads, where = len(moved[at]), tr("**layer {layer}**", layer=layers[at])
        if len(layers) > 1 and sum(counts) == sum(map(len, moved)):
            where = tr("**every layer**")
        who = tr("All heads")
        if counts[at] < heads:
            who = tr("{count} of {heads} heads", count=counts[at], heads=heads)
        said += tr(" {who} of {where} attend almost uniformly.", who=who, where=where)
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
    verdict = tr("The heads are **mixed**.")
    if 2 * near > len(known):
        verdict = tr("Most heads attend **near**.")
    elif 2 * even > len(known):
        verdict = tr("Most heads attend **as far as uniform attention** would.")
    layer, head = np.unravel_index(np.nanargmin(pixels), pixels.shape)
    return tr(
        "{verdict} {even} of {heads} are within {percent} of the distance of uniform attention "
        "({uniform:.1f} px), {near} below half of it. The nearest is layer {layer}, head {head} "
        "({pixels:.1f} px).",
        verdict=verdict,
        even=even,
        heads=len(known),
        percent=as_percent(NEAR_UNIFORM),
        uniform=uniform,
        near=near,
        layer=layer + 1,
        head=head + 1,
        pixels=pixels[layer, head],
    )


def tokens(cosines: Sequence[float], shown: int) -> str:
    """How alike the patch tokens are after the layer on screen, and after the first.

    Parameters
    ----------
    cosines : the mean cosine of two different patches after each layer
    shown : the layer on screen, from 1
    """
    here, first = cosines[shown - 1], cosines[0]
    said = tr(
        "After layer {shown} two patches have a cosine of **{here:.2f}** on average",
        shown=shown,
        here=here,
    )
    if shown == 1:
        return f"{said}."
    change = tr(", less alike than after layer 1 ({first:.2f}).", first=first)
    if abs(here - first) < ALIKE:
        change = tr(", about as alike as after layer 1 ({first:.2f}).", first=first)
    elif here > first:
        change = tr(", more alike than after layer 1 ({first:.2f}).", first=first)
    return said + change


def maps(correlation: float, grids: Sequence[tuple[int, int]], common: tuple[int, int]) -> str:
    """How alike two maps of one picture are.

    Parameters
    ----------
    correlation : NaN where there is none
    grids : of the two maps, (rows, columns)
    common : in which they were compared
    """
    if np.isnan(correlation):
        said = tr("One of the two maps is the same everywhere, so they have no correlation.")
    else:
        verdict = tr("hardly alike")
        if correlation >= MUCH:
            verdict = tr("much alike") if correlation >= ALMOST else tr("partly alike")
        elif correlation <= -MUCH:
            verdict = tr("opposed to each other")
        said = tr(
            "The two maps are {verdict}: their correlation is **{correlation:.2f}**.",
            verdict=verdict,
            correlation=correlation,
        )
    if len({*grids, common}) > 1:
        first, second, third = (f"{rows} x {cols}" for rows, cols in (*grids, common))
        said += tr(
            " They lie in grids of {first} and of {second} patches and are compared on the "
            "picture, resampled by area to {third}.",
            first=first,
            second=second,
            third=third,
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
        return tr(
            "None of the {count} patches has a mutual match in the other picture.", count=count
        )
    same = int((pairs[:, 0] == pairs[:, 1]).sum())
    return tr(
        "**{pairs} of {count}** patches have a mutual match in the other picture, with a median "
        "cosine of {cosine:.2f}; {same} of them at the same place.",
        pairs=len(pairs),
        count=count,
        cosine=np.median(cosines),
        same=same,
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
    numbers = tr(
        "a cosine of **{near:.2f}** on average; any two, {every:.2f}",
        near=mean["next"],
        every=mean["all"],
    )
    if mean["next"] - mean["all"] < ALIKE:
        return tr(
            "Neighbouring positions are hardly more alike than any others: {numbers}.",
            numbers=numbers,
        )
    said = tr("Neighbouring positions are alike: {numbers}.", numbers=numbers)
    if abs(mean["row"] - mean["column"]) >= ALIKE:
        words = {"row": tr("row"), "column": tr("column")}
        more, less = sorted(words, key=lambda name: -mean[name])
        said += tr(
            " Positions of one {more} are more alike ({larger:.2f}) than those of one {less} "
            "({smaller:.2f}).",
            more=words[more],
            larger=mean[more],
            less=words[less],
            smaller=mean[less],
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
        return tr(
            "The first {first} of {count} components hold less than half of the variance.",
            first=len(explained),
            count=count,
        )
    said = tr(
        "Half of the variance of the filters lies in **{half} of {count}** components",
        half=half,
        count=count,
    )
    start = None if before is None else _reaching_half(before)
    if start is None:
        return f"{said}."
    if start == half:
        return said + tr(", as many as before training.")
    if half < start:
        return said + tr(", fewer than before training ({start}).", start=start)
    return said + tr(", more than before training ({start}).", start=start)


def _reaching_half(explained: np.ndarray) -> int | None:
    reached = np.flatnonzero(np.cumsum(explained) >= 0.5)
    return int(reached[0]) + 1 if len(reached) else None


def muted_heads(
    logits: np.ndarray, answer: int, name_of: Callable[[int], str]
) -> tuple[str, tuple[int, int] | None]:
    """What muting each head alone does to the answer, and the head that changes it most clearly.

    Parameters
    ----------
    logits : ndarray of shape (layers, heads, K)
        With that head muted.
    answer : the number of the class without any muting
    name_of : gives the name of a class

    Returns
    -------
    The sentence, and layer and head from 0; None where no head changes the answer.
    """
    answers = logits.argmax(axis=-1)
    changed = int((answers != answer).sum())
    if not changed:
        said = tr(
            "Muting any one of the {count} heads leaves the answer at **{label}**.",
            count=answers.size,
            label=name_of(answer),
        )
        return said, None
    margins = logits.max(axis=-1) - logits[..., answer]  # above 0 where another class wins
    layer, head = (int(at) for at in np.unravel_index(int(margins.argmax()), margins.shape))
    said = tr(
        "Muting one head alone changes the answer for **{changed} of {count}** heads, most clearly "
        "layer {layer}, head {head}: {label} becomes **{instead}**.",
        changed=changed,
        count=answers.size,
        layer=layer + 1,
        head=head + 1,
        label=name_of(answer),
        instead=name_of(int(answers[layer, head])),
    )
    return said, (layer, head)
