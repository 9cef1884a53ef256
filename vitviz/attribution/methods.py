"""The methods that map what one answer rests on, by name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from ..activations.targets import Target
from ..common import Progress
from ..common.language import mark
from ..model import Model
from ..model.inputs import Picture
from .attn_lrp import attn_lrp
from .gradcam import grad_cam
from .integrated_gradients import STEPS, integrated_gradients
from .maps import attention_gradient, gradient_rollout, relevance


@dataclass(frozen=True)
class Method:
    """One method.

    Attributes
    ----------
    label : str
        Marked for translation.
    explanation : str
        What its numbers are, with the places `{where}` and `{name}` for where the answer is read
        and for the class; marked for translation.
    map : callable(model, image, target) -> ndarray of shape (rows, cols)
        In the grid of the first layer. One of several passes takes `progress`, too.
    is_share : bool
        Whether the map and the prefix tokens' values sum to 1.
    begins_at_identity : bool
        Whether the map holds what each patch has before the first layer.
    passes : int
        Passes forward and back that it takes.
    """

    label: str
    explanation: str
    map: Callable[..., np.ndarray]
    is_share: bool = False
    begins_at_identity: bool = False
    passes: int = 1

    def __call__(
        self,
        model: Model,
        image: Picture,
        target: Target,
        *,
        progress: Progress | None = None,
    ) -> np.ndarray:
        """Return the map, (rows, cols), calling progress(done, of) where it takes several passes.

        Raises
        ------
        ModelError
            When the method is not defined for the model.
        """
        if progress is None or self.passes == 1:
            return self.map(model, image, target)
        return self.map(model, image, target, progress=progress)


#: To add a method, write its function in a file of its own, and one entry here.
METHODS: Mapping[str, Method] = {
    "relevance": Method(
        mark("relevance"),
        mark(
            "Attention weighted by the gradient of the class's logit, with negative values set to "
            "0, combined over all layers, read {where}. This is not attention itself: a patch that "
            "is attended to but does not raise the logit of {name} counts as 0."
        ),
        relevance,
        begins_at_identity=True,
    ),
    "gradient": Method(
        mark("gradient rollout"),
        mark(
            "Attention weighted by the gradient of the class's logit, with negative values set to "
            "0 and rows normalised, combined as in rollout into shares of 100 %, read {where}. "
            "This is not attention itself: a patch that is attended to but does not raise the "
            "logit of {name} counts as 0."
        ),
        gradient_rollout,
        is_share=True,
    ),
    "grad_cam": Method(
        mark("Grad-CAM"),
        mark(
            "The channels that enter the attention of the last layer, each weighted by the mean "
            "gradient of the logit of {name}, and added up. A patch with a sum below 0 counts as "
            "0. This map reads no attention weights, and no layer before the last."
        ),
        grad_cam,
    ),
    "attention_gradient": Method(
        mark("attention times gradient"),
        mark(
            "Attention multiplied by the gradient of the logit of {name}, with negative values set "
            "to 0, averaged over all layers, heads and queries. Layers are not combined with one "
            "another: a value says how much a small change of the attention to this patch matters."
        ),
        attention_gradient,
    ),
    "integrated_gradients": Method(
        mark("Integrated Gradients"),
        mark(
            "The logit of {name} for this picture minus its logit for a picture of one colour, "
            "shared among the patches. The picture is blended in step by step, and the gradient is "
            "averaged on the way. A patch with a negative share lowers the logit."
        ),
        integrated_gradients,
        passes=STEPS,
    ),
    "attn_lrp": Method(
        mark("AttnLRP"),
        mark(
            "The logit of {name}, sent back through the model as relevance: each operation shares "
            "it among its inputs by a fixed rule. Biases, positions and the softmax keep a part. A "
            "patch with negative relevance speaks against {name}."
        ),
        attn_lrp,
    ),
}
