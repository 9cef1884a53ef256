"""In which order the blocks of a changed module attend among their tokens.

A block may reorder its tokens before it attends, and a module may do so between its blocks. The
proof of a layer would not notice: the attention is right, and drawn at the wrong places.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..common.language import Message
from ..model import Model
from ..model.devices import own_precision
from ..model.families import Site
from ..model.model import noise_input
from .calls import Call
from .forward import run_recorded
from .recorder import AttentionRecorder

_LEAST = 1e-12  # a smaller share of attention has few digits
_CHANGED = 1e-3  # of a value's length, or of a share's logarithm; a smaller change is rounding
#: Patches whose places a mirror image, a turn or a transposition changes, by rows and columns.
_PLACES: tuple[Callable[[int, int], int], ...] = (
    lambda rows, cols: cols - 1,
    lambda rows, cols: (rows - 1) * cols + cols // 2,
)


class _KeepInputs(AttentionRecorder):
    """Keep what each block is given."""

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.inputs: list[Tensor] = []

    def before_block(self, layer: int, tokens: Tensor) -> None:
        super().before_block(layer, tokens)
        self.inputs.append(tokens.clone())

    def tokens_before(self, layer: int) -> Tensor:
        """Return the input of a block as tokens (1, T, D)."""
        return self._flatten(layer, self.inputs[layer])

    def has_own_tokens(self, layer: int) -> bool:
        """Whether the block attends among what it is given: CaiT's last add CLS, and CoAtNet's
        first of a stage reduce the grid."""
        described = self.layers[layer]
        count = len(described.prefix) + math.prod(described.query_grid)
        return self.tokens_before(layer).shape[1] == count


class _ChangeToken(AttentionRecorder):
    """Give each block its input of an earlier pass, with one token changed."""

    def __init__(self, model: Model, plain: _KeepInputs, tokens: list[int]) -> None:
        super().__init__(model)
        self.plain = plain
        self.changed_tokens = tokens
        self.received: list[Tensor] = []  # what each block would have got instead

    def before_block(self, layer: int, tokens: Tensor) -> Tensor:
        super().before_block(layer, tokens)
        self.received.append(tokens.clone())
        changed = self.plain.inputs[layer].clone(memory_format=torch.contiguous_format)
        if self.plain.has_own_tokens(layer):
            token = self._flatten(layer, changed)[:, self.changed_tokens[layer]]  # not a copy
            noise = torch.randn(token.shape, generator=torch.Generator().manual_seed(layer))
            token += noise.to(token) * changed.std()
        return changed


def explain_order(model: Model) -> dict[int, Message]:
    """Explain by layer why its attention is not among its tokens in their order.

    Each block gets, in a pass on noise, what it got in an earlier pass with one token changed. Only
    the query and the value of that token may change. What a block returns may be changed before
    the next one gets it, but no token may take another's place.

    Raises
    ------
    ModelError
        When the model cannot run on noise.
    """
    x = noise_input(model)
    plain = _KeepInputs(model)
    run_recorded(model, x, plain)
    own: set[int] = set()  # layers that reorder their tokens before they attend
    moves = [0] * len(model.layers)  # tokens that came to this layer in another one's place
    for place in _PLACES:
        tokens = [len(each.prefix) + place(*each.query_grid) for each in model.layers]
        changed = _ChangeToken(model, plain, tokens)
        run_recorded(model, x, changed)
        for layer, (site, token) in enumerate(zip(model.sites, tokens, strict=True)):
            if not plain.has_own_tokens(layer):
                continue
            if layer > 0 and changed.received[layer].shape == plain.inputs[layer - 1].shape:
                change = changed.received[layer] - plain.inputs[layer]
                sizes = plain._flatten(layer, change)[0].norm(dim=-1)
                moves[layer] += bool(sizes[token] < sizes.max() / 2)
            calls = (*plain.calls[layer], *changed.calls[layer])
            if len(calls) != 2:
                continue  # every capture refuses the layer
            with own_precision(), torch.inference_mode():
                if _is_misplaced(site, *calls, token):
                    own.add(layer)
    moved = (layer for layer, count in enumerate(moves) if count == len(_PLACES))
    first = min(moved, default=len(model.layers))
    refusals = {}
    for layer, described in enumerate(model.layers):
        if layer in own:
            refusals[layer] = Message(
                "{layer} puts its tokens into another order before they attend to each other, so "
                "its map would be misplaced.",
                layer=described.name,
            )
        elif layer >= first:
            refusals[layer] = Message(
                "The tokens come to {layer} in another order than to the first layer, so its map "
                "would be misplaced.",
                layer=described.name,
            )
    return refusals


def _is_misplaced(site: Site, plain: Call, changed: Call, token: int) -> bool:
    """Whether the query or the value that changed most is that of another token."""
    layer, windows = site.layer, site.windows
    if plain.shape != changed.shape:
        return False  # it keeps as many tokens as it likes, and captures refuse it
    queries, keys = [np.arange(plain.shape[axis])[None] for axis in (2, 3)]
    if windows is not None:
        queries, keys = windows.queries, windows.keys
    same_grid = layer.key_grid == layer.query_grid
    change = (changed.v - plain.v).float().norm(dim=-1) / plain.v.float().norm(dim=-1).mean()
    change = change.amax(dim=1)  # (W, m)
    if same_grid and _is_elsewhere(change, keys, token):
        return True
    if layer.kind == "class":
        return False
    # The share of a changed key changes in every row, and all others by one factor: only in the
    # row of a changed query does the ratio of two other shares change.
    shares = torch.stack([plain.attention(), changed.attention()]).clamp(min=_LEAST).log()
    ratio = shares[1] - shares[0]
    ratio = (ratio - ratio.median(dim=-1, keepdim=True).values).abs().median(dim=-1).values
    return _is_elsewhere(ratio.amax(dim=1), queries, token)


def _is_elsewhere(change: Tensor, places: np.ndarray, token: int) -> bool:
    """Whether the largest change (windows, tokens a window) lies at another token."""
    if change.shape != places.shape or not change.max() > _CHANGED:
        return False  # every capture refuses such a layer; or nothing changed
    return int(places.flat[int(change.argmax())]) != token
