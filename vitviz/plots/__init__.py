"""One Plotly figure per measurement.

Every function takes arrays and returns a `go.Figure` whose `layout.meta["alt"]` says in words what
it shows. Layers, heads, rows and columns count from 1 on screen. Maps are drawn in pixels of the
original picture, each patch one flat rectangle.
"""

from .charts import attention_distance, class_probabilities, position_profile, prefix_shares
from .experiments import (
    answer_change,
    logit_lens,
    muted_heads,
    occlusion,
    removal_curves,
    removed_patches,
)
from .maps import (
    MAX_SUBPLOTS,
    attention_rollout,
    filter_response,
    heads,
    picture,
    query_attention,
    token_components,
    token_map,
)
from .template import GREY, KEY, QUERY, SHARES, SIGNED, Box
from .tiles import filter_components, filter_tile, filters, position_similarity, position_tile

__all__ = [
    "GREY",
    "KEY",
    "MAX_SUBPLOTS",
    "QUERY",
    "SHARES",
    "SIGNED",
    "Box",
    "answer_change",
    "attention_distance",
    "attention_rollout",
    "class_probabilities",
    "filter_components",
    "filter_response",
    "filter_tile",
    "filters",
    "heads",
    "logit_lens",
    "muted_heads",
    "occlusion",
    "picture",
    "position_profile",
    "position_similarity",
    "position_tile",
    "prefix_shares",
    "query_attention",
    "removal_curves",
    "removed_patches",
    "token_components",
    "token_map",
]
