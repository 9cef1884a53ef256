"""`capture` and `captures`: record one forward pass of a picture or of a batch, with edits."""

import copy
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..common import Progress
from ..common.images import Placement, reduce_picture
from ..common.language import Message, reason_of
from ..common.malloc import reuse_freed_memory
from ..model import Model
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.memory import require_memory
from ..model.origin import Origin
from .activations import Activations, check_index, plain_norm, read_only
from .batches import Arena
from .edits import DropPatches, Edit, FillPatches, MuteHeads, SwapTokens, fill_patches
from .recorder import AttentionRecorder

LARGE = 1 << 26  # bytes from which a capture is copied into an arena


def capture(
    model: Model,
    image: Picture,
    *,
    picture: Picture | None = None,
    edits: Sequence[Edit] = (),
    progress: Progress | None = None,
) -> Activations:
    """Run one picture through the model and record the attention and tokens of every layer.

    Parameters
    ----------
    model : Model
        May be shared by any number of threads.
    image : PIL.Image, bytes, path or Tensor
        Upright, as `vitviz.open_image` returns it, which is applied to bytes and paths. A tensor is
        a prepared input: floats of shape (channels, height, width) as the model takes them, for
        example from a DataLoader. Models of other than 1 or 3 channels take only tensors.
    picture : PIL.Image, bytes or path, optional
        The picture to show for a prepared input. By default mean and std are undone if the input
        has 1 or 3 channels, else its first channel is shown. If the model's own preprocessing turns
        this picture into the input, maps lie on its crop, else on the whole picture.
    edits : sequence of MuteHeads, DropPatches, FillPatches, SwapTokens
        Changes made in this pass alone.
    progress : callable, optional
        Called as progress(block, of) before each block; an exception that it raises stops the pass.

    Returns
    -------
    Activations

    Raises
    ------
    ModelError
        When the module is not ready to be watched (for example in training mode), an edit or a
        prepared input does not fit it, it fails on the picture, or the capture does not fit into
        memory.
    ImageError
        When the bytes or the file are not a picture, or a grey PIL image is deeper than 8 bits.
    TypeError
        When the picture has none of these types.

    Notes
    -----
    Within `torch.autocast` the model runs as it would there, with the same logits. Attention and
    measurements are then computed from its values in single precision at least.
    """
    edits = tuple(edits)
    check_edits(edits, model)
    (acts,) = _capture_batch(model, [prepare(model, image, picture)], edits, progress)
    return acts


def captures(
    model: Model,
    pictures: Iterable[Picture],
    *,
    picture: Iterable[Picture] | None = None,
    batch_size: int = 16,
    edits: Sequence[Edit] = (),
) -> Iterator[Activations]:
    """Capture many pictures, a batch of them in one forward pass.

    Parameters
    ----------
    model : Model
    pictures : iterable of PIL.Image, bytes, path or Tensor
        As in `capture`. Read one batch at a time.
    picture : iterable of PIL.Image, bytes or path, optional
        The picture to show for each prepared input, as in `capture`.
    batch_size : int
        Pictures in one pass. The last batch may be smaller.
    edits : sequence of MuteHeads, DropPatches, FillPatches, SwapTokens
        As in `capture`, the same for every picture.

    Yields
    ------
    Activations
        One per picture, in their order: what `capture` returns except for rounding, as products of
        larger matrices are summed in another order. Each is proved on its own picture.
        `acts.measure()` of one measures the whole batch. The captures of a batch share their
        memory, which is freed with the last of them.

    Raises
    ------
    ModelError, ImageError, TypeError
        As `capture`, for the batch that is read.
    ValueError
        When `batch_size` is less than 1.
    """
    if batch_size < 1:
        raise ValueError(f"Expected a batch_size of at least 1, got {batch_size}.")
    edits = tuple(edits)
    check_edits(edits, model)
    remaining = iter(pictures)
    if picture is not None:
        pairs = zip(pictures, picture, strict=True)
        remaining = (prepare(model, each, own_picture) for each, own_picture in pairs)
    while some := list(islice(remaining, batch_size)):
        yield from _capture_batch(model, some, edits)


def edited_captures(model: Model, image: Picture, edits: Iterable[Edit]) -> Iterator[Activations]:
    """Capture a picture with each edit alone, when it is reached.

    The picture is preprocessed only once, which may take longer than a pass of a small model.
    """
    prepared_input = None
    for edit in edits:
        check_edits([edit], model)
        prepared_input = prepare(model, image) if prepared_input is None else prepared_input
        yield from _capture_batch(model, [prepared_input], (edit,))


def _capture_batch(
    model: Model,
    pictures: Sequence[Picture],
    edits: tuple[Edit, ...] = (),
    progress: Progress | None = None,
) -> list[Activations]:
    with model.assume_unchanged():
        state = model.weights_state
        size = check_memory(model, len(pictures))
        images = [prepare(model, each) for each in pictures]
        x = model.to_device(torch.stack([fill_patches(model, each.x, edits) for each in images]))
        reuse_freed_memory(2 * size)
        # A device's allocator does not fragment, and would commit the whole arena at once.
        large = size > LARGE * len(images) and model.device.type == "cpu"
        arena = Arena(size, x.dtype) if large else None
        recorder = AttentionRecorder(model, len(images), arena, edits, progress)
        output = run_recorded(model, x, recorder)
        with torch.inference_mode():
            batch = recorder.batch()
            final_norm, provenance = _copy_norm(model.final_norm), model.provenance
            kinds = [*dict.fromkeys(type(edit).__name__ for edit in edits)]
            changed = Message(", edited by {edits}", edits=", ".join(kinds)) if kinds else ""
            photos = [reduce_picture(image.picture) for image in images]
            return [
                Activations(
                    _known_labels=model.labels,
                    read_tokens=model.read_tokens,
                    _crops=_crops(model, image.placement),
                    _offsets=model.offsets,
                    output=read_only(output[number]),
                    _headless=not model.has_head,
                    answers=model.answers,
                    _calls=batch.calls_of(number),
                    _windows=tuple(site.windows for site in model.sites),
                    _stream=tuple(z[number] for z in recorder.stream),
                    _after_attention=tuple(
                        None if z is None else z[number] for z in recorder.after_attention
                    ),
                    patches=recorder.patches,
                    _final_norm=final_norm,
                    _arena=arena,
                    photo=photo,
                    picture_size=image.picture.size,
                    provenance=provenance + image.note + changed,
                    batch=batch,
                    _layers=batch.layers,
                    _origin=Origin(
                        model=model.name,
                        weights=model.weights,
                        state=state,
                        source=image.source,
                        picture=image.picture,
                        photo=photo,
                        edits=kinds,
                    ),
                    _number=number,
                )
                for number, (image, photo) in enumerate(zip(images, photos, strict=True))
            ]


def _copy_norm(norm: nn.Module | None) -> nn.Module | None:
    """Copy a norm with its weights; of a LayerNorm `deepcopy` would take ten times as long."""
    if not isinstance(norm, nn.LayerNorm):
        return copy.deepcopy(norm)
    weight, bias = (None if each is None else each.clone() for each in (norm.weight, norm.bias))
    return plain_norm(weight, bias, norm.eps, norm.normalized_shape)


def check_memory(model: Model, pictures: int) -> int:
    """Refuse a capture that does not fit into memory; return its bytes otherwise."""
    size = pictures * model.capture_bytes
    what = Message("A capture of {model}", model=model.name)
    if pictures > 1:
        what = Message(
            "A capture of {count} pictures together of {model}", count=pictures, model=model.name
        )
    require_memory(size, what, model.device)
    return size


def run_recorded(
    model: Model,
    x: Tensor,
    recorder: AttentionRecorder,
    module: nn.Module | None = None,
    first: int = 0,
) -> Tensor:
    """Return the output of a recorded pass; with a module, of one that begins at layer `first`."""
    try:
        with (
            torch.inference_mode(recorder.inference),
            model.recording(recorder, recorder.muted, first=first),
        ):
            output = model.run(x, module)
    except Exception as error:
        if recorder.in_progress or isinstance(error, ModelError):
            raise
        raise ModelError(
            "{model} could not compute this picture: {reason}.",
            model=model.name,
            reason=reason_of(error),
        ) from error
    finally:
        recorder.stop()
    for layer in recorder.muted.keys() - recorder.muted_layers:
        raise ModelError(
            "Heads of {layer} cannot be muted: no hook reaches its output projection.",
            layer=model.layers[layer].name,
        )
    return output


def check_finite(model: Model, acts: Activations) -> None:
    """Refuse a capture whose outputs are NaN or infinite.

    `layers` refuses only those with such values; this refuses the whole model.

    Raises
    ------
    ModelError
        When the logits or the last tokens are not finite.
    """
    if not is_finite(acts):
        raise ModelError(
            "{model} ({weights}) produced NaN or infinite values for this picture. Check that "
            "the weights are intact and belong to this architecture.",
            model=model.name,
            weights=model.weights,
        )


def is_finite(acts: Activations) -> bool:
    """Whether the logits and the last tokens hold neither NaN nor infinite values."""
    outputs = [acts.tokens(acts.depth)]  # NaN and infinity stay in the residual stream
    if acts.logits is not None:
        outputs.append(acts.logits)
    return all(np.isfinite(output).all() for output in outputs)


def check_edits(edits: Sequence[Edit], model: Model) -> None:
    patches = math.prod(model.layers[0].query_grid)
    for edit in edits:
        if isinstance(edit, MuteHeads):
            for layer, head in edit.heads:
                check_index(layer, len(model.layers), "layer", ModelError)
                check_index(head, model.layers[layer].num_heads, "head", ModelError)
                if model.sites[layer].mixing is not None:
                    raise ModelError(
                        "Heads of {layer} cannot be muted: it mixes them with one another.",
                        layer=model.layers[layer].name,
                    )
        elif isinstance(edit, SwapTokens):
            if model.sites[0].layout != "tokens" or model.layers[-1].stage:
                raise ModelError(
                    "Tokens of {model} cannot be swapped: it keeps them as a map.",
                    model=model.name,
                )
            for pair in edit.pairs:
                for patch in pair:
                    check_index(patch, patches, "patch", ModelError)
        elif isinstance(edit, DropPatches):
            if model.positional_attention and np.any(edit.mask):
                raise ModelError(
                    "Patches of {model} cannot be dropped: its attention depends on the place of "
                    "every patch.",
                    model=model.name,
                )
        elif not isinstance(edit, FillPatches):
            raise ModelError(
                "Unknown edit {kind}. Known: MuteHeads, DropPatches, FillPatches, SwapTokens.",
                kind=type(edit).__name__,
            )


def _crops(model: Model, placement: Placement) -> tuple[tuple[float, float, float, float], ...]:
    """Return by layer the box of its grid in the picture; it need not fill the input."""
    left, top, right, bottom = placement.crop
    height, width = model.preprocess.input_size
    crops = []
    x, y = (right - left) / width, (bottom - top) / height  # pixels of the picture per input pixel
    for layer, (down, over) in zip(model.layers, model.offsets, strict=True):
        (rows, cols), (high, wide) = layer.query_grid, layer.patch_side
        x0, y0 = left + over * x, top + down * y
        crops.append((x0, y0, x0 + cols * wide * x, y0 + rows * high * y))
    return tuple(crops)


def muted_answers(
    model: Model,
    pictures: Sequence[Picture],
    heads: Iterable[tuple[int, int]],
    values: Mapping[tuple[int, int], np.ndarray],
) -> Iterator[np.ndarray]:
    """Yield the model's outputs for some pictures, in one batch, with each head muted alone.

    The outputs have the same bits as captures with the edit `MuteHeads`, and come sooner: each pass
    begins at the layer of its head, as the blocks before it return the same for all heads.

    Parameters
    ----------
    model : Model
    pictures : sequence of PIL.Image, bytes, path or Tensor, as in `capture`
    heads : iterable of (layer, head)
        Each is read just before its pass.
    values : mapping of (layer, head) to ndarray of shape (tokens, head_dim)
        The output that replaces a head's own, see `MuteHeads`; zeros if left out.

    Yields
    ------
    ndarray of shape (pictures, outputs)

    Raises
    ------
    ModelError, ImageError
        As `capture`; and when the attention of a head's layer cannot be read, as then the head
        cannot be muted either.
    """
    check_memory(model, len(pictures))
    x = model.to_device(torch.stack([prepare(model, each).x for each in pictures]))
    outputs: list[Any] = []  # by each block
    for layer, head in heads:
        edit = MuteHeads([(layer, head)], values)
        check_edits([edit], model)
        if not outputs:
            run_recorded(model, x, _BlockOutputs(model, len(pictures), outputs))
        recorder = AttentionRecorder(model, len(pictures), edits=[edit])
        module = model.beginning_at(layer, outputs)  # None where a whole pass is needed
        output = run_recorded(model, x, recorder, module, 0 if module is None else layer)
        if refusal := recorder.batch().layers[layer].refusal:
            raise ModelError(refusal)
        yield read_only(output)


class _BlockOutputs(AttentionRecorder):
    """Collect what each block returns."""

    def __init__(self, model: Model, pictures: int, outputs: list[Any]) -> None:
        super().__init__(model, pictures)
        self.returned = outputs

    def on_block_output(self, layer: int, tokens: Tensor, output: Any) -> None:
        super().on_block_output(layer, tokens, output)
        self.returned.append(output)
