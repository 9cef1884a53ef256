"""Find the state dict of one model in a file that a trainer wrote.

Trainers nest state dicts in dictionaries ({"model": ..., "model_ema": ...}) and prefix names
("module.", "student.backbone."). Keys and prefix are the place of a model in the file, and a file
may have several.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from torch import Tensor

from ...common.language import Message, MessageError
from .naming import HF_BACKBONES

#: Keys of a moving average (EMA), which is preferred, as trainers evaluate it.
_AVERAGES = frozenset(
    ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "ema_model", "averaged_model")
)
_PARTS = frozenset(("model", "state_dict", "model_state_dict", "net", "network", "module"))
_USUAL_PLACES = ((), ("model",), ("state_dict",))  # not named in the provenance
_MAX_DEPTH = 4
#: Names of the patch embedding in every network that vitviz reads; their prefix is the model's.
_BEGINNING = re.compile(
    r"(?P<prefix>(?:[^.]+\.)*?)(?:patch_embeds?\d?\.|stem\.|conv_proj\.|(?<=visual\.)conv1\."
    rf"|(?:(?:{HF_BACKBONES})\.)?embeddings\.patch_embeddings?\.)"
)
#: Losses and metrics, on which a model's output does not depend.
_MEASURES = re.compile(
    r"(?:\w+_)?(?:criterion|loss\w*|b?ce|metrics?|acc\d*|accuracy|auroc|auc|f1\w*|precision|recall"
    r"|confmat|confusion_matrix)(?:\.|$)"
)
#: Other parts that trainers keep beside a model.
_BESIDE = re.compile(
    r"center$|(?:dino_head|ibot_head|projector|projection_head|predictor)\."
    r"|head\.(?:mlp|last_layer)2?\."  # DINO's; iBOT's has a second one for patches
    r"|(?:prototypes|queue\w*|decoder\w*|mask_token|text\w*|logit_scale|logit_bias)(?:\.|$)"
    r"|(?:transformer\.resblocks|token_embedding|ln_final)\.|positional_embedding$"
)
#: Parts of a trainer, which hold no weights of a model.
_FOREIGN = re.compile(r"optim|lr_sched|scheduler|scaler|callbacks|loops|amp$")


@dataclass(frozen=True)
class Contents:
    """The weights of one model in a file.

    Attributes
    ----------
    tensors : by their names without the prefix
    part : dotted keys of the dictionary in the file; "" for a usual place
    prefix : the prefix that all its names had, such as "module."
    left_out : names in the same dictionary that belong to a loss, a metric and the like
    """

    tensors: dict[str, Tensor]
    part: str
    prefix: str
    left_out: tuple[str, ...] = ()


_Place = tuple[tuple[str, ...], str]  # the keys of a dictionary, and a prefix of names in it


def contents_of(content: Any, part: str | None) -> Contents | None:
    """Return the weights of one model; None if there are no named tensors.

    Parameters
    ----------
    part : a word in the place of the wanted model, such as "teacher"

    Raises
    ------
    MessageError
        When it is not clear which model is wanted, or its model computes more than one part.
    """
    states = dict(_find_states(content))
    places: list[_Place] = [
        (keys, prefix) for keys, names in states.items() for prefix in _prefixes(names)
    ]
    if not places:  # without a patch embedding
        usual_keys = _AVERAGES | _PARTS
        usual = [k for k in states if len(k) <= 1 and usual_keys.issuperset(k)]
        places = [(keys, wrapper_of(states[keys])) for keys in usual]
    if not places:
        return None
    keys, prefix = _choose_place(places, part)
    inside = {
        name.removeprefix(prefix): tensor
        for name, tensor in states[keys].items()
        if name.startswith(prefix) and (prefix or not is_measure(name))
    }
    others = {
        name: t for name, t in states[keys].items() if name.removeprefix(prefix) not in inside
    }
    _check_beside(others, prefix, [p for k, p in places if k == keys])
    place = "" if keys in _USUAL_PLACES else ".".join(keys)
    return Contents(inside, place, prefix, tuple(others))


def is_measure(name: str) -> bool:
    """Whether a tensor belongs to a loss or a metric, by its name in the file."""
    return bool(_MEASURES.match(name))


def wrapper_of(names: Collection[str]) -> str:
    """Return the prefix that all names share, such as "module.", or "".

    No model keeps everything in one part, so a shared prefix is a wrapper's: DataParallel,
    torch.compile ("_orig_mod."), or an attribute of a trainer ("model.", "net.", "backbone.").
    """
    if not names:
        return ""
    # A prefix of the alphabetically first and last name is a prefix of all.
    first, last = (name.split(".")[:-1] for name in (min(names), max(names)))
    pairs = takewhile(lambda pair: pair[0] == pair[1], zip(first, last, strict=False))
    return "".join(f"{one}." for one, _ in pairs)


def _find_states(
    content: Any, keys: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], dict[str, Tensor]]]:
    """Yield each dictionary of named tensors in a file's content, with its keys."""
    if not isinstance(content, Mapping):
        return
    entries = {key: value for key, value in content.items() if isinstance(key, str)}
    tensors = {key: value for key, value in entries.items() if isinstance(value, Tensor)}
    if tensors:
        yield keys, tensors
    for key, value in entries.items():
        if len(keys) < _MAX_DEPTH and not _FOREIGN.match(key):
            yield from _find_states(value, (*keys, key))


def _prefixes(names: Collection[str]) -> list[str]:
    """Return the prefixes of whole networks."""
    prefixes = {match["prefix"] for name in names if (match := _BEGINNING.match(name))}
    return [""] if "" in prefixes else sorted(prefixes)


def _words(place: _Place) -> list[str]:
    keys, prefix = place
    return [*keys, *prefix.split(".")[:-1]]


def _choose_place(places: Sequence[_Place], part: str | None) -> _Place:
    """Return the place of the wanted model; a moving average is preferred."""
    candidates = places
    if part is not None:
        candidates = [p for p in places if part in _words(p) or part == ".".join(_words(p))]
        if not candidates:
            raise MessageError(
                "it has no part {part}. It has: {parts}",
                part=part,
                parts=", ".join(_choices(places)),
            )

    def rank(place: _Place) -> int:
        keys = set(place[0])
        return 0 if _AVERAGES.intersection(_words(place)) else 1 if not keys or keys & _PARTS else 2

    best = min(map(rank, candidates))
    best_places = [place for place in candidates if rank(place) == best]
    if len(best_places) > 1:
        choices = _choices(best_places)
        raise MessageError(
            'it holds {count} models. Choose one of {parts}: load_model(..., part="{first}"), or '
            "NAME=FILE#{first} on the command line",
            count=len(best_places),
            parts=", ".join(choices),
            first=choices[0],
        )
    return best_places[0]


def _choices(places: Sequence[_Place]) -> list[str]:
    """Return a short name for each place: its first word that is not in all, else all words."""
    words = [_words(place) for place in places]
    common = set.intersection(*map(set, words))
    return [
        next((word for word in each if word not in common), ".".join(each) or "model")
        for each in words
    ]


def _check_beside(others: Mapping[str, Tensor], prefix: str, prefixes: Sequence[str]) -> None:
    """Refuse a file with a classifier beside the network: its model computes more."""
    for name, tensor in others.items():
        is_copy = any(name.startswith(other) for other in prefixes)
        words = name.split(".")
        is_known = is_copy or any(
            part.match(".".join(words[n:]))
            for n in range(len(words))
            for part in (_MEASURES, _BESIDE)
        )
        if not is_known and tensor.ndim > 1 and tensor.is_floating_point():
            raise MessageError(
                "it has {name} beside {prefix}*, so its model computes more than that part. Build "
                "the model in Python, and give it to vitviz.watch",
                name=name,
                prefix=prefix,
            )


def left_out_note(names: Sequence[str]) -> Message:
    """Return the provenance's note on parts beside the model that were left out."""
    if len(names) == 1:
        return Message(", without {name}", name=names[0])
    return Message(", without {name} and {more} more", name=names[0], more=len(names) - 1)
