"""The models in the menu, loaded once for all sessions."""

import atexit
import gc
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import streamlit as st

from vitviz.app.shared import downloads, limits, results
from vitviz.app.shared.cache import LRUCache
from vitviz.app.shared.pictures import Picture
from vitviz.app.shared.queue import Queue, let_pages_be_drawn, turn
from vitviz.app.shared.started import options
from vitviz.app.shared.view import Cached
from vitviz.common.language import mark, tr, tr_md
from vitviz.common.malloc import return_freed_memory

if TYPE_CHECKING:
    from vitviz import Activations, Model, Words

MAX_WEIGHT_BYTES = 2_000_000_000  # of weights
OUTLINE_BYTES = 2_000_000  # of a model's objects, beside its weights
ON_DISK = mark("on disk")


class ViewFields(TypedDict):
    """Fields of a view."""

    cached_model: "Cached[Model]"
    cached_acts: "Cached[Activations]"
    picture: Picture


@st.cache_resource(show_spinner=False)
def words() -> "Words | None":
    """Return the words of the option --words, the classes of models that give an embedding."""
    from vitviz import Words

    file = options().words
    return None if file is None else Words.read(file)


def explain_no_classes(model: "Model") -> str:
    """Explain why a model names no classes, and what would help."""
    name, phrases = model.name, words()
    if model.answers == "values":
        return tr_md(
            "{name} gives values, as of a regression: {count:,} of them, with no known unit. It "
            "names no classes, and there are no probabilities to show. Choose a model that names "
            "classes, such as {shipped}.",
            name=name,
            count=model.num_classes,
            shipped=shipped_name(),
        )
    if not model.embeds:
        return tr_md(
            "{name} has no head that names classes. Choose a model that does, such as {shipped}.",
            name=name,
            shipped=shipped_name(),
        )
    what = tr_md("{name} gives an embedding of the picture, and no classes", name=name)
    if phrases is None and model.text_loader is not None:
        return tr_md(
            "{what}. Write phrases into *Words*, beneath the model: a line each.", what=what
        )
    if phrases is None:
        return tr_md(
            "{what}. The operator can start the app with --words and a file of text "
            "vectors, which then are its classes.",
            what=what,
        )
    return tr_md(
        "{what}. The embedding has {outputs} numbers and the vectors of the words have {width}: "
        "they belong to another model.",
        what=what,
        outputs=model.outputs,
        width=phrases.vectors.shape[1],
    )


@st.cache_resource(show_spinner=False)
def cache() -> LRUCache:
    """Return the cache of models; on a device it takes at most half of the memory."""
    if options().device == "cpu":
        return LRUCache(MAX_WEIGHT_BYTES)
    from vitviz.model.devices import find_device, total_on

    return LRUCache(min(MAX_WEIGHT_BYTES, total_on(find_device(options().device)) // 2))


@st.cache_resource
def load_queue() -> Queue:
    """Return the queue of model loads: one at a time, so that each finds its memory free."""
    return Queue(seconds=limits.seconds())


@dataclass(frozen=True)
class Input:
    """The input that a model of the menu shall have.

    Attributes
    ----------
    size : (height, width) in pixels; None for the one that it comes with
    crop : False where the whole picture is resized to it
    """

    size: tuple[int, int] | None = None
    crop: bool = True


OWN_INPUT = Input()
TRAINED, RANDOM, MIMETIC = "trained", "random", "mimetic"  # weights that the menu offers


def load_by_name(name: str, weights: str = TRAINED, wanted: Input = OWN_INPUT) -> "Model":
    """Return a model, from the cache if it is there.

    With trained weights, `name` may be that of a local file in the menu. A model of another input
    size shares its weights with that of its own size, and is dropped before it.

    Parameters
    ----------
    weights : TRAINED, RANDOM, or MIMETIC for a shipped model whose training began with those

    Raises
    ------
    ModelError
        When it cannot be loaded.
    """
    return _load_in_sight((name, weights, wanted), tr("Loading the model …"))


def with_phrases(model: "Model", phrases: tuple[str, ...], templates: tuple[str, ...]) -> "Model":
    """Return a model of `load` with phrases as its classes, from the cache if it is there.

    Raises
    ------
    ModelError
        When its text tower cannot be loaded, or cannot read a phrase.
    """
    key: Any = cache().key_of(model)
    if key is None:  # dropped meanwhile
        return model.with_words(phrases, templates)
    return _load_in_sight((*key, phrases, templates), tr("Reading the words …"))


def _load_in_sight(key: Any, words: str) -> "Model":
    """Return the model under a key of `_get_or_load`, and say meanwhile what is done."""
    place = st.empty()

    @contextmanager
    def in_turn() -> Iterator[None]:
        with turn(place, load_queue()), place, st.spinner(words):
            yield

    def waiting() -> None:  # another visitor's page loads it
        let_pages_be_drawn()
        place.progress(0.0, words)

    model = _get_or_load(key, in_turn, waiting)
    place.empty()
    return model


def reloader(model: "Model") -> "Callable[[], Model]":
    """Return a function that gives the same model later, without holding it meanwhile.

    Sessions outlive the cache. It draws nothing, so any thread may call it.
    """
    key = cache().key_of(model)
    if key is None:  # already dropped
        return lambda: model
    return lambda: _get_or_load(key, lambda: load_queue().turn(lambda ahead: None), lambda: None)


def _get_or_load(
    key: Any, in_turn: Callable[[], AbstractContextManager[object]], waiting: Callable[[], object]
) -> "Model":
    """Return the model under a key (name, weights, input); load it within `in_turn` if absent.

    One of another input size shares the weights of that of its own size.
    """
    name, weights, wanted, *rest = key
    if rest:
        bare = _get_or_load(key[:3], in_turn, waiting)

        def ask() -> "Model":
            with in_turn():
                model = bare.with_words(*rest)
            bare.drop_text_tower()
            return model

        model = cache().get(key, ask, lambda made: OUTLINE_BYTES, waiting)
        cache().find(key[:3])  # now used later than those that share its module
        return model
    own_key = (name, weights, OWN_INPUT)
    own = None if wanted == OWN_INPUT else _get_or_load(own_key, in_turn, waiting)

    def make() -> "Model":
        with in_turn():
            model = _load(name, weights, wanted)
            if own is not None:
                share_weights(model, own)
            return model

    model = cache().get(key, make, lambda made: _bytes_of(made, own), waiting)
    if own is not None:
        cache().find(own_key)  # now used later than those that share its weights
    return model


def outline(name: str, wanted: Input = OWN_INPUT) -> "Model":
    """Return a model without weights, to know what it costs before it is loaded.

    Raises
    ------
    ModelError
        When there is no such model, or none with such an input, or it needs too much memory.
    """

    def make() -> "Model":
        from vitviz.zoo.architectures import on_meta_device

        with turn(st.empty(), load_queue()), on_meta_device():
            return _load_at_usual_size(name, RANDOM, wanted, "cpu")

    return cache().get((name, "outline", wanted), make, lambda made: OUTLINE_BYTES)


def cached_random_kernel(model: "Model") -> np.ndarray:
    """Return the filters (D, C, P, P) that the model has with random weights.

    Raises
    ------
    ModelError
        When they cannot be had.
    """
    from vitviz.zoo import random_kernel

    def make() -> np.ndarray:
        with turn(st.empty(), load_queue()):
            return random_kernel(model)

    return results.capture_cache().get(("random kernel", model.name, model.folder), make)


def initial_kernel(model: "Model") -> np.ndarray | None:
    """Return the filters (D, C, P, P) of a shipped model before training; None for others."""
    from vitviz.zoo.checkpoints import initial_filters, shipped_names

    if model.name not in shipped_names() or not model.weights.startswith("shipped"):
        return None
    return initial_filters(model.name)


def preload() -> None:
    """Load the model of the first page before it is asked for; nothing is drawn."""
    _get_or_load((shipped_name(), TRAINED, OWN_INPUT), nullcontext, lambda: None)


def share_weights(model: "Model", own: "Model") -> None:
    """Let a model use the tensors of another wherever they are equal."""
    state, mine = own.module.state_dict(), model.module.state_dict()
    equal = {
        name: state[name]
        for name, tensor in mine.items()
        if name in state and tensor.shape == state[name].shape and tensor.equal(state[name])
    }
    model.module.load_state_dict(equal, strict=False, assign=True)


def _bytes_of(model: "Model", own: "Model | None" = None) -> int:
    """Count what a model takes beside the tensors that it shares with another."""
    sizes = [
        {each.data_ptr(): each.nbytes for each in (*one.module.parameters(), *one.module.buffers())}
        for one in (model, own)
        if one is not None
    ]
    unshared = sizes[0].keys() - (sizes[1].keys() if own is not None else ())
    return sum(sizes[0][place] for place in unshared) + OUTLINE_BYTES


def _load(name: str, weights: str, wanted: Input) -> "Model":
    from vitviz.zoo import leave_cores_free

    leave_cores_free()
    model = _load_at_usual_size(name, weights, wanted, options().device)
    phrases = words()
    if phrases is not None and model.embeds and model.outputs == phrases.vectors.shape[1]:
        model = model.with_words(phrases)
    freeze_libraries()
    return model


def _load_at_usual_size(name: str, weights: str, wanted: Input, device: str) -> "Model":
    """Load a model of the menu with the input size of the options, unless another is wanted."""
    from vitviz import ModelError

    size = options().image_size
    if size and wanted == OWN_INPUT and name not in options().checkpoints:
        with suppress(ModelError):  # a model that cannot have it keeps its own
            return _load_from_menu(name, weights, Input(size), device)
    return _load_from_menu(name, weights, wanted, device)


def _load_from_menu(name: str, weights: str, wanted: Input, device: str) -> "Model":
    from vitviz import load_model
    from vitviz.zoo import repository, size_in

    architecture, file, usual, part = options().checkpoints.get(name, (name, None, None, None))
    size = wanted.size or usual
    preprocessing = options().preprocessing if file is not None and not file.is_dir() else None
    if weights != TRAINED and file is not None and not file.is_dir():  # in the grid of its weights
        size, file, part = size or size_in(architecture, file, part), None, None
    return load_model(
        architecture,
        pretrained=weights == TRAINED,
        initialisation="mimetic" if weights == MIMETIC else "plain",
        checkpoint=file,
        part=part,
        image_size=size,
        crop=wanted.crop,
        labels=options().labels if file is not None or repository(name) else None,
        preprocessing=preprocessing,
        answers=options().answers if options().checkpoints.get(name) else None,
        device=device,
    )


def freeze_libraries() -> None:
    """Exclude the objects of large libraries from garbage collection, once each is loaded.

    Streamlit collects after every run, and scanning them took as long as the run itself.
    """
    _freeze(tuple(name for name in ("torch", "timm", "sklearn") if name in sys.modules))


@st.cache_resource(show_spinner=False)
def _freeze(loaded: tuple[str, ...]) -> None:
    gc.collect()
    gc.freeze()
    return_freed_memory()
    atexit.register(gc.unfreeze)  # otherwise libraries report leaks at exit


def model_names() -> list[str]:
    """Return the models in the menu: without downloads, only those on disk.

    One shipped model is always among them: it can be shown where no other can.
    """
    names = _allowed_names()
    if not downloads.may_download():
        marks = weights_marks()
        names = [name for name in names if marks.get(name, ON_DISK) == ON_DISK]
    return names


def hub_allowed() -> bool:
    """Return whether names of the hub may be typed: on localhost, with --hub."""
    return options().hub and downloads.may_download()


def typed_names(text: str | None) -> list[str]:
    """Return the repositories of the hub that this session has named."""
    from vitviz.zoo import repository

    names: list[str] = st.session_state.setdefault("hub_names", [])
    if hub_allowed() and text and repository(text) and text not in names:
        names.append(text)
    return list(names) if hub_allowed() else []


def needs_download(name: str) -> bool:
    """Return whether the trained weights of a model in the menu are not on disk."""
    from vitviz.zoo import catalogue, on_disk, repository

    if repository(name):
        return not on_disk(name)
    return any(entry.name == name and not entry.on_disk for entry in catalogue())


def explain_missing(name: str | None) -> str | None:
    """Return why the menu lacks a linked model that exists; None where it is not a known model."""
    if name and name.startswith("hf-hub:") and not hub_allowed():
        return tr_md(
            "{name} is a name of the hub, and this server takes none. Its operator can start it "
            "with --hub, for this machine alone.",
            name=name,
        )
    if name is None or name not in _allowed_names() or name in model_names():
        return None
    return tr_md(
        "{name} is not on this server, and visitors cannot make it download a model. Its "
        "operator can add it with `vitviz fetch {name}`.",
        name=name,
    )


def _allowed_names() -> list[str]:
    """Return the models that the options allow: shipped ones, local files, then timm's."""
    from vitviz.zoo import catalogue

    own = options()
    listed_names = [entry.name for entry in catalogue()]
    shipped = [entry.name for entry in catalogue() if entry.shipped]
    names = [*shipped, *own.checkpoints, *(name for name in listed_names if name not in shipped)]
    if own.models is None:
        return names
    allowed = [name for name in names if name in own.models or name in own.checkpoints]
    return allowed if set(allowed) & set(shipped) else [*allowed, shipped[0]]


def shipped_name() -> str:
    """Return the first shipped model in the menu, which needs no network."""
    from vitviz.zoo.checkpoints import shipped_names

    return next(name for name in _allowed_names() if name in shipped_names())


def families() -> dict[str, str]:
    """Return the family of each timm model in the menu."""
    from vitviz.zoo import catalogue

    return {entry.name: entry.family for entry in catalogue() if not entry.shipped}


def menu_text() -> Callable[[str], str]:
    """Return a function from a model's name to its words in the menu."""
    marks, titles = weights_marks(), families()
    return lambda name: f"{titles[name]}: {name} · {tr(marks[name])}" if name in marks else name


def _size_of(megabytes: float) -> str:
    gap = "\N{NO-BREAK SPACE}"  # a narrow menu must not cut the unit off
    return f"{megabytes / 1000:.1f}{gap}GB" if megabytes >= 1000 else f"{megabytes:.0f}{gap}MB"


def weights_marks() -> dict[str, str]:
    """Return for each timm model whether its trained weights are on disk, else their size."""
    from vitviz.zoo import catalogue

    return {
        entry.name: ON_DISK if entry.on_disk else f"↓\N{NO-BREAK SPACE}{_size_of(entry.size)}"
        for entry in catalogue()
        if not entry.shipped
    }


def view_fields(model: "Model", picture: Picture, acts: "Activations") -> ViewFields:
    """Refer to a model and its capture, which are made again where the caches have dropped them."""
    cached = Cached(model, reloader(model))
    return ViewFields(
        cached_model=cached,
        cached_acts=Cached(acts, lambda: results.capture_picture(cached(), picture)),
        picture=picture,
    )
