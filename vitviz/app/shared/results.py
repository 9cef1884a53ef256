"""Captures, measurements and experiments, computed once for all sessions."""

import hashlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, floor
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import streamlit as st
from streamlit.delta_generator import DeltaGenerator

from vitviz.app.shared.cache import LRUCache
from vitviz.app.shared.pictures import Picture, sample, samples
from vitviz.app.shared.queue import BusyError, current_turn, let_pages_be_drawn, turn
from vitviz.app.shared.started import options
from vitviz.app.shared.view import View, model_key
from vitviz.common.language import Message, tr
from vitviz.web.token_map import matching_patch

if TYPE_CHECKING:
    from PIL import Image

    from vitviz import Activations, Model
    from vitviz.activations import Edit
    from vitviz.activations.activations import Of
    from vitviz.common.images import Crop
    from vitviz.inspection import Measurements, Sinks
    from vitviz.model.inputs import PreparedInput

T = TypeVar("T")
MAX_MESSAGE_BYTES = 64_000_000  # of the maps that a page sends; Streamlit copies them five times


@st.cache_resource
def capture_cache() -> LRUCache:
    return LRUCache(options().cache * 1_000_000)


def compute(
    key: Hashable,
    make: Callable[[], T],
    *,
    bar: DeltaGenerator | None = None,
    waiting: Callable[[], object] = lambda: None,
) -> T:
    """Return a value from the cache; if it is absent, compute it by `make` in a turn of its own.

    One computation runs at a time, as its memory was checked when its turn began.
    """

    def in_turn() -> T:
        with turn(bar):
            return make()

    def let_others_go() -> None:
        mine = current_turn()
        if mine is not None:  # whoever computes the value may be waiting for this turn
            mine.give_way(lambda ahead: None)
        waiting()

    return capture_cache().get(key, in_turn, waiting=let_others_go)


def check_page(model: "Model") -> None:
    """Refuse a capture whose page would not fit into the free memory, though itself it would.

    Raises
    ------
    ModelError
        With the memory that it needs, and what is free.
    """
    from vitviz.model.memory import page_bytes, require_memory

    what = Message("A capture of {model}", model=model.name)
    require_memory(model.capture_bytes + page_bytes(model.sites), what)


def check_message(numbers: int) -> None:
    """Refuse maps that are too large for one message to the browser.

    Parameters
    ----------
    numbers : int
        How many numbers, of a byte each, the maps have that cannot be sent one by one.

    Raises
    ------
    ModelError
        With both sizes.
    """
    from vitviz import ModelError

    if numbers > MAX_MESSAGE_BYTES:
        raise ModelError(
            "The maps of one layer take {size:.0f} MB, and a page sends at most {most:.0f} MB. "
            "Choose a smaller input.",
            size=numbers / 1e6,
            most=MAX_MESSAGE_BYTES / 1e6,
        )


def prepare_picture(model: "Model", picture: Picture) -> "PreparedInput":
    """Return the input of a capture that visitors share, who may give one file different names."""
    from vitviz.model.inputs import prepare
    from vitviz.model.origin import PictureSource

    source = PictureSource("file", sha256=picture.digest)
    return replace(prepare(model, picture.image), source=source)


def capture_picture(model: "Model", picture: Picture) -> "Activations":
    """Return the capture of one picture, cached.

    Raises
    ------
    ModelError
        When it needs more memory than is free, or holds NaN or infinite values.
    """
    import vitviz
    from vitviz.activations import check_finite

    place = st.empty()

    def make() -> "Activations":
        start = time.monotonic()

        def progress(block: int, of: int) -> None:
            # Streamlit stops a stale run when it next draws.
            if time.monotonic() - start > 0.5:
                place.progress(block / of, tr("Layer {block} of {of}", block=block + 1, of=of))

        check_page(model)
        return vitviz.capture(model, prepare_picture(model, picture), progress=progress)

    acts = compute(
        (*model_key(model), picture.digest),
        make,
        bar=place,
        waiting=lambda: place.progress(
            0.0, tr("Another visitor has asked for the same; it is being computed")
        ),
    )
    place.empty()
    check_finite(model, acts)
    return acts


def of_samples(
    model: "Model", names: Sequence[str] = ()
) -> "Iterator[tuple[Picture, Activations]]":
    """Yield the named sample pictures, or all, with their captures, under a progress bar."""
    wanted = list(names or samples())
    place = st.empty()
    for done, name in enumerate(wanted):
        place.progress(
            done / len(wanted),
            tr("Picture {done} of {wanted}: {name}", done=done + 1, wanted=len(wanted), name=name),
        )
        picture = sample(name)
        yield picture, capture_picture(model, picture)
    place.empty()


def reduced_photo(view: View) -> "Image.Image":
    """Return the picture under maps: the photo, or with `seen` the model's input on it."""
    picture = view.picture.image
    if not view.style.seen:
        return picture

    def make() -> "Image.Image":
        from PIL import Image

        from vitviz.activations import edited_input

        pixels = Image.fromarray(edited_input(view.model, picture, [])[..., :3])
        left, top, right, bottom = (round(edge) for edge in view.acts.crop)
        copy = picture.copy()
        size = (right - left, bottom - top)
        copy.paste(pixels.resize(size, Image.Resampling.NEAREST), (left, top))
        return copy

    return compute((*view.key, "seen"), make)


def seen_part(view: View) -> "tuple[Image.Image, Crop]":
    """Return the part of the picture that the model saw, and where the grid lies in it."""
    left, top, right, bottom = view.acts.crop
    box = (floor(left), floor(top), ceil(right), ceil(bottom))
    crop = (left - box[0], top - box[1], right - box[0], bottom - box[1])
    return reduced_photo(view).crop(box), crop


def encoded_photo(view: View) -> str:
    """Return that picture as a data URL."""
    from vitviz.web.token_map import photo_url

    key = view.key if view.style.seen else (view.picture.digest,)
    return compute((*key, "photo"), lambda: photo_url(reduced_photo(view)))


def measure(view: View) -> "Measurements":
    """Return `inspection.measurements` of the capture, cached."""
    from vitviz import inspection

    return compute((*view.key, "measurements"), lambda: inspection.measurements(view.acts))


def distances(view: View) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the attention distance of every layer's heads, and of equal sharing per layer.

    Pixels of the model's input; NaN where no patch looks at a patch.
    """
    from vitviz import inspection

    acts = view.acts
    if acts.all_to_all:
        equal = inspection.uniform_distance(acts.grid, acts.patch_size)
        heads = (layer.num_heads for layer in acts.layers)
        distance = [row[:count] for row, count in zip(measure(view).distance, heads, strict=True)]
        return distance, np.full(acts.depth, equal)

    def make() -> tuple[list[np.ndarray], np.ndarray]:
        by_layer, equal = [], []
        for layer in range(acts.depth):
            windows = list(acts.windows(layer))
            by_layer.append(inspection.windowed_distance(windows))
            # In a shifted window some pairs are masked: -100 is added to their scores.
            alike = [(inspection.allowed_pairs(a)[None], q, k) for a, q, k in windows]
            equal.append(inspection.windowed_distance(alike)[0])
        return by_layer, np.array(equal)

    return compute((*view.key, "distances by layer"), make)


def final_tokens(view: View, layer: int) -> np.ndarray:
    """Return all tokens after a layer and the final LayerNorm: (tokens, D)."""
    return view.acts.tokens(layer + 1, normalised=True)


def model_input(view: View) -> Any:
    """Return the model's input, a tensor (C, H, W), cached without the picture it was made of."""
    from vitviz.model.inputs import prepare

    return compute((*view.key, "input"), lambda: prepare(view.model, view.picture.image).x)


def shares_of_query(view: View, matrix: np.ndarray, *, row: bool) -> np.ndarray:
    """Return the query's row or column of a matrix (heads, tokens, tokens)."""
    looking = matrix if row else matrix.swapaxes(1, 2)
    shares: np.ndarray = (
        looking[:, len(view.prefix) :].mean(axis=1)
        if view.query is None
        else looking[:, view.query]
    )
    return shares


def row_shares(view: View, counts: "Of", layer: int) -> np.ndarray:
    """Return what a map counts of a layer, each row as shares that sum to 1: (h, n, m).

    Raises
    ------
    ModelError
        As `Activations.attention`, `values` and `carried`.
    """
    if counts == "weights":
        return view.acts.attention(layer)

    def make() -> np.ndarray:
        if counts == "output":
            matrix = view.acts.carried(view.model, layer).by_head
        else:
            lengths = np.linalg.norm(view.acts.values(layer), axis=2)
            matrix = view.acts.attention(layer) * lengths[:, None]
        shares: np.ndarray = matrix / np.maximum(matrix.sum(axis=2, keepdims=True), 1e-30)
        return shares.astype(np.float32)

    return compute((*view.key, counts, layer), make)


def find_sinks(view: View, layer: int) -> "Sinks":
    """Return the no-op sinks and the broadcasts of a layer, cached.

    Raises
    ------
    ModelError
        As `Activations.sinks`.
    """
    return compute((*view.key, "sinks", layer), lambda: view.acts.sinks(view.model, layer))


def query_shares(view: View, counts: "Of" = "weights") -> np.ndarray:
    """Return the query's row or column of A (heads, tokens), or of the patches (heads, patches).

    Prefix tokens come first, where all attention is in one matrix. There `counts` may be something
    else than A.
    """
    acts, described = view.acts, view.acts.layers[view.layer]
    row = view.style.direction == "row" or described.kind == "class"
    if counts != "weights":
        return shares_of_query(view, row_shares(view, counts, view.layer), row=row)
    if described.kind in ("global", "class"):
        return shares_of_query(view, acts.attention(view.layer), row=row)
    query = view.query_patch
    if query is not None and not row:  # the key that covers this patch
        at, to = (
            (grid, acts.crop_of(view.layer, keys=keys))
            for grid, keys in ((described.query_grid, False), (described.key_grid, True))
        )
        query = matching_patch(query, at, to)
    maps = acts.attention_map(view.layer, query, direction="row" if row else "column")
    return maps.reshape(len(maps), -1)


def answer(view: View, edits: "Sequence[Edit]") -> tuple[np.ndarray, np.ndarray]:
    """Return probabilities (K,) and logit lens (depth + 1, K) after edits, cached.

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
            acts = vitviz.capture(view.model, view.picture.image, edits=edits)
        assert acts.probabilities is not None
        return acts.probabilities, intervention.logit_lens(view.model, acts)

    key = (*view.key, "answer", *(_identity(edit) for edit in edits))
    return compute(key, make)


def _identity(edit: "Edit") -> Hashable:
    return (type(edit).__name__, *map(_content, vars(edit).values()))


def _content(value: Any) -> Hashable:
    """Return a hashable value that is equal if the contents of arrays are."""
    if isinstance(value, np.ndarray):
        return hashlib.sha256(value.tobytes()).digest()
    if isinstance(value, Mapping):
        return tuple((key, _content(one)) for key, one in value.items())
    content: Hashable = value
    return content


def experiment(
    view: View,
    key: tuple[Hashable, ...],
    make: Callable[[Callable[[int, int], None]], T],
) -> T:
    """Return the result of an experiment of many passes, under a progress bar with Cancel.

    Parameters
    ----------
    key : what the experiment depends on, beside the model and the picture
    make : makes it, calling its argument as progress(done, of) before each pass
    """
    place = st.empty()

    def compute() -> T:
        with turn(patient=True) as mine:

            def progress(done: int, of: int) -> None:
                # Streamlit stops a stale run when it next draws; Cancel makes this run stale.
                words = tr("Pass {done} of {of}", done=done + 1, of=of)
                bar.progress(done / of, words)
                mine.give_way(
                    lambda ahead: bar.progress(
                        done / of, tr("{words} · {ahead} ahead of you", words=words, ahead=ahead)
                    )
                )

            return make(progress)

    def waiting() -> None:
        let_pages_be_drawn()
        words = tr("Another visitor has asked for the same; it is being computed")
        bar.progress(0.0, words)

    with place.container():
        bar = st.progress(0.0)
        st.button(tr("Cancel"), key=f"cancel {key[0]}", icon=":material/cancel:")
    try:
        result = capture_cache().get((*view.key, *key), compute, waiting=waiting)
    except BusyError:
        place.empty()
        raise
    place.empty()
    return result
