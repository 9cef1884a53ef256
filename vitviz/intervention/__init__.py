"""Interventions (ablation, occlusion, deletion, insertion), and the logit lens."""

from .lens import logit_lens, patch_lens, word_map
from .muting import Progress, head_effects, head_outputs, mean_head_outputs
from .removal import (
    RANDOM_ORDERS,
    Curve,
    RandomCurve,
    Removal,
    deletion_curve,
    insertion_curve,
    occlusion,
    random_curve,
    random_map,
    removal_areas,
)

__all__ = [
    "RANDOM_ORDERS",
    "Curve",
    "Progress",
    "RandomCurve",
    "Removal",
    "deletion_curve",
    "head_effects",
    "head_outputs",
    "insertion_curve",
    "logit_lens",
    "mean_head_outputs",
    "occlusion",
    "patch_lens",
    "random_curve",
    "random_map",
    "removal_areas",
    "word_map",
]
