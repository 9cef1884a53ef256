"""The shared state of the pages: the picture, the model, and what was captured of both.

Models and captures are shared between sessions; the picture and the controls belong to one.
"""

import atexit
import csv
import gc
import hashlib
import sys
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator
from streamlit.runtime.uploaded_file_manager import UploadedFile

from vitviz.app import downloads, settings
from vitviz.app.cache import BoundedCache
from vitviz.app.queue import Queue, Turn
from vitviz.options import Options, parse

if TYPE_CHECKING:
    from PIL import Image

    from vitviz import Activations, Model
    from vitviz.activations import Edit
    from vitviz.families import Layer
    from vitviz.inspection import Measurements

T = TypeVar("T")
MAX_CAPTURE_BYTES = 512_000_000
MAX_MODEL_BYTES = 2_000_000_000
UPLOAD = "upload"
MEAN = "mean"  # as a head: the mean of heads; as a query: the mean of the patches
DEFAULT_PICTURE = "dog"
ON_DISK = "on disk"
KINDS = {  # of attention, in words
    "global": "all patches look at all",
    "class": "CLS alone looks",
    "window": "patches look within windows",
    "grid": "patches look within spread windows",
    "pooled": "patches look at pooled keys",
}


@dataclass(frozen=True)
class Picture:
    """An upright picture, the name under which it is shown, and the hash of its bytes."""

    name: str
    image: "Image.Image"
    digest: str


@dataclass(frozen=True)
class Looks:
    """How maps are drawn."""

    direction: Literal["row", "column"]
    view: Literal["heat", "spotlight"]
    scale: Literal["map", "shared", "log"]
    leave_out: bool  # the query out of the scale
    smooth: bool


@dataclass(frozen=True)
class View:
    """What every page looks at. Layer, head and token count from 0.

    Head None is the mean of heads; query None the mean of the patches, for a model without CLS.
    """

    model: "Model"
    picture: Picture
    acts: "Activations"
    layer: int
    head: int | None
    query: int | None
    looks: Looks

    @property
    def prefix(self) -> tuple[str, ...]:
        return self.acts.layers[self.layer].prefix

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the patches of the layer."""
        return self.acts.layers[self.layer].query_grid

    @property
    def query_patch(self) -> tuple[int, int] | None:
        """Row and column of the query, None where it is no patch."""
        if self.query is None or self.query < len(self.prefix):
            return None
        return divmod(self.query - len(self.prefix), self.grid[1])

    @property
    def query_name(self) -> str:
        """What the query is called on screen."""
        if self.query is None:
            return "the mean of the patches"
        if self.query_patch is None:
            return f"the {self.prefix[self.query].upper()} token"
        return f"the patch at row {self.query_patch[0] + 1}, column {self.query_patch[1] + 1}"

    @property
    def key(self) -> tuple[Hashable, ...]:
        """What the capture depends on."""
        return (self.model.name, self.model.weights, self.picture.digest)


def all_to_all(layers: "Sequence[Layer]") -> bool:
    """Whether every token attends to every token, and the tokens are the same in each layer."""
    tokens = {(layer.query_grid, layer.key_grid, layer.prefix) for layer in layers}
    return len(tokens) == 1 and all(layer.kind == "global" for layer in layers)


def token_text(layer: "Layer", token: int | None) -> str:
    """What the address calls a token: cls, reg1, mean, or row.column from 1."""
    if token is None or token < 0:
        return MEAN
    if token < len(layer.prefix):
        return layer.prefix[token]
    row, col = divmod(token - len(layer.prefix), layer.query_grid[1])
    return f"{row + 1}.{col + 1}"


@st.cache_resource
def captures() -> BoundedCache:
    return BoundedCache(MAX_CAPTURE_BYTES)


@st.cache_resource
def options() -> Options:
    """What the operator said on the command line, read once."""
    script, *said = sys.argv
    # Elsewhere, as under a test, the words are meant for another program.
    return parse(said if Path(script).name in ("app.py", "main.py") else [])


@st.cache_resource
def models() -> BoundedCache:
    return BoundedCache(MAX_MODEL_BYTES)


@st.cache_resource
def loads() -> Queue:
    """One model is loaded at a time, so that each finds the memory that it asks for."""
    return Queue()


@st.cache_resource
def passes() -> Queue:
    """One forward pass runs at a time, whatever its model: it has the cores for itself."""
    return Queue()


@contextmanager
def turn(place: DeltaGenerator | None = None, queue: Queue | None = None) -> Iterator[Turn]:
    """A turn for a forward pass, or of another queue; the place says how many are ahead.

    Drawing is also where Streamlit stops a run that a newer one has made stale, or whose reader is
    gone: such a run leaves the queue.

    Raises
    ------
    BusyError
        When too many are waiting for theirs.
    """
    place = place or st.empty()
    queue = queue or passes()
    with queue.turn(lambda ahead: place.progress(0.0, f"{ahead} ahead of you")) as mine:
        place.empty()
        yield mine


def load(name: str, pretrained: bool) -> "Model":
    """A model, from memory where it is there.

    With trained weights, `name` may be that of a local file in the menu.

    Raises
    ------
    ModelError
        When it cannot be loaded.
    """
    place = st.empty()

    def make() -> "Model":
        with turn(place, loads()), place, st.spinner("Loading the model …"):
            return _load(name, pretrained)

    model = models().get(
        (name, pretrained),
        make,
        lambda made: sum(tensor.nbytes for tensor in made.module.state_dict().values()),
        lambda: place.progress(0.0, "Loading the model …"),
    )
    place.empty()
    return model


def _load(name: str, pretrained: bool) -> "Model":
    from vitviz import load_model
    from vitviz.zoo import leave_cores_free

    leave_cores_free()
    architecture, file = options().checkpoints.get(name, (name, None))
    checkpoint = file if pretrained else None
    model = load_model(architecture, pretrained=pretrained, checkpoint=checkpoint)
    _settle("timm" in sys.modules)
    return model


@st.cache_resource
def _settle(with_timm: bool) -> None:
    """Once for torch, and once for timm: take what came with them out of the garbage collection.

    Streamlit collects after every run, and to walk through their objects took longer than the run.
    """
    gc.collect()
    gc.freeze()
    atexit.register(gc.unfreeze)  # else libraries complain at the end of what was not freed


def model_names() -> list[str]:
    """What the menu offers; where nobody may download, what is on disk.

    One shipped model is always among them: it can be shown where no other can.
    """
    names = _allowed_names()
    if not downloads.allowed():
        marks = weights_marks()
        names = [name for name in names if marks.get(name, ON_DISK) == ON_DISK]
    return names


def missing(name: str | None) -> str | None:
    """What to say of a model that a link asks for, and that only its weights keep off the menu."""
    if name in model_names() or name not in _allowed_names():
        return None
    return (
        f"{name} is not on this server, which downloads nothing for its visitors: whoever runs it "
        f"can have it with `vitviz fetch {name}`."
    )


def _allowed_names() -> list[str]:
    """What the operator allows: the files on the command line first behind the shipped models."""
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
    """The model of the menu that is there without a network."""
    from vitviz.checkpoints import shipped_names

    return next(name for name in _allowed_names() if name in shipped_names())


def families() -> dict[str, str]:
    """Of which family each model of timm in the menu is."""
    from vitviz.zoo import catalogue

    return {entry.name: entry.family for entry in catalogue() if not entry.shipped}


def weights_marks() -> dict[str, str]:
    """What the menu says of the trained weights of timm's models: on disk, or how large."""
    from vitviz.zoo import catalogue

    return {
        entry.name: ON_DISK if entry.on_disk else f"↓ {entry.size:.0f} MB"
        for entry in catalogue()
        if not entry.shipped
    }


@st.cache_resource
def samples() -> dict[str, str]:
    """File stem and subject of each sample picture."""
    from vitviz.checkpoints import assets

    with (assets() / "samples" / "LICENCES.csv").open(encoding="utf-8", newline="") as file:
        return {row["file"].rsplit(".", 1)[0]: row["subject"] for row in csv.DictReader(file)}


@st.cache_resource
def sample(name: str) -> Picture:
    from vitviz.checkpoints import assets

    data = (assets() / "samples" / f"{name}.jpg").read_bytes()
    return _open(f"sample: {samples()[name]}", data)


@st.cache_resource
def decodings() -> Queue:
    """One file is decoded at a time: many at once would need the memory of all."""
    return Queue()


def _open(name: str, data: bytes) -> Picture:
    from vitviz import open_image

    with decodings().turn(lambda ahead: None):  # to draw here could stop the run and lose the file
        return Picture(name, open_image(data), hashlib.sha256(data).hexdigest())


def receive(name: str, data: bytes) -> None:
    """Take a picture; a bad one leaves a sentence, and the last good picture stays."""
    from vitviz import ImageError

    try:
        st.session_state.uploaded = _open(name, data)
    except ImageError as error:
        st.session_state.upload_error = str(error)
    else:
        settings.change("picture", UPLOAD)
        st.session_state.upload_error = None


def receive_file(widget: str) -> None:
    """Take what an uploader or the camera holds; taken back, nothing is left to complain about."""
    file = st.session_state[widget]
    if isinstance(file, UploadedFile):
        receive(file.name, file.getvalue())
    else:  # none, or one that the server no longer has
        st.session_state.upload_error = None


def picture(name: str) -> Picture:
    uploaded: Picture | None = st.session_state.get("uploaded")
    return uploaded if name == UPLOAD and uploaded is not None else sample(name)


def capture(model: "Model", picture: Picture) -> "Activations":
    """The capture of one picture, from the cache where it is there.

    Raises
    ------
    ModelError
        When it needs more memory than there is, or holds what is no finite number.
    """
    import vitviz
    from vitviz.activations import check_finite

    place = st.empty()

    def make() -> "Activations":
        with turn(place):
            begun = time.monotonic()

            def progress(block: int, of: int) -> None:
                # Drawing is also where a stale run is stopped.
                if time.monotonic() - begun > 0.5:
                    place.progress(block / of, f"Layer {block + 1} of {of}")

            return vitviz.capture(model, picture.image, progress=progress)

    acts = captures().get(
        (model.name, model.weights, picture.digest),
        make,
        lambda made: made.nbytes,
        lambda: place.progress(0.0, "Somebody has asked for the same, and it is being made"),
    )
    place.empty()
    check_finite(model, acts)
    return acts


def measurements(view: View) -> "Measurements":
    """Distance, entropy, prefix mass, attention and rollout of CLS, from the cache if there."""
    from vitviz import inspection

    def make() -> "Measurements":
        return inspection.measurements(
            view.acts.attention_layers(),
            grid=view.acts.grid,
            patch_size=view.acts.patch_size,
            num_prefix_tokens=view.acts.num_prefix_tokens,
        )

    def size(made: "Measurements") -> int:
        fields = (made.distance, made.entropy, made.prefix_mass, made.query_attention, made.rollout)
        return sum(array.nbytes for array in fields)

    return captures().get((*view.key, "measurements"), make, size)


def distances(view: View) -> tuple[list[np.ndarray], np.ndarray]:
    """Mean attention distance of every layer's heads, and of equal sharing in every layer.

    Pixels of the model's input; NaN where no patch looks at a patch.
    """
    from vitviz import inspection

    acts = view.acts
    if all_to_all(acts.layers):
        equal = inspection.uniform_distance(acts.grid, acts.patch_size)
        return list(measurements(view).distance), np.full(acts.depth, equal)

    def make() -> tuple[list[np.ndarray], np.ndarray]:
        found, shared = [], []
        for layer in range(acts.depth):
            windows = list(acts.windows(layer))
            found.append(inspection.windowed_distance(windows))
            # A shifted window holds patches that must not meet: their scores get -100 first.
            alike = [(inspection.allowed_pairs(a)[None], q, k) for a, q, k in windows]
            shared.append(inspection.windowed_distance(alike)[0])
        return found, np.array(shared)

    return captures().get(
        (*view.key, "distances by layer"), make, lambda made: 8 * sum(map(len, made[0]))
    )


def answer(view: View, edits: "Sequence[Edit]") -> tuple[np.ndarray, np.ndarray]:
    """Probabilities (K,) and logit lens (depth + 1, K) of an experiment, from the cache if there.

    Raises
    ------
    ModelError
        When the model cannot answer with these edits.
    """
    import vitviz
    from vitviz import intervention

    def make() -> tuple[np.ndarray, np.ndarray]:
        if not edits:
            acts = view.acts
        else:
            with turn():
                acts = vitviz.capture(view.model, view.picture.image, edits=edits)
        assert acts.probabilities is not None
        return acts.probabilities, intervention.logit_lens(view.model, acts)

    key = (*view.key, "answer", *(_identity(edit) for edit in edits))
    return captures().get(key, make, lambda made: sum(array.nbytes for array in made))


def _identity(edit: "Edit") -> Hashable:
    values = (v.tobytes() if isinstance(v, np.ndarray) else v for v in vars(edit).values())
    return (type(edit).__name__, *values)


def experiment(
    view: View,
    called: tuple[Hashable, ...],
    make: Callable[[Callable[[int, int], None]], T],
) -> T:
    """What an experiment of many passes finds, under a progress bar and a button that cancels it.

    Parameters
    ----------
    called : what the experiment depends on, beside the model and the picture
    make : makes it, calling its argument as progress(done, of) before each pass
    """
    place = st.empty()

    def made() -> T:
        with turn() as mine:

            def progress(done: int, of: int) -> None:
                # Drawing is also where Streamlit stops a stale run, and Cancel makes it stale.
                words = f"Pass {done + 1} of {of}"
                bar.progress(done / of, words)
                mine.give_way(
                    lambda ahead: bar.progress(done / of, f"{words} · {ahead} ahead of you")
                )

            return make(progress)

    with place.container():
        bar = st.progress(0.0)
        st.button("Cancel", key=f"cancel {called[0]}", icon=":material/cancel:")
    found = captures().get(
        (*view.key, *called),
        made,
        lambda found: getattr(found, "nbytes", 1000),
        lambda: bar.progress(0.0, "Somebody has asked for the same, and it is being made"),
    )
    place.empty()
    return found
