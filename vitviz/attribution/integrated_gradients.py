"""Integrated Gradients: the gradient of the target along the way from a grey input to the picture.

The integral is computed by captum, an extra: pip install "vitviz[explain]".
"""

import numpy as np
import torch
from torch import Tensor

from ..activations.targets import Target
from ..common import Progress
from ..common.language import Message
from ..model import Model
from ..model.devices import own_precision
from ..model.families import ModelError
from ..model.inputs import Picture, prepare
from ..model.memory import gradient_bytes, require_memory
from ..model.recording import Recorder
from .outputs import output_question, output_value, sum_over_patches

STEPS = 50  # points of the integral, as captum's default
_TOGETHER = 10  # of these points in one pass, at most
_TOKENS = 4096  # in one pass: with more it takes as long, and more memory


@own_precision()
def integrated_gradients(
    model: Model,
    image: Picture,
    target: Target,
    *,
    steps: int = STEPS,
    progress: Progress | None = None,
) -> np.ndarray:
    """Map one target by Integrated Gradients, summed over the pixels of each patch.

    The input is changed in equal steps from the baseline to the picture. A pixel's attribution is
    its difference from the baseline, times the gradient of the target averaged on the way. The
    baseline is an input of zeros: the mean colour that the preprocessing subtracts, or black if it
    subtracts none.

    Parameters
    ----------
    model, image, target
        As in `relevance`, but a target that is a token has no such map.
    steps : int
        Points at which the gradient is computed, by the rule of Gauss and Legendre: as many passes
        forward and back.
    progress : callable, optional
        Called as progress(done, steps) before each pass, of a few steps; it may raise to stop.

    Returns
    -------
    ndarray of float64, shape (rows, cols)
        In the grid of the first layer and the unit of the target; negative where a patch speaks
        against it. With pixels beyond the grid, the patches sum to the target's value for the
        picture minus its value for the baseline, up to the error of the integral.

    Raises
    ------
    ModelError
        When captum is not installed, the model has no such output, the memory does not suffice, or
        no finite gradient reaches the input.
    ValueError
        When there is no such class, the target does not fit the output, or there is no step.

    Notes
    -----
    A pixel that has the colour of the baseline gets 0, whatever it means for the model. More steps
    make the sum more exact: compare it with the difference of the two values.

    References
    ----------
    Sundararajan, Taly and Yan, "Axiomatic Attribution for Deep Networks", ICML 2017, equation 1;
    Kokhlikyan et al., "Captum", 2020, https://captum.ai.
    """
    if steps < 1:
        raise ValueError(f"Expected at least 1 step, got {steps}.")
    question = output_question(model, target, "Integrated Gradients")
    try:
        from captum.attr import IntegratedGradients
    except ImportError as error:
        raise ModelError(
            'Integrated Gradients needs captum. Install it: pip install "vitviz[explain]".'
        ) from error
    what = Message("A map of one class of {model}", model=model.name)
    tokens = int(np.prod(model.layers[0].query_grid))
    together = min(max(1, _TOKENS // tokens), _TOGETHER)
    require_memory(together * gradient_bytes(model.sites), what, model.device)
    count = 0

    def values(inputs: Tensor) -> Tensor:
        nonlocal count
        if progress is not None:
            progress(count, steps)
        count += len(inputs)
        with model.recording(Recorder()):
            output = model.run(inputs)
        if not output.requires_grad:
            raise ModelError(
                "No gradient of the answer reaches the input of {model}. Check whether a part of "
                "the model computes without gradients.",
                model=model.name,
            )
        return torch.stack([output_value(question, row) for row in output])

    with torch.inference_mode(False), torch.enable_grad():
        x = model.to_device(prepare(model, image).x.clone())[None]
        attribution = IntegratedGradients(values).attribute(
            x, baselines=0, n_steps=steps, internal_batch_size=together
        )
    return sum_over_patches(model, attribution[0].detach().sum(dim=0))
