"""Interventions (ablation, occlusion, deletion, insertion), and the logit lens."""

from .lens import logit_lens, patch_lens
from .removal import (
    Curve,
    Progress,
    Removal,
    deletion_curve,
    head_effects,
    insertion_curve,
    occlusion,
    random_map,
)

__all__ = [
    "Curve",
    "Progress",
    "Removal",
    "deletion_curve",
    "head_effects",
    "insertion_curve",
    "logit_lens",
    "occlusion",
    "patch_lens",
    "random_map",
]
