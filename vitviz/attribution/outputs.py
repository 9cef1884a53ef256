"""Target, value and sums over patches, for the methods that explain an output of the model."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..activations.edits import grid_margins
from ..activations.targets import PassResult, Question, Similarity, Target, Token
from ..model import Model
from ..model.families import ModelError, has_inference_tensors, is_changed
from ..model.model import noise_input
from ..model.recording import Recorder, hook_this_thread

#: What torch calls the gradient of an operation that has none, as of quantised ones.
_NO_GRADIENT = "torch::autograd::WarnNotImplemented"


def output_question(model: Model, target: Target, method: str, first: int = -1) -> Question:
    """Check the target of a method that explains an output of the model, and needs gradients.

    Raises
    ------
    ModelError
        When the model has no such output, or as `check_gradients`.
    ValueError
        When there is no such class, or the target is a token.
    """
    if isinstance(target, Token | Similarity):
        raise ValueError(
            f"{method} explains an output of the model, not {target}. Give a class, a vector or a "
            "function of the output."
        )
    question = Question(model, target)
    check_gradients(model, first)
    return question


def check_gradients(model: Model, first: int = 0) -> None:
    """Refuse a model that loses the gradient of its answer, wholly or on a part of its way.

    A quantised part loses it, and one that computes under `torch.no_grad`. The other ways would
    give a map all the same, and a wrong one.

    Parameters
    ----------
    first : int
        Layer down to which the gradient is needed; -1 for the input.

    Raises
    ------
    ModelError
        When a part returns no gradient for its input, or torch computes none with the weights.
    """
    if has_inference_tensors(model.module):
        raise ModelError(
            "The weights of {model} were created under torch.inference_mode, so torch computes no "
            "gradient with them. Create the module outside of it.",
            model=model.name,
        )

    if not is_changed(model.module):
        return
    x = noise_input(model)
    constant = _outputs_without_gradient(model, x, first)
    if not constant:
        return
    others = _outputs_without_gradient(model, x.flip(-1) + 1, first)
    for name, output in constant.items():  # a table of positions, for one, is constant
        if name not in others or not torch.equal(output, others[name]):
            raise ModelError(
                "{part} in {model} computes without gradients, so no map of one answer can be "
                "drawn by them. Check whether it is quantised or runs under torch.no_grad.",
                part=name or type(model.module).__name__,
                model=model.name,
            )


class _Forget(Recorder):
    """Forget what came before a layer."""

    def __init__(self, first: int, outputs: dict[str, Tensor]) -> None:
        self.first, self.outputs = first, outputs

    def before_block(self, layer: int, tokens: Tensor) -> None:
        if layer == self.first:
            self.outputs.clear()


def _outputs_without_gradient(model: Model, x: Tensor, first: int) -> dict[str, Tensor]:
    """Return by path the outputs of parts that have no gradient, though their inputs have one."""
    outputs: dict[str, Tensor] = {}

    def keep(name: str, part: nn.Module, inputs: Any, keywords: Any, output: Any) -> None:
        tensors = [each for each in (*inputs, *keywords.values()) if isinstance(each, Tensor)]
        returned = output[0] if isinstance(output, tuple) and output else output
        if (
            isinstance(returned, Tensor)
            and returned.is_floating_point()
            and any(each.requires_grad for each in tensors)
            and (returned.grad_fn is None or returned.grad_fn.name() == _NO_GRADIENT)
        ):
            outputs[name] = returned.detach().clone()

    with ExitStack() as hooks:
        for name, part in model.module.named_modules():
            register = partial(part.register_forward_hook, with_kwargs=True)
            hooks.enter_context(hook_this_thread(register, partial(keep, name)))
        with (
            torch.inference_mode(False),
            torch.enable_grad(),
            model.recording(_Forget(first, outputs)),
        ):
            model.run(x.clone().requires_grad_())
    return outputs


def output_value(question: Question, output: Tensor) -> Tensor:
    """Return the target's value for the output (K,) of a pass."""
    result = PassResult(output.float(), output, lambda: output, np.empty(0, int))
    return question.value(result, None)


def hold_scale(
    hold: Callable[[Tensor], Tensor],
    norm: Callable[..., Tensor],
    x: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float | None = None,
) -> Tensor:
    """Compute `F.layer_norm` or `F.rms_norm`; `hold` receives its scale, and returns the one used.

    With `Tensor.detach` the values stay, and no gradient passes through the scale.
    """
    axes = tuple(range(-len(shape), 0))
    is_centred = norm is F.layer_norm
    centred = x - x.mean(axes, keepdim=True) if is_centred else x
    if eps is None:
        eps = 1e-5 if is_centred else torch.finfo(x.dtype).eps
    y = centred * hold((centred.square().mean(axes, keepdim=True) + eps).rsqrt())
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def sum_over_patches(model: Model, pixels: Tensor) -> np.ndarray:
    """Sum values of the input's pixels (H, W) over each patch: float64 of shape (rows, cols).

    Pixels beyond the grid of patches are left out.
    """
    layer = model.layers[0]
    (rows, cols), (height, width) = layer.query_grid, layer.patch_side
    inside = F.pad(pixels.cpu().double(), [-margin for margin in grid_margins(model, pixels.shape)])
    values: np.ndarray = inside.reshape(rows, height, cols, width).sum(dim=(1, 3)).numpy()
    if not np.isfinite(values).all():
        raise ModelError(
            "The gradient in the input of {model} is NaN or infinite, so no map is drawn.",
            model=model.name,
        )
    values.setflags(write=False)
    return values
