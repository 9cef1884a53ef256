"""What one answer rests on: maps of a target, and what each part of the model adds to it."""

from ..activations.targets import Similarity, Target, Token
from .gradcam import grad_cam
from .gradients import why_not_multiplied
from .logits import LogitParts, direct_logit_attribution
from .maps import gradient_rollout, relevance
from .methods import METHODS, Method

__all__ = [
    "METHODS",
    "LogitParts",
    "Method",
    "Similarity",
    "Target",
    "Token",
    "direct_logit_attribution",
    "grad_cam",
    "gradient_rollout",
    "relevance",
    "why_not_multiplied",
]
