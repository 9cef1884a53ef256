"""Choose the name of a class on screen, the one that a student would say, and its other names."""

import re
from collections.abc import Sequence
from functools import cache

from ..common.language import Message, Phrase, current_language, strings, translate

#: Clearer names for some classes of Tiny-ImageNet and CIFAR-100.
COMMON = {
    "Arabian camel": "camel",
    "Egyptian cat": "cat (Egyptian)",
    "European fire salamander": "fire salamander",
    "African elephant": "elephant",
    "American alligator": "alligator",
    "American lobster": "lobster",
    "alp": "mountain",
    "beach wagon": "station wagon",
    "beacon": "lighthouse",
    "bighorn": "bighorn sheep",
    "black widow": "black widow spider",
    "brass": "memorial plaque",
    "cash machine": "ATM",
    "computer keyboard": "keyboard",
    "confectionery": "sweet shop",
    "gasmask": "gas mask",
    "hog": "pig",
    "jinrikisha": "rickshaw",
    "lesser panda": "red panda",
    "magnetic compass": "compass",
    "mantis": "praying mantis",
    "monarch": "monarch butterfly",
    "organ": "pipe organ",
    "pay-phone": "payphone",
    "plain": "plains",  # of CIFAR-100
    "pop bottle": "soda bottle",
    "projectile": "missile",
    "reel": "fishing reel",
    "standard poodle": "poodle",
    "tabby": "tabby cat",
    "teddy": "teddy bear",
    "thatch": "thatched roof",
    "walking stick": "stick insect",
}
#: Names by which these sets are recognised: in other sets, "organ" may mean something else.
_SIGNS = {"jinrikisha", "aquarium fish"}
# Classes of a set that is translated; in smaller sets names may mean something else.
FEWEST_CLASSES = 10


def common_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return a common name of each class, in the language in use."""
    return tuple(map(translate, table_names(labels)))


def table_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the common names for tables, whose files are English in every language.

    Only the classes of the datasets in `text/<language>/classes.po` are translated. If a name is
    missing there, the labels are of another set, and all of them stay unchanged.
    """
    return _common(tuple(map(translate, labels)), current_language(), _are_phrases(labels))


def _are_phrases(labels: Sequence[str]) -> bool:
    return any(isinstance(label, Phrase) for label in labels)


@cache
def _common(labels: tuple[str, ...], language: str, are_phrases: bool) -> tuple[str, ...]:
    first = list(labels)
    if not are_phrases:
        first = [_with_spaces(label.split(",")[0] or label) for label in labels]
    common = COMMON if _SIGNS & {*first} else {}
    english = tuple(common.get(name, name) for name in first)
    if (
        language == "en"
        or len(english) < FEWEST_CLASSES
        or not strings("classes").keys() >= {*english}
    ):
        return english
    return tuple(map(Message, english))


def _with_spaces(name: str) -> str:
    """Replace the underscores between words by spaces."""
    return re.sub(r"(?<=[^\W_])_(?=[^\W_])", " ", name)


def other_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the other names of each class, separated by commas; empty if there are none."""
    own_names, are_phrases = common_names(labels), _are_phrases(labels)
    labels = tuple(map(translate, labels))
    others = []
    english = _common(labels, "en", are_phrases)
    for label, own, common in zip(labels, own_names, english, strict=True):
        parts = [label] if are_phrases else label.split(",")
        names = [common, *(name.strip() for name in parts)]
        different = (name for name in names if own not in (name, _with_spaces(name)))
        others.append(", ".join(dict.fromkeys(different)))
    return tuple(others)


def full_names(labels: Sequence[str]) -> tuple[str, ...]:
    """Return the name of each class with its other names in brackets."""
    names = zip(common_names(labels), other_names(labels), strict=True)
    return tuple(f"{name} ({others})" if others else name for name, others in names)
