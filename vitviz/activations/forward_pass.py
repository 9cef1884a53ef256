"""`ForwardPass`: what one pass of one picture left, and where its tokens lie in the picture."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from ..families import Layer, ModelError, Offset, Windows
from ..language import Message
from ..model import html_table
from .arena import Arena
from .batches import Batch
from .calls import Call
from .maps import checked


@lru_cache(16)
def _numbered(count: int) -> tuple[str, ...]:
    """The names of outputs without labels: of a thousand they take milliseconds to make."""
    return tuple(Message("output {number}", number=index) for index in range(count))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ForwardPass:
    """What one forward pass of one picture left."""

    layers: tuple[Layer, ...]
    #: Names of the tokens from which the head reads the answer, as `Model.read_tokens`.
    read_tokens: tuple[str, ...]
    #: What the model gives, shape (K,): as `logits`, or without a head the features it would read.
    output: np.ndarray | None
    #: What makes probabilities of logits: "softmax", or "sigmoid" of each for itself.
    activation: Literal["softmax", "sigmoid"]
    #: Row-major numbers of the patches that were not dropped, in the order of their tokens.
    patches: np.ndarray
    #: The picture, made smaller where its longer side had 1488 pixels or more.
    photo: Image.Image
    #: (width, height) of the picture itself, in whose pixels `crop` is.
    picture_size: tuple[int, int]
    #: Which model it was, and where its weights come from.
    provenance: str
    #: What it shares with the other pictures of its pass; None of one that was loaded.
    batch: Batch | None = None

    _number: int = 0  # of the picture in the batch
    _headless: bool
    _embeds: bool
    _known_labels: tuple[str, ...] | None
    _crops: tuple[tuple[float, float, float, float], ...]
    _offsets: tuple[Offset, ...]
    _calls: tuple[Call | None, ...]
    _windows: tuple[Windows | None, ...]
    _stream: tuple[Tensor, ...]
    _after_attention: tuple[Tensor | None, ...]
    _final_norm: nn.Module | None
    _arena: Arena | None

    def __repr__(self) -> str:
        kinds = " and ".join(sorted({layer.kind for layer in self.layers}))
        parts = [f"{self.depth} layers ({kinds})", f"{len(self._stream[-1])} tokens at the end"]
        if self.probabilities is not None:
            best = int(self.probabilities.argmax())
            parts.append(f"{self.output_names[best]} {100 * self.probabilities[best]:.0f} %")
        return f"Activations({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = {
            "picture": f"{self.picture_size[0]} x {self.picture_size[1]} pixels",
            "layers": f"{self.depth} ({', '.join(sorted({one.kind for one in self.layers}))})",
            "tokens at the end": str(len(self._stream[-1])),
        }
        if self.probabilities is not None:
            best = (-self.probabilities).argsort(kind="stable")[:3]
            named = [f"{self.output_names[n]} {self.probabilities[n]:.1%}" for n in best]
            rows["answer"] = ", ".join(named)
        return html_table(self.provenance, rows)

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def crop(self) -> tuple[float, float, float, float]:
        """Where the first layer's grid lies: (left, top, right, bottom) in the picture's pixels."""
        return self._crops[0]

    def crop_of(self, layer: int, *, keys: bool = False) -> tuple[float, float, float, float]:
        """`crop` of one layer's queries or keys; a padded grid reaches beyond the picture."""
        described, windows = self._layer(layer), self._windows[layer]
        (rows, cols), (key_rows, key_cols) = described.query_grid, described.key_grid
        left, top, right, bottom = self._crops[layer]
        if keys and windows is not None:
            height, width = windows.key_step
            right = left + key_cols * width * (right - left) / cols
            bottom = top + key_rows * height * (bottom - top) / rows
        return left, top, right, bottom

    @property
    def logits(self) -> np.ndarray | None:
        """What the head gives, shape (K,): logits, or an embedding; None where there is no head."""
        return None if self._headless else self.output

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the classes, where they are known."""
        names = self._known_labels
        known = names is not None and self.logits is not None and len(names) == len(self.logits)
        return names if known else None

    @property
    def probabilities(self) -> np.ndarray | None:
        """softmax of the logits, shape (K,); None where the model has no head for classes.

        Of words compared with a sigmoid, as in SigLIP, each has a probability of its own, and they
        do not sum to 1.
        """
        if self.logits is None or self._embeds:
            return None
        logits = torch.from_numpy(self.logits.copy())
        both = logits.sigmoid() if self.activation == "sigmoid" else logits.softmax(dim=-1)
        return read_only(both)

    @property
    def output_names(self) -> tuple[str, ...]:
        """A name for each of the logits: its label where it is known, else "output 5"."""
        count = 0 if self.logits is None else len(self.logits)
        return self.labels or _numbered(count)

    @property
    def grid(self) -> tuple[int, int]:
        return self._same(Message("grid"), lambda layer: layer.query_grid)

    @property
    def num_heads(self) -> int:
        return self._same(Message("number of heads"), lambda layer: layer.num_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return self._same(Message("number of prefix tokens"), lambda layer: len(layer.prefix))

    @property
    def patch_size(self) -> int | tuple[int, int]:
        return self._same(Message("patch size"), lambda layer: layer.patch_size)

    def _same(self, what: str, of: Callable[[Layer], Any]) -> Any:
        values = {of(layer) for layer in self.layers}
        if len(values) != 1 or any(layer.kind != "global" for layer in self.layers):
            raise ModelError(
                "This model has no one {what} for all layers: ask acts.layers.", what=what
            )
        return values.pop()

    @property
    def all_to_all(self) -> bool:
        """Whether every token attends to every token, and the tokens are the same in each layer."""
        every = all(layer.kind == "global" for layer in self.layers)
        return every and len(self._token_sets) == 1

    @property
    def _token_sets(self) -> set[Any]:
        return {(layer.query_grid, layer.key_grid, layer.prefix) for layer in self.layers}

    @property
    def refusal(self) -> Message | None:
        """Why the first layer that is not shown is not; None where all layers are."""
        return next((layer.refusal for layer in self.layers if layer.refusal), None)

    @property
    def nbytes(self) -> int:
        """Bytes that this capture holds: of a batch's memory its share."""
        held = [t for call in self._calls if call for t in call.tensors()]
        held += [*self._stream, *(z for z in self._after_attention if z is not None)]
        held += [] if self._final_norm is None else self._final_norm.parameters()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        photo = 4 * self.photo.width * self.photo.height  # Pillow's bytes of a pixel in RGB
        unused = 0 if self._arena is None else self._arena.unused
        pictures = 1 if self.batch is None else self.batch.pictures
        return (sum(storages.values()) - unused) // pictures + photo

    def _layer(self, layer: int) -> Layer:
        return self.layers[checked(layer, self.depth, "layer")]

    def layout(self, layer: int) -> Windows:
        """The patches of each window; global attention has one window, of all tokens.

        Prefix tokens have the number -1, as padding has.
        """
        described, windows = self._layer(layer), self._windows[layer]
        if windows is not None:
            return windows
        keys = np.concatenate([np.full(len(described.prefix), -1), self.patches])[None]
        return Windows(queries=keys[:, :1] if described.kind == "class" else keys, keys=keys)


def read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy()
    array.flags.writeable = False
    return array
