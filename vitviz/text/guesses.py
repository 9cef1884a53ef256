"""What is asked before a map is shown, and how near a guess was; numbers in, sentence out."""

import numpy as np

SWITCH = "Predict first"
SWITCH_HELP = "Guess what the figure will show before you see it."
SEND = "This is my guess"
AGAIN = "Guess again"
LAYER = "Layer"
HOW = "Click a patch, or move to it with the arrow keys; Enter sends your guess."
WHICH_IS_LOCAL = (
    "**Which layer is the most local?** Its heads attend to the nearest patches, on average."
)
NOT_COMPARED = (
    "Nothing is asked before the figure: the layers of this model have different patches or "
    "windows, so that none can be called the most local."
)
YOURS = "Your guess"
OF_CLASS = "Guesses of the class"
REVEAL, REVEAL_HELP = "Show all", "Everybody sees the figure and the guesses of the class."


def where_it_looks(query: str, where: str, row: bool) -> str:
    """The question of Attention."""
    if row:
        return f"**Where does {query} look most** in {where}? {HOW}"
    return f"**Which patch attends most to {query}** in {where}? {HOW}"


def which_matters(name: str) -> str:
    """The question of Classify; `name` is the class."""
    return f"**Which block matters most for {name}?** {HOW}"


def patch(shares: np.ndarray, chosen: int, query: str, where: str, row: bool) -> str:
    """How much attention the guessed patch has, and which has most.

    Parameters
    ----------
    shares : ndarray of shape (rows, columns), shares of 1
    chosen : number of the patch, row by row
    query : what looks, or is looked at where it is no `row`
    """
    flat, cols = shares.ravel(), shares.shape[1]
    share = _percent(flat[chosen])
    what = f"gets {share} of the attention of {query}"
    if not row:
        what = f"gives {share} of its attention to {query}"
    best = int(flat.argmax())
    return (
        f"The patch at {_place(chosen, cols)} {what} in {where}: {_rank(-flat, chosen)}. "
        + _best(chosen, best, f"{_place(best, cols)}, with {_percent(flat[best])}")
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
    return (
        f"Without the block at {_place(chosen, cols)} of the blocks the probability of {name} "
        f"{_falls(flat[chosen])}: {_rank(-flat, chosen)}. "
        + _best(
            chosen,
            best,
            f"{_place(best, cols)}, without which it {_falls(flat[best])}",
            "block that matters most",
        )
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
        mine = (
            f"The heads of layer {chosen + 1} attend {pixels[chosen]:.1f} px far on average: {rank}"
        )
    else:
        mine = f"In layer {chosen + 1} no patch attends to a patch"
    where = f"layer {best + 1}, with {pixels[best]:.1f} px"
    return f"{mine}. {_best(chosen, best, where, 'most local')}"


def kept(chosen: int, cols: int) -> str:
    """The guess of a block, before the experiment was made."""
    return (
        f"the block at {_place(chosen, cols)} of the blocks. Hide the blocks to see how near it is."
    )


def count(number: int) -> str:
    """How many guesses there are."""
    return {0: "No guess yet.", 1: "One guess."}.get(number, f"{number} guesses.")


def _rank(values: np.ndarray, chosen: int) -> str:
    """Its place from the smallest on; equal values share one."""
    return f"rank {int((values < values[chosen]).sum()) + 1} of {len(values)}"


def _best(chosen: int, best: int, where: str, what: str = "strongest") -> str:
    return "No other ranks higher." if chosen == best else f"The {what} is {where}."


def _falls(fall: float) -> str:
    points = 100 * float(fall)
    if round(abs(points), 1) == 0:
        return "hardly changes"
    return f"{'falls' if points > 0 else 'rises'} by {abs(points):.1f} percentage points"


def _place(number: int, cols: int) -> str:
    row, col = divmod(number, cols)
    return f"row {row + 1}, column {col + 1}"


def _percent(share: float) -> str:
    percent = 100 * float(share)
    return f"{percent:.0f} %" if percent >= 10 or percent == 0 else f"{percent:.2g} %"
