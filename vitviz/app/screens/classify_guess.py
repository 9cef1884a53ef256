"""Predict first on the page Classify: which block of the picture matters most for a class."""

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from vitviz.app.shared.classroom import Question
from vitviz.app.shared.view import View
from vitviz.app.widgets import prediction
from vitviz.text import guesses as text

if TYPE_CHECKING:
    from vitviz.intervention import Removal
    from vitviz.plots.template import Box


def hides(view: View, index: int, block: int, removal: "Removal") -> bool:
    """Whether the effect of hiding the blocks is not to be seen yet."""
    question = _question(view, index, block, removal)
    return prediction.wanted() and prediction.guess_at(question) is None


def ask(view: View, index: int, name: str, block: int, removal: "Removal") -> None:
    """Ask for the block; `name` is that of the class."""
    grid, crop = _blocks(view, block)
    prediction.ask_patch(
        view,
        _question(view, index, block, removal),
        text.which_matters(name),
        grid=grid,
        crop=crop,
        draw=partial(prediction.on_picture, view, grid, crop),
    )


def tell(
    view: View, index: int, name: str, block: int, removal: "Removal", found: np.ndarray | None
) -> "Box | None":
    """Say how near the guess was, once the effect is `found`; returns the box of its block."""
    if not prediction.wanted():
        return None
    guess = prediction.guess_at(_question(view, index, block, removal))
    if guess is None:
        return None
    grid, crop = _blocks(view, block)
    words = partial(text.kept, cols=grid[1])
    if found is not None:
        words = partial(text.block, found[::block, ::block], name=name)
    prediction.tell(guess, words)
    prediction.of_class(guess.question, partial(prediction.on_picture, view, grid, crop))
    return None if guess.answer is None else _box(view, grid, crop, guess.answer)


def _question(view: View, index: int, block: int, removal: "Removal") -> Question:
    return Question("classify", view.key, (index, block, removal))


def _blocks(view: View, block: int) -> "tuple[tuple[int, int], Box]":
    """The grid of the blocks, and its box in pixels of the picture.

    The last ones reach beyond the patches where the grid is no multiple of the side.
    """
    (rows, cols), (left, top, right, bottom) = view.model.layers[0].query_grid, view.acts.crop
    down, across = -(-rows // block), -(-cols // block)
    right = left + (right - left) * across * block / cols
    bottom = top + (bottom - top) * down * block / rows
    return (down, across), (left, top, right, bottom)


def _box(view: View, grid: tuple[int, int], crop: "Box", number: int) -> "Box":
    """A block, as far as there are patches."""
    (row, col), (left, top, right, bottom) = divmod(number, grid[1]), crop
    width, height = (right - left) / grid[1], (bottom - top) / grid[0]
    x, y = left + col * width, top + row * height
    return x, y, min(x + width, view.acts.crop[2]), min(y + height, view.acts.crop[3])
