"""The models in the menu, loaded once for all sessions."""

import atexit
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import streamlit as st

from vitviz.app.shared import downloads, results
from vitviz.app.shared.cache import LRUCache
from vitviz.app.shared.queue import Queue, turn
from vitviz.language import mark, message, tr
from vitviz.options import OptionError, Options, check, parse

if TYPE_CHECKING:
    from vitviz import Model, Words

MAX_BYTES = 2_000_000_000  # of weights
ON_DISK = mark("on disk")


@st.cache_resource(show_spinner=False)
def options() -> Options:
    """The options of the command line, parsed once."""
    script, *words = sys.argv
    # Under pytest, for example, sys.argv holds the options of another program.
    said = parse(words if Path(script).name in ("app.py", "vitviz") else [])
    if said.models or said.checkpoints or said.labels:
        from vitviz.zoo import catalogue

        check(said, [entry.name for entry in catalogue()])
    if said.device != "cpu" or said.words:
        from vitviz import ModelError, Words
        from vitviz.devices import device_named

        try:
            device_named(said.device)
            if said.words:
                Words.read(said.words)
        except ModelError as error:
            raise OptionError(message(error)) from error
    if said.profiles:
        from vitviz.profiling import ProfileError, load_profile

        try:
            for path in said.profiles:
                load_profile(path)
        except ProfileError as error:
            raise OptionError(message(error)) from error
    return said


@st.cache_resource(show_spinner=False)
def words() -> "Words | None":
    """The words that the options name, as classes of models that give an embedding."""
    from vitviz import Words

    file = options().words
    return None if file is None else Words.read(file)


def why_no_classes(model: "Model") -> str:
    """Why a model names no classes, and what would help, for a page that needs them."""
    name, said = model.name, words()
    if not model.embeds:
        return tr(
            "{name} has no head that names classes. Choose a model that does, such as {shipped}.",
            name=name,
            shipped=shipped_name(),
        )
    what = tr("{name} gives an embedding of the picture, and no classes", name=name)
    if said is None:
        return tr(
            "{what}. The operator can start the app with --words and a file of text "
            "vectors, which then are its classes.",
            what=what,
        )
    return tr(
        "{what}: its embedding has {outputs} numbers, and the vectors of the words have "
        "{width}, so they belong to another model.",
        what=what,
        outputs=model.parts.outputs,
        width=said.vectors.shape[1],
    )


@st.cache_resource(show_spinner=False)
def cache() -> LRUCache:
    """The models; on a device they take at most half of its memory, as captures lie there too."""
    if options().device == "cpu":
        return LRUCache(MAX_BYTES)
    from vitviz.devices import device_named, total_on

    return LRUCache(min(MAX_BYTES, total_on(device_named(options().device)) // 2))


@st.cache_resource
def loads() -> Queue:
    """The queue of model loads: one at a time, so that each finds the memory that it needs."""
    return Queue()


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


def load(name: str, weights: str = TRAINED, wanted: Input = OWN_INPUT) -> "Model":
    """A model, from memory where it is there.

    With trained weights, `name` may be that of a local file in the menu.

    Parameters
    ----------
    weights : TRAINED, RANDOM or, of a shipped model that began so, MIMETIC

    Raises
    ------
    ModelError
        When it cannot be loaded.
    """
    place = st.empty()

    def make() -> "Model":
        with turn(place, loads()), place, st.spinner(tr("Loading the model …")):
            return _load(name, weights, wanted)

    model = cache().get(
        (name, weights, wanted),
        make,
        _bytes_of,
        lambda: place.progress(0.0, tr("Loading the model …")),
    )
    place.empty()
    return model


def outline(name: str, wanted: Input = OWN_INPUT) -> "Model":
    """A model without weights, which takes no memory: what it costs is known before it is spent.

    Raises
    ------
    ModelError
        When there is no such model, or none with such an input, or it needs too much memory.
    """

    def make() -> "Model":
        from vitviz.zoo.architectures import on_meta_device

        with turn(st.empty(), loads()), on_meta_device():
            return _usual(name, RANDOM, wanted, "cpu")

    return cache().get((name, "outline", wanted), make, lambda made: 1000)


def random_kernel(model: "Model") -> np.ndarray:
    """The filters (D, C, P, P) that the model has with random weights.

    Raises
    ------
    ModelError
        When they cannot be had.
    """
    from vitviz.zoo import random_kernel

    def make() -> np.ndarray:
        with turn(st.empty(), loads()):
            return random_kernel(model)

    return results.captures().get(("random kernel", model.name), make, lambda made: made.nbytes)


def initial_kernel(model: "Model") -> np.ndarray | None:
    """The filters (D, C, P, P) with which the training of a shipped model began; None of others."""
    from vitviz.checkpoints import initial_filters, shipped_names

    if model.name not in shipped_names() or not model.weights.startswith("shipped"):
        return None
    return initial_filters(model.name)


def make_ready() -> None:
    """Load the model of the first page before it is asked for; nothing is drawn."""
    name = shipped_name()
    cache().get((name, TRAINED, OWN_INPUT), lambda: _load(name, TRAINED, OWN_INPUT), _bytes_of)


def _bytes_of(model: "Model") -> int:
    return sum(tensor.nbytes for tensor in model.module.state_dict().values())


def _load(name: str, weights: str, wanted: Input) -> "Model":
    from vitviz.malloc import tune_malloc
    from vitviz.zoo import leave_cores_free

    leave_cores_free()
    tune_malloc()
    model = _usual(name, weights, wanted, options().device)
    said = words()
    if said is not None and model.embeds and model.parts.outputs == said.vectors.shape[1]:
        model = model.with_words(said)
    settle()
    return model


def _usual(name: str, weights: str, wanted: Input, device: str) -> "Model":
    """As `_made`, with the input that the options ask for where no other is wanted."""
    from vitviz import ModelError

    size = options().image_size
    if size and wanted == OWN_INPUT and name not in options().checkpoints:
        with suppress(ModelError):  # a model that cannot have it keeps its own
            return _made(name, weights, Input(size), device)
    return _made(name, weights, wanted, device)


def _made(name: str, weights: str, wanted: Input, device: str) -> "Model":
    from vitviz import load_model
    from vitviz.zoo import repository, size_in

    architecture, file, usual = options().checkpoints.get(name, (name, None, None))
    size = wanted.size or usual
    if weights != TRAINED and file is not None and not file.is_dir():  # in the grid of its weights
        size, file = size or size_in(architecture, file), None
    return load_model(
        architecture,
        pretrained=weights == TRAINED,
        initialisation="mimetic" if weights == MIMETIC else "plain",
        checkpoint=file,
        image_size=size,
        crop=wanted.crop,
        labels=options().labels if file is not None or repository(name) else None,
        device=device,
    )


def settle() -> None:
    """Exclude the objects of large libraries from garbage collection, once each is loaded.

    Streamlit collects after every run, and scanning them took as long as the run itself.
    """
    _settle(tuple(name for name in ("torch", "timm", "sklearn") if name in sys.modules))


@st.cache_resource(show_spinner=False)
def _settle(loaded: tuple[str, ...]) -> None:
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # otherwise libraries report leaks at exit


def model_names() -> list[str]:
    """The models in the menu: where downloads are not allowed, only those on disk.

    One shipped model is always among them: it can be shown where no other can.
    """
    names = _allowed_names()
    if not downloads.allowed():
        marks = weights_marks()
        names = [name for name in names if marks.get(name, ON_DISK) == ON_DISK]
    return names


def hub_allowed() -> bool:
    """Whether names of the hub may be typed: where the operator said so, on localhost."""
    return options().hub and downloads.allowed()


def typed_names(said: str | None) -> list[str]:
    """The repositories of the hub that this session has named, the last one among them."""
    from vitviz.zoo import repository

    names: list[str] = st.session_state.setdefault("hub_names", [])
    if hub_allowed() and said and repository(said) and said not in names:
        names.append(said)
    return list(names) if hub_allowed() else []


def needs_download(name: str) -> bool:
    """Whether the trained weights of a model in the menu are not here."""
    from vitviz.zoo import catalogue, on_disk, repository

    if repository(name):
        return not on_disk(name)
    return any(entry.name == name and not entry.on_disk for entry in catalogue())


def missing(name: str | None) -> tuple[str, str | None] | None:
    """The message for a linked model that this menu lacks though it is one, and its successor."""
    from vitviz.checkpoints import SUCCEEDED, SUCCESSORS

    if successor := SUCCESSORS.get(name or ""):
        return tr(SUCCEEDED, name=name, successor=successor), successor
    if name and name.startswith("hf-hub:") and not hub_allowed():
        told = tr(
            "{name} is a name of the hub, and this server takes none: its operator can "
            "start it with --hub, for this machine alone.",
            name=name,
        )
        return told, None
    if name is None or name not in _allowed_names() or name in model_names():
        return None
    told = tr(
        "{name} is not on this server, and visitors cannot make it download a model: its "
        "operator can add it with `vitviz fetch {name}`.",
        name=name,
    )
    return told, None


def _allowed_names() -> list[str]:
    """The models that the options allow: shipped models, files of the command line, then timm's."""
    from vitviz.zoo import catalogue

    said = options()
    known = [entry.name for entry in catalogue()]
    shipped = [entry.name for entry in catalogue() if entry.shipped]
    names = [*shipped, *said.checkpoints, *(name for name in known if name not in shipped)]
    if said.models is None:
        return names
    allowed = [name for name in names if name in said.models or name in said.checkpoints]
    return allowed if set(allowed) & set(shipped) else [*allowed, shipped[0]]


def shipped_name() -> str:
    """The first shipped model in the menu, which needs no network."""
    from vitviz.checkpoints import shipped_names

    return next(name for name in _allowed_names() if name in shipped_names())


def families() -> dict[str, str]:
    """The family of each timm model in the menu."""
    from vitviz.zoo import catalogue

    return {entry.name: entry.family for entry in catalogue() if not entry.shipped}


def menu_text() -> Callable[[str], str]:
    """What the menu says of each model: its name, with family and weights of timm's."""
    marks, named = weights_marks(), families()
    return lambda name: f"{named[name]}: {name} · {tr(marks[name])}" if name in marks else name


def weights_marks() -> dict[str, str]:
    """What the menu says about the trained weights of timm's models: on disk, or their size."""
    from vitviz.zoo import catalogue

    return {
        entry.name: ON_DISK if entry.on_disk else f"↓ {entry.size:.0f} MB"
        for entry in catalogue()
        if not entry.shipped
    }
