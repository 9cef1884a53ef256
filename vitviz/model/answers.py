"""Meaning of a model's outputs: kinds of answers, grades of confidence, class names."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from torch import Tensor

from ..common.language import shorten
from .families import ModelError

#: Grades of an answer, by its probability.
Grade = Literal["confident", "unsure", "weak"]
GRADES: tuple[Grade, ...] = ("confident", "unsure", "weak")
CONFIDENT = 0.8  # answers are confident from the probability at which this share is right
WEAK = 0.5  # and weak below the probability at which this share is right


@dataclass(frozen=True)
class Grades:
    """Thresholds of the grades, and how often their answers were right on test pictures.

    Attributes
    ----------
    weak_below, confident_from : float
        Thresholds of the most probable class's probability.
    rates : mapping of grade to float
        Share of the answers with this grade that were right, from 0 to 1; measured on `pictures`
        test pictures, which no threshold was fitted on.
    """

    weak_below: float
    confident_from: float
    rates: Mapping[Grade, float]
    pictures: int

    @classmethod
    def read(cls, about: Mapping[str, Any]) -> "Grades":
        """Return the grades in the metadata of a file of weights."""
        return cls(
            weak_below=about["weak_below"],
            confident_from=about["confident_from"],
            rates={grade: about["test"][grade][1] for grade in GRADES},
            pictures=about["test_pictures"],
        )

    def of(self, probability: float) -> Grade:
        """Return the grade of an answer with this probability."""
        return grade_of(probability, self.weak_below, self.confident_from)


def grade_of(probability: float, weak_below: float, confident_from: float) -> Grade:
    if probability >= confident_from:
        return "confident"
    return "weak" if probability < weak_below else "unsure"


#: "classes": one of them applies, and their probabilities sum to 1. "labels": several may apply,
#: each with its own probability. "values": numbers of unknown unit, as of a regression.
#: "embedding": features of the picture, which are compared and not read one by one.
Answers = Literal["classes", "labels", "values", "embedding"]

#: Names of classes in the order of the outputs, or a mapping between names and numbers.
Labels = Iterable[Any] | Mapping[Any, Any]

_PROBLEMS: dict[str, Answers] = {  # by the problem_type of transformers
    "single_label_classification": "classes",
    "multi_label_classification": "labels",
    "regression": "values",
}
_MAX_LENGTH = 40  # characters of a value in an error


def parse_answers(stated: str | None) -> Answers | None:
    """Return a kind of answers unchanged, or raise a ModelError if it is unknown."""
    if stated is None or stated in get_args(Answers):
        return stated  # type: ignore[return-value]
    raise ModelError(
        "Unknown kind of answers {stated!r}. Expected one of {known}.",
        stated=stated,
        known=", ".join(get_args(Answers)),
    )


def configured_answers(module: Any) -> Answers | None:
    """Return the kind of answers in a configuration of transformers, or None."""
    return _PROBLEMS.get(str(getattr(getattr(module, "config", None), "problem_type", None)))


def scores(outputs: Tensor, answers: Answers) -> Tensor:
    """Turn outputs (..., K) into probabilities of classes or labels; others stay as they are."""
    if answers == "classes":
        return outputs.softmax(dim=-1)
    return outputs.sigmoid() if answers == "labels" else outputs


def class_names(labels: Labels) -> tuple[str, ...]:
    """Return the names of the classes in the order of the outputs.

    Parameters
    ----------
    labels : names in that order; {number: name} as `id2label`, or {name: number} as `class_to_idx`

    Raises
    ------
    ModelError
        When a number from 0 on has no name, or a mapping can be read in both directions.
    """
    if isinstance(labels, Mapping):
        return _names_in_mapping(labels)
    if isinstance(labels, str | bytes | set | frozenset) or not isinstance(labels, Iterable):
        raise ModelError(
            "Labels must have an order, got {labels}. Give a list of names in the order of the "
            "outputs, or a dictionary.",
            labels=shorten(repr(labels), _MAX_LENGTH),
        )
    return tuple(map(_check_name, labels))


def _names_in_mapping(labels: Mapping[Any, Any]) -> tuple[str, ...]:
    """Return names from a mapping whose keys or values are the numbers 0 to K - 1."""
    pairs = [*labels.items()]
    by_number = _names_in_order([(key, value) for key, value in pairs])
    by_name = _names_in_order([(value, key) for key, value in pairs])
    # JSON turns the keys of id2label into text; only keys of type int show the direction.
    is_typed = all(isinstance(key, int) and isinstance(value, str) for key, value in pairs)
    if by_number is not None and by_name is not None and by_number != by_name and not is_typed:
        key, value = next(pair for pair in pairs if str(pair[0]) != str(pair[1]))
        raise ModelError(
            "The labels can be read in two ways: {key!r}: {value!r} names class {key} {value}, or "
            "class {value} {key}. Give a list of names in the order of the outputs.",
            key=key,
            value=value,
        )
    names = by_name if by_number is None else by_number
    if names is None:
        raise ModelError(
            "The labels are {labels}. A dictionary of labels needs a name for each number from 0 "
            "to {last}.",
            labels=shorten(repr(dict(labels)), _MAX_LENGTH),
            last=max(len(pairs) - 1, 0),
        )
    return names


def _names_in_order(pairs: list[tuple[Any, Any]]) -> tuple[str, ...] | None:
    """Return names in the order of their numbers; None if these are not 0 to K - 1."""
    names = {_parse_number(number): name for number, name in pairs}
    if not names or {*names} != {*range(len(pairs))}:
        return None
    return tuple(_check_name(names[number]) for number in range(len(pairs)))


def _parse_number(value: Any) -> int | None:
    """Return a whole number, which may be given as text; None for anything else."""
    if isinstance(value, str):
        return int(value) if value.isascii() and value.isdigit() else None
    whole = hasattr(value, "__index__") and not isinstance(value, bool)
    return int(value) if whole else None


def _check_name(value: Any) -> str:
    if isinstance(value, str) or hasattr(value, "__index__"):
        return str(value)
    raise ModelError(
        "The name of a class must be text, got {value}.",
        value=shorten(repr(value), _MAX_LENGTH),
    )
