"""`Origin`: the weights and the picture of a capture, with their digests."""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from weakref import ref

import torch
from PIL import Image
from torch import Tensor, nn

from ..common.files import creation_record, now
from ..common.images import reduce_picture
from ..common.language import Message, mark, reason_of

_LET_GO = mark("Weights digest unknown: the model was deleted before its weights were read.")
_CHANGED = mark("Weights digest unknown: the weights were changed after the capture.")
PICTURE_LOST = mark("Picture digest unknown: the picture was changed or deleted after the capture.")
#: Keys of `Origin.record`, in this order.
_KEYS = ("versions", "date", "model", "weights", "weights_sha256", "picture", "edits", "notes")


def weights_digest(module: nn.Module) -> str:
    """Return the sha256 of the names and bytes of all parameters and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        digest.update(name.encode())
        for part in value if isinstance(value, tuple) else (value,):  # quantised: weight and bias
            digest.update(_bytes(part))
    return digest.hexdigest()


def _bytes(value: Any) -> Any:
    """Return the bytes of a tensor, or of a quantised module's setting written as text."""
    if not isinstance(value, Tensor):
        return repr(value).encode()
    values = value.dequantize() if value.is_quantized else value.detach()
    return values.cpu().contiguous().reshape(-1).view(torch.uint8).numpy()


def picture_digest(picture: bytes | Image.Image | Tensor) -> str:
    """Return the sha256 of a file's bytes, of RGB pixels, or of an input's float32 numbers."""
    if isinstance(picture, Tensor):
        picture = picture.detach().cpu().float().contiguous().numpy().tobytes()
    elif isinstance(picture, Image.Image):
        picture = picture.convert("RGB").tobytes()
    return hashlib.sha256(picture).hexdigest()


class WeightsState:
    """Identity of a module's weights at one time, without a reference to the module.

    The digest is computed at the first call, as long as the module exists with the same weights.
    Changes through `Tensor.data` are not noticed, as torch does not count them.
    """

    def __init__(self, module: nn.Module) -> None:
        self._module = ref(module)
        weights = _weights(module)
        self._weights, self._marks = [ref(each) for each in weights], [*map(_mark, weights)]
        self.parameter_count = sum(each.numel() for each in module.parameters())
        self._digest: str | None = None

    def is_current(self, module: nn.Module) -> bool:
        """Whether the module still has these weights, by their memory and torch's counters."""
        weights = _weights(module)
        return (
            module is self._module()
            and len(weights) == len(self._weights)
            and all(
                reference() is each for reference, each in zip(self._weights, weights, strict=True)
            )
            and [*map(_mark, weights)] == self._marks
        )

    def digest(self) -> tuple[str | None, str | None]:
        """Return the sha256 of the weights, or None and the reason why it is unknown."""
        if self._digest is None:
            module = self._module()
            if module is None:
                return None, _LET_GO
            if not self.is_current(module):
                return None, _CHANGED
            try:
                self._digest = weights_digest(module)
            except (AttributeError, NotImplementedError, RuntimeError, TypeError) as error:
                return None, Message(
                    "Weights digest unknown: the weights cannot be read as plain tensors ({why}).",
                    why=reason_of(error),
                )
        return self._digest, None


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the parameters and buffers of `state_dict`, in another order.

    Called for each capture: `Module.modules` would take four times as long.
    """
    weights: list[Tensor | None] = []
    parts: list[nn.Module | None] = [module]
    for part in parts:
        if part is None:
            continue
        weights += part._parameters.values()
        left_out = part._non_persistent_buffers_set
        weights += [each for name, each in part._buffers.items() if name not in left_out]
        parts += part._modules.values()
    return [each for each in weights if each is not None]


def _mark(weight: Tensor) -> tuple[int, int]:
    try:
        return weight.data_ptr(), weight._version
    except RuntimeError:  # inference tensors have no version, some subclasses no memory
        return 0, 0


@dataclass(frozen=True)
class PictureSource:
    """Source of a picture.

    Attributes
    ----------
    of : "file", "pixels" or "prepared input"
        What the digest is computed from.
    name : str or None
        Name of the file, without its folder.
    sha256 : str or None
        None: computed from the pixels when the record is first asked for.
    """

    of: str
    name: str | None = None
    sha256: str | None = None


class Origin:
    """Provenance of a capture; digests are computed when the record is first asked for.

    Parameters
    ----------
    model, weights : str
        The model's name, and where its weights come from.
    state : WeightsState
    source : PictureSource
    picture : PIL.Image
        Referenced weakly, so that its owner can delete it.
    photo : PIL.Image
        The capture's own copy, reduced if the picture is large.
    edits : sequence of str
        Kinds of the edits of the pass.
    """

    def __init__(
        self,
        *,
        model: str,
        weights: str,
        state: WeightsState,
        source: PictureSource,
        picture: Image.Image,
        photo: Image.Image,
        edits: Sequence[str],
    ) -> None:
        self._date = now()
        self._model, self._weights, self._state, self._source = model, weights, state, source
        self._picture, self._photo = ref(picture), photo
        self._size, self._edits = picture.size, [*edits]
        self._record: dict[str, Any] | None = None

    @classmethod
    def of_record(cls, record: Mapping[str, Any]) -> "Origin":
        """Return the origin that gave this record, which may stand among other keys."""
        origin = cls.__new__(cls)
        origin._record = {key: {"edits": [], **record}[key] for key in _KEYS}  # older files
        return origin

    def __reduce__(self) -> tuple[Any, ...]:
        return Origin.of_record, (self.record(),)  # weak references cannot be pickled

    def record(self) -> dict[str, Any]:
        """Return a record for JSON, with a note for each unknown digest."""
        if self._record is not None:
            return copy.deepcopy(self._record)
        weights_sha256, *notes = self._state.digest()
        picture_sha256 = self._source.sha256 or self._pixels_digest()
        if picture_sha256 is None:
            notes.append(PICTURE_LOST)
        record = {
            **creation_record(),
            "date": self._date,
            "model": self._model,
            "weights": str(self._weights),
            "weights_sha256": weights_sha256,
            "picture": {**asdict(self._source), "sha256": picture_sha256},
            "edits": self._edits,
            "notes": [note for note in notes if note],
        }
        if not record["notes"]:  # else a later call may know more or less
            self._record = record
        return copy.deepcopy(record)

    def _pixels_digest(self) -> str | None:
        if self._photo.size == self._size:
            return picture_digest(self._photo)
        picture = self._picture()
        # A large picture is not copied, and may have been changed since.
        if picture is None or reduce_picture(picture).tobytes() != self._photo.tobytes():
            return None
        return picture_digest(picture)
