"""`explain_order`: find the layers of a changed module that attend among reordered tokens.

A block may reorder its tokens before it attends, and a module may do so between its blocks. The
proof of a layer does not notice this: the attention is right, and would be drawn at wrong places.
"""

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..common.language import Message
from ..model import Model
from ..model.devices import own_precision
from ..model.families import ModelError, Site
from ..model.memory import require_memory
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

    def before_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        super().before_block(layer, tokens)
        self.inputs.append(tokens.clone())
        return None

    def tokens_before(self, layer: int) -> Tensor:
        """Return the input of a block as tokens (1, T, D)."""
        return self._flatten(layer, self.inputs[layer])

    def tokens_after(self, layer: int) -> Tensor:
        """Return the tokens after a block as the next one gets them."""
        last = layer + 1 == len(self.layers)
        return self.stream[-1] if last else self.tokens_before(layer + 1)

    def has_own_tokens(self, layer: int) -> bool:
        """Whether the block attends among the tokens that it is given.

        CaiT's last blocks add CLS to them, and CoAtNet's first block of a stage reduces the grid.
        """
        described = self.layers[layer]
        count = len(described.prefix) + math.prod(described.query_grid)
        return self.tokens_before(layer).shape[1] == count


class _ChangeToken(_KeepInputs):
    """Give each block its input of an earlier pass, with one token changed.

    `inputs` holds what each block would have got otherwise.
    """

    def __init__(self, model: Model, plain: _KeepInputs, tokens: list[int]) -> None:
        super().__init__(model)
        self.plain = plain
        self.changed_tokens = tokens

    def before_block(self, layer: int, tokens: Tensor) -> Tensor:
        super().before_block(layer, tokens)
        changed = self.plain.inputs[layer].clone(memory_format=torch.contiguous_format)
        if self.plain.has_own_tokens(layer):
            token = self._flatten(layer, changed)[:, self.changed_tokens[layer]]  # not a copy
            random = torch.Generator().manual_seed(layer)
            noise = torch.randn(token.shape, generator=random, device="cpu")
            token += noise.to(token) * changed.std()
        return changed


def explain_order(model: Model) -> dict[int, Message]:
    """Explain, for each layer that reorders its tokens before it attends, that it does.

    Two passes on noise are compared. In the second one each block gets the same input again, with
    one token changed. The query and the value that change most must be those of this token, and it
    must come to the next block at the same place.

    Raises
    ------
    ModelError
        When the model cannot run on noise, the memory does not suffice for two captures and their
        inputs, or a block returns its tokens in another order.
    """
    what = Message("A check of the order of tokens in {model}", model=model.name)
    require_memory(3 * model.capture_bytes, what, model.device)
    x = noise_input(model)
    plain = _KeepInputs(model)
    run_recorded(model, x, plain)
    refusals: dict[int, Message] = {}
    moves = [0] * len(model.layers)  # changed tokens that come to the next block at other places
    for place in _PLACES:
        tokens = [len(each.prefix) + place(*each.query_grid) for each in model.layers]
        changed = _ChangeToken(model, plain, tokens)
        run_recorded(model, x, changed)
        for layer, (site, token) in enumerate(zip(model.sites, tokens, strict=True)):
            if not plain.has_own_tokens(layer):
                continue
            before, after = plain.tokens_after(layer), changed.tokens_after(layer)
            if before.shape == after.shape == plain.tokens_before(layer).shape:
                sizes = (after - before)[0].float().norm(dim=-1)
                moves[layer] += bool(sizes[token] < sizes.max() / 2)
            calls = (*plain.calls[layer], *changed.calls[layer])
            if len(calls) != 2:
                continue  # every capture refuses the layer
            with own_precision(), torch.inference_mode():
                if _is_misplaced(site, *calls, token):
                    refusals[layer] = Message(
                        "{layer} puts its tokens into another order before they attend to each "
                        "other, so its map would be misplaced.",
                        layer=site.layer.name,
                    )
    if len(_PLACES) in moves:
        raise ModelError(
            "{model} reorders its tokens in {layer} or after it, so maps would be misplaced.",
            model=model.name,
            layer=model.layers[moves.index(len(_PLACES))].name,
        )
    return refusals


def _is_misplaced(site: Site, plain: Call, changed: Call, token: int) -> bool:
    """Whether the query or the value that changed most is that of another token."""
    layer, windows = site.layer, site.windows
    if plain.shape != changed.shape:
        return False  # the number of tokens depends on the picture, which captures refuse
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
    before, after = plain.attention(), changed.attention()
    is_faint = (before < _LEAST) | (after < _LEAST)  # masked, above all
    ratio = (after / before).log().masked_fill_(is_faint, math.nan)
    ratio = (ratio - ratio.nanmedian(dim=-1, keepdim=True).values).abs().nanmedian(dim=-1).values
    return _is_elsewhere(ratio.nan_to_num(0).amax(dim=1), queries, token)


def _is_elsewhere(change: Tensor, places: np.ndarray, token: int) -> bool:
    """Whether the largest change (windows, tokens a window) lies at another token."""
    if change.shape != places.shape or not change.max() > _CHANGED:
        return False  # every capture refuses such a layer; or nothing changed
    return int(places.flat[int(change.argmax())]) != token
