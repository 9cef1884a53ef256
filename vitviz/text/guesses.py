"""The questions of *Predict first*, and sentences on how near a guess was."""

import numpy as np

from ..common.language import as_percent, mark, patch_name, tr, tr_md, tr_n

SWITCH = mark("Predict first")
SWITCH_HELP = mark("Guess what the figure will show before you see it.")
SEND = mark("This is my guess")
AGAIN = mark("Guess again")
LAYER = mark("Layer")
PERCENT = mark("Accuracy, %")
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
WAIT = mark("Students wait")
WAIT_HELP = mark("After a guess, students see the figure when you press *Show all*.")
SENT = mark("Your guess is sent. You see the figure when your teacher shows it.")
REVEAL_HELP = mark("Everybody sees the figure and the guesses of the class.")


def ask_where_it_looks(query: str, where: str, row: bool) -> str:
    """Return the question of Attention."""
    if row:
        question = tr("**Where does {query} look most** in {where}?", query=query, where=where)
    else:
        question = tr(
            "**Which patch attends most to {query}** in {where}?", query=query, where=where
        )
    return f"{question} {tr(HOW)}"


def ask_which_block(name: str) -> str:
    """Return the question of Classify; `name` is the class."""
    return tr_md("**Which block matters most for {name}?**", name=name) + f" {tr(HOW)}"


def describe_patch(shares: np.ndarray, guess: int, query: str, where: str, row: bool) -> str:
    """Say how much attention the guessed patch has, and which patch has most.

    Parameters
    ----------
    shares : ndarray of shape (rows, columns), shares of 1
    guess : number of the patch, row by row
    query : what looks, or is looked at where it is no `row`
    """
    flat, cols = shares.ravel(), shares.shape[1]
    facts = {
        "place": patch_name(*divmod(guess, cols)),
        "share": as_percent(flat[guess]),
        "query": query,
        "where": where,
        "rank": _rank(-flat, guess),
    }
    if row:
        sentence = tr(
            "The patch at {place} gets {share} of the attention of {query} in {where}: {rank}. ",
            **facts,
        )
    else:
        sentence = tr(
            "The patch at {place} gives {share} of its attention to {query} in {where}: {rank}. ",
            **facts,
        )
    best = int(flat.argmax())
    if flat[guess] == flat[best]:
        return sentence + tr("No other ranks higher.")
    share = as_percent(flat[best])
    return sentence + tr(
        "The strongest is {place}, with {share}.",
        place=patch_name(*divmod(best, cols)),
        share=share,
    )


def describe_block(falls: np.ndarray, guess: int, name: str) -> str:
    """Say how far the probability falls without the guessed block, and without which it falls most.

    Parameters
    ----------
    falls : ndarray of shape (rows, columns) of blocks, shares of 1, signed
    guess : number of the block, row by row
    name : of the class
    """
    flat, cols = falls.ravel(), falls.shape[1]
    best = int(flat.argmax())
    sentence = tr_md(
        "Without the block at {place} of the blocks the probability of {name} {falls}: {rank}. ",
        place=patch_name(*divmod(guess, cols)),
        name=name,
        falls=_falls(flat[guess]),
        rank=_rank(-flat, guess),
    )
    if flat[guess] == flat[best]:
        return sentence + tr("No other ranks higher.")
    return sentence + tr(
        "The block that matters most is {place}, without which it {falls}.",
        place=patch_name(*divmod(best, cols)),
        falls=_falls(flat[best]),
    )


def describe_layer(pixels: np.ndarray, guess: int) -> str:
    """Say how local the guessed layer is, and which layer is the most local.

    Parameters
    ----------
    pixels : ndarray of shape (layers,), the mean distance of the heads of each
    guess : number of the layer, from 0
    """
    finite = np.flatnonzero(np.isfinite(pixels))
    best = int(np.nanargmin(pixels))
    if guess in finite:
        rank = _rank(pixels[finite], int(np.searchsorted(finite, guess)))
        sentence = tr(
            "The heads of layer {layer} attend {pixels:.1f} px far on average: {rank}. ",
            layer=guess + 1,
            pixels=pixels[guess],
            rank=rank,
        )
    else:
        sentence = tr("In layer {layer} no patch attends to a patch. ", layer=guess + 1)
    if pixels[guess] == pixels[best]:
        return sentence + tr("No other ranks higher.")
    return sentence + tr(
        "The most local is layer {layer}, with {pixels:.1f} px.",
        layer=best + 1,
        pixels=pixels[best],
    )


def ask_with_a_tenth(whole: float, pictures: int) -> str:
    """Ask on Training for the ViT's accuracy with a tenth of the pictures; `whole` is a share."""
    return tr(
        "With {pictures:,} training pictures the small ViT is right on {whole} of the test "
        "pictures. **How accurate is it with a tenth of them?**",
        pictures=pictures,
        whole=as_percent(whole),
    )


def describe_accuracy(vit: float, cnn: float, guess: int) -> str:
    """Compare a guess in per cent with the ViT's accuracy with a tenth, and name the CNN's."""
    return tr_n(
        "{chosen} %. With a tenth of the pictures the ViT reaches {vit}, {count} percentage point "
        "away; the CNN reaches {cnn}.",
        "{chosen} %. With a tenth of the pictures the ViT reaches {vit}, {count} percentage points "
        "away; the CNN reaches {cnn}.",
        round(abs(100 * vit - guess)),
        chosen=guess,
        vit=as_percent(vit),
        cnn=as_percent(cnn),
    )


def describe_pending_block(guess: int, cols: int) -> str:
    """Repeat the guess of a block before the experiment was made."""
    return tr(
        "the block at {place} of the blocks. Hide the blocks to see how near it is.",
        place=patch_name(*divmod(guess, cols)),
    )


def describe_count(number: int) -> str:
    """Say how many guesses there are."""
    if number == 0:
        return tr("No guess yet.")
    return tr("One guess.") if number == 1 else tr("{number} guesses.", number=number)


def _rank(values: np.ndarray, index: int) -> str:
    """Say the rank of a value, from the smallest; equal values share one."""
    rank = int((values < values[index]).sum()) + 1
    return tr("rank {rank} of {count}", rank=rank, count=len(values))


def _falls(fall: float) -> str:
    points = 100 * float(fall)
    if round(abs(points), 1) == 0:
        return tr("hardly changes")
    if points > 0:
        return tr("falls by {points:.1f} percentage points", points=points)
    return tr("rises by {points:.1f} percentage points", points=-points)
