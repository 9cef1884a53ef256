"""Draw one Plotly figure per measurement.

Every function takes arrays, many also a capture (`plots.attention_map(acts, layer, head)`), and
returns a `go.Figure` whose `layout.meta["alt"]` describes it in words. `save` writes it as HTML, or
with kaleido as PNG, SVG or PDF, together with the record of how it was made. Layers, heads, rows
and columns count from 1 on screen. Maps are drawn in pixels of the picture, one rectangle per
patch.
"""

from .captures import (
    attention_distance,
    attention_map,
    attention_rollout,
    class_probabilities,
    distance_histogram,
    offset_attention,
    picture,
    token_components,
    token_film,
    token_norms,
    token_scatter,
)
from .charts import position_profile
from .clicked import (
    guesses,
    guesses_by_layer,
    guesses_of_percent,
    muted_heads,
    removed_patches,
    with_guess,
    with_guessed_layer,
)
from .comparison import distance_by_depth, distance_difference, joint_components, mutual_matches
from .experiments import (
    answer_change,
    judged_maps,
    logit_lens,
    occlusion,
    parts_by_head,
    patch_effects,
    removal_curves,
)
from .maps import (
    filter_response,
    patch_answers,
    ranked_maps,
    receptive_fields,
    relevance,
    word_map,
)
from .pairs import allowed_keys, allowed_pairs, attention_cost
from .paper import for_paper, head_grid, save
from .template import KEY, QUERY, SHARES, enlarged
from .tiles import (
    filter_components,
    filter_product,
    filter_tile,
    filters,
    position_similarity,
    position_tile,
    token_mixing,
)
from .training import conditions, data_hunger, distance_by_layer, entropy_by_layer, training_curves

__all__ = [
    "KEY",
    "QUERY",
    "SHARES",
    "allowed_keys",
    "allowed_pairs",
    "answer_change",
    "attention_cost",
    "attention_distance",
    "attention_map",
    "attention_rollout",
    "class_probabilities",
    "conditions",
    "data_hunger",
    "distance_by_depth",
    "distance_by_layer",
    "distance_difference",
    "distance_histogram",
    "enlarged",
    "entropy_by_layer",
    "filter_components",
    "filter_product",
    "filter_response",
    "filter_tile",
    "filters",
    "for_paper",
    "guesses",
    "guesses_by_layer",
    "guesses_of_percent",
    "head_grid",
    "joint_components",
    "judged_maps",
    "logit_lens",
    "muted_heads",
    "mutual_matches",
    "occlusion",
    "offset_attention",
    "parts_by_head",
    "patch_answers",
    "patch_effects",
    "picture",
    "position_profile",
    "position_similarity",
    "position_tile",
    "ranked_maps",
    "receptive_fields",
    "relevance",
    "removal_curves",
    "removed_patches",
    "save",
    "token_components",
    "token_film",
    "token_mixing",
    "token_norms",
    "token_scatter",
    "training_curves",
    "with_guess",
    "with_guessed_layer",
    "word_map",
]
