"""`capture` and `captures`: one forward pass of a picture or a batch, recorded.

Edits are applied on the way.
"""

import copy
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..families import ModelError
from ..images import open_image, reduced
from ..language import Message
from ..memory import check
from ..model import Model
from .activations import Activations
from .arena import Arena
from .batches import Batch
from .edits import DropPatches, Edit, FillPatches, MuteHeads, SwapTokens, filled
from .forward_pass import read_only
from .maps import Query, checked
from .watch import Watch

Picture = Image.Image | bytes | bytearray | memoryview | str | os.PathLike[str]
_FILE = (bytes, bytearray, memoryview, str, os.PathLike)

if TYPE_CHECKING:
    from ..notebook import Shown, View
    from ..notebook.widget import Widget

LARGE = 1 << 26  # bytes of a capture that is copied into an arena


def capture(
    model: Model,
    image: Picture,
    *,
    edits: Sequence[Edit] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Activations:
    """Run one picture through the model and record the attention and tokens of every layer.

    Parameters
    ----------
    model : Model
        May be shared by any number of threads.
    image : PIL.Image, bytes or path
        Upright, as `vitviz.open_image` returns it; of bytes and paths it makes one.
    edits : sequence of MuteHeads, DropPatches, FillPatches, SwapTokens
        Changes made in this pass alone.
    progress : callable, optional
        Called as progress(block, of) before each block; what it raises stops the pass.

    Returns
    -------
    Activations

    Raises
    ------
    ModelError
        When the module is not ready to be watched (in training mode, say), an edit does not fit
        it, it fails on the picture, or the capture does not fit into memory.
    ImageError
        When the bytes or the file are no picture.
    TypeError
        When the picture is none of these.
    """
    edits = tuple(edits)
    check_edits(edits, model)
    (acts,) = _captured(model, [image], edits, progress)
    return acts


def captures(
    model: Model,
    pictures: Iterable[Picture],
    *,
    batch_size: int = 16,
    edits: Sequence[Edit] = (),
) -> Iterator[Activations]:
    """`capture` of many pictures, several of them in one forward pass.

    Parameters
    ----------
    model : Model
    pictures : iterable of PIL.Image, bytes or path
        Read as they are needed, a batch at a time.
    batch_size : int
        Pictures in one pass. The last batch may be smaller.
    edits : sequence of MuteHeads, DropPatches, FillPatches, SwapTokens
        As of `capture`, the same in every picture.

    Yields
    ------
    Activations
        One a picture, in their order: what `capture` returns, but for rounding, as products of
        larger matrices are summed in another order. Each proves itself on its own picture.
        `acts.measure()` measures the whole batch when the first of it is asked for. The captures
        of one batch share their memory, which is freed when the last of them is let go.

    Raises
    ------
    ModelError, ImageError, TypeError
        As `capture`, for the batch that is read.
    ValueError
        When the batches are empty.
    """
    if batch_size < 1:
        raise ValueError(f"Expected batches of at least one picture, got {batch_size}.")
    edits = tuple(edits)
    check_edits(edits, model)
    remaining = iter(pictures)
    while some := list(islice(remaining, batch_size)):
        yield from _captured(model, some, edits)


def edited_captures(model: Model, image: Picture, edits: Iterable[Edit]) -> Iterator[Activations]:
    """`capture` with each of the edits alone, made when it is reached.

    The picture is fitted to the model's input once: a small model may need less time than that.
    """
    (image,) = opened([image])
    x = None
    for edit in edits:
        check_edits([edit], model)
        x = model.preprocess(image) if x is None else x
        yield from _captured(model, [image], (edit,), inputs=[x])


def _captured(
    model: Model,
    pictures: Sequence[Picture],
    edits: tuple[Edit, ...] = (),
    progress: Callable[[int, int], object] | None = None,
    inputs: Iterable[Tensor] | None = None,
) -> list[Activations]:
    images = opened(pictures)
    size = check_memory(model, len(images))
    inputs = map(model.preprocess, images) if inputs is None else inputs
    x = model.placed(torch.stack([filled(model, each, edits) for each in inputs]))
    # A device's own allocator keeps together what is kept, and would take all of an arena at once.
    large = size > LARGE * len(images) and model.device.type == "cpu"
    arena = Arena(size, x.dtype) if large else None
    watch = Watch(model, len(images), arena, edits, progress)
    output = output_of(model, x, watch)
    with torch.inference_mode():
        layers, read = watch.proved()
        batch = Batch(
            layers=layers,
            read=read,
            pictures=len(images),
            patches=watch.patches,
            read_tokens=model.read_tokens,
        )
        final_norm, provenance = copy.deepcopy(model.final_norm), model.provenance
        return [
            Activations(
                layers=batch.layers_of(number),
                _known_labels=model.labels,
                _embeds=model.embeds,
                read_tokens=model.read_tokens,
                _crops=_crops(model, image),
                _offsets=model.offsets,
                output=read_only(output[number]),
                _headless=not model.parts.outputs,
                activation=model.activation,
                _calls=batch.calls_of(number),
                _windows=tuple(site.windows for site in model.sites),
                _stream=tuple(z[number] for z in watch.stream),
                _after_attention=tuple(
                    None if z is None else z[number] for z in watch.after_attention
                ),
                patches=watch.patches,
                _final_norm=final_norm,
                _arena=arena,
                photo=reduced(image),
                picture_size=image.size,
                provenance=provenance,
                batch=batch,
                _number=number,
            )
            for number, image in enumerate(images)
        ]


def opened(pictures: Iterable[Picture]) -> list[Image.Image]:
    """Pictures as they are given, and those of bytes and paths read."""
    return [open_image(each) if isinstance(each, _FILE) else each for each in pictures]


def check_memory(model: Model, pictures: int) -> int:
    """Refuse a capture that does not fit into memory; its bytes where it does."""
    size = pictures * model.capture_bytes
    what = Message("A capture of {model}", model=model.name)
    if pictures > 1:
        what = Message(
            "A capture of {count} pictures together of {model}", count=pictures, model=model.name
        )
    check(size, what, model.device)
    return size


def output_of(
    model: Model, x: Tensor, watch: Watch, module: nn.Module | None = None, first: int = 0
) -> Tensor:
    """What the model gives in a pass that is watched; with a module, one that begins at `first`."""
    try:
        with torch.inference_mode(), model.watched(watch, watch.muted, first=first):
            output = model.run(x, module)
    except Exception as error:
        if watch.interrupting or isinstance(error, ModelError):
            raise
        reason = str(error).partition("\n")[0].rstrip(".") or type(error).__name__
        raise ModelError(
            "{model} could not compute this picture: {reason}.", model=model.name, reason=reason
        ) from error
    finally:
        watch.stop()
    for layer in watch.muted.keys() - watch.joined:
        raise ModelError(
            "{layer} joins its heads where no hook is heard, so none of them can be muted.",
            layer=model.layers[layer].name,
        )
    return output


def show(
    model: Model,
    image: Picture,
    *,
    view: "View" = "attention",
    layer: int | None = None,
    head: int | None = 0,
    query: Query | None = None,
) -> "Shown":
    """Capture one picture and show it in a notebook, live, as `Activations.show` does.

    Parameters
    ----------
    view : "attention" or "anatomy"
        The token map of all layers and heads, or the picture's way through the model, step by step,
        with one layer opened.
    layer, head, query
        As in `Activations.show`.

    Raises
    ------
    ModelError, ImageError, TypeError, ValueError
        As `capture` and `Activations.show`.
    """
    from ..notebook import shown

    (image,) = opened([image])
    acts, of = capture(model, image), (model, image)
    return shown(view, acts, layer=layer, head=head, query=query, of=of)


def widget(
    model: Model,
    image: Picture,
    *,
    view: "View" = "attention",
    layer: int | None = None,
    head: int | None = 0,
    query: Query | None = None,
) -> "Widget":
    """`show` as a widget: `layer`, `head` and `query` say what is chosen, and can be set.

    Anatomy says and takes its `step` too, and opens every layer. It needs a kernel, and anywidget:
    `pip install "vitviz[notebook]"`.

    Raises
    ------
    ImportError
        Without anywidget.
    ModelError, ImageError, TypeError, ValueError
        As `show`.
    """
    from ..notebook import checked
    from ..notebook.widget import AnatomyWidget, TokenMap

    image = open_image(image) if isinstance(image, _FILE) else image
    acts = capture(model, image)
    chosen = checked(acts, acts.depth - 1 if layer is None else layer, head, query, view=view)
    if view == "attention":
        return TokenMap(acts, chosen)
    return AnatomyWidget(model, image, acts, chosen)


def check_finite(model: Model, acts: Activations) -> None:
    """Refuse a capture whose outputs are NaN or infinite.

    A single layer with such values is refused when it is captured; here it is the whole model.

    Raises
    ------
    ModelError
        When the logits or the last tokens are not finite.
    """
    outputs = [acts.tokens(acts.depth)]  # NaN and infinity stay in the residual stream
    if acts.logits is not None:
        outputs.append(acts.logits)
    if not all(np.isfinite(output).all() for output in outputs):
        raise ModelError(
            "{model} ({weights}) computes values that are no finite numbers on this "
            "picture, so nothing of it is drawn: its weights are damaged or do not "
            "belong to it.",
            model=model.name,
            weights=model.weights,
        )


def check_edits(edits: Sequence[Edit], model: Model) -> None:
    patches = math.prod(model.layers[0].query_grid)
    for edit in edits:
        if isinstance(edit, MuteHeads):
            for layer, head in edit.heads:
                checked(layer, len(model.layers), "layer", ModelError)
                checked(head, model.layers[layer].num_heads, "head", ModelError)
                if model.sites[layer].mixing is not None:
                    raise ModelError(
                        "{layer} mixes its heads with one another, so none of them can be muted.",
                        layer=model.layers[layer].name,
                    )
        elif isinstance(edit, SwapTokens):
            if model.sites[0].layout != "tokens" or model.layers[-1].stage:
                raise ModelError(
                    "{model} keeps its tokens as a map, so none are swapped.", model=model.name
                )
            for pair in edit.pairs:
                for patch in pair:
                    checked(patch, patches, "patch", ModelError)
        elif isinstance(edit, DropPatches):
            if model.positional_attention and np.any(edit.mask):
                raise ModelError(
                    "The attention of {model} knows the place of every patch, so none can be "
                    "left out.",
                    model=model.name,
                )
        elif not isinstance(edit, FillPatches):
            raise ModelError("{kind} is no edit that vitviz knows.", kind=type(edit).__name__)


def _crops(model: Model, image: Image.Image) -> tuple[tuple[float, float, float, float], ...]:
    """Where the grid of patches lies in the picture, by layer; it need not fill the input."""
    left, top, right, bottom = model.preprocess.place(image).crop
    height, width = model.preprocess.input_size
    crops = []
    x, y = (right - left) / width, (bottom - top) / height  # pixels of the picture in one of input
    for layer, (down, over) in zip(model.layers, model.offsets, strict=True):
        (rows, cols), (high, wide) = layer.query_grid, layer.patch_side
        x0, y0 = left + over * x, top + down * y
        crops.append((x0, y0, x0 + cols * wide * x, y0 + rows * high * y))
    return tuple(crops)
