"""What a map or an experiment asks about: a class, a direction of the output, or a token."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from .activations import Activations
from .families import ModelError
from .model import Model


@dataclass(frozen=True)
class Token:
    """A token after the last layer: its length along the direction that it has in the picture.

    The target of models without a head: which patches make the token what it is. Before the final
    norm, which would give every token about the same length.

    Attributes
    ----------
    place : str or (row, column)
        The name of a token outside the picture ("cls", "reg1"), or a patch.
    """

    place: str | tuple[int, int]


@dataclass(frozen=True)
class Similarity:
    """How similar the token that is read for the answer is to one patch: a cosine, from -1 to 1.

    Of tokens after the final norm. The patch's token is that of the picture without edits, and is
    held fixed. Where the answer is read from the patches, it is their mean that is compared.

    Attributes
    ----------
    patch : (row, column)
    """

    patch: tuple[int, int]


#: A class by its index or its name; a vector as long as the output; a function that takes the
#: output (K,) and returns one number, as tensors; a Token; a Similarity.
Target = int | str | ArrayLike | Callable[[Tensor], Tensor] | Token | Similarity


@dataclass(frozen=True, eq=False)
class Seen:
    """What one pass gives to a target.

    Attributes
    ----------
    output : Tensor of shape (K,)
        What the model gives: logits, an embedding, or without a head the features it would read.
    tokens : Tensor of shape (T, D)
        After the last layer.
    normalised : callable() -> Tensor of shape (T, D)
        The same after the final norm.
    patches : ndarray of the numbers of the patches among them
    """

    output: Tensor
    tokens: Tensor
    normalised: Callable[[], Tensor]
    patches: np.ndarray


class Question:
    """A target, checked against a model.

    Attributes
    ----------
    class_index : int or None
        Where the target is a class.
    place : int or None
        Number of the token whose row of a map is asked for; None for what the head reads.

    Raises
    ------
    ModelError
        When the model has no such output.
    ValueError
        When there is no such class, vector or token.
    """

    def __init__(self, model: Model, target: Target) -> None:
        self.name, self.layer, self.embeds = model.name, model.layers[0], model.embeds
        self.target = target
        self.class_index: int | None = None
        self.place: int | None = None
        self.in_patches = "patches" in model.read_tokens
        if isinstance(target, Token | Similarity):
            if not model.read_tokens:
                raise ModelError(
                    "The layers of {model} differ in their tokens, so none is followed through "
                    "all of them.",
                    model=model.name,
                )
            place = target.place if isinstance(target, Token) else target.patch
            self.of_token = self._number(place)
            if isinstance(target, Token):
                self.place = self.of_token
        elif isinstance(target, int | np.integer | str):
            self.class_index = _class_index(model, target)
        elif not callable(target):
            self.vector = torch.as_tensor(np.asarray(target, np.float32))
            if self.vector.ndim != 1 or not self.vector.isfinite().all() or not self.vector.any():
                raise ValueError(
                    "Expected a vector of finite numbers that are not all 0, "
                    f"got shape {tuple(self.vector.shape)}."
                )

    def reference(self, seen: Seen) -> Tensor | None:
        """The direction of unit length that a token is compared with; None of other targets."""
        if isinstance(self.target, Token):
            vector = self._token(seen, seen.tokens)
        elif isinstance(self.target, Similarity):
            vector = self._token(seen, seen.normalised())
        else:
            return None
        return (vector / vector.norm()).detach()

    def value(self, seen: Seen, reference: Tensor | None) -> Tensor:
        """The number asked about: the logit of a class, or what the target says."""
        if self.class_index is not None:
            return seen.output[self.class_index]
        if isinstance(self.target, Token):
            assert reference is not None
            return self._token(seen, seen.tokens) @ reference
        if isinstance(self.target, Similarity):
            assert reference is not None
            return torch.cosine_similarity(self._read(seen), reference, dim=0)
        if callable(self.target):
            found = self.target(seen.output)
            if not isinstance(found, Tensor) or found.numel() != 1:
                raise ValueError(
                    "Expected a target that returns a tensor of one number, got "
                    f"{tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__}."
                )
            return found.reshape(())
        vector = self.vector.to(seen.output)
        if vector.shape != seen.output.shape:
            raise ValueError(
                f"Expected a vector of {len(seen.output)} numbers, as many as {self.name} gives, "
                f"got {len(vector)}."
            )
        if self.embeds:  # embeddings are compared by their direction
            return torch.cosine_similarity(seen.output, vector, dim=0)
        return seen.output @ vector

    def _number(self, place: str | tuple[int, int]) -> int:
        """The number of a token in the full sequence."""
        prefix, (rows, cols) = self.layer.prefix, self.layer.query_grid
        if isinstance(place, str):
            if place in prefix:
                return prefix.index(place)
            known = ", ".join(prefix) or "none"
            raise ValueError(f"Expected a token outside the picture ({known}), got {place!r}.")
        row, col = place
        if not (0 <= row < rows and 0 <= col < cols):
            raise ValueError(
                f"Expected a patch in 0..{rows - 1} and 0..{cols - 1}, got {row} and {col}."
            )
        return len(prefix) + row * cols + col

    def _token(self, seen: Seen, tokens: Tensor) -> Tensor:
        """The token of the target in one pass, in which patches may have been dropped."""
        prefix = len(self.layer.prefix)
        number = self.of_token
        if number >= prefix:
            (found,) = np.nonzero(seen.patches == number - prefix)
            if not len(found):
                raise ModelError(
                    "The patch that is asked about was dropped itself: paint patches over instead."
                )
            number = prefix + int(found[0])
        return tokens[number]

    def _read(self, seen: Seen) -> Tensor:
        """The token from which the answer is read, or the mean of the patches."""
        tokens, prefix = seen.normalised(), self.layer.prefix
        return tokens[len(prefix) :].mean(dim=0) if self.in_patches else tokens[prefix.index("cls")]


def seen_in(acts: Activations) -> Seen:
    """What a capture gives to a target."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.copy())

    assert acts.output is not None
    return Seen(
        output=tensor(acts.output),
        tokens=tensor(acts.tokens(acts.depth)),
        normalised=lambda: tensor(acts.tokens(acts.depth, normalised=True)),
        patches=acts.patches,
    )


def one_of(target: Target | None, class_index: int | None) -> Target:
    """The target; `class_index` is its older name, for a class alone."""
    if (target is None) == (class_index is None):
        raise TypeError("Expected a target or a class_index, and one of them alone.")
    return class_index if target is None else target  # type: ignore[return-value]


def _class_index(model: Model, wanted: int | np.integer | str) -> int:
    classes = model.num_classes
    if not classes:
        raise ModelError(
            "{model} has no head that names classes, so none can be asked about: give a "
            "vector, a function of the output, a Token or a Similarity.",
            model=model.name,
        )
    if not isinstance(wanted, str):
        if not 0 <= wanted < classes:
            raise ValueError(f"Expected a class_index in 0..{classes - 1}, got {wanted}.")
        return int(wanted)
    if model.labels is None:
        raise ModelError(
            "The classes of {model} have no names here: give the class's index.", model=model.name
        )
    folded = [label.casefold() for label in model.labels]
    name = wanted.casefold()
    found = [at for at, label in enumerate(folded) if label == name]
    found = found or [at for at, label in enumerate(folded) if name in label.split(", ")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(
            f"{len(found)} classes of {model.name} are called {wanted}: give the index of one "
            f"({', '.join(map(str, found))})."
        )
    near = difflib.get_close_matches(name, folded, n=1)
    hint = f": did you mean {model.labels[folded.index(near[0])]}?" if near else "."
    raise ValueError(f"{model.name} has no class called {wanted}{hint}")
