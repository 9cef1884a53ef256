"""The target of a map or an experiment: a class, a direction of the output, or a token."""

import difflib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..common.query import Query, token_number
from ..model import Model
from ..model.devices import own_precision
from ..model.families import ModelError
from . import Activations


@dataclass(frozen=True)
class Token:
    """A token after the last layer: its length along its direction in the unedited picture.

    The target of models without a head: which patches make the token what it is. It is read before
    the final norm, which would give every token about the same length.

    Attributes
    ----------
    place : str, (row, column) or int
        The name of a token outside the picture ("cls", "reg1"), a patch, or a token's number in the
        full sequence, prefix first.
    """

    place: Query


@dataclass(frozen=True)
class Similarity:
    """The cosine, from -1 to 1, between the token that the head reads and one patch's token.

    Both are taken after the final norm. The patch's token is that of the unedited picture, and is
    held fixed. If the head reads the patches, their mean is compared.

    Attributes
    ----------
    patch : (row, column), int or str
        As the `place` of a `Token`.
    """

    patch: Query


#: A class by index or name; a vector as long as the output; a function that takes the output (K,)
#: and returns one number, both tensors; a Token; a Similarity.
Target = int | str | ArrayLike | Callable[[Tensor], Tensor] | Token | Similarity


@dataclass(frozen=True, eq=False)
class PassResult:
    """The values of one pass that a target may read.

    Attributes
    ----------
    output : Tensor of shape (K,)
        Logits, an embedding, or without a head the features it would read.
    tokens : Tensor of shape (T, D)
        After the last layer.
    normalised : callable() -> Tensor of shape (T, D)
        The tokens after the final norm.
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
        Set if the target is a class.
    place : int or None
        Number of the token whose row of a map is wanted; None for what the head reads.

    Raises
    ------
    ModelError
        When the model has no such output.
    ValueError
        When there is no such class, vector or token.
    """

    def __init__(self, model: Model, target: Target) -> None:
        self.name, self.layer, self.embeds = model.name, model.layers[0], model.embeds
        if isinstance(target, Tensor) and target.ndim == 0 and not target.is_floating_point():
            target = int(target)  # a label as a DataLoader yields it
        self.target = target
        self.class_index: int | None = None
        self.place: int | None = None
        self.in_patches = "patches" in model.read_tokens
        if isinstance(target, Token | Similarity):
            if not model.read_tokens:
                raise ModelError(
                    "No token can be followed through all layers of {model}: they differ in their "
                    "tokens.",
                    model=model.name,
                )
            place = target.place if isinstance(target, Token) else target.patch
            self.number = token_number(place, prefix=self.layer.prefix, grid=self.layer.query_grid)
            if isinstance(target, Token):
                self.place = self.number
        elif isinstance(target, int | np.integer | str):
            self.class_index = _class_index(model, target)
        elif not callable(target):
            self.vector = torch.as_tensor(np.asarray(target, np.float32))
            if self.vector.ndim != 1 or not self.vector.isfinite().all() or not self.vector.any():
                raise ValueError(
                    "Expected a target vector of finite numbers that are not all 0, "
                    f"got shape {tuple(self.vector.shape)}."
                )

    def reference(self, result: PassResult) -> Tensor | None:
        """Return the unit vector that tokens are compared with; None for other targets."""
        if isinstance(self.target, Token):
            vector = self._token(result, result.tokens)
        elif isinstance(self.target, Similarity):
            vector = self._token(result, result.normalised())
        else:
            return None
        return (vector / vector.norm()).detach()

    @own_precision()
    def value(self, result: PassResult, reference: Tensor | None) -> Tensor:
        """Return the value of the target: the logit of a class, or another number."""
        if self.class_index is not None:
            return result.output[self.class_index]
        if isinstance(self.target, Token):
            assert reference is not None
            return self._token(result, result.tokens) @ reference
        if isinstance(self.target, Similarity):
            assert reference is not None
            return torch.cosine_similarity(self._read(result), reference, dim=0)
        if callable(self.target):
            value = self.target(result.output)
            if not isinstance(value, Tensor) or value.numel() != 1:
                shape = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
                raise ValueError(f"Expected a target that returns one number, got {shape}.")
            return value.reshape(())
        vector = self.vector.to(result.output)
        if vector.shape != result.output.shape:
            raise ValueError(
                f"Expected a target vector of {len(result.output)} numbers, as many as {self.name} "
                f"outputs, got {len(vector)}."
            )
        if self.embeds:  # embeddings are compared by their direction
            return torch.cosine_similarity(result.output, vector, dim=0)
        return result.output @ vector

    def _token(self, result: PassResult, tokens: Tensor) -> Tensor:
        """Return the target's token in one pass, in which patches may have been dropped."""
        prefix = len(self.layer.prefix)
        number = self.number
        if number >= prefix:
            (index,) = np.nonzero(result.patches == number - prefix)
            if not len(index):
                raise ModelError(
                    "The target patch itself was dropped. Paint patches over instead of dropping "
                    "them."
                )
            number = prefix + int(index[0])
        return tokens[number]

    def _read(self, result: PassResult) -> Tensor:
        """Return the token that the head reads, or the mean of the patches."""
        tokens, prefix = result.normalised(), self.layer.prefix
        return tokens[len(prefix) :].mean(dim=0) if self.in_patches else tokens[prefix.index("cls")]


def pass_result(acts: Activations) -> PassResult:
    """Return the values of a capture that a target may read."""

    def tensor(values: np.ndarray) -> Tensor:
        return torch.from_numpy(values.copy())

    assert acts.output is not None
    return PassResult(
        output=tensor(acts.output),
        tokens=tensor(acts.tokens(acts.depth)),
        normalised=lambda: tensor(acts.tokens(acts.depth, normalised=True)),
        patches=acts.patches,
    )


def _class_index(model: Model, target: int | np.integer | str) -> int:
    classes = model.num_classes
    if not classes:
        raise ModelError(
            "{model} has no classification head. Give a vector, a function of the output, a "
            "Token or a Similarity instead of a class.",
            model=model.name,
        )
    if not isinstance(target, str):
        if isinstance(target, bool):
            raise ValueError(f"Expected the index or name of a class, got {target}.")
        if not 0 <= target < classes:
            raise ValueError(f"Expected a class in 0..{classes - 1}, got {target}.")
        return int(target)
    if model.labels is None:
        raise ModelError(
            "The class names of {model} are not known. Give the index of the class.",
            model=model.name,
        )
    labels = [label.casefold() for label in model.labels]
    name = target.casefold()
    matches = [at for at, label in enumerate(labels) if label == name]
    matches = matches or [at for at, label in enumerate(labels) if name in label.split(", ")]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise ValueError(
            f"{model.name} has {len(matches)} classes called {target}. Give the index of one: "
            f"{', '.join(map(str, matches))}."
        )
    near = difflib.get_close_matches(name, labels, n=1)
    hint = f" Did you mean {model.labels[labels.index(near[0])]}?" if near else ""
    raise ValueError(f"{model.name} has no class called {target}.{hint}")
