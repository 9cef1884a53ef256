"""`Activations`: the attention and tokens of every layer in one forward pass, and its logits."""

import io
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from ..common.files import replace_file
from ..common.language import Message, Phrase
from ..common.query import Direction, Query, token_number
from ..model.answers import Answers, scores
from ..model.devices import own_precision
from ..model.families import Layer, ModelError, Offset, Windows
from ..model.model import Model, html_table
from ..model.origin import Origin
from .batches import Arena, Batch
from .calls import (
    AttentionLayers,
    Call,
    FusedCall,
    SoftmaxCall,
    expand_windows,
    explain_mismatch,
)
from .carried import Carried, split_output

if TYPE_CHECKING:
    import pandas

    from ..inspection import Measurements, Sinks

_MOST_NAMED = 3  # outputs in the representation of a capture
FORMAT = 1  # of the file that `Activations.save` writes; others are refused

Of = Literal["weights", "values", "output"]  # what a map of attention counts


def _encode(acts: "Activations") -> bytes:
    """Return the file of a capture, as `Activations.save` describes it."""
    arrays: dict[str, np.ndarray] = {"photo": np.asarray(acts.photo)}
    halves: list[str] = []  # arrays of bfloat16, which numpy lacks
    orders: dict[str, list[int]] = {}  # axes as they lie in memory: products round by it

    def put(name: str, tensor: Tensor | None) -> None:
        if tensor is None:
            return
        tensor = tensor.detach().cpu()
        for axis, step in enumerate(tensor.stride()):
            if step == 0:  # a bias that all windows or heads share
                tensor = tensor.narrow(axis, 0, 1)
        steps = tensor.stride()
        order = sorted(range(tensor.ndim), key=lambda axis: -steps[axis])
        if order != [*range(tensor.ndim)]:
            orders[name] = order
        if tensor.dtype == torch.bfloat16:
            halves.append(name)
            tensor = tensor.contiguous().view(torch.int16)
        arrays[name] = tensor.numpy()

    if acts.output is not None:
        arrays["features" if acts.logits is None else "logits"] = acts.output
    arrays["patches"] = acts.patches
    for depth, z in enumerate(acts._stream):
        put(f"tokens_{depth}", z)
    for layer in range(acts.depth):
        put(f"tokens_after_attention_{layer}", acts._after_attention[layer])
        call, windows = acts._calls[layer], acts._windows[layer]
        if windows is not None:
            for name, value in vars(windows).items():
                arrays[f"windows_{name}_{layer}"] = np.asarray(value)
        if call is None or acts.layers[layer].refusal:
            continue
        call = call.cpu()
        put(f"rows_{layer}", call.output.rows)
        put(f"projected_{layer}", call.output.projection)
        put(f"v_{layer}", call.v)
        if isinstance(call, FusedCall):
            put(f"q_{layer}", call.q)
            put(f"k_{layer}", call.k)
            put(f"bias_{layer}", call.bias)
            arrays[f"scale_{layer}"] = np.array(call.scale)
        else:
            put(f"weights_{layer}", call.weights)
            weight, bias = call.mixing or (None, None)
            put(f"mixing_weight_{layer}", weight)
            put(f"mixing_bias_{layer}", bias)
    norm = _layer_norm(acts)
    if norm is not None:
        put("norm_weight", norm.weight)
        put("norm_bias", norm.bias)
    about = {
        "format": FORMAT,
        **acts.record,
        "provenance": acts.provenance,
        "picture_size": acts.picture_size,
        "layers": [asdict(layer) for layer in acts.layers],
        "labels": acts.labels,
        "phrases": any(isinstance(label, Phrase) for label in acts.labels or ()),
        "answers": acts.answers,
        "read_tokens": acts.read_tokens,
        "crops": acts._crops,
        "offsets": acts._offsets,
        "norm": type(acts._final_norm).__name__ if acts._final_norm is not None else None,
        "norm_eps": None if norm is None else norm.eps,
        "norm_width": None if norm is None else norm.normalized_shape[0],
        "bfloat16": halves,
        "orders": orders,
    }
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, about=json.dumps(about), **arrays)
    return file.getvalue()


def _layer_norm(acts: "Activations") -> nn.LayerNorm | None:
    """Return the final norm if it is a LayerNorm over channels, which a file can hold."""
    norm = acts._final_norm
    return norm if isinstance(norm, nn.LayerNorm) and len(norm.normalized_shape) == 1 else None


def plain_norm(
    weight: Tensor | None, bias: Tensor | None, eps: float, shape: int | tuple[int, ...]
) -> nn.LayerNorm:
    plain = nn.LayerNorm(shape, eps, elementwise_affine=False)
    for name, values in (("weight", weight), ("bias", bias)):
        if values is not None:
            setattr(plain, name, nn.Parameter(values.detach(), requires_grad=False))
    return plain


@lru_cache(16)  # a thousand names take milliseconds
def _default_names(count: int) -> tuple[str, ...]:
    return tuple(Message("output {number}", number=index) for index in range(count))


def read_only(tensor: Tensor) -> np.ndarray:
    array = tensor.detach().float().cpu().numpy()
    array.flags.writeable = False
    return array


def _build_map(
    layer: Layer,
    windows: Windows,
    attention: np.ndarray,
    query: Query | None,
    direction: Direction,
) -> np.ndarray:
    """Return the map (heads, rows, cols) of `Activations.attention_map` from A (W, h, n, m)."""
    sources, targets = windows.queries, windows.keys
    grids = layer.query_grid, layer.key_grid
    if direction == "column":
        attention = attention.swapaxes(2, 3)
        sources, targets, grids = targets, sources, grids[::-1]
    full = np.zeros((layer.num_heads, grids[1][0] * grids[1][1]), np.float32)
    if query is None and "cls" not in layer.prefix:
        for window, own, places in zip(attention, sources, targets, strict=True):
            total = window[:, own >= 0].sum(axis=1)
            full[:, places[places >= 0]] += total[:, places >= 0]
        full /= np.count_nonzero(sources >= 0)
    else:
        number, token = _locate(layer, sources, grids[0], 0 if query is None else query)
        places = targets[number]
        full[:, places[places >= 0]] = attention[number, :, token][:, places >= 0]
    return full.reshape(-1, *grids[1])


def check_index(index: int, count: int, what: str, error: type[ValueError] = ValueError) -> int:
    """Return an index if it lies in 0 .. count - 1; a negative one would count from the end."""
    if not 0 <= index < count:
        raise error(f"Expected a {what} in 0..{count - 1}, got {index}.")
    return index


def _locate(
    layer: Layer, places: np.ndarray, grid: tuple[int, int], query: Query
) -> tuple[int, int]:
    """Return the window that holds a token, and the token's index in it."""
    prefix = len(layer.prefix)
    token = token_number(query, prefix=layer.prefix, grid=grid)
    if token < prefix:
        return 0, token
    matches = np.argwhere(places == token - prefix)
    if len(matches):
        return int(matches[0, 0]), int(matches[0, 1])
    if layer.kind == "class":
        raise ModelError(
            "Only the class token attends in {layer}. Ask for its row.", layer=layer.name
        )
    raise ModelError("Patch {patch} was dropped from this pass.", patch=token - prefix)


def _order(places: np.ndarray) -> Tensor:
    """Return where the patches lie among the tokens of all windows, in row-major order.

    A single window may be shifted or padded, too.
    """
    order = np.argsort(places, axis=None, kind="stable")
    return torch.from_numpy(order[np.count_nonzero(places < 0) :])


def _centres(places: np.ndarray, grid: tuple[int, int], step: np.ndarray) -> np.ndarray:
    """Return row and column of each patch's centre in pixels (n, 2); NaN for other tokens."""
    cells = np.stack(np.divmod(places, grid[1]), axis=1)
    return np.where(places[:, None] >= 0, (cells + 0.5) * step, np.nan)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Activations:
    """Attention, tokens and output of one picture in a forward pass; immutable, without the model.

    Layers, heads and tokens count from 0. Arrays are read-only float32.
    """

    #: Names of the tokens from which the head reads the answer, as `Model.read_tokens`.
    read_tokens: tuple[str, ...]
    #: The model's output, shape (K,): `logits`, or without a head the features it would read.
    output: np.ndarray | None
    #: What the output means: "classes", "labels", "values" or "embedding", as `Model.answers`.
    answers: Answers
    #: Row-major numbers of the patches that were not dropped, in the order of their tokens.
    patches: np.ndarray
    #: The picture, reduced if its longer side had 1488 pixels or more.
    photo: Image.Image
    #: (width, height) of the original picture, in whose pixels `crop` is given.
    picture_size: tuple[int, int]
    #: The model and where its weights come from.
    provenance: str
    #: What it shares with the other pictures of its pass; None if it was loaded from a file.
    batch: Batch | None = None

    _layers: tuple[Layer, ...]  # before the proof, which may refuse more of them
    _origin: Origin
    _number: int = 0  # of the picture in the batch
    _headless: bool
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
        kinds = " and ".join(sorted({layer.kind for layer in self._layers}))
        parts = [f"{self.depth} layers ({kinds})", f"{len(self._stream[-1])} tokens at the end"]
        if self.answers == "classes" and self.scores is not None:
            best = int(self.scores.argmax())
            parts.append(f"{self.output_names[best]} {100 * self.scores[best]:.0f} %")
        elif self.logits is not None:
            parts.append(f"{self.answers}: {self._first_outputs()}")
        return f"Activations({', '.join(parts)})"

    def _repr_html_(self) -> str:
        rows = {
            "picture": f"{self.picture_size[0]} x {self.picture_size[1]} pixels",
            "layers": f"{self.depth} ({', '.join(sorted({one.kind for one in self._layers}))})",
            "tokens at the end": str(len(self._stream[-1])),
        }
        if self.output is not None:
            rows["answer" if self.answers == "classes" else self.answers] = self._first_outputs()
        return html_table(self.provenance, rows)

    def _first_outputs(self) -> str:
        """Name the most probable outputs, the first values, or the size of an embedding."""
        if self.scores is None:
            return "" if self.output is None else f"{len(self.output)} numbers"
        if self.probabilities is None:
            numbers = [*range(len(self.scores))]
            texts = [f"{self.output_names[n]} {self.scores[n]:.4g}" for n in numbers[:_MOST_NAMED]]
            return ", ".join(texts + ["…"] * (len(numbers) > _MOST_NAMED))
        numbers = (-self.scores).argsort(kind="stable")[:_MOST_NAMED].tolist()
        return ", ".join(f"{self.output_names[n]} {self.scores[n]:.1%}" for n in numbers)

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        """All layers; one whose attention must not be shown says why in its `refusal`."""
        return self._layers if self.batch is None else self.batch.layers_of(self._number)

    @property
    def record(self) -> dict[str, Any]:
        """Provenance of the capture, as its files and figures state it, in JSON types.

        `versions` of the packages and the `date` of the pass; `model`, `weights` (where they come
        from) and `weights_sha256`, of all parameters and buffers as in a profile; of the `picture`
        its `name` (None without a path), `sha256`, and `of`, what was hashed: the "file", "pixels"
        in RGB, or a "prepared input" in float32. `edits` are the kinds of the edits of the pass;
        `notes` say why a digest is None.

        Notes
        -----
        The weights are hashed at the first access, once for all captures of a model. The model must
        still exist then, unchanged; changes made through `Tensor.data` are not noticed.
        """
        return self._origin.record()

    @property
    def depth(self) -> int:
        return len(self._layers)

    @property
    def crop(self) -> tuple[float, float, float, float]:
        """Box of the first layer's grid in the picture: (left, top, right, bottom) in pixels."""
        return self._crops[0]

    def crop_of(self, layer: int, *, keys: bool = False) -> tuple[float, float, float, float]:
        """Return `crop` of a layer's queries or keys; a padded grid reaches beyond the picture."""
        info, windows = self._layer(layer), self._windows[layer]
        (rows, cols), (key_rows, key_cols) = info.query_grid, info.key_grid
        left, top, right, bottom = self._crops[layer]
        if keys and windows is not None:
            height, width = windows.key_step
            right = left + key_cols * width * (right - left) / cols
            bottom = top + key_rows * height * (bottom - top) / rows
        return left, top, right, bottom

    @property
    def logits(self) -> np.ndarray | None:
        """The head's output, shape (K,): logits, values or an embedding; None without a head."""
        return None if self._headless else self.output

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Names of the outputs, where they are known."""
        names = self._known_labels
        is_known = names is not None and self.logits is not None and len(names) == len(self.logits)
        return names if is_known else None

    @property
    def probabilities(self) -> np.ndarray | None:
        """Probabilities, shape (K,); None where the model answers with values or an embedding.

        Of classes they are the softmax of the logits, and sum to 1. Of labels they are the sigmoid
        of each logit, and need not sum to 1.
        """
        return self.scores if self.answers in ("classes", "labels") else None

    @property
    def scores(self) -> np.ndarray | None:
        """The answer as it is shown, shape (K,): probabilities or values; None of an embedding."""
        if self.logits is None or self.answers == "embedding":
            return None
        return read_only(scores(torch.from_numpy(self.logits.copy()), self.answers))

    @property
    def output_names(self) -> tuple[str, ...]:
        """Name of each logit: its label if it is known, else "output 5"."""
        count = 0 if self.logits is None else len(self.logits)
        return self.labels or _default_names(count)

    @property
    def grid(self) -> tuple[int, int]:
        return self._common(Message("grid"), lambda layer: layer.query_grid)

    @property
    def num_heads(self) -> int:
        return self._common(Message("number of heads"), lambda layer: layer.num_heads)

    @property
    def num_prefix_tokens(self) -> int:
        return self._common(Message("number of prefix tokens"), lambda layer: len(layer.prefix))

    @property
    def patch_size(self) -> int | tuple[int, int]:
        return self._common(Message("patch size"), lambda layer: layer.patch_size)

    def _common(self, what: str, read: Callable[[Layer], Any]) -> Any:
        values = {read(layer) for layer in self._layers}
        if len(values) != 1 or any(layer.kind != "global" for layer in self._layers):
            raise ModelError(
                "The layers of this model differ in their tokens or attend in windows, so they "
                "have no common {what}. See acts.layers for each layer.",
                what=what,
            )
        return values.pop()

    @property
    def all_to_all(self) -> bool:
        """Whether every token attends to every token, and the tokens are the same in each layer."""
        every = all(layer.kind == "global" for layer in self._layers)
        return every and len(self._token_sets) == 1

    @property
    def _token_sets(self) -> set[Any]:
        return {(layer.query_grid, layer.key_grid, layer.prefix) for layer in self._layers}

    @property
    def refusal(self) -> Message | None:
        """Why the first layer that is not shown is refused; None if all are shown."""
        return next((layer.refusal for layer in self.layers if layer.refusal), None)

    @property
    def nbytes(self) -> int:
        """Bytes that this capture holds; of a batch's memory, its share."""
        tensors = [t for call in self._calls if call for t in call.tensors()]
        tensors += [*self._stream, *(z for z in self._after_attention if z is not None)]
        tensors += [] if self._final_norm is None else self._final_norm.parameters()
        storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
        photo = 4 * self.photo.width * self.photo.height  # Pillow's bytes of a pixel in RGB
        spare = 0 if self._arena is None else self._arena.unused
        pictures = 1 if self.batch is None else self.batch.pictures
        return (sum(storages.values()) - spare) // pictures + photo

    def _layer(self, layer: int) -> Layer:
        return self._layers[check_index(layer, self.depth, "layer")]

    def layout(self, layer: int) -> Windows:
        """Return the patches of each window; global attention has one window, of all tokens.

        Prefix tokens and padding have the number -1.
        """
        info, windows = self._layer(layer), self._windows[layer]
        if windows is not None:
            return windows
        keys = np.concatenate([np.full(len(info.prefix), -1), self.patches])[None]
        return Windows(queries=keys[:, :1] if info.kind == "class" else keys, keys=keys)

    def show(self, **options: Any) -> Any:
        """Show the token map of all layers and heads in a notebook: `vitviz.show(acts, ...)`."""
        import vitviz

        return vitviz.show(self, **options)

    def widget(self, **options: Any) -> Any:
        """Return the token map as a widget: `vitviz.widget(acts, ...)`."""
        import vitviz

        return vitviz.widget(self, **options)

    def measure(self) -> "Measurements":
        """Measure attention in one pass over the layers: `inspection.measurements`.

        The pictures of a batch of `captures` are measured together, at the first call. If the
        layers are no chain of matrices over the same tokens (windows, pooled keys), each layer has
        its distance and entropy; the rest is NaN, and `missing` says why.
        """
        from ..inspection import measurements

        if not self.all_to_all:
            return self._measure_each_layer()
        together = None if self.batch is None else self.batch.measurements
        return measurements(self) if together is None else together[self._number]

    def _measure_each_layer(self) -> "Measurements":
        from ..inspection import Measurements, windowed_distance
        from ..inspection.attention import head_entropy

        shape = self.depth, max(layer.num_heads for layer in self.layers)
        distance, entropy = np.full((2, *shape), np.nan)
        missing = str(self.refusal or "")
        for number, layer in enumerate(self.layers):
            if not layer.num_heads or layer.refusal:
                continue
            try:
                windows = list(self.windows(number))
            except ModelError as error:  # the proof failed on this picture
                missing = missing or str(error)
                continue
            heads = number, slice(layer.num_heads)
            distance[heads] = windowed_distance(windows)
            whole = layer.kind in ("global", "class")  # else a query without a place is padding
            rows = np.concatenate(
                [a[:, whole | np.isfinite(queries).all(axis=1)] for a, queries, _ in windows],
                axis=1,
            )
            entropy[heads] = head_entropy(rows)
        try:
            self.attention_layers()
        except ModelError as error:
            missing = str(error)
        return Measurements(
            distance=distance,
            entropy=entropy,
            prefix_mass=np.full(shape, np.nan),
            query_attention=np.full((*shape, *self.layers[-1].query_grid), np.nan),
            rollout=np.full(len(self.tokens(self.depth)), np.nan),
            why=missing,
        )

    def to_frame(self, *, picture: str | None = None) -> "pandas.DataFrame":
        """Return a table with a row for each layer, head and measure.

        Parameters
        ----------
        picture : str, optional
            The picture's name, to tell several tables apart when they are concatenated.

        Returns
        -------
        pandas.DataFrame
            `picture`, `layer` and `head`, counted from 1 as on screen, `measure`, `unit` and
            `value`: the attention distance in pixels of the input ("px"), the entropy in bits
            ("bit"), and where every token attends to every token the mass on the prefix tokens
            (a "share"). NaN where a layer has none to show.
        """
        import pandas

        from ..inspection.head_table import head_table

        heads = [layer.num_heads for layer in self.layers]
        frame = pandas.DataFrame(head_table(heads, self._head_measures(max(heads))))
        frame.insert(0, "picture", picture)
        return frame

    def _head_measures(self, most: int) -> dict[str, dict[str, np.ndarray]]:
        """Return the values (layers, most) of each measure, NaN where there is none."""
        names = ("distance", "entropy", "prefix_mass")
        whole = self.all_to_all and not any(layer.refusal for layer in self.layers)
        measurements = self.measure() if whole else self._measure_each_layer()
        return {name: {"value": getattr(measurements, name)} for name in names[: 3 if whole else 2]}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the capture to an NPZ file, which `vitviz.load_activations` reads.

        numpy reads it too. Layers and depths count from 0, windows are the first axis (1 where
        every token meets every token):

        - `logits` (K,), `tokens_{depth}` (tokens, D), `tokens_after_attention_{layer}` (tokens, D)
        - `q_{layer}`, `k_{layer}`, `v_{layer}` (windows, heads, tokens, head_dim), `scale_{layer}`
          and where there is one `bias_{layer}`: attention is softmax(scale q k^T + bias). Where it
          was read at a softmax, `weights_{layer}` (windows, heads, queries, keys) is attention.
        - `about`: `record`, layers, labels and geometry, as JSON; `photo`: the picture.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        replace_file(path, _encode(self))

    def attention(self, layer: int) -> np.ndarray:
        """Return A of one layer: ndarray of shape (heads, queries, keys); each row sums to 1.

        Attention within windows is expanded to a matrix of all patches, with 0 between patches of
        different windows. Shares of padding are left out, so a row may then sum to less than 1.

        Raises
        ------
        ModelError
            When the layer has no attention, or it does not reproduce the block's own output.
        """
        attention, windows = self._prove_attention(layer).float().numpy(), self._windows[layer]
        whole = attention[0]
        if windows is not None:
            whole = expand_windows(attention, windows, self.layers[layer])
        whole.flags.writeable = False
        return whole

    def attention_layers(self) -> AttentionLayers:
        """Return an iterable over the attention of each layer, computed when it is reached.

        If every layer is a plain softmax of q k^T, `inspection.measurements` reads a block of rows
        at a time and never makes a whole matrix.

        Raises
        ------
        ModelError
            When the layers are no chain of matrices over the same tokens, so that rollout and other
            measures of the whole chain are not defined.
        """
        if not self.all_to_all:
            kinds = " and ".join(sorted({layer.kind for layer in self._layers}))
            raise ModelError(
                "Rollout is not defined for this model: its layers ({kinds} attention, {sets} sets "
                "of tokens) are no chain of matrices over the same tokens.",
                kinds=kinds,
                sets=len(self._token_sets),
            )
        return AttentionLayers(
            self._layers,
            tokens=self.layout(0).keys.shape[1],
            read_tokens=self.read_tokens,
            attention=self.attention,
            calls=tuple(c for c in self._calls if isinstance(c, FusedCall) and c.bias is None),
        )

    def windows(self, layer: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the attention of one layer and the places of its tokens, window by window.

        Yields
        ------
        attention : ndarray of shape (heads, n, m)
        queries : ndarray of shape (n, 2)
            Row and column of the centre of each query's patch, in pixels of the model's input; NaN
            for prefix tokens and padding.
        keys : ndarray of shape (m, 2)
            Those of the keys.

        Raises
        ------
        ModelError
            As `attention`.
        """
        info = self._layer(layer)
        attention, windows = self.attention_by_window(layer), self.layout(layer)
        step = np.array(info.patch_side, np.float64)
        offset = self._offsets[layer]
        for window, queries, keys in zip(attention, windows.queries, windows.keys, strict=True):
            yield (
                window,
                _centres(queries, info.query_grid, step) + offset,
                _centres(keys, info.key_grid, step * windows.key_step) + offset,
            )

    def attention_by_window(self, layer: int) -> np.ndarray:
        """Return A of each window (windows, heads, n, m), its tokens in the order of `layout`.

        Raises
        ------
        ModelError
            As `attention`.
        """
        return read_only(self._prove_attention(layer))

    def attention_map(
        self,
        layer: int,
        query: Query | None = None,
        *,
        direction: Direction = "row",
        of: Of = "weights",
        model: Model | None = None,
    ) -> np.ndarray:
        """Return one token's attention over the patches: ndarray of shape (heads, rows, columns).

        A row lies in the layer's key grid, a column in its query grid; windows, their shift and
        the pooling of keys are undone.

        Parameters
        ----------
        layer : int
        query : int, (row, column) or str, optional
            A token's number in the full sequence (prefix first), a patch by its place in the query
            grid (of a column: in the key grid), or the name of a prefix token, such as "cls". By
            default CLS, or the mean of the patches if there is none.
        direction : "row" or "column"
            The row of A says where the token looks, the column which tokens look at it.
        of : "weights", "values" or "output"
            A itself; A times the length of the value that it weighs; or the length of what the key
            adds after the output projection, for which the `model` of the capture is needed.
        model : Model, optional

        Raises
        ------
        ModelError
            As `attention`, when the token is not in the layer, and for "values" where a layer mixes
            its heads; for "output" as `carried`.

        Notes
        -----
        The shares of the prefix tokens are not in the map, so it sums to less than 1. Patches that
        were dropped, and those outside of the token's window, get 0.
        """
        if direction not in ("row", "column"):
            raise ValueError(f'Expected the direction "row" or "column", got {direction!r}.')
        attention = self._weigh(layer, of, model)
        full = _build_map(self._layer(layer), self.layout(layer), attention, query, direction)
        full.flags.writeable = False
        return full

    def sinks(self, model: Model, layer: int) -> "Sinks":
        """Return the no-op sinks and the broadcasts of a layer: `inspection.attention_sinks`.

        Raises
        ------
        ModelError
            As `carried`.
        """
        from ..inspection import attention_sinks

        carried = self.carried(model, layer)
        return attention_sinks(carried.attention, carried.lengths)

    def carried(self, model: Model, layer: int) -> Carried:
        """Return what the keys of a layer add to its queries, after the output projection.

        It is proved on the picture: attention times these vectors, summed over the heads, plus the
        projection's bias, is what the layer's attention added to the tokens.

        Parameters
        ----------
        model : Model
            The one of the capture.
        layer : int
            One in which every token attends to every token.

        Raises
        ------
        ModelError
            When the layer has windows or pooled keys, its attention cannot be read, it does more to
            its heads than to project and scale them, or the model is another one.
        """
        info = self._layer(layer)
        if info.kind != "global":
            raise ModelError(
                "What attention carries is not known for {layer}: not every token attends to every "
                "token there.",
                layer=info.name,
            )
        if len(model.sites) != self.depth:
            raise ModelError(
                "The capture has {depth} layers, and {model} has {layers}. Give the model of the "
                "capture.",
                depth=self.depth,
                model=model.name,
                layers=len(model.sites),
            )
        return split_output(
            model.sites[layer].projection,
            self.attention(layer),
            self.values(layer),
            self.tokens(layer),
            self.tokens_after_attention(layer),
            info.name,
            self._call(layer).half,
        )

    def _weigh(self, layer: int, of: Of, model: Model | None) -> np.ndarray:
        """Return A (W, h, n, m), or what it carries of each key."""
        if of not in ("weights", "values", "output"):
            raise ValueError(f'Expected of="weights", "values" or "output", got {of!r}.')
        if of == "output":
            if model is None:
                raise ValueError('Expected the model of the capture for of="output", got none.')
            return self.carried(model, layer).by_head[None].astype(np.float32)
        attention = self._prove_attention(layer).float()
        if of == "values":
            call = self._call(layer)
            if isinstance(call, SoftmaxCall) and call.mixing is not None:
                raise ModelError(
                    "{layer} mixes its heads after the softmax, so a head's attention weighs no "
                    "value of its own.",
                    layer=self.layers[layer].name,
                )
            attention = attention * call.v.float().norm(dim=-1)[:, :, None]
        return attention.numpy()

    def queries(self, layer: int) -> np.ndarray:
        """Return q of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.q, self.layout(layer).queries)

    def keys(self, layer: int) -> np.ndarray:
        """Return k of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.k, self.layout(layer).keys)

    def values(self, layer: int) -> np.ndarray:
        """Return v of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.v, self.layout(layer).keys)

    def score_terms(self, layer: int) -> tuple[float, np.ndarray | None]:
        """Return what turns q k^T into scores: the scale, and the bias added before the softmax.

        Returns
        -------
        scale : float
            1 / sqrt(head_dim) in a plain ViT.
        bias : ndarray of shape (heads, queries, keys), or None
            For each pair of tokens, where every token meets every token.
        """
        call = self._call(layer)
        if not isinstance(call, FusedCall) or len(call.q) > 1:
            raise ModelError(
                "{layer} does not compute a single product of q and k.",
                layer=self.layers[layer].name,
            )
        bias = None if call.bias is None else call.bias[0]
        if bias is not None and self._windows[layer] is not None:
            layout = self.layout(layer)
            bias = bias[:, _order(layout.queries)][:, :, _order(layout.keys)]
        return call.scale, None if bias is None else read_only(bias)

    def tokens(self, depth: int, *, normalised: bool = False) -> np.ndarray:
        """Return z_depth, the residual stream: ndarray of shape (tokens, D).

        Parameters
        ----------
        depth : int
            0 after the embedding, l after block l.
        normalised : bool
            Apply the model's final LayerNorm.
        """
        z = self._stream[check_index(depth, len(self._stream), "depth")]
        if normalised:
            norm = self._final_norm
            if norm is None or getattr(norm, "normalized_shape", z.shape[-1:]) != z.shape[-1:]:
                raise ModelError(
                    "The model has no final norm for tokens of width {width}.", width=z.shape[-1]
                )
            weight = next(norm.parameters(), z)
            z = z.to(weight.dtype)  # within autocast the tokens of a block are less precise
            with own_precision(), torch.inference_mode():
                if isinstance(norm, nn.LayerNorm):  # timm has one of maps (B, D, R, S)
                    z = F.layer_norm(z, z.shape[-1:], norm.weight, norm.bias, norm.eps)
                else:
                    z = norm(z)
        return read_only(z)

    def tokens_after_attention(self, layer: int) -> np.ndarray:
        """Return z'_l of eq. 2: ndarray of shape (tokens, D)."""
        z = self._after_attention[check_index(layer, self.depth, "layer")]
        if z is None:
            raise ModelError(
                "The tokens between attention and MLP of {layer} are not known: both run side by "
                "side, or the block has a forward of its own.",
                layer=self.layers[layer].name,
            )
        return read_only(z)

    def _call(self, layer: int) -> Call:
        check_index(layer, self.depth, "layer")
        info, call = self.layers[layer], self._calls[layer]
        if info.refusal or call is None:
            raise ModelError(
                info.refusal or Message("{layer} has no attention to show.", layer=info.name)
            )
        return call.cpu()

    def _prove_attention(self, layer: int) -> Tensor:
        """Return A of every window (W, h, n, m), compared as a whole with the block's output."""
        call = self._call(layer)
        with torch.inference_mode():
            attention = call.attention()
            (refusal,) = explain_mismatch(
                self.layers[layer], call.projection(attention), call.output.projection, call.half
            )
        if refusal:
            raise ModelError(refusal)
        return attention

    def _vectors(
        self, layer: int, read: Callable[[FusedCall], Tensor], places: np.ndarray
    ) -> np.ndarray:
        call = self._call(layer)
        if not isinstance(call, FusedCall):
            raise ModelError(
                "{layer} is read at its softmax, so its queries, keys and values are not kept.",
                layer=self.layers[layer].name,
            )
        vectors = read(call)  # (W, h, tokens, d)
        if self._windows[layer] is None:
            return read_only(vectors[0])
        flat = vectors.transpose(0, 1).flatten(1, 2)  # (h, W * tokens, d)
        return read_only(flat[:, _order(places)])
