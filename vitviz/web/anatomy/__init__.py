"""Compute one picture at each step of a model, as arrays: equations (1)-(4) of the ViT paper.

Nothing is estimated: the residual stream, q, k and v come from the capture, and the parts of a
layer are called on them as its own forward pass calls them. A chain of boxes must reproduce the
next tensor of the capture; otherwise it is left out.
"""

from .layers import Box, Residual, head_scores, layer_boxes, residual_stream
from .steps import steps

__all__ = ["Box", "Residual", "head_scores", "layer_boxes", "residual_stream", "steps"]
