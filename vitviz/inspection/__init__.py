"""Measure attention, tokens and positions, as in the ViT paper and beyond: arrays in and out.

`attention` is any iterable over layers of arrays of shape (heads, tokens, tokens), read once and
one layer at a time. Its rows are queries, its columns keys, and each row sums to 1. The prefix
tokens come first, then the patches in row-major order of a grid (rows, cols).

Instead of arrays each measurement takes a capture, `vitviz.Activations`, which knows its grid, its
prefix tokens, the size of its patches and where its head reads the answer. Arguments that say the
same must agree with it.

float32 and float64 are kept for the computation; every other type becomes float32.

"The ViT paper" is Dosovitskiy et al., "An Image is Worth 16x16 Words" (ICLR 2021),
https://arxiv.org/abs/2010.11929.
"""

from .attention import (
    attention_distance,
    attention_entropy,
    prefix_mass,
    query_attention,
    uniform_distance,
)
from .comparison import (
    common_maps,
    cross_similarity,
    joint_components,
    map_correlation,
    mutual_matches,
    nearest_depth,
    nearest_patches,
    patch_ranks,
    resampled,
)
from .embeddings import filter_components, filter_response, token_components
from .measurements import Measurements, batch_measurements, measurements
from .offsets import distance_histogram, offset_attention, uniform_histogram
from .patterns import Patterns, Sinks, attention_patterns, attention_sinks
from .positions import (
    mirror_similarity,
    neighbour_similarity,
    position_profile,
    position_similarity,
    position_table,
    resized_positions,
)
from .rollout import attention_rollout, rollout_steps
from .tokens import foreground, norm_outliers, token_norms, token_scatter, token_similarity
from .windows import allowed_pairs, multiply_adds, windowed_distance

__all__ = [
    "Measurements",
    "Patterns",
    "Sinks",
    "allowed_pairs",
    "attention_distance",
    "attention_entropy",
    "attention_patterns",
    "attention_rollout",
    "attention_sinks",
    "batch_measurements",
    "common_maps",
    "cross_similarity",
    "distance_histogram",
    "filter_components",
    "filter_response",
    "foreground",
    "joint_components",
    "map_correlation",
    "measurements",
    "mirror_similarity",
    "multiply_adds",
    "mutual_matches",
    "nearest_depth",
    "nearest_patches",
    "neighbour_similarity",
    "norm_outliers",
    "offset_attention",
    "patch_ranks",
    "position_profile",
    "position_similarity",
    "position_table",
    "prefix_mass",
    "query_attention",
    "resampled",
    "resized_positions",
    "rollout_steps",
    "token_components",
    "token_norms",
    "token_scatter",
    "token_similarity",
    "uniform_distance",
    "uniform_histogram",
    "windowed_distance",
]
