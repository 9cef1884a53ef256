"""`Activations`: attention and tokens of every layer in one forward pass, and its logits."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..families import ModelError
from ..language import Message
from .calls import Call, FusedCall, expanded
from .forward_pass import ForwardPass, read_only
from .maps import Direction, Query, checked, map_of
from .proof import why_differs
from .streaming import AttentionLayers

if TYPE_CHECKING:
    from ..inspection import Measurements
    from ..notebook import Shown
    from ..notebook.widget import TokenMap


class Activations(ForwardPass):
    """What one forward pass of one picture computed; immutable, and without the model itself.

    Layers, heads and tokens count from 0. Arrays are read-only float32.
    """

    def show(
        self, *, layer: int | None = None, head: int | None = 0, query: Query | None = None
    ) -> "Shown":
        """The token map of all layers and heads, live in the output of a notebook.

        It is a page of HTML in a frame of its own, and needs neither a kernel nor a network: it
        stays live in a notebook that was saved.

        Parameters
        ----------
        layer : int, optional
            The first on screen; the last layer where left out.
        head : int or None
            None for the mean of the heads.
        query : int or (row, column), optional
            As in `attention_map`.

        Raises
        ------
        ModelError
            When a layer has no attention to show.
        ValueError
            When there is no such layer, head or token.
        """
        from ..notebook import shown

        return shown("attention", self, layer=layer, head=head, query=query)

    def widget(
        self, *, layer: int | None = None, head: int | None = 0, query: Query | None = None
    ) -> "TokenMap":
        """`show` as a widget: `layer`, `head` and `query` say what is chosen, and can be set.

        It needs a kernel, and anywidget: `pip install "vitviz[notebook]"`.

        Raises
        ------
        ImportError
            Without anywidget.
        ModelError, ValueError
            As `show`.
        """
        from ..notebook import checked
        from ..notebook.widget import TokenMap

        return TokenMap(
            self, checked(self, self.depth - 1 if layer is None else layer, head, query)
        )

    def measure(self) -> "Measurements":
        """All measurements of attention in one pass over the layers: `inspection.measurements`.

        Those of a batch of `captures` are made together, at the first call.
        """
        from ..inspection import measurements

        together = None if self.batch is None else self.batch.measurements
        return measurements(self) if together is None else together[self._number]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the capture to an NPZ file, which `vitviz.load_activations` reads.

        numpy reads it too. Layers and depths count from 0, windows are the first axis (1 where
        every token meets every token):

        - `logits` (K,), `tokens_{depth}` (tokens, D), `tokens_after_attention_{layer}` (tokens, D)
        - `q_{layer}`, `k_{layer}`, `v_{layer}` (windows, heads, tokens, head_dim), `scale_{layer}`
          and where there is one `bias_{layer}`: attention is softmax(scale q k^T + bias). Where it
          was read at a softmax, `weights_{layer}` (windows, heads, queries, keys) is attention.
        - `about`: layers, labels, model, weights and geometry, as JSON; `photo`: the picture.

        Raises
        ------
        OSError
            When the file cannot be written.
        """
        from .saving import written

        Path(path).write_bytes(written(self))

    def attention(self, layer: int) -> np.ndarray:
        """A of one layer: ndarray of shape (heads, queries, keys); each row sums to 1.

        Attention within windows is expanded to a matrix of all patches, with 0 between patches of
        different windows. Shares of padding are left out, so that a row may sum to less than 1.

        Raises
        ------
        ModelError
            When the layer has no attention, or it does not reproduce the block's own output.
        """
        attention, windows = self._proved(layer).float().numpy(), self._windows[layer]
        whole = attention[0]
        if windows is not None:
            whole = expanded(attention, windows, self.layers[layer])
        whole.flags.writeable = False
        return whole

    def attention_layers(self) -> AttentionLayers:
        """The attention of each layer in turn, computed when it is reached; it can be read again.

        Where it is a plain softmax of q k^T, `inspection.measurements` reads it a block of rows at
        a time and never makes a whole matrix.

        Raises
        ------
        ModelError
            When the layers are no chain of matrices over the same tokens, so that what follows
            attention through all of them, such as rollout, is not defined.
        """
        if not self.all_to_all:
            kinds = " and ".join(sorted({layer.kind for layer in self.layers}))
            raise ModelError(
                "Its layers ({kinds} attention, {sets} sets of tokens) are no chain of "
                "matrices over the same tokens, so rollout is not defined.",
                kinds=kinds,
                sets=len(self._token_sets),
            )
        return AttentionLayers(
            self.layers,
            tokens=self.layout(0).keys.shape[1],
            read_tokens=self.read_tokens,
            attention=self.attention,
            calls=tuple(c for c in self._calls if isinstance(c, FusedCall) and c.bias is None),
        )

    def windows(self, layer: int) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """The attention of one layer and the places of its tokens, window by window.

        Yields
        ------
        attention : ndarray of shape (heads, n, m)
        queries : ndarray of shape (n, 2)
            Row and column of the centre of each query's patch, in pixels of the model's input; NaN
            for prefix tokens and padding.
        keys : ndarray of shape (m, 2)
            The same of the keys.

        Raises
        ------
        ModelError
            As `attention`.
        """
        described = self._layer(layer)
        attention, windows = self.attention_by_window(layer), self.layout(layer)
        step = np.array(described.patch_side, np.float64)
        offset = self._offsets[layer]
        for window, queries, keys in zip(attention, windows.queries, windows.keys, strict=True):
            yield (
                window,
                _centres(queries, described.query_grid, step) + offset,
                _centres(keys, described.key_grid, step * windows.key_step) + offset,
            )

    def attention_by_window(self, layer: int) -> np.ndarray:
        """A of each window, shape (windows, heads, n, m), with its tokens in the order of `layout`.

        Raises
        ------
        ModelError
            As `attention`.
        """
        return read_only(self._proved(layer))

    def attention_map(
        self,
        layer: int,
        query: Query | None = None,
        *,
        direction: Direction = "row",
    ) -> np.ndarray:
        """One token's attention over the patches: ndarray of shape (heads, rows, columns).

        A row lies in the layer's key grid, a column in its query grid; windows, their shift and
        the pooling of keys are undone.

        Parameters
        ----------
        layer : int
        query : int or (row, column), optional
            A token's number in the full sequence (prefix first), or a patch by its place in the
            query grid (of a column: in the key grid). Left out: CLS, or the mean of the patches
            where there is none.
        direction : "row" or "column"
            The row of A says where the token looks, the column who looks at it.

        Raises
        ------
        ModelError
            As `attention`, and when the token is not in the layer.

        Notes
        -----
        The shares of the prefix tokens are not in the map, so it sums to less than 1. Patches that
        were dropped, and those outside of the token's window, get 0.
        """
        if direction not in ("row", "column"):
            raise ValueError(f'Expected the direction "row" or "column", got {direction!r}.')
        attention = self._proved(layer).float().numpy()
        full = map_of(self._layer(layer), self.layout(layer), attention, query, direction)
        full.flags.writeable = False
        return full

    def queries(self, layer: int) -> np.ndarray:
        """q of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.q, self.layout(layer).queries)

    def keys(self, layer: int) -> np.ndarray:
        """k of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.k, self.layout(layer).keys)

    def values(self, layer: int) -> np.ndarray:
        """v of one layer: ndarray of shape (heads, tokens, head_dim)."""
        return self._vectors(layer, lambda call: call.v, self.layout(layer).keys)

    def score_terms(self, layer: int) -> tuple[float, np.ndarray | None]:
        """What turns q k^T into scores: the scale, and the bias that is added before the softmax.

        Returns
        -------
        scale : float
            1 / sqrt(head_dim) in a plain ViT.
        bias : ndarray of shape (heads, queries, keys), or None
            Of each pair of places, where every token meets every token.
        """
        call = self._call(layer)
        if not isinstance(call, FusedCall) or len(call.q) > 1:
            raise ModelError(
                "{layer} has no one product of q and k.", layer=self.layers[layer].name
            )
        return call.scale, None if call.bias is None else read_only(call.bias[0])

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
            norm = self._final_norm
            if norm is None or getattr(norm, "normalized_shape", z.shape[-1:]) != z.shape[-1:]:
                raise ModelError(
                    "There is no final LayerNorm for tokens of width {width}.", width=z.shape[-1]
                )
            with torch.inference_mode():
                if isinstance(norm, nn.LayerNorm):  # timm has one of maps (B, D, R, S)
                    z = F.layer_norm(z, z.shape[-1:], norm.weight, norm.bias, norm.eps)
                else:
                    z = norm(z)
        return read_only(z)

    def tokens_after_attention(self, layer: int) -> np.ndarray:
        """z'_l of eq. 2: ndarray of shape (tokens, D)."""
        z = self._after_attention[checked(layer, self.depth, "layer")]
        if z is None:
            raise ModelError(
                "Attention and MLP of {layer} run side by side, so there are no tokens "
                "between them.",
                layer=self.layers[layer].name,
            )
        return read_only(z)

    def _call(self, layer: int) -> Call:
        described, call = self._layer(layer), self._calls[layer]
        if described.refusal or call is None:
            raise ModelError(
                described.refusal
                or Message("{layer} has no attention to show.", layer=described.name)
            )
        return call.cpu()

    def _proved(self, layer: int) -> Tensor:
        """A of every window (W, h, n, m), all of it compared with the block's own output."""
        call = self._call(layer)
        with torch.inference_mode():
            attention = call.attention()
            (refusal,) = why_differs(
                self.layers[layer], call.projected(attention), call.output.projected, call.half
            )
        if refusal:
            raise ModelError(refusal)
        return attention

    def _vectors(
        self, layer: int, of: Callable[[FusedCall], Tensor], places: np.ndarray
    ) -> np.ndarray:
        call = self._call(layer)
        if not isinstance(call, FusedCall):
            raise ModelError(
                "{layer} is read at its softmax, so its queries, keys and values are not kept.",
                layer=self.layers[layer].name,
            )
        vectors = of(call)  # (W, h, tokens, d)
        if len(vectors) == 1:
            return read_only(vectors[0])
        flat = vectors.transpose(0, 1).flatten(1, 2)  # (h, W * tokens, d)
        order = np.argsort(places, axis=None, kind="stable")[np.count_nonzero(places < 0) :]
        return read_only(flat[:, torch.from_numpy(order)])


def _centres(places: np.ndarray, grid: tuple[int, int], step: np.ndarray) -> np.ndarray:
    """Row and column of each patch's centre in pixels (n, 2), NaN for what is no patch."""
    cells = np.stack(np.divmod(places, grid[1]), axis=1)
    return np.where(places[:, None] >= 0, (cells + 0.5) * step, np.nan)
