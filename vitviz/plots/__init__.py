"""One Plotly figure per measurement.

Every function takes arrays and returns a `go.Figure` whose `layout.meta["alt"]` says in words what
it shows. Layers, heads, rows and columns count from 1 on screen. Maps are drawn in pixels of the
original picture, each patch one flat rectangle.
"""

from .charts import attention_distance, class_probabilities, position_profile
from .distance import distance_histogram, offset_attention
from .experiments import (
    answer_change,
    logit_lens,
    muted_heads,
    occlusion,
    removal_curves,
    removed_patches,
)
from .maps import (
    attention_rollout,
    filter_response,
    patch_answers,
    picture,
    receptive_fields,
    relevance,
    token_components,
    token_norms,
)
from .pairs import allowed_keys, allowed_pairs, attention_cost
from .template import KEY, QUERY, SHARES, enlarged
from .tiles import (
    filter_components,
    filter_tile,
    filters,
    position_similarity,
    position_tile,
    token_mixing,
)
from .tokens import token_film, token_scatter
from .training import data_hunger, distance_by_layer, entropy_by_layer, training_curves

__all__ = [
    "KEY",
    "QUERY",
    "SHARES",
    "allowed_keys",
    "allowed_pairs",
    "answer_change",
    "attention_cost",
    "attention_distance",
    "attention_rollout",
    "class_probabilities",
    "data_hunger",
    "distance_by_layer",
    "distance_histogram",
    "enlarged",
    "entropy_by_layer",
    "filter_components",
    "filter_response",
    "filter_tile",
    "filters",
    "logit_lens",
    "muted_heads",
    "occlusion",
    "offset_attention",
    "patch_answers",
    "picture",
    "position_profile",
    "position_similarity",
    "position_tile",
    "receptive_fields",
    "relevance",
    "removal_curves",
    "removed_patches",
    "token_components",
    "token_film",
    "token_mixing",
    "token_norms",
    "token_scatter",
    "training_curves",
]
