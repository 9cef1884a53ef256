"""What one picture left in the model, and the proof of what is shown of it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..families import Layer, ModelError

TOLERANCE = 1e-3  # of A v against the block's own attention output, relative to its maximum

Query = int | tuple[int, int]


@dataclass
class Record:
    """What one layer left behind; heads first: q, k, v, output of shape (heads, tokens, d)."""

    q: Tensor
    k: Tensor
    v: Tensor
    output: Tensor
    scale: float
    bias: Tensor | None

    def attention(self, rows: Tensor | slice = slice(None)) -> Tensor:
        """softmax(q k^T / sqrt(d) + bias) of the chosen query rows: (heads, rows, tokens)."""
        scores = (self.q[:, rows] * self.scale) @ self.k.transpose(-2, -1)
        if self.bias is not None:
            scores = scores + self.bias[:, rows]
        return scores.softmax(dim=-1)

    def tensors(self) -> tuple[Tensor, ...]:
        kept = (self.q, self.k, self.v, self.output)
        return kept if self.bias is None else (*kept, self.bias)


class Activations:
    """What one picture left in the model; immutable, and free of the model itself.

    Layers, heads and tokens count from 0. Arrays are read-only float32.
    """

    def __init__(
        self,
        *,
        layers: tuple[Layer, ...],
        labels: tuple[str, ...] | None,
        crop: tuple[float, float, float, float],
        logits: Tensor | None,
        records: tuple[Record | None, ...],
        stream: tuple[Tensor, ...],
        after_attention: tuple[Tensor, ...],
        patches: np.ndarray,
        final_norm: nn.Module,
    ) -> None:
        self.layers = layers
        self.labels = labels
        self.crop = crop
        self.logits = None if logits is None else _read_only(logits)
        #: Numbers of the patches that were in the pass, in the order of their tokens.
        self.patches = patches
        self._records = records
        self._stream = stream
        self._after_attention = after_attention
        self._final_norm = final_norm

    @property
    def depth(self) -> int:
        return len(self.layers)

    @property
    def probabilities(self) -> np.ndarray | None:
        """softmax of the logits, shape (K,); None where the model has no head."""
        if self.logits is None:
            return None
        return _read_only(torch.from_numpy(self.logits.copy()).softmax(dim=-1))

    @property
    def grid(self) -> tuple[int, int]:
        return self._same("grid", lambda layer: layer.query_grid)

    @property
    def num_heads(self) -> int:
        return self._same("number of heads", lambda layer: layer.num_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return self._same("number of prefix tokens", lambda layer: len(layer.prefix))

    @property
    def patch_size(self) -> int | tuple[int, int]:
        return self._same("patch size", lambda layer: layer.patch_size)

    def _same(self, what: str, of: Callable[[Layer], Any]) -> Any:
        values = {of(layer) for layer in self.layers}
        if len(values) != 1 or any(layer.kind != "global" for layer in self.layers):
            raise ModelError(f"This model has no one {what} for all layers: ask acts.layers.")
        return values.pop()

    @property
    def nbytes(self) -> int:
        """Bytes that this capture holds."""
        held = [t for record in self._records if record for t in record.tensors()]
        held += [*self._stream, *self._after_attention, *self._final_norm.parameters()]
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
        return sum(storages.values())

    def attention(self, layer: int) -> np.ndarray:
        """A of one layer: ndarray of shape (heads, queries, keys), each row a share that sums to 1.

        Raises
        ------
        ModelError
            When the layer has no attention that could be proved on this picture.
        """
        record = self._record(layer)
        attention = record.attention()
        if refusal := why_refused(self.layers[layer], attention @ record.v, record.output):
            raise ModelError(refusal)
        return _read_only(attention)

    def attention_layers(self) -> Iterator[np.ndarray]:
        """The attention of each layer in turn, computed when it is reached."""
        return (self.attention(layer) for layer in range(self.depth))

    def attention_map(
        self,
        layer: int,
        query: Query | None = None,
        *,
        direction: Literal["row", "column"] = "row",
    ) -> np.ndarray:
        """One token's attention over the patches: ndarray of shape (heads, rows, columns).

        Parameters
        ----------
        layer : int
        query : int or (row, column), optional
            A token's number in the full sequence (prefix first), or a patch by its place. Left
            out: CLS, or the mean of the patches where there is none.
        direction : "row" or "column"
            The row of A says where the token looks, the column who looks at it.

        Notes
        -----
        The shares of the prefix tokens are not in the map, so it sums to less than 1. Patches that
        were dropped get 0.
        """
        if direction not in ("row", "column"):
            raise ValueError(f'Expected the direction "row" or "column", got {direction!r}.')
        described = self._layer(layer)
        attention = self.attention(layer)
        looking = attention if direction == "row" else attention.swapaxes(1, 2)
        if query is None and "cls" not in described.prefix:
            chosen = looking[:, len(described.prefix) :].mean(axis=1)
        else:
            chosen = looking[:, self._place(described, 0 if query is None else query)]
        rows, cols = described.key_grid
        full = np.zeros((described.num_heads, rows * cols), np.float32)
        full[:, self.patches] = chosen[:, len(described.prefix) :]
        full.flags.writeable = False
        return full.reshape(-1, rows, cols)

    def queries(self, layer: int) -> np.ndarray:
        """q of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return _read_only(self._record(layer).q)

    def keys(self, layer: int) -> np.ndarray:
        """k of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return _read_only(self._record(layer).k)

    def values(self, layer: int) -> np.ndarray:
        """v of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return _read_only(self._record(layer).v)

    def tokens(self, depth: int, *, normalised: bool = False) -> np.ndarray:
        """z_depth, the residual stream: ndarray of shape (tokens, D).

        Parameters
        ----------
        depth : int
            0 after the embedding, l after block l.
        normalised : bool
            Apply the model's final LayerNorm.
        """
        z = self._stream[checked(depth, len(self._stream), "depth")]
        if normalised:
            with torch.inference_mode():
                z = self._final_norm(z)
        return _read_only(z)

    def tokens_after_attention(self, layer: int) -> np.ndarray:
        """z'_l of eq. 2: ndarray of shape (tokens, D)."""
        return _read_only(self._after_attention[checked(layer, self.depth, "layer")])

    def _layer(self, layer: int) -> Layer:
        return self.layers[checked(layer, self.depth, "layer")]

    def _record(self, layer: int) -> Record:
        described, record = self._layer(layer), self._records[layer]
        if described.refusal or record is None:
            raise ModelError(described.refusal or f"{described.name} has no attention to show.")
        return record

    def _place(self, layer: Layer, query: Query) -> int:
        """The query's number among the tokens that were in the pass."""
        rows, cols = layer.query_grid
        prefix = len(layer.prefix)
        if isinstance(query, tuple):
            row = checked(query[0], rows, "row")
            query = prefix + row * cols + checked(query[1], cols, "column")
        token = checked(query, prefix + rows * cols, "query")
        if token < prefix:
            return token
        found = np.flatnonzero(self.patches == token - prefix)
        if not len(found):
            raise ModelError(f"Patch {token - prefix} was dropped from this pass.")
        return prefix + int(found[0])


def why_refused(layer: Layer, seen: Tensor, own: Tensor) -> str | None:
    """Why A v does not prove itself against the block's own attention output, or None."""
    if not torch.isfinite(own).all():
        return f"{layer.name} computed values that are not finite numbers, so no map is drawn."
    error = float((seen - own).abs().max() / own.abs().max().clamp(min=1e-12))
    if error <= TOLERANCE:
        return None
    return (
        f"The attention read from {layer.name} does not reproduce the block's own output: "
        f"it is off by {error:.1%}, allowed are {TOLERANCE:.1%}."
    )


def checked(index: int, count: int, what: str, error: type[ValueError] = ValueError) -> int:
    """`index` where it lies in 0 .. count - 1; negative numbers would hide mistakes."""
    if not 0 <= index < count:
        raise error(f"Expected a {what} in 0..{count - 1}, got {index}.")
    return index


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy()
    array.flags.writeable = False
    return array
