"""Compute a lesson's findings on a picture: sentences with numbers, as the pages compute them.

The lessons themselves, and their steps, stand in `vitviz.text.lessons`.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from .. import attribution, inspection, intervention
from ..activations import Activations, DropPatches, capture
from ..common import DEFAULT_MODEL
from ..common.language import Markdown, as_percent, literal, patch_name, tr, tr_md
from ..inspection.comparison import correlation
from ..inspection.inputs import attends
from ..intervention import Progress
from ..intervention.equivariance import shuffle_patches
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..text import findings as text
from ..text.class_names import common_names
from ..text.lessons import LESSONS, Step
from ..web.token_map import default_query
from ..zoo import FIRST_LAYERS
from . import records
from .cells import block_sides, read_cells

HALF_A_POINT = 0.005
LEAST_FALL = 0.0005  # of a probability: 0.1 percentage points when rounded
ROUNDING = 1e-4  # of a probability: a smaller change is none
FEWEST_PATCHES = 3  # patches, of which two are others
# Shares of a row that agree with the mean row: a head below the first does not look the same for
# all queries, and one from the second on does not follow them.
SOME_ALIKE, ALL_ALIKE = 0.5, 0.9
#: Pictures of JFT-300M from which ViT-B/32 was better than ResNet50 (Dosovitskiy et al., ICLR 2021,
#: Figure 4), and those with which it was much worse.
OVERTAKES, FALLS_BEHIND = 90_000_000, 9_000_000


def findings(
    number: int,
    model: Model,
    image: Picture,
    acts: Activations,
    *,
    own: bool = True,
    progress: Progress | None = None,
) -> tuple[str, ...]:
    """Return what a lesson finds, a sentence or two for most steps, in the current language.

    Parameters
    ----------
    number : of the lesson, from 1
    image : PIL.Image (upright), bytes, path or a prepared input, as of `vitviz.capture`
    acts : Activations
        Its capture.
    own : bool
        Whether the picture is the lesson's own sample: else what its steps mark there is left out.
    progress : callable, optional
        Called as progress(done, of) before each pass of an experiment; it may raise to stop.

    Notes
    -----
    All lessons but the last are about models in which every token attends to every token, the same
    ones in each layer. For other models the only sentence says so.
    """
    steps = LESSONS[number - 1].steps
    if number == 7:
        return tuple(_find_in_records(model.name))
    if acts.refusal or not acts.all_to_all:
        return (
            tr(
                "This lesson is not about models such as {name}. It needs one in which every token "
                "attends to every token, the same ones in each layer.",
                name=model.name,
            ),
        )
    if (count := acts.grid[0] * acts.grid[1]) < FEWEST_PATCHES:
        return (
            tr(
                "This input has {count} patches, and the lesson compares a patch with several "
                "others. Choose a larger input.",
                count=count,
            ),
        )
    find: tuple[Callable[[], Iterable[str]], ...] = (
        lambda: _find_path(acts, steps),
        lambda: _find_positions(model, image, acts, steps),
        lambda: _find_who_looks(acts, steps),
        lambda: _find_near_and_far(acts),
        lambda: _find_reaching(model, image, acts),
        lambda: _find_changes(model, image, acts, steps if own else (), progress),
    )
    return tuple(find[number - 1]())


def _find_path(acts: Activations, steps: Sequence[Step]) -> Iterable[str]:
    tokens, width = acts.tokens(0).shape
    (rows, cols), depth = acts.grid, acts.depth
    yield tr(
        "The picture became **{rows} × {cols} = {count} patches**. {tokens} tokens of {width} "
        "numbers entered the encoder, and as many left each of its {depth} layers.",
        rows=rows,
        cols=cols,
        count=rows * cols,
        tokens=tokens,
        width=width,
        depth=depth,
    )
    layer, head, token = _place(acts, steps[1])
    row = acts.attention(layer)[head or 0, token]
    patches = row[acts.num_prefix_tokens :]
    yield tr(
        "Attention is the only step in which tokens exchange information. In layer {layer}, head "
        "{head}, the patch at {patch} gives most to the patch at {best}: **{share}**, "
        "{times:.0f} times its equal share.",
        layer=layer + 1,
        head=(head or 0) + 1,
        patch=_patch_at(acts, token - acts.num_prefix_tokens),
        best=_patch_at(acts, int(patches.argmax())),
        share=as_percent(patches.max()),
        times=patches.max() * len(row),
    )


def _find_positions(
    model: Model, image: Picture, acts: Activations, steps: Sequence[Step]
) -> Iterable[str]:
    yield from _find_response(model, image, acts, int(steps[0].settings["filter"]) - 1)
    try:
        shuffled = shuffle_patches(model, image, seed=1)
    except ModelError as error:
        yield tr_md(error)
    else:
        before, after = shuffled.outputs[0]
        if acts.probabilities is not None:
            best, then = int(before.argmax()), int(after.argmax())
            yield tr(
                "With E_pos and the patches in another order, **{label}** goes from {before} to "
                "{after}; the most probable class is then {then} ({share}).",
                label=_label(acts, best),
                before=as_percent(before[best]),
                after=as_percent(after[best]),
                then=_label(acts, then),
                share=as_percent(after[then]),
            )
        change = shuffled.changes[1]
        sentence = tr(
            "Without E_pos no output changes by more than **{change:.1g}**", change=change
        )
        yield sentence + (
            tr(", which is rounding: the model cannot tell the orders apart.")
            if change < ROUNDING
            else "."
        )
    table = model.patch_positions
    if not model.positions_learned:
        yield tr("{name} has no learned position embedding to look at.", name=model.name)
        return
    if table is None:
        yield tr(
            "{name} has position embeddings for a grid other than {rows} x {cols}, so they are not "
            "compared here.",
            name=model.name,
            rows=acts.grid[0],
            cols=acts.grid[1],
        )
        return
    similarity = inspection.position_similarity(table, grid=acts.grid)
    sentence = text.positions(similarity)
    put_in = records.positions_put_in(model, acts.grid)
    if sentence and put_in is not None:
        sentence += " " + tr(
            "That was put in and not learned: with the sines and cosines of its start it is "
            "{near:.2f}.",
            near=inspection.neighbour_similarity(put_in),
        )
    if sentence:
        yield sentence


def _find_response(
    model: Model, image: Picture, acts: Activations, component: int
) -> Iterable[str]:
    """Say where on the picture the response to a component of the filters is largest."""
    kernel = model.patch_kernel
    if kernel is None or kernel.shape[1:] != (3, *model.layers[0].patch_side):
        return
    count = min(component + 1, len(kernel), kernel[0].size)
    components, _ = inspection.filter_components(kernel, n_components=count)
    response = inspection.filter_response(prepare(model, image).x.numpy(), components[-1])
    low, high = int(response.argmin()), int(response.argmax())
    yield tr(
        "The response to component {component} is largest at {high_at} (**{high:+.2f}**) and "
        "smallest at {low_at} (**{low:+.2f}**).",
        component=count,
        high_at=_patch_at(acts, high),
        high=response.flat[high],
        low_at=_patch_at(acts, low),
        low=response.flat[low],
    )


def _find_who_looks(acts: Activations, steps: Sequence[Step]) -> Iterable[str]:
    prefix, count = acts.num_prefix_tokens, acts.grid[0] * acts.grid[1]
    layer, _, _ = _place(acts, steps[0])
    reads = inspection.measurements(acts).mean_query_attention.reshape(acts.depth, -1)
    asks = _reader(acts)
    best = int(reads[layer].argmax())
    yield tr(
        "In layer {layer}, {query} looks most at {patch}: **{share}**, {times:.0f} times the equal "
        "share of a token. Half of what it gives to patches goes to {half} of {count} of them; in "
        "layer 1 that takes {first}.",
        layer=layer + 1,
        query=asks,
        patch=_patch_at(acts, best),
        share=as_percent(reads[layer, best]),
        times=reads[layer, best] * (prefix + count),
        half=count_half(reads[layer]),
        count=count,
        first=count_half(reads[0]),
    )
    layer, _, _ = _place(acts, steps[1])
    if acts.layers[layer].num_heads == 1:
        return  # there is no other head to compare it with
    agreed = same_rows(acts.attention(layer)[:, prefix:, prefix:])
    less, more = agreed.min(), agreed.max()
    ends = {"layer": layer + 1, "less": as_percent(less), "more": as_percent(more)}
    if less >= ALL_ALIKE:
        yield tr(
            "In layer {layer}, every head looks much the same wherever the query is: at least "
            "{less} of a row agrees with the mean of all rows.",
            **ends,
        )
    elif more < SOME_ALIKE:
        yield tr(
            "In layer {layer}, every head follows the query: at most {more} of a row agrees with "
            "the mean of all rows.",
            **ends,
        )
    else:
        yield tr(
            "In layer {layer}, **head {same}** looks much the same wherever the query is: {more} "
            "of a row agrees with the mean of all rows. **Head {follows}** follows the query: "
            "{less}.",
            same=int(agreed.argmax()) + 1,
            follows=int(agreed.argmin()) + 1,
            **ends,
        )


def same_rows(attention: np.ndarray) -> np.ndarray:
    """Return how far the rows of A agree with their mean row, averaged over rows.

    Parameters
    ----------
    attention : ndarray of shape (heads, patches, patches)
        Rows are renormalised; those without attention are left out.

    Returns
    -------
    ndarray of shape (heads,)
        1 minus the total variation distance: 1 where all queries look alike.
    """
    mass = attention.sum(axis=2, keepdims=True)
    attending = attends(mass)
    shares = np.divide(attention, mass, out=np.zeros_like(attention), where=attending)
    rows = np.maximum(attending[..., 0].sum(axis=1), 1)
    mean = shares.sum(axis=1, keepdims=True) / rows[:, None, None]
    agreed: np.ndarray = np.minimum(shares, mean).sum(axis=(1, 2)) / rows
    return agreed


def _find_near_and_far(acts: Activations) -> Iterable[str]:
    pixels = inspection.measurements(acts).distance
    equal = inspection.uniform_distance(acts.grid, acts.patch_size)
    layers = np.ma.masked_invalid(pixels).mean(axis=1).filled(np.nan)  # no patch, no distance
    near, far = int(np.nanargmin(layers)), int(np.nanargmax(layers))
    yield tr(
        "The most local is **layer {near}**, whose heads have a mean attention distance of "
        "{least:.1f} px; the most global is layer {far}, with {most:.1f} px.",
        near=near + 1,
        least=layers[near],
        far=far + 1,
        most=layers[far],
    )
    yield text.distance(pixels, equal)
    even = np.unravel_index(int(np.nanargmin(np.abs(pixels - equal))), pixels.shape)
    yield tr(
        "Nearest to equal sharing is layer {layer}, head {head}, with {pixels:.1f} px.",
        layer=even[0] + 1,
        head=even[1] + 1,
        pixels=pixels[even],
    )
    whole = [name for name, first in FIRST_LAYERS.items() if first.window == first.keys]
    yield tr(
        "In the first layer in which patches exchange information, a patch may read from the whole "
        "picture in {whole}, and only from a window of 7 × 7 patches in {windows}.",
        whole=", ".join(whole),
        windows=", ".join(name for name in FIRST_LAYERS if name not in whole),
    )


def _find_reaching(model: Model, image: Picture, acts: Activations) -> Iterable[str]:
    prefix, count = acts.num_prefix_tokens, acts.grid[0] * acts.grid[1]
    asks = _reader(acts)
    attention = list(acts.attention_layers())
    reads = _asks_cls(acts)

    def rollout(layers: int) -> np.ndarray:
        return inspection.attention_rollout(attention[:layers], num_prefix_tokens=prefix, cls=reads)

    first, last = rollout(1), rollout(acts.depth)
    sentence = tr(
        "Rollout takes half of what every layer passes on from the residual connection (r = 0.5). "
        "Counted so, {from_first} of what reaches {query} up to layer 1 comes from patches, half "
        "of it from {half_first} of {count}; up to layer {depth}, **{from_last}**, half of it from "
        "**{half_last}**.",
        query=asks,
        from_first=as_percent(first[prefix:].sum()),
        half_first=count_half(first[prefix:]),
        count=count,
        depth=acts.depth,
        from_last=as_percent(last[prefix:].sum()),
        half_last=count_half(last[prefix:]),
    )
    try:
        own = carried(acts)
    except ModelError as error:
        yield f"{sentence} {tr_md(error)}"
    else:
        yield f"{sentence} " + tr(
            "By the lengths of what the two carry, the model's own r is {least:.2f} to {most:.2f}.",
            least=own.min(),
            most=own.max(),
        )
    if acts.probabilities is None:
        yield tr_md("{name} names no classes, so no map is of one.", name=model.name)
        return
    if len(acts.probabilities) == 1:
        yield tr_md("{name} has one output, so there is no other map to compare.", name=model.name)
        return
    one, other = (int(index) for index in np.argsort(-acts.probabilities, kind="stable")[:2])
    try:
        maps = [attribution.relevance(model, image, index) for index in (one, other)]
    except ModelError as error:
        yield tr_md(error)
        return
    alike, with_rollout = correlation(*maps), correlation(maps[0], last[prefix:])
    if not np.isfinite([alike, with_rollout]).all():
        yield _without_correlation()
        return
    yield tr(
        "Rollout is the same for **{one}** and for **{other}**. Their class-specific maps have a "
        "correlation of {alike:.2f} with each other; that of {one} has {with_rollout:.2f} with "
        "rollout.",
        one=_label(acts, one),
        other=_label(acts, other),
        alike=alike,
        with_rollout=with_rollout,
    )


def carried(acts: Activations) -> np.ndarray:
    """Return per layer how much of a reading token's length the residual connection carries.

    Returns
    -------
    ndarray of shape (layers,)
        |z| / (|z| + |what attention adds|), the mean over the tokens that the head reads.
    """
    reads = 0 if _asks_cls(acts) else slice(acts.num_prefix_tokens, None)
    shares = []
    for layer in range(acts.depth):
        before, after = acts.tokens(layer), acts.tokens_after_attention(layer)
        kept, added = (np.linalg.norm(z, axis=-1)[reads] for z in (before, after - before))
        shares.append(np.mean(kept / np.maximum(kept + added, 1e-30)))
    return np.array(shares)


def _without_correlation() -> str:
    return tr(
        "One of the maps has the same value in every patch here, so it has no correlation with "
        "another."
    )


def _find_changes(
    model: Model,
    image: Picture,
    acts: Activations,
    steps: Sequence[Step],
    progress: Progress | None,
) -> Iterable[str]:
    if acts.probabilities is None:
        yield tr_md("{name} names no classes, so it gives no answer.", name=model.name)
        return
    answer = int(acts.probabilities.argmax())
    removal: Any = "mean" if model.positional_attention else "drop"
    side = block_sides(acts.grid)[-1]
    hidden = intervention.occlusion(
        model, image, target=answer, block=side, removal=removal, progress=progress
    )[::side, ::side]
    row, col = divmod(int(hidden.argmax()), hidden.shape[1])
    numbers: dict[str, Any] = dict(
        count=hidden.size,
        label=_label(acts, answer),
        share=as_percent(acts.probabilities[answer]),
        against=int((hidden <= -HALF_A_POINT).sum()),
    )
    if hidden.max() < LEAST_FALL:
        yield tr(
            "Hiding any one of {count} blocks does not lower the probability of **{label}** "
            "({share}) by 0.1 percentage points. Hiding {against} of them raises it by half a "
            "point or more.",
            **numbers,
        )
    else:
        yield tr(
            "Of {count} blocks the one at row {row}, column {col} matters most for **{label}** "
            "({share}): hiding it changes that by {points:+.1f} percentage points. Hiding "
            "{against} of the others raises it by half a point or more.",
            row=row + 1,
            col=col + 1,
            points=-100 * hidden.max(),
            **numbers,
        )
    mask = _find_removed(steps, acts.grid)
    if mask is not None and removal == "drop":
        without, alone = (
            capture(model, image, edits=[DropPatches(each)]).probabilities for each in (mask, ~mask)
        )
        assert without is not None
        assert alone is not None
        yield tr(
            "Without the {patches} marked patches {label} has {without}, and **{instead}** is "
            "the most probable ({share}). With them alone {label} has **{alone}**.",
            patches=int(mask.sum()),
            label=_label(acts, answer),
            without=as_percent(without[answer]),
            instead=_label(acts, int(without.argmax())),
            share=as_percent(without.max()),
            alone=as_percent(alone[answer]),
        )


def _find_removed(steps: Sequence[Step], grid: tuple[int, int]) -> np.ndarray | None:
    """Return the mask of the patches that a step removes; None without one that fits the grid."""
    texts = (step.settings["painted"] for step in steps if "painted" in step.settings)
    text = next(texts, None)
    return None if text is None else read_cells(text, grid)


def _find_in_records(name: str) -> Iterable[str]:
    if name not in records.run_names():
        name = DEFAULT_MODEL
    run, moments = records.read(name), records.read_moments(name)
    sizes = moments["image_size"]
    last = int(np.flatnonzero(sizes == sizes[0])[-1])  # before the input was enlarged
    start, end = (_moment(name, moment) for moment in (0, last))
    yield tr(
        "In the run of {name}, held-out accuracy went from {low:.1f} % after the first epoch to "
        "{high:.1f} %. Until epoch {epoch:.0f} the first {components} components of the filters "
        "went from {filters} to **{filters_then}** of the variance, neighbouring positions from a "
        "cosine of {near:.2f} to **{near_then:.2f}**, and the heads from {far} to **{far_then}** "
        "of the side.",
        name=name,
        low=100 * run["epochs"][0]["held_out_accuracy"],
        high=100 * run["epochs"][-1]["held_out_accuracy"],
        epoch=float(moments["epoch"][last]),
        components=records.COMPONENTS,
        filters=as_percent(start[0]),
        filters_then=as_percent(end[0]),
        near=start[1],
        near_then=end[1],
        far=as_percent(start[2]),
        far_then=as_percent(end[2]),
    )
    yield from _hunger(records.read("data_hunger"))


def _moment(name: str, moment: int) -> tuple[float, float, float]:
    """Return variance in the first components, neighbours' cosine, and distance over the side."""
    _, explained = inspection.filter_components(
        records.filters_at(name, moment), n_components=records.COMPONENTS
    )
    near = inspection.neighbour_similarity(records.positions_at(name, moment))
    moments = records.read_moments(name)
    distance = np.nanmean(moments[f"distance_{moment}"]) / moments["image_size"][moment]
    return float(explained.sum()), float(near), float(distance)


def _hunger(record: dict[str, Any]) -> Iterable[str]:
    """Compare the accuracy of a ViT and a CNN by the number of training pictures."""
    shares = sorted({run["share"] for run in record["runs"]})
    pictures = [round(share * record["pictures"]) for share in shares]
    vit, cnn = (
        [100 * np.mean(records.accuracies(record, network, share)) for share in shares]
        for network in ("vit", "cnn")
    )
    yield tr(
        "With {few:,} pictures the ViT reached {vit:.1f} % and the CNN {cnn:.1f} %; with {many:,} "
        "they reached {vit_then:.1f} % and {cnn_then:.1f} %.",
        few=pictures[0],
        vit=vit[0],
        cnn=cnn[0],
        many=pictures[-1],
        vit_then=vit[-1],
        cnn_then=cnn[-1],
    )
    ahead = [count for count, one, other in zip(pictures, vit, cnn, strict=True) if one > other]
    if ahead:
        yield tr("The ViT was ahead of the CNN with {count:,} pictures.", count=ahead[0])
    else:
        yield tr(
            "The ViT was never ahead. In the paper ViT-B/32 was much worse than ResNet50 with "
            "{few:,} pictures and better with {many:,}, which is {times:,.0f} times as many as the "
            "most that were used here.",
            few=FALLS_BEHIND,
            many=OVERTAKES,
            times=OVERTAKES / pictures[-1],
        )


def _label(acts: Activations, index: int) -> Markdown:
    """Return the name of a class that a student would say, as text in Markdown."""
    return literal(common_names(acts.output_names)[index])


def count_half(shares: np.ndarray) -> int:
    """Count the largest entries that hold half of the sum."""
    ordered = np.sort(shares.ravel())[::-1].cumsum()
    return int(np.searchsorted(ordered, ordered[-1] / 2)) + 1


def _reader(acts: Activations) -> str:
    """Say at which token maps of the answer are read."""
    return "CLS" if _asks_cls(acts) else tr("the mean of the patches")


def _asks_cls(acts: Activations) -> bool:
    """Return whether that is CLS, as in `inspection.measurements`."""
    return default_query(acts, acts.layers[0]) == 0


def _patch_at(acts: Activations, number: int) -> str:
    return patch_name(*divmod(number, acts.grid[1]))


def _place(acts: Activations, step: Step) -> tuple[int, int | None, int]:
    """Return layer, head and query of a step: by default last layer, mean, middle patch."""
    (rows, cols), settings = acts.grid, step.settings
    layer = min(int(settings.get("layer", acts.depth)), acts.depth) - 1
    head = int(settings["head"]) - 1 if "head" in settings else None
    if head is not None and head >= acts.layers[layer].num_heads:
        head = 0
    row, _, col = settings.get("query", "").partition(".")
    patch = (rows // 2, cols // 2)
    if col and int(row) <= rows and int(col) <= cols:
        patch = (int(row) - 1, int(col) - 1)
    return layer, head, acts.num_prefix_tokens + patch[0] * cols + patch[1]
