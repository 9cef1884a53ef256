"""What is seen of one forward pass: a `Recorder`, called back by hooks.

Hooks are in the module for the time of one pass only, and a context variable says whose pass it is,
so that any number of threads can share one module.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .families import Site


class Recorder:
    """Callbacks of one forward pass; the tensor that one returns replaces the one it was given."""

    def embedded(self, patches: Tensor) -> Tensor | None:
        """The patches of the picture, before anything is added to them."""

    def entering(self, layer: int, tokens: Tensor) -> Tensor | None:
        """The residual stream before a block."""

    def projecting(self, layer: int, heads: Tensor) -> Tensor | None:
        """The concatenated heads before the output projection, of the layers asked for."""

    def sealed(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor | None:
        """What goes into an `nn.MultiheadAttention` and what comes out, both (B, T, D)."""

    def attended(self, layer: int, tokens: Tensor) -> None:
        """The residual stream between attention and MLP."""

    def leaving(self, layer: int, tokens: Tensor) -> None:
        """The residual stream after a block."""

    def returning(self, layer: int, output: Any) -> None:
        """What a block returns: its tokens, beside which there may be other things."""


#: The recorder of the forward pass under way in this context.
RECORDER: ContextVar[Recorder | None] = ContextVar("vitviz_recorder", default=None)

_INSTALLING = Lock()  # torch numbers its hooks by a counter that is not thread-safe


class _Hook:
    """A hook that acts in the passes of one recorder only; copied or unpickled, it does nothing."""

    def __init__(
        self, recorder: Recorder | None = None, callback: Callable[[Any, Any], Any] | None = None
    ) -> None:
        self.recorder = recorder
        self.callback = callback

    def __call__(self, part: nn.Module, inputs: Any, output: Any = None) -> Any:
        if self.callback is None or RECORDER.get() is not self.recorder:
            return None
        return self.callback(inputs, output)

    def __reduce__(self) -> tuple[type["_Hook"], tuple[()]]:
        return _Hook, ()


@contextmanager
def recorded(
    embedding: nn.Module, sites: Sequence[Site], recorder: Recorder, projections: Iterable[int]
) -> Iterator[list[int]]:
    """Call `recorder` back during the forward pass that this context makes.

    Parameters
    ----------
    embedding : nn.Module
        Makes tokens of the patches.
    sites : sequence of Site
        The layers of the module.
    recorder : Recorder
    projections : iterable of int
        The layers whose concatenated heads it is handed.

    Yields
    ------
    list of int
        The layers that ran so far, in the order in which they did.
    """
    ran: list[int] = []
    handles = []

    def install(register: Callable[..., RemovableHandle], callback: Callable[..., Any]) -> None:
        handles.append(register(_Hook(recorder, callback)))

    def embedded(inputs: Any, output: Any) -> Tensor | None:
        if not isinstance(embedding, nn.Conv2d):
            return recorder.embedded(_tensor(output))
        changed = recorder.embedded(output.movedim(1, -1))  # (B, R, S, D)
        return None if changed is None else changed.movedim(-1, 1)

    def entering(layer: int, inputs: Any, output: None) -> tuple[Any, ...] | None:
        ran.append(layer)
        return _replaced(recorder.entering(layer, inputs[0]), inputs)

    def projecting(layer: int, inputs: Any, output: None) -> tuple[Any, ...] | None:
        return _replaced(recorder.projecting(layer, inputs[0]), inputs)

    def sealed(layer: int, inputs: Any, output: Any) -> tuple[Any, ...] | None:
        return _replaced(recorder.sealed(layer, inputs[0], output[0]), output)

    def attended(layer: int, inputs: Any, output: None) -> None:
        recorder.attended(layer, inputs[0])

    def leaving(layer: int, inputs: Any, output: Any) -> None:
        recorder.leaving(layer, _tensor(output))
        recorder.returning(layer, output)

    token = RECORDER.set(recorder)
    try:
        with _INSTALLING:
            install(embedding.register_forward_hook, embedded)
            for layer, site in enumerate(sites):
                block = site.block
                install(block.register_forward_pre_hook, partial(entering, layer))
                install(block.register_forward_hook, partial(leaving, layer))
                if site.sealed:
                    install(site.attn.register_forward_hook, partial(sealed, layer))
                if site.middle:
                    middle = block.get_submodule(site.middle)
                    install(middle.register_forward_pre_hook, partial(attended, layer))
            for layer in projections:
                projection = sites[layer].projection
                assert projection is not None
                if sites[layer].sealed:
                    continue
                install(projection.register_forward_pre_hook, partial(projecting, layer))
        yield ran
    finally:
        RECORDER.reset(token)
        for handle in handles:
            handle.remove()


def _replaced(first: Tensor | None, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return None if first is None else (first, *inputs[1:])


def _tensor(output: Any) -> Tensor:
    """The tokens in what a part returns, beside which transformers may put other things."""
    tokens: Tensor = output[0] if isinstance(output, tuple) else output
    return tokens
