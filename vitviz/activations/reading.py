"""The pass, its edits, and what it left behind."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..families import Layer, ModelError
from ..model import RECORDER, Model

TOLERANCE = 1e-3  # of A v against the block's own attention output, relative to its maximum
PROOF_ROWS = 8  # query rows checked at capture, beside the first

Query = int | tuple[int, int]


@dataclass(frozen=True)
class MuteHeads:
    """Zero these heads' slices of the concatenated heads, before the output projection."""

    heads: Iterable[tuple[int, int]]  # (layer, head), both from 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "heads", tuple(self.heads))


@dataclass(frozen=True)
class DropPatches:
    """Remove the patches where `mask` (rows, columns) is true, after positions were added."""

    mask: np.ndarray


@dataclass(frozen=True)
class FillPatches:
    """Paint the patches where `mask` (rows, columns) is true over, in the model's input.

    "mean" takes the mean colour of the input, "blur" the input blurred over about one patch.
    """

    mask: np.ndarray
    fill: Literal["mean", "blur"] = "mean"


@dataclass(frozen=True)
class SwapTokens:
    """Exchange pairs of patches, by their number in row-major order, before positions are added."""

    pairs: Iterable[tuple[int, int]]

    def __post_init__(self) -> None:
        object.__setattr__(self, "pairs", tuple(self.pairs))


Edit = MuteHeads | DropPatches | FillPatches | SwapTokens


@dataclass
class _Record:
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
        records: tuple[_Record | None, ...],
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
        if refusal := _refusal(self.layers[layer], attention @ record.v, record.output):
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
            out: CLS, or the mean of the patches where there are no prefix tokens.
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
        if query is None and not described.prefix:
            chosen = looking.mean(axis=1)
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
        z = self._stream[_checked(depth, len(self._stream), "depth")]
        if normalised:
            with torch.inference_mode():
                z = self._final_norm(z)
        return _read_only(z)

    def tokens_after_attention(self, layer: int) -> np.ndarray:
        """z'_l of eq. 2: ndarray of shape (tokens, D)."""
        return _read_only(self._after_attention[_checked(layer, self.depth, "layer")])

    def _layer(self, layer: int) -> Layer:
        return self.layers[_checked(layer, self.depth, "layer")]

    def _record(self, layer: int) -> _Record:
        described, record = self._layer(layer), self._records[layer]
        if described.refusal or record is None:
            raise ModelError(described.refusal or f"{described.name} has no attention to show.")
        return record

    def _place(self, layer: Layer, query: Query) -> int:
        """The query's number among the tokens that were in the pass."""
        rows, cols = layer.query_grid
        prefix = len(layer.prefix)
        if isinstance(query, tuple):
            row = _checked(query[0], rows, "row")
            query = prefix + row * cols + _checked(query[1], cols, "column")
        token = _checked(query, prefix + rows * cols, "query")
        if token < prefix:
            return token
        found = np.flatnonzero(self.patches == token - prefix)
        if not len(found):
            raise ModelError(f"Patch {token - prefix} was dropped from this pass.")
        return prefix + int(found[0])


class _Watch(TorchFunctionMode):
    """Records one forward pass, and applies the edits to it."""

    def __init__(
        self,
        model: Model,
        edits: Sequence[Edit],
        progress: Callable[[int, int], object] | None,
    ) -> None:
        super().__init__()
        self.layers = model.layers
        self.progress = progress
        self.muted = [pair for edit in edits if isinstance(edit, MuteHeads) for pair in edit.heads]
        self.swaps = [pair for edit in edits if isinstance(edit, SwapTokens) for pair in edit.pairs]
        self.dropped = _mask(edits, DropPatches, model.layers[0].query_grid)
        self.patches = np.flatnonzero(~self.dropped.ravel())
        self.patches.flags.writeable = False
        self.running: int | None = None
        self.calls: list[list[_Record]] = [[] for _ in model.layers]
        self.stream: list[Tensor] = []
        self.after_attention: list[Tensor] = []

    def embedded(self, patches: Tensor) -> Tensor | None:
        if not self.swaps:
            return None
        flat = patches.flatten(1, -2)  # (B, N, D), also where timm keeps a grid (B, R, S, D)
        order = torch.arange(flat.shape[1])
        for first, second in self.swaps:
            order[[first, second]] = order[[second, first]]
        return flat[:, order].reshape(patches.shape)

    def entering(self, layer: int, tokens: Tensor) -> Tensor | None:
        if self.progress is not None:
            self.progress(layer, len(self.layers))
        self.running = layer
        if layer:
            return None
        kept = self._kept(tokens) if self.dropped.any() else None
        self.stream.append((tokens if kept is None else kept)[0])
        return kept

    def _kept(self, tokens: Tensor) -> Tensor:
        """The tokens without those of the dropped patches."""
        first = self.layers[0]
        prefix = len(first.prefix)
        if tokens.shape[1] != prefix + self.dropped.size:
            raise ModelError(
                f"{first.name} has {tokens.shape[1]} tokens, expected "
                f"{prefix + self.dropped.size}, so no patch can be dropped."
            )
        if self.dropped.all() and "cls" not in first.prefix:
            raise ModelError("Every patch was dropped, and this model reads its output from them.")
        patches = torch.from_numpy(prefix + self.patches)
        return tokens[:, torch.cat([torch.arange(prefix), patches])]

    def attended(self, layer: int, tokens: Tensor) -> None:
        self.after_attention.append(tokens[0])

    def leaving(self, layer: int, tokens: Tensor) -> None:
        self.running = None
        self.stream.append(tokens[0])

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = func(*args, **(kwargs or {}))
        here = self.running if RECORDER.get() is self else None  # not a pass nested in this one
        if func is F.scaled_dot_product_attention and here is not None:
            self.calls[here].append(_read_call(output, *args, **(kwargs or {})))
            heads = [head for layer, head in self.muted if layer == here]
            if heads:
                output = output.clone()
                output[:, heads] = 0
        return output

    def records(self) -> Iterator[tuple[Layer, _Record | None]]:
        """Each layer as it proved itself, or with the sentence that says why it is not shown."""
        for layer, calls in zip(self.layers, self.calls, strict=True):
            dropped = int(self.dropped.sum())
            tokens = len(layer.prefix) + math.prod(layer.query_grid) - dropped
            refusal = None
            if len(calls) != 1:
                refusal = (
                    f"{layer.name} of this model called attention {len(calls)} times instead of "
                    "once, so its heads cannot be told apart."
                )
            elif calls[0].q.shape[:2] != (layer.num_heads, tokens):
                refusal = (
                    f"{layer.name} has {calls[0].q.shape[0]} heads and {calls[0].q.shape[1]} "
                    f"tokens, expected {layer.num_heads} and {tokens}."
                )
            else:
                rows = torch.linspace(0, tokens - 1, min(tokens, PROOF_ROWS + 1)).long()
                seen = calls[0].attention(rows) @ calls[0].v
                refusal = _refusal(layer, seen, calls[0].output[:, rows])
            yield (replace(layer, refusal=refusal), None) if refusal else (layer, calls[0])


def _read_call(
    output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> _Record:
    """The arguments of one `scaled_dot_product_attention` call, for the first of the batch."""
    bias = None
    if attn_mask is not None:
        if attn_mask.dtype == torch.bool:
            attn_mask = torch.zeros_like(attn_mask, dtype=query.dtype).masked_fill_(
                ~attn_mask, -math.inf
            )
        bias = attn_mask.expand(*query.shape[:-1], key.shape[-2])[0]
    return _Record(
        q=query[0],
        k=key[0],
        v=value[0],
        output=output[0],
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        bias=bias,
    )


def _refusal(layer: Layer, seen: Tensor, own: Tensor) -> str | None:
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


def capture(
    model: Model,
    image: Image.Image,
    *,
    edits: Sequence[Edit] = (),
    progress: Callable[[int, int], object] | None = None,
) -> Activations:
    """Run one picture through the model and keep what happened inside.

    Parameters
    ----------
    model : Model
        May be shared by any number of threads.
    image : PIL.Image
        Upright, as `vitviz.open_image` returns it.
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
        When an edit does not fit the model.
    """
    edits = tuple(edits)
    _check_edits(edits, model)
    x = _filled(model.preprocess(image), edits, model.layers[0])[None]
    watch = _Watch(model, edits, progress)
    token = RECORDER.set(watch)
    try:
        with torch.inference_mode(), watch:
            logits = model.module(x)[0]
    finally:
        RECORDER.reset(token)
    with torch.inference_mode():
        layers, records = zip(*watch.records(), strict=True)
    return Activations(
        layers=layers,
        labels=model.labels,
        crop=_crop(model, image),
        logits=logits if getattr(model.module, "num_classes", 0) else None,
        records=records,
        stream=tuple(watch.stream),
        after_attention=tuple(watch.after_attention),
        patches=watch.patches,
        final_norm=copy.deepcopy(model.final_norm),
    )


def _check_edits(edits: Sequence[Edit], model: Model) -> None:
    heads = model.layers[0].num_heads
    patches = math.prod(model.layers[0].query_grid)
    for edit in edits:
        if isinstance(edit, MuteHeads):
            for layer, head in edit.heads:
                _checked(layer, len(model.layers), "layer", ModelError)
                _checked(head, heads, "head", ModelError)
        elif isinstance(edit, SwapTokens):
            for pair in edit.pairs:
                for patch in pair:
                    _checked(patch, patches, "patch", ModelError)
        elif not isinstance(edit, DropPatches | FillPatches):
            raise ModelError(f"{type(edit).__name__} is no edit that vitviz knows.")


def _mask(
    edits: Sequence[Edit], kind: type[DropPatches] | type[FillPatches], grid: tuple[int, int]
) -> np.ndarray:
    """Where any edit of this kind applies: bool ndarray of shape `grid`."""
    mask = np.zeros(grid, bool)
    for edit in edits:
        if isinstance(edit, kind):
            own = np.asarray(edit.mask)
            if own.shape != grid:
                raise ModelError(f"Expected a mask of shape {grid}, got {own.shape}.")
            mask |= own.astype(bool)
    return mask


def _filled(x: Tensor, edits: Sequence[Edit], layer: Layer) -> Tensor:
    """The model's input (3, H, W) with the patches of each FillPatches painted over."""
    grid, (height, width) = layer.query_grid, _patch_side(layer)
    # What the patches leave over at the right and the bottom, or cover of padding beyond.
    over = (0, x.shape[2] - width * grid[1], 0, x.shape[1] - height * grid[0])
    for edit in edits:
        if not isinstance(edit, FillPatches):
            continue
        mask = torch.from_numpy(_mask([edit], FillPatches, grid))
        mask = mask.repeat_interleave(height, 0).repeat_interleave(width, 1)
        pixels = F.pad(mask, over)  # (H, W)
        if edit.fill == "mean":
            paint = x.mean(dim=(1, 2), keepdim=True).expand_as(x)
        elif edit.fill == "blur":
            small = F.interpolate(x[None], size=grid, mode="bilinear", antialias=True)
            paint = F.interpolate(small, size=x.shape[1:], mode="bicubic")[0]
        else:
            raise ModelError(f'Expected the fill "mean" or "blur", got {edit.fill!r}.')
        x = torch.where(pixels, paint, x)
    return x


def _patch_side(layer: Layer) -> tuple[int, int]:
    side = layer.patch_size
    return (side, side) if isinstance(side, int) else side


def _crop(model: Model, image: Image.Image) -> tuple[float, float, float, float]:
    """Where the grid of patches lies in the picture; it need not fill the model's input."""
    left, top, right, bottom = model.preprocess.place(image).crop
    layer, (height, width) = model.layers[0], model.preprocess.input_size
    (rows, cols), side = layer.query_grid, _patch_side(layer)
    right -= (right - left) * (1 - cols * side[1] / width)
    bottom -= (bottom - top) * (1 - rows * side[0] / height)
    return left, top, right, bottom


def _checked(index: int, count: int, what: str, error: type[ValueError] = ValueError) -> int:
    """`index` where it lies in 0 .. count - 1; negative numbers would hide mistakes."""
    if not 0 <= index < count:
        raise error(f"Expected a {what} in 0..{count - 1}, got {index}.")
    return index


def _read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy()
    array.flags.writeable = False
    return array
