"""Write one sentence per page about what its numbers show."""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from ..common.language import as_percent, mark, offset_name, tr, tr_md

# A clear pattern exceeds uniform attention by this share of attention among patches.
CLEAR_SHARE = 0.1
MOSTLY_PREFIX = 0.5  # from this share on, a head counts as attending to one prefix token
ALMOST_UNIFORM = 0.1  # share of attention that would have to move to become uniform
NEAR_UNIFORM, LOCAL = 0.1, 0.5  # shares of the distance of uniform attention
MUCH, ALMOST = 0.3, 0.8  # correlations
ALIKE = 0.1  # smaller differences of cosines are not reported
MOST_NAMED = 4  # tokens in a sentence
_PLACES = {
    "row": mark("along the row of the query"),
    "column": mark("along the column of the query"),
    "neighbours": mark("to the neighbours of the query"),
    "itself": mark("to the query itself"),
}


class Sinks(Protocol):
    """The result of `inspection.attention_sinks` for a layer."""

    @property
    def no_ops(self) -> Sequence[int]: ...

    @property
    def broadcasts(self) -> Sequence[int]: ...


class Patterns(Protocol):
    """The result of `inspection.attention_patterns` for a layer."""

    @property
    def shares(self) -> dict[str, np.ndarray]: ...

    @property
    def uniform(self) -> dict[str, float]: ...

    @property
    def offset(self) -> np.ndarray: ...

    @property
    def patch(self) -> np.ndarray: ...

    @property
    def token(self) -> np.ndarray: ...

    @property
    def moved(self) -> np.ndarray: ...


def attention(
    layers: Sequence[int],
    patterns: Sequence[Patterns],
    columns: int,
    prefix: Sequence[str] = (),
) -> str:
    """Name the head with the clearest simple pattern, and the layer with most uniform heads.

    Parameters
    ----------
    layers : numbers of the measured layers, from 1
    patterns : of each of them
    columns : of the grid
    prefix : names of the prefix tokens
    """
    shares = [each.shares for each in patterns]
    uniform = patterns[0].uniform
    # If most attention goes to one prefix token, a pattern among the patches means little.
    away = [each.get("prefix", np.zeros(1)) >= MOSTLY_PREFIX for each in shares]
    excess = {
        (name, at, head): float(share) - uniform[name]
        for at, by_name in enumerate(shares)
        for name, by_head in by_name.items()
        for head, share in enumerate(by_head)
        if share >= 2 * uniform[name]
        and np.broadcast_to(away[at], by_head.shape)[head] == (name == "prefix")
    }
    best = max(excess, key=lambda key: excess[key], default=None)
    sentence = tr(
        "No head attends clearly to a row or a column, to neighbours, to itself, to one offset or "
        "to one token."
    )
    if best is not None and excess[best] >= CLEAR_SHARE:
        name, at, head = best
        numbers = dict(
            layer=layers[at],
            head=head + 1,
            share=as_percent(shares[at][name][head]),
            uniform=as_percent(uniform[name]),
        )
        if name == "prefix":
            sentence = tr(
                "**Layer {layer}, head {head}** attends from everywhere to {token}: {share} of its "
                "attention (uniform: {uniform}).",
                token=prefix[int(patterns[at].token[head])],
                **numbers,
            )
        else:
            sentence = tr(
                "**Layer {layer}, head {head}** attends {where}: {share} of its attention among "
                "patches (uniform: {uniform}).",
                where=_pattern_words(patterns[at], name, head, columns),
                **numbers,
            )
    counts = [
        int(((each.moved < ALMOST_UNIFORM) & ~elsewhere).sum())
        for each, elsewhere in zip(patterns, away, strict=True)
    ]
    heads = [len(each.moved) for each in patterns]
    at = int(np.argmax([count / every for count, every in zip(counts, heads, strict=True)]))
    if counts[at]:
        where = tr("**layer {layer}**", layer=layers[at])
        if len(layers) > 1 and sum(counts) == sum(heads):
            where = tr("**every layer**")
        who = tr("All heads")
        if counts[at] < heads[at]:
            who = tr("{count} of {heads} heads", count=counts[at], heads=heads[at])
        sentence += tr(" {who} of {where} attend almost uniformly.", who=who, where=where)
    return sentence


def sinks(layer: int, keys: Sinks, columns: int, prefix: Sequence[str] = ()) -> str:
    """Name the keys of a layer that get attention for nothing, and those that add to nearly all.

    Parameters
    ----------
    layer : its number, from 1
    keys : tokens, counted from 0 with the prefix
    columns : of the grid
    prefix : names of the prefix tokens
    """

    sentences = [
        tr(
            "In layer {layer} no key gets more than five times an equal share of attention and "
            "adds less than an equal share.",
            layer=layer,
        )
    ]
    if keys.no_ops:
        sentences = [
            tr(
                "In layer {layer} these keys get more than five times an equal share of attention "
                "and add less than an equal share (**no-op sinks**): {names}.",
                layer=layer,
                names=_name_tokens(keys.no_ops, columns, prefix),
            )
        ]
    if keys.broadcasts:
        sentences.append(
            tr(
                "These add more than five times an equal share to at least nine in ten queries "
                "(**broadcasts**): {names}.",
                names=_name_tokens(keys.broadcasts, columns, prefix),
            )
        )
    return " ".join(sentences)


def sinks_by_layer(
    layers: Mapping[int, Sinks], columns: int, prefix: Sequence[str] = ()
) -> tuple[str, str]:
    """Name by layer the no-op sinks, in one sentence, and the broadcasts, in another.

    Parameters
    ----------
    layers : by the number of a layer, from 1
    columns, prefix
        As of `sinks`.
    """

    def names(by_layer: Mapping[int, Sequence[int]]) -> str:
        parts = [
            tr(
                "layer {layer} ({names})",
                layer=layer,
                names=_name_tokens(tokens, columns, prefix),
            )
            for layer, tokens in by_layer.items()
            if tokens
        ]
        return ", ".join(parts) or tr("in no layer")

    return _define_sinks(
        names({layer: one.no_ops for layer, one in layers.items()}),
        names({layer: one.broadcasts for layer, one in layers.items()}),
    )


def sinks_over_pictures(counts: Mapping[str, np.ndarray]) -> tuple[str, str]:
    """Say how many pictures of a profile have a no-op sink in each layer, and how many a broadcast.

    Parameters
    ----------
    counts : `Profile.sinks`
    """
    pictures = counts["pictures"]

    def shares(count: np.ndarray) -> str:
        parts = [
            tr("layer {layer} in {share}", layer=layer + 1, share=as_percent(each / of))
            for layer, (each, of) in enumerate(zip(count, pictures, strict=True))
            if each
        ]
        most = int(pictures.max())
        if not parts:
            return tr("in none of {count:,} pictures", count=most)
        return tr("{layers} of {count:,} pictures", layers=", ".join(parts), count=most)

    return _define_sinks(shares(counts["no_ops"]), shares(counts["broadcasts"]))


def _define_sinks(no_ops: str, broadcasts: str) -> tuple[str, str]:
    """Say what both are, and where they were found."""
    return (
        tr(
            "**No-op sinks**, keys that get more than five times an equal share of attention and "
            "add less than an equal share: {where}.",
            where=no_ops,
        ),
        tr(
            "**Broadcasts**, keys that add more than five times an equal share to at least nine in "
            "ten queries: {where}.",
            where=broadcasts,
        ),
    )


def _name_tokens(tokens: Sequence[int], columns: int, prefix: Sequence[str]) -> str:
    """Name the first few tokens: prefix tokens by their names, patches by their places."""
    names = []
    for token in tokens[:MOST_NAMED]:
        row, col = divmod(token - len(prefix), columns)
        place = tr("row {row}, column {column}", row=row + 1, column=col + 1)
        names.append(prefix[token].upper() if token < len(prefix) else place)
    if len(tokens) > MOST_NAMED:
        names.append(tr("{count} more", count=len(tokens) - MOST_NAMED))
    return "; ".join(names)


def _pattern_words(pattern: Patterns, name: str, head: int, columns: int) -> str:
    """Name the keys of a pattern among the patches."""
    if name in _PLACES:
        return tr(_PLACES[name])
    if name == "one patch":
        row, col = divmod(int(pattern.patch[head]), columns)
        return tr("from everywhere to row {row}, column {column}", row=row + 1, column=col + 1)
    down, right = (int(steps) for steps in pattern.offset[head])
    return tr(
        "to the patch at one offset from the query, where there is one ({offset})",
        offset=offset_name(down, right),
    )


def distance(pixels: np.ndarray, uniform: float, *, renormalised: bool = True) -> str:
    """Say whether the heads attend near or far.

    Parameters
    ----------
    pixels : ndarray of shape (layers, heads)
        Mean attention distances; NaN if a head attends to no patch.
    uniform : distance of uniform attention, in the same unit
    renormalised : whether only attention between patches counts, so that short means near
    """
    finite = pixels[np.isfinite(pixels)]
    if not len(finite) or uniform <= 0:
        return ""
    near = int((finite < LOCAL * uniform).sum())
    even = int((np.abs(finite - uniform) <= NEAR_UNIFORM * uniform).sum())
    verdict = tr("The heads are **mixed**.")
    if 2 * near > len(finite):
        verdict = tr("Most heads attend **near**.")
    elif 2 * even > len(finite):
        verdict = tr("Most heads attend **as far as uniform attention** would.")
    if not renormalised:
        verdict = tr(
            "Attention on prefix tokens counts as 0 px here, so a short distance need not mean "
            "that a head attends near."
        )
    layer, head = np.unravel_index(np.nanargmin(pixels), pixels.shape)
    return tr(
        "{verdict} {even} of {heads} are within {percent} of the distance of uniform attention "
        "({uniform:.1f} px), {near} below half of it. The nearest is layer {layer}, head {head} "
        "({pixels:.1f} px).",
        verdict=verdict,
        even=even,
        heads=len(finite),
        percent=as_percent(NEAR_UNIFORM),
        uniform=uniform,
        near=near,
        layer=layer + 1,
        head=head + 1,
        pixels=pixels[layer, head],
    )


def tokens(cosines: Sequence[float], layer: int) -> str:
    """Say how alike the patch tokens are after the layer on screen, compared with the first layer.

    Parameters
    ----------
    cosines : mean cosine of two different patches after each layer; NaN if there is only one
    layer : the one on screen, from 1
    """
    here, first = cosines[layer - 1], cosines[0]
    if np.isnan(here):
        return ""
    sentence = tr(
        "After layer {shown} two patches have a cosine of **{here:.2f}** on average",
        shown=layer,
        here=here,
    )
    if layer == 1:
        return f"{sentence}."
    change = tr(", less alike than after layer 1 ({first:.2f}).", first=first)
    if abs(here - first) < ALIKE:
        change = tr(", about as alike as after layer 1 ({first:.2f}).", first=first)
    elif here > first:
        change = tr(", more alike than after layer 1 ({first:.2f}).", first=first)
    return sentence + change


def maps(correlation: float, grids: Sequence[tuple[int, int]], common: tuple[int, int]) -> str:
    """Say how alike two maps of one picture are.

    Parameters
    ----------
    correlation : of the maps; NaN if one is constant
    grids : (rows, columns) of the two maps
    common : (rows, columns) of the grid in which they were compared
    """
    if np.isnan(correlation):
        sentence = tr("One of the two maps is the same everywhere, so they have no correlation.")
    else:
        verdict = tr("hardly alike")
        if correlation >= MUCH:
            verdict = tr("much alike") if correlation >= ALMOST else tr("partly alike")
        elif correlation <= -MUCH:
            verdict = tr("opposed to each other")
        sentence = tr(
            "The two maps are {verdict}: their correlation is **{correlation:.2f}**.",
            verdict=verdict,
            correlation=correlation,
        )
    if len({*grids, common}) > 1:
        first, second, third = (f"{rows} x {cols}" for rows, cols in (*grids, common))
        sentence += tr(
            " They lie in grids of {first} and of {second} patches and are compared on the "
            "picture, resampled by area to {third}.",
            first=first,
            second=second,
            third=third,
        )
    return sentence


def matches(pairs: np.ndarray, cosines: np.ndarray, count: int) -> str:
    """Say how many patches have a mutual match in another picture, and how many at the same place.

    Parameters
    ----------
    pairs : ndarray of shape (pairs, 2)
        Patch numbers in the two pictures, whose grids have one shape.
    cosines : ndarray of shape (pairs,)
    count : number of patches of a picture
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
    """Say whether neighbours have similar position embeddings, and whether rows or columns do more.

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
    sentence = tr("Neighbouring positions are alike: {numbers}.", numbers=numbers)
    if abs(mean["row"] - mean["column"]) >= ALIKE:
        words = {"row": tr("row"), "column": tr("column")}
        more, less = sorted(words, key=lambda name: -mean[name])
        sentence += tr(
            " Positions of one {more} are more alike ({larger:.2f}) than those of one {less} "
            "({smaller:.2f}).",
            more=words[more],
            larger=mean[more],
            less=words[less],
            smaller=mean[less],
        )
    return sentence


def filters(explained: np.ndarray, before: np.ndarray | None, count: int) -> str:
    """Say how many components hold half of the filters' variance, now and before training.

    Parameters
    ----------
    explained, before : shares of the variance, largest first; None if the start is not known
    count : number of all components
    """
    half = _components_for_half(explained)
    if half is None:
        return tr(
            "The first {first} of {count} components hold less than half of the variance.",
            first=len(explained),
            count=count,
        )
    sentence = tr(
        "Half of the variance of the filters lies in **{half} of {count}** components",
        half=half,
        count=count,
    )
    start = None if before is None else _components_for_half(before)
    if start is None:
        return f"{sentence}."
    if start == half:
        return sentence + tr(", as many as before training.")
    if half < start:
        return sentence + tr(", fewer than before training ({start}).", start=start)
    return sentence + tr(", more than before training ({start}).", start=start)


def _components_for_half(explained: np.ndarray) -> int | None:
    indices = np.flatnonzero(np.cumsum(explained) >= 0.5)
    return int(indices[0]) + 1 if len(indices) else None


def muted_heads(
    logits: np.ndarray, answer: int, name_of: Callable[[int], str]
) -> tuple[str, tuple[int, int] | None]:
    """Say how muting each head alone changes the answer, and name the head that does so most.

    Parameters
    ----------
    logits : ndarray of shape (layers, heads, K)
        With that head muted.
    answer : class number without muting
    name_of : returns the name of a class

    Returns
    -------
    The sentence, and (layer, head) from 0; None if no head changes the answer.
    """
    answers = logits.argmax(axis=-1)
    changed = int((answers != answer).sum())
    if not changed:
        sentence = tr_md(
            "Muting any one of the {count} heads leaves the answer at **{label}**.",
            count=answers.size,
            label=name_of(answer),
        )
        return sentence, None
    margins = logits.max(axis=-1) - logits[..., answer]  # above 0 if another class wins
    layer, head = (int(at) for at in np.unravel_index(int(margins.argmax()), margins.shape))
    sentence = tr_md(
        "Muting one head alone changes the answer for **{changed} of {count}** heads, most clearly "
        "layer {layer}, head {head}: {label} becomes **{instead}**.",
        changed=changed,
        count=answers.size,
        layer=layer + 1,
        head=head + 1,
        label=name_of(answer),
        instead=name_of(int(answers[layer, head])),
    )
    return sentence, (layer, head)
