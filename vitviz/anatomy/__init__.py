"""What one picture is at each step of a model, as arrays: equations (1)-(4) of the ViT paper.

Nothing is estimated: the residual stream, q, k and v are those of the capture, and the parts of a
layer are called on them as its own forward pass calls them. Each chain of boxes must end in the
next tensor of the capture; where it does not, it is left out.
"""

from .boxes import Box
from .layers import Residual, layer_boxes, residual_stream, scores
from .steps import steps

__all__ = ["Box", "Residual", "layer_boxes", "residual_stream", "scores", "steps"]
