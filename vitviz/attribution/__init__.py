"""Attribution to one target: attention weighted by the gradient of a class's logit, say."""

from ..targets import Similarity, Target, Token
from .gradients import why_not_multiplied
from .maps import gradient_rollout, relevance

__all__ = [
    "Similarity",
    "Target",
    "Token",
    "gradient_rollout",
    "relevance",
    "why_not_multiplied",
]
