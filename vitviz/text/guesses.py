"""What is asked before a map is shown, and how near a guess was; numbers in, sentence out."""

import numpy as np

from ..language import as_percent, mark, patch_name, tr

SWITCH = mark("Predict first")
SWITCH_HELP = mark("Guess what the figure will show before you see it.")
SEND = mark("This is my guess")
AGAIN = mark("Guess again")
LAYER = mark("Layer")
HOW = mark("Click a patch, or move to it with the arrow keys; Enter sends your guess.")
WHICH_IS_LOCAL = mark(
    "**Which layer is the most local?** Its heads attend to the nearest patches, on average."
)
NOT_COMPARED = mark(
    "Nothing is asked before the figure: the layers of this model have different patches or "
    "windows, so that none can be called the most local."
)
YOURS = mark("Your guess")
OF_CLASS = mark("Guesses of the class")
REVEAL = mark("Show all")
REVEAL_HELP = mark("Everybody sees the figure and the guesses of the class.")


def where_it_looks(query: str, where: str, row: bool) -> str:
    """The question of Attention."""
    if row:
        asked = tr("**Where does {query} look most** in {where}?", query=query, where=where)
    else:
        asked = tr("**Which patch attends most to {query}** in {where}?", query=query, where=where)
    return f"{asked} {tr(HOW)}"


def which_matters(name: str) -> str:
    """The question of Classify; `name` is the class."""
    return tr("**Which block matters most for {name}?**", name=name) + f" {tr(HOW)}"


def patch(shares: np.ndarray, chosen: int, query: str, where: str, row: bool) -> str:
    """How much attention the guessed patch has, and which has most.

    Parameters
    ----------
    shares : ndarray of shape (rows, columns), shares of 1
    chosen : number of the patch, row by row
    query : what looks, or is looked at where it is no `row`
    """
    flat, cols = shares.ravel(), shares.shape[1]
    facts = {
        "place": patch_name(*divmod(chosen, cols)),
        "share": as_percent(flat[chosen]),
        "query": query,
        "where": where,
        "rank": _rank(-flat, chosen),
    }
    if row:
        said = tr(
            "The patch at {place} gets {share} of the attention of {query} in {where}: {rank}. ",
            **facts,
        )
    else:
        said = tr(
            "The patch at {place} gives {share} of its attention to {query} in {where}: {rank}. ",
            **facts,
        )
    best = int(flat.argmax())
    if best == chosen:
        return said + tr("No other ranks higher.")
    share = as_percent(flat[best])
    return said + tr(
        "The strongest is {place}, with {share}.",
        place=patch_name(*divmod(best, cols)),
        share=share,
    )


def block(falls: np.ndarray, chosen: int, name: str) -> str:
    """How far the probability falls without the guessed block, and without which it falls most.

    Parameters
    ----------
    falls : ndarray of shape (rows, columns) of blocks, shares of 1, signed
    chosen : number of the block, row by row
    name : of the class
    """
    flat, cols = falls.ravel(), falls.shape[1]
    best = int(flat.argmax())
    said = tr(
        "Without the block at {place} of the blocks the probability of {name} {falls}: {rank}. ",
        place=patch_name(*divmod(chosen, cols)),
        name=name,
        falls=_falls(flat[chosen]),
        rank=_rank(-flat, chosen),
    )
    if best == chosen:
        return said + tr("No other ranks higher.")
    return said + tr(
        "The block that matters most is {place}, without which it {falls}.",
        place=patch_name(*divmod(best, cols)),
        falls=_falls(flat[best]),
    )


def layer(pixels: np.ndarray, chosen: int) -> str:
    """How local the guessed layer is, and which is most.

    Parameters
    ----------
    pixels : ndarray of shape (layers,), the mean distance of the heads of each
    chosen : number of the layer, from 0
    """
    known = np.flatnonzero(np.isfinite(pixels))
    best = int(np.nanargmin(pixels))
    if chosen in known:
        rank = _rank(pixels[known], int(np.searchsorted(known, chosen)))
        said = tr(
            "The heads of layer {layer} attend {pixels:.1f} px far on average: {rank}. ",
            layer=chosen + 1,
            pixels=pixels[chosen],
            rank=rank,
        )
    else:
        said = tr("In layer {layer} no patch attends to a patch. ", layer=chosen + 1)
    if best == chosen:
        return said + tr("No other ranks higher.")
    return said + tr(
        "The most local is layer {layer}, with {pixels:.1f} px.",
        layer=best + 1,
        pixels=pixels[best],
    )


def kept(chosen: int, cols: int) -> str:
    """The guess of a block, before the experiment was made."""
    return tr(
        "the block at {place} of the blocks. Hide the blocks to see how near it is.",
        place=patch_name(*divmod(chosen, cols)),
    )


def count(number: int) -> str:
    """How many guesses there are."""
    if number == 0:
        return tr("No guess yet.")
    return tr("One guess.") if number == 1 else tr("{number} guesses.", number=number)


def _rank(values: np.ndarray, chosen: int) -> str:
    """Its place from the smallest on; equal values share one."""
    rank = int((values < values[chosen]).sum()) + 1
    return tr("rank {rank} of {count}", rank=rank, count=len(values))


def _falls(fall: float) -> str:
    points = 100 * float(fall)
    if round(abs(points), 1) == 0:
        return tr("hardly changes")
    if points > 0:
        return tr("falls by {points:.1f} percentage points", points=points)
    return tr("rises by {points:.1f} percentage points", points=-points)
