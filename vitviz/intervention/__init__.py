"""Interventions (ablation, occlusion, deletion, insertion), and the logit lens."""

from ..common import Progress
from .lens import aligns_patches, logit_lens, patch_lens, word_map
from .muting import head_effects, head_outputs, mean_head_outputs
from .patching import PatchEffects, patch_heads, patch_tokens, token_blocks
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
    "PatchEffects",
    "Progress",
    "RandomCurve",
    "Removal",
    "aligns_patches",
    "deletion_curve",
    "head_effects",
    "head_outputs",
    "insertion_curve",
    "logit_lens",
    "mean_head_outputs",
    "occlusion",
    "patch_heads",
    "patch_lens",
    "patch_tokens",
    "random_curve",
    "random_map",
    "removal_areas",
    "token_blocks",
    "word_map",
]
