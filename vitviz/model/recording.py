"""`Recorder`: callbacks of one forward pass, called by hooks.

The hooks are in the module during one pass only, and a context variable says whose pass it is, so
that any number of threads can share one module.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from threading import Lock, get_ident
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from .families import Layer, ModelError, Parts, Site
from .families.description import without_adapter


class Recorder:
    """Callbacks of one forward pass; a tensor that a callback returns replaces its argument."""

    def on_patches(self, patches: Tensor) -> Tensor | None:
        """Receive the embedded patches, before anything is added to them."""

    def before_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        """Receive the residual stream before a block."""

    def before_projection(self, layer: int, heads: Tensor) -> Tensor | None:
        """Receive the concatenated heads before the output projection, of requested layers."""

    def on_joined_heads(self, layer: int, heads: Tensor) -> None:
        """Receive the concatenated heads of a layer with `Site.overrides_forward`."""

    def on_multihead_attention(self, layer: int, tokens: Tensor, output: Tensor) -> Tensor | None:
        """Receive input and output of an `nn.MultiheadAttention`, both (B, T, D)."""

    def before_mlp(self, layer: int, tokens: Tensor) -> None:
        """Receive the residual stream between attention and MLP."""

    def after_block(self, layer: int, tokens: Tensor) -> Tensor | None:
        """Receive the residual stream after a block."""

    def on_block_output(self, layer: int, tokens: Tensor, output: Any) -> None:
        """Receive what the next block is given: the residual stream, and all that a block returns.

        Hooks of others may have replaced both since `after_block`.
        """


#: The recorder of the forward pass under way in this context.
RECORDER: ContextVar[Recorder | None] = ContextVar("vitviz_recorder", default=None)

_INSTALLING = Lock()  # torch numbers its hooks by a counter that is not thread-safe


class _Hook:
    """A hook that acts in the passes of one recorder only; a copy of it does nothing."""

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
def hook_this_thread(
    register: Callable[..., RemovableHandle], callback: Callable[..., Any]
) -> Iterator[None]:
    """Have a hook in the module within a `with` block, called in the passes of this thread only.

    Parameters
    ----------
    register : bound method of a module, such as `register_forward_hook`
    callback : callable
        The hook; what it returns replaces its argument as torch says.
    """
    thread = get_ident()  # others may run the module meanwhile

    def hook(*arguments: Any) -> Any:
        return callback(*arguments) if get_ident() == thread else None

    with _INSTALLING:
        handle = register(hook)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def record_pass(
    parts: Parts, sites: Sequence[Site], recorder: Recorder, projections: Iterable[int]
) -> Iterator[list[int]]:
    """Call `recorder` back during the forward pass that this context makes.

    Parameters
    ----------
    parts : Parts
    sites : sequence of Site
        Layers of the module.
    recorder : Recorder
    projections : iterable of int
        Layers whose concatenated heads are passed to the recorder.

    Yields
    ------
    list of int
        Layers that ran so far, in this order.

    Raises
    ------
    ModelError
        During the pass, when tokens lie on another grid than the one described. No other check
        would notice a grid with as many tokens.
    """
    ran: list[int] = []
    embedding = parts.embedding
    handles = []

    def install(register: Callable[..., RemovableHandle], callback: Callable[..., Any]) -> None:
        handles.append(register(_Hook(recorder, callback)))

    def within(layer: int, callback: Callable[..., Any]) -> Callable[..., Any]:
        """Call back only while the layer's block runs: blocks may share a part, such as an MLP."""
        return lambda *arguments: callback(layer, *arguments) if ran[-1:] == [layer] else None

    def on_patches(inputs: Any, output: Any) -> Tensor | None:
        if not isinstance(without_adapter(embedding), nn.Conv2d):
            return recorder.on_patches(_tensor(output))
        new_patches = recorder.on_patches(output.movedim(1, -1))  # (B, R, S, D)
        return None if new_patches is None else new_patches.movedim(-1, 1)

    def before_block(layer: int, inputs: Any, output: None) -> tuple[Any, ...] | None:
        ran.append(layer)
        return _replace_first(recorder.before_block(layer, inputs[0]), inputs)

    def before_projection(layer: int, inputs: Any, output: None) -> tuple[Any, ...] | None:
        return _replace_first(recorder.before_projection(layer, inputs[0]), inputs)

    def on_joined_heads(layer: int, inputs: Any, output: None) -> None:
        recorder.on_joined_heads(layer, inputs[0])

    def on_multihead_attention(layer: int, inputs: Any, output: Any) -> tuple[Any, ...] | None:
        return _replace_first(recorder.on_multihead_attention(layer, inputs[0], output[0]), output)

    def before_mlp(layer: int, inputs: Any, output: None) -> None:
        recorder.before_mlp(layer, inputs[0])

    def check_grid(layer: Layer, grid: tuple[int, ...]) -> None:
        if grid != layer.query_grid:
            raise ModelError(
                "{layer} has a grid of {rows} x {cols} tokens in this pass, expected {own_rows} x "
                "{own_cols}. The positions of its patches are unknown.",
                layer=layer.name,
                rows=grid[0],
                cols=grid[1],
                own_rows=layer.query_grid[0],
                own_cols=layer.query_grid[1],
            )

    def check_kernel(inputs: Any, output: Any) -> None:
        if isinstance(output, Tensor) and output.ndim == 4:
            check_grid(sites[0].layer, tuple(output.shape[2:]))

    def after_block(layer: int, inputs: Any, output: Any) -> Any:
        tokens = _tensor(output)
        if tokens.ndim == 4:
            first = 1 if sites[layer].layout == "rows" else 2
            check_grid(sites[layer].layer, tuple(tokens.shape[first : first + 2]))
        new_tokens = recorder.after_block(layer, tokens)
        if new_tokens is None or not isinstance(output, tuple):
            return new_tokens
        return (new_tokens, *output[1:])

    def on_block_output(layer: int, inputs: Any, output: Any) -> None:
        recorder.on_block_output(layer, _tensor(output), output)

    token = RECORDER.set(recorder)
    try:
        with _INSTALLING:
            install(embedding.register_forward_hook, on_patches)
            if parts.kernel is not None:
                install(parts.kernel.register_forward_hook, check_kernel)
            for layer, site in enumerate(sites):
                block = site.block
                install(block.register_forward_pre_hook, partial(before_block, layer))
                # Prepended, so that hooks of others see what the recorder changed.
                first = partial(block.register_forward_hook, prepend=True)
                install(first, partial(after_block, layer))
                install(block.register_forward_hook, partial(on_block_output, layer))
                if site.is_multihead:
                    install(site.attn.register_forward_hook, within(layer, on_multihead_attention))
                elif site.overrides_forward and site.projection is not None:
                    install(
                        site.projection.register_forward_pre_hook, within(layer, on_joined_heads)
                    )
                if site.known_middle:
                    middle = block.get_submodule(site.known_middle)
                    install(middle.register_forward_pre_hook, within(layer, before_mlp))
            for layer in projections:
                projection = sites[layer].projection
                assert projection is not None
                if sites[layer].is_multihead:
                    continue
                install(projection.register_forward_pre_hook, within(layer, before_projection))
        yield ran
    finally:
        RECORDER.reset(token)
        for handle in handles:
            handle.remove()


def _replace_first(first: Tensor | None, inputs: tuple[Any, ...]) -> tuple[Any, ...] | None:
    return None if first is None else (first, *inputs[1:])


def _tensor(output: Any) -> Tensor:
    """Return the tokens in a part's output; transformers may return them in a tuple."""
    tokens: Tensor = output[0] if isinstance(output, tuple) else output
    return tokens
