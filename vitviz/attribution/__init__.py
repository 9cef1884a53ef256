"""Explain one answer: maps of a target, and what each part of the model adds to it."""

from ..activations.targets import Similarity, Target, Token
from .attn_lrp import attn_lrp
from .gradcam import grad_cam
from .gradients import shared_gradients, why_not_multiplied
from .integrated_gradients import integrated_gradients
from .logits import LogitParts, direct_logit_attribution
from .maps import attention_gradient, gradient_rollout, relevance
from .methods import METHODS, Method

__all__ = [
    "METHODS",
    "LogitParts",
    "Method",
    "Similarity",
    "Target",
    "Token",
    "attention_gradient",
    "attn_lrp",
    "direct_logit_attribution",
    "grad_cam",
    "gradient_rollout",
    "integrated_gradients",
    "relevance",
    "shared_gradients",
    "why_not_multiplied",
]
